//! Names of functions that messages brought, for metrics and logs.

use std::sync::{Arc, Mutex};

use foldhash::HashSet;
use tidegate_runtime::lock;

/// Most names that are learnt. Each is a label of metrics, so that clients do not decide how many there are.
const NAMES_MAX: usize = 256;

/// The names of functions that came in messages and have a label of their own. A reload keeps them.
#[derive(Clone, Debug, Default)]
pub struct LearntNames(Arc<Mutex<HashSet<Arc<str>>>>);

impl LearntNames {
    /// The name, kept once. `None` if there is no room for it.
    #[must_use]
    pub fn learn(&self, name: &str) -> Option<Arc<str>> {
        let mut names = lock(&self.0);
        if let Some(known) = names.get(name) {
            return Some(Arc::clone(known));
        }
        if names.len() >= NAMES_MAX {
            return None;
        }
        let name: Arc<str> = name.into();
        names.insert(Arc::clone(&name));
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_names_are_learnt_as_there_is_room_for() {
        let names = LearntNames::default();
        for number in 0..NAMES_MAX + 10 {
            let name = format!("f{number}");
            let learnt = names.learn(&name);
            assert_eq!(learnt.is_some(), number < NAMES_MAX, "{name}");
        }
        assert_eq!(names.learn("f3").as_deref(), Some("f3"));
    }
}
