//! Everything that changes while calls wait is replayed: classes, callers, rate limits, the backend.

use std::time::Duration;

use serde_json::json;
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tokio::task::JoinSet;

use super::plan;
use crate::sidecar::Sidecar;
use crate::support::{array, ask};

/// Two listeners, each with a caller of its own, and these rate limits.
fn config(backend: &RunningBackend, postpone: &str, limits: &str) -> String {
    let address = backend.socket_addr();
    format!(
        r#"
        [[listen]]
        name = "nova"
        bind = "127.0.0.1:0"
        protocol = "socket"
        [[listen]]
        name = "people"
        bind = "127.0.0.1:0"
        protocol = "socket"
        [backend]
        socket = "{address}"
        [queue]
        postpone = "{postpone}"
        {}
        [limits]
        per_window = "total:30"
        outstanding = 3
        max_wait = "4s"
        [[class]]
        name = "lists"
        functions = ["guest_list"]
        outstanding_max = 1
        [log]
        access = true
        replay = true
        format = "json"
        [admin]
        bind = "127.0.0.1:0"
        {limits}
        "#,
        match postpone {
            "jitter" => r#"postpone_jitter = ["50ms", "150ms"]"#,
            _ => "",
        }
    )
}

/// Rate limits for both callers; the first is charged to `first`, if that is given.
fn limits(first: Option<&str>, fill: u32) -> String {
    let charge = |name: &str| format!("rate_limit = \"{name}\"");
    let rule = |name: &str| {
        format!("[[bucket]]\nname = \"{name}\"\nburst = 4\nfill = {fill}\non_excess = \"delay\"\n")
    };
    let row = |label: &str, weight: u32, charged: Option<&str>| {
        format!(
            "[[caller]]\nlabel = \"{label}\"\nweight = {weight}\nmatch = {{ listener = \"{label}\" }}\n{}\n",
            charged.map(charge).unwrap_or_default()
        )
    };
    let own = first.filter(|first| *first != "shared").map(rule);
    [
        own.unwrap_or_default(),
        rule("shared"),
        row("nova", 1, first),
        row("people", 3, Some("shared")),
    ]
    .concat()
}

/// Reads by one caller, and once some wait, writes and lists by the other, about a few guests.
async fn storm(sidecar: &Sidecar, calls: usize) {
    let nova = sidecar.listener("nova").await;
    let people = sidecar.listener("people").await;
    let before = sidecar.log().lines().len();
    let mut storm = JoinSet::new();
    let mut ask_for = |addr, function: &str, number: usize| {
        let call = array(function, &format!("G{}", number % 7));
        storm.spawn(async move { ask(addr, call).await });
    };
    for number in 0..calls * 3 / 5 {
        ask_for(nova, "guest_get_info", number);
    }
    sidecar.log().wait_from(before, &[r#"["served""#]).await;
    for number in calls * 3 / 5..calls {
        ask_for(people, ["guest_start", "guest_list"][number % 2], number);
    }
    storm.join_all().await;
}

fn options() -> StandInOptions {
    StandInOptions {
        delay: Duration::from_millis(15),
        ..StandInOptions::on_free_ports()
    }
}

#[tokio::test]
async fn classes_callers_rate_limits_and_restarts_are_decided_as_in_the_log() {
    for postpone in ["jitter", "in_turn"] {
        let backend = StandInBackend::start(options()).await.expect("free ports");
        let address = backend.socket_addr();
        let text = |first, fill| config(&backend, postpone, &limits(first, fill));
        let configs = [
            text(Some("own"), 40),
            text(Some("shared"), 60),
            text(None, 60),
            text(Some("own"), 30),
        ];
        let sidecar = Sidecar::start(&configs[0]).await;
        let changes = async {
            let mut seen = 0;
            for config in &configs[1..] {
                // While calls wait, and after some were answered.
                (_, seen) = sidecar.log().wait_from(seen, &[r#"["served""#]).await;
                sidecar.reload(config).await;
            }
            // A rate limit through the admin address.
            let new = json!({"label": "made", "burst": 2.0, "fill": 50.0});
            let (status, said) = sidecar
                .ask("POST", "/v1/rate-limits", &new.to_string())
                .await;
            assert!(matches!(status, 200 | 201), "{status} {said}");
            // The backend restarts.
            backend.stop().await;
            let down = [r#""event":"supply""#, r#""capacity":0"#];
            sidecar.log().wait_from(0, &down).await;
            let again = StandInOptions {
                socket: address,
                ..options()
            };
            StandInBackend::start(again)
                .await
                .expect("the port is free again")
        };
        let ((), backend) = tokio::join!(storm(&sidecar, 90), changes);
        storm(&sidecar, 30).await;
        sidecar.signal("TERM");
        let (status, lines) = sidecar.ended().await;
        drop(backend);
        assert!(status.success());
        let log = lines.join("\n");
        let said = plan(&log).await;
        let told = "identity: the same decision in all 120 lines";
        assert!(
            said.out.contains(told),
            "{postpone}: {}{}",
            said.out,
            said.err
        );
        for word in [
            r#"["bucket","#,
            r#"["class","#,
            r#"["requeued","#,
            r#""event":"bucket_gone""#,
            r#""event":"reload""#,
            r#""class":"lists""#,
        ] {
            assert!(log.contains(word), "{postpone}: no {word}");
        }
    }
}
