//! The causes of a call's wait, as reported. That the parts add up for every call, and over all calls to what could
//! be seen while they waited, is a law: `laws.rs`.

use std::time::Duration;

use tidegate_limits::call::BucketId;
use tidegate_limits::policy::{ClassShare, LimitRule, Postpone, WhenFull};
use tidegate_limits::scheduler::{
    BucketLimit, BucketOrder, BucketRule, DelayCause, Delays, OnExcess, Outcome, Settlement,
    WaitReport,
};
use tidegate_limits::{
    Burst, Call, Caller, Class, Fill, Hold, Limit, Policy, Scheduler, Step, Ticket, Timestamp,
};

const JITTER: Postpone = Postpone::Jitter {
    min: Duration::from_millis(1000),
    max: Duration::from_millis(1000),
};

fn at(milliseconds: u64) -> Timestamp {
    Timestamp::from_nanos(milliseconds * 1_000_000)
}

fn rule(name: &str, limit: Limit) -> LimitRule {
    LimitRule::new(name, limit)
}

fn outstanding(max: u32) -> LimitRule {
    rule("outstanding", Limit::Outstanding { max })
}

fn window(max: u32) -> LimitRule {
    let limit = Limit::sliding(max, Duration::from_millis(1500));
    rule("window", limit)
}

fn policy(limits: Vec<LimitRule>, capacity: u32, postpone: Postpone) -> Policy {
    let classes = ["user", "polling"].map(|name| ClassShare::new(name, 1));
    let full = WhenFull::Wait { door: 10 };
    Policy::new(limits, capacity, full, postpone, classes.to_vec()).expect("it is sound")
}

/// A bucket of one token that gains one each second.
fn bucket(name: &str) -> BucketRule {
    BucketRule {
        name: name.into(),
        limit: BucketLimit::Bucket {
            burst: Burst::new(1.0).expect("a burst"),
            fill: Fill::new(1.0).expect("a rate"),
        },
        on_excess: OnExcess::Delay,
        order: BucketOrder::Fair,
        settlement: Settlement::Estimate,
    }
}

/// Calls by number, and the moments at which things happen to them.
struct Gate(Scheduler<u64>);

impl Gate {
    fn new(limits: Vec<LimitRule>) -> Self {
        Self(Scheduler::new(policy(limits, 100, Postpone::InTurn)))
    }

    fn submit(&mut self, now: u64, id: u64, bucket: Option<u64>) -> Ticket {
        let call = Call::new("guest_list", at(now))
            .class(Class(1))
            .caller(Caller(id))
            .bucket(bucket.map(BucketId));
        let submitted = self.0.submit(at(now), call, id);
        submitted.expect("there is room at the door")
    }

    /// Who runs now. Their bytes leave at once.
    fn run(&mut self, now: u64) -> Vec<(u64, Hold, WaitReport)> {
        let mut ran = Vec::new();
        loop {
            match self.0.next(at(now), &mut || 0) {
                Step::Run {
                    payload,
                    hold,
                    waited,
                    ..
                } => {
                    self.0.sent(at(now), &hold);
                    ran.push((payload, hold, waited));
                }
                Step::Expired { .. } => panic!("no call here has a deadline"),
                Step::SleepUntil(_) | Step::Idle => return ran,
            }
        }
    }

    /// The one that runs now.
    fn run_one(&mut self, now: u64) -> (u64, Hold, Delays) {
        let mut ran = self.run(now);
        assert_eq!(ran.len(), 1, "one runs at {now}: {ran:?}");
        let (id, hold, waited) = ran.remove(0);
        (id, hold, waited.delays)
    }

    fn finish(&mut self, now: u64, hold: Hold) {
        self.0.finish(at(now), hold, Outcome::Served, None);
    }
}

fn name(cause: &DelayCause) -> &str {
    match cause {
        DelayCause::Limit(name) => name,
        DelayCause::Turn => "turn",
        DelayCause::Others => "others",
    }
}

fn parts(delays: &Delays) -> Vec<(&str, u128)> {
    let parts = delays.iter();
    parts
        .map(|delay| (name(&delay.cause), delay.time.as_millis()))
        .collect()
}

#[test]
fn a_call_that_does_not_wait_reports_no_delays() {
    let mut gate = Gate::new(vec![outstanding(1)]);
    gate.submit(5, 1, None);
    let (_, _, delays) = gate.run_one(5);
    assert!(delays.is_empty());
}

#[test]
fn each_limit_that_held_a_call_is_reported_with_its_time() {
    let mut gate = Gate::new(vec![outstanding(1), window(1)]);
    let set = gate.0.set_bucket(at(0), BucketId(1), bucket("gold"));
    set.expect("there is room");
    // The bucket is empty, the window full, and the one slot taken.
    gate.submit(0, 1, Some(1));
    let (_, first, _) = gate.run_one(0);
    gate.submit(0, 2, Some(1));
    assert!(gate.run(0).is_empty());
    gate.finish(500, first);
    assert!(gate.run(500).is_empty());
    // Tokens for one at 1 s, room in the window at 1.5 s.
    assert!(gate.run(1000).is_empty());
    // Just then the slot is taken by a call that meets no bucket, and was there before.
    gate.0.supply(
        at(1400),
        "outstanding",
        tidegate_limits::scheduler::Supplier::Health,
        tidegate_limits::scheduler::Supply::capacity(0),
    );
    assert!(gate.run(1500).is_empty());
    gate.0.supply(
        at(1750),
        "outstanding",
        tidegate_limits::scheduler::Supplier::Health,
        tidegate_limits::scheduler::Supply::Configured,
    );
    let (id, _, delays) = gate.run_one(1750);
    assert_eq!(id, 2);
    assert_eq!(
        parts(&delays),
        [("gold", 1000), ("window", 500), ("outstanding", 250)]
    );
    assert_eq!(delays.longest().map(|name| &**name), Some("gold"));
}

