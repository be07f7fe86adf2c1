//! Commands whose output cannot be written: a full disk, a closed pipe, a terminal that is gone.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use crate::sidecar::with_programs;
use crate::support::PATIENCE;
use crate::terminal::Terminal;

/// Where no byte can be written.
fn full() -> File {
    let opened = OpenOptions::new().write(true).open("/dev/full");
    opened.expect("Linux has it")
}

/// Commands with files that they need, which answer on stdout.
fn answering(dir: &TempDir) -> Vec<Vec<String>> {
    let path = |name: &str| dir.path().join(name).display().to_string();
    let config = path("config.toml");
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let mut scenarios: Vec<_> = std::fs::read_dir(scenario)
        .expect("there are scenarios")
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.extension().is_some_and(|it| it == "toml"))
        .collect();
    scenarios.sort();
    let scenario = scenarios[0].display().to_string();
    let text = "[[listen]]\nname = \"a\"\nbind = \"127.0.0.1:0\"\nprotocol = \"socket\"\n\
                [backend]\nsocket = \"127.0.0.1:1\"\n[limits]\nper_window = \"total:30\"\n";
    std::fs::write(&config, text).expect("written");
    let leases = path("leases.toml");
    let text = "[[resource]]\nglob = \"*\"\ncapacity = 1\n[resource.algorithm]\nkind = \"none\"\n";
    std::fs::write(&leases, text).expect("written");
    let log = path("access.log");
    std::fs::write(&log, "").expect("written");
    let all: [&[&str]; 16] = [
        &["check", "--config", &config],
        &["check", "--config", &config, "--json"],
        &["check", "--config", &config, "--probe"],
        &["check", "--config", &config, "--probe", "--json"],
        &[
            "init",
            "--yes",
            "-o",
            "-",
            "--backend",
            "127.0.0.1:8080",
            "--protocol",
            "socket",
            "--per-window",
            "30",
        ],
        &["lease-server", "--config", &leases, "--check"],
        &["audit", &log, "--limit", "total=30/1s"],
        &["plan", &log],
        &["plan", &log, "--json"],
        &["simulate", &scenario],
        &["simulate", &scenario, "--json"],
        &["simulate", "quota", "--windows", "4"],
        &["simulate", "leases", "--scenario", "1", "--runs", "1"],
        &["--help"],
        &["check", "--help"],
        &["--version"],
    ];
    let owned = all
        .iter()
        .map(|it| it.iter().map(|it| (*it).to_owned()).collect());
    owned.collect()
}

fn run(arguments: &[String], stdout: Stdio, stderr: Stdio) -> std::process::Output {
    let mut command = Command::new(with_programs());
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr);
    command.output().expect("it runs")
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error_of_every_command() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for arguments in answering(&dir) {
        let whole = run(&arguments, Stdio::piped(), Stdio::piped());
        assert!(
            !whole.stdout.is_empty(),
            "{arguments:?} answers nothing: {whole:?}"
        );
        let lost = run(&arguments, full().into(), Stdio::piped());
        let told = String::from_utf8_lossy(&lost.stderr).into_owned();
        let code = lost.status.code();
        assert!(
            code.is_some_and(|code| [1, 2].contains(&code)),
            "{arguments:?}: {code:?}"
        );
        assert!(
            told.contains("the output is not complete: No space left"),
            "{arguments:?}: {told}"
        );
    }
}

#[test]
fn a_reader_that_closes_the_pipe_has_read_enough() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for arguments in answering(&dir) {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let told = run(&arguments, writer.into(), Stdio::piped());
        let stderr = String::from_utf8_lossy(&told.stderr).into_owned();
        let code = told.status.code();
        assert!(
            code.is_some_and(|code| code <= 2),
            "{arguments:?}: {code:?} {stderr}"
        );
        assert!(
            !stderr.contains("not complete") && !stderr.contains("panicked"),
            "{stderr}"
        );
    }
}

