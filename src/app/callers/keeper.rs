//! Keeps the changes made through the API, if there is a state file.

use std::path::Path;

use tracing::{info, warn};

use super::stored::SCHEMA;
use crate::callers::SavedCallers;
use crate::state::{StateError, StateFile};

/// The state file, if any. A save holds it during the disk write, and takes the state at that
/// moment, so the latest state is saved last.
#[derive(Debug, Default)]
pub(in crate::app) struct Keeper {
    file: Option<StateFile<SavedCallers>>,
    /// The content of the file.
    saved: Option<SavedCallers>,
    is_failing: bool,
}

impl Keeper {
    /// Takes the file, and reads the state of an earlier run.
    ///
    /// # Errors
    /// If another process uses it, or it is damaged, or cannot be read or written.
    pub(in crate::app) fn open(
        path: Option<&Path>,
    ) -> Result<(Self, Option<SavedCallers>), StateError> {
        let Some(path) = path else {
            return Ok((Self::default(), None));
        };
        let (file, stored) = StateFile::open(path, SCHEMA)?;
        let keeper = Self {
            file: Some(file),
            saved: stored.clone(),
            is_failing: false,
        };
        Ok((keeper, stored))
    }

    /// Gives the file to another process.
    pub(in crate::app) fn release(&mut self) {
        self.file = None;
    }

    /// Has the file again. What it says is not read: this process knows better.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub(in crate::app) fn retake(&mut self, path: Option<&Path>) -> Result<(), StateError> {
        let (keeper, _) = Self::open(path)?;
        self.file = keeper.file;
        self.saved = None;
        Ok(())
    }

    /// Whether there is a state file.
    pub(super) fn is_on(&self) -> bool {
        self.file.is_some()
    }

    /// Reserves room for the next change.
    pub(super) fn reserve(&mut self) -> Result<(), StateError> {
        self.file.as_mut().map_or(Ok(()), StateFile::reserve)
    }

    /// Saves everything if it differs from the file; no task waits for the result.
    pub(super) fn save_if_changed(&mut self, saved: SavedCallers) {
        if self.saved.as_ref() != Some(&saved) {
            // The failure is logged, and the save is retried.
            let _ = self.save(saved);
        }
    }

    /// Saves everything. A failure is logged once, and the next save retries.
    pub(super) fn save(&mut self, saved: SavedCallers) -> Result<(), StateError> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        match file.save(&saved) {
            Ok(()) => {
                if std::mem::take(&mut self.is_failing) {
                    info!("the state of callers is saved again");
                }
                self.saved = Some(saved);
                Ok(())
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    warn!(%error, "the state of callers is not saved");
                }
                Err(error)
            }
        }
    }
}
