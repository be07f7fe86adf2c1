//! The options as they stand in the file: every key, what it allows, its default. What
//! depends on two options at once is [`super::check`]'s.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate_callers::{AutoRegister, FieldSet};
use tokio_rustls::rustls::ServerConfig;

use crate::admit::WhenFull;
use crate::call::listener::{ClientAuth, ProxyProtocol};
use crate::call::{Bind, Protocol, UserFrom};
use crate::classify::OddPaths;
use crate::forward::Address;
use crate::protocol::trusted::TrustedProxies;
use crate::telemetry::Format;

use super::admin::{self, RawAdmin};
use super::backend_kind::{self, RawKind};
use super::callers::{self, RawCaller, RawCosts, RawProfiles};
use super::certificates::{self, Clients, In};
use super::classes::{self, Class, Classes, OfListener};
use super::coordinate::{self, RawCoordinate};
use super::exchange::{self, RawExchange};
use super::functions;
use super::ignored_headers::{self, RawIgnored};
use super::odd_paths;
use super::per_window::{self, CALLS_MAX, PerWindow};
use super::problem::Place;
use super::quotas::{self, RawStore};
use super::rate_limits::{self, RawRateLimit};
use super::reader::{At, Section, Setting};
use super::request_heads::{self, RawHeads};
use super::text::{
    address, bind, file, file_mode, function_names, http_address, jitter, level, method, name,
    path, proxies, route_function, socket_address,
};
use super::tunnel::{self, RawTunnel};
use super::value::{choice, duration, flag, integer, size};

/// Most listeners; each is a label in the metrics.
const LISTENERS_MAX: usize = 64;
/// Most functions that can be coalesced; each read is compared with them.
const COALESCED_MAX: usize = 64;
/// Most routes of one's own; every HTTP request is compared with them.
const ROUTES_MAX: usize = 1024;

/// Permissions of a socket file, unless the config says others.
pub(super) const UNIX_MODE: u32 = 0o660;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// How a call is postponed, without the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PostponeBy {
    Jitter,
    InTurn,
}

/// How a window is laid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowShape {
    Sliding,
    Fixed,
}

/// When a window slot is stamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowStamp {
    Sent,
    Replied,
}

/// The whole config.
pub(super) struct Raw {
    pub(super) server: Server,
    /// None where the listeners can't be read.
    pub(super) listen: Option<Vec<Listen>>,
    pub(super) listen_at: At,
    pub(super) client: Client,
    pub(super) callers: Callers,
    pub(super) caller: Vec<RawCaller>,
    pub(super) rate_limits: Vec<RawRateLimit>,
    pub(super) costs: RawCosts,
    pub(super) profiles: RawProfiles,
    pub(super) backend: Backend,
    pub(super) queue: Queue,
    pub(super) limits: Limits,
    pub(super) coalesce: Coalesce,
    pub(super) tasks: Tasks,
    pub(super) coordinate: RawCoordinate,
    pub(super) quota: RawStore,
    pub(super) admin: RawAdmin,
    pub(super) log: Log,
    pub(super) routes: Vec<Route>,
    pub(super) class_defaults: Classes,
    pub(super) classes: Vec<Class>,
}

/// `[server]`
pub(super) struct Server {
    pub(super) threads: Setting<u32>,
    pub(super) max_connections: Setting<u32>,
    pub(super) drain_timeout: Setting<Duration>,
}

/// `[[listen]]`
pub(super) struct Listen {
    pub(super) name: Setting<Option<String>>,
    pub(super) bind: Setting<Option<Bind>>,
    pub(super) unix_mode: Setting<u32>,
    pub(super) protocol: Setting<Protocol>,
    pub(super) cancel_on_eof: Setting<bool>,
    pub(super) proxy_protocol: Setting<ProxyProtocol>,
    pub(super) user_from: Setting<UserFrom>,
    pub(super) tls: Option<Tls>,
    pub(super) classes: OfListener,
}

