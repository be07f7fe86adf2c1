//! Quota records in real ZooKeeper.

mod secured;

use std::time::Duration;

use tidegate_limits::quota::QuotaRecord;
use tidegate_quota::zookeeper::{ZooKeeperStoreSettings, start};
use tidegate_quota::{StoreError, StoredSettings, SwapResult};
use tidegate_runtime::zookeeper::{self, ZooKeeperClient};

use super::{Node, comes_back, entry, is_unavailable, key, until};
use crate::relay::{Mode, Relay};
use crate::stores::ZooKeeper;
use crate::support::PATIENCE;

fn settings(servers: impl std::fmt::Display) -> ZooKeeperStoreSettings {
    let mut store = zookeeper::ZooKeeperSettings::new(servers.to_string());
    store.session_timeout = Duration::from_secs(2);
    ZooKeeperStoreSettings::new(store)
}

fn node(servers: impl std::fmt::Display) -> Node {
    Node::new(|clock| start(settings(servers), clock))
}

#[tokio::test]
async fn one_zookeeper_conforms() {
    let zookeeper = ZooKeeper::start(1).await;
    super::conforms("ZooKeeper, one", || node(zookeeper.servers())).await;
    let node = node(zookeeper.servers());
    node.in_time().await;
    super::contains_the_time_of_day(&node);
}

#[tokio::test]
async fn three_zookeepers_conform() {
    let zookeeper = ZooKeeper::start(3).await;
    super::conforms("ZooKeeper, three", || node(zookeeper.servers())).await;
}

#[tokio::test]
async fn zookeeper_loses_nothing_with_its_leader() {
    let mut zookeeper = ZooKeeper::start(3).await;
    let (leader, servers) = (zookeeper.leader(), zookeeper.servers());
    let kill = async || zookeeper.member(leader).kill();
    super::nothing_confirmed_is_lost("ZooKeeper, its leader killed", || node(&servers), kill).await;
}

#[tokio::test]
async fn a_write_that_zookeeper_did_not_answer_is_left_open() {
    let zookeeper = ZooKeeper::start(1).await;
    let relay = Relay::start(zookeeper.addr(0)).await;
    let lossy = node(relay.addr);
    let key = key("a");
    let version = lossy.put(&key, None, "1").await;
    relay.set(Mode::Deaf);
    let lost = lossy.try_swap(&key, Some(version), "2").await;
    assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
    // It was done, as it happens.
    let found = node(zookeeper.servers()).get(&key).await;
    assert_eq!(found.expect("it was written").text, b"2");
    is_unavailable(&lossy, Duration::from_secs(1)).await;
    relay.set(Mode::Open);
    comes_back(&lossy).await;
    assert_eq!(lossy.get(&key).await.expect("it was written").text, b"2");
}

#[tokio::test]
async fn an_unavailable_zookeeper_is_reported_in_time_and_found_with_a_new_session() {
    let zookeeper = ZooKeeper::start(1).await;
    let relay = Relay::start(zookeeper.addr(0)).await;
    let near = node(relay.addr);
    let far = node(zookeeper.servers());
    near.in_time().await;
    let mut members = far.store.members();
    until("both are counted", &mut members, |count| *count == 2).await;
    for mode in [Mode::Cut, Mode::Stalled] {
        relay.set(mode);
        is_unavailable(&near, Duration::from_secs(1)).await;
        // The session has ended.
        until("it counts as dead", &mut members, |count| *count == 1).await;
        relay.set(Mode::Open);
        until("it lives again", &mut members, |count| *count == 2).await;
        comes_back(&near).await;
        assert_eq!(near.get(&key("none")).await, None);
    }
}

#[tokio::test]
async fn records_stand_where_the_design_has_them() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = ZooKeeperClient::new(zookeeper::ZooKeeperSettings::new(zookeeper.servers()));
    node(zookeeper.servers())
        .put(&key("eve/\u{1}"), None, "text")
        .await;
    let found = client.get("/quota/eve%2F%01/window").await;
    let found = found.expect("it is up").expect("it was made");
    assert_eq!(found.data, b"text");
}

/// A record of a window of the store's time, this long ago.
fn record_of(node: &Node, ago: Duration) -> String {
    let length = Duration::from_secs(1);
    let window = (node.now().earliest() - ago).as_secs();
    let record = QuotaRecord::new(window, 5, 10, 0, length);
    record.expect("it is one").to_string()
}

