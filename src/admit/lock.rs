//! The scheduler behind one lock.
//!
//! Each change asks in the same step whose turn it is, at a `now` that is read under the lock. A
//! call that waits finds its hold in a channel of its own.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use foldhash::HashMap;
use rand::Rng;
use rand::rngs::StdRng;
use tidegate_ledger::JobRecord;
use tidegate_limits::scheduler::WaitReport;
use tidegate_limits::{Class, Scheduler, Step, Timestamp};
use tidegate_runtime::Clock;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::acts::{ControlState, first};
use super::ask::{Ask, Waits};
use super::backends::BackendHealth;
use super::decision::{CallOwner, Decision, Lane, RefusalCause, WaitingCall};
use super::journal::{Journal, SchedulerEvent};
use super::kept_places::KeptPlaces;
use super::ledger::GateLedger;
use super::observe::{CallEvent, Observer};
use super::peer_calls::PeerCalls;
use super::place::PlaceLooks;
use super::policy;
use super::promotion::Promotions;
use super::servers::ServerHealth;
use super::settings::{ClassDeadline, ClassRule, GateSettings, WhenFull};
use super::shadow::{CallEnd, ShadowDecision, ShadowId};
use crate::call::ticket::TicketSecret;
use crate::call::{Destination, Reason, Refusal, Would, claim};
use crate::telemetry::log;

/// While calls are under way, the timer wakes at least this often. Each call sets its own timers,
/// and tokio wakes its reactor through the kernel for a timer that fires next. With this timer
/// before them, none of them fires next. An idle proxy makes no wake-ups.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// The scheduler behind its lock, and those that wait for something of it.
pub(super) struct GateLock {
    pub(super) clock: Clock,
    pub(super) state: Mutex<GateState>,
    /// Wakes the timer when it sleeps too long.
    pub(super) rearm: Notify,
    /// Whether the queue has room, for accept loops that look without the lock.
    pub(super) full: AtomicBool,
    pub(super) room: Notify,
    /// A part that wants to know when anything happens.
    pub(super) watched: AtomicBool,
    pub(super) changed: Notify,
    /// There are requests to the store of quotas.
    pub(super) asks: Notify,
    /// A pause or a ramp has ended or begun by itself.
    pub(super) turned: Notify,
    /// There are events of calls for which another process decides.
    pub(super) peer_changed: Notify,
    pub(super) draining: AtomicBool,
    /// Calls at a backend are given up, for what looks without the lock.
    pub(super) gives_up: AtomicBool,
    /// Calls that left for a backend.
    pub(super) sent: AtomicU64,
    /// The looks of clients at the places of their calls.
    pub(super) looks: PlaceLooks,
}

pub(super) struct GateState {
    pub(super) lanes: [Scheduler<WaitingCall>; 2],
    pub(super) backends: BackendHealth,
    pub(super) servers: ServerHealth,
    /// The acts of operators on the backend.
    pub(super) acts: ControlState,
    pub(super) entropy: StdRng,
    pub(super) max_wait: Duration,
    /// The classes; [`Class`] is the index in here.
    pub(super) classes: Vec<ClassRule>,
    pub(super) promotions: Promotions,
    pub(super) when_full: WhenFull,
    /// A call that is predicted to start after its deadline is refused at once.
    pub(super) early_refusal: bool,
    /// No call waits any more.
    pub(super) refuses_all: bool,
    /// The most calls that have been past the gate at once, of those that meet limits.
    pub(super) peak: usize,
    /// The next moment at which something happens.
    pub(super) wake: Option<Timestamp>,
    /// Until when the timer sleeps.
    pub(super) armed: Option<Timestamp>,
    /// The instant of the last change. With a journal no two changes have the same one, so that a
    /// replay of the log knows their order.
    pub(super) last: Timestamp,
    /// The change under way is in no log line of a call or of the gate so far.
    pub(super) is_unlogged: Cell<bool>,
    /// How far past the epoch the clock began to count, as fixed windows are aligned.
    pub(super) phase: Duration,
    /// The seed of the scheduler, for a replay.
    pub(super) seed: u64,
    /// Where everything is noted that a replay needs besides the calls.
    pub(super) journal: Option<Arc<dyn Journal>>,
    /// Whether each call notes its steps for a replay.
    pub(super) keeps_steps: bool,
    /// The limits that only observe, and their shadow.
    pub(super) observer: Observer,
    /// Where everything is noted that the next process must know.
    pub(super) ledger: Option<Box<GateLedger>>,
    /// By their places, the running calls with limits that are not of this process.
    pub(super) owners: HashMap<u32, CallOwner>,
    /// By their places, the jobs that running calls with limits have begun.
    pub(super) jobs: HashMap<u32, JobRecord>,
    /// The calls for which another process decides; `None` while this one does.
    pub(super) peer: Option<Box<PeerCalls>>,
    /// The last number that a call got for another process.
    pub(super) peer_ids: u64,
    /// The places of clients that have given up for a while.
    pub(super) kept_places: KeptPlaces,
}

