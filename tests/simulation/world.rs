//! The world around the process: files, and the parts that the clients and the backend share.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::{Duration, Instant, sleep_until};

use crate::record::{Millis, Record};

/// The part of the world that the clients and the backend share.
pub(crate) struct World {
    pub(crate) record: Record,
    /// Calls go on at the backend when the process is killed.
    pub(crate) finishes: bool,
    folder: TempDir,
    began: Instant,
    /// Whether the backend gets on.
    flows: watch::Sender<bool>,
    killed_at: AtomicU64,
}

impl World {
    /// Begins its time; needs a runtime.
    pub(crate) fn new(record: Record, finishes: bool) -> Self {
        Self {
            record,
            finishes,
            folder: tempfile::tempdir().expect("a temporary directory"),
            began: Instant::now(),
            flows: watch::channel(true).0,
            killed_at: AtomicU64::new(u64::MAX),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The socket of the process.
    pub(crate) fn front(&self) -> PathBuf {
        self.file("front")
    }

    /// The socket of the backend.
    pub(crate) fn back(&self) -> PathBuf {
        self.file("back")
    }

    /// The ledger of the process.
    pub(crate) fn ledger(&self) -> PathBuf {
        self.file("ledger")
    }

    /// The folder of all files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Waits until a moment.
    pub(crate) async fn until(&self, at: Millis) {
        sleep_until(self.began + Duration::from_millis(at)).await;
    }

    /// Whether the backend gets on, from now on.
    pub(crate) fn set_flowing(&self, flows: bool) {
        self.flows.send_replace(flows);
    }

    /// Waits as long as the backend does not get on.
    pub(crate) async fn flowing(&self) {
        let mut flows = self.flows.subscribe();
        let _ = flows.wait_for(|flows| *flows).await;
    }

    /// The process is killed now.
    pub(crate) fn killed(&self) {
        let now = self.record.look().now();
        self.killed_at.store(now, Ordering::Relaxed);
    }

    /// Whether a connection that ends now has ended because the process was killed.
    pub(crate) fn was_just_killed(&self) -> bool {
        let killed_at = self.killed_at.load(Ordering::Relaxed);
        self.record.look().now().checked_sub(killed_at) <= Some(1) && killed_at != u64::MAX
    }
}
