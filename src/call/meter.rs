//! Reads an answer as it passes: what its call has cost, and the session that it opens or closes.

use std::sync::Arc;

use http::HeaderName;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use tidegate_message::{JsonPointer, JsonPointers, LastEvent};

use super::ReplyHead;
use super::session::SessionChange;

/// The place of a cost in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostPlace {
    /// A whole number in a body of JSON; in a stream of events, in the last event that has it.
    Json(JsonPointer),
    /// The value of a header.
    Header(HeaderName),
}

/// Reads what the answer of one call says, as that passes.
#[derive(Clone, Debug)]
pub struct AnswerMeter {
    cost: Option<CostMeter>,
    session: Option<SessionMeter>,
}

impl AnswerMeter {
    /// A meter for an answer that has not begun; `None` if nothing in it matters.
    #[must_use]
    pub fn new(place: Option<Arc<CostPlace>>, session: Option<SessionChange>) -> Option<Box<Self>> {
        let meter = Self {
            cost: place.map(CostMeter::new),
            session: session.map(|change| SessionMeter { change, body: None }),
        };
        (meter.cost.is_some() || meter.session.is_some()).then(|| Box::new(meter))
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
    }

    /// A part of the body has come.
    pub fn feed(&mut self, part: &[u8]) {
        if let Some(cost) = &mut self.cost {
            cost.feed(part);
        }
        if let Some(session) = &mut self.session {
            session.feed(part);
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

    /// The cost, once no more of the answer comes; `None` if it does not say. A stream that was cut before it said so has cost
    /// one token for each of its events.
    #[must_use]
    pub fn cost(&self, is_whole: bool) -> Option<u64> {
        self.cost.as_ref()?.cost(is_whole)
    }

    /// Reads a body that is here as a whole, which is not copied. Returns the cost.
    #[must_use]
    pub fn read_whole(self, head: &ReplyHead, body: &[u8]) -> Option<u64> {
        if let Some(session) = self.session
            && is_readable(head)
        {
            session.change.make(body);
        }
        self.cost?.cost_of(head, body)
    }
}

/// Whether an answer has succeeded and its body is text as it stands.
fn is_readable(head: &ReplyHead) -> bool {
    let is_encoded = head.headers.contains(CONTENT_ENCODING.as_str())
        && !value_is(head, &CONTENT_ENCODING, "identity");
    head.status.is_success() && !is_encoded
}

/// Whether a header has this value, apart from its parameters.
fn value_is(head: &ReplyHead, name: &HeaderName, wanted: &str) -> bool {
    let value = text_of(head, name).and_then(|it| it.split(';').next());
    value.is_some_and(|value| value.trim().eq_ignore_ascii_case(wanted))
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
    place: Arc<CostPlace>,
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
    fn new(place: Arc<CostPlace>) -> Self {
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
            CostPlace::Header(name) => {
                let number = text_of(head, name).and_then(|it| it.trim().parse().ok());
                number.map_or(MeterReading::Nothing, MeterReading::Known)
            }
            CostPlace::Json(_) if !is_readable(head) => MeterReading::Nothing,
            CostPlace::Json(pointer) if value_is(head, &CONTENT_TYPE, "text/event-stream") => {
                MeterReading::Events(Box::new(LastEvent::new(pointer.clone(), self.bytes_max)))
            }
            CostPlace::Json(_) => MeterReading::Body(Vec::new()),
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
        let CostPlace::Json(pointer) = &*self.place else {
            return None;
        };
        let pointers = JsonPointers::new([pointer.clone()]).ok()?;
        let found = pointers.find(body).ok()?;
        found.get(0)?.as_u64()
    }
}

/// The value of a header that is there once.
fn text_of<'a>(head: &'a ReplyHead, name: &'a HeaderName) -> Option<&'a str> {
    let value = head.headers.only(name.as_str()).ok().flatten()?;
    std::str::from_utf8(value).ok()
}
