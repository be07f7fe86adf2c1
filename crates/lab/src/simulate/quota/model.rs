//! The model: nodes, a store and the network between them.

use std::collections::VecDeque;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::call::QuotaKey;
use tidegate_limits::quota::{
    Action, Coverage, Ledger, OutagePolicy, QuestionId, RuleError, RuleSettings, StoreReply,
    StoreTime, WaitingCost, WindowRule,
};
use tidegate_limits::scheduler::QuotaAsk;
use tidegate_replay::{Agenda, Ranked, RecordStore};

use crate::random::Random;

/// The time of one way between a node and the store.
const WAY: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(2));
/// The resolution of the store's clock.
const RESOLUTION: Duration = Duration::from_millis(1);
/// Calls that wait at a node for a draw. Further ones are refused.
const QUEUE: usize = 1_024;

/// The arguments of `tidegate simulate quota`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct QuotaArguments {
    /// How many nodes share the quota
    #[arg(long, default_value_t = 8, value_name = "NUMBER",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(super) nodes: u32,
    /// The total that all of them may spend in one window
    #[arg(long, default_value_t = 50_000, value_name = "TOKENS",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(super) total: u64,
    /// The smallest grant; the default is a hundredth of an equal share
    #[arg(long, value_name = "TOKENS")]
    pub(super) base: Option<u64>,
    /// The length of a window
    #[arg(long, default_value_t = 10_000, value_name = "MILLISECONDS",
          value_parser = clap::value_parser!(u64).range(100..=600_000))]
    pub(super) window: u64,
    /// The number of windows
    #[arg(long, default_value_t = 20, value_name = "NUMBER",
          value_parser = clap::value_parser!(u32).range(4..=1_000))]
    pub(super) windows: u32,
    /// The demand in a window, in percent of the total
    #[arg(long, default_value_t = 150, value_name = "PERCENT",
          value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub(super) load: u64,
    /// The cost of the most expensive call; calls cost from 1 to this, at random
    #[arg(long, default_value_t = 14, value_name = "TOKENS",
          value_parser = clap::value_parser!(u64).range(1..=1_000), alias = "dearest")]
    pub(super) cost_max: u64,
    /// The part of all calls that arrives at the first node in the second half of the run
    #[arg(long, default_value_t = 80, value_name = "PERCENT",
          value_parser = clap::value_parser!(u64).range(0..=100))]
    pub(super) skew: u64,
    /// The part of an equal share that each node owns in case the store is unavailable; 0 for none
    #[arg(long, default_value_t = 0, value_name = "PERCENT",
          value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(super) safe: u32,
    /// The seed
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(super) seed: u64,
    /// Print a JSON object
    #[arg(long)]
    pub(super) json: bool,
}

impl QuotaArguments {
    /// The quota.
    ///
    /// # Errors
    ///
    /// Every mistake in it.
    pub(super) fn rule(&self) -> Result<WindowRule, Vec<RuleError>> {
        let mut settings = RuleSettings::new(self.total, Duration::from_millis(self.window));
        settings.base = self.base;
        settings.nodes_expected = self.nodes;
        settings.away = match self.safe {
            0 => OutagePolicy::Deny,
            percent => OutagePolicy::Safe { percent },
        };
        WindowRule::check(settings)
    }
}

/// The result.
pub(super) struct QuotaRun {
    /// Window by window.
    pub(super) windows: Vec<WindowDemand>,
    /// The counts at each window's beginning, and at the end of the last.
    pub(super) marks: Vec<Counted>,
}

/// Counts since the start of the run, of all nodes.
#[derive(Clone, Copy, Default)]
pub(super) struct Counted {
    pub(super) draws: u64,
    pub(super) conflicts: u64,
    pub(super) relinquished: u64,
    /// Calls that were decided.
    pub(super) decided: u64,
    /// Decided calls that waited for the store.
    pub(super) waited: u64,
}

/// A window by the store's clock.
#[derive(Clone)]
pub(super) struct WindowDemand {
    /// The demand.
    pub(super) asked: u64,
    /// The amount that each node spent.
    pub(super) spent: Vec<u64>,
}

enum QuotaEvent {
    Arrive(usize),
    /// A question of a node is at the store.
    Reach {
        node: usize,
        ask: QuotaAsk,
        sent: Timestamp,
    },
    Return(StoreAnswer),
    Wake(usize),
    /// The key was written since a node asked to be notified.
    Told(usize),
    /// A window begins.
    Window,
}

/// Events of a moment happen as they were planned.
impl Ranked for QuotaEvent {
    type Rank = ();

    fn rank(&self) {}
}

