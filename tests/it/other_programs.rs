//! Commands of the programs beside `tidegate`: `tidegate plan` runs `tidegate-lab plan`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::sidecar::TIDEGATE;

/// A folder with `tidegate` alone, and the program in it.
fn installed() -> (TempDir, PathBuf) {
    let folder = TempDir::new().expect("a folder");
    let program = folder.path().join("tidegate");
    fs::hard_link(TIDEGATE, &program)
        .or_else(|_| fs::copy(TIDEGATE, &program).map(drop))
        .expect("a copy");
    (folder, program)
}

fn run(program: &PathBuf, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.env("PATH", "/nowhere").args(arguments);
    command.output().expect("tidegate runs")
}

#[test]
fn the_lab_gets_every_argument_and_its_exit_code_is_returned() {
    let (folder, program) = installed();
    let lab = folder.path().join("tidegate-lab");
    fs::write(&lab, "#!/bin/sh\necho \"$@\"\nexit 7\n").expect("a script");
    fs::set_permissions(&lab, PermissionsExt::from_mode(0o755)).expect("it can be run");
    for (arguments, passed) in [
        (&["demo", "--once"] as &[_], "demo --once\n"),
        (&["bench", "--help"], "bench --help\n"),
        (&["backend", "-x", "--", "y"], "backend -x -- y\n"),
        (&["bench"], "bench\n"),
        (&["plan", "a", "-c", "b"], "plan a -c b\n"),
        (&["top", "--version"], "top --version\n"),
    ] {
        let ended = run(&program, arguments);
        assert_eq!(String::from_utf8_lossy(&ended.stdout), passed);
        assert_eq!(ended.status.code(), Some(7), "{arguments:?}");
    }
}

#[test]
fn without_the_lab_it_says_how_to_get_it() {
    let (_folder, program) = installed();
    let ended = run(&program, &["demo"]);
    assert_eq!(ended.status.code(), Some(2));
    let said = String::from_utf8_lossy(&ended.stderr);
    for words in [
        "`tidegate demo` needs the program tidegate-lab",
        "install the package tidegate-lab",
        "beside tidegate or in PATH",
        "cargo build --release --bin tidegate-lab",
    ] {
        assert!(said.contains(words), "{said}");
    }
}
