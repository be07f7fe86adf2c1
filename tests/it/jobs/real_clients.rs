//! Real clients of services with jobs: `proxmoxer` and `XenAPI`, ten at once as Terraform does, before stand-ins with the locks and
//! tasks of the real servers.

use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::Value;

use crate::authority::Authority;
use crate::rpc_clients::{PROXMOX, XAPI, python};
use crate::sidecar::Sidecar;
use crate::support::{PATIENCE, listens};

const AT_ONCE: u64 = 10;

/// The report of clients that begin ten jobs at once and wait for them.
async fn report(what: &str, addr: SocketAddr) -> Value {
    let mut client = python("client.py");
    client.args([what, &addr.port().to_string(), &AT_ONCE.to_string()]);
    let output = tokio::time::timeout(PATIENCE, client.stderr(Stdio::piped()).output()).await;
    let output = output.expect("in time").expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout);
    report.unwrap_or_else(|error| panic!("{error}: {told}"))
}

/// Before Proxmox, with one clone at once.
async fn clones(server: SocketAddr, job: &str) -> Value {
    let authority = Authority::new();
    let issued = authority.issue(&["127.0.0.1"]);
    let tls = format!(
        "[listen.tls]\ncert = {:?}\nkey = {:?}\n",
        issued.cert(),
        issued.key()
    );
    let backend = format!("kind = \"http\"\nhttp = \"http://{server}\"\n");
    let sections = format!(
        r#"
        [admin]
        bind = "127.0.0.1:0"
        [limits]
        window = "0s"
        outstanding = 10
        max_wait = "1m"
        ledger_lost = "assume_empty"
        [[class]]
        name = "clones"
        functions = ["qemu_clone"]
        outstanding_max = 1
        [[route]]
        method = "POST"
        path = "/api2/json/nodes/{{node}}/qemu/{{vmid}}/clone"
        function = "qemu_clone"
        {job}
        "#
    );
    let sidecar = Sidecar::start(&listens(&tls, &backend, &sections)).await;
    report("clones", sidecar.listener("test").await).await
}

#[tokio::test]
async fn ten_clones_at_once_succeed_only_if_the_limit_counts_jobs() {
    let (_child, server) = PROXMOX.start_with(&[]).await;
    // The same limit on calls.
    let without = clones(server, "").await;
    let with = clones(server, "job = \"proxmox\"").await;
    println!("of {AT_ONCE} clones: without jobs {without}, with jobs {with}");
    assert!(
        without["succeeded"].as_u64() <= Some(AT_ONCE / 2),
        "{without}"
    );
    assert_eq!(with["succeeded"].as_u64(), Some(AT_ONCE), "{with}");
}

#[tokio::test]
async fn at_most_as_many_tasks_of_xapi_run_as_calls_may() {
    let most_of = async |dialect: bool| {
        let (_child, server) = XAPI.start_with(&[]).await;
        let backend = format!("kind = \"http\"\nhttp = \"http://{server}\"\ndialect = \"xapi\"\n");
        let sections = format!(
            "[admin]\nbind = \"127.0.0.1:0\"\n[jobs]\ndialect = {dialect}\n[limits]\nwindow = \"0s\"\noutstanding = 10\n\
             max_wait = \"1m\"\nledger_lost = \"assume_empty\"\n[[class]]\nname = \"starts\"\nfunctions = [\"VM.start\"]\n\
             outstanding_max = 2\n"
        );
        let sidecar = Sidecar::start(&listens("", &backend, &sections)).await;
        let report = report("starts", sidecar.listener("test").await).await;
        assert_eq!(report["succeeded"].as_u64(), Some(AT_ONCE), "{report}");
        let mut most = python("client.py");
        most.args(["most_tasks", &server.port().to_string(), "0"]);
        let output = most.output().await.expect("it runs");
        let most: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        println!("XAPI, jobs {dialect}: {report}, most tasks at once {most}");
        most.as_u64().expect("a number")
    };
    assert!(most_of(false).await > 2);
    assert_eq!(most_of(true).await, 2);
}
