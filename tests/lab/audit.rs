//! `tidegate audit`: its results equal a brute-force count of every span.

use std::io::Cursor;
use std::ops::Range;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use tidegate_lab::audit::{
    self, Assumptions, AuditReport, AuditVerdict, AuditedLimit, CountingScope, CountingSpan, Log,
    Meets,
};
use tidegate_lab::backend::{StandInBackend, StandInOptions};
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::seeds::seeds;
use crate::sidecar::{Said, Sidecar, run, with_programs};
use crate::support::{array, ask};

const SEEDS: Range<u64> = 0..3_000;
/// Nanoseconds.
const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
/// Of all windows here.
const WINDOW: u64 = 100 * MILLI;
/// 2026-11-22, in nanoseconds since the epoch, and a whole number of windows.
const DAY: u64 = 1_795_305_600 * 1_000_000_000;

/// A process, and how far its clock is off.
struct Process {
    /// When it started, in truth.   ns since the epoch
    started: u64,
    /// ns
    error: i64,
    /// Of its first call.
    id: u64,
}

impl Process {
    /// The time that the process takes a moment for.
    fn wall(&self, at: u64) -> u64 {
        at.saturating_add_signed(self.error)
    }
}

/// A call, in true times.   ns since the epoch
#[derive(Clone, Debug)]
struct Call {
    process: usize,
    id: u64,
    sent: u64,
    end: u64,
    tokens: u64,
    left: bool,
}

/// Calls of some processes.
struct World {
    processes: Vec<Process>,
    calls: Vec<Call>,
}

impl World {
    /// So many processes, whose clocks err by `error` at most; moments lie where it matters:
    /// next to one another, one window apart, on the edges of windows.
    fn new(random: &mut StdRng, processes: usize, error: u64) -> Self {
        let processes: Vec<Process> = (0..processes)
            .map(|_| Process {
                started: DAY + random.random_range(0..WINDOW),
                error: random.random_range(-(error as i64)..=error as i64),
                id: random.random_range(0..u64::MAX),
            })
            .collect();
        let first = DAY + 2 * WINDOW;
        let mut moments = vec![first];
        let mut calls = Vec::new();
        for number in 0..random.random_range(2..60) {
            let base = moments[random.random_range(0..moments.len())];
            let sent = match random.random_range(0..6) {
                0 => base + WINDOW,
                1 => base + WINDOW - random.random_range(0..3 * MICRO),
                2 => base + WINDOW + random.random_range(0..3 * MICRO),
                3 => (base / WINDOW + 1) * WINDOW + random.random_range(0..3 * MICRO),
                4 => base + random.random_range(0..5 * MICRO),
                _ => base + random.random_range(0..WINDOW),
            };
            moments.push(sent);
            let end = match random.random_range(0..3) {
                0 => sent + random.random_range(0..5 * MICRO),
                1 => sent + random.random_range(0..WINDOW),
                // Exactly when another one leaves.
                _ => moments[random.random_range(0..moments.len())].max(sent),
            };
            let process = random.random_range(0..processes.len());
            calls.push(Call {
                process,
                id: processes[process].id.wrapping_add(number),
                sent,
                end,
                tokens: random.random_range(1..=4),
                left: random.random_range(0..8) > 0,
            });
        }
        // Ids are given one after another.
        for (number, process) in processes.iter().enumerate() {
            let own = calls.iter_mut().filter(|call| call.process == number);
            for (place, call) in (0..).zip(own) {
                call.id = process.id.wrapping_add(place);
            }
        }
        Self { processes, calls }
    }

