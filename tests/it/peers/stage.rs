//! The real peers as this test's own processes, and the proxy between them.

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use super::wire::{Wire, get};
use crate::child::Process;
use crate::stores::free_port;

/// The longest time that anything here takes, unless it hangs.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A lock for one test that floods the machine: the bounds hold under any load, but the storms would last longer
/// than their clients wait.
pub(super) fn alone() -> MutexGuard<'static, ()> {
    static STORM: Mutex<()> = Mutex::new(());
    STORM.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks again and again, with a pause, until there is an answer.
pub(super) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A script of `tests/peers` under the Python that `make test` installed for it.
fn peer(script: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_nova = script.starts_with("nova/");
    let (venv, target) = if of_nova {
        (".venv-nova", "nova")
    } else {
        (".venv-peers", "peers")
    };
    let venv = root.join(venv);
    assert!(
        venv.join("complete").exists(),
        "{script} needs what is not installed: `make test` sets it up (or `make {target}`)"
    );
    let mut command = Command::new(venv.join("bin/python"));
    command
        .arg(root.join("tests/peers").join(script))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Waits for the line that says where a peer is to be found.
fn ready<T: DeserializeOwned>(process: &Process) -> T {
    #[derive(Deserialize)]
    struct Ready<T> {
        ready: T,
    }
    process
        .stdout
        .until("the peer is ready", PATIENCE, |lines| {
            lines.iter().find_map(|line| {
                let Ready { ready } = serde_json::from_str(line).ok()?;
                Some(ready)
            })
        })
}

/// The real sdkserver over a stubbed API.
pub(super) struct Backend {
    process: Process,
    pub(super) port: u16,
    pub(super) stats: u16,
    _state: TempDir,
}

/// The calls that the backend saw.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Seen {
    /// Calls that started.
    pub(super) total: usize,
    pub(super) in_flight: usize,
    pub(super) in_flight_peak: usize,
    pub(super) connections: usize,
    /// Times that it fell over.
    pub(super) breaks: usize,
    /// The most calls that started within any second.
    pub(super) densest_window: usize,
}

impl Backend {
    /// Starts one with these options of `run_sdkserver.py`.
    pub(super) fn start(options: &[&str]) -> Self {
        #[derive(Deserialize)]
        struct Ports {
            port: u16,
            stats: u16,
        }
        let state = TempDir::new().expect("a temporary directory");
        let process = Process::start(
            "sdkserver",
            peer("run_sdkserver.py")
                .arg("--state")
                .arg(state.path())
                .args(options),
        );
        let Ports { port, stats } = ready(&process);
        Self {
            process,
            port,
            stats,
            _state: state,
        }
    }

    /// A backend that fails above 12 calls at once or 40 in any second.
    pub(super) fn fragile(options: &[&str]) -> Self {
        let breaks = ["--breaks-above-at-once=12", "--breaks-above-per-second=40"];
        Self::start(&[&breaks, options].concat())
    }

    /// A backend whose calls take next to no time.
    pub(super) fn quick() -> Self {
        Self::start(&["--latency=0.002", "--slow=0.002"])
    }

    pub(super) fn kill(&mut self) {
        self.process.kill();
    }

    pub(super) fn seen(&self) -> Seen {
        fetch(self.stats, "/stats?window=1")
    }

    /// The userids of the calls that started, in that order.
    pub(super) fn userids(&self) -> Vec<String> {
        #[derive(Deserialize)]
        struct Call {
            userid: Option<String>,
        }
        let calls: Vec<Call> = fetch(self.stats, "/calls");
        calls
            .into_iter()
            .map(|call| call.userid.unwrap_or_default())
            .collect()
    }
}

/// The real sdkwsgi.
pub(super) struct Wsgi {
    _process: Process,
    pub(super) port: u16,
    /// The file with the admin token, for `auth = token`.
    pub(super) token_path: PathBuf,
    _state: TempDir,
}

/// The login that sdkwsgi asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Auth {
    None,
    Token,
}

/// The admin token, with [`Auth::Token`].
pub(super) const ADMIN_TOKEN: &str = "0123456789abcdef0123456789abcdef01234567";

impl Wsgi {
    /// Starts one that asks the sdkserver on this port and keeps files in `files`.
    pub(super) fn start(sdkserver: u16, files: &Path, auth: Auth) -> Self {
        #[derive(Deserialize)]
        struct Place {
            port: u16,
            token_path: PathBuf,
        }
        let state = TempDir::new().expect("a temporary directory");
        let mut command = peer("run_wsgi.py");
        command
            .arg("--state")
            .arg(state.path())
            .arg("--files")
            .arg(files)
            .arg(format!("--sdk-port={sdkserver}"));
        if auth == Auth::Token {
            command.arg(format!("--admin-token={ADMIN_TOKEN}"));
        }
        let process = Process::start("sdkwsgi", &mut command);
        let Place { port, token_path } = ready(&process);
        Self {
            _process: process,
            port,
            token_path,
            _state: state,
        }
    }
}

/// The protocols of Tidegate and its peers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hop {
    /// The socket protocol, with the sdkserver on this port.
    Socket(u16),
    /// HTTP, with sdkwsgi on this port.
    Http(u16),
}

