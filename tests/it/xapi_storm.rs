//! The storm of XAPI's design: a monitoring client that asks without a pause, and an administrator who starts twenty virtual
//! machines. Both are the real `XenAPI` client; the server is a stand-in with four workers.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use crate::raw_http::{Peer, access_line, get};
use crate::rpc_clients::{XAPI, python};
use crate::sidecar::Sidecar;
use crate::support::{PATIENCE, listens};

const STARTS: usize = 20;
const MONITOR_THREADS: usize = 12;
const WORKERS: f64 = 4.0;
/// How long a worker of the stand-in takes.   seconds
const START: f64 = 0.05;
const READ: f64 = 0.04;

/// The config of docs/how-to/rpc.md.
const SECTIONS: &str = r#"
    [limits]
    window = "0s"
    outstanding = 4
    max_wait = "5m"
    ledger_lost = "assume_empty"
    [[bucket]]
    name = "monitoring"
    burst = 5
    fill = 5
    max_wait = "none"
    [[caller]]
    label = "monitoring"
    match = { user = "monitor" }
    rate_limit = "monitoring"
    [[caller]]
    label = "administrators"
    match = { user = "root", originator = "console" }
    weight = 100
    [admin]
    bind = "127.0.0.1:0"
"#;

/// The way of an administrator through the storm.
struct StartTimes {
    /// By the clock.
    seconds: f64,
    /// Calls ahead of each start at the server: those that waited, and one that had to end.
    ahead: Vec<u64>,
}

impl StartTimes {
    /// The time of all starts by what was ahead of them, with each call taking as long as it should, in parts of that without
    /// any. The load of this machine changes nothing.
    fn by_order(&self) -> f64 {
        let ahead: u64 = self.ahead.iter().sum();
        let waited = ahead as f64 * READ / WORKERS;
        1.0 + waited / (STARTS as f64 * START)
    }
}

async fn administrator(addr: SocketAddr, server: SocketAddr) -> StartTimes {
    let mut client = python("client.py");
    client.args([
        "administrator",
        &addr.port().to_string(),
        &STARTS.to_string(),
    ]);
    // What came before is not of this one.
    report(server).await;
    let output = tokio::time::timeout(PATIENCE, client.stderr(Stdio::piped()).output()).await;
    let output = output.expect("in time").expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    let said: Result<Value, _> = serde_json::from_slice(&output.stdout);
    let said = said.unwrap_or_else(|error| panic!("{error}: {told}"));
    let report = report(server).await;
    let ahead = report["ahead"].as_array().expect("a list").iter();
    let times = StartTimes {
        seconds: said["seconds"].as_f64().expect("a number"),
        ahead: ahead.filter_map(Value::as_u64).collect(),
    };
    assert_eq!(times.ahead.len(), STARTS);
    times
}

/// Asks the server for all that it saw since the report before.
async fn report(server: SocketAddr) -> Value {
    let reply = Peer::ask(server, get("/", "Connection: close\r\n")).await;
    serde_json::from_str(&reply.answer.body).expect("JSON")
}

/// A client that asks in many threads.
struct Monitor {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Monitor {
    async fn start(addr: SocketAddr) -> Self {
        let mut client = python("client.py");
        client.args([
            "monitor",
            &addr.port().to_string(),
            &MONITOR_THREADS.to_string(),
        ]);
        let mut child = client.stdin(Stdio::piped()).spawn().expect("it runs");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut monitor = Self { child, lines };
        assert_eq!(monitor.line().await, "ready");
        monitor
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
        line.expect("in time").expect("readable").expect("a line")
    }

    /// Ends it, and checks that none of its calls has failed.
    async fn stop(mut self) -> u64 {
        let mut input = self.child.stdin.take().expect("it is piped");
        input.shutdown().await.expect("it is open");
        drop(input);
        let said: Value = serde_json::from_str(&self.line().await).expect("JSON");
        assert_eq!(said["failed"], 0, "{said}");
        said["answered"].as_u64().expect("a number")
    }
}

/// The three ways, and what stands between the last ones.
async fn storm() -> ([StartTimes; 3], Sidecar) {
    let (_child, server) = XAPI.start_with(&["4"]).await;
    let alone = administrator(server, server).await;
    let monitor = Monitor::start(server).await;
    let without = administrator(server, server).await;
    monitor.stop().await;
    let backend = format!("kind = \"http\"\nhttp = \"http://{server}\"\ndialect = \"xapi\"\n");
    let sidecar = Sidecar::start(&listens("", &backend, SECTIONS)).await;
    let addr = sidecar.listener("test").await;
    let monitor = Monitor::start(addr).await;
    let through = administrator(addr, server).await;
    let answered = monitor.stop().await;
    assert!(answered > 0, "a rate limit delays, and stops no client");
    let times = [alone, without, through];
    for (name, it) in ["alone", "in the storm", "in the storm, through Tidegate"]
        .iter()
        .zip(&times)
    {
        println!("{name}: {:.2} s, by order {:.2}", it.seconds, it.by_order());
    }
    (times, sidecar)
}

#[tokio::test]
async fn an_administrator_starts_machines_in_a_storm_as_fast_as_alone() {
    let ([alone, without, through], sidecar) = storm().await;
    assert_eq!(alone.by_order(), 1.0, "{:?}", alone.ahead);
    assert!(
        without.by_order() > 1.5,
        "it is no storm: {:?}",
        without.ahead
    );
    assert!(through.by_order() <= 1.1, "{:?}", through.ahead);
    // Nor did they wait here.
    let (mut starts, mut from) = (Vec::new(), 0);
    while starts.len() < STARTS {
        let (line, next) = access_line(&sidecar, from).await;
        from = next;
        if line["function"] == "VM.start" {
            starts.push(line);
        }
    }
    let waited = starts
        .iter()
        .filter(|line| line["verdict"] == "delayed")
        .count();
    assert!(waited <= 1, "{starts:?}");
    assert!(
        starts.iter().all(|line| line["user"] == "root"),
        "{starts:?}"
    );
    // The table of seed 001: who asks how often, for what, and what would suit.
    let (_, callers) = sidecar.get("/v1/callers").await;
    let callers: Value = serde_json::from_str(&callers).expect("JSON");
    let id = |label: &str| {
        let callers = callers["callers"].as_array().expect("a list").iter();
        let found = callers.clone().find(|it| it["label"] == label);
        found.expect("a row")["id"]
            .as_str()
            .expect("an id")
            .to_owned()
    };
    let (_, usage) = sidecar
        .get(&format!("/v1/callers/{}/usage", id("administrators")))
        .await;
    assert!(usage.contains("\"call\":\"VM.start\""), "{usage}");
    let monitor = id("monitoring");
    let (_, usage) = sidecar.get(&format!("/v1/callers/{monitor}/usage")).await;
    assert!(usage.contains("\"call\":\"VM.get_all_records\""), "{usage}");
    let (status, suggested) = sidecar.get(&format!("/v1/callers/{monitor}/suggest")).await;
    assert_eq!(status, 200, "{suggested}");
}

/// The storm by the clock, for the figures in docs/how-to/rpc.md.
#[tokio::test]
#[ignore = "it needs a quiet machine"]
async fn the_storm_by_the_clock() {
    let ([alone, _, through], _sidecar) = storm().await;
    let most = Duration::from_secs_f64(alone.seconds * 1.1);
    assert!(Duration::from_secs_f64(through.seconds) <= most);
}
