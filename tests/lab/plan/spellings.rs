//! A log in any spelling of JSON, or in what a collector of logs wraps its lines in, is the same log for `audit`,
//! `plan` and `advise`.

use serde_json::{Map, Value, json};
use tokio::process::Command;

use super::unknown::storm;
use crate::sidecar::{Said, run, with_programs};

/// Runs the three commands on a log, and returns what they print.
async fn reports(log: &str) -> [Said; 3] {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("access.log"), log).expect("it can be written to");
    let tell = async |command: &str, more: &[&str]| {
        let mut lab = Command::new(with_programs());
        let lab = lab.current_dir(&dir).args([command, "access.log"]);
        run(lab.args(more)).await
    };
    [
        tell("audit", &["--limit=total=100/1s", "--limit=outstanding=3"]).await,
        tell("plan", &[]).await,
        tell("advise", &[]).await,
    ]
}

/// Compares what the commands print of a log with what they print of it in another form.
async fn check(form: &str, other: &str) {
    let log = storm().await;
    assert_ne!(log, other);
    let (expected, found) = (reports(log).await, reports(other).await);
    for (expected, found) in expected.into_iter().zip(found) {
        // The report of the audit counts other lines.
        let shown = |said: &Said| {
            let lines = said
                .out
                .lines()
                .filter(|line| !line.contains("not about a call"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(shown(&expected), shown(&found), "{form}: {}", found.err);
        assert_eq!(expected.code, found.code, "{form}");
    }
    let [audit, plan, _] = reports(other).await;
    assert_eq!(
        (audit.code, plan.code),
        (Some(0), Some(0)),
        "{form}: {}{}",
        audit.out,
        plan.out
    );
}

/// The lines of the storm, each in another form.
async fn each(form: impl Fn(&str) -> String) -> String {
    let lines: Vec<String> = storm().await.lines().map(form).collect();
    lines.join("\n")
}

#[tokio::test]
async fn spaces_order_escapes_and_exponents_do_not_matter() {
    let spaced = each(|line| line.replace("\":", "\" : ").replace(",\"", " ,\t\"")).await;
    check("spaces", &spaced).await;
    let spelt = each(|line| {
        let fields: Map<String, Value> = serde_json::from_str(line).expect("an object");
        let fields = fields.iter().rev().map(|(name, value)| {
            let value = match value {
                Value::Number(number) => format!("{number}e0"),
                Value::String(text) => escaped(text),
                value => value.to_string(),
            };
            format!("{}: {value}", escaped(name))
        });
        format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
    });
    check("spelt", &spelt.await).await;
}

/// A string in JSON in which each character is an escape.
fn escaped(text: &str) -> String {
    let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
    format!("\"{}\"", units.collect::<String>())
}

/// The parts of a line as a collector splits it, which are longer in reality.
fn parts(line: &str, bytes: usize) -> Vec<&str> {
    let mut rest = line;
    let mut parts = Vec::new();
    while rest.len() > bytes {
        // The lines have only ASCII.
        let (part, after) = rest.split_at(bytes);
        parts.push(part);
        rest = after;
    }
    parts.push(rest);
    parts
}

#[tokio::test]
async fn a_log_of_dockers_json_file_is_unwrapped() {
    let docker = |stream: &str, text: &str| {
        let time = "2026-11-28T10:12:13.141592653Z";
        json!({"log": text, "stream": stream, "time": time}).to_string()
    };
    let wrapped = each(|line| {
        let parts = parts(line, 16 << 10);
        let last = parts.len() - 1;
        let wrapped = parts.iter().enumerate().map(|(nth, part)| {
            let end = if nth == last { "\n" } else { "" };
            docker("stderr", &format!("{part}{end}"))
        });
        let other = docker("stdout", "10.0.0.7 - - \"GET / HTTP/1.1\" 200 {}\n");
        wrapped.chain([other]).collect::<Vec<_>>().join("\n")
    });
    check("docker", &wrapped.await).await;
}

#[tokio::test]
async fn a_log_of_the_journal_is_unwrapped() {
    let entry = |unit: &str, message: Value| {
        json!({
            "__CURSOR": "s=4b1e;i=1c2d;b=9f;m=3a;t=62f;x=7c", "__REALTIME_TIMESTAMP": "1795860733141592",
            "_BOOT_ID": "9f3b7c", "PRIORITY": "6", "SYSLOG_IDENTIFIER": unit, "_PID": "4711", "MESSAGE": message,
        })
        .to_string()
    };
    for as_bytes in [false, true] {
        let wrapped = each(|line| {
            let message = match as_bytes {
                true => line.as_bytes().into(),
                false => line.into(),
            };
            let other = entry(
                "systemd",
                "Started tidegate.service - Tidegate {sidecar}.".into(),
            );
            format!("{}\n{other}", entry("tidegate", message))
        });
        check("journal", &wrapped.await).await;
    }
}

#[tokio::test]
async fn a_log_of_cri_is_unwrapped_also_where_lines_are_split() {
    // A line is split at 16 KiB, and here much earlier, so that many are.
    for bytes in [16 << 10, 300] {
        let wrapped = each(|line| {
            let parts = parts(line, bytes);
            let last = parts.len() - 1;
            let wrapped = parts.iter().enumerate().map(|(nth, part)| {
                let tag = if nth == last { "F" } else { "P" };
                let other = "2026-11-28T10:12:13.1Z stdout F another {container}";
                format!("2026-11-28T10:12:13.141592653Z stderr {tag} {part}\n{other}")
            });
            wrapped.collect::<Vec<_>>().join("\n")
        });
        check("CRI", &wrapped.await).await;
    }
}
