//! Clients that others wrote, before the real process: curl, Python's requests, httpx and aiohttp, Node.js, Java,
//! Go. Each asks for the same, and must see what the service said: its status, and its whole body.
//!
//! `tests/peers/http` has a program for each. It prints one line for a request; here is what the lines must say.

mod curl;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::raw_http::{Peer, access_lines, ok, one_at_a_time, service};
use crate::sidecar::Sidecar;
use crate::support::{Answer, Scripted};

/// A lock for one client at a time: each has a runtime of its own to load.
static CLIENTS: Semaphore = Semaphore::const_new(1);
/// The longest time for all requests of one client.
const LONGEST: Duration = Duration::from_secs(60);
const LARGE: usize = 5_000_000;
const MEDIUM: usize = 300_000;

/// The observations that each client must make, in the words of its program.
const EXPECTED: [(&str, u16, &str); 17] = [
    ("small", 200, "small"),
    ("large", 200, "5000000 bytes as sent"),
    ("echo", 200, r#"{"name":"box","size":3}"#),
    ("upload_length", 200, "300000 bytes as sent, by length"),
    ("upload_chunks", 200, "300000 bytes as sent, by chunks"),
    ("head", 200, "0 bytes of 5000000"),
    ("none", 204, ""),
    ("chunked", 200, "300000 bytes as sent"),
    ("closed", 200, "300000 bytes as sent"),
    ("status_302", 302, "status 302"),
    ("status_404", 404, "status 404"),
    ("status_500", 500, "status 500"),
    ("status_503", 503, "status 503"),
    ("waiting", 200, "3 of 3"),
    ("early", 413, "too large"),
    ("early_chunks", 413, "too large"),
    ("kept", 200, "20 of 20"),
];

/// Further observations of clients that send `Expect: 100-continue`.
const EXPECTING: [(&str, u16, &str); 2] = [
    ("upload_expect", 200, "300000 bytes as sent, by length"),
    ("refused_expect", 413, "too large"),
];

/// The observation of a client for one request.
#[derive(Debug, Deserialize)]
struct Observation {
    name: String,
    #[serde(default)]
    ms: u64,
    status: Option<u16>,
    #[serde(default)]
    body: String,
    error: Option<String>,
}

/// The bytes of an upload or of a download.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// A long body in words, as the programs have it.
fn describe(body: &[u8]) -> String {
    let same = match body == pattern(body.len()) {
        true => "as sent",
        false => "that are wrong",
    };
    format!("{} bytes {same}", body.len())
}

/// Calls of `/slow` that run at once, and the most that did.
#[derive(Default)]
struct Load {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// The body of a request with this head.
async fn body_of(peer: &mut Peer, head: &str) -> (Vec<u8>, &'static str) {
    // The status that an answer has and a request has not.
    let fields = Answer::read(head.replacen(' ', " 200 ", 1).as_bytes());
    if fields.header("expect").is_some() {
        peer.send("HTTP/1.1 100 Continue\r\n\r\n").await;
    }
    if fields.header("transfer-encoding").is_some() {
        return (peer.body(&fields).await.0, "chunks");
    }
    let length = fields.header("content-length").unwrap_or("0");
    let length = length.parse().expect("a number");
    (peer.bytes(length).await, "length")
}

/// Answers the requests of one connection.
async fn serve(mut peer: Peer, load: Arc<Load>) {
    while let Some(head) = peer.next_head().await {
        let path = head.split(' ').nth(1).expect("a path").to_owned();
        match path.split('?').next().expect("there is one") {
            "/small" => peer.send(ok("small")).await,
            "/large" => {
                let length = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n");
                peer.send(length).await;
                if head.starts_with("GET ") {
                    peer.send(pattern(LARGE)).await;
                }
            }
            "/echo" => {
                let (body, _) = body_of(&mut peer, &head).await;
                peer.send(ok(&String::from_utf8_lossy(&body))).await;
            }
            "/upload" => {
                let (body, how) = body_of(&mut peer, &head).await;
                peer.send(ok(&format!("{}, by {how}", describe(&body))))
                    .await;
            }
            "/none" => peer.send("HTTP/1.1 204 No Content\r\n\r\n").await,
            "/chunked" => {
                peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    .await;
                for piece in pattern(MEDIUM).chunks(15_000) {
                    peer.send(format!("{:x}\r\n", piece.len())).await;
                    peer.send([piece, b"\r\n"].concat()).await;
                }
                peer.send("0\r\n\r\n").await;
            }
            "/closed" => {
                peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                    .await;
                return peer.send(pattern(MEDIUM)).await;
            }
            // It closes with bytes unread, which resets the connection.
            "/early" => {
                peer.read_ahead(100_000).await;
                return peer.send(too_large()).await;
            }
            "/refused" => return peer.send(too_large()).await,
            "/slow" => {
                let now = load.now.fetch_add(1, Ordering::Relaxed) + 1;
                load.most.fetch_max(now, Ordering::Relaxed);
                sleep(Duration::from_millis(100)).await;
                load.now.fetch_sub(1, Ordering::Relaxed);
                peer.send(ok("small")).await;
            }
            path => {
                let status = path.strip_prefix("/status/").expect("a path of these");
                let reply = ok(&format!("status {status}"));
                let reply = reply.replacen("200 OK", &format!("{status} Said"), 1);
                peer.send(reply.replacen("\r\n", "\r\nLocation: /small\r\n", 1))
                    .await;
            }
        }
    }
}

fn too_large() -> String {
    ok("too large").replacen("200 OK", "413 Content Too Large\r\nConnection: close", 1)
}

/// The stage that a client is tried with.
struct Stage {
    load: Arc<Load>,
    backend: Scripted,
    sidecar: Sidecar,
    addr: SocketAddr,
    kept: SocketAddr,
    /// Lets one call at a time through.
    _one: Sidecar,
    one: SocketAddr,
}

impl Stage {
    async fn start() -> Self {
        let load = Arc::<Load>::default();
        let of_backend = Arc::clone(&load);
        let serving = move |_, stream| serve(Peer::new(stream), Arc::clone(&of_backend));
        let backend = Scripted::start(serving).await;
        let kept = r#"
            [log]
            access = true
            [[listen]]
            name = "kept"
            bind = "127.0.0.1:0"
        "#;
        let sidecar = Sidecar::start(&service(backend.addr, "", kept)).await;
        let one = Sidecar::start(&one_at_a_time(backend.addr, "", "")).await;
        Self {
            load,
            backend,
            addr: sidecar.listener("test").await,
            kept: sidecar.listener("kept").await,
            sidecar,
            one: one.listener("test").await,
            _one: one,
        }
    }

    /// The addresses as each program takes them.
    fn urls(&self) -> [String; 4] {
        let direct = self.backend.addr;
        [self.addr, self.one, self.kept, direct].map(|addr| format!("http://{addr}"))
    }

    /// Runs a program, and returns what it printed.
    async fn observe(&self, command: &mut Command) -> Vec<Observation> {
        let command = command
            .args(self.urls())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("NO_PROXY", "*");
        let (out, err) = output(command).await;
        let lines = out.lines();
        let observations = lines.map(|line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}\n{err}"))
        });
        observations.collect()
    }

    /// Asserts that a client saw all that is expected. What must be said of it is printed.
    async fn check(&self, client: &str, seen: &[Observation], expects: bool) {
        let expecting = EXPECTING.iter().filter(|_| expects);
        let mut wrong = Vec::new();
        for &(name, status, body) in EXPECTED.iter().chain(expecting) {
            let times = seen.iter().filter(|it| it.name == name);
            let (right, others): (Vec<_>, Vec<_>) = times.partition(|it| {
                it.error.is_none() && (it.status, it.body.as_str()) == (Some(status), body)
            });
            let all = right.len() + others.len();
            if !others.is_empty() || all == 0 {
                wrong.push(format!("{name}: {} of {all}: {others:?}", right.len()));
            }
        }
        for it in seen {
            let (is_right, error) = (it.status == Some(413), it.error.as_deref());
            if it.name == "early_direct" && !is_right {
                println!("{client} without Tidegate, early: {}", error.unwrap_or("-"));
            }
            if it.ms > 1500 {
                println!("{client}: {} took {} ms", it.name, it.ms);
            }
        }
        let log = self.sidecar.log().lines();
        let refused = log.iter().filter(|line| {
            line.contains("\"verdict\"") && !line.contains("\"verdict\":\"passed\"")
        });
        let refused: Vec<_> = refused.map(String::as_str).collect();
        let (wrong, refused) = (wrong.join("\n"), refused.join("\n"));
        assert!(wrong.is_empty(), "{client}:\n{wrong}\n{refused}");
        let most = self.load.most.load(Ordering::Relaxed);
        assert_eq!(most, 1, "{client}: calls at once");
        let kept = |line: &&serde_json::Value| line["listener"] == "kept";
        // Each observation is a call, except those of the other addresses, and `kept` is 20.
        let elsewhere = ["waiting", "early_direct", "kept"];
        let here = seen.iter().filter(|it| !elsewhere.contains(&&*it.name));
        let lines = access_lines(&self.sidecar, here.count() + 20).await;
        let mut peers: Vec<_> = lines.iter().filter(kept).map(|it| &it["peer"]).collect();
        assert_eq!(peers.len(), 20, "{client}");
        peers.sort_by_key(ToString::to_string);
        peers.dedup();
        // Fetch takes two connections in turn for requests one after the other, also of other servers.
        let most = if client == "fetch" { 2 } else { 1 };
        assert!(
            peers.len() <= most,
            "{client} kept no connection: {peers:?}"
        );
    }
}

