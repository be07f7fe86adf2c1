//! The state that threads share: a pool that is claimed from without a lock or a clock, and behind a lock all that
//! is needed once that pool is empty.
//!
//! A thread that finds the pool empty becomes the filler: it takes the lock, computes the inflow
//! since the last fill, and puts it into the pool. No other thread does this, so an idle limiter
//! costs nothing, and no thread reads a clock while the pool contains something.
//!
//! - **Claims compare and swap**, so the pool never goes below zero, and no thread is refused
//!   because of another thread's failed attempt. Each operation is claimed by one thread.
//! - **While calls wait, the pool is empty**: the inflow stays behind the lock for the queue. So no
//!   thread can pass the queue, and no claim has to check for one.
//! - **A refusal needs no lock**: from when the pool was last filled it follows how much can have
//!   flowed in at most. The moment is read first and the pool after it, so that a fill in between
//!   makes the answer "perhaps", never a wrong no.

use core::mem;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::task::Waker;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::vec::Vec;

use super::error::AcquireError;
use super::sync::{AtomicI64, AtomicU32, AtomicU64, Mutex, spin_loop};
use crate::pace::pacer::{Pacer, PoolsNow, pools_now};
use crate::pace::pools::{PoolLevel, ticks};
use crate::pace::rule::Pace;
use crate::time::Timestamp;
use crate::verdict::NotNow;

/// Fills of a fast limiter are at least this far apart, so that threads that find the pool empty do
/// not queue for the lock. The inflow in between is available at the next fill, so an attempt may
/// be refused for up to this time.
const FILL_APART: Duration = Duration::from_micros(1);
/// From this rate on fills are kept apart, and slices take more than they need at once.
const FAST: f64 = 1e6;
/// The most that a slice takes at once, as time.
const BATCH: Duration = Duration::from_micros(50);
/// A slice takes at most this part of the pool, divided among all slices.
const SLICES_PART: i64 = 4;
/// A claim beyond this is not counted in the pool, but behind the lock: nine hours and more.
const PUBLISHED_MAX: i128 = 1 << 61;
/// The published cost of an operation while none can be claimed from the pool.
const BEHIND_THE_LOCK: i64 = i64::MAX;

/// Has cache lines of its own, so that threads that write it do not slow threads that read other
/// fields.
#[repr(align(128))]
#[derive(Debug, Default)]
struct CachePadded<T>(T);

#[derive(Debug)]
pub(super) struct SharedPacer {
    pool: CachePadded<SharedPool>,
    terms: CachePadded<Terms>,
    behind: CachePadded<Mutex<LockedPart>>,
}

/// The part that is written all the time.
#[derive(Debug, Default)]
struct SharedPool {
    /// The time that any thread may claim, in ticks; never below zero.
    active: AtomicI64,
    /// When it was last filled, in nanoseconds. Written after the pool, read before it.
    filled_at: AtomicU64,
}

/// The part that is read all the time and written when the pace changes.
#[derive(Debug, Default)]
struct Terms {
    /// Of one operation, in ticks.
    price: AtomicI64,
    largest: AtomicU32,
    /// The most ticks that flow in during a nanosecond.
    flow_max: AtomicU64,
    /// Nanoseconds that fills are apart at least.
    fills_apart: AtomicU64,
    /// Ticks that a slice may take beyond what it needs.
    batch: AtomicI64,
    slices: AtomicU32,
}

/// The part that is behind the lock.
#[derive(Debug)]
struct LockedPart {
    /// The pools, of which the active one holds only tokens that are not published.
    paced: Pacer,
    /// Whether the pool can hold what there is.
    publishes: bool,
    waiting: BTreeMap<u64, WaitingOperation>,
    /// Operations that they wait for.
    queued: u64,
    /// Calls that wait no more and have not been polled since: how many ticks were granted, or that
    /// they need more than the present largest operation.
    ended: BTreeMap<u64, Result<i128, AcquireError>>,
    /// Tasks to wake once the lock is free.
    to_wake: Vec<Waker>,
    waiting_max: usize,
    next_ticket: u64,
    /// Ticks that have come into the pools since the price last changed.
    supplied: i128,
    /// Operations until the price last changed.
    operations_before: f64,
    started: Timestamp,
}

#[derive(Debug)]
struct WaitingOperation {
    n: u32,
    waker: Waker,
}

/// The state of a waiting call.
#[derive(Debug)]
pub(super) enum WaiterTurn {
    /// Granted, or refused because it needs more at once than is allowed now.
    Ended(Result<(), AcquireError>),
    /// First in the queue. It must try again at this moment.
    First(Timestamp),
    /// Will be woken.
    Behind,
}

