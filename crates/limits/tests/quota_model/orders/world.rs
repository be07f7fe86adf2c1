//! The ledgers of several nodes, a store, and what is on its way between them.
//!
//! Nothing is urgent: a node may rest at any place for any time, so pauses are part of every scope. What bounds a scope is
//! in the state: the calls, the faults that are left, and the moments.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::search;
use tidegate_limits::Timestamp;
use tidegate_limits::digest::Digest;
use tidegate_limits::quota::{
    Action, Ledger, OutagePolicy, QuestionId, QuotaRecord, RecordVersion, RecordWrite,
    RuleSettings, StoreReply, StoreTime, StoredRecord, WaitingCost, WindowRule,
};

const LENGTH: Duration = Duration::from_secs(1);

/// The size of what is searched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    pub(crate) nodes: usize,
    /// Calls at each node, of one token each.
    pub(crate) calls: u8,
    /// Tokens of a window.
    pub(crate) total: u64,
    pub(crate) away: OutagePolicy,
    /// The moments that there are, by the store's clock. Windows last a second.   ms
    pub(crate) moments: &'static [u64],
    /// By how much each node may take the store's time for later or earlier: one state to begin with for each.   ms
    pub(crate) blurs: &'static [[u64; 3]],
    /// How often something may happen: a node dies, a question or answer is lost or late, the store forgets, a node leaves.
    pub(crate) crashes: u8,
    pub(crate) losses: u8,
    pub(crate) forgets: u8,
    pub(crate) forgets_what: Forgets,
    pub(crate) leaves: u8,
    pub(crate) mistake: Mistake,
}

/// The writes that a store loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgets {
    Nothing,
    /// The record is gone.
    All,
    /// The last write is gone, as after the loss of a primary.
    LastWrite,
}

/// A mistake of a node or of the store, for the checker to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    Without,
    /// A draw without an answer counts as granted.
    UnansweredIsGranted,
    /// A write without an answer counts as not written.
    UnansweredIsNotWritten,
    /// The store writes without comparing versions.
    ComparesNothing,
    /// A node's interval of the store's time does not contain it.
    ClockIsWrong,
    /// A node that dies has its own share at once again.
    ShareAfterDeath,
    /// A draw that the store has forgotten counts as if it had not been granted.
    ForgetsForNothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The next moment.
    Pass,
    Call(usize),
    /// A question arrives at the store.
    Arrive(usize),
    /// An answer arrives at its node.
    Receive(usize),
    /// A question is lost before the store has it.
    LoseQuestion(usize),
    /// The store does what it was asked, and its answer is lost.
    LoseAnswer(usize),
    /// A question is late: its node gives it up, and the store may still do it.
    Delay(usize),
    /// The store does what it was asked, and another copy is late.
    Double(usize),
    /// The store could not be reached, and the node knows.
    Refuse(usize),
    /// A late write arrives at the store.
    ArriveLate(usize),
    /// A node that waits for the record hears that it has changed.
    Watch(usize),
    Leave(usize),
    Crash(usize),
    Forget,
}

#[derive(Clone, Copy, Debug)]
enum Trip {
    Rests,
    /// On its way to the store.
    There(QuestionId, Option<RecordWrite>),
    Back(QuestionId, StoreReply),
}

#[derive(Clone, Debug)]
struct Node {
    ledger: Ledger,
    /// A digest of the ledger.
    digest: u64,
    trip: Trip,
    /// A write that no node waits for any more.
    late: Option<RecordWrite>,
    /// A call that waits.
    waits: bool,
    calls: u8,
    blur: u64,
}

