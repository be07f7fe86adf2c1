//! A plain HTTP service behind a config of five lines: a storm, and refusals of every kind. Nothing that
//! its operator or its clients read speaks of z/VM.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::sidecar::{Sidecar, run, with_programs};
use crate::support::{Answer, Scripted, ask, closed_port, densest, json as parsed};

/// Words of z/VM, in small letters.
const FOREIGN: [&str; 9] = [
    "smapi",
    "sdkserver",
    "sdkwsgi",
    "zvm",
    "z/vm",
    "modid",
    "overallrc",
    "nova",
    "guest",
];

/// Reports each word of z/VM in a text, with its line.
fn foreign(what: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let small = line.to_ascii_lowercase();
        for word in FOREIGN {
            if let Some(at) = small.find(word) {
                let line: String = line.chars().skip(at.saturating_sub(60)).take(140).collect();
                found.push(format!("{what}: {word} in: …{line}"));
            }
        }
    }
    found
}

fn five_lines(http: SocketAddr, per_window: u32) -> String {
    format!(
        "listen = [{{ name = \"web\", bind = \"127.0.0.1:0\" }}]\n\
         backend.kind = \"http\"\n\
         backend.http = \"http://{http}\"\n\
         limits.per_window = \"total:{per_window}\"\n\
         limits.outstanding = 10\n"
    )
}

async fn started(config: &str) -> Sidecar {
    Sidecar::start_with(config, |binary| {
        let mut command = Command::new(binary);
        command.env("TIDEGATE_ADMIN__BIND", "127.0.0.1:0");
        command
    })
    .await
}

/// The load of a storm, as a backend saw it.
#[derive(Default)]
struct Load {
    at_once: AtomicUsize,
    most: AtomicUsize,
    came: Mutex<Vec<Duration>>,
}

/// A service that takes 20 ms for a request.
async fn service(load: Arc<Load>) -> Scripted {
    let begun = Instant::now();
    Scripted::start(move |_, mut stream| {
        let load = Arc::clone(&load);
        async move {
            let mut request = [0; 4096];
            while stream.read(&mut request).await.unwrap_or(0) > 0 {
                let now = load.at_once.fetch_add(1, Ordering::Relaxed) + 1;
                load.most.fetch_max(now, Ordering::Relaxed);
                load.came.lock().expect("no panic").push(begun.elapsed());
                tokio::time::sleep(Duration::from_millis(20)).await;
                load.at_once.fetch_sub(1, Ordering::Relaxed);
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                if stream.write_all(answer).await.is_err() {
                    break;
                }
            }
        }
    })
    .await
}

/// The pages that an operator can ask a sidecar for.
const PAGES: [&str; 22] = [
    "/",
    "/errors",
    "/quotas",
    "/metrics",
    "/readyz",
    "/healthz",
    "/livez",
    "/v1/now",
    "/v1/limits",
    "/v1/queue",
    "/v1/callers",
    "/v1/rate-limits",
    "/v1/usage",
    "/v1/profiles",
    "/v1/costs",
    "/v1/series?span=10m",
    "/v1/acts",
    "/v1/backend",
    "/v1/config",
    "/v1/debug/limiters",
    "/v1/debug/queues",
    "/v1/debug/requests",
];

/// Every text that its operator can see while it runs.
async fn seen(sidecar: &Sidecar) -> Vec<String> {
    let mut found = Vec::new();
    for path in PAGES {
        let (status, text) = sidecar.get(path).await;
        assert!(status < 400, "{path}: {status} {text}");
        found.extend(foreign(path, &text));
    }
    let admin = sidecar.admin.to_string();
    for arguments in [
        &["callers"][..],
        &["limits"],
        &["top", "--once"],
        &["check", "--config"],
    ] {
        let mut command = Command::new(with_programs());
        command.args(arguments).env_remove("TIDEGATE_TOKEN_FILE");
        match arguments[0] {
            "check" => command.arg(sidecar.config_path()),
            _ => command.args(["--admin", &admin]),
        };
        let said = run(&mut command).await;
        assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.err);
        let text = format!("{}{}", said.out, said.err);
        found.extend(foreign(&format!("{arguments:?}"), &text));
    }
    found
}

