//! The gate: the scheduler behind one lock, and the one timer.
//!
//! Every change also asks for the next call, under the same lock and at a `now` read inside it. A
//! call whose turn comes finds its hold in its own channel. Nothing polls: when no call may run,
//! one timer sleeps until the moment that the scheduler named.
//!
//! Two lanes share the backends: calls that meet limits, and those that meet none
//! (`/token`), which have slots of their own so that a full queue never blocks them.

mod backends;
mod class;
pub mod metrics;
mod permit;
mod place;
pub mod policy;
mod promote;
mod quotas;

use std::collections::HashMap;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use tidegate_callers::CallerId;
use tidegate_limits::{
    Backend, BucketId, BucketMode, BucketNow, BucketRule, BurstRatio, Call, Caller, Class, Cost,
    Delays, Fill, Hold, Limit, LimitNow, LimitRule, QueueNow, QuotaKey, QuotaSpent, Rate,
    Scheduler, Scope, Step, Supplier, Supply, Ticket, Timestamp, Tokens, TooManyBuckets, Waited,
    Weight,
};
use tidegate_runtime::Clock;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use self::backends::Backends;
use self::class::USER;
pub use self::class::{ClassRule, Deadline, Pool};
use self::metrics::{GateNow, WindowNow};
pub use self::permit::Permit;
pub use self::place::Place;
use self::promote::{Acting, Follower, Promoted, Promotions, Tie};
pub use self::quotas::QuotaAnswer;
use crate::call::claim::{self, Charged, Settling};
use crate::call::pace::CostRange;
use crate::call::{
    Claim as CallerClaim, Destination, Fault, Generation, Identity, Quota, Reason, Record, Refusal,
    Role, Verdict,
};
use crate::telemetry::log;

/// While calls are under way, the timer wakes at least this often. Each call sets its own timers,
/// and tokio wakes its reactor through the kernel for a timer that fires next. With this timer
/// before them, none of them fires next. An idle proxy makes no wake-ups.
const BEAT: Duration = Duration::from_secs(1);

/// The settings of this stage. The gate builds the scheduler's policy from them, because only the
/// gate knows the clock's phase and the backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The most waiting calls.
    pub capacity: u32,
    /// The most calls past the gate at once.
    pub workers: u32,
    /// The most calls without limits past the gate at once.
    pub max_unlimited: u32,
    /// What a full queue does.
    pub when_full: WhenFull,
    /// How a call is postponed.
    pub postpone: Postpone,
    /// The limits per window; none switches windows off.
    pub window: Option<Window>,
    /// Paced limits on all calls, or on those of a function, each with its own name.
    pub paced: Vec<PacedLimit>,
    /// Calls at the backend at once; none switches this limit off.
    pub outstanding_max: Option<u32>,
    /// How long a call may wait, from arrival.
    pub threshold: Duration,
    /// The most calls above the capacity, at the door of a full queue: one for each connection, and
    /// the tasks.
    pub door_max: u32,
    /// The classes, at least one. The first is that of users, to which reads are promoted. Calls of
    /// unknown classes are in the last.
    pub classes: Vec<ClassRule>,
    /// How long after a user call on a guest its reads are in the class of users; `None` switches
    /// promotion off.
    pub promote_for: Option<Duration>,
}

/// What a full queue does with one more call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits at the door, in its turn.
    Wait,
    /// It is refused at once.
    Refuse,
}

/// How a call that meets a closed limit is postponed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Postpone {
    /// It keeps its place and runs when the limit opens.
    InTurn,
    /// It is set aside for a random time, then joins the end of its flow.
    Jitter {
        /// The minimum.
        min: Duration,
        /// The maximum.
        max: Duration,
    },
}

/// The window limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its length.
    pub length: Duration,
    /// Calls per window over all functions; `None` if `total` is 0, which means no bound.
    pub total: Option<u32>,
    /// Calls per window by function.
    pub functions: Vec<(Arc<str>, u32)>,
    /// Sliding, or aligned to the wall clock.
    pub fixed: bool,
    /// Whether a slot is stamped at the first reply byte instead of when the call left.
    pub stamp_replied: bool,
    /// Added to the length before a slot comes back.
    pub guard: Duration,
}

/// A number of tokens a second, over all callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacedLimit {
    /// Its name in the config.
    pub name: Arc<str>,
    /// The function whose calls meet it; `None` for all calls.
    pub function: Option<Arc<str>>,
    /// Tokens per second.
    pub rate: Rate,
    /// Late calls are admitted at this many times the rate.
    pub ratio: BurstRatio,
    /// The costs of its calls.
    pub costs: CostRange,
}

/// Who waits for a call. That decides how long it may wait without other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Its client: for the threshold.
    Client,
    /// No client, because it was handed over: until it is served.
    NoClient,
}

