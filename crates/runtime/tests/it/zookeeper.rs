//! The ZooKeeper client against real ZooKeeper.

use std::time::Duration;

use tidegate_runtime::zookeeper::{NodeWrite, ZooKeeperClient, ZooKeeperError, ZooKeeperSettings};

use crate::relay::{Mode, Relay};
use crate::stores::{self, ZooKeeper};
use crate::support::PATIENCE;

#[tokio::test]
async fn a_node_is_made_once_and_written_only_over_the_version_that_was_read() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = ZooKeeperClient::new(ZooKeeperSettings::new(zookeeper.servers()));
    assert_eq!(client.get("/a/b/c").await.expect("it is up"), None);
    let made = client.create("/a/b/c", b"one").await.expect("it is up");
    assert_eq!(made.map(|stat| stat.version), Some(0));
    assert_eq!(
        client.create("/a/b/c", b"two").await.expect("it is up"),
        None
    );
    let set = client.set("/a/b/c", b"three", 0).await.expect("it is up");
    assert_eq!(set.map(|stat| stat.version), Some(1));
    assert_eq!(
        client.set("/a/b/c", b"four", 0).await.expect("it is up"),
        None
    );
    assert_eq!(
        client.set("/a/b/d", b"five", 0).await.expect("it is up"),
        None
    );
    let node = client.get("/a/b/c").await.expect("it is up");
    assert_eq!(node.expect("it was made").data, b"three");
    let refused = client.get("no path").await;
    assert!(
        matches!(refused, Err(ZooKeeperError::Refused(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_watch_reports_a_new_node_and_each_write() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = ZooKeeperClient::new(ZooKeeperSettings::new(zookeeper.servers()));
    let told = async |changed| {
        let told = tokio::time::timeout(PATIENCE, changed).await;
        told.expect("it is reported");
    };
    let (node, changed) = client.get_and_watch("/a").await.expect("it is up");
    assert_eq!(node, None);
    client.create("/a", b"").await.expect("it is up");
    told(changed).await;
    let (node, changed) = client.get_and_watch("/a").await.expect("it is up");
    let version = node.expect("it was made").stat.version;
    client.set("/a", b"", version).await.expect("it is up");
    told(changed).await;
}

#[tokio::test]
async fn a_watch_ends_at_the_server_when_no_caller_waits_for_it() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = ZooKeeperClient::new(ZooKeeperSettings::new(zookeeper.servers()));
    let watched = async |count| {
        let counted = tokio::time::timeout(PATIENCE, async {
            // Each read is behind what was asked before.
            while zookeeper.watched_paths(0) != count {
                client.get("/").await.expect("it is up");
            }
        });
        let now = || zookeeper.watched_paths(0);
        counted
            .await
            .unwrap_or_else(|_| panic!("{} paths, not {count}", now()));
    };
    let mut waiting = Vec::new();
    for number in 0..200 {
        let path = format!("/user-{}", number % 100);
        waiting.push(client.get_and_watch(&path).await.expect("it is up").1);
    }
    watched(100).await;
    // Another caller waits at each of these paths.
    waiting.truncate(100);
    watched(100).await;
    waiting.truncate(10);
    watched(10).await;
    // Those that are left hear of a change.
    client.create("/user-3", b"").await.expect("it is up");
    let told = tokio::time::timeout(PATIENCE, waiting.swap_remove(3)).await;
    told.expect("it is reported");
    // A caller that leaves before its answer, and one that comes at the same moment.
    for _ in 0..50 {
        let (path, other) = ("/user-5", client.get_and_watch("/user-5"));
        let mut leaves = Box::pin(client.get_and_watch(path));
        let _ = begin(&mut leaves);
        drop(leaves);
        let (_, changed) = other.await.expect("it is up");
        drop(changed);
    }
    drop(waiting);
    watched(0).await;
}

/// Begins a call without waiting for its answer.
fn begin<F: Future + Unpin>(call: &mut F) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(call).poll(&mut context).is_ready()
}

#[tokio::test]
async fn several_writes_are_done_together_or_not_at_all() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = ZooKeeperClient::new(ZooKeeperSettings::new(zookeeper.servers()));
    for path in ["/a", "/a/b", "/c"] {
        client.create(path, b"1").await.expect("it is up");
    }
    let all = async |writes: &[NodeWrite<'_>]| {
        let stats = client.write_all(writes).await.expect("it is up");
        stats.map(|stats| stats.iter().map(|stat| stat.version).collect::<Vec<_>>())
    };
    let written = [
        NodeWrite::Check("/a", 0),
        NodeWrite::Set("/c", b"2", 0),
        NodeWrite::Put("/a/b", b"2"),
    ];
    assert_eq!(all(&written).await, Some(vec![1, 1]));
    // Of another version, missing, or with children.
    let reasons = [
        NodeWrite::Check("/c", 0),
        NodeWrite::Delete("/d", 0),
        NodeWrite::Delete("/a", 0),
    ];
    for reason in reasons {
        for writes in [
            [NodeWrite::Put("/c", b"3"), reason],
            [reason, NodeWrite::Put("/c", b"3")],
        ] {
            assert_eq!(all(&writes).await, None, "{writes:?}");
        }
    }
    let found = client.get("/c").await.expect("it is up");
    assert_eq!(found.expect("it was made").data, b"2");
    let deleted = [NodeWrite::Delete("/a/b", 1), NodeWrite::Delete("/a", 0)];
    assert_eq!(all(&deleted).await, Some(vec![]));
    assert_eq!(client.get("/a").await.expect("it is up"), None);
    assert_eq!(client.children("/a").await.expect("it is up"), [""; 0]);
}

