//! etcd with TLS, client certificates and users: all that a sidecar does there, elections
//! included, and each wrong set-up.

use std::time::Duration;

use tidegate_quota::StoreError;
use tidegate_quota::etcd::{EtcdStoreSettings, start};
use tidegate_runtime::election::TimeToLive;
use tidegate_runtime::etcd::Credentials;
use tidegate_runtime::tls::TlsClient;

use super::super::{Node, key, secured};
use crate::authority::{Authority, Issued};
use crate::stores::{Etcd, enable_users, secured_etcd};

fn settings(etcd: &Etcd, tls: TlsClient, user: &str, password: &str) -> EtcdStoreSettings {
    let mut store = etcd.settings();
    store.tls = Some(tls);
    store.credentials = Some(Credentials {
        user: user.to_owned(),
        password: password.to_owned(),
    })
    .into();
    let mut settings = EtcdStoreSettings::new(store);
    settings.time_to_live = TimeToLive::new(Duration::from_secs(2)).expect("it is in range");
    settings
}

fn node(etcd: &Etcd, tls: TlsClient, user: &str, password: &str) -> Node {
    Node::new(|clock| start(settings(etcd, tls, user, password), clock))
}

fn tls(ca: &Authority, shows: Option<&Issued>, name: Option<&str>) -> TlsClient {
    secured::tls(ca, shows, name, &[b"h2"])
}

fn etcd(own: &Issued, ca: &Authority) -> Etcd {
    Etcd::with(1, "https", |port, _| secured_etcd(port, own, &ca.ca()))
}

/// Checks the alert of a server of TLS 1.3 about our certificate: it comes behind the handshake, and may come
/// behind a write that fails because the connection is closed.
async fn check_alert(etcd: &Etcd, tls: TlsClient, words: &str) {
    for _ in 0..40 {
        check(etcd, tls.clone(), &[words]).await;
    }
}

async fn check(etcd: &Etcd, tls: TlsClient, words: &[&str]) {
    let told = node(etcd, tls, "tidegate", "password");
    let told = told.store.get(&key("a")).await;
    let error = told.expect_err("the set-up is wrong");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let told = error.with_cause();
    for words in words {
        assert!(told.contains(words), "{words:?}: {told}");
    }
}

#[tokio::test]
async fn etcd_with_tls_certificates_and_a_user_of_few_rights_conforms() {
    let ca = Authority::new();
    // The member shows its own certificate to itself.
    let etcd = etcd(&ca.issue(&["127.0.0.1"]), &ca);
    let shows = ca.issue(&["sidecar"]);
    enable_users(&etcd, &shows, &ca.ca(), "/tidegate/quota/");
    let good = || tls(&ca, Some(&shows), None);
    // Tokens end within a second, and are renewed.
    let conforming = || node(&etcd, good(), "tidegate", "password");
    super::super::conforms("etcd, secured", conforming).await;

    let told = node(&etcd, good(), "tidegate", "wrong");
    let error = told
        .store
        .get(&key("a"))
        .await
        .expect_err("a wrong password");
    assert!(matches!(error, StoreError::Unauthenticated(_)), "{error:?}");
    let text = error.with_cause();
    assert!(text.contains("check user and password"), "{text}");
    let told = node(&etcd, good(), "stranger", "password");
    let error = told.store.get(&key("a")).await.expect_err("no permission");
    assert!(matches!(error, StoreError::Denied(_)), "{error:?}");
    let text = error.with_cause();
    assert!(text.contains("role grant-permission"), "{text}");
}

#[tokio::test]
async fn each_wrong_certificate_of_etcd_is_an_error_with_its_cure() {
    let (ca, other) = (Authority::new(), Authority::new());
    let shows = ca.issue(&["sidecar"]);
    let serving = etcd(&ca.issue(&["127.0.0.1"]), &ca);
    let stranger = tls(&other, Some(&shows), None);
    check(&serving, stranger, &["no authority in ca"]).await;
    check_alert(&serving, tls(&ca, None, None), "set cert and key").await;
    let forged = tls(&ca, Some(&other.issue(&["sidecar"])), None);
    check_alert(&serving, forged, "our certificate").await;
    let named = etcd(&ca.issue(&["etcd.example"]), &ca);
    let words = &["for etcd.example, not for 127.0.0.1", "server_name"];
    check(&named, tls(&ca, Some(&shows), None), words).await;
    let expired = etcd(&ca.issue_expired(&["127.0.0.1"]), &ca);
    check(&expired, tls(&ca, Some(&shows), None), &["has expired"]).await;
}