#[test]
fn a_call_is_charged_from_when_it_joins_a_line() {
    let mut gate = Gate::new(vec![outstanding(1)]);
    gate.submit(0, 1, None);
    let (_, mut running, _) = gate.run_one(0);
    for (now, id) in [(100, 2), (200, 3), (350, 4)] {
        gate.submit(now, id, None);
        assert!(gate.run(now).is_empty());
    }
    for (now, id, waited) in [(1000, 2, 900), (2000, 3, 1800), (3000, 4, 2650)] {
        gate.finish(now, running);
        let (next, hold, delays) = gate.run_one(now);
        assert_eq!(next, id);
        assert_eq!(parts(&delays), [("outstanding", waited)]);
        running = hold;
    }
}

#[test]
fn a_moved_call_keeps_its_record_of_waits() {
    let limits = || vec![outstanding(1)];
    let mut gate = Gate(Scheduler::new(policy(limits(), 1, Postpone::InTurn)));
    for (id, name) in [(1, "gold"), (2, "silver")] {
        let set = gate.0.set_bucket(at(0), BucketId(id), bucket(name));
        set.expect("there is room");
    }
    for id in 1..=2 {
        gate.submit(0, id, Some(id));
        let (_, hold, _) = gate.run_one(0);
        gate.finish(0, hold);
    }
    // Both wait for gold, one of them at the door.
    let waiting = gate.submit(0, 3, Some(1));
    assert!(gate.run(0).is_empty());
    let ticket = gate.submit(0, 4, Some(1));
    assert!(gate.run(0).is_empty());
    gate.0.cancel(at(100), waiting);
    assert!(gate.run(100).is_empty());
    // For gold until 300, there too in another class until 500, then for silver until 600.
    assert!(gate.0.reclass(at(300), ticket, Class(0)));
    assert!(gate.run(300).is_empty());
    let silver = Some(BucketId(2));
    assert!(gate.0.remove_bucket(at(500), BucketId(1), |_| silver));
    assert!(gate.run(500).is_empty());
    // A reload, after which there is one limit more, which is closed.
    let limits = vec![
        rule("closed", Limit::Outstanding { max: 1 }),
        outstanding(1),
    ];
    gate.0.apply(at(600), policy(limits, 1, Postpone::InTurn));
    gate.0.supply(
        at(600),
        "closed",
        tidegate_limits::scheduler::Supplier::Health,
        tidegate_limits::scheduler::Supply::capacity(0),
    );
    assert!(gate.run(600).is_empty());
    assert!(gate.run(1000).is_empty());
    // Its own history, while it waits.
    let waited = gate.0.waited(at(1100), ticket).expect("it waits");
    let expected = [("gold", 500), ("silver", 500), ("closed", 100)];
    assert_eq!(parts(&waited.delays), expected);
    gate.0.supply(
        at(1200),
        "closed",
        tidegate_limits::scheduler::Supplier::Health,
        tidegate_limits::scheduler::Supply::Configured,
    );
    let (_, _, delays) = gate.run_one(1200);
    let expected = [("gold", 500), ("silver", 500), ("closed", 200)];
    assert_eq!(parts(&delays), expected);
}

#[test]
fn a_call_that_is_set_aside_is_charged_to_what_had_it_set_aside() {
    let mut gate = Gate(Scheduler::new(policy(vec![outstanding(1)], 10, JITTER)));
    gate.submit(0, 1, None);
    let (_, first, _) = gate.run_one(0);
    gate.submit(0, 2, None);
    assert!(gate.run(0).is_empty());
    // It is open from here, but no call asks before the second is over.
    gate.finish(300, first);
    assert!(gate.run(300).is_empty());
    let (id, _, delays) = gate.run_one(1000);
    assert_eq!((id, parts(&delays)), (2, vec![("outstanding", 1000)]));
}

#[test]
fn a_line_that_was_empty_begins_its_account_anew() {
    let mut gate = Gate::new(vec![outstanding(1)]);
    gate.submit(0, 1, None);
    let (_, first, _) = gate.run_one(0);
    let left = gate.submit(0, 2, None);
    assert!(gate.run(0).is_empty());
    gate.0.cancel(at(700), left);
    assert!(gate.run(700).is_empty());
    gate.submit(800, 3, None);
    assert!(gate.run(800).is_empty());
    gate.finish(900, first);
    let (_, _, delays) = gate.run_one(900);
    assert_eq!(parts(&delays), [("outstanding", 100)]);
}
