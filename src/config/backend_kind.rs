//! `backend.kind`: what is behind the sidecar, and with that whether the built-in table of
//! routes and functions applies.
//!
//! The table gives some routes no limit, so it must never apply to a backend that is not the
//! z/VM SDK server. An HTTP backend can be either, so there the config must say which it is.
//! The socket protocol is that of the SDK server, and a TCP tunnel has no functions at all.

use crate::call::BackendKind;

use super::Config;
use super::effective::Toml;
use super::raw::{Backend, Raw};
use super::reader::{Notes, Section, Setting};
use super::value::{Mistake, choice};

const KINDS: &[(&str, BackendKind)] = &[("zvm", BackendKind::Zvm), ("http", BackendKind::Http)];

/// What each value means, for an operator who has to choose.
const MEANINGS: &str = "\"zvm\": sdkwsgi, the HTTP side of the z/VM SDK server; its routes and \
                        functions are known, and those that never reach SMAPI, such as POST \
                        /token, meet no limit. \"http\": any other HTTP server; no route is \
                        built in, and every call meets the limits";

/// `kind` in `[backend]`.
pub(super) struct RawKind(Setting<Option<BackendKind>>);

/// Reads the option; the section ends elsewhere.
pub(super) fn read(section: &mut Section<'_>) -> RawKind {
    RawKind(section.read("kind", None, choice(KINDS).optional()))
}

/// The kind in force. Without `backend.http` the default is that of the socket protocol; for a
/// TCP tunnel alone there is nothing that a table could name.
pub(super) fn of(backend: &Backend) -> BackendKind {
    let RawKind(kind) = &backend.kind;
    kind.value.unwrap_or(match backend.socket.value {
        None if backend.tcp.value.is_some() => BackendKind::Http,
        _ => BackendKind::Zvm,
    })
}

/// Whether it is known which functions there are. It is not where the kind is missing or was
/// given wrong, which is a mistake of its own.
pub(super) fn is_certain(backend: &Backend) -> bool {
    let RawKind(kind) = &backend.kind;
    kind.sound && (kind.value.is_some() || backend.http.is_missing())
}

/// An HTTP backend needs it said.
pub(super) fn check(raw: &Raw, notes: &Notes) {
    let backend = &raw.backend;
    let RawKind(kind) = &backend.kind;
    let Some(given) = kind.meant() else {
        return;
    };
    let has_http = !backend.http.is_missing();
    match given {
        None if has_http => {
            let told = "the kind of the HTTP backend is not given, and has no default";
            let cure = format!("add kind = \"zvm\" or kind = \"http\" to [backend]. {MEANINGS}");
            notes.missing(&kind.at, Mistake::new(told, cure));
        }
        Some(BackendKind::Http) if !backend.socket.is_missing() => {
            let told = "the socket backend is a z/VM SDK server, and with kind = \"http\" none of \
                        its functions is known: reads and writes are not told apart";
            let cure = "write kind = \"zvm\", or leave socket out";
            notes.warn(&kind.at, Mistake::new(told, cure));
        }
        Some(_) if !has_http && backend.socket.is_missing() && !backend.tcp.is_missing() => {
            let told = "it has no effect: what goes to a TCP backend has no \
                        function";
            notes.warn(&kind.at, Mistake::new(told, "leave it out"));
        }
        _ => {}
    }
}

/// Writes it back.
pub(super) fn write(out: &mut Toml, config: &Config) {
    let forward = &config.forward;
    if forward.http.is_none() && forward.socket.is_none() {
        return;
    }
    let mut kinds = KINDS.iter();
    let word = kinds.find(|(_, kind)| *kind == config.classify.kind);
    out.text("kind", word.expect("every kind has a word").0);
}
