//! Nodes, a store and what comes between them, in virtual time.
//!
//! Every node has a clock of its own, which stands and runs differently from the others; the
//! store has another. Requests and replies take time, get lost before or after they were
//! applied, and reads may be old. Nodes stand still, die and come back.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{
    Action, Coverage, DrawMode, Ledger, LedgerCounts, Payment, QuestionId, QuotaRecord,
    RecordVersion, StoreReply, StoreTime, StoredRecord, WaitingCost, WindowRule,
};

use crate::quota_model::check::{Entry, Log, Nanos};
use crate::quota_model::take_all::take_all;
use crate::random::Random;

pub(crate) const MS: Nanos = 1_000_000;
/// When runs begin, by the store's clock: a multiple of every length.
const EPOCH: Nanos = 1_800_000_000_000 * MS;
/// Calls that wait at one node.
const QUEUE: usize = 64;

/// The settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    /// The first key is common; a call meets it and one of the others, if there are any.
    pub(crate) rules: Vec<WindowRule>,
    pub(crate) duration: Nanos,
    /// Time between two calls at a node, at random up to twice this; for each node.
    pub(crate) gaps: Vec<Nanos>,
    /// The range of the random costs of calls.
    pub(crate) costs: (u64, u64),
    /// Time one way between node and store, at random from one to the other.
    pub(crate) way: (Nanos, Nanos),
    pub(crate) faults: Faults,
    /// Every node asks for more all the time, without faults except those in `faults`.
    pub(crate) saturated: bool,
    /// At this moment demand moves: the nodes take each other's gaps, backwards.
    pub(crate) shift_at: Option<Nanos>,
}

/// The faults of a run. Chances are in thousands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost_before: u64,
    pub(crate) lost_after: u64,
    pub(crate) stale: u64,
    /// How far clocks are apart, and by how many parts in a million they drift.
    pub(crate) skew: Nanos,
    pub(crate) drift_ppm: u64,
    /// Mean time between two of these; 0 for never.
    pub(crate) crash_every: Nanos,
    pub(crate) pause_every: Nanos,
    pub(crate) cut_every: Nanos,
    pub(crate) step_every: Nanos,
    /// Calls that stand still between the decision and the sending.
    pub(crate) late_calls: u64,
    /// Calls that are given back after all.
    pub(crate) given_back: u64,
    /// Whether nodes believe in a wrong number of nodes.
    pub(crate) miscounted: bool,
    /// After this moment nothing goes wrong any more.
    pub(crate) until: Nanos,
}

/// The results of a run.
pub(crate) struct Run {
    pub(crate) log: Log,
    pub(crate) counts: LedgerCounts,
    /// Tokens that each node was let through with, by key and window counted from the first.
    pub(crate) admitted: Vec<Vec<Vec<u64>>>,
    /// Calls that were decided, and such as had to wait for the store.
    pub(crate) decided: u64,
    pub(crate) waited: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive { node: usize },
    Reach(usize),
    Reply(usize),
    TimeOut(usize),
    Wake { node: usize, life: u64 },
    Watched { node: usize, life: u64, key: usize },
    Crash,
    Restart { node: usize },
    Pause,
    Cut,
    Heal { node: usize },
    StepClock,
    Shift,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    cost: u64,
    /// The second key that it meets; 0 if there is none.
    user: usize,
    arrived: Nanos,
}

/// A question on its way.
struct Trip {
    node: usize,
    life: u64,
    key: usize,
    question: QuestionId,
    asked: Asked,
    sent: Timestamp,
    sent_at: Nanos,
    /// The moment at which the trip was given up.
    given_up_at: Option<Nanos>,
    /// The outcome of the trip, and the store's clock then.
    outcome: Option<(StoreReply, Nanos)>,
    applied: bool,
    answered: bool,
}

#[derive(Clone, Copy)]
enum Asked {
    Time,
    Read,
    Write {
        replaces: Option<RecordVersion>,
        record: QuotaRecord,
        /// The record that the writer knows to be there.
        base: Option<QuotaRecord>,
    },
}

