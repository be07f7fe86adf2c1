//! `[[backend.server]]`: the servers of the HTTP backend, each with limits of its own, and how one is chosen.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::policy::Pick;

use super::part::ConfigPart;
use crate::admit::options::CALLS_MAX;
use crate::admit::{ServerRule, ServerSettings};
use crate::call::server_named;
use crate::forward::options::{BackendSection, BackendTarget, http_target};
use crate::forward::{NamedRemote, Remote, StickyBy};
use crate::options::kind::{HOUR, SECOND, choice, duration, integer, name, text};
use crate::options::shown::quoted;
use crate::options::{Mistake, Notes, Options, Section, Toml, ValueKind, options, words};

/// Most servers; a call that leaves looks at each.
const SERVERS_MAX: usize = 32;

words! {
    /// How a server is chosen for a call.
    #[derive(Default)]
    pub(crate) enum ServerPick {
        /// The first with room.
        First = "first",
        /// The least busy with room.
        #[default]
        Least = "least",
        /// The server of the call's key.
        Sticky = "sticky",
    }
}

options! {
    /// The server behind the sidecar.
    pub struct PickSection {
        /// The server that gets a call, among those that have room when it leaves: "first" is the
        /// first in this file, for an active and a passive one; "least" is the one with the fewest calls,
        /// as a part of its outstanding; "sticky" is the same one for the same sticky_by.
        pick: ServerPick = choice().or(ServerPick::Least);

        /// The key of pick = "sticky": "caller", "function" or "header:NAME". A call without that header
        /// goes to any server.
        sticky_by: Option<StickyBy> = sticky_by().optional().example("\"header:X-Session\"");

        /// How long after its arrival a call waits for the server of its key. After that, any server may
        /// serve it.
        sticky_wait: Duration = duration(Duration::ZERO..=HOUR).or(5 * SECOND);
    }
}

options! {
    /// A server of several behind one queue, instead of http in [backend]. A call is bound to a server when it
    /// leaves, not before; see docs/how-to/several-servers.md.
    pub struct BackendServerSection {
        /// The name in metrics, logs and limits: its limit is "server:NAME". Over a reload and a restart a
        /// server is known by it. Required.
        name: Option<Arc<str>> = name("a").required(
            "the server has no name",
            "add a name, such as name = \"a\"",
        ).example("\"a\"");

        /// Where it listens: http://host:port, or unix:/path of a socket file. Required.
        http: Option<BackendTarget> = http_target().required(
            "the server has no address",
            "add http = \"http://10.0.0.1:8080\"",
        ).example("\"http://10.0.0.1:8080\"");

        /// Calls there at once, at most. The limits of [limits] are above those of all servers. Without it,
        /// only they count.
        outstanding: Option<u32> = integer(1..=CALLS_MAX).of("calls").optional().example("4");

        /// Calls that may leave for it in each window of [limits].
        per_window: Option<u32> = integer(1..=CALLS_MAX).of("calls").optional().example("30");
    }
}

/// How a server is chosen, and every `[[backend.server]]`.
pub(super) struct BackendServers {
    pub(super) pick: PickSection,
    pub(super) list: Vec<BackendServerSection>,
}

impl ConfigPart for BackendServers {
    fn read_from(root: &Section<'_>, key: &'static str) -> Self {
        let section = root.section(key);
        Self {
            pick: section.read(),
            list: section.each("server", SERVERS_MAX),
        }
    }

    fn write_under(&self, key: &str, out: &mut Toml) {
        if self.list.is_empty() {
            return;
        }
        out.header(format!("[{key}]"));
        self.pick.write(out);
        for server in &self.list {
            out.header(format!("[[{key}.server]]"));
            out.entry(server.name.value.as_deref());
            server.write(out);
        }
    }
}

impl BackendServers {
    /// The first server stands for the HTTP backend wherever only one is looked at.
    pub(super) fn stand_in(&self, backend: &mut BackendSection, notes: &Notes) {
        let Some(first) = self.list.first() else {
            return;
        };
        if !backend.http.is_missing() {
            let cause = "the HTTP backend is one address here, and several in [[backend.server]]";
            let cure = "leave http out, and make it one of the servers";
            notes.error(&backend.http, cause, cure);
            return;
        }
        backend.http.value.clone_from(&first.http.value);
        backend.http.mark.muted = true;
    }

