//! The function names that metrics and logs distinguish.

use std::sync::Arc;

use foldhash::HashSet;

use crate::call::BackendKind;

/// The label of every function that neither the table nor the config names.
pub const OTHER: &str = "other";

/// A bounded set of names, each kept once.
#[derive(Clone, Debug)]
pub(super) struct Names {
    known: HashSet<Arc<str>>,
    other: Arc<str>,
}

impl Names {
    /// The names of the backend's table and these.
    #[must_use]
    pub(super) fn new<'a>(kind: BackendKind, more: impl IntoIterator<Item = &'a Arc<str>>) -> Self {
        let table = kind.functions().iter();
        let table = table.map(|function| Arc::from(function.name));
        Self {
            known: table.chain(more.into_iter().cloned()).collect(),
            other: Arc::from(OTHER),
        }
    }

    /// The name as it is kept, if it is one of them.
    #[must_use]
    pub(super) fn get(&self, name: &str) -> Option<&Arc<str>> {
        self.known.get(name)
    }

    /// The name for all the rest.
    #[must_use]
    pub(super) fn other(&self) -> &Arc<str> {
        &self.other
    }
}
