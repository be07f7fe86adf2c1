//! Calls that are named in their messages: limits by function, callers by key, refusals that clients of the protocol read.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::raw_http::{Acceptor, Peer, access_line, get};
use crate::sidecar::Sidecar;
use crate::support::{Scripted, listens};

/// A service that answers every POST.
async fn service() -> Scripted {
    Scripted::start(|_, stream| async move {
        let mut peer = Peer::new(stream);
        while let Some(head) = peer.next_head().await {
            peer.body_of(&head).await;
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await;
        }
    })
    .await
}

/// A sidecar in which the function `slow` may go twice in ten minutes, and calls wait for a moment only.
async fn started(backend: SocketAddr, backend_lines: &str, routes: &str) -> (Sidecar, SocketAddr) {
    let sections = format!(
        r#"
        [admin]
        bind = "127.0.0.1:0"
        [limits]
        per_window = "total:1000, slow:2"
        window = "10m"
        max_wait = "50ms"
        ledger_lost = "assume_empty"
        [queue]
        postpone = "in_turn"
        {routes}
        "#
    );
    let backend = format!("kind = \"http\"\nhttp = \"http://{backend}\"\n{backend_lines}");
    let sidecar = Sidecar::start(&listens("", &backend, &sections)).await;
    let addr = sidecar.listener("test").await;
    (sidecar, addr)
}

fn post(path: &str, fields: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{fields}\r\n{body}"
    )
}

async fn call(addr: SocketAddr, body: &Value) -> crate::raw_http::Reply {
    Peer::ask(addr, post("/rpc", "", &body.to_string())).await
}

const ROUTE: &str = r#"
    [[route]]
    method = "POST"
    path = "/rpc"
    function_from = { json = "/method" }
    caller_from = { json = "/params/0" }
    refuse_as = "jsonrpc"
"#;

#[tokio::test]
async fn a_limit_is_that_of_the_method_and_its_refusal_has_the_id_of_the_request() {
    let backend = service().await;
    let (sidecar, addr) = started(backend.addr, "", ROUTE).await;
    let slow = json!({ "jsonrpc": "2.0", "id": 7, "method": "slow", "params": ["secret-key"] });
    let fast = json!({ "jsonrpc": "2.0", "id": "a\"b", "method": "fast", "params": [] });
    call(addr, &slow).await.is(200, "ok");
    call(addr, &slow).await.is(200, "ok");
    call(addr, &fast).await.is(200, "ok");
    let refused = call(addr, &slow).await;
    assert_eq!(refused.status(), 200);
    let answer: Value = serde_json::from_str(&refused.answer.body).expect("JSON");
    assert_eq!(
        (&answer["jsonrpc"], &answer["id"]),
        (&json!("2.0"), &json!(7))
    );
    assert_eq!(answer["error"]["code"], -32005, "{answer}");
    assert_eq!(
        answer["error"]["data"]["limit"], "function:slow",
        "{answer}"
    );
    assert!(
        answer["error"]["data"]["retryAfterMs"].as_u64() > Some(1000),
        "{answer}"
    );
    // The names of methods are labels, and the key of a caller is nowhere.
    let (line, next) = access_line(&sidecar, 0).await;
    assert_eq!(line["function"], "slow", "{line}");
    let user = line["user"].as_str().expect("a user");
    assert!(user.starts_with("key:") && user.len() == 20, "{user}");
    let (_, next) = access_line(&sidecar, next).await;
    let (line, _) = access_line(&sidecar, next).await;
    assert_eq!(
        (&line["function"], &line["user"]),
        (&json!("fast"), &Value::Null),
        "{line}"
    );
    let (_, metrics) = sidecar.get("/metrics").await;
    assert!(metrics.contains("function=\"fast\""), "{metrics}");
    let (_, callers) = sidecar.get("/v1/callers").await;
    for text in [&metrics, &callers, &sidecar.log().lines().join("\n")] {
        assert!(!text.contains("secret-key"), "{text}");
    }
}

#[tokio::test]
async fn a_message_that_parsers_read_differently_meets_the_limits_of_every_function() {
    let backend = service().await;
    let (sidecar, addr) = started(backend.addr, "", ROUTE).await;
    let unreadable = [
        r#"{"method":"fast","method":"slow"}"#,
        r#"{"method":"fast","Method":"slow"}"#,
        r#"{"method":"fast"} {"method":"slow"}"#,
    ];
    for (number, body) in unreadable.into_iter().enumerate() {
        let reply = Peer::ask(addr, post("/rpc", "", body)).await;
        // Two have drawn what `slow` has.
        let is_refused = reply.answer.body.contains("-32005");
        assert_eq!(is_refused, number >= 2, "{body}: {}", reply.answer.body);
    }
    call(addr, &json!({ "method": "fast" })).await.is(200, "ok");
    let (line, _) = access_line(&sidecar, 0).await;
    assert_eq!(line["function"], "*", "{line}");
}

