//! Signs of life for a client whose call waits: interim answers, or the comments of an event stream.
//!
//! They are bounded and never delay a call: a sign that cannot leave at once is dropped. The timer is the one of the
//! connection.

mod agents;

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_h1::request::HttpVersion;
use tidegate_h1::write;
use tokio::io::AsyncWrite;
use tokio::time::Instant;

use self::agents::MostInterims;
use super::client_socket::ClientSocket;
use super::events::{self, StreamRequest};
use super::place;
use super::respond::{HttpAnswer, ReplyForm};
use super::upload::Upload;
use crate::call::{
    HttpCall, Identity, Listener, Progress, RefusalForm, ReplyBody, Serve, Sign, SignsOfLife,
    prefer,
};

/// The most signs of one call, unless the agent is known to read any number.
const FEW: u32 = 5;

/// Fields that proxies add. The agent is then the client of a proxy, and it is the proxy that reads the signs.
const PROXY_FIELDS: [&str; 4] = ["via", "forwarded", "x-forwarded-for", "x-real-ip"];

/// The signs of life of one call.
pub(super) struct Signs {
    interim: Option<InterimSigns>,
    /// How it asks for an event stream, if it may get comments.
    events: Option<StreamRequest>,
    /// The head of the event stream was written.
    has_begun: bool,
    /// The client asks for its place in the queue.
    tells_place: bool,
    closes: bool,
    has_sent: bool,
    every: Duration,
    /// When the next one is due, once the call waits.
    due: Option<Instant>,
}

/// The interim answers of a call.
#[derive(Clone, Copy)]
struct InterimSigns {
    sign: Sign,
    /// How many may follow; `None` without a bound.
    left: Option<u32>,
}

impl Signs {
    /// The signs of a call that may wait; `None` if it gets none. Boxed, so that other calls have no room for them.
    pub(super) fn of(
        listener: &Listener,
        identity: &Identity,
        call: &mut HttpCall,
        form: ReplyForm,
        upload: Option<&Upload>,
    ) -> Option<Box<Self>> {
        if !listener.gives_signs() || form.version != HttpVersion::Http11 {
            return None;
        }
        let tells_place = listener.queue_status && prefer::has_wait(&call.head.headers);
        // A client that asks for another protocol may take any other answer for a refusal.
        let is_apart = call.head.upgrade().is_some();
        // It would take a 100 for the permission to send its body.
        let expects = upload.is_some_and(Upload::waits);
        let is_proxied = PROXY_FIELDS
            .iter()
            .any(|name| call.head.headers.contains(name));
        let interim = match listener.signs_of_life {
            SignsOfLife::ByAgent if is_proxied => None,
            wanted => interim_for(wanted, identity, expects),
        };
        let events = (listener.event_stream_signs && form.has_body())
            .then(|| StreamRequest::take(call))
            .flatten();
        let signs = Self {
            interim: interim.filter(|_| !is_apart),
            events: events.filter(|_| !is_apart),
            has_begun: false,
            tells_place,
            closes: form.closes,
            has_sent: false,
            every: listener.signs_of_life_every,
            due: None,
        };
        let is_any = signs.interim.is_some() || signs.events.is_some() || tells_place;
        is_any.then(|| Box::new(signs))
    }

    /// Whether the client may get interim replies of the backend. One that counts them all may have read enough, and
    /// none fits into an event stream.
    pub(super) fn pass_interim(&self) -> bool {
        let counts = self.interim.is_some_and(|interim| interim.left.is_some());
        !(self.has_begun || counts && self.has_sent)
    }

    /// Writes a sign if one is due and those before it have left. Ready if the client was found to have left.
    pub(super) fn poll<S: Serve>(
        &mut self,
        socket: &mut ClientSocket,
        unsent: &mut Vec<u8>,
        (serve, progress): (&S, &Progress),
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let is_over = match self.interim {
            None => true,
            Some(interim) => interim.left == Some(0),
        };
        if is_over && self.events.is_none() {
            return Poll::Pending;
        }
        let due = *self.due.get_or_insert_with(|| Instant::now() + self.every);
        if socket.timer.poll_until(due, cx).is_pending() {
            return Poll::Pending;
        }
        let next = Instant::now() + self.every;
        self.due = Some(next);
        // It wakes this task for the next one.
        let _ = socket.timer.poll_until(next, cx);
        match Pin::new(&mut socket.stream).poll_flush(cx) {
            Poll::Ready(Ok(())) if unsent.is_empty() => {}
            Poll::Ready(Err(_)) => return Poll::Ready(()),
            // The client does not read.
            Poll::Ready(Ok(())) | Poll::Pending => return Poll::Pending,
        }
        self.write(unsent, serve, progress);
        Poll::Pending
    }

