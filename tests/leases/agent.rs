//! The lease agent, asked as any language would ask it.

use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use tidegate_lease_server::agent::{Agent, AgentOptions, RunningAgent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::lease_mock::Mock;

/// Longer than anything here takes; only a mistake waits for it.
const BOUND: Duration = Duration::from_secs(20);

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    options: AgentOptions,
}

struct Stage {
    mock: Mock,
    agent: RunningAgent,
    _serving: JoinSet<()>,
}

/// An agent that asks this server.
pub(crate) async fn agent_of(server: &str, more: &[&str]) -> RunningAgent {
    let given = ["agent", "--server", server, "--bind", "127.0.0.1:0"];
    let command = Command::parse_from(given.iter().chain(more));
    Agent::start(command.options).await.expect("it starts")
}

async fn sent(agent: &RunningAgent, head: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(agent.addr()).await.expect("it listens");
    let request = format!(
        "{head} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        agent.addr(),
        body.len(),
    );
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    stream
}

/// The answer of the agent: status and body; null if there is none.
pub(crate) async fn asked(agent: &RunningAgent, head: &str, body: &str) -> (u16, Value) {
    read(sent(agent, head, body).await).await
}

impl Stage {
    async fn new(capacity: f64) -> Self {
        Self::with(capacity, &[]).await
    }

    async fn with(capacity: f64, more: &[&str]) -> Self {
        let mock = Mock::new();
        mock.lock().capacity = capacity;
        let (server, serving) = mock.serve().await;
        Self {
            mock,
            agent: agent_of(&server, more).await,
            _serving: serving,
        }
    }

    async fn send(&self, head: &str, body: &str) -> TcpStream {
        sent(&self.agent, head, body).await
    }

    /// Status and body; null if there is none.
    async fn ask(&self, head: &str, body: &str) -> (u16, Value) {
        read(self.send(head, body).await).await
    }

    async fn status(&self, head: &str) -> u16 {
        self.ask(head, "").await.0
    }

    /// The status of a request with exactly this head, except that it closes.
    async fn status_of(&self, head: &str) -> u16 {
        let addr = self.agent.addr();
        let mut stream = TcpStream::connect(addr).await.expect("it listens");
        let request = format!("{head}Connection: close\r\n\r\n");
        let sent = stream.write_all(request.as_bytes()).await;
        sent.expect("it reads");
        read(stream).await.0
    }

    /// A field of a resource.
    async fn field(&self, id: &str, field: &str) -> Value {
        let (_, all) = self.ask("GET /v1/resources", "").await;
        let all = all.as_array().expect("a list");
        let of_id = all.iter().find(|resource| resource["id"] == id);
        of_id.map_or(Value::Null, |resource| resource[field].clone())
    }

    /// Asks until one field of one resource is so.
    async fn until(&self, id: &str, field: &str, expected: Value) {
        let waited = timeout(BOUND, async {
            while self.field(id, field).await != expected {
                tokio::task::yield_now().await;
            }
        });
        assert!(
            waited.await.is_ok(),
            "{field} of {id} never became {expected}"
        );
    }
}

async fn read(mut stream: TcpStream) -> (u16, Value) {
    let mut answer = String::new();
    timeout(BOUND, stream.read_to_string(&mut answer))
        .await
        .expect("in time")
        .expect("it answers in text");
    let status = answer[9..12].parse().expect("a status");
    let body = answer.split_once("\r\n\r\n").expect("a head").1;
    let body = serde_json::from_str(body).unwrap_or(Value::Null);
    (status, body)
}

#[tokio::test]
async fn operations_go_at_the_leased_rate() {
    let stage = Stage::new(20.0).await;
    let wants = json!({"wants": 100}).to_string();
    assert_eq!(stage.ask("PUT /v1/rate/r/wants", &wants).await.0, 204);
    assert_eq!(stage.status("POST /v1/rate/r/wait").await, 200);
    let began = Instant::now();
    let (status, body) = stage
        .ask("POST /v1/rate/r/wait?cost=10&timeout=5", "")
        .await;
    assert_eq!(status, 200);
    assert!(body["waited_seconds"].is_number(), "{body}");
    assert_eq!(stage.status("POST /v1/rate/r/wait").await, 200);
    // The expensive one is paid for by the next: ten operations at twenty a second, from when the
    // one before it was; both may have been saved up for.
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(400), "{took:?}");
    assert_eq!(stage.mock.wants("r").first(), Some(&100.0));
}

