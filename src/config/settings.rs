//! Hands every stage its settings, out of a config that has no error.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::call::{self, Protocol};
use crate::{admit, classify, coalesce, forward, listen, protocol, tasks, telemetry};

use super::Config;
use super::admin;
use super::backend_kind;
use super::callers;
use super::check;
use super::classes;
use super::coordinate;
use super::ignored_headers;
use super::quotas;
use super::rate_limits;
use super::raw::{Limits, Listen, PostponeBy, Raw, Tls, WindowShape, WindowStamp};
use super::tunnel;

/// The settings.
///
/// # Panics
///
/// If the config has an error, such as a listener without an address.
pub(super) fn of(raw: &Raw) -> Config {
    let listeners = raw
        .listen
        .as_ref()
        .expect("listeners that can't be read are an error");
    let connections = raw.server.max_connections.value;
    Config {
        threads: raw.server.threads.value as usize,
        drain_timeout: raw.server.drain_timeout.value,
        listen: listen::Settings {
            listeners: listeners.iter().map(listener).collect(),
            max_connections: connections,
        },
        protocol: protocol::Settings {
            handshake_timeout: raw.client.handshake_timeout.value,
            request_timeout: raw.client.request_timeout.value,
            idle_timeout: raw.client.idle_timeout.value,
            tunnel_idle_timeout: tunnel::idle_timeout(raw),
            write_timeout: raw.client.write_timeout.value,
            body_timeout: raw.client.body_timeout.value,
            body_min_rate: u32::try_from(raw.client.body_min_rate.value)
                .expect("a rate is at most 1 GiB"),
            max_request_bytes: bytes(raw.client.max_request_bytes.value),
            buffer_bytes: bytes(raw.client.buffer_bytes.value),
            max_request_fields: raw.client.heads.max_request_fields(),
            trusted_proxies: raw.callers.trusted_proxies.value.clone(),
            backend_kind: backend_kind::of(&raw.backend),
        },
        allow_unknown: raw.limits.allow_unknown.value,
        classify: classify(raw),
        coalesce: coalesce::Settings {
            functions: raw
                .coalesce
                .functions
                .value
                .iter()
                .map(|(name, _)| name.as_str().into())
                .collect(),
            ignored_headers: ignored_headers::settings(raw),
            fresh_for: raw.coalesce.fresh_for.value,
            entries_max: raw.coalesce.max_entries.value as usize,
            bytes_max: bytes(raw.coalesce.max_bytes.value),
        },
        tasks: tasks::Settings {
            enabled: raw.tasks.enabled.value,
            tasks_max: raw.tasks.max_tasks.value as usize,
            tasks_per_caller_max: raw.tasks.max_tasks_per_caller.value as usize,
            bytes_max: bytes(raw.tasks.max_bytes.value),
            bytes_per_caller_max: bytes(raw.tasks.max_bytes_per_caller.value),
            time_to_live: raw.tasks.keep_for.value,
        },
        callers: callers::settings(
            raw,
            backend_kind::of(&raw.backend)
                .functions()
                .iter()
                .map(|function| function.name)
                .chain(check::functions(raw)),
        ),
        admit: admit(raw),
        forward: forward::Settings {
            socket: raw.backend.socket.value.clone(),
            http: raw.backend.http.value.clone(),
            tcp: raw.backend.tcp.value.clone(),
            retry_reads: raw.backend.exchange.retry_reads(),
            bounds: forward::Bounds {
                own: own_addresses(raw),
                connect_timeout: raw.backend.connect_timeout.value,
                response_timeout: raw.backend.response_timeout.value,
                max_reply_bytes: bytes(raw.backend.max_reply_bytes.value),
                reply_buffer_bytes: bytes(raw.backend.reply_buffer_bytes.value),
                pool_max_idle: raw.backend.exchange.pool_max_idle(raw.queue.workers.value),
                pool_idle_timeout: raw.backend.pool_idle_timeout.value,
                send_min_rate: raw.backend.exchange.send_min_rate(),
                reply_min_rate: raw.backend.exchange.reply_min_rate(),
                slow_readers_max: raw
                    .backend
                    .exchange
                    .slow_readers_max(raw.queue.workers.value),
            },
        },
        coordinate: coordinate::settings(raw),
        quotas: quotas::settings(raw),
        admin: admin::settings(raw),
        telemetry: telemetry::Settings {
            format: raw.log.format.value,
            level: raw.log.level.value.as_str().into(),
            access: raw.log.access.value,
        },
    }
}

