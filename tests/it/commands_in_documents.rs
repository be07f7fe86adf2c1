//! The commands and data in the documents, the examples, and the site of the documents. Scripts in
//! `tests/documents` look at them; each also has to find mistakes that are made on purpose.

use std::path::Path;
use std::process::Command;

use crate::sidecar::TIDEGATE;

/// Fails with what a script of `tests/documents` found.
fn check(script: &str, arguments: &[&Path]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let venv = root.join(".venv-docs");
    assert!(
        venv.join("complete").exists(),
        "what reads the documents is not installed: `make test` sets it up (or `make site`, or \
         docs/site/setup.sh)"
    );
    let output = Command::new(venv.join("bin/python"))
        .arg(root.join("tests/documents").join(script))
        .args(arguments)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("Python runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{script}: {said}");
}

#[test]
fn every_command_in_the_documents_exists_and_all_data_is_valid() {
    let tidegate = Path::new(TIDEGATE);
    let lab = tidegate.with_file_name("tidegate-lab");
    check(
        "commands.py",
        &[Path::new("--tidegate"), tidegate, Path::new("--lab"), &lab],
    );
}

#[test]
fn the_manifests_are_accepted_and_agree_with_their_configs_and_with_the_image() {
    check(
        "examples.py",
        &[Path::new("--tidegate"), Path::new(TIDEGATE)],
    );
}

#[test]
fn the_site_is_not_built_with_a_dead_link_or_a_page_in_no_list() {
    check("site.py", &[]);
}
