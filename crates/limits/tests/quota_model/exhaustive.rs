//! Every order of events, for the smallest quota that can go wrong: two nodes, three tokens, two
//! windows, and one crash, which loses whatever is on its way.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{
    Action, Ledger, OutagePolicy, QuestionId, QuotaRecord, RecordVersion, RecordWrite,
    RuleSettings, StoreReply, StoreTime, StoredRecord, WaitingCost, WindowRule,
};

const TOTAL: u64 = 3;
const LENGTH: Duration = Duration::from_secs(1);
/// The moments there are, in milliseconds: one in each window, and the border.
const MOMENTS: [u64; 3] = [1_900, 2_000, 2_500];
/// By how much a node that knows it badly may take the store's time for later or earlier.   ms
const BLUR: u64 = 60;
/// Calls at each node.
const CALLS: u8 = 2;

#[derive(Clone, Debug)]
enum Trip {
    None,
    /// On its way to the store.
    There(QuestionId, Option<RecordWrite>),
    Back(QuestionId, StoreReply),
}

#[derive(Clone, Debug)]
struct Node {
    ledger: Ledger,
    trip: Trip,
    /// A call that waits.
    waits: bool,
    calls: u8,
    /// Whether the node knows the store's time only roughly, and not to the nanosecond.
    blurred: bool,
}

#[derive(Clone, Debug)]
struct World {
    moment: usize,
    /// Local clocks run on a little with every retry.
    nodes: [Node; 2],
    store: Option<(RecordVersion, QuotaRecord)>,
    crashes: u8,
    /// Admitted, by window.
    admitted: [u64; 2],
    /// Granted by what was committed, by window.
    committed: [u64; 2],
}

fn rule() -> WindowRule {
    let mut settings = RuleSettings::new(TOTAL, LENGTH);
    settings.nodes_expected = 2;
    settings.away = OutagePolicy::Deny;
    WindowRule::check(settings).expect("a rule")
}

fn fresh(ms: u64) -> Node {
    Node {
        ledger: Ledger::new(rule(), Timestamp::from_nanos(ms * 1_000_000)),
        trip: Trip::None,
        waits: false,
        calls: 0,
        blurred: false,
    }
}

impl World {
    fn new() -> Self {
        Self {
            moment: 0,
            nodes: [fresh(MOMENTS[0]), fresh(MOMENTS[0])],
            store: None,
            crashes: 0,
            admitted: [0; 2],
            committed: [0; 2],
        }
    }

    fn time(&self, node: usize) -> StoreTime {
        let ms = MOMENTS[self.moment];
        let now = Timestamp::from_nanos(ms * 1_000_000);
        let blur = if self.nodes[node].blurred { BLUR } else { 0 };
        StoreTime::between(
            now,
            Duration::from_millis(ms - blur),
            Duration::from_millis(ms + blur),
        )
    }

    /// Everything that can happen next.
    fn successors(&self) -> Vec<Self> {
        let mut all = Vec::new();
        if self.moment + 1 < MOMENTS.len() {
            let mut next = self.clone();
            next.moment += 1;
            for node in 0..2 {
                next.ask(node);
            }
            all.push(next);
        }
        for node in 0..2 {
            self.of(node, &mut all);
        }
        all
    }

