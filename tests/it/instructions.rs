//! A call takes no more instructions than it is allowed to, by callgrind: each pure stage, and
//! a whole call.
//!
//! The stages are those of `crates/zvm/examples/stages.rs`, built as a release without the
//! optimisation of the program as one. A whole call is one through the program as `cargo test`
//! builds it, because a release takes minutes to build. That takes several times as many
//! instructions, and grows with what a release takes.
//!
//! `tests/instructions.toml` has the bounds, and the compiler that they hold for. With another, or
//! without valgrind, nothing is compared. `MAKE_BOUNDS=1` writes what was counted as the bounds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use tidegate_lab::backend::{self, RunningBackend, StandInBackend};
use tidegate_lab::bench::{self, TargetProtocol};
use tokio::runtime::Runtime;

use crate::child::Process;
use crate::sidecar::{TIDEGATE, field};
use crate::support::cannot_run;

/// How often each stage runs, and how many calls are made, in two runs. What a start takes is in
/// both, so that it is not in their difference.
const TURNS: [u64; 2] = [1000, 3000];
const CALLS: [u64; 2] = [300, 1300];
/// A pure stage takes the same in every run.
const STAGE_SLACK: f64 = 1.02;
/// A whole call has timers in it, and reads that find nothing.
const CALL_SLACK: f64 = 1.05;
/// Under valgrind a start takes seconds, on a busy machine a minute.
const PATIENCE: Duration = Duration::from_secs(300);
const BOUNDS: &str = "tests/instructions.toml";

#[test]
fn a_call_and_its_pure_stages_take_no_more_instructions_than_they_may() {
    let bounds = bounds();
    if let Some(why) = obstacle(&bounds) {
        return cannot_run("instructions", &why);
    }
    let stages = stages();
    let runtime = Runtime::new().expect("threads");
    let backend = runtime.block_on(StandInBackend::start(backend::StandInOptions {
        delay: Duration::ZERO,
        ..backend::StandInOptions::on_free_ports()
    }));
    let backend = backend.expect("free ports");
    let (socket, http) = thread::scope(|scope| {
        let socket = scope.spawn(|| call(&runtime, &backend, TargetProtocol::Socket));
        let http = call(&runtime, &backend, TargetProtocol::Http);
        (socket.join().expect("it counted"), http)
    });
    let call = BTreeMap::from([("socket".to_owned(), socket), ("http".to_owned(), http)]);
    if makes_bounds() {
        let text = rewritten(&stages, &call);
        std::fs::write(root().join(BOUNDS), text).expect("the file can be written");
        return;
    }
    // The stages first: what grew there also grew in the call.
    compare("the pure stages", STAGE_SLACK, &bounds.stages, &stages);
    if cfg!(debug_assertions) {
        compare("a whole call", CALL_SLACK, &bounds.call, &call);
    } else {
        let why = "the bounds of a whole call are of a build that is not optimised";
        cannot_run("instructions: a whole call", why);
    }
}

/// Instructions of one turn of each pure stage, by its name.
fn stages() -> BTreeMap<String, f64> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args([
        "build",
        "--quiet",
        "--profile",
        "counted",
        "--package",
        "tidegate-zvm",
        "--example",
        "stages",
        "--message-format",
        "json",
    ]);
    let built = cargo.output().expect("cargo runs");
    assert!(built.status.success(), "the stages cannot be built");
    let built = String::from_utf8(built.stdout).expect("lines of JSON");
    let program = built
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|line| Some(line["executable"].as_str()?.to_owned()));
    let program = program.expect("cargo names what it built");

    let mut counts = Vec::new();
    for turns in TURNS {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let profile = folder.path().join("profile");
        let mut valgrind = callgrind(&profile);
        let ran = valgrind.arg(&program).arg(turns.to_string()).output();
        let ran = ran.expect("valgrind runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "the stages failed: {said}");
        let profile = std::fs::read_to_string(&profile).expect("callgrind wrote it");
        counts.push(with_what_they_call(&profile));
    }
    let turns = (TURNS[1] - TURNS[0]) as f64;
    counts[1]
        .iter()
        .filter_map(|(function, many)| {
            let name = function.strip_prefix("stages::")?;
            let few = counts[0].get(function)?;
            (name != "main").then(|| (name.to_owned(), (many - few) as f64 / turns))
        })
        .collect()
}

/// Instructions of one call through the program.
fn call(runtime: &Runtime, backend: &RunningBackend, protocol: TargetProtocol) -> f64 {
    let mut counts = Vec::new();
    for calls in CALLS {
        counts.push(calls_of(runtime, backend, protocol, calls));
    }
    (counts[1] - counts[0]) as f64 / (CALLS[1] - CALLS[0]) as f64
}

