//! A reply that is passed on as it arrives, while it holds its slot.
//!
//! The client decides how fast the reply is read. So each reply has a watch, which ends it at its
//! deadline even if the client takes nothing more. The watch also measures how fast the client
//! takes it. Clients below `reply_min_rate` may hold `max_slow_readers` slots together, and
//! at most half of the smallest limit that such a call holds. One more is cut off: its connection is closed in the middle of the reply, the rest is read and
//! discarded, and its slot comes back as soon as the backend is done.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, SizeHint};
use tidegate_limits::scheduler::Outcome;
use tidegate_runtime::lock;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::client_left::{note_closed, spawn_to_end};
use super::deadline::{Credit, GRACE};
use crate::call::{BodyError, OnClientLeft, PolledFrame, Reason, Record, data_bytes};

/// How often a slow client is checked.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A reply that the backend is still sending.
pub(super) trait ReplySource: Send + 'static {
    /// The next part; `None` at the end.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> PolledFrame;

    /// Whether the backend continues to send after an error, and must be read to its end.
    fn keeps_sending(&self) -> bool;

    /// Whether the last part has been read.
    fn is_over(&self) -> bool;

    /// How the reply ends when its client leaves.
    fn on_client_left(&self) -> OnClientLeft;

    /// How many calls the smallest limit that it holds lets run at once; `None` if it holds none.
    fn narrowest(&self) -> Option<u32>;

    /// Gives the slot back.
    fn end(self, outcome: Outcome);

    /// Closes the connection to the backend, and gives the slot back when the backend has noticed it.
    fn abandon(self);

    /// The call's record.
    fn record(&self) -> &Record;

    /// The end of its time.
    fn deadline(&self) -> Instant;

    /// Length of the reply.
    fn size_hint(&self) -> SizeHint;
}

/// The bounds for clients that read replies of one backend.
#[derive(Clone, Debug)]
pub(super) struct ReaderBounds {
    pub(super) min_rate: u64,
    pub(super) slow_max: usize,
    /// The number of slow clients now.
    pub(super) slow: Arc<AtomicUsize>,
}

impl ReaderBounds {
    /// A slot for a slow reader, if one is left. Together they never hold more than half of the smallest limit that
    /// this one holds, so that others have their turn.
    fn allow(&self, narrowest: Option<u32>) -> Option<SlowReaderSlot> {
        let half = narrowest.map_or(usize::MAX, |places| (places as usize / 2).max(1));
        let slow_max = self.slow_max.min(half);
        let taken = self
            .slow
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |slow| {
                (slow < slow_max).then_some(slow + 1)
            });
        taken.ok().map(|_| SlowReaderSlot(Arc::clone(&self.slow)))
    }
}

/// A slot of a slow reader.
struct SlowReaderSlot(Arc<AtomicUsize>);

impl Drop for SlowReaderSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of such a reply, as the client reads it.
///
/// If it is dropped before its end, the connection to the backend is closed, or the rest is read in a task of its
/// own and the slot comes back at the end of that.
pub(super) struct StreamedBody<T: ReplySource> {
    shared: Arc<Mutex<StreamedState<T>>>,
    watch: AbortHandle,
}

struct StreamedState<T: ReplySource> {
    /// `None` once it has ended.
    source: Option<T>,
    /// Set when it was cut off, until the client's side notices.
    cut: Option<&'static str>,
    /// How much longer the client may delay us.
    credit: Credit,
    /// The client's side, which is woken when the reply is cut off.
    reader: Option<Waker>,
}

impl<T: ReplySource> StreamedState<T> {
    /// Ends the reply for the client, which is woken to notice. Returns the reply.
    fn cut_off(&mut self, why: &'static str) -> Option<T> {
        let source = self.source.take()?;
        self.cut = Some(why);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        Some(source)
    }
}

impl<T: ReplySource> StreamedBody<T> {
    pub(super) fn new(source: T, readers: ReaderBounds) -> Self {
        let mut credit = Credit::new(GRACE, readers.min_rate);
        credit.begin_to_wait(Instant::now());
        let shared = Arc::new(Mutex::new(StreamedState {
            source: Some(source),
            cut: None,
            credit,
            reader: None,
        }));
        let watching = tokio::spawn(watch(Arc::clone(&shared), readers));
        Self {
            shared,
            watch: watching.abort_handle(),
        }
    }
}

