//! The causes of a call's wait: by its facts, and by the queue while it waits.

use std::cmp::Reverse;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::scheduler::DelayCause;

use super::super::AppState;
use super::super::lately::{CallReport, ENDED_MAX, FoundCall, durations};
use crate::admin::{
    ApiRefusal, CallDelay, CallId, CallState, Explained, HeldBy, Moment, milliseconds,
};
use crate::admit::{CarriedSlots, QueuedCallNow};
use crate::app::jobs::held_by_jobs;
use crate::call::Facts;

impl AppState {
    /// Explains a call that is under way, or ended recently.
    pub(super) fn explained(&self, id: CallId) -> Result<Explained, ApiRefusal> {
        // First, so that its facts are not older.
        let waiting = self.gate.waiting_now(id.0);
        let now = self.clock.now();
        let held = waiting.as_ref().map(|it| it.jobs.clone());
        let mut of_call = None;
        let known = match self.lately.find(id.0) {
            None => return Err(ApiRefusal::unknown_call(id, self.which_are_known(now))),
            Some(FoundCall::Ended(report)) => KnownCall {
                state: CallState::Ended,
                report,
                waiting: None,
            },
            Some(FoundCall::UnderWay(record)) => record.note(|facts| {
                of_call = facts.rare().job.map(|job| job.key);
                KnownCall::so_far(facts, waiting, self.clock.now())
            }),
        };
        let arrived = Moment(self.clock.wall(known.report.arrived));
        let is_waiting = known.state == CallState::Waiting;
        let mut explained = known.explained(id, arrived, now);
        let keys = match of_call {
            Some(key) => vec![key],
            None => held.filter(|_| is_waiting).unwrap_or_default(),
        };
        if !keys.is_empty() {
            let mut jobs = self.jobs().now();
            jobs.retain(|job| keys.contains(&job.key));
            let held = held_by_jobs(&jobs).into_iter();
            explained
                .sentence
                .extend(held.map(|held| format!("; its slot is {held}")));
        }
        Ok(explained)
    }

    /// A sentence about the calls that can be explained.
    fn which_are_known(&self, now: Timestamp) -> String {
        let since = self.lately.remembered_since().map(|at| {
            let seconds = now.since(at).as_secs_f64();
            format!("; the oldest of these ended {seconds:.0} s ago")
        });
        let since = since.unwrap_or_default();
        format!("known are calls under way, and the last {ENDED_MAX} that ended{since}")
    }
}

/// A call, and where it stands.
struct KnownCall {
    state: CallState,
    report: CallReport,
    /// The call in the queue, if it waits there.
    waiting: Option<QueuedCallNow>,
}

impl KnownCall {
    /// A call under way. `waiting` is what the queue knew of it some time before.
    fn so_far(facts: &Facts, waiting: Option<QueuedCallNow>, now: Timestamp) -> Self {
        let has_answer = facts.answered.is_some() || facts.reason.is_some() || facts.shared;
        // One that could not be sent was admitted before, and waits again.
        let still = |it: &QueuedCallNow| facts.admitted.is_none_or(|admitted| admitted < it.at);
        let waiting = waiting.filter(|it| !has_answer && still(it));
        let state = match () {
            () if waiting.is_some() => CallState::Waiting,
            // Its second send is a call of its own.
            () if has_answer && !facts.is_sent_again => CallState::Answering,
            () if facts.admitted.is_some() => CallState::Running,
            // Its turn has come at this moment.
            () if facts.destination.is_some() => CallState::Waiting,
            () => CallState::Sharing,
        };
        let mut took = durations(facts, now);
        if matches!(state, CallState::Waiting | CallState::Sharing) {
            took.waited = None;
        }
        let mut report = CallReport::of(facts, took);
        report.shared |= state == CallState::Sharing;
        if let Some(waiting) = &waiting {
            report.delays.extend(waiting.delays.clone());
        }
        Self {
            state,
            report,
            waiting,
        }
    }

