//! A task that carries the gate's requests to the store and the answers back.

mod health;
mod past;
mod questions;
mod tending;
mod upkeep;

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::call::QuotaKey;
use tidegate_limits::quota::{OutagePolicy, QuestionId, RecordWrite, StoreReply, StoreTime};
use tidegate_limits::scheduler::QuotaAsk;
use tidegate_quota::{Engine, QuotaLimit, QuotaStore, RecordKey, StoredSettings};
use tidegate_runtime::{Causes, Clock, lock};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::error;

use self::health::log_trouble;
use self::past::StartRecord;
use super::backlog::Backlog;
use super::breaker::{AT_ONCE, Breaker, Proof};
use super::key::{MaintainedKey, Note};
use super::members::SettledCount;
use super::metrics::QuotaMetrics;
use crate::admit::{Gate, QuotaAnswer, QuotaAsked, QuotaAt, QuotaWork};

/// The most watched records. For others, returned tokens are seen in the next window.
const WATCHES: usize = 1_024;
/// The most waiting requests, for each possible key. Beyond that the oldest is dropped.
const BACKLOG_PER_KEY: usize = 2;
/// The store's time is passed to the gate when its own differs by more than this.
const TIME_OFF: Duration = Duration::from_millis(1);
/// The pause between two requests only for the time.
const TIME_PAUSE: Duration = Duration::from_millis(100);
/// The ledgers request the time when more than this part of a window is uncertain.
const WIDTH_ONE_IN: u32 = 8;
/// A request that waited longer than this for a place is sent only if a call still needs it.
const FRESH: Duration = Duration::from_millis(5);
/// The time of a probe of an unavailable store.
const PROBE: Duration = Duration::from_millis(500);
/// The shortest time from one line about an unavailable store to the first of its next failure.
const LOG_AGAIN: Duration = Duration::from_secs(10);
/// The settings of a key in the store are read again with a request when they are older than
/// this.
const SAID_FRESH: Duration = Duration::from_secs(1);
/// The settings of keys are also read again without requests: of a key with settings after this
/// many ticks, of others after this many more.
const TICK: Duration = Duration::from_secs(1);
const TICKS_OWN: usize = 5;
const TICKS_OTHERS: usize = 60;
/// The most keys whose settings are read again in one tick, of each kind, and at once.
const READS_A_TICK: usize = 100;
const READS_AT_ONCE: usize = 8;

/// Connects the gate and one store.
pub(super) struct Driver {
    pub(super) gate: Gate,
    pub(super) clock: Clock,
    metrics: QuotaMetrics,
    pub(super) engine: Engine,
    pub(super) started: Timestamp,
    pub(super) store: Arc<dyn QuotaStore>,
    pub(super) settings: watch::Sender<Arc<tidegate_quota::QuotaSettings>>,
    watches: Arc<Semaphore>,
    seen: Mutex<StoreStatus>,
}

/// The state of the store for operators.
#[derive(Debug, Default)]
pub(super) struct StoreStatus {
    pub(super) health: StoreHealth,
    /// Troubles of keys for operators, each with its quota.
    notes: HashMap<QuotaAt, (Arc<str>, Note)>,
    /// Members beyond the expected number, for longer than a dead one still counts.
    pub(super) excess: usize,
    /// The record that this sidecar wrote in the store when it took over; `None` until then.
    begun: Option<StartRecord>,
}

/// The state of the store, from the results of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoreHealth {
    /// Since when it counts as unavailable.
    pub(super) away: Option<Timestamp>,
    /// Since when it answers; none before it did.
    pub(super) answers: Option<Timestamp>,
    /// When it answered last.
    pub(super) answered: Option<Timestamp>,
    /// When it wrote last.
    pub(super) wrote: Option<Timestamp>,
    /// The last error, and its time.
    pub(super) trouble: Option<(Timestamp, String)>,
}

