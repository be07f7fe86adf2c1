//! ZooKeeper with TLS and client certificates.

use tidegate_quota::StoreError;
use tidegate_quota::zookeeper::start;
use tidegate_runtime::tls::TlsClient;

use super::super::{Node, comes_back, key, secured};
use super::settings;
use crate::authority::{Authority, Issued};
use crate::stores::ZooKeeper;

fn tls(ca: &Authority, shows: Option<&Issued>, name: Option<&str>) -> TlsClient {
    secured::tls(ca, shows, name, &[])
}

fn node(zookeeper: &ZooKeeper, client: TlsClient) -> Node {
    let mut settings = settings(zookeeper.addr(0));
    settings.store.tls = Some(client);
    Node::new(|clock| start(settings, clock))
}

/// Waits until an error of a node names all of these. The server may still be starting, and a
/// refused certificate of TLS 1.3 may only look like a closed connection.
async fn check(zookeeper: &ZooKeeper, client: TlsClient, words: &[&str]) {
    let node = node(zookeeper, client);
    let mut told = String::new();
    let named = async {
        while !words.iter().all(|words| told.contains(words)) {
            let found = node.store.get(&key("a")).await;
            let error = found.expect_err("the set-up is wrong");
            assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
            told = error.with_cause();
        }
    };
    let named = tokio::time::timeout(crate::support::PATIENCE, named).await;
    assert!(named.is_ok(), "{words:?}: {told}");
}

#[tokio::test]
async fn each_wrong_certificate_of_zookeeper_is_an_error_with_its_cure() {
    let (ca, other) = (Authority::new(), Authority::new());
    let client = ca.issue(&["sidecar"]);
    let good = || tls(&ca, Some(&client), None);
    let zookeeper = ZooKeeper::secured(&ca.issue(&["127.0.0.1"]), &ca.ca());
    let served = node(&zookeeper, good());
    comes_back(&served).await;
    let version = served.put(&key("a"), None, "1").await;

    let stranger = tls(&other, Some(&client), None);
    check(&zookeeper, stranger, &["no authority in ca", "put the"]).await;
    let bare = tls(&ca, None, None);
    check(
        &zookeeper,
        bare,
        &["client certificate", "set cert and key"],
    )
    .await;
    let forged = tls(&ca, Some(&other.issue(&["sidecar"])), None);
    check(&zookeeper, forged, &["our certificate"]).await;
    let late = tls(&ca, Some(&ca.issue_expired(&["late"])), None);
    check(&zookeeper, late, &["our certificate"]).await;

    let named = ZooKeeper::secured(&ca.issue(&["zookeeper.example"]), &ca.ca());
    let words = &["for zookeeper.example, not for 127.0.0.1", "server_name"];
    check(&named, good(), words).await;
    let by_name = node(&named, tls(&ca, Some(&client), Some("zookeeper.example")));
    by_name.put(&key("a"), None, "1").await;
    let expired = ZooKeeper::secured(&ca.issue_expired(&["127.0.0.1"]), &ca.ca());
    check(&expired, good(), &["has expired", "renew"]).await;
    let plain = ZooKeeper::start(1).await;
    check(&plain, good(), &["TLS"]).await;

    // None of these has disturbed the one that was right.
    served.put(&key("a"), Some(version), "2").await;
}

#[tokio::test]
async fn a_zookeeper_that_speaks_tls_says_nothing_to_a_client_that_does_not() {
    let ca = Authority::new();
    let zookeeper = ZooKeeper::secured(&ca.issue(&["127.0.0.1"]), &ca.ca());
    let served = node(&zookeeper, tls(&ca, Some(&ca.issue(&["sidecar"])), None));
    comes_back(&served).await;
    let plain = super::node(zookeeper.addr(0));
    let told = plain.store.get(&key("a")).await.expect_err("it is TLS");
    let told = told.with_cause();
    assert!(told.contains("speak TLS"), "{told}");
}

#[tokio::test]
async fn renewed_certificates_are_used_by_later_connections() {
    let (ca, other) = (Authority::new(), Authority::new());
    let client = ca.issue(&["sidecar"]);
    let zookeeper = ZooKeeper::secured(&ca.issue(&["127.0.0.1"]), &ca.ca());
    let wrong = tls(&other, Some(&client), None);
    check(&zookeeper, wrong.clone(), &["no authority in ca"]).await;
    let node = node(&zookeeper, wrong.clone());
    wrong.renew(&tls(&ca, Some(&client), None));
    comes_back(&node).await;
    node.put(&key("a"), None, "1").await;
}