/// The output of a command that ends well.
async fn output(command: &mut Command) -> (String, String) {
    let command = command.stdin(Stdio::null()).kill_on_drop(true);
    let running = timeout(LONGEST, command.output()).await;
    let output = running
        .expect("it ends")
        .unwrap_or_else(|error| panic!("`make clients` installs it: {error}: {command:?}"));
    let [out, err] =
        [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    assert!(output.status.success(), "{command:?}: {out}{err}");
    (out, err)
}

/// A file in `tests/peers/http`.
fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/peers/http")
        .join(name)
}

/// Tries a client whose program is run by this command.
async fn tries(client: &str, command: &mut Command, expects: bool) {
    let _one = CLIENTS.acquire().await.expect("it is never closed");
    let stage = Stage::start().await;
    let began = Instant::now();
    let seen = stage.observe(command).await;
    println!("{client}: {:.1} s", began.elapsed().as_secs_f64());
    stage.check(client, &seen, expects).await;
}

/// Tries a client of Python.
async fn tries_python(library: &str, expects: bool) {
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv-peers");
    assert!(
        venv.join("complete").exists(),
        "the clients of Python are not installed; `make peers` does it"
    );
    let mut command = Command::new(venv.join("bin/python"));
    tries(
        library,
        command.arg(program("drive.py")).arg(library),
        expects,
    )
    .await;
}

