//! The file of the ledger: who may write it, what the process before left in it, and the calls of that process.
//!
//! Two files: one is locked for as long as the process lives, and has its pid; the other is the ledger. A new ledger
//! gets a file of its own, which takes the name when it is whole, because a mapped file must not be written otherwise.

mod locks;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tidegate_ledger::{Boot, Carryover, PastRows, RowLedger, Void, read, read_rows};
use tidegate_limits::Timestamp;
use tidegate_mapping::MappedFile;
use tidegate_quota::memory::{KeptRecords, Memory};
use tidegate_runtime::{Clock, lock};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(super) use self::locks::{CLAIM_EVERY, CLAIM_MAX, ClaimError, DrainingLock, LedgerLock};
use super::{AppState, StartError};
use crate::admit::{
    CarriedCalls, CarriedCounts, Gate, GateLedger, GateSettings, LedgerLost, LedgerPlan, NewLedger,
};
use crate::call::jobs::CarriedJob;

/// Largest ledger.   bytes
const BYTES_MAX: u64 = 1 << 26;

/// The place of a ledger, claimed by this process.
#[derive(Debug)]
pub(super) struct LedgerFile {
    path: PathBuf,
    boot: Boot,
    clock: Clock,
    carried: Mutex<Arc<CarriedNow>>,
    /// Jobs of the process before that are not followed yet.
    jobs: Mutex<Vec<CarriedJob>>,
    /// The right to admit calls; `None` after a hand-over.
    lock: Mutex<Option<LedgerLock>>,
}

/// State of the process before that this one counts.
#[derive(Debug, Default)]
pub(super) struct CarriedNow {
    counts: CarriedCounts,
    /// Calls that still hold slots.
    holding: AtomicUsize,
}

impl CarriedNow {
    /// Departures, calls and levels at the start.
    pub(super) fn counts(&self) -> CarriedCounts {
        self.counts
    }

    /// Calls that still hold slots.
    pub(super) fn holding(&self) -> usize {
        self.holding.load(Ordering::Relaxed)
    }

    /// A sentence for operators, while calls of the process before hold slots.
    pub(super) fn notice(&self) -> Option<String> {
        let calls = self.holding();
        (calls > 0).then(|| {
            format!(
                "{calls} calls of the process before hold slots, because they may still be at the backend \
                 (backend.after_crash)"
            )
        })
    }
}

/// Knowledge of the process before.
#[derive(Debug)]
pub(super) enum PastLedger {
    /// All of it.
    Known(Carryover),
    /// There is no ledger.
    Missing,
    /// The ledger says nothing.
    Void(Void),
    /// The ledger cannot be read.
    Unreadable(io::Error),
}

impl LedgerFile {
    /// Claims the place. With a lock, this process has claimed it already.
    ///
    /// # Errors
    /// If another process has it, or it cannot be written.
    pub(super) fn claim(
        path: &Path,
        lock: Option<LedgerLock>,
        clock: Clock,
    ) -> Result<Self, StartError> {
        let wrong = |cause| StartError::Ledger {
            path: path.to_owned(),
            cause,
        };
        let lock = match lock {
            Some(lock) => lock,
            None => claim_lock(path)?,
        };
        Ok(Self {
            path: path.to_owned(),
            boot: boot().map_err(wrong)?,
            clock,
            carried: Mutex::default(),
            jobs: Mutex::default(),
            lock: Mutex::new(Some(lock)),
        })
    }

    /// The place.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The term in which this process admits calls; `None` if it has given up the right.
    pub(super) fn term(&self) -> Option<u64> {
        lock(&self.lock).as_ref().map(LedgerLock::term)
    }

    /// The process that has the right to admit calls, or had it last.
    pub(super) fn serving_pid(&self) -> Option<u32> {
        LedgerLock::pid(&self.path)
    }

    /// Gives up the right to admit calls.
    pub(super) fn release(&self) {
        drop(lock(&self.lock).take());
    }

    /// Has the right to admit calls again.
    pub(super) fn reclaimed(&self, claimed: LedgerLock) {
        *lock(&self.lock) = Some(claimed);
    }

