//! Real clients of RPC services, from their registry, before stand-ins that answer as the real servers do: a limit on one
//! function makes its calls wait, and what must be refused is an error that the library knows.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::raw_http::access_line;
use crate::sidecar::Sidecar;
use crate::support::{PATIENCE, closed_port, listens};

/// A kind of service: its dialect, and the functions that its client calls.
pub(crate) struct Service {
    kind: &'static str,
    /// The program of its client.
    client: &'static str,
    dialect: &'static str,
    slow: &'static str,
    other: &'static str,
    /// The error of the library for a refusal, and a part of its text.
    refused: (&'static str, &'static str),
}

pub(crate) const XAPI: Service = Service {
    kind: "xapi",
    client: PYTHON,
    dialect: "xapi",
    slow: "VM.start",
    other: "task.get_record",
    refused: ("Failure", "TOO_BUSY"),
};
/// Proxmox VE, whose clients are in `jobs`.
pub(crate) const PROXMOX: Service = Service {
    kind: "proxmox",
    client: PYTHON,
    dialect: "none",
    slow: "none",
    other: "none",
    refused: ("none", "none"),
};
const OPENAI: Service = Service {
    kind: "openai",
    client: PYTHON,
    dialect: "openai",
    slow: "slow",
    other: "fast",
    refused: ("InternalServerError", "deadline_unreachable"),
};
const OPENAI_OF_NODE: Service = Service {
    client: NODE,
    ..OPENAI
};
const ETHEREUM: Service = Service {
    kind: "ethereum",
    client: PYTHON,
    dialect: "json-rpc",
    slow: "eth_getLogs",
    other: "eth_blockNumber",
    refused: ("Web3RPCError", "-32005"),
};
const MCP: Service = Service {
    kind: "mcp",
    client: PYTHON,
    dialect: "mcp",
    slow: "slow",
    other: "fast",
    refused: ("is_error", "deadline_unreachable"),
};

/// The programs with the clients.
const PYTHON: &str = "client.py";
const NODE: &str = "client.mjs";

/// The clients for Node.
pub(crate) fn node() -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let installed = root.join(".venv-rpc/node/node_modules");
    assert!(
        installed.is_dir(),
        "the real clients for Node are not installed: `make test` sets them up (or `make rpc-clients`)"
    );
    let mut command = Command::new("node");
    command
        .arg(root.join("tests/peers/rpc").join(NODE))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

pub(crate) fn python(script: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python: PathBuf = root.join(".venv-rpc/bin/python");
    assert!(
        python.is_file(),
        "the real clients are not installed: `make test` sets them up (or `make rpc-clients`)"
    );
    let mut command = Command::new(python);
    command
        .arg(root.join("tests/peers/rpc").join(script))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    command
}

impl Service {
    async fn start(&self) -> (Child, SocketAddr) {
        self.start_with(&[]).await
    }

    /// A stand-in with more arguments.
    pub(crate) async fn start_with(&self, more: &[&str]) -> (Child, SocketAddr) {
        let addr = closed_port();
        let mut command = python("stand_in.py");
        command.arg(self.kind).arg(addr.port().to_string());
        command.args(more);
        let mut child = command.spawn().expect("it runs");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let ready = tokio::time::timeout(PATIENCE, lines.next_line()).await;
        let ready = ready.expect("in time").expect("readable");
        assert_eq!(ready.as_deref(), Some("ready"), "{}", self.kind);
        (child, addr)
    }

    /// The report of a client that calls the slow function this often, through a sidecar with these limits.
    async fn report(&self, calls: usize, limits: &str) -> (Value, Sidecar) {
        let (_backend, addr) = self.start().await;
        let backend = format!(
            "kind = \"http\"\nhttp = \"http://{addr}\"\ndialect = \"{}\"\n",
            self.dialect
        );
        let sections = format!(
            "[admin]\nbind = \"127.0.0.1:0\"\n[limits]\nledger_lost = \"assume_empty\"\n\
             per_window = {{ total = 1000, \"{}\" = 2 }}\n{limits}\n[queue]\npostpone = \"in_turn\"\n",
            self.slow
        );
        let sidecar = Sidecar::start(&listens("", &backend, &sections)).await;
        let port = sidecar.listener("test").await.port().to_string();
        let mut client = match self.client {
            NODE => node(),
            program => python(program),
        };
        client.args([self.kind, &port, &calls.to_string()]);
        let output = tokio::time::timeout(PATIENCE, client.stderr(Stdio::piped()).output()).await;
        let output = output.expect("in time").expect("it runs");
        let told = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_slice(&output.stdout);
        let report = report.unwrap_or_else(|error| panic!("{}: {error}: {told}", self.kind));
        (report, sidecar)
    }

    async fn check(&self) {
        // Six at two in each 700 ms: the last ones go after two windows.
        let (waited, sidecar) = self.report(6, "window = \"700ms\"").await;
        assert_eq!(waited["error"], Value::Null, "{}: {waited}", self.kind);
        let seconds = waited["seconds"].as_f64().expect("a number");
        assert!(seconds >= 1.4, "{}: {waited}", self.kind);
        let mut functions = Vec::new();
        let mut from = 0;
        while !functions.iter().any(|function| function == self.other) {
            let (line, next) = access_line(&sidecar, from).await;
            functions.push(line["function"].as_str().expect("a text").to_owned());
            from = next;
        }
        let slow = functions.iter().filter(|function| *function == self.slow);
        assert_eq!(slow.count(), 6, "{}: {functions:?}", self.kind);
        assert!(!sidecar.log().lines().join("\n").contains("sk-secret"));
        let (refused, _sidecar) = self
            .report(3, "window = \"10m\"\nmax_wait = \"50ms\"")
            .await;
        let (error, text) = self.refused;
        assert_eq!(refused["error"], error, "{}: {refused}", self.kind);
        let said = refused["text"].as_str().expect("a text");
        assert!(said.contains(text), "{}: {refused}", self.kind);
        // The other function has its answer.
        assert_eq!(
            refused["other"], waited["other"],
            "{}: {refused}",
            self.kind
        );
    }
}

#[tokio::test]
async fn the_python_client_of_xapi_waits_and_knows_its_refusals() {
    XAPI.check().await;
}

#[tokio::test]
async fn the_openai_client_waits_with_streams_and_knows_its_refusals() {
    OPENAI.check().await;
}

#[tokio::test]
async fn the_openai_client_of_node_waits_with_streams_and_knows_its_refusals() {
    OPENAI_OF_NODE.check().await;
}

#[tokio::test]
async fn web3_waits_and_knows_its_refusals() {
    ETHEREUM.check().await;
}

#[tokio::test]
async fn the_mcp_client_waits_and_knows_its_refusals() {
    MCP.check().await;
}