/// The counts of a window, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct WindowCounts {
    /// Spent while it ran.
    pub(crate) spent: u64,
    /// Of these, drawn from the store.
    pub(crate) drawn: u64,
    /// Granted by writes of the store.
    pub(crate) committed: u64,
    /// Returned by writes of the store.
    pub(crate) returned: u64,
    /// Granted by writes that the store has forgotten.
    pub(crate) forgotten: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    moment: usize,
    nodes: Vec<Node>,
    store: Option<(RecordVersion, QuotaRecord)>,
    /// The record before the last write.
    before: Option<(RecordVersion, QuotaRecord)>,
    versions: u64,
    windows: [WindowCounts; 3],
    crashes: u8,
    losses: u8,
    forgets: u8,
    leaves: u8,
    /// The first thing that went wrong.
    pub(crate) wrong: Option<&'static str>,
}

impl fmt::Display for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = match self.away {
            OutagePolicy::Safe { .. } => "a share of its own for each, ",
            OutagePolicy::Deny | OutagePolicy::Allow => "",
        };
        write!(
            out,
            "{} nodes, {} calls each, {} tokens a window of 1 s, {own}{} moments from {} to {} ms, clocks known to {:?} ms, at \
             most {} deaths, {} questions or answers lost, late or doubled, {} losses of the store's data, {} nodes that leave",
            self.nodes,
            self.calls,
            self.total,
            self.moments.len(),
            self.moments[0],
            self.moments[self.moments.len() - 1],
            self.blurs,
            self.crashes,
            self.losses,
            self.forgets,
            self.leaves,
        )
    }
}

fn rule(scope: &Scope) -> WindowRule {
    let mut settings = RuleSettings::new(scope.total, LENGTH);
    settings.nodes_expected = scope.nodes as u32;
    settings.away = scope.away;
    // So that the size of grants does not depend on how fast tokens go.
    settings.base = Some(1);
    WindowRule::check(settings).expect("a rule")
}

impl Node {
    fn new(made_ms: u64, now_ms: u64, blur: u64, scope: &Scope) -> Self {
        let mut node = Self {
            ledger: Ledger::new(rule(scope), at(made_ms)),
            digest: 0,
            trip: Trip::Rests,
            late: None,
            waits: false,
            calls: 0,
            blur,
        };
        node.digest = digest_of(&node.ledger, now_ms);
        node
    }
}

/// The digest of a ledger.
fn digest_of(ledger: &Ledger, now_ms: u64) -> u64 {
    let mut digest = new_digest(now_ms);
    ledger.digest(&mut digest);
    digest.number()
}

/// An empty digest. No moment is so old that its age is forgotten.
fn new_digest(now_ms: u64) -> Digest {
    let mut digest = Digest::new(Duration::MAX, false);
    digest.begin(at(now_ms));
    digest
}

const fn at(ms: u64) -> Timestamp {
    Timestamp::from_nanos(ms * 1_000_000)
}

impl Node {
    /// A number for its state. Numbers of questions are left out: each question has one answer.
    fn number(&self) -> u64 {
        let Self {
            ledger: _,
            digest,
            trip,
            late,
            waits,
            calls,
            blur,
        } = self;
        let mut to = new_digest(0);
        let words = [*digest, u64::from(*waits), u64::from(*calls), *blur];
        words.into_iter().for_each(|word| to.word(word));
        to.word(u64::from(late.is_some()));
        late.iter().for_each(|write| write.digest(&mut to));
        match trip {
            Trip::Rests => to.word(0),
            Trip::There(_, None) => to.word(1),
            Trip::There(_, Some(write)) => {
                to.word(2);
                write.digest(&mut to);
            }
            Trip::Back(_, reply) => {
                to.word(3);
                reply.digest(&mut to);
            }
        }
        to.number()
    }
}

/// The nodes are alike apart from what they know of the time, so states in which they have changed places are one.
impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self {
            moment,
            nodes,
            store,
            before,
            versions,
            windows,
            crashes,
            losses,
            forgets,
            leaves,
            wrong,
        } = self;
        let mut nodes: Vec<u64> = nodes.iter().map(Node::number).collect();
        nodes.sort_unstable();
        nodes.hash(hasher);
        let mut records = new_digest(0);
        for stored in [store, before] {
            records.word(u64::from(stored.is_some()));
            if let Some((RecordVersion(version), record)) = stored {
                records.word(*version);
                record.digest(&mut records);
            }
        }
        records.number().hash(hasher);
        let left = [crashes, losses, forgets, leaves];
        (moment, versions, windows, left, wrong).hash(hasher);
    }
}