    /// Decides again after a hand-over that did not succeed: with what the other process left, if it has admitted calls.
    pub(super) fn decide_again(
        &self,
        gate: &Gate,
        settings: &GateSettings,
        has_admitted: bool,
        beside: &CancellationToken,
    ) {
        match (has_admitted, self.before()) {
            (true, PastLedger::Known(before)) => {
                let (_, calls) = gate.take_back(&before, settings.after_crash);
                self.hold(calls, gate, beside, After::Now);
            }
            (true, _) => {
                warn!("what the other process has admitted is not known");
                gate.thaw();
                gate.carry_full_windows();
            }
            (false, _) => gate.thaw(),
        }
        let kept = self.create(gate.plan_ledger(&gate.policy()));
        if let Err(error) = kept.and_then(|new| gate.keep_ledger(new)) {
            warn!(%error, "a restart forgets what counts in the limits");
            self.remove();
        }
    }

    /// Holds the slots of calls of processes before, as long as needed.
    fn hold(&self, mut calls: CarriedCalls, gate: &Gate, beside: &CancellationToken, after: After) {
        lock(&self.jobs).extend(calls.take_jobs());
        if calls.is_empty() {
            return;
        }
        let carried = Arc::clone(&lock(&self.carried));
        carried.holding.store(calls.len(), Ordering::Relaxed);
        let holds = hold(
            gate.clone(),
            calls,
            self.clock,
            carried,
            after.path(&self.path),
        );
        // A process that stops before leaves them to the next one.
        tokio::spawn(beside.clone().run_until_cancelled_owned(holds));
    }

    /// The jobs of the process before, to be followed. Each is taken once.
    pub(super) fn take_jobs(&self) -> Vec<CarriedJob> {
        std::mem::take(&mut lock(&self.jobs))
    }

    /// Reads what the process before left.
    pub(super) fn before(&self) -> PastLedger {
        match self.read() {
            // That process died before its new ledger had the name. It takes the name now, because a file beside it
            // may be one that is not whole.
            PastLedger::Void(Void::Moved) => match fs::rename(self.new_path(), &self.path) {
                Ok(()) => self.read(),
                Err(error) => PastLedger::Unreadable(error),
            },
            before => before,
        }
    }

    fn new_path(&self) -> PathBuf {
        self.path.with_extension("new")
    }

    fn read(&self) -> PastLedger {
        let bytes = match bytes_of(&self.path) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return PastLedger::Missing,
            Err(error) => return PastLedger::Unreadable(error),
        };
        let now = self.clock.boot_time(self.clock.now());
        read(&bytes, self.boot, now).map_or_else(PastLedger::Void, PastLedger::Known)
    }

    /// Makes a ledger by this plan beside the present one.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(super) fn create(&self, plan: LedgerPlan) -> io::Result<NewLedger> {
        let words = plan.words().map_err(io::Error::other)?;
        let new = self.new_path();
        let memory = map_new(&new, words)?;
        let ledger = GateLedger::create(memory, plan, self.boot, self.clock);
        let path = self.path.clone();
        Ok(NewLedger {
            ledger: ledger.map_err(io::Error::other)?,
            publish: Box::new(move || fs::rename(new, path)),
        })
    }

    /// The place of the records of quotas that only this process keeps.
    pub(super) fn records(&self) -> RecordsFile {
        RecordsFile {
            path: self.path.with_extension("quotas"),
            boot: self.boot,
            clock: self.clock,
        }
    }

    /// The next process finds no ledger, rather than one that is no longer true.
    fn remove(&self) {
        // If it cannot be removed, it cannot be there.
        let _ = fs::remove_file(&self.path);
    }
}

/// The place of the records of quotas that only this process keeps. The lock of the ledger covers it.
#[derive(Debug)]
pub(super) struct RecordsFile {
    path: PathBuf,
    boot: Boot,
    clock: Clock,
}