/// Else a client could send any number of calls at the price of one.
#[tokio::test]
async fn an_unreadable_message_that_may_be_a_batch_is_refused() {
    let backend = service().await;
    let (_sidecar, addr) = started(backend.addr, "", ROUTE).await;
    let large = format!("[{}]", vec![r#"{"method":"fast"}"#; 1001].join(","));
    let messages = [
        ("", "\u{feff}[{\"method\":\"fast\"}]"),
        (
            "",
            r#"[{"method":"fast"},{"method":"fast","method":"slow"}]"#,
        ),
        ("", r#"[[{"method":"fast"}]]"#),
        ("", &large),
        ("Content-Encoding: gzip\r\n", r#"{"method":"fast"}"#),
        (
            "Content-Type: text/plain; charset = utf-7\r\n",
            r#"{"method":"fast"}"#,
        ),
        ("", ""),
    ];
    for (fields, body) in messages {
        let mut request = post("/rpc", fields, body);
        if fields.starts_with("Content-Type") {
            request = request.replacen("Content-Type: application/json\r\n", "", 1);
        }
        let reply = Peer::ask(addr, request).await;
        let answer: Value = serde_json::from_str(&reply.answer.body).expect("JSON");
        assert_eq!(answer["error"]["code"], -32600, "{body}: {answer}");
        assert!(
            answer.to_string().contains("the number of its calls"),
            "{answer}"
        );
    }
}

/// The head of a request says who it is, also where its body says nothing.
#[tokio::test]
async fn the_caller_of_an_unreadable_message_is_known_from_its_head() {
    let backend = service().await;
    let (sidecar, addr) = started(backend.addr, "dialect = \"openai\"", "").await;
    for body in [r#"{"model":"fast"}"#, r#"{"model":"fast","model":"slow"}"#] {
        let request = post("/v1/completions", "Authorization: Bearer sk-one\r\n", body);
        Peer::ask(addr, request).await.is(200, "ok");
    }
    let (sound, next) = access_line(&sidecar, 0).await;
    let (unreadable, _) = access_line(&sidecar, next).await;
    assert_eq!(unreadable["function"], "*", "{unreadable}");
    assert_eq!(sound["user"], unreadable["user"], "{unreadable}");
}

#[tokio::test]
async fn a_message_that_cannot_be_read_is_refused_if_the_route_says_so() {
    let backend = service().await;
    let route = format!("{ROUTE}unreadable = \"refuse\"\nbatch = \"refuse\"\n");
    let (_sidecar, addr) = started(backend.addr, "", &route).await;
    let twice = r#"{"method":"fast","method":"slow"}"#;
    let reply = Peer::ask(addr, post("/rpc", "", twice)).await;
    let answer: Value = serde_json::from_str(&reply.answer.body).expect("JSON");
    assert_eq!(
        (&answer["id"], &answer["error"]["code"]),
        (&Value::Null, &json!(-32600))
    );
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(
        message.contains("so its function is not known"),
        "{message}"
    );
    let batch = call(addr, &json!([{ "method": "fast" }])).await;
    assert!(
        batch.answer.body.contains("an array of calls is refused"),
        "{}",
        batch.answer.body
    );
}

#[tokio::test]
async fn a_batch_draws_what_its_calls_draw() {
    let backend = service().await;
    let (_sidecar, addr) = started(backend.addr, "", ROUTE).await;
    let batch = |calls: usize| Value::from(vec![json!({ "method": "slow", "id": 1 }); calls]);
    // Three can never go in one window.
    let refused = call(addr, &batch(3)).await;
    assert!(
        refused.answer.body.contains("never_possible"),
        "{}",
        refused.answer.body
    );
    call(addr, &batch(2)).await.is(200, "ok");
    let refused = call(addr, &json!({ "method": "slow", "id": 2 })).await;
    assert!(
        refused.answer.body.contains("\"id\":2"),
        "{}",
        refused.answer.body
    );
    // One of different functions meets the limits of each.
    let mixed = json!([{ "method": "fast" }, { "method": "faster" }]);
    let refused = call(addr, &mixed).await;
    assert!(
        refused.answer.body.contains("-32005"),
        "{}",
        refused.answer.body
    );
}

#[tokio::test]
async fn the_methods_of_xapi_are_functions_on_both_of_its_protocols() {
    let backend = service().await;
    let (sidecar, addr) = started(backend.addr, "dialect = \"xapi\"", "").await;
    let xml = "<?xml version=\"1.0\"?><methodCall><methodName>VM.start</methodName><params>\
               <param><value><string>OpaqueRef:1</string></value></param></params></methodCall>";
    Peer::ask(addr, post("/", "", xml)).await.is(200, "ok");
    let json =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "VM.start", "params": ["OpaqueRef:1"] });
    Peer::ask(addr, post("/jsonrpc", "", &json.to_string()))
        .await
        .is(200, "ok");
    let (of_xml, next) = access_line(&sidecar, 0).await;
    let (of_json, _) = access_line(&sidecar, next).await;
    assert_eq!(
        (&of_xml["function"], &of_json["function"]),
        (&json!("VM.start"), &json!("VM.start"))
    );
    assert_eq!(of_xml["user"], of_json["user"], "one session is one caller");
    let slow = xml.replace("VM.start", "slow");
    for _ in 0..2 {
        Peer::ask(addr, post("/RPC2", "", &slow))
            .await
            .is(200, "ok");
    }
    let refused = Peer::ask(addr, post("/RPC2", "", &slow)).await;
    let body = &refused.answer.body;
    assert_eq!(refused.status(), 200, "{body}");
    assert!(
        body.contains("<value>Failure</value>") && body.contains("<value>TOO_BUSY</value>"),
        "{body}"
    );
    let old = json!({ "id": 9, "method": "slow", "params": [] });
    let refused = Peer::ask(addr, post("/jsonrpc", "", &old.to_string())).await;
    let answer: Value = serde_json::from_str(&refused.answer.body).expect("JSON");
    assert_eq!(answer["id"], 9, "{answer}");
    assert_eq!(
        answer["result"]["ErrorDescription"][0], "TOO_BUSY",
        "{answer}"
    );
    let new = json!({ "jsonrpc": "2.0", "id": 10, "method": "slow", "params": [] });
    let refused = Peer::ask(addr, post("/jsonrpc", "", &new.to_string())).await;
    let answer: Value = serde_json::from_str(&refused.answer.body).expect("JSON");
    assert_eq!(answer["error"]["message"], "TOO_BUSY", "{answer}");
}

#[tokio::test]
async fn a_refusal_in_xml_rpc_is_a_fault() {
    let backend = service().await;
    let route = "[[route]]\nmethod = \"POST\"\npath = \"/rpc\"\nrefuse_as = \"xmlrpc\"\n\
                 function_from = { xml = \"methodName\" }\n";
    let (_sidecar, addr) = started(backend.addr, "", route).await;
    let call = "<methodCall><methodName>slow</methodName></methodCall>";
    for _ in 0..2 {
        Peer::ask(addr, post("/rpc", "", call)).await.is(200, "ok");
    }
    let refused = Peer::ask(addr, post("/rpc", "", call)).await;
    let body = &refused.answer.body;
    assert!(
        body.contains("<methodResponse><fault>") && body.contains("<int>503</int>"),
        "{body}"
    );
}

#[tokio::test]
async fn a_tool_of_mcp_is_a_function_and_its_refusal_is_a_result() {
    let backend = service().await;
    let (_sidecar, addr) = started(backend.addr, "dialect = \"mcp\"", "").await;
    let tool = |name: &str| {
        let call = json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": { "name": name } });
        post("/mcp", "", &call.to_string())
    };
    for _ in 0..2 {
        Peer::ask(addr, tool("slow")).await.is(200, "ok");
    }
    let refused = Peer::ask(addr, tool("slow")).await;
    let answer: Value = serde_json::from_str(&refused.answer.body).expect("JSON");
    assert_eq!(
        (&answer["id"], &answer["result"]["isError"]),
        (&json!(3), &json!(true)),
        "{answer}"
    );
    Peer::ask(addr, tool("fast")).await.is(200, "ok");
    let list = json!({ "jsonrpc": "2.0", "id": 4, "method": "tools/list" });
    Peer::ask(addr, post("/mcp", "", &list.to_string()))
        .await
        .is(200, "ok");
}

/// A client opens it for as long as it lives, so it would hold a slot for ever.
#[tokio::test]
async fn the_stream_of_an_mcp_client_takes_no_slot() {
    let backend = Acceptor::start().await;
    let lines = format!(
        "kind = \"http\"\nhttp = \"http://{}\"\ndialect = \"mcp\"\n",
        backend.addr
    );
    let sections = "[admin]\nbind = \"127.0.0.1:0\"\n[limits]\nper_window = \"total:1000\"\noutstanding = 1\n\
                    ledger_lost = \"assume_empty\"\n[queue]\npostpone = \"in_turn\"\n";
    let sidecar = Sidecar::start(&listens("", &lines, sections)).await;
    let addr = sidecar.listener("test").await;
    let _stream = Peer::sending(addr, get("/mcp", "Accept: text/event-stream\r\n")).await;
    let (mut stream, head) = backend.call().await;
    assert!(head.starts_with("GET /mcp "), "{head}");
    stream
        .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    let tool =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "fast" } });
    let _call = Peer::sending(addr, post("/mcp", "", &tool.to_string())).await;
    let (_, head) = backend.call().await;
    assert!(head.starts_with("POST /mcp "), "{head}");
}