/// Instructions of a process that serves this number of calls, from its start to its end.
fn calls_of(
    runtime: &Runtime,
    backend: &RunningBackend,
    protocol: TargetProtocol,
    calls: u64,
) -> u64 {
    let config = format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        protocol = "auto"
        [backend]
        kind = "zvm"
        socket = "{}"
        http = "http://{}"
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:1000000"
        [admin]
        bind = "127.0.0.1:0"
        [log]
        access = false
        "#,
        backend.socket_addr(),
        backend.http_addr()
    );
    let folder = tempfile::tempdir().expect("a temporary directory");
    let profile = folder.path().join("profile");
    let file = folder.path().join("config.toml");
    std::fs::write(&file, config).expect("it can be written to");
    let mut command = callgrind(&profile);
    command
        // The history and the log have threads of their own, which work by the clock.
        .arg("--separate-threads=yes")
        .args([TIDEGATE, "serve", "--config"])
        .arg(&file)
        .env("TIDEGATE_RUNTIME_DIR", folder.path());
    let sidecar = Process::start("serve under callgrind", &mut command);
    let target = sidecar.stderr.until("it listened", PATIENCE, |lines| {
        let fits = |line: &&String| line.contains("\"message\":\"listening\"");
        let line = lines.iter().find(fits)?;
        field(line, "address").parse().ok()
    });
    let load = bench::run(bench::BenchOptions {
        target,
        protocol,
        connections: 1,
        calls: Some(calls),
        seconds: PATIENCE,
        ..bench::BenchOptions::default()
    });
    let report = runtime.block_on(load).expect("a load that can be run");
    assert_eq!((report.ok, report.failed), (calls, 0), "{report:?}");
    sidecar.signal("TERM");
    sidecar.finish(PATIENCE);
    let profile = std::fs::read_to_string(folder.path().join("profile-01"));
    let profile = profile.expect("callgrind wrote one for the main thread");
    let totals = profile
        .lines()
        .find_map(|line| line.strip_prefix("totals: "));
    let totals = totals.expect("a profile ends with its totals").trim();
    totals.parse().expect("a number")
}

fn callgrind(profile: &Path) -> Command {
    let mut command = Command::new("valgrind");
    let mut out = std::ffi::OsString::from("--callgrind-out-file=");
    out.push(profile);
    command.arg("--tool=callgrind").arg(out);
    command
}

/// Instructions by function, each with those of the functions that it calls.
fn with_what_they_call(profile: &str) -> BTreeMap<String, u64> {
    let mut names = BTreeMap::new();
    let mut counts = BTreeMap::new();
    let mut called = None;
    let mut is_a_call = false;
    for line in profile.lines() {
        if let Some(named) = line.strip_prefix("fn=").or(line.strip_prefix("cfn=")) {
            // `(17) name`, and from then on `(17)`.
            let (number, name) = named.split_once(' ').unwrap_or((named, ""));
            if !name.is_empty() {
                names.insert(number, name);
            }
            if line.starts_with("cfn=") {
                called = names.get(number).copied();
            }
        } else if line.starts_with("calls=") {
            is_a_call = true;
        } else if std::mem::take(&mut is_a_call) {
            let count = line.split(' ').nth(1).and_then(|it| it.parse::<u64>().ok());
            let function = called.expect("a call names what it calls").to_owned();
            *counts.entry(function).or_default() += count.expect("a call has a cost");
        }
    }
    counts
}

/// The contents of the file of bounds.
#[derive(Deserialize)]
struct Bounds {
    rustc: String,
    stages: BTreeMap<String, f64>,
    call: BTreeMap<String, f64>,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn bounds() -> Bounds {
    let text = std::fs::read_to_string(root().join(BOUNDS)).expect("the file of bounds");
    toml::from_str(&text).expect("bounds")
}

/// The version of the compiler that built this.
fn rustc() -> String {
    let said = Command::new("rustc")
        .arg("--version")
        .current_dir(root())
        .output();
    let said = said.expect("rustc runs, as it has built this").stdout;
    let said = String::from_utf8(said).expect("a line of text");
    said.split(' ').nth(1).unwrap_or_default().to_owned()
}

/// Why nothing can be compared here.
fn obstacle(bounds: &Bounds) -> Option<String> {
    let runs = Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if !runs.is_ok_and(|status| status.success()) {
        return Some("valgrind is not installed: `make valgrind` installs it".to_owned());
    }
    if !is_the_machine() {
        return Some("the bounds are of an x86-64 with AVX2".to_owned());
    }
    let rustc = rustc();
    let differs = rustc != bounds.rustc && !makes_bounds();
    differs.then(|| format!("the bounds are of rustc {}, not {rustc}", bounds.rustc))
}

#[cfg(target_arch = "x86_64")]
fn is_the_machine() -> bool {
    // The C library and memchr choose their code by it.
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn is_the_machine() -> bool {
    false
}

fn makes_bounds() -> bool {
    std::env::var_os("MAKE_BOUNDS").is_some()
}

/// The file of bounds with these, and with the lines of its head as they are.
fn rewritten(stages: &BTreeMap<String, f64>, call: &BTreeMap<String, f64>) -> String {
    let old = std::fs::read_to_string(root().join(BOUNDS)).expect("the file of bounds");
    let head = old.lines().take_while(|line| line.starts_with('#'));
    let mut text: String = head.map(|line| format!("{line}\n")).collect();
    let _ = writeln!(text, "rustc = \"{}\"", rustc());
    for (part, counted) in [("stages", stages), ("call", call)] {
        let _ = writeln!(text, "\n[{part}]");
        for (name, count) in counted {
            let _ = writeln!(text, "{name} = {count:.0}");
        }
    }
    text
}

/// Fails if more was counted than the bounds allow.
fn compare(
    part: &str,
    slack: f64,
    bounds: &BTreeMap<String, f64>,
    counted: &BTreeMap<String, f64>,
) {
    let mut table = String::new();
    let mut is_within = true;
    for (name, &count) in counted {
        let bound = bounds.get(name).copied().unwrap_or(0.0);
        is_within &= count <= bound * slack;
        let change = (count / bound - 1.0) * 100.0;
        let _ = writeln!(
            table,
            "{name}: {count:.0}, bound {bound:.0} ({change:+.1} %)"
        );
    }
    let names = bounds.keys().eq(counted.keys());
    assert!(
        is_within && names,
        "instructions of {part}, at most {:.0} % above the bounds of {BOUNDS}:\n{table}\
         If it has to take more, `MAKE_BOUNDS=1 cargo test -p tidegate --test it instructions::` writes new bounds.",
        (slack - 1.0) * 100.0
    );
}
