//! Acts of operators on the backend: done at the gate, written to the log, and saved, so that they go on after a
//! restart.
//!
//! An act takes effect at once and is saved after that. A disk that is full must not keep an operator
//! from a pause, so the answer tells whether the act survives a restart.

mod stored;

use std::ffi::OsString;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use tidegate_limits::Timestamp;
use tidegate_limits::scheduler::SupplyShare;
use tidegate_runtime::{Clock, lock, try_lock};
use tokio::runtime::Handle;
use tracing::{error, info, warn};

use self::stored::{
    SCHEMA, StoredAct, StoredActs, StoredOverride, StoredPause, at, milliseconds, stored,
    stored_overrides, words,
};
use super::AppState;
use crate::admin::{
    ActKind, ActState, ActsSource, ApiRefusal, Author, BackendActing, BackendState, LimitName,
    ObjectKind, OverrideAsked, OverrideState, PauseAsked, ResumeAsked, UpgradeState, because,
    unix_milliseconds,
};
use crate::admit::{
    AutomaticChange, AutomaticChangeKind, BackendControl, BackendControlNow, Gate, NotOverridden,
    Pause, PauseFor, Ramp,
};
use crate::series::MarkKind;
use crate::state::{StateError, StateFile};

/// How many acts are remembered.
const ACTS_MAX: usize = 100;
/// The suffix of the file's name after that of `callers.state_file`.
const SUFFIX: &str = ".acts";
/// The author of what comes by itself.
const ITSELF: &str = "tidegate";

/// The last acts, and the file that has them.
#[derive(Debug, Default)]
pub(super) struct ActLog {
    /// Held from an act to the end of its save, so that the latest is saved last.
    file: Mutex<Option<StateFile<StoredActs>>>,
    /// Never held during a wait for a disk.
    known: Mutex<KnownActs>,
}

/// The file of the acts, held from an act to the end of its save.
pub(super) type ActFile<'a> = MutexGuard<'a, Option<StateFile<StoredActs>>>;

#[derive(Debug, Default)]
struct KnownActs {
    stored: StoredActs,
    /// The last save failed, or there is no file.
    is_unsaved: bool,
}

impl ActLog {
    /// Takes the file beside the state of callers, and reads what an earlier process did. Without
    /// that, nothing is kept.
    ///
    /// # Errors
    /// If another process uses it, or it is damaged, or cannot be read or written.
    pub(super) fn open(state_file: Option<&Path>) -> Result<Self, StateError> {
        let Some(path) = state_file.map(beside) else {
            let this = Self::default();
            lock(&this.known).is_unsaved = true;
            return Ok(this);
        };
        let (file, stored) = open(&path)?;
        let mut stored = stored.unwrap_or_default();
        stored.acts.truncate(ACTS_MAX);
        Ok(Self {
            file: Mutex::new(Some(file)),
            known: Mutex::new(KnownActs {
                stored,
                is_unsaved: false,
            }),
        })
    }

    /// Takes what another process has handed over.
    pub(super) fn take(&self, stored: StoredActs) {
        let mut known = lock(&self.known);
        *known = KnownActs {
            stored,
            is_unsaved: true,
        };
    }

