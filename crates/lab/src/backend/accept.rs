//! Accepts connections, and serves each in a task of its own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_runtime::command::listen;
use tokio::io::Interest;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::StandInBackend;
use super::model::next;
use crate::conn::{self, Conn, Watched, watched};

/// Pause after a failed accept: without free descriptors, the next would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    Socket,
    Http,
    Stats,
}

/// Accepts until the backend stops. While a model is down, the port is closed.
pub(super) async fn accept(
    listener: TcpListener,
    port: Port,
    backend: Arc<StandInBackend>,
    stop: CancellationToken,
) {
    let mut connections = JoinSet::new();
    let mut collapses = backend.collapses(port);
    let mut listener = Some(watched(listener).expect("the runtime has watched it before"));
    while let Some(open) = listener {
        let up = tokio::select! {
            biased;
            up = next(&mut collapses) => Some(up),
            () = stop.cancelled() => None,
            never = take(&open, port, &backend, &mut connections) => match never {},
        };
        listener = match (up, open.get_ref().local_addr()) {
            (Some(up), Ok(address)) => {
                drop(open);
                tokio::time::sleep_until(up).await;
                Some(again(address, backend.recorder.options.backlog).await)
            }
            _ => None,
        };
    }
    connections.shutdown().await;
}

/// Accepts for ever.
async fn take(
    listener: &Watched,
    port: Port,
    backend: &Arc<StandInBackend>,
    connections: &mut JoinSet<()>,
) -> Infallible {
    loop {
        let accepted = listener.async_io(Interest::READABLE, conn::accept).await;
        let Ok(stream) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let backend = Arc::clone(backend);
        // The client of a failed connection sees the failure; there is nothing to report here.
        match port {
            Port::Socket => connections.spawn(async move {
                let _ = backend.serve_socket(Conn::new(stream)).await;
            }),
            Port::Http | Port::Stats => connections.spawn(async move {
                let _ = backend.serve_http(stream, port).await;
            }),
        };
        while connections.try_join_next().is_some() {}
    }
}

/// Listens again after a collapse. Another program may have the port for a moment.
async fn again(address: SocketAddr, backlog: u32) -> Watched {
    loop {
        match listen(address, backlog).and_then(watched) {
            Ok(listener) => return listener,
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}
