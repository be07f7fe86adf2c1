//! Quota records in real etcd.

mod secured;

use std::collections::BTreeSet;
use std::time::Duration;

use tidegate_limits::quota::StoreTime;
use tidegate_quota::etcd::{EtcdStoreSettings, start};
use tidegate_quota::{Engine, RecordKey, StoreError};
use tidegate_runtime::election::TimeToLive;
use tidegate_runtime::etcd::{Credentials, KeyChange, Range, WatchEvent};

use super::{Node, comes_back, entry, is_unavailable, key, until};
use crate::relay::{Mode, Relay};
use crate::stores::{self, Etcd};
use crate::support::PATIENCE;

fn node(urls: &[String]) -> Node {
    let mut settings = EtcdStoreSettings::new(stores::settings(urls));
    settings.time_to_live = TimeToLive::new(Duration::from_secs(2)).expect("it is in range");
    Node::new(|clock| start(settings, clock))
}

#[tokio::test]
async fn one_etcd_conforms() {
    let etcd = Etcd::start(1);
    super::conforms("etcd, one", || node(&etcd.urls())).await;
}

#[tokio::test]
async fn three_etcds_conform() {
    let etcd = Etcd::start(3);
    super::conforms("etcd, three", || node(&etcd.urls())).await;
}

#[tokio::test]
async fn etcd_loses_nothing_with_its_leader() {
    let mut etcd = Etcd::start(3);
    let (leader, urls) = (etcd.leader(), etcd.urls());
    let kill = async || etcd.member(leader).kill();
    super::nothing_confirmed_is_lost("etcd, its leader killed", || node(&urls), kill).await;
}

#[tokio::test]
async fn a_write_that_etcd_did_not_answer_is_left_open() {
    let etcd = Etcd::start(1);
    let relay = Relay::start(etcd.addr(0)).await;
    let lossy = node(&[format!("http://{}", relay.addr)]);
    let key = key("a");
    let version = lossy.put(&key, None, "1").await;
    relay.set(Mode::Deaf);
    let lost = lossy.try_swap(&key, Some(version), "2").await;
    assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
    // It was done, as it happens.
    let found = node(&etcd.urls()).get(&key).await;
    assert_eq!(found.expect("it was written").text, b"2");
    is_unavailable(&lossy, Duration::from_secs(1)).await;
    relay.set(Mode::Open);
    comes_back(&lossy).await;
    assert_eq!(lossy.get(&key).await.expect("it was written").text, b"2");
}

#[tokio::test]
async fn an_unavailable_etcd_is_reported_in_time_and_found_again() {
    let etcd = Etcd::start(1);
    let relay = Relay::start(etcd.addr(0)).await;
    let near = node(&[format!("http://{}", relay.addr)]);
    let far = node(&etcd.urls());
    near.in_time().await;
    let mut members = far.store.members();
    until("both are counted", &mut members, |count| *count == 2).await;
    for mode in [Mode::Cut, Mode::Stalled] {
        relay.set(mode);
        is_unavailable(&near, Duration::from_secs(1)).await;
        until("it counts as dead", &mut members, |count| *count == 1).await;
        relay.set(Mode::Open);
        until("it lives again", &mut members, |count| *count == 2).await;
        comes_back(&near).await;
        assert_eq!(near.get(&key("none")).await, None);
    }
}

#[tokio::test]
async fn the_time_goes_on_when_who_keeps_it_goes_and_never_faster() {
    let etcd = Etcd::start(1);
    let keeper = node(&etcd.urls());
    keeper.in_time().await;
    let heir = node(&etcd.urls());
    heir.in_time().await;
    // The keeper is gone in order, or without a word.
    let before = heir.now();
    drop(keeper);
    comes_back(&heir).await;
    let after = *heir.store.time().borrow();
    let expected = before.at(after.now());
    assert!(
        after.earliest() > before.earliest(),
        "{before:?}, {after:?}"
    );
    assert!(
        after.earliest() <= expected.latest(),
        "{expected:?}, {after:?}"
    );
    // A node that never knew the one before agrees.
    let late = node(&etcd.urls());
    late.in_time().await;
    let (first, second): (StoreTime, StoreTime) = (heir.now(), late.now());
    assert!(first.earliest() <= second.latest(), "{first:?}, {second:?}");
}

