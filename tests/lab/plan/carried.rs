//! Input of the scheduler besides calls is in the log: the answers of quota stores, leases, and costs that were set
//! through the admin address.

use std::process::Stdio;

use tidegate_lab::backend::RunningBackend;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::{backend, plan, plan_with};
use crate::sidecar::{Log, Sidecar, field, with_programs};
use crate::support::{array, ask};

/// A backend for three at once, without a window.
const THREE: &str = "window = \"0s\"\noutstanding = 3";

/// A config with these limits and more.
fn config(backend: &RunningBackend, postpone: &str, limits: &str, more: &str) -> String {
    let address = backend.socket_addr();
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        [backend]
        socket = "{address}"
        [queue]
        postpone = "{postpone}"
        postpone_jitter = ["50ms", "150ms"]
        [log]
        access = true
        replay = true
        format = "json"
        [admin]
        bind = "127.0.0.1:0"
        [limits]
        {limits}
        {more}
        "#
    )
}

/// Calls at once, of three functions.
async fn storm(sidecar: &Sidecar, calls: usize) {
    let addr = sidecar.listener("test").await;
    let mut storm = JoinSet::new();
    for number in 0..calls {
        let function = ["guest_get_info", "guest_list", "guest_start"][number % 3];
        storm.spawn(async move { ask(addr, array(function, &format!("U{number}"))).await });
    }
    storm.join_all().await;
}

/// The log, after the sidecar has ended.
async fn ended(sidecar: Sidecar) -> String {
    sidecar.signal("TERM");
    let (status, lines) = sidecar.ended().await;
    assert!(status.success());
    lines.join("\n")
}

async fn is_identical(log: &str, calls: usize) {
    let said = plan(log).await;
    let told = format!("identity: the same decision in all {calls} lines");
    assert!(said.out.contains(&told), "{}{}", said.out, said.err);
    assert_eq!(said.code, Some(0), "{}", said.out);
}

const QUOTAS: &str = r#"
    [quota_store]
    engine = "memory"
    [[quota]]
    name = "all"
    applies_to = "total"
    total = 25
    refresh_window = "500ms"
    [[quota]]
    name = "each"
    applies_to = "function"
    total = 12
    refresh_window = "700ms"
"#;

#[tokio::test]
async fn calls_that_draw_from_quotas_are_decided_as_in_the_log() {
    for postpone in ["jitter", "in_turn"] {
        let backend = backend().await;
        let first = config(&backend, postpone, THREE, QUOTAS);
        let sidecar = Sidecar::start(&first).await;
        storm(&sidecar, 60).await;
        // Another total, and one quota less, while calls wait.
        let fewer = first.replace("total = 25", "total = 20");
        let each = fewer.find(
            r#"[[quota]]
    name = "each""#,
        );
        let one = &fewer[..each.expect("it has two")];
        tokio::join!(storm(&sidecar, 60), sidecar.reload(one));
        storm(&sidecar, 20).await;
        let log = ended(sidecar).await;
        for word in [
            r#""event":"quotas""#,
            r#""reply":"written""#,
            r#""draws":[["#,
        ] {
            assert!(log.contains(word), "{postpone}: no {word}");
        }
        is_identical(&log, 140).await;
        // Without the answers, calls would wait for ever.
        let lines = log.lines().filter(|line| !line.contains("quota_answer"));
        let said = plan(&lines.collect::<Vec<_>>().join("\n")).await;
        assert_eq!(said.code, Some(1), "{}", said.out);
    }
}

/// A lease server with a share of each limit, until it is dropped.
struct LeaseServer {
    _child: Child,
    _folder: tempfile::TempDir,
    address: String,
}

impl LeaseServer {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let rules = folder.path().join("rules.yaml");
        let text = "
resources:
- identifier_glob: '*'
  capacity: 40
  algorithm: {kind: FAIR_SHARE, lease_length: 2, refresh_interval: 1, learning_mode_duration: 0}
";
        std::fs::write(&rules, text).expect("written");
        let config = folder.path().join("leases.toml");
        let text = format!(
            "bind = \"127.0.0.1:0\"\nminimum_interval = \"0s\"\nresources = \"file:{}\"\n\
             [log]\nformat = \"json\"\n",
            rules.display()
        );
        std::fs::write(&config, text).expect("written");
        let mut command = Command::new(with_programs());
        let command = command.args(["lease-server", "--config"]).arg(&config);
        let mut child = command
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary runs");
        let (log, _) = Log::read(child.stderr.take().expect("piped"));
        let ready = log.wait(&["leases: ready"]).await;
        Self {
            address: field(&ready, "address"),
            _child: child,
            _folder: folder,
        }
    }
}

