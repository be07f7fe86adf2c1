//! A process whose clocks a test sets. The clock that goes on while a machine is suspended is not among them.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::Command;

use crate::preloaded::Preloaded;

const BEHIND: &str = include_str!("faked_clock/behind.c");

/// The clocks of one process: the time of day, and the monotonic one, which stands still while a machine is suspended.
pub(crate) struct FakedClock {
    folder: TempDir,
}

impl FakedClock {
    /// A clock whose readings are behind by this much.
    pub(crate) fn new(time_of_day: Duration, monotonic: Duration) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let this = Self { folder };
        this.behind(time_of_day, monotonic);
        this
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("behind")
    }

    /// From now on they are behind by this much.
    pub(crate) fn behind(&self, time_of_day: Duration, monotonic: Duration) {
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).expect("hours").to_ne_bytes();
        let both = [nanos(time_of_day), nanos(monotonic)].concat();
        // In place and never shorter, because the process has mapped it.
        let mut file = OpenOptions::new();
        let file = file.write(true).create(true).truncate(false);
        let mut file = file.open(self.file()).expect("it opens");
        file.write_all(&both).expect("it can be written to");
    }

    /// A command that runs this binary with them.
    pub(crate) fn command(&self, binary: &str) -> Command {
        let mut command = Command::new(binary);
        command
            .env("LD_PRELOAD", library())
            .env("CLOCKS_BEHIND", self.file());
        command
    }
}

/// The library that answers for the clocks, built once.
fn library() -> PathBuf {
    static BUILT: OnceLock<Preloaded> = OnceLock::new();
    BUILT.get_or_init(|| Preloaded::build(BEHIND)).file()
}