impl GateLock {
    /// No call waits yet.
    pub(super) fn new(settings: &GateSettings, clock: Clock) -> Self {
        let mut entropy: StdRng = rand::make_rng();
        let began = clock.began();
        let phase = clock.phase();
        let limited = policy::limited(settings, phase);
        let unlimited = policy::unlimited(settings);
        // A client that knows the seed could choose the callers with which it shares turns.
        let seed = entropy.next_u64();
        let state = GateState {
            lanes: [limited, unlimited]
                .map(|policy| Scheduler::with_seed(policy, seed).beginning(began)),
            backends: BackendHealth::default(),
            servers: ServerHealth::new(&settings.servers, began),
            acts: ControlState::new(settings.ramp),
            entropy,
            max_wait: settings.max_wait,
            classes: settings.classes.clone(),
            promotions: Promotions::new(settings.promote_for),
            when_full: settings.when_full,
            early_refusal: settings.early_refusal,
            refuses_all: false,
            peak: 0,
            wake: None,
            armed: None,
            last: began,
            is_unlogged: Cell::new(false),
            observer: Observer::new(settings, phase, seed, began),
            seed,
            phase,
            journal: None,
            keeps_steps: false,
            ledger: None,
            owners: HashMap::default(),
            jobs: HashMap::default(),
            peer: None,
            peer_ids: 0,
            kept_places: KeptPlaces::new(TicketSecret::random()),
        };
        Self {
            clock,
            state: Mutex::new(state),
            rearm: Notify::new(),
            sent: AtomicU64::new(0),
            looks: PlaceLooks::default(),
            full: AtomicBool::new(false),
            room: Notify::new(),
            watched: AtomicBool::new(false),
            changed: Notify::new(),
            asks: Notify::new(),
            turned: Notify::new(),
            peer_changed: Notify::new(),
            draining: AtomicBool::new(false),
            gives_up: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(|_| {
            log::abort(
                "a task panicked while it changed the queue, so the limits can no longer be held",
            )
        })
    }

    /// Looks at the state as it is now.
    pub(super) fn look<R>(&self, look: impl FnOnce(&mut GateState, Timestamp) -> R) -> R {
        let mut state = self.lock();
        let now = self.clock.now();
        look(&mut state, now)
    }

    /// Makes a change, then admits the calls that may run now. If no log line shows the change, limited calls were asked and none
    /// left the queue, their order may have changed nevertheless, so the instant is noted.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut GateState, Timestamp) -> R) -> R {
        let mut state = self.lock();
        let now = state.instant(self.clock.now());
        state.is_unlogged.set(true);
        state.observer.advance(now);
        let result = change(&mut state, now);
        if !state.has_nothing_to_do(now) {
            let asking = state.admit_ready(now);
            debug_assert!(
                asking.is_none(),
                "only `ask` and `ask_again` ask, and get their answers there"
            );
        }
        state.note_in_ledger(now);
        // A call must be accepted before it can be refused.
        let full = state.when_full == WhenFull::Wait && !state.calls().has_room();
        state.report_observed();
        let earlier = state.rearm();
        // Under the lock, so that the last write is from the last check.
        let was_full = self.full.load(Ordering::Relaxed);
        if full != was_full {
            self.full.store(full, Ordering::Release);
        }
        let has_opened = was_full && !full;
        let asks = state.asks_of_quotas();
        let has_turned = state.acts.has_turned();
        let tells_peer = state.has_peer_events();
        drop(state);
        if tells_peer {
            self.peer_changed.notify_one();
        }
        if asks {
            self.asks.notify_one();
        }
        if has_turned {
            self.turned.notify_one();
        }
        if earlier {
            self.rearm.notify_one();
        }
        if has_opened {
            self.room.notify_waiters();
        }
        if self.watched.load(Ordering::Acquire) && self.watched.swap(false, Ordering::AcqRel) {
            self.changed.notify_one();
        }
        result
    }

