//! What depends on two options at once: errors for what can't work, warnings for what
//! works and was probably not meant. An option that could not be read is left out here, so
//! that one mistake makes one message.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use crate::call::listener::{ClientAuth, ProxyProtocol};
use crate::call::sdk::Kind;
use crate::call::{Bind, Protocol, UserFrom};
use crate::forward::Address;

use super::admin;
use super::backend_kind;
use super::callers;
use super::classes;
use super::coordinate;
use super::functions::Functions;
use super::quotas;
use super::rate_limits::{self, RawRateLimit};
use super::raw::{Limits, Listen, PostponeBy, Raw, Route, UNIX_MODE};
use super::reader::{At, Notes};
use super::tree::quoted;
use super::value::{Mistake, show_duration, show_size};

/// What one read of the real sdkserver takes.   bytes
const SDKSERVER_READ: u64 = 4096;
/// How many calls the real sdkserver works on at once.
const SDKSERVER_WORKERS: u32 = 64;
/// Apache's default `KeepAliveTimeout`.
const APACHE_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Checks all of it. `known_functions` are the names that the built-in table has; an empty
/// list means that they are not known, and no name is doubted.
pub(super) fn check(raw: &Raw, known_functions: &[&str], notes: &Notes) {
    let functions = &Functions::new(raw, known_functions);
    backend_kind::check(raw, notes);
    if let Some(listeners) = &raw.listen {
        listeners_are_whole(raw, listeners, notes);
        listeners_are_apart(raw, listeners, notes);
        listeners_have_backends(raw, listeners, notes);
        backends_are_others(raw, listeners, notes);
        for listener in listeners {
            unix(listener, notes);
            tls(listener, notes);
            user_from(listener, notes);
        }
        proxies_are_trusted(raw, listeners, notes);
    }
    routes(raw, notes);
    backend(raw, notes);
    queue(raw, notes);
    windows(&raw.limits, notes);
    functions_are_known(&raw.limits, functions, notes);
    coalesced_are_reads(raw, functions, notes);
    outstanding(raw, notes);
    rate_limits::check(raw, functions, notes);
    quotas::check(raw, functions, notes);
    callers::check(raw, functions, notes);
    classes::check(raw, functions, notes);
    coordinate::check(raw, notes);
    admin::check(raw, notes);
}

fn listeners_are_whole(raw: &Raw, listeners: &[Listen], notes: &Notes) {
    if listeners.is_empty() {
        let cure = "add a section: [[listen]], and below it the lines \
                    name = \"nova\" and bind = \"127.0.0.1:8081\"";
        let mistake = Mistake::new("there is no listener", cure);
        notes.missing(&raw.listen_at, mistake);
    }
    for listener in listeners {
        if listener.name.is_missing() {
            let cure = "add a name for logs and metrics, such as name = \"nova\"";
            notes.missing(
                &listener.name.at,
                Mistake::new("the listener has no name", cure),
            );
        }
        if listener.bind.is_missing() {
            let cure = "add its address, such as bind = \"127.0.0.1:8081\"";
            notes.missing(
                &listener.bind.at,
                Mistake::new("the listener has no address", cure),
            );
        }
    }
}

