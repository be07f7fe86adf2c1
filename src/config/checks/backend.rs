//! The backends: what they are, that they are not this sidecar itself, and their routes.
//!
//! The built-in table gives some routes no limit, so it must never apply to a backend that is
//! not the z/VM SDK server. An HTTP backend can be either, so there the config must say which
//! it is. The socket protocol is that of the SDK server, and a TCP tunnel has no functions.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::time::Duration;

use crate::call::job::JobForm;
use crate::call::{BackendKind, Bind};
use crate::classify::message::MessageReader;
use crate::forward::BackendAddress;
use crate::forward::options::BackendTarget;
use crate::options::Notes;
use crate::options::kind::{show_duration, show_size};

use super::super::sections::Sections;

/// The bytes that one read of the real sdkserver takes.   bytes
const SDKSERVER_READ: usize = 4096;
/// Apache's default `KeepAliveTimeout`.
const APACHE_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The meaning of each kind, for an operator who has to choose.
const ADD_KIND: &str = "add kind = \"zvm\" or kind = \"http\" to [backend]. \"zvm\": sdkwsgi, the \
                        HTTP side of the z/VM SDK server; its routes and functions are known, and \
                        those that never reach SMAPI, such as POST /token, meet no limit. \
                        \"http\": any other HTTP server; no route is built in, and every call \
                        meets the limits";

pub(super) fn check(all: &Sections, notes: &Notes) {
    kind(all, notes);
    are_others(all, notes);
    routes(all, notes);
    let request = &all.client.max_request_bytes;
    if let (Some(&bytes), Some(_)) = (request.meant(), all.backend.socket.said())
        && bytes > SDKSERVER_READ
    {
        let cause = format!(
            "the real sdkserver reads {SDKSERVER_READ} bytes of a request, not {}",
            show_size(bytes as u64)
        );
        let cure = "give \"4KiB\", unless this backend reads more";
        notes.warn(request, cause, cure);
    }
    let idle = &all.bounds.pool_idle_timeout;
    if let (Some(&kept), Some(_)) = (idle.meant(), all.backend.http.said())
        && kept >= APACHE_KEEP_ALIVE
    {
        let cause = format!(
            "Apache closes an idle connection after 5 s by default, before these {}",
            show_duration(kept)
        );
        let cure = "give \"4s\", unless the backend keeps connections longer";
        notes.warn(idle, cause, cure);
    }
}

/// An HTTP backend needs it said.
fn kind(all: &Sections, notes: &Notes) {
    let backend = &all.backend;
    let kind = &all.kind.kind;
    let has_http = !backend.http.is_missing();
    match kind.meant() {
        Some(None) if has_http => {
            let cause = "the kind of the HTTP backend is not given, and has no default";
            notes.missing(kind, cause, ADD_KIND);
        }
        Some(Some(BackendKind::Http)) if !backend.socket.is_missing() => {
            let cause = "the socket backend is a z/VM SDK server, and with kind = \"http\" none of \
                        its functions is known: reads and writes are not cause apart";
            notes.warn(kind, cause, "write kind = \"zvm\", or leave socket out");
        }
        Some(Some(_)) if !has_http && backend.socket.is_missing() && !backend.tcp.is_missing() => {
            let cause = "it has no effect: a call to a TCP backend has no function";
            notes.warn(kind, cause, "leave it out");
        }
        _ => {}
    }
}

/// A backend that is this sidecar itself gets each call back, until no slot is left.
fn are_others(all: &Sections, notes: &Notes) {
    let backends = [&all.backend.socket, &all.backend.http, &all.backend.tcp];
    // The first of several servers stands for backend.http.
    let servers = all.servers.list.iter().skip(1).map(|server| &server.http);
    for backend in backends.into_iter().chain(servers) {
        let Some(BackendTarget { address, .. }) = backend.said() else {
            continue;
        };
        for (bind, at) in all.own_addresses() {
            let cure = "give the address of the server behind; by custom 8081 and 2000 are in \
                        front, 8080 and 2001 behind";
            match leads_back(address, &bind) {
                Leads::Elsewhere => {}
                Leads::Back => {
                    let cause = format!("this leads back to {}, which is {bind}", at.key);
                    notes.error(backend, cause, cure);
                }
                Leads::ToThisMachine => {
                    let cause = format!(
                        "this seems to lead back to {}, which is {bind}: the address is this \
                         machine's",
                        at.key
                    );
                    notes.warn(backend, cause, cure);
                }
            }
        }
    }
}