#[tokio::test]
async fn leases_of_limits_and_of_a_bucket_are_decided_as_in_the_log() {
    let server = LeaseServer::start().await;
    let backend = backend().await;
    let more = format!(
        r#"
        [[bucket]]
        name = "poller"
        burst = 5
        fill = 60
        [[caller]]
        label = "everybody"
        match = {{ listener = "test" }}
        rate_limit = "poller"
        [coordinate]
        servers = ["{}"]
        expected_sidecars = 3
        request_timeout = "400ms"
        minimum_interval = "250ms"
        [[coordinate.limit]]
        limit = "total"
        resource = "zvm/total"
        safe = 2
        [[coordinate.limit]]
        limit = "outstanding"
        resource = "zvm/outstanding"
        safe = 1
        [[coordinate.limit]]
        limit = "poller"
        resource = "zvm/poller"
        safe = 10
        "#,
        server.address
    );
    let limits = "per_window = \"total:60\"\noutstanding = 5";
    let sidecar = Sidecar::start(&config(&backend, "jitter", limits, &more)).await;
    storm(&sidecar, 40).await;
    drop(server);
    storm(&sidecar, 20).await;
    let log = ended(sidecar).await;
    for words in [
        [r#""event":"supply""#, r#""by":"coordinator""#],
        [r#""event":"fill""#, r#""until_ns""#],
    ] {
        let has = log
            .lines()
            .any(|line| words.iter().all(|word| line.contains(word)));
        assert!(has, "no {words:?}");
    }
    is_identical(&log, 60).await;
}

#[tokio::test]
async fn costs_that_are_set_while_calls_wait_are_decided_as_in_the_log() {
    let backend = backend().await;
    let more = r#"
        [[pace]]
        name = "pace"
        applies_to = "total"
        rate = 40
        [[pace]]
        name = "lists"
        applies_to = "function"
        function = "guest_list"
        rate = 25
    "#;
    let sidecar = Sidecar::start(&config(&backend, "in_turn", THREE, more)).await;
    let costs = r#"{"default": 1.0, "unit_seconds": 0.1, "settle": false,
                    "functions": {"guest_list": 3.5, "guest_start": 2.0}}"#;
    let change = async {
        sidecar.log().wait_from(0, &[r#"["served""#]).await;
        let (status, said) = sidecar.ask("PUT", "/v1/costs", costs).await;
        assert_eq!(status, 200, "{said}");
    };
    let ((), ()) = tokio::join!(storm(&sidecar, 45), change);
    storm(&sidecar, 15).await;
    let log = ended(sidecar).await;
    assert!(log.contains(r#""event":"costs""#), "the change has no line");
    is_identical(&log, 60).await;
    let lines = log
        .lines()
        .filter(|line| !line.contains(r#""event":"costs""#));
    let said = plan(&lines.collect::<Vec<_>>().join("\n")).await;
    assert_eq!(said.code, Some(1), "it changed something: {}", said.out);
}

#[tokio::test]
async fn a_config_that_is_too_large_for_a_line_is_found_by_its_fingerprint() {
    let backend = backend().await;
    let rows = (0..700).map(|number| {
        format!("[[caller]]\nlabel = \"caller-{number:05}\"\nmatch = {{ user = \"u{number}\" }}\n")
    });
    let large = config(&backend, "in_turn", THREE, &rows.collect::<String>());
    let sidecar = Sidecar::start(&large).await;
    storm(&sidecar, 10).await;
    let log = ended(sidecar).await;
    let said = plan(&log).await;
    assert!(said.out.contains("larger than 48 KiB"), "{}", said.out);
    assert_eq!(said.code, Some(2));
    // Another config does not stand in for it.
    let other = large.replace("caller-00001", "caller-x");
    let said = plan_with(&log, &other, &["--config-of=new.toml"]).await;
    assert_eq!(said.code, Some(2), "{}", said.out);
    for argument in [
        &["--config-of=new.toml"][..],
        &["--config=new.toml", "--clients=open"],
    ] {
        let said = plan_with(&log, &large, argument).await;
        let told = "identity: the same decision in all 10 lines";
        assert!(
            said.out.contains(told),
            "{argument:?}: {}{}",
            said.out,
            said.err
        );
        assert_eq!(said.code, Some(0));
    }
}
