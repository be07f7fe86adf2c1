//! Quota records in real Redis.

mod secured;
mod sentinels;
mod unfit;

use std::time::{Duration, Instant};

use tidegate_quota::redis::{RedisSettings, start};
use tidegate_quota::{Engine, StoreError, SwapResult};
use tidegate_runtime::Clock;

use super::{Node, comes_back, entry, is_unavailable, key, until};
use crate::relay::{Mode, Relay};
use crate::stores::Redis;
use crate::support::PATIENCE;

/// Not what a sidecar would use: the machine that tests run on is shared.
const DEADLINE: Duration = Duration::from_millis(500);

fn node(address: impl std::fmt::Display) -> Node {
    let mut settings = RedisSettings::new(&format!("redis://{address}")).expect("it is an address");
    settings.deadline = DEADLINE;
    settings.member_ttl = Duration::from_secs(2);
    Node::new(|clock| start(settings, clock))
}

/// Runs a command of `redis-cli`.
fn control(redis: &Redis, arguments: &[&str]) -> String {
    let port = redis.addr().port().to_string();
    let output = std::process::Command::new("redis-cli")
        .args(["-p", &port])
        .args(arguments)
        .output()
        .expect("redis-cli comes with Redis; `make stores` installs it");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("it speaks UTF-8")
}

#[tokio::test]
async fn redis_conforms() {
    let redis = Redis::start(&[]);
    super::conforms("Redis", || node(redis.addr())).await;
    let node = node(redis.addr());
    node.in_time().await;
    super::contains_the_time_of_day(&node);
}

#[test]
fn an_address_of_redis_is_checked_and_its_password_never_shown() {
    for wrong in ["", "localhost", "http://a:1", "redis://a:port"] {
        let error = RedisSettings::new(wrong).expect_err(wrong);
        assert!(error.to_string().contains("redis://"), "{error}");
    }
    let settings = RedisSettings::new("redis://user:secret@127.0.0.1:7/3").expect("it is one");
    assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
}

#[tokio::test]
async fn a_write_that_redis_did_not_answer_is_left_open() {
    let redis = Redis::start(&[]);
    let relay = Relay::start(redis.addr()).await;
    let lossy = node(relay.addr);
    lossy.in_time().await;
    let key = key("a");
    let version = lossy.put(&key, None, "1").await;
    relay.set(Mode::Deaf);
    let lost = lossy.try_swap(&key, Some(version), "2").await;
    assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
    // It was done, as it happens.
    let found = node(redis.addr()).get(&key).await;
    assert_eq!(found.expect("it was written").text, b"2");
    is_unavailable(&lossy, DEADLINE).await;
    relay.set(Mode::Open);
    comes_back(&lossy).await;
    assert_eq!(lossy.get(&key).await.expect("it was written").text, b"2");
}

#[tokio::test]
async fn an_unavailable_redis_is_reported_in_time_and_found_again() {
    let redis = Redis::start(&[]);
    let relay = Relay::start(redis.addr()).await;
    let near = node(relay.addr);
    let far = node(redis.addr());
    near.in_time().await;
    let mut members = far.store.members();
    until("both are counted", &mut members, |count| *count == 2).await;
    for mode in [Mode::Cut, Mode::Stalled] {
        relay.set(mode);
        is_unavailable(&near, DEADLINE).await;
        // Once that is known, no call waits for it again.
        let began = Instant::now();
        let mut waits = 0;
        while began.elapsed() < DEADLINE {
            let asked = Instant::now();
            let told = near.store.get(&key("a")).await;
            assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
            waits += u32::from(asked.elapsed() > DEADLINE / 2);
            tokio::task::yield_now().await;
        }
        assert!(waits <= 2, "{mode:?}: {waits} waits");
        until("it counts as dead", &mut members, |count| *count == 1).await;
        relay.set(Mode::Open);
        until("it lives again", &mut members, |count| *count == 2).await;
        assert_eq!(near.get(&key("none")).await, None);
    }
}

