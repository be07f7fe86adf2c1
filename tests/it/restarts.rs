//! A sidecar dies in a storm and starts again: the backend never sees more than the limits, by its own count.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_lab::backend::{BackendStatistics, RunningBackend, StandInBackend, StandInOptions};
use tidegate_ledger::{Boot, CallAtBackend, read};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::sidecar::Sidecar;
use crate::sidecar::plan;
use crate::support::{PATIENCE, array, closed_port};

const CLIENTS: usize = 60;

/// A limit that must hold over restarts.
#[derive(Clone, Copy)]
struct Case<'a> {
    name: &'static str,
    /// Lines in `[limits]`.
    limits: &'a str,
    /// Sections after it.
    sections: &'static str,
    postpone: &'static str,
    /// How long the backend takes for a call.
    delay: Duration,
    /// Most calls in any second, or of a bucket in a second after `burst`.
    per_second: u32,
    at_once: u32,
    /// Calls of a bucket that begins full.
    burst: Option<u32>,
}

const WINDOW: Case<'static> = Case {
    name: "30 a second, 10 at once",
    limits: "per_window = \"total:30\"\noutstanding = 10",
    sections: "",
    postpone: "in_turn",
    delay: Duration::from_millis(50),
    per_second: 30,
    at_once: 10,
    burst: None,
};

const CASES: [Case<'static>; 7] = [
    WINDOW,
    Case {
        delay: Duration::from_millis(300),
        ..WINDOW
    },
    Case {
        name: "the same with jitter",
        postpone: "jitter",
        ..WINDOW
    },
    Case {
        name: "a function, 10 a second",
        limits: "per_window = \"total:1000, guest_get_info:10\"\noutstanding = 20",
        per_second: 10,
        at_once: 20,
        ..WINDOW
    },
    Case {
        name: "a pool, 5 at once",
        limits: "per_window = \"total:1000\"\noutstanding = 20",
        sections: "[[class]]\nname = \"reads\"\nfunctions = [\"guest_get_info\"]\noutstanding_max = 5",
        delay: Duration::from_millis(300),
        per_second: 1000,
        at_once: 5,
        ..WINDOW
    },
    Case {
        name: "a bucket of 30, 5 a second",
        limits: "per_window = \"total:1000\"\noutstanding = 20",
        sections: "[[bucket]]\nname = \"all\"\nburst = 30\nfill = 5\n\
                   [[caller]]\nlabel = \"everybody\"\nmatch = { listener = \"test\" }\nrate_limit = \"all\"",
        per_second: 5,
        at_once: 20,
        burst: Some(30),
        ..WINDOW
    },
    Case {
        name: "a quota in memory, 40 in 2 s",
        limits: "per_window = \"total:1000\"\noutstanding = 20",
        sections: "[[quota]]\nname = \"all\"\napplies_to = \"total\"\ntotal = 40\n\
                   refresh_window = \"2s\"\non_excess = \"delay\"\n[quota_store]",
        per_second: 20,
        at_once: 20,
        // A time touches two windows more than it has lengths.
        burst: Some(80),
        ..WINDOW
    },
];

async fn backend(delay: Duration) -> RunningBackend {
    let options = StandInOptions {
        delay,
        ..StandInOptions::on_free_ports()
    };
    StandInBackend::start(options).await.expect("it listens")
}

fn config(
    bind: SocketAddr,
    backend: &RunningBackend,
    after_crash: &str,
    case: &Case<'_>,
) -> String {
    let Case {
        limits,
        sections,
        postpone,
        ..
    } = case;
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "{bind}"
        [backend]
        kind = "zvm"
        socket = "{}"
        after_crash = "{after_crash}"
        [queue]
        postpone = "{postpone}"
        [limits]
        {limits}
        # The backend notes a call when its task runs, which is late on a busy machine.
        window_guard = "200ms"
        [admin]
        bind = "127.0.0.1:0"
        {sections}
        "#,
        backend.socket_addr()
    )
}

/// Clients that call again and again, and wait for a sidecar that does not listen.
fn storm(addr: SocketAddr) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(async move {
            loop {
                let called = async {
                    let mut stream = TcpStream::connect(addr).await.ok()?;
                    let call = array("guest_get_info", &format!("G{client}"));
                    stream.write_all(call.as_bytes()).await.ok()?;
                    let mut answer = Vec::new();
                    stream.read_to_end(&mut answer).await.ok()
                };
                if called.await.is_none() {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        });
    }
    clients
}