/// An answer of the store on its way to a node.
struct StoreAnswer {
    node: usize,
    question: QuestionId,
    reply: StoreReply,
    /// When the question was sent.
    sent: Timestamp,
    /// The store's time.
    stamp: Duration,
}

struct Node {
    ledger: Ledger,
    time: StoreTime,
    /// The cost of waiting calls, and since when they wait.
    queue: VecDeque<(u64, Timestamp)>,
    wakes_at: Timestamp,
    watches: bool,
}

struct QuotaModel<'a> {
    arguments: &'a QuotaArguments,
    rule: WindowRule,
    random: Random,
    /// Nodes and store count alike, but do not know it.
    now: Timestamp,
    agenda: Agenda<QuotaEvent>,
    nodes: Vec<Node>,
    store: RecordStore,
    /// The only key of the store.
    key: QuotaKey,
    counted: Counted,
    run: QuotaRun,
}

/// Runs it.
pub(super) fn run(arguments: &QuotaArguments, rule: WindowRule) -> QuotaRun {
    let mut model = QuotaModel::new(arguments, rule);
    let end = model.beginning(arguments.windows);
    while let Some((at, event)) = model.agenda.pop()
        && at <= end
    {
        model.now = at;
        model.happen(event);
    }
    model.run
}

impl<'a> QuotaModel<'a> {
    fn new(arguments: &'a QuotaArguments, rule: WindowRule) -> Self {
        let nodes = arguments.nodes as usize;
        let node = || Node {
            ledger: Ledger::new(rule, Timestamp::ZERO),
            time: StoreTime::unknown(Timestamp::ZERO),
            queue: VecDeque::new(),
            wakes_at: Timestamp::MAX,
            watches: false,
        };
        let window = WindowDemand {
            asked: 0,
            spent: vec![0; nodes],
        };
        let mut model = Self {
            arguments,
            rule,
            random: Random::new(arguments.seed, 0),
            now: Timestamp::ZERO,
            agenda: Agenda::default(),
            nodes: (0..nodes).map(|_| node()).collect(),
            store: RecordStore::default(),
            key: QuotaKey {
                quota: "quota".into(),
                key: "".into(),
            },
            counted: Counted::default(),
            run: QuotaRun {
                windows: vec![window; arguments.windows as usize],
                marks: Vec::new(),
            },
        };
        for window in 0..=arguments.windows {
            let begins = model.beginning(window);
            model.agenda.plan(begins, QuotaEvent::Window);
        }
        for node in 0..nodes {
            model.plan_arrival(node);
        }
        model
    }

    fn beginning(&self, window: u32) -> Timestamp {
        Timestamp::ZERO + self.rule.settings().length * window
    }

    /// When the demand shifts to the first node.
    fn half(&self) -> Timestamp {
        self.beginning(self.arguments.windows / 2)
    }

    /// Plans something for the end of a way between a node and the store.
    fn plan_after_way(&mut self, event: QuotaEvent) {
        let at = self.now + self.random.between(WAY);
        self.agenda.plan(at, event);
    }

    fn time(&self, node: usize) -> StoreTime {
        self.nodes[node].time.at(self.now)
    }

    /// The current window; the last one at the very end.
    fn window(&mut self) -> &mut WindowDemand {
        let passed = self.now.since(Timestamp::ZERO).as_nanos();
        let number = passed / self.rule.settings().length.as_nanos();
        let number = usize::try_from(number).expect("there are few windows");
        let last = self.run.windows.len() - 1;
        &mut self.run.windows[number.min(last)]
    }

    /// Plans the next call at a node.
    fn plan_arrival(&mut self, node: usize) {
        let settings = self.rule.settings();
        let mean = (self.arguments.cost_max + 1) as f64 / 2.0;
        let asked = settings.total as f64 * self.arguments.load as f64 / 100.0;
        let calls_per_second = asked / mean / settings.length.as_secs_f64();
        let nodes = self.nodes.len() as f64;
        let first = self.arguments.skew as f64 / 100.0;
        let is_skewed = self.now >= self.half();
        let part = match (is_skewed && self.nodes.len() > 1, node) {
            (false, _) => 1.0 / nodes,
            (true, 0) => first,
            (true, _) => (1.0 - first) / (nodes - 1.0),
        };
        // A node that gets nothing checks later whether that is still so.
        let gap = match part > 0.0 {
            true => self.random.gap(calls_per_second * part),
            false => settings.length,
        };
        let next = match is_skewed {
            true => self.now + gap,
            // The shift is immediate, not after the last gap.
            false => (self.now + gap).min(self.half()),
        };
        self.agenda.plan(next, QuotaEvent::Arrive(node));
    }

