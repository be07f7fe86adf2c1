//! `tidegate advise` on logs of Apache, nginx and HAProxy.
//!
//! The files in tests/lab/foreign_logs are lines that the real programs wrote: apache2 2.4.71, nginx 1.22.1
//! and haproxy 2.6.12 in front of a small HTTP server. The worlds are those of the tests of advice.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use tidegate_advice::advice::{Advice, AdviceRequest, advise};
use tidegate_advice::sample::{Sample, SampleEnding};
use tokio::process::Command;

use crate::sidecar::{Said, run, with_programs};

use crate::advice_worlds::{Kind, World};

const SECOND: u64 = 1_000_000_000;
/// The moment at which logs of worlds begin.   ns since the epoch
const EPOCH: u64 = 1_795_515_072 * SECOND;

/// Runs `tidegate advise` on this log.
async fn advise_on(log: &str, arguments: &[&str]) -> Said {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("given.log"), log).expect("it can be written to");
    let mut command = Command::new(with_programs());
    let command = command.current_dir(&dir).arg("advise").args(arguments);
    run(command.arg("given.log")).await
}

fn real(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/foreign_logs");
    std::fs::read_to_string(path.join(name)).expect("the file is there")
}

fn json(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}{}", said.out, said.err))
}

#[tokio::test]
async fn lines_of_the_real_programs_are_all_read() {
    for (name, format) in [
        ("apache-usec.log", "`%{usec}t %D %>s %m %U %a`"),
        ("nginx-msec.log", "`$msec $request_time"),
        ("nginx-json.log", "JSON"),
        ("haproxy-http.log", "HAProxy"),
    ] {
        let said = advise_on(&real(name), &["--json"]).await;
        // Twenty calls are not enough for a value.
        assert_eq!(said.code, Some(1), "{name}: {}", said.err);
        assert!(said.err.contains(format), "{name}: {}", said.err);
        let all = json(&said);
        assert_eq!(all["evidence"]["calls"], 20, "{name}");
        assert_eq!(all["evidence"]["broken_lines"], 0, "{name}");
        assert!(
            !said.out.contains("secret1") && !said.err.contains("secret1"),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_format_of_ones_own_is_given_as_the_directive_has_it() {
    let line = "web1 24/Nov/2026 10:11:12.345 +0000 took=1500us GET /a/b?key=1 200\n";
    let format = "%v %{%d/%b/%Y %H:%M:%S}t.%{msec_frac}t %{%z}t took=%Dus %m %U %>s";
    let said = advise_on(&line.repeat(3), &["--json", "--log-format", format]).await;
    assert_eq!(json(&said)["evidence"]["calls"], 3, "{}", said.err);
    let said = advise_on(line, &["--log-format", "%v %D"]).await;
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("add %{usec}t"), "{}", said.err);
}

#[tokio::test]
async fn a_log_without_durations_is_refused_with_the_line_to_add() {
    let said = advise_on(&real("apache-combined.log"), &[]).await;
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("add %D to LogFormat"), "{}", said.err);
}

#[tokio::test]
async fn sdkservers_own_log_is_refused_and_no_line_of_it_is_shown() {
    let log = "\
[2026-11-24 10:11:12] [INFO] SDK server starts\n\
[2026-11-24 10:11:12] [DEBUG] (127.0.0.1:5) Call func guest_create args ['A', 'hunter2']\n\
Traceback (most recent call last):\n\
hunter2\n";
    for arguments in [
        &[][..],
        &["--log-format", "%h %t %D"],
        &["--log-format", "json"],
    ] {
        let said = advise_on(log, arguments).await;
        assert_eq!(said.code, Some(2), "{}", said.err);
        assert!(said.err.contains("%{usec}t %D"), "{}", said.err);
        assert!(!said.err.contains("hunter2") && !said.out.contains("hunter2"));
    }
}

#[tokio::test]
async fn lines_that_cannot_be_read_are_counted_and_the_first_is_shown_without_its_query() {
    let odd = "nonsense /x?key=hunter2 here\npassword=hunter2\n";
    let said = advise_on(&(real("apache-usec.log") + odd), &["--json"]).await;
    assert_eq!(json(&said)["evidence"]["broken_lines"], 2);
    assert!(
        said.err
            .contains("2 lines cannot be read, first line 21: nonsense /x?… here"),
        "{}",
        said.err
    );
    assert!(!said.err.contains("hunter2"), "{}", said.err);
    let said = advise_on("password=hunter2\n", &[]).await;
    assert!(
        said.err.contains("not shown") && !said.err.contains("hunter2"),
        "{}",
        said.err
    );
}

#[tokio::test]
async fn a_path_with_control_characters_reaches_no_terminal_as_it_is() {
    let log = real("apache-usec.log") + "x \x1b[31m\n";
    let said = advise_on(&log, &[]).await;
    assert!(!said.err.contains('\x1b'), "{}", said.err);
}

#[tokio::test]
async fn a_number_that_can_hardly_be_microseconds_is_doubted() {
    let line = "1.2.3.4 - - [24/Nov/2026:10:11:12 +0000] \"GET / HTTP/1.1\" 200 9 12\n";
    let said = advise_on(&line.repeat(30), &[]).await;
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("--log-format"), "{}", said.err);
}

/// How a program would have logged calls that reached the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    ApacheMicroseconds,
    ApacheSeconds,
    NginxMilliseconds,
    HaProxy,
}

/// A moment as Apache and HAProxy write it; the tests stay within one day.
fn date(at: u64) -> String {
    let of_day = at / SECOND % 86_400;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("24/Nov/2026:{hour:02}:{minute:02}:{second:02}")
}

