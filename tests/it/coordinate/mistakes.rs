//! Mistakes in `[coordinate]`, each reported with its key, and the output of `check` for a valid
//! one.

use std::fs;

use tidegate::{config, tools};

const LIMITS: &str = r#"
[[listen]]
name = "nova"
bind = "127.0.0.1:8080"
[backend]
socket = "127.0.0.1:2000"
kind = "zvm"
http = "http://127.0.0.1:8081"
[limits]
per_window = "total:30, guest_list:10"
max_wait = "50s"
[[bucket]]
name = "poller"
burst = 30
fill = 3
"#;

const GOOD: &str = r#"
[coordinate]
servers = ["10.0.0.1:9190", "leases.example:9190"]
expected_sidecars = 3
[[coordinate.limit]]
limit = "total"
resource = "zvm1/total"
safe = 5
[[coordinate.limit]]
limit = "poller"
resource = "zvm1/poller"
safe = 0.5
"#;

/// The report about a config: keys and messages, in one text.
fn told(text: &str) -> String {
    match config::read(text, "test.toml", std::iter::empty()) {
        Ok(checked) => checked.warnings.render(false),
        Err(problems) => problems.render(false),
    }
}

fn check(from: &str, to: &str, expected: &[&str]) {
    let text = format!("{LIMITS}{GOOD}");
    assert!(text.contains(from), "{from}");
    let told = told(&text.replacen(from, to, 1));
    for expected in expected {
        assert!(told.contains(expected), "no {expected:?} in {told}");
    }
}

#[test]
fn a_good_one_is_taken_without_a_word() {
    assert_eq!(told(&format!("{LIMITS}{GOOD}")), "");
}

#[test]
fn every_mistake_names_its_key_and_what_would_be_right() {
    check(
        "limit = \"total\"",
        "limit = \"totl\"",
        &[
            "coordinate.limit[0].limit",
            "there is no limit \"totl\"",
            "\"total\"?",
        ],
    );
    check(
        "limit = \"total\"",
        "limit = \"guest_list\"",
        &[
            "there is no limit \"guest_list\"",
            "\"function:guest_list\"?",
        ],
    );
    check(
        "limit = \"poller\"",
        "limit = \"polle\"",
        &["coordinate.limit[1].limit", "did you mean"],
    );
    check(
        "limit = \"poller\"",
        "limit = \"total\"",
        &["\"total\" is shared twice"],
    );
    check(
        "resource = \"zvm1/poller\"",
        "resource = \"zvm1/total\"",
        &[
            "coordinate.limit[1].resource",
            "is another limit's resource too",
        ],
    );
    check(
        "safe = 5",
        "safe = 31",
        &[
            "coordinate.limit[0].safe",
            "31 is more than the 30",
            "give at most 30",
        ],
    );
    check(
        "safe = 5",
        "safe = 0.5",
        &["coordinate.limit[0].safe", "only whole ones count"],
    );
    check("safe = 5", "safe = 0", &["out of range"]);
    check(
        "safe = 0.5",
        "safe = 4",
        &["4 is more than the 3 that \"rate_limit:poller\" allows"],
    );
    check(
        "safe = 5\n",
        "",
        &["the share that this sidecar always owns is missing"],
    );
    check(
        "resource = \"zvm1/total\"\n",
        "",
        &["the name of the limit at the servers is missing"],
    );
    check(
        "limit = \"total\"\n",
        "",
        &["the limit that is shared is missing"],
    );
    check(
        "expected_sidecars = 3\n",
        "",
        &["the number of sidecars that share the limits is missing"],
    );
    check(
        "expected_sidecars = 3",
        "expected_sidecars = 0",
        &["coordinate.expected_sidecars", "out of range"],
    );
    check(
        "\"10.0.0.1:9190\"",
        "\"10.0.0.1\"",
        &["coordinate.servers", "is not the address of a server"],
    );
    check(
        "\"10.0.0.1:9190\"",
        "\"leases.example:9190\"",
        &["is given twice"],
    );
    check(
        "servers = [\"10.0.0.1:9190\", \"leases.example:9190\"]\n",
        "",
        &["no capacity server is named"],
    );
    check(
        "expected_sidecars = 3\n",
        "expected_sidecars = 3\nsafety = 1\n",
        &["no option \"safety\""],
    );
    check(
        "[limits]\n",
        "[limits]\nwindow = \"0s\"\n",
        &["there is no limit \"total\": windows are off"],
    );
}

#[test]
fn sharing_nothing_is_a_mistake() {
    let text = format!("{LIMITS}[coordinate]\nservers = [\"a:1\"]\nexpected_sidecars = 2\n");
    assert!(
        told(&text).contains("no limit is shared"),
        "{}",
        told(&text)
    );
}

#[test]
fn a_safe_share_that_a_class_keeps_whole_is_warned_of() {
    let class = "[[class]]\nname = \"user\"\nreserve_per_window = 5\n";
    let told = told(&format!("{LIMITS}{class}{GOOD}"));
    assert!(
        told.contains("all of it is kept for class \"user\", which keeps 5"),
        "{told}"
    );
}

#[test]
fn the_effective_config_has_the_shared_limits_and_check_what_servers_need() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("config.toml");
    fs::write(&path, format!("{LIMITS}{GOOD}")).expect("written");
    let report = tools::check::report(&path, false);
    assert!(report.good, "{report:?}");
    for line in [
        "as zvm1/total; safe 5, for 3 sidecars 15 of the whole",
        "reserved_clients = 3, safe_share = 5, frees_after = \"3005ms\" or more",
        "as zvm1/poller; safe 0.5, for 3 sidecars 1.5 of the whole",
        "limit = \"rate_limit:poller\"",
    ] {
        assert!(
            report.settings.contains(line),
            "no {line:?} in {}",
            report.settings
        );
    }
    let checked = config::read(&format!("{LIMITS}{GOOD}"), "test.toml", std::iter::empty());
    let once = checked.expect("it is good").config;
    let again = config::read(&config::effective(&once), "again.toml", std::iter::empty());
    assert_eq!(
        again.expect("it is good").config.coordinate,
        once.coordinate
    );
}
