//! Reads an answer as it passes: what its call has cost, the session that it opens or closes, and its job.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use tidegate_message::{JsonPointers, LastEvent};

use super::ReplyHead;
use super::answer::{AnswerPlace, is_readable, text_of, value_is};
use super::job_meter::{JobMeter, StartedJob};
use super::session::SessionChange;

/// Reads what the answer of one call says, as that passes.
#[derive(Clone, Debug)]
pub struct AnswerMeter {
    cost: Option<CostMeter>,
    session: Option<SessionMeter>,
    job: Option<Box<JobMeter>>,
}

/// The facts in an answer about its call.
#[derive(Debug, Default)]
pub struct AnswerReading {
    /// The cost, if the answer says it.
    pub cost: Option<u64>,
    /// The job that the answer begins.
    pub job: Option<StartedJob>,
}

impl AnswerMeter {
    /// A meter for an answer that has not begun; `None` if nothing in it matters.
    #[must_use]
    pub fn new(
        place: Option<Arc<AnswerPlace>>,
        session: Option<SessionChange>,
        job: Option<Box<JobMeter>>,
    ) -> Option<Box<Self>> {
        let meter = Self {
            cost: place.map(CostMeter::new),
            session: session.map(|change| SessionMeter { change, body: None }),
            job,
        };
        let reads = meter.cost.is_some() || meter.session.is_some() || meter.job.is_some();
        reads.then(|| Box::new(meter))
    }

    /// The answer begins. One that failed says nothing, nor does a body in another encoding. A body, or an event of a
    /// stream, that is larger than `bytes_max` is not read.
    pub fn begin(&mut self, head: &ReplyHead, bytes_max: usize) {
        if let Some(cost) = &mut self.cost {
            cost.begin(head, bytes_max);
        }
        if let Some(session) = &mut self.session {
            session.body = is_readable(head).then(Vec::new);
        }
        if let Some(job) = &mut self.job {
            job.begin(head);
        }
    }

    /// A part of the body has come.
    pub fn feed(&mut self, part: &[u8]) {
        if let Some(cost) = &mut self.cost {
            cost.feed(part);
        }
        if let Some(session) = &mut self.session {
            session.feed(part);
        }
        if let Some(job) = &mut self.job {
            job.feed(part);
        }
    }

    /// The body is whole. Noted before the client has its last byte, so that its next call is that of its session.
    pub fn note_whole(&mut self) {
        if let Some(SessionMeter {
            change,
            body: Some(body),
        }) = self.session.take()
        {
            change.make(&body);
        }
    }

    /// Ends when no more of the answer comes. A stream that was cut before it said its cost has cost one token for each of
    /// its events.
    #[must_use]
    pub fn end(self, is_whole: bool) -> AnswerReading {
        AnswerReading {
            cost: self.cost.and_then(|cost| cost.cost(is_whole)),
            job: self.job.and_then(|job| job.end(is_whole)),
        }
    }

    /// Reads a body that is here as a whole, which is not copied.
    #[must_use]
    pub fn read_whole(self, head: &ReplyHead, body: &[u8]) -> AnswerReading {
        if let Some(session) = self.session
            && is_readable(head)
        {
            session.change.make(body);
        }
        AnswerReading {
            cost: self.cost.and_then(|cost| cost.cost_of(head, body)),
            job: self.job.and_then(|job| job.read(head, body)),
        }
    }
}

/// Reads the session that an answer opens or closes.
#[derive(Clone, Debug)]
struct SessionMeter {
    change: SessionChange,
    /// The body, as far as it has come; `None` if it is not read.
    body: Option<Vec<u8>>,
}

impl SessionMeter {
    fn feed(&mut self, part: &[u8]) {
        let body = self.body.take();
        self.body = body.filter(|body| body.len() + part.len() <= SESSION_BYTES_MAX);
        if let Some(body) = &mut self.body {
            body.extend_from_slice(part);
        }
    }
}

/// Largest answer to a login or a logout that is read.   bytes
const SESSION_BYTES_MAX: usize = 16 * 1024;

/// Reads the cost of one call from its answer, as that passes.
#[derive(Clone, Debug)]
struct CostMeter {
    place: Arc<AnswerPlace>,
    bytes_max: usize,
    reading: MeterReading,
}

#[derive(Clone, Debug)]
enum MeterReading {
    /// The answer has not begun, or says nothing.
    Nothing,
    /// The answer has said it.
    Known(u64),
    /// A body of JSON, as far as it has come.
    Body(Vec<u8>),
    /// A stream of events.
    Events(Box<LastEvent>),
}

impl CostMeter {
    fn new(place: Arc<AnswerPlace>) -> Self {
        Self {
            place,
            bytes_max: 0,
            reading: MeterReading::Nothing,
        }
    }

    fn begin(&mut self, head: &ReplyHead, bytes_max: usize) {
        self.bytes_max = bytes_max;
        if !head.status.is_success() {
            return;
        }
        self.reading = match &*self.place {
            AnswerPlace::Header(name) => {
                let number = text_of(head, name).and_then(|it| it.trim().parse().ok());
                number.map_or(MeterReading::Nothing, MeterReading::Known)
            }
            AnswerPlace::Json(_) if !is_readable(head) => MeterReading::Nothing,
            AnswerPlace::Json(pointer) if value_is(head, &CONTENT_TYPE, "text/event-stream") => {
                MeterReading::Events(Box::new(LastEvent::new(pointer.clone(), self.bytes_max)))
            }
            AnswerPlace::Json(_) => MeterReading::Body(Vec::new()),
        };
    }

    fn feed(&mut self, part: &[u8]) {
        match &mut self.reading {
            MeterReading::Events(events) => events.feed(part),
            MeterReading::Body(body) if body.len() + part.len() <= self.bytes_max => {
                body.extend_from_slice(part);
            }
            MeterReading::Body(_) => self.reading = MeterReading::Nothing,
            MeterReading::Nothing | MeterReading::Known(_) => {}
        }
    }

    fn cost(&self, is_whole: bool) -> Option<u64> {
        match &self.reading {
            MeterReading::Known(cost) => Some(*cost),
            MeterReading::Events(events) if is_whole => events.last(),
            MeterReading::Events(events) => events.last().or(Some(events.events())),
            MeterReading::Body(body) if is_whole => self.of_body(body),
            MeterReading::Body(_) | MeterReading::Nothing => None,
        }
    }

    fn cost_of(mut self, head: &ReplyHead, body: &[u8]) -> Option<u64> {
        self.begin(head, body.len());
        match &self.reading {
            MeterReading::Body(_) => self.of_body(body),
            _ => {
                self.feed(body);
                self.cost(true)
            }
        }
    }

    fn of_body(&self, body: &[u8]) -> Option<u64> {
        let AnswerPlace::Json(pointer) = &*self.place else {
            return None;
        };
        let pointers = JsonPointers::new([pointer.clone()]).ok()?;
        let found = pointers.find(body).ok()?;
        found.get(0)?.as_u64()
    }
}
