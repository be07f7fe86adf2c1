//! Answered changes survive any end of the real process.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::JSON;
use crate::sidecar::{Sidecar, TIDEGATE, run};
use crate::support::{Answer, listens, until};

fn config(state: &Path) -> String {
    let sections = format!(
        r#"
        [limits]
        per_window = "total:1000"
        max_wait = "0s"
        [callers]
        state_file = "{}"
        [admin]
        bind = "127.0.0.1:0"
        "#,
        state.display()
    );
    listens("", "socket = \"127.0.0.1:1\"", &sections)
}

/// Sends a request. The process may be gone by then.
async fn ask(sidecar: &Sidecar, method: &str, path: &str, body: &Value) -> Option<Answer> {
    let mut stream = TcpStream::connect(sidecar.admin).await.ok()?;
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{JSON}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.ok()?;
    (!bytes.is_empty()).then(|| Answer::read(&bytes))
}

/// Everything that was made, by its input.
async fn everything(sidecar: &Sidecar) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (path, list) in [
        ("/v1/callers?limit=10000", "callers"),
        ("/v1/rate-limits", "rate_limits"),
    ] {
        let answer = ask(sidecar, "GET", path, &Value::Null).await;
        let answer = answer.expect("it is there").json();
        for mut it in answer[list].as_array().expect("a list").clone() {
            // Levels are not kept.
            for level in ["tokens", "pace"] {
                it.as_object_mut().expect("an object").remove(level);
            }
            all.insert(it["id"].to_string(), it);
        }
    }
    let costs = ask(sidecar, "GET", "/v1/costs", &Value::Null).await;
    all.insert("costs".into(), costs.expect("it is there").json());
    all
}

#[tokio::test]
async fn everything_that_was_made_is_there_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("callers.json");
    let sidecar = Sidecar::start(&config(&state)).await;
    let limit = json!({"label": "m", "burst": 0.1, "fill": 3.7, "mode": "observe",
                       "on_excess": "reject", "order": "fifo", "settle": false,
                       "deadline": "none", "callers": ["c0", "c1"]});
    let every = json!({"user": "a\\*", "originator": "b*", "ip": "2001:db8::/32",
                       "user_agent": "größe \"x\"", "listener": "test"});
    for (method, path, body) in [
        (
            "POST",
            "/v1/callers",
            json!({"label": "A", "match": [every, {"ip": "10.*"}],
                "groups": ["g", "h"], "notes": "one\ntwo", "weight": 7}),
        ),
        (
            "POST",
            "/v1/callers",
            json!({"label": "B", "match": {"user": "b"}}),
        ),
        ("POST", "/v1/rate-limits", limit),
        (
            "POST",
            "/v1/rate-limits",
            json!({"exempt": true, "callers": ["c2"]}),
        ),
        (
            "POST",
            "/v1/rate-limits",
            json!({"label": "p", "kind": "paced", "rate": 0.3, "ratio": 1.7}),
        ),
        (
            "PATCH",
            "/v1/callers/c0",
            json!({"notes": "nothing", "groups": ["h"]}),
        ),
        (
            "PUT",
            "/v1/costs",
            json!({"default": 0.3, "unit_seconds": 0.25, "settle": true,
                   "functions": {"guest_start": 1e6, "guest_list": 0}}),
        ),
    ] {
        let answer = ask(&sidecar, method, path, &body).await.expect("answered");
        assert!(answer.status < 300, "{body} {answer:?}");
    }
    let before = everything(&sidecar).await;
    sidecar.signal("TERM");
    assert!(sidecar.ended().await.0.success());

    let again = Sidecar::start(&config(&state)).await;
    assert_eq!(everything(&again).await, before);
    // A number is given once.
    let new = json!({"label": "C", "match": {"user": "c"}});
    let made = ask(&again, "POST", "/v1/callers", &new).await;
    assert_eq!(made.expect("answered").json()["id"], "c3");
    let made = ask(&again, "POST", "/v1/rate-limits", &json!({"exempt": true})).await;
    assert_eq!(made.expect("answered").json()["id"], "r4");
    // Not even that of one that is gone.
    for path in ["/v1/callers/c3", "/v1/rate-limits/r4"] {
        let answer = ask(&again, "DELETE", path, &Value::Null).await;
        assert_eq!(answer.expect("answered").status, 204);
    }
    again.signal("KILL");
    again.ended().await;
    let third = Sidecar::start(&config(&state)).await;
    let made = ask(&third, "POST", "/v1/callers", &new).await;
    assert_eq!(made.expect("answered").json()["id"], "c4");
    let made = ask(&third, "POST", "/v1/rate-limits", &json!({"exempt": true})).await;
    assert_eq!(made.expect("answered").json()["id"], "r5");
}

