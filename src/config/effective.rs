//! The settings in force, written as the config that says all of them.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use crate::admit::{Deadline, Pool, Postpone, WhenFull, Window};
use crate::call::listener::{ClientAuth, ProxyProtocol, Tls};
use crate::call::{Listener, Protocol, UserFrom};
use crate::forward::Address;
use crate::telemetry::Format;

use super::Config;
use super::admin;
use super::backend_kind;
use super::callers;
use super::classes;
use super::coordinate;
use super::exchange;
use super::functions;
use super::ignored_headers;
use super::odd_paths;
use super::quotas;
use super::rate_limits;
use super::request_heads;
use super::tunnel;
use super::value::{show_duration, show_size};

/// The settings in force as TOML, defaults filled in. Secrets are hidden; apart from them,
/// reading the text gives the same config again.
#[must_use]
pub fn effective(config: &Config) -> String {
    let mut out = Toml::default();
    out.header("[server]");
    out.bare("threads", config.threads);
    out.bare("max_connections", config.listen.max_connections);
    out.duration("drain_timeout", config.drain_timeout);
    for listener in &config.listen.listeners {
        out.listener(listener, config);
    }
    out.client(config);
    out.header("[callers]");
    let proxies = &config.protocol.trusted_proxies;
    let networks = proxies.networks.iter().map(ToString::to_string);
    let unix = proxies.unix.then(|| "unix".to_owned());
    let list: Vec<_> = networks.chain(unix).map(|it| quoted(&it)).collect();
    out.bare("trusted_proxies", format_args!("[{}]", list.join(", ")));
    callers::write_section(&mut out, &config.callers);
    callers::write(&mut out, &config.callers);
    for limit in &config.admit.paced {
        out.header("[[rate_limit]]");
        rate_limits::write_paced(&mut out, limit);
    }
    if let Some(quotas) = &config.quotas {
        quotas::write(&mut out, quotas, &config.callers.quotas);
    }
    out.backend(config);
    out.queue(config);
    out.limits(config);
    out.classes(config);
    out.coalesce(config);
    out.tasks(config);
    if let Some(coordinate) = &config.coordinate {
        coordinate::write(&mut out, coordinate);
    }
    admin::write(&mut out, &config.admin);
    out.header("[log]");
    let format = match config.telemetry.format {
        Format::Auto => "auto",
        Format::Text => "text",
        Format::Json => "json",
    };
    out.text("format", format);
    out.text("level", &config.telemetry.level);
    out.bare("access", config.telemetry.access);
    for route in &config.classify.routes {
        out.header("[[route]]");
        out.text("method", &route.method);
        out.text("path", &route.path);
        out.text("function", route.function.as_deref().unwrap_or_default());
    }
    out.0
}

fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Auto => "auto",
        Protocol::Socket => "socket",
        Protocol::Http => "http",
        Protocol::Tcp => "tcp",
    }
}

/// TOML under way.
#[derive(Default)]
pub(super) struct Toml(String);

impl Toml {
    fn listener(&mut self, listener: &Listener, config: &Config) {
        self.header("[[listen]]");
        self.text("name", &listener.name);
        self.text("bind", &listener.bind.to_string());
        if listener.bind.tcp().is_none() {
            self.text("unix_mode", &format!("{:04o}", listener.unix_mode));
        }
        self.text("protocol", protocol(listener.protocol));
        self.bare("cancel_on_eof", listener.cancel_on_eof);
        let proxy_protocol = match listener.proxy_protocol {
            ProxyProtocol::Off => "off",
            ProxyProtocol::Required => "required",
        };
        self.text("proxy_protocol", proxy_protocol);
        let user_from = match listener.user_from {
            UserFrom::Peer => "peer",
            UserFrom::Basic => "basic",
            UserFrom::Certificate => "certificate",
        };
        self.text("user_from", user_from);
        let said = config.classify.classes.listeners.iter();
        if let Some(said) = said.into_iter().find(|it| it.listener == listener.name) {
            if let Some(class) = &said.class {
                self.text("class", class);
            }
            self.bare("class_header", said.header);
        }
        if let Some(tls) = &listener.tls {
            self.tls(tls);
        }
    }

