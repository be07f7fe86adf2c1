//! A local model server that dies when too many generations run at once, behind a sidecar of fifteen lines.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_lab::model_server::{ModelServer, ModelServerOptions, RunningModelServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::raw_http::access_lines;
use crate::rpc_clients::node;
use crate::sidecar::Sidecar;
use crate::support::{PATIENCE, connect, listens};

const AT_ONCE: u32 = 4;
const TOKENS: u64 = 25;
const KEYS: usize = 5;
const CLIENTS_OF_KEY: usize = 10;

fn server() -> RunningModelServer {
    let options = ModelServerOptions {
        http: SocketAddr::from(([127, 0, 0, 1], 0)),
        break_at_once: AT_ONCE,
        recover: Duration::from_secs(600),
        token: Duration::from_millis(10),
        ..ModelServerOptions::default()
    };
    ModelServer::start(options).expect("it listens")
}

async fn sidecar(server: &RunningModelServer, limits: &str) -> (Sidecar, SocketAddr) {
    let backend = format!(
        "kind = \"http\"\nhttp = \"http://{}\"\ndialect = \"openai\"\nafter_close = \"100ms\"",
        server.addr()
    );
    let sections = format!(
        "[limits]\nwindow = \"0s\"\noutstanding = {AT_ONCE}\nmax_wait = \"5m\"\n{limits}\n\
         [queue]\npostpone = \"in_turn\"\n[admin]\nbind = \"127.0.0.1:0\""
    );
    let sidecar = Sidecar::start(&listens("", &backend, &sections)).await;
    let addr = sidecar.listener("test").await;
    (sidecar, addr)
}

