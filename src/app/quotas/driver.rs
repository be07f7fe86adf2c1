//! One task that takes the gate's questions to the store and the answers back.

use std::collections::{HashMap, VecDeque};
use std::error::Error as _;
use std::future::pending;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_limits::quota::{Outcome, Question, Standing, StoreTime};
use tidegate_limits::{QuotaAsk, QuotaKey, QuotaQuestion, QuotaRef, Timestamp};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::{error, info, warn};

use super::breaker::{Breaker, PAUSE, PAUSE_STRANGER};
use super::key::{Note, Tended};
use crate::admit::{Gate, QuotaAnswer};
use crate::clock::Clock;
use crate::coordinate;
use crate::coordinate::quota_store::{Engine, Entry, Error, Key, QuotaStore, Swapped, Write};
use crate::telemetry::metrics::Metrics;

/// Records watched at once. Of those beyond, what is given back is seen in the next window.
const WATCHES: usize = 1_024;
/// A ledger that has its question in here asks no other before twice its draw timeout, so there
/// are hardly ever more questions than keys; what is more is answered as if the store was away.
const BACKLOG_PER_KEY: usize = 2;
/// The store's time is carried to the gate when that is off by more than this.
const TIME_OFF: Duration = Duration::from_millis(1);
/// From one question that is asked only to learn the time to the next.
const TIME_PAUSE: Duration = Duration::from_millis(100);
/// The ledgers ask for the time when more than one part of a window in so many is not known.
const WIDTH_ONE_IN: u32 = 8;

/// Carries between the gate and one store.
pub(super) struct Driver {
    pub(super) gate: Gate,
    pub(super) clock: Clock,
    metrics: Arc<Metrics>,
    pub(super) engine: Engine,
    pub(super) started: Timestamp,
    pub(super) store: Arc<dyn QuotaStore>,
    pub(super) settings: watch::Receiver<Arc<coordinate::Quotas>>,
    watches: Arc<Semaphore>,
    seen: Mutex<Seen>,
}

/// What operators see.
#[derive(Debug)]
struct Seen {
    health: Health,
    /// What of keys is to be told.
    notes: HashMap<QuotaRef, Note>,
}

/// How the store does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Health {
    /// Whether it counts as away.
    pub(super) away: bool,
    /// Since when it does, or does not.
    pub(super) since: Timestamp,
    /// What went wrong last, and when.
    pub(super) trouble: Option<(Timestamp, String)>,
}

/// What the carrying task knows.
struct Carrying {
    keys: HashMap<QuotaRef, Tended>,
    backlog: VecDeque<Asked>,
    /// What waits for the store's time to be known.
    for_time: Vec<Asked>,
    under_way: JoinSet<Answered>,
    /// When something was asked last only to learn the time.
    asked_for_time: Option<Instant>,
    breaker: Breaker,
    /// What was logged of the store since it is away.
    logged: Vec<Kind>,
    answers: Vec<QuotaAnswer>,
    /// What the gate knows of the store's time.
    carried: StoreTime,
    members: usize,
}

/// A question that was taken.
struct Asked {
    of: QuotaQuestion,
    /// When it counts as not answered.
    deadline: Instant,
    /// The length of a window.
    window: Duration,
}

/// What came of it.
struct Answered {
    at: QuotaRef,
    /// None for who asked only to learn the time.
    answer: Option<(Question, Outcome)>,
    failure: Option<Failure>,
}

/// Why a question has no answer.
struct Failure {
    kind: Kind,
    text: String,
}

/// What kind of trouble it is. Each is logged once while the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It does not answer, or cannot.
    Away,
    /// It wants somebody else.
    Stranger,
    /// It is no such store.
    Garbage,
    /// It is there, and says no to this one key.
    Key,
}