/// The counts and the level of a limiter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PacedLimiterNow {
    /// The limit: the configured rate and ratio.
    pub pace: Pace,
    /// Whether time accrues.
    pub running: bool,
    /// The level of the pools; [`PoolsNow::wait_time`] is how far behind schedule the demand is, and
    /// [`PoolsNow::burst`] the burst in use.
    pub pools: PoolsNow,
    /// Operations granted since the limiter was made. What slices took and hold counts.
    pub granted: f64,
    /// Operations granted per second, on average since the limiter was made. The counter above
    /// gives the average over any other span.
    pub achieved_per_second: f64,
    /// How many wait.
    pub waiting: usize,
}

impl SharedPacer {
    pub(super) fn new(pace: Pace, waiting_max: usize, now: Timestamp) -> Self {
        let shared = Self {
            pool: CachePadded(SharedPool {
                active: AtomicI64::new(0),
                filled_at: AtomicU64::new(now.as_nanos()),
            }),
            terms: CachePadded::default(),
            behind: CachePadded(Mutex::new(LockedPart {
                paced: Pacer::new(now, pace),
                publishes: false,
                waiting: BTreeMap::new(),
                queued: 0,
                ended: BTreeMap::new(),
                to_wake: Vec::new(),
                waiting_max,
                next_ticket: 0,
                supplied: pace.price(),
                operations_before: 0.0,
                started: now,
            })),
        };
        shared.locked(|behind| {
            shared.set_terms(behind);
            shared.publish(behind);
        });
        shared
    }

