//! The ZooKeeper client against real ZooKeeper.

use std::time::Duration;

use tidegate_runtime::zookeeper::{Client, Error, Settings};

use crate::relay::{Mode, Relay};
use crate::stores::{self, ZooKeeper};
use crate::support::PATIENCE;

#[tokio::test]
async fn a_node_is_made_once_and_written_only_over_the_version_that_was_read() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = Client::new(Settings::new(zookeeper.servers()));
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
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
}

#[tokio::test]
async fn a_watch_reports_a_new_node_and_each_write() {
    let zookeeper = ZooKeeper::start(1).await;
    let client = Client::new(Settings::new(zookeeper.servers()));
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
async fn a_session_that_has_ended_is_replaced() {
    let mut zookeeper = ZooKeeper::start(1).await;
    let settings = Settings {
        session_timeout: Duration::from_millis(800),
        deadline: Duration::from_millis(500),
        ..Settings::new(zookeeper.servers())
    };
    let client = Client::new(settings);
    client.create("/a", b"kept").await.expect("it is up");
    zookeeper.member(0).kill();
    // The session ends without a server, and then the library's own timeout.
    let unreachable = tokio::time::timeout(Duration::from_secs(4), async {
        loop {
            let error = client.get("/a").await.expect_err("no server is there");
            assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
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
    let lossy = Client::new(Settings::new(relay.addr.to_string()));
    lossy.create("/a", b"one").await.expect("it is up");
    relay.set(Mode::Deaf);
    let set = lossy.set("/a", b"two", 0).await;
    assert!(matches!(set, Err(Error::Unknown(_))), "{set:?}");
    let direct = Client::new(Settings::new(zookeeper.servers()));
    let node = direct
        .get("/a")
        .await
        .expect("it is up")
        .expect("it was made");
    assert_eq!((&node.data[..], node.stat.version), (&b"two"[..], 1));

    let [free] = stores::free_ports(1)[..] else {
        panic!("one was asked for");
    };
    let missing = Client::new(Settings::new(format!("127.0.0.1:{free}")));
    let created = missing.create("/a", b"").await;
    assert!(matches!(created, Err(Error::Unreachable(_))), "{created:?}");
}

#[tokio::test]
async fn a_client_without_credentials_may_not_change_protected_nodes() {
    let zookeeper = ZooKeeper::start(1).await;
    let mut settings = Settings::new(zookeeper.servers());
    settings.auth = Some(("digest".into(), b"user:secret".to_vec()));
    assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
    let owner = Client::new(settings);
    owner.create("/a", b"").await.expect("it is up");
    owner
        .set("/a", b"mine", 0)
        .await
        .expect("it is the owner's");
    let stranger = Client::new(Settings::new(zookeeper.servers()));
    let read = stranger.get("/a").await;
    assert!(matches!(read, Err(Error::Unauthenticated(_))), "{read:?}");
    let written = stranger.set("/a", b"", 1).await;
    assert!(
        matches!(written, Err(Error::Unauthenticated(_))),
        "{written:?}"
    );
}
