//! The model: nodes, a store and the network between them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{
    Action, Answer, Away, Counts, Ledger, Question, Record, Rule, RuleError, RuleSettings,
    Standing, StoreReply, StoreTime, Version, Waiting, Write,
};

use super::super::random::Random;

/// The time of one way between a node and the store.
const WAY: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(2));
/// The resolution of the store's clock.
const RESOLUTION: Duration = Duration::from_millis(1);
/// Calls that wait at a node for a draw. Further ones are refused.
const QUEUE: usize = 1_024;

/// The arguments of `tidegate simulate quota`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// How many nodes share the quota
    #[arg(long, default_value_t = 8, value_name = "NUMBER",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub nodes: u32,
    /// The total that all of them may spend in one window
    #[arg(long, default_value_t = 50_000, value_name = "TOKENS",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub total: u64,
    /// The smallest grant; the default is a hundredth of an equal share
    #[arg(long, value_name = "TOKENS")]
    pub base: Option<u64>,
    /// The length of a window
    #[arg(long, default_value_t = 10_000, value_name = "MILLISECONDS",
          value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub window: u64,
    /// The number of windows
    #[arg(long, default_value_t = 20, value_name = "NUMBER",
          value_parser = clap::value_parser!(u32).range(4..=1_000))]
    pub windows: u32,
    /// The demand in a window, in percent of the total
    #[arg(long, default_value_t = 150, value_name = "PERCENT",
          value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub load: u64,
    /// The cost of the most expensive call; calls cost from 1 to this, at random
    #[arg(long, default_value_t = 14, value_name = "TOKENS",
          value_parser = clap::value_parser!(u64).range(1..=1_000), alias = "dearest")]
    pub cost_max: u64,
    /// The part of all calls that arrives at the first node in the second half of the run
    #[arg(long, default_value_t = 80, value_name = "PERCENT",
          value_parser = clap::value_parser!(u64).range(0..=100))]
    pub skew: u64,
    /// The part of an equal share that each node owns in case the store is unavailable; 0 for none
    #[arg(long, default_value_t = 0, value_name = "PERCENT",
          value_parser = clap::value_parser!(u32).range(0..=100))]
    pub safe: u32,
    /// The seed
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub seed: u64,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

impl Arguments {
    /// The quota.
    ///
    /// # Errors
    ///
    /// Every mistake in it.
    pub fn rule(&self) -> Result<Rule, Vec<RuleError>> {
        let mut settings = RuleSettings::new(self.total, Duration::from_millis(self.window));
        settings.base = self.base;
        settings.nodes_expected = self.nodes;
        settings.away = match self.safe {
            0 => Away::Deny,
            percent => Away::Safe { percent },
        };
        Rule::check(settings)
    }
}

/// The result. Of each half, the first window is left out, because the demand is unknown in it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The half with even demand.
    pub even: Half,
    /// The half in which most demand came to the first node.
    pub skewed: Half,
}

/// Half of a run.
#[derive(Clone, Debug, Default)]
pub struct Half {
    /// Window by window.
    pub windows: Vec<Window>,
    /// The counts of all ledgers.
    pub counts: Counts,
    /// Calls that were decided.
    pub decided: u64,
    /// Those of them that waited for the store.
    pub waited: u64,
}

/// A window by the store's clock.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// The demand.
    pub asked: u64,
    /// What each node spent.
    pub spent: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(usize),
    /// A request is at the store, or its answer is back.
    Reach(usize),
    Return(usize),
    Wake(usize),
    /// The key was written since a node asked to be notified.
    Told(usize),
    /// A window begins.
    Window(u64),
}

struct Trip {
    node: usize,
    question: Question,
    asked: Asked,
    sent: Timestamp,
    came: Option<(StoreReply, Duration)>,
}

#[derive(Clone, Copy)]
enum Asked {
    Time,
    Read,
    Write(Write),
}

struct Node {
    ledger: Ledger,
    time: StoreTime,
    /// The cost of waiting calls, and since when they wait.
    queue: VecDeque<(u64, u64)>,
    wakes_at: u64,
    watches: bool,
}

struct World<'a> {
    arguments: &'a Arguments,
    rule: Rule,
    random: Random,
    /// Nanoseconds since the start. Nodes and store count alike, but do not know it.
    now: u64,
    order: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    nodes: Vec<Node>,
    trips: Vec<Trip>,
    store: Option<(Version, Record)>,
    windows: Vec<Window>,
    /// The sums at each window's beginning: counts, decided, waited.
    marks: Vec<(Counts, u64, u64)>,
    decided: u64,
    waited: u64,
}

