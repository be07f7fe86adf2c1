//! Quotas in stores with TLS, certificates, users and failovers.

use super::stores::shares_exactly;
use super::*;

use crate::authority::{Authority, Issued};
use crate::sidecar;
use crate::stores::{Etcd, Redis, Sentinels, ZooKeeper, enable_users, secured_etcd, secured_redis};

/// The lines of `[quota_store]` for certificates.
fn certificates(ca: &Authority, shows: &Issued) -> String {
    let (ca, cert, key) = (ca.ca(), shows.cert(), shows.key());
    format!("ca = \"{ca}\"\ncert = \"{cert}\"\nkey = \"{key}\"")
}

async fn until_status(listener: SocketAddr, wanted: u16) {
    eventually(async || (call(listener, "").await.status == wanted).then_some(())).await;
}

/// A sidecar whose store rejects its certificate, which the log says with a cure.
async fn refused_for_our_certificate(text: &str) -> (sidecar::Sidecar, SocketAddr) {
    let sidecar = sidecar::Sidecar::start(text).await;
    let listener = sidecar.listener("test").await;
    until_status(listener, 503).await;
    let logged = sidecar.log().wait(&["quota:", "our certificate"]).await;
    assert!(logged.contains("give"), "no cure: {logged}");
    (sidecar, listener)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sidecars_share_a_budget_in_etcd_with_tls_and_a_user() {
    let ca = Authority::new();
    let own = ca.issue(&["127.0.0.1"]);
    let etcd = Etcd::with(1, "https", |port, _| secured_etcd(port, &own, &ca.ca()));
    let shows = ca.issue(&["sidecar"]);
    enable_users(&etcd, &shows, &ca.ca(), "/tidegate/quota/");
    let (url, files) = (etcd.url(0), certificates(&ca, &shows));
    shares_exactly(&format!(
        "engine = \"etcd\"\nservers = [\"{url}\"]\nuser = \"tidegate\"\npassword = \"password\"\n\
         {files}"
    ))
    .await;
}

/// Then with a certificate that is renewed by a reload.
#[tokio::test(flavor = "multi_thread")]
async fn two_sidecars_share_a_budget_in_zookeeper_with_tls_and_a_user() {
    let (ca, other) = (Authority::new(), Authority::new());
    let zookeeper = ZooKeeper::secured(&ca.issue(&["127.0.0.1"]), &ca.ca());
    let shows = ca.issue(&["sidecar"]);
    let (addr, files) = (zookeeper.addr(0), certificates(&ca, &shows));
    let store = format!(
        "engine = \"zookeeper\"\nservers = [\"{addr}\"]\nuser = \"tidegate\"\n\
         password = \"password\"\nsession_timeout = \"2s\"\n{files}"
    );
    shares_exactly(&store).await;

    let foreign = other.issue(&["sidecar"]);
    let store = store.replace(&files, &certificates(&ca, &foreign));
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("other", "total", 1_000, LONG, REJECT);
    let text = text(backend.addr, &format!("{store}\n{ALONE}"), &limits);
    let (sidecar, listener) = refused_for_our_certificate(&text).await;
    shows.replace(&foreign);
    sidecar.hang_up("config reloaded").await;
    until_status(listener, 200).await;
}

/// A sidecar starts with a certificate that the store rejects. A reload reads a good one.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_renews_certificates_and_a_bad_file_changes_nothing() {
    let (ca, other) = (Authority::new(), Authority::new());
    let own = ca.issue(&["redis.example"]);
    let keeps = ["--appendonly", "yes", "--appendfsync", "always"];
    let flags = |port| {
        let flags = secured_redis(port, &own, &ca.ca()).into_iter();
        let flags: Vec<_> = flags.chain(keeps.map(str::to_owned)).collect();
        flags
    };
    let mut redis = Redis::with(flags);
    let shows = other.issue(&["sidecar"]);
    let backend = Scripted::in_both_dialects().await;
    let (address, files) = (redis.addr(), certificates(&ca, &shows));
    let quota = format!(
        "engine = \"redis\"\nservers = [\"rediss://{address}\"]\nserver_name = \"redis.example\"\n\
         {files}\n{ALONE}"
    );
    let limits = limit("all", "total", 1_000, LONG, REJECT);
    let text = text(backend.addr, &quota, &limits);
    let (sidecar, listener) = refused_for_our_certificate(&text).await;

    ca.issue(&["sidecar"]).replace(&shows);
    sidecar.hang_up("config reloaded").await;
    until_status(listener, 200).await;
    std::fs::write(&shows.key, "no key").expect("there is room");
    let lines = sidecar.hang_up("config refused").await;
    let names_it = |line: &String| line.contains("holds no key") && line.contains("PRIVATE KEY");
    assert!(lines.iter().any(names_it), "{lines:#?}");
    // It connects again with what it has.
    let port = address.port();
    let flags = flags(port);
    redis.restart(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    until_status(listener, 200).await;
}

/// Redis, a replica and three sentinels; the primary dies between two halves of a budget.
#[tokio::test(flavor = "multi_thread")]
async fn a_budget_holds_over_a_failover_of_redis_when_nothing_was_left_to_replicate() {
    const TOTAL: usize = 200;
    let mut primary = Redis::start(&["--repl-diskless-sync-delay", "0"]);
    let port = primary.addr().port();
    let of = port.to_string();
    let _replica = Redis::start(&["--replicaof", "127.0.0.1", &of]);
    let sentinels = Sentinels::start(port, |_| Vec::new());
    sentinels.each_until("+sentinel ", 2);
    sentinels.each_until("+slave ", 1);
    let servers = sentinels.ports().iter();
    let servers: Vec<_> = servers
        .map(|it| format!("\"redis://127.0.0.1:{it}\""))
        .collect();
    let backend = Scripted::in_both_dialects().await;
    let quota = format!(
        "engine = \"redis\"\nsentinel = \"mymaster\"\nservers = [{}]\n{TWO}",
        servers.join(", ")
    );
    let limits = limit("all", "total", TOTAL as u64, LONG, REJECT);
    let text = text(backend.addr, &quota, &limits);
    let [a, b] = [Sidecar::with_store(&text), Sidecar::with_store(&text)];
    let up = async || {
        for sidecar in [&a, &b] {
            eventually(async || {
                let store = sidecar.quotas().await["store"].clone();
                (store["members"] == 2 && store["up"] == true).then_some(())
            })
            .await;
        }
    };
    up().await;
    let (of_a, of_b) = tokio::join!(a.calls("", TOTAL / 4), b.calls("", TOTAL / 4));
    primary.replicated().await;
    primary.kill();
    // The sidecars may follow before they notice that the old one is gone.
    sentinels.until("+switch-master");
    up().await;
    let passed = Cell::new(of_a + of_b);
    eventually(async || {
        let (of_a, of_b) = tokio::join!(a.calls("", 5), b.calls("", 5));
        passed.set(passed.get() + of_a + of_b);
        (passed.get() >= TOTAL).then_some(())
    })
    .await;
    let more = a.calls("", 20).await + b.calls("", 20).await;
    assert_eq!(passed.get() + more, TOTAL);
}