    fn tls(&mut self, tls: &Tls) {
        self.header("[listen.tls]");
        // What was read from a config is UTF-8.
        self.text("cert", &tls.cert.to_string_lossy());
        self.text("key", &tls.key.to_string_lossy());
        if let Some(client_ca) = &tls.client_ca {
            self.text("client_ca", &client_ca.to_string_lossy());
        }
        let client_auth = match tls.client_auth {
            ClientAuth::Off => "off",
            ClientAuth::Optional => "optional",
            ClientAuth::Required => "required",
        };
        self.text("client_auth", client_auth);
        self.bare("required", tls.required);
    }

    fn client(&mut self, config: &Config) {
        let client = &config.protocol;
        self.header("[client]");
        self.duration("handshake_timeout", client.handshake_timeout);
        self.duration("request_timeout", client.request_timeout);
        self.duration("idle_timeout", client.idle_timeout);
        tunnel::write(self, client.tunnel_idle_timeout);
        self.duration("write_timeout", client.write_timeout);
        self.duration("body_timeout", client.body_timeout);
        self.size("body_min_rate", u64::from(client.body_min_rate));
        self.size("max_request_bytes", client.max_request_bytes as u64);
        self.size("buffer_bytes", client.buffer_bytes as u64);
        odd_paths::write(self, config);
        request_heads::write(self, client);
    }

    fn backend(&mut self, config: &Config) {
        let backend = &config.forward;
        let bounds = &backend.bounds;
        self.header("[backend]");
        backend_kind::write(self, config);
        self.address("socket", "", backend.socket.as_ref());
        self.address("http", "http://", backend.http.as_ref());
        self.address("tcp", "", backend.tcp.as_ref());
        self.duration("connect_timeout", bounds.connect_timeout);
        self.duration("response_timeout", bounds.response_timeout);
        self.size("max_reply_bytes", bounds.max_reply_bytes as u64);
        self.size("reply_buffer_bytes", bounds.reply_buffer_bytes as u64);
        exchange::write(self, backend);
        self.duration("pool_idle_timeout", bounds.pool_idle_timeout);
    }

    fn queue(&mut self, config: &Config) {
        let gate = &config.admit;
        self.header("[queue]");
        self.bare("capacity", gate.capacity);
        self.bare("workers", gate.workers);
        self.bare("max_unlimited", gate.max_unlimited);
        let when_full = match gate.when_full {
            WhenFull::Wait => "wait",
            WhenFull::Refuse => "refuse",
        };
        self.text("when_full", when_full);
        match gate.postpone {
            Postpone::InTurn => self.text("postpone", "in_turn"),
            Postpone::Jitter { min, max } => {
                self.text("postpone", "jitter");
                let (min, max) = (quoted(&show_duration(min)), quoted(&show_duration(max)));
                self.bare("postpone_jitter", format_args!("[{min}, {max}]"));
            }
        }
    }

    fn limits(&mut self, config: &Config) {
        let gate = &config.admit;
        self.header("[limits]");
        let seconds = gate
            .window
            .as_ref()
            .map_or(0, |window| window.length.as_secs());
        self.bare("smapi_rate_limit_window_size_seconds", seconds);
        if let Some(window) = &gate.window {
            self.text("smapi_rate_limit_per_window", &per_window(window));
        }
        self.bare(
            "smapi_max_outstanding_requests",
            gate.outstanding_max.unwrap_or(0),
        );
        self.bare(
            "smapi_request_postpone_threshold_seconds",
            gate.threshold.as_secs(),
        );
        if let Some(window) = &gate.window {
            self.text("window", if window.fixed { "fixed" } else { "sliding" });
            let stamp = if window.stamp_replied {
                "replied"
            } else {
                "sent"
            };
            self.text("window_stamp", stamp);
            self.duration("window_guard", window.guard);
        }
        if !config.classify.exempt.is_empty() {
            self.list("exempt", &config.classify.exempt);
        }
        functions::write(self, config);
    }

