//! Redis behind real sentinels: the primary is found, and followed when it changes.

use std::time::{Duration, Instant};

use tidegate_quota::redis::{RedisSettings, start};
use tidegate_quota::{StoreError, SwapResult};

use super::super::{Node, key};
use super::control;
use super::secured::tls;
use crate::authority::{Authority, Issued};
use crate::stores::{Redis, Sentinels, secured_redis};
use crate::support::PATIENCE;

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn node(
    sentinels: &[u16],
    change: impl FnOnce(RedisSettings) -> RedisSettings,
    scheme: &str,
) -> Node {
    let mut all = sentinels.iter().map(|port| {
        let address = format!("{scheme}://127.0.0.1:{port}");
        RedisSettings::new(&address).expect("it is an address")
    });
    let mut settings = all.next().expect("there are some");
    settings.servers.extend(all.flat_map(|it| it.servers));
    settings.deadline = Duration::from_secs(1);
    let settings = change(settings);
    Node::new(|clock| start(settings, clock))
}

/// Waits until a replica has joined.
fn until_replicated(primary: &Redis) {
    let deadline = Instant::now() + PATIENCE;
    while !replication(primary).contains("state=online") {
        assert!(Instant::now() < deadline, "the replica does not join");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The state of the replication; empty where a fail-over has just closed the connection.
fn replication(redis: &Redis) -> String {
    let port = redis.addr().port().to_string();
    let output = std::process::Command::new("redis-cli")
        .args(["-p", &port, "info", "replication"])
        .output()
        .expect("redis-cli comes with Redis; `make stores` installs it");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A number in the state of the replication.
fn offset(redis: &Redis, name: &str) -> Option<u64> {
    let state = replication(redis);
    let line = state.lines().find_map(|line| line.strip_prefix(name));
    line?.trim_start_matches(':').trim().parse().ok()
}

/// Writes numbers in order until one is confirmed after the failover. Returns what was confirmed
/// before it, the version of the first after it, and how long no write was confirmed.
async fn spend_over(node: &Node, failover: impl FnOnce()) -> Duration {
    let key = key("a");
    let mut entry = node.get(&key).await;
    let mut number = entry.as_ref().map_or(0, super::super::count);
    let mut failover = Some(failover);
    let mut since = Instant::now();
    let deadline = Instant::now() + PATIENCE;
    let (mut confirmed, mut lost_since) = (0, None);
    loop {
        assert!(Instant::now() < deadline, "no new primary is found");
        let version = entry.as_ref().map(|entry| entry.version);
        match node
            .try_swap(&key, version, &(number + 1).to_string())
            .await
        {
            Ok(SwapResult::Done(version)) => {
                number += 1;
                confirmed += 1;
                entry = super::super::entry(version, &number.to_string());
                if let Some(lost) = lost_since {
                    return Instant::now() - lost;
                }
                since = Instant::now();
                if confirmed == 50
                    && let Some(failover) = failover.take()
                {
                    failover();
                }
            }
            Ok(SwapResult::Conflict(found)) => {
                // A write without an answer was done, or one that was confirmed is lost.
                let found_number = found.as_ref().map_or(0, super::super::count);
                assert!(
                    found_number + 1 >= number,
                    "{number} was confirmed, found {found_number}"
                );
                number = found_number;
                entry = found;
            }
            Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => {
                assert!(failover.is_none(), "it was there");
                lost_since.get_or_insert(since);
                tokio::time::sleep(Duration::from_millis(10)).await;
                if let Ok(found) = node.store.get(&key).await {
                    number = found.as_ref().map_or(0, super::super::count);
                    entry = found;
                }
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed_over_tls_with_passwords_and_nothing_replicated_is_lost() {
    let ca = Authority::new();
    let own = ca.issue(&["127.0.0.1"]);
    let flags = |own: &Issued, port: u16| {
        let more = words("--requirepass secret --masterauth secret --repl-diskless-sync-delay 0");
        [secured_redis(port, own, &ca.ca()), more].concat()
    };
    let mut primary = Redis::with(|port| flags(&own, port));
    let of = primary.addr().port();
    let _replica = Redis::with(|port| {
        let replicates = words(&format!("--replicaof 127.0.0.1 {of}"));
        [flags(&own, port), replicates].concat()
    });
    let mut sentinels = Sentinels::start(of, |port| {
        let lines = [
            "port 0".to_owned(),
            format!("tls-port {port}"),
            format!("tls-cert-file {}", own.cert()),
            format!("tls-key-file {}", own.key()),
            format!("tls-ca-cert-file {}", ca.ca()),
            "tls-replication yes".to_owned(),
            "requirepass watched".to_owned(),
            "sentinel sentinel-pass watched".to_owned(),
            "sentinel auth-pass mymaster secret".to_owned(),
        ];
        lines.to_vec()
    });
    sentinels.each_until("+sentinel ", 2);
    sentinels.each_until("+slave ", 1);
    let shows = ca.issue(&["sidecar"]);
    let secured = |settings: RedisSettings| RedisSettings {
        tls: Some(tls(&ca, Some(&shows), None)),
        ..settings.with_credentials(None, "secret")
    };
    let ports = sentinels.ports().to_vec();
    let with = |login| move |it: RedisSettings| it.with_sentinel("mymaster", login);
    let node = node(
        &ports,
        |it| with(Some((None, "watched")))(secured(it)),
        "rediss",
    );
    node.in_time().await;
    // One of three may be away.
    sentinels.kill(0);
    let mut pause = Duration::ZERO;
    let lost = spend_over(&node, || primary.kill());
    pause += lost.await;
    sentinels.until("+switch-master");
    println!("Redis: without a primary for {pause:?}, with down-after of 500 ms");
    assert!(pause < Duration::from_secs(15), "{pause:?}");

    let refused = self::node(
        &ports[1..],
        |it| with(Some((None, "wrong")))(secured(it)),
        "rediss",
    );
    let text = refused.store.get(&key("a")).await;
    let text = text.expect_err("a wrong password").with_cause();
    assert!(
        text.contains("check sentinel_user and sentinel_password"),
        "{text}"
    );
    assert!(!text.contains("wrong\""), "{text}");
}

/// The old primary goes on taking writes for a while, and its clients are not informed: what it takes is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_write_is_lost_over_orderly_failovers() {
    let servers = [Redis::start(&["--repl-diskless-sync-delay", "0"]), {
        Redis::start(&["--repl-diskless-sync-delay", "0"])
    }];
    let of = servers[0].addr().port();
    control(&servers[1], &["replicaof", "127.0.0.1", &of.to_string()]);
    until_replicated(&servers[0]);
    let sentinels = Sentinels::start(of, |_| Vec::new());
    sentinels.each_until("+sentinel ", 2);
    sentinels.each_until("+slave ", 1);
    let ports = sentinels.ports();
    let found = |it: RedisSettings| it.with_sentinel("mymaster", None);
    let disturb = async || {
        for round in 1..=3 {
            let (new, old) = (&servers[round % 2], &servers[(round + 1) % 2]);
            let sentinel = ports[0].to_string();
            let switch = async || {
                let switch = ["-p", &sentinel, "sentinel", "failover", "mymaster"];
                let mut command = tokio::process::Command::new("redis-cli");
                let done = command.args(switch).output().await.expect("it is there");
                String::from_utf8_lossy(&done.stdout).contains("OK")
            };
            let done = async {
                // It is refused while the last one goes on, or no replica is there yet.
                while !switch().await {
                    tokio::task::yield_now().await;
                }
                while !replication(new).contains("role:master") {
                    tokio::task::yield_now().await;
                }
                while !replication(new).contains("state=online") {
                    tokio::task::yield_now().await;
                }
                // Redis promotes a replica that is behind, and one that is online is, until it has what was written while
                // it came back.
                let written = offset(new, "master_repl_offset").expect("it is a primary");
                while offset(old, "slave_repl_offset").is_none_or(|it| it < written) {
                    tokio::task::yield_now().await;
                }
            };
            let done = tokio::time::timeout(PATIENCE, done).await;
            done.unwrap_or_else(|_| panic!("failover {round} does not end"));
        }
    };
    let start = || node(ports, found, "redis");
    super::super::nothing_confirmed_is_lost("Redis, switched over", start, disturb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_demoted_or_hangs_is_left_for_the_next_one() {
    let primary = Redis::start(&["--repl-diskless-sync-delay", "0"]);
    let of = primary.addr().port();
    let replica = Redis::start(&[
        "--replicaof",
        "127.0.0.1",
        &of.to_string(),
        "--repl-diskless-sync-delay",
        "0",
    ]);
    until_replicated(&primary);
    let sentinels = Sentinels::start(of, |_| Vec::new());
    sentinels.each_until("+sentinel ", 2);
    sentinels.each_until("+slave ", 1);
    let ports = sentinels.ports();
    let found = |name: &'static str| move |it: RedisSettings| it.with_sentinel(name, None);
    let node = node(ports, found("mymaster"), "redis");
    node.in_time().await;
    let sentinel = ports[0].to_string();
    let graceful = spend_over(&node, || {
        let switch = ["-p", &sentinel, "sentinel", "failover", "mymaster"];
        let done = std::process::Command::new("redis-cli")
            .args(switch)
            .status();
        assert!(done.is_ok_and(|it| it.success()));
    });
    let graceful = graceful.await;
    sentinels.each_until("+switch-master", 1);
    until_replicated(&replica);
    let hung = spend_over(&node, || replica.signal("STOP")).await;
    replica.signal("CONT");
    println!("Redis: switched over in {graceful:?}, from a server that hangs in {hung:?}");
    assert!(hung < Duration::from_secs(15), "{hung:?}");

    let text = self::node(ports, found("other"), "redis")
        .store
        .get(&key("a"))
        .await;
    let text = text.expect_err("no such primary").with_cause();
    assert!(
        text.contains("\"other\"") && text.contains("sentinel monitor"),
        "{text}"
    );
    let text = self::node(&[of], found("mymaster"), "redis")
        .store
        .get(&key("a"))
        .await;
    let text = text.expect_err("no sentinel").with_cause();
    assert!(text.contains("is no sentinel"), "{text}");
}