#[tokio::test]
async fn a_kill_in_the_middle_of_writes_loses_nothing_that_was_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("callers.json");
    // The answered state, and its possible next states.
    let mut answered: BTreeMap<String, String> = BTreeMap::new();
    let mut lives = 0;
    while lives < 8 {
        let sidecar = Sidecar::start(&config(&state)).await;
        for (id, label) in &answered {
            let path = format!("/v1/callers/{id}");
            let caller = ask(&sidecar, "GET", &path, &Value::Null).await;
            let caller = caller.expect("it is there");
            assert_eq!(caller.status, 200, "{id} is lost after {lives} lives");
            assert_eq!(caller.json()["label"], **label, "{id}");
        }
        // Killed after N answers, while others are on their way.
        let until = 3 + 5 * lives % 11;
        let mut writes = tokio::task::JoinSet::new();
        for write in 0..until + 4 {
            let label = format!("{lives}-{write}");
            let new = json!({"label": label, "match": {"user": label}});
            let admin = sidecar.admin;
            writes.spawn(async move { (label, create(admin, new).await) });
        }
        let mut answers = 0;
        while let Some(written) = writes.join_next().await {
            let (label, id) = written.expect("no panic");
            if let Some(id) = id {
                answered.insert(id, label);
                answers += 1;
            }
            if answers == until {
                sidecar.signal("KILL");
            }
        }
        assert!(answers >= until, "{answers} of {until}");
        assert!(!sidecar.ended().await.0.success());
        lives += 1;
    }
    assert!(answered.len() > 40, "{}", answered.len());
}

/// The id of a caller that was made, if that was answered.
async fn create(admin: std::net::SocketAddr, new: Value) -> Option<String> {
    let body = new.to_string();
    let request = format!(
        "POST /v1/callers HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{JSON}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(admin).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut bytes = Vec::new();
    // What came before a reset was answered.
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8(bytes).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    if !head.starts_with("HTTP/1.1 201 ") {
        return None;
    }
    let made: Value = serde_json::from_str(body).ok()?;
    Some(made["id"].as_str()?.to_owned())
}

#[tokio::test]
async fn counts_are_saved_at_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("callers.json");
    let calls = |all: &BTreeMap<String, Value>| -> u64 {
        let callers = all.values().filter_map(|it| it["calls"]["total"].as_u64());
        callers.sum()
    };
    let sidecar = Sidecar::start(&config(&state)).await;
    let listener = sidecar.listener("test").await;
    for _ in 0..3 {
        crate::support::ask(listener, r#"["guest_list",[],{}]"#).await;
    }
    let before = everything(&sidecar).await;
    assert_eq!(calls(&before), 3);
    sidecar.signal("TERM");
    assert!(sidecar.ended().await.0.success());
    let again = Sidecar::start(&config(&state)).await;
    let after = everything(&again).await;
    assert_eq!(calls(&after), 3);
    // The caller registered itself by its calls, and is still known.
    let caller = |all: &BTreeMap<String, Value>| all["\"c1\""]["last_access"].to_string();
    assert_eq!(caller(&after)[..20], caller(&before)[..20]);
}

#[tokio::test]
async fn counts_are_saved_at_run_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("callers.json");
    let sidecar = Sidecar::start(&config(&state)).await;
    let listener = sidecar.listener("test").await;
    for _ in 0..3 {
        crate::support::ask(listener, r#"["guest_list",[],{}]"#).await;
    }
    let saved = || std::fs::read_to_string(&state).unwrap_or_default();
    until(|| saved().contains("\"calls\":3"), saved).await;
    sidecar.signal("KILL");
    sidecar.ended().await;
    let again = Sidecar::start(&config(&state)).await;
    let callers = everything(&again).await;
    let own = &callers["\"c1\""];
    assert_eq!(own["calls"]["total"], 3, "{own}");
}

#[tokio::test]
async fn a_damaged_state_is_reported_with_file_offset_and_cure_and_not_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("callers.json");
    let path = folder.path().join("config.toml");
    std::fs::write(&path, config(&state)).expect("written");
    let row = json!({"id": 1, "kind": "made", "label": "a", "groups": [], "notes": "",
                     "match": [{"ip": "10.0.0.1/8"}], "charge": "none", "last_call": 0,
                     "weight": null, "calls": 0, "micro_tokens": 0, "delayed": 0, "refused": 0});
    let stored = json!({"callers": [row], "rate_limits": [], "rate_limits_made": 0, "costs": null});
    let wrong_pattern = format!("{{\"schema\": 1, \"state\": {stored}}}");
    for (bytes, reason) in [
        ("{\"schema\": 1, \"sta", "it ends too early"),
        ("not JSON", "it is not JSON"),
        ("{\"schema\": 1, \"state\": {}}", "is missing"),
        (&*wrong_pattern, "bits set beyond its prefix"),
        ("{\"schema\": 9, \"state\": {}}", "schema 9"),
    ] {
        std::fs::write(&state, bytes).expect("written");
        let mut command = Command::new(TIDEGATE);
        let said = run(command.arg("serve").arg("--config").arg(&path)).await;
        assert_eq!(said.code, Some(1), "{}", said.err);
        let file = state.display().to_string();
        for word in [&*file, reason, "move it away"] {
            assert!(said.err.contains(word), "no {word:?} in {}", said.err);
        }
        if reason != "schema 9" {
            assert!(said.err.contains("at byte "), "{}", said.err);
        }
        let kept = std::fs::read_to_string(&state).expect("it is there");
        assert_eq!(kept, bytes);
    }
}

