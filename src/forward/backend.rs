//! Connections to a backend.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Address;

/// Why no byte of a call could be sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The connect failed.
    #[error("cannot connect to the backend")]
    Refused(#[source] io::Error),
    /// The connect took longer than `connect_timeout`.
    #[error("the backend took no connection within {0:?}")]
    TimedOut(Duration),
    /// It connected and then took no byte.
    #[error("the backend closed before a byte was written")]
    ClosedBefore(#[source] io::Error),
}

/// Connects within a bound.
pub(super) async fn connect(address: &Address, bound: Duration) -> Result<TcpStream, ConnectError> {
    let connecting = async {
        match address {
            Address::Ip(address) => TcpStream::connect(address).await,
            Address::Name(name, port) => TcpStream::connect((&**name, *port)).await,
        }
    };
    match timeout(bound, connecting).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(ConnectError::Refused(error)),
        Err(_) => Err(ConnectError::TimedOut(bound)),
    }
}
