//! The alerts and recording rules that operators install: each is tested, explained, and about
//! metrics that there are.

use crate::support::cannot_run;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/prometheus")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The values of a field, in their order.
fn fields<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let name = format!("{name}: ");
    text.lines()
        .filter_map(|line| {
            let line = line.trim_start();
            line.strip_prefix("- ").unwrap_or(line).strip_prefix(&name)
        })
        .map(|value| value.trim_matches('\''))
        .collect()
}

/// Fails if promtool does not take this.
fn promtool(arguments: &[&str]) {
    let run = Command::new("promtool")
        .args(arguments)
        .current_dir(root())
        .output();
    match run {
        Ok(said) => {
            let words = [said.stdout, said.stderr].concat();
            let words = String::from_utf8_lossy(&words);
            assert!(said.status.success(), "{words}");
        }
        Err(error) => cannot_run(
            "alerts",
            &format!("promtool does not run ({error}); `make promtool` installs it"),
        ),
    }
}

#[test]
fn the_rules_are_taken_and_their_tests_hold() {
    promtool(&["check", "rules", "alerts.yml", "rules.yml"]);
    promtool(&["test", "rules", "tests/alerts.yml", "tests/rules.yml"]);
}

#[test]
fn every_alert_is_tested_as_it_fires_and_as_it_does_not() {
    let alerts = read("alerts.yml");
    let names = fields(&alerts, "alert");
    assert!(names.len() >= 10, "{names:?}");
    let tests = read("tests/alerts.yml");
    let cases: Vec<&str> = tests.split("  - name: ").skip(1).collect();
    assert_eq!(cases.len(), 2 * names.len(), "a case of no alert, or two");
    for name in names {
        for (what, fires) in [("fires", true), ("does not fire", false)] {
            let title = format!("{name} {what}\n");
            let case = cases.iter().find(|case| case.starts_with(&title));
            let case = case.unwrap_or_else(|| panic!("no case `{}`", title.trim()));
            let of = fields(case, "alertname");
            assert!(of.iter().all(|it| *it == name), "{title} is about {of:?}");
            assert!(!of.is_empty(), "{title} asks nothing");
            assert_eq!(case.contains("exp_labels:"), fires, "{title}");
        }
    }
}

#[test]
fn every_recording_rule_is_tested() {
    let tested = read("tests/rules.yml");
    let tested = fields(&tested, "expr");
    for name in fields(&read("rules.yml"), "record") {
        assert!(tested.contains(&name), "{name} is not tested");
    }
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

#[test]
fn every_alert_has_a_severity_and_a_section_of_the_runbook() {
    let alerts = read("alerts.yml");
    let names = fields(&alerts, "alert");
    let runbook = read("../../docs/how-to/runbook.md");
    let sections: Vec<&str> = runbook.split("\n## ").skip(1).collect();
    for (field, least) in [("severity", 4), ("summary", 10), ("description", 20)] {
        let values = fields(&alerts, field);
        assert_eq!(values.len(), names.len(), "{field}");
        assert!(values.iter().all(|it| it.len() >= least), "{values:?}");
    }
    for severity in fields(&alerts, "severity") {
        assert!(["critical", "warning", "info"].contains(&severity));
        assert!(runbook.contains(&format!("| `{severity}` |")));
    }
    let urls = fields(&alerts, "runbook_url");
    assert_eq!(urls.len(), names.len());
    for (name, url) in names.iter().zip(urls) {
        let section = sections.iter().find(|section| {
            let heading = section.lines().next().expect("it has a line");
            url == format!("docs/how-to/runbook.md#{}", anchor(heading)) && heading == *name
        });
        let section = section.unwrap_or_else(|| panic!("{name}: no section at {url}"));
        for part in [
            "**What it means.**",
            "**What callers see.**",
            "**Look here.**",
            "**Do this.**",
        ] {
            assert!(section.contains(part), "{name} lacks {part}");
        }
    }
    assert_eq!(sections.len(), names.len(), "a section of no alert");
}

/// The names in a text that begin as our metrics do, or as those of a process.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    text.split(|it: char| !(it.is_ascii_alphanumeric() || it == '_' || it == ':'))
        .filter(|word| word.starts_with("tidegate_") || word.starts_with("process_"))
        .map(|word| {
            let histogram = ["_bucket", "_count", "_sum"];
            let base = histogram.iter().find_map(|end| word.strip_suffix(end));
            base.unwrap_or(word)
        })
        .collect()
}

#[test]
fn every_metric_of_a_rule_is_in_the_docs() {
    let docs = read("../../docs/reference/metrics.md");
    for file in ["alerts.yml", "rules.yml"] {
        let text = read(file);
        let exprs = fields(&text, "expr").join("\n");
        let names = metrics_in(&exprs);
        assert!(names.len() >= 5, "{names:?}");
        for name in names {
            let is_defined = docs.contains(&format!("\n| `{name}` |"));
            assert!(
                is_defined,
                "{file}: {name} is not in docs/reference/metrics.md"
            );
        }
    }
}
