//! Classes: which calls are urgent, are promoted, have a pool, or wait without a bound.
//!
//! Mostly on paused time, through the classifier and the gate, with a backend that only sleeps.
//! Tests of wire input go through the sockets.

use std::sync::Arc;
use std::time::Duration;

use tidegate::admit::{Admission, Ask, Gate, QueuedCall};
use tidegate::call::{
    ArrayCall, Dialect, Facts, Fault, Message, Origin, Reason, Record, Refusal, Request, Slot,
};
use tidegate::callers::Callers;
use tidegate::classify::Classifier;
use tidegate::config::{self, Severity};
use tidegate::tools;
use tidegate_limits::Class;
use tidegate_limits::scheduler::Outcome;
use tidegate_runtime::Clock;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::{
    Held, OK, Seen, Stack, admitted, asking, both, config, identity, listens, one_listener,
    read_until,
};

/// How long the backend takes for most calls.
const TAKES: Duration = Duration::from_millis(50);

/// Classifier and gate, with a listener `test`.
struct Stages {
    classifier: Classifier,
    gate: Gate,
    clock: Clock,
    seen: Seen,
    _timer: DropGuard,
}

/// A config with these lines in `[queue]` and `[limits]`, and sections after them.
fn text(queue: &str, limits: &str, sections: &str) -> String {
    let sections = format!(
        r#"
        [queue]
        {queue}
        [limits]
        per_window = "total:30"
        {limits}
        {sections}
        "#
    );
    listens("", &both("127.0.0.1:2000", "127.0.0.1:8081"), &sections)
}

const IN_TURN: &str = "postpone = \"in_turn\"";
/// Limits that run one call after another, with no window in the way.
const ONE_AT_A_TIME: &str = "window = \"0s\"\noutstanding = 1";

impl Stages {
    fn start(text: &str) -> Arc<Self> {
        let config = config(text);
        let clock = Clock::of_runtime();
        let gate = Gate::new(&config.admit, clock);
        let stop = CancellationToken::new();
        let timer = gate.clone();
        let keep_time = async move { timer.keep_time().await };
        tokio::spawn(stop.clone().run_until_cancelled_owned(keep_time));
        let started = Callers::start(&config.callers, None);
        let callers = started.expect("there is room for them").value;
        Arc::new(Self {
            classifier: Classifier::new(&config.classify),
            gate,
            clock,
            seen: Seen::new(callers, clock),
            _timer: stop.drop_guard(),
        })
    }

    /// The ask of a call of the socket protocol at the gate, and its record.
    fn ask(&self, function: &str, guest: &str) -> (Ask, Arc<Record>) {
        let origin = Origin {
            identity: identity("test", ([127, 0, 0, 1], 50_000)),
            arrived: self.clock.now(),
        };
        let request = Request {
            origin: origin.clone(),
            message: Message::Socket(Box::new(ArrayCall {
                bytes: Vec::new().into(),
                function: function.into(),
                target: (!guest.is_empty()).then(|| guest.into()),
            })),
        };
        let operation = self.classifier.classify(&request);
        let ask = Ask {
            limited: operation.limited,
            class: Arc::clone(&operation.class),
            role: operation.role,
            target: operation.target.clone(),
            foreign: None,
            place: None,
            ..asking(&operation.function, operation.destination, origin.arrived)
        };
        let observer = Arc::new(self.seen.clone());
        let (label, class) = (operation.label, operation.class);
        let record = Record::open(
            origin,
            Dialect::Socket,
            label,
            class,
            operation.target,
            observer,
        );
        (ask, record)
    }

    /// Makes a call that takes so long, and succeeds.
    async fn call(
        self: Arc<Self>,
        function: &'static str,
        guest: String,
        takes: Duration,
    ) -> Result<(), Refusal> {
        self.call_with(function, guest, takes, Outcome::Served, Some(0))
            .await
    }

    /// Runs a call that ends like this.
    async fn call_with(
        self: Arc<Self>,
        function: &'static str,
        guest: String,
        takes: Duration,
        outcome: Outcome,
        overall_rc: Option<i64>,
    ) -> Result<(), Refusal> {
        let (ask, record) = self.ask(function, &guest);
        let mut permit = admitted(self.gate.ask(ask, &record)).await?;
        permit.sent();
        tokio::time::sleep(takes).await;
        record.note(|facts| facts.overall_rc = overall_rc);
        permit.finish(outcome);
        Ok(())
    }

    /// Lets a call begin, as far as it comes without time going on.
    async fn begin(
        self: &Arc<Self>,
        calls: &mut JoinSet<Result<(), Refusal>>,
        function: &'static str,
        guest: &str,
        takes: Duration,
    ) {
        calls.spawn(Arc::clone(self).call(function, guest.to_owned(), takes));
        tokio::task::yield_now().await;
    }

