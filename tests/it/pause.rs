//! A pause of the backend, and the ramp after it: the gate on a virtual clock, and the real process.

mod commands;
mod process;

use std::sync::Arc;
use std::time::Duration;

use tidegate::admit::{
    Admission, Ask, AutomaticChangeKind, BackendControl, Gate, NotOverridden, Pause, PauseFor,
    Permit, Waits,
};
use tidegate::call::{Destination, Dialect, Origin, Reason, Record, Refusal, Slot};
use tidegate::callers::Callers;
use tidegate_limits::Timestamp;
use tidegate_limits::scheduler::Outcome;
use tidegate_runtime::Clock;
use tokio::task::JoinHandle;

use crate::support::{Seen, admitted, asking, config, identity, listens};

const SECOND: Duration = Duration::from_secs(1);

/// A gate on a clock that only moves when every task waits.
struct Stage {
    gate: Gate,
    clock: Clock,
    seen: Arc<Seen>,
}

fn text(limits: &str, sections: &str) -> String {
    let window = match limits.contains("per_window") {
        true => "",
        false => "per_window = \"total:10000\"",
    };
    let limits = format!(
        "[queue]\npostpone = \"in_turn\"\nworkers = 1000\n[limits]\nwindow_guard = \"0s\"\n\
         {window}\n{limits}\n{sections}"
    );
    listens("", "socket = \"127.0.0.1:1\"\n", &limits)
}

impl Stage {
    fn start(limits: &str) -> Self {
        Self::of(&text(limits, ""))
    }

    fn of(text: &str) -> Self {
        let clock = Clock::of_runtime();
        let config = config(text);
        let gate = Gate::new(&config.admit, clock);
        let callers = Callers::start(&config.callers, None).expect("there is room");
        let timer = gate.clone();
        tokio::spawn(async move { timer.keep_time().await });
        let seen = Arc::new(Seen::new(callers.value, clock));
        Self { gate, clock, seen }
    }

    fn now(&self) -> Duration {
        self.clock.now().since(Timestamp::ZERO)
    }

    fn ask_as(&self, change: impl FnOnce(&mut Ask)) -> (Admission, Arc<Record>) {
        let arrived = self.clock.now();
        let mut ask = asking("guest_list", Destination::Socket, arrived);
        change(&mut ask);
        let origin = Origin {
            identity: identity("test", ([127, 0, 0, 1], 1)),
            arrived,
        };
        let (function, class) = ("guest_list".into(), "none".into());
        let seen = Arc::clone(&self.seen) as _;
        let record = Record::open(origin, Dialect::Socket, function, class, None, seen);
        (self.gate.ask(ask, &record), record)
    }

    /// Asks, and returns when it was admitted, or why not.
    fn call(&self) -> JoinHandle<(Duration, Result<Permit, Refusal>)> {
        self.call_as(|_| ())
    }

    fn call_as(
        &self,
        change: impl FnOnce(&mut Ask),
    ) -> JoinHandle<(Duration, Result<Permit, Refusal>)> {
        let (asked, record) = self.ask_as(change);
        let clock = self.clock;
        tokio::spawn(async move {
            let answer = admitted(asked).await;
            drop(record);
            (clock.now().since(Timestamp::ZERO), answer)
        })
    }

    fn pause(&self, hold: Duration, extends: bool) {
        self.gate.pause(PauseFor {
            hold,
            extends,
            why: "re-IPL".into(),
            author: "test".into(),
        });
    }

    fn resume(&self, ramp: Duration) {
        self.gate.resume(Some(ramp), "back".into(), "test".into());
    }
}