    fn of(&self, node: usize, all: &mut Vec<Self>) {
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            all.push(next);
        };
        let who = &self.nodes[node];
        if who.calls < CALLS && !who.waits {
            with(&|next| {
                next.nodes[node].calls += 1;
                next.nodes[node].waits = true;
                next.take(node);
                next.ask(node);
            });
        }
        // The nodes are alike, so it does not matter which of them dies.
        if self.crashes == 0 && node == 0 {
            with(&|next| {
                next.crashes = 1;
                let calls = next.nodes[node].calls;
                let blurred = next.nodes[node].blurred;
                next.nodes[node] = fresh(MOMENTS[next.moment]);
                next.nodes[node].calls = calls;
                next.nodes[node].blurred = blurred;
            });
        }
        match &who.trip {
            Trip::None => {}
            Trip::There(question, write) => {
                with(&|next| {
                    let outcome = next.apply(*write);
                    next.nodes[node].trip = Trip::Back(*question, outcome);
                });
            }
            Trip::Back(question, outcome) => with(&|next| next.answer(node, *question, *outcome)),
        }
    }

    fn take(&mut self, node: usize) {
        let time = self.time(node);
        if let Ok(spent) = self.nodes[node].ledger.take(1, &time) {
            self.nodes[node].waits = false;
            assert_eq!((spent.drawn, spent.safe, spent.owed), (1, 0, 0));
            let window = spent.window.expect("what was drawn has a window");
            let now = u128::from(MOMENTS[self.moment]) / LENGTH.as_millis();
            assert_eq!(u128::from(window), now, "I5: spent in another window");
            self.admitted[window as usize - 1] += 1;
        }
    }

    /// A node asks as soon as there is something to ask: what it waits for is the way.
    fn ask(&mut self, node: usize) {
        if !matches!(self.nodes[node].trip, Trip::None) {
            return;
        }
        let time = self.time(node);
        let waits = u64::from(self.nodes[node].waits);
        let waiting = WaitingCost {
            next: waits,
            sum: waits,
        };
        self.nodes[node].trip = match self.nodes[node].ledger.next(waiting, &time) {
            Action::Sleep(_) => return,
            Action::Time(question) => Trip::Back(question, StoreReply::Time),
            Action::Read(question) => Trip::There(question, None),
            Action::Write(question, write) => Trip::There(question, Some(write)),
        };
    }

    fn apply(&mut self, write: Option<RecordWrite>) -> StoreReply {
        let standing = match self.store {
            None => StoredRecord::Absent,
            Some((version, record)) => StoredRecord::Record { version, record },
        };
        let Some(write) = write.filter(|write| write.replaces == self.store.map(|one| one.0))
        else {
            return StoreReply::Stands(standing);
        };
        let version = RecordVersion(self.store.map_or(0, |(version, _)| version.0) + 1);
        let before = self.store.map(|(_, record)| record);
        let window = write.record.window() as usize - 1;
        let ms = u128::from(MOMENTS[self.moment]);
        let running = (ms / LENGTH.as_millis()) as usize - 1;
        match before.filter(|before| before.window() == write.record.window()) {
            Some(before) => {
                self.committed[window] += before.left();
                self.committed[window] -= write.record.left();
            }
            None => {
                assert!(window <= running, "I9: opened before it began");
                assert_eq!(self.committed[window], 0, "I3: opened twice");
                self.committed[window] = TOTAL - write.record.left();
            }
        }
        let before = before.map_or(0, |before| before.window());
        assert!(before <= write.record.window(), "I3: windows only grow");
        let left = TOTAL - self.committed[window];
        assert_eq!(
            write.record.left(),
            left,
            "I2: what is left was not granted"
        );
        self.store = Some((version, write.record));
        StoreReply::Written(version)
    }

    fn answer(&mut self, node: usize, question: QuestionId, outcome: StoreReply) {
        let time = self.time(node);
        self.nodes[node].trip = Trip::None;
        self.nodes[node].ledger.done(question, outcome, &time, 0);
        if self.nodes[node].waits {
            self.take(node);
        }
        self.ask(node);
    }

    /// The part of the state that tells states apart. Not what only ever grows: counts, and the numbers of
    /// questions; nor the pace, since with three tokens every grant is of one.
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for node in &self.nodes {
            let text = format!("{:?}", node.ledger);
            let (before, rest) = text.split_once("pace: Speed").expect("a ledger has a pace");
            let (_, rest) = rest.split_once("flight: ").expect("and a flight");
            let (flight, rest) = rest.split_once(", asked: ").expect("and a question");
            let (_, rest) = rest.split_once("told: ").expect("and a watch");
            let (rest, _) = rest.split_once("counts: ").expect("and counts");
            let flight = flight.split_once("kind: ").map(|(_, kind)| kind);
            (before, flight, rest, node.waits, node.calls, node.blurred).hash(&mut hasher);
            match &node.trip {
                Trip::None => 0.hash(&mut hasher),
                Trip::There(_, write) => (1, format!("{write:?}")).hash(&mut hasher),
                Trip::Back(_, outcome) => (3, format!("{outcome:?}")).hash(&mut hasher),
            }
        }
        let rest = (self.moment, self.crashes, self.admitted, self.committed);
        (rest, format!("{:?}", self.store)).hash(&mut hasher);
        hasher.finish()
    }
}

/// Goes through all of it; how many states there are.
pub(crate) fn search() -> usize {
    let mut seen = HashSet::new();
    let mut open = Vec::new();
    for blurred in [[false, false], [false, true], [true, true]] {
        let mut world = World::new();
        for (node, blurred) in world.nodes.iter_mut().zip(blurred) {
            node.blurred = blurred;
        }
        open.push(world);
    }
    let mut used_up = 0;
    while let Some(world) = open.pop() {
        if !seen.insert(world.key()) {
            continue;
        }
        for (admitted, committed) in world.admitted.iter().zip(world.committed) {
            assert!(*admitted <= committed, "I4: {world:?}");
            assert!(committed <= TOTAL, "I1: {world:?}");
            used_up += usize::from(*admitted == TOTAL);
        }
        open.extend(world.successors());
    }
    assert!(used_up > 0, "in some orders all is used");
    seen.len()
}
