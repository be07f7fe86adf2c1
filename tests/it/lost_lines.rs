//! A log that cannot be written: each lost line is counted by its cause, no line is glued to a half
//! one, and the process continues.

use std::fs::{self, OpenOptions};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;
use tidegate_lab::backend::RunningBackend;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::sidecar::{TIDEGATE, get};
use crate::support::{PATIENCE, array, ask, closed_port, replying, until};

/// A sidecar whose stderr is where a shell has put it.
struct Redirected {
    _child: Child,
    _backend: RunningBackend,
    front: SocketAddr,
    admin: SocketAddr,
    folder: TempDir,
}

impl Redirected {
    /// `shell` ends with a redirection; `$LOG` is a file of its own.
    async fn start(shell: &str) -> Self {
        let backend = replying(std::time::Duration::ZERO, 20).await;
        let folder = tempfile::tempdir().expect("a folder");
        let (front, admin) = (closed_port(), closed_port());
        let config = folder.path().join("config.toml");
        let text = format!(
            "[[listen]]\nname = \"front\"\nbind = \"{front}\"\nprotocol = \"socket\"\n\
             [backend]\nsocket = \"{}\"\n[limits]\nwindow = \"0s\"\n[admin]\nbind = \"{admin}\"\n",
            backend.socket_addr()
        );
        fs::write(&config, text).expect("written");
        let child = Command::new("sh")
            .args(["-c", shell, "sh", TIDEGATE, "serve", "--config"])
            .arg(&config)
            .env("LOG", folder.path().join("log"))
            .env("TIDEGATE_RUNTIME_DIR", folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("there is a shell");
        let is_up = || TcpStream::connect(admin).is_ok() && TcpStream::connect(front).is_ok();
        until(is_up, || "it does not start".to_owned()).await;
        Self {
            _child: child,
            _backend: backend,
            front,
            admin,
            folder,
        }
    }

    async fn call(&self, times: usize) {
        for _ in 0..times {
            let answer = ask(self.front, array("guest_list", "")).await;
            assert!(answer.contains("overallRC"), "{answer}");
        }
    }

    /// The lines lost by this cause: of calls, and others.
    async fn lost(&self, cause: &str) -> (u64, u64) {
        let (_, metrics) = get(self.admin, "/metrics").await;
        let of = |name: &str| {
            let series = format!("tidegate_{name}_lost_total{{cause=\"{cause}\"}} ");
            let found = metrics.lines().find_map(|line| line.strip_prefix(&series));
            let found = found.unwrap_or_else(|| panic!("no {series} in\n{metrics}"));
            found.parse().expect("a count")
        };
        (of("access_lines"), of("log_events"))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("it is there")
    }

    /// Waits until the log fulfils this.
    async fn log_has(&self, is_so: impl Fn(&str) -> bool) {
        until(|| is_so(&self.log()), || format!("not yet: {}", self.log())).await;
    }
}

/// The lines of calls that are whole.
fn calls_in(log: &str) -> usize {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == "access").count()
}

#[tokio::test]
async fn lines_beyond_the_size_limit_of_a_file_are_counted_and_end_no_process() {
    // 12 KiB: the lines of the start, and some calls.
    let sidecar = Redirected::start("ulimit -f 24; exec \"$@\" 2>>\"$LOG\"").await;
    sidecar.call(40).await;
    let full = 24 * 512;
    sidecar.log_has(|log| log.len() == full).await;
    let kept = calls_in(&sidecar.log());
    assert!((1..40).contains(&kept), "{kept} of 40");
    let mut lost = (0, 0);
    // The last batch may still be on its way.
    while kept as u64 + lost.0 < 40 {
        lost = sidecar.lost("file_too_large").await;
    }
    assert_eq!(
        (kept as u64 + lost.0, lost.1),
        (40, 0),
        "each call is in the log or counted"
    );
    assert_eq!(sidecar.lost("slow_reader").await, (0, 0));

    // Now there is room again, behind a half line.
    let path = sidecar.folder.path().join("log");
    let half = "{\"timestamp\":\"half a li";
    let before = sidecar.log();
    let whole = before.rfind('\n').expect("a whole line") + 1;
    assert!(whole < full, "the last line is a half one");
    let file = OpenOptions::new().write(true).open(&path).expect("ours");
    file.set_len(0).expect("emptied");
    fs::write(&path, half).expect("written");
    sidecar.call(1).await;
    sidecar
        .log_has(|log| log.contains("access lines lost"))
        .await;
    let log = sidecar.log();
    let (first, rest) = log.split_once('\n').expect("a line end");
    assert_eq!(first, half, "the half line is ended before the next");
    for line in rest.lines() {
        let _: Value = serde_json::from_str(line).expect(line);
    }
    assert_eq!(calls_in(rest), 1);
    let warning = rest.lines().find(|line| line.contains("access lines lost"));
    let warning: Value = serde_json::from_str(warning.expect("one")).expect("JSON");
    assert_eq!(warning["lines"], lost.0);
    assert_eq!(warning["cause"], "file_too_large");
    assert_eq!(warning["level"], "WARN");
}

#[tokio::test]
async fn on_a_full_disk_every_line_is_counted() {
    let sidecar = Redirected::start("exec \"$@\" 2>/dev/full").await;
    let sidecar = Arc::new(sidecar);
    sidecar.call(5).await;
    // Those of the calls, and the line of the start. The last batch may still be on its way.
    let all = async {
        loop {
            let lost = sidecar.lost("disk_full").await;
            if lost.0 >= 6 {
                return lost;
            }
        }
    };
    let lost = timeout(PATIENCE, all).await.expect("each line is counted");
    assert!(
        lost.1 >= 3,
        "listening, admin address is up, ready: {lost:?}"
    );
    assert_eq!(get(sidecar.admin, "/readyz").await.0, 200);
}
