//! The real binary as a child process: its config, its log, its addresses, signals.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Once};
use std::time::SystemTime;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::{Answer, PATIENCE, ask};

/// The binary under test.
pub(crate) const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// The program, with those beside it that it runs for some commands. Cargo builds only programs of
/// the package that is tested, so one that is missing or older than its sources is built here.
pub(crate) fn with_programs() -> &'static str {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let sources = [
            "src",
            "crates/lab/src",
            "crates/lease-server/src",
            "crates/record/src",
            "crates/replay/src",
        ];
        let latest = sources
            .map(|folder| changed(&root.join(folder)))
            .into_iter()
            .max();
        let programs = ["tidegate-lab", "tidegate-leases"];
        let is_old = |name: &&str| {
            let built = Path::new(TIDEGATE).with_file_name(name);
            let built = fs::metadata(built).and_then(|it| it.modified());
            built.ok() < latest
        };
        if !programs.iter().any(is_old) {
            return;
        }
        let mut build = std::process::Command::new(env!("CARGO"));
        // Of the whole workspace, as the tests were built: other features would compile every library anew.
        build.args(["build", "--quiet", "--workspace", "--bins"]);
        let status = build.current_dir(root).status().expect("cargo runs");
        assert!(status.success(), "{programs:?} are not built");
    });
    TIDEGATE
}

/// The time of the latest change below a folder.
fn changed(folder: &Path) -> SystemTime {
    let entries = fs::read_dir(folder).expect("a folder of sources");
    let times = entries.map(|entry| {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => changed(&path),
            false => fs::metadata(&path)
                .and_then(|it| it.modified())
                .expect("a time"),
        }
    });
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// `tidegate serve` with its own config. A drop kills the process.
pub(crate) struct Sidecar {
    child: Child,
    pub(crate) pid: u32,
    config: PathBuf,
    log: Log,
    reading: JoinHandle<()>,
    pub(crate) admin: SocketAddr,
    _dir: Arc<TempDir>,
}

/// Every line of stderr so far.
#[derive(Clone)]
pub(crate) struct Log {
    lines: watch::Receiver<Arc<Vec<String>>>,
    stalled: watch::Sender<bool>,
}

impl Log {
    pub(crate) fn read(stderr: ChildStderr) -> (Self, JoinHandle<()>) {
        let (tell, lines) = watch::channel(Arc::<Vec<String>>::default());
        let (stalled, mut is_stalled) = watch::channel(false);
        let reading = tokio::spawn(async move {
            let mut stderr = BufReader::new(stderr).lines();
            loop {
                // A log without a holder does not stall.
                let _ = is_stalled.wait_for(|stalled| !stalled).await;
                let line = tokio::select! {
                    Ok(()) = is_stalled.changed() => continue,
                    line = stderr.next_line() => line,
                };
                let Ok(Some(line)) = line else { break };
                tell.send_modify(|lines| Arc::make_mut(lines).push(line));
            }
        });
        (Self { lines, stalled }, reading)
    }

    /// Reads no more of stderr, and keeps it open, until [`go_on`](Self::go_on).
    pub(crate) fn stall(&self) {
        self.stalled.send_replace(true);
    }

    /// Reads on.
    pub(crate) fn go_on(&self) {
        self.stalled.send_replace(false);
    }

    pub(crate) fn lines(&self) -> Arc<Vec<String>> {
        Arc::clone(&self.lines.borrow())
    }

    /// Waits for the first line after `from` that contains all these words; returns it and
    /// the index just past it.
    pub(crate) async fn wait_from(&self, from: usize, words: &[&str]) -> (String, usize) {
        let fits = |line: &String| words.iter().all(|word| line.contains(word));
        let find = |lines: &Arc<Vec<String>>| lines.iter().skip(from).position(fits);
        let mut lines = self.lines.clone();
        let found = tokio::time::timeout(PATIENCE, lines.wait_for(|lines| find(lines).is_some()));
        match found.await {
            Ok(Ok(lines)) => {
                let at = from + find(&lines).expect("it was just seen");
                (lines[at].clone(), at + 1)
            }
            _ => panic!("no line with {words:?} in:\n{}", self.lines().join("\n")),
        }
    }

    pub(crate) async fn wait(&self, words: &[&str]) -> String {
        self.wait_from(0, words).await.0
    }

    /// Waits until the process has closed its stderr.
    async fn ended(&self) {
        let mut lines = self.lines.clone();
        let closed = async { while lines.changed().await.is_ok() {} };
        tokio::time::timeout(PATIENCE, closed)
            .await
            .expect("the process ends");
    }
}

impl Sidecar {
    /// Starts it and waits until it is ready.
    pub(crate) async fn start(config: &str) -> Self {
        Self::start_with(config, |binary| Command::new(binary)).await
    }