/// What the gate must know about a call.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The exact name of its function.
    pub function: Arc<str>,
    /// Its destination.
    pub destination: Destination,
    /// Whether it meets the limits.
    pub limited: bool,
    /// When its clock started.
    pub arrived: Timestamp,
    /// Who waits for it.
    pub waits: Waits,
    /// The caller.
    pub caller: Caller,
    /// Its caller's turns for one turn of an ordinary caller.
    pub weight: Weight,
    /// Its estimated cost.
    pub tokens: Tokens,
    /// The bucket that is charged.
    pub bucket: Option<BucketId>,
    /// The quotas that it draws from.
    pub quotas: Option<Arc<[QuotaKey]>>,
    /// How it is settled after the backend is done, if at all.
    pub settling: Option<Settling>,
    /// How long its rate limit lets it wait; without a setting, its class decides.
    pub deadline: claim::Deadline,
    /// The name of its class.
    pub class: Arc<str>,
    /// Its role for promotion.
    pub role: Role,
    /// The guest that it is about.
    pub target: Option<Box<str>>,
}

impl Ask {
    /// A call that meets limits, without a known caller, a charge or a class of its own.
    #[must_use]
    pub fn new(function: &Arc<str>, destination: Destination, arrived: Timestamp) -> Self {
        Self {
            function: Arc::clone(function),
            destination,
            limited: true,
            arrived,
            waits: Waits::Client,
            caller: Caller::ANONYMOUS,
            weight: Weight::ONE,
            tokens: Tokens::ONE,
            bucket: None,
            quotas: None,
            settling: None,
            deadline: claim::Deadline::Ordinary,
            class: Arc::from("none"),
            role: Role::Apart,
            target: None,
        }
    }

    /// The same, with the caller and the charge of the claim.
    #[must_use]
    pub fn claimed(self, claim: &CallerClaim) -> Self {
        Self {
            caller: Caller(claim.caller.0),
            weight: claim.weight,
            tokens: claim::drawn(claim.cost),
            bucket: claim.bucket(),
            quotas: claim.quotas.clone(),
            settling: claim.settling.clone(),
            deadline: claim.deadline(),
            ..self
        }
    }
}

/// Admits calls when their turn has come and their limits open.
#[derive(Clone)]
pub struct Gate {
    core: Arc<Core>,
}

struct Core {
    clock: Clock,
    state: Mutex<State>,
    /// Wakes the timer when it sleeps too long.
    rearm: Notify,
    /// Whether the queue has room, for accept loops that look without the lock.
    full: AtomicBool,
    room: Notify,
    /// A part that wants to know when anything happens.
    watched: AtomicBool,
    stirred: Notify,
    /// There are requests to the store of quotas.
    asks: Notify,
    draining: AtomicBool,
}

struct State {
    lanes: [Scheduler<Waiter>; 2],
    backends: Backends,
    entropy: StdRng,
    threshold: Duration,
    /// Names and deadlines of the classes; [`Class`] is the index in here.
    classes: Vec<(Arc<str>, Deadline)>,
    promotions: Promotions,
    when_full: WhenFull,
    /// No call waits any more.
    turned_away: bool,
    /// The most calls that have been past the gate at once, of those that meet limits.
    peak: usize,
    /// The next moment at which something happens.
    wake: Option<Timestamp>,
    /// Until when the timer sleeps.
    armed: Option<Timestamp>,
}

/// A call that waits for its turn.
enum Waiter {
    /// The call that asks at this moment, under the lock.
    Asking,
    /// A waiting call.
    Waiting {
        tell: oneshot::Sender<Turn>,
        /// It was put into the class of users, and stays there for any client.
        promoted: bool,
        /// Its record, and its caller.
        record: Weak<Record>,
    },
}

impl Waiter {
    fn promote(&mut self) {
        if let Self::Waiting { promoted, .. } = self {
            *promoted = true;
        }
    }

    fn is_promoted(&self) -> bool {
        matches!(self, Self::Waiting { promoted: true, .. })
    }
}

/// The message to a waiting call.
#[derive(Debug)]
enum Turn {
    Go {
        hold: Hold,
        waited: Waited,
        spent: Vec<QuotaSpent>,
        at: Timestamp,
        promoted: bool,
    },
    No {
        refusal: tidegate_limits::Refusal,
        delays: Delays,
    },
    Drained {
        delays: Delays,
    },
}

/// Which of the two schedulers a call waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Limited = 0,
    Unlimited = 1,
}

