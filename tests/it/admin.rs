//! The admin address, asked over real HTTP on loopback.

mod guard;
mod page;
mod places;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tidegate::admin::{
    self, AdminSource, BucketState, CallersSource, ClassQueue, Decisions, Frame, FunctionQueue,
    LimitKind, LimitState, NowState, Opens, PaceState, QueueState, QuotaKeyState, QuotaState,
    QuotaStoreState, QuotaStoreTrouble, QuotasState, SeriesSpan, SeriesState, ServeError,
    SharedState, Token,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{Answer, outstanding, window};

/// A sidecar whose state the test sets.
struct Fake {
    ready: Mutex<Result<(), String>>,
    /// Set while requests for the queue, or for this moment, get no answer.
    hangs: AtomicBool,
    /// How often these were asked for.
    asked: AtomicUsize,
    /// The sentence about the calls that wait, and why.
    sentence: Mutex<String>,
}

impl Fake {
    fn asked_for(&self) {
        self.asked.fetch_add(1, Ordering::SeqCst);
        while self.hangs.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The state of a quota, of which one key is known.
pub(crate) fn quotas(keys_max: usize) -> QuotasState {
    let key = QuotaKeyState {
        key: "<i>alice</i>".into(),
        window: Some(29),
        left: Some(60),
        window_total: Some(100),
        total: 100,
        held: 25,
        safe: 3,
        owed: 0,
        waiting: 2,
        waiting_tokens: 4,
        used_seconds_ago: 0.5,
        trouble: vec!["another program writes /quota/alice/usable".into()],
    };
    QuotasState {
        store: Some(QuotaStoreState {
            engine: "zookeeper",
            up: Some(false),
            since_seconds: 12.0,
            time_uncertainty_seconds: Some(0.0025),
            members: 4,
            expected_sidecars: 3,
            unexpected_members: 1,
            evictions: None,
            trouble: Some(QuotaStoreTrouble {
                text: "the store is unavailable: <refused>".into(),
                seconds_ago: 1.5,
            }),
        }),
        quotas: vec![QuotaState {
            name: "rate_limit:per_user".into(),
            total: 100,
            window_seconds: 60.0,
            on_excess: "wait",
            mode: "enforce",
            when_store_away: "safe",
            safe_share: 16,
            decisions: Decisions {
                local: 98,
                drew: 3,
                waited: 2,
                refused: 1,
            },
            draws: 5,
            conflicts: 1,
            unknown: 2,
            unavailable: 3,
            relinquished: 4,
            allowed_tokens: 6,
            overshot_tokens: 7,
            keys: 1,
            keys_forgotten: 8,
            keys_in_trouble: 1,
            used_last: [key].into_iter().take(keys_max).collect(),
        }],
    }
}

impl AdminSource for Fake {
    fn limits(&self) -> Vec<LimitState> {
        vec![
            window("total", 30, Opens::InSeconds(0.25)),
            window("guest_list", 1, Opens::Now),
            LimitState {
                shared: Some(SharedState {
                    engine: "lease",
                    resource: "zvm1/outstanding".into(),
                    safe: 2.0,
                    wants: 10.0,
                    leased: Some(9.5),
                    expires_in_seconds: Some(12.5),
                }),
                ..outstanding(10, Opens::OnChange)
            },
            LimitState {
                name: "rate_limit:all".into(),
                scope: "all".into(),
                kind: LimitKind::Paced,
                window_seconds: None,
                configured: 13,
                used: 0,
                rate: Some(12.5),
                ratio: Some(1.1),
                pace: Some(PaceState {
                    achieved: 13.75,
                    drawn: 1500.0,
                    wait_seconds: 2.5,
                    burst_seconds: 0.016,
                }),
                opens: Opens::InSeconds(0.0625),
                in_force: 9,
                shared: None,
                observes: false,
            },
        ]
    }

    fn buckets(&self) -> Vec<BucketState> {
        vec![BucketState {
            name: "rate_limit:gold".into(),
            rate_limit: "r1".into(),
            burst: Some(10.0),
            fill: Some(2.5),
            rate: None,
            ratio: None,
            pace: None,
            tokens: -1.5,
            queued: 3,
            opens: Opens::InSeconds(1.0),
            per_second: 2.5,
            shared: None,
        }]
    }

    fn queue(&self) -> QueueState {
        self.asked_for();
        QueueState {
            depth: 290,
            capacity: 4096,
            door: 2,
            oldest_seconds: 1.5,
            functions: vec![FunctionQueue {
                function: "<b>guest_list</b>".into(),
                waiting: 290,
                waits_for: Some("total".into()),
            }],
            classes: vec![ClassQueue {
                class: "polling".into(),
                waiting: 292,
            }],
            would_be: None,
        }
    }

    fn quotas(&self, keys_max: usize) -> QuotasState {
        quotas(keys_max)
    }

    fn config(&self) -> String {
        "[queue]\ncapacity = 4096\n".into()
    }

    fn now(&self) -> NowState {
        self.asked_for();
        NowState {
            sentence: self.sentence.lock().expect("not poisoned").clone(),
            ..NowState::default()
        }
    }

    fn metrics(&self) -> String {
        // Not ready stands in for a bug here.
        assert!(self.ready().is_ok(), "the bug that the test asked for");
        "# TYPE tidegate_queue_depth gauge\ntidegate_queue_depth 290\n".into()
    }

    fn ready(&self) -> Result<(), String> {
        self.ready.lock().expect("not poisoned").clone()
    }

    fn connections_max(&self) -> usize {
        64
    }

    fn notices(&self) -> Vec<String> {
        Vec::new()
    }

    fn series(&self, span: SeriesSpan) -> SeriesState {
        SeriesState {
            step_seconds: span.step_seconds(),
            ..SeriesState::default()
        }
    }

    fn frame(&self) -> Frame {
        Frame::default()
    }

    fn frames(&self) -> watch::Receiver<Option<Bytes>> {
        watch::channel(None).1
    }
}

/// A served admin address.
struct Served {
    address: SocketAddr,
    source: Arc<Fake>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
}

/// Serves on a free port until `stop`.
pub(crate) async fn serve(
    ip: std::net::IpAddr,
    token: Option<&str>,
    source: Arc<dyn AdminSource>,
    callers: Arc<dyn CallersSource>,
    stop: &CancellationToken,
) -> (SocketAddr, JoinHandle<Result<(), ServeError>>) {
    let listener = TcpListener::bind((ip, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let settings = admin::AdminSettings {
        bind: None,
        token: token.map(|token| Token(token.into())),
        tokens: [].into(),
        socket: None,
        allowed_hosts: ["gate.example".into()].into(),
    };
    let served = admin::serve(
        admin::Inlet::Tcp(listener),
        settings,
        source,
        callers,
        stop.clone(),
    );
    (address, tokio::spawn(served))
}

impl Served {
    async fn start(token: Option<&str>) -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into(), token).await
    }

    async fn at(ip: std::net::IpAddr, token: Option<&str>) -> Self {
        let source = Arc::new(Fake {
            ready: Mutex::new(Ok(())),
            hangs: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            sentence: Mutex::new("nothing waits".to_owned()),
        });
        let stop = CancellationToken::new();
        let callers = Arc::new(crate::api::fake::Fake::new());
        let (address, task) = serve(ip, token, source.clone(), callers, &stop).await;
        Self {
            address: (Ipv4Addr::LOCALHOST, address.port()).into(),
            source,
            stop,
            task,
        }
    }

    async fn ask(&self, method: &str, path: &str, headers: &str) -> Answer {
        self.send(method, path, &format!("Host: localhost\r\n{headers}"))
            .await
    }

    /// Sends a request with exactly these headers.
    async fn send(&self, method: &str, path: &str, headers: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.expect("connects");
        let request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.expect("answered");
        Answer::read(&bytes)
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "").await
    }
}

#[tokio::test]
async fn metrics_are_answered_in_the_format_of_prometheus() {
    let served = Served::start(None).await;
    let answer = served.get("/metrics").await;
    answer
        .is(200)
        .has("content-type: text/plain; version=0.0.4; charset=utf-8");
    assert!(answer.body.contains("\ntidegate_queue_depth 290\n"));
    let head = served.ask("HEAD", "/metrics", "").await;
    head.is(200);
    assert_eq!(head.body, "");
}

#[tokio::test]
async fn limits_say_what_is_configured_used_and_when_they_open() {
    let served = Served::start(None).await;
    let answer = served.get("/v1/limits").await;
    assert_eq!(
        answer.is(200).json(),
        json!({"limits": [
            {"name": "total", "scope": "all", "kind": "window", "window_seconds": 1.0,
             "configured": 30, "used": 30, "rate": null, "ratio": null, "pace": null, "opens": {"in_seconds": 0.25},
             "in_force": 9, "shared": null, "observes": false},
            {"name": "guest_list", "scope": "guest_list", "kind": "window", "window_seconds": 1.0,
             "configured": 30, "used": 1, "rate": null, "ratio": null, "pace": null, "opens": "now",
             "in_force": 9, "shared": null, "observes": false},
            {"name": "outstanding", "scope": "all", "kind": "outstanding", "window_seconds": null,
             "configured": 10, "used": 10, "rate": null, "ratio": null, "pace": null, "opens": "when_told", "in_force": 9,
             "shared": {"engine": "lease", "resource": "zvm1/outstanding", "safe": 2.0, "wants": 10.0,
                        "leased": 9.5, "expires_in_seconds": 12.5}, "observes": false},
            {"name": "rate_limit:all", "scope": "all", "kind": "paced", "window_seconds": null,
             "configured": 13, "used": 0, "rate": 12.5, "ratio": 1.1,
             "pace": {"achieved": 13.75, "drawn": 1500.0, "wait_seconds": 2.5,
                      "burst_seconds": 0.016},
             "opens": {"in_seconds": 0.0625}, "in_force": 9, "shared": null, "observes": false},
        ], "buckets": [
            {"name": "rate_limit:gold", "rate_limit": "r1", "burst": 10.0, "fill": 2.5,
             "rate": null, "ratio": null, "pace": null, "tokens": -1.5, "queued": 3, "opens": {"in_seconds": 1.0},
             "per_second": 2.5, "shared": null},
        ]})
    );
}

#[tokio::test]
async fn the_queue_says_what_waits_and_for_which_limit() {
    let served = Served::start(None).await;
    let answer = served.get("/v1/queue").await;
    assert_eq!(
        answer.is(200).json(),
        json!({"depth": 290, "capacity": 4096, "door": 2, "oldest_seconds": 1.5, "functions": [
            {"function": "<b>guest_list</b>", "waiting": 290, "waits_for": "total"},
        ], "classes": [{"class": "polling", "waiting": 292}], "would_be": null})
    );
}

#[tokio::test]
async fn the_config_is_answered_as_text() {
    let served = Served::start(None).await;
    let answer = served.get("/v1/config").await;
    answer
        .is(200)
        .has("content-type: text/plain; charset=utf-8");
    assert_eq!(answer.body, "[queue]\ncapacity = 4096\n");
}

#[tokio::test]
async fn quotas_are_shown_to_tools_and_to_people() {
    let served = Served::start(None).await;
    let told = served.get("/v1/quotas").await.is(200).json();
    let expected = serde_json::to_value(quotas(100)).expect("it is JSON");
    assert_eq!(told, expected);
    let none = served.get("/v1/quotas?limit=0").await.is(200).json();
    assert_eq!(none["quotas"][0]["used_last"], serde_json::json!([]));
    for wrong in ["?limit=101", "?limit=-1", "?limit=", "?most=3"] {
        let answer = served.get(&format!("/v1/quotas{wrong}")).await;
        assert_eq!(answer.status, 400, "{wrong}: {answer:?}");
    }
    let answer = served.get("/quotas").await;
    answer.is(200).has("x-content-type-options: nosniff");
    for text in [
        "zookeeper is unavailable, for 12 s",
        "its time is known to 2.5 ms",
        "4 sidecars share, 3 are expected",
        "more sidecars than expected",
        "the store is unavailable: &lt;refused&gt;",
        "rate_limit:per_user",
        "100 in 60 s for each key; wait, enforce; safe when the store is unavailable, safe share 16",
        "98 at once, 3 after a draw, 2 after a wait, 1 refused",
        "<th scope=\"row\">&lt;i&gt;alice&lt;/i&gt;</th><td class=\"n\">29</td>",
        "another program writes /quota/alice/usable",
    ] {
        assert!(answer.body.contains(text), "no {text} in {answer:?}");
    }
    let index = served.get("/").await;
    assert!(index.body.contains("href=\"/quotas\""), "{index:?}");
}

#[tokio::test]
async fn ready_follows_the_sidecar_and_alive_does_not() {
    let served = Served::start(None).await;
    for path in ["/livez", "/readyz", "/healthz"] {
        let answer = served.get(path).await;
        assert_eq!((answer.is(200).body.as_str(), path), ("ok\n", path));
    }
    let verbose = served.get("/healthz?verbose").await;
    assert_eq!(verbose.is(200).body, "[+] live ok\n[+] ready ok\nok\n");

    *served.source.ready.lock().expect("not poisoned") = Err("draining".into());
    served.get("/livez").await.is(200);
    let answer = served.get("/readyz").await;
    assert_eq!(answer.is(503).body, "[-] ready failed: draining\n");
    let verbose = served.get("/healthz?verbose").await;
    assert_eq!(
        verbose.is(503).body,
        "[+] live ok\n[-] ready failed: draining\n"
    );
}

#[tokio::test]
async fn unknown_paths_and_methods_are_errors_in_json() {
    let served = Served::start(None).await;
    for path in ["/nothing", "/v1", "/v1/queue/total", "/metrics/", "//"] {
        served.get(path).await.error(404);
    }
    for path in ["/metrics", "/v1/limits", "/livez", "/"] {
        for method in ["POST", "DELETE", "PUT"] {
            let answer = served.ask(method, path, "Content-Length: 0\r\n").await;
            answer.error(405);
            answer.has("allow: GET,HEAD");
        }
    }
}

#[tokio::test]
async fn with_a_token_strangers_see_only_health_and_the_empty_page() {
    let served = Served::start(Some("s3cret")).await;
    for path in ["/livez", "/readyz", "/healthz?verbose"] {
        served.get(path).await.is(200);
    }
    for path in [
        "/quotas",
        "/metrics",
        "/v1/limits",
        "/v1/queue",
        "/v1/config",
        "/nothing",
    ] {
        for headers in [
            "",
            "Authorization: Bearer wrong\r\n",
            "Authorization: Bearer s3cret2\r\n",
            "Authorization: Basic s3cret\r\n",
        ] {
            let answer = served.ask("GET", path, headers).await;
            answer.error(401);
            answer.has("www-authenticate: Basic realm=\"tidegate\", charset=\"UTF-8\"");
            assert!(!answer.body.contains("s3cret"));
        }
        let right = "Authorization: Bearer s3cret\r\n";
        let answer = served.ask("GET", path, right).await;
        answer.is(if path == "/nothing" { 404 } else { 200 });
    }
}

#[tokio::test]
async fn an_address_that_others_can_reach_is_not_served_without_a_token() {
    let bare = Served::at(Ipv4Addr::UNSPECIFIED.into(), None).await;
    let error = bare.task.await.expect("no panic").expect_err("refused");
    assert!(error.to_string().contains("admin.token"), "{error}");

    let guarded = Served::at(Ipv4Addr::UNSPECIFIED.into(), Some("s3cret")).await;
    guarded.get("/livez").await.is(200);
    guarded.get("/metrics").await.error(401);
}

#[test]
fn only_loopback_does_without_a_token() {
    let needs = |ip: &str| admin::needs_token(SocketAddr::new(ip.parse().expect("an IP"), 9180));
    for ip in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
        assert!(!needs(ip), "{ip}");
    }
    for ip in ["0.0.0.0", "::", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1"] {
        assert!(needs(ip), "{ip}");
    }
    assert!(!admin::needs_token((Ipv6Addr::LOCALHOST, 1).into()));
}

#[tokio::test]
async fn a_bug_behind_a_request_fails_only_that_request() {
    let served = Served::start(None).await;
    *served.source.ready.lock().expect("not poisoned") = Err("a bug".into());
    served.get("/metrics").await.error(500);
    served.get("/v1/limits").await.is(200);
}

#[tokio::test]
async fn a_body_is_not_read() {
    let served = Served::start(None).await;
    let answer = served
        .ask("GET", "/v1/limits", "Content-Length: 1000000\r\n")
        .await;
    answer.is(413);
}

#[tokio::test]
async fn told_to_stop_it_ends_though_clients_stay() {
    let served = Served::start(None).await;
    let mut idle = TcpStream::connect(served.address).await.expect("connects");
    let request = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n";
    idle.write_all(request).await.expect("sent");
    let mut bytes = [0; 1024];
    let read = idle.read(&mut bytes).await.expect("answered");
    assert!(bytes[..read].starts_with(b"HTTP/1.1 200"));
    served.stop.cancel();
    served.task.await.expect("no panic").expect("no error");
    assert_eq!(idle.read(&mut bytes).await.expect("closed"), 0);
    assert!(TcpStream::connect(served.address).await.is_err());
}