#[tokio::test]
async fn a_state_with_flags_in_place_of_words_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("callers.json");
    let limit = json!({"id": 3, "label": "m", "from_config": false, "profile": null,
                       "bucket": {"burst": 10.0, "fill": 2.0}, "observe": true, "reject": true,
                       "fifo": false, "settle": false, "no_deadline": true});
    let stored = json!({"callers": [], "rate_limits": [limit], "rate_limits_made": 3,
                        "costs": null});
    let older = json!({"schema": 1, "state": stored});
    std::fs::write(&state, older.to_string()).expect("written");
    let sidecar = Sidecar::start(&config(&state)).await;
    let limit = ask(&sidecar, "GET", "/v1/rate-limits/r3", &Value::Null).await;
    let limit = limit.expect("answered").json();
    for (field, expected) in [
        ("mode", json!("observe")),
        ("on_excess", json!("reject")),
        ("order", json!("fair")),
        ("settle", json!(false)),
        ("deadline", json!("none")),
        ("burst", json!(10.0)),
    ] {
        assert_eq!(limit[field], expected, "{field}");
    }
}

#[tokio::test]
async fn a_second_process_with_the_same_file_does_not_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("callers.json");
    let first = Sidecar::start(&config(&state)).await;
    let path = folder.path().join("config.toml");
    std::fs::write(&path, config(&state)).expect("written");
    let mut command = Command::new(TIDEGATE);
    let said = run(command.arg("serve").arg("--config").arg(&path)).await;
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(said.err.contains("another process"), "{}", said.err);
    drop(first);
}

#[tokio::test]
async fn a_directory_that_is_gone_refuses_changes_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).expect("made");
    let sidecar = Sidecar::start(&config(&inner.join("callers.json"))).await;
    std::fs::remove_dir_all(&inner).expect("removed");
    let before = everything(&sidecar).await;
    let new = json!({"label": "n", "match": {"user": "u"}});
    let answer = ask(&sidecar, "POST", "/v1/callers", &new).await;
    let answer = answer.expect("answered");
    assert_eq!(answer.status, 507, "{answer:?}");
    assert_eq!(answer.json()["error"], "NOT_SAVED");
    assert_eq!(everything(&sidecar).await, before);
    std::fs::create_dir(&inner).expect("made");
    let answer = ask(&sidecar, "POST", "/v1/callers", &new).await;
    assert_eq!(answer.expect("answered").status, 201);
}

#[tokio::test]
async fn a_disk_that_fails_leaves_the_change_in_force_and_it_is_saved_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("callers.json");
    let sidecar = Sidecar::start(&config(&state)).await;
    let new = |user: &str| json!({"label": user, "match": {"user": user}});
    let make = async |user: &str| {
        let answer = ask(&sidecar, "POST", "/v1/callers", &new(user)).await;
        let answer = answer.expect("answered");
        (answer.status, answer.json())
    };
    assert_eq!(make("a").await.0, 201);
    // There is room, and the last step fails: nothing can take a directory's name.
    std::fs::remove_file(&state).expect("it was saved");
    std::fs::create_dir(&state).expect("made");
    let (status, told) = make("b").await;
    assert_eq!((status, &told["error"]), (507, &json!("NOT_YET_SAVED")));
    let reason = told["reason"].as_str().expect("a reason");
    assert!(reason.contains(&*state.to_string_lossy()), "{reason}");
    sidecar
        .log()
        .wait(&["the state of callers is not saved"])
        .await;
    assert!(everything(&sidecar).await.contains_key("\"c2\""));
    assert_eq!(make("b").await.1["error"], "PATTERN_EXISTS");

    // No further request is needed: it is saved automatically.
    std::fs::remove_dir(&state).expect("it is empty");
    sidecar
        .log()
        .wait(&["the state of callers is saved again"])
        .await;
    let before = everything(&sidecar).await;
    sidecar.signal("KILL");
    sidecar.ended().await;
    let again = Sidecar::start(&config(&state)).await;
    assert_eq!(everything(&again).await, before);
}
