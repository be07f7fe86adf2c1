//! The listeners, and the admin address beside them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::admin::needs_token;
use crate::call::listener::{ClientAuth, ProxyProtocol, UNIX_MODE};
use crate::call::{Bind, Protocol, TicketMode, UserFrom};
use crate::options::{ConfigPlace, LocatedKey, Notes};

use super::super::sections::{Listen, Sections};

pub(super) fn check(all: &Sections, notes: &Notes) {
    let admin = &all.admin;
    if let Some(address) = admin.bind.said().filter(|address| needs_token(**address))
        && admin.token.is_missing()
        && admin.tokens.value.is_empty()
    {
        let cause = format!("{address} is not only this machine's, and there is no token");
        let cure = "add token = \"…\" to [admin], such as the output of `openssl rand -hex 32`, \
                    or bind to 127.0.0.1:9180";
        notes.missing(&admin.bind, cause, cure);
    }
    let Some(listeners) = &all.listen else {
        return;
    };
    if listeners.is_empty() {
        let cure = "add a section: [[listen]], and below it the lines \
                    name = \"nova\" and bind = \"127.0.0.1:8081\"";
        let at = LocatedKey::new("listen", &ConfigPlace::Whole);
        notes.missing(&at, "there is no listener", cure);
    }
    are_apart(all, listeners, notes);
    for listener in listeners {
        has_backend(all, listener, notes);
        unix_mode(listener, notes);
        tls(listener, notes);
        user_from(listener, notes);
        tickets(listener, notes);
        proxies_are_trusted(all, listener, notes);
    }
}

fn are_apart(all: &Sections, listeners: &[Listen], notes: &Notes) {
    let names = listeners.iter().map(|it| &it.listen.name);
    let what = (
        "the name of another listener",
        "give each listener a name of its own",
    );
    super::are_apart(names, what, notes);
    let mut binds: Vec<(Bind, &LocatedKey)> = Vec::new();
    for (bind, at) in all.own_addresses() {
        if let Some((other, earlier)) = binds.iter().find(|(other, _)| collide(&bind, other)) {
            let cause = format!("{bind} overlaps {}, which is {other}", earlier.key);
            let cure = match bind {
                Bind::Tcp(_) => "give each an address or a port of its own",
                Bind::Unix(_) => "give each a path of its own",
            };
            notes.error(at, cause, cure);
        }
        binds.push((bind, at));
    }
}

/// Whether two listeners can't listen side by side.
fn collide(a: &Bind, b: &Bind) -> bool {
    match (a, b) {
        (Bind::Tcp(a), Bind::Tcp(b)) => overlap(*a, *b),
        (Bind::Unix(a), Bind::Unix(b)) => a == b,
        _ => false,
    }
}

/// Whether two sockets can't listen side by side. A wildcard takes every address, and the
/// one of IPv6 those of IPv4 as well; port 0 takes any port that is free.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let takes = |wide: IpAddr, other: IpAddr| {
        wide == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            || wide.is_unspecified() && wide.is_ipv4() == other.is_ipv4()
    };
    let (one, other) = (a.ip().to_canonical(), b.ip().to_canonical());
    a.port() == b.port()
        && a.port() != 0
        && (one == other || takes(one, other) || takes(other, one))
}

fn unix_mode(Listen { listen, .. }: &Listen, notes: &Notes) {
    let mode = &listen.unix_mode;
    if let (Some(Bind::Tcp(_)), Some(&given)) = (listen.bind.said(), mode.meant())
        && given != UNIX_MODE
    {
        let cause = "it has no effect on an address with a port";
        notes.warn(mode, cause, "leave it out, or write bind = \"unix:/path\"");
    }
}

fn tls(Listen { listen, tls, .. }: &Listen, notes: &Notes) {
    let Some(&client_auth) = tls.client_auth.meant().filter(|_| tls.section.given) else {
        return;
    };
    super::asks_with_an_authority(&tls.client_auth, &tls.client_ca, notes);
    let (Some(&protocol), Some(&required)) = (listen.protocol.meant(), tls.required.meant()) else {
        return;
    };
    if required == Some(false) && protocol != Protocol::Auto {
        let cause = "only an \"auto\" listener tells TLS from other protocols";
        let cure = "leave it out, or write protocol = \"auto\"";
        notes.error(&tls.required, cause, cure);
    }
    if client_auth == ClientAuth::Required && protocol == Protocol::Auto && required != Some(true) {
        let cause = "a client without a certificate is still admitted, without TLS";
        let cure = "add required = true, or write client_auth = \"optional\"";
        notes.error(&tls.client_auth, cause, cure);
    }
}

