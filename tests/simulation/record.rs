//! Events at the ends of the process: what clients asked and got, and what came to the backend. The judge of the promises sees
//! nothing else of a call.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::claim::Claim;
use crate::plan::{Limits, Patience, PlannedCall, Work};

/// Time of the simulation.   ms
pub(crate) type Millis = u64;

/// An event may be seen this much later than it was.   ms
const SEEN_WITHIN: Millis = 2;
/// A call runs, is refused or is answered within this time of its cause.   ms
const SOON: Millis = 20;
/// The most violations that a run tells.
const TOLD_MAX: usize = 5;
/// Refusals of calls that were not sent.
const NOT_SENT: [&str; 6] = [
    "queue_full",
    "deadline_passed",
    "deadline_unreachable",
    "predicted_late",
    "draining",
    "backend_unreachable",
];

/// The end of a call, as its client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A whole answer; the reason if the process made it itself.
    Whole { status: u16, reason: Option<String> },
    /// An answer that breaks off, or none.
    Broken,
}

/// A call, as both ends see it.
#[derive(Debug)]
struct Call {
    planned: PlannedCall,
    /// When the last byte of its request was written, and for how long the process had been stalled by then.
    asked: Option<(Millis, Millis)>,
    left: Option<Millis>,
    outcome: Option<Outcome>,
    /// When it came to the backend.
    came: Option<Millis>,
    runs: bool,
}

/// The record of a run, and its judge.
#[derive(Clone)]
pub(crate) struct Record(Arc<Mutex<Judge>>);

/// Judges each event when it happens, and the state after each millisecond.
pub(crate) struct Judge {
    now: Millis,
    /// From when on which limits are in force.
    limits: Vec<(Millis, Limits)>,
    calls: Vec<Call>,
    /// Calls that were asked for, and have neither come, nor left, nor ended.
    waiting: BTreeSet<usize>,
    /// Calls at the backend.
    running: BTreeSet<usize>,
    /// The calls that came since the backend looked at all its sockets.
    came: Vec<usize>,
    /// When the last calls came to the backend.
    departures: VecDeque<Millis>,
    /// How long the process was stalled, all in all.
    stalled: Millis,
    /// Until then, a call may wait although there is room: something has failed or changed.
    unsettled_until: Millis,
    /// Since when a call waits although there is room.
    idle_since: Option<Millis>,
    /// The process shares limits with others, so it may have room that it cannot use.
    shares: bool,
    violations: Vec<(Claim, String)>,
    counts: BTreeMap<String, u64>,
    digest: u64,
    tells: bool,
}

impl Record {
    pub(crate) fn new(limits: Limits, calls: &[PlannedCall], shares: bool) -> Self {
        let mut judge = Judge {
            now: 0,
            limits: vec![(0, limits)],
            calls: Vec::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            came: Vec::new(),
            departures: VecDeque::new(),
            stalled: 0,
            unsettled_until: 0,
            idle_since: None,
            shares,
            violations: Vec::new(),
            counts: BTreeMap::new(),
            digest: 0xcbf2_9ce4_8422_2325,
            tells: std::env::var_os("TELL").is_some(),
        };
        for &planned in calls {
            judge.plan(planned);
        }
        Self(Arc::new(Mutex::new(judge)))
    }

    pub(crate) fn look(&self) -> MutexGuard<'_, Judge> {
        self.0.lock().expect("no part panics with it")
    }
}

impl Judge {
    /// Plans another call. Returns its number.
    pub(crate) fn plan(&mut self, planned: PlannedCall) -> usize {
        self.calls.push(Call {
            planned,
            asked: None,
            left: None,
            outcome: None,
            came: None,
            runs: false,
        });
        self.calls.len() - 1
    }

    pub(crate) fn planned(&self, call: usize) -> PlannedCall {
        self.calls[call].planned
    }