    fn write<S: Serve>(&mut self, unsent: &mut Vec<u8>, serve: &S, progress: &Progress) {
        let call = progress.call();
        let place = call
            .filter(|_| self.tells_place)
            .and_then(|id| serve.standing(id, None).ok()?);
        if let Some(asks) = self.events {
            if self.has_begun || asks.may_begin(progress.refusal_form()) {
                if !self.has_begun {
                    events::begin(call, self.closes, unsent);
                }
                self.has_begun = true;
                events::comment(place, unsent);
                progress.note_sign(Sign::Event);
                return;
            }
            self.events = None;
        }
        let Some(InterimSigns { sign, left }) = &mut self.interim else {
            return;
        };
        if let Some(left) = left {
            *left = left.saturating_sub(1);
        }
        self.has_sent = true;
        match sign {
            Sign::Processing => write::status_line(102, b"Processing", unsent),
            Sign::Continue | Sign::Event => write::status_line(100, b"Continue", unsent),
        }
        if let Some(place) = place {
            place::fields(call, place, unsent);
        }
        unsent.extend_from_slice(b"\r\n");
        progress.note_sign(*sign);
    }

    /// Changes the answer of the call by what its client got, and by what it asked for.
    pub(super) fn complete<S: Serve>(
        &self,
        answer: &mut HttpAnswer,
        is_refused: bool,
        serve: &S,
        progress: &Progress,
    ) {
        if self.has_begun {
            answer.continue_events(progress.refusal_form());
        } else if self.tells_place && is_refused {
            answer.tell_place(serve.waiting());
        }
    }
}

impl ClientSocket {
    /// Ready when the client has left. Until then, a client whose call waits gets its signs, and what is unsent.
    pub(super) fn poll_left<S: Serve>(
        &mut self,
        signs: Option<&mut Signs>,
        unsent: &mut Vec<u8>,
        (serve, progress): (&S, &Progress),
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if let Some(signs) = signs
            && !progress.is_admitted()
            && signs.poll(self, unsent, (serve, progress), cx).is_ready()
        {
            return Poll::Ready(());
        }
        if !unsent.is_empty() && self.stream.write_ahead(unsent, cx).is_err() {
            return Poll::Ready(());
        }
        self.stream.poll_left(cx, self.on_eof)
    }
}

/// The interim answers that a client gets.
fn interim_for(wanted: SignsOfLife, identity: &Identity, expects: bool) -> Option<InterimSigns> {
    let known = identity.user_agent.as_deref().and_then(agents::find);
    let of_continue = known.map_or(MostInterims::Few, |it| it.of_continue);
    let of_continue = match expects {
        true => MostInterims::None,
        false => of_continue,
    };
    let of_processing = known.map_or(MostInterims::Few, |it| it.of_processing);
    let (sign, most) = match wanted {
        SignsOfLife::Off => return None,
        SignsOfLife::Continue => (Sign::Continue, of_continue),
        SignsOfLife::Processing => (Sign::Processing, of_processing),
        SignsOfLife::ByAgent => {
            known?;
            match of_continue {
                MostInterims::None => (Sign::Processing, of_processing),
                most => (Sign::Continue, most),
            }
        }
    };
    let left = match most {
        MostInterims::None => return None,
        MostInterims::Few => Some(FEW),
        MostInterims::Any => None,
    };
    Some(InterimSigns { sign, left })
}

impl HttpAnswer {
    /// Continues an event stream whose head has left. Any other answer becomes an event.
    pub(super) fn continue_events(&mut self, dialect: RefusalForm) {
        self.is_continued = true;
        if events::continues(&self.head) {
            return;
        }
        let body = match &mut self.body {
            ReplyBody::Whole(bytes) => bytes.take(),
            ReplyBody::Stream(_) | ReplyBody::Tunnel(_) => None,
        };
        let media_type = events::media_type(&self.head);
        let event = events::event_of(self.head.status, &media_type, body, dialect);
        self.body = ReplyBody::whole(event);
    }

    /// Adds the place that a call would have that came now, to a refusal with a time to come back.
    pub(super) fn tell_place(&mut self, waiting: usize) {
        let after = self.head.headers.only("retry-after").ok().flatten();
        if let Some(after) = after.map(<[u8]>::to_vec) {
            self.add_field(&place::WAIT, &after);
            self.add_field(&place::POSITION, (waiting + 1).to_string().as_bytes());
        }
    }
}