/// A request for a stream of this many tokens.
fn request(key: usize, user: &str, tokens: u64) -> String {
    let body = json!({
        "model": "stand-in",
        "stream": true,
        "stream_options": { "include_usage": true },
        "max_tokens": tokens,
        "user": user,
        "messages": [{ "role": "user", "content": "hello" }],
    });
    let body = body.to_string();
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer sk-{key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// How a client ended.
enum ClientEnd {
    /// The number of tokens that it got, and what the server says that it has cost.
    Answered(usize, Value),
    /// It left in the middle, at this moment.
    Left(Instant),
}

/// Asks for a stream, and reads it to its end, or leaves after this many tokens.
async fn ask(addr: SocketAddr, asked: String, leaves_after: Option<usize>) -> ClientEnd {
    let mut client = connect(addr).await;
    client.write_all(asked.as_bytes()).await.expect("it reads");
    let mut reply = Vec::new();
    loop {
        let read = client.read_buf(&mut reply).await;
        let text = String::from_utf8_lossy(&reply);
        assert!(matches!(read, Ok(1..)), "{read:?} after {text}");
        let tokens = text.matches("\"content\":\"token \"").count();
        if leaves_after.is_some_and(|after| tokens >= after) {
            return ClientEnd::Left(Instant::now());
        }
        if text.ends_with("0\r\n\r\n") {
            let mut events = text.lines().filter_map(|line| line.strip_prefix("data: "));
            let last = events.rfind(|data| data.starts_with('{'));
            let last: Value = serde_json::from_str(last.expect("it has events")).expect("JSON");
            return ClientEnd::Answered(tokens, last["usage"]["total_tokens"].clone());
        }
    }
}

#[tokio::test]
async fn half_of_fifty_clients_leave_and_the_server_lives_and_the_others_are_answered_in_turn() {
    let server = server();
    let (sidecar, addr) = sidecar(&server, "").await;
    // Four calls fill the server until all others wait.
    let mut clients = JoinSet::new();
    for nth in 0..AT_ONCE {
        let asked = request(99, &format!("first-{nth}"), 600);
        clients.spawn(async move { (String::new(), ask(addr, asked, None).await) });
    }
    sidecar
        .reaches("tidegate_outstanding", f64::from(AT_ONCE))
        .await;
    // One key after the other, so that the order of arrival would not be fair.
    for key in 0..KEYS {
        for client in 0..CLIENTS_OF_KEY {
            let user = format!("{key}-{client}");
            let asked = request(key, &user, TOKENS);
            let leaves_after = (client % 2 == 0).then_some(3);
            clients.spawn(async move { (user, ask(addr, asked, leaves_after).await) });
        }
        let waiting = ((key + 1) * CLIENTS_OF_KEY) as f64;
        sidecar.reaches("tidegate_queue_depth", waiting).await;
    }
    let (mut answered, mut left) = (0, BTreeMap::new());
    while let Some(ended) = clients.join_next().await {
        match ended.expect("it does not panic") {
            (user, ClientEnd::Answered(tokens, cost)) if !user.is_empty() => {
                assert_eq!((tokens as u64, cost), (TOKENS, json!(TOKENS + 3)), "{user}");
                answered += 1;
            }
            (_, ClientEnd::Answered(..)) => {}
            (user, ClientEnd::Left(at)) => drop(left.insert(user, at)),
        }
    }
    assert_eq!((answered, left.len()), (25, 25));
    sidecar.reaches("tidegate_outstanding", 0.0).await;
    let counts = server.statistics();
    assert_eq!(
        (counts.died, counts.begun, counts.answered),
        (0, 54, 29),
        "{counts:?}"
    );
    assert!(counts.at_once_peak <= AT_ONCE, "{counts:?}");
    // No token for a client that has left for half a second.
    let generations = server.generations();
    for generation in &generations {
        if let Some(at) = left.get(&generation.user) {
            let after = generation.last_token.saturating_duration_since(*at);
            assert!(
                after < Duration::from_millis(500),
                "{generation:?}: {after:?}"
            );
        }
    }
    // The keys take turns. Calls that were admitted together have no order.
    let lines = access_lines(&sidecar, 54).await;
    let micros = |line: &Value| {
        let arrived = line["arrived_ns"].as_f64().expect("a number") / 1e3;
        arrived + line["queue_ms"].as_f64().expect("a number") * 1e3
    };
    let admitted = lines
        .iter()
        .map(|line| (micros(line), line["user"].to_string()));
    let mut admitted: Vec<_> = admitted.collect();
    admitted.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let turns = &admitted[AT_ONCE as usize..];
    let mut begun: BTreeMap<&str, u32> = turns.iter().map(|(_, user)| (&**user, 0)).collect();
    assert_eq!(begun.len(), KEYS);
    for (nth, (at, user)) in turns.iter().enumerate() {
        *begun.get_mut(&**user).expect("it is one of them") += 1;
        let next = turns.get(nth + 1);
        if next.is_none_or(|(next, _)| next - at > 2.0) {
            let (least, most) = (begun.values().min(), begun.values().max());
            let apart = most.expect("five") - least.expect("five");
            assert!(apart <= 1, "{begun:?}");
        }
    }
}

#[tokio::test]
async fn half_of_the_streams_of_the_openai_client_of_node_are_left_and_the_server_lives() {
    let server = server();
    let (sidecar, addr) = sidecar(&server, "").await;
    let mut client = node();
    client.args(["leaving", &addr.port().to_string(), "30"]);
    let output = tokio::time::timeout(PATIENCE, client.stderr(Stdio::piped()).output()).await;
    let output = output.expect("in time").expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    let ends: Result<Value, _> = serde_json::from_slice(&output.stdout);
    let ends = ends.unwrap_or_else(|error| panic!("{error}: {told}"));
    assert_eq!(ends, json!({ "answered": 15, "left": 15 }), "{told}");
    sidecar.reaches("tidegate_outstanding", 0.0).await;
    let counts = server.statistics();
    assert_eq!((counts.died, counts.begun), (0, 30), "{counts:?}");
    assert!(counts.at_once_peak <= AT_ONCE, "{counts:?}");
}

/// A bucket for all keys together, and the most that a call may cost as its reservation.
const TOKENS_A_SECOND: &str = r#"
    [[bucket]]
    name = "tokens"
    burst = 120
    fill = 200
    [[caller]]
    label = "keys"
    match = { user = "key:*" }
    rate_limit = "tokens"
    [[route]]
    method = "POST"
    path = "/v1/chat/completions"
    function_from = { json = "/model" }
    caller_from = { header = "Authorization" }
    refuse_as = "openai"
    reserve = { json = "/max_tokens", else = 500 }
    cost_from = { json = "/usage/total_tokens" }
"#;

#[tokio::test]
async fn by_the_servers_own_record_no_span_has_more_tokens_than_the_bucket_gives() {
    let server = server();
    let (_sidecar, addr) = sidecar(&server, TOKENS_A_SECOND).await;
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..24 {
        let asked = request(client % KEYS, &format!("{client}"), 30);
        let leaves_after = (client % 3 == 0).then_some(5);
        clients.spawn(ask(addr, asked, leaves_after));
    }
    clients.join_all().await;
    let generations = server.generations();
    assert_eq!(generations.len(), 24);
    // Sixteen whole calls alone would need this.
    let least = (16.0 * 30.0 - 120.0) / 200.0;
    assert!(
        began.elapsed().as_secs_f64() > least,
        "the bucket holds no call"
    );
    for (nth, first) in generations.iter().enumerate() {
        let mut tokens = 0;
        for generation in &generations[nth..] {
            tokens += generation.tokens;
            let span = generation.begun.duration_since(first.begun).as_secs_f64();
            // A call may take a moment from its departure to the server.
            let most = 120.0 + 200.0 * (span + 0.1);
            assert!(tokens as f64 <= most, "{tokens} of {most} in {span} s");
        }
    }
}

#[tokio::test]
async fn without_a_limit_the_server_dies() {
    let server = server();
    let mut clients = JoinSet::new();
    for nth in 0..=AT_ONCE {
        let asked = request(0, &format!("{nth}"), TOKENS);
        let addr = server.addr();
        clients.spawn(async move {
            let mut client = connect(addr).await;
            client.write_all(asked.as_bytes()).await.expect("it reads");
            let mut reply = Vec::new();
            // A reset, or an end in the middle.
            let _ = client.read_to_end(&mut reply).await;
        });
    }
    while clients.join_next().await.is_some() {}
    let counts = server.statistics();
    assert_eq!((counts.died, counts.answered), (1, 0), "{counts:?}");
}
