//! Quotas in sidecars: what several of them admit together, what they do while the store is
//! unavailable, and what operators see. The store is in memory and controlled by the test;
//! `stores` has the real ones.

mod away;
mod secured;
mod shown;
mod stores;

use std::cell::Cell;
use std::future::{Future, pending};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate::app::{App, Predecessor, Surroundings};
use tidegate_limits::Timestamp;
use tidegate_limits::quota::{QuotaRecord, RecordVersion, StoreTime};
use tidegate_quota::memory::{self, Memory};
use tidegate_quota::{
    self as store, Engine, QuotaStore, RecordKey, StoreEntry, StoreError, SwapResult,
};
use tidegate_runtime::Clock;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::{self, Answer, PATIENCE, Scripted, config, one_listener};

/// So long that no test sees the end of a window by the clock of a host.
const LONG: &str = "7200h";

/// A store's reaction to any request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Answers,
    /// The store reports at once that it cannot answer.
    Away,
    /// The store does not answer.
    Hangs,
    /// The store answers what no store answers.
    Garbage,
    /// The store requires another user.
    Unauthenticated,
    /// The store accepts the user, and allows no operation.
    Denied,
    /// The store answers reads, and does not write.
    ReadsOnly,
}

/// The way of a sidecar to a store in memory.
struct Switch {
    node: memory::MemoryNode,
    time: watch::Sender<StoreTime>,
    clock: Clock,
    epoch: Instant,
    /// The time by which the store's clock is ahead since then.
    ahead: Arc<Mutex<Duration>>,
    mode: watch::Sender<Mode>,
    asked: AtomicUsize,
}

impl Switch {
    fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// How many questions have come.
    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn mode(&self) -> Mode {
        *self.mode.borrow()
    }

    /// As every answer of a real store does.
    fn tell_time(&self) {
        let ahead = *self.ahead.lock().expect("no test panics with it");
        let now = self.epoch.elapsed() + ahead;
        let time = StoreTime::between(self.clock.now(), now, now);
        self.time.send_replace(time);
    }

    async fn answers(&self) -> Result<(), StoreError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mode = *self.mode.borrow();
        match mode {
            Mode::Answers | Mode::ReadsOnly => {
                self.tell_time();
                Ok(())
            }
            Mode::Away => Err(StoreError::Unavailable("connection refused".into())),
            Mode::Hangs => pending().await,
            Mode::Garbage => Err(StoreError::Garbage("HTTP/1.1 400 Bad Request".into())),
            Mode::Unauthenticated => Err(StoreError::Unauthenticated("NOAUTH".into())),
            Mode::Denied => Err(StoreError::Denied("NOPERM".into())),
        }
    }
}

impl QuotaStore for Switch {
    fn get<'a>(&'a self, key: &'a RecordKey) -> store::StoreCall<'a, Option<StoreEntry>> {
        Box::pin(async move {
            self.answers().await?;
            self.node.get(key).await
        })
    }

    fn compare_and_set<'a>(
        &'a self,
        key: &'a RecordKey,
        expected: Option<RecordVersion>,
        text: &'a [u8],
        kept_until: Duration,
    ) -> store::StoreCall<'a, SwapResult> {
        Box::pin(async move {
            self.answers().await?;
            if self.mode() == Mode::ReadsOnly {
                return Err(StoreError::Unavailable("READONLY".into()));
            }
            let node = &self.node;
            node.compare_and_set(key, expected, text, kept_until).await
        })
    }

    fn try_out(&self) -> store::StoreCall<'_, ()> {
        Box::pin(async move {
            self.answers().await?;
            match self.mode() {
                Mode::ReadsOnly => Err(StoreError::Unavailable("READONLY".into())),
                _ => Ok(()),
            }
        })
    }

    fn time(&self) -> watch::Receiver<StoreTime> {
        self.time.subscribe()
    }

    fn changed<'a>(
        &'a self,
        key: &'a RecordKey,
        since: Option<RecordVersion>,
    ) -> store::StoreCall<'a, ()> {
        self.node.changed(key, since)
    }

    fn members(&self) -> watch::Receiver<usize> {
        self.node.members()
    }

    fn member_lifetime(&self) -> Duration {
        self.node.member_lifetime()
    }

    fn trouble(&self) -> Option<(Timestamp, Arc<str>)> {
        self.node.trouble()
    }

    fn evictions(&self) -> Option<u64> {
        self.node.evictions()
    }

    fn configures(&self) -> bool {
        self.node.configures()
    }

    fn configured<'a>(
        &'a self,
        key: &'a RecordKey,
        known: &'a store::StoredSettings,
    ) -> store::StoreCall<'a, store::StoredSettings> {
        self.node.configured(key, known)
    }
}