/// The state of the task.
#[derive(Default)]
struct Carrying {
    keys: HashMap<QuotaAt, MaintainedKey>,
    backlog: Backlog<StoreRequest>,
    /// Requests that wait for the store's time.
    for_time: Vec<StoreRequest>,
    under_way: JoinSet<CompletedRequest>,
    /// The last request only for the time.
    asked_for_time: Option<Instant>,
    /// A trial is under way.
    probes: bool,
    /// When a trial is due because a key was refused: the store may refuse all of them.
    doubts_at: Option<Instant>,
    /// When the last trial was sent.
    tried: Option<Instant>,
    breaker: Breaker,
    /// The keys whose settings were never read.
    new: VecDeque<QuotaAt>,
    /// The keys whose settings must be read again.
    to_read: VecDeque<QuotaAt>,
    reading: usize,
    /// How many more may be read in this tick together with a request.
    reads_left: usize,
    /// All keys that may have settings in the store, in turn; and those that have some.
    turns: VecDeque<QuotaAt>,
    own_turns: VecDeque<QuotaAt>,
    logged: OutageLog,
    /// The reasons why keys were refused, which clients can repeat as often as they like.
    refusals: Causes,
    answers: Vec<QuotaAnswer>,
    /// The gate's copy of the store's time.
    carried: StoreTime,
    members: usize,
    settled: SettledCount,
}

/// The log lines about the store. A store that fails now and then must not fill the log.
#[derive(Default)]
struct OutageLog {
    /// The kinds of failures since the store became unavailable.
    kinds: Vec<TroubleKind>,
    /// When the last of all was written.
    at: Option<Instant>,
}

impl OutageLog {
    /// Whether a failure of this kind is worth a line now.
    fn takes(&mut self, kind: TroubleKind, now: Instant) -> bool {
        let is_early = |at| now.saturating_duration_since(at) < LOG_AGAIN;
        if self.kinds.contains(&kind) || (self.kinds.is_empty() && self.at.is_some_and(is_early)) {
            return false;
        }
        self.kinds.push(kind);
        self.at = Some(now);
        true
    }

    /// The store is back. Returns whether its failure was logged.
    fn ends(&mut self) -> bool {
        !mem::take(&mut self.kinds).is_empty()
    }
}

/// A request from the gate.
struct StoreRequest {
    at: QuotaAt,
    quota: Arc<str>,
    question: QuestionId,
    /// The record to write; else the record is read, or only the time is asked for.
    write: Option<RecordWrite>,
    taken: Instant,
    /// The longest time of an answer.
    timeout: Duration,
    /// The length of a window.
    window: Duration,
    away: OutagePolicy,
}

/// The end of a request to the store.
struct CompletedRequest {
    sent: Instant,
    asked: Proof,
    failure: Option<StoreFailure>,
    work: Work,
}

/// The purpose of a request.
enum Work {
    Question {
        answer: QuotaAnswer,
        away: OutagePolicy,
        /// The settings of the key, if they were also read.
        says: Option<StoredSettings>,
    },
    /// The store's time.
    Time,
    /// Whether the store does what is asked of it.
    Probe,
    /// The settings of a key, read again.
    Settings {
        at: QuotaAt,
        says: Option<StoredSettings>,
    },
}

/// Why a request has no answer.
struct StoreFailure {
    kind: TroubleKind,
    text: String,
    /// The outcome for the ledger that asked.
    outcome: StoreReply,
}

/// The kind of the trouble. Each is logged once while the store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TroubleKind {
    /// No answer came in time.
    Late,
    /// The store does not answer.
    Away,
    /// The store requires other credentials.
    Stranger,
    /// The server is of another kind.
    Garbage,
    /// The store is running, and refuses this key.
    Key,
}

impl Driver {
    pub(super) fn new(
        gate: Gate,
        clock: Clock,
        metrics: QuotaMetrics,
        store: Arc<dyn QuotaStore>,
        settings: tidegate_quota::QuotaSettings,
    ) -> Self {
        Self {
            gate,
            clock,
            metrics,
            engine: settings.engine.clone(),
            started: clock.now(),
            store,
            settings: watch::Sender::new(Arc::new(settings)),
            watches: Arc::new(Semaphore::new(WATCHES)),
            seen: Mutex::default(),
        }
    }

    /// The trouble of a key.
    pub(super) fn note_of(&self, at: QuotaAt) -> Note {
        let seen = self.lock();
        let note = seen.notes.get(&at);
        note.map(|(_, note)| note.clone()).unwrap_or_default()
    }