    /// The file, unless an act is being saved.
    pub(super) fn try_file(&self) -> Option<ActFile<'_>> {
        try_lock(&self.file)
    }

    /// Gives the file to another process. Returns what is known.
    pub(super) fn release(&self, mut file: ActFile<'_>) -> StoredActs {
        *file = None;
        lock(&self.known).stored.clone()
    }

    /// Has the file again.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub(super) fn retake(&self, state_file: Option<&Path>) -> Result<(), StateError> {
        let again = Self::open(state_file)?;
        *lock(&self.file) = lock(&again.file).take();
        lock(&self.known).is_unsaved = true;
        Ok(())
    }

    /// The acts of an earlier process that have not ended at `wall`.
    fn unfinished(&self, clock: Clock, wall: SystemTime) -> BackendControl {
        let Some(stored) = &lock(&self.known).stored.acting else {
            return BackendControl::Running;
        };
        let (now, wall) = (clock.now(), unix_milliseconds(wall));
        let whole = stored.ends_unix_ms.saturating_sub(stored.since_unix_ms);
        // A clock that was set back makes it no longer than it was to be.
        let rest = stored.ends_unix_ms.saturating_sub(wall).min(whole);
        let (since, ends) = (now, now + Duration::from_millis(rest));
        let (why, author) = (Arc::from(&*stored.why), Arc::from(&*stored.author));
        match stored.pause {
            Some(StoredPause { extend_deadlines }) => BackendControl::Paused(Pause {
                since,
                ends,
                extends: extend_deadlines,
                why,
                author,
            }),
            None => BackendControl::Ramping(Ramp {
                since,
                ends,
                why,
                author,
            }),
        }
    }

    /// Remembers an act, and what it led to, and saves both.
    fn done(&self, file: &mut Option<StateFile<StoredActs>>, act: StoredAct, gate: &Gate) {
        let (now, in_force) = (gate.acting_now(), gate.overrides());
        let stored = {
            let mut known = lock(&self.known);
            let StoredActs {
                acting,
                overrides,
                acts,
            } = &mut known.stored;
            acts.truncate(ACTS_MAX - 1);
            acts.push_front(act);
            *acting = stored(&now, acting.take());
            *overrides = stored_overrides(in_force, now.now, overrides);
            known.stored.clone()
        };
        self.save(file, &stored);
    }

    /// Saves again what could not be saved.
    pub(super) fn save_if_unsaved(&self) {
        let mut file = lock(&self.file);
        let known = lock(&self.known);
        let unsaved = known.is_unsaved.then(|| known.stored.clone());
        drop(known);
        if let Some(stored) = unsaved {
            self.save(&mut file, &stored);
        }
    }

    fn save(&self, file: &mut Option<StateFile<StoredActs>>, stored: &StoredActs) {
        let Some(file) = file else {
            return;
        };
        let saved = save(file, stored);
        let is_unsaved = saved.is_err();
        let was_unsaved = mem::replace(&mut lock(&self.known).is_unsaved, is_unsaved);
        match (saved, was_unsaved) {
            (Err(error), false) => warn!(%error, "what operators did is not saved"),
            (Ok(()), true) => info!("what operators did is saved again"),
            _ => {}
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "used at start")]
fn open(path: &Path) -> Result<(StateFile<StoredActs>, Option<StoredActs>), StateError> {
    StateFile::open(path, SCHEMA)
}

#[expect(clippy::disallowed_methods, reason = "used on threads that wait")]
fn save(file: &mut StateFile<StoredActs>, stored: &StoredActs) -> Result<(), StateError> {
    file.save(stored)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(SUFFIX);
    name.into()
}

impl AppState {
    /// Goes on with the lower values of limits. A limit that is no longer there has none.
    fn take_up_overrides(&self) {
        let wall = unix_milliseconds(SystemTime::now());
        let stored = lock(&self.acts.known).stored.overrides.clone();
        for it in stored {
            let rest = it.rest(wall);
            if rest.is_zero() {
                continue;
            }
            let (why, author) = (it.why.as_str().into(), it.author.as_str().into());
            let taken = self
                .gate
                .override_limit(&it.limit, it.value, rest, why, author);
            let StoredOverride {
                limit, value, why, ..
            } = it;
            match taken {
                Ok(_) => warn!(
                    limit,
                    value, why, "a limit is still lower from before the restart"
                ),
                Err(error) => warn!(limit, %error, "a limit is not lower as before the restart"),
            }
        }
    }

    /// Goes on with what an earlier process did.
    pub(super) fn take_up_acts(&self) {
        self.take_up_overrides();
        let unfinished = self.acts.unfinished(self.clock, SystemTime::now());
        if unfinished == BackendControl::Running {
            return;
        }
        self.gate.take_up(unfinished);
        let state = self.backend();
        let (why, author) = (
            state.why.unwrap_or_default(),
            state.author.unwrap_or_default(),
        );
        match state.state {
            BackendActing::Running => {}
            BackendActing::Paused => {
                warn!(
                    why,
                    author, "the backend is still paused from before the restart"
                );
            }
            BackendActing::Ramping => {
                info!(why, author, "the limits still grow from before the restart");
            }
        }
    }

    /// Writes to the log what ended by itself, and forgets it in the file.
    pub(super) async fn keep_acting(self: Arc<Self>) {
        loop {
            let turned = self.gate.by_itself().await;
            let shared = Arc::clone(&self);
            let noting = tokio::task::spawn_blocking(move || shared.note_by_itself(turned));
            if let Err(failed) = noting.await {
                error!(error = %failed, "an act was not noted by our own mistake");
            }
        }
    }