async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Whether a time is this one, to the tick of the timer.
#[track_caller]
fn assert_about(time: Duration, expected: Duration) {
    let off = time.abs_diff(expected);
    assert!(
        off <= Duration::from_millis(2),
        "{time:?}, not {expected:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn while_paused_nothing_is_admitted_running_calls_end_and_the_hold_ends_by_itself() {
    let stage = Stage::start("per_window = \"total:1000\"");
    let (_, running) = stage.call().await.expect("no panic");
    let mut running = running.expect("nothing holds it");
    running.sent();
    stage.pause(30 * SECOND, false);
    let now = stage.gate.acting_now();
    assert_eq!(now.in_flight, 1);
    assert!(matches!(now.acting, BackendControl::Paused(_)), "{now:?}");
    let waiting = stage.call();
    let unlimited = stage.call_as(|ask| ask.limited = false);
    sleep(29 * SECOND).await;
    assert!(!waiting.is_finished() && !unlimited.is_finished());
    running.finish(Outcome::Served);
    assert_eq!(stage.gate.acting_now().in_flight, 0);
    for waits in [waiting, unlimited] {
        let (at, permit) = waits.await.expect("no panic");
        assert_about(at, 30 * SECOND);
        drop(permit.expect("the hold is over"));
    }
    let turned = stage.gate.by_itself().await;
    let ended = AutomaticChangeKind::PauseEnded {
        ramp: Duration::ZERO,
    };
    assert_eq!(
        turned.into_iter().map(|it| it.what).collect::<Vec<_>>(),
        [ended]
    );
    assert_eq!(stage.gate.acting_now().acting, BackendControl::Running);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_longer_than_it_may_is_refused_unless_the_pause_extends_it() {
    for extends in [false, true] {
        let stage = Stage::start("max_wait = \"10s\"");
        let before = stage.pause_with_one_waiting(extends).await;
        let during = stage.call();
        let (at, answer) = before.await.expect("no panic");
        if extends {
            assert_about(at, 34 * SECOND);
            drop(answer.expect("it had the time"));
        } else {
            assert_about(at, 10 * SECOND);
            let refusal = answer.err().expect("its time was over");
            assert_eq!(refusal.reason, Reason::DeadlinePassed);
            assert!(refusal.detail.contains("paused"), "{refusal:?}");
            // Until the end of the pause.
            let retry = refusal.retry_after.expect("a time");
            assert!(retry >= 23 * SECOND, "{retry:?}");
        }
        let (_, answer) = during.await.expect("no panic");
        assert_eq!(answer.is_ok(), extends);
    }
}

impl Stage {
    /// A call that waits behind a full limit from the start on, and a pause of 30 s from 4 s on.
    async fn pause_with_one_waiting(
        &self,
        extends: bool,
    ) -> JoinHandle<(Duration, Result<Permit, Refusal>)> {
        let mut running = Vec::new();
        for _ in 0..10 {
            let (_, permit) = self.call().await.expect("no panic");
            running.push(permit.expect("there is room"));
        }
        let waits = self.call();
        sleep(4 * SECOND).await;
        self.pause(30 * SECOND, extends);
        drop(running);
        waits
    }
}

#[tokio::test(start_paused = true)]
async fn an_early_resume_leaves_a_call_as_much_longer_as_it_was_paused() {
    let stage = Stage::start("max_wait = \"10s\"");
    let mut running = Vec::new();
    for _ in 0..10 {
        let (_, permit) = stage.call().await.expect("no panic");
        running.push(permit.expect("there is room"));
    }
    let before = stage.call();
    sleep(4 * SECOND).await;
    stage.pause(300 * SECOND, true);
    sleep(SECOND).await;
    let during = stage.call();
    // Another hold replaces the rest of the first.
    stage.pause(600 * SECOND, true);
    sleep(2 * SECOND).await;
    stage.resume(Duration::ZERO);
    let (at, answer) = before.await.expect("no panic");
    assert_about(at, 13 * SECOND);
    assert!(answer.is_err());
    let (at, answer) = during.await.expect("no panic");
    assert_about(at, 17 * SECOND);
    assert!(answer.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_class_that_does_not_wait_is_refused_in_a_pause_that_extends_deadlines_too() {
    let stage = Stage::start("max_wait = \"0s\"");
    stage.pause(30 * SECOND, true);
    let (at, answer) = stage.call().await.expect("no panic");
    assert_about(at, Duration::ZERO);
    let refusal = answer.err().expect("it may not wait");
    assert_eq!(refusal.reason, Reason::DeadlinePassed);
}

/// The most departures that the line of a ramp allows in the window that ends at `at`.
fn allowed(at: Duration, begin: Duration, ramp: Duration, full: f64) -> f64 {
    let past = at.saturating_sub(begin).as_secs_f64() / ramp.as_secs_f64();
    (full * past.min(1.0).mul_add(0.9, 0.1)).max(1.0)
}

#[tokio::test(start_paused = true)]
async fn after_a_resume_the_limits_grow_linearly_from_a_tenth_and_are_never_above_the_line() {
    let ramp = 20 * SECOND;
    let stage = Stage::start(
        "per_window = \"total:50\"\noutstanding = 20\n\
         max_wait = \"600s\"",
    );
    stage.pause(5 * SECOND, false);
    let calls: Vec<_> = (0..800)
        .map(|_| {
            let (asked, record) = stage.ask_as(|_| ());
            let (clock, gate) = (stage.clock, stage.gate.clone());
            tokio::spawn(async move {
                let mut permit = admitted(asked).await.expect("it has time");
                let at = clock.now().since(Timestamp::ZERO);
                permit.sent();
                let in_flight = gate.acting_now().in_flight;
                sleep(Duration::from_millis(300)).await;
                permit.finish(Outcome::Served);
                drop(record);
                (at, in_flight)
            })
        })
        .collect();
    sleep(2 * SECOND).await;
    stage.resume(ramp);
    let begin = stage.now();
    let mut sent = Vec::new();
    for call in calls {
        sent.push(call.await.expect("no panic"));
    }
    sent.sort();
    for (nth, &(at, in_flight)) in sent.iter().enumerate() {
        let in_window = sent[..=nth].iter().filter(|it| it.0 + SECOND > at).count();
        let line = allowed(at, begin, ramp, 50.0);
        assert!(
            in_window as f64 <= line,
            "{in_window} at {at:?}, and {line}"
        );
        let line = allowed(at, begin, ramp, 20.0);
        assert!(
            in_flight as f64 <= line,
            "{in_flight} at {at:?}, and {line}"
        );
    }
    // The area under the line is 550 calls, and the first ones go at once. Steps cost some of it.
    let in_ramp = sent.iter().filter(|it| it.0 < begin + ramp).count();
    assert!((470..=560).contains(&in_ramp), "{in_ramp}");
    let last = stage.gate.acting_now();
    assert_eq!((last.acting, last.in_flight), (BackendControl::Running, 0));
    assert_eq!(last.share.thousandths(), 1000);
}

#[tokio::test(start_paused = true)]
async fn neither_a_pause_nor_a_ramp_makes_a_deadline_unreachable() {
    let stage = Stage::start(
        "per_window = \"total:10\"\nwindow = \"20s\"\n\
         max_wait = \"15s\"",
    );
    let mut permits = Vec::new();
    for _ in 0..5 {
        let (_, permit) = stage.call().await.expect("no panic");
        let mut permit = permit.expect("there is room");
        permit.sent();
        permits.push(permit);
    }
    stage.pause(5 * SECOND, false);
    sleep(SECOND).await;
    stage.resume(10 * SECOND);
    // A tenth of the window is used up for longer than this call may wait, but the share grows.
    let (at, answer) = stage.call().await.expect("no panic");
    drop(answer.expect("it has room in time"));
    assert!(at < 8 * SECOND, "{at:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_the_pause_and_the_share_and_applies_them_to_new_limits() {
    let stage = Stage::start("outstanding = 100");
    stage.pause(60 * SECOND, false);
    let waits = stage.call();
    let narrow = text("outstanding = 50", "");
    stage.gate.apply(&config(&narrow).admit);
    sleep(SECOND).await;
    assert!(!waits.is_finished());
    stage.resume(100 * SECOND);
    drop(waits.await.expect("no panic").1.expect("it goes"));
    let functions = "outstanding = 40\n\
                     per_window = \"total:900, guest_list:30\"";
    stage.gate.apply(&config(&text(functions, "")).admit);
    let in_force = |name: &str| {
        let (limits, _) = stage.gate.limits_now();
        let found = limits.into_iter().find(|(rule, _)| *rule.name == *name);
        found.expect("it is in force").1.max
    };
    assert_eq!(in_force("outstanding"), 4);
    assert_eq!(in_force("function:guest_list"), 3);
    assert_eq!(in_force("total"), 90);
    sleep(101 * SECOND).await;
    assert_eq!(in_force("total"), 900);
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_process_paused_goes_on_and_ends_when_it_would_have() {
    let stage = Stage::start("");
    sleep(SECOND).await;
    let pause = |ends| {
        BackendControl::Paused(Pause {
            since: Timestamp::ZERO,
            ends: Timestamp::ZERO + ends,
            extends: true,
            why: "re-IPL".into(),
            author: "test".into(),
        })
    };
    stage.gate.take_up(pause(SECOND));
    assert_eq!(stage.gate.acting_now().acting, BackendControl::Running);
    stage.gate.take_up(pause(9 * SECOND));
    let (at, permit) = stage.call().await.expect("no panic");
    assert_about(at, 9 * SECOND);
    drop(permit.expect("the hold is over"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_during_a_pause_leaves_the_queue() {
    let stage = Stage::start("");
    stage.pause(30 * SECOND, true);
    let (asked, record) = stage.ask_as(|_| ());
    assert_eq!(stage.gate.busy(), (0, 1));
    drop((asked, record));
    assert_eq!(stage.gate.busy(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_limit_is_lower_for_a_while_keeps_it_over_a_reload_and_gets_its_own_value_by_itself() {
    let limits = "outstanding = 20\n\
                  per_window = \"total:900, guest_list:300\"";
    let stage = Stage::start(limits);
    let in_force = |name: &str| {
        let now = stage.gate.limit_now(name);
        now.map(|it| it.max)
    };
    let lower = |name: &str, value, seconds| {
        let time = SECOND * seconds;
        let (why, author) = ("slow".into(), "test".into());
        stage.gate.override_limit(name, value, time, why, author)
    };
    let lowered = lower("guest_list", 5, 60).expect("it is lower");
    assert_eq!(&*lowered.limit, "function:guest_list");
    lower("outstanding", 3, 30).expect("it is lower");
    assert_eq!(in_force("function:guest_list"), Some(5));
    let wrong = [
        lower("guest_lst", 5, 60),
        lower("outstanding", 21, 60),
        lower("backend:socket", 5, 60),
    ];
    let expected = [
        NotOverridden::Unknown,
        NotOverridden::Above(20),
        NotOverridden::Unknown,
    ];
    assert_eq!(wrong.map(|it| it.expect_err("it is wrong")), expected);

    // A reload without the limit, and one that has it again.
    let none = text("outstanding = 20", "");
    stage.gate.apply(&config(&none).admit);
    assert_eq!(in_force("function:guest_list"), None);
    stage.gate.apply(&config(&text(limits, "")).admit);
    assert_eq!(in_force("function:guest_list"), Some(5));
    assert_eq!(in_force("outstanding"), Some(3));

    let calls: Vec<_> = (0..10).map(|_| stage.call()).collect();
    sleep(29 * SECOND).await;
    assert_eq!(stage.gate.busy(), (3, 7));
    sleep(2 * SECOND).await;
    let ended = AutomaticChangeKind::OverrideEnded {
        limit: "outstanding".into(),
    };
    let turned = stage.gate.by_itself().await;
    assert_eq!(
        turned.into_iter().map(|it| it.what).collect::<Vec<_>>(),
        [ended]
    );
    assert_eq!(in_force("outstanding"), Some(20));
    for call in calls {
        drop(call.await.expect("no panic").1.expect("there is room"));
    }
    assert_eq!(stage.gate.overrides().len(), 1);
    let ended = stage.gate.end_override("guest_list");
    assert_eq!(ended, Ok(("function:guest_list".into(), true)));
    assert_eq!(in_force("function:guest_list"), Some(300));
    let again = stage.gate.end_override("guest_list");
    assert_eq!(again, Ok(("function:guest_list".into(), false)));
}

/// A stage for one call a second, which may wait for 3 s, and early refusals.
fn early() -> Stage {
    let limits = "per_window = \"total:1\"\n\
                  max_wait = \"3s\"";
    let early = "workers = 1000\nearly_refusal = true";
    Stage::of(&text(limits, "").replace("workers = 1000", early))
}

/// Why a call is refused at once; `None` if it waits.
fn refused_at_once(asked: &Admission) -> Option<Reason> {
    match asked {
        Admission::Decided(Err(refusal)) => Some(refusal.reason),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_predicted_late_is_refused_at_once_and_holds_no_place() {
    let stage = early();
    let (_, first) = stage.call().await.expect("no panic");
    first.expect("there is room").sent();
    // All are of one caller, so nine tenths of the wait count: 0.9 s, 1.8 s and 2.7 s are in time, 3.6 s is not.
    let waiting: Vec<_> = (0..3).map(|_| stage.ask_as(|_| ())).collect();
    assert!(
        waiting
            .iter()
            .all(|(asked, _)| refused_at_once(asked).is_none())
    );
    for _ in 0..3 {
        let (asked, _) = stage.ask_as(|_| ());
        assert_eq!(refused_at_once(&asked), Some(Reason::PredictedLate));
    }
    // A call that may wait for ever waits.
    let (patient, _) = stage.ask_as(|ask| ask.waits = Waits::NoClient);
    assert_eq!(refused_at_once(&patient), None);
}

#[tokio::test(start_paused = true)]
async fn in_a_pause_a_call_is_refused_early_unless_its_deadline_is_extended() {
    let stage = early();
    stage.pause(30 * SECOND, true);
    let (extended, _) = stage.ask_as(|_| ());
    assert_eq!(refused_at_once(&extended), None);
    drop(extended);
    let stage = early();
    stage.pause(30 * SECOND, false);
    let (late, _) = stage.ask_as(|_| ());
    assert_eq!(refused_at_once(&late), Some(Reason::PredictedLate));
}