    /// Starts a sidecar by a command that runs the binary. `serve --config FILE` is added.
    pub(crate) async fn start_with(config: &str, command: impl FnOnce(&str) -> Command) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self::start_in(Arc::new(dir), config, command).await
    }

    /// Starts a sidecar whose config and runtime directory are in this folder: the next life of the one before there.
    pub(crate) async fn start_in(
        dir: Arc<TempDir>,
        config: &str,
        command: impl FnOnce(&str) -> Command,
    ) -> Self {
        let path = dir.path().join("config.toml");
        std::fs::write(&path, config).expect("it can be written to");
        let command = serve(command(TIDEGATE), &path);
        Self::started(dir, path, command).await
    }

    /// Starts a sidecar that takes over from the one whose config is in this folder.
    pub(crate) async fn take_over(dir: Arc<TempDir>) -> Self {
        let path = dir.path().join("config.toml");
        let mut command = serve(Command::new(TIDEGATE), &path);
        command.arg("--take-over");
        Self::started(dir, path, command).await
    }

    async fn started(dir: Arc<TempDir>, path: PathBuf, mut command: Command) -> Self {
        let mut child = command.spawn().expect("the binary runs");
        let pid = child.id().expect("it has just been started");
        let (log, reading) = Log::read(child.stderr.take().expect("it is piped"));
        log.wait(&["\"message\":\"ready\""]).await;
        let admin = log.wait(&["admin address is up"]).await;
        Self {
            child,
            pid,
            config: path,
            admin: field(&admin, "bind").parse().expect("an address"),
            log,
            reading,
            _dir: dir,
        }
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Where a listener really listens.
    pub(crate) async fn listener(&self, name: &str) -> SocketAddr {
        let name = format!("\"listener\":\"{name}\"");
        let line = self.log.wait(&["\"message\":\"listening\"", &name]).await;
        field(&line, "address").parse().expect("an address")
    }

    /// Closes the reading end of its stderr, as a log collector that dies.
    pub(crate) async fn stop_reading_its_log(&mut self) {
        self.reading.abort();
        // It should be aborted.
        let _ = (&mut self.reading).await;
    }

    /// Changes the config file.
    pub(crate) fn write_config(&self, config: &str) {
        std::fs::write(&self.config, config).expect("it can be written to");
    }

    pub(crate) fn config_path(&self) -> &Path {
        &self.config
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = std::process::Command::new("kill")
            .args([&format!("-{name}"), &self.pid.to_string()])
            .status()
            .expect("there is a kill command");
        assert!(sent.success(), "kill -{name}");
    }

    /// Sends SIGHUP and waits for the line that ends a reload.
    pub(crate) async fn reload(&self, config: &str) {
        self.write_config(config);
        self.hang_up("config reloaded").await;
    }

    /// Sends SIGHUP with the file's current content and waits for a line with this; returns the log
    /// until then.
    pub(crate) async fn hang_up(&self, outcome: &str) -> Vec<String> {
        let from = self.log.lines().len();
        self.signal("HUP");
        let (_, to) = self.log.wait_from(from, &[outcome]).await;
        self.log.lines()[from..to].to_vec()
    }

    /// Waits for its end; returns how it ended and all that it logged.
    pub(crate) async fn ended(mut self) -> (ExitStatus, Arc<Vec<String>>) {
        let status = tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .expect("it ends")
            .expect("it is our child");
        self.log.ended().await;
        (status, self.log.lines())
    }

    /// Waits for its end, whether or not its log is read.
    pub(crate) async fn exited(mut self) -> ExitStatus {
        tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .expect("it ends")
            .expect("it is our child")
    }

    /// A page of the admin address: status and body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        get(self.admin, path).await
    }

    /// A request to the admin address with a body of JSON: status and body.
    pub(crate) async fn ask(&self, method: &str, path: &str, json: &str) -> (u16, String) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}",
            json.len()
        );
        let answer = Answer::read(ask(self.admin, request).await.as_bytes());
        (answer.status, answer.body)
    }

    /// A metric by its whole name with labels.
    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let (_, metrics) = self.get("/metrics").await;
        metrics
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in\n{metrics}"))
    }

    /// Waits until a metric has this value.
    pub(crate) async fn reaches(&self, name: &str, value: f64) {
        let reached = async {
            while (self.metric(name).await - value).abs() > 1e-9 {
                tokio::task::yield_now().await;
            }
        };
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.unwrap_or_else(|_| panic!("{name} is never {value}"));
    }
}

/// A page of an admin address: status and body.
pub(crate) async fn get(admin: SocketAddr, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let answer = ask(admin, request).await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer in HTTP");
    let status = head.split(' ').nth(1).expect("it has a status");
    (status.parse().expect("a number"), body.to_owned())
}

fn serve(mut command: Command, config: &Path) -> Command {
    const RUNTIME_DIR: &str = "TIDEGATE_RUNTIME_DIR";
    let given = command
        .as_std()
        .get_envs()
        .any(|(name, _)| name == RUNTIME_DIR);
    if !given {
        // Where it goes with the test.
        command.env(RUNTIME_DIR, config.with_extension("run"));
    }
    command
        .arg("serve")
        .arg("--config")
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// A text field of a log line.
pub(crate) fn field(line: &str, name: &str) -> String {
    let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
    line[name].as_str().expect("a text field").to_owned()
}

/// The output of a command that ends without a signal.
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a command to its end.
pub(crate) async fn run(command: &mut Command) -> Said {
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(PATIENCE, running)
        .await
        .expect("it ends")
        .expect("the binary runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Said {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

pub(crate) async fn plan(log: &str) -> Said {
    plan_with(log, "", &[]).await
}

/// Runs a plan with a new config and further arguments.
pub(crate) async fn plan_with(log: &str, new: &str, arguments: &[&str]) -> Said {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let write = |name, text| std::fs::write(dir.path().join(name), text);
    write("access.log", log).expect("it can be written to");
    write("new.toml", new).expect("it can be written to");
    let mut command = Command::new(with_programs());
    let command = command.current_dir(&dir).args(["plan", "access.log"]);
    run(command.args(arguments)).await
}