    /// Works behind the lock, and then wakes the calls that were granted or refused.
    fn locked<R>(&self, work: impl FnOnce(&mut LockedPart) -> R) -> R {
        // Nothing in here panics, and a level is set in one step.
        let mut behind = self.behind.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut behind);
        let to_wake = mem::take(&mut behind.to_wake);
        drop(behind);
        to_wake.into_iter().for_each(Waker::wake);
        result
    }

    /// Runs `work` behind the lock, after the inflow up to now has been given to waiting calls.
    fn served<R>(&self, now: Timestamp, work: impl FnOnce(&mut LockedPart) -> R) -> R {
        self.locked(|behind| {
            self.fill(behind, now);
            self.serve(behind);
            work(behind)
        })
    }

    /// The price of `n` operations, in ticks.
    #[inline]
    pub(super) fn cost(&self, n: u32) -> Result<i64, AcquireError> {
        let terms = &self.terms.0;
        let largest = terms.largest.load(Relaxed);
        if n.wrapping_sub(1) >= largest {
            return Err(AcquireError::of(n, largest));
        }
        Ok(terms.price.load(Relaxed).saturating_mul(i64::from(n)))
    }

    /// Claims what is in the pool, if it is enough.
    #[inline]
    pub(super) fn claim(&self, cost: i64) -> bool {
        self.claim_up_to(cost, |_| cost).is_some()
    }

    /// Claims at least `cost`, and up to the number that `wanted` returns for the contents of the
    /// pool. Returns the number claimed.
    #[inline]
    fn claim_up_to(&self, cost: i64, wanted: impl Fn(i64) -> i64) -> Option<i64> {
        let pool = &self.pool.0.active;
        let mut active = pool.load(Relaxed);
        let mut pause = 64_u32;
        while active >= cost {
            let claimed = wanted(active).clamp(cost, active);
            match pool.compare_exchange_weak(active, active - claimed, AcqRel, Relaxed) {
                Ok(_) => return Some(claimed),
                Err(_) => {
                    // The faster thread keeps the cache line for a few claims: in sum that is
                    // faster than alternating.
                    for _ in 0..pause {
                        spin_loop();
                    }
                    pause = (pause * 2).min(512);
                    active = pool.load(Relaxed);
                }
            }
        }
        None
    }

    /// An error if a claim of this cost would certainly fail, whatever other threads have done
    /// since, with the moment before which it fails.
    #[inline]
    pub(super) fn not_surely_in_vain(&self, cost: i64, now: Timestamp) -> Result<(), NotNow> {
        if cost == BEHIND_THE_LOCK {
            return Ok(());
        }
        let filled_at = self.pool.0.filled_at.load(Acquire);
        let active = self.pool.0.active.load(Acquire);
        let passed = now.as_nanos().saturating_sub(filled_at);
        let terms = &self.terms.0;
        let apart = terms.fills_apart.load(Relaxed);
        let flow_max = terms.flow_max.load(Relaxed);
        let lacking = u64::try_from(cost.saturating_sub(active)).unwrap_or(0);
        if passed >= apart && passed.saturating_mul(flow_max) >= lacking {
            return Ok(());
        }
        let enough = apart.max(lacking.div_ceil(flow_max));
        let moment = Timestamp::from_nanos(filled_at.saturating_add(enough));
        Err(NotNow::NotBefore(moment))
    }

    /// Fills the pools and tries again, for a thread that found fewer than `n` operations less what
    /// it `hold`s.
    #[cold]
    pub(super) fn fill_and_claim(&self, n: u32, held: i64, now: Timestamp) -> Result<(), NotNow> {
        self.served(now, |behind| {
            let cost = behind.cost(n) - i128::from(held);
            let granted = behind.waiting.is_empty()
                && match i64::try_from(cost) {
                    Ok(cost) if behind.publishes => self.claim(cost),
                    _ => behind.take(cost),
                };
            if granted {
                Ok(())
            } else if behind.paced.is_running() {
                let moment = self.reached_at(behind, cost, now);
                // Another one may have claimed what was there a moment ago.
                let soon = now + Duration::from_nanos(1);
                Err(NotNow::NotBefore(moment.max(soon)))
            } else {
                Err(NotNow::OnChange)
            }
        })
    }

    /// The first moment at which `n` operations are available behind the queue, if no call gives
    /// up.
    pub(super) fn available_at(&self, n: u32, now: Timestamp) -> Timestamp {
        self.served(now, |behind| self.reached_at(behind, behind.cost(n), now))
    }

    /// The first moment at which this much is available behind the queue, according to the last
    /// fill.
    fn reached_at(&self, behind: &LockedPart, cost: i128, now: Timestamp) -> Timestamp {
        let mut paced = behind.paced.clone();
        let mut level = self.level(behind);
        level.active -= i128::from(behind.queued) * paced.pace().price();
        paced.set_level(now, level);
        paced.reached_at(now, cost.min(paced.pace().sizes().active))
    }

    /// Grants `n` operations, or joins the queue and returns a ticket.
    pub(super) fn enter(
        &self,
        n: u32,
        waker: &Waker,
        now: Timestamp,
    ) -> Result<Option<u64>, AcquireError> {
        self.served(now, |behind| {
            let is_alone = behind.waiting.is_empty();
            if is_alone {
                // From here on no thread passes this call.
                self.withdraw(behind);
            }
            let ticket = if is_alone && behind.take(behind.cost(n)) {
                Ok(None)
            } else {
                behind.join(n, waker.clone()).map(Some)
            };
            // What is left, unless it waits.
            self.publish(behind);
            ticket
        })
    }

    /// The state of a waiting call, which this waker wakes.
    pub(super) fn turn(&self, ticket: u64, waker: &Waker, now: Timestamp) -> WaiterTurn {
        self.locked(|behind| {
            if !behind.ended.contains_key(&ticket) && behind.is_first(ticket) {
                // The calling task need not be woken.
                behind.set_waker(ticket, Waker::noop());
                self.fill(behind, now);
                self.serve(behind);
            }
            if let Some(result) = behind.ended.remove(&ticket) {
                return WaiterTurn::Ended(result.map(|_| ()));
            }
            behind.set_waker(ticket, waker);
            if behind.is_first(ticket) && behind.paced.is_running() {
                let wanted = behind.wanted_by_first().expect("a call is first");
                WaiterTurn::First(behind.paced.reached_at(now, wanted))
            } else {
                WaiterTurn::Behind
            }
        })
    }

    /// Removes a waiting call from the queue. Operations that were granted and not noticed are
    /// given back.
    pub(super) fn leave(&self, ticket: u64, now: Timestamp) {
        self.locked(|behind| {
            let was_first = behind.is_first(ticket);
            if let Some(ended) = behind.ended.remove(&ticket) {
                if let Ok(cost) = ended {
                    self.put_back(behind, cost, now);
                }
            } else if let Some(one) = behind.waiting.remove(&ticket) {
                behind.queued -= u64::from(one.n);
                if was_first {
                    // Until now the queue was not empty, so nothing is published.
                    self.serve(behind);
                    self.fill(behind, now);
                    // The next call must set its own timer.
                    behind.wake_first();
                }
            }
        });
    }

    /// Gives back what was claimed and not used.
    pub(super) fn give_back(&self, ticks: i64, now: Timestamp) {
        self.locked(|behind| self.put_back(behind, i128::from(ticks), now));
    }

    /// Changes the state behind the lock while nothing is published. Waiting calls are served under
    /// the new state, or refused if they need more than the largest operation, which would leave a
    /// debt that closes the limiter for all others.
    pub(super) fn change<R>(&self, now: Timestamp, change: impl FnOnce(&mut Pacer) -> R) -> R {
        self.locked(|behind| {
            self.fill(behind, now);
            self.withdraw(behind);
            // What was granted counts at the price that holds. All is behind the lock.
            behind.operations_before = behind.operations(behind.paced.pools().level());
            let result = change(&mut behind.paced);
            let PoolLevel { active, waiting } = behind.paced.pools().level();
            behind.supplied = active + waiting;
            self.set_terms(behind);
            behind.refuse_beyond(self.terms.0.largest.load(Relaxed));
            self.serve(behind);
            behind.wake_first();
            result
        })
    }

    pub(super) fn look(&self, now: Timestamp) -> PacedLimiterNow {
        self.served(now, |behind| {
            let level = self.level(behind);
            let granted = behind.operations(level);
            let seconds = now.since(behind.started).as_secs_f64();
            let pace = *behind.paced.pace();
            PacedLimiterNow {
                pace,
                running: behind.paced.is_running(),
                pools: pools_now(level, pace.sizes()),
                granted,
                achieved_per_second: if seconds > 0.0 {
                    granted / seconds
                } else {
                    0.0
                },
                waiting: behind.waiting.len(),
            }
        })
    }

    /// The level of the pools, with the published part. While calls wait, nothing is.
    fn level(&self, behind: &LockedPart) -> PoolLevel {
        let mut level = behind.paced.pools().level();
        level.active += i128::from(self.pool.0.active.load(Relaxed));
        level
    }

    /// Sets the level at `now` to what `level` makes of the pools, with what is published. A
    /// concurrent claim takes from the old contents: the same as if it had come just after this.
    fn update(
        &self,
        behind: &mut LockedPart,
        now: Timestamp,
        level: impl FnOnce(&Pacer) -> PoolLevel,
    ) {
        let published = i128::from(self.pool.0.active.load(Relaxed));
        behind.add(published);
        let mut level = level(&behind.paced);
        level.active -= published;
        behind.paced.set_level(now, level);
    }

    /// Adds the inflow since the last fill, and publishes it.
    fn fill(&self, behind: &mut LockedPart, now: Timestamp) {
        behind.supplied += behind.paced.pools().elapsed(now);
        self.update(behind, now, |paced| paced.level(now));
        self.publish(behind);
        let filled_at = behind.paced.pools().since();
        self.pool.0.filled_at.store(filled_at.as_nanos(), Release);
    }

    /// Publishes the contents if no call waits for them.
    fn publish(&self, behind: &mut LockedPart) {
        let active = behind.paced.pools().level().active;
        if behind.publishes && behind.waiting.is_empty() && active > 0 {
            behind.add(-active);
            let active = i64::try_from(active).expect("who publishes has little");
            self.pool.0.active.fetch_add(active, AcqRel);
        }
    }

    /// Takes back what can be claimed.
    fn withdraw(&self, behind: &mut LockedPart) {
        let published = self.pool.0.active.swap(0, AcqRel);
        behind.add(published.into());
    }

    /// Grants the contents to waiting calls, in order, and publishes the rest once no call waits.
    fn serve(&self, behind: &mut LockedPart) {
        let mut serves = false;
        while let Some(wanted) = behind.wanted_by_first() {
            if behind.paced.pools().level().active < wanted {
                if serves {
                    behind.wake_first();
                }
                break;
            }
            serves = true;
            let (ticket, one) = behind.waiting.pop_first().expect("a call is first");
            behind.queued -= u64::from(one.n);
            let cost = behind.cost(one.n);
            behind.add(-cost);
            behind.ended.insert(ticket, Ok(cost));
            behind.to_wake.push(one.waker);
        }
        self.publish(behind);
    }

    fn put_back(&self, behind: &mut LockedPart, ticks: i128, now: Timestamp) {
        self.fill(behind, now);
        self.update(behind, now, |paced| {
            let sizes = paced.pace().sizes();
            paced.pools().level().with_back(ticks, sizes)
        });
        self.serve(behind);
    }

    fn set_terms(&self, behind: &mut LockedPart) {
        let pace = behind.paced.pace();
        let sizes = pace.sizes();
        behind.publishes = sizes.over < PUBLISHED_MAX;
        let price = if behind.publishes {
            i64::try_from(pace.price()).expect("a price is less than the pool")
        } else {
            BEHIND_THE_LOCK
        };
        let fast = pace.rate().get() >= FAST;
        let terms = &self.terms.0;
        terms.price.store(price, Relaxed);
        // What the pool cannot hold could be claimed from it never.
        let fits = u32::try_from(sizes.active / pace.price()).unwrap_or(u32::MAX);
        terms.largest.store(pace.largest().get().min(fits), Relaxed);
        // Rounded up, and one for what rounding the burst may add.
        let flow_max = ticks(Duration::from_nanos(1)) as f64 * pace.ratio().get();
        terms.flow_max.store(flow_max as u64 + 2, Relaxed);
        let apart = if fast { FILL_APART } else { Duration::ZERO };
        terms.fills_apart.store(crate::time::nanos(apart), Relaxed);
        let batch = if fast { ticks(BATCH) } else { 0 };
        let batch = i64::try_from(batch).expect("a batch is short");
        terms.batch.store(batch, Relaxed);
    }

    pub(super) fn slice_made(&self) {
        self.terms.0.slices.fetch_add(1, Relaxed);
    }

    pub(super) fn slice_dropped(&self) {
        self.terms.0.slices.fetch_sub(1, Relaxed);
    }

    /// Claims at least `cost` for a slice, and its share of the pool up to a batch.
    pub(super) fn claim_batch(&self, cost: i64) -> Option<i64> {
        let slices = i64::from(self.terms.0.slices.load(Relaxed)).max(1);
        let batch = self.terms.0.batch.load(Relaxed);
        self.claim_up_to(cost, |active| {
            cost.saturating_add(batch)
                .min(active / (SLICES_PART * slices))
        })
    }

    /// Whether `n` operations would be available now without a queue, tried on a copy.
    #[cfg(all(test, not(loom)))]
    pub(super) fn has(&self, n: u32, now: Timestamp) -> bool {
        self.locked(|behind| {
            let mut paced = behind.paced.clone();
            let level = self.level(behind);
            paced.set_level(Timestamp::ZERO, level);
            let cost = behind.cost(n);
            level.active >= cost || paced.level(now).active >= cost
        })
    }

    /// The time between two operations, in ticks.
    pub(super) fn price(&self) -> i64 {
        self.terms.0.price.load(Relaxed)
    }
}