    /// The line of a call, as a sidecar writes it.
    fn line(&self, call: &Call) -> String {
        let process = &self.processes[call.process];
        let started = process.wall(process.started) / MICRO;
        let sent = (call.sent - process.started) / MICRO;
        let backend = (call.end - call.sent) / MICRO;
        let (sent, backend) = match call.left {
            true => (
                sent.to_string(),
                format!("{}.{:03}", backend / 1000, backend % 1000),
            ),
            false => ("null".to_owned(), "null".to_owned()),
        };
        format!(
            r#"{{"timestamp":"2026-11-22T00:00:00.000000Z","level":"INFO","target":"access","id":"{:016x}","function":"guest_list","class":"user","rate_limit":"nova","tokens":{},"backend_ms":{backend},"sent_us":{sent},"started_us":{started},"limited":true,"quota":null}}"#,
            call.id, call.tokens
        )
    }

    /// Logs of one process each, some cut in two as rotation does, with lines in the order in
    /// which calls ended.
    fn logs(&self, random: &mut StdRng, without: impl Fn(&Call) -> bool) -> Vec<Vec<String>> {
        let mut logs = Vec::new();
        for process in 0..self.processes.len() {
            let own = self.calls.iter().filter(|call| call.process == process);
            let mut own: Vec<&Call> = own.filter(|call| !without(call)).collect();
            own.sort_by_key(|call| call.end);
            let mut lines: Vec<String> = own.into_iter().map(|call| self.line(call)).collect();
            if random.random_range(0..2) == 0 {
                logs.push(lines.split_off(random.random_range(0..=lines.len())));
            }
            logs.push(lines);
        }
        logs
    }

    fn left(&self) -> impl Iterator<Item = &Call> {
        self.calls.iter().filter(|call| call.left)
    }

    /// Most that left within any half-open span of a length, by true times.
    fn densest(&self, length: u64, amount: impl Fn(&Call) -> u64) -> u64 {
        let within = |from: u64| {
            self.left()
                .filter(|call| call.sent >= from && call.sent < from + length)
                .map(&amount)
                .sum()
        };
        self.left().map(|call| within(call.sent)).max().unwrap_or(0)
    }

    /// Most that left within any aligned window, by these times.
    fn fullest(&self, time: impl Fn(&Call) -> u64) -> u64 {
        let windows = self.left().map(|call| time(call) / WINDOW);
        let windows: Vec<u64> = windows.collect();
        let count = |of: &u64| windows.iter().filter(|it| *it == of).count() as u64;
        windows.iter().map(count).max().unwrap_or(0)
    }

    /// Most that ran at once, if each began and ended this much later.
    fn at_once(&self, begins: i64, ends: i64) -> u64 {
        let span = |call: &Call| {
            let begin = call.sent.saturating_add_signed(begins);
            (begin, call.end.saturating_add_signed(ends))
        };
        let runs = |at: u64| {
            let runs = |call: &&Call| (span(call).0..span(call).1).contains(&at);
            self.left().filter(runs).count() as u64
        };
        self.left()
            .map(|call| runs(span(call).0))
            .max()
            .unwrap_or(0)
    }

    /// The part of it that is one process's.
    fn of(&self, process: usize) -> Self {
        let own = self.calls.iter().filter(|call| call.process == process);
        Self {
            processes: Vec::new(),
            calls: own.cloned().collect(),
        }
    }
}

fn audited(
    logs: &[Vec<String>],
    limits: Vec<AuditedLimit>,
    assumptions: &Assumptions,
) -> AuditReport {
    let logs = logs.iter().enumerate().map(|(number, lines)| {
        let text = lines.join("\n");
        Log::new(format!("{number}.log"), Cursor::new(text)).expect("it is in memory")
    });
    audit::audit(logs.collect(), limits, assumptions).expect("it can be audited")
}

fn assumptions(clock_error: u64) -> Assumptions {
    Assumptions {
        clock_error: Duration::from_nanos(clock_error),
        reorder: 1000,
        ignore_missing: false,
    }
}

fn limit(span: CountingSpan, max: u64, scope: CountingScope) -> AuditedLimit {
    AuditedLimit {
        name: "total".into(),
        meets: Meets::Every,
        max,
        span,
        scope,
    }
}

const LENGTH: Duration = Duration::from_nanos(WINDOW);