    fn classes(&mut self, config: &Config) {
        let settings = &config.classify.classes;
        self.header("[classes]");
        self.text("header", settings.header.as_str());
        self.duration("promote_for", config.admit.promote_for.unwrap_or_default());
        for class in &config.admit.classes {
            self.header("[[class]]");
            self.text("name", &class.name);
            self.bare("weight", class.weight);
            match class.deadline {
                Deadline::Threshold => {}
                Deadline::After(length) => self.duration("deadline", length),
                Deadline::Never => self.text("deadline", "none"),
            }
            let placed = settings.functions.iter();
            let functions: Vec<_> = placed
                .filter(|(_, name)| *name == class.name)
                .map(|(function, _)| function)
                .collect();
            if !functions.is_empty() {
                self.list("functions", functions);
            }
            for (effort, _) in settings.efforts.iter().filter(|it| it.1 == class.name) {
                self.text("effort", classes::word_of(*effort));
            }
            if let Some(pool) = class.pool {
                self.bare("outstanding_max", pool.max());
                self.bare("beside_total", matches!(pool, Pool::Beside(_)));
            }
            if let Some(calls) = class.per_window {
                self.bare("per_window", calls);
            }
            self.bare("reserve_outstanding", class.reserve_outstanding);
            self.bare("reserve_per_window", class.reserve_per_window);
        }
    }

    fn list<'a>(&mut self, key: &str, words: impl IntoIterator<Item = &'a Arc<str>>) {
        let list: Vec<_> = words.into_iter().map(|word| quoted(word)).collect();
        self.bare(key, format_args!("[{}]", list.join(", ")));
    }

    fn coalesce(&mut self, config: &Config) {
        let coalesce = &config.coalesce;
        self.header("[coalesce]");
        let functions: Vec<_> = coalesce.functions.iter().map(|name| quoted(name)).collect();
        self.bare("functions", format_args!("[{}]", functions.join(", ")));
        ignored_headers::write(self, &coalesce.ignored_headers);
        self.duration("fresh_for", coalesce.fresh_for);
        self.bare("max_entries", coalesce.entries_max);
        self.size("max_bytes", coalesce.bytes_max as u64);
    }

    fn tasks(&mut self, config: &Config) {
        let tasks = &config.tasks;
        self.header("[tasks]");
        self.bare("enabled", tasks.enabled);
        self.bare("max_tasks", tasks.tasks_max);
        self.bare("max_tasks_per_caller", tasks.tasks_per_caller_max);
        self.size("max_bytes", tasks.bytes_max as u64);
        self.size("max_bytes_per_caller", tasks.bytes_per_caller_max as u64);
        self.duration("keep_for", tasks.time_to_live);
    }

    pub(super) fn header(&mut self, header: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(header);
        self.0.push('\n');
    }

    pub(super) fn bare(&mut self, key: &str, value: impl Display) {
        self.0.push_str(&format!("{key} = {value}\n"));
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.bare(key, quoted(value));
    }

    pub(super) fn duration(&mut self, key: &str, value: Duration) {
        self.text(key, &show_duration(value));
    }

    pub(super) fn size(&mut self, key: &str, value: u64) {
        self.text(key, &show_size(value));
    }

    fn address(&mut self, key: &str, scheme: &str, address: Option<&Address>) {
        match address {
            Some(Address::Ip(ip)) => self.text(key, &format!("{scheme}{ip}")),
            Some(Address::Name(host, port)) => self.text(key, &format!("{scheme}{host}:{port}")),
            Some(Address::Unix(path)) => self.text(key, &format!("unix:{}", path.display())),
            None => {}
        }
    }
}

/// The numbers per window, as sdkserver writes them.
fn per_window(window: &Window) -> String {
    let mut text = format!("total:{}", window.total.unwrap_or(0));
    for (name, calls) in &window.functions {
        text.push_str(&format!(", {name}:{calls}"));
    }
    text
}

/// A text as a TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