impl Asked {
    /// The tokens that the writer means to take and to give back, and whether it opens the window.
    fn meant(&self, pool: u64) -> (u64, u64, bool) {
        let Self::Write { record, base, .. } = self else {
            return (0, 0, false);
        };
        match base.filter(|base| base.start() == record.start()) {
            Some(base) if base.left() >= record.left() => (base.left() - record.left(), 0, false),
            Some(base) => (0, record.left() - base.left(), false),
            None => (pool - record.left(), 0, true),
        }
    }
}

struct Node {
    life: u64,
    alive: bool,
    paused_until: Nanos,
    cut: bool,
    ahead: Nanos,
    drift_ppm: i64,
    time: StoreTime,
    ledgers: Vec<Ledger>,
    watching: Vec<bool>,
    queue: VecDeque<Call>,
    gap: Nanos,
    wakes_at: Nanos,
}

impl Node {
    fn local(&self, real: Nanos) -> Timestamp {
        let drift = i128::from(real) * i128::from(self.drift_ppm) / 1_000_000;
        let drift = i64::try_from(drift).expect("runs are short");
        Timestamp::from_nanos((self.ahead + real).saturating_add_signed(drift))
    }

    fn real(&self, local: Timestamp) -> Nanos {
        let passed = i128::from(local.as_nanos()) - i128::from(self.ahead);
        let real = passed * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm)) + 1;
        u64::try_from(real.max(0)).unwrap_or(u64::MAX)
    }
}

struct Kept {
    /// Every version that ever stood there, with when it was replaced.
    history: Vec<(RecordVersion, QuotaRecord, Nanos)>,
    watchers: Vec<(usize, u64)>,
}

struct World {
    setup: Setup,
    random: Random,
    now: Nanos,
    order: u64,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    nodes: Vec<Node>,
    store: Vec<Kept>,
    /// The store's clock beyond the real time.
    clock: Nanos,
    trips: Vec<Trip>,
    /// The last question of each node about each key.
    under_way: Vec<Vec<Option<usize>>>,
    run: Run,
}

/// Runs it.
pub(crate) fn run(setup: &Setup) -> Run {
    let mut world = World::new(setup.clone());
    while let Some(Reverse((at, _, event))) = world.events.pop() {
        if at > setup.duration {
            break;
        }
        world.now = at;
        world.happen(event);
    }
    world.end()
}

impl World {
    fn new(setup: Setup) -> Self {
        let mut random = Random::new(setup.seed);
        let keys = setup.rules.len();
        let nodes = (0..setup.nodes)
            .map(|at| {
                let drift = setup.faults.drift_ppm;
                let node = Node {
                    life: 0,
                    alive: true,
                    paused_until: 0,
                    cut: false,
                    ahead: 1_000 * MS + random.below(setup.faults.skew + 1),
                    drift_ppm: random.below(2 * drift + 1) as i64 - drift as i64,
                    time: StoreTime::unknown(Timestamp::ZERO),
                    ledgers: Vec::new(),
                    watching: vec![false; keys],
                    queue: VecDeque::new(),
                    gap: setup.gaps[at],
                    wakes_at: Nanos::MAX,
                };
                Node {
                    ledgers: setup
                        .rules
                        .iter()
                        .map(|rule| Ledger::new(*rule, node.local(0)))
                        .collect(),
                    ..node
                }
            })
            .collect();
        let store = (0..keys)
            .map(|_| Kept {
                history: Vec::new(),
                watchers: Vec::new(),
            })
            .collect();
        let settings = || setup.rules.iter().map(WindowRule::settings);
        let lengths: Vec<Nanos> = settings().map(|it| it.length.as_nanos() as u64).collect();
        let nodes_count = setup.nodes as u64;
        let bases = setup.rules.iter().map(|rule| rule.base(nodes_count));
        let bases: Vec<u64> = bases.collect();
        let on_account = settings().zip(&bases).map(|(it, base)| match it.mode {
            DrawMode::Optimistic => nodes_count * base,
            DrawMode::Drawn => 0,
        });
        let run = Run {
            log: Log {
                entries: Vec::new(),
                on_account: on_account.collect(),
                stranded: bases
                    .iter()
                    .map(|base| nodes_count * (base + setup.costs.1))
                    .collect(),
                steps: 0,
                step_count: 0,
                supplied_within: 2_500 * MS,
                totals: setup
                    .rules
                    .iter()
                    .map(|rule| rule.settings().total)
                    .collect(),
                lengths,
            },
            counts: LedgerCounts::default(),
            admitted: vec![vec![Vec::new(); keys]; setup.nodes],
            decided: 0,
            waited: 0,
        };
        let mut world = Self {
            random,
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            nodes,
            store,
            clock: EPOCH,
            trips: Vec::new(),
            under_way: vec![vec![None; keys]; setup.nodes],
            run,
            setup,
        };
        world.count_nodes();
        for node in 0..world.setup.nodes {
            let at = world.random.below(2 * world.nodes[node].gap + 1);
            world.push(at, Event::Arrive { node });
        }
        let faults = world.setup.faults.clone();
        world.again(faults.crash_every, Event::Crash);
        world.again(faults.pause_every, Event::Pause);
        world.again(faults.cut_every, Event::Cut);
        world.again(faults.step_every, Event::StepClock);
        if let Some(at) = world.setup.shift_at {
            world.push(at, Event::Shift);
        }
        world
    }