/// The message counts under the limits of each function, also in the next process.
#[tokio::test]
async fn an_unreadable_message_at_the_backend_counts_under_every_limit_after_a_crash() {
    let backend = Acceptor::start().await;
    let lines = format!(
        "kind = \"http\"\nhttp = \"http://{}\"\nafter_crash = \"60s\"\n",
        backend.addr
    );
    let sections = format!(
        "[admin]\nbind = \"127.0.0.1:0\"\n[limits]\nper_window = \"total:1000, slow:1\"\nwindow = \"10m\"\n\
         window_stamp = \"replied\"\nmax_wait = \"50ms\"\nledger_lost = \"assume_empty\"\n\
         [queue]\npostpone = \"in_turn\"\n{ROUTE}"
    );
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let text = listens("", &lines, &sections);
    let start = || Sidecar::start_in(Arc::clone(&dir), &text, |binary| Command::new(binary));
    let first = start().await;
    let addr = first.listener("test").await;
    let twice = r#"{"method":"fast","method":"slow"}"#;
    let _running = Peer::sending(addr, post("/rpc", "", twice)).await;
    let (_held, _) = backend.call().await;
    first.signal("KILL");
    first.exited().await;
    let second = start().await;
    let addr = second.listener("test").await;
    let refused = call(addr, &json!({ "method": "slow", "id": 1 })).await;
    assert!(
        refused.answer.body.contains("function:slow"),
        "{}",
        refused.answer.body
    );
}