impl Driver {
    pub(super) fn new(
        gate: Gate,
        clock: Clock,
        metrics: Arc<Metrics>,
        store: Arc<dyn QuotaStore>,
        settings: watch::Receiver<Arc<coordinate::Quotas>>,
    ) -> Self {
        let engine = settings.borrow().engine.clone();
        let seen = Seen {
            health: Health {
                away: false,
                since: clock.now(),
                trouble: None,
            },
            notes: HashMap::new(),
        };
        Self {
            gate,
            clock,
            metrics,
            engine,
            started: clock.now(),
            store,
            settings,
            watches: Arc::new(Semaphore::new(WATCHES)),
            seen: Mutex::new(seen),
        }
    }

    /// How the store does.
    pub(super) fn health(&self) -> Health {
        self.lock().health.clone()
    }

    /// What is to be told of a key.
    pub(super) fn note_of(&self, at: QuotaRef) -> Note {
        self.lock().notes.get(&at).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what is to be told of a key.
    pub(super) fn note(&self, at: QuotaRef, note: &Note) {
        let mut seen = self.lock();
        if *note == Note::default() {
            seen.notes.remove(&at);
        } else {
            seen.notes.insert(at, note.clone());
        }
    }

    /// Carries until dropped.
    pub(super) async fn keep_carrying(self: Arc<Self>) {
        let mut time = self.store.time();
        let mut members = self.store.members();
        let mut carrying = Carrying {
            keys: HashMap::new(),
            backlog: VecDeque::new(),
            for_time: Vec::new(),
            under_way: JoinSet::new(),
            asked_for_time: None,
            breaker: Breaker::default(),
            logged: Vec::new(),
            answers: Vec::new(),
            carried: StoreTime::unknown(self.clock.now()),
            members: 0,
        };
        loop {
            let count = *members.borrow_and_update();
            carrying.count_members(&self, count);
            time.mark_unchanged();
            carrying.look_at_time(&self);
            carrying.ask(&self);
            carrying.answer(&self);
            let overdue = carrying.for_time.iter().map(|asked| asked.deadline).min();
            tokio::select! {
                () = self.gate.quota_asked() => carrying.take(&self),
                Some(done) = carrying.under_way.join_next() => carrying.done(&self, done),
                Ok(()) = time.changed() => {}
                Ok(()) = members.changed() => {}
                () = at(overdue) => {}
            }
            while let Some(done) = carrying.under_way.try_join_next() {
                carrying.done(&self, done);
            }
        }
    }
}

impl Carrying {
    /// Takes what the gate asks, and drops what is done for keys that it has forgotten.
    fn take(&mut self, driver: &Arc<Driver>) {
        let (questions, forgotten) = driver.gate.quota_questions();
        let settings = Arc::clone(&driver.settings.borrow());
        let now = Instant::now();
        for of in questions {
            let limits = &settings.limits;
            let Some(limit) = limits.iter().find(|limit| limit.name == of.of.quota) else {
                // Its rule has just been taken away, and the gate forgets it with all that it asked.
                continue;
            };
            let rule = limit.rule.settings();
            if !self.tend(driver, of.at, &of.of, limit) {
                self.refuse(&of);
                continue;
            }
            if let QuotaAsk::Watch(since) = of.ask {
                let tended = self.keys.get_mut(&of.at).expect("it is tended");
                if let Ok(place) = Arc::clone(&driver.watches).try_acquire_owned() {
                    tended.watch(driver, of.at, since, rule.length, place);
                }
                continue;
            }
            let asked = Asked {
                deadline: now + rule.draw_timeout,
                window: rule.length,
                of,
            };
            if let QuotaAsk::Time(_) = asked.of.ask {
                self.for_time.push(asked);
            } else if self.backlog.len() < BACKLOG_PER_KEY * settings.keys_max {
                self.backlog.push_back(asked);
            } else {
                self.refuse(&asked.of);
            }
        }
        if forgotten.is_empty() {
            return;
        }
        for at in forgotten {
            self.keys.remove(&at);
        }
        self.for_time
            .retain(|asked| self.keys.contains_key(&asked.of.at));
        // All of them: who was tending a key may have noted something as it was forgotten.
        let mut seen = driver.lock();
        seen.notes.retain(|at, _| self.keys.contains_key(at));
    }