/// `[listen.tls]`
pub(super) struct Tls {
    pub(super) at: At,
    pub(super) cert: Setting<Option<PathBuf>>,
    pub(super) key: Setting<Option<PathBuf>>,
    pub(super) client_ca: Setting<Option<PathBuf>>,
    pub(super) client_auth: Setting<ClientAuth>,
    pub(super) required: Setting<Option<bool>>,
    /// None where a file is missing or bad, which has been noted.
    pub(super) loaded: Option<Arc<ServerConfig>>,
}

/// `[callers]`
pub(super) struct Callers {
    pub(super) trusted_proxies: Setting<TrustedProxies>,
    pub(super) identify: Setting<FieldSet>,
    pub(super) auto_register: Setting<AutoRegister>,
    pub(super) auto_register_per_s: Setting<u16>,
    pub(super) state_file: Setting<Option<PathBuf>>,
}

/// `[client]`
pub(super) struct Client {
    pub(super) handshake_timeout: Setting<Duration>,
    pub(super) request_timeout: Setting<Duration>,
    pub(super) idle_timeout: Setting<Duration>,
    pub(super) tunnel: RawTunnel,
    pub(super) write_timeout: Setting<Duration>,
    pub(super) body_timeout: Setting<Duration>,
    pub(super) body_min_rate: Setting<u64>,
    pub(super) max_request_bytes: Setting<u64>,
    pub(super) buffer_bytes: Setting<u64>,
    pub(super) odd_paths: Setting<OddPaths>,
    pub(super) heads: RawHeads,
}

/// `[backend]`
pub(super) struct Backend {
    pub(super) kind: RawKind,
    pub(super) socket: Setting<Option<Address>>,
    pub(super) http: Setting<Option<Address>>,
    pub(super) tcp: Setting<Option<Address>>,
    pub(super) connect_timeout: Setting<Duration>,
    pub(super) response_timeout: Setting<Duration>,
    pub(super) max_reply_bytes: Setting<u64>,
    pub(super) reply_buffer_bytes: Setting<u64>,
    pub(super) exchange: RawExchange,
    pub(super) pool_idle_timeout: Setting<Duration>,
}

/// `[queue]`
pub(super) struct Queue {
    pub(super) capacity: Setting<u32>,
    pub(super) workers: Setting<u32>,
    pub(super) max_unlimited: Setting<u32>,
    pub(super) when_full: Setting<WhenFull>,
    pub(super) postpone: Setting<PostponeBy>,
    pub(super) postpone_jitter: Setting<(Duration, Duration)>,
}

/// `[limits]`
pub(super) struct Limits {
    pub(super) window_size_seconds: Setting<u32>,
    pub(super) per_window: PerWindow,
    pub(super) outstanding: Setting<u32>,
    pub(super) threshold_seconds: Setting<u32>,
    pub(super) window: Setting<WindowShape>,
    pub(super) window_stamp: Setting<WindowStamp>,
    pub(super) window_guard: Setting<Duration>,
    pub(super) exempt: Setting<Vec<String>>,
    pub(super) allow_unknown: Setting<bool>,
}

/// `[coalesce]`
pub(super) struct Coalesce {
    /// Each with where it stands.
    pub(super) functions: Setting<Vec<(String, Place)>>,
    pub(super) ignored: RawIgnored,
    pub(super) fresh_for: Setting<Duration>,
    pub(super) max_entries: Setting<u32>,
    pub(super) max_bytes: Setting<u64>,
}

/// `[tasks]`
pub(super) struct Tasks {
    pub(super) enabled: Setting<bool>,
    pub(super) max_tasks: Setting<u32>,
    pub(super) max_tasks_per_caller: Setting<u32>,
    pub(super) max_bytes: Setting<u64>,
    pub(super) max_bytes_per_caller: Setting<u64>,
    pub(super) keep_for: Setting<Duration>,
}

/// `[log]`
pub(super) struct Log {
    pub(super) format: Setting<Format>,
    pub(super) level: Setting<String>,
    pub(super) access: Setting<bool>,
}

/// `[[route]]`
pub(super) struct Route {
    pub(super) method: Setting<Option<String>>,
    pub(super) path: Setting<Option<String>>,
    pub(super) function: Setting<Option<String>>,
    pub(super) at: At,
}