impl RecordsFile {
    /// The records of the process before, and from now on those of this one. If there is no room for them, a restart
    /// forgets them.
    pub(super) fn open(&self) -> Memory {
        let unknown = |cause: &dyn std::fmt::Display| {
            info!(%cause, "the records of quotas of the process before are not known, so their windows have all tokens");
        };
        let before = match bytes_of(&self.path) {
            Ok(Some(bytes)) => read_rows(&bytes, self.boot)
                .map_err(|void| unknown(&void))
                .ok(),
            Ok(None) => None,
            Err(error) => {
                unknown(&error);
                None
            }
        };
        let before = before.unwrap_or_else(|| PastRows {
            zero: self.clock.boot_time(self.clock.began()),
            rows: Vec::new(),
        });
        match self.keep(&before) {
            Ok(kept) => Memory::keeping(self.clock, kept),
            Err(error) => {
                warn!(%error, "a restart forgets what was spent of quotas");
                let _ = fs::remove_file(&self.path);
                Memory::new(self.clock)
            }
        }
    }

    fn keep(&self, before: &PastRows) -> io::Result<KeptRecords> {
        let new = self.path.with_extension("quotas-new");
        let rows = KeptRecords::ROWS;
        let memory = map_new(&new, RowLedger::<MappedFile>::words(rows))?;
        let ledger = RowLedger::create(memory, rows, self.boot, before.zero);
        let kept = KeptRecords::new(ledger, before);
        fs::rename(new, &self.path)?;
        Ok(kept)
    }
}

/// The bytes of a file, at most as many as a ledger may have; `None` if there is no file.
fn bytes_of(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Maps this number of words of a new file, in place of any that is there.
fn map_new(path: &Path, words: usize) -> io::Result<MappedFile> {
    let _ = fs::remove_file(path);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    MappedFile::create(&file, words)
}

/// The boot of this machine.
fn boot() -> io::Result<Boot> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
    Ok(Boot([(id >> 64) as u64, id as u64]))
}

/// Claims the right to admit calls with this ledger.
///
/// # Errors
/// If another process has it, or it cannot be written.
fn claim_lock(path: &Path) -> Result<LedgerLock, StartError> {
    let path = path.to_owned();
    match LedgerLock::claim(&path) {
        Ok((lock, _)) => Ok(lock),
        Err(ClaimError::Taken(pid)) => Err(StartError::LedgerTaken { path, pid }),
        Err(ClaimError::Io(cause)) => Err(StartError::Ledger { path, cause }),
    }
}

/// The moment from which calls of processes before are held for `after_crash`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// Now.
    Now,
    /// No process drains.
    DrainingEnds,
}

impl After {
    /// The ledger whose process may drain, if that must be waited for.
    fn path(self, ledger: &Path) -> Option<PathBuf> {
        let waits = self == Self::DrainingEnds && !DrainingLock::is_free(ledger);
        waits.then(|| ledger.to_owned())
    }
}

/// Takes over what the process before left, and notes from now on what the next one must know. `None` if there is no
/// place for a ledger.
///
/// # Errors
/// If another process has it. If the process before hands over, also if it cannot be kept.
pub(super) fn open(
    path: Option<&Path>,
    gate: &Gate,
    settings: &GateSettings,
    clock: Clock,
    beside: &CancellationToken,
    handed: Option<HandedCalls<'_>>,
) -> Result<Option<LedgerFile>, StartError> {
    let Some(path) = path else {
        return Ok(None);
    };
    let (lock, adopt) = handed.map(|it| (it.lock, it.adopt)).unzip();
    let is_handed = adopt.as_ref().is_some_and(Option::is_some);
    let file = match LedgerFile::claim(path, lock, clock) {
        Ok(file) => file,
        Err(error @ StartError::LedgerTaken { .. }) => return Err(error),
        Err(error) => {
            warn!(%error, "a restart forgets what counts in the limits: give the process a directory that it may write");
            begin_without(gate, settings.ledger_lost, "it has no place");
            return Ok(None);
        }
    };
    let calls = take_over(gate, file.before(), settings, is_handed);
    if let Some(adopt) = adopt.flatten() {
        adopt();
    }
    let kept = file.create(gate.plan_ledger(&gate.policy()));
    if let Err(cause) = kept.and_then(|new| gate.keep_ledger(new)) {
        if is_handed {
            let path = path.to_owned();
            return Err(StartError::Ledger { path, cause });
        }
        warn!(error = %cause, path = %path.display(), "a restart forgets what counts in the limits");
        file.remove();
    }
    let (counts, calls) = calls.unwrap_or_default();
    *tidegate_runtime::lock(&file.carried) = Arc::new(CarriedNow {
        counts,
        holding: AtomicUsize::new(0),
    });
    // The process that hands over reports its own calls. Others are not reported any more.
    let after = match is_handed {
        true => After::Now,
        false => After::DrainingEnds,
    };
    file.hold(calls, gate, beside, after);
    Ok(Some(file))
}

