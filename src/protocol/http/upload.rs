//! A body that is streamed once its call has its turn.
//!
//! It is read from the client only when the backend is ready for more. The connection reads its socket
//! ([`Upload`]); the exchange with the backend takes the parts ([`UploadBody`]).

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tidegate_h1::{BodyLeft, write};
use tidegate_runtime::{Timer, lock};
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use super::super::ClientSettings;
use super::super::stream::ClientStream;
use super::super::wire::OnEof;
use super::client_socket::ClientSocket;
use crate::call::{BodyError, ByteStream, ClientLeft, PolledFrame, RequestBody};

/// Most bytes of one read of a streamed body.
const READ_BYTES: usize = 32 * 1024;

/// The grace time of a client before the minimum rate applies.
const GRACE: Duration = Duration::from_secs(5);

impl ClientSocket {
    /// Reads on. Ready when the call can go on with a part. `unsent` gets the permission to send, if one is due.
    pub(super) fn poll_upload_of_waiting(
        &mut self,
        upload: &mut Upload,
        unsent: &mut Vec<u8>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if upload.takes_permission() {
            unsent.extend_from_slice(write::CONTINUE);
        }
        upload.poll(&mut self.stream, self.on_eof, &mut self.timer, cx)
    }
}

/// A streamed body, as the connection reads it.
pub(super) struct Upload {
    shared: Arc<Mutex<UploadState>>,
    left: BodyLeft,
    /// The client waits for the permission to send.
    waits: bool,
    /// Bytes that came and were not taken.
    here: Bytes,
    /// Room for the next read. Its memory is used again once what was read has left.
    room: BytesMut,
    body_timeout: Duration,
    min_rate: u32,
    received: u64,
    /// How long the client has delayed the backend.
    delayed: Duration,
    delays_since: Option<Instant>,
}

/// The connection's and the exchange's side of a streamed body.
struct UploadState {
    /// The next part, or why there is none.
    part: Option<Result<Bytes, BodyError>>,
    /// The exchange waits for a part.
    is_wanted: bool,
    /// No part follows.
    has_ended: bool,
    /// Bytes that the exchange has not got, if that is known.
    left: Option<u64>,
    waker: Option<Waker>,
}

impl Upload {
    /// Begins an upload behind the part that was read. Returns both ends.
    pub(super) fn start(
        read: Bytes,
        left: BodyLeft,
        waits: bool,
        settings: &ClientSettings,
    ) -> (RequestBody, Box<Self>) {
        let shared = Arc::new(Mutex::new(UploadState {
            part: None,
            is_wanted: false,
            has_ended: false,
            left: left.length(),
            waker: None,
        }));
        let rest = ByteStream::new(UploadBody(Arc::clone(&shared)));
        let upload = Self {
            // A client that sends its body at once does not wait for the permission.
            waits: waits && read.is_empty(),
            shared,
            left,
            here: Bytes::new(),
            room: BytesMut::new(),
            body_timeout: settings.body_timeout,
            min_rate: settings.body_min_rate,
            received: 0,
            delayed: Duration::ZERO,
            delays_since: None,
        };
        (RequestBody::Streamed { read, rest }, Box::new(upload))
    }

    /// Takes bytes that came behind the part that was read.
    pub(super) fn take(&mut self, bytes: Vec<u8>) {
        self.here = bytes.into();
    }

    /// Whether all of the body was read.
    pub(super) fn has_ended(&self) -> bool {
        self.left.has_ended()
    }

    /// Bytes behind the body, which belong to the next request.
    pub(super) fn take_surplus(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.here).into()
    }

    /// Whether the client waits for the permission to send, and has not got it.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Whether the client must be given the permission to send, now that the backend is ready. Returned once.
    pub(super) fn takes_permission(&mut self) -> bool {
        self.waits && lock(&self.shared).is_wanted && std::mem::take(&mut self.waits)
    }

    /// Reads the next part if the backend is ready for it. Ready when the exchange has something new.
    pub(super) fn poll(
        &mut self,
        stream: &mut ClientStream,
        on_eof: OnEof,
        timer: &mut Timer,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if !lock(&self.shared).is_wanted {
            return Poll::Pending;
        }
        loop {
            match self.take_part() {
                Ok(part) if part.is_some() || self.has_ended() => {
                    self.deliver(part.map(Ok));
                    return Poll::Ready(());
                }
                Ok(_) => {}
                Err(error) => {
                    self.deliver(Some(Err(error)));
                    return Poll::Ready(());
                }
            }
            self.room.reserve(READ_BYTES);
            match poll_read_buf(Pin::new(&mut *stream), cx, &mut self.room) {
                Poll::Ready(Ok(1..)) => {
                    self.end_delay();
                    self.here = self.room.split().freeze();
                }
                Poll::Ready(read) => {
                    let is_here = read.is_ok() && on_eof == OnEof::Stays;
                    self.deliver(Some(Err(match is_here {
                        true => "the request's body ends in the middle".into(),
                        false => ClientLeft.into(),
                    })));
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    let since = *self.delays_since.get_or_insert_with(Instant::now);
                    let due = since + self.patience().saturating_sub(self.delayed);
                    ready!(timer.poll_until(due, cx));
                    self.deliver(Some(Err("the client sends its body too slowly".into())));
                    return Poll::Ready(());
                }
            }
        }
    }

    /// The next part that is here.
    fn take_part(&mut self) -> Result<Option<Bytes>, BodyError> {
        while !self.here.is_empty() && !self.has_ended() {
            let step = self.left.step(&self.here);
            let step = step.map_err(|_| "the chunks of the request are malformed")?;
            let _framing = self.here.split_to(step.framing);
            let part = self.here.split_to(step.data);
            if !part.is_empty() {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }

    fn deliver(&mut self, part: Option<Result<Bytes, BodyError>>) {
        if let Some(Ok(bytes)) = &part {
            self.received += bytes.len() as u64;
        }
        let has_failed = matches!(part, Some(Err(_)));
        let mut state = lock(&self.shared);
        state.part = part;
        state.is_wanted = false;
        state.has_ended = has_failed || self.has_ended();
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn end_delay(&mut self) {
        if let Some(since) = self.delays_since.take() {
            self.delayed += since.elapsed();
        }
    }

    /// How long the client may have delayed the backend by now. The time in which the backend is not ready does not
    /// count.
    fn patience(&self) -> Duration {
        let earned =
            Duration::from_secs_f64(self.received as f64 / f64::from(self.min_rate.max(1)));
        (GRACE + earned).min(self.body_timeout)
    }
}

/// The connection has ended, so no more of the body comes.
impl Drop for Upload {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.deliver(Some(Err(ClientLeft.into())));
        }
    }
}

/// A streamed body, as the exchange takes it.
struct UploadBody(Arc<Mutex<UploadState>>);

impl Body for UploadBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let mut state = lock(&self.0);
        if let Some(part) = state.part.take() {
            if let (Ok(bytes), Some(left)) = (&part, &mut state.left) {
                *left -= bytes.len() as u64;
            }
            return Poll::Ready(Some(part.map(Frame::data)));
        }
        if state.has_ended {
            return Poll::Ready(None);
        }
        state.is_wanted = true;
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            waker => *waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        let state = lock(&self.0);
        state.has_ended && state.part.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let left = lock(&self.0).left;
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
