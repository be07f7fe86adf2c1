//! Quotas as operators see them.

use super::*;

use crate::sidecar::{Sidecar, TIDEGATE, run};
use crate::support::ask;

#[tokio::test]
async fn a_record_of_another_tool_is_left_alone_and_reported_and_other_keys_go_on() {
    let rig = Rig::start().await;
    let limits =
        limit("per_user", "user", 5, LONG, REJECT) + &limit("all", "total", 50, LONG, REJECT);
    let sidecar = rig.sidecar(ALONE, &limits);
    let key = RecordKey::within(None, "eve").expect("it is a key");
    rig.memory.tamper(&key, Some(b"{\"usable\": 70}"));
    // Eve's calls are not covered, others are.
    eventually(async || (sidecar.call("eve").await.status == 503).then_some(())).await;
    assert_eq!(sidecar.calls("alice", 5).await, 5);
    let eve = sidecar
        .until_key("per_user", "eve", |eve| {
            eve["trouble"] != serde_json::json!([])
        })
        .await;
    let trouble = eve["trouble"][0].as_str().expect("a text");
    assert!(trouble.contains("no record of ours"), "{trouble}");
    let found = rig.memory.node().get(&key).await.expect("it is up");
    let found = found.as_ref().expect("it stands there");
    assert_eq!(found.text, b"{\"usable\": 70}");
    let page = sidecar.get("/quotas").await.body;
    assert!(page.contains("no record of ours"), "{page}");
    // The store is available, with any content.
    assert_eq!(sidecar.quotas().await["store"]["up"], true);
    let troubled = r#"tidegate_quota_keys_in_trouble{limit="rate_limit:per_user"}"#;
    assert_eq!(sidecar.metric(troubled).await, 1.0);
    // Once it is gone her calls go on by themselves.
    rig.memory.tamper(&key, None);
    eventually(async || (sidecar.call("eve").await.status == 200).then_some(())).await;
}

#[tokio::test]
async fn the_state_of_the_store_is_shown() {
    let rig = Rig::start().await;
    let limits = limit("all", "total", 5, LONG, REJECT);
    let sidecar = rig.sidecar(ALONE, &limits);
    for (mode, text) in [
        (
            Mode::Unauthenticated,
            "the store wants other credentials: NOAUTH",
        ),
        (
            Mode::Garbage,
            "an answer that the store does not give: HTTP/1.1 400 Bad Request",
        ),
        (Mode::Hangs, "it did not answer within the draw timeout"),
        (Mode::Away, "the store is unavailable: connection refused"),
    ] {
        sidecar.store().set(mode);
        let told = eventually(async || {
            sidecar.call("").await;
            let told = sidecar.quotas().await["store"].clone();
            (told["up"] == false && told["trouble"]["text"] == text).then_some(told)
        })
        .await;
        let page = sidecar.get("/quotas").await.body;
        assert!(
            page.contains("etcd is unavailable") && page.contains(text),
            "{told}\n{page}"
        );
    }
}