/// The requirement on a verdict: never wrong, and definite if a difference of `slack` in any time
/// would change nothing.
struct Truth {
    now: u64,
    /// The least and the most there would be if times were that much off.
    least: u64,
    most: u64,
}

#[track_caller]
fn check(seed: u64, report: &AuditReport, row: usize, max: u64, truth: &Truth) {
    let said = report.rows[row].verdict;
    let told = || {
        format!(
            "seed {seed}, max {max}, truth {}\n{}",
            truth.now,
            report.render()
        )
    };
    match said {
        AuditVerdict::Kept => assert!(truth.now <= max, "{}", told()),
        AuditVerdict::Exceeded => assert!(truth.now > max, "{}", told()),
        AuditVerdict::Unknown => {}
    }
    if truth.most <= max {
        assert_eq!(said, AuditVerdict::Kept, "{}", told());
    }
    if truth.least > max {
        assert_eq!(said, AuditVerdict::Exceeded, "{}", told());
    }
}

/// Runs seeds; `slack` is how far stamps may be off one another.   ns
fn agree(processes: usize, error: u64, scope: CountingScope) {
    // Two stamps are cut, of two processes twice each; and where they lie anywhere within that,
    // so does what the audit takes to be possible.
    let slack = match scope {
        CountingScope::Sidecar => 3 * MICRO,
        CountingScope::Together => 8 * MICRO + 4 * error,
    };
    let shift = slack as i64;
    let mut told = [0; 3];
    for seed in seeds(SEEDS) {
        let mut random = StdRng::seed_from_u64(seed);
        let world = World::new(&mut random, processes, error);
        let logs = world.logs(&mut random, |_| false);
        let parts = match scope {
            CountingScope::Sidecar => (0..processes).map(|process| world.of(process)).collect(),
            CountingScope::Together => vec![world.of_all()],
        };
        let most = |of: &dyn Fn(&World) -> u64| parts.iter().map(of).max().unwrap_or(0);
        let one = |_: &Call| 1;
        let sliding = Truth {
            now: most(&|part| part.densest(WINDOW, one)),
            least: most(&|part| part.densest(WINDOW - slack, one)),
            most: most(&|part| part.densest(WINDOW + slack, one)),
        };
        let at_once = Truth {
            now: most(&|part| part.at_once(0, 0)),
            least: most(&|part| part.at_once(shift, -shift)),
            most: most(&|part| part.at_once(-shift, shift)),
        };
        // The windows of one sidecar are aligned by its own clock, those of several by the true
        // time.
        let first = world.left().next().map(|call| call.process);
        let is_one = world.left().all(|call| Some(call.process) == first);
        let time = |call: &Call| match scope {
            CountingScope::Together if !is_one => call.sent,
            CountingScope::Sidecar | CountingScope::Together => {
                world.processes[call.process].wall(call.sent)
            }
        };
        let near = |call: &Call| {
            let into = time(call) % WINDOW;
            into < slack || into > WINDOW - slack
        };
        let is_clear = !world.left().any(near);
        let now = most(&|part| part.fullest(time));
        let aligned = Truth {
            now,
            least: if is_clear { now } else { 0 },
            most: if is_clear { now } else { u64::MAX },
        };
        let mut asked = Vec::new();
        for (span, truth) in [
            (CountingSpan::Any(LENGTH), &sliding),
            (CountingSpan::AtOnce, &at_once),
            (CountingSpan::Aligned(LENGTH), &aligned),
        ] {
            for max in [truth.now.saturating_sub(1), truth.now, truth.now + 1] {
                asked.push((limit(span, max, scope), truth));
            }
        }
        let limits = asked.iter().map(|(limit, _)| limit.clone()).collect();
        let report = audited(&logs, limits, &assumptions(error));
        assert_eq!((report.missing(), report.late, report.twice), (0, 0, 0));
        for (row, (limit, truth)) in asked.iter().enumerate() {
            check(seed, &report, row, limit.max, truth);
            told[report.rows[row].verdict as usize] += 1;
        }
    }
    // Moments are chosen where the result is often unknown, yet each verdict is reported often.
    let seeds = seeds(SEEDS).len();
    assert!(told.iter().all(|times| *times > seeds / 10), "{told:?}");
}

