//! Waiting for a key's turn.

use core::future::Future;
use core::hash::{BuildHasher, Hash};
use core::pin::Pin;
use core::task::{Context, Poll, Waker, ready};
use std::boxed::Box;
use std::thread;

use super::error::KeyError;
use super::keys::Keys;
use super::limiter::KeyedLimiter;
use crate::bucket::Tokens;
use crate::clock::Clock;
use crate::pace::{Timer, TimerThread, Unpark};
use crate::time::Timestamp;
use crate::verdict::NotNow;
use alloc::sync::Arc;

/// Waits until a key's limiter admits a cost. Made by [`Keys::acquire`].
///
/// Joins the queue of its key at the first poll. It can be dropped at any time: nothing is taken then, and the
/// next call of the key takes its place.
#[must_use = "does nothing unless polled"]
#[derive(Debug)]
pub struct AcquireKey<'a, L: KeyedLimiter, K: Hash + Eq, C: Clock, S: BuildHasher, T: Timer> {
    keys: &'a Keys<L, K, C, S>,
    timer: Option<&'a T>,
    key: K,
    cost: Tokens,
    /// The number of this waiter in the queue of its key.
    number: Option<u64>,
    /// Pinned, so that its owner can be moved.
    sleep: Option<Pin<Box<T::Sleep>>>,
}

// Only the boxed sleep is pinned.
impl<L: KeyedLimiter, K: Hash + Eq, C: Clock, S: BuildHasher, T: Timer> Unpin
    for AcquireKey<'_, L, K, C, S, T>
{
}

impl<L: KeyedLimiter, K: Hash + Eq + Clone, C: Clock, S: BuildHasher> Keys<L, K, C, S> {
    /// Waits, in a task of any runtime, until the key's limiter admits `cost`: first come, first served among
    /// the calls that wait for this key. A [`try_acquire`](Self::try_acquire) waits for none of them, and may
    /// take what they wait for. It sleeps on [`TimerThread::shared`], in real time, whatever the clock.
    ///
    /// A new key for which there is no place waits for one.
    ///
    /// # Errors
    ///
    /// When polled: [`KeyError::NotNow`] if no time can help, because the cost is above the limit;
    /// [`KeyError::TooManyWait`] if [`WAITING_MAX`](super::WAITING_MAX) calls wait; [`KeyError::NoTimer`] if no thread could be
    /// started for the timer.
    pub fn acquire(&self, key: K, cost: Tokens) -> AcquireKey<'_, L, K, C, S, TimerThread> {
        AcquireKey::new(self, TimerThread::shared(), key, cost)
    }

    /// Like [`acquire`](Self::acquire), but sleeps on this timer.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire).
    pub fn acquire_with<'a, T: Timer>(
        &'a self,
        timer: &'a T,
        key: K,
        cost: Tokens,
    ) -> AcquireKey<'a, L, K, C, S, T> {
        AcquireKey::new(self, Some(timer), key, cost)
    }

    /// Waits, in this thread, in the same queue as the tasks.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// ```
    /// # use std::num::NonZeroU32;
    /// # use tidegate_limits::keyed::BucketKeys;
    /// # use tidegate_limits::{Burst, Fill, Tokens};
    /// let rule = (Burst::new(1.0)?, Fill::new(1000.0)?);
    /// let keys = BucketKeys::new(rule, NonZeroU32::new(100).expect("not zero"));
    /// for _ in 0..3 {
    ///     keys.acquire_blocking("anna", Tokens::ONE).expect("it waits for its turn");
    /// }
    /// # Ok::<(), tidegate_limits::bucket::OutOfRange>(())
    /// ```
    pub fn acquire_blocking(&self, key: K, cost: Tokens) -> Result<(), KeyError> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut acquire = self.acquire(key, cost);
        loop {
            match Pin::new(&mut acquire).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(result) => return result,
                Poll::Pending => thread::park(),
            }
        }
    }
}

impl<'a, L: KeyedLimiter, K: Hash + Eq, C: Clock, S: BuildHasher, T: Timer>
    AcquireKey<'a, L, K, C, S, T>
{
    fn new(keys: &'a Keys<L, K, C, S>, timer: Option<&'a T>, key: K, cost: Tokens) -> Self {
        Self {
            keys,
            timer,
            key,
            cost,
            number: None,
            sleep: None,
        }
    }

    fn leave(&mut self) {
        if let Some(number) = self.number.take() {
            let next = self.keys.queues().leave(&self.key, number);
            // Outside the lock, because it may run its task at once.
            if let Some(next) = next {
                next.wake();
            }
        }
    }
}

impl<L: KeyedLimiter, K: Hash + Eq + Clone, C: Clock, S: BuildHasher, T: Timer> Future
    for AcquireKey<'_, L, K, C, S, T>
{
    type Output = Result<(), KeyError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let number = match this.number {
            Some(number) => number,
            None => {
                let joined = this
                    .keys
                    .queues()
                    .join(this.key.clone(), cx.waker().clone());
                *this.number.insert(joined?)
            }
        };
        if !this.keys.queues().is_first(&this.key, number, cx.waker()) {
            return Poll::Pending;
        }
        loop {
            if let Some(sleep) = &mut this.sleep {
                ready!(sleep.as_mut().poll(cx));
                this.sleep = None;
            }
            let key = &this.key;
            let result = this.keys.try_acquire_as(key, this.cost, || key.clone());
            let Some(opens) = result.err().and_then(opening) else {
                this.leave();
                return Poll::Ready(result);
            };
            let Some(timer) = this.timer else {
                this.leave();
                return Poll::Ready(Err(KeyError::NoTimer));
            };
            let span = opens.since(this.keys.clock().now());
            this.sleep = Some(Box::pin(timer.sleep(span)));
        }
    }
}

/// When to try again; `None` if no time can help.
fn opening(error: KeyError) -> Option<Timestamp> {
    match error {
        KeyError::NotNow(NotNow::NotBefore(Timestamp::MAX)) => None,
        KeyError::NotNow(NotNow::NotBefore(moment)) => Some(moment),
        KeyError::TooManyKeys(cause) => Some(cause.retry_at),
        KeyError::NotNow(NotNow::OnChange | NotNow::Never)
        | KeyError::TooManyWait { .. }
        | KeyError::NoTimer => None,
    }
}

impl<L: KeyedLimiter, K: Hash + Eq, C: Clock, S: BuildHasher, T: Timer> Drop
    for AcquireKey<'_, L, K, C, S, T>
{
    fn drop(&mut self) {
        self.leave();
    }
}