#[tokio::test]
async fn a_session_that_has_ended_is_replaced() {
    let mut zookeeper = ZooKeeper::start(1).await;
    let settings = ZooKeeperSettings {
        session_timeout: Duration::from_millis(800),
        deadline: Duration::from_millis(500),
        ..ZooKeeperSettings::new(zookeeper.servers())
    };
    let client = ZooKeeperClient::new(settings);
    client.create("/a", b"kept").await.expect("it is up");
    zookeeper.member(0).kill();
    // The session ends without a server, and then the library's own timeout.
    let unreachable = tokio::time::timeout(Duration::from_secs(4), async {
        loop {
            let error = client.get("/a").await.expect_err("no server is there");
            assert!(matches!(error, ZooKeeperError::Unreachable(_)), "{error:?}");
        }
    });
    unreachable.await.expect_err("it goes on for ever");
    zookeeper.restart(0);
    zookeeper.serves().await;
    let node = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Ok(node) = client.get("/a").await {
                return node;
            }
        }
    });
    let node = node.await.expect("a new session is made");
    assert_eq!(node.expect("it was kept").data, b"kept");
}

#[tokio::test]
async fn a_write_without_an_answer_is_unknown_and_one_without_a_server_unreachable() {
    let zookeeper = ZooKeeper::start(1).await;
    let relay = Relay::start(zookeeper.addr(0)).await;
    let lossy = ZooKeeperClient::new(ZooKeeperSettings::new(relay.addr.to_string()));
    lossy.create("/a", b"one").await.expect("it is up");
    relay.set(Mode::Deaf);
    let set = lossy.set("/a", b"two", 0).await;
    assert!(matches!(set, Err(ZooKeeperError::Unknown(_))), "{set:?}");
    let direct = ZooKeeperClient::new(ZooKeeperSettings::new(zookeeper.servers()));
    let node = direct
        .get("/a")
        .await
        .expect("it is up")
        .expect("it was made");
    assert_eq!((&node.data[..], node.stat.version), (&b"two"[..], 1));

    let [free] = stores::free_ports(1)[..] else {
        panic!("one was asked for");
    };
    let missing = ZooKeeperClient::new(ZooKeeperSettings::new(format!("127.0.0.1:{free}")));
    let created = missing.create("/a", b"").await;
    assert!(
        matches!(created, Err(ZooKeeperError::Unreachable(_))),
        "{created:?}"
    );
}

#[tokio::test]
async fn a_client_without_credentials_may_not_change_protected_nodes() {
    let zookeeper = ZooKeeper::start(1).await;
    let mut settings = ZooKeeperSettings::new(zookeeper.servers());
    settings.auth = Some(("digest".into(), b"user:secret".to_vec())).into();
    assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
    let owner = ZooKeeperClient::new(settings);
    owner.create("/a", b"").await.expect("it is up");
    owner
        .set("/a", b"mine", 0)
        .await
        .expect("it is the owner's");
    let stranger = ZooKeeperClient::new(ZooKeeperSettings::new(zookeeper.servers()));
    let read = stranger.get("/a").await;
    assert!(matches!(read, Err(ZooKeeperError::Denied(_))), "{read:?}");
    let written = stranger.set("/a", b"", 1).await;
    assert!(
        matches!(written, Err(ZooKeeperError::Denied(_))),
        "{written:?}"
    );
}

#[tokio::test]
async fn a_session_and_its_nodes_outlive_a_connection() {
    let zookeeper = ZooKeeper::start(1).await;
    let relay = Relay::start(zookeeper.addr(0)).await;
    let client = ZooKeeperClient::new(ZooKeeperSettings::new(relay.addr.to_string()));
    let direct = ZooKeeperClient::new(ZooKeeperSettings::new(zookeeper.servers()));
    client.put_ephemeral("/a/b", b"").await.expect("it is up");
    let (made, changed) = direct.get_and_watch("/a/b").await.expect("it is up");
    let (_, lost) = client.get_and_watch("/a/b").await.expect("it is up");
    relay.set(Mode::Cut);
    // A client that waits reads again.
    tokio::time::timeout(PATIENCE, lost)
        .await
        .expect("a lost watch ends");
    relay.set(Mode::Open);
    let found = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Ok(found) = client.get("/a/b").await {
                return found;
            }
        }
    });
    assert_eq!(found.await.expect("it connects again"), made);
    // Gone with the client, not with the timeout of the session.
    drop(client);
    let gone = tokio::time::timeout(Duration::from_secs(2), changed).await;
    gone.expect("the session ends with its client");
    assert_eq!(direct.get("/a/b").await.expect("it is up"), None);
}