/// Reads every section and reports what is unknown.
pub(super) fn read(mut root: Section<'_>) -> Raw {
    let mut listen_at = root.at().clone();
    listen_at.key = "listen".to_owned();
    let raw = Raw {
        server: server(root.section("server")),
        listen: root
            .sections("listen", LISTENERS_MAX)
            .map(|list| list.into_iter().map(listen).collect()),
        listen_at,
        client: client(root.section("client")),
        callers: callers(root.section("callers")),
        caller: callers::callers(&mut root),
        rate_limits: rate_limits::rate_limits(&mut root),
        costs: callers::costs(root.section("costs")),
        profiles: callers::profiles(root.section("profiles")),
        backend: backend(root.section("backend")),
        queue: queue(root.section("queue")),
        limits: limits(root.section("limits")),
        coalesce: coalesce(root.section("coalesce")),
        tasks: tasks(root.section("tasks")),
        coordinate: coordinate::read(root.section("coordinate")),
        quota: quotas::read(root.section("quota")),
        admin: admin::read(root.section("admin")),
        log: log(root.section("log")),
        routes: root
            .sections("route", ROUTES_MAX)
            .unwrap_or_default()
            .into_iter()
            .map(route)
            .collect(),
        class_defaults: classes::read(root.section("classes")),
        classes: root
            .sections("class", classes::CLASSES_MAX)
            .unwrap_or_default()
            .into_iter()
            .map(classes::read_class)
            .collect(),
    };
    root.finish();
    raw
}

fn server(mut section: Section<'_>) -> Server {
    let server = Server {
        threads: section.read("threads", 1, integer(1..=64)),
        max_connections: section.read("max_connections", 16384, integer(1..=1_000_000)),
        drain_timeout: section.read(
            "drain_timeout",
            30 * SECOND,
            duration(Duration::ZERO..=HOUR),
        ),
    };
    section.finish();
    server
}

fn listen(mut section: Section<'_>) -> Listen {
    const PROTOCOLS: &[(&str, Protocol)] = &[
        ("auto", Protocol::Auto),
        ("socket", Protocol::Socket),
        ("http", Protocol::Http),
        ("tcp", Protocol::Tcp),
    ];
    const PROXY_PROTOCOL: &[(&str, ProxyProtocol)] = &[
        ("off", ProxyProtocol::Off),
        ("required", ProxyProtocol::Required),
    ];
    const USER_FROM: &[(&str, UserFrom)] = &[
        ("peer", UserFrom::Peer),
        ("basic", UserFrom::Basic),
        ("certificate", UserFrom::Certificate),
    ];
    let protocol = section.read("protocol", Protocol::Auto, choice(PROTOCOLS));
    let listen = Listen {
        name: section.read("name", None, name().optional()),
        bind: section.read("bind", None, bind().optional()),
        unix_mode: section.read("unix_mode", UNIX_MODE, file_mode()),
        cancel_on_eof: section.read("cancel_on_eof", true, flag()),
        proxy_protocol: section.read("proxy_protocol", ProxyProtocol::Off, choice(PROXY_PROTOCOL)),
        user_from: section.read("user_from", UserFrom::Peer, choice(USER_FROM)),
        tls: tls(section.section("tls"), protocol.value),
        classes: classes::read_of_listener(&mut section),
        protocol,
    };
    section.finish();
    listen
}

