//! The Python example keeps a lease on a stack that shares nothing with ours but the wire.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::lease_mock::Mock;

/// Longer than anything here takes; only a mistake waits for it.
const BOUND: Duration = Duration::from_secs(30);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Python that tests/peers/setup.sh installs.
fn python() -> PathBuf {
    let venv = root().join(".venv-peers");
    assert!(
        venv.join("complete").exists(),
        "grpcio is not installed: `make test` sets it up (or tests/peers/setup.sh)"
    );
    venv.join("bin/python")
}

pub(crate) fn example(servers: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = Command::new(python());
    command.arg(root().join("examples/lease_client.py"));
    for server in servers {
        command.args(["--server", server]);
    }
    let mut child = command
        .args([
            "--resource",
            "back/end",
            "--wants",
            "9",
            "--interval",
            "0.2",
        ])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let stdout = child.stdout.take().expect("it is piped");
    (child, BufReader::new(stdout).lines())
}

pub(crate) async fn says(lines: &mut Lines<BufReader<ChildStdout>>, expected: &str) {
    let line = timeout(BOUND, lines.next_line()).await;
    let line = line.expect("in time").expect("text").expect("a line");
    assert_eq!(line, expected);
}

#[tokio::test]
async fn the_python_example_follows_the_master_falls_back_to_the_safe_share_and_gives_back() {
    let (follower, master) = (Mock::new(), Mock::new());
    let (follower_address, _following) = follower.serve().await;
    let (master_address, _serving) = master.serve().await;
    follower.lock().names_master = Some(Some(master_address));
    {
        let mut master = master.lock();
        (master.capacity, master.safe_capacity) = (7.0, Some(2.5));
        (master.lease_seconds, master.refresh_seconds) = (2, 1);
    }
    // No server has the first address: port 1 of loopback.
    let (mut child, mut lines) = example(&["127.0.0.1:1", &follower_address]);
    says(&mut lines, "back/end: 7.0").await;
    master.lock().capacity = 100.0;
    says(&mut lines, "back/end: 9.0").await;
    let has = {
        let master = master.lock();
        let (_, asked) = master.asked.last().expect("it was asked");
        assert!(asked.client_id.contains(':'), "{}", asked.client_id);
        asked.resource[0].has.expect("its lease")
    };
    assert_eq!((has.capacity, has.refresh_interval), (7.0, 1));
    master.lock().is_down = true;
    says(&mut lines, "back/end: 2.5").await;
    master.lock().is_down = false;
    says(&mut lines, "back/end: 9.0").await;

    let pid = child.id().expect("it runs").to_string();
    let sent = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status();
    assert!(sent.expect("kill runs").success());
    says(&mut lines, "back/end: released").await;
    assert!(child.wait().await.expect("it ends").success());
    assert_eq!(master.lock().released, [["back/end"]]);
}
