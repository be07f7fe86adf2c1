//! Functions by small numbers, for statistics and costs.

use std::sync::Arc;

use foldhash::HashMap;
use tidegate_callers::FunctionId;

/// The most functions that have a number of their own; all further ones count together.
pub(super) const FUNCTIONS_MAX: usize = 4096;

/// The name of all functions without a number of their own.
pub(super) const OTHER: &str = "other";

/// Names and their numbers. A number is never given to another name.
#[derive(Debug)]
pub(super) struct FunctionNames {
    by_name: HashMap<Arc<str>, FunctionId>,
    names: Vec<Arc<str>>,
    other: Arc<str>,
}

impl Default for FunctionNames {
    fn default() -> Self {
        Self {
            by_name: HashMap::default(),
            names: Vec::new(),
            other: OTHER.into(),
        }
    }
}

impl FunctionNames {
    /// Gives a name its number, if it has none yet and there is one left.
    pub(super) fn add(&mut self, name: &Arc<str>) -> FunctionId {
        let known = self.find(name);
        if known != FunctionId::OTHER || **name == *OTHER || self.names.len() >= FUNCTIONS_MAX {
            return known;
        }
        let id = u16::try_from(self.names.len()).expect("there are at most 4096");
        self.names.push(Arc::clone(name));
        self.by_name.insert(Arc::clone(name), FunctionId(id));
        FunctionId(id)
    }

    pub(super) fn find(&self, name: &str) -> FunctionId {
        let known = self.by_name.get(name).copied();
        known.unwrap_or(FunctionId::OTHER)
    }

    pub(super) fn name(&self, id: FunctionId) -> &Arc<str> {
        self.names.get(usize::from(id.0)).unwrap_or(&self.other)
    }

    /// How many more names there is room for.
    pub(super) fn room(&self) -> usize {
        FUNCTIONS_MAX - self.names.len()
    }
}