impl World {
    fn of_all(&self) -> Self {
        Self {
            processes: Vec::new(),
            calls: self.calls.clone(),
        }
    }
}

#[test]
fn of_each_sidecar_the_verdict_is_that_of_a_count_of_every_span() {
    agree(2, 20 * MILLI, CountingScope::Sidecar);
}

#[test]
fn over_sidecars_whose_clocks_differ_no_verdict_is_ever_wrong() {
    agree(3, MILLI, CountingScope::Together);
}

#[test]
fn one_sidecar_needs_no_clock_but_its_own() {
    // With an error of clocks of nearly half a window, yet as sharp as with none.
    for seed in seeds(SEEDS) {
        let mut random = StdRng::seed_from_u64(seed);
        let world = World::new(&mut random, 1, 40 * MILLI);
        let logs = world.logs(&mut random, |_| false);
        let count = |length| world.densest(length, |_| 1);
        let truth = Truth {
            now: count(WINDOW),
            least: count(WINDOW - 3 * MICRO),
            most: count(WINDOW + 3 * MICRO),
        };
        let max = truth.now - u64::from(seed % 2 == 0 && truth.now > 1);
        let limit = limit(CountingSpan::Any(LENGTH), max, CountingScope::Together);
        let report = audited(&logs, vec![limit], &assumptions(40 * MILLI));
        check(seed, &report, 0, max, &truth);
    }
}

#[test]
fn costs_are_summed_as_calls_are_counted() {
    for seed in seeds(SEEDS) {
        let mut random = StdRng::seed_from_u64(seed);
        let world = World::new(&mut random, 1, 0);
        let logs = world.logs(&mut random, |_| false);
        let cost = |length| world.densest(length, |call| call.tokens * 1_000_000);
        let truth = Truth {
            now: cost(WINDOW),
            least: cost(WINDOW - 3 * MICRO),
            most: cost(WINDOW + 3 * MICRO),
        };
        for max in [truth.now.saturating_sub(1), truth.now] {
            let limit = AuditedLimit {
                meets: Meets::RateLimit("nova".into()),
                ..limit(CountingSpan::Any(LENGTH), max, CountingScope::Together)
            };
            let report = audited(&logs, vec![limit], &assumptions(0));
            check(seed, &report, 0, max, &truth);
        }
    }
}

#[test]
fn whatever_lines_are_missing_or_out_of_order_nothing_is_kept_that_was_not() {
    let mut told = [0; 3];
    for seed in seeds(SEEDS) {
        let mut random = StdRng::seed_from_u64(seed);
        let world = World::new(&mut random, 2, MILLI);
        let one_in = random.random_range(2..20);
        let dropped: Vec<bool> = world
            .calls
            .iter()
            .map(|call| {
                // A missing first or last call of a process cannot be detected.
                let own = |it: &&Call| it.process == call.process;
                let own: Vec<u64> = world.calls.iter().filter(own).map(|it| it.id).collect();
                let is_inner = call.id != own[0] && call.id != own[own.len() - 1];
                is_inner && random.random_range(0..one_in) == 0
            })
            .collect();
        let is_dropped = |call: &Call| {
            let place = world.calls.iter().position(|it| it.id == call.id);
            dropped[place.expect("it is one of them")]
        };
        let logs = world.logs(&mut random, is_dropped);
        let truth = world.densest(WINDOW, |_| 1);
        let max = truth.saturating_sub(random.random_range(0..3)).max(1) - 1;
        let scope = CountingScope::Together;
        let limit = limit(CountingSpan::Any(LENGTH), max + 1, scope);
        let mut assumptions = assumptions(MILLI);
        assumptions.reorder = random.random_range(1..30);
        let report = audited(&logs, vec![limit], &assumptions);
        let lines = dropped.iter().filter(|it| **it).count() as u64;
        assert_eq!(report.missing(), lines, "seed {seed}\n{}", report.render());
        match report.verdict {
            AuditVerdict::Kept => assert!(truth <= max + 1, "seed {seed}\n{}", report.render()),
            AuditVerdict::Exceeded => assert!(truth > max + 1, "seed {seed}\n{}", report.render()),
            AuditVerdict::Unknown => {}
        }
        told[report.verdict as usize] += 1;
    }
    let seeds = seeds(SEEDS).len();
    assert!(told.iter().all(|times| *times > seeds / 150), "{told:?}");
}

