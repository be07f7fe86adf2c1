//! A [`tower`](https://docs.rs/tower) layer that makes calls wait for their turn at the limits of a
//! [`Policy`].
//!
//! # Readiness
//!
//! The order of calls depends on the request, so a call can queue only when its request is known. Therefore
//! [`LimitService`] is always ready, and its calls wait inside the response future. When the turn of a call
//! has come, the future waits until a clone of the inner service is ready, and then calls it. The capacity
//! of the policy bounds the queue: further calls fail with [`LimitError::Refused`].
//!
//! A call asks for its turn in [`Service::call`], not at the first poll of its future, so calls have the order
//! in which they were made. Its turn can come at once: then the future holds slots before it is polled. A future
//! that is neither polled nor dropped holds its place, or its slots, and other calls wait for them. The inner
//! service is called, and windows are stamped, only when the future is polled.
//!
//! # Cancellation
//!
//! Drop the response future to cancel a call. If it waits, it leaves the queue. If its turn has come and the
//! inner service was not called, everything it drew comes back. If the inner service was called, its slots
//! come back, and it still counts in windows.
//!
//! A response counts as the end of a call. A body that streams afterwards is not counted.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use std::boxed::Box;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Wake;
use std::vec::Vec;

use tower_layer::Layer;
use tower_service::Service;

use crate::call::Call;
use crate::clock::{Clock, MonotonicClock};
use crate::pace::{ThreadSleep, Timer, TimerThread};
use crate::policy::Policy;
use crate::scheduler::{Hold, Outcome, Refusal, RefusalReason, Scheduler, Step, Ticket};
use crate::time::Timestamp;

/// Makes calls wait for their turn. Services made by clones of one layer share its limits.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limits::policy::LimitRule;
/// use tidegate_limits::tower::LimitLayer;
/// use tidegate_limits::{Call, Limit, Policy};
///
/// let two_at_once = LimitRule::new("slots", Limit::Outstanding { max: 2 });
/// let policy = Policy::builder().limit(two_at_once).build()?;
/// let layer = LimitLayer::new(policy, |_request: &String, now| {
///     Call::new("any", now).deadline(now + Duration::from_secs(30))
/// });
/// # let _ = layer;
/// # Ok::<(), tidegate_limits::policy::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LimitLayer<F> {
    shared: Arc<LayerState>,
    classify: F,
}

impl<F> LimitLayer<F> {
    /// A layer with these limits. `classify` makes the [`Call`] of a request that arrives at a moment.
    ///
    /// # Panics
    ///
    /// If the operating system does not start a thread for the timer, which the process shares.
    #[must_use]
    pub fn new<R>(policy: Policy, classify: F) -> Self
    where
        F: Fn(&R, Timestamp) -> Call,
    {
        let entropy = RandomState::new();
        let core = Core {
            scheduler: Scheduler::with_seed(policy, entropy.hash_one(0)),
            alarm: None,
            drawn: 0,
        };
        let shared = LayerState {
            core: Mutex::new(core),
            clock: MonotonicClock::new(),
            timer: TimerThread::shared().expect("the system starts a thread for the timer"),
            entropy,
        };
        Self {
            shared: Arc::new(shared),
            classify,
        }
    }

    /// Continues under another policy, as [`Scheduler::apply`] does: every waiting call keeps its turn. A call
    /// that can never run under the new policy fails with [`LimitError::Refused`] and
    /// [`Reason::NeverPossible`]. With `max: 0` that is every call that meets the limit. To close a limit for a
    /// while, use a `Scheduler` of your own and [`Scheduler::supply`].
    pub fn apply(&self, policy: Policy) {
        self.shared
            .change(|scheduler, now| scheduler.apply(now, policy));
    }
}

impl<S, F: Clone> Layer<S> for LimitLayer<F> {
    type Service = LimitService<S, F>;

