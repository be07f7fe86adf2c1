//! Stands in for `engines` in a build without the feature `quotas`. `checks/features` notes what needs it.

use tidegate_quota::Engine;

use super::{QuotaStore, Store};
use crate::options::Notes;

impl QuotaStore {
    pub(super) fn shared(&mut self, _: Store, _: &Notes) -> Option<Engine> {
        None
    }
}
