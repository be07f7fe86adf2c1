//! Findings about the certificates that a config names.

use super::*;
use crate::authority::Authority;

#[tokio::test]
async fn a_certificate_that_has_expired_among_good_ones() {
    let (ca, backend) = (Authority::new(), backend().await);
    let (good, expired) = (ca.issue(&["new"]), ca.issue_expired(&["old"]));
    let listener = |name: &str, cert: &str, key: &str| {
        let (port, ca) = (free_ports(1)[0], ca.ca());
        format!(
            "[[listen]]\nname = \"{name}\"\nbind = \"127.0.0.1:{port}\"\nprotocol = \"http\"\n\
             tls = {{ cert = \"{cert}\", key = \"{key}\", client_ca = \"{ca}\", client_auth = \"required\" }}\n"
        )
    };
    let sections =
        listener("good", good.cert(), good.key()) + &listener("old", expired.cert(), expired.key());
    let probed = Setup::new(&before(&backend, &sections)).probe().await;
    probed.only(&[("certificates", "validity")]);
    let checks = probed.checks().iter();
    let of_certificates: Vec<(&str, &str)> = checks
        .filter(|it| it["group"] == "certificates")
        .map(|it| {
            (
                it["about"].as_str().expect("text"),
                it["status"].as_str().expect("text"),
            )
        })
        .collect();
    // The authorities of both listeners are in one file.
    let (cert, authorities) = ("listen.tls.cert", "listen.tls.client_ca");
    assert_eq!(
        of_certificates,
        [(cert, "ok"), (authorities, "ok"), (cert, "failed")]
    );
    let mut checks = probed.checks().iter();
    let failed = checks.find(|it| it["status"] == "failed").expect("one");
    let found = format!("{} has expired on 01 Jan 2020", expired.cert());
    assert_eq!(failed["found"], found);
    assert_eq!(failed["cause"], "every connection that needs it fails");
    assert_eq!(failed["cure"], "renew it, and reload with SIGHUP");
}