    /// How many keys of a quota have a trouble.
    pub(super) fn noted(&self, quota: &str) -> usize {
        let notes = &self.lock().notes;
        notes.values().filter(|(of, _)| **of == *quota).count()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, StoreStatus> {
        lock(&self.seen)
    }

    /// Changes the trouble of a key.
    pub(super) fn note(&self, at: QuotaAt, quota: &Arc<str>, change: impl FnOnce(&mut Note)) {
        let mut seen = self.lock();
        let noted = seen.notes.entry(at);
        let (_, note) = noted.or_insert_with(|| (Arc::clone(quota), Note::default()));
        change(note);
        if *note == Note::default() {
            seen.notes.remove(&at);
        }
    }

    /// Runs until dropped.
    pub(super) async fn keep_carrying(self: Arc<Self>) {
        let mut time = self.store.time();
        let mut members = self.store.members();
        let mut settings = self.settings.subscribe();
        let mut carrying = Carrying {
            reads_left: READS_A_TICK,
            settled: SettledCount::new(self.store.member_lifetime()),
            ..Carrying::default()
        };
        let mut next_tick = Instant::now() + TICK;
        loop {
            let count = *members.borrow_and_update();
            carrying.count_members(&self, count);
            time.mark_unchanged();
            carrying.look_at_time(&self);
            carrying.ask(&self);
            carrying.answer(&self);
            let ticks = carrying.ticks(&self).then_some(next_tick);
            let wakes_at = carrying.wakes_at();
            tokio::select! {
                () = self.gate.wait_for_quota_work() => carrying.take(&self),
                Some(done) = carrying.under_way.join_next() => carrying.done(&self, done),
                Ok(()) = time.changed() => {}
                Ok(()) = members.changed() => {}
                Ok(()) = settings.changed() => carrying.take_settings(&self),
                () = at(wakes_at) => {}
                () = at(ticks) => {
                    next_tick = Instant::now() + TICK;
                    carrying.tick();
                }
            }
            while let Some(done) = carrying.under_way.try_join_next() {
                carrying.done(&self, done);
            }
        }
    }
}

impl Carrying {
    /// The next moment with work to do.
    fn wakes_at(&self) -> Option<Instant> {
        let for_time = self.for_time.iter().map(StoreRequest::deadline).min();
        let waits_for_time = !self.for_time.is_empty() && self.under_way.is_empty();
        let asked_for_time = self.asked_for_time.filter(|_| waits_for_time);
        let asks_for_time = asked_for_time.map(|then| then + TIME_PAUSE);
        let probe = self.trial_at().filter(|_| !self.probes);
        let moments = [
            for_time,
            asks_for_time.filter(|_| !self.breaker.is_open()),
            self.backlog.first_overdue(),
            probe,
            self.settled.next(),
        ];
        moments.into_iter().flatten().min()
    }

    /// Takes the requests of the gate, and stops the work for forgotten keys.
    fn take(&mut self, driver: &Arc<Driver>) {
        let QuotaWork {
            asked,
            forgotten,
            troubles,
        } = driver.gate.quota_work();
        for trouble in troubles {
            log_trouble(&trouble);
        }
        let settings = Arc::clone(&driver.settings.borrow());
        let now = Instant::now();
        for asked in asked {
            self.take_request(driver, &settings, asked, now);
        }
        if !forgotten.is_empty() {
            self.forget(driver, forgotten);
        }
    }

    /// Takes a request of the gate.
    fn take_request(
        &mut self,
        driver: &Arc<Driver>,
        settings: &tidegate_quota::QuotaSettings,
        QuotaAsked { at, of, ask }: QuotaAsked,
        now: Instant,
    ) {
        let Some(limit) = limit_of(settings, &of.quota) else {
            // Its rule was just removed, and the gate forgets it with all its requests.
            return;
        };
        let rule = limit.rule.settings();
        self.tend(driver, at, &of, limit);
        let (question, write) = match ask {
            QuotaAsk::Time(question) | QuotaAsk::Read(question) => (question, None),
            QuotaAsk::Write(question, write) => (question, Some(write)),
            QuotaAsk::Watch(since) => {
                if let Some(tended) = self.keys.get_mut(&at)
                    && let Ok(place) = Arc::clone(&driver.watches).try_acquire_owned()
                {
                    tended.watch(driver, at, since, rule.length, place);
                }
                return;
            }
            QuotaAsk::Settings => {
                if driver.store.configures() && self.keys.contains_key(&at) {
                    self.new.push_back(at);
                }
                return;
            }
        };
        let asked = StoreRequest {
            at,
            quota: of.quota,
            question,
            write,
            taken: now,
            timeout: rule.draw_timeout,
            window: rule.length,
            away: rule.away,
        };
        let Some(tended) = self.keys.get_mut(&at) else {
            self.answers.push(asked.answer(StoreReply::Unavailable));
            return;
        };
        let age = tended
            .read_at
            .map(|read| now.saturating_duration_since(read));
        let is_old = age.is_some_and(|age| age > SAID_FRESH);
        if driver.store.configures() && is_old && !tended.is_reading && self.reads_left > 0 {
            tended.is_reading = true;
            self.reads_left -= 1;
            self.to_read.push_back(at);
        }
        if let QuotaAsk::Time(_) = ask {
            self.for_time.push(asked);
            return;
        }
        if self.backlog.len() >= BACKLOG_PER_KEY * settings.keys_max
            && let Some(oldest) = self.backlog.pop_oldest()
        {
            self.answers.push(oldest.answer(StoreReply::Dropped));
        }
        self.backlog.push(age.is_some(), asked.deadline(), asked);
    }

