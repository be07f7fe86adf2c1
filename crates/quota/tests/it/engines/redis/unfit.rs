//! Servers of Redis that cannot hold quotas, that stop doing so, or that lose records.

use tidegate_quota::redis::{RedisSettings, start};
use tidegate_quota::{Engine, RecordKey, StoreError, SwapResult};
use tidegate_runtime::Clock;

use super::super::{Node, key};
use super::{DEADLINE, control, node};
use crate::relay::Relay;
use crate::stores::{Redis, Sentinels};
use crate::support::PATIENCE;

async fn within<T>(what: &str, done: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(PATIENCE, done).await;
    done.unwrap_or_else(|_| panic!("never: {what}"))
}

/// A demoted server's connection stays and answers reads, so only a refused write shows it.
#[tokio::test]
async fn a_redis_that_was_demoted_behind_its_address_is_left_for_the_new_one() {
    let (old, new) = (Redis::start(&[]), Redis::start(&[]));
    let relay = Relay::start(old.addr()).await;
    let node = node(relay.addr);
    node.put(&key("a"), None, "1").await;
    // Of a primary that it cannot reach, so it keeps what it has.
    control(&old, &["replicaof", "127.0.0.1", "1"]);
    relay.lead_to(new.addr());
    let written = async {
        // Whatever the replica has taken over, or had before.
        let mut known = node.store.get(&key("a")).await.ok().flatten();
        loop {
            let version = known.as_ref().map(|entry| entry.version);
            match node.try_swap(&key("a"), version, "2").await {
                Ok(SwapResult::Done(_)) => break,
                Ok(SwapResult::Conflict(found)) => known = found,
                Err(StoreError::Unavailable(_) | StoreError::Unknown(_)) => {
                    tokio::task::yield_now().await
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    within("the new primary is written to", written).await;
    let found = self::node(new.addr()).get(&key("a")).await;
    assert_eq!(found.expect("it was written").text, b"2");
}

#[tokio::test]
async fn a_replica_is_no_store_and_says_so() {
    let primary = Redis::start(&[]);
    let of = primary.addr().port().to_string();
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &of]);
    let told = node(replica.addr()).store.get(&key("a")).await;
    let error = told.expect_err("it does not write");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(error.with_cause().contains("is a replica"), "{error:?}");
}

#[tokio::test]
async fn a_node_of_a_cluster_and_a_sentinel_are_refused_by_name_with_the_cure() {
    let cluster = Redis::start(&["--cluster-enabled", "yes"]);
    let slots = ["cluster", "addslotsrange", "0", "8000"];
    control(&cluster, &slots);
    for id in ["a", "b", "c", "d"] {
        let told = node(cluster.addr()).store.get(&key(id)).await;
        let error = told.expect_err("it has a part of the keys");
        assert!(matches!(error, StoreError::Unsuitable(_)), "{error:?}");
        let text = error.with_cause();
        assert!(text.contains("node of a Redis Cluster"), "{text}");
        assert!(text.contains("name a Redis without a cluster"), "{text}");
    }
    let primary = Redis::start(&[]);
    let sentinels = Sentinels::start(primary.addr().port(), |_| Vec::new());
    let address = format!("127.0.0.1:{}", sentinels.ports()[0]);
    let error = node(address).store.get(&key("a")).await;
    let error = error.expect_err("it keeps nothing");
    assert!(matches!(error, StoreError::Unsuitable(_)), "{error:?}");
    assert!(error.with_cause().contains("set sentinel"), "{error:?}");
}

/// The node itself asks far less often, so nothing keeps the connection busy.
#[tokio::test]
async fn an_idle_connection_that_redis_closed_costs_no_call() {
    let redis = Redis::start(&["--timeout", "1"]);
    let mut settings = settings(&redis);
    settings.member_ttl = std::time::Duration::from_secs(600);
    let node = Node::new(|clock| start(settings, clock));
    let clients = || {
        control(&redis, &["client", "list", "type", "normal"])
            .lines()
            .count()
    };
    for round in 0..3 {
        node.store.get(&key("a")).await.expect("it is up");
        let closed = async {
            // That of the command itself stays.
            while clients() > 1 {
                tokio::task::yield_now().await;
            }
        };
        within("it closes the connection", closed).await;
        let told = node.try_swap(&key(&round.to_string()), None, "1").await;
        assert!(matches!(told, Ok(SwapResult::Done(_))), "{round}: {told:?}");
    }
}

fn settings(redis: &Redis) -> RedisSettings {
    let mut settings =
        RedisSettings::new(&format!("redis://{}", redis.addr())).expect("an address");
    settings.deadline = DEADLINE;
    settings
}

#[tokio::test]
async fn a_redis_that_evicts_is_named_and_what_it_evicts_is_counted() {
    let evicts = Redis::start(&["--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru"]);
    let clock = Clock::start();
    let tried = Engine::Redis(settings(&evicts)).try_out(clock).await;
    let danger = tried.expect("it serves").expect("records are not safe");
    assert!(danger.contains("maxmemory-policy allkeys-lru"), "{danger}");
    assert!(
        danger.contains("set maxmemory-policy noeviction"),
        "{danger}"
    );
    let safe = Redis::start(&["--maxmemory-policy", "allkeys-lru"]);
    let tried = Engine::Redis(settings(&safe)).try_out(clock).await;
    assert_eq!(tried.expect("it serves"), None, "it has no bound");

    let node = node(evicts.addr());
    let known = async {
        while node.store.evictions().is_none() {
            tokio::task::yield_now().await;
        }
    };
    within("the node asks for it", known).await;
    let fill = "for i = 1, 60000 do redis.call('SET', 'junk' .. i, string.rep('x', 100)) end";
    control(&evicts, &["eval", fill, "0"]);
    let counted = async {
        while node.store.evictions() == Some(0) {
            tokio::task::yield_now().await;
        }
    };
    within("evictions are counted", counted).await;
}

#[tokio::test]
async fn a_user_that_may_nothing_is_found_out_by_a_trial_of_no_key() {
    let redis = Redis::start(&[]);
    let poor = ["acl", "setuser", "poor", "on", ">pw", "~*", "&*", "+hello"];
    control(&redis, &poor);
    let node = node(format!("poor:pw@{}", redis.addr()));
    let told = node.store.try_out().await;
    assert!(matches!(told, Err(StoreError::Denied(_))), "{told:?}");
    let good = self::node(redis.addr());
    good.store.try_out().await.expect("it may");
    assert_eq!(
        good.get(&RecordKey::trial()).await,
        None,
        "a trial leaves nothing"
    );
    // One that reads, and does not write.
    let reader = "acl setuser reader on >pw ~* &* +hello +eval +evalsha +script|load +time +hmget";
    control(&redis, &reader.split(' ').collect::<Vec<_>>());
    let node = self::node(format!("reader:pw@{}", redis.addr()));
    assert_eq!(node.get(&key("a")).await, None);
    let told = node.store.try_out().await;
    assert!(matches!(told, Err(StoreError::Denied(_))), "{told:?}");
}

#[tokio::test]
async fn a_renewed_password_is_used_without_a_restart() {
    let redis = Redis::start(&["--requirepass", "old"]);
    let settings = settings(&redis).with_credentials(None, "old");
    let engine = Engine::Redis(settings.clone());
    let node = Node::new(|clock| start(settings.clone(), clock));
    let version = node.put(&key("a"), None, "1").await;
    let new = "acl setuser default >new <old";
    let port = redis.addr().port().to_string();
    let cli = |more: &[&str]| {
        let mut command = std::process::Command::new("redis-cli");
        command.args(["-p", &port, "--no-auth-warning", "-a", "old"]);
        assert!(command.args(more).status().is_ok_and(|it| it.success()));
    };
    cli(&new.split(' ').collect::<Vec<_>>());
    let other = settings.clone().with_credentials(None, "new");
    assert_eq!(engine, Engine::Redis(other.clone()), "nothing else differs");
    engine.renew_secrets(&Engine::Redis(other));
    // The open connection still has its rights, and is replaced all the same.
    node.put(&key("a"), Some(version), "2").await;
    let mut list = std::process::Command::new("redis-cli");
    list.args(["-p", &port, "--no-auth-warning", "-a", "new"]);
    let list = list
        .args(["acl", "log"])
        .output()
        .expect("it comes with Redis");
    assert!(list.status.success(), "{list:?}");
}