    fn explained(self, id: CallId, arrived: Moment, now: Timestamp) -> Explained {
        let sentence = self.sentence(now);
        let Self {
            state,
            report,
            waiting,
        } = self;
        let foreseen = waiting.as_ref().map(|it| &it.foreseen);
        Explained {
            id,
            state,
            sentence,
            ahead: foreseen.map(|it| it.ahead),
            starts_in_seconds: foreseen
                .and_then(|it| it.starts)
                .map(|at| at.since(now).as_secs_f64()),
            carried_slots: waiting
                .as_ref()
                .and_then(|it| it.carried)
                .map(|carried| carried.count),
            waits_for: waiting
                .and_then(|it| it.held_by)
                .map(|name| name.to_string()),
            arrived,
            listener: report.listener.to_string(),
            call: report.function.to_string(),
            held: held(&report),
            userid: report.target.map(Into::into),
            class: report.class.to_string(),
            caller: report.caller,
            rate_limit: report.rate_limit.map(|label| label.to_string()),
            tokens: report.tokens.map(|tokens| tokens.tokens()),
            verdict: (state == CallState::Ended).then(|| report.verdict.label().to_owned()),
            reason: report.reason.map(|reason| reason.label().to_owned()),
            total_ms: milliseconds(report.took.total),
            queued_ms: milliseconds(report.took.queued()),
            backend_ms: report.took.backend.map(milliseconds),
        }
    }

    /// Where it stands, and since when.
    fn sentence(&self, now: Timestamp) -> String {
        let CallReport {
            took,
            delays,
            verdict,
            reason,
            ..
        } = &self.report;
        let queued = seconds(took.queued());
        match self.state {
            CallState::Sharing => {
                format!("waits for the answer of an identical call: {queued} so far")
            }
            CallState::Waiting => match &self.waiting {
                None => format!("its turn has come, after {queued}"),
                Some(QueuedCallNow {
                    held_by,
                    foreseen,
                    carried,
                    ..
                }) => {
                    let what = match held_by {
                        Some(name) => format!("`{name}`"),
                        None => "its turn".to_owned(),
                    };
                    let ahead = match foreseen.ahead {
                        0 => "no call ahead".to_owned(),
                        1 => "1 call ahead".to_owned(),
                        more => format!("{more} calls ahead"),
                    };
                    let starts = match foreseen.starts {
                        Some(at) => format!("starts in about {}", seconds(at.since(now))),
                        None => "when it starts is not known".to_owned(),
                    };
                    let carried = carried.map_or_else(String::new, |it| held_by_carried(it, now));
                    format!("waits for {what}: {queued} so far, {ahead}, {starts}{carried}")
                }
            },
            CallState::Running => match took.backend {
                Some(so_far) => {
                    let so_far = seconds(so_far);
                    format!("at the backend for {so_far}, after {queued} in the queue")
                }
                None => format!("admitted after {queued}, and not sent yet"),
            },
            CallState::Answering => match reason {
                Some(reason) => format!(
                    "refused, `{}`; the refusal goes to the client",
                    reason.label()
                ),
                None => "the answer goes to the client".to_owned(),
            },
            CallState::Ended => {
                let mut sentence = verdict.label().to_owned();
                if let Some(reason) = reason {
                    sentence += &format!(", `{}`", reason.label());
                }
                sentence += &format!(": {queued} in the queue");
                let longest = delays.iter().max_by_key(|delay| delay.time);
                if let Some((DelayCause::Limit(name), time)) =
                    longest.map(|it| (&it.cause, it.time))
                {
                    sentence += &format!(", {} of them for `{name}`", seconds(time));
                }
                if let Some(backend) = took.backend {
                    sentence += &format!(", {} at the backend", seconds(backend));
                }
                sentence
            }
        }
    }
}