#[tokio::test]
async fn an_id_may_have_every_character_and_is_one_segment() {
    let stage = Stage::new(20.0).await;
    assert_eq!(
        stage.status("POST /v1/rate/a%2Fb%20%C3%BC%2525/wait").await,
        200
    );
    assert_eq!(stage.field("a/b ü%25", "kind").await, "rate");
    assert_eq!(stage.status("POST /v1/rate/a/b/wait").await, 404);
    assert_eq!(stage.status("POST /v1/rate/%FF/wait").await, 400);
}

#[tokio::test]
async fn a_place_is_given_back_once_by_its_token_or_by_its_time() {
    let stage = Stage::new(1.0).await;
    let (status, entered) = stage.ask("POST /v1/gauge/g%2F1/enter", "").await;
    assert_eq!((status, &entered["ttl_seconds"]), (200, &json!(60.0)));
    let token = entered["token"].as_str().expect("a token");
    let (status, refused) = stage
        .ask("POST /v1/gauge/g%2F1/enter?timeout=0.05", "")
        .await;
    assert_eq!(
        (status, &refused["error"]),
        (504, &json!("no capacity within 0.05 s"))
    );

    assert_eq!(
        stage
            .status(&format!("PUT /v1/gauge/g%2F1/{token}?ttl=30"))
            .await,
        204
    );
    assert_eq!(
        stage
            .status(&format!("DELETE /v1/gauge/other/{token}"))
            .await,
        404
    );
    assert_eq!(stage.field("g/1", "held").await, 1);
    assert_eq!(
        stage
            .status(&format!("DELETE /v1/gauge/g%2F1/{token}"))
            .await,
        204
    );
    assert_eq!(stage.field("g/1", "held").await, 0);
    assert_eq!(
        stage
            .status(&format!("DELETE /v1/gauge/g%2F1/{token}"))
            .await,
        404
    );
    assert_eq!(
        stage.status(&format!("PUT /v1/gauge/g%2F1/{token}")).await,
        404
    );

    let (_, entered) = stage.ask("POST /v1/gauge/g%2F1/enter?ttl=0.3", "").await;
    let token = entered["token"].as_str().expect("a token").to_owned();
    // It is not returned: the next one waits until it expires.
    let (status, next) = stage.ask("POST /v1/gauge/g%2F1/enter", "").await;
    assert_eq!(status, 200);
    assert!(
        next["waited_seconds"].as_f64().expect("a number") > 0.1,
        "{next}"
    );
    assert_eq!(
        stage
            .status(&format!("DELETE /v1/gauge/g%2F1/{token}"))
            .await,
        404
    );
    assert_eq!(stage.field("g/1", "held").await, 1);
}

#[tokio::test]
async fn a_client_that_disconnects_while_it_waits_leaves_the_line() {
    let stage = Stage::new(1.0).await;
    let (_, entered) = stage.ask("POST /v1/gauge/g/enter", "").await;
    let token = entered["token"].as_str().expect("a token");
    let gone = stage.send("POST /v1/gauge/g/enter", "").await;
    stage.until("g", "waiting", json!(1)).await;
    let next = stage.send("POST /v1/gauge/g/enter", "").await;
    stage.until("g", "waiting", json!(2)).await;
    drop(gone);
    stage.until("g", "waiting", json!(1)).await;
    assert_eq!(
        stage.status(&format!("DELETE /v1/gauge/g/{token}")).await,
        204
    );
    assert_eq!(read(next).await.0, 200);
    assert_eq!(stage.field("g", "held").await, 1);
}