#[tokio::test]
async fn a_redis_that_keeps_its_log_forgets_nothing_when_it_is_killed() {
    let flags = ["--appendonly", "yes", "--appendfsync", "always"];
    let redis = std::sync::Mutex::new(Redis::start(&flags));
    let addr = redis.lock().expect("no thread panics").addr();
    let restart = async || redis.lock().expect("no thread panics").restart(&flags);
    super::nothing_confirmed_is_lost("Redis, killed", || node(addr), restart).await;
}

#[tokio::test]
async fn scripts_that_redis_forgot_are_sent_again() {
    let redis = Redis::start(&[]);
    let node = node(redis.addr());
    let version = node.put(&key("a"), None, "1").await;
    control(&redis, &["script", "flush"]);
    let version = node.put(&key("a"), Some(version), "2").await;
    assert_eq!(node.get(&key("a")).await, entry(version, "2"));
}

#[tokio::test]
async fn a_record_expires_also_when_no_sidecar_runs() {
    let redis = Redis::start(&[]);
    let node = node(redis.addr());
    node.in_time().await;
    node.put_for(&key("short"), "1", Duration::from_millis(300))
        .await;
    let long = node
        .put_for(&key("long"), "1", Duration::from_secs(600))
        .await;
    let left = |id: &str| {
        let record = format!("tidegate:quota:record:{id}");
        let left = control(&redis, &["pttl", &record]);
        left.trim().parse::<i64>().expect("a number")
    };
    assert!(
        (500_000..=600_000).contains(&left("long")),
        "{}",
        left("long")
    );
    // Each write has a later end.
    node.put(&key("long"), Some(long), "2").await;
    assert!(left("long") > 600_000, "{}", left("long"));
    drop(node);
    let began = Instant::now();
    // Redis says so of a key that is not there.
    while left("short") != -2 {
        assert!(began.elapsed() < PATIENCE, "it stays");
    }
}

#[tokio::test]
async fn a_user_who_may_not_let_records_expire_is_served_all_the_same() {
    let redis = Redis::start(
        &"--user default on nopass ~* &* +@all -pexpireat"
            .split(' ')
            .collect::<Vec<_>>(),
    );
    let node = node(redis.addr());
    let version = node.put(&key("a"), None, "1").await;
    let version = node.put(&key("a"), Some(version), "2").await;
    assert_eq!(node.get(&key("a")).await, entry(version, "2"));
    assert_eq!(
        control(&redis, &["pttl", "tidegate:quota:record:a"]),
        "-1\n"
    );
    // The probe says what to do.
    let address = format!("redis://{}", redis.addr());
    let engine = Engine::Redis(RedisSettings::new(&address).expect("it is an address"));
    let obstacle = engine.try_out(Clock::start()).await;
    let told = format!("{obstacle:?}");
    assert!(
        told.contains("Write") && told.contains("quotas.md"),
        "{told}"
    );
}

#[tokio::test]
async fn a_record_that_was_deleted_and_made_again_does_not_pass_for_the_old_one() {
    let redis = Redis::start(&[]);
    let node = node(redis.addr());
    let old = node.put(&key("a"), None, "1").await;
    control(&redis, &["del", "tidegate:quota:record:a"]);
    assert_eq!(node.get(&key("a")).await, None);
    let new = node.put(&key("a"), None, "2").await;
    assert_ne!(new, old);
}