/// Where a backend's address leads, as far as can be told without a lookup.
enum Leads {
    Elsewhere,
    Back,
    /// To an address of this machine, which a wildcard takes. The system may let a socket have
    /// addresses of other machines, so it is not sure.
    ToThisMachine,
}

fn leads_back(backend: &BackendAddress, bind: &Bind) -> Leads {
    let (ip, port) = match (backend, bind) {
        (BackendAddress::Unix(path), Bind::Unix(own)) if **path == **own => return Leads::Back,
        (BackendAddress::Ip(address), Bind::Tcp(_)) => {
            (Some(address.ip().to_canonical()), address.port())
        }
        (BackendAddress::Name(name, port), Bind::Tcp(_)) if is_localhost(name) => (None, *port),
        _ => return Leads::Elsewhere,
    };
    let &Bind::Tcp(own) = bind else {
        return Leads::Elsewhere;
    };
    let wide = own.ip().is_unspecified();
    let own_ip = own.ip().to_canonical();
    // A connect to the wildcard address, or to localhost, is one to loopback.
    let is_loopback = ip.is_none_or(|ip| ip.is_unspecified() || ip.is_loopback());
    if own.port() != port || port == 0 {
        return Leads::Elsewhere;
    }
    match ip {
        Some(ip) if ip == own_ip => Leads::Back,
        None if own_ip.is_loopback() => Leads::Back,
        Some(ip) if ip.is_unspecified() && own_ip.is_loopback() => Leads::Back,
        _ if wide && is_loopback => Leads::Back,
        Some(ip) if wide && UdpSocket::bind((ip, 0)).is_ok() => Leads::ToThisMachine,
        _ => Leads::Elsewhere,
    }
}

fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name == "ip6-localhost"
}

fn routes(all: &Sections, notes: &Notes) {
    let mut seen = BTreeSet::new();
    for route in &all.routes {
        if let (Some(method), Some(path)) = (route.method.said(), route.path.said())
            && !seen.insert((method, path))
        {
            let cause = format!("{method} {path} is another route's too, and the first one wins");
            notes.warn(&route.section, cause, "leave one of the two out");
        }
    }
    if let Some(route) = all.routes.first()
        && all.backend.http.is_missing()
    {
        let cause = "routes are for the HTTP backend, and there is none";
        let cure = "add http = \"http://127.0.0.1:8080\" and its kind, \"zvm\" or \"http\", to \
                    [backend]";
        notes.warn(&route.section, cause, cure);
    }
    messages(all, notes);
}

/// Routes whose calls are named in their messages, and the built-in ones.
fn messages(all: &Sections, notes: &Notes) {
    let dialect = &all.kind.dialect;
    let is_http = all.kind.kind.meant() == Some(&Some(BackendKind::Http));
    if dialect.said().is_some() && !is_http && all.kind.kind.sound {
        let cause = "a dialect is of a backend of kind \"http\"";
        notes.error(
            dialect,
            cause,
            "write kind = \"http\", or leave the dialect out",
        );
    }
    for route in &all.routes {
        let is_named = route.function.value.is_some()
            || !route.function_from.value.is_empty()
            || !route.function_from.sound;
        for mark in [
            &route.caller_from.mark,
            &route.sessions.mark,
            &route.batch.mark,
            &route.unreadable.mark,
            &route.refuse_as.mark,
        ] {
            if mark.given && !is_named {
                let cause = format!("{} is for a route whose calls have a function", mark.name());
                let cure = "add function_from = { json = \"/method\" }, or a function";
                notes.error(mark, cause, cure);
            }
        }
        if let Some(job) = &route.job.value {
            if !is_named {
                let cause = "job is for a route whose calls have a function: others meet no limit that a job could hold";
                notes.error(&route.job, cause, "add a function");
            }
            if job.form == JobForm::Xapi && route.function_from.value.is_empty() {
                let cause = "tasks of XAPI are named in messages";
                let cure =
                    "add function_from = { json = \"/method\" }, or write dialect = true in [jobs]";
                notes.error(&route.job, cause, cure);
            }
        }
        if route.sessions.value.is_some() && route.caller_from.is_missing() {
            let cause = "no place of the session is named";
            let cure = "add caller_from = { json = \"/params/0\" }";
            notes.error(&route.sessions, cause, cure);
        }
        let is_whole = route.method.said().is_some() && route.path.said().is_some();
        let message = is_whole.then(|| route.settings().message()).flatten();
        let readable = message.map(|it| MessageReader::new(&it));
        if let Some(Err(error)) = readable {
            let cure = "give at most 8 places of one form, and none inside another";
            notes.error(&route.function_from, error.to_string(), cure);
        }
    }
}