impl Gate {
    /// No call waits yet.
    #[must_use]
    pub fn new(settings: &Settings, clock: Clock) -> Self {
        let mut entropy: StdRng = rand::make_rng();
        let limited = policy::limited(settings, clock.phase());
        let unlimited = policy::unlimited(settings);
        let state = State {
            lanes: [limited, unlimited].map(|policy| {
                // A client that knows the seed could choose the callers with which it shares turns.
                Scheduler::with_seed(policy, entropy.next_u64())
            }),
            backends: Backends::default(),
            entropy,
            threshold: settings.threshold,
            classes: deadlines(settings),
            promotions: Promotions::new(settings.promote_for),
            when_full: settings.when_full,
            turned_away: false,
            peak: 0,
            wake: None,
            armed: None,
        };
        let core = Core {
            clock,
            state: Mutex::new(state),
            rearm: Notify::new(),
            full: AtomicBool::new(false),
            room: Notify::new(),
            watched: AtomicBool::new(false),
            stirred: Notify::new(),
            asks: Notify::new(),
            draining: AtomicBool::new(false),
        };
        Self {
            core: Arc::new(core),
        }
    }

    /// Asks for a call's turn.
    pub fn ask<'a>(&'a self, mut ask: Ask, record: &'a Arc<Record>) -> Asked<'a> {
        if self.core.draining.load(Ordering::Relaxed) {
            return Asked::Answered(Err(draining()));
        }
        let lane = if ask.limited {
            Lane::Limited
        } else {
            Lane::Unlimited
        };
        let backend = ask.destination;
        let mut claim = Claim {
            core: &self.core,
            lane,
            backend,
            settling: ask.settling.take(),
            tie: Tie::Apart,
            record,
        };
        let mut promoted = Promoted::default();
        let submitted = self.core.change(|state, now| {
            let own = state.class(&ask.class);
            let deadline = state.deadline(own, &ask, now);
            let guest = state.guest(lane, ask.role, ask.target);
            if guest.is_some() {
                let (name, _) = &state.classes[USER.0 as usize];
                promoted.class = Some(Arc::clone(name));
            }
            let class = state.class_in_which_it_rides(own, ask.role, guest.as_deref(), now);
            if class != own {
                promoted.records.push(Arc::downgrade(record));
                claim.tie = Tie::Rides;
            }
            let call = Call {
                function: ask.function,
                backend: Backend(backend as u8),
                class,
                caller: ask.caller,
                weight: ask.weight,
                cost: Cost::ONE,
                tokens: ask.tokens,
                bucket: ask.bucket,
                quotas: ask.quotas,
                arrived: ask.arrived,
                deadline,
            };
            let ticket = state.lanes[lane as usize]
                .submit(now, call, Waiter::Asking)
                .map_err(|(refusal, _)| refusal)?;
            if let Some(guest) = guest.filter(|_| class == own) {
                claim.tie = state.tie(&self.core, ask.role, guest, now, &mut promoted);
            }
            Ok(state.let_through_or_wait(lane, ticket, now, &claim))
        });
        promoted.tell();
        match submitted {
            Ok(told) => claim.asked(told),
            Err(refusal) => Asked::Answered(Err(self.core.refusal(&refusal, backend))),
        }
    }