    /// The guests of all calls that have ended, in the order in which they were let through.
    fn order(&self) -> Vec<String> {
        let mut facts = self.seen.all();
        facts.sort_by_key(|facts| facts.admitted);
        let guest = |facts: &Facts| facts.target.as_deref().unwrap_or_default().to_owned();
        facts.iter().map(guest).collect()
    }

    /// The class in which a read of this guest is let through now.
    async fn class_in_which_it_rides(&self, guest: &str) -> String {
        let (ask, record) = self.ask("guest_get_power_state", guest);
        let permit = admitted(self.gate.ask(ask, &record)).await;
        drop(permit.expect("the gate is free"));
        record.note(|facts| facts.class.to_string())
    }

    /// The class in which a read of this guest comes through a gate that is free.
    async fn class_of_a_read(self: &Arc<Self>, guest: &str) -> String {
        let before = self.seen.all().len();
        let call = Arc::clone(self).call("guest_get_power_state", guest.to_owned(), TAKES);
        call.await.expect("the gate is free");
        self.seen.all()[before].class.to_string()
    }
}

/// The median wait of calls.
fn p50(facts: &[Facts]) -> Duration {
    let wait = |facts: &Facts| {
        let admitted = facts.admitted.expect("it was let through");
        admitted.since(facts.origin.arrived)
    };
    let mut waits: Vec<Duration> = facts.iter().map(wait).collect();
    waits.sort();
    waits[waits.len() / 2]
}

/// 300 reads at once, and after them a `guest_start` every 50 ms, twelve of them. Returns how
/// these fare.
async fn storm(text: &str) -> Vec<Facts> {
    let stages = Stages::start(text);
    let mut calls = JoinSet::new();
    for number in 0..300 {
        let guest = format!("U{number}");
        calls.spawn(Arc::clone(&stages).call("guest_get_info", guest, TAKES));
    }
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        calls.spawn(Arc::clone(&stages).call("guest_start", "MINE".to_owned(), TAKES));
    }
    for outcome in calls.join_all().await {
        outcome.expect("no call waits too long");
    }
    let mut users = stages.seen.all();
    users.retain(|facts| &*facts.function == "guest_start");
    assert_eq!(users.len(), 12);
    users
}

#[tokio::test(start_paused = true)]
async fn user_calls_wait_less_than_a_second_in_the_middle_of_a_storm_of_polls() {
    let users = storm(&text(IN_TURN, "", "")).await;
    let all_alike = "[[class]]\nname = \"polling\"\nfunctions = [\"guest_start\"]";
    let fifo = storm(&text(IN_TURN, "", all_alike)).await;
    let (with, without) = (p50(&users), p50(&fifo));
    println!("p50 of user calls: {with:?} in a class of their own, {without:?} in plain order");
    assert!(users.iter().all(|facts| &*facts.class == "user"));
    assert!(with < Duration::from_secs(1), "{with:?}");
    assert!(without > Duration::from_secs(9), "{without:?}");
}

