//! The callers and their charges, through the stages.

use std::error::Error as StdError;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate::admit::{Ask, Claimed, Gate};
use tidegate::app;
use tidegate::call::claim::Charged;
use tidegate::call::costs::Costs;
use tidegate::call::{
    Destination, Dialect, Facts, Identity, LimitMode, Observe, Origin, Reason, Record, Refusal,
    Rejection, Slot, TlsCause, Verdict,
};
use tidegate::callers::rate_limit::{Allowance, Derive, HandlingPatch, Size, SizePatch};
use tidegate::callers::{
    BucketChange, Callers, ChangeResult, Error, Meets, NewRateLimit, RateLimitPatch,
};
use tidegate::config::Config;
use tidegate_callers::{
    CallerId, Charge, CostUnit, Group, Label, NewCaller, Notes, Patch, Pattern, PatternText,
    RateLimitId, UsageSpan,
};
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::scheduler::{OnExcess, Outcome, Supply};
use tidegate_limits::{Burst, Fill, Tokens};
use tidegate_runtime::Clock;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::sidecar::Sidecar;
use crate::support::{
    self, Held, OK, Scripted, Stack, admitted, array, ask, asking, json, read_all,
};

/// A config with one listener, whose windows are off, and more sections.
fn text(backend: SocketAddr, more: &str) -> String {
    format!(
        r#"
        [[listen]]
        name = "nova"
        bind = "127.0.0.1:0"
        [backend]
        socket = "{backend}"
        kind = "zvm"
        http = "http://{backend}"
        [queue]
        workers = 10000
        capacity = 100000
        [limits]
        window = "0s"
        outstanding = 0
        {more}
        "#
    )
}

/// Callers and gate without a socket, so that time can stand still.
pub(crate) struct Door {
    pub(crate) callers: Callers,
    pub(crate) gate: Gate,
    pub(crate) clock: Clock,
}

/// The result of a call at the door.
pub(crate) enum Came {
    Through(Box<tidegate::admit::Permit>),
    Refused(Refusal),
}

impl Door {
    fn open(more: &str) -> Self {
        Self::with(&config(more))
    }

    /// Opens a door whose calls wait in turn for every limit.
    pub(crate) fn open_in_turn(more: &str) -> Self {
        Self::with(&config_in_turn(more))
    }

    pub(crate) fn with(config: &Config) -> Self {
        let clock = Clock::of_runtime();
        let gate = Gate::new(&config.admit, clock);
        let ChangeResult { value, buckets } =
            Callers::start(&config.callers, None).expect("there is room for them");
        app::follow(&gate, &value, buckets);
        let timer = gate.clone();
        tokio::spawn(async move { timer.keep_time().await });
        Self {
            callers: value,
            gate,
            clock,
        }
    }

    /// Makes a change, and lets the buckets follow.
    pub(crate) fn change<T, E: std::fmt::Debug>(&self, changed: Result<ChangeResult<T>, E>) -> T {
        let ChangeResult { value, buckets } = changed.expect("it is right");
        app::follow(&self.gate, &self.callers, buckets);
        value
    }

    /// Asks for one call, and waits for its turn.
    pub(crate) async fn call(
        &self,
        identity: &Arc<Identity>,
        function: &str,
    ) -> (Came, Arc<Record>) {
        let now = self.clock.now();
        let claim = self.callers.claim(now, identity, function, Meets::Limits);
        let record = Record::open(
            Origin {
                identity: Arc::clone(identity),
                arrived: now,
            },
            Dialect::Socket,
            function.into(),
            "polling".into(),
            None,
            Arc::new(Counting(self.callers.clone(), self.clock)),
        );
        let claimed = Claimed::of(&claim);
        let ask = Ask {
            claimed,
            ..asking(function, Destination::Socket, now)
        };
        record.note(|facts| facts.claim = Some(claim));
        let came = match admitted(self.gate.ask(ask, &record)).await {
            Ok(permit) => Came::Through(Box::new(permit)),
            Err(refusal) => {
                record.note(|facts| facts.verdict = Verdict::Refused);
                Came::Refused(refusal)
            }
        };
        (came, record)
    }

    /// Makes one call that takes no time.
    pub(crate) async fn pass(&self, identity: &Arc<Identity>, function: &str) {
        let (came, _record) = self.call(identity, function).await;
        let Came::Through(mut permit) = came else {
            panic!("it was refused");
        };
        permit.sent();
        permit.finish(Outcome::Served);
    }

    pub(crate) fn tokens(&self, id: u32) -> f64 {
        let bucket = self.gate.bucket_now(RateLimitId(id).bucket());
        bucket.expect("there is one").tokens
    }
}

/// Counts for the callers what became of each call.
struct Counting(Callers, Clock);

impl Observe for Counting {
    fn next_id(&self) -> u64 {
        0
    }

    fn call_began(&self, _: u64, _: Weak<Record>) {}

    fn backend_finished(&self) {}

    fn keeps_spans(&self) -> bool {
        false
    }