/// Whether the next process finds what the one before left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ledger {
    Kept,
    Lost,
}

/// The ledger of the sidecar whose config is in this folder.
fn ledger_of(dir: &Path) -> PathBuf {
    let files = std::fs::read_dir(dir.join("config.run")).expect("a folder");
    let mut paths = files.map(|file| file.expect("readable").path());
    let ledger = paths.find(|path| path.extension().is_some_and(|it| it == "ledger"));
    ledger.expect("a ledger")
}

/// Ends a sidecar by this signal, some calls after the last one, and starts the next at once. Returns what the backend saw,
/// and in how much time.
async fn restarts(
    signal: &str,
    times: usize,
    case: &Case<'_>,
    ledger: Ledger,
) -> (BackendStatistics, Duration, Vec<String>) {
    let backend = backend(case.delay).await;
    let addr = closed_port();
    // Longer than a call takes.
    let after_crash = match ledger {
        Ledger::Kept => "1s",
        Ledger::Lost => "0s",
    };
    let text = config(addr, &backend, after_crash, case);
    let text = match ledger {
        Ledger::Kept => text,
        Ledger::Lost => text.replace("[limits]", "[limits]\nledger_lost = \"assume_empty\""),
    };
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let start = || Sidecar::start_in(Arc::clone(&dir), &text, |binary| Command::new(binary));
    let mut sidecar = start().await;
    let (clients, began) = (storm(addr), Instant::now());
    let mut said = Vec::new();
    for round in 0..times {
        // At another place of the window each time.
        let spread = u64::from(case.per_second.min(31));
        let calls = backend.report().calls + 3 + (7 * round as u64) % spread;
        let reached = backend.wait_until(|report| report.calls >= calls);
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.expect("calls go on");
        sidecar.signal(signal);
        sidecar.exited().await;
        if ledger == Ledger::Lost {
            let ledger = ledger_of(dir.path());
            std::fs::remove_file(&ledger).expect("it was there");
            let _ = std::fs::remove_file(ledger.with_extension("quotas"));
        }
        sidecar = start().await;
        said.extend(sidecar.log().lines().iter().cloned());
    }
    drop(clients);
    (backend.report(), began.elapsed(), said)
}

/// Excess of what the backend saw over the limit; `None` if it held.
fn excess(case: &Case<'_>, report: &BackendStatistics, took: Duration) -> Option<String> {
    let most = case.burst.map(|burst| {
        let filled = took.as_secs_f64() * f64::from(case.per_second);
        f64::from(burst) + filled + 1.0
    });
    let held = report.peak_in_flight <= case.at_once
        && match most {
            Some(most) => report.calls as f64 <= most,
            None => report.densest_second <= case.per_second,
        };
    (!held).then(|| format!("{}: {report}, {most:?} calls may", case.name))
}

#[tokio::test]
async fn a_killed_sidecar_leaves_no_window_and_no_slot_behind() {
    for case in &CASES[..2] {
        let (report, took, said) = restarts("KILL", 6, case, Ledger::Kept).await;
        assert_eq!(excess(case, &report, took), None);
        let carried = |line: &&String| line.contains("counts what the process before left");
        assert_eq!(said.iter().filter(carried).count(), 6, "{said:#?}");
    }
}

#[tokio::test]
async fn a_killed_sidecar_leaves_a_pool_a_bucket_and_a_quota_behind() {
    for case in &CASES[4..] {
        let (report, took, _) = restarts("KILL", 6, case, Ledger::Kept).await;
        assert_eq!(excess(case, &report, took), None);
    }
}

#[tokio::test]
async fn a_sidecar_that_is_stopped_leaves_no_window_behind() {
    let (report, took, _) = restarts("TERM", 6, &WINDOW, Ledger::Kept).await;
    assert_eq!(excess(&WINDOW, &report, took), None);
}

/// Without a ledger the backend gets more: the tests above see it if the ledger does not hold.
#[tokio::test]
async fn a_killed_sidecar_without_a_ledger_breaks_a_window() {
    let (report, took, _) = restarts("KILL", 6, &WINDOW, Ledger::Lost).await;
    assert!(excess(&WINDOW, &report, took).is_some(), "{report}");
}