/// `tidegate serve`.
pub(super) struct Tidegate {
    process: Process,
    pub(super) port: u16,
    admin: u16,
    _state: TempDir,
}

/// Limits that nothing here reaches.
pub(super) const WIDE: &str = "
    [limits]
    smapi_rate_limit_per_window = \"total:100000\"
    smapi_max_outstanding_requests = 64
    ledger_lost = \"assume_empty\"
";

impl Tidegate {
    /// Starts one on this hop. `rest` is what its config says besides.
    pub(super) fn start(hop: Hop, rest: &str) -> Self {
        let state = TempDir::new().expect("a temporary directory");
        let (port, admin) = (free_port(), free_port());
        let (protocol, backend) = match hop {
            Hop::Socket(backend) => ("socket", format!("socket = \"127.0.0.1:{backend}\"")),
            Hop::Http(backend) => (
                "http",
                format!("kind = \"zvm\"\nhttp = \"http://127.0.0.1:{backend}\""),
            ),
        };
        let config = state.path().join("tidegate.toml");
        let text = format!(
            "[[listen]]\n\
             name = \"peers\"\n\
             bind = \"127.0.0.1:{port}\"\n\
             protocol = \"{protocol}\"\n\
             [backend]\n\
             {backend}\n\
             [admin]\n\
             bind = \"127.0.0.1:{admin}\"\n\
             [log]\n\
             format = \"json\"\n\
             {rest}\n"
        );
        std::fs::write(&config, &text).expect("the directory is ours");
        let mut process = Process::start(
            "tidegate",
            Command::new(env!("CARGO_BIN_EXE_tidegate"))
                .arg("serve")
                .arg("--config")
                .arg(&config),
        );
        until("tidegate listens", || {
            assert!(!process.has_ended(), "tidegate does not take\n{text}");
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
        });
        Self {
            process,
            port,
            admin,
            _state: state,
        }
    }

    /// Calls that wait in its queue.
    pub(super) fn waiting(&self) -> usize {
        fetch::<Queue>(self.admin, "/v1/queue").depth
    }

    /// Calls that wait for a place in its queue.
    pub(super) fn at_the_door(&self) -> usize {
        fetch::<Queue>(self.admin, "/v1/queue").door
    }

    /// Waits until N calls wait in its queue.
    pub(super) fn until_waiting(&self, calls: usize) {
        until(&format!("{calls} calls wait"), || {
            (self.waiting() == calls).then_some(())
        });
    }

    /// Waits until its log has lines of N calls, and returns them.
    pub(super) fn log(&self, calls: usize) -> Vec<Logged> {
        let what = format!("{calls} calls are logged");
        self.process.stderr.until(&what, PATIENCE, |lines| {
            let lines = lines
                .iter()
                .filter(|line| line.contains(r#""target":"access""#));
            (lines.clone().count() >= calls).then(|| {
                lines
                    .map(|line| serde_json::from_str(line).expect("one object a line"))
                    .collect()
            })
        })
    }
}

#[derive(Deserialize)]
struct Queue {
    depth: usize,
    door: usize,
}

/// The record of a call in the proxy's log when it has ended.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Logged {
    pub(super) function: String,
    pub(super) userid: Option<String>,
    pub(super) verdict: String,
    pub(super) reason: Option<String>,
    /// When its bytes left, since the proxy's start.   microseconds
    pub(super) sent_us: Option<u64>,
}

/// A real client at work.
pub(super) struct Client(Process);

impl Client {
    /// The socket client, in a mode of `drive_socket.py`.
    pub(super) fn socket(mode: &str, port: u16, options: &[&str]) -> Self {
        Self::start("drive_socket.py", mode, port, options)
    }

    /// The REST client, in a mode of `drive_rest.py`.
    pub(super) fn rest(mode: &str, port: u16, options: &[&str]) -> Self {
        Self::start("drive_rest.py", mode, port, options)
    }

    /// Nova's driver, whose threads all have work for so long.
    pub(super) fn nova(port: u16, work: Duration) -> Self {
        let seconds = format!("--seconds={}", work.as_secs_f64());
        let mut command = peer("nova/drive.py");
        command.arg(format!("--port={port}")).arg(seconds);
        Self(Process::start("nova/drive.py", &mut command))
    }

    fn start(script: &str, mode: &str, port: u16, options: &[&str]) -> Self {
        let mut command = peer(script);
        command
            .arg(mode)
            .arg(format!("--port={port}"))
            .args(options);
        Self(Process::start(format!("{script} {mode}"), &mut command))
    }

    /// The output of the program after its end, one value per line.
    pub(super) fn finish(self) -> Vec<Value> {
        self.finish_within(2 * PATIENCE)
    }

    /// The output of a program that may run so long.
    pub(super) fn finish_within(self, longest: Duration) -> Vec<Value> {
        self.0
            .finish(longest)
            .iter()
            .map(|line| serde_json::from_str(line).expect("one value a line"))
            .collect()
    }
}

/// A value from a place that speaks HTTP and JSON.
fn fetch<T: DeserializeOwned>(port: u16, path: &str) -> T {
    let (status, body) = Wire::to(port).with(get(path).as_bytes()).http();
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error} in {body}"))
}
