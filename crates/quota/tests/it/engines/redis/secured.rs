//! Redis with TLS, client certificates and a user of its own.

use tidegate_quota::StoreError;
use tidegate_quota::redis::{RedisSettings, start};
use tidegate_runtime::tls::TlsClient;

use super::super::{Node, comes_back, key, secured};
use super::DEADLINE;
use crate::authority::{Authority, Issued};
use crate::stores::{Redis, secured_redis};

pub(super) fn tls(ca: &Authority, shows: Option<&Issued>, name: Option<&str>) -> TlsClient {
    secured::tls(ca, shows, name, &[])
}

fn settings(redis: &Redis, client: TlsClient) -> RedisSettings {
    let address = format!("rediss://{}", redis.addr());
    let mut settings = RedisSettings::new(&address).expect("it is an address");
    settings.tls = Some(client);
    // A handshake takes longer than a call.
    settings.deadline = 2 * DEADLINE;
    settings
}

fn node(redis: &Redis, client: TlsClient) -> Node {
    Node::new(|clock| start(settings(redis, client), clock))
}

/// The text that operators see.
async fn told(node: &Node) -> String {
    let told = node.store.get(&key("a")).await;
    let error = told.expect_err("the set-up is wrong");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    error.with_cause()
}

async fn check(redis: &Redis, client: TlsClient, words: &[&str]) {
    let told = told(&node(redis, client)).await;
    for words in words {
        assert!(told.contains(words), "{words:?}: {told}");
    }
}

fn serving(own: &Issued, ca: &Authority) -> Redis {
    Redis::with(|port| secured_redis(port, own, &ca.ca()))
}

#[tokio::test]
async fn each_wrong_certificate_of_redis_is_an_error_with_its_cure() {
    let (ca, other) = (Authority::new(), Authority::new());
    let client = ca.issue(&["sidecar"]);
    let good = || tls(&ca, Some(&client), None);
    let redis = serving(&ca.issue(&["127.0.0.1"]), &ca);
    let served = node(&redis, good());
    let version = served.put(&key("a"), None, "1").await;

    let stranger = tls(&other, Some(&client), None);
    check(&redis, stranger, &["no authority in ca", "put the"]).await;
    let bare = tls(&ca, None, None);
    check(&redis, bare, &["client certificate", "set cert and key"]).await;
    let forged = tls(&ca, Some(&other.issue(&["sidecar"])), None);
    check(&redis, forged, &["our certificate"]).await;
    let late = tls(&ca, Some(&ca.issue_expired(&["late"])), None);
    check(&redis, late, &["our certificate has expired"]).await;

    let named = serving(&ca.issue(&["redis.example"]), &ca);
    let words = &["for redis.example, not for 127.0.0.1", "server_name"];
    check(&named, good(), words).await;
    let by_name = tls(&ca, Some(&client), Some("redis.example"));
    node(&named, by_name).put(&key("a"), None, "1").await;
    let expired = serving(&ca.issue_expired(&["127.0.0.1"]), &ca);
    check(&expired, good(), &["has expired", "renew"]).await;
    let plain = Redis::start(&[]);
    check(&plain, good(), &["may not speak TLS"]).await;

    // None of these has disturbed the one that was right.
    served.put(&key("a"), Some(version), "2").await;
}

#[tokio::test]
async fn renewed_certificates_are_used_by_later_connections() {
    let (ca, other) = (Authority::new(), Authority::new());
    let client = ca.issue(&["sidecar"]);
    let redis = serving(&ca.issue(&["127.0.0.1"]), &ca);
    let wrong = tls(&other, Some(&client), None);
    let node = node(&redis, wrong.clone());
    told(&node).await;
    wrong.renew(&tls(&ca, Some(&client), None));
    comes_back(&node).await;
    node.put(&key("a"), None, "1").await;
}

/// The rights that docs/how-to/quotas.md lists.
#[tokio::test]
async fn a_user_with_the_documented_rights_is_enough_and_one_without_gets_a_cure() {
    let redis = Redis::start(&[]);
    let docs = include_str!("../../../../../../docs/how-to/quotas.md");
    let of_docs = docs
        .lines()
        .find_map(|line| line.strip_prefix("user tidegate "));
    let rights = of_docs.expect("docs/how-to/quotas.md has a line of an ACL file");
    let rights: Vec<&str> = rights.split(' ').collect();
    let set = [&["acl", "setuser", "tidegate"], &rights[..]].concat();
    assert_eq!(super::control(&redis, &set), "OK\n");
    let address = |user: &str| format!("{user}@{}", redis.addr());
    let node = super::node(address("tidegate:password"));
    node.in_time().await;
    let key = key("a");
    let version = node.put(&key, None, "1").await;
    let changed = node.store.changed(&key, Some(version));
    let put = node.put(&key, Some(version), "2");
    let (changed, _) = tokio::join!(changed, put);
    changed.expect("it may subscribe");

    let poor = [
        "acl", "setuser", "poor", "on", ">pw", "~*", "&*", "+hello", "+ping",
    ];
    super::control(&redis, &poor);
    let told = super::node(address("poor:pw")).store.get(&key).await;
    let error = told.expect_err("it may not");
    assert!(matches!(error, StoreError::Denied(_)), "{error:?}");
    assert!(
        error.with_cause().contains("docs/how-to/quotas.md"),
        "{error:?}"
    );
    let told = super::node(address("tidegate:wrong")).store.get(&key).await;
    let text = told.expect_err("a wrong password").with_cause();
    assert!(text.contains("check user and password"), "{text}");
}