impl LockedPart {
    /// The cost of `n` operations, in ticks.
    fn cost(&self, n: u32) -> i128 {
        i128::from(n) * self.paced.pace().price()
    }

    /// Adds to the unpublished part.
    fn add(&mut self, ticks: i128) {
        let mut level = self.paced.pools().level();
        level.active += ticks;
        self.paced.set_level(Timestamp::ZERO, level);
    }

    /// Takes from the unpublished part, as waiting calls do.
    fn take(&mut self, cost: i128) -> bool {
        let active = self.paced.pools().level().active;
        let enough = active >= cost.min(self.paced.pace().sizes().active);
        if enough {
            self.add(-cost);
        }
        enough
    }

    fn join(&mut self, n: u32, waker: Waker) -> Result<u64, AcquireError> {
        // A call that was granted or refused, and has not noticed, still takes a place.
        if self.waiting.len() + self.ended.len() >= self.waiting_max {
            let max = self.waiting_max;
            return Err(AcquireError::TooManyWait { max });
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queued += u64::from(n);
        self.waiting.insert(ticket, WaitingOperation { n, waker });
        Ok(ticket)
    }

    /// Takes those out of the queue that wait for more operations at once than this.
    fn refuse_beyond(&mut self, largest: u32) {
        self.waiting.retain(|&ticket, one| {
            let stays = one.n <= largest;
            if !stays {
                self.queued -= u64::from(one.n);
                let error = AcquireError::of(one.n, largest);
                self.ended.insert(ticket, Err(error));
                self.to_wake.push(one.waker.clone());
            }
            stays
        });
    }

    fn set_waker(&mut self, ticket: u64, waker: &Waker) {
        let one = self.waiting.get_mut(&ticket);
        one.expect("who is not granted waits")
            .waker
            .clone_from(waker);
    }

    fn is_first(&self, ticket: u64) -> bool {
        self.waiting.keys().next() == Some(&ticket)
    }

    /// The time that the pool must contain for the first call in the queue.
    fn wanted_by_first(&self) -> Option<i128> {
        let (_, first) = self.waiting.first_key_value()?;
        Some(self.cost(first.n).min(self.paced.pace().sizes().active))
    }

    fn wake_first(&mut self) {
        let first = self.waiting.first_key_value();
        self.to_wake
            .extend(first.map(|(_, first)| first.waker.clone()));
    }

    /// Operations granted, where this is what is left.
    fn operations(&self, left: PoolLevel) -> f64 {
        let claimed = self.supplied - left.active - left.waiting;
        self.operations_before + claimed as f64 / self.paced.pace().price() as f64
    }
}
