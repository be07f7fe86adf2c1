//! Names that many calls share: each is kept once, and has a number.

use std::num::NonZeroU32;
use std::sync::Arc;

use foldhash::HashMap;

/// A name that many calls share, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Name(NonZeroU32);

impl Name {
    /// The number of the name.
    pub(super) const fn number(self) -> u32 {
        self.0.get()
    }

    /// The name of this number.
    pub(super) fn numbered(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }
}

/// Each name once.
#[derive(Clone, Debug, Default)]
pub(super) struct NameTable {
    all: Vec<Arc<str>>,
    known: HashMap<Arc<str>, Name>,
}

impl NameTable {
    pub(super) fn of(&mut self, name: &str) -> Name {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        let number = u32::try_from(self.all.len() + 1).ok();
        let number = Name(
            number
                .and_then(NonZeroU32::new)
                .expect("memory ends before"),
        );
        let name: Arc<str> = name.into();
        self.all.push(Arc::clone(&name));
        self.known.insert(name, number);
        number
    }

    pub(super) fn get(&self, name: Name) -> &Arc<str> {
        &self.all[name.0.get() as usize - 1]
    }
}
