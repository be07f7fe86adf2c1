//! What carries a connection, whatever it is.

use tokio::io::{AsyncRead, AsyncWrite};

/// Both directions of a connection: TCP, a socket file, TLS over one of them, or a pipe in a test.
///
/// As `Box<dyn Stream>` it is one type for all of them. What is above, such as HTTP/2, is then once in the program.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}