#[tokio::test]
async fn a_record_ends_with_its_lease_also_when_no_sidecar_runs() {
    let etcd = Etcd::start(1);
    let node = node(&etcd.urls());
    node.in_time().await;
    let (short, long) = (Duration::from_millis(500), Duration::from_secs(600));
    node.put_for(&key("short"), "1", short).await;
    node.put_for(&key("long"), "1", long).await;
    drop(node);
    let client = tidegate_runtime::etcd::EtcdClient::new(etcd.settings());
    let mut watch = client.watch(Range::key(b"/tidegate/quota/records/short"), 1);
    let removed = async {
        while let Ok(WatchEvent::Changes(changes)) = watch.next().await {
            let is_removal = |change: &KeyChange| matches!(change, KeyChange::Deleted { .. });
            if changes.changes.iter().any(is_removal) {
                return;
            }
        }
        panic!("etcd tells no more");
    };
    let removed = tokio::time::timeout(PATIENCE, removed).await;
    removed.expect("its lease ends");
    let long = client.get(b"/tidegate/quota/records/long").await;
    assert!(long.expect("etcd is up").is_some());
}

#[tokio::test]
async fn many_records_share_a_lease_and_a_lease_that_etcd_forgot_is_replaced() {
    let etcd = Etcd::start(1);
    let node = node(&etcd.urls());
    node.in_time().await;
    let client = tidegate_runtime::etcd::EtcdClient::new(etcd.settings());
    let leases = async || {
        let records = Range::prefix(b"/tidegate/quota/records/");
        let records = client.range(&records).await.expect("etcd is up");
        let leases = records.entries.iter().map(|entry| entry.lease);
        let leases: Option<BTreeSet<i64>> = leases.collect();
        leases.expect("each record has a lease")
    };
    for id in 0..100 {
        let kept = Duration::from_secs(600 + id);
        node.put_for(&key(&format!("user-{id}")), "1", kept).await;
    }
    let first = leases().await;
    assert_eq!(first.len(), 1, "{first:?}");
    let lease = *first.first().expect("there is one");
    assert!(client.lease_revoke(lease).await.expect("etcd is up"));
    assert_eq!(node.get(&key("user-0")).await, None);
    let old = node
        .put_for(&key("user-0"), "2", Duration::from_secs(600))
        .await;
    let second = leases().await;
    assert!(second.len() == 1 && second != first, "{second:?}");
    // A record that is written again has the later of two leases.
    node.put(&key("user-0"), Some(old), "3").await;
    let third = leases().await;
    assert!(third.len() == 1 && third != second, "{third:?}");
}

#[tokio::test]
async fn a_foreign_time_record_is_not_changed_and_the_time_is_unknown() {
    let etcd = Etcd::start(1);
    let client = tidegate_runtime::etcd::EtcdClient::new(etcd.settings());
    let foreign = client.put(b"/tidegate/quota/time", b"noon", None).await;
    foreign.expect("etcd is up");
    let node = node(&etcd.urls());
    // Records are kept all the same.
    let version = node.put(&key("a"), None, "1").await;
    assert_eq!(node.get(&key("a")).await, entry(version, "1"));
    let mut master = client.watch(
        tidegate_runtime::etcd::Range::prefix(b"/tidegate/quota/master"),
        1,
    );
    master.next().await.expect("one is elected");
    let found = client.get(b"/tidegate/quota/time").await;
    let found = found.expect("etcd is up").expect("it is there");
    assert_eq!(found.value, b"noon");
    assert_eq!(node.now().latest(), Duration::MAX);
}

