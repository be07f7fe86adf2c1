//! Reading from and writing to a client, within bounds.

use std::io;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

/// What one read takes at most.
const READ_BYTES: usize = 8 * 1024;

/// What is still read from a client after its answer, so that closing does not reset the
/// connection and destroy an answer on its way.
pub(super) const LINGER_BYTES: usize = 64 * 1024;
/// How long that may take.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// Appends what has come in, at least one byte unless at the end. Holds no buffer of its
/// own while it waits.
///
/// # Errors
/// As the socket has it.
pub(super) async fn read_some(stream: &TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        match read_now(stream, into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            read => return read,
        }
    }
}

/// Kept out of the future: its buffer lives on the stack of one call.
fn read_now(stream: &TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = [0; READ_BYTES];
    let read = stream.try_read(&mut chunk)?;
    into.extend_from_slice(&chunk[..read]);
    Ok(read)
}

/// Writes all, as long as each write makes progress in time.
///
/// # Errors
/// As the socket has it, or `TimedOut`.
pub(super) async fn write_all(
    stream: &TcpStream,
    mut bytes: &[u8],
    write_timeout: Duration,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                timeout(write_timeout, stream.writable())
                    .await
                    .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Closes after an answer. Where nothing unread is left that is a plain close; otherwise
/// the client is told that no more comes, and what it still sends is read, within bounds.
pub(super) async fn close(mut stream: TcpStream, expect_more: bool) {
    let mut scrap = Vec::new();
    if !expect_more {
        match read_now(&stream, &mut scrap) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    if stream.shutdown().await.is_err() {
        return;
    }
    let until = Instant::now() + LINGER;
    let mut left = LINGER_BYTES.saturating_sub(scrap.len());
    while left > 0 {
        scrap.clear();
        match timeout_at(until, read_some(&stream, &mut scrap)).await {
            Ok(Ok(read @ 1..)) => left = left.saturating_sub(read),
            _ => return,
        }
    }
}
