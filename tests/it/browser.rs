//! The page at `/` in a real Chromium, before a real sidecar in a storm. `tests/browser/page.mjs`
//! has what is tried.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tidegate_leases::wire::capacity_client::CapacityClient;
use tidegate_leases::wire::{GetCapacityRequest, ResourceRequest};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::lease_server::{channel, started};
use crate::sidecar::Sidecar;
use crate::storm::{clients, slow_backend};
use crate::support::{PATIENCE, Scripted, array, ask, both, listens};

/// A lock for one Chromium at a time: two of them would be slow on a small machine.
static BROWSERS: Semaphore = Semaphore::const_new(1);
/// The longest time for one thing.
const LONGEST: Duration = Duration::from_secs(90);
/// A name of a caller that would run a program in the page of an operator.
const NAME: &str =
    r#"</script><script>globalThis.hacked=1</script><img src=x onerror="globalThis.hacked=1">"#;

/// A sidecar whose backend takes 300 ms for a call, with more clients than its limits admit.
struct Storm {
    sidecar: Sidecar,
    _backend: Scripted,
    _clients: JoinSet<()>,
}

impl Storm {
    async fn start(token: Option<&str>) -> Self {
        let token = token.map_or_else(String::new, |token| format!("token = \"{token}\""));
        Self::run("", &token, "").await
    }

    /// With more sections in its config.
    async fn with(sections: &str) -> Self {
        Self::run("", "", sections).await
    }

    /// With more lines for the queue and the admin address, and more sections.
    async fn run(queue: &str, admin: &str, sections: &str) -> Self {
        let backend = slow_backend().await;
        let sections = format!(
            r#"
            [queue]
            postpone = "in_turn"
            {queue}
            [limits]
            per_window = "total:5,guest_list:2"
            [admin]
            bind = "127.0.0.1:0"
            {admin}
            {sections}
            "#
        );
        let backend_lines = both(backend.addr, backend.addr);
        let sidecar = Sidecar::start(&listens("", &backend_lines, &sections)).await;
        let addr = sidecar.listener("test").await;
        Self {
            sidecar,
            _backend: backend,
            _clients: clients(addr),
        }
    }
}

/// Tries one thing in a browser, and fails with what it says.
async fn tries(what: &str, sidecar: &Sidecar, more: &[(&str, &str)]) {
    tries_at(what, sidecar.admin, more).await;
}

/// Tries the page at any address.
async fn tries_at(what: &str, address: SocketAddr, more: &[(&str, &str)]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(
        root.join(".browser/complete").exists(),
        "Chromium and its driver are not installed; `make browser` does it"
    );
    let _one = BROWSERS.acquire().await.expect("it is never closed");
    let mut command = Command::new("node");
    command
        .arg(root.join("tests/browser/page.mjs"))
        .arg(what)
        .env("ADMIN", address.to_string())
        .envs(more.iter().copied())
        .kill_on_drop(true);
    let output = tokio::time::timeout(LONGEST, command.output())
        .await
        .expect("it ends")
        .expect("node runs");
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (told(&output.stdout), told(&output.stderr));
    assert!(output.status.success(), "{what}:\n{out}{err}");
    print!("{out}");
}

