//! Quota records in real ZooKeeper.

mod secured;

use std::time::Duration;

use tidegate_quota::zookeeper::{Settings, start};
use tidegate_quota::{Configured, Error};
use tidegate_runtime::zookeeper::{self, Client};

use super::{Node, comes_back, entry, is_unavailable, key, until};
use crate::relay::{Mode, Relay};
use crate::stores::ZooKeeper;

fn settings(servers: impl std::fmt::Display) -> Settings {
    let mut store = zookeeper::Settings::new(servers.to_string());
    store.session_timeout = Duration::from_secs(2);
    Settings::new(store)
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
    assert!(matches!(lost, Err(Error::Unknown(_))), "{lost:?}");
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
    let client = Client::new(zookeeper::Settings::new(zookeeper.servers()));
    node(zookeeper.servers())
        .put(&key("eve/\u{1}"), None, "text")
        .await;
    let found = client.get("/quota/eve%2F%01/window").await;
    let found = found.expect("it is up").expect("it was made");
    assert_eq!(found.data, b"text");
}

/// Reads what ZooKeeper says of a key until it is so.
async fn says(node: &Node, known: &mut Configured, is_so: impl Fn(&Configured) -> bool) {
    let reads = async {
        loop {
            let says = node.store.configured(&key("sri"), known).await;
            *known = says.expect("it is up");
            if is_so(known) {
                return;
            }
        }
    };
    let read = tokio::time::timeout(crate::support::PATIENCE, reads).await;
    assert!(read.is_ok(), "{known:?}");
}

#[tokio::test]
async fn totals_in_zookeeper_are_read_and_impossible_ones_change_nothing() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = Client::new(zookeeper::Settings::new(zookeeper.servers()));
    let node = node(zookeeper.servers());
    assert!(node.store.configures());
    let mut known = Configured::default();
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
    let client = Client::new(zookeeper::Settings::new(zookeeper.servers()));
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
    let mut known = Configured::default();
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
    assert!(matches!(told, Err(Error::Denied(_))), "{told:?}");
    for (id, expected) in [("a", Some(version)), ("b", None)] {
        let told = stranger.try_swap(&key(id), expected, "2").await;
        assert!(matches!(told, Err(Error::Denied(_))), "{told:?}");
    }
    assert_eq!(owner.get(&key("a")).await, entry(version, "1"));
}

#[tokio::test]
async fn a_server_that_is_not_zookeeper_is_reported() {
    let nonsense = super::answers(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let told = node(nonsense).store.get(&key("a")).await;
    assert!(told.is_err(), "{told:?}");
}