    fn push(&mut self, at: Nanos, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    /// A fault comes again, unless they are over by then.
    fn again(&mut self, every: Nanos, event: Event) {
        if every > 0 {
            let at = self.now + 1 + self.random.below(2 * every);
            if at < self.setup.faults.until {
                self.push(at, event);
            }
        }
    }

    fn log(&mut self, entry: Entry) {
        self.run.log.entries.push(entry);
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        per_mille > 0 && self.random.below(1_000) < per_mille && self.faulty()
    }

    fn faulty(&self) -> bool {
        self.now < self.setup.faults.until
    }

    /// The store's time as a node knows it.
    fn time(&self, node: usize) -> StoreTime {
        let node = &self.nodes[node];
        node.time.at(node.local(self.now))
    }

    fn store_now(&self) -> Nanos {
        self.clock + self.now
    }

    fn count_nodes(&mut self) {
        let alive = self.nodes.iter().filter(|node| node.alive).count();
        for at in 0..self.nodes.len() {
            let seen = if self.setup.faults.miscounted {
                self.random.below(20) as u32
            } else {
                alive as u32
            };
            for ledger in &mut self.nodes[at].ledgers {
                ledger.set_nodes(seen);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        let of = match event {
            Event::Arrive { node } | Event::Wake { node, .. } | Event::Watched { node, .. } => {
                Some(node)
            }
            Event::Reply(trip) | Event::TimeOut(trip) => Some(self.trips[trip].node),
            _ => None,
        };
        // Who stands still does nothing, and then everything at once.
        if let Some(node) = of
            && self.nodes[node].paused_until > self.now
        {
            self.push(self.nodes[node].paused_until, event);
            return;
        }
        match event {
            Event::Arrive { node } => self.arrive(node),
            Event::Reach(trip) => self.reach(trip),
            Event::Reply(trip) => self.reply(trip),
            Event::TimeOut(trip) => {
                if !self.trips[trip].answered {
                    self.trips[trip].given_up_at = Some(self.now);
                }
                let outcome = if self.random.one_in(2) && !self.trips[trip].applied {
                    // It has not left: the connection was refused.
                    self.trips[trip].outcome = Some((StoreReply::Unavailable, 0));
                    StoreReply::Unavailable
                } else {
                    StoreReply::Unknown
                };
                self.answer(trip, outcome);
            }
            Event::Wake { node, life } => {
                if self.nodes[node].life == life && self.nodes[node].alive {
                    self.nodes[node].wakes_at = Nanos::MAX;
                    self.serve(node);
                    self.drive(node);
                }
            }
            Event::Watched { node, life, key } => {
                if self.nodes[node].life == life && self.nodes[node].alive {
                    self.nodes[node].watching[key] = false;
                    self.nodes[node].ledgers[key].told();
                    self.drive(node);
                }
            }
            Event::Crash => {
                let node = self.random.below(self.setup.nodes as u64) as usize;
                self.crash(node);
                self.again(self.setup.faults.crash_every, Event::Crash);
            }
            Event::Restart { node } => self.restart(node),
            Event::Pause => {
                let node = self.random.below(self.setup.nodes as u64) as usize;
                let most = 2 * self.run.log.lengths[0];
                self.nodes[node].paused_until = self.now + self.random.below(most);
                self.again(self.setup.faults.pause_every, Event::Pause);
            }
            Event::Cut => {
                let node = self.random.below(self.setup.nodes as u64) as usize;
                self.nodes[node].cut = true;
                let most = 2 * self.run.log.lengths[0];
                let until = self.now + self.random.below(most);
                self.push(until, Event::Heal { node });
                self.again(self.setup.faults.cut_every, Event::Cut);
            }
            Event::Heal { node } => {
                self.nodes[node].cut = false;
                // Nothing disturbs it any more.
                if !self.faulty() && self.nodes[node].alive && self.nodes[node].gap < 20 * MS {
                    let at = self.now.max(self.nodes[node].paused_until);
                    self.log(Entry::Healed { node, at });
                }
            }
            Event::StepClock => {
                let step = self.random.below(self.run.log.lengths[0]);
                if self.random.one_in(2) {
                    self.clock += step;
                } else {
                    self.clock -= step;
                }
                self.run.log.steps += step;
                self.run.log.step_count += 1;
                self.again(self.setup.faults.step_every, Event::StepClock);
            }
            Event::Shift => {
                let mut gaps: Vec<Nanos> = self.nodes.iter().map(|node| node.gap).collect();
                gaps.reverse();
                for (node, gap) in self.nodes.iter_mut().zip(gaps) {
                    node.gap = gap;
                }
            }
        }
    }

    // ---- Calls.

    fn arrive(&mut self, node: usize) {
        let gap = self.nodes[node].gap;
        let next = self.now + 1 + self.random.below(2 * gap);
        self.push(next, Event::Arrive { node });
        let (least, most) = self.setup.costs;
        let users = self.setup.rules.len() as u64 - 1;
        let call = Call {
            cost: self.random.between(least, most),
            user: if users > 0 {
                1 + self.random.below(users) as usize
            } else {
                0
            },
            arrived: self.now,
        };
        if !self.nodes[node].alive {
            return;
        }
        self.run.decided += 1;
        self.serve(node);
        let time = self.time(node);
        let pause = if self.chance(self.setup.faults.late_calls) {
            // It stands still with the clock read and the call decided, and nothing sent.
            self.random.below(self.run.log.lengths[0])
        } else {
            0
        };
        self.nodes[node].paused_until = self.now + pause;
        let taken = if self.nodes[node].queue.is_empty() {
            self.take(node, call, &time, pause)
        } else {
            Err(Coverage::Draw)
        };
        self.wait_or_refuse(node, call, taken);
        self.drive(node);
    }

    /// The tokens held of the keys that a call meets.
    fn balance(&self, node: usize, call: Call, time: &StoreTime) -> u64 {
        let of = |key: usize| {
            let now = self.nodes[node].ledgers[key].now(time);
            now.held + now.safe + now.owed
        };
        of(0) + if call.user > 0 { of(call.user) } else { 0 }
    }

    fn take(
        &mut self,
        node: usize,
        call: Call,
        time: &StoreTime,
        pause: Nanos,
    ) -> Result<(), Coverage> {
        let before = self.balance(node, call, time);
        let covered = |ledger: &Ledger| {
            let now = ledger.now(time);
            call.cost <= now.held + now.safe
        };
        let ledgers = &mut self.nodes[node].ledgers;
        let (all, users) = ledgers.split_first_mut().expect("there is a key");
        let is_covered = covered(all) && (call.user == 0 || covered(&users[call.user.max(1) - 1]));
        let mut calls = vec![(all, call.cost)];
        if call.user > 0 {
            calls.push((&mut users[call.user - 1], call.cost));
        }
        match take_all(&mut calls, time) {
            Ok(spent) => {
                self.admitted(node, call, &spent, pause);
                Ok(())
            }
            Err((_, answer)) => {
                let after = self.balance(node, call, time);
                self.log(Entry::Refuse { before, after });
                if is_covered {
                    let cost = call.cost;
                    self.log(Entry::Stalled { node, cost });
                }
                Err(answer)
            }
        }
    }

    fn admitted(&mut self, node: usize, call: Call, spent: &[Payment], pause: Nanos) {
        let goes_back = self.chance(self.setup.faults.given_back);
        let at = self.store_now() + pause;
        for (key, spent) in [0, call.user].into_iter().zip(spent) {
            if goes_back {
                self.nodes[node].ledgers[key].give_back(*spent);
                continue;
            }
            let length = self.run.log.lengths[key];
            let window = spent.window.unwrap_or((at - pause) / length);
            self.log(Entry::Admit {
                node,
                key,
                window,
                drawn: spent.drawn,
                safe: spent.safe,
                owed: spent.owed,
                at,
                pause,
            });
            let first = (EPOCH / length) as usize;
            let at = (window as usize).saturating_sub(first);
            let windows = &mut self.run.admitted[node][key];
            windows.resize(windows.len().max(at + 1), 0);
            windows[at] += spent.drawn + spent.safe + spent.owed;
        }
    }

    fn wait_or_refuse(&mut self, node: usize, call: Call, taken: Result<(), Coverage>) {
        match taken {
            Ok(()) => {}
            Err(Coverage::Draw | Coverage::Between { .. }) => {
                self.run.waited += 1;
                if self.nodes[node].queue.len() < QUEUE {
                    self.nodes[node].queue.push_back(call);
                }
            }
            Err(Coverage::Exhausted { .. } | Coverage::Never) => self.supplied(node),
            Err(Coverage::Away { .. } | Coverage::Covered) => {}
        }
    }

    /// A node got what there is, or knows that there is nothing.
    fn supplied(&mut self, node: usize) {
        if self.setup.faults.cut_every > 0 && !self.faulty() {
            let at = self.now;
            self.log(Entry::Supplied { node, at });
        }
    }

    /// Lets those go that wait, in their order.
    fn serve(&mut self, node: usize) {
        while let Some(call) = self.nodes[node].queue.front().copied() {
            let timeout = self.setup.rules[0].settings().draw_timeout.as_nanos() as u64;
            if self.now > call.arrived + timeout {
                self.nodes[node].queue.pop_front();
                continue;
            }
            let time = self.time(node);
            match self.take(node, call, &time, 0) {
                Ok(()) => {}
                Err(Coverage::Draw | Coverage::Between { .. }) => return,
                Err(Coverage::Exhausted { .. } | Coverage::Never) => self.supplied(node),
                Err(Coverage::Away { .. } | Coverage::Covered) => {}
            }
            self.nodes[node].queue.pop_front();
        }
    }

    // ---- Questions.

    /// Asks what there is to ask, and sleeps until there is more.
    fn drive(&mut self, node: usize) {
        let time = self.time(node);
        let mut wake = Nanos::MAX;
        for key in 0..self.setup.rules.len() {
            let meets = |call: &&Call| key == 0 || call.user == key;
            let queue = &self.nodes[node].queue;
            let waiting = WaitingCost {
                next: queue.iter().find(meets).map_or(0, |call| call.cost),
                sum: queue.iter().filter(meets).map(|call| call.cost).sum(),
            };
            let ledger = &mut self.nodes[node].ledgers[key];
            let base = ledger.now(&time).record;
            let (question, asked) = match ledger.next(waiting, &time) {
                Action::Sleep(until) => {
                    wake = wake.min(self.nodes[node].real(until));
                    if !self.nodes[node].watching[key]
                        && self.nodes[node].ledgers[key].watches(&time)
                    {
                        self.nodes[node].watching[key] = true;
                        let life = self.nodes[node].life;
                        self.store[key].watchers.push((node, life));
                    }
                    continue;
                }
                Action::Time(question) => (question, Asked::Time),
                Action::Read(question) => (question, Asked::Read),
                Action::Write(question, write) => {
                    let asked = Asked::Write {
                        replaces: write.replaces,
                        record: write.record,
                        base,
                    };
                    (question, asked)
                }
            };
            self.send(node, key, question, asked);
        }
        let wake = wake.max(self.now + 1);
        if wake < self.nodes[node].wakes_at && wake < self.setup.duration {
            self.nodes[node].wakes_at = wake;
            let life = self.nodes[node].life;
            self.push(wake, Event::Wake { node, life });
        }
    }

    fn send(&mut self, node: usize, key: usize, question: QuestionId, asked: Asked) {
        let sent = self.nodes[node].local(self.now);
        let trip = self.trips.len();
        self.trips.push(Trip {
            node,
            life: self.nodes[node].life,
            key,
            question,
            asked,
            sent,
            sent_at: self.now,
            given_up_at: None,
            outcome: None,
            applied: false,
            answered: false,
        });
        let last = self.under_way[node][key].replace(trip);
        if let Some(last) = last
            && self.trips[last].life == self.nodes[node].life
            && !self.trips[last].answered
        {
            // The node stood still for so long that the ledger has given the question up.
            let timeout = self.setup.rules[key].settings().draw_timeout;
            assert!(sent.since(self.trips[last].sent) >= 2 * timeout);
            self.over(last, StoreReply::Unknown);
        }
        self.log(Entry::Asked { node, key });
        let (_, back, _) = asked.meant(self.pool(key));
        if back > 0
            && let Asked::Write { record, .. } = asked
        {
            self.log(Entry::Returned {
                node,
                key,
                window: record.window(),
                amount: back,
            });
        }
        let timeout = self.setup.rules[key].settings().draw_timeout.as_nanos() as u64;
        let lost = self.chance(self.setup.faults.lost_before);
        if self.nodes[node].cut && self.random.one_in(2) {
            // Refused at once.
            let way = self.way();
            self.trips[trip].outcome = Some((StoreReply::Unavailable, 0));
            self.push(self.now + way, Event::Reply(trip));
        } else if !lost && !self.nodes[node].cut {
            let way = self.way();
            self.push(self.now + way, Event::Reach(trip));
        }
        self.push(self.now + timeout, Event::TimeOut(trip));
    }

    fn way(&mut self) -> Nanos {
        let (least, most) = self.setup.way;
        if self.setup.faults.until > 0 && self.random.one_in(50) {
            return most * 20;
        }
        self.random.between(least, most)
    }

    fn pool(&self, key: usize) -> u64 {
        let rule = &self.setup.rules[key];
        rule.settings().total - rule.reserved()
    }

    /// A question is at the store.
    fn reach(&mut self, trip: usize) {
        if self.trips[trip].outcome.is_some() {
            return;
        }
        let (key, node) = (self.trips[trip].key, self.trips[trip].node);
        let stale = self.chance(self.setup.faults.stale);
        let stands = self.stands(key, stale);
        let outcome = match self.trips[trip].asked {
            Asked::Time => StoreReply::Time,
            Asked::Read => StoreReply::Stands(stands),
            Asked::Write {
                replaces, record, ..
            } => {
                let there = self.store[key].history.last().map(|(version, ..)| *version);
                if there == replaces {
                    self.commit(trip, record);
                    let (version, ..) = self.store[key].history.last().expect("just written");
                    StoreReply::Written(*version)
                } else {
                    StoreReply::Stands(stands)
                }
            }
        };
        // The store's clock is read to the millisecond.
        let stamp = self.store_now() / MS * MS;
        self.trips[trip].outcome = Some((outcome, stamp));
        if !self.chance(self.setup.faults.lost_after) && !self.nodes[node].cut {
            let way = self.way();
            self.push(self.now + way, Event::Reply(trip));
        }
    }

    /// The contents that a read finds.
    fn stands(&mut self, key: usize, stale: bool) -> StoredRecord {
        let kept = &self.store[key].history;
        let mut at = kept.len();
        while stale && at > 0 && self.random.one_in(2) && self.now < kept[at - 1].2 + 100 * MS {
            at -= 1;
        }
        match kept[..at].last() {
            None => StoredRecord::Absent,
            Some((version, record, _)) => {
                // As it stands in a store: as text.
                StoredRecord::read(*version, record.to_string().as_bytes())
            }
        }
    }

    fn commit(&mut self, trip: usize, record: QuotaRecord) {
        let key = self.trips[trip].key;
        let version = RecordVersion(self.store[key].history.len() as u64 + 1);
        self.store[key].history.push((version, record, self.now));
        self.trips[trip].applied = true;
        let pool = record.total() - record.reserved();
        let (granted, back, opens) = self.trips[trip].asked.meant(pool);
        self.log(Entry::Committed {
            key,
            window: record.window(),
            left: record.left(),
            pool,
            total: record.total(),
            granted,
            back,
            at: self.now,
            opens,
            ends: ((record.window() + 1) * self.run.log.lengths[key]).saturating_sub(self.clock),
        });
        let writer = self.trips[trip].node;
        let watchers = std::mem::take(&mut self.store[key].watchers);
        for (node, life) in watchers {
            let at = self.now + self.way();
            if node == writer || !self.random.one_in(10) {
                self.push(at, Event::Watched { node, life, key });
            }
        }
    }

    fn reply(&mut self, trip: usize) {
        let Some((outcome, stamp)) = self.trips[trip].outcome else {
            unreachable!("what was not answered does not come back");
        };
        let Trip { node, life, .. } = self.trips[trip];
        let who = &mut self.nodes[node];
        if who.life == life && who.alive && !who.cut && stamp > 0 {
            let received = who.local(self.now);
            let stamp = Duration::from_nanos(stamp);
            let resolution = Duration::from_millis(1);
            let told = StoreTime::from_reply(self.trips[trip].sent, received, stamp, resolution);
            // Only what is written, or asked for it, says what time it is.
            if matches!(outcome, StoreReply::Time | StoreReply::Written(_)) {
                who.time = who.time.and(&told);
            }
        }
        self.answer(trip, outcome);
    }

    /// The node learns what came of its question.
    fn answer(&mut self, trip: usize, outcome: StoreReply) {
        let Trip {
            node,
            life,
            key,
            question,
            asked,
            answered,
            ..
        } = self.trips[trip];
        if self.nodes[node].life != life || !self.nodes[node].alive {
            return;
        }
        let time = self.time(node);
        let entropy = self.random.next();
        let ledger = &mut self.nodes[node].ledgers[key];
        let before = ledger.now(&time);
        // Also when it is too late: then nothing may come of it.
        ledger.done(question, outcome, &time, entropy);
        let after = ledger.now(&time);
        if answered {
            assert_eq!(before.counts, after.counts, "what is late is forgotten");
            return;
        }
        if after.counts.draws > before.counts.draws {
            self.trips[trip].answered = true;
            self.supplied(node);
            self.log(Entry::Answered { node, key });
            let Asked::Write { record, .. } = asked else {
                unreachable!("only what was written grants");
            };
            let (amount, ..) = asked.meant(record.total() - record.reserved());
            self.log(Entry::Granted {
                node,
                key,
                window: record.window(),
                amount,
            });
        } else {
            if let Asked::Write { record, .. } = asked
                && after.held > before.held
            {
                self.log(Entry::Kept {
                    node,
                    key,
                    window: record.window(),
                    amount: after.held - before.held,
                });
            }
            self.over(trip, outcome);
        }
        self.serve(node);
        self.drive(node);
    }

    /// A question is over, and granted nothing.
    fn over(&mut self, trip: usize, outcome: StoreReply) {
        self.trips[trip].answered = true;
        let Trip {
            node,
            key,
            asked,
            applied,
            ..
        } = self.trips[trip];
        self.log(Entry::Answered { node, key });
        if let Asked::Write { record, .. } = asked {
            let (granted, back, _) = asked.meant(record.total() - record.reserved());
            let unknown = outcome == StoreReply::Unknown;
            let amount =
                if applied && unknown { granted } else { 0 } + if unknown { back } else { 0 };
            self.log(Entry::Gone {
                key,
                window: record.window(),
                amount,
            });
        }
    }

    // ---- Deaths.

    fn crash(&mut self, node: usize) {
        if !self.nodes[node].alive {
            return;
        }
        // Under saturation it is missed only for a moment.
        let part = if self.setup.saturated { 20 } else { 1 };
        let at = self.now + self.random.below(self.run.log.lengths[0] / part);
        self.lose_all(node);
        self.nodes[node].alive = false;
        self.nodes[node].queue.clear();
        self.count_nodes();
        self.push(at, Event::Restart { node });
    }

    /// Loses the tokens of a node that dies.
    fn lose_all(&mut self, node: usize) {
        let time = self.time(node);
        for key in 0..self.setup.rules.len() {
            let now = self.nodes[node].ledgers[key].now(&time);
            self.sum(&now.counts);
            if let Some(record) = now.record {
                let amount = now.held;
                self.log(Entry::Gone {
                    key,
                    window: record.window(),
                    amount,
                });
            }
        }
        for trip in 0..self.trips.len() {
            let trip = &self.trips[trip];
            if trip.node != node || trip.life != self.nodes[node].life || trip.answered {
                continue;
            }
            if let Asked::Write { record, .. } = trip.asked {
                let (amount, ..) = trip.asked.meant(record.total() - record.reserved());
                let (key, window) = (trip.key, record.window());
                self.log(Entry::Gone {
                    key,
                    window,
                    amount,
                });
            }
        }
    }

    fn sum(&mut self, counts: &LedgerCounts) {
        let sum = &mut self.run.counts;
        sum.draws += counts.draws;
        sum.opened += counts.opened;
        sum.conflicts += counts.conflicts;
        sum.unknown += counts.unknown;
        sum.unavailable += counts.unavailable;
        sum.reads += counts.reads;
        sum.relinquished += counts.relinquished;
        sum.covered += counts.covered;
        sum.refused += counts.refused;
        sum.missed += counts.missed;
        sum.allowed += counts.allowed;
        sum.overshot += counts.overshot;
    }

    fn restart(&mut self, node: usize) {
        let now = self.now;
        let at = self.store_now();
        let rules = self.setup.rules.clone();
        let who = &mut self.nodes[node];
        who.life += 1;
        who.alive = true;
        who.wakes_at = Nanos::MAX;
        who.watching.fill(false);
        let local = who.local(now);
        who.time = StoreTime::unknown(local);
        who.ledgers = rules.iter().map(|rule| Ledger::new(*rule, local)).collect();
        self.count_nodes();
        self.log(Entry::Restarted { node, at });
    }

    /// The rest of a window at whose end every node waited for an answer that never came, or to ask again after
    /// such.
    fn left_in_silence(&self, key: usize, window: u64) -> u64 {
        let ends = (window + 1) * self.run.log.lengths[key] - self.clock;
        let waits = |node: usize| {
            let trips = self.trips.iter().rev();
            let mut before = trips
                .filter(|trip| (trip.node, trip.key) == (node, key) && trip.sent_at < ends)
                .map_while(|trip| trip.given_up_at);
            let Some(given_up) = before.next() else {
                return false;
            };
            let again = (50 * MS) << before.count().min(10);
            given_up.saturating_add(again.min(1_000 * MS)) >= ends
        };
        if !(0..self.setup.nodes).all(waits) {
            return 0;
        }
        let mut history = self.store[key].history.iter().rev();
        let last = history.find(|(_, record, _)| record.window() == window);
        last.map_or(self.pool(key), |(_, record, _)| record.left())
    }

    fn end(mut self) -> Run {
        self.now = self.setup.duration;
        for node in 0..self.setup.nodes {
            if self.nodes[node].alive {
                let time = self.time(node);
                for key in 0..self.setup.rules.len() {
                    let counts = self.nodes[node].ledgers[key].now(&time).counts;
                    self.sum(&counts);
                }
            }
        }
        let under_way: Vec<usize> = self.under_way.iter().flatten().flatten().copied().collect();
        for trip in under_way {
            let of = &self.trips[trip];
            if of.life == self.nodes[of.node].life && self.nodes[of.node].alive && !of.answered {
                self.trips[trip].given_up_at = Some(Nanos::MAX);
                self.over(trip, StoreReply::Unknown);
            }
        }
        if self.setup.saturated {
            // Of windows that ran from beginning to end, except the first: in it no node knows
            // anybody.
            for key in 0..self.setup.rules.len() {
                let length = self.run.log.lengths[key];
                let first = EPOCH / length + 1;
                let last = (EPOCH + self.setup.duration) / length;
                for window in first..last {
                    let amount = self.left_in_silence(key, window);
                    self.log(Entry::Gone {
                        key,
                        window,
                        amount,
                    });
                    self.log(Entry::Demanded {
                        key,
                        window,
                        amount: u64::MAX,
                    });
                }
            }
        }
        let at = self.now;
        self.log(Entry::Ended { at });
        self.run
    }
}
