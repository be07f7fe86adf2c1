//! How urgent a call is: the class in which it waits.
//!
//! The first of these that applies decides:
//!
//! 1. the **header**, if the listener allows it: a trusted client knows best;
//! 2. a **`[[class]]`** that names the function, and then one that names its effort: the operator
//!    configured it on purpose;
//! 3. the **table of functions**: a write is user work. It comes before the listener, because a
//!    boot waits for the writes of a poller;
//! 4. the class of the **listener**, which is therefore one for reads;
//! 5. `polling`: a call that is not known to be user work goes before nothing.
//!
//! Calls that got their class from 4 or 5 may still be promoted to the user class, while users
//! act on the same guest. The gate decides that (`src/admit/promotion.rs`). Here it is only decided
//! whether they may.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use http::HeaderName;

pub use super::options::{FromListener, HEADER};
use crate::call::sdk::{Effort, FunctionKind};
use crate::call::{BackendKind, Headers, Role};

/// The built-in class of calls that a user waits for.
pub const USER: &str = "user";

/// The built-in class of everything else.
pub const POLLING: &str = "polling";

/// The rules for classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassSettings {
    /// Every class; `user` and `polling` are always among them.
    pub classes: Vec<KnownClass>,
    /// Functions that a `[[class]]` names.
    pub functions: Vec<(Arc<str>, Arc<str>)>,
    /// Efforts that a `[[class]]` names.
    pub efforts: Vec<(Effort, Arc<str>)>,
    /// The listeners with a setting.
    pub listeners: Vec<FromListener>,
    /// The header that names a class.
    pub header: HeaderName,
}

/// An existing class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownClass {
    /// The name of the class.
    pub name: Arc<str>,
    /// Whether calls may be promoted out of it: it is less urgent than `user`, and has no limit of
    /// its own that they would bypass.
    pub may_rise: bool,
}

/// The properties of a call that decide its class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clues<'a> {
    /// The exact name of its function.
    pub(super) function: &'a str,
    /// The listener of the call.
    pub(super) listener: &'a str,
    /// The headers of the call, on HTTP.
    pub(super) headers: Option<&'a Headers>,
    /// Whether its HTTP method changes something, for unknown functions.
    pub(super) is_write: bool,
}

/// Finds the class of every call.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    known: Vec<KnownClass>,
    functions: HashMap<Arc<str>, AssignedClass>,
    listeners: HashMap<Arc<str>, FromListener>,
    header: HeaderName,
}

/// The settings of a function.
#[derive(Clone, Debug, Default)]
struct AssignedClass {
    /// The class set by the operator.
    class: Option<Arc<str>>,
    is_write: bool,
}

impl Classes {
    pub(super) fn new(kind: BackendKind, settings: &ClassSettings) -> Self {
        let mut functions: HashMap<Arc<str>, AssignedClass> = HashMap::new();
        for function in kind.functions() {
            let mut efforts = settings.efforts.iter();
            let placed = AssignedClass {
                class: efforts
                    .find(|(effort, _)| *effort == function.effort)
                    .map(|(_, class)| Arc::clone(class)),
                is_write: function.kind == FunctionKind::Write,
            };
            functions.insert(function.name.into(), placed);
        }
        for (function, class) in &settings.functions {
            let placed = functions.entry(Arc::clone(function)).or_default();
            placed.class = Some(Arc::clone(class));
        }
        let listeners = settings.listeners.iter();
        Self {
            known: settings.classes.clone(),
            functions,
            listeners: listeners
                .map(|it| (Arc::clone(&it.listener), it.clone()))
                .collect(),
            header: settings.header.clone(),
        }
    }

    /// The name of the default class.
    pub(super) fn polling(&self) -> Arc<str> {
        Arc::clone(&self.get(POLLING).expect(CHECKED).name)
    }

    /// The class of a call, and its role for promotion.
    pub(super) fn find(&self, clues: &Clues<'_>) -> (Arc<str>, Role) {
        let listener = self.listeners.get(clues.listener);
        let placed = self.functions.get(clues.function);
        let is_write = placed.map_or(clues.is_write, |placed| placed.is_write);
        // A write that is known only by its method is urgent, but promotes nothing: the backend may
        // not know such an action.
        let is_known_write = placed.is_some_and(|placed| placed.is_write);
        let said = listener
            .filter(|listener| listener.class_header)
            .and_then(|_| self.said(clues.headers?));
        let given = said.or_else(|| placed?.class.as_deref().and_then(|name| self.get(name)));
        if let Some(class) = given {
            // A write in another class is still user work, except in polling.
            let acts = *class.name == *USER || is_known_write && *class.name != *POLLING;
            let role = if acts { Role::Acts } else { Role::Apart };
            return (Arc::clone(&class.name), role);
        }
        let by_listener = || listener?.class.as_deref();
        let name = if is_write {
            USER
        } else {
            by_listener().unwrap_or(POLLING)
        };
        let class = self.get(name).expect(CHECKED);
        let role = match class {
            KnownClass { name, .. } if **name == *USER => match is_write && !is_known_write {
                true => Role::Apart,
                false => Role::Acts,
            },
            KnownClass { may_rise: true, .. } => Role::Follows,
            KnownClass { .. } => Role::Apart,
        };
        (Arc::clone(&class.name), role)
    }

    /// The class in the header. An unknown class, or two at once, are ignored: that is no reason to
    /// refuse a call.
    fn said(&self, headers: &Headers) -> Option<&KnownClass> {
        let name = headers.only(self.header.as_str()).ok()??;
        self.get(str::from_utf8(name).ok()?.trim())
    }

    fn get(&self, name: &str) -> Option<&KnownClass> {
        self.known.iter().find(|class| *class.name == *name)
    }
}

const CHECKED: &str = "the config names classes that exist, and the built-in two do";

impl Default for ClassSettings {
    /// The two built-in classes, without any setting.
    fn default() -> Self {
        let known = |name: &str, may_rise| KnownClass {
            name: name.into(),
            may_rise,
        };
        Self {
            classes: vec![known(USER, false), known(POLLING, true)],
            functions: Vec::new(),
            efforts: Vec::new(),
            listeners: Vec::new(),
            header: HeaderName::from_static(HEADER),
        }
    }
}

#[cfg(test)]
mod tests;