/// Digests that leave out too much, for the comparison of states to find.
impl World {
    pub(crate) fn digest_without_ledgers(&self) -> u64 {
        let mut world = self.clone();
        world.nodes.iter_mut().for_each(|node| node.digest = 0);
        search::digest(&world)
    }

    pub(crate) fn digest_without_late_writes(&self) -> u64 {
        let mut world = self.clone();
        world.nodes.iter_mut().for_each(|node| node.late = None);
        search::digest(&world)
    }
}

/// Only whole paths are compared, and by their steps.
impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        search::digest(self) == search::digest(other)
    }
}

impl World {
    pub(crate) fn begin(scope: &Scope, blurs: &[u64; 3]) -> Self {
        // All have run before, in an earlier window.
        let nodes = blurs[..scope.nodes].iter();
        let nodes = nodes.map(|&blur| Node::new(500, scope.moments[0], blur, scope));
        Self {
            moment: 0,
            nodes: nodes.collect(),
            store: None,
            before: None,
            versions: 0,
            windows: [WindowCounts::default(); 3],
            crashes: scope.crashes,
            losses: scope.losses,
            forgets: scope.forgets,
            leaves: scope.leaves,
            wrong: None,
        }
    }

    /// The steps that can happen next.
    pub(crate) fn steps(&self, scope: &Scope, steps: &mut Vec<Step>) {
        if self.moment + 1 < scope.moments.len() {
            steps.push(Step::Pass);
        }
        if self.forgets > 0 && self.store.is_some() {
            steps.push(Step::Forget);
        }
        for (number, node) in self.nodes.iter().enumerate() {
            self.steps_of(number, node, scope, steps);
        }
    }

    fn steps_of(&self, number: usize, node: &Node, scope: &Scope, steps: &mut Vec<Step>) {
        if node.calls < scope.calls && !node.waits {
            steps.push(Step::Call(number));
        }
        if self.crashes > 0 {
            steps.push(Step::Crash(number));
        }
        if self.leaves > 0 && node.ledger.holds_tokens() {
            steps.push(Step::Leave(number));
        }
        if node.late.is_some() {
            steps.push(Step::ArriveLate(number));
        }
        let time = self.time(number, scope);
        let version = self.store.map(|(version, _)| version);
        if node.ledger.watches(&time) && node.ledger.version() != version {
            steps.push(Step::Watch(number));
        }
        match &node.trip {
            Trip::Rests => {}
            Trip::There(_, write) => {
                steps.push(Step::Arrive(number));
                if self.losses == 0 {
                    return;
                }
                steps.push(Step::LoseQuestion(number));
                steps.push(Step::Refuse(number));
                if write.is_some() {
                    steps.push(Step::LoseAnswer(number));
                    if node.late.is_none() {
                        steps.push(Step::Delay(number));
                        steps.push(Step::Double(number));
                    }
                }
            }
            Trip::Back(..) => steps.push(Step::Receive(number)),
        }
    }