    fn layer(&self, inner: S) -> LimitService<S, F> {
        LimitService {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service whose calls wait for their turn. Made by [`LimitLayer`].
#[derive(Clone, Debug)]
pub struct LimitService<S, F> {
    inner: S,
    layer: LimitLayer<F>,
}

impl<S, F, R> Service<R> for LimitService<S, F>
where
    S: Service<R> + Clone,
    F: Fn(&R, Timestamp) -> Call,
{
    type Response = S::Response;
    type Error = LimitError<S::Error>;
    type Future = LimitFuture<S, R>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> LimitFuture<S, R> {
        let shared = &self.layer.shared;
        let turn = Arc::new(Mutex::new(CallTurn::default()));
        let classify = &self.layer.classify;
        let submitted = shared.change(|scheduler, now| {
            scheduler.submit(now, classify(&request, now), Arc::clone(&turn))
        });
        let ticket = submitted
            .map_err(|(refusal, _)| lock(&turn).set(Err(refusal)))
            .ok();
        LimitFuture {
            shared: Arc::clone(shared),
            turn,
            ticket,
            call: Some((self.inner.clone(), request)),
            hold: None,
            running: None,
        }
    }
}

/// Why a call has no response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitError<E> {
    /// The call was refused, or its deadline passed. The inner service was not called.
    Refused(Refusal),
    /// The inner service failed.
    Inner(E),
}

impl<E> fmt::Display for LimitError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => {
                write!(f, "the call was refused ({})", refusal.reason.as_str())?;
                match refusal.reason {
                    RefusalReason::NeverPossible => Ok(()),
                    _ => write!(f, "; retry after {:?}", refusal.retry_after),
                }
            }
            Self::Inner(_) => f.write_str("the service failed"),
        }
    }
}

impl<E: core::error::Error + 'static> core::error::Error for LimitError<E> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Refused(_) => None,
            Self::Inner(cause) => Some(cause),
        }
    }
}

/// The response of a [`LimitService`]. It has a place in the queue, or slots, from the moment at which it was
/// made. Poll it to its end or drop it; see the [module](self) about cancellation.
#[must_use = "holds a place in the queue, or slots, until it is polled to its end or dropped"]
pub struct LimitFuture<S: Service<R>, R> {
    shared: Arc<LayerState>,
    turn: Arc<Mutex<CallTurn>>,
    /// While it waits.
    ticket: Option<Ticket>,
    /// The inner service, which may not be ready, and the request, until the service is called.
    call: Option<(S, R)>,
    /// From its turn to its end.
    hold: Option<Hold>,
    running: Option<Pin<Box<S::Future>>>,
}

impl<S: Service<R>, R> fmt::Debug for LimitFuture<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitFuture").finish_non_exhaustive()
    }
}

// Only the boxed future is pinned.
impl<S: Service<R>, R> Unpin for LimitFuture<S, R> {}

impl<S: Service<R>, R> Future for LimitFuture<S, R> {
    type Output = Result<S::Response, LimitError<S::Error>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.hold.is_none() {
            assert!(
                this.call.is_some(),
                "a future is not polled again after its end"
            );
            let result = ready!(lock(&this.turn).poll(cx));
            this.ticket = None;
            match result {
                Ok(hold) => this.hold = Some(hold),
                Err(refusal) => {
                    this.call = None;
                    return Poll::Ready(Err(LimitError::Refused(refusal)));
                }
            }
        }
        if let Some((service, _)) = &mut this.call
            && let Err(cause) = ready!(service.poll_ready(cx))
        {
            this.leave();
            return Poll::Ready(Err(LimitError::Inner(cause)));
        }
        if let (Some((mut service, request)), Some(hold)) = (this.call.take(), &this.hold) {
            this.shared
                .change(|scheduler, now| scheduler.sent(now, hold));
            this.running = Some(Box::pin(service.call(request)));
        }
        let future = this.running.as_mut().expect("the service was called");
        let result = ready!(future.as_mut().poll(cx));
        this.finish(match result {
            Ok(_) => Outcome::Served,
            Err(_) => Outcome::Failed,
        });
        Poll::Ready(result.map_err(LimitError::Inner))
    }
}

impl<S: Service<R>, R> LimitFuture<S, R> {
    fn finish(&mut self, outcome: Outcome) {
        if let Some(hold) = self.hold.take() {
            let finish =
                |scheduler: &mut TowerQueue, now| scheduler.finish(now, hold, outcome, None);
            self.shared.change(finish);
        }
    }