/// Waits until the sidecar has this many points of history.
async fn with_history(sidecar: &Sidecar, points: usize) {
    let has = async {
        loop {
            let (_, text) = sidecar.get("/v1/series").await;
            let series: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let waiting = series["series"]["waiting"].as_array().expect("a list");
            if waiting.iter().filter(|it| !it.is_null()).count() >= points {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let longest = PATIENCE + Duration::from_secs(points as u64);
    let had = tokio::time::timeout(longest, has).await;
    had.unwrap_or_else(|_| panic!("the history never has {points} points"));
}

#[tokio::test]
async fn the_page_shows_a_storm_as_it_is() {
    let storm = Storm::start(None).await;
    tries("storm", &storm.sidecar, &[]).await;
}

#[tokio::test]
async fn the_page_has_its_history_before_the_first_frame() {
    let storm = Storm::start(None).await;
    with_history(&storm.sidecar, 5).await;
    tries("history", &storm.sidecar, &[]).await;
    tries("paint", &storm.sidecar, &[]).await;
}

#[tokio::test]
async fn the_page_needs_no_mouse() {
    let storm = Storm::start(None).await;
    tries("keyboard", &storm.sidecar, &[]).await;
}

#[tokio::test]
async fn a_call_is_followed_in_a_dialog_by_keyboard() {
    let storm = Storm::start(None).await;
    tries("call", &storm.sidecar, &[]).await;
}

#[tokio::test]
async fn an_operator_pauses_and_resumes_by_keyboard() {
    let storm = Storm::start(None).await;
    tries("pause", &storm.sidecar, &[]).await;
}

#[tokio::test]
async fn an_operator_lowers_a_limit_for_a_while_and_undoes_it() {
    let storm = Storm::start(None).await;
    tries("lower", &storm.sidecar, &[]).await;
}

#[tokio::test]
async fn a_page_of_another_origin_pauses_nothing() {
    let storm = Storm::start(None).await;
    tries("foreign", &storm.sidecar, &[]).await;
}

#[tokio::test]
async fn axe_finds_nothing_in_light_and_dark_narrow_and_wide() {
    let storm = Storm::start(None).await;
    tries("axe", &storm.sidecar, &[]).await;
}

#[tokio::test]
async fn the_page_of_quotas_looks_as_the_others_and_is_kept_fresh() {
    let storm = Storm::with(
        r#"
        [quota_store]
        engine = "memory"
        [[quota]]
        name = "all"
        applies_to = "function"
        total = 1_000
        refresh_window = "60s"
        "#,
    )
    .await;
    // A key that no waiting call meets.
    let addr = storm.sidecar.listener("test").await;
    ask(addr, array("guest_get_power_state", "Z")).await;
    tries("written", &storm.sidecar, &[("PATH_OF_PAGE", "quotas")]).await;
}

#[tokio::test]
async fn the_page_of_errors_says_what_to_do_about_each() {
    let storm = Storm::run("capacity = 1\nwhen_full = \"refuse\"", "", "").await;
    tries("errors", &storm.sidecar, &[]).await;
}

#[tokio::test]
async fn the_page_of_the_lease_server_looks_as_the_others() {
    let text = r#"
        bind = "127.0.0.1:0"
        status_bind = "127.0.0.1:0"
        minimum_interval = "0s"
        [[resource]]
        glob = "*"
        capacity = 100
        algorithm = { kind = "fair_share", lease = "1h", refresh = "5s", learning = "0s" }
    "#;
    let server = started(text).await;
    let mut client = CapacityClient::new(channel(server.address()));
    for id in ["disk", "<i>tape</i>"] {
        let asked = GetCapacityRequest {
            client_id: "a".to_owned(),
            resource: vec![ResourceRequest {
                resource_id: id.to_owned(),
                priority: 0,
                has: None,
                wants: 7.0,
            }],
        };
        client.get_capacity(asked).await.expect("an answer");
    }
    let status = server.status_address().expect("there is one");
    for path in ["", "debug/resources?resource=disk"] {
        tries_at("written", status, &[("PATH_OF_PAGE", path)]).await;
    }
}

#[tokio::test]
async fn the_name_of_a_caller_is_only_ever_text() {
    let storm = Storm::start(None).await;
    let body = json!({"label": NAME, "match": {"ip": "127.0.0.1"}}).to_string();
    let (status, said) = storm.sidecar.ask("POST", "/v1/callers", &body).await;
    assert_eq!(status, 201, "{said}");
    tries("names", &storm.sidecar, &[("CALLER", NAME)]).await;
}

#[tokio::test]
async fn a_hidden_page_stops_its_stream_and_goes_on_when_it_is_shown() {
    let storm = Storm::start(None).await;
    tries("hidden", &storm.sidecar, &[]).await;
}

#[tokio::test]
async fn a_lost_connection_is_shown_and_comes_back() {
    let storm = Storm::start(None).await;
    tries("lost", &storm.sidecar, &[]).await;
}

#[tokio::test]
async fn the_page_asks_for_the_token_and_keeps_it_in_its_tab() {
    let storm = Storm::start(Some("s3cret")).await;
    tries("token", &storm.sidecar, &[("TOKEN", "s3cret")]).await;
}

/// Takes the pictures of the docs: `PICTURES=docs/pictures cargo test … pictures -- --ignored`.
#[tokio::test]
#[ignore = "it writes into the docs"]
async fn the_pictures_of_the_docs() {
    let storm = Storm::start(None).await;
    let addr = storm.sidecar.listener("test").await;
    let mut bursts = JoinSet::new();
    for size in [20, 45, 10, 60, 30, 0] {
        for _ in 0..size {
            bursts.spawn(ask(addr, array("guest_create", "Y")));
        }
        tokio::time::sleep(Duration::from_secs(18)).await;
    }
    with_history(&storm.sidecar, 90).await;
    let folder = std::env::var("PICTURES").unwrap_or_else(|_| "docs/pictures".to_owned());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    std::fs::create_dir_all(&folder).expect("it can be written to");
    let folder = folder.to_str().expect("a path in UTF-8");
    tries("pictures", &storm.sidecar, &[("PICTURES", folder)]).await;
}