fn log_of(samples: &[Sample], program: Program) -> String {
    let mut calls: Vec<&Sample> = samples.iter().collect();
    // Each program writes a line when the call ends.
    calls.sort_by_key(|call| call.ended);
    let mut log = String::new();
    for call in calls {
        let status = match call.ending {
            SampleEnding::Served => 200,
            SampleEnding::Overloaded | SampleEnding::Failed => 502,
            SampleEnding::Left | SampleEnding::Refused => 499,
        };
        let path = match &*call.function {
            "slow" => "/slow",
            _ => "/fast",
        };
        let arrived = EPOCH + call.arrived;
        // Apache and nginx send a call at once, so theirs begins at the backend.
        let start = EPOCH + call.started.unwrap_or(call.arrived);
        let end = EPOCH + call.ended;
        let took = end.saturating_sub(start);
        let _ = match program {
            Program::ApacheMicroseconds if call.started.is_some() => writeln!(
                log,
                "{} {} {status} GET {path} 10.0.0.1",
                start / 1_000,
                took / 1_000
            ),
            Program::ApacheSeconds if call.started.is_some() => writeln!(
                log,
                "10.0.0.1 - - [{} +0000] \"GET {path}?x=y HTTP/1.1\" {status} 9 {}",
                date(start),
                took / 1_000
            ),
            Program::NginxMilliseconds if call.started.is_some() => writeln!(
                log,
                "{}.{:03} {}.{:03} \"{}.{:03}\" {status} GET {path} 10.0.0.1",
                end / SECOND,
                end / 1_000_000 % 1000,
                took / SECOND,
                took / 1_000_000 % 1000,
                took / SECOND,
                took / 1_000_000 % 1000,
            ),
            Program::HaProxy => {
                let ms = |ns: u64| ns / 1_000_000;
                let all = ms(end - arrived);
                let (wait, reply, state) = match (call.started, call.ending) {
                    (None, _) => (format!("{all}"), "-1".to_owned(), "CQ"),
                    (Some(started), SampleEnding::Served) => (
                        ms(started - call.arrived).to_string(),
                        ms(took).to_string(),
                        "--",
                    ),
                    (Some(started), _) => (
                        ms(started - call.arrived).to_string(),
                        "-1".to_owned(),
                        "SH",
                    ),
                };
                let connect = if call.started.is_some() { "0" } else { "-1" };
                writeln!(
                    log,
                    "10.0.0.1:5 [{}.{:03}] web sdk/s1 0/{wait}/{connect}/{reply}/{all} {status} 9 - - \
                     {state}-- 1/1/1/1/0 0/0 \"GET {path} HTTP/1.1\"",
                    date(arrived),
                    arrived / 1_000_000 % 1000,
                )
            }
            _ => Ok(()),
        };
    }
    log
}

/// The advice on calls at once: from exact times, and from the log of a program.
async fn both(kind: Kind, seed: u64, program: Program, faster: u64) -> (Advice, Said) {
    let mut samples = World::new(kind, seed).log();
    for sample in &mut samples {
        // The same calls in shorter times: everything happens faster, and the log is as long.
        sample.arrived /= faster;
        sample.started = sample.started.map(|at| at / faster);
        sample.ended /= faster;
    }
    let exact = advise(&samples, &AdviceRequest::default());
    let said = advise_on(&log_of(&samples, program), &["--json"]).await;
    (exact, said)
}

/// Whether the foreign value is within the exact interval, or a fifth of its value beside it.
async fn check_close(kind: Kind, seed: u64, program: Program) {
    let (exact, said) = both(kind, seed, program, 1).await;
    let set = exact
        .outstanding
        .setting()
        .expect("the exact samples give advice");
    let all = json(&said);
    let found = all["outstanding"]["value"].as_u64();
    println!(
        "{kind:?} {seed} {program:?}: {found:?}, exact {set:?}; {}",
        said.err
    );
    let found = found.unwrap_or_else(|| panic!("{kind:?} {program:?}: {}", all["outstanding"]));
    let near = |exact: u32, share: f64| f64::from(exact) * share;
    assert!(
        found as f64 >= near(set.low.min(set.value), 0.8)
            && found as f64 <= near(set.high.max(set.value), 1.2),
        "{kind:?} {seed} {program:?}: {found}, exact {set:?}"
    );
}

#[tokio::test]
async fn logs_with_fine_times_give_the_advice_of_exact_times() {
    for program in [
        Program::ApacheMicroseconds,
        Program::NginxMilliseconds,
        Program::HaProxy,
    ] {
        for kind in [Kind::Sharing, Kind::Scalability] {
            check_close(kind, 1, program).await;
        }
    }
}

#[tokio::test]
async fn whole_seconds_give_the_same_advice_for_long_calls() {
    for kind in [Kind::Scalability, Kind::ScalabilityLarge, Kind::DayAndNight] {
        for seed in 0..2 {
            check_close(kind, seed, Program::ApacheSeconds).await;
        }
    }
}

#[tokio::test]
async fn whole_seconds_are_refused_for_short_calls() {
    let (_, said) = both(Kind::Sharing, 1, Program::ApacheSeconds, 5).await;
    println!("{}{}", said.out, said.err);
    assert_eq!(said.code, Some(2), "{}", said.out);
    assert!(said.err.contains("%{usec}t"), "{}", said.err);
}

#[tokio::test]
async fn nginx_with_whole_seconds_is_read_and_asked_for_finer_times() {
    let said = advise_on(&real("nginx-timed.log"), &[]).await;
    assert_eq!(said.code, Some(2), "{}", said.out);
    assert!(said.err.contains("$msec (nginx)"), "{}", said.err);
}
