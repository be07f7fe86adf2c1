//! The process as a service manager and its journal see it: priorities, signs of life, and the file with the admin
//! address. `make try-here` runs it under a real systemd.

use std::fs::{self, File};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::sidecar::{Sidecar, TIDEGATE};
use crate::support::until;

fn config(format: &str) -> String {
    format!(
        "[[listen]]\nname = \"front\"\nbind = \"127.0.0.1:0\"\nprotocol = \"socket\"\n\
         [backend]\nsocket = \"127.0.0.1:9\"\n[limits]\nper_window = \"total:30\"\n\
         [admin]\nbind = \"127.0.0.1:0\"\n[log]\nformat = \"{format}\"\n"
    )
}

/// A command whose stderr is a file, which stands for the stream of the journal.
fn to_the_journal(folder: &Path, arguments: &[&str]) -> (Command, std::path::PathBuf) {
    let path = folder.join("journal");
    let file = File::create(&path).expect("a file");
    let found = file.metadata().expect("it is there");
    let mut command = Command::new(TIDEGATE);
    command
        .args(arguments)
        .arg("--config")
        .arg(folder.join("config.toml"))
        .env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()))
        .env("TIDEGATE_RUNTIME_DIR", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .kill_on_drop(true);
    (command, path)
}

/// The lines that `tidegate serve` writes to the journal until it has drained.
async fn journal(format: &str, change: impl FnOnce(&mut Command)) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("config.toml"), config(format)).expect("written");
    let (mut command, path) = to_the_journal(folder.path(), &["serve"]);
    change(&mut command);
    let mut child = command.spawn().expect("the binary runs");
    let pid = child.id().expect("it has just been started").to_string();
    let text = || fs::read_to_string(&path).expect("it is there");
    for (signal, words) in [("USR1", "ready"), ("TERM", "SIGUSR1 has no meaning")] {
        until(
            || text().contains(words),
            || format!("no {words}: {}", text()),
        )
        .await;
        let sent = std::process::Command::new("kill")
            .args(["-s", signal, &pid])
            .status();
        assert!(sent.expect("there is a kill command").success());
    }
    let status = child.wait().await.expect("it is our child");
    assert!(status.success(), "{}", text());
    text().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn each_line_in_the_journal_has_its_priority() {
    for format in ["json", "text"] {
        let lines = journal(format, |_| {}).await;
        for (words, priority) in [
            ("listening", "<6>"),
            ("ready", "<6>"),
            ("SIGUSR1 has no meaning", "<4>"),
            ("draining", "<6>"),
        ] {
            let line = lines.iter().find(|line| line.contains(words));
            let line = line.unwrap_or_else(|| panic!("no {words}: {lines:?}"));
            assert!(line.starts_with(priority), "{format}: {line}");
        }
        for line in &lines {
            let rest = line.get(3..).expect("it is longer than its priority");
            assert!(["<3>", "<4>", "<6>", "<7>"].contains(&&line[..3]), "{line}");
            assert_eq!(rest.starts_with('{'), format == "json", "{line}");
        }
    }
}

#[tokio::test]
async fn a_stderr_that_is_not_the_journal_has_no_priorities() {
    let lines = journal("json", |command| {
        command.env("JOURNAL_STREAM", "1:1");
    })
    .await;
    assert!(lines.iter().all(|line| line.starts_with('{')), "{lines:?}");
}

#[tokio::test]
async fn the_mistakes_that_prevent_a_start_are_errors_in_the_journal() {
    for arguments in [&["check"][..], &["serve"]] {
        for format in ["json", "text"] {
            let folder = tempfile::tempdir().expect("a folder");
            let wrong = config(format) + "wrong = 1\n";
            fs::write(folder.path().join("config.toml"), wrong).expect("written");
            let (mut command, path) = to_the_journal(folder.path(), arguments);
            let status = command.status().await.expect("the binary runs");
            assert!(!status.success());
            let text = fs::read_to_string(&path).expect("it is there");
            assert!(text.contains("wrong"), "{text}");
            for line in text.lines() {
                assert!(line.starts_with("<3>"), "{arguments:?} {format}: {line}");
            }
        }
    }
}

#[tokio::test]
async fn signs_of_life_go_to_a_service_manager_with_an_abstract_socket() {
    let name = format!("tidegate-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let socket = UnixDatagram::bind_addr(&address).expect("the name is free");
    let patience = Some(Duration::from_secs(30));
    socket.set_read_timeout(patience).expect("a timeout");
    let sidecar = Sidecar::start_with(&config("json"), |binary| {
        let mut command = Command::new(binary);
        command.env("NOTIFY_SOCKET", format!("@{name}"));
        command.env("WATCHDOG_USEC", "200000");
        command
    })
    .await;
    let reports = tokio::task::spawn_blocking(move || {
        let next = || {
            let mut buffer = [0; 512];
            let length = socket.recv(&mut buffer).expect("a report in time");
            String::from_utf8_lossy(&buffer[..length]).trim().to_owned()
        };
        [next(), next(), next()]
    });
    let reports = reports.await.expect("no panic");
    assert_eq!(reports, ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]);
    sidecar.signal("TERM");
    sidecar.ended().await;
}

#[tokio::test]
async fn a_lost_runtime_file_is_written_again_by_a_reload() {
    let folder = tempfile::tempdir().expect("a folder");
    let sidecar = Sidecar::start_with(&config("json"), |binary| {
        let mut command = Command::new(binary);
        command.env("TIDEGATE_RUNTIME_DIR", folder.path());
        command
    })
    .await;
    let files = || {
        let files = fs::read_dir(folder.path()).expect("a folder");
        let paths = files.map(|file| file.expect("readable").path());
        // The ledger and its lock are beside it.
        let paths = paths.filter(|path| path.extension().is_some_and(|it| it == "admin"));
        paths.collect::<Vec<_>>()
    };
    let [path] = &files()[..] else {
        panic!("{:?}", files());
    };
    let written = fs::read_to_string(path).expect("readable");
    assert_eq!(written.trim(), sidecar.admin.to_string());
    fs::remove_file(path).expect("ours");
    sidecar.hang_up("config reloaded").await;
    until(|| path.exists(), || "no file".to_owned()).await;
    assert_eq!(fs::read_to_string(path).expect("readable"), written);
    // Also by one that is refused. That of another process is left alone.
    fs::remove_file(path).expect("ours");
    sidecar.write_config("x");
    sidecar.hang_up("config refused").await;
    until(|| path.exists(), || "no file".to_owned()).await;
    fs::remove_file(path).expect("ours");
    fs::write(path, "127.0.0.1:1\n").expect("ours");
    sidecar.write_config(&config("json"));
    sidecar.hang_up("config reloaded").await;
    sidecar.signal("TERM");
    sidecar.ended().await;
    assert_eq!(fs::read_to_string(path).expect("readable"), "127.0.0.1:1\n");
}