    /// Stops the work for forgotten keys.
    fn forget(&mut self, driver: &Driver, forgotten: Vec<QuotaAt>) {
        for at in forgotten {
            self.keys.remove(&at);
        }
        self.for_time
            .retain(|asked| self.keys.contains_key(&asked.at));
        for turns in [
            &mut self.turns,
            &mut self.own_turns,
            &mut self.to_read,
            &mut self.new,
        ] {
            if turns.len() > 2 * self.keys.len() + READS_A_TICK {
                turns.retain(|at| self.keys.contains_key(at));
            }
        }
        // All of them, because a key may have been added while it was forgotten.
        let mut seen = driver.lock();
        seen.notes.retain(|at, _| self.keys.contains_key(at));
    }

    /// Starts the work for a key, if it can have a record.
    fn tend(&mut self, driver: &Arc<Driver>, at: QuotaAt, of: &QuotaKey, limit: &QuotaLimit) {
        if self.keys.contains_key(&at) {
            return;
        }
        match RecordKey::within(limit.namespace.as_deref(), &of.key) {
            Ok(key) => {
                let mut tended = MaintainedKey::new(of.clone(), key);
                if driver.store.configures() {
                    self.turns.push_back(at);
                } else {
                    // There is nothing to wait for.
                    tended.take(driver, at, limit, StoredSettings::default());
                    tended.read_at = Some(Instant::now());
                }
                self.keys.insert(at, tended);
            }
            Err(error) => driver.note(at, &of.quota, |note| {
                note.mistake = Some(error.to_string().into());
            }),
        }
    }

    /// The quotas have changed: keys get their current rules.
    fn take_settings(&mut self, driver: &Arc<Driver>) {
        let settings = Arc::clone(&driver.settings.borrow());
        for (at, tended) in &mut self.keys {
            let limit = limit_of(&settings, &tended.of.quota);
            if let Some(limit) = limit.filter(|_| tended.read_at.is_some()) {
                let says = tended.said();
                tended.take(driver, *at, limit, says);
            }
        }
        self.warn_of_excess(driver);
    }

    /// The result of a request that the store did not answer, or that is not sent because it does
    /// not answer. The key counts as unavailable only once the store does. If nothing passes
    /// without the store, calls wait for a store that may only be slow to start.
    fn unanswered(&self, away: OutagePolicy, outcome: StoreReply) -> StoreReply {
        let waits =
            !self.breaker.is_open() || (self.breaker.is_cold() && away == OutagePolicy::Deny);
        match outcome {
            StoreReply::Unknown if waits => StoreReply::Late,
            StoreReply::Unavailable if waits => StoreReply::NotYet,
            outcome => outcome,
        }
    }

    /// Answers the requests that wait for the store's time, once it is exact enough.
    fn look_at_time(&mut self, driver: &Driver) {
        let now = driver.clock.now();
        let time = driver.store.now(now);
        if self.carried.latest() == Duration::MAX && time.latest() < Duration::MAX {
            // A key that waited only for the time need not wait for its next request.
            driver.gate.store_is_back();
        }
        if is_off(&self.carried.at(now), &time) {
            self.carried = time;
            driver.gate.learn_store_time(time);
        }
        if self.for_time.is_empty() {
            return;
        }
        let (width, passed) = (time.width(), Instant::now());
        for asked in mem::take(&mut self.for_time) {
            if width <= asked.window / WIDTH_ONE_IN {
                self.answers.push(asked.answer(StoreReply::Time));
            } else if asked.deadline() <= passed || self.breaker.is_open() {
                let outcome = self.unanswered(asked.away, StoreReply::Unavailable);
                self.answers.push(asked.answer(outcome));
            } else {
                self.for_time.push(asked);
            }
        }
    }