    pub(crate) fn now(&self) -> Millis {
        self.now
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn counts(&self) -> &BTreeMap<String, u64> {
        &self.counts
    }

    pub(crate) fn violations(&self) -> &[(Claim, String)] {
        &self.violations
    }

    pub(crate) fn count(&mut self, what: &str) {
        self.count_many(what, 1);
    }

    pub(crate) fn count_many(&mut self, what: &str, count: usize) {
        *self.counts.entry(what.to_owned()).or_default() += count as u64;
    }

    /// Notes an event for the digest, which tells whether two runs are the same.
    fn note(&mut self, event: impl Display) {
        let line = format!("{:>6} {event}\n", self.now);
        if self.tells {
            eprint!("{line}");
        }
        // FNV-1a
        for byte in line.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub(crate) fn violated(&mut self, claim: Claim, how: impl Display) {
        self.note(format_args!("{claim}: BROKEN: {how}"));
        if self.violations.len() < TOLD_MAX {
            let told = format!("at {} ms: {how}", self.now);
            self.violations.push((claim, told));
        }
    }

    /// A fault begins or ends, or the limits change: for this long, a turn that can run may not be seen to run.
    pub(crate) fn unsettled(&mut self, event: impl Display, for_: Millis) {
        self.note(event);
        self.unsettled_until = self.unsettled_until.max(self.now + for_);
        self.idle_since = None;
    }

    pub(crate) fn limits_changed(&mut self, limits: Limits) {
        self.limits.push((self.now, limits));
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits.last().expect("there are some").1
    }

    /// The highest value of a limit since then.
    fn most(&self, since: Millis, of: impl Fn(&Limits) -> u64) -> u64 {
        let begun = self.limits.partition_point(|(from, _)| *from <= since);
        let in_force = &self.limits[begun.saturating_sub(1)..];
        let most = in_force.iter().map(|(_, limits)| of(limits)).max();
        most.expect("there are some")
    }

    /// The process got no processor for one more millisecond.
    pub(crate) fn stalled(&mut self) {
        self.stalled += 1;
    }

    // What clients do and see.

    pub(crate) fn asked(&mut self, call: usize) {
        self.note(format_args!("{call} is asked"));
        self.calls[call].asked = Some((self.now, self.stalled));
        // Whether one that reads nothing was refused is not seen.
        if !matches!(self.calls[call].planned.patience, Patience::HalfOpen { .. }) {
            self.waiting.insert(call);
        }
        self.count("calls");
    }

    /// A client has closed its connection, or only its sending side. `is_first` is whether the call is the first one of its
    /// connection.
    pub(crate) fn left(&mut self, call: usize, is_first: bool) {
        self.note(format_args!("{call} leaves"));
        let asked = self.calls[call].asked;
        let came_together =
            asked.is_some_and(|(at, stalled)| self.now - at <= self.stalled - stalled);
        // Such a client may still read.
        if !(is_first && came_together) {
            self.calls[call].left = Some(self.now);
        }
        self.waiting.remove(&call);
        self.count("left");
    }

    pub(crate) fn ended(&mut self, call: usize, outcome: Outcome) {
        self.note(format_args!("{call} ends: {outcome:?}"));
        self.waiting.remove(&call);
        self.judge_outcome(call, &outcome);
        self.calls[call].outcome = Some(outcome);
    }

    fn judge_outcome(&mut self, call: usize, outcome: &Outcome) {
        let (came, planned) = (self.calls[call].came, self.calls[call].planned);
        match outcome {
            Outcome::Whole {
                reason: Some(reason),
                ..
            } => {
                self.count(reason);
                let was_sent = came.is_some();
                if NOT_SENT.contains(&&**reason) && was_sent {
                    self.violated(
                        Claim::Promise(3),
                        format_args!("{call} was sent, and refused: {reason}"),
                    );
                }
            }
            Outcome::Whole { status, .. } => {
                self.count("answered");
                let breaks_off = matches!(planned.work, Work::Cuts { .. } | Work::Closes { .. });
                if came.is_none() || *status != 200 || breaks_off {
                    self.violated(
                        Claim::Bytes,
                        format_args!("{call} has a false answer: {status}"),
                    );
                }
            }
            Outcome::Broken => self.count("broken off"),
        }
    }

    // What comes to the backend.

    /// The first byte of a call is there.
    pub(crate) fn came(&mut self, call: usize) {
        self.note(format_args!("{call} comes to the backend"));
        self.waiting.remove(&call);
        self.count("sent");
        self.judge_sending(call);
        self.judge_window(call);
        self.running.insert(call);
        self.came.push(call);
        self.departures.push_back(self.now);
        let now = self.now;
        let seen = &mut self.calls[call];
        seen.came = Some(now);
        seen.runs = true;
    }

    fn judge_sending(&mut self, call: usize) {
        let now = self.now;
        let seen = &self.calls[call];
        if seen.came.is_some() {
            return self.violated(Claim::Promise(5), format_args!("{call} came twice"));
        }
        if let Some(left) = seen.left
            && left + SEEN_WITHIN < now
        {
            return self.violated(
                Claim::Promise(4),
                format_args!("{call} came, and has left at {left} ms"),
            );
        }
        if let Some(outcome) = &seen.outcome {
            let outcome = format!("{outcome:?}");
            return self.violated(
                Claim::Promise(3),
                format_args!("{call} came after its end: {outcome}"),
            );
        }
        let Some((asked, stalled)) = seen.asked else {
            return self.violated(
                Claim::Bytes,
                format_args!("{call} came before it was whole"),
            );
        };
        let latest = asked + self.most(asked, |limits| limits.max_wait) + self.stalled - stalled;
        if latest + SEEN_WITHIN < now {
            self.violated(
                Claim::Promise(2),
                format_args!("{call} came, and its deadline was {latest} ms"),
            );
        }
    }

    fn judge_window(&mut self, call: usize) {
        let since = self.now.saturating_sub(SEEN_WITHIN);
        let in_window = self.most(since, |limits| limits.per_window as u64);
        let departed = self.in_window() as u64 + 1;
        if departed > in_window {
            let window = self.limits().window;
            self.violated(
                Claim::Promise(1),
                format_args!("{call} is one of {departed} in {window} ms, not {in_window}"),
            );
        }
        if departed == in_window {
            self.count("a window used up");
        }
    }

    /// The calls that came within the last window.
    fn in_window(&mut self) -> usize {
        let window = self.limits().window;
        while self
            .departures
            .front()
            .is_some_and(|at| at + window <= self.now)
        {
            self.departures.pop_front();
        }
        self.departures.len()
    }

    /// The backend does nothing for a call any more.
    pub(crate) fn done(&mut self, call: usize) {
        if std::mem::take(&mut self.calls[call].runs) {
            self.note(format_args!("{call} is done"));
            self.running.remove(&call);
        }
    }

    /// The backend has looked at all its sockets. Only now it knows the calls at once: the end of one may have been sent before
    /// the first byte of another, on another socket. Returns how many have come.
    pub(crate) fn looked(&mut self) -> usize {
        let came = std::mem::take(&mut self.came);
        let Some(call) = came.last() else {
            return 0;
        };
        let since = self.now.saturating_sub(SEEN_WITHIN);
        let at_once = self.most(since, |limits| limits.outstanding as u64);
        let running = self.running.len() as u64;
        if running > at_once {
            self.violated(
                Claim::Promise(1),
                format_args!("{call} is one of {running} at once, not {at_once}"),
            );
        }
        if running == at_once {
            self.count("all slots taken");
        }
        came.len()
    }

    // What holds after each millisecond.

    /// The millisecond is over: `busy` are the calls past the gate and in the queue, by the process itself.
    pub(crate) fn tick(&mut self, busy: Option<(usize, usize)>, refuses: bool) {
        let now = self.now;
        self.judge_waiting();
        self.judge_turns();
        if let Some((_, waiting)) = busy {
            let capacity = self.most(0, |limits| limits.capacity as u64) as usize;
            if refuses && waiting > capacity {
                self.violated(
                    Claim::Promise(7),
                    format_args!("{waiting} wait, not {capacity}"),
                );
            }
            if refuses && waiting == self.limits().capacity {
                self.count("milliseconds with a full queue");
            }
        }
        self.now = now + 1;
    }

    fn judge_waiting(&mut self) {
        let late = self.waiting.iter().copied().find(|&call| {
            let (asked, stalled) = self.calls[call].asked.expect("it was asked");
            let wait = self.most(asked, |limits| limits.max_wait) + self.stalled - stalled;
            self.now > asked + wait + SOON
        });
        if let Some(call) = late {
            self.waiting.remove(&call);
            let asked = self.calls[call].asked;
            self.violated(
                Claim::Promise(2),
                format_args!("{call} still waits, asked at {asked:?}"),
            );
        }
    }

    fn judge_turns(&mut self) {
        let limits = self.limits();
        let has_room =
            self.running.len() < limits.outstanding && self.in_window() < limits.per_window;
        let waits_long = |call: &usize| {
            let asked = self.calls[*call].asked.expect("it was asked").0;
            asked + SOON < self.now
        };
        let reads_slowly = |call: &Call| {
            call.planned.patience == Patience::ReadsSlowly
                && call.came.is_some()
                && call.outcome.is_none()
        };
        let could_run = !self.shares
            && self.now >= self.unsettled_until
            && has_room
            && self.waiting.iter().any(waits_long)
            && !self.calls.iter().any(reads_slowly);
        if !could_run {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert(self.now);
        if since + SOON < self.now {
            self.idle_since = None;
            let (waiting, running) = (self.waiting.len(), self.running.len());
            self.violated(
                Claim::Promise(6),
                format_args!("{waiting} wait since {since} ms, {running} run, and there is room"),
            );
        }
    }
}
