//! Many clients with a short time-out before a long backlog: all of them are answered, each call is sent once, and no
//! client waits longer than if it had stayed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::raw_http::{Peer, get, ok};
use crate::sidecar::Sidecar;
use crate::support::{Answer, OK, PATIENCE, Scripted, listens, not_tried, read_until, sending};

const CLIENTS: usize = 300;
const AT_ONCE: usize = 10;

/// The sizes of a crowd.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    /// How long the service takes for a call.
    service: Duration,
    /// After which time a client gives up.
    gives_up: Duration,
}

/// A fifth of the time of [`FULL`].
const SHORT: Crowd = Crowd {
    service: Duration::from_millis(400),
    gives_up: Duration::from_secs(2),
};

/// A backlog of a minute, and clients that wait for ten seconds.
const FULL: Crowd = Crowd {
    service: Duration::from_secs(2),
    gives_up: Duration::from_secs(10),
};

/// How a crowd fared.
#[derive(Debug)]
struct Outcome {
    answered: usize,
    /// How long the last of those that were answered waited.
    last: Duration,
    /// Calls that the service has got more than once.
    repeated: usize,
    /// Requests of all clients.
    requests: usize,
}

/// A service that takes its time, and counts the requests of each path.
async fn service(takes: Duration) -> (Scripted, Arc<Mutex<BTreeMap<String, usize>>>) {
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let counts = Arc::clone(&seen);
    let backend = Scripted::start(move |_, stream| {
        let counts = Arc::clone(&counts);
        async move {
            let mut peer = Peer::new(stream);
            while let Some(head) = peer.next_head().await {
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                *counts.lock().expect("no panic").entry(path).or_default() += 1;
                sleep(takes).await;
                peer.send(ok("done")).await;
            }
        }
    })
    .await;
    (backend, seen)
}

/// A client that follows `Retry-After`. Returns how long it waited, if it was answered, and the number of its requests.
async fn client(addr: SocketAddr, path: String, gives_up: Duration) -> (Option<Duration>, usize) {
    let began = Instant::now();
    for requests in 1.. {
        let asking = async {
            let request = get(&path, "Connection: close\r\n");
            let mut stream = sending(addr, request).await;
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.map(|_| bytes)
        };
        let Ok(Ok(bytes)) = timeout(gives_up, asking).await else {
            return (None, requests);
        };
        let reply = Answer::read(&bytes);
        match reply.status {
            200 => return (Some(began.elapsed()), requests),
            503 => {
                let after = reply.header("retry-after");
                let after = after.and_then(|it| it.parse().ok());
                sleep(Duration::from_secs(after.expect("a time to come back"))).await;
            }
            status => panic!("{status}: {reply:?}"),
        }
    }
    unreachable!("the loop has no end")
}

async fn run(crowd: Crowd, listener: &str, gives_up: Duration) -> Outcome {
    let (backend, seen) = service(crowd.service).await;
    let sections = format!(
        r#"
        [admin]
        bind = "127.0.0.1:0"
        [limits]
        window = "0s"
        outstanding = {AT_ONCE}
        max_wait = "5m"
        [queue]
        postpone = "in_turn"
        "#
    );
    let backend = format!("kind = \"http\"\nhttp = \"http://{}\"", backend.addr);
    let sidecar = Sidecar::start(&listens(listener, &backend, &sections)).await;
    let addr = sidecar.listener("test").await;
    let mut clients = JoinSet::new();
    for id in 0..CLIENTS {
        clients.spawn(client(addr, format!("/call/{id}"), gives_up));
    }
    let ends = clients.join_all().await;
    let waits: Vec<_> = ends.iter().filter_map(|(wait, _)| *wait).collect();
    let counts = seen.lock().expect("no panic");
    Outcome {
        answered: waits.len(),
        last: waits.into_iter().max().unwrap_or_default(),
        repeated: counts.values().filter(|&&count| count > 1).count(),
        requests: ends.iter().map(|(_, requests)| requests).sum(),
    }
}