    /// Sends the requests that may be sent.
    fn ask(&mut self, driver: &Arc<Driver>) {
        let now = Instant::now();
        self.probe(driver, now);
        if self.breaker.is_open() {
            while let Some(asked) = self.backlog.pop() {
                let outcome = self.unanswered(asked.away, StoreReply::Unavailable);
                self.answers.push(asked.answer(outcome));
            }
            return;
        }
        // A request that was overtaken for this long is made again, if a call still needs it.
        while let Some(asked) = self.backlog.pop_overdue(now) {
            self.answers.push(asked.answer(StoreReply::Dropped));
        }
        while self.under_way.len() < AT_ONCE
            && let Some(asked) = self.backlog.pop()
        {
            let Some(tended) = self.keys.get_mut(&asked.at) else {
                continue;
            };
            let is_fresh = now.saturating_duration_since(asked.taken) <= FRESH;
            if !is_fresh && !driver.gate.wants_quota_answer(asked.at) {
                self.answers.push(asked.answer(StoreReply::Dropped));
                continue;
            }
            let key = tended.key.clone();
            let is_new = tended.read_at.is_none();
            tended.is_reading |= is_new;
            let driver = Arc::clone(driver);
            self.under_way
                .spawn(async move { driver.question(asked, key, is_new, now).await });
        }
        self.ask_for_time(driver, now);
        self.read_settings(driver, now);
    }

    /// Handles the end of a request.
    fn done(&mut self, driver: &Driver, done: Result<CompletedRequest, JoinError>) {
        let now = Instant::now();
        let CompletedRequest {
            sent,
            asked,
            failure,
            work,
        } = match done {
            Ok(done) => done,
            Err(failed) => {
                // Its ledger treats it as unanswered without help.
                self.probes = false;
                self.reading = 0;
                error!(error = %failed, "quota: a question failed by our own mistake");
                return;
            }
        };
        let is_keys = failure
            .as_ref()
            .is_some_and(|it| it.kind == TroubleKind::Key);
        self.judge(driver, &work, (sent, now), asked, failure);
        match work {
            Work::Question {
                mut answer,
                away,
                says,
            } => {
                let at = answer.at;
                if let Some(tended) = self.keys.get_mut(&at) {
                    // A key whose settings were never read has them read with its question.
                    tended.is_reading &= tended.read_at.is_some();
                }
                self.take_word(driver, at, now, says);
                if !is_keys {
                    answer.outcome = self.unanswered(away, answer.outcome);
                }
                if let Some(tended) = self.keys.get_mut(&at) {
                    tended.answered(driver, at, answer.outcome);
                }
                self.answers.push(answer);
            }
            Work::Time | Work::Probe => self.probes = false,
            Work::Settings { at, says } => {
                self.reading -= 1;
                if let Some(tended) = self.keys.get_mut(&at) {
                    tended.is_reading = false;
                }
                self.take_word(driver, at, now, says);
            }
        }
    }

    /// Applies the settings of a key, if they were read.
    fn take_word(
        &mut self,
        driver: &Driver,
        at: QuotaAt,
        now: Instant,
        says: Option<StoredSettings>,
    ) {
        let settings = Arc::clone(&driver.settings.borrow());
        let (Some(says), Some(tended)) = (says, self.keys.get_mut(&at)) else {
            return;
        };
        let Some(limit) = limit_of(&settings, &tended.of.quota) else {
            return;
        };
        tended.read_at = Some(now);
        let had_own = tended.has_own();
        tended.take(driver, at, limit, says);
        if !had_own && tended.has_own() {
            self.own_turns.push_back(at);
        }
    }

    /// Carries the answers.
    fn answer(&mut self, driver: &Driver) {
        if self.answers.is_empty() {
            return;
        }
        let time = driver.store.now(driver.clock.now());
        self.carried = time;
        driver
            .gate
            .answer_quotas(time, mem::take(&mut self.answers));
    }
}

impl StoreRequest {
    fn deadline(&self) -> Instant {
        self.taken + self.timeout
    }

    fn answer(&self, outcome: StoreReply) -> QuotaAnswer {
        QuotaAnswer {
            at: self.at,
            question: self.question,
            outcome,
        }
    }
}

fn limit_of<'a>(
    settings: &'a tidegate_quota::QuotaSettings,
    quota: &str,
) -> Option<&'a QuotaLimit> {
    settings.limits.iter().find(|limit| *limit.name == *quota)
}

/// Whether the two differ by more than the tolerance.
fn is_off(carried: &StoreTime, time: &StoreTime) -> bool {
    let off = |one: Duration, other: Duration| one.abs_diff(other) > TIME_OFF;
    off(carried.earliest(), time.earliest()) || off(carried.latest(), time.latest())
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
