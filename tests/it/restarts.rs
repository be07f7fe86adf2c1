//! A sidecar dies in a storm and starts again: the backend never sees more than the limits, by its own count.

mod oom;
mod peers;
mod rule;
mod table;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::os::unix::process::ExitStatusExt as _;
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

use self::oom::MemoryGroup;
use self::rule::Rule;
use crate::sidecar::Sidecar;
use crate::sidecar::plan;
use crate::support::{PATIENCE, array, cannot_run, closed_port};

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
    rule: Rule,
    at_once: u32,
}

const WINDOW: Case<'static> = Case {
    name: "30 a second, 10 at once",
    limits: "per_window = \"total:30\"\noutstanding = 10",
    sections: "",
    postpone: "in_turn",
    delay: Duration::from_millis(50),
    rule: Rule::Second(30),
    at_once: 10,
};

const CASES: [Case<'static>; 8] = [
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
        rule: Rule::Second(10),
        at_once: 20,
        ..WINDOW
    },
    Case {
        name: "a pool, 5 at once",
        limits: "per_window = \"total:1000\"\noutstanding = 20",
        sections: "[[class]]\nname = \"reads\"\nfunctions = [\"guest_get_info\"]\noutstanding_max = 5",
        delay: Duration::from_millis(300),
        rule: Rule::Second(1000),
        at_once: 5,
        ..WINDOW
    },
    Case {
        name: "a bucket of 30, 5 a second",
        limits: "per_window = \"total:1000\"\noutstanding = 20",
        sections: "[[bucket]]\nname = \"all\"\nburst = 30\nfill = 5\n\
                   [[caller]]\nlabel = \"everybody\"\nmatch = { listener = \"test\" }\nrate_limit = \"all\"",
        rule: Rule::Fills { burst: 30, rate: 5 },
        at_once: 20,
        ..WINDOW
    },
    Case {
        name: "a quota in memory, 40 in 2 s",
        limits: "per_window = \"total:1000\"\noutstanding = 20",
        sections: "[[quota]]\nname = \"all\"\napplies_to = \"total\"\ntotal = 40\n\
                   refresh_window = \"2s\"\non_excess = \"delay\"\n[quota_store]",
        rule: Rule::TwoSeconds(40),
        at_once: 20,
        ..WINDOW
    },
    Case {
        name: "a pace, 2 a second",
        limits: "per_window = \"total:1000\"\noutstanding = 20",
        sections: "[[pace]]\nname = \"all\"\nrate = 2\nratio = 1\napplies_to = \"total\"",
        // Two may go at once after a silence.
        rule: Rule::Fills { burst: 2, rate: 2 },
        at_once: 20,
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

/// How a sidecar ends.
#[derive(Clone, Copy)]
enum End<'a> {
    Signal(&'a str),
    /// The kernel needs its memory.
    Memory(&'a MemoryGroup),
}

/// The record of a backend, and the logs of the sidecars.
struct Seen {
    report: BackendStatistics,
    /// Calls that were one too many for the rule.
    over: usize,
    took: Duration,
    said: Vec<String>,
}

/// Ends a sidecar, some calls after the last one, and starts the next at once.
async fn restarts(end: End<'_>, times: usize, case: &Case<'_>, ledger: Ledger) -> Seen {
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
    let command = |binary: &str| match end {
        End::Signal(_) => Command::new(binary),
        End::Memory(group) => group.command(binary),
    };
    let start = || Sidecar::start_in(Arc::clone(&dir), &text, command);
    let mut sidecar = start().await;
    let (clients, began) = (storm(addr), Instant::now());
    let mut said = Vec::new();
    for round in 0..times {
        // At another place of the window each time.
        let spread = u64::from(case.rule.densest_second().min(31));
        let calls = backend.report().calls + 3 + (7 * round as u64) % spread;
        let reached = backend.wait_until(|report| report.calls >= calls);
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.expect("calls go on");
        match end {
            End::Signal(signal) => {
                sidecar.signal(signal);
                sidecar.exited().await;
            }
            End::Memory(group) => {
                let pid = sidecar.pid;
                let (status, ()) = tokio::join!(sidecar.exited(), group.use_up(pid));
                assert_eq!(status.signal(), Some(9), "the kernel ends it");
            }
        }
        if ledger == Ledger::Lost {
            let ledger = ledger_of(dir.path());
            std::fs::remove_file(&ledger).expect("it was there");
            let _ = std::fs::remove_file(ledger.with_extension("quotas"));
        }
        sidecar = start().await;
        said.extend(sidecar.log().lines().iter().cloned());
    }
    drop(clients);
    Seen {
        report: backend.report(),
        over: case.rule.calls_over(&backend.starts()),
        took: began.elapsed(),
        said,
    }
}

/// Excess of what the backend saw over the limit; `None` if it held.
fn excess(case: &Case<'_>, backend: &RunningBackend) -> Option<String> {
    let report = backend.report();
    excess_of(case, &report, case.rule.calls_over(&backend.starts()))
}

fn excess_of(case: &Case<'_>, report: &BackendStatistics, over: usize) -> Option<String> {
    let held = report.peak_in_flight <= case.at_once && over == 0;
    (!held).then(|| format!("{}: {over} calls over\n{report}", case.name))
}

impl Seen {
    fn excess(&self, case: &Case<'_>) -> Option<String> {
        excess_of(case, &self.report, self.over)
    }
}

/// Restarts a sidecar six times: the limit holds. Returns what the sidecars said.
async fn check_kept(end: End<'_>, case: &Case<'_>) -> Vec<String> {
    let seen = restarts(end, 6, case, Ledger::Kept).await;
    assert_eq!(seen.excess(case), None);
    seen.said
}

#[tokio::test]
async fn a_killed_sidecar_leaves_no_window_and_no_slot_behind() {
    for case in &CASES[..2] {
        let said = check_kept(End::Signal("KILL"), case).await;
        let carried = |line: &&String| line.contains("counts what the process before left");
        assert_eq!(said.iter().filter(carried).count(), 6, "{said:#?}");
    }
}

#[tokio::test]
async fn a_killed_sidecar_leaves_a_pool_a_bucket_and_a_quota_behind() {
    for case in &CASES[4..] {
        check_kept(End::Signal("KILL"), case).await;
    }
}

#[tokio::test]
async fn a_sidecar_that_is_stopped_leaves_no_window_behind() {
    check_kept(End::Signal("TERM"), &WINDOW).await;
}

#[tokio::test]
async fn a_sidecar_whose_memory_the_kernel_needs_leaves_no_window_behind() {
    let group = match MemoryGroup::create() {
        Ok(group) => group,
        Err(why) => return cannot_run("a_sidecar_whose_memory_the_kernel_needs", &why),
    };
    check_kept(End::Memory(&group), &WINDOW).await;
}

/// Without a ledger the backend gets more: the tests above see it if the ledger does not hold.
#[tokio::test]
async fn a_killed_sidecar_without_a_ledger_breaks_a_window() {
    let seen = restarts(End::Signal("KILL"), 6, &WINDOW, Ledger::Lost).await;
    assert!(seen.excess(&WINDOW).is_some(), "{}", seen.report);
}

#[tokio::test]
async fn a_killed_sidecar_without_a_ledger_breaks_a_quota_in_memory() {
    let case = &CASES[6];
    let seen = restarts(End::Signal("KILL"), 6, case, Ledger::Lost).await;
    assert!(seen.excess(case).is_some(), "{}", seen.report);
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
    let clients = storm(addr);
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
    assert_eq!(excess(case, &backend), None);
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
    let clients = storm(addr);
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
    assert_eq!(excess(case, &backend), None);
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

/// The disk of the ledger is as large as its folder alone, or cannot be written: calls are served and the limits hold, and
/// the log says that a restart forgets them.
#[tokio::test]
async fn a_full_and_a_read_only_disk_of_the_ledger_cost_no_call_and_no_limit() {
    let mounts = |option: &str| {
        format!("mount -t tmpfs -o size=4k,{option} tmpfs \"$TIDEGATE_RUNTIME_DIR\"")
    };
    let tried = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", "mount -t tmpfs -o size=4k tmpfs /mnt"])
        .output();
    if !tried.is_ok_and(|it| it.status.success()) {
        let why = "no small disk can be mounted here, which takes root";
        return cannot_run("a_full_and_a_read_only_disk_of_the_ledger", why);
    }
    for option in ["rw", "ro"] {
        let backend = backend(WINDOW.delay).await;
        let addr = closed_port();
        let text = config(addr, &backend, "1s", &WINDOW);
        let dir = Arc::new(TempDir::new().expect("a folder"));
        let start = || {
            Sidecar::start_in(Arc::clone(&dir), &text, |binary| {
                let script = format!("{} && exec \"$0\" \"$@\"", mounts(option));
                std::fs::create_dir_all(dir.path().join("config.run")).expect("ours");
                let mut command = Command::new("unshare");
                command.args(["-m", "sh", "-c", &script, binary]);
                command
            })
        };
        let sidecar = start().await;
        sidecar.log().wait(&["a restart forgets what counts"]).await;
        let clients = storm(addr);
        let reached = backend.wait_until(|report| report.calls >= 40);
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.expect("calls go on");
        // A reload needs a new file, too.
        let other = text.replace("total:30", "total:29");
        sidecar.reload(&other).await;
        let calls = backend.report().calls;
        let reached = backend.wait_until(|report| report.calls >= calls + 30);
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.expect("calls go on");
        sidecar.signal("KILL");
        sidecar.exited().await;
        // It knows nothing of the one before, so windows begin used up.
        let sidecar = start().await;
        sidecar.log().wait(&["windows begin full"]).await;
        let calls = backend.report().calls;
        let reached = backend.wait_until(|report| report.calls >= calls + 30);
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.expect("calls go on");
        drop(clients);
        // Calls at once may be more, by those that the killed one had sent.
        let over = WINDOW.rule.calls_over(&backend.starts());
        assert_eq!(over, 0, "{option}: {}", backend.report());
        let lines = sidecar.log().lines();
        assert!(
            !lines.iter().any(|line| line.contains("panic")),
            "{lines:#?}"
        );
    }
}

/// A disk on which a new ledger needs four seconds for its name delays no call, and a kill meanwhile forgets none.
#[tokio::test]
async fn a_slow_disk_of_the_ledger_delays_no_call_and_forgets_none() {
    let dir = Arc::new(TempDir::new().expect("a folder"));
    let [source, library, slow] = ["slow.c", "slow.so", "is-slow"].map(|it| dir.path().join(it));
    std::fs::write(&source, include_str!("restarts/slow.c")).expect("ours");
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status();
    assert!(built.expect("there is a C compiler").success());
    let backend = backend(WINDOW.delay).await;
    let addr = closed_port();
    let text = config(addr, &backend, "1s", &WINDOW);
    let start = || {
        Sidecar::start_in(Arc::clone(&dir), &text, |binary| {
            let mut command = Command::new(binary);
            command.env("LD_PRELOAD", &library).env("SLOW_DISK", &slow);
            command
        })
    };
    let sidecar = start().await;
    let clients = storm(addr);
    let reach = async |more: u64| {
        let calls = backend.report().calls + more;
        let reached = backend.wait_until(|report| report.calls >= calls);
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.expect("calls go on");
    };
    reach(40).await;
    std::fs::write(&slow, "").expect("ours");
    // Other regions, so a new file.
    sidecar.write_config(&text.replace(
        "per_window = \"total:30\"",
        "per_window = \"total:30, guest_list:30\"",
    ));
    let began = Instant::now();
    sidecar.signal("HUP");
    reach(60).await;
    let took = began.elapsed();
    assert!(took < Duration::from_millis(3_900), "{took:?}");
    assert!(
        ledger_of(dir.path()).with_extension("new").exists(),
        "it has no name yet"
    );
    sidecar.signal("KILL");
    sidecar.exited().await;
    std::fs::remove_file(&slow).expect("ours");
    let sidecar = start().await;
    sidecar
        .log()
        .wait(&["counts what the process before left"])
        .await;
    reach(30).await;
    drop(clients);
    assert_eq!(excess(&WINDOW, &backend), None);
}