#[test]
fn a_quota_is_summed_by_key_and_window_over_all_logs() {
    for seed in seeds(SEEDS) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut spent = std::collections::BTreeMap::<(u64, u64), u64>::new();
        let mut logs = vec![Vec::new(); 3];
        let total = random.random_range(5..40);
        for number in 0..random.random_range(1..120u64) {
            let (key, window) = (random.random_range(0..3u64), number / 20);
            let cost = random.random_range(1..=3);
            let log = random.random_range(0..3);
            let sent = match random.random_range(0..6) {
                0 => "null".to_owned(),
                _ => {
                    *spent.entry((key, window)).or_default() += cost;
                    (number * 1000).to_string()
                }
            };
            let id = logs[log].len();
            logs[log].push(format!(
                r#"{{"target":"access","id":"{id:016x}","function":"f","class":"c","rate_limit":null,"tokens":1,"backend_ms":0.001,"sent_us":{sent},"started_us":{log},"quota":[{{"limit":"per_user","key":"k{key}","window":{window},"total":{total},"cost":{cost}}}]}}"#
            ));
        }
        let most = spent.values().max().copied().unwrap_or(0);
        let report = audited(&logs, Vec::new(), &assumptions(0));
        let Some(row) = report.rows.first() else {
            assert_eq!(most, 0, "seed {seed}");
            continue;
        };
        assert_eq!(row.densest, most.to_string(), "seed {seed}");
        let expected = match most > total {
            true => AuditVerdict::Exceeded,
            false => AuditVerdict::Kept,
        };
        assert_eq!(report.verdict, expected, "seed {seed}\n{}", report.render());
    }
}

/// A line written by hand: of the process that started at second 1,795,309,200, sent N
/// microseconds later.
fn by_hand(id: u64, sent: u64, function: &str) -> String {
    format!(
        r#"{{"timestamp":"2026-11-22T01:00:09.000000Z","level":"INFO","target":"access","id":"{id:016x}","function":"{function}","class":"user","rate_limit":null,"tokens":1,"queue_ms":0.100,"backend_ms":400.000,"total_ms":400.200,"sent_us":{sent},"started_us":1795309200000000,"limited":{},"quota":null}}"#,
        function != "version"
    )
}

/// Three of two calls a second, with one that meets no limit, and one that came a microsecond
/// too early.
fn one_too_many() -> String {
    [
        by_hand(1, 1_000_000, "guest_list"),
        by_hand(2, 1_300_000, "guest_list"),
        by_hand(3, 1_400_000, "version"),
        by_hand(4, 1_999_999, "guest_create"),
        by_hand(5, 4_000_000, "guest_list"),
    ]
    .join("\n")
}

/// Files of a test, and the command run on them.
struct Files(TempDir);

impl Files {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (name, bytes) in files {
            std::fs::write(dir.path().join(name), bytes).expect("it can be written to");
        }
        Self(dir)
    }

    async fn audit(&self, arguments: &[&str]) -> Said {
        let mut command = Command::new(with_programs());
        run(command.current_dir(&self.0).arg("audit").args(arguments)).await
    }
}

