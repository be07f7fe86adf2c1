//! The locks of two files beside the ledger, which the kernel frees when their process ends: the right to admit calls, and
//! the mark of a process that drains after a hand-over.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::time::{Instant, sleep};

/// More than a pid and a term need.   bytes
const TEXT_BYTES_MAX: u64 = 64;

/// How long the lock is tried for that another process has released, or died with.
pub(in crate::app) const CLAIM_MAX: Duration = Duration::from_secs(1);
/// The time between two tries for a lock.
pub(in crate::app) const CLAIM_EVERY: Duration = Duration::from_millis(10);

/// The right to admit calls with a ledger. Each claim has a term, which is higher than that of the claim before.
#[derive(Debug)]
pub(in crate::app) struct LedgerLock {
    file: File,
    term: u64,
}

/// Why a lock was not claimed.
#[derive(Debug)]
pub(in crate::app) enum ClaimError {
    /// Another process has it, with this pid.
    Taken(String),
    /// The error of the system.
    Io(io::Error),
}

impl LedgerLock {
    /// Claims the lock of this ledger. Also returns the term of the claim before.
    ///
    /// # Errors
    /// If another process has it, or its file cannot be written.
    pub(in crate::app) fn claim(ledger: &Path) -> Result<(Self, u64), ClaimError> {
        if let Some(folder) = ledger.parent() {
            // It usually exists. If it cannot be created, the next step fails.
            let _ = fs::create_dir(folder);
        }
        let mut file = open(&ledger.with_extension("lock")).map_err(ClaimError::Io)?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            let (pid, _) = read(&mut file);
            return Err(match error {
                Errno::WOULDBLOCK => ClaimError::Taken(pid),
                error => ClaimError::Io(error.into()),
            });
        }
        let (_, before) = read(&mut file);
        let term = before + 1;
        write(&mut file, &format!("{}\n{term}\n", std::process::id())).map_err(ClaimError::Io)?;
        Ok((Self { file, term }, before))
    }

    /// Claims the lock as [`claim`](Self::claim), and tries for this long if another process has it.
    ///
    /// # Errors
    /// If another process still has it then, or its file cannot be written.
    pub(in crate::app) async fn claim_within(
        ledger: &Path,
        patience: Duration,
    ) -> Result<(Self, u64), ClaimError> {
        let until = Instant::now() + patience;
        loop {
            match Self::claim(ledger) {
                Err(ClaimError::Taken(_)) if Instant::now() < until => sleep(CLAIM_EVERY).await,
                tried => return tried,
            }
        }
    }

    /// The process that has the lock of this ledger, or had it last.
    pub(in crate::app) fn pid(ledger: &Path) -> Option<u32> {
        let mut file = File::open(ledger.with_extension("lock")).ok()?;
        read(&mut file).0.parse().ok()
    }

    /// The term of this claim.
    pub(in crate::app) fn term(&self) -> u64 {
        self.term
    }
}

impl Drop for LedgerLock {
    fn drop(&mut self) {
        // A process that was started in between may have the same open file.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Held by a process that has handed over, until it ends.
#[derive(Debug)]
pub(in crate::app) struct DrainingLock(File);

impl DrainingLock {
    /// Takes it.
    ///
    /// # Errors
    /// If another process drains, or the file cannot be written.
    pub(in crate::app) fn hold(ledger: &Path) -> Result<Self, ClaimError> {
        let mut file = open(&ledger.with_extension("draining")).map_err(ClaimError::Io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(ClaimError::Taken(read(&mut file).0)),
            Err(error) => return Err(ClaimError::Io(error.into())),
        }
        write(&mut file, &format!("{}\n", std::process::id())).map_err(ClaimError::Io)?;
        Ok(Self(file))
    }

    /// Whether no process drains now.
    pub(in crate::app) fn is_free(ledger: &Path) -> bool {
        let Ok(file) = File::open(ledger.with_extension("draining")) else {
            // There never was one.
            return true;
        };
        flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
    }

    /// Waits until no process drains. It takes as long as that process does, so it needs a thread that waits.
    pub(in crate::app) fn wait_until_free(ledger: &Path) {
        if let Ok(file) = File::open(ledger.with_extension("draining")) {
            while flock(&file, FlockOperation::LockShared) == Err(Errno::INTR) {}
        }
    }
}

impl Drop for DrainingLock {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).open(path)
}

/// The pid and the term in the file of a lock.
fn read(file: &mut File) -> (String, u64) {
    let mut text = String::new();
    let _ = file.rewind();
    let _ = file.take(TEXT_BYTES_MAX).read_to_string(&mut text);
    let mut lines = text.lines();
    let pid = lines.next().unwrap_or_default().trim().to_owned();
    let term = lines.next().and_then(|term| term.trim().parse().ok());
    (pid, term.unwrap_or_default())
}

fn write(file: &mut File, text: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_claim_has_a_higher_term_and_only_one_process_has_the_lock() {
        let folder = tempfile::tempdir().expect("a directory");
        let ledger = folder.path().join("x.ledger");
        for term in 1..4 {
            let (lock, before) = LedgerLock::claim(&ledger).expect("it is free");
            assert_eq!((lock.term(), before), (term, term - 1));
            let Err(ClaimError::Taken(pid)) = LedgerLock::claim(&ledger) else {
                panic!("it is taken")
            };
            assert_eq!(pid, std::process::id().to_string());
        }
    }

    #[test]
    fn the_lock_of_a_process_that_drains_is_waited_for() {
        let folder = tempfile::tempdir().expect("a directory");
        let ledger = folder.path().join("x.ledger");
        assert!(DrainingLock::is_free(&ledger));
        DrainingLock::wait_until_free(&ledger);
        let held = DrainingLock::hold(&ledger).expect("it is free");
        assert!(!DrainingLock::is_free(&ledger));
        let Err(ClaimError::Taken(pid)) = DrainingLock::hold(&ledger) else {
            panic!("it is taken")
        };
        assert_eq!(pid, std::process::id().to_string());
        let waiting = std::thread::spawn(move || DrainingLock::wait_until_free(&ledger));
        drop(held);
        waiting.join().expect("it is free now");
    }
}