fn listeners_are_apart(raw: &Raw, listeners: &[Listen], notes: &Notes) {
    let mut names = BTreeSet::new();
    let mut binds: Vec<(Bind, &At)> = Vec::new();
    for listener in listeners {
        if let Some(Some(name)) = listener.name.meant()
            && !names.insert(name)
        {
            let told = format!("{} is the name of another listener too", quoted(name));
            let cure = "give each listener a name of its own";
            notes.error(&listener.name.at, Mistake::new(told, cure));
        }
    }
    let admin = raw.admin.bind.meant().copied().flatten();
    let all = listeners
        .iter()
        .filter_map(|listener| Some((listener.bind.meant()?.clone()?, &listener.bind.at)))
        .chain(admin.map(|bind| (Bind::Tcp(bind), &raw.admin.bind.at)));
    for (bind, at) in all {
        if let Some((other, earlier)) = binds.iter().find(|(other, _)| collide(&bind, other)) {
            let told = format!("{bind} overlaps {}, which is {other}", earlier.key);
            let cure = match bind {
                Bind::Tcp(_) => "give each an address or a port of its own",
                Bind::Unix(_) => "give each a path of its own",
            };
            notes.error(at, Mistake::new(told, cure));
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

/// A backend that is this sidecar itself gets each call back, until no slot is left.
fn backends_are_others(raw: &Raw, listeners: &[Listen], notes: &Notes) {
    let backend = &raw.backend;
    let backends = [&backend.socket, &backend.http, &backend.tcp];
    let admin = raw.admin.bind.meant().copied().flatten();
    let own: Vec<(Bind, &At)> = listeners
        .iter()
        .filter_map(|listener| Some((listener.bind.meant()?.clone()?, &listener.bind.at)))
        .chain(admin.map(|bind| (Bind::Tcp(bind), &raw.admin.bind.at)))
        .collect();
    for backend in backends {
        let Some(Some(address)) = backend.meant() else {
            continue;
        };
        for (bind, at) in &own {
            let cure = "give the address of the server behind; by custom 8081 and 2000 are in \
                        front, 8080 and 2001 behind";
            match leads_back(address, bind) {
                Leads::Elsewhere => {}
                Leads::Back => {
                    let told = format!("this leads back to {}, which is {bind}", at.key);
                    notes.error(&backend.at, Mistake::new(told, cure));
                }
                Leads::ToThisMachine => {
                    let told = format!(
                        "this seems to lead back to {}, which is {bind}: the address is this \
                         machine's",
                        at.key
                    );
                    notes.warn(&backend.at, Mistake::new(told, cure));
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

fn leads_back(backend: &Address, bind: &Bind) -> Leads {
    let (ip, port) = match (backend, bind) {
        (Address::Unix(path), Bind::Unix(own)) if **path == **own => return Leads::Back,
        (Address::Ip(address), Bind::Tcp(_)) => (Some(address.ip().to_canonical()), address.port()),
        (Address::Name(name, port), Bind::Tcp(_)) if is_localhost(name) => (None, *port),
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

fn unix(listener: &Listen, notes: &Notes) {
    if let Some(Some(Bind::Tcp(_))) = listener.bind.meant()
        && listener
            .unix_mode
            .meant()
            .is_some_and(|&mode| mode != UNIX_MODE)
    {
        let told = "it has no effect on an address with a port";
        let cure = "leave it out, or write bind = \"unix:/path\"";
        notes.warn(&listener.unix_mode.at, Mistake::new(told, cure));
    }
}

fn tls(listener: &Listen, notes: &Notes) {
    let Some(tls) = &listener.tls else {
        return;
    };
    for (file, setting, example) in [
        ("cert", &tls.cert, "/etc/tidegate/tls.crt"),
        ("key", &tls.key, "/etc/tidegate/tls.key"),
    ] {
        if setting.is_missing() {
            let told = format!("there is no {file}");
            let cure = format!("add {file} = {}, or leave tls out", quoted(example));
            notes.missing(&tls.at, Mistake::new(told, cure));
        }
    }
    let Some(&client_auth) = tls.client_auth.meant() else {
        return;
    };
    let asks = client_auth != ClientAuth::Off;
    if asks && tls.client_ca.is_missing() {
        let told = "nobody is named who signs the clients' certificates";
        let cure = "add client_ca = \"/etc/tidegate/clients.pem\"";
        notes.missing(&tls.client_auth.at, Mistake::new(told, cure));
    }
    if !asks && tls.client_ca.given {
        let told = "it has no effect while client_auth is \"off\"";
        let cure = "leave it out, or write client_auth = \"required\"";
        notes.warn(&tls.client_ca.at, Mistake::new(told, cure));
    }
    let (Some(&protocol), Some(&required)) = (listener.protocol.meant(), tls.required.meant())
    else {
        return;
    };
    if required == Some(false) && protocol != Protocol::Auto {
        let told = "only an \"auto\" listener tells TLS from what is not";
        let cure = "leave it out, or write protocol = \"auto\"";
        notes.error(&tls.required.at, Mistake::new(told, cure));
    }
    if client_auth == ClientAuth::Required && protocol == Protocol::Auto && required != Some(true) {
        let told = "a client without a certificate comes in all the same, without TLS";
        let cure = "add required = true, or write client_auth = \"optional\"";
        notes.error(&tls.client_auth.at, Mistake::new(told, cure));
    }
}

fn user_from(listener: &Listen, notes: &Notes) {
    let (Some(&user_from), Some(&protocol)) =
        (listener.user_from.meant(), listener.protocol.meant())
    else {
        return;
    };
    let asks = |listener: &Listen| {
        let tls = listener.tls.as_ref();
        tls.is_some_and(|tls| tls.client_auth.meant() != Some(&ClientAuth::Off))
    };
    if user_from == UserFrom::Certificate && !asks(listener) {
        let told = "no client is asked for a certificate here";
        let cure = "add client_auth = \"required\" to the listener's tls";
        notes.error(&listener.user_from.at, Mistake::new(told, cure));
    }
    if user_from == UserFrom::Basic && matches!(protocol, Protocol::Socket | Protocol::Tcp) {
        let told = "no user is ever named here: only HTTP has Basic authentication";
        let cure = "leave it out, or write protocol = \"http\"";
        notes.warn(&listener.user_from.at, Mistake::new(told, cure));
    }
}

fn proxies_are_trusted(raw: &Raw, listeners: &[Listen], notes: &Notes) {
    let Some(trusted) = raw.callers.trusted_proxies.meant() else {
        return;
    };
    for listener in listeners {
        if listener.proxy_protocol.meant() != Some(&ProxyProtocol::Required) {
            continue;
        }
        let has_none = match listener.bind.meant() {
            Some(Some(Bind::Tcp(_))) => trusted.networks.is_empty(),
            Some(Some(Bind::Unix(_))) => !trusted.unix,
            _ => false,
        };
        if has_none {
            let told = "no proxy that could connect here is trusted, so nobody gets in";
            let cure = "name it in trusted_proxies of [callers]: its address, or \"unix\" for \
                        whoever may connect to a socket file";
            notes.error(&listener.proxy_protocol.at, Mistake::new(told, cure));
        }
    }
}

fn listeners_have_backends(raw: &Raw, listeners: &[Listen], notes: &Notes) {
    let socket = !raw.backend.socket.is_missing();
    let http = !raw.backend.http.is_missing();
    let tcp = !raw.backend.tcp.is_missing();
    let add_socket = "add socket = \"127.0.0.1:2001\" to [backend]";
    let add_http = "add http = \"http://127.0.0.1:8080\" and its kind, \"zvm\" or \"http\", to \
                    [backend]";
    for listener in listeners {
        let Some(protocol) = listener.protocol.meant() else {
            continue;
        };
        let at = &listener.protocol.at;
        match protocol {
            Protocol::Socket if !socket => {
                let told = "a socket listener needs the socket backend";
                notes.missing(at, Mistake::new(told, add_socket));
            }
            Protocol::Tcp if !tcp => {
                let told = "a tcp listener needs the tcp backend";
                let cure = "add tcp = \"127.0.0.1:9000\" to [backend]";
                notes.missing(at, Mistake::new(told, cure));
            }
            Protocol::Auto | Protocol::Http if !socket && !http => {
                let told = "there is no backend for what comes in here";
                let cure = format!("{add_socket}, or {add_http}");
                notes.missing(at, Mistake::new(told, cure));
            }
            Protocol::Auto if !socket => {
                let told =
                    "calls of the socket protocol will be refused: there is no socket backend";
                let cure = format!("{add_socket}, or write protocol = \"http\"");
                notes.warn(at, Mistake::new(told, cure));
            }
            Protocol::Auto if !http => {
                let told = "HTTP routes will be answered 501: there is no HTTP backend";
                let cure = format!("{add_http}, or write protocol = \"socket\"");
                notes.warn(at, Mistake::new(told, cure));
            }
            Protocol::Http if !http => {
                let told = "HTTP routes will be answered 501: there is no HTTP backend";
                notes.warn(at, Mistake::new(told, add_http));
            }
            _ => {}
        }
    }
}

fn routes(raw: &Raw, notes: &Notes) {
    let mut seen = BTreeSet::new();
    for route in &raw.routes {
        if route.method.is_missing() {
            let cure = "add method = \"GET\", or \"*\" for all";
            notes.missing(
                &route.method.at,
                Mistake::new("the route has no method", cure),
            );
        }
        if route.path.is_missing() {
            let cure = "add a path, such as path = \"/guests/{userid}/info\"";
            notes.missing(&route.path.at, Mistake::new("the route has no path", cure));
        }
        if let (Some(Some(method)), Some(Some(path))) = (route.method.meant(), route.path.meant())
            && !seen.insert((method, path))
        {
            let told = format!("{method} {path} is another route's too, and the first one wins");
            notes.warn(&route.at, Mistake::new(told, "leave one of the two out"));
        }
    }
    if let Some(route) = raw.routes.first()
        && raw.backend.http.is_missing()
    {
        let told = "routes are for the HTTP backend, and there is none";
        let cure = "add http = \"http://127.0.0.1:8080\" and its kind, \"zvm\" or \"http\", to \
                    [backend]";
        notes.warn(&route.at, Mistake::new(told, cure));
    }
}

fn backend(raw: &Raw, notes: &Notes) {
    let request = &raw.client.max_request_bytes;
    if let (Some(&bytes), Some(Some(_))) = (request.meant(), raw.backend.socket.meant())
        && bytes > SDKSERVER_READ
    {
        let told = format!(
            "the real sdkserver reads {SDKSERVER_READ} bytes of a request, not {}",
            show_size(bytes)
        );
        let cure = "give \"4KiB\", unless this backend reads more";
        notes.warn(&request.at, Mistake::new(told, cure));
    }
    let idle = &raw.backend.pool_idle_timeout;
    if let (Some(&kept), Some(Some(_))) = (idle.meant(), raw.backend.http.meant())
        && kept >= APACHE_KEEP_ALIVE
    {
        let told = format!(
            "Apache closes an idle connection after 5 s by default, before these {}",
            show_duration(kept)
        );
        let cure = "give \"4s\", unless the backend keeps connections longer";
        notes.warn(&idle.at, Mistake::new(told, cure));
    }
}

fn queue(raw: &Raw, notes: &Notes) {
    let jitter = &raw.queue.postpone_jitter;
    let (Some(postpone), Some((shortest, _))) = (raw.queue.postpone.meant(), jitter.meant()) else {
        return;
    };
    if *postpone == PostponeBy::InTurn {
        if jitter.given {
            let told = "it has no effect while postpone is \"in_turn\"";
            let cure = "leave it out, or write postpone = \"jitter\"";
            notes.warn(&jitter.at, Mistake::new(told, cure));
        }
        return;
    }
    if let Some(&seconds) = raw.limits.threshold_seconds.meant()
        && seconds > 0
        && *shortest >= Duration::from_secs(seconds.into())
    {
        let told =
            format!("no postponed call comes back within the {seconds} s that a call may wait");
        let cure = "give times well below smapi_request_postpone_threshold_seconds";
        notes.warn(&jitter.at, Mistake::new(told, cure));
    }
}

fn windows(limits: &Limits, notes: &Notes) {
    let value = &limits.per_window;
    let on = limits.window_size_seconds.meant().is_some_and(|&s| s > 0);
    if value.sound && value.total.is_none() && on {
        let told = if value.given {
            "\"total\" is not given"
        } else {
            "the limit per window is not given"
        };
        let cure = "give \"total:30\" with the number that the backend bears per window, \
                    or switch windows off with smapi_rate_limit_window_size_seconds = 0";
        notes.missing(&value.at, Mistake::new(told, cure));
    }
    let Some(total) = value.total.as_ref().map(|total| total.value) else {
        return;
    };
    if total == 0 {
        return;
    }
    let mut sum = 0_u64;
    for (name, calls) in &value.functions {
        sum += u64::from(calls.value);
        if calls.value > total {
            let told = format!(
                "{} may make {} calls per window, more than the total of {total}",
                quoted(name),
                calls.value
            );
            let cure = format!("give {} at most {total}, or raise total", quoted(name));
            notes.error(&calls.at, Mistake::new(told, cure));
        }
    }
    let all_fit = value
        .functions
        .iter()
        .all(|(_, calls)| calls.value <= total);
    if all_fit && sum >= u64::from(total) {
        let told = format!(
            "the functions together may make {sum} calls per window, \
             which leaves nothing of the total of {total} for the others"
        );
        let cure = "keep the sum of the functions below total";
        notes.warn(&value.at, Mistake::new(told, cure));
    }
}

fn functions_are_known(limits: &Limits, functions: &Functions<'_>, notes: &Notes) {
    for (name, calls) in &limits.per_window.functions {
        functions.limit(name, &calls.at, notes);
    }
}

/// Only what changes nothing may share an answer. A route of one's own says by its method
/// whether it does.
fn coalesced_are_reads(raw: &Raw, functions: &Functions<'_>, notes: &Notes) {
    let Some(coalesced) = raw.coalesce.functions.meant() else {
        return;
    };
    let routes = |name: &str| {
        let of_name = |route: &&Route| route.function.value.as_deref() == Some(name);
        raw.routes.iter().filter(of_name).collect::<Vec<_>>()
    };
    let only_reads = |route: &&Route| matches!(route.method.value.as_deref(), Some("GET" | "HEAD"));
    for (name, place) in coalesced {
        let at = At {
            key: raw.coalesce.functions.at.key.clone(),
            place: place.clone(),
        };
        let own = routes(name);
        let (told, cure) = match functions.built_in(name) {
            Some(function) if function.kind == Kind::Read => continue,
            Some(_) => (
                format!(
                    "{} changes something, so each call of it is made",
                    quoted(name)
                ),
                "leave it out: only reads can share an answer".to_owned(),
            ),
            None if own.is_empty() => {
                if let Some(doubt) = functions.doubt(name, None) {
                    notes.error(&at, doubt);
                }
                continue;
            }
            None if own.iter().all(only_reads) => continue,
            None => (
                format!(
                    "{} has a route with another method than GET or HEAD",
                    quoted(name)
                ),
                "leave it out: only reads can share an answer".to_owned(),
            ),
        };
        notes.error(&at, Mistake::new(told, cure));
    }
    let fresh_for = &raw.coalesce.fresh_for;
    if coalesced.is_empty() && fresh_for.meant().is_some_and(|time| !time.is_zero()) {
        let told = "it has no effect while no function is coalesced";
        let cure = "add functions = [\"host_get_info\"] to [coalesce], or leave it out";
        notes.warn(&fresh_for.at, Mistake::new(told, cure));
    }
}

fn outstanding(raw: &Raw, notes: &Notes) {
    let (Some(&outstanding), Some(&workers)) =
        (raw.limits.outstanding.meant(), raw.queue.workers.meant())
    else {
        return;
    };
    let beside = classes::beside(raw);
    let allowed = outstanding.saturating_add(beside);
    if workers < allowed {
        let pools = if beside > 0 {
            " and the pools beside it allow"
        } else {
            " allows"
        };
        let told = format!(
            "{workers} workers never have the {allowed} calls in flight that \
             smapi_max_outstanding_requests{pools}"
        );
        let cure = format!("give workers = {allowed} or more, or lower the limit");
        notes.warn(&raw.queue.workers.at, Mistake::new(told, cure));
    }
    if !matches!(raw.backend.socket.meant(), Some(Some(_))) {
        return;
    }
    let (at, at_once): (&At, u32) = if outstanding == 0 {
        (&raw.queue.workers.at, workers)
    } else {
        (&raw.limits.outstanding.at, allowed)
    };
    // What meets no limit reaches it as well.
    if let Some(&more) = raw.queue.max_unlimited.meant()
        && classes::is_anything_exempt(raw)
        && at_once <= SDKSERVER_WORKERS
        && at_once.saturating_add(more) > SDKSERVER_WORKERS
    {
        let told = format!(
            "the real sdkserver works on {SDKSERVER_WORKERS} calls at once; {at_once} that meet \
             the limits and {more} that are exempt are more"
        );
        let room = SDKSERVER_WORKERS - at_once;
        let cure = format!("give max_unlimited = {} in [queue]", room.max(1));
        notes.warn(&raw.queue.max_unlimited.at, Mistake::new(told, cure));
    }
    if at_once > SDKSERVER_WORKERS {
        let told = format!(
            "the real sdkserver works on {SDKSERVER_WORKERS} calls at once; of {at_once}, the rest waits there unseen"
        );
        let cure =
            format!("give at most {SDKSERVER_WORKERS}, unless its max_worker_count is higher");
        notes.warn(at, Mistake::new(told, cure));
    }
}

/// The functions that have a limit of their own, a route or a cost, each once.
pub(super) fn functions(raw: &Raw) -> Vec<&str> {
    let windows_on = raw.limits.window_size_seconds.value > 0;
    let limited = raw.limits.per_window.functions.iter();
    let limited = limited.filter(|(_, calls)| windows_on && calls.value > 0);
    let named = limited.map(|(name, _)| name.as_str()).chain(
        raw.routes
            .iter()
            .filter_map(|route| route.function.value.as_deref()),
    );
    let costs = raw.costs.functions.value.iter();
    let named = named.chain(costs.map(|(name, _)| name.as_str()));
    let named = named.chain(classes::functions_named(raw));
    let paced = raw.rate_limits.iter();
    let named = named.chain(paced.filter_map(RawRateLimit::function_met));
    let mut order = BTreeMap::new();
    for (index, name) in named.enumerate() {
        order.entry(name).or_insert(index);
    }
    let mut names: Vec<_> = order.into_iter().collect();
    names.sort_by_key(|(_, index)| *index);
    names.into_iter().map(|(name, _)| name).collect()
}
