//! The check of a run: compares what clients saw, what arrived, what was reported and what is
//! still held.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::backend::Arrival;
use super::client::{Attempt, Outcome, Wire};
use super::tag::Tag;

/// A promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Broken {
    /// A client got no answer in time.
    Hung,
    /// A call arrived twice.
    Doubled,
    /// A resource is not at rest although no call is in progress.
    LostSlot,
    /// A client got bytes of another call's answer.
    Foreign,
    /// More descriptors are open than before.
    LeakedDescriptor,
    /// More memory is used than before.
    LeakedMemory,
    /// Without calls in progress, it does not end when it should.
    LeakedTask,
    /// A call has two access lines.
    ToldTwice,
    /// A call has none.
    NeverTold,
    /// A window held more than its limit.
    WindowExceeded,
    /// More were in flight than may be.
    InFlightExceeded,
    /// A body that looked whole was not.
    Truncated,
    /// A call went to the backend after its client had left.
    SentAfterLeft,
    /// The report of a call differs from what happened to it.
    ToldWrong,
    /// A call failed that should have been answered.
    Lost,
    /// The process stood still, or ended.
    Frozen,
}

/// A broken promise, and how it was broken.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) broken: Broken,
    pub(super) how: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.broken {
            Broken::Hung => "hung",
            Broken::Doubled => "doubled",
            Broken::LostSlot => "not at rest",
            Broken::Foreign => "foreign answer",
            Broken::LeakedDescriptor => "leaked descriptor",
            Broken::LeakedMemory => "leaked memory",
            Broken::LeakedTask => "does not end",
            Broken::ToldTwice => "told twice",
            Broken::NeverTold => "never told",
            Broken::WindowExceeded => "window exceeded",
            Broken::InFlightExceeded => "too many in flight",
            Broken::Truncated => "truncated",
            Broken::SentAfterLeft => "sent after its client left",
            Broken::ToldWrong => "told wrong",
            Broken::Lost => "lost",
            Broken::Frozen => "frozen",
        };
        write!(f, "{name}: {}", self.how)
    }
}

/// The results that a call may come to besides being answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Allowed {
    /// Reasons that may be given.
    pub(super) reasons: &'static [&'static str],
    /// The connection may be closed without a byte.
    pub(super) dropped: bool,
    /// An answer may break off.
    pub(super) cut: bool,
    /// There may be no connection.
    pub(super) no_connection: bool,
    /// The backend may have answered something else, which is passed on.
    pub(super) odd: bool,
}

/// The promises of a gate to its backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct Law {
    pub(super) in_flight: usize,
    pub(super) per_window: usize,
    pub(super) window: Duration,
    /// From when on a call without an answer counts no more: `response_timeout`, less than which
    /// no gate gives up.
    pub(super) gives_up: Duration,
}

/// All that was seen of one run.
pub(super) struct Evidence {
    pub(super) wire: Wire,
    pub(super) attempts: Vec<Attempt>,
    /// Tags of requests that were sent beyond another.
    pub(super) extra: HashSet<Tag>,
    /// Ports of connections that were no calls of a client.
    pub(super) silent: Vec<u16>,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) lines: Vec<String>,
    pub(super) law: Law,
    pub(super) allowed: Allowed,
    /// How much later than its client's end a call may still arrive.
    pub(super) notices_within: Duration,
    /// Calls that the metrics count, and lines that they count as lost.
    pub(super) counted: Option<(f64, f64)>,
    /// Whether its log could be read to the end.
    pub(super) has_log: bool,
}