/// Runs it.
#[must_use]
pub fn run(arguments: &Arguments, rule: Rule) -> Outcome {
    let mut world = World::new(arguments, rule);
    let length = world.length();
    let end = length * u64::from(arguments.windows);
    while let Some(Reverse((at, _, event))) = world.events.pop() {
        if at > end {
            break;
        }
        world.now = at;
        world.happen(event);
    }
    world.outcome()
}

impl<'a> World<'a> {
    fn new(arguments: &'a Arguments, rule: Rule) -> Self {
        let nodes = arguments.nodes as usize;
        let node = || Node {
            ledger: Ledger::new(rule, Timestamp::ZERO),
            time: StoreTime::unknown(Timestamp::ZERO),
            queue: VecDeque::new(),
            wakes_at: u64::MAX,
            watches: false,
        };
        let window = Window {
            asked: 0,
            spent: vec![0; nodes],
        };
        let mut world = Self {
            arguments,
            rule,
            random: Random::new(arguments.seed, 0),
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            nodes: (0..nodes).map(|_| node()).collect(),
            trips: Vec::new(),
            store: None,
            windows: vec![window; arguments.windows as usize],
            marks: Vec::new(),
            decided: 0,
            waited: 0,
        };
        for window in 0..=u64::from(arguments.windows) {
            world.push(world.length() * window, Event::Window(window));
        }
        for node in 0..nodes {
            world.arrives(node);
        }
        world
    }

    fn length(&self) -> u64 {
        u64::try_from(self.rule.settings().length.as_nanos()).expect("a window is short")
    }