async fn check(crowd: Crowd) {
    let seconds = crowd.gives_up.as_secs();
    let with = |tickets: &str| format!("tickets = \"{tickets}\"\nclient_timeout = \"{seconds}s\"");
    let forever = Duration::from_secs(600);
    let implicit = with("implicit");
    let (returned, impatient, stayed) = tokio::join!(
        run(crowd, &implicit, crowd.gives_up),
        run(crowd, "", crowd.gives_up),
        run(crowd, "", forever),
    );
    println!("with tickets: {returned:?}");
    println!("without: {impatient:?}");
    println!("clients that stay: {stayed:?}");
    assert_eq!(returned.answered, CLIENTS, "{returned:?}");
    assert_eq!(returned.repeated, 0, "{returned:?}");
    assert!(returned.requests > CLIENTS, "they came back: {returned:?}");
    assert_eq!(stayed.answered, CLIENTS, "{stayed:?}");
    assert!(impatient.answered < CLIENTS / 3, "{impatient:?}");
    // The load of the machine is the same for both, but not at each moment.
    let longest = stayed.last.mul_f64(1.1);
    assert!(returned.last <= longest, "{returned:?} and {stayed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_a_crowd_with_a_short_time_out_are_answered() {
    check(SHORT).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "by hand: takes a minute"]
async fn all_of_a_crowd_with_a_time_out_of_ten_seconds_are_answered() {
    check(FULL).await;
}

// ---- Real clients.

/// Calls of a real client.
const REAL: usize = 40;
/// How long the service takes for one of them, one at a time: a backlog of eight seconds.
const REAL_SERVICE: Duration = Duration::from_millis(200);
/// After which time the client gives up.   seconds
const REAL_GIVES_UP: usize = 2;

/// Runs a real client, and returns how its calls ended.
async fn ends(program: &mut Command, addr: SocketAddr) -> Value {
    let arguments = [usize::from(addr.port()), REAL, REAL_GIVES_UP];
    let arguments = arguments.map(|it| it.to_string());
    program.args(arguments).stdin(Stdio::null());
    program.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = program.kill_on_drop(true).output();
    let output = timeout(PATIENCE, output).await.expect("in time");
    let output = output.expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    let ends = serde_json::from_slice(&output.stdout);
    ends.unwrap_or_else(|error| panic!("{error}: {told}"))
}

/// How a service and its client speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spoken {
    Http,
    Socket,
}

/// Runs a real client against a service with these lines for its listener. Returns how many of its calls were answered, and
/// how many the service has got more than once.
async fn answered(program: &mut Command, spoken: Spoken, listener: &str) -> (u64, usize) {
    let ((backend, counts), kind, key) = match spoken {
        Spoken::Http => (service(REAL_SERVICE).await, "http", "http = \"http://"),
        Spoken::Socket => (sdk_service(REAL_SERVICE).await, "zvm", "socket = \""),
    };
    let backend_lines = format!("kind = \"{kind}\"\n{key}{}\"", backend.addr);
    let sections = r#"
        [admin]
        bind = "127.0.0.1:0"
        [limits]
        window = "0s"
        outstanding = 1
        max_wait = "5m"
        [queue]
        postpone = "in_turn"
        "#;
    let sidecar = Sidecar::start(&listens(listener, &backend_lines, sections)).await;
    let ends = ends(program, sidecar.listener("test").await).await;
    println!("{ends}");
    let counts = counts.lock().expect("no panic");
    let repeated = counts.values().filter(|&&count| count > 1).count();
    (ends["answered"].as_u64().unwrap_or(0), repeated)
}

/// All calls of a real client are answered, and each is sent once.
async fn check_client(program: &mut Command, spoken: Spoken) {
    let listener = format!("tickets = \"implicit\"\nclient_timeout = \"{REAL_GIVES_UP}s\"");
    let answered = answered(program, spoken, &listener).await;
    assert_eq!(answered, (REAL as u64, 0));
}

/// A stand-in for sdkserver that takes its time, and counts the requests of each userid.
async fn sdk_service(takes: Duration) -> (Scripted, Arc<Mutex<BTreeMap<String, usize>>>) {
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let counts = Arc::clone(&seen);
    let backend = Scripted::start(move |_, mut stream| {
        let counts = Arc::clone(&counts);
        async move {
            let asked = read_until(&mut stream, "]").await;
            *counts.lock().expect("no panic").entry(asked).or_default() += 1;
            sleep(takes).await;
            // Its client may have left.
            let _ = stream.write_all(OK).await;
        }
    })
    .await;
    (backend, seen)
}

fn program(name: &str) -> String {
    format!("{}/tests/peers/http/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn python(library: &str) -> Command {
    let venv = format!("{}/.venv-peers", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(format!("{venv}/bin/python"));
    command.arg(program("tickets.py")).arg(library);
    command
}

fn node() -> Command {
    let mut node = Command::new("node");
    node.arg(program("tickets.mjs"));
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_python_needs_nothing_but_its_usual_retries() {
    check_client(&mut python("requests"), Spoken::Http).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fetch_of_node_has_its_places() {
    check_client(&mut node(), Spoken::Http).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fetch_of_node_gives_up_without_tickets() {
    let (answered, _) = answered(&mut node(), Spoken::Http, "").await;
    assert!(answered < REAL as u64 / 2, "{answered}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_nova_has_its_places() {
    check_client(&mut python("zvmsdk"), Spoken::Socket).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn go_has_its_places() {
    let dir = tempfile::tempdir().expect("a folder");
    if Command::new("go").arg("version").output().await.is_err() {
        // Go is no part of what `make clients` installs.
        return not_tried("tickets: Go", "there is no `go`");
    }
    let binary = dir.path().join("tickets");
    let mut build = Command::new("go");
    build.arg("build").arg("-o").arg(&binary);
    build.arg(program("tickets.go")).env("GO111MODULE", "off");
    let cache = std::env::temp_dir().join("tidegate-tests-go");
    let built = build.env("GOCACHE", cache).status().await;
    assert!(built.expect("go runs").success());
    check_client(&mut Command::new(&binary), Spoken::Http).await;
}
