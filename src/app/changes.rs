//! Changes of a running sidecar by operators: one at a time, and none while another process takes over, because that
//! process would not know of them.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use tidegate_runtime::{lock, try_lock};
use tracing::info;

use crate::admin::ApiRefusal;

/// Whether this process may be changed, and the lock of the change that is under way.
#[derive(Debug, Default)]
pub(super) struct Changes {
    state: Mutex<ChangesState>,
    allowed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChangesState {
    #[default]
    Allowed,
    /// Another process takes over, or has.
    Stopped,
}

/// Another process takes over.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a new process takes over at this moment, and would not know of the change: ask again")]
pub struct ChangesStopped;

impl From<ChangesStopped> for ApiRefusal {
    fn from(error: ChangesStopped) -> Self {
        Self::Conflict {
            field: "body".to_owned(),
            reason: error.to_string(),
        }
    }
}

/// A change that is under way. No other begins before it is dropped.
#[derive(Debug)]
pub(super) struct Change<'a>(MutexGuard<'a, ChangesState>);

impl Changes {
    /// Begins a change. Waits for that of others.
    ///
    /// # Errors
    /// If another process takes over.
    pub(super) fn begin(&self) -> Result<Change<'_>, ChangesStopped> {
        allowed(lock(&self.state))
    }

    /// Begins a change. If another process takes over, waits this long for it to fail.
    ///
    /// # Errors
    /// If it has not failed by then.
    pub(super) fn begin_within(&self, patience: Duration) -> Result<Change<'_>, ChangesStopped> {
        let is_stopped = |state: &mut ChangesState| *state == ChangesState::Stopped;
        let state = lock(&self.state);
        if *state == ChangesState::Stopped {
            info!("a new process takes over, so the change waits for its end");
        }
        let waited = self.allowed.wait_timeout_while(state, patience, is_stopped);
        let (state, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        allowed(state)
    }

    /// Begins a change if none is under way, and none is stopped.
    pub(super) fn try_begin(&self) -> Option<Change<'_>> {
        allowed(try_lock(&self.state)?).ok()
    }

    /// Allows changes again.
    pub(super) fn allow(&self) {
        *lock(&self.state) = ChangesState::Allowed;
        self.allowed.notify_all();
    }
}

impl Change<'_> {
    /// Ends this one, which was the last.
    pub(super) fn stop_others(mut self) {
        *self.0 = ChangesState::Stopped;
    }
}

fn allowed(state: MutexGuard<'_, ChangesState>) -> Result<Change<'_>, ChangesStopped> {
    match *state {
        ChangesState::Allowed => Ok(Change(state)),
        ChangesState::Stopped => Err(ChangesStopped),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn while_another_process_takes_over_nothing_is_changed() {
        let changes = Arc::new(Changes::default());
        let change = changes.begin().expect("none is under way");
        assert!(changes.try_begin().is_none());
        change.stop_others();
        assert!(changes.begin().is_err() && changes.try_begin().is_none());
        assert!(changes.begin_within(Duration::ZERO).is_err());
        let waiting = {
            let changes = Arc::clone(&changes);
            std::thread::spawn(move || changes.begin_within(LONG).is_ok())
        };
        changes.allow();
        assert!(waiting.join().expect("it does not panic"));
        assert!(changes.begin().is_ok());
    }
}
