//! The API of callers and rate limits, asked over real HTTP on loopback, before a sidecar that
//! only remembers.

mod bad_input;
mod commands;
mod document;
mod every_field;
pub(crate) mod fake;
mod real;
mod restart;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::fake::Fake;
use crate::admin::serve;
use crate::support::{Answer, connect};

/// A served admin address.
struct Served {
    address: SocketAddr,
    fake: Arc<Fake>,
    _stop: DropGuard,
}

impl Served {
    async fn start() -> Self {
        Self::with(None).await
    }

    async fn with(token: Option<&str>) -> Self {
        let fake = Arc::new(Fake::new());
        let stop = CancellationToken::new();
        let (shown, callers) = (Arc::clone(&fake), Arc::clone(&fake));
        let (address, _) = serve(Ipv4Addr::LOCALHOST.into(), token, shown, callers, &stop).await;
        Self {
            address,
            fake,
            _stop: stop.drop_guard(),
        }
    }

    /// Sends a request with these headers and this body, byte for byte.
    async fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        send(self.address, method, path, headers, body).await
    }

    /// Sends JSON, as it should be sent.
    async fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = body.to_string();
        self.send(method, path, JSON, body.as_bytes()).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", b"").await
    }

    /// The JSON that is answered with this status.
    #[track_caller]
    fn told(answer: Answer, status: u16) -> Value {
        assert_eq!(answer.status, status, "{answer:?}");
        answer.json()
    }
}

/// Sends a request with these headers and this body, byte for byte.
async fn send(address: SocketAddr, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
    let (mut reader, mut writer) = connect(address).await.into_split();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let body = body.to_vec();
    let sending = tokio::spawn(async move {
        // An early refusal need not read the whole request.
        let _ = writer.write_all(head.as_bytes()).await;
        let _ = writer.write_all(&body).await;
        writer
    });
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).await.expect("answered");
    drop(sending.await.expect("no panic"));
    Answer::read(&bytes)
}

const JSON: &str = "Content-Type: application/json\r\n";

fn monitoring() -> Value {
    json!({"label": "Monitoring App X", "groups": ["monitoring"],
           "match": {"ip": "10.1.2.0/24", "user_agent": "", "originator": ""}})
}

#[tokio::test]
async fn a_caller_is_made_shown_changed_and_removed() {
    let served = Served::start().await;
    let answer = served.ask("POST", "/v1/callers", &monitoring()).await;
    assert_eq!(answer.header("location"), Some("/v1/callers/c3"));
    let made = Served::told(answer, 201);
    assert_eq!(made["id"], "c3");
    assert_eq!(made["label"], "Monitoring App X");
    assert_eq!(made["match"], json!([{"ip": "10.1.2.0/24"}]));
    assert_eq!(made["groups"], json!(["monitoring"]));
    assert_eq!(
        [&made["auto"], &made["rate_limit"], &made["last_access"]],
        [&json!(false), &Value::Null, &Value::Null]
    );

    let patch = json!({"label": "X", "notes": "room 4", "groups": []});
    let changed = Served::told(served.ask("PATCH", "/v1/callers/c3", &patch).await, 200);
    assert_eq!(
        [&changed["label"], &changed["notes"], &changed["groups"]],
        [&json!("X"), &json!("room 4"), &json!([])]
    );
    let shown = Served::told(served.get("/v1/callers/c3").await, 200);
    assert_eq!(shown, changed);

    let answer = served.send("DELETE", "/v1/callers/c3", "", b"").await;
    assert_eq!((answer.status, &*answer.body), (204, ""));
    let gone = Served::told(served.get("/v1/callers/c3").await, 404);
    assert_eq!(
        gone,
        json!({"error": "UNKNOWN", "what": "caller", "id": "c3"})
    );
}

