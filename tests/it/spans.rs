//! Spans of sampled calls, through the real process, to a collector that a test plays. What it gets is read
//! by the published definitions of OTLP.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::Notify;

use crate::sidecar::Sidecar;
use crate::support::{Answer, Scripted, ask, closed_port, connect, until};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Reads requests of OTLP on stdin, each behind its length in four bytes, and writes them as JSON.
const READER: &str = "
import base64, json, struct, sys
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
data = sys.stdin.buffer.read()
requests = []
while data:
    size, = struct.unpack('>I', data[:4])
    request = ExportTraceServiceRequest.FromString(data[4:4 + size])
    assert not request._unknown_fields if hasattr(request, '_unknown_fields') else True
    requests.append(MessageToDict(request))
    data = data[4 + size:]
print(json.dumps(requests))
";

/// A collector that gives each request the answer that a test has set.
struct Collector {
    server: Scripted,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
    answer: Arc<Mutex<&'static str>>,
    hangs_up: Arc<Notify>,
}

const TAKEN: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";
const LATER: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
const NEVER: &str = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
/// An answer that refuses one span: `partial_success { rejected_spans: 1 }`.
const ALL_BUT_ONE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\n\x02\x08\x01";

impl Collector {
    async fn start() -> Self {
        let (bodies, answer) = (
            Arc::<Mutex<Vec<Vec<u8>>>>::default(),
            Arc::new(Mutex::new(TAKEN)),
        );
        let hangs_up = Arc::new(Notify::new());
        let (into, says, ends) = (
            Arc::clone(&bodies),
            Arc::clone(&answer),
            Arc::clone(&hangs_up),
        );
        let server = Scripted::start(move |_, mut stream| {
            let (into, says, ends) = (Arc::clone(&into), Arc::clone(&says), Arc::clone(&ends));
            async move {
                loop {
                    let body = tokio::select! {
                        body = request(&mut stream) => body,
                        () = ends.notified() => None,
                    };
                    let Some(body) = body else { break };
                    into.lock().expect("no panic").push(body);
                    let answer = *says.lock().expect("no panic");
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
            }
        })
        .await;
        Self {
            server,
            bodies,
            answer,
            hangs_up,
        }
    }

    fn says(&self, answer: &'static str) {
        *self.answer.lock().expect("no panic") = answer;
    }

    fn requests(&self) -> usize {
        self.bodies.lock().expect("no panic").len()
    }

    /// Every request so far, as JSON.
    async fn read(&self) -> Value {
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv-peers/bin/python");
        let mut reader = Command::new(python)
            .args(["-c", READER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`make peers` has made it");
        let mut given = Vec::new();
        for body in &*self.bodies.lock().expect("no panic") {
            let size = u32::try_from(body.len()).expect("it is small");
            given.extend_from_slice(&size.to_be_bytes());
            given.extend_from_slice(body);
        }
        let mut stdin = reader.stdin.take().expect("it is piped");
        stdin.write_all(&given).await.expect("it reads");
        drop(stdin);
        let out = reader.wait_with_output().await.expect("it ends");
        assert!(out.status.success());
        serde_json::from_slice(&out.stdout).expect("JSON")
    }

    /// Every span so far.
    async fn spans(&self) -> Vec<Value> {
        let requests = self.read().await;
        let mut spans = Vec::new();
        for request in requests.as_array().expect("a list") {
            let resource = &request["resourceSpans"][0];
            assert_eq!(text(&resource["resource"], "service.name"), "tidegate-test");
            let of_one = &resource["scopeSpans"][0];
            assert_eq!(of_one["scope"]["name"], "tidegate");
            spans.extend(of_one["spans"].as_array().expect("spans").iter().cloned());
        }
        spans
    }
}

/// Reads one POST of OTLP.
async fn request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut read = Vec::new();
    let head = loop {
        if let Some(at) = read.windows(4).position(|it| it == b"\r\n\r\n") {
            break at + 4;
        }
        let mut more = [0; 4096];
        match stream.read(&mut more).await {
            Ok(count @ 1..) => read.extend_from_slice(&more[..count]),
            _ => return None,
        }
    };
    let text = String::from_utf8(read[..head].to_vec())
        .expect("ASCII")
        .to_lowercase();
    assert!(text.starts_with("post /v1/traces http/1.1\r\n"), "{text}");
    assert!(
        text.contains("content-type: application/x-protobuf\r\n"),
        "{text}"
    );
    let (_, length) = text.split_once("content-length: ").expect("a length");
    let length: usize = length.split("\r\n").next()?.parse().expect("a number");
    let mut body = read.split_off(head);
    let had = body.len();
    body.resize(length, 0);
    stream.read_exact(&mut body[had..]).await.ok()?;
    Some(body)
}

/// A text among the attributes of a resource, a span, or an event.
fn text(of: &Value, key: &str) -> String {
    value(of, key)["stringValue"]
        .as_str()
        .unwrap_or_else(|| panic!("no {key} in {of}"))
        .to_owned()
}

fn value<'a>(of: &'a Value, key: &str) -> &'a Value {
    let attributes = of["attributes"].as_array().expect("attributes");
    let found = attributes.iter().find(|it| it["key"] == key);
    &found.unwrap_or_else(|| panic!("no {key} in {of}"))["value"]
}

