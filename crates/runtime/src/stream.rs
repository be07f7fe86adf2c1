//! The stream below a connection, whatever it is.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};

/// Both directions of a connection: TCP, a socket file, TLS over one of them, or a pipe in a test.
///
/// As `Box<dyn Stream>` it is one type for all of them. What is above, such as HTTP/2, is then once in the program.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Writes what it takes of two pieces of bytes, in one system call if both have any.
///
/// # Errors
/// If the connection fails.
pub fn poll_write_both(
    stream: Pin<&mut impl AsyncWrite>,
    first: &[u8],
    second: &[u8],
    cx: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    match (first, second) {
        (first, []) => stream.poll_write(cx, first),
        ([], second) => stream.poll_write(cx, second),
        _ => stream.poll_write_vectored(cx, &[IoSlice::new(first), IoSlice::new(second)]),
    }
}