/// Where the sidecar listens itself, as far as the config says the port.
fn own_addresses(raw: &Raw) -> Arc<[SocketAddr]> {
    let listeners = raw.listen.iter().flatten();
    let binds = listeners.filter_map(|listener| listener.bind.value.as_ref()?.tcp());
    let binds = binds.chain(raw.admin.bind.value);
    binds.filter(|bind| bind.port() != 0).collect()
}

fn listener(raw: &Listen) -> call::Listener {
    let name = raw.name.value.as_deref();
    let bind = raw.bind.value.clone();
    let protocol = raw.protocol.value;
    call::Listener {
        name: name.expect("a listener without a name is an error").into(),
        bind: bind.expect("a listener without an address is an error"),
        unix_mode: raw.unix_mode.value,
        protocol,
        cancel_on_eof: raw.cancel_on_eof.value,
        tls: raw.tls.as_ref().map(|tls| self::tls(tls, protocol)),
        proxy_protocol: raw.proxy_protocol.value,
        user_from: raw.user_from.value,
    }
}

fn tls(raw: &Tls, protocol: Protocol) -> call::listener::Tls {
    let cert = raw.cert.value.clone();
    let key = raw.key.value.clone();
    let loaded = raw.loaded.clone();
    call::listener::Tls {
        cert: cert.expect("TLS without a certificate is an error"),
        key: key.expect("TLS without a key is an error"),
        client_ca: raw.client_ca.value.clone(),
        client_auth: raw.client_auth.value,
        required: raw.required.value.unwrap_or(protocol != Protocol::Auto),
        loaded: loaded.expect("files that can't be used are an error"),
    }
}

fn classify(raw: &Raw) -> classify::Settings {
    let routes = raw.routes.iter().map(|route| {
        let method = route.method.value.as_deref();
        let path = route.path.value.as_deref();
        classify::Route {
            method: method.expect("a route without a method is an error").into(),
            path: path.expect("a route without a path is an error").into(),
            function: route.function.value.as_deref().map(Arc::from),
        }
    });
    classify::Settings {
        kind: backend_kind::of(&raw.backend),
        odd_paths: raw.client.odd_paths.value,
        routes: routes.collect(),
        functions: check::functions(raw).into_iter().map(Arc::from).collect(),
        has_socket: raw.backend.socket.value.is_some(),
        has_http: raw.backend.http.value.is_some(),
        exempt: classes::exempt_of(raw),
        classes: classes::classifier(raw),
    }
}

fn admit(raw: &Raw) -> admit::Settings {
    let (queue, limits) = (&raw.queue, &raw.limits);
    let (min, max) = queue.postpone_jitter.value;
    // These wait at the door without a connection.
    let handed_over = match raw.tasks.enabled.value {
        true => raw.tasks.max_tasks.value,
        false => 0,
    };
    admit::Settings {
        capacity: queue.capacity.value,
        workers: queue.workers.value,
        max_unlimited: queue.max_unlimited.value,
        when_full: queue.when_full.value,
        postpone: match queue.postpone.value {
            PostponeBy::Jitter => admit::Postpone::Jitter { min, max },
            PostponeBy::InTurn => admit::Postpone::InTurn,
        },
        window: window(limits),
        paced: rate_limits::of_the_gate(raw),
        outstanding_max: unless_off(limits.outstanding.value),
        threshold: Duration::from_secs(limits.threshold_seconds.value.into()),
        door_max: raw.server.max_connections.value.saturating_add(handed_over),
        classes: classes::rules(raw),
        promote_for: classes::promote_for(raw),
    }
}

fn window(limits: &Limits) -> Option<admit::Window> {
    let seconds = unless_off(limits.window_size_seconds.value)?;
    let total = limits.per_window.total.as_ref();
    let functions = limits.per_window.functions.iter();
    Some(admit::Window {
        length: Duration::from_secs(seconds.into()),
        total: unless_off(total.expect("windows without a total are an error").value),
        functions: functions
            .filter_map(|(name, calls)| Some((name.as_str().into(), unless_off(calls.value)?)))
            .collect(),
        fixed: limits.window.value == WindowShape::Fixed,
        stamp_replied: limits.window_stamp.value == WindowStamp::Replied,
        guard: limits.window_guard.value,
    })
}

/// 0 switches a limit off.
fn unless_off(value: u32) -> Option<u32> {
    (value > 0).then_some(value)
}

fn bytes(size: u64) -> usize {
    usize::try_from(size).expect("a size is at most 1 GiB")
}