    pub(crate) fn take(&mut self, step: Step, scope: &Scope) {
        match step {
            Step::Pass => {
                self.moment += 1;
                for node in 0..self.nodes.len() {
                    self.go_on(node, scope);
                }
            }
            Step::Call(number) => {
                let node = &mut self.nodes[number];
                node.calls += 1;
                node.waits = true;
                self.go_on(number, scope);
            }
            Step::Arrive(number) => {
                let Trip::There(question, write) = self.nodes[number].trip else {
                    unreachable!("it is on its way");
                };
                let outcome = self.apply(write, scope);
                self.nodes[number].trip = Trip::Back(question, outcome);
            }
            Step::Receive(number) => {
                let Trip::Back(question, outcome) = self.nodes[number].trip else {
                    unreachable!("it is on its way back");
                };
                let time = self.time(number, scope);
                let node = &mut self.nodes[number];
                node.trip = Trip::Rests;
                node.ledger.done(question, outcome, &time, 0);
                self.go_on(number, scope);
            }
            Step::LoseQuestion(number)
            | Step::LoseAnswer(number)
            | Step::Delay(number)
            | Step::Double(number)
            | Step::Refuse(number) => self.lose(step, number, scope),
            Step::ArriveLate(number) => {
                let write = self.nodes[number].late.take();
                self.apply(write, scope);
            }
            Step::Watch(number) => {
                self.nodes[number].ledger.told();
                self.go_on(number, scope);
            }
            Step::Leave(number) => {
                self.leaves -= 1;
                self.nodes[number].ledger.leave();
                self.go_on(number, scope);
            }
            Step::Crash(number) => {
                self.crashes -= 1;
                let Node {
                    trip,
                    late,
                    calls,
                    blur,
                    ..
                } = self.nodes[number];
                let made = match scope.mistake {
                    Mistake::ShareAfterDeath => 500,
                    _ => scope.moments[self.moment],
                };
                let mut next = Node::new(made, scope.moments[self.moment], blur, scope);
                next.calls = calls;
                // What it has sent may still arrive.
                next.late = match trip {
                    Trip::There(_, Some(write)) => Some(write),
                    _ => late,
                };
                self.nodes[number] = next;
            }
            Step::Forget => self.forget(scope),
        }
    }

    /// A question or its answer is lost.
    fn lose(&mut self, step: Step, number: usize, scope: &Scope) {
        self.losses -= 1;
        let Trip::There(question, write) = self.nodes[number].trip else {
            unreachable!("it is on its way");
        };
        let mut outcome = StoreReply::Unknown;
        match step {
            Step::LoseAnswer(_) => {
                let _ = self.apply(write, scope);
                if scope.mistake == Mistake::UnansweredIsNotWritten {
                    outcome = StoreReply::Unavailable;
                }
            }
            Step::Delay(_) => self.nodes[number].late = write,
            Step::Double(_) => {
                outcome = self.apply(write, scope);
                self.nodes[number].late = write;
            }
            Step::Refuse(_) => outcome = StoreReply::Unavailable,
            _ => {
                if scope.mistake == Mistake::UnansweredIsGranted {
                    outcome = StoreReply::Written(RecordVersion(0));
                }
            }
        }
        self.nodes[number].trip = Trip::Back(question, outcome);
    }

    /// The store loses what it has confirmed.
    fn forget(&mut self, scope: &Scope) {
        self.forgets -= 1;
        let Some((_, lost)) = self.store else {
            return;
        };
        let kept = match scope.forgets_what {
            Forgets::LastWrite => self.before,
            Forgets::All | Forgets::Nothing => None,
        };
        let granted = |record: QuotaRecord| record.total() - record.reserved() - record.left();
        let is_same = |record: &QuotaRecord| record.window() == lost.window();
        let still = kept.map(|(_, record)| record).filter(is_same);
        let forgotten = granted(lost).saturating_sub(still.map_or(0, granted));
        self.store = kept;
        self.before = None;
        if scope.mistake != Mistake::ForgetsForNothing
            && let Some(window) = self.windows.get_mut(lost.window() as usize - 1)
        {
            window.forgotten += forgotten;
        }
    }

    fn time(&self, number: usize, scope: &Scope) -> StoreTime {
        let ms = scope.moments[self.moment];
        let blur = self.nodes[number].blur;
        let now = at(ms);
        let (mut earliest, mut latest) = (ms - blur, ms + blur);
        if scope.mistake == Mistake::ClockIsWrong && number == 0 {
            (earliest, latest) = (ms - 120, ms - 60);
        }
        let [earliest, latest] = [earliest, latest].map(Duration::from_millis);
        StoreTime::between(now, earliest, latest)
    }