#[tokio::test]
async fn callers_are_listed_sorted_filtered_and_by_the_page() {
    let served = Served::start().await;
    served.ask("POST", "/v1/callers", &monitoring()).await;
    let ids = async |query: &str| {
        let list = Served::told(served.get(&format!("/v1/callers?{query}")).await, 200);
        let callers = list["callers"].as_array().expect("a list");
        let ids = callers.iter().map(|it| it["id"].as_str().expect("an id"));
        (ids.collect::<Vec<_>>().join(" "), list["total"].clone())
    };
    assert_eq!(ids("").await, ("c0 c1 c2 c3".into(), json!(4)));
    assert_eq!(ids("auto=true").await, ("c2".into(), json!(1)));
    assert_eq!(ids("auto=false").await, ("c0 c1 c3".into(), json!(3)));
    assert_eq!(ids("group=monitoring").await, ("c3".into(), json!(1)));
    assert_eq!(ids("sort=label").await.0, "c3 c1 c0 c2");
    assert_eq!(ids("sort=last_access").await.0, "c2 c0 c1 c3");
    assert_eq!(ids("sort=tokens_5m&limit=2").await.0, "c0 c1");
    assert_eq!(
        ids("sort=calls_24h&offset=1&limit=2").await,
        ("c1 c2".into(), json!(4))
    );
    assert_eq!(ids("limit=0").await.0, "");
}

#[tokio::test]
async fn callers_are_merged_and_their_patterns_become_alternatives() {
    let served = Served::start().await;
    served.ask("POST", "/v1/callers", &monitoring()).await;
    let merge = json!({"into": "c3", "from": ["c2"], "label": "X"});
    let merged = Served::told(served.ask("POST", "/v1/callers/merge", &merge).await, 200);
    assert_eq!(merged["merged"], json!(["c2"]));
    assert_eq!(merged["label"], "X");
    assert_eq!(
        merged["match"],
        json!([{"ip": "10.1.2.0/24"}, {"ip": "10.9.9.9", "user_agent": "curl/8.5"}])
    );
    assert_eq!(served.get("/v1/callers/c2").await.status, 404);
}

#[tokio::test]
async fn usage_says_what_was_called_what_it_cost_and_what_waited() {
    let served = Served::start().await;
    let usage = Served::told(served.get("/v1/callers/c2/usage").await, 200);
    let spans = json!({"5m": 149, "1h": 149, "24h": 149, "total": 149});
    assert_eq!(usage["calls"], spans);
    assert_eq!(usage["tokens"]["1h"], 149.0);
    assert_eq!(usage["delayed"]["5m"], 12);
    let p50 = usage["delayed"]["wait_ms_p50"].as_f64().expect("a number");
    assert!((157.0..203.0).contains(&p50), "{p50}");
    assert_eq!(usage["rejected"]["24h"], 1);
    assert_eq!(
        usage["top"]["1h"],
        json!([{"call": "guest_list", "calls": 149, "tokens": 149.0}])
    );
    let last = usage["last_access"].as_str().expect("a time");
    assert!(last.ends_with('Z') && last.starts_with("2026-"), "{last}");

    let table = Served::told(served.get("/v1/usage?group=polling&window=24h").await, 200);
    assert_eq!(table["window"], "24h");
    assert_eq!(
        table["callers"],
        json!([{"id": "c1", "label": "poller", "calls": 149, "tokens": 149.0,
                "delayed": 12, "rejected": 1}])
    );
    let all = Served::told(served.get("/v1/usage").await, 200);
    assert_eq!(
        (&all["window"], &all["group"]),
        (&json!("1h"), &Value::Null)
    );
    assert_eq!(all["callers"].as_array().expect("a list").len(), 3);
}

#[tokio::test]
async fn a_limit_is_suggested_from_what_was_used_and_made_of_it() {
    let served = Served::start().await;
    let path = "/v1/callers/c2/suggest?window=1h&headroom=1.5";
    let suggested = Served::told(served.get(path).await, 200);
    assert_eq!(
        [&suggested["fill"], &suggested["burst"]],
        [&json!(3.73), &json!(68.0)]
    );
    // A poller's 30 tokens would hold most of them.
    assert_eq!(suggested["nearest_profile"], "batch");
    assert_eq!(suggested["basis"]["slots"], 12);
    assert_eq!(suggested["basis"]["peak_5s_tokens"], 40.0);
    assert_eq!(suggested["basis"]["would_have_delayed_slots"], 0);

    let derive = json!({"caller": "c2", "window": "1h", "headroom": 1.5});
    let new = json!({"label": "from usage", "derive": derive});
    let made = Served::told(served.ask("POST", "/v1/rate-limits", &new).await, 201);
    assert_eq!(
        [&made["fill"], &made["burst"]],
        [&json!(3.73), &json!(68.0)]
    );
}