/// The calls that a process hands over, and the right to admit calls.
pub(super) struct HandedCalls<'a> {
    /// The right.
    pub(super) lock: LedgerLock,
    /// Counts the calls that the process runs; `None` if what it handed over is no longer true.
    pub(super) adopt: Option<Box<dyn FnOnce() + 'a>>,
}

/// Holds calls of processes before, each until its moment. If a process drains, its calls are held for as much longer.
async fn hold(
    gate: Gate,
    mut calls: CarriedCalls,
    clock: Clock,
    carried: Arc<CarriedNow>,
    draining: Option<PathBuf>,
) {
    let counted = clock.now();
    if let Some(ledger) = draining {
        let waited = spawn_blocking(move || DrainingLock::wait_until_free(&ledger)).await;
        if waited.is_err() {
            return;
        }
    }
    let longer = clock.now().since(counted);
    while let Some(until) = calls.held_until() {
        clock.sleep_until(until + longer).await;
        gate.finish_carried(&mut calls, until);
        carried.holding.store(calls.len(), Ordering::Relaxed);
    }
    info!("the calls of the process before hold their slots no longer");
}

/// Counts what the process before left, and says so.
fn take_over(
    gate: &Gate,
    before: PastLedger,
    settings: &GateSettings,
    is_handed: bool,
) -> Option<(CarriedCounts, CarriedCalls)> {
    let cause = match before {
        PastLedger::Known(before) => {
            let (counts, calls) = match is_handed {
                true => gate.carry_beside(&before, settings.after_crash),
                false => gate.carry(&before, settings.after_crash),
            };
            info!(
                pid = before.pid,
                departures = counts.departures,
                calls = counts.calls,
                levels = counts.levels,
                places = counts.places,
                "counts what the process before left"
            );
            return Some((counts, calls));
        }
        PastLedger::Missing => "there is none".to_owned(),
        PastLedger::Void(void) => void.to_string(),
        PastLedger::Unreadable(error) => error.to_string(),
    };
    begin_without(gate, settings.ledger_lost, &cause);
    None
}

fn begin_without(gate: &Gate, lost: LedgerLost, cause: &str) {
    let begin = match lost {
        LedgerLost::AssumeFull => {
            gate.carry_full_windows();
            "full"
        }
        LedgerLost::AssumeEmpty => "empty",
    };
    info!(
        cause,
        "no ledger of a process before, so windows begin {begin}"
    );
}

impl AppState {
    /// Sentences for operators about calls of the process before, and about what the next one would not know.
    pub(super) fn ledger_notices(&self) -> impl Iterator<Item = String> {
        let is_exceeded = self.gate.is_ledger_exceeded();
        let exceeded = is_exceeded.then(|| {
            "more calls are at the backend than the ledger has room for: after a crash now, windows begin as without a \
             ledger (limits.ledger_lost)"
                .to_owned()
        });
        self.carried().notice().into_iter().chain(exceeded)
    }

    /// State of the process before that this one counts.
    pub(super) fn carried(&self) -> Arc<CarriedNow> {
        let file = self.ledger.as_ref();
        file.map_or_else(Arc::default, |file| Arc::clone(&lock(&file.carried)))
    }

    /// Takes new limits. The ledger follows in the same step.
    pub(super) fn apply_limits(&self, limits: &GateSettings) -> Timestamp {
        let plan = self.gate.plan_ledger(&self.gate.policy_of(limits));
        let file = self.ledger.as_ref();
        // It may have been removed by others.
        let new = file.filter(|file| !self.gate.ledger_fits(&plan) || !file.path.exists());
        let new = new.and_then(|file| {
            let made = file.create(plan);
            made.inspect_err(|error| warn!(%error, "a restart forgets what counts in the limits"))
                .ok()
        });
        self.gate.apply_with(limits, new)
    }
}