/// A store in memory whose time began when it was made, so far into its first window.
struct Rig {
    memory: Memory,
    epoch: Instant,
    ahead: Arc<Mutex<Duration>>,
    backend: Scripted,
}

impl Rig {
    async fn start() -> Self {
        Self {
            memory: Memory::default(),
            epoch: Instant::now(),
            ahead: Arc::default(),
            backend: Scripted::in_both_dialects().await,
        }
    }

    /// The store's time.
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// The config of a sidecar. Its engine is none that anybody connects to.
    fn text(&self, quota: &str, limits: &str) -> String {
        let quota = format!("engine = \"etcd\"\nservers = [\"http://127.0.0.1:1\"]\n{quota}");
        text(self.backend.addr, &quota, limits)
    }

    /// Starts one more sidecar.
    fn sidecar(&self, quota: &str, limits: &str) -> Sidecar {
        self.sidecar_of(&self.text(quota, limits))
    }

    fn sidecar_of(&self, text: &str) -> Sidecar {
        self.sidecar_from(text, Mode::Answers)
    }

    /// Starts one more sidecar with a store that begins like this.
    fn sidecar_from(&self, text: &str, mode: Mode) -> Sidecar {
        let (memory, epoch) = (self.memory.clone(), self.epoch);
        let ahead = Arc::clone(&self.ahead);
        let opened = Arc::new(Mutex::new(None));
        let open_to = Arc::clone(&opened);
        let open = move |_: &Engine, clock: Clock| -> Arc<dyn QuotaStore> {
            let node = memory.node();
            let switch = Arc::new(Switch {
                node,
                time: watch::Sender::default(),
                clock,
                epoch,
                ahead: Arc::clone(&ahead),
                mode: watch::channel(mode).0,
                asked: AtomicUsize::new(0),
            });
            if mode != Mode::Denied {
                switch.tell_time();
            }
            *open_to.lock().expect("no test panics with it") = Some(Arc::clone(&switch));
            switch
        };
        let surroundings = Surroundings {
            open: Box::new(open),
            ..Surroundings::real()
        };
        let app = App::start_in(config(text), None, Predecessor::default(), surroundings);
        let app = app.expect("it starts");
        let store = opened.lock().expect("no test panics with it").take();
        Sidecar {
            address: app.listeners()[0].1.tcp().expect("it listens on TCP"),
            store,
            app,
        }
    }

    /// The record of a key, by its name in the store.
    async fn record(&self, namespace: Option<&str>, id: &str) -> Option<QuotaRecord> {
        let key = RecordKey::within(namespace, id).expect("it is a key");
        let found = self.memory.node().get(&key).await;
        let entry = found.expect("it is up")?;
        Some(QuotaRecord::parse(&entry.text).expect("it is a record"))
    }
}

/// The config of a sidecar of which every call says its user.
fn text(backend: SocketAddr, quota: &str, limits: &str) -> String {
    let more = format!("[quota_store]\n{quota}\n{limits}");
    one_listener(backend, "user_from = \"basic\"", &more)
}

/// A quota by that name.
fn limit(name: &str, applies_to: &str, total: u64, window: &str, more: &str) -> String {
    format!(
        r#"
        [[quota]]
        name = "{name}"
        applies_to = "{applies_to}"
        total = {total}
        refresh_window = "{window}"
        {more}
        "#
    )
}

/// A proxy in this process.
struct Sidecar {
    app: App,
    address: SocketAddr,
    /// In memory; the test decides its reactions.
    store: Option<Arc<Switch>>,
}

impl Sidecar {
    /// A sidecar with the store that its config names.
    fn with_store(text: &str) -> Self {
        let app = App::start(config(text), None).expect("it starts");
        Self {
            address: app.listeners()[0].1.tcp().expect("it listens on TCP"),
            store: None,
            app,
        }
    }

    fn store(&self) -> &Switch {
        self.store.as_deref().expect("it is in memory")
    }