    /// Runs the one timer, until dropped. Nothing else wakes calls whose moment has come, so if it
    /// ends by itself, the process aborts.
    pub(super) async fn keep_time(self: Arc<Self>) {
        let mut task = JoinSet::new();
        task.spawn(async move { self.wake_in_time().await });
        let ended = task.join_next().await.expect("it was just spawned");
        // If it is cancelled, its runtime has ended.
        if !ended.is_err_and(|error| error.is_cancelled()) {
            log::abort("the timer of the queue has ended, so calls would wait for ever");
        }
    }

    /// Sleeps until the scheduler's next moment, repeatedly.
    async fn wake_in_time(&self) {
        loop {
            let rearmed = self.rearm.notified();
            let wake = {
                let mut state = self.lock();
                state.armed = state.due();
                state.armed
            };
            let due = async {
                match wake {
                    Some(at) => self.clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => self.is_due(),
                () = rearmed => {}
            }
        }
    }

    /// The moment has come at which something happens by itself.
    fn is_due(&self) {
        let is_for_calls = self.look(|state, now| {
            // Without a shadow, the timer has nothing else to wake for.
            !state.observer.is_on()
                || state.wake.is_some_and(|wake| wake <= now)
                || state.acts.is_due(now)
        });
        if is_for_calls {
            self.change(|_, _| ());
        } else {
            self.change_shadow(|state, now| state.observer.advance(now));
        }
    }

    /// A call that the shadow knows is over. Returns what it would have met.
    pub(super) fn end_in_shadow(&self, id: Option<ShadowId>, end: CallEnd) -> Option<Would> {
        id?;
        self.change_shadow(|state, now| state.observe_call(now, id, CallEvent::Ended(end)))
    }

    /// Makes a change that only the shadow sees.
    pub(super) fn change_shadow<R>(
        &self,
        change: impl FnOnce(&mut GateState, Timestamp) -> R,
    ) -> R {
        let mut state = self.lock();
        let now = self.clock.now();
        let result = change(&mut state, now);
        state.report_observed();
        let earlier = state.rearm();
        let asks = state.asks_of_quotas();
        drop(state);
        if asks {
            self.asks.notify_one();
        }
        if earlier {
            self.rearm.notify_one();
        }
        result
    }

    /// Makes a change for a call of this lane, then admits the calls that may run now. The log line of a limited call shows it.
    pub(super) fn change_in<R>(
        &self,
        lane: Lane,
        change: impl FnOnce(&mut GateState, Timestamp) -> R,
    ) -> R {
        self.change(|state, now| {
            state.is_unlogged.set(lane == Lane::Unlimited);
            change(state, now)
        })
    }

    /// A refusal of the scheduler, in the words of the API.
    pub(super) fn refusal(
        &self,
        refusal: &tidegate_limits::scheduler::Refusal,
        backend: Destination,
    ) -> Refusal {
        use tidegate_limits::scheduler::RefusalReason as Why;
        let (is_up, pause) = {
            let state = self.lock();
            (state.is_up(backend), state.acts.pause().cloned())
        };
        let limit = refusal.limit.clone();
        let named = limit.as_deref().unwrap_or("queue").to_owned();
        let reason = match refusal.reason {
            Why::DeadlinePassed | Why::DeadlineUnreachable if !is_up => Reason::BackendUnreachable,
            Why::QueueFull => Reason::QueueFull,
            Why::DeadlinePassed => Reason::DeadlinePassed,
            Why::DeadlineUnreachable => Reason::DeadlineUnreachable,
            Why::PredictedLate => Reason::PredictedLate,
            Why::NeverPossible => Reason::NeverPossible,
            Why::RateLimited => Reason::RateLimited,
            Why::StoreAway => Reason::QuotaStoreAway,
            Why::Draining => return Refusal::draining(),
        };
        let detail = match reason {
            Reason::BackendUnreachable => {
                format!("the {} backend takes no connection", backend.label())
            }
            Reason::DeadlinePassed if pause.is_some() => {
                "waited as long as a call may, and the backend is paused".to_owned()
            }
            Reason::DeadlinePassed => format!("waited as long as a call may for limit {named}"),
            Reason::DeadlineUnreachable => {
                format!("limit {named} opens only after the call's deadline")
            }
            Reason::PredictedLate => format!("predicted to start too late for limit {named}"),
            Reason::NeverPossible => format!("limit {named} is smaller than what the call needs"),
            Reason::RateLimited => format!("limit {named} has no tokens to spare"),
            Reason::QuotaStoreAway => {
                format!("the store of quota {named} does not answer, or not for this key")
            }
            _ => "the queue is full".to_owned(),
        };
        let rest = pause.map_or(Duration::ZERO, |pause| pause.ends.since(self.clock.now()));
        // It will never be possible, so there is no time to come back.
        let returns = reason != Reason::NeverPossible;
        Refusal {
            limit,
            retry_after: returns.then(|| refusal.retry_after.max(rest)),
            ..Refusal::new(reason, detail)
        }
    }
}

impl GateState {
    /// The instant of a change: now, and with a journal after that of the change before.
    fn instant(&mut self, now: Timestamp) -> Timestamp {
        if self.journal.is_none() {
            return now;
        }
        self.last = now.max(self.last + Duration::from_nanos(1));
        self.last
    }