    fn lacked_resources(&self, _: Destination, _: &(dyn StdError + 'static)) {}

    fn tls_failed(&self, _: Destination, _: TlsCause) {}

    fn call_ended(&self, facts: &Facts) {
        self.0.ended(self.1.now(), facts);
    }

    fn connection_rejected(&self, _: &Identity, _: Rejection) {}
}

fn config(more: &str) -> Config {
    support::config(&text(SocketAddr::from(([127, 0, 0, 1], 1)), more))
}

pub(crate) fn config_in_turn(more: &str) -> Config {
    let text = text(SocketAddr::from(([127, 0, 0, 1], 1)), more);
    support::config(&text.replace("[queue]", "[queue]\npostpone = \"in_turn\""))
}

pub(crate) fn who(user_agent: &str) -> Arc<Identity> {
    let identity = support::identity("nova", ([10, 0, 0, 1], 1000));
    let mut identity = Arc::unwrap_or_clone(identity);
    identity.user_agent = Some(user_agent.into());
    Arc::new(identity)
}

fn agent(pattern: &str) -> Pattern {
    let text = PatternText {
        user_agent: pattern,
        ..PatternText::default()
    };
    Pattern::parse(&text).expect("a pattern")
}

pub(crate) fn size(burst: f64, fill: f64) -> Size {
    Size::Given(Allowance::Bucket {
        burst: Burst::new(burst).expect("a burst"),
        fill: Fill::new(fill).expect("a fill rate"),
    })
}

pub(crate) fn named(label: &str, pattern: &str, rate_limit: Option<RateLimitId>) -> NewCaller {
    NewCaller {
        label: Label::new(label).expect("a label"),
        patterns: vec![agent(pattern)],
        groups: Vec::new(),
        notes: Notes::default(),
        charge: rate_limit.map(Charge::Limit).unwrap_or_default(),
        weight: None,
    }
}

const POLLER: &str = r#"
    [[bucket]]
    name = "poller"
    burst = 10
    fill = 40
    [[caller]]
    label = "poller"
    match = { user_agent = "poll*" }
    rate_limit = "poller"
"#;

#[tokio::test(start_paused = true)]
async fn a_hundred_calls_through_burst_10_and_fill_40_take_two_and_a_quarter_seconds() {
    let door = Arc::new(Door::open(POLLER));
    let started = Instant::now();
    let mut calls = JoinSet::new();
    for number in 0..100 {
        let door = Arc::clone(&door);
        // Half of them by one client, half by another that matches too.
        let identity = who(if number % 2 == 0 { "poll/1" } else { "poll/2" });
        calls.spawn(async move { door.pass(&identity, "guest_list").await });
    }
    calls.join_all().await;
    let took = started.elapsed().as_secs_f64();
    assert!((took - 2.25).abs() < 0.0225, "{took} s");
    let usage = door.callers.get(door.clock.now(), CallerId(1));
    let usage = usage.expect("the config's caller").usage;
    assert_eq!(usage.total.calls, 100);
    assert_eq!(usage.total.delayed, 90);
    assert_eq!(usage.over(UsageSpan::Hour).tally.calls, 100);
}

/// A client of this IPv6 address.
fn from_ipv6(address: &str) -> Arc<Identity> {
    let address: std::net::Ipv6Addr = address.parse().expect("an address");
    support::identity("nova", (address, 1000))
}

/// 200 calls come from 200 addresses of one /64. The 20 calls of an honest client wait for as many of them,
/// and not for all.
#[tokio::test(start_paused = true)]
async fn a_client_with_many_addresses_of_one_ipv6_prefix_has_the_turns_of_one_caller() {
    let many = "[callers]\nauto_register = 1000\nauto_register_per_s = 1000";
    let text = text(SocketAddr::from(([127, 0, 0, 1], 1)), many)
        .replace("[queue]", "[queue]\npostpone = \"in_turn\"")
        .replace("outstanding = 0", "outstanding = 1");
    let door = Arc::new(Door::with(&support::config(&text)));
    let started = Instant::now();
    let mut calls = JoinSet::new();
    let one_call = |identity: Arc<Identity>, is_honest: bool| {
        let door = Arc::clone(&door);
        async move {
            let (Came::Through(mut permit), _record) = door.call(&identity, "guest_list").await
            else {
                panic!("it was refused");
            };
            permit.sent();
            tokio::time::sleep(Duration::from_millis(45)).await;
            permit.finish(Outcome::Served);
            is_honest.then(|| started.elapsed())
        }
    };
    for number in 0..200 {
        let address = format!("2001:db8:1:2::{number:x}");
        calls.spawn(one_call(from_ipv6(&address), false));
    }
    tokio::task::yield_now().await;
    for _ in 0..20 {
        calls.spawn(one_call(from_ipv6("2001:db8:9:9::1"), true));
    }
    let last = calls.join_all().await.into_iter().flatten().max();
    let last = last.expect("the honest client was served").as_secs_f64();
    assert!(
        last < 2.0,
        "{last} s for 20 calls of 45 ms beside one other caller"
    );
}

/// Sends the calls through the real process, which may be later than its bucket by what xen-api's own live test
/// allows: a fifth, half a second, and what as many calls take without a limit.
#[tokio::test]
async fn a_hundred_calls_through_the_real_process_take_as_long_as_their_bucket_says() {
    const FLOOR: f64 = 2.25;
    let backend = Scripted::in_both_dialects().await;
    let limited = r#"
        [[listen]]
        name = "poll"
        bind = "127.0.0.1:0"
        [[bucket]]
        name = "poller"
        burst = 10
        fill = 40
        [[caller]]
        label = "poller"
        match = { listener = "poll" }
        rate_limit = "poller"
        [admin]
        bind = "127.0.0.1:0"
        [log]
        format = "json"
    "#;
    let sidecar = Sidecar::start(&text(backend.addr, limited)).await;
    let hundred = async |listener: &str| {
        let addr = sidecar.listener(listener).await;
        let started = std::time::Instant::now();
        let mut calls = JoinSet::new();
        for _ in 0..100 {
            calls.spawn(async move { ask(addr, array("guest_list", "X")).await });
        }
        for answer in calls.join_all().await {
            assert_eq!(answer.as_bytes(), OK);
        }
        started.elapsed().as_secs_f64()
    };
    let unthrottled = hundred("nova").await;
    let took = hundred("poll").await;
    println!("{took} s, and {unthrottled} s without a limit");
    assert!(took >= FLOOR, "{took} s");
    assert!(
        took <= 1.2 * FLOOR + unthrottled + 0.5,
        "{took} s, {unthrottled} s"
    );
}

#[tokio::test]
async fn one_caller_has_one_bucket_over_fifty_connections_two_listeners_and_both_protocols() {
    let backend = Held::start(OK).await;
    let more = r#"
        [[listen]]
        name = "other"
        bind = "127.0.0.1:0"
        [[bucket]]
        name = "all"
        burst = 50
        fill = 0.000001
        on_excess = "reject"
        [[caller]]
        label = "this machine"
        match = { ip = "127.0.0.1" }
        rate_limit = "all"
    "#;
    let stack = Stack::start(&text(backend.backend.addr, more));
    let http = |number: usize| {
        format!("GET /guests/U{number}/info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    };
    let mut calls = JoinSet::new();
    for number in 0..60 {
        let addr = stack.addrs[number % 2];
        let request = match number % 4 {
            0 | 1 => array("guest_get_info", &format!("U{number}")),
            _ => http(number),
        };
        calls.spawn(async move { ask(addr, request).await });
    }
    // HTTP to this backend fails, since it has the other protocol, and still costs its token.
    let answers = backend.answer_until(calls.join_all()).await;
    let refused = answers.iter().filter(|it| it.contains("rate_limited"));
    assert_eq!(refused.count(), 10, "{answers:?}");
    let facts = stack.seen.ended(60).await;
    let admitted = facts.iter().filter(|facts| facts.admitted.is_some());
    assert_eq!(admitted.count(), 50);
    for (listener, dialect) in [
        ("nova", "socket"),
        ("other", "socket"),
        ("nova", "http"),
        ("other", "http"),
    ] {
        let is_it = |facts: &&Facts| {
            *facts.origin.identity.listener == *listener && facts.dialect.label() == dialect
        };
        assert_eq!(
            facts.iter().filter(is_it).count(),
            15,
            "{listener} {dialect}"
        );
    }
    let refused = facts
        .iter()
        .find(|facts| facts.reason == Some(Reason::RateLimited));
    assert_eq!(
        refused.and_then(|facts| facts.limit.as_deref()),
        Some("rate_limit:all")
    );
    stack.at_rest().await;
}

#[tokio::test]
async fn a_refusal_names_the_rate_limit_in_both_dialects() {
    let backend = Scripted::start(|_, _| async {}).await;
    let more = r#"
        [[bucket]]
        name = "tiny"
        burst = 0.5
        fill = 0.1
        on_excess = "reject"
        [[caller]]
        label = "everybody"
        match = { listener = "nova" }
        rate_limit = "tiny"
    "#;
    let stack = Stack::start(&text(backend.addr, more));
    // Dearer than the bucket: let through when it is full, in debt afterwards.
    stack.ask(array("guest_list", "A")).await;
    let refused = json(&stack.ask(array("guest_list", "A")).await);
    assert_eq!(refused["overallRC"], 503);
    assert_eq!(refused["rs"], 16);
    let errmsg = refused["errmsg"].as_str().expect("a text");
    assert!(
        errmsg.contains("(limit rate_limit:tiny: rate_limited)"),
        "{errmsg}"
    );
    // Half a token of debt and half a token to be full, at a tenth of one a second.
    assert_eq!(refused["retryAfter"], 10);
    let http = stack
        .ask("GET /guests HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await;
    assert!(
        http.starts_with("HTTP/1.1 429 Too Many Requests\r\n"),
        "{http}"
    );
    assert!(http.contains("retry-after: 10\r\n"), "{http}");
}

#[tokio::test]
async fn a_reply_over_http_says_what_its_rate_limit_has_left_and_no_other_does() {
    let backend = Scripted::start(|_, mut stream| async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await;
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nRateLimit-Remaining: 99\r\n\r\n{}";
        stream.write_all(answer).await.expect("it is read");
    })
    .await;
    let more = r#"
        [costs]
        functions = { guest_get_info = 2.5 }
        [[bucket]]
        name = "all"
        burst = 10
        fill = 0.01
        [[bucket]]
        name = "watched"
        burst = 1
        fill = 1
        mode = "observe"
        [[caller]]
        label = "limited"
        match = { user_agent = "limited" }
        rate_limit = "all"
        [[caller]]
        label = "watched"
        match = { user_agent = "watched" }
        rate_limit = "watched"
    "#;
    let stack = Stack::start(&text(backend.addr, more));
    let get = |agent: &str| {
        format!(
            "GET /guests/A/info HTTP/1.1\r\nHost: x\r\nUser-Agent: {agent}\r\n\
             Connection: close\r\n\r\n"
        )
    };
    let limited = stack.ask(get("limited")).await;
    let facts = stack.seen.ended(1).await;
    let caller = facts[0].claim.as_ref().expect("a request").caller;
    for header in [
        "ratelimit-limit: 10\r\n",
        "ratelimit-remaining: 7\r\n",
        "ratelimit-reset: 250\r\n",
        &format!("x-limiter-caller: {caller}\r\n"),
    ] {
        assert!(limited.contains(header), "no {header:?} in {limited}");
    }
    assert_eq!(limited.matches("ratelimit-remaining").count(), 1);
    for agent in ["watched", "anybody"] {
        let other = stack.ask(get(agent)).await;
        // That of the backend, as it was written; hyper writes names in lower case.
        let lower = other.to_ascii_lowercase();
        assert!(lower.contains("ratelimit-remaining: 99\r\n"), "{other}");
        assert!(!other.contains("x-limiter-caller"), "{other}");
    }
}

#[tokio::test(start_paused = true)]
async fn two_callers_share_one_limiter_and_the_quiet_one_waits_for_one_call_at_most() {
    for (order, most) in [("fair", 0.2), ("fifo", 10.2)] {
        let more = format!(
            r#"
            [[bucket]]
            name = "shared"
            burst = 1
            fill = 10
            order = "{order}"
            [[caller]]
            label = "loud"
            match = {{ user_agent = "loud" }}
            rate_limit = "shared"
            [[caller]]
            label = "quiet"
            match = {{ user_agent = "quiet" }}
            rate_limit = "shared"
            "#
        );
        let door = Arc::new(Door::open(&more));
        let mut loud = JoinSet::new();
        for _ in 0..101 {
            let door = Arc::clone(&door);
            loud.spawn(async move { door.pass(&who("loud"), "guest_list").await });
        }
        support::until(|| door.gate.busy().1 == 100, || "100 wait".to_owned()).await;
        let started = Instant::now();
        door.pass(&who("quiet"), "guest_list").await;
        let waited = started.elapsed().as_secs_f64();
        assert!(waited <= most + 1e-6, "{order}: {waited} s");
        if order == "fifo" {
            assert!(waited > 9.0, "it is the contrast: {waited} s");
        }
        loud.abort_all();
    }
}

#[tokio::test(start_paused = true)]
async fn an_exempt_caller_is_never_delayed_whatever_else_matches() {
    let more = r#"
        [[bucket]]
        name = "none"
        profile = "unlimited"
        [[bucket]]
        name = "all"
        burst = 1
        fill = 0.001
        [[caller]]
        label = "admin"
        match = { user_agent = "admin" }
        rate_limit = "none"
        [[caller]]
        label = "everybody"
        match = { listener = "nova" }
        rate_limit = "all"
    "#;
    let door = Door::open(more);
    for _ in 0..100 {
        door.pass(&who("admin"), "guest_list").await;
    }
    assert_eq!(door.tokens(2), 1.0);
    let usage = |id| door.callers.get(door.clock.now(), CallerId(id));
    for id in [1, 2] {
        // All that match are counted.
        assert_eq!(usage(id).expect("it is there").usage.total.calls, 100);
    }
}

#[tokio::test(start_paused = true)]
async fn an_observing_limit_delays_no_call_and_counts_those_it_would() {
    let more = POLLER.replace("fill = 40", "fill = 40\nmode = \"observe\"");
    let door = Door::open(&more);
    let started = Instant::now();
    for _ in 0..100 {
        door.pass(&who("poll"), "guest_list").await;
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
    let bucket = RateLimitId(1).bucket();
    assert_eq!(
        door.gate.would_have_delayed(bucket),
        0,
        "none would have run yet"
    );
    // The last one has its turn then.
    tokio::time::advance(Duration::from_millis(2250)).await;
    let now = door.gate.bucket_now(bucket).expect("there is one");
    assert_eq!((now.counts.charged, now.waiting), (100, 0));
    assert_eq!(door.gate.would_have_delayed(bucket), 90);
}

#[tokio::test(start_paused = true)]
async fn a_share_of_a_rate_that_came_while_a_bucket_observed_counts_when_it_holds_calls() {
    let more = |mode| POLLER.replace("fill = 40", &format!("fill = 40\nmode = \"{mode}\""));
    let door = Door::open(&more("observe"));
    let bucket = RateLimitId(1).bucket();
    let share = Supply::capacity(Fill::new(5.0).expect("a rate"));
    door.gate.supply_fill(bucket, share).expect("there is one");
    door.change(door.callers.apply(&config(&more("enforce")).callers));
    let now = door.gate.bucket_now(bucket).expect("there is one");
    assert_eq!(now.per_second, 5.0);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_holds_calls_again_is_full_and_those_that_wait_meet_it() {
    let door = Door::open(POLLER);
    let set = |mode: &str| {
        let more = POLLER.replace("fill = 40", &format!("fill = 40\nmode = \"{mode}\""));
        door.change(door.callers.apply(&config(&more).callers));
    };
    set("observe");
    for _ in 0..100 {
        door.pass(&who("poll"), "guest_list").await;
    }
    assert_eq!(
        door.gate.bucket_wait(RateLimitId(1).bucket(), Tokens::ONE),
        None
    );
    set("enforce");
    let started = Instant::now();
    for _ in 0..30 {
        door.pass(&who("poll"), "guest_list").await;
    }
    assert_eq!(started.elapsed().as_millis(), 500);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_rejects_refuses_at_once_and_counts_it() {
    let more = POLLER.replace("fill = 40", "fill = 40\non_excess = \"reject\"");
    let door = Door::open(&more);
    let mut refused = 0;
    for _ in 0..100 {
        if let (Came::Refused(refusal), _record) = door.call(&who("poll"), "guest_list").await {
            assert_eq!(refusal.reason, Reason::RateLimited);
            assert_eq!(refusal.limit.as_deref(), Some("rate_limit:poller"));
            // Those let through were given back unsent, with their token.
            refused += 1;
        }
    }
    assert_eq!(refused, 0, "nothing was sent, so nothing is drawn");
    for _ in 0..10 {
        door.pass(&who("poll"), "guest_list").await;
    }
    let (came, record) = door.call(&who("poll"), "guest_list").await;
    assert!(matches!(came, Came::Refused(_)));
    drop(record);
    let caller = door.callers.get(door.clock.now(), CallerId(1));
    assert_eq!(caller.expect("it is there").usage.total.refused, 1);
}

/// A door where N calls wait for the rate limit r1, in turn.
async fn waiting(calls: usize) -> (Arc<Door>, JoinSet<()>) {
    let door = Arc::new(Door::open(""));
    let mut new = NewRateLimit::of(size(1.0, 0.01));
    new.handling.deadline = tidegate::call::claim::ClaimDeadline::None;
    let now = door.clock.now();
    let id = door.change(door.callers.create_rate_limit(now, new));
    assert_eq!(id, RateLimitId(1));
    door.change(door.callers.create(named("poller", "poll*", Some(id))));
    let mut set = JoinSet::new();
    for number in 0..=calls {
        let door = Arc::clone(&door);
        let identity = who(&format!("poll/{}", number % 50));
        set.spawn(async move { door.pass(&identity, "guest_list").await });
    }
    let what = || format!("{:?}", door.gate.busy());
    support::until(|| door.gate.busy() == (0, calls), what).await;
    (door, set)
}

#[tokio::test(start_paused = true)]
async fn a_patch_with_a_thousand_waiting_keeps_tokens_and_calls() {
    let (door, calls) = waiting(1000).await;
    let tokens = door.tokens(1);
    let patch = |fill| RateLimitPatch {
        size: Some(SizePatch::Bucket {
            burst: None,
            fill: Some(Fill::new(fill).expect("a fill rate")),
        }),
        ..RateLimitPatch::default()
    };
    for fill in [500.0, 1000.0] {
        door.change(door.callers.patch_rate_limit(RateLimitId(1), patch(fill)));
    }
    assert!(
        (door.tokens(1) - tokens).abs() < 1e-6,
        "nothing is refunded"
    );
    assert_eq!(door.gate.busy(), (0, 1000));
    let started = Instant::now();
    calls.join_all().await;
    let took = started.elapsed().as_secs_f64();
    assert!(
        (took - 1.0).abs() < 0.01,
        "1,000 at 1,000 a second: {took} s"
    );
}

#[tokio::test(start_paused = true)]
async fn a_deletion_with_a_thousand_waiting_loses_no_call() {
    let (door, calls) = waiting(1000).await;
    door.change(door.callers.delete_rate_limit(RateLimitId(1)));
    let started = Instant::now();
    assert_eq!(calls.join_all().await.len(), 1001);
    assert_eq!(started.elapsed(), Duration::ZERO, "nothing else holds them");
    assert_eq!(door.gate.bucket_now(RateLimitId(1).bucket()), None);
    let caller = door.callers.all(door.clock.now());
    let poller = caller.iter().find(|it| it.row.name() == "poller");
    assert_eq!(poller.expect("it stays").row.charge.limit(), None);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_task_panics_gives_back_its_hold_and_stops_no_other() {
    let door = Arc::new(Door::open(
        "[[bucket]]\nname = \"ten\"\nburst = 1\nfill = 10\n\
         [[caller]]\nlabel = \"all\"\nmatch = { listener = \"nova\" }\nrate_limit = \"ten\"",
    ));
    // Every third panics as soon as it is let through, before its bytes have left; every third
    // right after; the others are as they should be.
    let mut calls = JoinSet::new();
    for number in 0..30 {
        let door = Arc::clone(&door);
        calls.spawn(async move {
            let (came, _record) = door.call(&who("poll"), "guest_list").await;
            let Came::Through(mut permit) = came else {
                panic!("it was refused");
            };
            assert_ne!(number % 3, 0, "as the test wants it");
            permit.sent();
            assert_ne!(number % 3, 1, "as the test wants it");
            permit.finish(Outcome::Served);
        });
    }
    let started = Instant::now();
    let mut served = 0;
    while let Some(ended) = calls.join_next().await {
        served += usize::from(ended.is_ok());
    }
    assert_eq!(served, 10);
    assert_eq!(door.gate.busy(), (0, 0), "nothing is held any more");
    // Ten never left and drew nothing, so twenty tokens were spent: one at once, nineteen more.
    let took = started.elapsed().as_secs_f64();
    assert!((took - 1.9).abs() < 0.02, "{took} s");
    door.pass(&who("poll"), "guest_list").await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_limit_that_is_deleted_are_charged_to_the_next_match() {
    let (door, calls) = waiting(100).await;
    let now = door.clock.now();
    let wider = NewRateLimit::of(size(1.0, 100.0));
    let wider = door.change(door.callers.create_rate_limit(now, wider));
    let everybody = PatternText {
        listener: "nova",
        ..PatternText::default()
    };
    let everybody = NewCaller {
        patterns: vec![Pattern::parse(&everybody).expect("a pattern")],
        ..named("everybody", "-", Some(wider))
    };
    door.change(door.callers.create(everybody));
    door.change(door.callers.delete_rate_limit(RateLimitId(1)));
    let started = Instant::now();
    calls.join_all().await;
    let took = started.elapsed().as_secs_f64();
    assert!((took - 0.99).abs() < 0.01, "100 at 100 a second: {took} s");
}

/// Has N calls wait for the rate limit r1, changes something, and returns how long they wait
/// after that.
async fn left_to_wait(change: impl FnOnce(&Door, CallerId)) -> f64 {
    let (door, calls) = waiting(100).await;
    let all = door.callers.all(door.clock.now());
    let poller = all.iter().find(|it| it.row.name() == "poller");
    change(&door, poller.expect("it was made").row.id);
    let started = Instant::now();
    calls.join_all().await;
    started.elapsed().as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn a_change_of_who_is_charged_holds_for_calls_that_wait_as_for_new_ones() {
    let limit = RateLimitId(1);
    let detached = left_to_wait(|door, poller| {
        door.change(door.callers.detach(limit, poller));
    });
    assert_eq!(detached.await, 0.0, "detached");
    let deleted = left_to_wait(|door, poller| {
        door.change(door.callers.delete(poller));
    });
    assert_eq!(deleted.await, 0.0, "the caller is deleted");
    let patched = left_to_wait(|door, poller| {
        let patch = Patch {
            charge: Some(Charge::None),
            ..Patch::default()
        };
        door.change(door.callers.patch(poller, patch));
    });
    assert_eq!(patched.await, 0.0, "patched");
    let moved = left_to_wait(|door, poller| {
        let now = door.clock.now();
        let wider = NewRateLimit::of(size(1.0, 100.0));
        let wider = door.change(door.callers.create_rate_limit(now, wider));
        door.change(door.callers.attach(wider, poller));
    });
    let moved = moved.await;
    assert!(
        (moved - 0.99).abs() < 0.01,
        "100 at 100 a second: {moved} s"
    );
    let exempt = left_to_wait(|door, _| {
        let patch = RateLimitPatch {
            size: Some(SizePatch::Exempt),
            ..RateLimitPatch::default()
        };
        door.change(door.callers.patch_rate_limit(limit, patch));
    });
    assert_eq!(exempt.await, 0.0, "exempt");
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_are_refused_once_their_rate_limit_lets_no_call_wait() {
    let door = Arc::new(Door::open(""));
    let now = door.clock.now();
    let limit = NewRateLimit::of(size(3.0, 1.0));
    let limit = door.change(door.callers.create_rate_limit(now, limit));
    door.change(door.callers.create(named("poller", "poll*", Some(limit))));
    for _ in 0..3 {
        door.pass(&who("poll"), "guest_list").await;
    }
    let mut calls = JoinSet::new();
    for _ in 0..10 {
        let door = Arc::clone(&door);
        calls.spawn(async move { door.call(&who("poll"), "guest_list").await });
    }
    let what = || format!("{:?}", door.gate.busy());
    support::until(|| door.gate.busy() == (0, 10), what).await;
    let patch = RateLimitPatch {
        handling: HandlingPatch {
            on_excess: Some(OnExcess::Reject),
            ..HandlingPatch::default()
        },
        ..RateLimitPatch::default()
    };
    let started = Instant::now();
    door.change(door.callers.patch_rate_limit(limit, patch));
    for (came, _record) in calls.join_all().await {
        let Came::Refused(refusal) = came else {
            panic!("it was let through");
        };
        assert_eq!(refusal.reason, Reason::RateLimited);
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(door.gate.busy(), (0, 0));
    let bucket = door.gate.bucket_now(limit.bucket()).expect("it is there");
    assert_eq!((bucket.waiting, bucket.counts.rejected), (0, 10));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_the_queue_spends_no_token() {
    let (door, calls) = waiting(100).await;
    let before = door.tokens(1);
    drop(calls);
    let what = || format!("{:?}", door.gate.busy());
    support::until(|| door.gate.busy() == (0, 0), what).await;
    let bucket = door.gate.bucket_now(RateLimitId(1).bucket());
    let bucket = bucket.expect("it is there");
    assert_eq!((bucket.waiting, bucket.counts.charged), (0, 1));
    assert!(bucket.tokens >= before);
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_is_never_sent_and_spends_nothing() {
    let mut backend = Held::start(OK).await;
    let more = r#"
        [[bucket]]
        name = "slow"
        burst = 1
        fill = 0.001
        max_wait = "none"
        [[caller]]
        label = "everybody"
        match = { listener = "nova" }
        rate_limit = "slow"
    "#;
    let stack = Stack::start(&text(backend.backend.addr, more));
    let mut first = TcpStream::connect(stack.addr).await.expect("it listens");
    send(&mut first, &array("guest_list", "A")).await;
    backend.next().await;
    let mut second = TcpStream::connect(stack.addr).await.expect("it listens");
    send(&mut second, &array("guest_list", "B")).await;
    stack.busy(1, 1).await;
    drop(second);
    stack.busy(1, 0).await;
    backend.go.notify_one();
    read_all(&mut first).await;
    let facts = stack.seen.ended(2).await;
    let aborted = facts.iter().find(|it| it.verdict == Verdict::Aborted);
    assert_eq!(aborted.expect("the second").sent, None);
    let bucket = stack.gate.bucket_now(RateLimitId(1).bucket());
    assert_eq!(bucket.expect("it is there").counts.charged, 1);
}

async fn send(stream: &mut TcpStream, text: &str) {
    use tokio::io::AsyncWriteExt;
    stream.write_all(text.as_bytes()).await.expect("it reads");
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_rotating_agents_evict_no_other_caller_and_leave_no_extra_rows() {
    let door = Door::open(&format!("{POLLER}\n[callers]\nauto_register = 20"));
    for number in 0..10_000 {
        // A thousand a second.
        tokio::time::advance(Duration::from_millis(1)).await;
        door.pass(&who(&format!("rotates/{number}")), "guest_list")
            .await;
        if number % 100 == 0 {
            door.pass(&who("poll/1"), "guest_list").await;
        }
    }
    let registered = door.callers.registered();
    assert_eq!(registered.auto, 20);
    assert_eq!(registered.from_config, 1);
    // Ten a second, over ten seconds, except those that there is room for.
    assert!(registered.evicted <= 110 - 20, "{registered:?}");
    let callers = door.callers.all(door.clock.now());
    assert_eq!(callers.len(), 22, "those, poller, and the unknown row");
    let find = |name: &str| callers.iter().find(|it| it.row.name() == name);
    let poller = find("poller").expect("it is never forgotten");
    assert_eq!(poller.usage.total.calls, 100);
    let unknown = find("(unknown)").expect("it is always there");
    assert!(unknown.usage.total.calls > 9_800);
}

#[tokio::test]
async fn a_forged_header_changes_neither_caller_nor_charge() {
    let backend = Scripted::start(|_, _| async {}).await;
    let more = r#"
        [[bucket]]
        name = "none"
        profile = "unlimited"
        [[bucket]]
        name = "local"
        burst = 1
        fill = 0.001
        [[caller]]
        label = "the boss"
        match = { ip = "10.9.9.9" }
        rate_limit = "none"
        [[caller]]
        label = "this machine"
        match = { ip = "127.0.0.0/8" }
        rate_limit = "local"
    "#;
    let stack = Stack::start(&text(backend.addr, more));
    for header in ["X-Forwarded-For: 10.9.9.9", "Forwarded: for=10.9.9.9"] {
        let request =
            format!("GET /guests HTTP/1.1\r\nHost: x\r\n{header}\r\nConnection: close\r\n\r\n");
        // The second cannot have a token in time, and is refused.
        stack.ask(request).await;
    }
    let facts = stack.seen.ended(2).await;
    for facts in facts {
        let claim = facts.claim.expect("it was a request");
        assert_eq!(claim.rate_limit().map(|it| &**it), Some("local"));
    }
    let boss = stack.callers.get(stack.clock.now(), CallerId(1));
    assert_eq!(boss.expect("it is there").usage.total.calls, 0);
}

#[tokio::test]
async fn a_request_without_function_costs_the_default_and_post_token_is_only_counted() {
    let backend = Scripted::start(|_, _| async {}).await;
    let more = r#"
        [[listen]]
        name = "raw"
        bind = "127.0.0.1:0"
        protocol = "tcp"
        [costs]
        default = 3
        [[bucket]]
        name = "all"
        burst = 100
        fill = 0.000001
        [[caller]]
        label = "everybody"
        match = { ip = "127.0.0.1" }
        rate_limit = "all"
    "#;
    let config = text(backend.addr, more)
        .replace("[queue]", &format!("tcp = \"{}\"\n[queue]", backend.addr));
    let stack = Stack::start(&config);
    let get = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    };
    ask(stack.addr, get("/unknown/to/the/table")).await;
    ask(stack.addr, get("/token")).await;
    drop(
        TcpStream::connect(stack.addrs[1])
            .await
            .expect("it listens"),
    );
    let facts = stack.seen.ended(3).await;
    let mut costs: Vec<_> = facts
        .iter()
        .map(|facts| {
            let claim = facts.claim.as_ref().expect("it was a request");
            (
                facts.dialect.label(),
                claim.cost.tokens(),
                claim.charged == Charged::Nothing,
            )
        })
        .collect();
    costs.sort_by(|a, b| a.partial_cmp(b).expect("no NaN"));
    assert_eq!(
        costs,
        [
            ("http", 0.0, true),
            ("http", 3.0, false),
            ("tcp", 3.0, false)
        ]
    );
    let caller = stack.callers.get(stack.clock.now(), CallerId(1));
    let total = caller.expect("it is there").usage.total;
    assert_eq!((total.calls, total.tokens.tokens()), (3, 6.0));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_settled_by_the_time_it_took_within_bounds() {
    let more = r#"
        [costs]
        settle = true
        functions = { guest_start = 20 }
        [[bucket]]
        name = "all"
        burst = 100
        fill = 0.000001
        [[caller]]
        label = "everybody"
        match = { listener = "nova" }
        rate_limit = "all"
    "#;
    // One token for each 0.1 s: less than estimated, more, and more than five times as much.
    for (seconds, charged) in [(0.5, 5.0), (3.0, 30.0), (30.0, 100.0)] {
        let door = Door::open(more);
        let (came, record) = door.call(&who("a"), "guest_start").await;
        let Came::Through(mut permit) = came else {
            panic!("nothing is in the way");
        };
        assert!((door.tokens(1) - 80.0).abs() < 0.001, "estimated");
        permit.sent();
        tokio::time::advance(Duration::from_secs_f64(seconds)).await;
        permit.finish(Outcome::Served);
        assert!(
            (door.tokens(1) - (100.0 - charged)).abs() < 0.001,
            "{seconds} s"
        );
        drop(record);
        let caller = door.callers.get(door.clock.now(), CallerId(1));
        let total = caller.expect("it is there").usage.total;
        assert_eq!(total.tokens.tokens(), charged);
        let costs = door.callers.suggested_costs(door.clock.now());
        assert_eq!(costs[0].call, "guest_start");
        assert_eq!(costs[0].mean_seconds, seconds);
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_without_a_deadline_serves_everybody_in_the_end() {
    let (door, calls) = waiting(3).await;
    let started = Instant::now();
    calls.join_all().await;
    let took = started.elapsed().as_secs_f64();
    assert!(
        (took - 300.0).abs() < 1.0,
        "far beyond max_wait, 60 s: {took} s"
    );
    assert!(door.tokens(1) < 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_ids_tokens_statistics_and_what_the_api_made() {
    let door = Door::open(POLLER);
    for _ in 0..8 {
        door.pass(&who("poll"), "guest_list").await;
    }
    let made = door.change(
        door.callers
            .create_rate_limit(door.clock.now(), NewRateLimit::of(size(5.0, 1.0))),
    );
    let caller = door.change(door.callers.create(named("mine", "mine", Some(made))));
    let again = POLLER
        .replace("fill = 40", "fill = 50")
        .replace("poll*", "poll/*");
    door.change(door.callers.apply(&config(&again).callers));
    assert_eq!(door.tokens(1), 2.0);
    let poller = door.callers.get(door.clock.now(), CallerId(1));
    let poller = poller.expect("it is there");
    assert_eq!(*poller.row.patterns, [agent("poll/*")]);
    assert_eq!(poller.usage.total.calls, 8);
    let mine = door.callers.get(door.clock.now(), caller);
    assert_eq!(mine.expect("it is there").row.charge.limit(), Some(made));

    door.change(door.callers.apply(&config("").callers));
    assert_eq!(door.gate.bucket_now(RateLimitId(1).bucket()), None);
    assert!(door.gate.bucket_now(made.bucket()).is_some());
    assert!(door.callers.get(door.clock.now(), CallerId(1)).is_err());
}

#[tokio::test(start_paused = true)]
async fn after_a_merge_a_group_has_used_what_its_caller_has() {
    let door = Door::open("");
    let watched: Group = Group::new("watched").expect("a name");
    let plain = door.change(door.callers.create(named("plain", "plain*", None)));
    let mut new = named("grouped", "grouped*", None);
    new.groups = vec![watched.clone()];
    let grouped = door.change(door.callers.create(new));
    let mut new = named("other", "other*", None);
    new.groups = vec![Group::new("others").expect("a name"), watched.clone()];
    let other = door.change(door.callers.create(new));
    for (agent, calls) in [("plain", 5), ("grouped", 3), ("other", 2)] {
        for _ in 0..calls {
            door.pass(&who(agent), "guest_list").await;
        }
    }
    let now = || door.clock.now();
    let of_group = |group: &str| {
        let used = door.callers.group_usage(now(), group).expect("a group");
        (used.total.calls, used.over(UsageSpan::Hour).tally.calls)
    };
    assert_eq!(of_group("watched"), (5, 5));
    // One that was in no group, and one that brings a group along.
    door.change(door.callers.merge(grouped, &[plain, other], None));
    let merged = door.callers.get(now(), grouped).expect("it stays");
    assert_eq!(merged.usage.total.calls, 10);
    assert_eq!(merged.row.groups.len(), 2);
    assert_eq!(of_group("watched"), (10, 10));
    assert_eq!(of_group("others"), (10, 10));
    door.pass(&who("other"), "guest_list").await;
    assert_eq!(of_group("watched"), (11, 11));
    assert_eq!(of_group("others"), (11, 11));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_joins_or_leaves_a_group_brings_or_takes_what_it_used() {
    let door = Door::open("");
    let watched: Group = Group::new("watched").expect("a name");
    let mut new = named("stays", "stays*", None);
    new.groups = vec![watched.clone()];
    door.change(door.callers.create(new));
    let joins = door.change(door.callers.create(named("joins", "joins*", None)));
    for (agent, calls) in [("stays", 3), ("joins", 8)] {
        for _ in 0..calls {
            door.pass(&who(agent), "guest_list").await;
        }
    }
    let of_group = |group: &str| {
        let used = door.callers.group_usage(door.clock.now(), group);
        used.map(|used| (used.total.calls, used.over(UsageSpan::Hour).tally.calls))
    };
    let regroup = |groups: &[&Group]| {
        let patch = Patch {
            groups: Some(groups.iter().copied().cloned().collect()),
            ..Patch::default()
        };
        door.change(door.callers.patch(joins, patch));
    };
    assert_eq!(of_group("watched"), Some((3, 3)));
    regroup(&[&watched]);
    assert_eq!(of_group("watched"), Some((11, 11)));
    // The same again changes nothing.
    regroup(&[&watched]);
    assert_eq!(of_group("watched"), Some((11, 11)));
    regroup(&[]);
    assert_eq!(of_group("watched"), Some((3, 3)));
    door.pass(&who("joins"), "guest_list").await;
    regroup(&[&watched]);
    assert_eq!(of_group("watched"), Some((12, 12)));
    door.change(door.callers.delete(joins));
    assert_eq!(of_group("watched"), Some((3, 3)));
    // A reload with a caller of the config in the group, before and after it calls.
    let row = |group: &str| {
        format!("[[caller]]\nlabel = \"file\"\nmatch = {{ user_agent = \"file*\" }}\n{group}\n")
    };
    door.change(door.callers.apply(&config(&row("")).callers));
    door.pass(&who("file"), "guest_list").await;
    assert_eq!(of_group("watched"), Some((3, 3)));
    let with_group = config(&row("groups = [\"watched\", \"new\"]")).callers;
    door.change(door.callers.apply(&with_group));
    door.change(door.callers.apply(&with_group));
    assert_eq!(of_group("watched"), Some((4, 4)));
    assert_eq!(of_group("new"), Some((1, 1)));
    door.change(door.callers.apply(&config(&row("")).callers));
    assert_eq!(of_group("watched"), Some((3, 3)));
    assert_eq!(of_group("new"), None);
}

#[test]
fn after_a_restart_a_group_has_the_totals_of_its_callers() {
    let now = tidegate_limits::Timestamp::ZERO;
    let settings = config("").callers;
    let callers = Callers::start(&settings, None)
        .expect("there is room")
        .value;
    let mut new = named("mine", "mine", None);
    new.groups = vec![Group::new("watched").expect("a name")];
    let _ = callers.create(new).expect("it is right");
    callers.claim(now, &who("mine"), "guest_list", Meets::Limits);
    let saved = callers.saved(|_| 1);
    let again = Callers::start(&settings, Some(saved)).expect("there is room");
    let used = again.value.group_usage(now, "watched").expect("a group");
    assert_eq!(used.total.calls, 1);
}

#[test]
fn saved_callers_are_restored_and_the_config_wins() {
    let now = tidegate_limits::Timestamp::ZERO;
    let start = |more: &str, saved| {
        Callers::start(&config(more).callers, saved)
            .expect("there is room for them")
            .value
    };
    let callers = start(POLLER, None);
    let mut new = NewRateLimit::of(Size::Profile("batch".into()));
    new.label = Some(Label::new("mine").expect("a label"));
    let limit = callers.create_rate_limit(now, new).expect("it is right");
    let caller = callers.create(named("mine", "mine", Some(limit.value)));
    let caller = caller.expect("it is right").value;
    callers.claim(now, &who("mine"), "guest_list", Meets::Limits);
    let saved = callers.saved(|_| 1);
    assert_eq!(saved.costs, None);

    let twice = POLLER.replace(
        "name = \"poller\"",
        "name = \"first\"\nburst = 1\nfill = 1\n[[bucket]]\nname = \"poller\"",
    );
    let again = start(&twice, Some(saved.clone()));
    let limits = again.limits();
    let names: Vec<_> = limits.iter().map(|it| (it.id.0, &*it.label)).collect();
    // The first one is new, and gets an unused number.
    assert_eq!(names, [(1, "poller"), (2, "mine"), (3, "first")]);
    let kept = again.get(now, caller).expect("it is there");
    assert_eq!(kept.row.charge.limit(), Some(limit.value));
    assert_eq!(kept.usage.total.calls, 1);
    let same = start(POLLER, Some(saved.clone()));
    assert_eq!(same.saved(|_| 1).callers.len(), saved.callers.len());
    assert_eq!(same.saved(|_| 1).rate_limits, saved.rate_limits);
}

#[test]
fn a_change_that_is_refused_names_its_field_and_changes_nothing() {
    let now = tidegate_limits::Timestamp::ZERO;
    let callers = Callers::start(&config(POLLER).callers, None)
        .expect("there is room for them")
        .value;
    let id =
        |changed: Result<ChangeResult<RateLimitId>, Error>| changed.expect("it is right").value;
    let limit = id(callers.create_rate_limit(now, NewRateLimit::of(size(1.0, 1.0))));
    let mine = callers
        .create(named("mine", "mine", None))
        .expect("right")
        .value;
    let before = callers.saved(|_| 0);
    let no_limit = RateLimitId(99);
    let label = |text: &str| Some(Label::new(text).expect("a label"));
    let labelled = |text| NewRateLimit {
        label: label(text),
        ..NewRateLimit::of(size(1.0, 1.0))
    };
    let with_callers = |callers: Vec<CallerId>| NewRateLimit {
        callers,
        ..NewRateLimit::of(size(1.0, 1.0))
    };
    let derived = NewRateLimit::of(Size::Derived(Derive {
        caller: mine,
        span: UsageSpan::Hour,
        headroom: tidegate_callers::Headroom::DEFAULT,
    }));
    let nothing = |error: Error| error.field().to_owned();
    let field =
        |result: Result<ChangeResult<RateLimitId>, Error>| result.map(drop).map_err(nothing);
    let unit = |result: Result<ChangeResult<()>, Error>| result.map(drop).map_err(nothing);
    let new = |result: Result<ChangeResult<CallerId>, Error>| result.map(drop).map_err(nothing);
    let attached = Patch {
        charge: Some(Charge::Limit(no_limit)),
        ..Patch::default()
    };
    for (result, wrong) in [
        (new(callers.create(named("x", "x", Some(no_limit)))), "id"),
        (new(callers.create(named("x", "mine", None))), "match"),
        (unit(callers.patch(mine, attached)), "id"),
        (unit(callers.patch(CallerId(99), Patch::default())), "id"),
        (unit(callers.delete(CallerId(1))), "id"),
        (unit(callers.merge(mine, &[mine], None)), "from"),
        (
            field(callers.create_rate_limit(now, labelled("poller"))),
            "label",
        ),
        (
            field(callers.create_rate_limit(now, labelled("r7"))),
            "label",
        ),
        (
            field(callers.create_rate_limit(now, with_callers(vec![mine, CallerId(99)]))),
            "id",
        ),
        (
            field(callers.create_rate_limit(now, with_callers(vec![mine, CallerId(1)]))),
            "id",
        ),
        (field(callers.create_rate_limit(now, derived)), "caller"),
        (
            field(callers.create_rate_limit(now, NewRateLimit::of(Size::Profile("p".into())))),
            "profile",
        ),
        (
            unit(callers.patch_rate_limit(no_limit, RateLimitPatch::default())),
            "id",
        ),
        (
            unit(callers.patch_rate_limit(RateLimitId(1), RateLimitPatch::default())),
            "id",
        ),
        (unit(callers.delete_rate_limit(RateLimitId(1))), "id"),
        (unit(callers.delete_rate_limit(no_limit)), "id"),
        (unit(callers.attach(limit, CallerId(1))), "id"),
        (unit(callers.attach(no_limit, mine)), "id"),
        (unit(callers.detach(limit, mine)), "callers"),
    ] {
        assert_eq!(result, Err(wrong.to_owned()));
        assert_eq!(callers.saved(|_| 0), before, "{wrong}");
    }
}

#[test]
fn costs_of_more_functions_than_have_names_are_refused_and_nothing_changes() {
    let callers = Callers::start(&config("").callers, None)
        .expect("there is no room")
        .value;
    let costs = |functions: u32| Costs {
        functions: (0..functions)
            .map(|number| (format!("f{number}").into(), TokenCount::ONE))
            .collect(),
        ..Costs::default()
    };
    let wrong = callers.put_costs(costs(4097)).expect_err("too many");
    assert_eq!(wrong.field(), "functions");
    assert_eq!(callers.costs(), Costs::default());
    // The names of the config's functions take some of the room.
    assert!(callers.put_costs(costs(3500)).is_ok());
}

#[test]
fn costs_of_the_api_stay_until_the_config_says_others() {
    let with = |cost: u32| config(&format!("[costs]\ndefault = {cost}")).callers;
    let callers = Callers::start(&with(2), None).expect("there is room").value;
    let cost = || {
        let now = tidegate_limits::Timestamp::ZERO;
        let claim = callers.claim(now, &who("a"), "new_one", Meets::Limits);
        claim.cost
    };
    let token = |tokens| TokenCount::new(tokens).expect("a count");
    assert_eq!(cost(), token(2.0));
    let given = Costs {
        default: token(5.0),
        functions: [("new_one".into(), token(7.5))].into(),
        unit: CostUnit::default(),
        settle: false,
    };
    let _ = callers.put_costs(given).expect("it is right");
    assert_eq!(cost(), token(7.5));
    let _ = callers.apply(&with(2)).expect("there is room");
    assert_eq!(cost(), token(7.5));
    let _ = callers.apply(&with(3)).expect("there is room");
    assert_eq!(cost(), token(3.0));
}

#[test]
fn a_change_of_a_rate_limit_lists_what_its_bucket_must_follow() {
    let now = tidegate_limits::Timestamp::ZERO;
    let callers = Callers::start(&config("").callers, None)
        .expect("there is no room")
        .value;
    let made = callers
        .create_rate_limit(now, NewRateLimit::of(Size::Profile("poller".into())))
        .expect("it is right");
    let [BucketChange::Set(bucket, rule, _)] = &made.buckets[..] else {
        panic!("{:?}", made.buckets);
    };
    assert_eq!(*bucket, made.value.bucket());
    assert_eq!(&*rule.name, "rate_limit:r1");
    assert_eq!((rule.limit.most(), rule.limit.per_second()), (30.0, 3.0));
    let patch = |patch| {
        callers
            .patch_rate_limit(made.value, patch)
            .expect("right")
            .buckets
    };
    assert_eq!(patch(RateLimitPatch::default()), []);
    let changed = patch(RateLimitPatch {
        handling: HandlingPatch {
            mode: Some(LimitMode::Observe),
            on_excess: Some(OnExcess::Reject),
            ..HandlingPatch::default()
        },
        label: Some(Label::new("new").expect("a label")),
        ..RateLimitPatch::default()
    });
    let [BucketChange::Set(_, rule, mode)] = &changed[..] else {
        panic!("{changed:?}");
    };
    assert_eq!(&*rule.name, "rate_limit:new");
    assert_eq!(
        (*mode, rule.on_excess),
        (LimitMode::Observe, OnExcess::Reject)
    );
    let exempt = patch(RateLimitPatch {
        size: Some(SizePatch::Exempt),
        ..RateLimitPatch::default()
    });
    assert_eq!(exempt, [BucketChange::Remove(made.value.bucket())]);
    let fill_alone = RateLimitPatch {
        size: Some(SizePatch::Bucket {
            burst: None,
            fill: Fill::new(1.0).ok(),
        }),
        ..RateLimitPatch::default()
    };
    let refused = callers.patch_rate_limit(made.value, fill_alone);
    assert_eq!(refused.expect_err("it has no burst").field(), "burst");
}
