//! The services that the page protects: any HTTP service, and a model server.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tidegate_lab::model_server::{ModelServer, ModelServerOptions, RunningModelServer};

use super::AT_ONCE;

/// How long a service is down after it has fallen.
pub(super) const RECOVER: Duration = Duration::from_secs(1);
/// Tokens of an answer of the model server.
const TOKENS: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceKind {
    Http,
    ModelServer,
}

/// A service that falls when more than four calls run at once.
#[derive(Debug)]
pub(super) enum Service {
    Http(RunningBackend),
    ModelServer(RunningModelServer),
}

impl Service {
    pub(super) async fn start(kind: ServiceKind, a_call: Duration) -> Self {
        match kind {
            ServiceKind::Http => {
                let options = StandInOptions {
                    delay: a_call,
                    break_in_flight: AT_ONCE,
                    recover: RECOVER,
                    ..StandInOptions::on_free_ports()
                };
                Self::Http(StandInBackend::start(options).await.expect("it listens"))
            }
            ServiceKind::ModelServer => {
                let options = ModelServerOptions {
                    http: SocketAddr::from(([127, 0, 0, 1], 0)),
                    break_at_once: AT_ONCE,
                    recover: RECOVER,
                    token: a_call / TOKENS,
                    tokens: TOKENS,
                    ..ModelServerOptions::default()
                };
                Self::ModelServer(ModelServer::start(options).expect("it listens"))
            }
        }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        match self {
            Self::Http(backend) => backend.http_addr(),
            Self::ModelServer(server) => server.addr(),
        }
    }

    /// A call, after whose answer the connection closes.
    pub(super) fn request(&self) -> String {
        match self {
            Self::Http(_) => {
                "GET /guests/G1/info HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n".to_owned()
            }
            Self::ModelServer(_) => {
                let body = r#"{"model":"llama","messages":[{"role":"user","content":"hello"}]}"#;
                format!(
                    "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\
                     Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                )
            }
        }
    }

    /// Calls that were answered well.
    pub(super) fn answered(&self) -> u64 {
        match self {
            Self::Http(backend) => backend.report().answered,
            Self::ModelServer(server) => server.statistics().answered,
        }
    }

    /// The most calls at once.
    pub(super) fn peak(&self) -> u32 {
        match self {
            Self::Http(backend) => backend.report().peak_in_flight,
            Self::ModelServer(server) => server.statistics().at_once_peak,
        }
    }

    pub(super) fn falls(&self) -> u64 {
        match self {
            Self::Http(backend) => backend.report().falls.into(),
            Self::ModelServer(server) => server.statistics().died,
        }
    }
}