    /// A node pays for the call that waits, if it can, and asks, if there is something to ask.
    fn go_on(&mut self, number: usize, scope: &Scope) {
        let time = self.time(number, scope);
        if self.nodes[number].waits {
            self.pay(number, &time, scope);
        }
        let node = &mut self.nodes[number];
        if matches!(node.trip, Trip::Rests) {
            let waits = u64::from(node.waits);
            let waiting = WaitingCost {
                next: waits,
                sum: waits,
            };
            node.trip = match node.ledger.next(waiting, &time) {
                Action::Sleep(_) => Trip::Rests,
                Action::Time(question) => Trip::Back(question, StoreReply::Time),
                Action::Read(question) => Trip::There(question, None),
                Action::Write(question, write) => Trip::There(question, Some(write)),
            };
        }
        node.digest = digest_of(&node.ledger, scope.moments[self.moment]);
    }

    fn pay(&mut self, number: usize, time: &StoreTime, scope: &Scope) {
        let node = &mut self.nodes[number];
        let Ok(spent) = node.ledger.take(1, time) else {
            return;
        };
        node.waits = false;
        let now = scope.moments[self.moment] / 1_000;
        if spent.window.is_some_and(|window| window != now) {
            self.wrong.get_or_insert("spent in another window");
        }
        if spent.drawn + spent.safe != 1 {
            self.wrong.get_or_insert("paid with something else");
        }
        let window = &mut self.windows[now as usize - 1];
        window.spent += 1;
        window.drawn += spent.drawn;
    }

    fn apply(&mut self, write: Option<RecordWrite>, scope: &Scope) -> StoreReply {
        let version = self.store.map(|(version, _)| version);
        let compares = scope.mistake != Mistake::ComparesNothing;
        let write = write.filter(|write| write.replaces == version || !compares);
        let Some(write) = write else {
            return StoreReply::Stands(match self.store {
                None => StoredRecord::Absent,
                Some((version, record)) => StoredRecord::Record { version, record },
            });
        };
        self.commit(&write.record, scope);
        self.versions += 1;
        let version = RecordVersion(self.versions);
        self.before = self.store.filter(|_| scope.forgets > 0);
        self.store = Some((version, write.record));
        StoreReply::Written(version)
    }

    /// Counts a write.
    fn commit(&mut self, record: &QuotaRecord, scope: &Scope) {
        let number = record.window();
        let running = scope.moments[self.moment] / 1_000;
        if number > running {
            self.wrong.get_or_insert("opened before it began");
        }
        let before = self.store.map(|(_, record)| record);
        // A store that has forgotten is the exception.
        let is_whole = self.forgets == scope.forgets;
        if is_whole && before.is_some_and(|before| before.window() > number) {
            self.wrong.get_or_insert("a window goes back");
        }
        let full = record.total() - record.reserved();
        let before = before.filter(|before| before.window() == number);
        let left = before.map_or(full, |before| before.left());
        let window = &mut self.windows[number as usize - 1];
        if is_whole && before.is_none() && window.committed > 0 {
            self.wrong.get_or_insert("a window is opened twice");
        }
        window.committed += left.saturating_sub(record.left());
        window.returned += record.left().saturating_sub(left);
        if is_whole && full + window.returned != window.committed + record.left() {
            self.wrong.get_or_insert("what is left was granted");
        }
    }
}

/// Answers for the properties.
impl World {
    pub(crate) fn windows(&self) -> impl Iterator<Item = &WindowCounts> {
        self.windows.iter()
    }

    pub(crate) fn has_ended(&self, scope: &Scope) -> bool {
        self.moment + 1 == scope.moments.len()
    }

    /// A window is over, and less of it was spent than was granted, though a call waits.
    pub(crate) fn has_lost_grant(&self, scope: &Scope) -> bool {
        let running = scope.moments[self.moment] as usize / 1_000;
        let mut over = self.windows[..running - 1].iter();
        let waits = self.nodes.iter().any(|node| node.waits);
        waits && over.any(|window| window.drawn + window.returned < window.committed)
    }
}
