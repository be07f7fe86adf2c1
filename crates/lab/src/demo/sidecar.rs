//! The sidecar of the demonstration: `tidegate serve`, as a separate process.

use std::io;
use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::Value;
use tidegate_runtime::command::companion;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use super::{DemoProxy, Postpone, Wish};

/// Starts a sidecar with these settings, on a free port.
pub(super) async fn start(wish: Wish) -> io::Result<DemoProxy> {
    let program = companion("tidegate");
    let mut child = Command::new(&program)
        .args(["serve", "--config", "/dev/stdin"])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| {
            let program = program.display();
            let cure = "put it beside tidegate-lab or in PATH, or build it with \
                        `cargo build --release -p tidegate`";
            io::Error::new(
                error.kind(),
                format!("cannot run {program}: {error}; {cure}"),
            )
        })?;
    // Dropped after the write, which ends the config.
    let mut config = child.stdin.take().expect("it is piped");
    config.write_all(text(&wish).as_bytes()).await?;
    drop(config);
    let stderr = child.stderr.take().expect("it is piped");
    let mut log = BufReader::new(stderr).lines();
    let addr = listening(&mut log).await?;
    // Read to its end, or its writer stalls.
    tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
    Ok(DemoProxy {
        addr,
        stop: Box::pin(stop(child)),
    })
}

/// The address in the line that reports it.
async fn listening(log: &mut Lines<BufReader<ChildStderr>>) -> io::Result<SocketAddr> {
    let mut said = String::new();
    while let Some(line) = log.next_line().await? {
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        if event["message"] == "listening"
            && let Some(addr) = event["address"].as_str()
        {
            return addr.parse().map_err(io::Error::other);
        }
        said.push_str(&line);
        said.push('\n');
    }
    Err(io::Error::other(format!(
        "the sidecar did not start:\n{said}"
    )))
}

async fn stop(mut child: Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        // It may have ended already.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let _ = child.wait().await;
}

fn text(wish: &Wish) -> String {
    let postpone = match wish.postpone {
        Postpone::InTurn => "in_turn",
        Postpone::Jitter => "jitter",
    };
    format!(
        r#"
        [[listen]]
        name = "demo"
        bind = "127.0.0.1:0"
        protocol = "socket"
        [backend]
        socket = "{}"
        [queue]
        postpone = "{postpone}"
        [limits]
        window = "{}s"
        per_window = "total:{}"
        outstanding = {}
        [admin]
        bind = ""
        [log]
        format = "json"
        access = false
        "#,
        wish.backend,
        wish.limits.window.as_secs(),
        wish.limits.per_window,
        wish.limits.in_flight
    )
}