    fn happen(&mut self, event: QuotaEvent) {
        match event {
            QuotaEvent::Arrive(node) => self.arrive(node),
            QuotaEvent::Reach { node, ask, sent } => self.reach(node, ask, sent),
            QuotaEvent::Return(answer) => self.take_answer(&answer),
            QuotaEvent::Wake(node) => {
                self.nodes[node].wakes_at = Timestamp::MAX;
                self.serve(node);
                self.drive(node);
            }
            QuotaEvent::Told(node) => {
                self.nodes[node].watches = false;
                self.nodes[node].ledger.told();
                self.drive(node);
            }
            QuotaEvent::Window => {
                let mut mark = self.counted;
                for node in &self.nodes {
                    let counts = node.ledger.now(&node.time.at(self.now)).counts;
                    mark.draws += counts.draws;
                    mark.conflicts += counts.conflicts;
                    mark.relinquished += counts.relinquished;
                }
                self.run.marks.push(mark);
            }
        }
    }

    fn arrive(&mut self, node: usize) {
        let is_skewed = self.now >= self.half();
        self.plan_arrival(node);
        if is_skewed && node > 0 && self.arguments.skew == 100 {
            return;
        }
        let cost = 1 + self.random.below(self.arguments.cost_max);
        self.window().asked += cost;
        self.counted.decided += 1;
        self.serve(node);
        let waits = !self.nodes[node].queue.is_empty();
        if (waits || !self.take(node, cost)) && self.nodes[node].queue.len() < QUEUE {
            self.counted.waited += 1;
            self.nodes[node].queue.push_back((cost, self.now));
        }
        self.drive(node);
    }

    /// Whether a call was decided: admitted or refused.
    fn take(&mut self, node: usize, cost: u64) -> bool {
        let time = self.time(node);
        match self.nodes[node].ledger.take(cost, &time) {
            Ok(_) => {
                self.window().spent[node] += cost;
                true
            }
            Err(Coverage::Draw | Coverage::Between { .. }) => false,
            Err(_) => true,
        }
    }

    fn serve(&mut self, node: usize) {
        let timeout = self.rule.settings().draw_timeout;
        while let Some((cost, since)) = self.nodes[node].queue.front().copied() {
            if self.now.since(since) <= timeout && !self.take(node, cost) {
                return;
            }
            self.nodes[node].queue.pop_front();
        }
    }

    fn drive(&mut self, node: usize) {
        let time = self.time(node);
        let who = &mut self.nodes[node];
        let waiting = WaitingCost {
            next: who.queue.front().map_or(0, |(cost, _)| *cost),
            sum: who.queue.iter().map(|(cost, _)| cost).sum(),
        };
        let ask = match who.ledger.next(waiting, &time) {
            Action::Sleep(until) => {
                who.watches |= who.ledger.watches(&time);
                let until = until.max(self.now + Duration::from_nanos(1));
                if until < who.wakes_at {
                    who.wakes_at = until;
                    self.agenda.plan(until, QuotaEvent::Wake(node));
                }
                return;
            }
            Action::Time(question) => QuotaAsk::Time(question),
            Action::Read(question) => QuotaAsk::Read(question),
            Action::Write(question, write) => QuotaAsk::Write(question, write),
        };
        let sent = self.now;
        self.plan_after_way(QuotaEvent::Reach { node, ask, sent });
    }

    fn reach(&mut self, node: usize, ask: QuotaAsk, sent: Timestamp) {
        let answer = self.store.answer(&self.key, ask);
        let (question, reply) = answer.expect("a ledger asks for nothing else");
        if matches!(reply, StoreReply::Written(_)) {
            for other in 0..self.nodes.len() {
                if self.nodes[other].watches && other != node {
                    self.plan_after_way(QuotaEvent::Told(other));
                }
            }
        }
        let stamp = Duration::from_millis(self.now.as_nanos() / 1_000_000);
        self.plan_after_way(QuotaEvent::Return(StoreAnswer {
            node,
            question,
            reply,
            sent,
            stamp,
        }));
    }

    fn take_answer(&mut self, answer: &StoreAnswer) {
        let node = answer.node;
        let who = &mut self.nodes[node];
        if matches!(answer.reply, StoreReply::Time | StoreReply::Written(_)) {
            let cause = StoreTime::from_reply(answer.sent, self.now, answer.stamp, RESOLUTION);
            who.time = who.time.and(&cause);
        }
        let time = self.time(node);
        let entropy = self.random.next();
        let ledger = &mut self.nodes[node].ledger;
        ledger.done(answer.question, answer.reply, &time, entropy);
        self.serve(node);
        self.drive(node);
    }
}