/// The end of the sentence while calls of the process before hold slots.
fn held_by_carried(slots: CarriedSlots, now: Timestamp) -> String {
    let most = seconds(slots.until.since(now));
    let (slots, are) = match slots.count {
        1 => ("1 slot".to_owned(), "is held for a call"),
        more => (format!("{more} slots"), "are held for calls"),
    };
    format!(
        "; {slots} of it {are} of the process before, for at most {most} more \
         (`backend.after_crash`)"
    )
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// The causes of a call's wait, the longest first. Wait time without a limit counts as elsewhere.
fn held(report: &CallReport) -> Vec<CallDelay> {
    let elsewhere = report.took.queued().saturating_sub(report.delays.total());
    let elsewhere = (!elsewhere.is_zero()).then(|| {
        let cause = if report.shared {
            HeldBy::SharedCall
        } else {
            HeldBy::Elsewhere
        };
        (cause, None, elsewhere)
    });
    let delays = report.delays.iter().map(|delay| match &delay.cause {
        DelayCause::Limit(name) => (HeldBy::Limit, Some(name.to_string()), delay.time),
        DelayCause::Turn => (HeldBy::Turn, None, delay.time),
        DelayCause::Others => (HeldBy::Others, None, delay.time),
    });
    let mut parts: Vec<_> = delays.chain(elsewhere).collect();
    parts.sort_by_key(|&(.., time)| Reverse(time));
    let parts = parts.into_iter().map(|(cause, limit, time)| CallDelay {
        cause,
        limit,
        ms: milliseconds(time),
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use tidegate_limits::scheduler::{Delays, Prediction};

    use super::*;
    use crate::call::{
        Destination, Dialect, Identity, NoObserver, Origin, Peer, Reason, Record, Verdict,
    };
    use crate::telemetry::calls::Durations;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    fn report(waited: Option<u64>, backend: Option<u64>) -> CallReport {
        CallReport {
            id: 7,
            arrived: Timestamp::ZERO,
            listener: "test".into(),
            function: "guest_list".into(),
            class: "default".into(),
            target: None,
            caller: None,
            rate_limit: None,
            tokens: None,
            verdict: Verdict::Aborted,
            reason: None,
            shared: false,
            delays: Delays::default(),
            took: Durations {
                total: Duration::from_millis(3_240),
                waited: waited.map(Duration::from_millis),
                backend: backend.map(Duration::from_millis),
            },
        }
    }

    fn say(state: CallState, report: CallReport) -> String {
        let known = KnownCall {
            state,
            report,
            waiting: None,
        };
        known.sentence(at(0))
    }

    #[test]
    fn the_sentence_of_a_waiting_call_says_for_what_and_until_when() {
        let say_with = |held_by: Option<&str>, ahead, starts, carried| {
            let known = KnownCall {
                state: CallState::Waiting,
                report: report(None, None),
                waiting: Some(QueuedCallNow {
                    at: at(3_000),
                    held_by: held_by.map(Arc::from),
                    carried,
                    jobs: Vec::new(),
                    delays: Delays::default(),
                    foreseen: Prediction {
                        starts,
                        ahead,
                        by: None,
                    },
                }),
            };
            known.sentence(at(3_000))
        };
        let say = |held_by, ahead, starts| say_with(held_by, ahead, starts, None);
        let carried = |count| {
            let until = at(45_500);
            say_with(
                Some("at once"),
                2,
                None,
                Some(CarriedSlots { count, until }),
            )
        };
        assert_eq!(
            carried(10),
            "waits for `at once`: 3.2 s so far, 2 calls ahead, when it starts is not known; 10 slots of it are \
             held for calls of the process before, for at most 42.5 s more (`backend.after_crash`)"
        );
        assert!(carried(1).contains("; 1 slot of it is held for a call of the process before"));
        assert_eq!(
            say(Some("total"), 12, Some(at(4_400))),
            "waits for `total`: 3.2 s so far, 12 calls ahead, starts in about 1.4 s"
        );
        assert_eq!(
            say(Some("backend:socket"), 1, None),
            "waits for `backend:socket`: 3.2 s so far, 1 call ahead, when it starts is not known"
        );
        assert_eq!(
            say(None, 0, Some(at(2_000))),
            "waits for its turn: 3.2 s so far, no call ahead, starts in about 0.0 s"
        );
    }

    #[test]
    fn the_sentence_of_another_call_says_where_it_stands() {
        assert_eq!(
            say(CallState::Running, report(Some(3_200), Some(800))),
            "at the backend for 0.8 s, after 3.2 s in the queue"
        );
        assert_eq!(
            say(CallState::Running, report(Some(3_200), None)),
            "admitted after 3.2 s, and not sent yet"
        );
        assert_eq!(
            say(CallState::Sharing, report(None, None)),
            "waits for the answer of an identical call: 3.2 s so far"
        );
        let refused = |state| {
            let mut report = report(None, None);
            (report.verdict, report.reason) = (Verdict::Refused, Some(Reason::QueueFull));
            say(state, report)
        };
        assert_eq!(
            refused(CallState::Answering),
            "refused, `queue_full`; the refusal goes to the client"
        );
        assert_eq!(
            refused(CallState::Ended),
            "refused, `queue_full`: 3.2 s in the queue"
        );
        let mut delayed = report(Some(1_500), Some(240));
        delayed.verdict = Verdict::Delayed;
        delayed.delays.add(
            DelayCause::Limit("rate_limit:gold".into()),
            Duration::from_millis(1_200),
        );
        assert_eq!(
            say(CallState::Ended, delayed),
            "delayed: 1.5 s in the queue, 1.2 s of them for `rate_limit:gold`, 0.2 s at the backend"
        );
    }

    fn record() -> Arc<Record> {
        let peer = Peer::Tcp(SocketAddr::from(([127, 0, 0, 1], 1)));
        let origin = Origin {
            identity: Arc::new(Identity::without_names("test".into(), peer)),
            arrived: Timestamp::ZERO,
        };
        let (function, class) = ("guest_list".into(), "default".into());
        Record::open(
            origin,
            Dialect::Socket,
            function,
            class,
            None,
            Arc::new(NoObserver),
        )
    }

    #[test]
    fn a_call_stands_where_its_facts_and_the_queue_say() {
        let waits = |since| {
            Some(QueuedCallNow {
                at: at(since),
                held_by: None,
                carried: None,
                jobs: Vec::new(),
                delays: Delays::default(),
                foreseen: Prediction {
                    starts: None,
                    ahead: 0,
                    by: None,
                },
            })
        };
        let check = |waiting, change: fn(&mut Facts), expected| {
            let record = record();
            let known = record.note(|facts| {
                change(facts);
                KnownCall::so_far(facts, waiting, at(5_000))
            });
            assert_eq!(known.state, expected);
            let held: f64 = held(&known.report).iter().map(|it| it.ms).sum();
            assert!((held - milliseconds(known.report.took.queued())).abs() < 1e-9);
            known
        };
        let known = check(None, |_| (), CallState::Sharing);
        assert_eq!(held(&known.report)[0].cause, HeldBy::SharedCall);
        check(
            None,
            |facts| facts.destination = Some(Destination::Socket),
            CallState::Waiting,
        );
        check(waits(4_000), |_| (), CallState::Waiting);
        let admitted = |facts: &mut Facts| facts.admitted = Some(at(3_000));
        let known = check(None, admitted, CallState::Running);
        assert_eq!(known.report.took.queued(), Duration::from_secs(3));
        // It waits again, because it could not be sent; or its turn came after the queue was asked.
        let known = check(waits(4_000), admitted, CallState::Waiting);
        assert_eq!(known.report.took.queued(), Duration::from_secs(5));
        let known = check(waits(3_000), admitted, CallState::Running);
        assert!(known.waiting.is_none());
        let refused = |facts: &mut Facts| facts.reason = Some(Reason::DeadlinePassed);
        check(waits(4_000), refused, CallState::Answering);
        check(None, |facts| facts.shared = true, CallState::Answering);
        let again = |facts: &mut Facts| {
            (facts.admitted, facts.is_sent_again) = (Some(at(1_000)), true);
            facts.answered = Some(at(2_000));
        };
        check(None, again, CallState::Running);
    }
}
