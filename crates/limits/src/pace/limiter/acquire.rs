//! Waiting for a turn, in a task or in a thread.

use std::boxed::Box;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::{self, Thread};
use std::time::Duration;

use super::error::AcquireError;
use super::handle::PacedLimiter;
use super::shared::WaiterTurn;
use super::timer::{Timer, TimerThread};
use crate::clock::Clock;
use crate::pace::pools::span;
use crate::time::Timestamp;

/// The first call in the queue of a fast limiter sleeps at least this long, and then several go at once.
/// No timer is more exact.
const WAKE_APART: Duration = Duration::from_micros(50);

/// Waits until `n` operations are available. Made by [`PacedLimiter::acquire`].
///
/// Joins the queue at the first poll. It can be dropped at any time: operations that were granted but not
/// returned yet are given back, and the next call in the queue takes its place.
#[must_use = "does nothing unless polled"]
#[derive(Debug)]
pub struct Acquire<'a, C: Clock, T: Timer> {
    limiter: &'a PacedLimiter<C>,
    timer: Option<&'a T>,
    n: u32,
    ticket: Option<u64>,
    /// Pinned, so that its owner can be moved.
    sleep: Option<(Timestamp, Pin<Box<T::Sleep>>)>,
}

impl<'a, C: Clock, T: Timer> Acquire<'a, C, T> {
    fn new(limiter: &'a PacedLimiter<C>, timer: Option<&'a T>, n: u32) -> Self {
        Self {
            limiter,
            timer,
            n,
            ticket: None,
            sleep: None,
        }
    }

    /// Sleeps until this moment at most. Ready when it is time to check again.
    fn sleep_until(
        &mut self,
        moment: Timestamp,
        now: Timestamp,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), AcquireError>> {
        if !matches!(&self.sleep, Some((until, _)) if *until == moment) {
            let timer = self.timer.ok_or(AcquireError::NoTimer)?;
            let span = self.limiter.sleep_for(moment, now);
            self.sleep = Some((moment, Box::pin(timer.sleep(span))));
        }
        let (_, sleep) = self.sleep.as_mut().expect("it has just been set");
        ready!(sleep.as_mut().poll(cx));
        self.sleep = None;
        Poll::Ready(Ok(()))
    }
}

impl<C: Clock, T: Timer> Future for Acquire<'_, C, T> {
    type Output = Result<(), AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let shared = &this.limiter.shared;
        let ticket = match this.ticket {
            Some(ticket) => ticket,
            None => {
                let cost = shared.cost(this.n)?;
                if shared.claim(cost) {
                    return Poll::Ready(Ok(()));
                }
                match shared.enter(this.n, cx.waker(), this.limiter.clock.now())? {
                    None => return Poll::Ready(Ok(())),
                    Some(ticket) => *this.ticket.insert(ticket),
                }
            }
        };
        loop {
            let now = this.limiter.clock.now();
            match shared.turn(ticket, cx.waker(), now) {
                WaiterTurn::Ended(result) => {
                    this.ticket = None;
                    return Poll::Ready(result);
                }
                WaiterTurn::Behind => {
                    this.sleep = None;
                    return Poll::Pending;
                }
                WaiterTurn::First(moment) => ready!(this.sleep_until(moment, now, cx))?,
            }
        }
    }
}

impl<C: Clock, T: Timer> Drop for Acquire<'_, C, T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let now = self.limiter.clock.now();
            self.limiter.shared.leave(ticket, now);
        }
    }
}

/// Wakes a parked thread.
pub(crate) struct Unpark(pub(crate) Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<C: Clock> PacedLimiter<C> {
    /// Waits, in a task of any runtime, until `n` operations are available: first come, first served.
    /// Drop it to give up the place in the queue. It sleeps on [`TimerThread::shared`], in real time,
    /// whatever the limiter's clock.
    ///
    /// # Errors
    ///
    /// When polled: if `n` is 0 or above the largest operation, which may change while it waits; if the
    /// queue is full; or if no thread could be started for the timer.
    pub fn acquire(&self, n: u32) -> Acquire<'_, C, TimerThread> {
        Acquire::new(self, TimerThread::shared(), n)
    }

    /// Like [`acquire`](Self::acquire), but sleeps on this timer.
    ///
    /// # Errors
    ///
    /// When polled: if `n` is 0 or above the largest operation, which may change while it waits; or if
    /// the queue is full.
    pub fn acquire_with<'a, T: Timer>(&'a self, timer: &'a T, n: u32) -> Acquire<'a, C, T> {
        Acquire::new(self, Some(timer), n)
    }

    /// Waits, in this thread, until `n` operations are available, in the same queue as the tasks. It
    /// sleeps in real time, whatever the limiter's clock.
    ///
    /// # Errors
    ///
    /// If `n` is 0 or above the largest operation, which may change while it waits; or if the queue is
    /// full.
    pub fn acquire_blocking(&self, n: u32) -> Result<(), AcquireError> {
        let cost = self.shared.cost(n)?;
        if self.shared.claim(cost) {
            return Ok(());
        }
        self.park_until_granted(n)
    }

    fn park_until_granted(&self, n: u32) -> Result<(), AcquireError> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let Some(ticket) = self.shared.enter(n, &waker, self.clock.now())? else {
            return Ok(());
        };
        loop {
            let now = self.clock.now();
            match self.shared.turn(ticket, &waker, now) {
                WaiterTurn::Ended(result) => return result,
                WaiterTurn::Behind => thread::park(),
                WaiterTurn::First(moment) => thread::park_timeout(self.sleep_for(moment, now)),
            }
        }
    }

    /// How long to sleep until an event at this moment.
    fn sleep_for(&self, moment: Timestamp, now: Timestamp) -> Duration {
        let between = span(i128::from(self.shared.price()));
        let least = if between < WAKE_APART {
            WAKE_APART
        } else {
            Duration::ZERO
        };
        moment.since(now).max(least)
    }
}
