//! How capacity servers are connected to.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tidegate_runtime::tls::{CloseReason, TlsClient};
use tidegate_runtime::{ByteStream, lock};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Status;
use tower::{Service, service_fn};

/// A connection that was made.
pub struct DialedConnection {
    /// The stream that carries the requests.
    pub stream: Box<dyn ByteStream>,
    /// Why the server ended it, once it has said so.
    pub said: CloseReason,
}

/// A future connection.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<DialedConnection>> + Send>>;

/// Makes connections to capacity servers. The default is plain TCP.
pub trait Dial: fmt::Debug + Send + Sync + 'static {
    /// Connects to a server, `host:port`.
    fn dial(&self, server: &str) -> Dialing;
}

/// Plain TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDial;

impl Dial for TcpDial {
    fn dial(&self, server: &str) -> Dialing {
        let server = server.to_owned();
        Box::pin(async move {
            let stream = Box::new(connected(&server).await?);
            let said = CloseReason::default();
            Ok(DialedConnection { stream, said })
        })
    }
}

/// TLS, with `h2` among its protocols.
#[derive(Clone, Debug)]
pub struct TlsDial(pub TlsClient);

impl Dial for TlsDial {
    fn dial(&self, server: &str) -> Dialing {
        let (server, tls) = (server.to_owned(), self.0.clone());
        Box::pin(async move {
            let host = server.rsplit_once(':').map_or(&*server, |(host, _)| host);
            let host = host.trim_matches(['[', ']']);
            let session = tls.connect(host, connected(&server).await?).await?;
            let said = session.said();
            let stream = Box::new(session);
            Ok(DialedConnection { stream, said })
        })
    }
}

async fn connected(server: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// How it went with the connections of one channel, which connects again when it must.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dials {
    has_failed: Arc<AtomicBool>,
    said: Arc<Mutex<CloseReason>>,
}

impl Dials {
    /// Makes connections to a server for its channel, each within a bound.
    pub(crate) fn connector(
        &self,
        dial: &Arc<dyn Dial>,
        server: &str,
        within: Duration,
    ) -> impl Service<Uri, Response = TokioIo<Box<dyn ByteStream>>, Error = io::Error, Future: Send>
    + Send
    + 'static
    + use<> {
        let (dial, server, dials) = (Arc::clone(dial), server.to_owned(), self.clone());
        service_fn(move |_| {
            let dialing = timeout(within, dial.dial(&server));
            let dials = dials.clone();
            async move {
                // What an earlier connection was told says nothing about this one.
                *lock(&dials.said) = CloseReason::default();
                let dialed = dialing.await.unwrap_or_else(|late| Err(late.into()));
                dials.has_failed.store(dialed.is_err(), Ordering::Relaxed);
                let DialedConnection { stream, said } = dialed?;
                *lock(&dials.said) = said;
                Ok(TokioIo::new(stream))
            }
        })
    }

    /// Whether the last attempt to connect has failed. It says so once.
    pub(crate) fn have_failed(&self) -> bool {
        self.has_failed.swap(false, Ordering::Relaxed)
    }

    /// Why there is no answer: what the server said when it ended TLS, or the innermost cause.
    pub(crate) fn cause(&self, status: &Status) -> String {
        let said = lock(&self.said);
        match (said.get(), std::error::Error::source(status)) {
            (Some(said), _) => said.to_owned(),
            (None, Some(source)) => innermost(source),
            (None, None) if status.message().is_empty() => status.code().to_string(),
            (None, None) => status.message().to_owned(),
        }
    }
}

/// The innermost cause of an error, which says most.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
