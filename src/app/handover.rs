//! The hand-over of a running sidecar to a new program, in both processes (docs/decisions/0043).
//!
//! `tidegate_handover` decides. The files here carry it out: `old.rs` in the process that serves and then drains, `new.rs`
//! in the one that starts. `channel.rs` is the connection of the two.

mod channel;
mod foreign;
mod new;
mod old;
mod wire;

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};
use tidegate_handover::{NewInput, RunningCall, StatePart};
use tidegate_runtime::lock;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub(in crate::app) use self::foreign::ForeignCalls;
pub use self::new::TakingOver;
pub(super) use self::old::OldProcess;
use super::ledger::LedgerLock;
use super::{App, LAST_WORDS};

/// The name of the state part with the callers.
const CALLERS: &str = "callers";
/// The name of the state part with the acts of operators.
const ACTS: &str = "acts";
/// The name of the state part with the files of sockets that go with the process.
const SOCKET_FILES: &str = "socket_files";
/// The mode of the socket: this user alone.
const MODE: u32 = 0o600;
/// The bytes of a part that fit into one message.
const PART_BYTES: usize = 60_000;

/// The phase of a process in a hand-over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HandoverPhase {
    /// The process serves.
    #[default]
    Serving,
    /// Another process serves, and this one finishes its calls.
    HandedOver,
    /// The process must drain as if asked by a signal: the new one speaks another version.
    Draining,
    /// The process ends now, after another one has taken over.
    Ended,
}

/// The hand-over as the rest of the app sees it.
#[derive(Debug)]
pub(super) struct Handover {
    requests: mpsc::UnboundedSender<OldRequest>,
    phase: watch::Sender<HandoverPhase>,
    is_stopping: CancellationToken,
    /// A process before this one may still report calls.
    is_old_present: AtomicBool,
}

/// The answer to a request for an upgrade: the pid of the new process, or why there is none.
pub type UpgradeAnswer = Result<u32, String>;

/// A request to the part that hands over.
#[derive(Debug)]
pub(super) enum OldRequest {
    /// Start a new process, which takes over.
    Upgrade(oneshot::Sender<UpgradeAnswer>),
    /// A process that was started for an upgrade has ended.
    ChildEnded {
        /// The pid of the process.
        pid: u32,
        /// How, in words.
        how: String,
    },
    /// The process was asked to end.
    Stopping,
}

impl Handover {
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<OldRequest>) {
        let (requests, asked) = mpsc::unbounded_channel();
        let handover = Self {
            requests,
            phase: watch::Sender::default(),
            is_stopping: CancellationToken::new(),
            is_old_present: AtomicBool::new(false),
        };
        (handover, asked)
    }

    /// The phase, and its changes.
    pub(super) fn phase(&self) -> watch::Receiver<HandoverPhase> {
        self.phase.subscribe()
    }

    /// Starts a new process that takes over. Returns once it has, or has not.
    pub(super) async fn upgrade(&self) -> UpgradeAnswer {
        let (answer, answered) = oneshot::channel();
        let unavailable = || {
            Err("this sidecar has no ledger, or no socket beside it, so it cannot hand over: its log says why"
                .to_owned())
        };
        if self.requests.send(OldRequest::Upgrade(answer)).is_err() {
            return unavailable();
        }
        answered.await.unwrap_or_else(|_| unavailable())
    }

    /// A process that was started for an upgrade has ended.
    pub(super) fn child_ended(&self, pid: u32, how: String) {
        let _ = self.requests.send(OldRequest::ChildEnded { pid, how });
    }

    /// The process was asked to end.
    pub(super) fn stopping(&self) {
        self.is_stopping.cancel();
        // Without a ledger there is no other process to tell.
        let _ = self.requests.send(OldRequest::Stopping);
    }

    pub(super) fn note_old(&self, is_present: bool) {
        self.is_old_present.store(is_present, Ordering::Relaxed);
    }

    fn is_old_present(&self) -> bool {
        self.is_old_present.load(Ordering::Relaxed)
    }
}

/// Starts a program, and returns its pid.
pub type StartProgram = Arc<dyn Fn() -> io::Result<u32> + Send + Sync>;

impl App {
    /// Says how a program is started that takes over. Returns its pid.
    pub fn set_successor(&self, start: StartProgram) {
        *lock(&self.shared.successor) = Some(start);
    }

    /// Starts a new program, which takes over. Returns the pid of the process that serves then.
    ///
    /// # Errors
    /// Why this process still serves.
    pub async fn upgrade(&self) -> UpgradeAnswer {
        self.shared.handover.upgrade().await
    }