fn event<'a>(span: &'a Value, name: &str) -> &'a Value {
    let events = span["events"].as_array().expect("events");
    let found = events.iter().find(|it| it["name"] == name);
    found.unwrap_or_else(|| panic!("no event {name} in {span}"))
}

fn nanos(of: &Value, key: &str) -> u64 {
    of[key]
        .as_str()
        .expect("a number in quotes")
        .parse()
        .expect("a number")
}

/// Bytes, which JSON has in base 64, as hexadecimal digits.
fn hexadecimal(of: &Value) -> String {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(of.as_str().expect("bytes"));
    bytes
        .expect("base 64")
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

async fn service() -> Scripted {
    Scripted::start(|_, mut stream| async move {
        let mut request = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut request).await {
            let head = String::from_utf8_lossy(&request[..read]).into_owned();
            let given = head
                .lines()
                .find(|line| line.to_lowercase().starts_with("traceparent"));
            let given = given.unwrap_or_default();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{given}",
                given.len()
            );
            if stream.write_all(answer.as_bytes()).await.is_err() {
                break;
            }
        }
    })
    .await
}

fn config(service: &Scripted, collector: impl std::fmt::Display, trace: &str) -> String {
    format!(
        "[[listen]]\nname = \"web\"\nbind = \"127.0.0.1:0\"\n[backend]\nkind = \"http\"\nhttp = \"http://{}\"\n\
         [queue]\npostpone = \"in_turn\"\n[limits]\nper_window = \"total:2\"\nwindow = \"500ms\"\nmax_wait = \"5s\"\n\
         [admin]\nbind = \"127.0.0.1:0\"\n\
         [trace]\notlp = \"http://{collector}\"\nservice = \"tidegate-test\"\n{trace}\n",
        service.addr
    )
}

fn get(flags: &str) -> String {
    format!(
        "GET /x HTTP/1.1\r\nHost: t\r\nConnection: close\r\ntraceparent: 00-{TRACE}-{PARENT}-{flags}\r\n\r\n"
    )
}

async fn sent(sidecar: &Sidecar) -> f64 {
    sidecar.metric("tidegate_spans_sent_total").await
}

