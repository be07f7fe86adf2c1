//! The process under test, seen from outside: its addresses, its log, its admin page, and what the
//! system says of it. The stand-in of the negative controls is started by the same means.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::support::call_threads;

pub(super) struct Subject {
    child: Child,
    pub(super) pid: u32,
    pub(super) addr: SocketAddr,
    pub(super) admin: SocketAddr,
    log: Arc<Mutex<Vec<u8>>>,
    reads_log: watch::Sender<bool>,
    reading: JoinHandle<()>,
    config: PathBuf,
    pub(super) folder: tempfile::TempDir,
}

/// Time for the process to do what takes no time.
const SOON: Duration = Duration::from_secs(20);

impl Subject {
    /// Starts a command with `--config FILE` behind it, and waits until it is ready. `config` is
    /// made for the folder that is the process's own.
    pub(super) async fn start(
        mut command: Command,
        config: impl FnOnce(&Path) -> String,
    ) -> Result<Self, String> {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("config.toml");
        std::fs::write(&path, config(folder.path())).expect("there is room");
        let mut child = command
            .arg("--config")
            .arg(&path)
            .env("FAULTS_FOLDER", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("the process does not start: {error}"))?;
        let mut stderr = child.stderr.take().expect("it is piped");
        let log = Arc::<Mutex<Vec<u8>>>::default();
        let (reads_log, mut reads) = watch::channel(true);
        let kept = Arc::clone(&log);
        let reading = tokio::spawn(async move {
            let mut chunk = vec![0; 64 * 1024];
            loop {
                if reads.wait_for(|reads| *reads).await.is_err() {
                    // Nothing will change that any more.
                    return;
                }
                tokio::select! {
                    read = stderr.read(&mut chunk) => match read {
                        Ok(read @ 1..) => kept.lock().expect("no test panics with it")
                            .extend_from_slice(&chunk[..read]),
                        _ => return,
                    },
                    _ = reads.changed() => {}
                }
            }
        });
        let pid = child.id().expect("it has just been started");
        let mut subject = Self {
            child,
            pid,
            addr: ([127, 0, 0, 1], 0).into(),
            admin: ([127, 0, 0, 1], 0).into(),
            log,
            reads_log,
            reading,
            config: path,
            folder,
        };
        let until = Instant::now() + SOON;
        loop {
            let lines = subject.lines();
            let find = |words: &[&str]| {
                let mut lines = lines.iter();
                lines.find(|line| words.iter().all(|word| line.contains(word)))
            };
            let address = |line: &String, name: &str| {
                let line: Value = serde_json::from_str(line).ok()?;
                line[name].as_str()?.parse::<SocketAddr>().ok()
            };
            if find(&["\"message\":\"ready\""]).is_some()
                && let Some(listening) = find(&["\"message\":\"listening\"", "\"test\""])
                && let Some(admin) = find(&["admin address is up"])
            {
                subject.addr = address(listening, "address").expect("an address");
                subject.admin = address(admin, "bind").expect("an address");
                return Ok(subject);
            }
            if subject.child.try_wait().is_ok_and(|it| it.is_some()) || Instant::now() > until {
                // Its last output is still in the pipe.
                sleep(Duration::from_millis(200)).await;
                let lines = subject.lines();
                return Err(format!("it does not start:\n{}", lines.join("\n")));
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Every line of its log so far.
    pub(super) fn lines(&self) -> Vec<String> {
        let log = self.log.lock().expect("no test panics with it");
        String::from_utf8_lossy(&log)
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// How often its log contains some words, at any length.
    pub(super) fn logged(&self, words: &str) -> usize {
        let log = self.log.lock().expect("no test panics with it");
        String::from_utf8_lossy(&log).matches(words).count()
    }

    /// Waits until its log has some words more often than before.
    pub(super) async fn logs(&self, words: &str, before: usize) -> Result<(), String> {
        let until = Instant::now() + SOON;
        while self.logged(words) <= before {
            if Instant::now() > until {
                return Err(format!("it never logged {words:?}"));
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Stops to read its log, or goes on.
    pub(super) fn read_log(&self, reads: bool) {
        self.reads_log.send_replace(reads);
    }

    /// Fills the pipe that it logs to, so that the next line finds no room.
    pub(super) fn fill_log(&self) {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let pipe = std::fs::OpenOptions::new()
            .write(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
            .open(format!("/proc/{}/fd/2", self.pid));
        let Ok(mut pipe) = pipe else { return };
        while pipe.write(&[b'\n'; 4096]).is_ok() {}
        while pipe.write(b"\n").is_ok() {}
    }

    pub(super) fn signal(&self, name: &str) {
        let sent = std::process::Command::new("kill")
            .args([&format!("-{name}"), &self.pid.to_string()])
            .stderr(Stdio::null())
            .status();
        // It may have ended meanwhile.
        drop(sent);
    }

    pub(super) fn write_config(&self, text: &str) {
        // Whole or not at all: it may be read at any moment.
        let beside = self.config.with_extension("new");
        std::fs::write(&beside, text).expect("there is room");
        std::fs::rename(&beside, &self.config).expect("it is ours");
    }

    /// Reloads a config, and waits until that is done.
    pub(super) async fn reload(&self, text: &str) -> Result<(), String> {
        let before = self.logged("config reloaded");
        self.write_config(text);
        self.signal("HUP");
        self.logs("config reloaded", before).await
    }

    /// Open descriptors, without those of threads that are started when there are many connections.
    pub(super) fn descriptors(&self) -> usize {
        const OF_A_LOOP: usize = 4;
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.pid));
        let open = folder.map_or(0, Iterator::count);
        open.saturating_sub(OF_A_LOOP * call_threads(self.pid))
    }

    /// The targets of its open descriptors.
    pub(super) fn open_files(&self) -> Vec<String> {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.pid));
        let Ok(folder) = folder else {
            return Vec::new();
        };
        let links = folder.flatten().map(|it| std::fs::read_link(it.path()));
        links.flatten().map(|it| it.display().to_string()).collect()
    }

    /// Resident memory.   bytes
    pub(super) fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
        let line = status.unwrap_or_default();
        let line = line.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|it| it.trim().split(' ').next()?.parse::<u64>().ok());
        kilobytes.unwrap_or(0) * 1024
    }

    /// Asks the admin address.
    pub(super) async fn ask(&self, method: &str, path: &str, body: &str) -> Option<String> {
        ask(self.admin, method, path, body).await
    }

    /// The metrics of the process, by series.
    pub(super) async fn metrics(&self) -> Option<HashMap<String, f64>> {
        let page = self.ask("GET", "/metrics", "").await?;
        let series = page.lines().filter(|line| !line.starts_with('#'));
        let series = series.filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        });
        Some(series.collect())
    }

    pub(super) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Waits for its end; returns its exit and its log. None if it does not end.
    pub(super) async fn ended(&mut self, within: Duration) -> Option<(ExitStatus, Vec<String>)> {
        self.read_log(true);
        let status = timeout(within, self.child.wait()).await.ok()?.ok()?;
        // Its last log lines are still in the pipe.
        let _ = timeout(SOON, &mut self.reading).await;
        Some((status, self.lines()))
    }
}

/// Asks an admin address; the whole answer, if it comes soon.
pub(super) async fn ask(admin: SocketAddr, method: &str, path: &str, body: &str) -> Option<String> {
    let asking = async {
        let mut stream = TcpStream::connect(admin).await.ok()?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        Some(String::from_utf8_lossy(&answer).into_owned())
    };
    timeout(Duration::from_secs(5), asking).await.ok().flatten()
}

/// The sum of all series of this name.
pub(super) fn sum(metrics: &HashMap<String, f64>, name: &str) -> f64 {
    let all = metrics.iter();
    let own = all.filter(|(series, _)| {
        let rest = series.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
    });
    own.map(|(_, value)| value).sum()
}
