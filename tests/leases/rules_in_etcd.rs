//! Rules in a key of a real etcd: waited for, followed, and never replaced by bad ones.

use std::time::Duration;

use tidegate_lease_server::config;
use tidegate_lease_server::running::LeaseServer;
use tidegate_runtime::etcd::EtcdClient;

use crate::stores::Etcd;
use crate::support::{Answer, PATIENCE, ask};

const RULES: &str = "
resources:
- identifier_glob: '*'
  capacity: 100
  algorithm: {kind: FAIR_SHARE, lease_length: 60, refresh_interval: 5}
";

const KEY: &str = "/leases/rules";

async fn get(server: &LeaseServer, path: &str) -> Answer {
    let address = server.status_address().expect("there is one");
    let asked = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    Answer::read(ask(address, asked).await.as_bytes())
}

/// Waits until the page at a path says this.
async fn says(server: &LeaseServer, path: &str, words: &str) {
    let asking = async {
        while !get(server, path).await.body.contains(words) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let said = tokio::time::timeout(PATIENCE, asking).await;
    assert!(said.is_ok(), "{path} never said {words}");
}

#[tokio::test]
async fn rules_in_etcd_are_waited_for_and_followed_and_bad_ones_change_nothing() {
    let etcd = Etcd::start(1);
    let client = EtcdClient::new(etcd.settings());
    let put = async |rules: &str| {
        let put = client.put(KEY.as_bytes(), rules.as_bytes(), None).await;
        put.expect("etcd is up");
    };
    let text = format!(
        "bind = \"127.0.0.1:0\"\nstatus_bind = \"127.0.0.1:0\"\nresources = \"etcd:{KEY}\"\n\
         [etcd]\nendpoints = [\"{}\"]\n",
        etcd.url(0)
    );
    let (config, _) = config::read(&text, "leases.toml").expect("it is good");
    // There are none yet, and then bad ones: it does not start until there are good ones.
    put(&RULES.replace("100", "-1")).await;
    let starting = tokio::spawn(async move { LeaseServer::start(&config).await });
    put(RULES).await;
    let started = tokio::time::timeout(PATIENCE, starting).await;
    let server = started
        .expect("it starts")
        .expect("no panic")
        .expect("it can bind");
    says(&server, "/v1/config", "\"capacity\":100.0").await;

    put(&RULES.replace("100", "90")).await;
    says(&server, "/v1/config", "\"capacity\":90.0").await;
    put(&RULES.replace("'*'", "'['")).await;
    says(&server, "/metrics", "reloads_total{outcome=\"refused\"} 1").await;
    says(&server, "/v1/config", "\"capacity\":90.0").await;
    put(&RULES.replace("100", "80")).await;
    says(&server, "/v1/config", "\"capacity\":80.0").await;
    assert!(server.drain().await);
}

/// Doorman's rules are in etcd's keys API v2, which has contents of its own.
#[tokio::test]
async fn the_documented_command_copies_doormans_rules_from_v2_to_v3() {
    let etcd = Etcd::with(1, "http", |_, _| vec!["--enable-v2=true".into()]);
    let sh = |script: &str| {
        let done = std::process::Command::new("sh")
            .args(["-ec", script])
            .env("ETCDCTL_ENDPOINTS", etcd.url(0))
            .env("RULES", RULES)
            .output();
        let done = done.expect("it runs");
        assert!(done.status.success(), "{script}: {done:?}");
    };
    sh("ETCDCTL_API=2 etcdctl set /doorman/config \"$RULES\"");
    let docs = include_str!("../../docs/how-to/coming-from-doorman.md");
    let commands = docs.split("```sh\n").nth(1).expect("there is one");
    sh(commands.split("```").next().expect("it ends"));
    let text = format!(
        "bind = \"127.0.0.1:0\"\nstatus_bind = \"127.0.0.1:0\"\nresources = \
         \"etcd:/doorman/config\"\n[etcd]\nendpoints = [\"{}\"]\n",
        etcd.url(0)
    );
    let (config, _) = config::read(&text, "leases.toml").expect("it is good");
    let server = LeaseServer::start(&config).await.expect("it can bind");
    says(&server, "/v1/config", "\"capacity\":100.0").await;
    assert!(server.drain().await);
}