    /// Makes a call of a user over HTTP; without a user if the name is empty.
    async fn call(&self, user: &str) -> Answer {
        call(self.address, user).await
    }

    /// So many calls at once; returns how many got through. The others met an empty quota, or one
    /// whose store is unavailable.
    async fn calls(&self, user: &str, count: usize) -> usize {
        let mut calls = JoinSet::new();
        for _ in 0..count {
            let (address, user) = (self.address, user.to_owned());
            calls.spawn(async move { call(address, &user).await });
        }
        let mut passed = 0;
        loop {
            let next = tokio::time::timeout(PATIENCE / 2, calls.join_next()).await;
            let Ok(next) = next else {
                panic!("calls wait on: {:#}", self.quotas().await);
            };
            let Some(status) = next else { break };
            let answer = status.expect("a call ends");
            match answer.status {
                200 => passed += 1,
                429 => {}
                503 if answer.body.contains("quota_store_away") => {}
                other => panic!("{other}"),
            }
        }
        passed
    }

    async fn get(&self, path: &str) -> Answer {
        let admin = self.app.admin().expect("it has an admin address");
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        Answer::read(support::ask(admin, request).await.as_bytes())
    }

    /// The quotas as operators see them.
    async fn quotas(&self) -> Value {
        self.get("/v1/quotas").await.is(200).json()
    }

    /// A key of a quota as operators see it.
    async fn key(&self, quota: &str, key: &str) -> Option<Value> {
        let quotas = self.quotas().await;
        let quotas = quotas["quotas"].as_array().expect("a list").clone();
        let of = |quota: &str| format!("rate_limit:{quota}");
        let quota = quotas.into_iter().find(|it| it["name"] == of(quota))?;
        let keys = quota["used_last"].as_array().expect("a list").clone();
        keys.into_iter().find(|it| it["key"] == key)
    }

    /// Waits until a key of a quota is seen to be so.
    async fn until_key(&self, quota: &str, key: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(async || self.key(quota, key).await.filter(&is_so)).await
    }

    /// A metric by its whole name with labels.
    async fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/metrics").await.body;
        let found = metrics
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("no {name} in\n{metrics}"))
    }
}

async fn call(address: SocketAddr, user: &str) -> Answer {
    let from = match user {
        "" => String::new(),
        user => format!("Authorization: Basic {}\r\n", base64(&format!("{user}:x"))),
    };
    let request = format!("GET /guests HTTP/1.1\r\nHost: a\r\n{from}Connection: close\r\n\r\n");
    Answer::read(support::ask(address, request).await.as_bytes())
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits = chunk
            .iter()
            .fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte))
            << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = DIGITS[bits >> (18 - 6 * at) & 63];
            let is_there = at <= chunk.len();
            encoded.push(if is_there { char::from(digit) } else { '=' });
        }
    }
    encoded
}

