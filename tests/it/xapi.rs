//! XAPI: callers by the user of their session, costs, long polls, and refusals that its clients know.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::raw_http::{Acceptor, Peer, access_line, get};
use crate::sidecar::Sidecar;
use crate::support::{Scripted, closed_port, listens};

const PASSWORD: &str = "right";

/// A server that opens a session for each login with the right password, and answers each in the form that the password asks
/// for. Any other call has its answer.
async fn xapi() -> Scripted {
    Scripted::start(|_, stream| async move {
        let mut peer = Peer::new(stream);
        while let Some(head) = peer.next_head().await {
            let body = peer.body_of(&head).await;
            let body = String::from_utf8(body).expect("UTF-8");
            let is_login = body.contains("login_with_password") && body.contains(PASSWORD);
            let session = if body.contains("root") { "OpaqueRef:of-root" } else { "OpaqueRef:of-other" };
            let (kind, answer) = if body.starts_with('<') {
                let value = if is_login { session } else { "" };
                let answer = format!(
                    "<methodResponse><params><param><value><struct><member><name>Status</name>\
                     <value><string>Success</string></value></member><member><name>Value</name><value>{value}</value>\
                     </member></struct></value></param></params></methodResponse>"
                );
                ("text/xml", answer)
            } else {
                let call: Value = serde_json::from_str(&body).unwrap_or_default();
                let answer = match (is_login, call["jsonrpc"].is_null()) {
                    (true, true) => json!({ "result": { "Status": "Success", "Value": session }, "id": 1 }),
                    (true, false) => json!({ "jsonrpc": "2.0", "result": session, "id": 1 }),
                    (false, _) if body.contains("login") => {
                        json!({ "jsonrpc": "2.0", "error": { "message": "SESSION_AUTHENTICATION_FAILED" }, "id": 1 })
                    }
                    (false, _) => json!({ "jsonrpc": "2.0", "result": "", "id": 1 }),
                };
                ("application/json", answer.to_string())
            };
            let (framing, content) = match body.contains("chunked") {
                true => ("Transfer-Encoding: chunked", format!("{:x}\r\n{answer}\r\n0\r\n\r\n", answer.len())),
                false => ("Content-Length: ", answer.clone()),
            };
            let length = if framing.starts_with('C') { answer.len().to_string() } else { String::new() };
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{framing}{length}\r\n\r\n{content}"))
                .await;
        }
    })
    .await
}

async fn started(backend: SocketAddr, sections: &str) -> (Sidecar, SocketAddr) {
    let backend = format!("kind = \"http\"\nhttp = \"http://{backend}\"\ndialect = \"xapi\"\n");
    let sections =
        format!("[admin]\nbind = \"127.0.0.1:0\"\n[queue]\npostpone = \"in_turn\"\n{sections}");
    let sidecar = Sidecar::start(&listens("", &backend, &sections)).await;
    let addr = sidecar.listener("test").await;
    (sidecar, addr)
}

const LIMITS: &str = "[limits]\nper_window = \"total:1000\"\nledger_lost = \"assume_empty\"\n";

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: t\r\nOriginator: of-head\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Writes a call of a method with its parameters.
type FormOfCall<'a> = &'a dyn Fn(&str, &[&str]) -> String;

/// A call in JSON-RPC, 2.0 or 1.0.
fn in_json(version: Value, method: &str, params: &[&str]) -> String {
    let mut call = json!({ "id": 1, "method": method, "params": params });
    if !version.is_null() {
        call["jsonrpc"] = version;
    }
    post("/jsonrpc", &call.to_string())
}

fn in_xml(method: &str, params: &[&str]) -> String {
    let param = |text: &&str| format!("<param><value><string>{text}</string></value></param>");
    let params: String = params.iter().map(param).collect();
    post(
        "/",
        &format!(
            "<methodCall><methodName>{method}</methodName><params>{params}</params></methodCall>"
        ),
    )
}

/// Asks, and finds the label of the most specific caller of the call, and its user.
struct LatestCall<'a> {
    sidecar: &'a Sidecar,
    next: usize,
}