#[tokio::test]
async fn a_killed_sidecar_without_a_ledger_breaks_a_quota_in_memory() {
    let case = &CASES[6];
    let (report, took, _) = restarts("KILL", 6, case, Ledger::Lost).await;
    assert!(excess(case, &report, took).is_some(), "{report}");
}

/// The second process counts what the first left, says so, and logs enough for a replay of its own decisions.
#[tokio::test]
async fn what_was_carried_over_is_shown_and_replayed() {
    let case = &CASES[1];
    let backend = backend(case.delay).await;
    let addr = closed_port();
    let text = config(addr, &backend, "1500ms", case)
        + "[log]\naccess = true\nreplay = true\nformat = \"json\"\n";
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let start = || Sidecar::start_in(Arc::clone(&dir), &text, |binary| Command::new(binary));
    let sidecar = start().await;
    let (clients, began) = (storm(addr), Instant::now());
    let calls = backend.wait_until(|report| report.calls >= 45);
    tokio::time::timeout(PATIENCE, calls)
        .await
        .expect("calls go on");
    sidecar.signal("KILL");
    sidecar.exited().await;
    let sidecar = start().await;
    for name in ["tidegate_carried_departures", "tidegate_carried_calls"] {
        let carried = sidecar.metric(name).await;
        assert!(carried >= 1.0, "{name} {carried}");
    }
    let (_, now) = sidecar.ask("GET", "/v1/now", "").await;
    let notice = "calls of the process before hold slots";
    assert!(now.contains(notice), "{now}");
    let explained = explained_by_carried_calls(&sidecar).await;
    assert!(
        explained["carried_slots"].as_u64() >= Some(1),
        "{explained}"
    );
    sidecar.log().wait(&["hold their slots no longer"]).await;
    let before = backend.report().calls;
    let more = backend.wait_until(|report| report.calls >= before + 40);
    tokio::time::timeout(PATIENCE, more)
        .await
        .expect("calls go on");
    drop(clients);
    sidecar.signal("TERM");
    let (_, lines) = sidecar.ended().await;
    let said = plan(&lines.join("\n")).await;
    let same = "identity: the same decision in all";
    assert!(said.out.contains(same), "{}{}", said.out, said.err);
    assert_eq!(excess(case, &backend.report(), began.elapsed()), None);
}

/// The explanation of a call that waits for slots of the process before.
async fn explained_by_carried_calls(sidecar: &Sidecar) -> serde_json::Value {
    let began = Instant::now();
    loop {
        let (_, now) = sidecar.ask("GET", "/v1/now", "").await;
        let now: serde_json::Value = serde_json::from_str(&now).expect("JSON");
        let oldest = now["oldest_calls"].as_array().expect("a list");
        for id in oldest.iter().filter_map(|call| call["id"].as_str()) {
            let (_, call) = sidecar.ask("GET", &format!("/v1/calls/{id}"), "").await;
            if call.contains("of the process before, for at most") {
                return serde_json::from_str(&call).expect("JSON");
            }
            assert!(began.elapsed() < PATIENCE, "{call}");
        }
    }
}

/// With no time of the operator, a call holds its slot as long as the process before saw that such calls take.
#[tokio::test]
async fn a_call_of_a_killed_sidecar_holds_its_slot_for_its_usual_time() {
    let case = &CASES[1];
    let backend = backend(case.delay).await;
    let addr = closed_port();
    let text = config(addr, &backend, "1s", case).replace("after_crash = \"1s\"", "");
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let start = || Sidecar::start_in(Arc::clone(&dir), &text, |binary| Command::new(binary));
    let sidecar = start().await;
    let (clients, began) = (storm(addr), Instant::now());
    let calls = backend.wait_until(|report| report.calls >= 150);
    tokio::time::timeout(PATIENCE, calls)
        .await
        .expect("calls go on");
    sidecar.signal("KILL");
    sidecar.exited().await;
    let usual = calls_of(dir.path()).into_iter().map(|call| call.usual_ms);
    let usual: Vec<_> = usual.collect();
    assert!(!usual.is_empty());
    assert!(
        usual.iter().all(|ms| (300..10_000).contains(ms)),
        "{usual:?}"
    );
    let sidecar = start().await;
    sidecar.log().wait(&["hold their slots no longer"]).await;
    let before = backend.report().calls;
    let more = backend.wait_until(|report| report.calls >= before + 20);
    tokio::time::timeout(PATIENCE, more)
        .await
        .expect("calls go on");
    drop(clients);
    assert_eq!(excess(case, &backend.report(), began.elapsed()), None);
}

