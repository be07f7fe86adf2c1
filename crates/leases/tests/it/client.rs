//! The lease client against scripted servers, in paused time.

mod example;
pub(crate) mod mock;

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_leases::client::{
    AfterExpiry, Allowance, ClientMetrics, ClientOptions, LeaseClient, OpenError, RateResource,
    ResourceOptions, SafeCapacity, Tokens, WaitError,
};
use tidegate_runtime::Clock;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep, timeout};

use self::mock::{Mock, Network};

const SECOND: Duration = Duration::from_secs(1);

/// A client of these addresses.
fn client_of(network: &Network, servers: &[&str]) -> LeaseClient {
    let options = ClientOptions {
        dial: Arc::new(network.clone()),
        ..ClientOptions::default()
    };
    let servers = servers
        .iter()
        .map(|server| server.parse().expect("an address"));
    LeaseClient::with_clock(servers.collect(), options, Clock::of_runtime()).expect("a client")
}

/// A server, and a client of it.
fn one_server() -> (Mock, LeaseClient) {
    let network = Network::default();
    let mock = network.add("a:1");
    (mock, client_of(&network, &["a:1"]))
}

fn wants(wants: f64) -> ResourceOptions {
    ResourceOptions {
        wants: Some(wants),
        ..ResourceOptions::default()
    }
}

/// Passes once something is so; time is paused, so it passes as soon as it can.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let waited = timeout(120 * SECOND, async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(waited.await.is_ok(), "never: {what}");
}

/// Whether a future is ready without any time passing.
async fn is_ready_now<T>(future: impl Future<Output = T>) -> bool {
    timeout(Duration::ZERO, future).await.is_ok()
}

/// Who was let through, and when.
type Passed = Arc<Mutex<Vec<(usize, Instant)>>>;

/// Starts this many waiters, in order; each notes its number and when it was let through.
fn line(rate: &RateResource, count: usize) -> (JoinSet<()>, Passed) {
    let passed = Passed::default();
    let mut waiters = JoinSet::new();
    for number in 0..count {
        let (rate, passed) = (rate.clone(), Arc::clone(&passed));
        waiters.spawn(async move {
            rate.wait().await.expect("the client is open");
            let mut passed = passed.lock().expect("no thread panics inside");
            passed.push((number, Instant::now()));
        });
    }
    (waiters, passed)
}