impl Evidence {
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = Findings::default();
        self.clients(&mut findings);
        self.backend(&mut findings);
        self.law(&mut findings);
        if self.has_log {
            self.lines(&mut findings);
        }
        findings.0
    }

    fn clients(&self, found: &mut Findings) {
        let allowed = &self.allowed;
        for attempt in &self.attempts {
            let how = || format!("{} after {:?}", attempt.tag, attempt.ended - attempt.began);
            let may_be_cut = allowed.cut || attempt.left.is_some();
            // A client that still sends a body when the answer arrives may lose the answer to a
            // reset. A streamed answer may break off before its first byte has left.
            let may_be_dropped =
                allowed.dropped || attempt.left.is_some() || attempt.streams && allowed.cut;
            match &attempt.outcome {
                Outcome::Served | Outcome::Left => {}
                Outcome::Hung => found.add(Broken::Hung, how()),
                Outcome::Foreign => found.add(Broken::Foreign, how()),
                Outcome::Truncated => found.add(Broken::Truncated, how()),
                Outcome::Refused(reason)
                    if allowed.reasons.contains(&&**reason) || attempt.left.is_some() => {}
                Outcome::Refused(reason) => {
                    found.add(Broken::Lost, format!("{} was refused: {reason}", how()));
                }
                Outcome::Odd(_) if allowed.odd => {}
                Outcome::Odd(text) => {
                    found.add(Broken::Lost, format!("{} was answered {text:?}", how()));
                }
                Outcome::Dropped if may_be_dropped => {}
                Outcome::Cut if may_be_cut => {}
                Outcome::NoConnection if allowed.no_connection => {}
                outcome => found.add(Broken::Lost, format!("{}: {outcome:?}", how())),
            }
        }
    }

    fn backend(&self, found: &mut Findings) {
        let mut arrived: HashMap<Tag, usize> = HashMap::new();
        for arrival in &self.arrivals {
            *arrived.entry(arrival.tag).or_default() += 1;
        }
        for (tag, times) in &arrived {
            if *times > 1 {
                found.add(Broken::Doubled, format!("{tag} arrived {times} times"));
            }
        }
        let left = self
            .attempts
            .iter()
            .filter_map(|it| Some((it.tag, it.left?)));
        let left: HashMap<Tag, Instant> = left.collect();
        for arrival in &self.arrivals {
            let gone = left.get(&arrival.tag);
            if let Some(gone) = gone
                && arrival.at > *gone + self.notices_within
            {
                let late = arrival.at - *gone;
                found.add(
                    Broken::SentAfterLeft,
                    format!("{} by {late:?}", arrival.tag),
                );
            }
            if arrival.truncated {
                found.add(Broken::Truncated, format!("the request {}", arrival.tag));
            }
        }
        for attempt in &self.attempts {
            if attempt.outcome == Outcome::Served && !arrived.contains_key(&attempt.tag) {
                found.add(Broken::Foreign, format!("{} never arrived", attempt.tag));
            }
        }
    }

    fn law(&self, found: &mut Findings) {
        let law = &self.law;
        let mut times: Vec<Instant> = self.arrivals.iter().map(|it| it.at).collect();
        times.sort_unstable();
        let mut from = 0;
        let mut most = 0;
        for (to, at) in times.iter().enumerate() {
            while *at >= times[from] + law.window {
                from += 1;
            }
            most = most.max(to + 1 - from);
        }
        if most > law.per_window {
            found.add(
                Broken::WindowExceeded,
                format!("{most} of {} in {:?}", law.per_window, law.window),
            );
        }
        let mut events: Vec<(Instant, i64)> = Vec::new();
        for arrival in &self.arrivals {
            let given_up = arrival.at + law.gives_up;
            let until = arrival.until.map_or(given_up, |it| it.min(given_up));
            events.push((arrival.at, 1));
            events.push((until, -1));
        }
        // Of one moment, what ends goes first.
        events.sort_unstable();
        let (mut now, mut most) = (0, 0);
        for (_, change) in events {
            now += change;
            most = most.max(now);
        }
        if most > law.in_flight as i64 {
            let how = format!("{most} of {} at once", law.in_flight);
            found.add(Broken::InFlightExceeded, how);
        }
    }

    /// The access lines, by tag, or by the client's port where there is no tag.
    fn told(&self) -> (HashMap<String, Vec<Value>>, usize) {
        let mut told: HashMap<String, Vec<Value>> = HashMap::new();
        let mut all = 0;
        for line in &self.lines {
            if !line.contains("\"target\":\"access\"") {
                continue;
            }
            let Ok(line) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            all += 1;
            let key = match self.wire {
                Wire::Http | Wire::Socket => line["userid"].as_str(),
                Wire::Tcp => line["peer"].as_str().and_then(|it| it.rsplit(':').next()),
            };
            if let Some(key) = key {
                told.entry(key.to_owned()).or_default().push(line);
            }
        }
        (told, all)
    }

    fn lines(&self, found: &mut Findings) {
        let (told, all) = self.told();
        let mut lost = 0.0;
        if let Some((calls, lines_lost)) = self.counted {
            lost = lines_lost;
            if (all as f64 + lost - calls).abs() > f64::EPSILON {
                found.add(
                    Broken::ToldWrong,
                    format!("{all} lines and {lost} lost of {calls} calls counted"),
                );
            }
        }
        let arrived: HashSet<Tag> = self.arrivals.iter().map(|it| it.tag).collect();
        let none = Vec::new();
        for tag in &self.extra {
            let lines = told.get(&tag.to_string()).unwrap_or(&none);
            if lines.len() > 1 {
                found.add(Broken::ToldTwice, format!("{tag}, a further request"));
            }
            if lines.is_empty() && arrived.contains(tag) && lost == 0.0 {
                found.add(Broken::NeverTold, format!("{tag}, a further request"));
            }
        }
        let mut of_port: HashMap<u16, usize> = HashMap::new();
        let ports = self.attempts.iter().map(|it| it.port);
        for port in ports.chain(self.silent.iter().copied()) {
            *of_port.entry(port).or_default() += 1;
        }
        for attempt in &self.attempts {
            let tag = attempt.tag;
            let key = match self.wire {
                Wire::Http | Wire::Socket => tag.to_string(),
                Wire::Tcp => attempt.port.to_string(),
            };
            let lines = told.get(&key).unwrap_or(&none);
            let expected = match self.wire {
                Wire::Http | Wire::Socket => 1,
                // The system may have given the same port twice.
                Wire::Tcp => of_port[&attempt.port],
            };
            if lines.len() > expected {
                found.add(Broken::ToldTwice, format!("{tag}: {} lines", lines.len()));
                continue;
            }
            let arrived = arrived.contains(&tag);
            let must_be_told = match attempt.outcome {
                // A request that was not whole is reported without a userid.
                Outcome::Refused(_) if attempt.left.is_some() && !arrived => false,
                Outcome::Served | Outcome::Refused(_) | Outcome::Odd(_) | Outcome::Cut => true,
                // It may have left, or been turned away, before its request was read.
                _ => arrived,
            };
            let Some(line) = lines.first() else {
                if must_be_told && lost == 0.0 {
                    found.add(Broken::NeverTold, format!("{tag}: {:?}", attempt.outcome));
                }
                continue;
            };
            if expected > 1 {
                continue;
            }
            let verdict = line["verdict"].as_str().unwrap_or_default();
            let was_served = matches!(verdict, "passed" | "delayed");
            let is_reported_right = match &attempt.outcome {
                Outcome::Served => was_served,
                // Half-closed in the middle of its body, it counts as gone, and can still read.
                Outcome::Refused(reason) if attempt.left.is_some() && reason == "request_slow" => {
                    verdict == "aborted" || line["reason"].as_str() == Some(&**reason)
                }
                Outcome::Refused(reason) => {
                    !was_served && line["reason"].as_str() == Some(&**reason)
                }
                // A tunnel is let through, and what comes of it is not the proxy's.
                Outcome::Dropped | Outcome::Cut if self.wire == Wire::Tcp => true,
                Outcome::Dropped | Outcome::Cut | Outcome::Hung => {
                    !was_served || attempt.left.is_some()
                }
                _ => true,
            };
            if !is_reported_right {
                found.add(
                    Broken::ToldWrong,
                    format!(
                        "{tag}: {:?}, told as {verdict} {}",
                        attempt.outcome, line["reason"]
                    ),
                );
            }
            // One whose client left in the middle of its body is aborted, too.
            if arrived && matches!(verdict, "refused" | "expired") {
                found.add(
                    Broken::ToldWrong,
                    format!("{tag} was sent and told as {verdict}"),
                );
            }
        }
    }
}

/// At most this many of one kind are described.
const DESCRIBED: usize = 3;

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, broken: Broken, how: String) {
        let same = self.0.iter().filter(|it| it.broken == broken).count();
        if same < DESCRIBED {
            self.0.push(Finding { broken, how });
        } else if same == DESCRIBED {
            let how = "and more".to_owned();
            self.0.push(Finding { broken, how });
        }
    }
}
