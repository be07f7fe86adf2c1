//! Answers that do not leave with the first write, bodies that stream, and the end of a connection.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::Body as _;
use tidegate_h1::write;
use tidegate_runtime::poll_write_both;
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::super::client_socket::ClientSocket;
use super::super::upload::Upload;
use super::{Rest, StreamFraming, UnsentAnswer, WriteError, WriteProgress};
use crate::call::ByteStream;
use crate::protocol::io::{LINGER, UnreadBytes};

/// The end of a chunk.
const BEHIND_CHUNK: &[u8] = b"\r\n";

/// How long a client may still send a body that was not read, so that it sees the answer first: in all, and without
/// a byte.
const LINGER_UPLOAD: Duration = Duration::from_secs(30);
const LINGER_SILENCE: Duration = Duration::from_secs(5);

impl ClientSocket {
    /// Writes what remains of an answer.
    pub(super) async fn send_rest(
        &mut self,
        unsent: Box<UnsentAnswer>,
        upload: &mut Option<Box<Upload>>,
    ) -> Result<WriteProgress, WriteError> {
        let UnsentAnswer { first, rest } = *unsent;
        match rest {
            Rest::None => self.write(&first, &[], upload).await?,
            Rest::Whole(bytes) => self.write(&first, &bytes, upload).await?,
            Rest::Stream(body, streamed_as) => {
                self.stream_body(first, body, streamed_as, upload).await?;
            }
            Rest::Tunnel(tunnel) => {
                self.write(&first, &[], upload).await?;
                return Ok(WriteProgress::Tunnel(tunnel));
            }
        }
        Ok(WriteProgress::Later)
    }

    /// Writes a body as it arrives. If it breaks off, so does the answer. If the client leaves, the body is dropped.
    async fn stream_body(
        &mut self,
        mut first: Vec<u8>,
        mut body: ByteStream,
        streamed_as: StreamFraming,
        upload: &mut Option<Box<Upload>>,
    ) -> Result<(), WriteError> {
        let chunked = streamed_as == StreamFraming::Chunks;
        loop {
            let frame = poll_fn(|cx| {
                self.poll_upload(upload, cx);
                if let ready @ Poll::Ready(_) = Pin::new(&mut body).poll_frame(cx) {
                    return ready;
                }
                // What is here goes out before the wait.
                if !first.is_empty() {
                    return Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::new()))));
                }
                self.stream
                    .poll_left(cx, self.on_eof)
                    .map(|()| Some(Err("the client has left".into())))
            })
            .await;
            let Some(frame) = frame else { break };
            let Ok(data) = frame.map_err(|_| WriteError)?.into_data() else {
                continue;
            };
            if chunked && !data.is_empty() {
                write::chunk_size(data.len(), &mut first);
                self.write(&first, &data, upload).await?;
                first.clear();
                first.extend_from_slice(BEHIND_CHUNK);
                if !body.is_end_stream() {
                    continue;
                }
                break;
            }
            self.write(&first, &data, upload).await?;
            first.clear();
        }
        if chunked {
            first.extend_from_slice(write::LAST_CHUNK);
        }
        self.write(&first, &[], upload).await
    }

    /// Goes on reading a body while its answer leaves already.
    fn poll_upload(&mut self, upload: &mut Option<Box<Upload>>, cx: &mut Context<'_>) {
        if let Some(upload) = upload {
            // The exchange is woken, in this task, and takes what was read.
            let _ = upload.poll(&mut self.stream, self.on_eof, &mut self.timer, cx);
        }
    }

    /// Writes all bytes, and continues an upload meanwhile.
    pub(in crate::protocol::http) async fn write(
        &mut self,
        first: &[u8],
        second: &[u8],
        upload: &mut Option<Box<Upload>>,
    ) -> Result<(), WriteError> {
        let mut written = 0;
        let mut stalled_since = None;
        poll_fn(|cx| {
            while written < first.len() + second.len() {
                let stream = Pin::new(&mut self.stream);
                let first_left = first.get(written..).unwrap_or_default();
                let second_left = &second[written.saturating_sub(first.len())..];
                match poll_write_both(stream, first_left, second_left, cx) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Err(WriteError)),
                    Poll::Ready(Ok(more)) => {
                        written += more;
                        stalled_since = None;
                    }
                    Poll::Pending => {
                        self.poll_upload(upload, cx);
                        return self.poll_stalled(&mut stalled_since, cx);
                    }
                }
            }
            if self.stream.is_tls() {
                // Written bytes may still wait to be encrypted and sent.
                return match Pin::new(&mut self.stream).poll_flush(cx) {
                    Poll::Ready(flushed) => Poll::Ready(flushed.map_err(|_| WriteError)),
                    Poll::Pending => self.poll_stalled(&mut stalled_since, cx),
                };
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Ready when a write has made no progress for too long.
    fn poll_stalled(
        &mut self,
        since: &mut Option<Instant>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), WriteError>> {
        let since = *since.get_or_insert_with(Instant::now);
        let due = since + self.write_timeout;
        ready!(self.timer.poll_until(due, cx));
        Poll::Ready(Err(WriteError))
    }

    /// Sends the end, then reads what the client still sends, within bounds. An immediate close
    /// would reset the connection and destroy an answer on its way. A client in the middle of its body has longer: many
    /// read no answer before they have sent all of it.
    pub(in crate::protocol::http) async fn close(&mut self, upload: Option<Box<Upload>>) {
        let owes_body = upload.is_some_and(|upload| !upload.has_ended());
        let (whole, silence, mut unread) = match owes_body {
            true => (LINGER_UPLOAD, LINGER_SILENCE, UnreadBytes::all()),
            false => (LINGER, LINGER, UnreadBytes::default()),
        };
        let until = Instant::now() + whole;
        let mut silent_until = Instant::now() + silence;
        let mut is_shut = false;
        poll_fn(|cx| {
            if !is_shut {
                let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
                if shut.is_pending() {
                    return self.timer.poll_until(until, cx);
                }
                is_shut = true;
            }
            let before = unread.seen();
            if unread.poll_discard(cx, &mut self.stream).is_ready() {
                return Poll::Ready(());
            }
            if unread.seen() > before {
                silent_until = Instant::now() + silence;
            }
            self.timer.poll_until(silent_until.min(until), cx)
        })
        .await;
    }
}
