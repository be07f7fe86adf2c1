//! Calls that are handed over with `Prefer: respond-async`: through the stages, over real
//! sockets, with paused time where only the clock matters, and in the real process where it
//! reloads and drains.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::admit::{Admission, Permit};
use tidegate::call::{
    self, BackendKind, BodyError, ByteStream, Destination, Dialect, Facts, Head, HttpCall,
    Identity, Message, Origin, Progress, Reason, Record, Refusal, Rejection, Reply, RequestBody,
    Serve, TaskWakers, Tunnel, Verdict,
};
use tidegate::listen::{self, Connections, InheritedSockets};
use tidegate::pipeline::Pipeline;
use tidegate::protocol::{self, Conversation, Stop, StreamDrain};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::seeds::any_seed;
use crate::sidecar::Sidecar;
use crate::support::{
    Held, PATIENCE, Scripted, Stack, asking, config, identity, json, read_all, read_until, reset,
    sending, serve, until,
};

const HTTP_OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Kept: yes\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}";

/// A config in which calls may be handed over; the rest says more.
fn text(backend: SocketAddr, tasks: &str, limits: &str, sections: &str) -> String {
    format!(
        r#"
        [server]
        drain_timeout = "20s"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [backend]
        kind = "zvm"
        http = "http://{backend}"
        reply_buffer_bytes = "1KiB"
        [client]
        buffer_bytes = "4KiB"
        [queue]
        postpone = "in_turn"
        [tasks]
        enabled = true
        {tasks}
        [limits]
        {limits}
        {sections}
        [admin]
        bind = "127.0.0.1:0"
        "#
    )
}

/// Limits of one call at the backend, and no other limit within reach.
const ONE: &str = "per_window = \"total:1000\"\noutstanding = 1";

struct Stage {
    held: Held,
    stack: Stack,
}

impl Stage {
    async fn new(answer: &'static [u8], tasks: &str, limits: &str, sections: &str) -> Self {
        let held = Held::start(answer).await;
        let stack = Stack::start(&text(held.backend.addr, tasks, limits, sections));
        Self { held, stack }
    }

    async fn ask(&self, method: &str, path: &str, headers: &str) -> Response {
        Response::of(&self.stack.ask(request(method, path, headers)).await)
    }

    /// Hands a call over; it must be taken.
    async fn hand_over(&self, path: &str) -> String {
        let response = self.ask("POST", path, ASYNC).await;
        assert_eq!(response.status, 202, "{response:?}");
        response.header("location").expect("a place").to_owned()
    }

    /// A client that waits for a call at the backend, which is there.
    async fn runs_one(&mut self) -> TcpStream {
        let request = request("GET", "/host", "");
        let client = sending(self.stack.addr, request).await;
        let got = self.held.next().await;
        assert!(got.starts_with("GET /host "), "{got}");
        client
    }

    /// Waits until these numbers of tasks wait, run and have ended.
    async fn tasks(&self, waiting: usize, running: usize, ended: usize) {
        let now = || {
            let now = self.stack.tasks.snapshot();
            (now.waiting, now.running, now.ended)
        };
        until(
            || now() == (waiting, running, ended),
            || format!("{:?}, not {:?}", now(), (waiting, running, ended)),
        )
        .await;
    }

    fn nothing_came(&mut self) {
        assert!(self.held.got.try_recv().is_err(), "the backend got a call");
    }
}

const ASYNC: &str = "Prefer: respond-async\r\n";

fn request(method: &str, path: &str, headers: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{headers}\r\n")
}

/// A whole answer, in parts.
#[derive(Debug, PartialEq)]
struct Response {
    status: u16,
    headers: Vec<String>,
    body: String,
}

