//! How capacity servers are connected to.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;

use tidegate_runtime::tls::TlsClient;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The two directions of a connection.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// A future connection.
pub type Dialing = Pin<Box<dyn Future<Output = io::Result<Box<dyn Transport>>> + Send>>;

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
        Box::pin(async move { Ok(Box::new(connected(&server).await?) as Box<dyn Transport>) })
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
            Ok(Box::new(session) as Box<dyn Transport>)
        })
    }
}

async fn connected(server: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The innermost cause of an error, which says most.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
