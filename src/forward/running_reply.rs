//! A reply that is passed on as it arrives.
//!
//! Its request may still be on its way: a backend may answer before it has read all of it, and continue to read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use tidegate_h1::BodyLeft;
use tidegate_limits::scheduler::Outcome;
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use super::backend::BackendHandle;
use super::client_left::finish_after_close;
use super::failure::Failure;
use super::outgoing::Outgoing;
use super::pinned::ConnectionFate;
use super::streamed::ReplySource;
use super::upstream::Upstream;
use crate::call::job_meter::StartedJob;
use crate::call::{
    AnswerMeter, BodyError, HttpCall, OnClientLeft, PolledFrame, Reason, Record, Slot,
};

/// Most bytes of one read of a long body.
pub(super) const BODY_BYTES: usize = 32 * 1024;

/// A request that is still being sent while its reply is passed on.
pub(super) struct LateUpload {
    pub(super) outgoing: Outgoing,
    pub(super) call: Box<HttpCall>,
}

/// A reply whose head has arrived.
pub(super) struct RunningReply<S: Slot> {
    pub(super) upstream: Upstream,
    /// Where the connection goes afterwards; `None` if it cannot be used again, by what is known so far.
    pub(super) keeping: Option<ConnectionFate>,
    pub(super) upload: Option<Box<LateUpload>>,
    pub(super) slot: S,
    pub(super) record: Arc<Record>,
    pub(super) backend: Arc<BackendHandle>,
    pub(super) on_client_left: OnClientLeft,
    pub(super) deadline: Instant,
    /// Reads what the answer says.
    pub(super) meter: Option<Box<AnswerMeter>>,
    /// Bytes of the body so far.
    pub(super) read: u64,
    /// Bytes that came and were not passed on.
    pub(super) here: Bytes,
    pub(super) left: BodyLeft,
    /// Room for the next read. Its memory is used again once what was read has left.
    pub(super) room: BytesMut,
}

impl<S: Slot> RunningReply<S> {
    /// The next part of the body that is here. `None` if more must be read first, or if it has ended.
    fn take_part(&mut self) -> Result<Option<Bytes>, Failure> {
        while !self.here.is_empty() {
            if self.left.has_ended() {
                // It belongs to no reply.
                self.keeping = None;
                self.here.clear();
                return Ok(None);
            }
            let step = self.left.step(&self.here);
            let step = step.map_err(|_| Failure::Chunks)?;
            let _framing = self.here.split_to(step.framing);
            let part = self.here.split_to(step.data);
            if !part.is_empty() {
                self.read += part.len() as u64;
                if let Some(meter) = &mut self.meter {
                    meter.feed(&part);
                }
                return Ok(Some(part));
            }
        }
        Ok(None)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Failure>> {
        self.poll_upload(cx);
        loop {
            if let Some(part) = self.take_part()? {
                // Also reads an end that is here.
                if let BodyLeft::Chunks(_) = self.left {
                    self.read_end()?;
                }
                self.note_whole();
                return Poll::Ready(Ok(Some(part)));
            }
            if self.left.has_ended() {
                self.note_whole();
                return Poll::Ready(Ok(None));
            }
            self.room.reserve(BODY_BYTES);
            let link = Pin::new(&mut self.upstream.link);
            match poll_read_buf(link, cx, &mut self.room) {
                // Only an end that the backend has sent is one. After a reset, or with TLS an end that was not
                // announced, more may have been meant to follow (RFC 9112, 8).
                Poll::Ready(Ok(0)) if matches!(self.left, BodyLeft::Close) => {
                    self.left = BodyLeft::None;
                    self.keeping = None;
                    self.note_whole();
                    return Poll::Ready(Ok(None));
                }
                Poll::Ready(Ok(0) | Err(_)) => {
                    self.left = BodyLeft::None;
                    self.keeping = None;
                    return Poll::Ready(Err(Failure::CutBody(self.read)));
                }
                Poll::Ready(Ok(_)) => self.here = self.room.split().freeze(),
                Poll::Pending => {
                    ready!(self.upstream.timer.poll_until(self.deadline, cx));
                    let within = self.backend.bounds.response_timeout;
                    return Poll::Ready(Err(Failure::Late(within)));
                }
            }
        }
    }

    /// Goes on sending the request. Its failure does not end a reply that has begun.
    fn poll_upload(&mut self, cx: &mut Context<'_>) {
        if let Some(upload) = &mut self.upload {
            let LateUpload { outgoing, call } = &mut **upload;
            if outgoing.poll(call, &mut self.upstream.link, cx).is_ready() {
                self.upload = None;
            }
        }
    }

    /// Tells the meter if the body is whole.
    fn note_whole(&mut self) {
        if let Some(meter) = self.meter.as_mut().filter(|_| self.left.has_ended()) {
            meter.note_whole();
        }
    }

    /// Notes how much of the reply there was, and what the call has cost. Returns the job that the reply begins.
    fn note_end(&mut self, outcome: Outcome) -> Option<StartedJob> {
        let is_whole = self.left.has_ended() && outcome == Outcome::Served;
        let reading = self.meter.take().map(|it| it.end(is_whole));
        let reading = reading.unwrap_or_default();
        if let Some(tokens) = reading.cost {
            self.slot.charge(tokens);
        }
        self.record.note(|facts| facts.bytes_out = self.read);
        reading.job
    }

    /// Reads the last chunk, if it is the next that is here.
    fn read_end(&mut self) -> Result<(), Failure> {
        let mut ahead = self.left;
        let step = ahead.step(&self.here);
        if step.is_ok_and(|step| step.data == 0) && ahead.has_ended() {
            self.take_part()?;
        }
        Ok(())
    }
}

/// A reply that is too large to hold, or of unknown length.
impl<S: Slot> ReplySource for RunningReply<S> {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let part = ready!(self.poll_part(cx));
        if let Err(failure) = &part {
            let reason = match self.deadline <= Instant::now() {
                true => Reason::BackendSlow,
                false => failure.reason(),
            };
            self.record.note(|facts| facts.reason = Some(reason));
        }
        let part = part.map_err(BodyError::from);
        Poll::Ready(part.map(|part| part.map(Frame::data)).transpose())
    }

    fn keeps_sending(&self) -> bool {
        false
    }

    fn is_over(&self) -> bool {
        self.left.has_ended()
    }

    fn on_client_left(&self) -> OnClientLeft {
        self.on_client_left
    }

    fn narrowest(&self) -> Option<u32> {
        self.slot.narrowest()
    }

    fn end(mut self, outcome: Outcome) {
        let job = self.note_end(outcome);
        let is_clean = self.here.is_empty() && self.upload.is_none() && outcome == Outcome::Served;
        let since = match job {
            Some(job) => self.slot.hand_to_job(job),
            None => self.slot.finish(outcome),
        };
        if let Some(keeping) = self.keeping.filter(|_| is_clean) {
            keeping.keep(self.upstream, since, &self.backend);
        }
    }

    fn abandon(mut self) {
        self.note_end(Outcome::Failed);
        drop(self.upstream);
        finish_after_close(self.slot, self.backend.bounds.after_close);
    }

    fn record(&self) -> &Record {
        &self.record
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.left.length();
        length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
