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

#[test]
fn the_reference_of_options_is_made_from_the_definitions() {
    check("docs/reference/options.md", &config::reference());
    check(
        "docs/reference/lease-server-options.md",
        &lease_server::reference(),
    );
}