    /// The next moment at which the timer has something to do.
    #[inline]
    pub(super) fn due(&self) -> Option<Timestamp> {
        if !self.observer.is_on() && self.acts.is_at_rest() {
            return self.wake;
        }
        first(self.wake, first(self.observer.due(), self.acts.wake()))
    }

    /// Whether the timer sleeps too long. If so, it is taken to be woken.
    #[inline]
    fn rearm(&mut self) -> bool {
        let Some(due) = self.due() else {
            return false;
        };
        let earlier = self.armed.is_none_or(|armed| due < armed);
        if earlier {
            self.armed = Some(due);
        }
        earlier
    }

    /// Whether there are requests to the store of quotas.
    fn asks_of_quotas(&mut self) -> bool {
        self.calls().asks_of_quotas() || self.observer.asks_of_quotas()
    }

    /// Passes on what the limits that only observe would have done.
    #[inline]
    pub(super) fn report_observed(&mut self) {
        if self.observer.has_decided() {
            self.report_decided();
        }
    }

    fn report_decided(&mut self) {
        let Self {
            observer, journal, ..
        } = self;
        for decided in observer.take_decided() {
            if let Some(journal) = journal {
                let ShadowDecision {
                    at,
                    class,
                    would,
                    late,
                } = decided;
                journal.would(at, &class, &would, late);
            }
        }
    }

    /// Whether [`admit_ready`](Self::admit_ready) would find nothing to do.
    #[inline]
    pub(super) fn has_nothing_to_do(&self, now: Timestamp) -> bool {
        let [calls, free] = &self.lanes;
        self.wake.is_none_or(|wake| now < wake)
            && !self.acts.is_due(now)
            && calls.has_nothing_to_ask()
            && free.has_nothing_to_ask()
    }

    /// Until when a call of this class may wait; `None` until it is served. Its rate limit decides,
    /// then its class, then who waits for it.
    pub(super) fn deadline(&self, class: Class, ask: &Ask, now: Timestamp) -> Option<Timestamp> {
        let own = self.classes[class.0 as usize].deadline;
        let deadline = match (ask.claimed.deadline, own, ask.waits) {
            (claim::ClaimDeadline::None, _, _) | (_, ClassDeadline::Ordinary, Waits::NoClient) => {
                None
            }
            (claim::ClaimDeadline::Ordinary, own, _) => own.of(self.max_wait, ask.arrived, now),
        };
        deadline.map(|deadline| self.acts.extended(deadline, now))
    }

    /// The class of this name; the last one if a reload has removed it.
    pub(super) fn class(&self, name: &str) -> Class {
        let index = self.classes.iter().position(|known| *known.name == *name);
        let index = index.unwrap_or(self.classes.len() - 1);
        Class(u32::try_from(index).expect("the config bounds the classes"))
    }