    /// Puts a call that could not be sent back in its turn, with all limits undrawn, and asks for
    /// it again. Its backend gets one probe at a time, unless the failure is our own. If waiting
    /// calls are being refused, so is this one.
    pub fn ask_again<'a>(
        &'a self,
        permit: Permit,
        fault: Fault,
        record: &'a Arc<Record>,
    ) -> Asked<'a> {
        record.note(|facts| facts.quotas.clear());
        let generation = permit.generation;
        let (lane, backend, hold, settling, tie) = permit.into_parts();
        let claim = Claim {
            core: &self.core,
            lane,
            backend,
            settling,
            tie,
            record,
        };
        let told = self.core.change(|state, now| {
            if state.turned_away {
                state.lanes[lane as usize].give_back(now, hold);
                return None;
            }
            let ticket = state.lanes[lane as usize].requeue(now, hold, Waiter::Asking);
            if fault != Fault::Own {
                let spread = state.entropy.random_range(0.5..1.0);
                state.backends.failed(backend, generation, now, spread);
                state.shut(backend, now);
            }
            Some(state.let_through_or_wait(lane, ticket, now, &claim))
        });
        match told {
            Some(told) => claim.asked(told),
            None => Asked::Answered(Err(draining())),
        }
    }

    /// How urgent such a call is.
    #[must_use]
    pub fn class(&self, ask: &Ask) -> Class {
        self.core.lock().class(&ask.class)
    }

    /// Until when such a call may wait; `None` without a bound.
    #[must_use]
    pub fn deadline(&self, ask: &Ask) -> Option<Timestamp> {
        let state = self.core.lock();
        let class = state.class(&ask.class);
        state.deadline(class, ask, ask.arrived)
    }

    /// Runs the one timer, until dropped. Nothing else wakes calls whose moment has come, so if it
    /// ends by itself, the process aborts.
    pub async fn keep_time(&self) {
        let gate = self.clone();
        let mut task = JoinSet::new();
        task.spawn(async move { gate.wake_in_time().await });
        let ended = task.join_next().await.expect("it was just spawned");
        // If it is cancelled, its runtime has ended.
        if !ended.is_err_and(|error| error.is_cancelled()) {
            log::abort("the timer of the queue has ended, so calls would wait for ever");
        }
    }

    /// Sleeps until the scheduler's next moment, repeatedly.
    async fn wake_in_time(&self) {
        loop {
            let rearmed = self.core.rearm.notified();
            let wake = {
                let mut state = self.core.lock();
                state.armed = state.wake;
                state.wake
            };
            let due = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(self.core.clock.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => self.core.change(|_, _| ()),
                () = rearmed => {}
            }
        }
    }

    /// Takes new settings: later calls meet the new limits, waiting calls keep their places, used
    /// slots stay used.
    pub fn apply(&self, settings: &Settings) {
        let limited = policy::limited(settings, self.core.clock.phase());
        let unlimited = policy::unlimited(settings);
        self.core.change(|state, now| {
            state.threshold = settings.threshold;
            state.classes = deadlines(settings);
            state.promotions.apply(settings.promote_for);
            state.when_full = settings.when_full;
            let [calls, free] = &mut state.lanes;
            calls.apply(now, limited);
            free.apply(now, unlimited);
        });
    }

    /// Makes the bucket of a rate limit, or changes it in place: its tokens and waiting calls are
    /// kept.
    ///
    /// # Errors
    /// If there are too many.
    pub fn set_bucket(&self, id: BucketId, rule: BucketRule) -> Result<(), TooManyBuckets> {
        self.core
            .change(|state, now| state.lanes[Lane::Limited as usize].set_bucket(now, id, rule))
    }

    /// Removes a bucket. `reroute` returns the bucket to which each waiting call is charged
    /// instead. Without one it waits only for its other limits.
    pub fn remove_bucket(&self, id: BucketId, mut reroute: impl FnMut(Caller) -> Option<BucketId>) {
        // Calls of one caller get the same charge, and there are usually many of them.
        let mut known: HashMap<Caller, Option<BucketId>> = HashMap::new();
        self.core.change(|state, now| {
            state.lanes[Lane::Limited as usize].remove_bucket(now, id, |call| {
                let caller = call.caller;
                *known.entry(caller).or_insert_with(|| reroute(caller))
            })
        });
    }

    /// Charges each waiting call like a call that arrives now. `charge` returns the charge of an
    /// identity, and is called once for each.
    pub fn reroute(&self, mut charge: impl FnMut(&Identity) -> Charged) {
        let mut known: HashMap<Arc<Identity>, Charged> = HashMap::new();
        // Dropping a record reports it, which must not happen under the lock.
        let mut records = Vec::new();
        self.core.change(|state, now| {
            state.lanes[Lane::Limited as usize].reroute_waiting(now, |_, waiter| {
                let Waiter::Waiting { record, .. } = waiter else {
                    return None;
                };
                let record = record.upgrade()?;
                let bucket = record.note(|facts| {
                    let identity = &facts.origin.identity;
                    let charged = match known.get(identity) {
                        Some(charged) => charged,
                        None => known
                            .entry(Arc::clone(identity))
                            .or_insert_with(|| charge(identity)),
                    };
                    if let Some(claim) = &mut facts.claim
                        && claim.charged != *charged
                    {
                        claim.charged = charged.clone();
                    }
                    charged.bucket()
                });
                records.push(record);
                Some(bucket)
            });
        });
        drop(records);
    }

    /// The current state of a bucket.
    #[must_use]
    pub fn bucket_now(&self, id: BucketId) -> Option<BucketNow> {
        let state = self.core.lock();
        let now = self.core.clock.now();
        state.lanes[Lane::Limited as usize].bucket_now(now, id)
    }

    /// What a bucket has left, for the charged caller; `None` if it delays no call.
    #[must_use]
    pub fn quota(&self, id: BucketId, caller: CallerId) -> Option<Quota> {
        let BucketNow { rule, tokens, .. } = self.bucket_now(id)?;
        if rule.mode == BucketMode::Observe {
            return None;
        }
        let most = rule.limit.most();
        let reset = (most - tokens) / rule.limit.per_second();
        let reset = Duration::try_from_secs_f64(reset.max(0.0));
        Some(Quota {
            caller,
            // A conversion to an integer saturates: a debt becomes 0.
            limit: most as u64,
            remaining: tokens.min(most) as u64,
            reset: reset.unwrap_or(Duration::MAX),
        })
    }

    /// How long a call of this cost would wait for the bucket now; `None` if there is no such
    /// bucket.
    #[must_use]
    pub fn bucket_wait(&self, id: BucketId, tokens: Tokens) -> Option<Duration> {
        let state = self.core.lock();
        let now = self.core.clock.now();
        state.lanes[Lane::Limited as usize].bucket_wait(now, id, tokens)
    }

    /// Sets a limit's share of a capacity that several proxies share. Returns its state at the same
    /// moment; `None` if there is no such limit.
    pub fn supply(&self, limit: &str, supply: Supply) -> Option<LimitNow> {
        self.core.change(|state, now| {
            let calls = &mut state.lanes[Lane::Limited as usize];
            calls.supply(now, limit, Supplier::Coordinator, supply);
            calls.limit_now(now, limit)
        })
    }

    /// The current state of the limit with this name, among those that limited calls meet.
    #[must_use]
    pub fn limit_now(&self, limit: &str) -> Option<LimitNow> {
        let state = self.core.lock();
        let now = self.core.clock.now();
        state.lanes[Lane::Limited as usize].limit_now(now, limit)
    }

    /// Sets the rate at which a bucket fills, its share of a rate that several proxies share.
    /// Returns its state; `None` if there is no such bucket.
    pub fn supply_fill(&self, id: BucketId, supply: Supply<Fill>) -> Option<BucketNow> {
        self.core.change(|state, now| {
            let calls = &mut state.lanes[Lane::Limited as usize];
            calls.supply_fill(now, id, supply);
            calls.bucket_now(now, id)
        })
    }

    /// A destination leads to another backend from now on, which counts as up. Calls that wait for
    /// the old one go to it.
    pub fn moved(&self, destination: Destination, generation: Generation) {
        self.core.change(|state, now| {
            if state.backends.moved(destination, generation) {
                state.open(destination, now);
            }
        });
    }

    /// From now on [`stirred`](Self::stirred) returns at the next change.
    pub fn watch(&self) {
        self.core.watched.store(true, Ordering::Release);
    }

    /// Waits until something has changed since [`watch`](Self::watch), also before this call.
    pub async fn stirred(&self) {
        self.core.stirred.notified().await;
    }

    /// From now on new calls are refused; waiting calls continue.
    pub fn drain(&self) {
        self.core.draining.store(true, Ordering::Relaxed);
    }

    /// Refuses all waiting calls, and calls that would wait again because they cannot be sent.
    pub fn turn_away(&self) {
        self.drain();
        self.core.change(|state, now| {
            state.turned_away = true;
            for lane in &mut state.lanes {
                while let Some((waiter, Waited { delays, .. })) = lane.evict(now) {
                    // A call that has just left needs no answer.
                    let _ = tell(waiter, Turn::Drained { delays }, &mut None);
                }
            }
        });
    }

    /// Waits until the queue has room, if a full queue holds the next call back.
    pub async fn room(&self) {
        loop {
            let room = self.core.room.notified();
            if !self.core.full.load(Ordering::Acquire) {
                return;
            }
            room.await;
        }
    }

    /// Whether a backend accepts connections, as far as calls have shown.
    #[must_use]
    pub fn is_up(&self, backend: Destination) -> bool {
        self.core.lock().backends.is_up(backend)
    }

    /// The current state of every limit. The backends' health is elsewhere.
    #[must_use]
    pub fn limits_now(&self) -> (Vec<(LimitRule, LimitNow)>, Timestamp) {
        let state = self.core.lock();
        let now = self.core.clock.now();
        let limits = state
            .lanes
            .iter()
            .flat_map(|lane| lane.rules().cloned().zip(lane.limits_now(now)))
            .filter(|(rule, _)| !matches!(rule.scope, Scope::Backend(_)))
            .collect();
        (limits, now)
    }

    /// The current state of the queue. Looks at every waiting call.
    #[must_use]
    pub fn queue_now(&self) -> QueueNow {
        let state = self.core.lock();
        let now = self.core.clock.now();
        state.lanes[Lane::Limited as usize].queue_now(now)
    }

    /// A snapshot for metrics. Looks at every waiting call.
    #[must_use]
    pub fn now(&self) -> GateNow {
        let state = self.core.lock();
        let now = self.core.clock.now();
        let limited = &state.lanes[Lane::Limited as usize];
        let lanes = state.lanes.iter();
        let limits = lanes.flat_map(|lane| lane.rules().zip(lane.limits_now(now)));
        let windows = limits.filter(|(rule, _)| matches!(rule.limit, Limit::Window { .. }));
        GateNow {
            queue: limited.queue_now(now),
            outstanding: limited.in_flight(),
            outstanding_peak: state.peak,
            windows: windows
                .map(|(rule, state)| WindowNow {
                    limit: Arc::clone(&rule.name),
                    used: state.used,
                    configured: state.configured,
                })
                .collect(),
        }
    }

    /// Calls past the gate and waiting calls, also at the door, over both lanes.
    #[must_use]
    pub fn busy(&self) -> (usize, usize) {
        let state = self.core.lock();
        let lanes = state.lanes.iter();
        let waiting = |lane: &Scheduler<Waiter>| lane.waiting() + lane.at_door();
        (
            lanes.clone().map(Scheduler::in_flight).sum(),
            lanes.map(waiting).sum(),
        )
    }
}