/// Looks until something is there to see.
async fn eventually<T, F: Future<Output = Option<T>>>(look: impl Fn() -> F) -> T {
    let started = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(started.elapsed() < PATIENCE, "never came about");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An uncovered call is refused at once, and no call passes undrawn. A draw has the time that a
/// busy machine needs.
const REJECT: &str = "on_excess = \"reject\"\nwhen_store_away = \"deny\"\ndraw_timeout = \"2s\"";
const ALONE: &str = "expected_sidecars = 1";
const TWO: &str = "expected_sidecars = 2";

#[tokio::test]
async fn two_sidecars_spend_one_budget_and_not_a_token_more() {
    let rig = Rig::start().await;
    let limits = limit("all", "total", 100, LONG, REJECT);
    let [a, b] = [rig.sidecar(TWO, &limits), rig.sidecar(TWO, &limits)];
    spend_exactly(&a, &b, "all", "all", 100).await;
    let record = rig.record(Some("total"), "all").await.expect("it was made");
    assert_eq!((record.left(), record.total()), (0, 100));
    // Each has drawn, and knows of the other.
    for sidecar in [&a, &b] {
        let told = sidecar.quotas().await;
        assert_eq!(told["store"]["members"], 2, "{told}");
        assert!(told["quotas"][0]["draws"].as_u64() > Some(0), "{told}");
    }
}

/// The store's clock steps back by an hour, on to where it was, and ahead. Of each window, by that
/// clock, no more than its total is spent.
#[tokio::test]
async fn no_window_is_overspent_at_any_step_of_the_stores_clock() {
    const HOUR: Duration = Duration::from_secs(3_600);
    const TOTAL: usize = 20;
    let rig = Rig::start().await;
    let set = |ahead: Duration| *rig.ahead.lock().expect("no test panics with it") = ahead;
    set(100 * HOUR);
    let sidecar = rig.sidecar(ALONE, &limit("all", "total", TOTAL as u64, "1h", REJECT));
    let mut spent = std::collections::BTreeMap::<u32, usize>::new();
    for hour in [100, 100, 99, 100, 98, 101, 100, 101, 150, 101] {
        set(hour * HOUR);
        sidecar.store().tell_time();
        *spent.entry(hour).or_default() += sidecar.calls("", 3 * TOTAL).await;
        for (hour, spent) in &spent {
            assert!(*spent <= TOTAL, "{spent} of {TOTAL} in hour {hour}");
        }
    }
    // Steps ahead begin windows that are spent whole.
    assert_eq!(
        (spent[&100], spent[&101], spent[&150]),
        (TOTAL, TOTAL, TOTAL)
    );
}

/// Two sidecars are asked for more than there is, until neither has anything left.
async fn spend_exactly(a: &Sidecar, b: &Sidecar, quota: &str, key: &str, total: usize) {
    let (of_a, of_b) = tokio::join!(a.calls("", total), b.calls("", total));
    let passed = Cell::new(of_a + of_b);
    // What one drew as the last calls came in is still to be spent. A store that is slow for a moment
    // refuses a call that could have passed.
    eventually(async || {
        passed.set(passed.get() + a.calls("", 1).await + b.calls("", 1).await);
        (passed.get() >= total).then_some(())
    })
    .await;
    let more = a.calls("", 5).await + b.calls("", 5).await;
    assert_eq!(passed.get() + more, total, "{of_a} and {of_b} at first");
    for sidecar in [a, b] {
        let key = sidecar.key(quota, key).await.expect("it is known");
        assert_eq!(key["held"], 0, "{key}");
    }
}

#[tokio::test]
async fn a_call_draws_from_both_of_its_quotas_or_from_neither() {
    let rig = Rig::start().await;
    let limits =
        limit("per_user", "user", 3, LONG, REJECT) + &limit("all", "total", 5, LONG, REJECT);
    let sidecar = rig.sidecar(TWO, &limits);
    assert_eq!(sidecar.calls("alice", 10).await, 3);
    // Alice's seven others took nothing from the common quota.
    assert_eq!(sidecar.calls("bob", 10).await, 2);
    let refused = sidecar.call("bob").await;
    assert!(refused.body.contains("rate_limit:all"), "{refused:?}");
    let refused = sidecar.call("alice").await;
    assert!(refused.body.contains("rate_limit:per_user"), "{refused:?}");
    // Bob's refused call took nothing from bob's own quota.
    let left = async |namespace: Option<&str>, quota: &str, key: &str| {
        let record = rig.record(namespace, key).await.expect("it was made");
        let held = sidecar.key(quota, key).await.expect("it is known")["held"].clone();
        record.left() + held.as_u64().expect("a number")
    };
    assert_eq!(left(None, "per_user", "alice").await, 0);
    assert_eq!(left(None, "per_user", "bob").await, 1);
    assert_eq!(left(Some("total"), "all", "all").await, 0);
}

#[tokio::test]
async fn calls_that_wait_go_on_with_the_next_window() {
    let rig = Rig::start().await;
    let window = Duration::from_secs(1);
    let limits = limit("all", "total", 2, "1s", "when_store_away = \"deny\"");
    let [a, b] = [rig.sidecar(TWO, &limits), rig.sidecar(TWO, &limits)];
    let mut calls = JoinSet::new();
    for number in 0..10 {
        let address = [a.address, b.address][number % 2];
        let epoch = rig.epoch;
        calls.spawn(async move {
            let answer = call(address, "").await;
            (answer.status, epoch.elapsed())
        });
    }
    let mut ended = Vec::new();
    while let Some(call) = calls.join_next().await {
        let (status, at) = call.expect("a call ends");
        assert_eq!(status, 200);
        ended.push(at);
    }
    // Ten calls at two a window take four whole windows between the first and the last two.
    let took = *ended.last().expect("ten calls") - ended[1];
    assert!(took > 3 * window, "{ended:?}");
    assert!(took < 6 * window, "{ended:?}");
    let waited = r#"tidegate_quota_decisions_total{how="waited",limit="rate_limit:all"}"#;
    let waited = a.metric(waited).await + b.metric(waited).await;
    assert!(waited >= 8.0, "{waited}");
}

#[tokio::test]
async fn a_refusal_names_the_quota_and_the_end_of_the_window_in_both_dialects() {
    let rig = Rig::start().await;
    let limits = limit("all", "total", 1, "1000s", REJECT);
    let sidecar = rig.sidecar(TWO, &limits);
    assert_eq!(sidecar.call("").await.status, 200);
    let refused = sidecar.call("").await;
    assert_eq!(refused.status, 429);
    let left = 1000.0 - rig.now().as_secs_f64();
    let after: f64 = refused
        .header("retry-after")
        .expect("it says when")
        .parse()
        .expect("a number");
    assert!((after - left).abs() < 2.0, "{after} and {left}");
    let array = support::array("guest_list", "A");
    let refused = support::json(&support::ask(sidecar.address, array).await);
    assert_eq!(refused["overallRC"], 503, "{refused}");
    let errmsg = refused["errmsg"].as_str().expect("a text");
    assert!(
        errmsg.contains("(limit rate_limit:all: rate_limited)"),
        "{errmsg}"
    );
    let after = refused["retryAfter"].as_f64().expect("a number");
    assert!((after - left).abs() < 2.0, "{after} and {left}");
}

#[tokio::test]
async fn users_beyond_the_bound_push_out_who_was_silent_longest() {
    let rig = Rig::start().await;
    let limits = limit("per_user", "user", 10, LONG, "when_store_away = \"deny\"");
    let sidecar = rig.sidecar(&format!("{ALONE}\nkeys_max = 10"), &limits);
    for user in 0..50 {
        assert_eq!(sidecar.calls(&format!("u{user}"), 1).await, 1);
    }
    let told = sidecar.quotas().await;
    let quota = &told["quotas"][0];
    assert_eq!(
        (&quota["keys"], &quota["keys_forgotten"]),
        (&10.into(), &40.into())
    );
    assert!(sidecar.key("per_user", "u49").await.is_some());
    assert!(sidecar.key("per_user", "u0").await.is_none());
    // A forgotten key is still in the store.
    assert!(rig.record(None, "u0").await.is_some());
}

#[tokio::test]
async fn every_user_has_a_record_and_so_has_no_user() {
    let rig = Rig::start().await;
    let limits = limit("per_user", "user", 1, LONG, REJECT);
    let sidecar = rig.sidecar(TWO, &limits);
    for user in ["a/b", "a%2Fb", "..", "t\u{fc}r", "a b", ""] {
        assert_eq!(sidecar.calls(user, 2).await, 1, "{user}");
        let record = rig.record(None, user).await.expect("it was made");
        assert_eq!(record.left(), 0, "{user}");
    }
}

#[tokio::test]
async fn a_new_total_holds_from_the_next_window_on_and_a_total_of_ones_own_is_kept() {
    let rig = Rig::start().await;
    let own = "totals = { alice = 5 }";
    let before = limit("per_user", "user", 2, "1s", &format!("{REJECT}\n{own}"));
    let sidecar = rig.sidecar(TWO, &before);
    let total = |total: u64| move |key: &Value| key["window_total"] == total;
    sidecar.calls("alice", 1).await;
    sidecar.calls("bob", 1).await;
    sidecar.until_key("per_user", "alice", total(5)).await;
    sidecar.until_key("per_user", "bob", total(2)).await;
    let after = limit("per_user", "user", 3, "1s", &format!("{REJECT}\n{own}"));
    let config = config(&rig.text(TWO, &after));
    sidecar.app.reload(config).expect("it is taken");
    for (user, expected) in [("bob", 3), ("alice", 5), ("carol", 3)] {
        eventually(async || {
            // Each window is opened by a call.
            sidecar.calls(user, 1).await;
            sidecar.key("per_user", user).await.filter(total(expected))
        })
        .await;
    }
}

#[tokio::test]
async fn an_optimistic_quota_lets_calls_pass_while_it_draws_and_refuses_once_it_is_empty() {
    let rig = Rig::start().await;
    let limits = limit(
        "all",
        "total",
        20,
        "2s",
        &format!("{REJECT}\nmode = \"optimistic\"\nbase = 4"),
    );
    let sidecar = rig.sidecar(ALONE, &limits);
    // Not in the window in which it started.
    let started = rig.now();
    eventually(async || (rig.now().as_secs() / 2 > started.as_secs() / 2).then_some(())).await;
    let passed = sidecar.calls("", 100).await;
    assert!((20..=24).contains(&passed), "{passed}");
    assert_eq!(sidecar.calls("", 20).await, 0);
}

#[tokio::test]
async fn tokens_returned_to_the_store_wake_waiting_calls() {
    let rig = Rig::start().await;
    let limits = limit("all", "total", 3, "50s", "when_store_away = \"deny\"");
    let sidecar = rig.sidecar(ALONE, &limits);
    assert_eq!(sidecar.calls("", 3).await, 3);
    let address = sidecar.address;
    let waits = tokio::spawn(async move { call(address, "").await.status });
    sidecar
        .until_key("all", "all", |key| key["waiting"] == 1)
        .await;
    // As another sidecar does that has drawn more than it needs.
    let record = rig.record(Some("total"), "all").await.expect("it was made");
    let more = QuotaRecord::new(record.window(), 2, 3, 0, record.length()).expect("it can be");
    let key = RecordKey::within(Some("total"), "all").expect("it is a key");
    rig.memory.tamper(&key, Some(more.to_string().as_bytes()));
    let woken = tokio::time::timeout(PATIENCE, waits).await;
    assert_eq!(woken.expect("it is woken").expect("it ends"), 200);
}

#[tokio::test]
async fn a_quota_keeps_its_namespace_until_a_restart() {
    let rig = Rig::start().await;
    let named = |namespace: &str| {
        let more = format!("{REJECT}\nnamespace = \"{namespace}\"");
        limit("all", "total", 3, LONG, &more)
    };
    let sidecar = rig.sidecar(TWO, &named("before"));
    assert_eq!(sidecar.calls("", 2).await, 2);
    let config = config(&rig.text(TWO, &named("after")));
    sidecar.app.reload(config).expect("it is taken");
    assert_eq!(sidecar.calls("", 10).await, 1);
    assert!(rig.record(Some("before"), "all").await.is_some());
    assert_eq!(rig.record(Some("after"), "all").await, None);
}

#[tokio::test]
async fn quotas_that_a_reload_brings_hold_from_then_on() {
    let rig = Rig::start().await;
    let without = one_listener(rig.backend.addr, "user_from = \"basic\"", "");
    let limits = limit("all", "total", 3, LONG, REJECT);
    let sidecar = rig.sidecar_of(&without);
    assert_eq!(sidecar.calls("", 10).await, 10);
    assert_eq!(sidecar.quotas().await["store"], Value::Null);
    let with = config(&rig.text(TWO, &limits));
    sidecar.app.reload(with).expect("it is taken");
    assert_eq!(sidecar.calls("", 10).await, 3);
}

#[tokio::test]
async fn quotas_removed_by_a_reload_delay_no_call_and_are_not_shown() {
    let rig = Rig::start().await;
    let limits = limit("all", "total", 1, "30s", "when_store_away = \"deny\"");
    let mut sidecar = rig.sidecar(TWO, &limits);
    assert_eq!(sidecar.calls("", 1).await, 1);
    let address = sidecar.address;
    let waits = tokio::spawn(async move { call(address, "").await });
    sidecar
        .until_key("all", "all", |key| key["waiting"] == 1)
        .await;
    let without = one_listener(rig.backend.addr, "user_from = \"basic\"", "");
    sidecar.app.reload(config(&without)).expect("it is taken");
    let answer = tokio::time::timeout(PATIENCE, waits).await;
    assert_eq!(answer.expect("it goes on").expect("it ends").status, 200);
    let told = sidecar.quotas().await;
    assert_eq!(told, serde_json::json!({"store": null, "quotas": []}));
    let metrics = sidecar.get("/metrics").await.body;
    assert!(
        !metrics.contains("tidegate_quota_draws_total{"),
        "{metrics}"
    );
    // It is no longer a member when no task here holds its store.
    sidecar.store = None;
    let node = rig.memory.node();
    let mut members = node.members();
    let left = members.wait_for(|members| *members == 1);
    let left = tokio::time::timeout(PATIENCE, left).await;
    assert!(left.is_ok_and(|left| left.is_ok()), "it does not leave");
}