    /// Leaves before the inner service was called.
    fn leave(&mut self) {
        let (hold, ticket) = (self.hold.take(), self.ticket.take());
        self.call = None;
        self.shared.change(|scheduler, now| {
            let unnoticed = || lock(&self.turn).result.take()?.ok();
            if let Some(hold) = hold.or_else(unnoticed) {
                scheduler.give_back(now, hold);
            } else if let Some(ticket) = ticket {
                scheduler.cancel(now, ticket);
            }
        });
    }
}

impl<S: Service<R>, R> Drop for LimitFuture<S, R> {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.finish(Outcome::Failed);
        } else if self.hold.is_some() || self.ticket.is_some() {
            self.leave();
        }
    }
}

type TowerQueue = Scheduler<Arc<Mutex<CallTurn>>>;

/// The turn of a waiting call. Its lock is taken inside the lock of [`Core`], or alone.
#[derive(Debug, Default)]
struct CallTurn {
    result: Option<Result<Hold, Refusal>>,
    waker: Option<Waker>,
}

impl CallTurn {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Hold, Refusal>> {
        if let Some(result) = self.result.take() {
            return Poll::Ready(result);
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Sets the result. Returns the task to wake.
    fn set(&mut self, result: Result<Hold, Refusal>) -> Option<Waker> {
        self.result = Some(result);
        self.waker.take()
    }
}

/// The state that all calls of a layer share.
#[derive(Debug)]
struct LayerState {
    core: Mutex<Core>,
    clock: MonotonicClock,
    timer: &'static TimerThread,
    entropy: RandomState,
}

#[derive(Debug)]
struct Core {
    scheduler: TowerQueue,
    /// When the scheduler must be asked again, and the sleep until then.
    alarm: Option<(Timestamp, Pin<Box<ThreadSleep>>)>,
    /// Random numbers used so far.
    drawn: u64,
}

impl LayerState {
    /// Changes the scheduler, and lets all calls go whose turn has come.
    fn change<V>(self: &Arc<Self>, change: impl FnOnce(&mut TowerQueue, Timestamp) -> V) -> V {
        let mut core = lock(&self.core);
        let result = change(&mut core.scheduler, self.clock.now());
        let wakers = self.drive(&mut core);
        drop(core);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Asks the scheduler until nothing can go now. Returns the tasks to wake.
    fn drive(self: &Arc<Self>, core: &mut Core) -> Vec<Waker> {
        let mut wakers = Vec::new();
        loop {
            let now = self.clock.now();
            let (scheduler, drawn) = (&mut core.scheduler, &mut core.drawn);
            let step = scheduler.next(now, &mut || {
                *drawn += 1;
                self.entropy.hash_one(*drawn)
            });
            match step {
                Step::Run { payload, hold, .. } => {
                    wakers.extend(lock(&payload).set(Ok(hold)));
                }
                Step::Expired {
                    payload, refusal, ..
                } => wakers.extend(lock(&payload).set(Err(refusal))),
                Step::SleepUntil(moment) => {
                    if self.sleep_until(core, moment, now) {
                        return wakers;
                    }
                }
                Step::Idle => {
                    core.alarm = None;
                    return wakers;
                }
            }
        }
    }

    /// False if it is that moment already.
    fn sleep_until(self: &Arc<Self>, core: &mut Core, moment: Timestamp, now: Timestamp) -> bool {
        if matches!(&core.alarm, Some((until, _)) if *until == moment) && moment > now {
            return true;
        }
        let mut sleep = Box::pin(self.timer.sleep(moment.since(now)));
        let waker = Waker::from(Arc::new(Alarm(Arc::downgrade(self))));
        let sleeps = sleep
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending();
        core.alarm = sleeps.then_some((moment, sleep));
        sleeps
    }
}

/// Asks the scheduler when its moment has come.
struct Alarm(Weak<LayerState>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.0.upgrade() {
            lock(&shared.core).alarm = None;
            shared.change(|_, _| ());
        }
    }
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