/// The line about what was carried over, in a log in JSON.
async fn carried(sidecar: &Sidecar) -> serde_json::Value {
    let said = sidecar.log().wait(&["counts what the process before left"]);
    serde_json::from_str(&said.await).expect("a line in JSON")
}

/// A reload with other limits gets a new ledger, and the levels of buckets are in it although no call is charged. A stop
/// before `after_crash` leaves calls of the process before to the next one, which does not hold them longer for it.
#[tokio::test]
async fn a_reload_and_a_stop_between_two_crashes_lose_nothing() {
    let backend = backend(Duration::from_secs(60)).await;
    let case = &CASES[5];
    let text = |limits: &str| {
        let case = Case { limits, ..*case };
        config(closed_port(), &backend, "60s", &case)
            + "[server]\ndrain_timeout = \"0s\"\n[log]\nformat = \"json\"\n"
    };
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let start = |text: String| {
        let dir = Arc::clone(&dir);
        async move { Sidecar::start_in(dir, &text, |binary| Command::new(binary)).await }
    };
    let limits = "per_window = \"total:1000\"\nledger_lost = \"assume_empty\"";
    let first = start(text(limits)).await;
    let addr = first.listener("test").await;
    let mut calls = JoinSet::new();
    for _ in 0..3 {
        calls.spawn(async move {
            let mut stream = TcpStream::connect(addr).await.expect("it listens");
            let call = array("guest_get_info", "G1");
            stream.write_all(call.as_bytes()).await.expect("it reads");
            let _ = stream.read_to_end(&mut Vec::new()).await;
        });
    }
    backend.wait_until(|report| report.calls >= 3).await;
    first.signal("KILL");
    first.exited().await;
    let second = start(text(limits)).await;
    let said = carried(&second).await;
    assert_eq!((&said["calls"], &said["levels"]), (&3.into(), &1.into()));
    let held_since = held_since(dir.path());
    assert!(held_since.iter().all(Option::is_some) && held_since.len() == 3);
    // Fewer at once than there are at the backend.
    let fewer = limits.replace("1000", "2000") + "\noutstanding = 1";
    second.reload(&text(&fewer)).await;
    second.signal("TERM");
    second.exited().await;
    let third = start(text(limits)).await;
    let said = carried(&third).await;
    assert_eq!((&said["calls"], &said["levels"]), (&3.into(), &1.into()));
    assert_eq!(self::held_since(dir.path()), held_since);
}

/// Since when each call in a ledger has been held as a call of a process before, while no call comes or ends.
fn held_since(dir: &Path) -> Vec<Option<NonZeroU64>> {
    calls_of(dir).iter().map(|call| call.held_since).collect()
}

/// The calls in a ledger, while no process changes it.
fn calls_of(dir: &Path) -> Vec<CallAtBackend> {
    let bytes = std::fs::read(ledger_of(dir)).expect("a ledger");
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux");
    let id = u128::from_str_radix(&id.trim().replace('-', ""), 16).expect("a number");
    let boot = Boot([(id >> 64) as u64, id as u64]);
    read(&bytes, boot, u64::MAX).expect("it is whole").calls
}

/// A ledger that is damaged, or that has no place, costs one line and not the start.
#[tokio::test]
async fn a_damaged_ledger_and_one_without_a_place_are_said_and_calls_are_served() {
    let backend = backend(Duration::ZERO).await;
    let text = config(closed_port(), &backend, "1s", &WINDOW);
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let start = || Sidecar::start_in(Arc::clone(&dir), &text, |binary| Command::new(binary));
    let served = async |sidecar: &Sidecar| {
        let addr = sidecar.listener("test").await;
        let answer = crate::support::ask(addr, array("guest_get_info", "G1")).await;
        assert!(
            answer.contains("\"overallRC\": 0") || answer.contains("\"overallRC\":0"),
            "{answer}"
        );
    };
    let first = start().await;
    served(&first).await;
    first.signal("KILL");
    first.exited().await;
    std::fs::write(ledger_of(dir.path()), [7; 5000]).expect("it is ours");
    let second = start().await;
    second.log().wait(&["windows begin full"]).await;
    served(&second).await;
    drop(second);
    let third = Sidecar::start_with(&text, |binary| {
        let mut command = Command::new(binary);
        command.env("TIDEGATE_RUNTIME_DIR", "/dev/null/no-folder");
        command
    })
    .await;
    let told = "give the process a directory that it may write";
    third.log().wait(&[told]).await;
    served(&third).await;
}