fn user_from(Listen { listen, tls, .. }: &Listen, notes: &Notes) {
    let (Some(&user_from), Some(&protocol)) = (listen.user_from.meant(), listen.protocol.meant())
    else {
        return;
    };
    let asks = tls.section.given && tls.client_auth.meant() != Some(&ClientAuth::Off);
    if user_from == UserFrom::Certificate && !asks {
        let cause = "no client is asked for a certificate here";
        let cure = "add client_auth = \"required\" to the listener's tls";
        notes.error(&listen.user_from, cause, cure);
    }
    if user_from == UserFrom::Basic && matches!(protocol, Protocol::Socket | Protocol::Tcp) {
        let cause = "no user is ever named here: only HTTP has Basic authentication";
        let cure = "leave it out, or write protocol = \"http\"";
        notes.warn(&listen.user_from, cause, cure);
    }
}

fn tickets(Listen { listen, .. }: &Listen, notes: &Notes) {
    let (Some(&tickets), Some(&protocol)) = (listen.tickets.meant(), listen.protocol.meant())
    else {
        return;
    };
    if tickets == TicketMode::Off && listen.client_timeout.value.is_some() {
        let cause = "a client that gives up finds no place again, because tickets are off";
        let cure = "add tickets = \"implicit\" to the listener, or leave client_timeout out";
        notes.error(&listen.client_timeout, cause, cure);
    }
    if tickets != TicketMode::Off && protocol == Protocol::Tcp {
        let cause = "a call of a tcp listener cannot be told from another one, so it has no ticket";
        let cure = "leave it out, or write protocol = \"http\"";
        notes.error(&listen.tickets, cause, cure);
    }
    if tickets == TicketMode::Explicit && protocol == Protocol::Socket {
        let cause = "no client of the socket protocol can send a ticket";
        let cure = "write tickets = \"implicit\", or leave it out";
        notes.error(&listen.tickets, cause, cure);
    }
}

fn proxies_are_trusted(all: &Sections, Listen { listen, .. }: &Listen, notes: &Notes) {
    let Some(trusted) = all.proxies.trusted_proxies.meant() else {
        return;
    };
    let has_none = listen.bind.said().is_some_and(|bind| match bind {
        Bind::Tcp(_) => trusted.networks.is_empty(),
        Bind::Unix(_) => !trusted.unix,
    });
    if has_none && listen.proxy_protocol.meant() == Some(&ProxyProtocol::Required) {
        let cause = "no proxy that could connect here is trusted, so no client is admitted";
        let cure = "name it in trusted_proxies of [callers]: its address, or \"unix\" for any \
                    process that may connect to a socket file";
        notes.error(&listen.proxy_protocol, cause, cure);
    }
}

fn has_backend(all: &Sections, Listen { listen, .. }: &Listen, notes: &Notes) {
    let socket = !all.backend.socket.is_missing();
    let http = !all.backend.http.is_missing();
    let add_socket = "add socket = \"127.0.0.1:2001\" to [backend]";
    let add_http = "add http = \"http://127.0.0.1:8080\" and its kind, \"zvm\" or \"http\", to \
                    [backend]";
    let tcp = !all.backend.tcp.is_missing();
    let at = &listen.protocol;
    let missing = |cause: &str, cure: &str| notes.missing(at, cause, cure);
    let no_http = "HTTP routes will be answered 501: there is no HTTP backend";
    match at.meant() {
        Some(Protocol::Socket) if !socket => {
            missing("a socket listener needs the socket backend", add_socket);
        }
        Some(Protocol::Tcp) if !tcp => {
            let cure = "add tcp = \"127.0.0.1:9000\" to [backend]";
            missing("a tcp listener needs the tcp backend", cure);
        }
        Some(Protocol::Auto | Protocol::Http) if !socket && !http => {
            let cause = "there is no backend for the calls that come in here";
            missing(cause, &format!("{add_socket}, or {add_http}"));
        }
        // Only the clients of a backend with a table speak the socket protocol.
        Some(Protocol::Auto) if !socket && all.backend_kind().has_table() => {
            let cause = "calls of the socket protocol will be refused: there is no socket backend";
            let cure = format!("{add_socket}, or write protocol = \"http\"");
            notes.warn(at, cause, cure);
        }
        Some(Protocol::Auto) if !http => {
            let cause = no_http;
            let cure = format!("{add_http}, or write protocol = \"socket\"");
            notes.warn(at, cause, cure);
        }
        Some(Protocol::Http) if !http => notes.warn(at, no_http, add_http),
        _ => {}
    }
}
