//! A proxy on hyper: a server, a client, and persistent connections between them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::connect;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The backend, and its connections. A copy has the same ones.
#[derive(Clone, Debug)]
pub(super) struct HyperProxy {
    to: SocketAddr,
    /// The last used at the end. One whose reply is still being read is not ready.
    connections: Arc<Mutex<Vec<SendRequest<Incoming>>>>,
}

impl HyperProxy {
    pub(super) fn new(to: SocketAddr) -> Self {
        let connections = Arc::default();
        Self { to, connections }
    }

    /// Serves a client until it leaves.
    pub(super) async fn serve(self, client: TcpStream) -> hyper::Result<()> {
        let service = service_fn(move |request| self.clone().forward(request));
        http1::Builder::new()
            .serve_connection(TokioIo::new(client), service)
            .await
    }

    /// Sends a request as it is, and returns the reply as it is.
    async fn forward(self, request: Request<Incoming>) -> Result<Response<Incoming>, Error> {
        let mut backend = match self.ready() {
            Some(backend) => backend,
            None => self.open().await?,
        };
        let reply = backend.send_request(request).await?;
        self.with(|connections| connections.push(backend));
        Ok(reply)
    }

    /// A connection that takes a request now; the last used one is the most likely to be open.
    fn ready(&self) -> Option<SendRequest<Incoming>> {
        self.with(|connections| {
            connections.retain(|it| !it.is_closed());
            let at = connections.iter().rposition(SendRequest::is_ready)?;
            Some(connections.remove(at))
        })
    }

    async fn open(&self) -> Result<SendRequest<Incoming>, Error> {
        let stream = connect(self.to).await?;
        let (backend, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(backend)
    }

    fn with<T>(&self, change: impl FnOnce(&mut Vec<SendRequest<Incoming>>) -> T) -> T {
        let connections = self.connections.lock();
        change(&mut connections.unwrap_or_else(PoisonError::into_inner))
    }
}