#[tokio::test]
async fn a_path_whose_spelling_decides_between_two_routes_is_refused() {
    let backend = service().await;
    let routes = r#"
        [[route]]
        method = "POST"
        path = "/api"
        function_from = { json = "/method" }
        [[route]]
        method = "POST"
        path = "/{any}"
        function_from = { json = "/name" }
    "#;
    let (_sidecar, addr) = started(backend.addr, "", routes).await;
    let body = json!({ "method": "slow", "name": "fast" }).to_string();
    Peer::ask(addr, post("/api", "", &body)).await.is(200, "ok");
    let odd = Peer::ask(addr, post("/%61pi", "", &body)).await;
    assert_eq!(odd.status(), 400, "{}", odd.answer.body);
}

#[tokio::test]
async fn a_model_is_a_function_and_an_api_key_a_caller() {
    let backend = service().await;
    let (sidecar, addr) = started(backend.addr, "dialect = \"openai\"", "").await;
    let ask = |key: &str| {
        let body = json!({ "model": "slow", "messages": [] }).to_string();
        post(
            "/v1/chat/completions",
            &format!("Authorization: Bearer {key}\r\n"),
            &body,
        )
    };
    Peer::ask(addr, ask("sk-one")).await.is(200, "ok");
    Peer::ask(addr, ask("sk-two")).await.is(200, "ok");
    let refused = Peer::ask(addr, ask("sk-one")).await;
    assert_eq!(refused.status(), 503);
    let answer: Value = serde_json::from_str(&refused.answer.body).expect("JSON");
    assert_eq!(answer["error"]["code"], "deadline_unreachable", "{answer}");
    let (one, next) = access_line(&sidecar, 0).await;
    let (two, next) = access_line(&sidecar, next).await;
    let (again, _) = access_line(&sidecar, next).await;
    assert_ne!(one["user"], two["user"]);
    assert_eq!(one["user"], again["user"]);
    assert!(!sidecar.log().lines().join("\n").contains("sk-"));
}