    /// Notes what cannot be. `outstanding` is the limit on calls at once above all servers, if there is one, and whether
    /// the config gives it; `has_window` is whether there is a window.
    pub(super) fn check(
        &self,
        outstanding: Option<(u32, bool)>,
        has_window: Option<bool>,
        notes: &Notes,
    ) {
        let (mut names, mut addresses, mut numbers) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for server in &self.list {
            if let Some(name) = server.name.said() {
                let number = server_named(name);
                if names.insert(Arc::clone(name), ()).is_some() {
                    let cause = format!("{} is another server's name too", quoted(name));
                    notes.error(&server.name, cause, "give each server a name of its own");
                } else if let Some(other) = numbers.insert(number, Arc::clone(name)) {
                    let cause = format!("{} and {} have one number", quoted(name), quoted(&other));
                    notes.error(&server.name, cause, "give one of them another name");
                }
            }
            if let Some(target) = server.http.said() {
                if target.is_tls {
                    let cause = "TLS to one of several servers is not supported";
                    let cure = "give it as http://host:port or unix:/path";
                    notes.error(&server.http, cause, cure);
                }
                if addresses.insert(target.address.to_string(), ()).is_some() {
                    let cause = format!("{} is another server's address too", target.address);
                    let cure = "give it once: its limits would count one half of its calls each";
                    notes.error(&server.http, cause, cure);
                }
            }
            if server.per_window.said().is_some() && has_window == Some(false) {
                let cause = "there is no window, because window in [limits] is 0";
                notes.error(&server.per_window, cause, "give window a length");
            }
        }
        self.check_pick(notes);
        self.check_sum(outstanding, notes);
    }

    fn check_pick(&self, notes: &Notes) {
        let pick = &self.pick;
        if self.list.is_empty() {
            for mark in [
                &pick.pick.mark,
                &pick.sticky_by.mark,
                &pick.sticky_wait.mark,
            ] {
                if mark.given {
                    let cause = format!(
                        "{} has no effect: there is no [[backend.server]]",
                        mark.name()
                    );
                    notes.warn(mark, cause, "leave it out, or add the servers");
                }
            }
            return;
        }
        let is_sticky = pick.pick.meant() == Some(&ServerPick::Sticky);
        if is_sticky && pick.sticky_by.is_missing() {
            let cause = "pick = \"sticky\" has no key";
            let cure = "add sticky_by = \"caller\", \"function\" or \"header:NAME\"";
            notes.error(&pick.pick, cause, cure);
        }
        if !is_sticky && pick.pick.sound && pick.sticky_by.given {
            let cause = "it has no effect without pick = \"sticky\"";
            notes.warn(
                &pick.sticky_by,
                cause,
                "leave it out, or write pick = \"sticky\"",
            );
        }
    }

    /// Notes a limit above all servers that never holds a call, and a default that keeps servers from all they take.
    fn check_sum(&self, outstanding: Option<(u32, bool)>, notes: &Notes) {
        let each = self
            .list
            .iter()
            .map(|server| server.outstanding.said().copied());
        let (Some(sum), Some((total, is_given)), Some(first)) =
            (each.sum::<Option<u32>>(), outstanding, self.list.first())
        else {
            return;
        };
        let of = match is_given {
            true => format!("outstanding in [limits] is {total}"),
            false => format!("outstanding in [limits] is {total} unless it is given"),
        };
        let cause = format!("the servers take {sum} calls at once together, and {of}");
        let cure = match (total.cmp(&sum), is_given) {
            (Ordering::Greater, _) => {
                "it never holds a call; leave it so if only the servers' limits are meant"
            }
            (Ordering::Less, false) => {
                "write outstanding = 0 in [limits] if only the servers' limits are meant, or the number that all bear"
            }
            _ => return,
        };
        notes.warn(&first.outstanding, cause, cure);
    }

    /// The settings of the gate, of a config without an error.
    pub(super) fn gate(&self) -> ServerSettings {
        let rule = |server: &BackendServerSection| {
            let name = server.name.required();
            ServerRule {
                server: server_named(&name),
                name,
                outstanding: server.outstanding.value,
                per_window: server.per_window.value,
            }
        };
        ServerSettings {
            list: self.list.iter().map(rule).collect(),
            pick: match self.pick.pick.value {
                ServerPick::First => Pick::First,
                ServerPick::Least | ServerPick::Sticky => Pick::Least,
            },
            sticky_wait: self.pick.sticky_wait.value,
        }
    }

    /// The settings of the forwarder, of a config without an error.
    pub(super) fn forward(&self) -> (Vec<NamedRemote>, Option<StickyBy>) {
        let remote = |server: &BackendServerSection| {
            let name = server.name.required();
            let BackendTarget { address, .. } = server.http.required();
            NamedRemote {
                server: server_named(&name),
                name,
                remote: Remote { address, tls: None },
            }
        };
        let is_sticky = self.pick.pick.value == ServerPick::Sticky && !self.list.is_empty();
        let sticky_by = self.pick.sticky_by.value.clone().filter(|_| is_sticky);
        (self.list.iter().map(remote).collect(), sticky_by)
    }
}

fn sticky_by() -> ValueKind<StickyBy> {
    let allowed = "\"caller\", \"function\" or \"header:NAME\"";
    text(allowed, "caller", move |given| {
        match given.split_once(':') {
            None if given == "caller" => Ok(StickyBy::Caller),
            None if given == "function" => Ok(StickyBy::Function),
            Some(("header", name)) if http::HeaderName::try_from(name).is_ok() => {
                Ok(StickyBy::Header(name.to_ascii_lowercase().into()))
            }
            _ => {
                let cause = format!("{} is no key", quoted(given));
                Err(Mistake::new(cause, format!("write {allowed}")))
            }
        }
    })
}