    /// Gives a hold to every call that may run, in turn. Returns the answer for the call that asks
    /// at this moment.
    pub(super) fn admit_ready(&mut self, now: Timestamp) -> Option<Decision> {
        let mut answer = None;
        self.act(now);
        if self.peer.is_some() {
            return self.end_expired(now);
        }
        for backend in self.backends.due(now) {
            self.open_for_one(backend, now);
        }
        self.tend_servers(now);
        let mut wake = first(self.backends.wake(), self.servers.wake());
        let calls = self.calls();
        let asks = calls.waiting() > 0 || calls.has_due_quotas(now);
        let mut is_silent = self.is_unlogged.get() && asks;
        let entropy = &mut self.entropy;
        let keeps_steps = self.keeps_steps;
        let peak = &mut self.peak;
        let ledger = &mut self.ledger;
        let owners = &mut self.owners;
        for (lane, is_limited) in self.lanes.iter_mut().zip([true, false]) {
            loop {
                let aside = &mut |waiter: &mut WaitingCall, jitter| {
                    is_silent &= !is_limited;
                    waiter.set_aside(now, jitter, entropy.next_u64(), keeps_steps)
                };
                match lane.next_with(now, aside) {
                    Step::Run {
                        payload,
                        hold,
                        waited,
                        spent,
                    } => {
                        if is_limited {
                            is_silent = false;
                            *peak = lane.in_flight().max(*peak);
                            if let Some(id) = payload.foreign {
                                owners.insert(hold.place(), CallOwner::Peer(id));
                            }
                            if let Some(ledger) = ledger.as_deref_mut() {
                                ledger.follow(lane, owners, now);
                            }
                        }
                        if let Some(hold) = payload.admit(hold, waited, spent, now, &mut answer) {
                            // Its client left at this moment.
                            if is_limited {
                                owners.remove(&hold.place());
                            }
                            lane.give_back(now, hold);
                        }
                    }
                    Step::Expired {
                        payload,
                        refusal,
                        waited: WaitReport { delays, .. },
                    } => {
                        // A suspended call has its line already.
                        is_silent &= !is_limited || payload.is_suspended();
                        let cause = RefusalCause::Scheduler(refusal);
                        payload.refuse(cause, delays, now, &mut answer);
                    }
                    Step::SleepUntil(at) => {
                        wake = Some(wake.map_or(at, |wake| wake.min(at)));
                        break;
                    }
                    Step::Idle => break,
                }
            }
        }
        self.wake = self.with_beat(wake, now);
        if is_silent {
            self.note(now, SchedulerEvent::Woke);
        }
        answer
    }

    /// The next moment at which something happens, with a beat while calls are under way.
    pub(super) fn with_beat(&self, wake: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
        let is_busy = self.lanes.iter().any(|lane| lane.in_flight() > 0);
        wake.into_iter().chain(is_busy.then(|| now + BEAT)).min()
    }

    /// Notes for the next process what limited calls have done.
    #[inline]
    fn note_in_ledger(&mut self, now: Timestamp) {
        if let Some(ledger) = &mut self.ledger {
            let calls = &mut self.lanes[Lane::Limited as usize];
            ledger.follow(calls, &self.owners, now);
        }
    }

    /// The scheduler of calls that meet limits.
    pub(super) fn calls(&mut self) -> &mut Scheduler<WaitingCall> {
        &mut self.lanes[Lane::Limited as usize]
    }

    /// Reports an event of the gate to all that observe it: the journal and the shadow.
    pub(super) fn observe(&mut self, now: Timestamp, event: SchedulerEvent<'_>) {
        self.note(now, event);
        self.observer.observe(now, event);
    }

    /// Reports an event of a call to the shadow. Returns what the call would have met, once it is over.
    #[inline]
    pub(super) fn observe_call(
        &mut self,
        now: Timestamp,
        id: Option<ShadowId>,
        event: CallEvent,
    ) -> Option<Would> {
        self.observer.observe_call(now, id, event)
    }

    /// Notes an event in the journal alone.
    pub(super) fn note(&self, now: Timestamp, event: SchedulerEvent<'_>) {
        self.is_unlogged.set(false);
        if let Some(journal) = &self.journal {
            journal.note(now, event);
        }
    }
}