#[tokio::test]
async fn a_wrong_request_is_reported_and_changes_nothing() {
    let stage = Stage::new(1.0).await;
    for (head, body, status) in [
        ("POST /v1/rate/r/wait?cost=-1", "", 400),
        ("POST /v1/rate/r/wait?cost=NaN", "", 400),
        ("POST /v1/rate/r/wait?timeout=301", "", 400),
        ("POST /v1/rate/r/wait?timeout=-1", "", 400),
        ("POST /v1/rate/r/wait?tiemout=1", "", 400),
        ("POST /v1/rate/r/wait?ttl=1", "", 400),
        ("POST /v1/gauge/g/enter?ttl=0", "", 400),
        ("POST /v1/gauge/g/enter?ttl=1e9", "", 400),
        ("POST /v1/gauge/g/enter?cost=1", "", 400),
        ("PUT /v1/rate/r/wants", "", 400),
        ("PUT /v1/rate/r/wants", "{}", 400),
        ("PUT /v1/rate/r/wants", "{\"wants\":\"5\"}", 400),
        ("PUT /v1/rate/r/wants", "{\"wants\":1,\"more\":1}", 400),
        ("GET /v1/rate/r/wait", "", 405),
        ("GET /", "", 404),
        ("DELETE /v1/gauge/g/00", "", 404),
    ] {
        let (found, answer) = stage.ask(head, body).await;
        assert_eq!(found, status, "{head}");
        assert!(
            answer["error"].as_str().is_some_and(|text| text.len() > 10),
            "{head}: {answer}"
        );
    }
    let (_, all) = stage.ask("GET /v1/resources", "").await;
    assert_eq!(all, json!([]));
    assert_eq!(
        stage.ask("PUT /v1/rate/r/wants", "{\"wants\":-1}").await.0,
        400
    );
    let large = "x".repeat(2000);
    assert_eq!(stage.ask("PUT /v1/rate/r/wants", &large).await.0, 413);
    let long = "x".repeat(1025);
    assert_eq!(
        stage.status(&format!("POST /v1/rate/{long}/wait")).await,
        400
    );
    assert_eq!(stage.status("POST /v1/gauge/g/enter").await, 200);
    assert_eq!(stage.status("POST /v1/rate/g/wait").await, 409);
}

#[tokio::test]
async fn no_web_page_is_answered() {
    let stage = Stage::new(1.0).await;
    let page = "POST /v1/rate/r/wait HTTP/1.1\r\nOrigin: http://evil.example\r\nX: y";
    let rebound = "POST http://evil.example/v1/rate/r/wait HTTP/1.1\r\nHost: evil.example\r\nX: y";
    for head in [page, rebound] {
        let host = if head == page {
            "Host: localhost\r\n"
        } else {
            ""
        };
        let head = format!("{head}\r\n{host}Content-Length: 0\r\n");
        assert_eq!(stage.status_of(&head).await, 403);
    }
}

#[tokio::test]
async fn a_browser_that_names_another_site_is_not_answered_and_an_allowed_name_is() {
    let stage = Stage::with(1.0, &["--allowed-host", "agent.example"]).await;
    for (headers, expected) in [
        ("Host: agent.example\r\n", 200),
        ("Host: agent.example:9192\r\n", 200),
        ("Host: other.example\r\n", 403),
        ("Host: localhost\r\nSec-Fetch-Site: cross-site\r\n", 403),
        ("Host: localhost\r\nSec-Fetch-Site: same-site\r\n", 403),
        (
            "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n\
             Sec-Fetch-Dest: document\r\n",
            403,
        ),
        ("Host: localhost\r\nSec-Fetch-Site: none\r\n", 200),
    ] {
        let head = format!("GET /v1/resources HTTP/1.1\r\n{headers}");
        assert_eq!(stage.status_of(&head).await, expected, "{headers}");
    }
}

#[tokio::test]
async fn idle_resources_are_released_and_at_the_end_all() {
    let stage = Stage::with(5.0, &["--forget-after", "200ms"]).await;
    assert_eq!(stage.status("POST /v1/rate/idle/wait").await, 200);
    let (_, entered) = stage.ask("POST /v1/gauge/held/enter", "").await;
    assert!(entered["token"].is_string());
    stage.until("idle", "kind", Value::Null).await;
    assert_eq!(stage.field("held", "held").await, 1);
    let waited = timeout(BOUND, async {
        while stage.mock.lock().released != [["idle"]] {
            tokio::task::yield_now().await;
        }
    });
    assert!(waited.await.is_ok(), "{:?}", stage.mock.lock().released);
    let mut metrics = String::new();
    let mut stream = stage.send("GET /metrics", "").await;
    stream.read_to_string(&mut metrics).await.expect("text");
    assert!(
        metrics.contains("doorman_client_requests{method=\"ReleaseCapacity\""),
        "{metrics}"
    );
    let mock = stage.mock.clone();
    stage.agent.stop().await;
    assert_eq!(mock.lock().released, [["idle"], ["held"]]);
}

#[tokio::test]
async fn only_programs_on_this_machine_can_ask() {
    let given = ["agent", "--server", "a:1", "--bind", "0.0.0.0:0"];
    let refused = Agent::start(Command::parse_from(given).options).await;
    let error = refused.expect_err("it is open to all").to_string();
    assert_eq!(error, "0.0.0.0:0 is not a loopback address");
    for wrong in [
        &["agent"][..],
        &["agent", "--server", "nowhere"],
        &["agent", "--server", "a:1", "--safe-capacity", "-2"],
    ] {
        assert!(Command::try_parse_from(wrong).is_err(), "{wrong:?}");
    }
}
