//! Files that are made from the source are what the source would make. `make docs` writes them:
//! it runs these tests with `MAKE_DOCS=1`.

use std::fs;
use std::path::Path;

use tidegate::config;
use tidegate_lease_server::config as lease_server;

/// Compares a file with what it should be, or writes it.
#[track_caller]
pub(crate) fn check(file: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("MAKE_DOCS").is_some() {
        fs::write(path, expected).expect("the file can be written");
        return;
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    let line = found
        .lines()
        .zip(expected.lines())
        .position(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{file} is old, from line {} on: run `make docs`",
        line.map_or(
            found.lines().count().min(expected.lines().count()),
            |line| line + 1
        )
    );
}

#[test]
fn the_example_of_the_sidecars_config_is_made_from_the_definitions() {
    check("config.toml.example", &config::example());
}

#[test]
fn the_example_of_the_lease_servers_config_is_made_from_the_definitions() {
    check("config.lease-server.toml.example", &lease_server::example());
}

/// Compares a part of a page with what it should be, or writes it.
#[track_caller]
pub(crate) fn check_part(file: &str, name: &str, expected: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let page = fs::read_to_string(page).expect("it can be read");
    check(file, &filled(&page, &[(name, expected.to_owned())]));
}

/// The page with this text between the two comments of each name.
fn filled(page: &str, parts: &[(&str, String)]) -> String {
    let mut page = page.to_owned();
    for (name, text) in parts {
        let (begin, end) = (
            format!("<!-- {name} -->"),
            format!("<!-- end of {name} -->"),
        );
        let from = page.find(&begin).expect("the page has the comment") + begin.len();
        let to = page.find(&end).expect("the page has the end");
        page.replace_range(from..to, text);
    }
    page
}

#[test]
fn the_tables_of_the_access_log_are_made_from_the_definitions() {
    use tidegate_record::{call, gate, step};
    let file = "docs/reference/access-log.md";
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let page = fs::read_to_string(page).expect("it can be read");
    let both: Vec<_> = call::fields_of_both()
        .into_iter()
        .map(|name| format!("`{name}`"))
        .collect();
    let tables = [
        ("fields of a call", call::access_table()),
        ("fields for a replay", call::replay_table()),
        ("steps", step::steps_table()),
        ("events", gate::events_table()),
        ("fields of events", gate::gate_table()),
        ("fields of the shadow", gate::shadow_table()),
    ];
    let mut parts: Vec<(&str, String)> = tables
        .into_iter()
        .map(|(name, table)| (name, format!("\n{table}")))
        .collect();
    parts.push(("fields of both lines", both.join(", ")));
    check(file, &filled(&page, &parts));
}

#[test]
fn the_reference_of_options_is_made_from_the_definitions() {
    check("docs/reference/options.md", &config::reference());
    check(
        "docs/reference/lease-server-options.md",
        &lease_server::reference(),
    );
}