#[tokio::test]
async fn a_rate_limit_is_made_changed_in_place_attached_and_removed() {
    let served = Served::start().await;
    let new = json!({"label": "monitoring", "profile": "poller", "callers": ["c2"],
                     "mode": "enforce", "on_excess": "delay", "order": "fair"});
    let answer = served.ask("POST", "/v1/rate-limits", &new).await;
    assert_eq!(answer.header("location"), Some("/v1/rate-limits/r1"));
    let made = Served::told(answer, 201);
    for (field, value) in [
        ("id", json!("r1")),
        ("burst", json!(30.0)),
        ("fill", json!(3.0)),
        ("tokens", json!(30.0)),
        ("queued", json!(0)),
        ("callers", json!(["c2"])),
        ("profile", json!("poller")),
        ("mode", json!("enforce")),
        ("on_excess", json!("delay")),
        ("order", json!("fair")),
        ("settle", Value::Null),
        ("deadline", json!("ordinary")),
        ("exempt", json!(false)),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    let caller = Served::told(served.get("/v1/callers/c2").await, 200);
    assert_eq!(caller["rate_limit"], "r1");

    let patch = json!({"fill": 5, "mode": "observe", "on_excess": "reject", "order": "fifo",
                       "settle": true, "deadline": "none", "label": "m"});
    let changed = Served::told(served.ask("PATCH", "/v1/rate-limits/r1", &patch).await, 200);
    for (field, value) in [
        ("burst", json!(30.0)),
        ("fill", json!(5.0)),
        ("profile", Value::Null),
        ("mode", json!("observe")),
        ("on_excess", json!("reject")),
        ("order", json!("fifo")),
        ("settle", json!(true)),
        ("deadline", json!("none")),
        ("label", json!("m")),
    ] {
        assert_eq!(changed[field], value, "{field}");
    }

    // `c1` is in the config, and only the config can change it.
    let attached = "/v1/rate-limits/r1/callers/c0";
    let limit = Served::told(served.send("PUT", attached, "", b"").await, 200);
    assert_eq!(limit["callers"], json!(["c0", "c2"]));
    assert_eq!(served.send("DELETE", attached, "", b"").await.status, 204);
    let again = Served::told(served.send("DELETE", attached, "", b"").await, 404);
    assert_eq!(
        again,
        json!({"error": "UNKNOWN", "what": "caller", "id": "c0"})
    );

    let list = Served::told(served.get("/v1/rate-limits").await, 200);
    assert_eq!(list["rate_limits"].as_array().expect("a list").len(), 1);
    let path = "/v1/rate-limits/r1";
    assert_eq!(served.send("DELETE", path, "", b"").await.status, 204);
    assert_eq!(served.get(path).await.status, 404);
    let caller = Served::told(served.get("/v1/callers/c2").await, 200);
    assert_eq!(caller["rate_limit"], Value::Null);
}

#[tokio::test]
async fn an_exempt_limit_has_no_figures_until_it_is_given_some() {
    let served = Served::start().await;
    let new = json!({"label": "free", "exempt": true});
    let made = Served::told(served.ask("POST", "/v1/rate-limits", &new).await, 201);
    assert_eq!(
        [&made["exempt"], &made["burst"], &made["tokens"]],
        [&json!(true), &Value::Null, &Value::Null]
    );
    let path = "/v1/rate-limits/r1";
    let half = Served::told(served.ask("PATCH", path, &json!({"burst": 5})).await, 409);
    assert_eq!(half["field"], "fill");
    let whole = json!({"burst": 5, "fill": 0.2});
    let limited = Served::told(served.ask("PATCH", path, &whole).await, 200);
    assert_eq!(
        [&limited["exempt"], &limited["fill"]],
        [&json!(false), &json!(0.2)]
    );
}

#[tokio::test]
async fn costs_are_replaced_as_a_whole() {
    let served = Served::start().await;
    let before = Served::told(served.get("/v1/costs").await, 200);
    let expected = json!({"default": 1.0, "unit_seconds": 0.1, "settle": false,
                          "functions": {"guest_start": 20.0}});
    assert_eq!(before, expected);
    let new = json!({"default": 2.0, "unit_seconds": 0.5, "settle": true,
                     "functions": {"guest_list": 0.0}});
    let after = Served::told(served.ask("PUT", "/v1/costs", &new).await, 200);
    assert_eq!(after, new);
    assert_eq!(Served::told(served.get("/v1/costs").await, 200), new);

    let suggested = Served::told(served.get("/v1/costs/suggested").await, 200);
    assert_eq!(suggested["costs"][0]["suggested"], 25.0);
    let profiles = Served::told(served.get("/v1/profiles").await, 200);
    assert_eq!(profiles["profiles"][1]["name"], "poller");
}

#[tokio::test]
async fn a_dry_run_says_who_it_would_be_what_it_would_cost_and_changes_nothing() {
    let served = Served::start().await;
    served.ask("POST", "/v1/callers", &monitoring()).await;
    let limit = json!({"label": "m", "burst": 12.5, "fill": 1, "callers": ["c3"]});
    served.ask("POST", "/v1/rate-limits", &limit).await;
    let before = served.fake.everything();
    let question = json!({"ip": "10.1.2.9", "user_agent": "curl/8", "call": "guest_start"});
    let told = Served::told(served.ask("POST", "/v1/classify", &question).await, 200);
    assert_eq!(
        told,
        json!({"matches": [{"caller": "c3", "label": "Monitoring App X", "exact_fields": 0,
                            "literal_bits": 24, "limited": true}],
               "charged": "r1", "exempt": false, "cost": 20.0, "tokens": 12.5, "wait_ms": 0.0})
    );
    let unknown = Served::told(served.ask("POST", "/v1/classify", &json!({})).await, 200);
    assert_eq!(unknown["matches"][0]["caller"], "c0");
    assert_eq!(unknown["cost"], 1.0);
    assert_eq!(served.fake.everything(), before);
}

#[tokio::test]
async fn queues_limiters_and_requests_are_dumped_as_json_and_csv() {
    let served = Served::start().await;
    let limit = json!({"label": "m", "burst": 12.5, "fill": 1, "callers": ["c2"]});
    served.ask("POST", "/v1/rate-limits", &limit).await;
    let json = Served::told(served.get("/v1/debug/queues").await, 200);
    assert_eq!(json["queues"][0]["waits_for"], "total");
    let limiters = Served::told(served.get("/v1/debug/limiters").await, 200);
    assert_eq!(limiters["limiters"][0]["label"], "m");
    let requests = Served::told(served.get("/v1/debug/requests").await, 200);
    assert_eq!(requests["requests"][0]["state"], "waiting");

    let csv = async |path: &str| {
        let answer = served.send("GET", path, "Accept: text/csv\r\n", b"").await;
        let kind = answer.header("content-type").expect("a type");
        assert!(kind.starts_with("text/csv"), "{kind}");
        answer.body
    };
    assert_eq!(
        csv("/v1/debug/queues").await,
        "class,call,waits_for,waiting\r\npolling,guest_list,total,290\r\nuser,guest_start,,1\r\n"
    );
    let limiters = csv("/v1/debug/limiters").await;
    assert!(
        limiters.contains("r1,m,bucket,false,12.5,1,,,,,,12.5,enforce,delay,fair,1,0,0,0,0,0\r\n")
    );
    let requests = csv("/v1/debug/requests").await;
    let row = "waiting,guest_list,polling,\"'=nova, \"\"poll\"\"\",c1,,2026-";
    assert!(requests.contains(row), "{requests}");
}

#[tokio::test]
async fn a_call_that_ended_lately_is_explained() {
    let served = Served::start().await;
    let path = format!("/v1/calls/{}", fake::CALL);
    assert_eq!(path, "/v1/calls/0123456789abcdef");
    let told = Served::told(served.get(&path).await, 200);
    assert_eq!(
        told["held"],
        json!([
            {"cause": "limit", "limit": "rate_limit:monitoring", "ms": 1200.0},
            {"cause": "turn", "limit": null, "ms": 300.0}
        ])
    );
    for id in ["0123456789abcdee", "1", "0123456789ABCDEFF", "xyz", "%ff"] {
        let told = Served::told(served.get(&format!("/v1/calls/{id}")).await, 404);
        assert_eq!(
            (&told["error"], &told["what"]),
            (&json!("UNKNOWN"), &json!("call"))
        );
    }
}