/// The names of the classes, each with how long its calls may wait.
fn deadlines(settings: &Settings) -> Vec<(Arc<str>, Deadline)> {
    let classes = settings.classes.iter();
    classes
        .map(|class| (Arc::clone(&class.name), class.deadline))
        .collect()
}

fn draining() -> Refusal {
    Refusal {
        retry_after: Some(Duration::from_secs(1)),
        ..Refusal::new(Reason::Draining, "the proxy is going down")
    }
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|_| {
            log::abort(
                "a task panicked while it changed the queue, so the limits can no longer be held",
            )
        })
    }

    /// Makes a change, then admits the calls that may run now.
    fn change<R>(&self, change: impl FnOnce(&mut State, Timestamp) -> R) -> R {
        let mut state = self.lock();
        let now = self.clock.now();
        let result = change(&mut state, now);
        if !state.is_settled(now) {
            let asking = state.let_through(now);
            debug_assert!(
                asking.is_none(),
                "only `ask` asks, and gets its answer there"
            );
        }
        // A call must be accepted before it can be refused.
        let full =
            state.when_full == WhenFull::Wait && !state.lanes[Lane::Limited as usize].has_room();
        let earlier = match (state.wake, state.armed) {
            (Some(wake), Some(armed)) => wake < armed,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if earlier {
            state.armed = state.wake;
        }
        // Under the lock, so that the last write is from the last check.
        let has_opened = self.full.swap(full, Ordering::AcqRel) && !full;
        let asks = state.lanes[Lane::Limited as usize].asks_of_quotas();
        drop(state);
        if asks {
            self.asks.notify_one();
        }
        if earlier {
            self.rearm.notify_one();
        }
        if has_opened {
            self.room.notify_waiters();
        }
        if self.watched.load(Ordering::Acquire) && self.watched.swap(false, Ordering::AcqRel) {
            self.stirred.notify_one();
        }
        result
    }

    /// Converts a refusal of the scheduler into one of the app.
    fn refusal(&self, refusal: &tidegate_limits::Refusal, backend: Destination) -> Refusal {
        use tidegate_limits::Reason as Core;
        let is_up = self.lock().backends.is_up(backend);
        let limit = refusal.limit.clone();
        let named = limit.as_deref().unwrap_or("queue").to_owned();
        let (reason, detail) = match refusal.reason {
            Core::QueueFull => (Reason::QueueFull, "the queue is full".to_owned()),
            Core::DeadlinePassed | Core::DeadlineUnreachable if !is_up => (
                Reason::BackendUnreachable,
                format!("the {} backend takes no connection", backend.label()),
            ),
            Core::DeadlinePassed => (
                Reason::DeadlinePassed,
                format!("waited as long as a call may for limit {named}"),
            ),
            Core::DeadlineUnreachable => (
                Reason::DeadlineUnreachable,
                format!("limit {named} opens only after the call's deadline"),
            ),
            Core::NeverPossible => (
                Reason::NeverPossible,
                format!("limit {named} is smaller than what the call needs"),
            ),
            Core::RateLimited => (
                Reason::RateLimited,
                format!("limit {named} has no tokens to spare"),
            ),
            Core::StoreAway => (
                Reason::QuotaStoreAway,
                format!("the store of quota {named} does not answer, or not for this key"),
            ),
            Core::Draining => return draining(),
        };
        Refusal {
            limit,
            retry_after: Some(refusal.retry_after),
            ..Refusal::new(reason, detail)
        }
    }
}