#[tokio::test]
async fn an_exceeded_limit_is_reported_with_its_span_and_calls() {
    let files = Files::new(&[("access.log", one_too_many().as_bytes())]);
    let said = files
        .audit(&[
            "--limit",
            "total=2/1s",
            "--limit",
            "guest_list=2/1s",
            "--limit",
            "outstanding=2",
            "access.log",
        ])
        .await;
    assert_eq!(
        said.out,
        "\
calls      5 in 1 logs: 5 left for the backend, 0 never did
sidecar 1  from 2026-11-22T01:00:01.000000Z on: 5 calls, 5 left, 0 without a line; access.log

LIMIT        ALLOWED       DENSEST  WHEN                                      CALLS                                 SIDECAR  VERDICT
total        2 in any 1 s        3  2026-11-22T01:00:01.000000Z + 0.999999 s  0000000000000001 to 0000000000000004  all      EXCEEDED
guest_list   2 in any 1 s        2  2026-11-22T01:00:01.000000Z + 0.300000 s  0000000000000001 to 0000000000000002  all      kept
outstanding  2 at once           2  2026-11-22T01:00:01.300000Z               0000000000000002                      all      kept

EXCEEDED
"
    );
    assert_eq!((said.code, &*said.err), (Some(1), ""));
}

#[tokio::test]
async fn calls_one_window_and_a_microsecond_apart_are_kept() {
    let text = one_too_many().replace("\"sent_us\":1999999", "\"sent_us\":2000001");
    let files = Files::new(&[("access.log", text.as_bytes())]);
    let said = files.audit(&["--limit", "total=2/1s", "access.log"]).await;
    assert_eq!(said.code, Some(0), "{}", said.out);
    assert!(said.out.ends_with("\nkept\n"), "{}", said.out);
    // Exactly on the edge, the part that was cut from the stamps decides, and that is unknown.
    let text = text.replace("\"sent_us\":2000001", "\"sent_us\":2000000");
    let files = Files::new(&[("access.log", text.as_bytes())]);
    let said = files.audit(&["--limit", "total=2/1s", "access.log"]).await;
    assert_eq!(said.code, Some(2), "{}", said.out);
    assert!(
        said.out.contains("unknown: 2 to 3: stamps are cut"),
        "{}",
        said.out
    );
}

#[tokio::test]
async fn damaged_lines_are_named_and_make_the_verdict_unknown() {
    let mut log = b"2026-11-22T01:00:00Z stderr F ".to_vec();
    log.extend_from_slice(by_hand(1, 1_000_000, "guest_list").as_bytes());
    log.extend_from_slice(b"\n{\"timestamp\":\"x\",\"level\":\"INFO\",\"message\":\"ready\"}\n\n");
    log.extend_from_slice(&[0xff, 0x00, b'\n']);
    log.extend_from_slice(&by_hand(2, 1_100_000, "guest_list").as_bytes()[..120]);
    log.push(b'\n');
    log.extend_from_slice(&vec![b'{'; 100_000]);
    log.push(b'\n');
    log.extend_from_slice(by_hand(3, 5_000_000, "guest_list").as_bytes());
    log.extend_from_slice(b"\n{\"timestamp\":\"x\",\"level\":\"WARN\",\"message\":\"access lines lost, stderr is read too slowly\",\"lines\":7,\"target\":\"tidegate::telemetry::access\"}");
    let files = Files::new(&[("a.log", &log)]);
    let said = files.audit(&["--limit", "total=2/1s", "a.log"]).await;
    assert_eq!(said.code, Some(2), "{}{}", said.out, said.err);
    for told in [
        "calls      2 in 1 logs",
        "missing    1 calls have no line",
        "lost       7 lines were lost",
        "broken     3 lines cannot be read",
        "a.log:4: it is not JSON",
        "a.log:5: it is cut or damaged",
        "a.log:6: it is too long",
        "unknown: 10 calls are unknown",
    ] {
        assert!(said.out.contains(told), "no {told:?} in\n{}", said.out);
    }
    // An excess in the present lines is certain, for any content of the missing ones.
    let said = files
        .audit(&["--limit", "total=1/10s", "a.log", "--limit", "total=20/1s"])
        .await;
    assert_eq!(said.code, Some(1), "{}", said.out);
    assert!(said.out.contains("all      EXCEEDED"), "{}", said.out);
    assert!(said.out.contains("all      kept"), "{}", said.out);
    let ignoring = ["--limit", "total=2/1s", "--ignore-missing", "a.log"];
    let said = files.audit(&ignoring).await;
    assert_eq!(said.code, Some(0), "{}", said.out);
    assert!(
        said.out.contains("assumed never to have left"),
        "{}",
        said.out
    );
}