fn tls(mut section: Section<'_>, protocol: Protocol) -> Option<Tls> {
    const CLIENT_AUTH: &[(&str, ClientAuth)] = &[
        ("off", ClientAuth::Off),
        ("optional", ClientAuth::Optional),
        ("required", ClientAuth::Required),
    ];
    let mut tls = Tls {
        at: section.at().clone(),
        cert: section.read("cert", None, file().optional()),
        key: section.read("key", None, file().optional()),
        client_ca: section.read("client_ca", None, file().optional()),
        client_auth: section.read("client_auth", ClientAuth::Off, choice(CLIENT_AUTH)),
        required: section.read("required", None, flag().optional()),
        loaded: None,
    };
    if let (Some(cert), Some(key)) = (&tls.cert.value, &tls.key.value) {
        let clients = match (&tls.client_ca.value, tls.client_auth.value) {
            (Some(client_ca), client_auth @ (ClientAuth::Optional | ClientAuth::Required)) => {
                Some(Clients {
                    client_ca,
                    client_auth,
                })
            }
            _ => None,
        };
        match certificates::load(cert, key, clients.as_ref(), protocol) {
            Ok(loaded) => tls.loaded = Some(loaded),
            Err((file, mistake)) => {
                let at = match file {
                    In::Cert => &tls.cert.at,
                    In::Key => &tls.key.at,
                    In::ClientCa => &tls.client_ca.at,
                };
                section.notes().error(at, mistake);
            }
        }
    }
    let is_given = section.is_given();
    section.finish();
    is_given.then_some(tls)
}

fn callers(mut section: Section<'_>) -> Callers {
    // Not even this machine: any process on it could choose its own address.
    let nobody = TrustedProxies {
        networks: Vec::new().into(),
        unix: false,
    };
    let usual = tidegate_callers::TableSettings::default();
    let callers = Callers {
        trusted_proxies: section.read("trusted_proxies", nobody, proxies()),
        identify: section.read("identify", usual.identify, callers::identify()),
        auto_register: section.read(
            "auto_register",
            usual.auto_register,
            callers::auto_register(),
        ),
        auto_register_per_s: section.read(
            "auto_register_per_s",
            usual.auto_register_per_second,
            callers::auto_register_per_s(),
        ),
        state_file: callers::read_state_file(&mut section),
    };
    section.finish();
    callers
}

fn client(mut section: Section<'_>) -> Client {
    let client = Client {
        handshake_timeout: section.read("handshake_timeout", 5 * SECOND, duration(MS..=HOUR)),
        request_timeout: section.read("request_timeout", 30 * SECOND, duration(MS..=HOUR)),
        idle_timeout: section.read("idle_timeout", 75 * SECOND, duration(MS..=DAY)),
        tunnel: tunnel::read(&mut section),
        write_timeout: section.read("write_timeout", 30 * SECOND, duration(MS..=HOUR)),
        body_timeout: section.read("body_timeout", 600 * SECOND, duration(MS..=DAY)),
        body_min_rate: section.read("body_min_rate", KIB, size(0..=GIB)),
        max_request_bytes: section.read("max_request_bytes", 4 * KIB, size(64..=16 * MIB)),
        buffer_bytes: section.read("buffer_bytes", 64 * KIB, size(KIB..=16 * MIB)),
        odd_paths: odd_paths::read(&mut section),
        heads: request_heads::read(&mut section),
    };
    section.finish();
    client
}

fn backend(mut section: Section<'_>) -> Backend {
    let backend = Backend {
        kind: backend_kind::read(&mut section),
        socket: section.read("socket", None, socket_address().optional()),
        http: section.read("http", None, http_address().optional()),
        tcp: section.read("tcp", None, address("127.0.0.1:9000").optional()),
        connect_timeout: section.read("connect_timeout", 2 * SECOND, duration(MS..=300 * SECOND)),
        response_timeout: section.read("response_timeout", HOUR, duration(MS..=DAY)),
        max_reply_bytes: section.read("max_reply_bytes", 16 * MIB, size(KIB..=GIB)),
        reply_buffer_bytes: section.read("reply_buffer_bytes", MIB, size(KIB..=GIB)),
        exchange: exchange::read(&mut section),
        pool_idle_timeout: section.read("pool_idle_timeout", 4 * SECOND, duration(MS..=HOUR)),
    };
    section.finish();
    backend
}