#[tokio::test]
async fn a_foreign_value_at_a_record_is_reported_and_not_changed() {
    let redis = Redis::start(&[]);
    let node = node(redis.addr());
    control(&redis, &["set", "tidegate:quota:record:text", "7"]);
    control(
        &redis,
        &["hset", "tidegate:quota:record:hash", "version", "x"],
    );
    for id in ["text", "hash"] {
        let key = key(id);
        let told = node.store.get(&key).await;
        assert!(matches!(told, Err(StoreError::Refused(_))), "{told:?}");
        let told = node.try_swap(&key, None, "1").await;
        assert!(matches!(told, Err(StoreError::Refused(_))), "{told:?}");
    }
    assert_eq!(
        control(&redis, &["get", "tidegate:quota:record:text"]),
        "7\n"
    );
    // Other keys do not suffer.
    node.put(&key("a"), None, "1").await;
}

#[tokio::test]
async fn a_redis_that_wants_a_password_is_reported() {
    let redis = Redis::start(&["--requirepass", "secret"]);
    let addr = redis.addr();
    for wrong in [format!("{addr}"), format!(":wrong@{addr}")] {
        let told = node(&wrong).store.get(&key("a")).await;
        assert!(
            matches!(told, Err(StoreError::Unauthenticated(_))),
            "{told:?}"
        );
        let told = node(&wrong).try_swap(&key("a"), None, "1").await;
        assert!(
            matches!(told, Err(StoreError::Unauthenticated(_))),
            "{told:?}"
        );
    }
    node(format!(":secret@{addr}"))
        .put(&key("a"), None, "1")
        .await;
}

#[tokio::test]
async fn a_redis_that_refuses_writes_is_unavailable_and_has_done_nothing() {
    let redis = Redis::start(&["--min-replicas-to-write", "1"]);
    let node = node(redis.addr());
    let told = node.try_swap(&key("a"), None, "1").await;
    assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
    assert_eq!(
        control(&redis, &["exists", "tidegate:quota:record:a"]),
        "0\n"
    );
}

/// The bound that the module's head gives.
#[tokio::test]
async fn a_fail_over_forgets_what_the_replica_was_behind_and_no_more() {
    let flags = "--min-replicas-to-write 1 --min-replicas-max-lag 1 --repl-diskless-sync-delay 0";
    let mut primary = Redis::start(&flags.split(' ').collect::<Vec<_>>());
    let relay = Relay::start(primary.addr()).await;
    let of = relay.addr.port().to_string();
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &of]);
    let (node, key) = (node(primary.addr()), key("a"));
    let mut confirmed = 0;
    let mut version = None;
    let mut count_on = async || {
        let text = (confirmed + 1).to_string();
        let swapped = node.try_swap(&key, version, &text).await?;
        let SwapResult::Done(written) = swapped else {
            panic!("no other client writes");
        };
        version = Some(written);
        confirmed += 1;
        Ok::<_, StoreError>(confirmed)
    };
    // The replica must be there before anything is written.
    let replicated = async { while count_on().await.is_err() {} };
    let replicated = tokio::time::timeout(PATIENCE, replicated).await;
    replicated.expect("the replica joins");
    let mut kept = 0;
    for _ in 0..100 {
        kept = count_on().await.expect("the replica is there");
    }
    primary.replicated().await;
    relay.set(Mode::Stalled);
    let began = Instant::now();
    let mut all = kept;
    let told = loop {
        match count_on().await {
            Ok(confirmed) => all = confirmed,
            Err(error) => break error,
        }
    };
    let lag = began.elapsed();
    assert!(matches!(told, StoreError::Unavailable(_)), "{told:?}");
    primary.kill();
    control(&replica, &["replicaof", "no", "one"]);
    let found = self::node(replica.addr()).get(&key).await;
    let found = super::count(&found.expect("it was replicated"));
    let lost = all - kept;
    println!("Redis, failed over: {lost} of {all} writes forgotten, those of {lag:?}");
    assert_eq!(found, kept);
    assert!(lag < Duration::from_secs(5), "{lag:?}");
}

#[tokio::test]
async fn a_server_that_is_not_redis_is_reported() {
    let nonsense = super::answers(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let told = node(nonsense).store.get(&key("a")).await;
    assert!(told.is_err(), "{told:?}");
}