/// A server refuses a session that has seen more writes than it has.
#[tokio::test]
async fn a_store_that_begins_anew_gets_a_new_session() {
    let mut zookeeper = ZooKeeper::start(1).await;
    let settings = ZooKeeperSettings {
        // Longer than any pause between two attempts.
        session_timeout: Duration::from_secs(2),
        ..ZooKeeperSettings::new(zookeeper.servers())
    };
    let client = ZooKeeperClient::new(settings);
    for version in 0..20 {
        client.create("/a", b"").await.expect("it is up");
        let set = client.set("/a", b"", version).await;
        set.expect("it is up").expect("no other client writes");
    }
    zookeeper.member(0).kill();
    zookeeper.forget(0);
    zookeeper.restart(0);
    let read = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Ok(node) = client.get("/a").await {
                return node;
            }
        }
    });
    assert_eq!(read.await.expect("it is served"), None);
}

#[tokio::test]
async fn a_chroot_stands_before_every_path() {
    let zookeeper = ZooKeeper::start(1).await;
    let inside = ZooKeeperClient::new(ZooKeeperSettings::new(format!(
        "{}/in/side",
        zookeeper.servers()
    )));
    let (none, changed) = inside.get_and_watch("/a").await.expect("it is up");
    assert_eq!(none, None);
    inside.create("/a", b"1").await.expect("it is up");
    tokio::time::timeout(PATIENCE, changed)
        .await
        .expect("it is reported");
    let direct = ZooKeeperClient::new(ZooKeeperSettings::new(zookeeper.servers()));
    let node = direct.get("/in/side/a").await.expect("it is up");
    assert_eq!(node.expect("it was made").data, b"1");
    let (children, _) = inside.children_and_watch("/").await.expect("it is up");
    assert_eq!(children, ["a"]);
    assert!(inside.delete("/a").await.expect("it is up"));
    assert!(!inside.delete("/a").await.expect("it is up"));
}

#[tokio::test]
async fn more_calls_than_a_server_takes_at_once_are_all_answered() {
    let zookeeper = ZooKeeper::start(1).await;
    let mut settings = ZooKeeperSettings::new(zookeeper.servers());
    settings.deadline = PATIENCE;
    let client = ZooKeeperClient::new(settings);
    client.create("/a", b"").await.expect("it is up");
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..5_000 {
        let client = client.clone();
        calls.spawn(async move { client.get("/a").await.expect("it is up").is_some() });
    }
    assert!(calls.join_all().await.into_iter().all(|found| found));
}

/// The queues are full, and each call ends by its deadline all the same.
#[tokio::test]
async fn calls_without_a_server_end_in_time_and_wait_within_a_bound() {
    let zookeeper = ZooKeeper::start(1).await;
    let relay = Relay::start(zookeeper.addr(0)).await;
    relay.set(Mode::Stalled);
    let mut settings = ZooKeeperSettings::new(relay.addr.to_string());
    settings.deadline = Duration::from_millis(400);
    let client = ZooKeeperClient::new(settings);
    let began = tokio::time::Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..5_000 {
        let client = client.clone();
        calls.spawn(async move { client.create("/a", b"").await });
    }
    for told in calls.join_all().await {
        assert!(
            matches!(told, Err(ZooKeeperError::Unreachable(_))),
            "{told:?}"
        );
    }
    let took = began.elapsed();
    assert!(took < PATIENCE, "{took:?}");
}

#[tokio::test]
async fn wrong_credentials_are_named_and_a_later_call_is_answered_the_same() {
    let zookeeper = ZooKeeper::start(1).await;
    let mut settings = ZooKeeperSettings::new(zookeeper.servers());
    settings.auth = Some(("unheard-of".into(), b"user:secret".to_vec())).into();
    let client = ZooKeeperClient::new(settings);
    for _ in 0..2 {
        let told = client.get("/").await;
        assert!(
            matches!(told, Err(ZooKeeperError::Unauthenticated(_))),
            "{told:?}"
        );
    }
}

#[tokio::test]
async fn an_address_that_is_none_and_a_server_of_another_kind_are_errors() {
    let wrong = ZooKeeperClient::new(ZooKeeperSettings::new("no:port:here"))
        .get("/")
        .await;
    assert!(
        matches!(wrong, Err(ZooKeeperError::Refused(_))),
        "{wrong:?}"
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let addr = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad\r\n").await;
            tokio::spawn(async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await });
        }
    });
    let told = ZooKeeperClient::new(ZooKeeperSettings::new(addr.to_string()))
        .get("/")
        .await;
    assert!(matches!(told, Err(ZooKeeperError::Garbage(_))), "{told:?}");
}