#[tokio::test]
async fn the_metrics_of_a_living_sidecar_please_promtool() {
    let rig = Rig::start().await;
    let limits =
        limit("all", "total", 5, LONG, REJECT) + &limit("per_user", "user", 50, LONG, REJECT);
    let sidecar = rig.sidecar(TWO, &limits);
    let other = rig.sidecar(TWO, &limits);
    let passed = sidecar.calls("alice", 10).await;
    let metrics = sidecar.get("/metrics").await.body;
    crate::support::promtool_is_content(&metrics);
    for (name, value) in [
        (r#"tidegate_quota_store_up{engine="etcd"}"#, 1.0),
        (r#"tidegate_quota_members{engine="etcd"}"#, 2.0),
        (r#"tidegate_quota_keys{limit="rate_limit:all"}"#, 1.0),
    ] {
        assert_eq!(sidecar.metric(name).await, value, "{name}");
    }
    let of = |how: &str| {
        format!("tidegate_quota_decisions_total{{how=\"{how}\",limit=\"rate_limit:all\"}}")
    };
    let mut let_go = 0.0;
    for how in ["local", "drew", "waited"] {
        let_go += sidecar.metric(&of(how)).await;
    }
    assert_eq!(let_go, passed as f64);
    let refusals = r#"tidegate_refusals_total{limit="rate_limit:all",reason="rate_limited"}"#;
    assert_eq!(sidecar.metric(refusals).await, 10.0 - let_go);
    let drawn = r#"tidegate_quota_draw_seconds_count{limit="rate_limit:all"}"#;
    assert!(sidecar.metric(drawn).await >= 1.0);
    drop(other);
}

#[tokio::test]
async fn a_record_of_a_window_far_away_closes_its_key_only_as_long_as_it_is_there() {
    let rig = Rig::start().await;
    let limits = limit("per_user", "user", 5, "1s", REJECT);
    let sidecar = rig.sidecar(ALONE, &limits);
    assert_eq!(sidecar.call("eve").await.status, 200);
    let key = RecordKey::within(None, "eve").expect("it is a key");
    let far = b"tidegate 1 window=1000000000000000 left=5 total=5 reserved=0 length_ms=1000";
    rig.memory.tamper(&key, Some(far));
    let eve = eventually(async || {
        sidecar.call("eve").await;
        let troubled = |eve: &Value| eve["trouble"] != serde_json::json!([]);
        sidecar.key("per_user", "eve").await.filter(troubled)
    })
    .await;
    let trouble = eve["trouble"].to_string();
    assert!(trouble.contains("1000000000000000"), "{trouble}");
    let troubled = r#"tidegate_quota_keys_in_trouble{limit="rate_limit:per_user"}"#;
    eventually(async || (sidecar.metric(troubled).await == 1.0).then_some(())).await;
    assert_eq!(sidecar.call("alice").await.status, 200);
    rig.memory.tamper(&key, None);
    eventually(async || (sidecar.call("eve").await.status == 200).then_some(())).await;
    eventually(async || (sidecar.metric(troubled).await == 0.0).then_some(())).await;
}

#[tokio::test]
async fn limits_on_the_command_line_have_quotas_and_say_where_they_are_kept() {
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("each", "user", 3, LONG, REJECT);
    let text = |store: &str| {
        one_listener(
            backend.addr,
            "user_from = \"basic\"",
            &format!("{store}{limits}"),
        )
    };
    let said = async |sidecar: &Sidecar, more: &[&str]| {
        let mut command = tokio::process::Command::new(TIDEGATE);
        command.args(["limits", "--admin", &sidecar.admin.to_string()]);
        run(command.args(more)).await.out
    };
    let sidecar = Sidecar::start(&text("[quota_store]\n")).await;
    let request = "GET /guests HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Basic YWxpY2U6eA==\r\n\r\n";
    for _ in 0..5 {
        ask(sidecar.listener("test").await, request.to_owned()).await;
    }
    let told = said(&sidecar, &[]).await;
    let row = told
        .lines()
        .find(|line| line.contains("each "))
        .expect("a row");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        cells[cells.len() - 4..cells.len() - 1],
        ["1", "3", "2"],
        "{told}"
    );
    assert!(
        told.ends_with("Kept in the memory of this sidecar alone.\n"),
        "{told}"
    );
    let read: serde_json::Value =
        serde_json::from_str(&said(&sidecar, &["--json"]).await).expect("JSON");
    assert_eq!(read["quotas"][0]["decisions"]["refused"], 2);
    assert_eq!(read["quota_store"]["engine"], "memory");
}

#[tokio::test]
async fn limits_on_the_command_line_say_that_the_store_is_unavailable() {
    let backend = Scripted::in_both_dialects().await;
    let limits = limit("each", "user", 3, LONG, REJECT);
    let closed = crate::support::closed_port();
    let store = format!(
        "[quota_store]\nengine = \"redis\"\nservers = [\"redis://{closed}\"]\nexpected_sidecars = 2\n"
    );
    let sidecar =
        Sidecar::start(&one_listener(backend.addr, "", &format!("{store}{limits}"))).await;
    let told = eventually(async || {
        let mut command = tokio::process::Command::new(TIDEGATE);
        command.args(["limits", "--admin", &sidecar.admin.to_string()]);
        let told = run(&mut command).await.out;
        told.contains("Kept in redis: the store is unavailable: ")
            .then_some(told)
    })
    .await;
    let row = told.lines().find(|line| line.contains("each "));
    assert!(row.is_some(), "{told}");
}
