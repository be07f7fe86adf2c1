//! `tidegate check` and `tidegate init` know how long nova waits for the network of a new guest.

use serde_json::Value;
use tokio::process::Command;

use crate::sidecar::{TIDEGATE, run};

const CONFIG: &str = "\
listen = [{ name = \"nova\", bind = \"0.0.0.0:8081\", protocol = \"http\" }]
[backend]
kind = \"zvm\"
http = \"http://127.0.0.1:8080\"
[limits]
per_window = \"total:30\"
";

/// The output of `check`, and its object about a new guest.
async fn check(config: &str) -> (String, Value) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("config.toml");
    std::fs::write(&path, config).expect("it can be written to");
    let command = |more: &[&str]| {
        let mut command = Command::new(TIDEGATE);
        command.args(["check", "--config"]).arg(&path).args(more);
        command
    };
    let said = run(&mut command(&[])).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    let json = run(&mut command(&["--json"])).await;
    let json: Value = serde_json::from_str(&json.out).expect("JSON");
    (said.out, json["new_guest"].clone())
}

/// Checks the sums of a config in both forms. Returns the cure, if nova may delete the guest.
async fn waits(config: &str, nova: &str, network: &str) -> Option<String> {
    let (out, json) = check(config).await;
    let rows = [
        format!("a new guest    10 calls of nova {nova}, and nova has no time-out for them\n"),
        format!(
            "  its network  6 calls of the neutron agent for a port {network}, and after 300 s nova deletes the guest \
             (vif_plugging_timeout)"
        ),
    ];
    for row in &rows {
        assert!(out.contains(row), "no {row:?} in\n{out}");
    }
    let cure = json["cure"].as_str().map(ToOwned::to_owned);
    match &cure {
        Some(cure) => assert!(out.contains(&format!(": too long, {cure}\n")), "{out}"),
        None => assert!(!out.contains("too long"), "{out}"),
    }
    let sum = json["network_waits_seconds"].as_f64();
    let shown = sum.map_or("may wait for any time".to_owned(), |sum| match sum {
        0.0 => "do not wait".to_owned(),
        sum => format!("wait {sum} s at most"),
    });
    assert!(network.starts_with(&shown), "{json}");
    assert_eq!(json["network_timeout_seconds"], 300);
    cure
}

#[tokio::test]
async fn the_waits_of_a_new_guest_are_added_up_and_each_cure_helps() {
    let cure = waits(
        CONFIG,
        "wait 600 s at most (10 × 60 s)",
        "wait 360 s at most (6 × 60 s)",
    )
    .await;
    assert_eq!(
        cure.as_deref(),
        Some(
            "add exempt = [\"db\"] to [limits], so that they wait 180 s at most (3 × 60 s), or let each of these \
             wait 45 s at most, or set vif_plugging_timeout = 400 or more in nova.conf"
        )
    );
    let with = |line: &str| format!("{CONFIG}{line}\n");
    let cure = waits(
        &with("exempt = [\"db\"]"),
        "wait 360 s at most (6 × 60 s)",
        "wait 180 s at most (3 × 60 s)",
    )
    .await;
    assert_eq!(cure, None);
    let cure = waits(
        &with("max_wait = \"45s\""),
        "wait 450 s at most (10 × 45 s)",
        "wait 270 s at most (6 × 45 s)",
    )
    .await;
    assert_eq!(cure, None);
    // Nothing is left for the calls themselves.
    let cure = waits(
        &with("max_wait = \"50s\""),
        "wait 500 s at most (10 × 50 s)",
        "wait 300 s at most (6 × 50 s)",
    )
    .await;
    assert!(cure.is_some());
    let none = waits(&with("max_wait = \"0s\""), "do not wait", "do not wait").await;
    assert_eq!(none, None);
}

#[tokio::test]
async fn a_class_and_its_listener_decide_how_long_a_call_waits() {
    let class = |max_wait: &str| {
        format!("{CONFIG}[[class]]\nname = \"agent\"\neffort = \"db\"\nmax_wait = \"{max_wait}\"\n")
    };
    let cure = waits(
        &class("20s"),
        "wait 440 s at most (6 × 60 s + 4 × 20 s)",
        "wait 240 s at most (3 × 60 s + 3 × 20 s)",
    )
    .await;
    assert_eq!(cure, None);
    let cure = waits(
        &class("none"),
        "may wait for any time",
        "may wait for any time",
    )
    .await;
    let cure = cure.expect("no sum");
    assert!(!cure.contains("vif_plugging_timeout"), "{cure}");
    // The listener where calls wait longest counts.
    let two = CONFIG.replace(
        "protocol = \"http\" }]",
        "protocol = \"http\" },\n\
         { name = \"neutron\", bind = \"0.0.0.0:8082\", protocol = \"http\", class = \"slow\" }]",
    );
    let slow = "[[class]]\nname = \"slow\"\nmax_wait = \"90s\"\n";
    let cure = waits(
        &format!("{two}{slow}"),
        "wait 720 s at most (4 × 90 s + 6 × 60 s)",
        "wait 450 s at most (3 × 90 s + 3 × 60 s)",
    )
    .await;
    assert!(cure.is_some());
}

#[tokio::test]
async fn other_services_have_no_guests() {
    let (out, json) = check(&CONFIG.replace("\"zvm\"", "\"http\"")).await;
    assert!(!out.contains("guest"), "{out}");
    assert_eq!(json, Value::Null);
}

#[tokio::test]
async fn a_first_config_leaves_room_for_the_network_and_a_note_says_if_it_does_not() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("zvmsdk.conf");
    let init = async |sdk: &str| {
        std::fs::write(&path, format!("[sdkserver]\n{sdk}")).expect("it can be written to");
        let mut command = Command::new(TIDEGATE);
        command.args(["init", "--per-window", "30", "--out", "-", "--zvmsdk-conf"]);
        let said = run(command.arg(&path)).await;
        assert_eq!(said.code, Some(0), "{}", said.err);
        (said.out, said.err)
    };
    let (config, notes) = init("").await;
    let line = "smapi_request_postpone_threshold_seconds = 45\n";
    assert!(config.contains(line), "{config}");
    assert!(!notes.contains("nova deletes"), "{notes}");
    waits(
        &config,
        "wait 450 s at most (10 × 45 s)",
        "wait 270 s at most (6 × 45 s)",
    )
    .await;
    let (_, notes) = init("smapi_request_postpone_threshold_seconds = 60\n").await;
    let note = "nova deletes a new guest whose network is not ready after 300 s (vif_plugging_timeout), and 6 calls of the \
                neutron agent for a port wait 360 s at most (6 × 60 s): add exempt = [\"db\"] to [limits]";
    assert!(notes.contains(note), "{notes}");
}