    /// The phase of this process in a hand-over.
    #[must_use]
    pub fn handover_phase(&self) -> watch::Receiver<HandoverPhase> {
        self.shared.handover.phase()
    }

    /// The process with this pid, which was started for an upgrade, has ended.
    pub fn successor_ended(&self, pid: u32, how: String) {
        self.shared.handover.child_ended(pid, how);
    }

    /// The process that admits calls with the ledger of this one.
    #[must_use]
    pub fn serving_pid(&self) -> Option<u32> {
        self.shared.ledger.as_ref()?.serving_pid()
    }

    /// The process was asked to end.
    pub fn stopping(&self) {
        self.shared.handover.stopping();
    }

    /// Ends everything that runs beside the calls, so that the other process sees that this one has ended, though its process
    /// lives on.
    pub fn end_beside(&self) {
        self.beside.cancel();
    }

    /// Ends a process that has handed over. Returns whether all its calls were finished.
    pub async fn end_after_hand_over(&self) -> bool {
        let shared = &self.shared;
        let (running, waiting) = self.busy();
        let is_finished = running + waiting == 0 && shared.conversations.is_empty();
        if !is_finished {
            warn!(
                running,
                waiting, "the drain took too long, ending what is left"
            );
            shared.closing.set();
            shared.give_up_calls();
            let _ = tokio::time::timeout(LAST_WORDS, shared.conversations.wait()).await;
        }
        shared.history.end_streams().await;
        shared.gate.end_observing();
        shared.flush_spans().await;
        shared.quotas.close().await;
        // Who asked for the upgrade is answered there.
        let _ = tokio::time::timeout(LAST_WORDS, shared.admin_ended()).await;
        is_finished
    }
}

/// State that the process before has handed over.
#[derive(Debug)]
pub(super) struct HandedOver {
    /// The right to admit calls.
    pub(super) lock: LedgerLock,
    /// The calls that the process runs; `None` if what it handed over is no longer true.
    pub(super) running: Option<Vec<RunningCall>>,
    /// State that is not in the ledger.
    pub(super) state: HandedState,
}

/// State that is neither in the ledger nor in the config.
#[derive(Debug, Default)]
pub(super) struct HandedState(Vec<StatePart>);

impl HandedState {
    /// The bytes of all parts with this name; `None` if there is none.
    fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let mut parts = self.0.iter().filter(|part| &*part.name == name).peekable();
        parts.peek()?;
        Some(parts.flat_map(|part| part.bytes.iter().copied()).collect())
    }

    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        let bytes = self.bytes(name)?;
        let read = serde_json::from_slice(&bytes);
        read.inspect_err(
            |error| warn!(%error, name, "a part of the state that was handed over is lost"),
        )
        .ok()
    }

    /// The callers.
    pub(super) fn callers(&self) -> Option<crate::callers::SavedCallers> {
        self.read(CALLERS)
    }

    /// The files of sockets that go with the process.
    fn socket_files(&self) -> Vec<PathBuf> {
        self.read(SOCKET_FILES).unwrap_or_default()
    }

    /// The acts of operators.
    pub(super) fn acts<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        self.read(ACTS)
    }
}

/// A value as parts of this name.
fn parts_of(name: &str, value: &impl serde::Serialize) -> Vec<StatePart> {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let parts = bytes.chunks(PART_BYTES).map(|bytes| StatePart {
        name: name.into(),
        bytes: bytes.to_vec(),
    });
    parts.collect()
}

/// The socket on which a process waits for the next one.
fn socket_of(ledger: &Path) -> PathBuf {
    ledger.with_extension("upgrade")
}

/// Connects to the process that waits there.
async fn connect(path: &Path) -> io::Result<UnixStream> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // The address of a socket has at most 108 bytes, and a path may have more.
    UnixStream::connect(format!("/proc/self/fd/{}", file.as_raw_fd())).await
}

/// Listens at this path, in the place of any other process. No client can connect before the file has its mode.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let folder = File::open(path.parent().unwrap_or(Path::new("/")))?;
    // As short as an address must be.
    let new = format!(
        "/proc/self/fd/{}/.upgrade-{}",
        folder.as_raw_fd(),
        std::process::id()
    );
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new)?;
    fs::set_permissions(&new, Permissions::from_mode(MODE))?;
    fs::rename(new, path)?;
    Ok(listener)
}

/// The calls of the process before, and what the gate decides for them.
pub(super) type ForeignSide = (ForeignCalls, mpsc::UnboundedReceiver<NewInput>);