impl State {
    /// Whether [`let_through`](Self::let_through) would find nothing to do.
    fn is_settled(&self, now: Timestamp) -> bool {
        self.wake.is_none_or(|wake| now < wake)
            && self
                .lanes
                .iter()
                .all(|lane| lane.waiting() == 0 && lane.has_settled_quotas())
    }

    /// Until when a call of this class may wait; `None` until it is served. Its rate limit decides,
    /// then its class, then who waits for it.
    fn deadline(&self, class: Class, ask: &Ask, now: Timestamp) -> Option<Timestamp> {
        let (_, own) = &self.classes[class.0 as usize];
        match (ask.deadline, own, ask.waits) {
            (claim::Deadline::None, _, _) | (_, Deadline::Threshold, Waits::NoClient) => None,
            (claim::Deadline::Ordinary, own, _) => own.of(self.threshold, ask.arrived, now),
        }
    }

    /// The class of this name; the last one if a reload has removed it.
    fn class(&self, name: &str) -> Class {
        let index = self.classes.iter().position(|(known, _)| **known == *name);
        let index = index.unwrap_or(self.classes.len() - 1);
        Class(u32::try_from(index).expect("the config bounds the classes"))
    }

    /// The guest that a call is about, in upper case: the backend ignores case. None where that
    /// decides nothing.
    fn guest(&self, lane: Lane, role: Role, target: Option<Box<str>>) -> Option<Box<str>> {
        let decides = lane == Lane::Limited && role != Role::Apart && self.promotions.is_on();
        let mut guest = target.filter(|_| decides)?;
        guest.make_ascii_uppercase();
        Some(guest)
    }