#[tokio::test]
async fn records_of_long_ago_are_removed_with_their_nodes_and_nothing_else_is() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = ZooKeeperClient::new(zookeeper::ZooKeeperSettings::new(zookeeper.servers()));
    let sweeping = || {
        let mut settings = settings(zookeeper.servers());
        settings.sweep_every = Duration::from_millis(50);
        Node::new(|clock| start(settings, clock))
    };
    let node = node(zookeeper.servers());
    node.in_time().await;
    let (old, new) = (Duration::from_secs(700), Duration::from_secs(500));
    let (old, new) = (record_of(&node, old), record_of(&node, new));
    for id in 0..150 {
        node.put(&key(&format!("user-{id}")), None, &old).await;
    }
    let put = async |id: &str, text: &str| node.put(&key(id), None, text).await;
    let (configured, foreign) = (put("configured", &old).await, put("foreign", "7").await);
    let (recent, written) = (put("recent", &new).await, put("written", &old).await);
    client
        .create("/quota/configured/total", b"7")
        .await
        .expect("it is up");
    // A node that an operator made a moment ago.
    client.create("/quota/empty", b"").await.expect("it is up");
    // One of the members looks, and this one would take its time.
    drop(node);
    let [node, other] = [sweeping(), sweeping()];
    let left = async {
        loop {
            let mut left = client.children("/quota").await.expect("it is up");
            left.sort();
            if left == ["configured", "empty", "foreign", "recent"] {
                return;
            }
            // The nodes that look look every 50 ms.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let left = tokio::time::timeout(PATIENCE, left).await;
    assert!(left.is_ok(), "{:?}", client.children("/quota").await);
    drop(other);
    assert_eq!(node.get(&key("configured")).await, None);
    let total = client
        .get("/quota/configured/total")
        .await
        .expect("it is up");
    assert_eq!(total.expect("it stays").data, b"7");
    // No version of before passes for one of a record that was made again.
    for (id, old) in [("configured", configured), ("written", written)] {
        let made = node.put(&key(id), None, &new).await;
        let swapped = node.swap(&key(id), Some(old), "stale").await;
        let SwapResult::Conflict(Some(found)) = swapped else {
            panic!("it was replaced by the version of a removed one: {swapped:?}");
        };
        assert_eq!(found.text, new.as_bytes());
        let again = node.put(&key(id), Some(found.version), &new).await;
        assert!(again != old && again != made);
    }
    // A record that stayed is written on by what was known of it: at most after one more read.
    for (id, version) in [("foreign", foreign), ("recent", recent)] {
        match node.swap(&key(id), Some(version), "1").await {
            SwapResult::Done(_) => {}
            SwapResult::Conflict(found) => {
                let found = found.expect("it stays").version;
                node.put(&key(id), Some(found), "1").await;
            }
        }
    }
}

/// A member of before does not notice removals.
#[tokio::test]
async fn nothing_is_removed_beside_a_member_that_would_not_notice() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = ZooKeeperClient::new(zookeeper::ZooKeeperSettings::new(zookeeper.servers()));
    let member = client.put_ephemeral("/tidegate/quota/members/0", b"").await;
    member.expect("it is up");
    let mut settings = settings(zookeeper.servers());
    settings.sweep_every = Duration::from_millis(20);
    let node = Node::new(|clock| start(settings, clock));
    node.in_time().await;
    let old = record_of(&node, Duration::from_secs(700));
    node.put(&key("a"), None, &old).await;
    let mut members = node.store.members();
    until("both are counted", &mut members, |count| *count == 2).await;
    for round in 0..20 {
        let found = node.get(&key("a")).await;
        assert!(found.is_some(), "it was removed in round {round}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    client
        .delete("/tidegate/quota/members/0")
        .await
        .expect("it is up");
    let gone = async { while node.get(&key("a")).await.is_some() {} };
    let gone = tokio::time::timeout(PATIENCE, gone).await;
    gone.expect("the other member has left");
}

/// 1,024 at once are promised, however many there are in turn.
#[tokio::test]
async fn a_node_watches_no_more_records_than_it_waits_for() {
    let zookeeper = ZooKeeper::start(1).await;
    let node = node(zookeeper.servers());
    node.in_time().await;
    for id in 0..300 {
        let key = key(&format!("user-{id}"));
        let version = node.put(&key, None, "1").await;
        let waiting = node.store.changed(&key, Some(version));
        // Long enough to be watched, and then the window of the key is over.
        let waited = tokio::time::timeout(Duration::from_millis(5), waiting).await;
        assert!(waited.is_err(), "nothing has changed: {waited:?}");
    }
    let counted = async {
        // That of the members, and one that is about to end.
        while zookeeper.watched_paths(0) > 3 {
            node.get(&key("user-0")).await;
        }
    };
    let counted = tokio::time::timeout(PATIENCE, counted).await;
    assert!(counted.is_ok(), "{} paths", zookeeper.watched_paths(0));
}

/// Reads what ZooKeeper says of a key until it is so.
async fn says(node: &Node, known: &mut StoredSettings, is_so: impl Fn(&StoredSettings) -> bool) {
    let reads = async {
        loop {
            let says = node.store.configured(&key("sri"), known).await;
            *known = says.expect("it is up");
            if is_so(known) {
                return;
            }
        }
    };
    let read = tokio::time::timeout(PATIENCE, reads).await;
    assert!(read.is_ok(), "{known:?}");
}

#[tokio::test]
async fn totals_in_zookeeper_are_read_and_impossible_ones_change_nothing() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = ZooKeeperClient::new(zookeeper::ZooKeeperSettings::new(zookeeper.servers()));
    let node = node(zookeeper.servers());
    assert!(node.store.configures());
    let mut known = StoredSettings::default();
    says(&node, &mut known, |says| says.total.is_none()).await;
    let mut versions = [None, None];
    let names = ["/quota/sri/total", "/quota/sri/base"];
    for (at, text, total, base, mistake) in [
        (0, "100", Some(100), None, None),
        (1, "5\n", Some(100), Some(5), None),
        // The base is above the total: the total counts all the same.
        (0, "3", Some(3), None, Some("base must not be above total")),
        (0, "many", Some(3), None, Some("total must be a number")),
        (0, "200", Some(200), Some(5), None),
        (0, "0", Some(0), Some(5), None),
    ] {
        let stat = match versions[at] {
            None => client.create(names[at], text.as_bytes()).await,
            Some(version) => client.set(names[at], text.as_bytes(), version).await,
        };
        versions[at] = Some(
            stat.expect("it is up")
                .expect("no other client writes")
                .version,
        );
        says(&node, &mut known, |says| {
            let said = says.mistake.as_deref();
            let as_expected = match mistake {
                None => said.is_none(),
                Some(mistake) => said.is_some_and(|said| said.contains(mistake)),
            };
            as_expected && (says.total, says.base) == (total, base)
        })
        .await;
    }
    assert!(client.delete(names[0]).await.expect("it is up"));
    says(&node, &mut known, |says| says.total.is_none()).await;
}

#[tokio::test]
async fn another_program_that_writes_the_designs_own_nodes_is_noticed() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = ZooKeeperClient::new(zookeeper::ZooKeeperSettings::new(zookeeper.servers()));
    // Left behind long ago.
    client
        .create("/quota/sri/usable", b"70")
        .await
        .expect("it is up");
    client
        .create("/quota/sri/total", b"100")
        .await
        .expect("it is up");
    let node = node(zookeeper.servers());
    let mut known = StoredSettings::default();
    says(&node, &mut known, |says| says.total == Some(100)).await;
    assert_eq!(known.foreign_writer, None);
    let set = client.set("/quota/sri/usable", b"65", 0).await;
    set.expect("it is up").expect("no other client writes");
    says(&node, &mut known, |says| says.foreign_writer.is_some()).await;
    let writer = known.foreign_writer.as_deref();
    assert_eq!(writer, Some("/quota/sri/usable"));
    assert_eq!(known.total, Some(100));
}

#[tokio::test]
async fn a_zookeeper_that_wants_a_password_is_reported() {
    let zookeeper = ZooKeeper::start(1).await;
    let mut owner = settings(zookeeper.servers());
    owner.store.auth = Some(("digest".into(), b"user:secret".to_vec())).into();
    let owner = Node::new(|clock| start(owner, clock));
    let version = owner.put(&key("a"), None, "1").await;
    let stranger = node(zookeeper.servers());
    let told = stranger.store.get(&key("a")).await;
    assert!(matches!(told, Err(StoreError::Denied(_))), "{told:?}");
    for (id, expected) in [("a", Some(version)), ("b", None)] {
        let told = stranger.try_swap(&key(id), expected, "2").await;
        assert!(matches!(told, Err(StoreError::Denied(_))), "{told:?}");
    }
    assert_eq!(owner.get(&key("a")).await, entry(version, "1"));
}

#[tokio::test]
async fn a_server_that_is_not_zookeeper_is_reported() {
    let nonsense = super::answers(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let told = node(nonsense).store.get(&key("a")).await;
    assert!(told.is_err(), "{told:?}");
}
