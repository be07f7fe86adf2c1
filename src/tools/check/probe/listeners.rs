//! Whether the sidecar could listen: on each address for clients, and on those for operators.

use std::io;

use super::Finding;
use super::eyes::ProbeUser;
use super::holder;
use super::kinds::{ADMIN, CheckKind, LISTENER};
use super::sidecar::Sidecar;
use crate::call::{Bind, Protocol};
use crate::config::Config;
use crate::listen::could_listen;

/// A finding for each address.
pub(super) fn check(config: &Config, sidecar: Option<&Sidecar>, eyes: &ProbeUser) -> Vec<Finding> {
    let mut all = Vec::new();
    for (at, listener) in config.listen.listeners.iter().enumerate() {
        let is_for_sdkserver = config.classify.kind.has_table()
            && config.forward.socket.is_some()
            && listener.protocol != Protocol::Http;
        let more = match is_for_sdkserver {
            true => {
                ". sdkserver itself moves to another port: packaging/sdkserver-behind-tidegate.conf"
            }
            false => "",
        };
        let place = ProbedAddress {
            kind: LISTENER,
            about: &listener.name,
            key: &format!("listen[{at}].bind"),
            more,
        };
        all.push(place.check(&listener.bind, sidecar, eyes));
    }
    let admin = &config.admin;
    let binds = [
        ("bind", admin.bind.map(Bind::Tcp)),
        ("socket", admin.socket.clone().map(Bind::Unix)),
    ];
    for (about, bind) in binds {
        let Some(bind) = bind else { continue };
        let place = ProbedAddress {
            kind: ADMIN,
            about,
            key: &format!("admin.{about}"),
            more: "",
        };
        all.push(place.check(&bind, sidecar, eyes));
    }
    all
}

/// An address of the config.
struct ProbedAddress<'a> {
    kind: CheckKind,
    about: &'a str,
    key: &'a str,
    /// Another cure for an address that is in use; may be empty.
    more: &'a str,
}

impl ProbedAddress<'_> {
    fn check(&self, bind: &Bind, sidecar: Option<&Sidecar>, eyes: &ProbeUser) -> Finding {
        let Self {
            kind,
            about,
            key,
            more,
        } = self;
        if bind.tcp().is_some_and(|address| address.port() == 0) {
            return kind.ok(*about, format!("{bind}, any free port"));
        }
        let error = match eyes.look(|| could_listen(bind)) {
            Ok(()) => return kind.ok(*about, format!("{bind} is free")),
            Err(error) => error,
        };
        let failed = |cause: String, cure: String| {
            kind.failed(*about, format!("cannot listen on {bind}"), cause, cure)
        };
        let is_file = matches!(bind, Bind::Unix(_));
        let user = eyes.in_words();
        match error.kind() {
            io::ErrorKind::AddrInUse => {
                let holder = holder::of(bind);
                if sidecar.is_some_and(|it| it.holds(bind, holder.as_ref())) {
                    let pid = holder.map_or(String::new(), |it| format!(", pid {}", it.pid));
                    let found = format!("{bind} is in use by the running tidegate{pid}");
                    return kind.ok(*about, found);
                }
                let cause = match &holder {
                    Some(holder) => format!("{holder}, listens there"),
                    None => "another process listens there, which this user may not see; run this \
                             as root to see which"
                        .to_owned(),
                };
                let cure = format!("stop that process, or change {key}{more}");
                kind.failed(*about, format!("{bind} is in use"), cause, cure)
            }
            io::ErrorKind::AddrNotAvailable => failed(
                "no interface of this machine has this address".to_owned(),
                format!("give {key} an address of this machine (`ip addr`), or 0.0.0.0 for all"),
            ),
            io::ErrorKind::PermissionDenied if is_file => failed(
                format!("{user} may not write to the directory"),
                format!(
                    "run this as the user of the sidecar (RuntimeDirectory= in systemd), or change {key}"
                ),
            ),
            io::ErrorKind::PermissionDenied => failed(
                format!("{user} may not use a port this low"),
                format!(
                    "give {key} a port from 1024 on, or the unit \
                     AmbientCapabilities=CAP_NET_BIND_SERVICE"
                ),
            ),
            io::ErrorKind::NotFound if eyes.will_be_made(bind) => {
                let found = format!("{bind} is free: systemd makes its directory at the start");
                kind.ok(*about, found)
            }
            io::ErrorKind::NotFound => failed(
                "its directory does not exist".to_owned(),
                format!("create it (RuntimeDirectory= in systemd), or change {key}"),
            ),
            io::ErrorKind::AlreadyExists => failed(
                "a file is in the way that is no socket".to_owned(),
                format!("move the file away, or change {key}"),
            ),
            _ => failed(error.to_string(), format!("change {key}")),
        }
    }
}
