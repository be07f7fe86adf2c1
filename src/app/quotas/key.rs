//! The state of a key while the gate uses it.
//!
//! There may be very many keys, so a key is small here: no task, no watch, and nothing on the
//! heap except its name, unless the store has settings of it.

use tidegate_limits::call::QuotaKey;
use tidegate_limits::quota::WindowRule;
use tidegate_quota::{RecordKey, StoredSettings};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// A key that is kept up to date. Dropping it ends the work for it.
pub(super) struct MaintainedKey {
    /// The place of its record.
    pub(super) key: RecordKey,
    /// The quota and the key.
    pub(super) of: QuotaKey,
    /// When its settings were last read; `None` before the first time.
    pub(super) read_at: Option<Instant>,
    /// Whether the settings are being read now.
    pub(super) is_reading: bool,
    /// The store has refused it since the last answer.
    pub(super) refused: bool,
    /// The key's settings in the store, if any.
    pub(super) said: Option<Box<StoredSettings>>,
    /// The key's own rule, if it is not the quota's.
    pub(super) rule: Option<Box<WindowRule>>,
    pub(super) watching: Option<AbortOnDropHandle<()>>,
}

/// The troubles of a key that no ledger knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    /// Invalid settings in the store.
    pub(super) mistake: Option<Box<str>>,
    /// The place where another program writes.
    pub(super) foreign_writer: Option<Box<str>>,
    /// Why the store refuses the key.
    pub(super) refused: Option<Box<str>>,
}

impl MaintainedKey {
    /// A key without settings.
    pub(super) fn new(of: QuotaKey, key: RecordKey) -> Self {
        Self {
            key,
            of,
            read_at: None,
            is_reading: false,
            refused: false,
            said: None,
            rule: None,
            watching: None,
        }
    }

    /// The known settings of the key.
    pub(super) fn said(&self) -> StoredSettings {
        self.said.as_deref().cloned().unwrap_or_default()
    }

    /// Whether it has settings.
    pub(super) fn has_own(&self) -> bool {
        self.said.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_small() {
        // Besides its name and the gate's data.
        let bytes = size_of::<MaintainedKey>();
        assert!(bytes <= 128, "{bytes} bytes for each key");
    }
}