impl LatestCall<'_> {
    async fn ask(&mut self, addr: SocketAddr, request: String) -> (String, String) {
        let reply = Peer::ask(addr, request).await;
        assert_eq!(reply.status(), 200, "{}", reply.answer.body);
        let (line, next) = access_line(self.sidecar, self.next).await;
        self.next = next;
        let (_, callers) = self.sidecar.get("/v1/callers").await;
        let callers: Value = serde_json::from_str(&callers).expect("JSON");
        let id = &line["caller"];
        let callers = callers["callers"].as_array().expect("a list").iter();
        let caller = callers.clone().find(|it| it["id"] == *id);
        let label = caller.map(|it| it["label"].as_str().unwrap_or_default().to_owned());
        let user = line["user"].as_str().unwrap_or("none").to_owned();
        (label.unwrap_or_default(), user)
    }
}

#[tokio::test]
async fn the_caller_of_a_session_is_the_user_and_the_originator_of_its_login() {
    let backend = xapi().await;
    let callers = r#"
        [callers]
        auto_register = 0
        [[caller]]
        label = "consoles of root"
        match = { user = "root", originator = "console" }
        [[caller]]
        label = "root"
        match = { user = "root" }
    "#;
    let (sidecar, addr) = started(backend.addr, &format!("{LIMITS}{callers}")).await;
    let mut latest = LatestCall {
        sidecar: &sidecar,
        next: 0,
    };
    let two = || json!("2.0");
    let of_root = ["OpaqueRef:of-root", "OpaqueRef:vm"];
    let login =
        |password: &'static str, originator: &'static str| ["root", password, "1.0", originator];
    // A login that fails makes no one known; its own call is that of its client.
    let failed = login("wrong", "console");
    let (_, user) = latest
        .ask(addr, in_json(two(), "session.login_with_password", &failed))
        .await;
    assert_eq!(user, "none");
    let (_, user) = latest
        .ask(addr, in_json(two(), "VM.get_all", &of_root))
        .await;
    assert!(user.starts_with("key:"), "{user}");
    let forms: [(&str, FormOfCall<'_>); 3] = [
        ("2.0", &|method, params| in_json(two(), method, params)),
        ("1.0", &|method, params| {
            in_json(Value::Null, method, params)
        }),
        ("XML", &|method, params| in_xml(method, params)),
    ];
    for (form, made) in forms {
        for password in ["right", "right, chunked"] {
            let (_, user) = latest
                .ask(
                    addr,
                    made("session.login_with_password", &login(password, "console")),
                )
                .await;
            assert_eq!(user, "none", "{form}, {password}");
            let known = ("consoles of root".to_owned(), "root".to_owned());
            let found = latest.ask(addr, made("VM.get_all", &of_root)).await;
            assert_eq!(found, known, "{form}, {password}");
            // Outside of RPC.
            let found = latest
                .ask(addr, get("/rrd_updates?session_id=OpaqueRef:of-root", ""))
                .await;
            assert_eq!(found, known, "{form}, {password}");
            // It leaves as itself.
            let found = latest
                .ask(addr, made("session.logout", &of_root[..1]))
                .await;
            assert_eq!(found, known, "{form}, {password}");
            let (_, user) = latest.ask(addr, made("VM.get_all", &of_root)).await;
            assert!(user.starts_with("key:"), "{form}, {password}: {user}");
        }
    }
    // Without an originator it is that of the head.
    let no_originator = ["root", PASSWORD];
    latest
        .ask(
            addr,
            in_json(two(), "session.login_with_password", &no_originator),
        )
        .await;
    let found = latest
        .ask(addr, in_json(two(), "VM.get_all", &of_root))
        .await;
    assert_eq!(found, ("root".to_owned(), "root".to_owned()));
    // A reload forgets nothing.
    sidecar.signal("HUP");
    sidecar.log().wait(&["config reloaded"]).await;
    let found = latest
        .ask(addr, in_json(two(), "VM.get_all", &of_root))
        .await;
    assert_eq!(found, ("root".to_owned(), "root".to_owned()));
    // No client can log in as the key of another caller.
    let key = "key:0011223344556677";
    let of_other = ["OpaqueRef:of-other"];
    latest
        .ask(
            addr,
            in_json(two(), "session.login_with_password", &[key, PASSWORD]),
        )
        .await;
    let (_, user) = latest
        .ask(addr, in_json(two(), "VM.get_all", &of_other))
        .await;
    assert!(user.starts_with("key:") && user != key, "{user}");
    let log = sidecar.log().lines().join("\n");
    assert!(
        !log.contains("OpaqueRef") && !log.contains(PASSWORD),
        "{log}"
    );
}

#[tokio::test]
async fn a_call_costs_what_xapi_says_unless_the_config_says_otherwise() {
    let backend = xapi().await;
    let costs = "[costs]\nfunctions = { \"VM.clone\" = 3, \"VM.get_all\" = 2 }\n";
    let (sidecar, addr) = started(backend.addr, &format!("{LIMITS}{costs}")).await;
    let (_, costs) = sidecar.get("/v1/costs").await;
    let costs: Value = serde_json::from_str(&costs).expect("JSON");
    let of = |function: &str| costs["functions"][function].as_f64();
    assert_eq!(
        (
            of("VM.start"),
            of("VM.clone"),
            of("VM.get_all"),
            of("VM.suspend")
        ),
        (Some(100.0), Some(3.0), Some(2.0), Some(400.0)),
        "{costs}"
    );
    // What goes on behind its answer is the same work.
    let mut next = 0;
    for (method, function, tokens) in [
        ("VM.start", "VM.start", 100.0),
        ("Async.VM.start", "VM.start", 100.0),
        ("InternalAsync.VM.start", "VM.start", 100.0),
        ("Async.VM.clone", "VM.clone", 3.0),
        ("VM.get_name_label", "VM.get_name_label", 1.0),
    ] {
        Peer::ask(addr, in_xml(method, &["OpaqueRef:1"])).await;
        let (line, after) = access_line(&sidecar, next).await;
        next = after;
        assert_eq!(
            (&line["function"], line["tokens"].as_f64()),
            (&json!(function), Some(tokens)),
            "{line}"
        );
    }
}

/// Clients poll all the time, so they would hold every slot.
#[tokio::test]
async fn a_long_poll_takes_no_slot_unless_the_config_has_a_line_for_it() {
    let limits = "[limits]\nwindow = \"0s\"\noutstanding = 1\nledger_lost = \"assume_empty\"\n";
    let poll = in_xml("event.from", &["OpaqueRef:1"]);
    let backend = Acceptor::start().await;
    let (_sidecar, addr) = started(backend.addr, limits).await;
    let _poll = Peer::sending(addr, &poll).await;
    let _held = backend.call().await;
    let _call = Peer::sending(addr, in_xml("VM.start", &["OpaqueRef:1"])).await;
    let _called = backend.call().await;
    let backend = Acceptor::start().await;
    let costs = format!("{limits}[costs]\nfunctions = {{ \"event.from\" = 1 }}\n");
    let (sidecar, addr) = started(backend.addr, &costs).await;
    let _poll = Peer::sending(addr, &poll).await;
    let _held = backend.call().await;
    let _call = Peer::sending(addr, in_xml("VM.start", &["OpaqueRef:1"])).await;
    sidecar.reaches("tidegate_queue_depth", 1.0).await;
}

#[tokio::test]
async fn while_xapi_is_down_its_clients_hear_that_it_still_boots() {
    let limits = format!("{LIMITS}max_wait = \"50ms\"\n");
    let (_sidecar, addr) = started(closed_port(), &limits).await;
    let reply = Peer::ask(addr, in_json(json!("2.0"), "VM.start", &["OpaqueRef:1"])).await;
    let answer: Value = serde_json::from_str(&reply.answer.body).expect("JSON");
    assert_eq!(answer["error"]["message"], "HOST_STILL_BOOTING", "{answer}");
    let reply = Peer::ask(addr, in_xml("VM.start", &["OpaqueRef:1"])).await;
    let body = &reply.answer.body;
    assert!(body.contains("<value>HOST_STILL_BOOTING</value>"), "{body}");
}