    /// Looks after a key from now on, if it can have a record.
    fn tend(
        &mut self,
        driver: &Arc<Driver>,
        at: QuotaRef,
        of: &QuotaKey,
        limit: &coordinate::QuotaLimit,
    ) -> bool {
        if self.keys.contains_key(&at) {
            return true;
        }
        match Key::within(limit.namespace.as_deref(), &of.key) {
            Ok(key) => {
                let tended = Tended::start(driver, at, of.clone(), key);
                self.keys.insert(at, tended);
                true
            }
            Err(error) => {
                driver.note(
                    at,
                    &Note {
                        mistake: Some(error.to_string().into()),
                        ..Note::default()
                    },
                );
                false
            }
        }
    }

    /// Answers a question that is not asked.
    fn refuse(&mut self, question: &QuotaQuestion) {
        let (QuotaAsk::Time(asked) | QuotaAsk::Read(asked) | QuotaAsk::Write(asked, _)) =
            question.ask
        else {
            return;
        };
        self.answers.push(QuotaAnswer {
            at: question.at,
            question: asked,
            outcome: Outcome::Unavailable,
        });
    }

    /// Answers who waits for the store's time, once it is known well enough.
    fn look_at_time(&mut self, driver: &Driver) {
        let now = driver.clock.now();
        let time = driver.store.now(now);
        if self.carried.latest() == Duration::MAX && time.latest() < Duration::MAX {
            // Whoever waits because nothing was known need not wait for its next turn to ask.
            driver.gate.tell_all_quotas();
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
            let QuotaAsk::Time(question) = asked.of.ask else {
                continue;
            };
            if width <= asked.window / WIDTH_ONE_IN {
                self.answers.push(QuotaAnswer {
                    at: asked.of.at,
                    question,
                    outcome: Outcome::Time,
                });
            } else if asked.deadline <= passed {
                self.refuse(&asked.of);
            } else {
                self.for_time.push(asked);
            }
        }
    }

    /// Sends what may be sent.
    fn ask(&mut self, driver: &Arc<Driver>) {
        let now = Instant::now();
        while let Some(asked) = self.backlog.pop_front() {
            let tended = self.keys.get(&asked.of.at);
            let Some(tended) = tended.filter(|_| now < asked.deadline) else {
                self.refuse(&asked.of);
                continue;
            };
            if self.breaker.lets_through(self.under_way.len(), now) {
                let (key, ready) = (tended.key.clone(), tended.ready.clone());
                let driver = Arc::clone(driver);
                self.under_way
                    .spawn(async move { driver.question(asked, key, ready).await });
            } else if self.breaker.is_open() {
                self.refuse(&asked.of);
            } else {
                self.backlog.push_front(asked);
                break;
            }
        }
        self.ask_for_time(driver, now);
    }

    /// A store tells the time by itself. Why it does not is learned by asking for anything, once for
    /// all who wait for the time.
    fn ask_for_time(&mut self, driver: &Arc<Driver>, now: Instant) {
        let is_early = |then: Instant| now < then + TIME_PAUSE;
        let Some(asked) = self.for_time.first() else {
            return;
        };
        if self.asked_for_time.is_some_and(is_early)
            || !self.breaker.lets_through(self.under_way.len(), now)
        {
            return;
        }
        let (at, deadline) = (asked.of.at, asked.deadline);
        let tended = self.keys.get(&at);
        let key = tended.expect("who is forgotten waits no more").key.clone();
        let driver = Arc::clone(driver);
        self.asked_for_time = Some(now);
        self.under_way.spawn(async move {
            let (_, failure) = driver.read(&key, deadline).await;
            Answered {
                at,
                answer: None,
                failure,
            }
        });
    }