    fn class_in_which_it_rides(
        &self,
        own: Class,
        role: Role,
        guest: Option<&str>,
        now: Timestamp,
    ) -> Class {
        let follows = role == Role::Follows
            && guest.is_some_and(|guest| self.promotions.is_acted_on(guest, now));
        if follows { USER } else { own }
    }

    /// Links a call to its guest. A user call promotes the reads that wait for the same guest. It
    /// is submitted first, so they do not go before it.
    fn tie(
        &mut self,
        core: &Arc<Core>,
        role: Role,
        guest: Box<str>,
        now: Timestamp,
        promoted: &mut Promoted,
    ) -> Tie {
        if role != Role::Acts {
            return Tie::Follows(guest);
        }
        let guest: Arc<str> = guest.into();
        for follower in self.promotions.begins(&guest, now) {
            let calls = &mut self.lanes[Lane::Limited as usize];
            if let Some(waiter) = calls.payload_mut(follower.ticket) {
                waiter.promote();
                calls.reclass(now, follower.ticket, USER);
                promoted.records.push(follower.record);
            }
        }
        let until = Acting::new(Arc::clone(core), guest);
        Tie::Acts { until }
    }

    /// Admits every call that may run. The call that asks gets its answer at once; the others get
    /// it in their channels.
    fn let_through_or_wait(
        &mut self,
        lane: Lane,
        ticket: Ticket,
        now: Timestamp,
        claim: &Claim<'_>,
    ) -> Told {
        if let Some(turn) = self.let_through(now) {
            return Told::Now(turn);
        }
        let (tell, turn) = oneshot::channel();
        let waiter = self.lanes[lane as usize].payload_mut(ticket);
        *waiter.expect("who was not told waits") = Waiter::Waiting {
            tell,
            promoted: matches!(claim.tie, Tie::Rides),
            record: Arc::downgrade(claim.record),
        };
        if let Tie::Follows(guest) = &claim.tie {
            let record = Arc::downgrade(claim.record);
            let calls = &mut self.lanes[lane as usize];
            let waits = |ticket| calls.payload_mut(ticket).is_some();
            let follower = Follower { ticket, record };
            self.promotions.waits(guest, follower, waits);
        }
        Told::Later(ticket, turn)
    }

    /// Gives a hold to every call that may run, in turn. Returns the answer for the call that asks
    /// at this moment.
    fn let_through(&mut self, now: Timestamp) -> Option<Turn> {
        let mut answer = None;
        for backend in self.backends.due(now) {
            self.open_for_one(backend, now);
        }
        let mut wake = self.backends.wake();
        let entropy = &mut self.entropy;
        let peak = &mut self.peak;
        for (lane, is_limited) in self.lanes.iter_mut().zip([true, false]) {
            loop {
                match lane.next(now, &mut || entropy.next_u64()) {
                    Step::Run {
                        payload,
                        hold,
                        waited,
                        spent,
                    } => {
                        if is_limited {
                            *peak = lane.in_flight().max(*peak);
                        }
                        let go = Turn::Go {
                            hold,
                            waited,
                            spent,
                            at: now,
                            promoted: payload.is_promoted(),
                        };
                        if let Err(Turn::Go { hold, .. }) = tell(payload, go, &mut answer) {
                            // Its client left at this moment.
                            lane.give_back(now, hold);
                        }
                    }
                    Step::Expired {
                        payload,
                        refusal,
                        waited: Waited { delays, .. },
                    } => {
                        // Likewise: no call is left to inform.
                        let _ = tell(payload, Turn::No { refusal, delays }, &mut answer);
                    }
                    Step::SleepUntil(at) => {
                        wake = Some(wake.map_or(at, |wake| wake.min(at)));
                        break;
                    }
                    Step::Idle => break,
                }
            }
        }
        if self.lanes.iter().any(|lane| lane.in_flight() > 0) {
            let beat = now + BEAT;
            wake = Some(wake.map_or(beat, |wake| wake.min(beat)));
        }
        self.wake = wake;
        answer
    }
}

/// Informs a call in the way it waits. Gives the turn back if the call has left.
fn tell(waiter: Waiter, turn: Turn, answer: &mut Option<Turn>) -> Result<(), Turn> {
    match waiter {
        Waiter::Asking => *answer = Some(turn),
        Waiter::Waiting { tell, .. } => tell.send(turn)?,
    }
    Ok(())
}

