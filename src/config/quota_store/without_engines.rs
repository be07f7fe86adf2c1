//! Stands in for `engines` in a build without the feature `quotas`: a quota is kept in memory only.

use tidegate_quota::Engine;

use super::{QuotaStore, Store};
use crate::options::Notes;

impl QuotaStore {
    /// Returns no engine, with a note that names the feature.
    pub(super) fn shared(&mut self, store: Store, notes: &Notes) -> Option<Engine> {
        let cause = format!("this build has no quotas in {}", store.name());
        let cure = "build it with --features quotas, or write engine = \"memory\"";
        notes.error(&self.store.engine, cause, cure);
        None
    }
}