    /// Takes what the store answered.
    fn done(&mut self, driver: &Driver, done: Result<Answered, JoinError>) {
        let answered = match done {
            Ok(answered) => answered,
            Err(failed) => {
                // Its ledger takes it as not answered by itself.
                error!(error = %failed, "quota: a question failed by our own mistake");
                return;
            }
        };
        match answered.failure {
            None => self.answered(driver),
            Some(failure) if failure.kind == Kind::Key => {
                self.answered(driver);
                self.refused_key(driver, answered.at, &failure.text);
            }
            Some(failure) => self.failed(driver, failure),
        }
        let Some((question, outcome)) = answered.answer else {
            return;
        };
        if let Some(tended) = self.keys.get_mut(&answered.at) {
            tended.read(outcome);
        }
        self.answers.push(QuotaAnswer {
            at: answered.at,
            question,
            outcome,
        });
    }

    fn answered(&mut self, driver: &Driver) {
        if !self.breaker.answered() {
            return;
        }
        self.logged.clear();
        info!(
            engine = driver.engine.word(),
            "quota: the store answers again"
        );
        let now = driver.clock.now();
        let mut seen = driver.lock();
        seen.health.away = false;
        seen.health.since = now;
        drop(seen);
        driver.gate.tell_all_quotas();
    }

    fn failed(&mut self, driver: &Driver, failure: Failure) {
        let was_away = self.breaker.is_open();
        let pause = match failure.kind {
            Kind::Stranger => PAUSE_STRANGER,
            Kind::Away | Kind::Garbage | Kind::Key => PAUSE,
        };
        self.breaker.failed(Instant::now(), pause);
        let is_away = self.breaker.is_open();
        let Failure { kind, text } = failure;
        if is_away && !self.logged.contains(&kind) {
            self.logged.push(kind);
            let engine = driver.engine.word();
            warn!(engine, cause = text, "quota: the store does not answer");
        }
        let now = driver.clock.now();
        let health = &mut driver.lock().health;
        if is_away && !was_away {
            health.away = true;
            health.since = now;
        }
        health.trouble = Some((now, text));
    }

    /// The store says no to one key.
    fn refused_key(&mut self, driver: &Driver, at: QuotaRef, text: &str) {
        let Some(tended) = self.keys.get_mut(&at) else {
            return;
        };
        let key = &tended.key;
        if !mem::replace(&mut tended.refused, true) {
            warn!(%key, cause = text, "quota: the store refuses a key");
        }
        driver.lock().health.trouble = Some((driver.clock.now(), format!("{key}: {text}")));
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
            .answer_quotas(Some(time), mem::take(&mut self.answers));
    }

