//! Interim answers to a client whose call waits.
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
use super::respond::ReplyForm;
use super::upload::Upload;
use crate::call::{HttpCall, Identity, Listener, Progress, Sign, SignsOfLife};

/// The most signs of one call, unless the agent is known to read any number.
const FEW: u32 = 5;

/// The head of an interim answer that tells nothing.
const PROCESSING: &[u8] = b"HTTP/1.1 102 Processing\r\n\r\n";

/// The signs of life of one call.
pub(super) struct Signs {
    sign: Sign,
    /// How many may follow; `None` without a bound.
    left: Option<u32>,
    has_sent: bool,
    every: Duration,
    /// When the next one is due, once the call waits.
    due: Option<Instant>,
}

impl Signs {
    /// The signs of a call that may wait; `None` if it gets none. Boxed, so that other calls have no room for them.
    pub(super) fn of(
        listener: &Listener,
        identity: &Identity,
        call: &HttpCall,
        form: ReplyForm,
        upload: Option<&Upload>,
    ) -> Option<Box<Self>> {
        // A client that asks for another protocol may take any answer but that for a refusal.
        let is_apart = form.version != HttpVersion::Http11 || call.head.upgrade().is_some();
        if listener.signs_of_life == SignsOfLife::Off || is_apart {
            return None;
        }
        // It would take a 100 for the permission to send its body.
        let expects = upload.is_some_and(Upload::waits);
        let (sign, most) = sign_for(listener.signs_of_life, identity, expects)?;
        Some(Box::new(Self {
            sign,
            left: (most == MostInterims::Few).then_some(FEW),
            has_sent: false,
            every: listener.signs_of_life_every,
            due: None,
        }))
    }

    /// Whether the client may get interim replies of the backend. One that counts them all may have read enough.
    pub(super) fn pass_interim(&self) -> bool {
        self.left.is_none() || !self.has_sent
    }

    /// Appends a sign if one is due and those before it have left. Ready if the client was found to have left.
    pub(super) fn poll(
        &mut self,
        socket: &mut ClientSocket,
        unsent: &mut Vec<u8>,
        progress: &Progress,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if self.left == Some(0) {
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
        self.has_sent = true;
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        unsent.extend_from_slice(match self.sign {
            Sign::Continue => write::CONTINUE,
            Sign::Processing => PROCESSING,
        });
        progress.note_sign(self.sign);
        Poll::Pending
    }
}

/// The sign that a client gets, and how many.
fn sign_for(
    wanted: SignsOfLife,
    identity: &Identity,
    expects: bool,
) -> Option<(Sign, MostInterims)> {
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
    (most != MostInterims::None).then_some((sign, most))
}