impl Response {
    fn of(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        // Which the same answer has another of a second later.
        let is_date = |line: &&str| line.to_ascii_lowercase().starts_with("date:");
        Self {
            status: status.and_then(|it| it.parse().ok()).expect("a status"),
            headers: lines
                .filter(|line| !is_date(line))
                .map(str::to_owned)
                .collect(),
            body: body.to_owned(),
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter().filter_map(|line| line.split_once(": "));
        headers
            .find(|(given, _)| given.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    fn json(&self) -> serde_json::Value {
        json(&self.body)
    }

    /// Whether it is an answer of our own, for this reason.
    fn is(&self, reason: Reason) -> bool {
        self.status == reason.status().as_u16()
            && match self.header("content-type") {
                Some("application/problem+json") => self.json()["reason"] == reason.label(),
                _ => self.json()["modID"] == 130 && self.json()["rs"] == reason.rs(),
            }
    }
}

#[tokio::test]
async fn under_closed_limits_a_call_is_taken_at_once_and_its_answer_fetched_later() {
    let mut stage = Stage::new(HTTP_OK, "", ONE, "").await;
    let mut first = stage.runs_one().await;
    let taken = stage
        .ask(
            "POST",
            "/guests",
            "Prefer: respond-async, return=minimal\r\n",
        )
        .await;
    assert_eq!(taken.status, 202, "{taken:?}");
    assert_eq!(taken.header("preference-applied"), Some("respond-async"));
    let at = taken.header("location").expect("a place").to_owned();
    let told = taken.json();
    assert_eq!(told["state"], "waiting", "{told}");
    assert_eq!(
        at,
        format!("/v1/tasks/{}", told["id"].as_str().expect("an id"))
    );
    stage.nothing_came();

    let waiting = stage.ask("GET", &at, "").await;
    assert_eq!(waiting.status, 202, "{waiting:?}");
    assert_eq!(waiting.header("x-task-state"), Some("waiting"));
    assert_eq!(waiting.json()["waits_for"], "outstanding", "{waiting:?}");
    assert_eq!(waiting.json()["function"], "guest_create");
    let seconds: u64 = waiting
        .header("retry-after")
        .and_then(|it| it.parse().ok())
        .expect("seconds");
    assert!((1..=30).contains(&seconds), "{seconds}");
    let listed = stage.ask("GET", "/v1/tasks", "").await.json();
    assert_eq!(listed["tasks"][0]["id"], told["id"], "{listed}");

    stage.held.go.notify_one();
    read_all(&mut first).await;
    let got = stage.held.next().await;
    assert!(got.starts_with("POST /guests "), "{got}");
    let prefer = got
        .lines()
        .find(|line| line.to_ascii_lowercase().starts_with("prefer:"));
    assert_eq!(
        prefer.map(str::to_ascii_lowercase).as_deref(),
        Some("prefer: return=minimal")
    );
    let running = stage.ask("GET", &at, "").await;
    assert_eq!(running.status, 202, "{running:?}");
    assert_eq!(running.json()["state"], "running");
    stage.held.go.notify_one();
    stage.tasks(0, 0, 1).await;
    for _ in 0..2 {
        let answer = stage.ask("GET", &at, "").await;
        assert_eq!((answer.status, &*answer.body), (200, "{\"overallRC\": 0}"));
        assert_eq!(answer.header("x-task-state"), Some("done"));
        assert_eq!(answer.header("x-kept"), Some("yes"));
        assert_eq!(answer.header("content-length"), Some("16"));
    }
    let head = stage.stack.ask(request("HEAD", &at, "")).await;
    assert!(
        head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"),
        "{head}"
    );

    assert_eq!(stage.ask("DELETE", &at, "").await.status, 204);
    assert!(stage.ask("GET", &at, "").await.is(Reason::TaskGone));
    assert!(stage.ask("DELETE", &at, "").await.is(Reason::TaskGone));
    assert_eq!(stage.stack.tasks.snapshot().bytes, 0);

    let facts = stage.stack.seen.ended(2).await;
    let told_of: Vec<_> = facts.iter().filter(|it| it.handed_over).collect();
    assert_eq!(told_of.len(), 1, "it is reported once");
    assert_eq!(&*told_of[0].function, "guest_create");
    assert_eq!(
        (told_of[0].verdict, told_of[0].status),
        (Verdict::Delayed, Some(200))
    );
    assert!(told_of[0].sent.is_some() && told_of[0].answered.is_some());
    stage.stack.at_rest().await;
}

#[tokio::test]
async fn for_other_clients_a_task_does_not_exist() {
    let stage = Stage::new(HTTP_OK, "", ONE, "").await;
    let at = stage.hand_over("/guests").await;
    let wrong = format!("{}0", &at[..at.len() - 1]);
    let wrong = if wrong == at {
        format!("{}1", &at[..at.len() - 1])
    } else {
        wrong
    };
    let unknown = stage.ask("GET", &wrong, "").await;
    assert!(unknown.is(Reason::TaskUnknown), "{unknown:?}");
    assert_eq!(stage.ask("GET", "/v1/tasks/what", "").await, unknown);
    for other in ["User-Agent: other\r\n", "Originator: other\r\n"] {
        assert_eq!(stage.ask("GET", &at, other).await, unknown);
        assert_eq!(stage.ask("DELETE", &at, other).await, unknown);
        let listed = stage.ask("GET", "/v1/tasks", other).await;
        assert_eq!(listed.body, "{\"tasks\":[]}");
    }
    assert_eq!(
        stage.ask("GET", &at, "").await.status,
        202,
        "it is untouched"
    );
}

#[tokio::test]
async fn cancelling_a_waiting_call_draws_nothing() {
    let per_hour = "window = \"3600s\"\nper_window = \"total:1\"";
    let mut stage = Stage::new(HTTP_OK, "", per_hour, "").await;
    let mut first = stage.runs_one().await;
    stage.held.go.notify_one();
    read_all(&mut first).await;
    let used = |stage: &Stage| {
        let (limits, _) = stage.stack.gate.limits_now();
        let total = limits.iter().find(|(rule, _)| &*rule.name == "total");
        total.expect("there is a window").1.used
    };
    assert_eq!(used(&stage), 1);
    let at = stage.hand_over("/guests").await;
    assert_eq!(stage.ask("GET", &at, "").await.json()["waits_for"], "total");
    assert_eq!(stage.stack.gate.busy(), (0, 1));
    assert_eq!(stage.ask("DELETE", &at, "").await.status, 204);
    // A client that has read this answer sees it so.
    assert_eq!(stage.stack.gate.busy(), (0, 0));
    assert_eq!(used(&stage), 1);
    let gone = stage.ask("GET", &at, "").await;
    assert!(gone.is(Reason::TaskGone), "{gone:?}");
    assert!(gone.body.contains("cancelled"), "{gone:?}");
    let facts = stage.stack.seen.ended(2).await;
    let cancelled = facts
        .iter()
        .find(|it| it.handed_over)
        .expect("it is reported");
    assert_eq!(
        (cancelled.verdict, cancelled.sent),
        (Verdict::Aborted, None)
    );
    stage.nothing_came();
}

#[tokio::test]
async fn cancelling_a_running_call_frees_its_slot_only_when_the_backend_is_done() {
    let mut stage = Stage::new(HTTP_OK, "", ONE, "").await;
    let at = stage.hand_over("/guests").await;
    stage.held.next().await;
    let next = stage.hand_over("/guests/A/action").await;
    assert_eq!(stage.ask("DELETE", &at, "").await.status, 204);
    assert_eq!(stage.stack.gate.busy(), (1, 1), "the backend still has it");
    stage.nothing_came();
    stage.held.go.notify_one();
    let got = stage.held.next().await;
    assert!(got.starts_with("POST /guests/A/action "), "{got}");
    assert_eq!(stage.stack.gate.busy(), (1, 0));
    stage.held.go.notify_one();
    stage.tasks(0, 0, 2).await;
    assert_eq!(stage.ask("GET", &next, "").await.status, 200);
    stage.stack.at_rest().await;
    let facts = stage.stack.seen.all();
    let verdicts = facts.iter().filter(|it| it.handed_over);
    let verdicts: Vec<_> = verdicts.map(|it| (it.verdict, it.sent.is_some())).collect();
    assert_eq!(
        verdicts,
        [(Verdict::Aborted, true), (Verdict::Delayed, true)]
    );
}

#[tokio::test]
async fn each_bound_refuses_with_its_own_name_and_nothing_is_begun() {
    let one_kilobyte = format!("Prefer: respond-async\r\nX-Long: {}\r\n", "x".repeat(1024));
    for (tasks, headers, refusal, limit) in [
        (
            "max_tasks_per_caller = 1",
            ASYNC,
            Reason::CallerTasksFull,
            "tasks.max_tasks_per_caller",
        ),
        ("max_tasks = 1", ASYNC, Reason::TasksFull, "tasks.max_tasks"),
        (
            "max_bytes_per_caller = \"1KiB\"",
            &one_kilobyte,
            Reason::CallerTasksFull,
            "tasks.max_bytes_per_caller",
        ),
        (
            "max_bytes = \"1KiB\"",
            &one_kilobyte,
            Reason::TasksFull,
            "tasks.max_bytes",
        ),
    ] {
        let mut stage = Stage::new(HTTP_OK, tasks, ONE, "").await;
        stage.hand_over("/guests").await;
        stage.held.next().await;
        let refused = stage.ask("POST", "/guests", headers).await;
        assert!(refused.is(refusal), "{tasks}: {refused:?}");
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
        assert!(refused.body.contains(limit), "{tasks}: {refused:?}");
        stage.stack.busy(1, 0).await;
        // Another caller has its own places, and shares the common ones.
        let other = stage
            .ask(
                "POST",
                "/guests",
                "User-Agent: other\r\nPrefer: respond-async\r\n",
            )
            .await;
        let expected = if tasks == "max_tasks = 1" { 503 } else { 202 };
        assert_eq!(other.status, expected, "{tasks}: {other:?}");
        let facts = stage.stack.seen.all();
        let told = facts.iter().find(|it| it.reason == Some(refusal));
        let told = told.expect("it is reported");
        assert_eq!(told.limit.as_deref(), Some(limit));
        assert!(!told.handed_over && told.verdict == Verdict::Refused);
    }
}

#[tokio::test]
async fn callers_that_are_not_registered_are_reported_to_share_a_bound() {
    for (tasks, headers) in [
        ("max_tasks_per_caller = 1", ASYNC.to_owned()),
        (
            "max_bytes_per_caller = \"1KiB\"",
            format!("Prefer: respond-async\r\nX-Long: {}\r\n", "x".repeat(1024)),
        ),
    ] {
        for (sections, shares) in [("", false), ("[callers]\nauto_register = 0", true)] {
            let mut stage = Stage::new(HTTP_OK, tasks, ONE, sections).await;
            stage.hand_over("/guests").await;
            stage.held.next().await;
            let refused = stage.ask("POST", "/guests", &headers).await;
            assert!(refused.is(Reason::CallerTasksFull), "{tasks}: {refused:?}");
            let says = refused.body.contains("share one bound");
            assert_eq!(says, shares, "{tasks}: {refused:?}");
            assert_eq!(refused.body.contains("the caller has"), !shares);
        }
    }
}

#[tokio::test]
async fn a_body_that_is_not_held_whole_cannot_be_handed_over() {
    let mut stage = Stage::new(HTTP_OK, "", ONE, "").await;
    let body = "x".repeat(4097);
    let large = format!(
        "PUT /files HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{ASYNC}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let refused = Response::of(&stage.stack.ask(large).await);
    assert!(refused.is(Reason::TooLarge), "{refused:?}");
    assert_eq!(refused.status, 413);
    assert_eq!(stage.stack.tasks.snapshot().counted, Default::default());
    stage.nothing_came();
}

#[tokio::test]
async fn a_client_that_leaves_does_not_cancel_its_task() {
    let mut stage = Stage::new(HTTP_OK, "", ONE, "").await;
    let mut first = stage.runs_one().await;
    let request = request("POST", "/guests", "Prefer: respond-async, wait=600\r\n");
    let client = sending(stage.stack.addr, request).await;
    stage.tasks(1, 0, 0).await;
    reset(client);
    stage.held.go.notify_one();
    read_all(&mut first).await;
    let got = stage.held.next().await;
    assert!(got.starts_with("POST /guests "), "{got}");
    stage.held.go.notify_one();
    stage.tasks(0, 0, 1).await;
    // It never heard of a place, but its tasks are listed.
    let listed = stage.ask("GET", "/v1/tasks", "").await.json();
    let at = format!(
        "/v1/tasks/{}",
        listed["tasks"][0]["id"].as_str().expect("an id")
    );
    assert_eq!(listed["tasks"][0]["state"], "done", "{listed}");
    assert_eq!(stage.ask("GET", &at, "").await.status, 200);
}

#[tokio::test]
async fn a_client_that_waits_gets_the_answer_if_it_comes_in_time() {
    let mut stage = Stage::new(HTTP_OK, "", ONE, "").await;
    let request = request("POST", "/guests", "Prefer: wait=600, respond-async\r\n");
    let mut client = sending(stage.stack.addr, request).await;
    stage.held.next().await;
    stage.held.go.notify_one();
    let answer = Response::of(&read_all(&mut client).await);
    assert_eq!((answer.status, &*answer.body), (200, "{\"overallRC\": 0}"));
    assert_eq!(answer.header("location"), None);
    stage.tasks(0, 0, 0).await;
    stage.stack.at_rest().await;
}

#[tokio::test]
async fn a_full_queue_that_refuses_takes_nothing_over() {
    let held = Held::start(HTTP_OK).await;
    let text = text(held.backend.addr, "", ONE, "")
        .replace("[queue]", "[queue]\ncapacity = 1\nwhen_full = \"refuse\"");
    let mut stage = Stage {
        held,
        stack: Stack::start(&text),
    };
    let _first = stage.runs_one().await;
    stage.hand_over("/guests").await;
    let refused = stage.ask("POST", "/guests", ASYNC).await;
    assert!(refused.is(Reason::QueueFull), "{refused:?}");
    stage.tasks(1, 0, 0).await;
    assert_eq!(stage.stack.gate.busy(), (1, 1));
}

#[tokio::test]
async fn at_a_full_queue_that_waits_it_waits_at_the_door() {
    let held = Held::start(HTTP_OK).await;
    let text = text(held.backend.addr, "", ONE, "").replace("[queue]", "[queue]\ncapacity = 1");
    let mut stage = Stage {
        held,
        stack: Stack::start(&text),
    };
    let _first = stage.runs_one().await;
    stage.hand_over("/guests").await;
    let at = stage.hand_over("/guests").await;
    assert_eq!(stage.stack.gate.queue_now().at_door, 1);
    assert_eq!(stage.ask("DELETE", &at, "").await.status, 204);
    assert_eq!(stage.stack.gate.queue_now().at_door, 0);
    stage.tasks(1, 0, 1).await;
}

#[tokio::test]
async fn an_answer_that_comes_in_parts_is_kept_whole_within_the_bounds() {
    const WHOLE: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n";
    const CUT: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nz";
    static LARGE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n";
        [&head[..], &[b'x'; 5000]].concat()
    });
    for (answer, expected) in [
        (WHOLE, None),
        (CUT, Some(Reason::BackendCut)),
        (&LARGE, Some(Reason::AnswerNotKept)),
    ] {
        let mut stage = Stage::new(answer, "max_bytes_per_caller = \"4KiB\"", ONE, "").await;
        let at = stage.hand_over("/guests").await;
        stage.held.next().await;
        stage.held.go.notify_one();
        stage.tasks(0, 0, 1).await;
        let fetched = stage.ask("GET", &at, "").await;
        match expected {
            None => {
                assert_eq!((fetched.status, &*fetched.body), (200, "abcdef"));
                assert_eq!(fetched.header("content-length"), Some("6"));
            }
            Some(reason) => assert!(fetched.is(reason), "{fetched:?}"),
        }
        if expected == Some(Reason::AnswerNotKept) {
            assert!(fetched.body.contains("5000 bytes"), "{fetched:?}");
            let facts = stage.stack.seen.ended(2).await;
            let told = facts
                .iter()
                .find(|it| it.handed_over)
                .expect("it is reported");
            assert_eq!((told.verdict, told.bytes_out), (Verdict::Passed, 5000));
            assert_eq!(stage.stack.tasks.snapshot().bytes, 0);
        }
        stage.stack.at_rest().await;
    }
}

#[tokio::test]
async fn only_where_it_is_switched_on_is_a_path_taken_from_the_backend() {
    let held = Held::start(HTTP_OK).await;
    let text = text(held.backend.addr, "", ONE, "").replace("enabled = true", "enabled = false");
    let mut stage = Stage {
        held,
        stack: Stack::start(&text),
    };
    for (method, path) in [("GET", "/v1/tasks"), ("POST", "/guests")] {
        let request = request(method, path, ASYNC);
        let mut client = sending(stage.stack.addr, request).await;
        let got = stage.held.next().await;
        assert!(got.starts_with(&format!("{method} {path} ")), "{got}");
        assert!(
            got.to_ascii_lowercase().contains("prefer: respond-async"),
            "{got}"
        );
        stage.held.go.notify_one();
        assert_eq!(Response::of(&read_all(&mut client).await).status, 200);
    }
}

#[tokio::test]
async fn a_wrong_method_gets_the_allowed_ones() {
    let mut stage = Stage::new(HTTP_OK, "", ONE, "").await;
    let at = stage.hand_over("/guests").await;
    stage.held.next().await;
    for (path, allow) in [(&*at, "GET, HEAD, DELETE"), ("/v1/tasks", "GET, HEAD")] {
        let refused = stage.ask("PATCH", path, "").await;
        assert_eq!(refused.status, 405, "{refused:?}");
        assert_eq!(refused.header("allow"), Some(allow));
    }
    // What only begins alike is the backend's.
    let request = request("GET", "/v1/tasksmith", "");
    let mut client = sending(stage.stack.addr, request).await;
    stage.held.go.notify_one();
    let got = stage.held.next().await;
    assert!(got.starts_with("GET /v1/tasksmith "), "{got}");
    stage.held.go.notify_one();
    read_all(&mut client).await;
}

#[tokio::test]
async fn identical_reads_that_are_handed_over_share_a_call() {
    let coalesce = "[coalesce]\nfunctions = [\"guest_list\"]";
    let mut stage = Stage::new(HTTP_OK, "", ONE, coalesce).await;
    let mut first = stage.runs_one().await;
    let mut at = Vec::new();
    for _ in 0..2 {
        let taken = stage.ask("GET", "/guests", ASYNC).await;
        assert_eq!(taken.status, 202, "{taken:?}");
        at.push(taken.header("location").expect("a place").to_owned());
    }
    stage.held.go.notify_one();
    read_all(&mut first).await;
    stage.held.next().await;
    stage.held.go.notify_one();
    stage.tasks(0, 0, 2).await;
    for at in at {
        assert_eq!(stage.ask("GET", &at, "").await.status, 200);
    }
    stage.nothing_came();
    stage.stack.at_rest().await;
}

#[tokio::test]
async fn an_id_from_before_a_restart_is_gone() {
    let before = Stage::new(HTTP_OK, "", ONE, "").await;
    let after = Stage::new(HTTP_OK, "", ONE, "").await;
    let at = before.hand_over("/guests").await;
    let gone = after.ask("GET", &at, "").await;
    assert!(gone.is(Reason::TaskGone), "{gone:?}");
    assert_eq!(gone.status, 410);
}

/// The stages with a backend that is nowhere, and the clock in the test's hand.
struct Paused {
    stack: Stack,
}

impl Paused {
    fn new(tasks: &str, limits: &str, sections: &str) -> Self {
        let nowhere = "127.0.0.1:1".parse().expect("an address");
        let stack = Stack::start(&text(nowhere, tasks, limits, sections));
        Self { stack }
    }

    fn origin(&self) -> Origin {
        Origin {
            identity: identity("test", ([127, 0, 0, 1], 1)),
            arrived: self.stack.clock.now(),
        }
    }

    async fn ask(&self, method: &str, path: &str, prefer: &str) -> Response {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("prefer", prefer);
        let (head, ()) = request.body(()).expect("a request").into_parts();
        let request = call::Request {
            origin: self.origin(),
            message: Message::Http(Box::new(HttpCall::new(
                Arc::new(head.into()),
                RequestBody::Whole(Bytes::new()),
            ))),
        };
        let progress = Progress::default();
        let reply = self.stack.pipeline.serve(request, &progress).await;
        let (head, body) = protocol::answer(reply, BackendKind::Http);
        let body = body.collect().await.expect("it is whole").to_bytes();
        let told = |(name, value): (&[u8], &[u8])| {
            let [name, value] = [name, value].map(|it| str::from_utf8(it).expect("ASCII"));
            format!("{name}: {value}")
        };
        Response {
            status: head.status.as_u16(),
            headers: head.headers.iter().map(told).collect(),
            body: String::from_utf8(body.into()).expect("ASCII"),
        }
    }

    async fn hand_over(&self, prefer: &str) -> String {
        let taken = self.ask("POST", "/guests", prefer).await;
        assert_eq!(taken.status, 202, "{taken:?}");
        taken.header("location").expect("a place").to_owned()
    }

    /// Takes the only slot while the returned value exists.
    fn takes_the_slot(&self) -> Permit {
        let seen = Arc::new(self.stack.seen.clone());
        let (name, class) = ("x".into(), "polling".into());
        let record = Record::open(self.origin(), Dialect::Socket, name, class, None, seen);
        let ask = asking("x", Destination::Http, self.stack.clock.now());
        match self.stack.gate.ask(ask, &record) {
            Admission::Decided(Ok(permit)) => permit,
            _ => panic!("the slot is free"),
        }
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn it_waits_for_ever_unless_its_class_says_how_long() {
    let short = "[[class]]\nname = \"user\"\nmax_wait = \"5m\"";
    for (limits, class, minutes) in [
        (ONE, "", None),
        (&*format!("{ONE}\nmax_wait = \"0s\""), "", None),
        (ONE, short, Some(5)),
    ] {
        let paused = Paused::new("", limits, class);
        let slot = paused.takes_the_slot();
        let at = paused.hand_over("respond-async").await;
        let hours = Duration::from_secs(3600 * 3);
        let Some(minutes) = minutes else {
            tokio::time::sleep(hours).await;
            assert_eq!(paused.ask("GET", &at, "").await.json()["state"], "waiting");
            drop(slot);
            continue;
        };
        tokio::time::sleep(minutes * MINUTE - Duration::from_secs(1)).await;
        assert_eq!(paused.ask("GET", &at, "").await.json()["state"], "waiting");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let refused = paused.ask("GET", &at, "").await;
        assert!(refused.is(Reason::DeadlinePassed), "{refused:?}");
        assert_eq!(refused.header("x-task-state"), Some("done"));
        let facts = paused.stack.seen.all();
        assert!(
            facts
                .iter()
                .any(|it| it.handed_over && it.verdict == Verdict::Expired)
        );
        drop(slot);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_kept_for_its_time_from_its_end() {
    let class = "[[class]]\nname = \"user\"\nmax_wait = \"5m\"";
    let paused = Paused::new("keep_for = \"2m\"", ONE, class);
    let _slot = paused.takes_the_slot();
    let at = paused.hand_over("respond-async").await;
    tokio::time::sleep(7 * MINUTE - Duration::from_millis(100)).await;
    let kept = paused.ask("GET", &at, "").await;
    assert_eq!(kept.header("x-task-state"), Some("done"), "{kept:?}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let gone = paused.ask("GET", &at, "").await;
    assert!(gone.is(Reason::TaskGone), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_in_vain_gets_the_address_of_its_task() {
    let paused = Paused::new("", ONE, "");
    let _slot = paused.takes_the_slot();
    let before = paused.stack.clock.now();
    let taken = paused
        .ask("POST", "/guests", "respond-async, wait=10")
        .await;
    assert_eq!(taken.status, 202);
    assert_eq!(
        taken.header("preference-applied"),
        Some("respond-async, wait=10")
    );
    assert!(taken.header("location").is_some());
    assert_eq!(paused.stack.clock.now().since(before).as_secs(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_at_any_moment_every_call_is_reported_and_sent_at_most_once() {
    let seed = any_seed();
    let mut random = StdRng::seed_from_u64(seed);
    let (tell, mut got) = mpsc::unbounded_channel();
    let backend = Scripted::start(move |_, mut stream: TcpStream| {
        let tell = tell.clone();
        async move {
            loop {
                let request = read_until(&mut stream, "\r\n\r\n").await;
                let Some(path) = request.split(' ').nth(1) else {
                    return;
                };
                let number: u64 = digits(path);
                tell.send(number).expect("the test listens");
                tokio::time::sleep(Duration::from_micros(number * 7919 % 3000)).await;
                // Whose call was cancelled is heard out.
                stream.write_all(HTTP_OK).await.expect("it is read");
            }
        }
    })
    .await;
    let limits = ONE.replace("outstanding = 1", "outstanding = 3");
    let stack = Arc::new(Stack::start(&text(backend.addr, "", &limits, "")));
    let calls = 200;
    let mut clients = Vec::new();
    for number in 0..calls {
        let cancels_after = random.random_range(0..4_usize);
        let stack = Arc::clone(&stack);
        clients.push(tokio::spawn(async move {
            let path = format!("/guests/U{number}/action");
            let taken = stack.ask(request("POST", &path, ASYNC)).await;
            let taken = Response::of(&taken);
            assert_eq!(taken.status, 202, "{taken:?}");
            let at = taken.header("location").expect("a place").to_owned();
            for _ in 0..cancels_after {
                stack.ask(request("GET", &at, "")).await;
            }
            if cancels_after < 3 {
                let cancelled = Response::of(&stack.ask(request("DELETE", &at, "")).await);
                assert_eq!(cancelled.status, 204, "{cancelled:?}");
            }
        }));
    }
    for client in clients {
        client.await.expect("it is answered");
    }
    until(
        || {
            let now = stack.tasks.snapshot();
            now.waiting + now.running == 0
        },
        || format!("{:?}", stack.tasks.snapshot()),
    )
    .await;
    stack.at_rest().await;
    let told = || {
        let facts = stack.seen.all().into_iter();
        facts.filter(|it| it.handed_over).collect::<Vec<_>>()
    };
    until(|| told().len() == calls, || told().len().to_string()).await;
    let mut sent: Vec<u64> = told()
        .iter()
        .filter(|it| it.sent.is_some())
        .map(|it| digits(it.target.as_deref().expect("a userid")))
        .collect();
    let mut arrived = Vec::new();
    while let Ok(number) = got.try_recv() {
        arrived.push(number);
    }
    sent.sort_unstable();
    arrived.sort_unstable();
    assert_eq!(arrived, sent, "each once, and no other");
    assert!(arrived.len() < calls, "some were cancelled in time");
    let counted = stack.tasks.snapshot().counted;
    assert_eq!(counted.answered + counted.cancelled, calls as u64);
}

fn digits(text: &str) -> u64 {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// A body that makes a call's own task panic: it does when it is read, which is while the call is past the gate and
/// half sent.
struct Panics;

impl http_body::Body for Panics {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, BodyError>>> {
        panic!("a test's own")
    }
}

/// The pipeline, behind something that makes the calls to one path panic.
#[derive(Clone)]
struct Sabotaged(Pipeline);

impl Serve for Sabotaged {
    fn serve<'a>(
        &'a self,
        mut request: call::Request,
        progress: &'a Progress,
    ) -> impl Future<Output = Result<Reply, Refusal>> + Send + 'a {
        if let Message::Http(call) = &mut request.message
            && call.head.path() == "/panics"
        {
            call.body = RequestBody::Streamed {
                read: bytes::Bytes::new(),
                rest: ByteStream::new(Panics),
            };
        }
        self.0.serve(request, progress)
    }

    fn tunnel<'a>(
        &'a self,
        origin: Origin,
        progress: &'a Progress,
    ) -> impl Future<Output = Result<Tunnel, Refusal>> + Send + 'a {
        self.0.tunnel(origin, progress)
    }

    fn needs_body(&self, head: &Head) -> bool {
        self.0.needs_body(head)
    }

    fn standing(
        &self,
        call: u64,
        client: Option<&Identity>,
    ) -> Result<Option<call::QueueStanding>, call::LooksExceeded> {
        self.0.standing(call, client)
    }

    fn waiting(&self) -> usize {
        self.0.waiting()
    }

    fn refused(&self, origin: Origin, dialect: Dialect, refusal: &Refusal) -> u64 {
        self.0.refused(origin, dialect, refusal)
    }

    fn rejected(&self, identity: &Identity, rejection: Rejection) {
        self.0.rejected(identity, rejection);
    }
}

#[tokio::test]
async fn a_panic_in_one_task_gives_its_slot_back_and_the_others_continue() {
    // It reads all bytes, answers complete requests, and sees connections close.
    let backend = Scripted::start(|_, mut stream: TcpStream| async move {
        let got = read_until(&mut stream, "\r\n\r\n").await;
        if got.starts_with("GET ") {
            stream.write_all(HTTP_OK).await.expect("it is read");
        }
    })
    .await;
    let text = text(backend.addr, "", ONE, "");
    let stack = Stack::start(&text);
    let slot = Paused { stack };
    let held = slot.takes_the_slot();
    let stack = slot.stack;
    let addr = sabotaged(&stack, &text);
    let client = |request: String| {
        tokio::spawn(async move {
            let mut stream = sending(addr, request).await;
            let mut answer = Vec::new();
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer).await;
            String::from_utf8(answer).expect("ASCII")
        })
    };
    let panics = client(request("POST", "/panics", ""));
    stack.busy(1, 1).await;
    let others = [(); 2].map(|()| client(request("GET", "/host", "")));
    stack.busy(1, 3).await;
    drop(held);
    let answer = tokio::time::timeout(PATIENCE, panics)
        .await
        .expect("it ends");
    assert_eq!(
        answer.expect("the client does not panic"),
        "",
        "it was cut off"
    );
    for other in others {
        let answer = tokio::time::timeout(PATIENCE, other)
            .await
            .expect("it ends");
        let answer = Response::of(&answer.expect("the client does not panic"));
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    stack.at_rest().await;
    let facts: Vec<Facts> = stack.seen.ended(4).await;
    let passed = facts.iter().filter(|it| it.status == Some(200)).count();
    assert_eq!(passed, 2, "{facts:#?}");
}

/// Another listener for the same stages, whose calls to `/panics` do.
fn sabotaged(stack: &Stack, text: &str) -> SocketAddr {
    let config = config(text);
    let listener = Arc::new(
        config
            .listen
            .listeners
            .into_iter()
            .next()
            .expect("there is one"),
    );
    let socket =
        listen::bind(&listener, &InheritedSockets::default()).expect("nothing is in the way");
    let addr = socket.address().tcp().expect("it is an address");
    let conversation = Arc::new(Conversation {
        serve: Sabotaged(stack.pipeline.clone()),
        settings: config.protocol,
        clock: stack.clock,
        stop: Stop::default(),
        streams: StreamDrain::default(),
        wakers: TaskWakers::default(),
    });
    let connections = Connections::new(16);
    serve(
        socket,
        listener,
        connections,
        conversation,
        CancellationToken::new(),
    );
    addr
}

/// Asks the real process.
async fn ask(addr: SocketAddr, method: &str, path: &str, headers: &str) -> Response {
    Response::of(&crate::support::ask(addr, request(method, path, headers)).await)
}

#[tokio::test]
async fn a_reload_changes_the_bounds_in_place_and_what_is_handed_over_stays() {
    let mut held = Held::start(HTTP_OK).await;
    let first = text(held.backend.addr, "max_tasks = 1", ONE, "");
    let sidecar = Sidecar::start(&first).await;
    let addr = sidecar.listener("test").await;
    let taken = ask(addr, "POST", "/guests", ASYNC).await;
    let at = taken.header("location").expect("a place").to_owned();
    held.next().await;
    let refused = ask(addr, "POST", "/guests", ASYNC).await;
    assert!(refused.is(Reason::TasksFull), "{refused:?}");
    sidecar
        .reload(&first.replace("max_tasks = 1", "max_tasks = 2"))
        .await;
    assert_eq!(ask(addr, "POST", "/guests", ASYNC).await.status, 202);
    assert_eq!(
        sidecar.metric("tidegate_tasks{state=\"running\"}").await,
        1.0
    );
    assert_eq!(
        sidecar.metric("tidegate_tasks{state=\"waiting\"}").await,
        1.0
    );
    assert!(sidecar.metric("tidegate_tasks_held_bytes").await > 0.0);
    held.go.notify_one();
    held.next().await;
    held.go.notify_one();
    let ended = "tidegate_tasks_ended_total{outcome=\"answered\"}";
    let both = async { while sidecar.metric(ended).await < 2.0 {} };
    tokio::time::timeout(PATIENCE, both)
        .await
        .expect("both end");
    assert_eq!(ask(addr, "GET", &at, "").await.status, 200);
    // Off, the path is the backend's; on again, the kept results are still there.
    sidecar
        .reload(&first.replace("enabled = true", "enabled = false"))
        .await;
    let _client = sending(addr, request("GET", &at, "")).await;
    assert!(held.next().await.starts_with("GET /v1/tasks/"));
    sidecar.reload(&first).await;
    assert_eq!(ask(addr, "GET", &at, "").await.status, 200);
    let line = sidecar
        .log()
        .wait(&["\"handed_over\":true", "\"guest_create\""])
        .await;
    assert!(line.contains("\"status\":200"), "{line}");
}

#[tokio::test]
async fn terminated_it_finishes_what_was_handed_over() {
    let mut held = Held::start(HTTP_OK).await;
    let sidecar = Sidecar::start(&text(held.backend.addr, "", ONE, "")).await;
    let addr = sidecar.listener("test").await;
    for _ in 0..2 {
        assert_eq!(ask(addr, "POST", "/guests", ASYNC).await.status, 202);
    }
    held.next().await;
    sidecar.signal("TERM");
    sidecar.log().wait(&["draining"]).await;
    held.go.notify_one();
    held.next().await;
    held.go.notify_one();
    let (status, log) = sidecar.ended().await;
    assert_eq!(status.code(), Some(0), "{log:#?}");
    let passed = log
        .iter()
        .filter(|line| line.contains("\"handed_over\":true") && line.contains("\"status\":200"));
    assert_eq!(passed.count(), 2, "{log:#?}");
}

#[tokio::test]
async fn tasks_that_wait_beyond_the_drain_timeout_are_refused() {
    let mut held = Held::start(HTTP_OK).await;
    let text = text(held.backend.addr, "", ONE, "").replace("\"20s\"", "\"300ms\"");
    let sidecar = Sidecar::start(&text).await;
    let addr = sidecar.listener("test").await;
    for _ in 0..2 {
        assert_eq!(ask(addr, "POST", "/guests", ASYNC).await.status, 202);
    }
    held.next().await;
    sidecar.signal("TERM");
    let (status, log) = sidecar.ended().await;
    assert_eq!(status.code(), Some(1), "{log:#?}");
    let told = log
        .iter()
        .filter(|line| line.contains("\"handed_over\":true"));
    let with = |reason: &str| told.clone().filter(|line| line.contains(reason)).count();
    let counts = ["\"reason\":\"draining\"", "\"reason\":\"drain_timeout\""].map(with);
    assert_eq!(counts, [1, 1], "{log:#?}");
}