    /// Tells how many share.
    fn count_members(&mut self, driver: &Driver, members: usize) {
        let before = mem::replace(&mut self.members, members);
        if members == before || members == 0 {
            return;
        }
        let nodes = u32::try_from(members).unwrap_or(u32::MAX);
        driver.gate.set_quota_nodes(nodes);
        let expected = driver.settings.borrow().expected_sidecars;
        let too_many = |members| members > expected as usize;
        if too_many(members) && !too_many(before) {
            warn!(
                members,
                expected_sidecars = expected,
                "quota: more sidecars share than are expected, and their safe shares may be more \
                 than the total"
            );
        }
    }
}

impl Tended {
    /// Says once that what stands there is no record of ours.
    fn read(&mut self, outcome: Outcome) {
        let unreadable = match outcome {
            Outcome::Stands(Standing::Unreadable { error }) => Some(error),
            Outcome::Stands(_) | Outcome::Written(_) => None,
            Outcome::Time | Outcome::Unknown | Outcome::Unavailable => return,
        };
        self.refused = false;
        let was = mem::replace(&mut self.unreadable, unreadable.is_some());
        let key = &self.key;
        match unreadable {
            Some(error) if !was => {
                warn!(%key, %error, "quota: what stands in the store is no record of ours, and is left alone");
            }
            None if was => info!(%key, "quota: a record of ours stands in the store again"),
            Some(_) | None => {}
        }
    }
}

impl Driver {
    /// Asks the store one question of a key.
    async fn question(&self, asked: Asked, key: Key, mut ready: watch::Receiver<bool>) -> Answered {
        let at = asked.of.at;
        let deadline = asked.deadline;
        let (question, (outcome, failure)) = match asked.of.ask {
            QuotaAsk::Read(question) => {
                let is_ready = timeout_at(deadline, ready.wait_for(|ready| *ready)).await;
                let is_ready = is_ready.is_ok_and(|ready| ready.is_ok());
                let told = if is_ready {
                    self.read(&key, deadline).await
                } else {
                    let text = "it has not said what it configures".to_owned();
                    let kind = Kind::Away;
                    (Outcome::Unavailable, Some(Failure { kind, text }))
                };
                (question, told)
            }
            QuotaAsk::Write(question, write) => {
                let written = self.write(&asked.of.of.quota, key, write, deadline);
                (question, written.await)
            }
            QuotaAsk::Time(_) | QuotaAsk::Watch(_) => {
                unreachable!("neither is among the questions that are sent")
            }
        };
        Answered {
            at,
            answer: Some((question, outcome)),
            failure,
        }
    }

    async fn read(&self, key: &Key, deadline: Instant) -> (Outcome, Option<Failure>) {
        let keys = [key.clone()];
        match timeout_at(deadline, self.store.get(&keys)).await {
            Ok(Ok(found)) => (stands(&found), None),
            Ok(Err(error)) => failed(&error),
            Err(_) => late(),
        }
    }

    async fn write(
        &self,
        limit: &str,
        key: Key,
        write: tidegate_limits::quota::Write,
        deadline: Instant,
    ) -> (Outcome, Option<Failure>) {
        let writes = [Write {
            key,
            expected: write.replaces,
            text: write.record.to_string().into_bytes(),
        }];
        let sent = self.clock.now();
        let swapped = timeout_at(deadline, self.store.compare_and_set(&writes)).await;
        let took = self.clock.now().since(sent);
        if let Ok(Ok(_)) = swapped {
            self.metrics.quota_drawn(limit, took);
        }
        match swapped {
            Ok(Ok(Swapped::Done(versions))) => {
                let version = versions.first().copied();
                (
                    Outcome::Written(version.expect("there is one for each write")),
                    None,
                )
            }
            Ok(Ok(Swapped::Conflict(found))) => (stands(&found), None),
            Ok(Err(error)) => failed(&error),
            Err(_) => late(),
        }
    }
}

fn stands(found: &[Option<Entry>]) -> Outcome {
    let entry = found.first().expect("there is one for each key");
    Outcome::Stands(Entry::standing(entry.as_ref()))
}

/// What an error means to a ledger, and what of it is told to operators.
fn failed(error: &Error) -> (Outcome, Option<Failure>) {
    let outcome = if error.is_open() {
        Outcome::Unknown
    } else {
        Outcome::Unavailable
    };
    let text = match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    let kind = match error {
        Error::Unavailable(_) | Error::Unknown(_) => Kind::Away,
        Error::Unauthenticated(_) => Kind::Stranger,
        Error::Garbage(_) => Kind::Garbage,
        Error::Refused(_) => Kind::Key,
    };
    (outcome, Some(Failure { kind, text }))
}

fn late() -> (Outcome, Option<Failure>) {
    let text = "it did not answer within the draw timeout".to_owned();
    let kind = Kind::Away;
    (Outcome::Unknown, Some(Failure { kind, text }))
}

/// Whether who goes by the one would be misled by more than is worth a word.
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