    fn note_by_itself(&self, turned: Vec<AutomaticChange>) {
        let mut file = lock(&self.acts.file);
        for AutomaticChange { at, what } in turned {
            let ramp_of = |ramp: Duration| match ramp.is_zero() {
                true => String::new(),
                false => format!(", and the limits grow for {}", words(ramp)),
            };
            let (act, what) = match what {
                AutomaticChangeKind::PauseEnded { ramp } => {
                    let what = format!("the hold is over{}", ramp_of(ramp));
                    (ActKind::Resume, what)
                }
                AutomaticChangeKind::OverrideEnded { limit } => {
                    (ActKind::LimitEnd, format!("{limit} is as in the config"))
                }
                AutomaticChangeKind::RampEnded => {
                    (ActKind::RampEnd, "the limits are whole again".to_owned())
                }
                AutomaticChangeKind::BackendBack { backend, ramp } => {
                    let what = format!("the {} backend is back{}", backend.label(), ramp_of(ramp));
                    (ActKind::BackendUp, what)
                }
            };
            self.note(&mut file, at, ITSELF.to_owned(), act, what, "");
        }
    }

    fn note(
        &self,
        file: &mut Option<StateFile<StoredActs>>,
        at: Timestamp,
        author: String,
        act: ActKind,
        what: String,
        why: &str,
    ) {
        match act {
            ActKind::Pause => warn!(author, what, why, "the backend is paused"),
            ActKind::Resume => info!(author, what, why, "the backend is resumed"),
            ActKind::RampEnd => info!(author, what, "the ramp is over"),
            ActKind::BackendUp => info!(author, what, "the backend is back"),
            ActKind::Limit => warn!(author, what, why, "a limit is lower for a while"),
            ActKind::LimitEnd => info!(author, what, "a limit has its own value again"),
        }
        let at_unix_ms = unix_milliseconds(self.clock.wall(at));
        let because = because(why);
        let mark = match act {
            ActKind::Pause => Some((MarkKind::Pause, "paused")),
            ActKind::Resume => Some((MarkKind::Resume, "resumed")),
            ActKind::RampEnd => Some((MarkKind::Resume, "ramp over")),
            // The history sees for itself that a backend is back.
            ActKind::BackendUp => None,
            ActKind::Limit | ActKind::LimitEnd => Some((MarkKind::Limit, "limit")),
        };
        if let Some((kind, begin)) = mark {
            let text = format!("{begin}, {what}, by {author}{because}");
            self.history.acted(at_unix_ms, kind, &text);
        }
        let act = StoredAct {
            at_unix_ms,
            author,
            act,
            what,
            why: why.to_owned(),
        };
        self.acts.done(file, act, &self.gate);
    }

    fn backend_state(&self, now: &BackendControlNow) -> BackendState {
        let known = lock(&self.acts.known);
        let (state, share) = match &now.acting {
            BackendControl::Running => (BackendActing::Running, 1.0),
            BackendControl::Paused(_) => (BackendActing::Paused, 0.0),
            BackendControl::Ramping(_) => (BackendActing::Ramping, share(now.share)),
        };
        let stored = known.stored.acting.as_ref();
        let stored = stored.filter(|_| state != BackendActing::Running);
        BackendState {
            state,
            in_flight: now.in_flight as u64,
            share,
            since: stored.map(|it| at(it.since_unix_ms)),
            ends: stored.map(|it| at(it.ends_unix_ms)),
            why: stored.map(|it| it.why.clone()),
            author: stored.map(|it| it.author.clone()),
            extend_deadlines: stored
                .and_then(|it| it.pause)
                .is_some_and(|it| it.extend_deadlines),
            survives_restart: !known.is_unsaved,
        }
    }
}

fn not_overridden(limit: &LimitName, error: NotOverridden) -> ApiRefusal {
    match error {
        NotOverridden::Unknown => ApiRefusal::unknown(ObjectKind::Limit, &limit.0),
        error => ApiRefusal::Conflict {
            field: "value".to_owned(),
            reason: error.to_string(),
        },
    }
}

/// A share as a number from 0 to 1.
pub(super) fn share(share: SupplyShare) -> f64 {
    f64::from(share.thousandths()) / 1000.0
}

impl ActsSource for AppState {
    fn backend(&self) -> BackendState {
        self.backend_state(&self.gate.acting_now())
    }