fn queue(mut section: Section<'_>) -> Queue {
    const WHEN_FULL: &[(&str, WhenFull)] =
        &[("wait", WhenFull::Wait), ("refuse", WhenFull::Refuse)];
    const POSTPONE: &[(&str, PostponeBy)] = &[
        ("jitter", PostponeBy::Jitter),
        ("in_turn", PostponeBy::InTurn),
    ];
    let queue = Queue {
        capacity: section.read("capacity", 4096, integer(1..=1_000_000)),
        workers: section.read("workers", 64, integer(1..=65536)),
        max_unlimited: section.read("max_unlimited", 64, integer(1..=65536)),
        when_full: section.read("when_full", WhenFull::Wait, choice(WHEN_FULL)),
        postpone: section.read("postpone", PostponeBy::Jitter, choice(POSTPONE)),
        postpone_jitter: section.read("postpone_jitter", (SECOND, 3 * SECOND), jitter(MS..=HOUR)),
    };
    section.finish();
    queue
}

fn limits(mut section: Section<'_>) -> Limits {
    const WINDOWS: &[(&str, WindowShape)] = &[
        ("sliding", WindowShape::Sliding),
        ("fixed", WindowShape::Fixed),
    ];
    const STAMPS: &[(&str, WindowStamp)] = &[
        ("sent", WindowStamp::Sent),
        ("replied", WindowStamp::Replied),
    ];
    let limits = Limits {
        window_size_seconds: section.read(
            "smapi_rate_limit_window_size_seconds",
            1,
            integer(0..=86400),
        ),
        per_window: per_window::read(&mut section),
        outstanding: section.read("smapi_max_outstanding_requests", 10, integer(0..=CALLS_MAX)),
        threshold_seconds: section.read(
            "smapi_request_postpone_threshold_seconds",
            60,
            integer(0..=86400),
        ),
        window: section.read("window", WindowShape::Sliding, choice(WINDOWS)),
        window_stamp: section.read("window_stamp", WindowStamp::Sent, choice(STAMPS)),
        window_guard: section.read(
            "window_guard",
            5 * MS,
            duration(Duration::ZERO..=10 * SECOND),
        ),
        exempt: section.read("exempt", Vec::new(), classes::exempt()),
        allow_unknown: functions::read(&mut section),
    };
    section.finish();
    limits
}

fn coalesce(mut section: Section<'_>) -> Coalesce {
    let coalesce = Coalesce {
        functions: section.read("functions", Vec::new(), function_names(COALESCED_MAX)),
        ignored: ignored_headers::read(&mut section),
        fresh_for: section.read("fresh_for", Duration::ZERO, duration(Duration::ZERO..=HOUR)),
        max_entries: section.read("max_entries", 1024, integer(1..=1_000_000)),
        max_bytes: section.read("max_bytes", 16 * MIB, size(KIB..=GIB)),
    };
    section.finish();
    coalesce
}

fn tasks(mut section: Section<'_>) -> Tasks {
    let tasks = Tasks {
        enabled: section.read("enabled", false, flag()),
        max_tasks: section.read("max_tasks", 1024, integer(1..=1_000_000)),
        max_tasks_per_caller: section.read("max_tasks_per_caller", 256, integer(1..=1_000_000)),
        max_bytes: section.read("max_bytes", 64 * MIB, size(KIB..=GIB)),
        max_bytes_per_caller: section.read("max_bytes_per_caller", 16 * MIB, size(KIB..=GIB)),
        keep_for: section.read("keep_for", 10 * 60 * SECOND, duration(SECOND..=DAY)),
    };
    section.finish();
    tasks
}

fn log(mut section: Section<'_>) -> Log {
    const FORMATS: &[(&str, Format)] = &[
        ("auto", Format::Auto),
        ("text", Format::Text),
        ("json", Format::Json),
    ];
    let log = Log {
        format: section.read("format", Format::Auto, choice(FORMATS)),
        level: section.read("level", "info".to_owned(), level()),
        access: section.read("access", true, flag()),
    };
    section.finish();
    log
}

fn route(mut section: Section<'_>) -> Route {
    let route = Route {
        method: section.read("method", None, method().optional()),
        path: section.read("path", None, path().optional()),
        function: section.read("function", None, route_function()),
        at: section.at().clone(),
    };
    section.finish();
    route
}