async fn lost(sidecar: &Sidecar, reason: &str) -> f64 {
    let (_, metrics) = sidecar.get("/metrics").await;
    let name = format!("tidegate_spans_lost_total{{reason=\"{reason}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.map_or(0.0, |it| it.parse().expect("a number"))
}

/// Waits for a figure of the sidecar.
async fn reaches(sidecar: &Sidecar, what: &str, figure: f64) {
    let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
    loop {
        let now = match what {
            "sent" => sent(sidecar).await,
            reason => lost(sidecar, reason).await,
        };
        if now >= figure {
            assert!((now - figure).abs() < 0.5, "{what} is {now}");
            return;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{what} is {now}, not {figure}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_sampled_call_becomes_a_span_with_its_queue_limit_and_backend() {
    let (service, collector) = (service().await, Collector::start().await);
    let sidecar = Sidecar::start(&config(&service, collector.server.addr, "")).await;
    let addr = sidecar.listener("web").await;
    for flags in ["00", "02"] {
        let answer = ask(addr, get(flags)).await;
        assert!(
            answer.ends_with(&format!("traceparent: 00-{TRACE}-{PARENT}-{flags}")),
            "{answer}"
        );
    }
    // Without a header, and with a bad one.
    ask(addr, get("01").replace("traceparent", "x-other")).await;
    ask(addr, get("0g")).await;
    // Two that leave at once, and a third that waits for a window.
    while sidecar
        .metric("tidegate_window_used{limit=\"total\"}")
        .await
        > 0.5
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..2 {
        ask(addr, get("01")).await;
    }
    let waited = Answer::read(ask(addr, get("03")).await.as_bytes());
    let id = waited
        .header("x-tidegate-call")
        .expect("it waited")
        .to_owned();
    // The header is passed on unchanged.
    assert!(
        waited.body.ends_with(&format!("00-{TRACE}-{PARENT}-03")),
        "{waited:?}"
    );
    reaches(&sidecar, "sent", 3.0).await;
    let spans = collector.spans().await;
    assert_eq!(spans.len(), 3, "{spans:?}");
    for span in &spans {
        assert_eq!(hexadecimal(&span["traceId"]), TRACE);
        assert_eq!(hexadecimal(&span["parentSpanId"]), PARENT);
        assert_eq!(
            (&span["name"], &span["kind"]),
            (&"other".into(), &"SPAN_KIND_SERVER".into())
        );
        assert_eq!(text(span, "tidegate.listener"), "web");
        assert!(
            ["passed", "delayed"].contains(&&*text(span, "tidegate.verdict")),
            "{span}"
        );
        assert_eq!(value(span, "http.response.status_code")["intValue"], "200");
        assert_eq!(text(event(span, "backend"), "backend"), "http");
        let times = [
            nanos(span, "startTimeUnixNano"),
            nanos(event(span, "queue"), "timeUnixNano"),
            nanos(event(span, "backend"), "timeUnixNano"),
            nanos(event(span, "answered"), "timeUnixNano"),
            nanos(span, "endTimeUnixNano"),
        ];
        assert!(times.is_sorted(), "{span}");
        assert!(span["status"].is_null(), "{span}");
    }
    let late = spans.iter().find(|span| hexadecimal(&span["spanId"]) == id);
    let late = late.unwrap_or_else(|| panic!("none is {id}: {spans:?}"));
    assert_eq!(text(late, "tidegate.verdict"), "delayed");
    assert_eq!(text(event(late, "limit"), "limit"), "total");
    let held = value(event(late, "limit"), "seconds")["doubleValue"].as_f64();
    assert!(held.is_some_and(|it| it > 0.1 && it < 5.0), "{late}");
}

#[tokio::test]
async fn a_refused_call_is_a_span_with_an_error() {
    let (service, collector) = (service().await, Collector::start().await);
    let text_of = config(&service, collector.server.addr, "").replace("\"5s\"", "\"0s\"");
    let sidecar = Sidecar::start(&text_of.replace("\"500ms\"", "\"1h\"")).await;
    let addr = sidecar.listener("web").await;
    for status in [200, 200, 503] {
        let answer = Answer::read(ask(addr, get("01")).await.as_bytes());
        assert_eq!(answer.status, status, "{answer:?}");
    }
    reaches(&sidecar, "sent", 3.0).await;
    let spans = collector.spans().await;
    let failed: Vec<_> = spans.iter().filter(|it| !it["status"].is_null()).collect();
    assert_eq!(failed.len(), 1, "{spans:?}");
    assert_eq!(failed[0]["status"]["code"], "STATUS_CODE_ERROR");
    assert_eq!(failed[0]["status"]["message"], "deadline_unreachable");
    assert_eq!(text(event(failed[0], "refused"), "limit"), "total");
}

#[tokio::test]
async fn what_a_collector_cannot_take_now_comes_later_and_what_it_refuses_is_lost() {
    let (service, collector) = (service().await, Collector::start().await);
    let fast = |text: &str| text.replace("total:2", "total:1000");
    let text_of = fast(&config(&service, collector.server.addr, ""));
    let sidecar = Sidecar::start(&text_of).await;
    let addr = sidecar.listener("web").await;
    collector.says(LATER);
    ask(addr, get("01")).await;
    sidecar.log().wait(&["does not take spans", "503"]).await;
    assert!(sent(&sidecar).await < 0.5);
    collector.says(TAKEN);
    sidecar.log().wait(&["takes spans again"]).await;
    reaches(&sidecar, "sent", 1.0).await;
    collector.says(NEVER);
    ask(addr, get("01")).await;
    reaches(&sidecar, "refused", 1.0).await;
    collector.says(ALL_BUT_ONE);
    for _ in 0..3 {
        ask(addr, get("01")).await;
    }
    // In one request, or in two that each refuse one.
    until(
        || collector.requests() >= 4,
        || format!("{} requests", collector.requests()),
    )
    .await;
    collector.says(TAKEN);
    // A reload that moves the collector, and one that takes it away.
    let other = Collector::start().await;
    sidecar
        .reload(&fast(&config(&service, other.server.addr, "")))
        .await;
    ask(addr, get("01")).await;
    until(|| other.requests() == 1, || "nothing".to_owned()).await;
    let without = fast(&config(&service, other.server.addr, "")).replace("otlp =", "# otlp =");
    sidecar.reload(&without).await;
    ask(addr, get("01")).await;
    // What is not sampled into a queue cannot be lost from it.
    assert!(lost(&sidecar, "off").await < 0.5);
    assert_eq!(other.requests(), 1);
}

#[tokio::test]
async fn a_dead_collector_and_one_that_hangs_cost_spans_and_no_call() {
    let service = service().await;
    let silent = Scripted::start(|_, stream| async move {
        let _held = stream;
        std::future::pending::<()>().await;
    })
    .await;
    for collector in [closed_port(), silent.addr] {
        let text_of = config(&service, collector, "queue = 4\ntimeout = \"200ms\"");
        let sidecar = Sidecar::start(&text_of.replace("total:2", "total:1000")).await;
        let addr = sidecar.listener("web").await;
        for _ in 0..20 {
            assert!(ask(addr, get("01")).await.starts_with("HTTP/1.1 200"));
        }
        sidecar.log().wait(&["does not take spans"]).await;
        reaches(&sidecar, "queue_full", 16.0).await;
        assert!(sent(&sidecar).await < 0.5);
        // It ends within its bounds although four are left.
        sidecar.signal("TERM");
        let (status, _) = sidecar.ended().await;
        assert_eq!(status.code(), Some(0));
    }
}

#[tokio::test]
async fn the_last_spans_leave_before_the_process_ends() {
    let (service, collector) = (service().await, Collector::start().await);
    let text_of = config(&service, collector.server.addr, "").replace("total:2", "total:1000");
    let sidecar = Sidecar::start(&text_of).await;
    let addr = sidecar.listener("web").await;
    for _ in 0..5 {
        ask(addr, get("01")).await;
    }
    sidecar.signal("TERM");
    let (status, _) = sidecar.ended().await;
    assert_eq!(status.code(), Some(0));
    assert_eq!(collector.spans().await.len(), 5);
}

/// Silent clients hold every connection that is accepted, and yet the collector is reached, and reached again after
/// it has closed its connection.
#[tokio::test]
async fn with_few_descriptors_spans_arrive_and_calls_are_answered() {
    let (service, collector) = (service().await, Collector::start().await);
    let text_of = config(&service, collector.server.addr, "").replace("total:2", "total:1000");
    let sidecar = Sidecar::start_with(&text_of, |binary| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", binary]);
        command
    })
    .await;
    let addr = sidecar.listener("web").await;
    let mut kept = connect(addr).await;
    let mut call = async || {
        let request = get("01").replace("Connection: close\r\n", "");
        kept.write_all(request.as_bytes())
            .await
            .expect("it is taken");
        let mut answer = Vec::new();
        while !answer.ends_with(b"-01") {
            let read = kept.read_buf(&mut answer).await.expect("an answer");
            assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        }
    };
    call().await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(connect(addr).await);
    }
    let open = "tidegate_connections{listener=\"web\"}";
    while sidecar.metric(open).await < sidecar.metric("tidegate_connections_limit").await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    reaches(&sidecar, "sent", 1.0).await;
    collector.hangs_up.notify_waiters();
    for _ in 0..5 {
        call().await;
    }
    reaches(&sidecar, "sent", 6.0).await;
    assert_eq!(collector.spans().await.len(), 6);
}

/// More than have room in the second in which the sender would wait for others.
#[tokio::test]
async fn spans_that_come_quickly_are_sent_as_soon_as_there_are_enough() {
    let (service, collector) = (service().await, Collector::start().await);
    let text_of = config(&service, collector.server.addr, "queue = 1100");
    let sidecar = Sidecar::start(&text_of.replace("total:2", "total:100000")).await;
    let addr = sidecar.listener("web").await;
    let request = get("01").replace("Connection: close\r\n", "");
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let request = request.clone();
        clients.spawn(async move {
            let mut stream = connect(addr).await;
            for _ in 0..100 {
                stream
                    .write_all(request.as_bytes())
                    .await
                    .expect("it is taken");
                let mut answer = Vec::new();
                while !answer.ends_with(b"-01") {
                    assert!(stream.read_buf(&mut answer).await.expect("an answer") > 0);
                }
            }
        });
    }
    clients.join_all().await;
    reaches(&sidecar, "sent", 1600.0).await;
    assert!(lost(&sidecar, "queue_full").await < 0.5);
    let requests = collector.bodies.lock().expect("no panic").len();
    assert!(
        requests < 20,
        "{requests} requests: each has what came meanwhile"
    );
}