    fn pause(&self, author: &Author, asked: PauseAsked) -> Result<BackendState, ApiRefusal> {
        let PauseAsked {
            hold,
            why,
            extend_deadlines,
        } = asked;
        let author = author.to_string();
        let mut file = lock(&self.acts.file);
        let change = self.changes.begin()?;
        let now = self.gate.pause(PauseFor {
            hold,
            extends: extend_deadlines,
            why: Arc::clone(&why),
            author: author.as_str().into(),
        });
        drop(change);
        let extended = if extend_deadlines {
            ", deadlines extended"
        } else {
            ""
        };
        let what = format!("for {}{extended}", words(hold));
        self.note(&mut file, now.now, author, ActKind::Pause, what, &why);
        Ok(self.backend_state(&now))
    }

    fn resume(&self, author: &Author, asked: ResumeAsked) -> Result<BackendState, ApiRefusal> {
        let ResumeAsked { ramp, why } = asked;
        let author = author.to_string();
        let mut file = lock(&self.acts.file);
        let by = author.as_str().into();
        let change = self.changes.begin()?;
        let now = self.gate.resume(ramp, Arc::clone(&why), by);
        drop(change);
        let what = match &now.acting {
            BackendControl::Ramping(ramp) => {
                format!("the limits grow for {}", words(ramp.ends.since(ramp.since)))
            }
            BackendControl::Running | BackendControl::Paused(_) => "with whole limits".to_owned(),
        };
        self.note(&mut file, now.now, author, ActKind::Resume, what, &why);
        Ok(self.backend_state(&now))
    }

    fn override_limit(
        &self,
        author: &Author,
        limit: &LimitName,
        asked: OverrideAsked,
    ) -> Result<OverrideState, ApiRefusal> {
        let OverrideAsked { value, time, why } = asked;
        let author = author.to_string();
        let mut file = lock(&self.acts.file);
        let by = author.as_str().into();
        let change = self.changes.begin()?;
        let taken = self
            .gate
            .override_limit(&limit.0, value, time, Arc::clone(&why), by);
        drop(change);
        let taken = taken.map_err(|error| not_overridden(limit, error))?;
        let what = format!("{} at most {value} for {}", taken.limit, words(time));
        let at = self.clock.now();
        self.note(&mut file, at, author, ActKind::Limit, what, &why);
        let mut overrides = self.overrides().into_iter();
        let state = overrides.find(|it| *it.limit == *taken.limit);
        // Its time may be over already.
        Ok(state.unwrap_or_else(|| OverrideState {
            limit: taken.limit.to_string(),
            value,
            ends: Some(SystemTime::now()),
            author: taken.author.to_string(),
            why: why.to_string(),
            survives_restart: true,
        }))
    }

    fn upgrade(&self, author: &Author) -> Result<UpgradeState, ApiRefusal> {
        info!(%author, "asked to start the program anew");
        let asked = Instant::now();
        // On a thread that waits.
        let upgraded = Handle::current().block_on(self.handover.upgrade());
        let pid = upgraded.map_err(|reason| ApiRefusal::Conflict {
            field: "body".to_owned(),
            reason,
        })?;
        let milliseconds = milliseconds(asked.elapsed());
        Ok(UpgradeState { pid, milliseconds })
    }

    fn end_override(&self, author: &Author, limit: &LimitName) -> Result<(), ApiRefusal> {
        let mut file = lock(&self.acts.file);
        let change = self.changes.begin()?;
        let ended = self.gate.end_override(&limit.0);
        drop(change);
        let (name, had) = ended.map_err(|error| not_overridden(limit, error))?;
        if had {
            let what = format!("{name} is as in the config");
            let (at, author) = (self.clock.now(), author.to_string());
            self.note(&mut file, at, author, ActKind::LimitEnd, what, "");
        }
        Ok(())
    }

    fn overrides(&self) -> Vec<OverrideState> {
        let known = lock(&self.acts.known);
        let survives_restart = !known.is_unsaved;
        let shown = known.stored.overrides.iter().map(|it| OverrideState {
            limit: it.limit.clone(),
            value: it.value,
            ends: Some(at(it.ends_unix_ms)),
            author: it.author.clone(),
            why: it.why.clone(),
            survives_restart,
        });
        shown.collect()
    }

    fn acts(&self) -> Vec<ActState> {
        let known = lock(&self.acts.known);
        let shown = known.stored.acts.iter().map(|act| ActState {
            at: Some(at(act.at_unix_ms)),
            author: act.author.clone(),
            act: act.act,
            what: act.what.clone(),
            why: act.why.clone(),
        });
        shown.collect()
    }
}