#[tokio::test]
async fn an_etcd_that_wants_a_password_is_reported() {
    // To check a password is made to take long, and here it is done often.
    let etcd = Etcd::with(1, "http", |_, _| vec!["--bcrypt-cost=4".into()]);
    etcd.control(&["user", "add", "root:secret"]);
    etcd.control(&["user", "grant-role", "root", "root"]);
    etcd.control(&["user", "add", "reader:weak"]);
    etcd.control(&["auth", "enable"]);
    let of = |credentials: Option<(&str, &str)>| {
        let mut store = etcd.settings();
        let credentials = credentials.map(|(user, password)| Credentials {
            user: user.into(),
            password: password.into(),
        });
        store.credentials = credentials.into();
        Node::new(|clock| start(EtcdStoreSettings::new(store), clock))
    };
    for wrong in [None, Some(("root", "wrong"))] {
        let told = of(wrong).store.get(&key("a")).await;
        assert!(
            matches!(told, Err(StoreError::Unauthenticated(_))),
            "{told:?}"
        );
        let told = of(wrong).try_swap(&key("a"), None, "1").await;
        assert!(
            matches!(told, Err(StoreError::Unauthenticated(_))),
            "{told:?}"
        );
    }
    // A user that is known, and may not.
    let reader = Some(("reader", "weak"));
    let told = of(reader).store.get(&key("a")).await;
    assert!(matches!(told, Err(StoreError::Denied(_))), "{told:?}");
    let told = of(reader).try_swap(&key("a"), None, "1").await;
    assert!(matches!(told, Err(StoreError::Denied(_))), "{told:?}");
    of(Some(("root", "secret"))).put(&key("a"), None, "1").await;
}

/// A good read does not make it good for quotas: it cannot spend.
#[tokio::test]
async fn an_etcd_without_space_reads_and_is_unavailable_all_the_same() {
    let etcd = Etcd::with(1, "http", |_, _| {
        vec!["--quota-backend-bytes=1000000".into()]
    });
    let node = node(&etcd.urls());
    let key = key("a");
    let version = node.put(&key, None, "1").await;
    node.store.try_out().await.expect("it has space");
    assert_eq!(
        node.store.get(&RecordKey::trial()).await.expect("it is up"),
        None,
        "a trial writes nothing"
    );
    let client = tidegate_runtime::etcd::EtcdClient::new(etcd.settings());
    let page = vec![b'x'; 100_000];
    let full = async {
        let mut number = 0;
        while client
            .put(format!("/fill/{number}").as_bytes(), &page, None)
            .await
            .is_ok()
        {
            number += 1;
        }
    };
    let full = tokio::time::timeout(crate::support::PATIENCE, full).await;
    full.expect("its space has an end");
    let told = node.try_swap(&key, Some(version), "2").await;
    assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
    assert_eq!(node.get(&key).await, entry(version, "1"));
    let told = node.store.try_out().await.expect_err("it does not write");
    assert!(matches!(told, StoreError::Unavailable(_)), "{told:?}");
    assert!(told.with_cause().contains("alarm disarm"), "{told:?}");
}

/// A token is fetched with the new password when the old one is spent.
#[tokio::test]
async fn a_renewed_password_of_etcd_is_used_without_a_restart() {
    let etcd = Etcd::with(1, "http", |_, _| vec!["--bcrypt-cost=4".into()]);
    etcd.control(&["user", "add", "root:old"]);
    etcd.control(&["user", "grant-role", "root", "root"]);
    etcd.control(&["auth", "enable"]);
    let of = |password: &str| {
        let mut store = etcd.settings();
        let credentials = Credentials {
            user: "root".into(),
            password: password.into(),
        };
        store.credentials = Some(credentials).into();
        EtcdStoreSettings::new(store)
    };
    let settings = of("old");
    let engine = Engine::Etcd(settings.clone());
    let node = Node::new(|clock| start(settings, clock));
    let version = node.put(&key("a"), None, "1").await;
    let change = format!(
        "echo new | etcdctl --endpoints {} --user root:old user passwd root --interactive=false",
        etcd.url(0)
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &change]).env("ETCDCTL_API", "3");
    assert!(shell.status().is_ok_and(|it| it.success()));
    // The change ends the tokens of the old password.
    let told = node.try_swap(&key("a"), Some(version), "2").await;
    assert!(
        matches!(told, Err(StoreError::Unauthenticated(_))),
        "{told:?}"
    );
    engine.renew_secrets(&Engine::Etcd(of("new")));
    node.put(&key("a"), Some(version), "3").await;
}

#[tokio::test]
async fn a_server_that_is_not_etcd_is_reported() {
    let nonsense = super::answers(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnope").await;
    let settings = EtcdStoreSettings::new(stores::settings(&[format!("http://{nonsense}")]));
    let node = Node::new(|clock| start(settings, clock));
    let told = node.store.get(&key("a")).await;
    assert!(matches!(told, Err(StoreError::Garbage(_))), "{told:?}");
    let told = node.try_swap(&key("a"), None, "1").await;
    assert!(told.is_err_and(|error| error.is_open()));
}
