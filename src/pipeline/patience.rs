//! A client that gives up before its turn: its call is refused in time, and keeps its place.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tidegate_limits::Timestamp;
use tidegate_runtime::Clock;

use super::Pipeline;
use crate::admit::{Ask, Permit, QueuedCall, Waits};
use crate::call::ticket::QUEUE_TICKET;
use crate::call::{ClientPatience, Head, Message, Progress, Refusal, TicketMode, prefer};

/// A client's wait for its turn. Most clients wait as long as it takes.
pub(super) struct ClientTurn {
    waiting: QueuedCall,
    patience: Option<Box<RunningPatience>>,
}

/// The rest of a client's patience.
struct RunningPatience {
    of: ClientPatience,
    clock: Clock,
    ends: Sleep,
}

type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

fn sleep_until(clock: Clock, at: Timestamp) -> Sleep {
    Box::pin(async move { clock.sleep_until(at).await })
}

impl ClientTurn {
    pub(super) fn new(waiting: QueuedCall, progress: &Progress) -> Self {
        let patience = progress.patience().zip(waiting.clock());
        let patience = patience.map(|(of, clock)| {
            let ends = sleep_until(clock, of.least());
            Box::new(RunningPatience { of, clock, ends })
        });
        Self { waiting, patience }
    }
}

impl Future for ClientTurn {
    type Output = Result<Permit, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { waiting, patience } = &mut *self;
        if let Poll::Ready(turn) = Pin::new(&mut *waiting).poll(cx) {
            return Poll::Ready(turn);
        }
        let Some(running) = patience else {
            return Poll::Pending;
        };
        loop {
            ready!(running.ends.as_mut().poll(cx));
            // How long such calls take may be known only by now.
            let until = running.of.ends(waiting.usual_service());
            if running.clock.now() >= until {
                break;
            }
            running.ends = sleep_until(running.clock, until);
        }
        match waiting.suspend(&running.of) {
            Some(refusal) => Poll::Ready(Err(refusal)),
            // Its turn has come at this moment.
            None => {
                *patience = None;
                Pin::new(waiting).poll(cx)
            }
        }
    }
}

impl Pipeline {
    /// Notes how long the client of a call waits, and finds the place that it has.
    #[inline]
    pub(super) fn note_patience(&self, message: &mut Message, ask: &mut Ask, progress: &Progress) {
        if progress.tickets().mode != TicketMode::Off && ask.waits == Waits::Client {
            self.find_place(message, ask, progress);
        }
    }

    #[cold]
    fn find_place(&self, message: &mut Message, ask: &mut Ask, progress: &Progress) {
        let rule = progress.tickets();
        let (ticket, wait) = match message {
            Message::Socket(_) => (None, None),
            Message::Http(call) => (
                take_ticket(&mut call.head),
                prefer::wait_in(&call.head.headers),
            ),
        };
        let caller = tidegate_callers::CallerId(ask.claimed.caller.0);
        let secret = self.gate.ticket_secret();
        let Some(digest) = secret.digest(caller, &ask.function, message) else {
            return;
        };
        let clock = self.clock;
        let is_ticket = |text: &[u8]| {
            let now = clock.boot_time(clock.now());
            secret.is_ticket(text, digest, now)
        };
        let comes_back = match rule.mode {
            TicketMode::Off => false,
            TicketMode::Explicit => ticket.is_some_and(|text| is_ticket(&text)),
            TicketMode::Implicit => true,
        };
        if comes_back {
            ask.place = Some(digest);
        }
        let Some(timeout) = wait.or(rule.client_timeout) else {
            return;
        };
        progress.wait_at_most(ClientPatience {
            arrived: ask.arrived,
            timeout,
            digest,
        });
    }
}

/// Takes the ticket of a request out of its head: the backend gets none.
fn take_ticket(head: &mut Arc<Head>) -> Option<Vec<u8>> {
    let ticket = head.headers.get_all(QUEUE_TICKET.as_str()).next()?.to_vec();
    Arc::make_mut(head).headers.remove(QUEUE_TICKET.as_str());
    Some(ticket)
}