    fn push(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn local(&self) -> Timestamp {
        Timestamp::from_nanos(self.now)
    }

    fn time(&self, node: usize) -> StoreTime {
        self.nodes[node].time.at(self.local())
    }

    /// The number of the window; the last one at the very end.
    fn window(&self) -> usize {
        let window = usize::try_from(self.now / self.length()).expect("there are few windows");
        window.min(self.windows.len() - 1)
    }

    fn is_skewed(&self) -> bool {
        self.now >= self.length() * u64::from(self.arguments.windows / 2)
    }

    /// When the next call arrives at a node.
    fn arrives(&mut self, node: usize) {
        let settings = self.rule.settings();
        let mean = (self.arguments.cost_max + 1) as f64 / 2.0;
        let asked = settings.total as f64 * self.arguments.load as f64 / 100.0;
        let calls_per_second = asked / mean / settings.length.as_secs_f64();
        let nodes = self.nodes.len() as f64;
        let first = self.arguments.skew as f64 / 100.0;
        let part = match (self.is_skewed() && self.nodes.len() > 1, node) {
            (false, _) => 1.0 / nodes,
            (true, 0) => first,
            (true, _) => (1.0 - first) / (nodes - 1.0),
        };
        // A node that gets nothing checks later whether that is still so.
        let gap = if part > 0.0 {
            self.random.gap(calls_per_second * part)
        } else {
            settings.length
        };
        let half = self.length() * u64::from(self.arguments.windows / 2);
        let next = self.now + u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX / 2);
        // The shift is immediate, not after the last gap.
        let next = if self.now < half {
            next.min(half)
        } else {
            next
        };
        self.push(next, Event::Arrive(node));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(node) => self.arrive(node),
            Event::Reach(trip) => self.reach(trip),
            Event::Return(trip) => self.answer(trip),
            Event::Wake(node) => {
                self.nodes[node].wakes_at = u64::MAX;
                self.serve(node);
                self.drive(node);
            }
            Event::Told(node) => {
                self.nodes[node].watches = false;
                self.nodes[node].ledger.told();
                self.drive(node);
            }
            Event::Window(_) => {
                let mut sum = Counts::default();
                for node in 0..self.nodes.len() {
                    let counts = self.nodes[node].ledger.now(&self.time(node)).counts;
                    sum.draws += counts.draws;
                    sum.conflicts += counts.conflicts;
                    sum.relinquished += counts.relinquished;
                }
                self.marks.push((sum, self.decided, self.waited));
            }
        }
    }

    fn arrive(&mut self, node: usize) {
        let part = self.is_skewed() && node > 0 && self.arguments.skew == 100;
        self.arrives(node);
        if part {
            return;
        }
        let cost = 1 + self.random.below(self.arguments.cost_max);
        let window = self.window();
        self.windows[window].asked += cost;
        self.decided += 1;
        self.serve(node);
        let waits = !self.nodes[node].queue.is_empty();
        if (waits || !self.take(node, cost)) && self.nodes[node].queue.len() < QUEUE {
            self.waited += 1;
            self.nodes[node].queue.push_back((cost, self.now));
        }
        self.drive(node);
    }

    /// Whether a call was decided: admitted or refused.
    fn take(&mut self, node: usize, cost: u64) -> bool {
        let time = self.time(node);
        match self.nodes[node].ledger.take(cost, &time) {
            Ok(_) => {
                let window = self.window();
                self.windows[window].spent[node] += cost;
                true
            }
            Err(Answer::Draw | Answer::Between { .. }) => false,
            Err(_) => true,
        }
    }

    fn serve(&mut self, node: usize) {
        let timeout = self.rule.settings().draw_timeout.as_nanos();
        while let Some((cost, since)) = self.nodes[node].queue.front().copied() {
            let is_over = u128::from(self.now - since) > timeout;
            if !is_over && !self.take(node, cost) {
                return;
            }
            self.nodes[node].queue.pop_front();
        }
    }

    fn drive(&mut self, node: usize) {
        let time = self.time(node);
        let now = self.local();
        let who = &mut self.nodes[node];
        let waiting = Waiting {
            next: who.queue.front().map_or(0, |(cost, _)| *cost),
            sum: who.queue.iter().map(|(cost, _)| cost).sum(),
        };
        let (question, asked) = match who.ledger.next(waiting, &time) {
            Action::Sleep(until) => {
                who.watches |= who.ledger.watches(&time);
                let until = until.as_nanos().max(self.now + 1);
                if until < who.wakes_at {
                    who.wakes_at = until;
                    self.push(until, Event::Wake(node));
                }
                return;
            }
            Action::Time(question) => (question, Asked::Time),
            Action::Read(question) => (question, Asked::Read),
            Action::Write(question, write) => (question, Asked::Write(write)),
        };
        let trip = self.trips.len();
        self.trips.push(Trip {
            node,
            question,
            asked,
            sent: now,
            came: None,
        });
        let at = self.arrival();
        self.push(at, Event::Reach(trip));
    }

    fn arrival(&mut self) -> u64 {
        let way = self.random.between(WAY);
        self.now + u64::try_from(way.as_nanos()).expect("the way is short")
    }

    fn reach(&mut self, trip: usize) {
        let standing = match self.store {
            None => Standing::Absent,
            Some((version, record)) => Standing::Record { version, record },
        };
        let came = match self.trips[trip].asked {
            Asked::Time => StoreReply::Time,
            Asked::Write(write) if write.replaces == self.store.map(|(version, _)| version) => {
                let version = Version(write.replaces.map_or(0, |version| version.0) + 1);
                self.store = Some((version, write.record));
                for node in 0..self.nodes.len() {
                    if self.nodes[node].watches && node != self.trips[trip].node {
                        let at = self.arrival();
                        self.push(at, Event::Told(node));
                    }
                }
                StoreReply::Written(version)
            }
            Asked::Read | Asked::Write(_) => StoreReply::Stands(standing),
        };
        let stamp = Duration::from_millis(self.now / 1_000_000);
        self.trips[trip].came = Some((came, stamp));
        let at = self.arrival();
        self.push(at, Event::Return(trip));
    }

    fn answer(&mut self, trip: usize) {
        let now = self.local();
        let Trip {
            node,
            question,
            sent,
            came,
            ..
        } = self.trips[trip];
        let (came, stamp) = came.expect("it was at the store");
        let who = &mut self.nodes[node];
        if matches!(came, StoreReply::Time | StoreReply::Written(_)) {
            let told = StoreTime::from_reply(sent, now, stamp, RESOLUTION);
            who.time = who.time.and(&told);
        }
        let time = self.time(node);
        let entropy = self.random.next();
        self.nodes[node].ledger.done(question, came, &time, entropy);
        self.serve(node);
        self.drive(node);
    }

    fn outcome(self) -> Outcome {
        let half = self.windows.len() / 2;
        let part = |from: usize, to: usize| {
            let (first, last) = (&self.marks[from], &self.marks[to]);
            let counts = Counts {
                draws: last.0.draws - first.0.draws,
                conflicts: last.0.conflicts - first.0.conflicts,
                relinquished: last.0.relinquished - first.0.relinquished,
                ..Counts::default()
            };
            Half {
                windows: self.windows[from..to].to_vec(),
                counts,
                decided: last.1 - first.1,
                waited: last.2 - first.2,
            }
        };
        Outcome {
            even: part(1, half),
            skewed: part(half + 1, self.windows.len()),
        }
    }
}
