//! The functions that there can be: those of the backend's table, and those that routes name. With
//! `limits.allow_unknown`, any.
//!
//! A limit with a misspelt function protects nothing, so that is an error; elsewhere a name
//! that no call can have is only doubted.

use crate::call::BackendKind;
use crate::call::sdk::Function;
use crate::options::shown::quoted;
use crate::options::{LocatedKey, Mistake, Notes, did_you_mean};

use super::super::sections::Sections;

/// The functions that a call can have.
pub(super) struct KnownFunctions<'a> {
    /// The names; `None` where they are not known, and no name is doubted.
    names: Option<Vec<&'a str>>,
    kind: BackendKind,
    allow_unknown: bool,
}

impl<'a> KnownFunctions<'a> {
    /// `table` has the names of the built-in one; an empty one means that they are not known.
    pub(super) fn new(all: &'a Sections, table: &[&'a str]) -> Self {
        let kind = all.backend_kind();
        let routes = all.routes.iter();
        let of_routes = routes.filter_map(|route| route.function.value.as_deref());
        let built_in: &[&str] = if kind.has_table() { table } else { &[] };
        // A kind that is missing or wrong is a mistake of its own.
        let given = &all.kind.kind;
        let is_certain = given.sound && (given.value.is_some() || all.backend.http.is_missing());
        // Messages may name any function.
        let of_messages = all.kind.dialect.value.is_some()
            || (all.routes.iter()).any(|route| !route.function_from.value.is_empty());
        let is_known = !table.is_empty() && is_certain && !of_messages;
        Self {
            names: is_known.then(|| built_in.iter().copied().chain(of_routes).collect()),
            kind,
            allow_unknown: all.exempt.allow_unknown.value,
        }
    }

    /// The function of this name in the built-in table, if the table applies.
    pub(super) fn built_in(&self, name: &str) -> Option<&'static Function> {
        self.kind.function(name)
    }

    /// Whether the built-in table applies.
    pub(super) fn has_table(&self) -> bool {
        self.kind.has_table()
    }

    /// Notes a limit whose function no call can have.
    pub(super) fn limit(&self, name: &str, at: &LocatedKey, notes: &Notes) {
        if self.allow_unknown {
            return;
        }
        if let Some(Mistake { message, cure, .. }) = self.doubt(name, None) {
            let cause = format!("{message}, so this limit would protect nothing");
            let cure = format!(
                "{cure} If calls have this name all the same, write allow_unknown = true in [limits]"
            );
            notes.error(at, cause, cure);
        }
    }

    /// The doubt about a name that no call can have. `also` are words that stand for more than one function.
    pub(super) fn doubt(&self, name: &str, also: Option<&'a str>) -> Option<Mistake> {
        let names = self.names.as_ref()?;
        if names.contains(&name) || also == Some(name) {
            return None;
        }
        let cause = format!("no function is known that is called {}", quoted(name));
        let near = did_you_mean(name, names.iter().copied().chain(also));
        let cure = near.unwrap_or("leave it out, or give it a [[route]].".to_owned());
        Some(Mistake::new(cause, cure))
    }
}