#[test]
fn a_message_that_cannot_be_written_changes_no_exit_code() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let missing = dir.path().join("missing").display().to_string();
    let nowhere = crate::support::closed_port().to_string();
    let failing: [&[&str]; 18] = [
        &["serve", "--config", &missing],
        &["check", "--config", &missing],
        &["check", "--config", &missing, "--probe"],
        &["lease-server", "--config", &missing],
        &["lease-server", "--check", "--config", &missing],
        &["init", "--out", "-"],
        &["init", "--yes", "--zvmsdk-conf", &missing, "--out", "-"],
        &["healthcheck", "--admin", &nowhere],
        &["callers", "--admin", &nowhere],
        &["limits", "--admin", &nowhere],
        &["top", "--admin", &nowhere],
        &["explain", "0123456789abcdef", "--admin", &nowhere],
        &["pause", "--hold", "1s", "--admin", &nowhere],
        &["audit", &missing],
        &["plan", &missing],
        &["advise", &missing],
        &["simulate", &missing],
        &["no-such-command"],
    ];
    for arguments in failing {
        let arguments: Vec<_> = arguments.iter().map(|it| (*it).to_owned()).collect();
        let told = run(&arguments, Stdio::piped(), Stdio::piped());
        let code = told.status.code();
        assert!(
            code.is_some_and(|code| [1, 2].contains(&code)),
            "{arguments:?}: {code:?}"
        );
        let output = [told.stdout, told.stderr].concat();
        assert!(!output.is_empty(), "{arguments:?} says nothing");
        let lost = run(&arguments, Stdio::piped(), full().into());
        assert_eq!(lost.status.code(), code, "{arguments:?}");
    }
    for arguments in answering(&dir) {
        let told = run(&arguments, Stdio::piped(), Stdio::piped());
        let lost = run(&arguments, Stdio::piped(), full().into());
        assert_eq!(lost.status.code(), told.status.code(), "{arguments:?}");
    }
}

/// The macros of the standard library panic where a write fails.
#[test]
fn no_program_prints_by_a_macro_that_panics() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    let mut folders = vec![root.join("src")];
    for entry in std::fs::read_dir(root.join("crates")).expect("there are crates") {
        folders.push(entry.expect("it can be read").path().join("src"));
    }
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("it can be read").path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|it| it == "rs") => files.push(path),
                false => {}
            }
        }
    }
    let read = |path: &Path| std::fs::read_to_string(path).expect("a source is text");
    let mut of_tests = Vec::new();
    for file in &files {
        let text = read(file);
        for part in text.split("#[cfg(test)]\nmod ").skip(1) {
            if let Some((name, _)) = part.lines().next().and_then(|line| line.split_once(';')) {
                of_tests.push(format!("{name}.rs"));
            }
        }
    }
    let mut looked_at = 0;
    for file in &files {
        let name = file
            .file_name()
            .expect("it has one")
            .to_string_lossy()
            .into_owned();
        if of_tests.contains(&name) {
            continue;
        }
        looked_at += 1;
        let text = read(file);
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            for word in ["println!", "print!", "eprintln!", "eprint!", "dbg!"] {
                assert!(!line.contains(word), "{}: {line}", file.display());
            }
        }
    }
    assert!(looked_at > 300, "{looked_at}");
}

#[test]
fn check_draws_only_what_the_terminal_and_its_locale_can_show() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "[queue]\ncapacity = 0\n").expect("written");
    let check = |term: &str, locale: &str, has_boxes: bool, has_colours: bool| {
        let terminal = Terminal::open((120, 40));
        let mut command = Command::new(with_programs());
        command.args(["check", "--config"]).arg(&config);
        command
            .env("TERM", term)
            .env("LC_ALL", locale)
            .env_remove("NO_COLOR");
        let status = terminal.run_as_it_is(command).wait().expect("it ends");
        assert_eq!(status.code(), Some(1), "{term} {locale}");
        let deadline = Instant::now() + PATIENCE;
        // The last line of the last mistake.
        while !terminal.written().contains("give 1 to") {
            assert!(Instant::now() < deadline, "{}", terminal.written());
            std::thread::yield_now();
        }
        let written = terminal.written();
        assert_eq!(!written.is_ascii(), has_boxes, "{term} {locale}: {written}");
        assert_eq!(
            written.contains('\u{1b}'),
            has_colours,
            "{term} {locale}: {written:?}"
        );
    };
    check("xterm", "C.UTF-8", true, true);
    check("xterm", "C", false, true);
    check("xterm", "de_DE.ISO-8859-1", false, true);
    check("dumb", "C.UTF-8", false, false);
    check("dumb", "C", false, false);
}