#[tokio::test]
async fn lines_reformatted_with_spaces_count_as_usual() {
    let spaced = one_too_many().replace("\":", "\": ").replace(",\"", ", \"");
    let files = Files::new(&[
        ("a.log", one_too_many().as_bytes()),
        ("b.log", spaced.as_bytes()),
    ]);
    let limit = ["--limit", "total=2/1s"];
    let plain = files.audit(&[limit[0], limit[1], "a.log"]).await;
    let said = files.audit(&[limit[0], limit[1], "b.log"]).await;
    assert_eq!(said.code, Some(1), "{}", said.out);
    assert_eq!(said.out, plain.out.replace("a.log", "b.log"));
}

#[tokio::test]
async fn contradicting_lines_are_shown_and_make_the_verdict_unknown() {
    let other = one_too_many().replace("\"sent_us\":", "\"sent_us\":1");
    let files = Files::new(&[
        ("a.log", one_too_many().as_bytes()),
        ("b.log", other.as_bytes()),
    ]);
    let said = files
        .audit(&["--limit", "total=100/1s", "a.log", "b.log"])
        .await;
    assert_eq!(said.code, Some(2), "{}", said.out);
    for told in [
        "differ",
        "another line of the same call",
        "b.log:1",
        "contradict",
    ] {
        assert!(said.out.contains(told), "no {told:?} in\n{}", said.out);
    }
}

#[tokio::test]
async fn a_distant_id_does_not_count_as_lost_calls() {
    let log = format!(
        "{}\n{}",
        one_too_many(),
        by_hand(5_490_775_474_554_930_463, 9, "f")
    );
    let files = Files::new(&[("a.log", log.as_bytes())]);
    let said = files.audit(&["--limit", "total=100/1s", "a.log"]).await;
    assert_eq!(said.code, Some(2), "{}", said.out);
    assert!(!said.out.contains("5490775"), "{}", said.out);
    assert!(said.out.contains("far        1 ids"), "{}", said.out);
}