#[tokio::test(start_paused = true)]
async fn a_leased_rate_is_kept_within_one_percent_where_the_source_had_up_to_twice_as_much() {
    // 75, 99 and 149 came to 108, 167 and 196 a second there, and 100 to 84.
    for per_second in [0.5, 10.0, 75.0, 99.0, 100.0, 149.0, 999.0, 5000.0] {
        let (mock, client) = one_server();
        mock.lock().capacity = per_second;
        let rate = client.rate("r", wants(1e6)).expect("a resource");
        let (_waiters, passed) = line(&rate, (per_second * 8.0) as usize + 2);
        sleep(7 * SECOND).await;
        let passed = passed.lock().expect("no thread panics inside");
        let first = passed[0].1;
        let spent = |at: &Instant| at.duration_since(first);
        let within = passed
            .iter()
            .filter(|(_, at)| spent(at) < 6 * SECOND)
            .count() as f64;
        let expected = per_second * 6.0;
        let error = (within - expected).abs() / expected;
        assert!(error <= 0.01, "{per_second}/s let {within} through in 6 s");
        assert!(
            passed.is_sorted_by_key(|&(number, _)| number),
            "first come, first served"
        );
        // And evenly: no tenth of a second has more than its share and a pool.
        let mut start = 0;
        let pool = 2.0 + per_second * 0.012;
        for (end, (_, at)) in passed.iter().enumerate() {
            while at.duration_since(passed[start].1) >= SECOND / 10 {
                start += 1;
            }
            let in_a_tenth = (end - start + 1) as f64;
            assert!(
                in_a_tenth <= per_second / 10.0 + pool,
                "{in_a_tenth} at {per_second}/s"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_user_that_leaves_the_line_costs_the_others_nothing() {
    let (mock, client) = one_server();
    mock.lock().capacity = 100.0;
    let rate = client.rate("r", wants(1e6)).expect("a resource");
    rate.wait().await.expect("the first");
    let began = Instant::now();
    let mut passed = 0;
    let mut left = 0;
    // Every other one leaves 3 ms after it has become the first in line.
    while began.elapsed() < 6 * SECOND {
        if timeout(Duration::from_millis(3), rate.wait()).await.is_ok() {
            passed += 1;
        } else {
            left += 1;
        }
        if began.elapsed() < 6 * SECOND {
            rate.wait().await.expect("the client is open");
            passed += 1;
        }
    }
    assert!(left > 200, "{left} left");
    assert!((594..=606).contains(&passed), "{passed} passed");
    assert_eq!(rate.state().waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_drop_anywhere_in_line_keeps_the_order_of_the_others() {
    let (mock, client) = one_server();
    mock.lock().capacity = 10.0;
    let rate = client.rate("r", wants(100.0)).expect("a resource");
    let passed = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..40 {
        let (rate, passed) = (rate.clone(), Arc::clone(&passed));
        waiters.push(tokio::spawn(async move {
            rate.wait().await.expect("the client is open");
            passed.lock().expect("no thread panics inside").push(number);
        }));
    }
    sleep(Duration::from_millis(450)).await;
    for (number, waiter) in waiters.iter().enumerate() {
        if number % 2 == 1 {
            waiter.abort();
        }
    }
    until("no user waits", || rate.state().waiting == 0).await;
    let passed = passed.lock().expect("no thread panics inside");
    let expected: Vec<i32> = (0..5).chain((6..40).step_by(2)).collect();
    assert_eq!(*passed, expected);
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_nothing_blocks_and_a_change_takes_effect_at_once() {
    let (mock, client) = one_server();
    mock.lock().capacity = 0.0;
    let rate = client.rate("r", wants(100.0)).expect("a resource");
    let (_waiters, passed) = line(&rate, 1000);
    let count = || passed.lock().expect("no thread panics inside").len();
    sleep(15 * SECOND).await;
    assert_eq!(count(), 0);
    mock.lock().capacity = 20.0;
    // The lease is renewed at 16 s.
    sleep(6 * SECOND).await;
    assert!((99..=102).contains(&count()), "{}", count());
    mock.lock().capacity = 2.0;
    sleep(11 * SECOND).await;
    let at_32_s = count();
    sleep(10 * SECOND).await;
    assert!(
        (19..=22).contains(&(count() - at_32_s)),
        "{}",
        count() - at_32_s
    );
}

#[tokio::test(start_paused = true)]
async fn an_expensive_operation_is_paid_for_by_those_behind_it() {
    let (mock, client) = one_server();
    mock.lock().capacity = 10.0;
    let rate = client.rate("r", wants(100.0)).expect("a resource");
    rate.wait().await.expect("the first");
    let began = Instant::now();
    let expensive = Tokens::new(50.0).expect("tokens");
    rate.wait_with_cost(expensive)
        .await
        .expect("the expensive one");
    assert_eq!(began.elapsed().as_millis(), 100);
    rate.wait().await.expect("the next");
    assert_eq!(began.elapsed().as_millis(), 5100);
}

#[tokio::test(start_paused = true)]
async fn a_gauge_has_as_many_places_as_are_whole_and_a_place_comes_back_once() {
    let (mock, client) = one_server();
    mock.lock().capacity = 2.9;
    let gauge = client.gauge("g", wants(10.0)).expect("a resource");
    let first = gauge.enter().await.expect("a place");
    let second = gauge.enter().await.expect("a place");
    assert!(!is_ready_now(gauge.enter()).await);
    assert_eq!(gauge.state().held, 2);
    drop(first);
    assert_eq!(gauge.state().held, 1);
    let third = gauge.enter().await.expect("the place that came back");
    assert!(!is_ready_now(gauge.enter()).await);
    drop((second, third));
    assert_eq!((gauge.state().held, gauge.state().waiting), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_smaller_lease_takes_no_place_away_but_admits_none_until_fewer_are_taken() {
    let (mock, client) = one_server();
    mock.lock().capacity = 3.0;
    let gauge = client.gauge("g", wants(10.0)).expect("a resource");
    let mut guards = Vec::new();
    for _ in 0..3 {
        guards.push(gauge.enter().await.expect("a place"));
    }
    mock.lock().capacity = 1.0;
    sleep(17 * SECOND).await;
    assert_eq!(gauge.state().allowance, Allowance::UpTo(1.0));
    assert_eq!(gauge.state().held, 3);
    let waiter = tokio::spawn({
        let gauge = gauge.clone();
        async move { gauge.enter().await }
    });
    for held in [2, 1] {
        drop(guards.pop());
        sleep(SECOND).await;
        assert_eq!(gauge.state().held, held);
        assert!(!waiter.is_finished());
    }
    drop(guards.pop());
    let last = waiter.await.expect("it ran").expect("a place");
    assert_eq!(gauge.state().held, 1);
    drop(last);
}

#[tokio::test(start_paused = true)]
async fn after_the_lease_an_outage_leaves_the_safe_capacity() {
    let (mock, client) = one_server();
    {
        let mut mock = mock.lock();
        mock.capacity = 50.0;
        (mock.lease_seconds, mock.refresh_seconds) = (15, 5);
        mock.safe_capacity = Some(5.0);
    }
    let rate = client.rate("r", wants(100.0)).expect("a resource");
    let allowance = || rate.state().allowance;
    until("a lease", || allowance() == Allowance::UpTo(50.0)).await;
    sleep(11 * SECOND).await;
    let last = mock.lock().asked.last().expect("it was asked").0;
    mock.lock().is_down = true;
    // Its clock is in whole seconds: the lease ends up to one earlier, and never later.
    sleep(last + 14 * SECOND - Instant::now()).await;
    assert_eq!(allowance(), Allowance::UpTo(50.0));
    sleep(last + 15 * SECOND - Instant::now()).await;
    assert_eq!(allowance(), Allowance::UpTo(5.0));
    let (_waiters, passed) = line(&rate, 1000);
    let began = Instant::now();
    sleep(last + 45 * SECOND - began).await;
    let in_outage = passed.lock().expect("no thread panics inside").len() as f64;
    let expected = began.elapsed().as_secs_f64() * 5.0;
    assert!(
        (in_outage - expected).abs() <= 2.0,
        "{in_outage} of {expected}"
    );
    mock.lock().is_down = false;
    let back = Instant::now();
    until("a lease again", || allowance() == Allowance::UpTo(50.0)).await;
    assert!(back.elapsed() < 20 * SECOND, "{:?}", back.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_clock_step_past_the_end_of_a_lease_ends_it_first() {
    for step in [15 * SECOND, 3_600 * SECOND] {
        let (mock, client) = one_server();
        {
            let mut mock = mock.lock();
            (mock.capacity, mock.safe_capacity) = (50.0, Some(5.0));
            (mock.lease_seconds, mock.refresh_seconds) = (15, 5);
        }
        let rate = client.rate("r", wants(100.0)).expect("a resource");
        let allowance = || rate.state().allowance;
        until("a lease", || allowance() == Allowance::UpTo(50.0)).await;
        mock.lock().hangs = true;
        advance(step).await;
        assert_eq!(allowance(), Allowance::UpTo(5.0));
        let (_waiters, passed) = line(&rate, 1000);
        let began = Instant::now();
        sleep(2 * SECOND).await;
        let count = passed.lock().expect("no test panics inside").len() as f64;
        let most = began.elapsed().as_secs_f64() * 5.0 + 2.0;
        assert!(count <= most, "{count} of {most}");
        mock.lock().hangs = false;
        until("a lease again", || allowance() == Allowance::UpTo(50.0)).await;
    }
}

/// The server's time of day steps between its answers, back and ahead. No lease gets longer by it.
#[tokio::test(start_paused = true)]
async fn a_step_of_the_servers_clock_makes_no_lease_longer() {
    for (from, to) in [(0, 7_200), (7_200, 0), (0, -7_200), (0, 30), (30, 0)] {
        let (mock, client) = one_server();
        {
            let mut mock = mock.lock();
            (mock.lease_seconds, mock.refresh_seconds) = (15, 5);
            mock.ahead_seconds = Some(from);
        }
        let rate = client.rate("r", wants(100.0)).expect("a resource");
        let lease = || rate.state().lease;
        until("a lease", || lease().is_some()).await;
        mock.lock().ahead_seconds = Some(to);
        let before = mock.lock().asked.len();
        until("it was renewed", || mock.lock().asked.len() > before).await;
        let asked = mock.lock().asked.last().expect("it was asked").0;
        mock.lock().hangs = true;
        sleep(14 * SECOND).await;
        sleep((asked + 15 * SECOND).saturating_duration_since(Instant::now())).await;
        assert_eq!(lease(), None, "{from} to {to}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_server_keeps_no_lease_alive_and_is_asked_again() {
    let (mock, client) = one_server();
    {
        let mut mock = mock.lock();
        (mock.capacity, mock.lease_seconds, mock.refresh_seconds) = (50.0, 15, 5);
    }
    let mut options = wants(100.0);
    let check = async |rate: &RateResource, then| {
        let lease = || rate.state().lease;
        until("a lease", || lease().is_some()).await;
        let asked = mock.lock().asked.last().expect("it was asked").0;
        mock.lock().hangs = true;
        sleep(asked + 15 * SECOND - Instant::now()).await;
        assert_eq!((lease(), rate.state().allowance), (None, then));
        mock.lock().hangs = false;
        until("a lease again", || lease().is_some()).await;
    };
    options.after_expiry = AfterExpiry::Pessimistic;
    let rate = client.rate("pessimistic", options).expect("a resource");
    check(&rate, Allowance::NOTHING).await;
    options.after_expiry = AfterExpiry::Optimistic;
    let rate = client.rate("optimistic", options).expect("a resource");
    check(&rate, Allowance::UpTo(100.0)).await;
    options.after_expiry = AfterExpiry::Safe;
    options.safe_capacity = Some(SafeCapacity::UNLIMITED);
    let rate = client.rate("safe", options).expect("a resource");
    check(&rate, Allowance::Unlimited).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_long_does_not_make_the_lease_longer_nor_does_another_clock() {
    for ahead in [Some(-86_400), Some(86_400), None] {
        let (mock, client) = one_server();
        {
            let mut mock = mock.lock();
            (mock.lease_seconds, mock.ahead_seconds) = (15, ahead);
        }
        let rate = client.rate("r", wants(5.0)).expect("a resource");
        until("a lease", || rate.state().lease.is_some()).await;
        let (_, left) = rate.state().lease.expect("a lease");
        assert!(
            left <= 15 * SECOND && left > 13 * SECOND,
            "{left:?} {ahead:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_redirect_is_followed_at_once_and_the_given_addresses_are_asked_when_it_fails() {
    let network = Network::default();
    let (a, b) = (network.add("a:1"), network.add("b:1"));
    a.lock().names_master = Some(Some("b:1".into()));
    let client = client_of(&network, &["a:1"]);
    let began = Instant::now();
    let rate = client.rate("r", wants(5.0)).expect("a resource");
    rate.wait().await.expect("the client is open");
    assert!(
        began.elapsed() < Duration::from_millis(10),
        "{:?}",
        began.elapsed()
    );
    sleep(17 * SECOND).await;
    assert_eq!((a.lock().asked.len(), b.lock().asked.len()), (1, 2));
    // The master dies, and the one that named it takes over.
    b.lock().is_down = true;
    a.lock().names_master = None;
    sleep(22 * SECOND).await;
    assert_eq!(a.lock().asked.len(), 2);
    let has = a.lock().asked[1].1.resource[0].has.expect("its lease");
    assert_eq!(has.capacity, 5.0);
}

#[tokio::test(start_paused = true)]
async fn servers_that_send_a_client_to_each_other_are_asked_a_few_times_and_then_later() {
    let network = Network::default();
    let (a, b) = (network.add("a:1"), network.add("b:1"));
    a.lock().names_master = Some(Some("b:1".into()));
    b.lock().names_master = Some(Some("a:1".into()));
    let client = client_of(&network, &["a:1"]);
    let _rate = client.rate("r", wants(5.0)).expect("a resource");
    sleep(Duration::from_millis(500)).await;
    let asked = a.lock().asked.len() + b.lock().asked.len();
    assert_eq!(asked, 6);
    a.lock().names_master = Some(None);
    sleep(10 * SECOND).await;
    let asked = a.lock().asked.len() + b.lock().asked.len() - asked;
    assert!((3..=10).contains(&asked), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_releases_the_lease_and_the_last_client_all() {
    let (mock, client) = one_server();
    let first = client.rate("r/1", wants(5.0)).expect("a resource");
    let second = client.rate("r/1", wants(5.0)).expect("the same");
    let gauge = client.gauge("g", wants(5.0)).expect("a resource");
    first.wait().await.expect("the client is open");
    let guard = gauge.enter().await.expect("a place");
    drop(first);
    drop(gauge);
    sleep(SECOND).await;
    assert!(
        mock.lock().released.is_empty(),
        "a handle and a guard are left"
    );
    drop(guard);
    until("the gauge is released", || mock.lock().released.len() == 1).await;
    drop(client);
    second.wait().await.expect("a handle keeps the client");
    drop(second);
    until("the rate is released", || mock.lock().released.len() == 2).await;
    assert_eq!(mock.lock().released, [["g"], ["r/1"]]);
}

#[tokio::test(start_paused = true)]
async fn closing_releases_everything_and_refuses_waiting_users_also_if_the_server_hangs() {
    for hangs in [false, true] {
        let (mock, client) = one_server();
        mock.lock().capacity = 1.0;
        let rate = client.rate("r", wants(5.0)).expect("a resource");
        let gauge = client.gauge("g", wants(5.0)).expect("a resource");
        let _guard = gauge.enter().await.expect("a place");
        rate.wait().await.expect("the first");
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                let (rate, gauge) = (rate.clone(), gauge.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        closed = rate.wait() => closed,
                        closed = gauge.enter() => closed.map(drop),
                    }
                })
            })
            .collect();
        sleep(Duration::from_millis(10)).await;
        mock.lock().hangs = hangs;
        let began = Instant::now();
        client.close().await;
        assert!(began.elapsed() <= 2 * SECOND, "{:?}", began.elapsed());
        for waiter in waiters {
            assert_eq!(waiter.await.expect("it ran"), Err(WaitError::Closed));
        }
        assert_eq!(rate.wait().await, Err(WaitError::Closed));
        assert!(matches!(
            client.rate("s", wants(1.0)),
            Err(OpenError::Closed)
        ));
        let released: Vec<String> = mock.lock().released.concat();
        let expected: &[&str] = if hangs { &[] } else { &["g", "r"] };
        assert_eq!(released, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn handles_to_one_resource_share_its_lease_and_add_up_what_they_want() {
    let (mock, client) = one_server();
    let first = client.rate("r", wants(3.0)).expect("a resource");
    let second = client.rate("r", wants(4.0)).expect("the same");
    until("a lease", || first.state().lease.is_some()).await;
    assert_eq!(mock.wants("r"), [7.0]);
    assert_eq!((second.state().handles, second.state().wants), (2, 7.0));
    drop(first);
    second.set_wants(Some(20.0)).expect("a number");
    sleep(4 * SECOND).await;
    assert_eq!(mock.wants("r"), [7.0], "not within five seconds");
    sleep(2 * SECOND).await;
    assert_eq!(mock.wants("r"), [7.0, 20.0], "but early");
    assert!(matches!(
        client.gauge("r", wants(1.0)),
        Err(OpenError::OtherKind(_))
    ));
    assert_eq!(client.resources().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn demand_is_measured_from_use() {
    let (mock, client) = one_server();
    mock.lock().capacity = 1e6;
    let measured = ResourceOptions {
        wants_at_first: 200.0,
        ..ResourceOptions::default()
    };
    let rate = client.rate("r", measured).expect("a resource");
    let gauge = client.gauge("g", measured).expect("a resource");
    let mut entering = JoinSet::new();
    for n in 0..2000 {
        let (rate, gauge) = (rate.clone(), gauge.clone());
        entering.spawn(async move {
            rate.wait().await.expect("the client is open");
            if n < 7 {
                let _guard = gauge.enter().await.expect("a place");
                sleep(SECOND).await;
            }
        });
        advance(Duration::from_millis(10)).await;
    }
    sleep(20 * SECOND).await;
    let told = mock.wants("r");
    // 100 a second for 20 s and a tenth more, then nothing.
    assert_eq!(told[0], 200.0, "what was said at first");
    assert!((told[1] - 110.0).abs() < 5.0, "{told:?}");
    let told = mock.wants("g");
    assert!(told.contains(&7.0), "{told:?}");
    sleep(20 * SECOND).await;
    assert_eq!(mock.wants("r").last(), Some(&0.0));
    let asked = mock.lock().asked.clone();
    let times: Vec<Instant> = asked.iter().map(|(at, _)| *at).collect();
    // Each resource has a time of its own; of one, no two are within five seconds.
    let mut last: std::collections::BTreeMap<&str, Instant> = std::collections::BTreeMap::new();
    for (at, (_, request)) in times.iter().zip(&asked) {
        for resource in &request.resource {
            if let Some(before) = last.insert(&resource.resource_id, *at) {
                assert!(
                    at.duration_since(before) >= 5 * SECOND,
                    "{}",
                    resource.resource_id
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_each_operation_get_what_is_free_within_two_refreshes() {
    for (callers, capacity) in [(40, 100.0), (1, 100.0), (10, 1000.0)] {
        let (mock, client) = one_server();
        (mock.lock().capacity, mock.lock().refresh_seconds) = (capacity, 5);
        let rate = client
            .rate("r", ResourceOptions::default())
            .expect("a resource");
        let passed = Arc::new(AtomicU64::new(0));
        let mut calling = JoinSet::new();
        for _ in 0..callers {
            let (rate, passed) = (rate.clone(), Arc::clone(&passed));
            calling.spawn(async move {
                loop {
                    rate.wait().await.expect("the client is open");
                    passed.fetch_add(1, Ordering::Relaxed);
                    // There and back, and no work between.
                    sleep(Duration::from_millis(1)).await;
                }
            });
        }
        // The first lease, and two more.
        sleep(10 * SECOND + Duration::from_millis(100)).await;
        let before = passed.load(Ordering::Relaxed);
        sleep(10 * SECOND).await;
        let per_second = (passed.load(Ordering::Relaxed) - before) as f64 / 10.0;
        let told = mock.wants("r");
        assert!(
            per_second >= 0.9 * capacity,
            "{callers} callers: {per_second} of {capacity} a second, by {told:?}"
        );
        // When they end, nothing is wanted any more.
        calling.shutdown().await;
        sleep(30 * SECOND).await;
        assert_eq!(mock.wants("r").last(), Some(&0.0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_steady_stream_that_does_not_wait_asks_for_what_it_uses() {
    let (mock, client) = one_server();
    (mock.lock().capacity, mock.lock().refresh_seconds) = (1e6, 5);
    let rate = client
        .rate("r", ResourceOptions::default())
        .expect("a resource");
    let mut going = JoinSet::new();
    for _ in 0..1500 {
        let rate = rate.clone();
        going.spawn(async move { rate.wait().await.expect("the client is open") });
        sleep(Duration::from_millis(20)).await;
    }
    let told = mock.wants("r");
    // The first one waits for the first lease, and nothing else is known.
    assert!(told.len() > 3, "{told:?}");
    for wants in &told[1..] {
        assert!((50.0..65.0).contains(wants), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_storm_on_an_idle_resource_is_asked_for_at_once_with_all_who_wait() {
    let (mock, client) = one_server();
    mock.lock().capacity = 1e6;
    let rate = client
        .rate("r", ResourceOptions::default())
        .expect("a resource");
    sleep(30 * SECOND).await;
    assert!(mock.lock().asked.is_empty(), "there is no demand");
    let (_waiters, passed) = line(&rate, 300);
    let began = Instant::now();
    sleep(2 * SECOND).await;
    let told = mock.wants("r");
    // All came within a second: that is the mean of the one second that there is. All of them
    // wait, so nine times as much is wanted besides, and no more; and a tenth to spare.
    assert_eq!(told, [3030.0], "after {:?}", began.elapsed());
    assert_eq!(passed.lock().expect("no thread panics inside").len(), 300);
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may_and_odd_ids_and_numbers_are_refused() {
    let (mock, client) = one_server();
    mock.lock().capacity = 0.0;
    let mut options = wants(1.0);
    options.waiting_max = 2;
    let rate = client.rate("r", options).expect("a resource");
    let (_waiters, _passed) = line(&rate, 2);
    sleep(SECOND).await;
    assert_eq!(rate.wait().await, Err(WaitError::TooMany));
    assert!(matches!(client.rate("", options), Err(OpenError::BadId(0))));
    let long = "x".repeat(1025);
    assert!(matches!(
        client.rate(&long, options),
        Err(OpenError::BadId(1025))
    ));
    for odd in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(rate.set_wants(Some(odd)).is_err());
        assert!(matches!(
            client.rate("s", wants(odd)),
            Err(OpenError::NotACapacity(_))
        ));
    }
    assert_eq!(
        client.resources().len(),
        1,
        "what is refused leaves nothing"
    );
    for odd in ["../a b/ü%2F\u{0}", "/", "*", "a\nb"] {
        let rate = client.rate(odd, wants(1.0)).expect("a resource");
        until("it was asked for", || !mock.wants(odd).is_empty()).await;
        assert_eq!(rate.state().id, odd);
    }
}

#[tokio::test]
async fn over_a_socket_a_lease_is_got_and_counted() {
    let mock = Mock::new();
    let (address, _serving) = mock.serve().await;
    let registry = prometheus::Registry::new();
    let options = ClientOptions {
        metrics: ClientMetrics::new(&registry.clone().into()),
        ..ClientOptions::default()
    };
    // No server has the first address: port 1 of loopback.
    let servers = ["127.0.0.1:1", &address].map(|server| server.parse().expect("an address"));
    let client =
        LeaseClient::with_clock(servers.into(), options, Clock::of_runtime()).expect("a client");
    let rate = client.rate("r", wants(1000.0)).expect("a resource");
    timeout(10 * SECOND, rate.wait())
        .await
        .expect("in time")
        .expect("it may go");
    drop(rate);
    timeout(10 * SECOND, client.close()).await.expect("in time");
    assert_eq!(mock.lock().released, [["r"]]);
    let text = prometheus::TextEncoder::new()
        .encode_to_string(&registry.gather())
        .expect("text");
    for line in [
        format!("doorman_client_requests{{method=\"GetCapacity\",server=\"{address}\"}} 1"),
        format!("doorman_client_requests{{method=\"ReleaseCapacity\",server=\"{address}\"}} 1"),
        "doorman_client_request_errors{method=\"GetCapacity\",server=\"127.0.0.1:1\"} 1".into(),
        format!(
            "doorman_client_request_durations_count{{method=\"GetCapacity\",server=\"{address}\"}} 1"
        ),
    ] {
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn the_example_of_the_document_is_this_one_and_works() {
    let document = include_str!("../../../../docs/how-to/leases-client.md");
    let block = document.split("```rust\n").nth(1).expect("an example");
    let block = block.split("```").next().expect("split gives one at least");
    assert_eq!(block, include_str!("client/example.rs"));

    let mock = Mock::new();
    mock.lock().capacity = 1000.0;
    let (address, _serving) = mock.serve().await;
    let sent = timeout(20 * SECOND, example::send_all(&address, 5));
    assert_eq!(sent.await.expect("in time").expect("it works"), 5);
    let released: Vec<String> = mock.lock().released.concat();
    assert_eq!(released, ["backend/connections", "backend/requests"]);
}