#[tokio::test]
async fn a_storm_on_a_plain_service_is_held_by_five_lines_that_say_nothing_of_zvm() {
    let load = Arc::new(Load::default());
    let service = service(Arc::clone(&load)).await;
    let config = five_lines(service.addr, 150);
    assert_eq!(config.lines().count(), 5);
    let sidecar = started(&config).await;
    let addr = sidecar.listener("web").await;
    let mut clients = JoinSet::new();
    for number in 0..300 {
        clients.spawn(async move {
            let request =
                format!("GET /item/{number} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
            Answer::read(ask(addr, request).await.as_bytes())
        });
    }
    let mut check = Command::new(with_programs());
    check
        .args(["check", "--quiet", "--config"])
        .arg(sidecar.config_path());
    let checked = run(&mut check).await;
    assert_eq!(
        (checked.code, checked.out + &checked.err),
        (Some(0), String::new())
    );
    let found = seen(&sidecar).await;
    for answer in clients.join_all().await {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    assert!(
        load.most.load(Ordering::Relaxed) <= 10,
        "more at once than outstanding"
    );
    let came = load.came.lock().expect("no panic").clone();
    assert_eq!(came.len(), 300, "each call once");
    // Up to ten calls that have left may arrive late.
    assert!(densest(&came, Duration::from_secs(1)) <= 160);
    check_end(sidecar, found).await;
}

/// Stops the sidecar, and asserts that no foreign word was found before, on its pages or in its log.
async fn check_end(sidecar: Sidecar, mut found: Vec<String>) {
    found.extend(seen(&sidecar).await);
    sidecar.signal("TERM");
    let (status, log) = sidecar.ended().await;
    assert_eq!(status.code(), Some(0));
    found.extend(foreign("log", &log.join("\n")));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Asks once, and returns the refusal.
async fn refused(addr: SocketAddr, request: &str, status: u16) -> serde_json::Value {
    let answer = Answer::read(ask(addr, request).await.as_bytes());
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(
        answer.header("content-type"),
        Some("application/problem+json"),
        "{answer:?}"
    );
    let problem = parsed(&answer.body);
    assert_eq!(problem["status"], status, "{problem}");
    assert!(
        problem["detail"].is_string() && problem["title"].is_string(),
        "{problem}"
    );
    let seconds = problem["retry_after"].as_u64().map(|it| it.to_string());
    assert_eq!(
        answer.header("retry-after"),
        seconds.as_deref(),
        "{problem}"
    );
    assert_eq!(
        answer.header("x-tidegate-call"),
        problem["call"].as_str(),
        "{problem}"
    );
    assert_eq!(foreign("refusal", &answer.body), Vec::<String>::new());
    problem
}

#[tokio::test]
async fn every_refusal_of_a_plain_service_is_problem_details() {
    let service = service(Arc::default()).await;
    let config = format!(
        "{}limits.max_wait = \"0s\"\nbackend.tcp = \"127.0.0.1:1\"\ntasks.enabled = true\n\
         client.max_request_fields = 16\n",
        five_lines(service.addr, 1).replace("total:1", "total:1, search:1")
    );
    let config =
        format!("{config}[[route]]\nmethod = \"GET\"\npath = \"/search\"\nfunction = \"search\"\n");
    let sidecar = started(&config).await;
    let addr = sidecar.listener("web").await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    assert!(ask(addr, get("/search")).await.starts_with("HTTP/1.1 200"));
    let late = refused(addr, &get("/search"), 503).await;
    assert_eq!(late["reason"], "deadline_unreachable", "{late}");
    assert_eq!(late["title"], "Service Unavailable", "{late}");
    assert!(
        late["limit"].is_string() && late["retry_after"].is_u64(),
        "{late}"
    );
    let id = late["call"].as_str().expect("an id").to_owned();
    let odd = refused(addr, &get("//search"), 400).await;
    assert_eq!(
        (&odd["reason"], &odd["limit"]),
        (&json!("bad_request"), &json!(null)),
        "{odd}"
    );
    let large = format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "x".repeat(70_000));
    assert_eq!(refused(addr, &large, 431).await["reason"], "head_too_large");
    let not_http = refused(addr, "GET /x HTTP/1.1\r\nHost: t\r\nno colon\r\n\r\n", 400).await;
    assert_eq!(not_http["reason"], "bad_request");
    let missing = refused(addr, &get("/v1/tasks/x"), 404).await;
    assert_eq!(missing["reason"], "task_unknown");
    let post =
        "POST /v1/tasks HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    assert_eq!(
        refused(addr, post, 405).await["title"],
        "Method Not Allowed"
    );
    let admin = sidecar.admin.to_string();
    let explained =
        run(Command::new(with_programs()).args(["explain", &id, "--admin", &admin])).await;
    assert_eq!(explained.code, Some(0), "{}", explained.err);
    let found = foreign("explain", &explained.out);
    check_end(sidecar, found).await;
}

#[tokio::test]
async fn a_backend_that_is_down_or_breaks_off_is_a_problem_too() {
    let nothing = five_lines(closed_port(), 100);
    let sidecar = started(&format!("{nothing}limits.max_wait = \"100ms\"\n")).await;
    let get = "GET /x HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    let down = refused(sidecar.listener("web").await, get, 503).await;
    assert_eq!(down["reason"], "backend_unreachable", "{down}");
    let closing = Scripted::start(|_, mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await;
    })
    .await;
    sidecar.reload(&five_lines(closing.addr, 100)).await;
    let closed = refused(sidecar.listener("web").await, get, 502).await;
    assert_eq!(closed["reason"], "backend_closed", "{closed}");
    assert_eq!(closed["title"], "Bad Gateway", "{closed}");
}
