//! Checks of two options at once: errors for what can't work, warnings for what works and was probably not meant.
//! An option that could not be read is left out here, so that one mistake makes one message.

mod backend;
mod callers;
mod classes;
mod coordinate;
pub(super) mod features;
mod functions;
mod limits;
mod listeners;
mod quotas;
mod rate_limits;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::admit::options::unless_off;
use crate::call::listener::ClientAuth;
use crate::options::shown::quoted;
use crate::options::{Notes, Setting};

use self::features::Features;
use self::functions::KnownFunctions;
use super::sections::Sections;

/// Checks all of it. `known_functions` are the names that the built-in table has; an empty
/// list means that they are not known, and no name is doubted.
pub(super) fn check(all: &Sections, known_functions: &[&str], notes: &Notes) {
    let functions = &KnownFunctions::new(all, known_functions);
    backend::check(all, notes);
    let limits = &all.limits;
    let outstanding = limits.outstanding.meant().copied().and_then(unless_off);
    let outstanding = outstanding.map(|most| (most, limits.outstanding.mark.given));
    let has_window = limits.window.meant().map(|window| !window.is_zero());
    all.servers.check(outstanding, has_window, notes);
    listeners::check(all, notes);
    limits::check(all, functions, notes);
    rate_limits::check(all, functions, notes);
    quotas::check(all, functions, notes);
    callers::check(all, functions, notes);
    classes::check(all, functions, notes);
    coordinate::check(all, notes);
    features::check(all, Features::BUILT, notes);
}

/// Notes each text that an earlier setting has already: `quoted` is `what` too.
fn are_apart<'a>(
    settings: impl Iterator<Item = &'a Setting<Option<Arc<str>>>>,
    (what, cure): (&str, &str),
    notes: &Notes,
) {
    let mut seen = BTreeSet::new();
    for setting in settings {
        if let Some(text) = setting.said()
            && !seen.insert(text)
        {
            notes.error(setting, format!("{} is {what} too", quoted(text)), cure);
        }
    }
}

/// Clients are asked for certificates that an authority has signed, or are not asked.
pub fn asks_with_an_authority(
    client_auth: &Setting<ClientAuth>,
    client_ca: &Setting<Option<PathBuf>>,
    notes: &Notes,
) {
    let asks = client_auth.value != ClientAuth::Off;
    if asks && client_ca.is_missing() {
        let cause = "the authority that signs the clients' certificates is missing";
        let cure = "add client_ca = \"/etc/tidegate/clients.pem\"";
        notes.missing(client_auth, cause, cure);
    }
    if !asks && client_ca.given {
        let cause = "it has no effect while client_auth is \"off\"";
        let cure = "leave it out, or write client_auth = \"required\"";
        notes.warn(client_ca, cause, cure);
    }
}