impl<T: ReplySource> Body for StreamedBody<T> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let mut state = lock(&self.shared);
        state.credit.end_waiting();
        if let Some(why) = state.cut.take() {
            return Poll::Ready(Some(Err(why.into())));
        }
        let Some(source) = state.source.as_mut() else {
            return Poll::Ready(None);
        };
        let next = match source.poll_next(cx) {
            Poll::Ready(next) => next,
            Poll::Pending => {
                state.reader = Some(cx.waker().clone());
                return Poll::Pending;
            }
        };
        let outcome = match &next {
            Some(Ok(_)) if !source.is_over() => {
                state.credit.earn(data_bytes(next.as_ref()));
                state.credit.begin_to_wait(Instant::now());
                return Poll::Ready(next);
            }
            Some(Err(_)) => Outcome::Failed,
            // With the last byte of a known length, and not at the next poll. A client may close as
            // soon as it has that byte, and would otherwise count as one that left.
            Some(Ok(_)) | None => Outcome::Served,
        };
        let source = state.source.take();
        drop(state);
        self.watch.abort();
        match source {
            Some(source) if outcome == Outcome::Failed && source.keeps_sending() => leave(source),
            Some(source) => source.end(outcome),
            None => {}
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        let state = lock(&self.shared);
        state.source.is_none() && state.cut.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let state = lock(&self.shared);
        let source = state.source.as_ref();
        source.map_or_else(SizeHint::default, ReplySource::size_hint)
    }
}

impl<T: ReplySource> Drop for StreamedBody<T> {
    fn drop(&mut self) {
        let source = lock(&self.shared).source.take();
        if let Some(source) = source {
            self.watch.abort();
            leave(source);
        }
    }
}

/// Closes the connection to the backend, or reads the rest in a task of its own, without the client.
fn leave<T: ReplySource>(source: T) {
    let is_drained = source.record().note(|facts| facts.reason) == Some(Reason::Draining);
    match source.on_client_left() {
        // The process ends before the rest would be read.
        _ if is_drained => source.end(Outcome::Failed),
        OnClientLeft::Close => {
            note_closed(source.record());
            source.abandon();
        }
        OnClientLeft::Finish => {
            source.record().note(|facts| facts.left = true);
            spawn_to_end(discard(source));
        }
    }
}

/// Reads and discards the rest, and gives the slot back.
async fn discard<T: ReplySource>(mut source: T) {
    let deadline = source.deadline();
    let outcome = loop {
        match std::future::poll_fn(|cx| source.poll_next(cx)).await {
            // An endless reply would not notice its deadline itself.
            Some(Ok(_)) if deadline <= Instant::now() => break Outcome::Failed,
            Some(Ok(_)) => {}
            Some(Err(_)) => break Outcome::Failed,
            None => break Outcome::Served,
        }
    };
    source.end(outcome);
}

/// The next step of the watch.
enum WatchStep<T> {
    /// Check again at this moment.
    Look(Instant),
    /// Read the rest: the client has been cut off.
    Discard(T),
    /// Stop: the reply has ended.
    Nothing,
}

async fn watch<T: ReplySource>(shared: Arc<Mutex<StreamedState<T>>>, readers: ReaderBounds) {
    let mut allowed = None;
    loop {
        match look(&shared, &readers, &mut allowed) {
            WatchStep::Look(next) => sleep_until(next).await,
            WatchStep::Discard(source) => return discard(source).await,
            WatchStep::Nothing => return,
        }
    }
}

fn look<T: ReplySource>(
    shared: &Mutex<StreamedState<T>>,
    readers: &ReaderBounds,
    allowed: &mut Option<SlowReaderSlot>,
) -> WatchStep<T> {
    let mut state = lock(shared);
    let Some(source) = &state.source else {
        return WatchStep::Nothing;
    };
    let (now, deadline) = (Instant::now(), source.deadline());
    if deadline <= now {
        if let Some(source) = state.cut_off("the reply took longer than response_timeout") {
            drop(state);
            let record = source.record();
            record.note(|facts| facts.reason = Some(Reason::BackendSlow));
            source.end(Outcome::Failed);
        }
        return WatchStep::Nothing;
    }
    if readers.min_rate == 0 {
        return WatchStep::Look(deadline);
    }
    let Some(due) = state.credit.due() else {
        // The backend delays the reply.
        return WatchStep::Look(deadline.min(now + GRACE));
    };
    if now < due {
        // One chunk does not make it quick.
        if state.credit.left() > GRACE / 2 {
            *allowed = None;
        }
        return WatchStep::Look(deadline.min(due));
    }
    if allowed.is_none() {
        *allowed = readers.allow(source.narrowest());
    }
    if allowed.is_some() {
        return WatchStep::Look(deadline.min(now + LOOK_AGAIN));
    }
    match state.cut_off("the client takes the reply too slowly") {
        Some(source) => {
            drop(state);
            source.record().note(|facts| {
                facts.left = true;
                facts.reason = Some(Reason::ClientSlow);
            });
            if source.on_client_left() == OnClientLeft::Close {
                source.abandon();
                return WatchStep::Nothing;
            }
            WatchStep::Discard(source)
        }
        None => WatchStep::Nothing,
    }
}