/// A line of a call that drew one token of a quota.
fn drew(id: u64, window: &str, total: u64) -> String {
    let draw = format!(
        r#""quota":[{{"limit":"per_user","key":"alice","window":{window},"total":{total},"cost":1}}]"#
    );
    by_hand(id, id, "f").replace(r#""quota":null"#, &draw)
}

#[tokio::test]
async fn unclear_draws_from_quotas_are_counted_and_never_kept() {
    let two = format!("{}\n{}", drew(1, "7", 2), drew(2, "7", 2));
    let raised = format!("{two}\n{}", drew(3, "7", 9));
    let unplaced = format!("{two}\n{}", drew(3, "null", 2));
    let beside = format!("{two}\n{}", by_hand(3, 3, "f"));
    let text = "2026-11-22 INFO access: guest_list passed";
    let plain = format!("{two}\n{text}");
    for (log, code, told) in [
        (&two, 0, "kept"),
        (&raised, 2, "different totals"),
        (&unplaced, 2, "1 draws name no window"),
        (
            &beside,
            0,
            "no quota   1 calls left without drawing from a quota",
        ),
        (&plain, 2, "1 calls are unknown"),
    ] {
        let files = Files::new(&[("a.log", log.as_bytes())]);
        let said = files.audit(&["a.log"]).await;
        assert_eq!(said.code, Some(code), "{}", said.out);
        assert!(said.out.contains(told), "no {told:?} in\n{}", said.out);
    }
}

#[tokio::test]
async fn a_log_given_twice_counts_once() {
    let text = one_too_many();
    let files = Files::new(&[("a.log", text.as_bytes()), ("b.log", text.as_bytes())]);
    let said = files
        .audit(&["--limit", "total=3/1s", "a.log", "b.log"])
        .await;
    assert_eq!(said.code, Some(0), "{}", said.out);
    assert!(said.out.contains("twice      5 lines"), "{}", said.out);
}

#[tokio::test]
async fn logs_that_cannot_be_audited_are_reported_and_never_kept() {
    let text = one_too_many();
    let old = text.replace("\"started_us\":1795309200000000,", "");
    let files = Files::new(&[
        ("good.log", text.as_bytes()),
        ("empty.log", b""),
        ("old.log", old.as_bytes()),
        ("access.log.gz", &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0]),
        ("bad.toml", b"[queue]\ncapacity = \"many\"\n"),
    ]);
    let total = "--limit=total=9/1s";
    for (arguments, told) in [
        (&["good.log"][..], "nothing to audit"),
        (&[], "<LOG>..."),
        (&[total, "empty.log"], "the logs have no access line"),
        (&[total, "old.log"], "it has no started_us"),
        (
            &[total, "nowhere.log"],
            "cannot read nowhere.log: No such file",
        ),
        (&[total, "access.log.gz"], "gzip -dc"),
        (&["--limit=total", "good.log"], "`total` has no number"),
        (&["--config=bad.toml", "good.log"], "queue.capacity"),
        (
            &[total, "--clock-error=500ms", "--limit=a=1/1s", "good.log"],
            "--clock-error",
        ),
        (&[total, "--reorder=0", "good.log"], "--reorder"),
    ] {
        let said = files.audit(arguments).await;
        assert_eq!(
            said.code,
            Some(2),
            "{arguments:?}: {}{}",
            said.out,
            said.err
        );
        let all = said.out + &said.err;
        assert!(all.contains(told), "{arguments:?}: no {told:?} in\n{all}");
    }
}

#[tokio::test]
async fn a_storm_keeps_the_limit_and_exceeds_one_call_less() {
    let backend = StandInBackend::start(StandInOptions {
        delay: Duration::from_millis(20),
        ..StandInOptions::on_free_ports()
    })
    .await
    .expect("free ports");
    for (shape, postpone) in [("sliding", "in_turn"), ("fixed", "jitter")] {
        let config = format!(
            r#"
            [[listen]]
            name = "test"
            bind = "127.0.0.1:0"
            [backend]
            socket = "{}"
            [queue]
            postpone = "{postpone}"
            postpone_jitter = ["100ms", "300ms"]
            [limits]
            per_window = "total:30, guest_list:20"
            outstanding = 5
            window_shape = "{shape}"
            [log]
            access = true
            format = "json"
            [admin]
            bind = "127.0.0.1:0"
            "#,
            backend.socket_addr()
        );
        let sidecar = Sidecar::start(&config).await;
        let addr = sidecar.listener("test").await;
        let mut storm = JoinSet::new();
        for number in 0..100 {
            let function = ["guest_list", "guest_get_info"][number % 2];
            storm.spawn(async move { ask(addr, array(function, "U")).await });
        }
        storm.join_all().await;
        sidecar.signal("TERM");
        let (status, lines) = sidecar.ended().await;
        assert!(status.success());
        let files = Files::new(&[
            ("config.toml", config.as_bytes()),
            ("access.log", lines.join("\n").as_bytes()),
        ]);
        let said = files.audit(&["--config=config.toml", "access.log"]).await;
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        for told in [
            "calls      100 in 1 logs: 100 left for the backend, 0 never did",
            "0 without a line",
            "function:guest_list  20 in",
            "outstanding          5 at once",
        ] {
            assert!(said.out.contains(told), "no {told:?} in\n{}", said.out);
        }
        let window = match shape {
            "fixed" => "1s:fixed",
            _ => "1s",
        };
        for limit in [format!("total=29/{window}"), "outstanding=4".to_owned()] {
            let limit = format!("--limit={limit}");
            let said = files.audit(&[&limit, "access.log"]).await;
            assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
        }
    }
}