#[tokio::test(start_paused = true)]
async fn polls_alone_take_as_long_as_without_classes() {
    let stages = Stages::start(&text(IN_TURN, "", ""));
    let mut calls = JoinSet::new();
    for number in 0..300 {
        let guest = format!("U{number}");
        calls.spawn(Arc::clone(&stages).call("guest_get_info", guest, TAKES));
    }
    calls.join_all().await;
    let took = stages.clock.now().since(tidegate_limits::Timestamp::ZERO);
    println!("300 polls took {took:?}");
    assert!(took < Duration::from_millis(9300), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn only_calls_that_are_no_users_are_set_aside() {
    // Whenever a user call comes, most of the polls are aside and some are not.
    let stages = Stages::start(&text("postpone = \"jitter\"", "", ""));
    let mut calls = JoinSet::new();
    for number in 0..300 {
        let guest = format!("U{number}");
        calls.spawn(Arc::clone(&stages).call("guest_get_info", guest, TAKES));
    }
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        calls.spawn(Arc::clone(&stages).call("guest_start", "MINE".to_owned(), TAKES));
    }
    calls.join_all().await;
    let mut users = stages.seen.all();
    users.retain(|facts| &*facts.function == "guest_start");
    let longest = users
        .iter()
        .filter_map(|facts| Some(facts.admitted?.since(facts.origin.arrived)))
        .max();
    // What a user call may wait for is its window, and never the jitter of 1 s to 3 s.
    let longest = longest.expect("users came through");
    println!("the longest wait of a user call: {longest:?}");
    assert!(longest < Duration::from_millis(1005), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reserve_for_users_is_free_when_they_come() {
    for postpone in ["in_turn", "jitter"] {
        let keep = "[[class]]\nname = \"user\"\nreserve_outstanding = 2\nreserve_per_window = 6";
        let queue = format!("postpone = \"{postpone}\"");
        let stages = Stages::start(&text(&queue, "", keep));
        let mut calls = JoinSet::new();
        for number in 0..100 {
            let guest = format!("U{number}");
            calls.spawn(Arc::clone(&stages).call("guest_get_info", guest, TAKES));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(stages.gate.busy().0, 8, "two of ten slots are kept");
        for _ in 0..2 {
            let before = stages.clock.now();
            let call = Arc::clone(&stages).call("guest_start", "MINE".to_owned(), TAKES);
            call.await.expect("there is room");
            let took = stages.clock.now().since(before);
            assert_eq!(took, TAKES, "{postpone}: it did not wait");
            // Past the polls' share of the window.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        calls.join_all().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_is_promoted_where_it_waits_when_a_user_call_on_its_guest_comes() {
    for (promote_for, expected) in [
        // The user call first, then one poll, since "A" left before anything waited, then the read.
        ("10s", ["A", "MINE", "B", "mine", "C", "D", "E"]),
        ("0s", ["A", "MINE", "B", "C", "D", "E", "mine"]),
    ] {
        let classes = format!("[classes]\npromote_for = \"{promote_for}\"");
        let stages = Stages::start(&text(IN_TURN, ONE_AT_A_TIME, &classes));
        let mut calls = JoinSet::new();
        for guest in ["A", "B", "C", "D", "E", "mine"] {
            stages
                .begin(&mut calls, "guest_get_power_state", guest, TAKES)
                .await;
        }
        assert_eq!(stages.gate.busy(), (1, 5));
        let start = "guest_start";
        stages.begin(&mut calls, start, "MINE", TAKES).await;
        let classes = stages.gate.queue_now().classes;
        let users = if promote_for == "0s" { 1 } else { 2 };
        assert_eq!((&*classes[0].name, classes[0].waiting), ("user", users));
        calls.join_all().await;
        assert_eq!(stages.order(), expected, "{promote_for}");
        let facts = stages.seen.all();
        let read = facts.iter().find(|it| it.target.as_deref() == Some("mine"));
        let class = &*read.expect("it has ended").class;
        let expected = if promote_for == "0s" {
            "polling"
        } else {
            "user"
        };
        assert_eq!(class, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_rides_with_users_while_their_call_runs_and_a_while_after() {
    let stages = Stages::start(&text(IN_TURN, "", ""));
    let mut calls = JoinSet::new();
    assert_eq!(stages.class_of_a_read("MINE").await, "polling");
    let minute = Duration::from_secs(60);
    stages
        .begin(&mut calls, "guest_deploy", "MINE", minute)
        .await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(stages.class_of_a_read("mine").await, "user");
    assert_eq!(stages.class_of_a_read("OTHER").await, "polling");
    calls.join_all().await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(stages.class_of_a_read("MINE").await, "user");
    // A read that was promoted is no user call: it does not keep itself promoted.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(stages.class_of_a_read("MINE").await, "polling");
}

#[tokio::test(start_paused = true)]
async fn a_user_call_whose_client_leaves_is_over_however_far_it_came() {
    let stages = Stages::start(&text(IN_TURN, ONE_AT_A_TIME, ""));
    let mut calls = JoinSet::new();
    let long = Duration::from_secs(20);
    stages.begin(&mut calls, "guest_list", "", long).await;
    let (ask, record) = stages.ask("guest_start", "WAITS");
    let waiting = stages.gate.ask(ask, &record);
    calls.join_all().await;
    let _ = admitted(waiting).await.expect("its turn has come");
    // Dropped before it was sent, and so given back: nothing was done to its guest.
    assert_eq!(stages.class_of_a_read("WAITS").await, "polling");
    let mut calls = JoinSet::new();
    stages.begin(&mut calls, "guest_list", "", long).await;
    let (ask, record) = stages.ask("guest_start", "LEAVES");
    drop(stages.gate.ask(ask, &record));
    calls.join_all().await;
    assert_eq!(stages.class_of_a_read("LEAVES").await, "polling");
}

#[tokio::test(start_paused = true)]
async fn a_user_call_that_failed_promotes_no_read_after_it() {
    let stages = Stages::start(&text(IN_TURN, "", ""));
    for (guest, outcome, overall_rc, class) in [
        ("DONE", Outcome::Served, Some(0), "user"),
        ("REFUSED", Outcome::Served, Some(404), "polling"),
        ("STRANGE", Outcome::Served, None, "polling"),
        ("BROKEN", Outcome::Failed, None, "polling"),
    ] {
        let call = Arc::clone(&stages).call_with(
            "guest_start",
            guest.to_owned(),
            TAKES,
            outcome,
            overall_rc,
        );
        let call = tokio::spawn(call);
        tokio::task::yield_now().await;
        // Its end is unknown while it runs.
        assert_eq!(stages.class_in_which_it_rides(guest).await, "user");
        call.await.expect("no panic").expect("the gate is free");
        let after = stages.class_in_which_it_rides(guest).await;
        assert_eq!(after, class, "{guest}");
    }
}

/// Checks the promotion with a backend's words on the wire, over both protocols.
#[tokio::test]
async fn a_write_that_the_backend_refused_promotes_no_poll_of_its_guest() {
    const REFUSED: &[u8] = br#"{"overallRC": 404, "rc": 404, "rs": 1, "errmsg": "no such guest", "modID": 40, "output": ""}"#;
    const HTTP_REFUSED: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    const HTTP_DONE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let start = "POST /guests/LINUX1/action HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\
                 Content-Type: application/json\r\nContent-Length: 18\r\n\r\n{\"action\":\"start\"}";
    let array = crate::support::array;
    for (write, answer, class) in [
        (array("guest_start", "LINUX1"), OK, "user"),
        (array("guest_start", "LINUX1"), REFUSED, "polling"),
        (start.to_owned(), HTTP_DONE, "user"),
        (start.to_owned(), HTTP_REFUSED, "polling"),
    ] {
        let mut held = Held::start(answer).await;
        let backend = held.backend.addr;
        let text = text(IN_TURN, "", "")
            .replace("127.0.0.1:2000", &backend.to_string())
            .replace("127.0.0.1:8081", &backend.to_string());
        let stack = Arc::new(Stack::start(&text));
        for request in [write, array("guest_get_power_state", "LINUX1")] {
            let (stack, held) = (Arc::clone(&stack), &mut held);
            let client = tokio::spawn(async move { stack.ask(request).await });
            held.next().await;
            held.go.notify_one();
            client.await.expect("it is answered");
        }
        let facts = stack.seen.ended(2).await;
        assert_eq!(&*facts[1].class, class, "{:?}", facts[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_could_not_be_sent_is_promoted_all_the_same() {
    let stages = Stages::start(&text(IN_TURN, ONE_AT_A_TIME, ""));
    let (ask, record) = stages.ask("guest_get_power_state", "MINE");
    let permit = admitted(stages.gate.ask(ask, &record)).await;
    // The backend took no connection: it waits again, behind the backend's recovery.
    let permit = permit.expect("it is free");
    let again = stages.gate.ask_again(permit, Fault::Backend);
    assert_eq!(stages.gate.queue_now().classes[0].waiting, 0);
    let (ask, of_user) = stages.ask("guest_start", "MINE");
    let user = stages.gate.ask(ask, &of_user);
    assert_eq!(stages.gate.queue_now().classes[0].waiting, 2);
    drop((user, again));
    drop((record, of_user));
    let facts = stages.seen.ended(2).await;
    assert!(facts.iter().all(|facts| &*facts.class == "user"));
    assert_eq!(stages.gate.busy(), (0, 0));
}

fn waits(asked: Admission) -> QueuedCall {
    match asked {
        Admission::Queued(waiting) => waiting,
        Admission::Decided(_) => panic!("it has to wait"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_shared_read_stays_promoted_for_any_client() {
    let stages = Stages::start(&text(IN_TURN, ONE_AT_A_TIME, ""));
    let gate = &stages.gate;
    let users = || gate.queue_now().classes[0].waiting;
    let (ask, first) = stages.ask("guest_list", "");
    let slot = admitted(gate.ask(ask, &first)).await.expect("it is free");

    // Until it is promoted it is in the most urgent class of the calls that share it.
    let (ask, read) = stages.ask("guest_get_power_state", "MINE");
    let (_, polling) = gate.patience(&ask);
    let early = waits(gate.ask(ask, &read));
    early.wait_as(None, Class(0));
    assert_eq!(users(), 1);
    early.wait_as(None, polling);
    assert_eq!(users(), 0);
    // Promoted where it waits, and joined by another client as a poll.
    let (ask, start) = stages.ask("guest_start", "MINE");
    let user = waits(gate.ask(ask, &start));
    early.wait_as(None, polling);
    assert_eq!(users(), 2);
    // Promoted as it comes.
    let (ask, read) = stages.ask("guest_get_power_state", "MINE");
    let late = waits(gate.ask(ask, &read));
    late.wait_as(None, polling);
    assert_eq!(users(), 3);
    // The user call has ended; a promoted call stays promoted, even if it must wait again.
    drop(user);
    drop(slot);
    let permit = early.await.expect("the slot is free");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let again = waits(gate.ask_again(permit, Fault::Backend));
    again.wait_as(None, polling);
    late.wait_as(None, polling);
    assert_eq!(users(), 2);
}

#[tokio::test(start_paused = true)]
async fn promotion_does_not_bypass_a_limit_of_the_class() {
    let capped =
        "[[class]]\nname = \"sync\"\nfunctions = [\"guest_get_info\"]\noutstanding_max = 1";
    let stages = Stages::start(&text(IN_TURN, "", capped));
    let mut calls = JoinSet::new();
    stages
        .begin(&mut calls, "guest_start", "MINE", Duration::from_secs(5))
        .await;
    for _ in 0..3 {
        stages
            .begin(&mut calls, "guest_get_info", "MINE", TAKES)
            .await;
    }
    assert_eq!(stages.gate.busy(), (2, 2));
    assert_eq!(stages.class_of_a_read("MINE").await, "user");
    calls.join_all().await;
    let facts = stages.seen.all();
    let info = facts.iter().filter(|it| &*it.function == "guest_get_info");
    assert_eq!(info.filter(|facts| &*facts.class == "sync").count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_class_without_a_deadline_is_served_in_the_end_and_another_waits_as_long_as_it_may() {
    let limits = format!("{ONE_AT_A_TIME}\nmax_wait = \"10s\"");
    let classes = "
        [[class]]
        name = \"patient\"
        functions = [\"guest_get_info\"]
        max_wait = \"none\"
        [[class]]
        name = \"hasty\"
        functions = [\"host_get_info\"]
        max_wait = \"2s\"";
    for queue in ["postpone = \"in_turn\"", "postpone = \"jitter\""] {
        let stages = Stages::start(&text(queue, &limits, classes));
        let mut calls = JoinSet::new();
        let hour = Duration::from_secs(3600);
        stages.begin(&mut calls, "guest_list", "", hour).await;
        for function in ["guest_get_info", "host_get_info", "guest_start"] {
            stages.begin(&mut calls, function, "", TAKES).await;
        }
        let refused: Vec<_> = calls
            .join_all()
            .await
            .into_iter()
            .filter_map(Result::err)
            .map(|refusal| refusal.reason)
            .collect();
        assert_eq!(refused, [Reason::DeadlinePassed; 2], "{queue}");
        let ended = stages.seen.all();
        let after = |function: &str| {
            let facts = ended.iter().position(|it| &*it.function == function);
            facts.expect("it has ended")
        };
        // In the order of their ends: 2 s, 10 s, an hour, and the call that waited for that one.
        let order = [
            "host_get_info",
            "guest_start",
            "guest_list",
            "guest_get_info",
        ];
        assert_eq!(order.map(after), [0, 1, 2, 3], "{queue}");
    }
}

#[tokio::test(start_paused = true)]
async fn ten_deploys_hold_four_slots_and_everything_else_goes_on() {
    let long = "[[class]]\nname = \"long\"\neffort = \"minutes\"\noutstanding_max = 4\n\
                max_wait = \"none\"";
    let stages = Stages::start(&text(IN_TURN, "", long));
    let mut calls = JoinSet::new();
    for number in 0..10 {
        let minutes = Duration::from_secs(300);
        let guest = format!("D{number}");
        stages
            .begin(&mut calls, "guest_deploy", &guest, minutes)
            .await;
    }
    assert_eq!(stages.gate.busy(), (4, 6));
    let queue = stages.gate.queue_now();
    let held = queue.functions[0].held_by.as_deref();
    assert_eq!(held, Some("class:long:outstanding"));
    for number in 0..20 {
        let before = stages.clock.now();
        let call = Arc::clone(&stages).call("guest_get_info", format!("U{number}"), TAKES);
        call.await.expect("there is room");
        assert_eq!(stages.clock.now().since(before), TAKES);
    }
    for outcome in calls.join_all().await {
        outcome.expect("every deploy is served");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_beside_the_total_leaves_the_total_whole() {
    let limits = "outstanding = 3";
    let long = "[[class]]\nname = \"long\"\neffort = \"minutes\"\noutstanding_max = 2\n\
                beside_total = true";
    let text = text(IN_TURN, limits, long);
    let stages = Stages::start(&text);
    let mut calls = JoinSet::new();
    for number in 0..10 {
        let function = if number % 2 == 0 {
            "guest_deploy"
        } else {
            "guest_get_info"
        };
        let guest = format!("G{number}");
        stages.begin(&mut calls, function, &guest, TAKES).await;
    }
    // Two deploys, and three of the others.
    assert_eq!(stages.gate.busy(), (5, 5));
    let (limits, _) = stages.gate.limits_now();
    let used = |name: &str| {
        let found = limits.iter().find(|(rule, _)| &*rule.name == name);
        found.expect("there is such a limit").1.used
    };
    assert_eq!(
        (used("outstanding"), used("class:long:outstanding")),
        (3, 2)
    );
    calls.join_all().await;
    assert_eq!(config(&text).admit.outstanding_sum(), Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_class_has_no_more_of_the_window_than_it_may() {
    let sync = "[[class]]\nname = \"sync\"\nfunctions = [\"guest_get_info\"]\nper_window = 5";
    let stages = Stages::start(&text(IN_TURN, "", sync));
    let mut calls = JoinSet::new();
    for number in 0..20 {
        let guest = format!("G{number}");
        calls.spawn(Arc::clone(&stages).call("guest_get_info", guest, Duration::ZERO));
    }
    calls.spawn(Arc::clone(&stages).call("guest_list", String::new(), Duration::ZERO));
    calls.join_all().await;
    let facts = stages.seen.all();
    let mut sent: Vec<_> = facts
        .iter()
        .filter(|facts| &*facts.class == "sync")
        .filter_map(|facts| Some(facts.sent?.since(tidegate_limits::Timestamp::ZERO)))
        .collect();
    sent.sort();
    assert_eq!(crate::support::densest(&sent, Duration::from_secs(1)), 5);
    assert!(sent[19] < Duration::from_millis(3100), "{sent:?}");
    let list = facts.iter().find(|it| &*it.function == "guest_list");
    assert_eq!(list.expect("it has ended").limit, None);
}

#[tokio::test(start_paused = true)]
async fn reads_of_the_database_meet_no_limit_where_one_line_says_so() {
    for (exempt, expected) in [("", (1, 3)), ("exempt = [\"db\"]", (4, 0))] {
        let limits = format!("{ONE_AT_A_TIME}\n{exempt}");
        let stages = Stages::start(&text(IN_TURN, &limits, ""));
        let mut calls = JoinSet::new();
        for function in [
            "guest_start",
            "guest_list",
            "image_query",
            "guests_get_nic_info",
        ] {
            stages.begin(&mut calls, function, "", TAKES).await;
        }
        assert_eq!(stages.gate.busy(), expected, "{exempt}");
        calls.join_all().await;
    }
    let exempt = config(&text("", "exempt = [\"db\", \"host_get_info\"]", ""))
        .classify
        .exempt;
    let is_exempt = |name: &str| exempt.iter().any(|it| **it == *name);
    assert!(is_exempt("guest_list") && is_exempt("host_get_info"));
    // One that writes the database, and one that may ask SMAPI though it reads it.
    assert!(!is_exempt("guest_deregister") && !is_exempt("get_fcp_templates_details"));
}

#[tokio::test(start_paused = true)]
async fn a_class_removed_by_a_reload_loses_no_call() {
    let sync = "[[class]]\nname = \"sync\"\nweight = 2\nfunctions = [\"guest_get_info\"]";
    let stages = Stages::start(&text(IN_TURN, ONE_AT_A_TIME, sync));
    let mut calls = JoinSet::new();
    for number in 0..50 {
        let function = ["guest_get_info", "guest_list", "guest_start"][number % 3];
        let guest = format!("G{number}");
        stages.begin(&mut calls, function, &guest, TAKES).await;
    }
    let waiting = |stages: &Stages| {
        let classes = stages.gate.queue_now().classes;
        let each = classes.iter().map(|it| (it.name.to_string(), it.waiting));
        each.collect::<Vec<_>>()
    };
    let of = |name: &str, waiting| (name.to_owned(), waiting);
    let before = [of("user", 16), of("sync", 16), of("polling", 17)];
    assert_eq!(waiting(&stages), before);
    stages
        .gate
        .apply(&config(&text(IN_TURN, ONE_AT_A_TIME, "")).admit);
    assert_eq!(waiting(&stages), [of("user", 16), of("polling", 33)]);
    // One that was classified before, and asks only now.
    stages
        .begin(&mut calls, "guest_get_info", "LATE", TAKES)
        .await;
    assert_eq!(waiting(&stages), [of("user", 16), of("polling", 34)]);
    for outcome in calls.join_all().await {
        outcome.expect("no call is lost");
    }
    assert_eq!(stages.gate.busy(), (0, 0));
}

#[tokio::test]
async fn a_header_names_the_class_only_where_the_listener_lets_it() {
    for (listener, header, class) in [
        ("class_header = true", "X-Tidegate-Class: user", "user"),
        ("class_header = true", "x-tidegate-class: sync", "sync"),
        ("class_header = true", "X-Tidegate-Class: root", "polling"),
        ("class_header = true", "X-Other: user", "polling"),
        ("class_header = false", "X-Tidegate-Class: user", "polling"),
        ("class = \"user\"", "X-Other: 1", "user"),
        (
            "class = \"sync\"\nclass_header = true",
            "X-Other: 1",
            "sync",
        ),
    ] {
        let held = Held::start(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await;
        let class_of_its_own = "[[class]]\nname = \"sync\"";
        let text = one_listener(held.backend.addr, listener, class_of_its_own);
        let stack = Stack::start(&text);
        let request = format!("GET /guests/A/info HTTP/1.1\r\nHost: t\r\n{header}\r\n\r\n");
        let mut client = tokio::net::TcpStream::connect(stack.addr)
            .await
            .expect("it listens");
        tokio::io::AsyncWriteExt::write_all(&mut client, request.as_bytes())
            .await
            .expect("it reads");
        held.answer_until(read_until(&mut client, "{}")).await;
        let facts = stack.seen.ended(1).await;
        assert_eq!(&*facts[0].class, class, "{listener} {header}");
    }
}

#[tokio::test]
async fn a_request_that_is_no_call_has_no_class_and_unknown_routes_go_by_method() {
    let held = Held::start(OK).await;
    let backend = format!("socket = \"{}\"", held.backend.addr);
    let limits = "[limits]\nper_window = \"total:30\"";
    let stack = Stack::start(&listens("", &backend, limits));
    for (bytes, class) in [
        ("[1, 2, 3]", "none"),
        (
            "GET /unknown HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n",
            "polling",
        ),
        (
            "POST /unknown HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            "user",
        ),
    ] {
        let before = stack.seen.all().len();
        stack.ask(bytes).await;
        let facts = stack.seen.ended(before + 1).await;
        assert_eq!(&*facts[before].class, class, "{bytes}");
    }
}

/// A config with these sections is one error, or one warning, that says these words.
#[track_caller]
fn wrong(severity: Severity, limits: &str, sections: &str, words: &[&str]) {
    let limits = format!("max_wait = \"50s\"\n{limits}");
    let queue = format!("{IN_TURN}\nmax_unlimited = 54");
    let text = text(&queue, &limits, sections);
    let problems = match config::read(&text, "config.toml", std::iter::empty()) {
        Ok(checked) => checked.warnings,
        Err(problems) => problems,
    };
    let told = problems.to_string();
    assert_eq!(problems.len(), 1, "{sections}\n{told}");
    let is_as_bad = problems.iter().all(|problem| problem.severity == severity);
    assert!(is_as_bad, "{sections}\n{told}");
    for word in words {
        assert!(told.contains(word), "{sections}: no {word:?} in\n{told}");
    }
}

#[test]
fn a_mistake_about_classes_is_reported_with_its_cure() {
    let class = |lines: &str| format!("[[class]]\nname = \"long\"\n{lines}");
    let error = |limits: &str, sections: &str, words: &[&str]| {
        wrong(Severity::Error, limits, sections, words);
    };
    error(
        "",
        "[[class]]\nweight = 2",
        &["class[0].name", "has no name", "name = \"long\""],
    );
    error(
        "",
        &class(&class("")),
        &["class[1].name", "the name of another class"],
    );
    error("", &class("weight = 0"), &["class[0].weight", "1 to 1000"]);
    error(
        "",
        &class("max_wait = \"never\""),
        &["class[0].max_wait", "\"never\""],
    );
    error(
        "",
        &class("max_wait = 30"),
        &["class[0].max_wait", "30 has no unit", "30s"],
    );
    error(
        "",
        &class("functions = \"guest_list\""),
        &["functions", "not an array"],
    );
    error(
        "",
        &class("functions = [\"a b\"]"),
        &["functions", "\"a b\" is not the name"],
    );
    error(
        "",
        &class("deadline = \"5m\""),
        &["class[0].deadline", "no option", "this is max_wait here"],
    );
    error("", &class("effort = \"hours\""), &["effort", "\"minutes\""]);
    error(
        "",
        &class("wieght = 2"),
        &["class[0].wieght", "did you mean \"weight\"?"],
    );
    let twice =
        "functions = [\"guest_list\"]\n[[class]]\nname = \"b\"\nfunctions = [\"guest_list\"]";
    error(
        "",
        &class(twice),
        &["class[1].functions", "class[0].functions too"],
    );
    let twice = "effort = \"db\"\n[[class]]\nname = \"b\"\neffort = \"db\"";
    error("", &class(twice), &["class[1].effort", "leave it to one"]);
    error(
        "",
        &class("outstanding_max = 11"),
        &["outstanding_max", "the 10 of", "beside_total"],
    );
    error(
        "",
        &class("beside_total = true"),
        &["beside_total", "outstanding_max = 4"],
    );
    error(
        "",
        &class("per_window = 31"),
        &["per_window", "total of 30"],
    );
    error(
        "window = \"0s\"",
        &class("per_window = 3"),
        &["per_window", "windows are off"],
    );
    error(
        "",
        &class("reserve_outstanding = 10"),
        &["leave nothing for the other"],
    );
    error(
        "",
        &class("reserve_per_window = 30"),
        &["leave nothing for the other"],
    );
    let off = "outstanding = 0";
    error(
        off,
        &class("reserve_outstanding = 1"),
        &["nothing to keep", "is off"],
    );
    let two = "reserve_per_window = 1\n[[class]]\nname = \"b\"\nreserve_per_window = 1";
    error(
        "",
        &class(two),
        &[
            "class[1].reserve_per_window",
            "class[0].reserve_per_window keeps",
        ],
    );
    let more = "outstanding_max = 2\nreserve_outstanding = 3";
    error("", &class(more), &["may not use as many"]);
    let beside = "outstanding_max = 2\nbeside_total = true\nreserve_outstanding = 1";
    error("", &class(beside), &["do not count in", "leave it out"]);
    error(
        "",
        "[classes]\nheader = \"a b\"",
        &["classes.header", "name of a header"],
    );
    error(
        "",
        "[classes]\npromote_for = \"2h\"",
        &["classes.promote_for", "0s to 1h"],
    );
    error("exempt = \"db\"", "", &["limits.exempt", "not an array"]);
    let many: String = (0..17)
        .map(|n| format!("[[class]]\nname = \"c{n}\"\n"))
        .collect();
    error("", &many, &["there are 17 of them", "at most 16"]);
}

#[test]
fn a_class_that_is_probably_a_slip_is_a_warning() {
    let doubted = |limits: &str, sections: &str, words: &[&str]| {
        wrong(Severity::Warning, limits, sections, words);
    };
    let class = |lines: &str| format!("[[class]]\nname = \"long\"\n{lines}");
    let near = "functions = [\"guest_deplyo\"]";
    doubted("", &class(near), &["did you mean \"guest_deploy\"?"]);
    doubted(
        "exempt = [\"guest_lst\"]",
        "",
        &["limits.exempt", "did you mean \"guest_list\"?"],
    );
}

#[test]
fn exempt_and_limited_calls_together_fit_the_real_server() {
    let warnings = |max_unlimited: u32, exempt: &str| {
        let limits = format!("max_wait = \"50s\"\n{exempt}");
        let text = text(&format!("max_unlimited = {max_unlimited}"), &limits, "");
        let checked = config::read(&text, "config.toml", std::iter::empty());
        checked.expect("it is good").warnings.to_string()
    };
    assert_eq!(warnings(64, ""), "");
    assert_eq!(warnings(54, "exempt = [\"db\"]"), "");
    let told = warnings(55, "exempt = [\"db\"]");
    assert!(told.contains("give max_unlimited = 54"), "{told}");
    let both =
        text("", "exempt = [\"guest_list\"]", "").replace("total:30", "total:30, guest_list:5");
    let told = config::read(&both, "config.toml", std::iter::empty()).expect_err("a contradiction");
    assert!(
        told.to_string()
            .contains("\"guest_list\" is exempt from every limit"),
        "{told}"
    );
}

#[test]
fn a_listener_names_a_class_that_there_is() {
    let read = |lines: &str| {
        let text =
            text(IN_TURN, "", "").replace("name = \"test\"", &format!("name = \"test\"\n{lines}"));
        match config::read(&text, "config.toml", std::iter::empty()) {
            Ok(checked) => checked.warnings.to_string(),
            Err(problems) => problems.to_string(),
        }
    };
    let told = read("class = \"pollin\"");
    assert!(
        told.contains("listen[0].class: there is no class \"pollin\""),
        "{told}"
    );
    assert!(told.contains("did you mean \"polling\"?"), "{told}");
    let told = read("protocol = \"socket\"\nclass_header = true");
    assert!(told.contains("only HTTP has headers"), "{told}");
}

#[test]
fn check_prints_the_classes_and_the_sum_of_what_may_be_outstanding() {
    let classes = "
        [[class]]
        name = \"user\"
        reserve_outstanding = 2
        [[class]]
        name = \"long\"
        effort = \"minutes\"
        outstanding_max = 4
        beside_total = true
        max_wait = \"none\"";
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("config.toml");
    std::fs::write(&path, text(IN_TURN, "", classes)).expect("written");
    let report = tools::check::report(&path, false);
    assert!(report.good, "{report:?}");
    for line in [
        "outstanding in all  14 calls at once: 10, and 4 in pools beside them",
        "class user          weight 4, 2 at once kept for it",
        "class long          weight 1, 4 calls at once, beside the others, waits until it is served",
        "class polling       weight 1",
    ] {
        assert!(
            report.settings.contains(line),
            "no {line:?} in\n{}",
            report.settings
        );
    }
    // Its output is an equivalent config.
    let (printed, _) = report
        .settings
        .split_once("\ntotal ")
        .expect("a table follows");
    assert_eq!(config(printed), config(&text(IN_TURN, "", classes)));
}