#[tokio::test]
async fn damaged_records_of_a_quota_are_said_and_calls_are_served() {
    let backend = backend(Duration::ZERO).await;
    let text = config(closed_port(), &backend, "1s", &CASES[6]);
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let start = || Sidecar::start_in(Arc::clone(&dir), &text, |binary| Command::new(binary));
    let first = start().await;
    first.signal("KILL");
    first.exited().await;
    let records = ledger_of(dir.path()).with_extension("quotas");
    assert!(records.exists());
    std::fs::write(&records, [7; 5000]).expect("it is ours");
    let second = start().await;
    let said = "records of quotas of the process before are not known";
    second.log().wait(&[said]).await;
    let addr = second.listener("test").await;
    let answer = crate::support::ask(addr, array("guest_get_info", "G1")).await;
    assert!(answer.contains("overallRC"), "{answer}");
    backend.wait_until(|report| report.calls == 1).await;
}

#[tokio::test]
async fn a_second_sidecar_with_the_same_config_names_the_first() {
    let backend = backend(Duration::ZERO).await;
    let text = config(
        SocketAddr::from(([127, 0, 0, 1], 0)),
        &backend,
        "1s",
        &WINDOW,
    );
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let first = Sidecar::start_in(Arc::clone(&dir), &text, |binary| Command::new(binary)).await;
    let second = std::process::Command::new(crate::sidecar::TIDEGATE)
        .env("TIDEGATE_RUNTIME_DIR", dir.path().join("config.run"))
        .args(["serve", "--config"])
        .arg(dir.path().join("config.toml"))
        .output()
        .expect("the binary runs");
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("pid {}", first.pid)), "{said}");
}

/// Writes docs/reports/restarts.md.
#[tokio::test]
#[ignore = "`make restarts` runs it; it takes minutes"]
async fn the_table() {
    let times = std::env::var("RESTARTS")
        .ok()
        .and_then(|it| it.parse().ok());
    let times = times.unwrap_or(100);
    let (mut rows, mut wrong) = (String::new(), Vec::new());
    for case in &CASES {
        for (signal, ledger) in [
            ("KILL", Ledger::Kept),
            ("TERM", Ledger::Kept),
            ("KILL", Ledger::Lost),
        ] {
            let rounds = match (ledger, signal) {
                // Each is a drain of all that waits, which takes half a minute for a bucket.
                (_, "TERM") => times.min(10),
                (Ledger::Lost, _) => times.min(20),
                (Ledger::Kept, _) => times,
            };
            let (report, took, _) = restarts(signal, rounds, case, ledger).await;
            let excess = excess(case, &report, took);
            let (ledger, holds) = match (ledger, &excess) {
                (Ledger::Kept, Some(excess)) => {
                    wrong.push(excess.clone());
                    ("kept", "no")
                }
                (Ledger::Kept, None) => ("kept", "yes"),
                (Ledger::Lost, Some(_)) => ("lost", "no"),
                (Ledger::Lost, None) => ("lost", "yes"),
            };
            let row = format!(
                "| {} | {:.2} s | {signal} | {ledger} | {rounds} | {} | {:.0} s | {} | {} | {holds} |\n",
                case.name,
                case.delay.as_secs_f64(),
                report.calls,
                took.as_secs_f64(),
                report.densest_second,
                report.peak_in_flight,
            );
            println!("{row}");
            rows += &row;
        }
    }
    if std::env::var_os("TIDEGATE_SEED").is_none() {
        let page = format!("{PAGE}{rows}");
        std::fs::write("docs/reports/restarts.md", page).expect("the page is ours");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const PAGE: &str = "\
# Restarts

What a backend sees while a sidecar is killed or stopped in a storm of 60 clients, and started again at once with the same
config. Measured by `make restarts` at the backend, by its own count. With `lost`, the ledger is removed between the two processes and
windows begin empty: so it was before there was a ledger, and so each other proxy does it.

| limit | a call takes | signal | ledger | restarts | calls | in | densest second | most at once | holds |
|---|---|---|---|---|---|---|---|---|---|
";
