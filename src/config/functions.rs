//! Which functions there can be: those of the backend's table, and those that routes name. With
//! `limits.allow_unknown`, any.
//!
//! A limit with a misspelt function protects nothing, so that is an error; elsewhere a name
//! that no call can have is only doubted.

use crate::call::BackendKind;
use crate::call::sdk::Function;

use super::Config;
use super::backend_kind;
use super::effective::Toml;
use super::nearest::nearest;
use super::raw::Raw;
use super::reader::{At, Notes, Section, Setting};
use super::tree::quoted;
use super::value::{Mistake, flag};

/// The functions that a call can have.
pub(super) struct Functions<'a> {
    /// None where they are not known, and no name is doubted.
    names: Option<Vec<&'a str>>,
    kind: BackendKind,
    allow_unknown: bool,
}

/// Reads `allow_unknown` of `[limits]`; the section ends elsewhere.
pub(super) fn read(section: &mut Section<'_>) -> Setting<bool> {
    section.read("allow_unknown", false, flag())
}

/// Writes it back.
pub(super) fn write(out: &mut Toml, config: &Config) {
    out.bare("allow_unknown", config.allow_unknown);
}

impl<'a> Functions<'a> {
    /// `table` has the names of the built-in one; an empty one means that they are not known.
    pub(super) fn new(raw: &'a Raw, table: &[&'a str]) -> Self {
        let kind = backend_kind::of(&raw.backend);
        let routes = raw.routes.iter();
        let of_routes = routes.filter_map(|route| route.function.value.as_deref());
        let built_in: &[&str] = if kind.has_table() { table } else { &[] };
        let is_known = !table.is_empty() && backend_kind::is_certain(&raw.backend);
        Self {
            names: is_known.then(|| built_in.iter().copied().chain(of_routes).collect()),
            kind,
            allow_unknown: raw.limits.allow_unknown.value,
        }
    }

    /// What the built-in table has under this name, if it applies.
    pub(super) fn built_in(&self, name: &str) -> Option<&'static Function> {
        self.kind.function(name)
    }

    /// Whether the built-in table applies.
    pub(super) fn has_table(&self) -> bool {
        self.kind.has_table()
    }

    /// Notes a limit whose function no call can have.
    pub(super) fn limit(&self, name: &str, at: &At, notes: &Notes) {
        if self.allow_unknown {
            return;
        }
        if let Some(Mistake { message, cure }) = self.doubt(name, None) {
            let message = format!("{message}, so this limit would protect nothing");
            let cure = format!(
                "{cure} If calls have this name all the same, write allow_unknown = true in [limits]"
            );
            notes.error(at, Mistake::new(message, cure));
        }
    }

    /// What to say of a name that no call can have. `also` are words that stand for more
    /// than one function.
    pub(super) fn doubt(&self, name: &str, also: Option<&'a str>) -> Option<Mistake> {
        let names = self.names.as_ref()?;
        if names.contains(&name) || also == Some(name) {
            return None;
        }
        let told = format!("no function is known that is called {}", quoted(name));
        let cure = match nearest(name, names.iter().copied().chain(also)) {
            Some(function) => format!("did you mean {}?", quoted(function)),
            None => "leave it out, or give it a [[route]].".to_owned(),
        };
        Some(Mistake::new(told, cure))
    }
}