/// The answer to a call that asks, under the lock.
enum Told {
    Now(Turn),
    Later(Ticket, oneshot::Receiver<Turn>),
}

/// The answer to a call that asks for its turn.
#[must_use]
pub enum Asked<'a> {
    /// It need not wait.
    Answered(Result<Permit, Refusal>),
    /// It must wait.
    Waits(Waiting<'a>),
}

impl Asked<'_> {
    /// The permit, after any wait.
    ///
    /// # Errors
    /// The refusal, if its turn does not come in time.
    pub async fn outcome(self) -> Result<Permit, Refusal> {
        match self {
            Self::Answered(outcome) => outcome,
            Self::Waits(waiting) => waiting.await,
        }
    }
}

/// The parts of a later permit.
struct Claim<'a> {
    core: &'a Arc<Core>,
    lane: Lane,
    backend: Destination,
    settling: Option<Settling>,
    tie: Tie,
    record: &'a Arc<Record>,
}

impl<'a> Claim<'a> {
    fn asked(mut self, told: Told) -> Asked<'a> {
        match told {
            Told::Now(turn) => Asked::Answered(self.outcome(turn)),
            Told::Later(ticket, turn) => Asked::Waits(Waiting {
                claim: self,
                ticket: Some(ticket),
                turn,
            }),
        }
    }

    fn outcome(&mut self, turn: Turn) -> Result<Permit, Refusal> {
        match turn {
            Turn::Go {
                hold,
                waited,
                spent,
                at,
                promoted,
            } => {
                if promoted {
                    self.tie = Tie::Rides;
                }
                // A reload forgets what held a call last, but not the time.
                let delayed = waited.held_by.is_some()
                    || waited.postponed > 0
                    || waited.delays.longest().is_some();
                self.record.note(|facts| {
                    facts.admitted = Some(at);
                    facts.quotas = spent;
                    facts.delays.extend(waited.delays);
                    // It was held, even if it was released at the same moment.
                    facts.limit = facts.delays.longest().cloned().or(waited.held_by);
                });
                let core = Arc::clone(self.core);
                let record = Arc::clone(self.record);
                let tie = mem::replace(&mut self.tie, Tie::Apart);
                Ok(Permit {
                    core,
                    lane: self.lane,
                    backend: self.backend,
                    generation: Generation::FIRST,
                    hold: Some(hold),
                    sent: None,
                    delayed,
                    settling: self.settling.take(),
                    tie,
                    record,
                })
            }
            Turn::No { refusal, delays } => {
                self.note_delays(delays);
                Err(self.core.refusal(&refusal, self.backend))
            }
            Turn::Drained { delays } => {
                self.note_delays(delays);
                Err(draining())
            }
        }
    }

    fn note_delays(&self, delays: Delays) {
        self.record.note(|facts| facts.delays.extend(delays));
    }
}

/// A call in the queue, until its turn comes. Dropping it leaves the queue.
pub struct Waiting<'a> {
    claim: Claim<'a>,
    ticket: Option<Ticket>,
    turn: oneshot::Receiver<Turn>,
}

impl Waiting<'_> {
    /// Lets it wait until then (`None` without a bound), in this class, but never in a less urgent
    /// one than it was promoted to. A call whose turn has come, or that was refused, does not
    /// change.
    pub fn wait_as(&self, deadline: Option<Timestamp>, class: Class) {
        let Some(ticket) = self.ticket else { return };
        self.claim.core.change(|state, now| {
            let lane = &mut state.lanes[self.claim.lane as usize];
            lane.set_deadline(ticket, deadline);
            let promoted = lane
                .payload_mut(ticket)
                .is_some_and(|waiter| waiter.is_promoted());
            lane.reclass(now, ticket, if promoted { USER } else { class });
        });
    }
}

impl Future for Waiting<'_> {
    type Output = Result<Permit, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let told = ready!(Pin::new(&mut self.turn).poll(cx));
        self.ticket = None;
        let turn = told.expect("a waiting call is always told, or taken out by itself");
        Poll::Ready(self.claim.outcome(turn))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let claim = &self.claim;
        let delays = claim.core.change(|state, now| {
            let lane = &mut state.lanes[claim.lane as usize];
            match self.turn.try_recv() {
                // Informed at the moment of leaving: everything drawn is given back.
                Ok(Turn::Go { hold, waited, .. }) => {
                    lane.give_back(now, hold);
                    waited.delays
                }
                Ok(Turn::No { delays, .. } | Turn::Drained { delays }) => delays,
                Err(_) => {
                    let waited = lane.waited(now, ticket).unwrap_or_default();
                    lane.cancel(now, ticket);
                    waited.delays
                }
            }
        });
        claim.note_delays(delays);
    }
}

/// The verdict of a call that was answered.
fn answered(delayed: bool) -> Verdict {
    if delayed {
        Verdict::Delayed
    } else {
        Verdict::Passed
    }
}