#[tokio::test]
async fn requests_of_python_sees_what_the_service_said() {
    tries_python("requests", false).await;
}

#[tokio::test]
async fn httpx_of_python_sees_what_the_service_said() {
    tries_python("httpx", false).await;
}

#[tokio::test]
async fn aiohttp_of_python_sees_what_the_service_said() {
    tries_python("aiohttp", true).await;
}

#[tokio::test]
async fn fetch_of_node_sees_what_the_service_said() {
    let mut node = Command::new("node");
    tries("fetch", node.arg(program("drive.mjs")).arg("fetch"), false).await;
}

#[tokio::test]
async fn http_of_node_sees_what_the_service_said() {
    let mut node = Command::new("node");
    tries("http", node.arg(program("drive.mjs")).arg("http"), true).await;
}

/// Runs the client of the JDK. A file that is not compiled needs the compiler, so a JDK.
async fn tries_java(version: &str) {
    let mut java = Command::new("java");
    java.arg("-XX:TieredStopAtLevel=1").arg("-Xshare:auto");
    let java = java.arg(program("Drive.java")).arg(version);
    tries(&format!("java {version}"), java, true).await;
}

#[tokio::test]
async fn java_sees_what_the_service_said() {
    tries_java("HTTP_1_1").await;
}

/// The default of this client is to ask for HTTP/2 by an upgrade, also in uploads.
#[tokio::test]
async fn java_that_offers_h2c_sees_what_the_service_said() {
    tries_java("HTTP_2").await;
}

#[tokio::test]
async fn go_sees_what_the_service_said() {
    let drive = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv-go/bin/drive");
    tries("go", &mut Command::new(drive), true).await;
}
