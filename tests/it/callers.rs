//! The callers and their charges, through the stages.

mod table;
mod waiting;

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
