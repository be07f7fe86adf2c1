//! The configuration: accepted values, and every mistake reported with its place and cure.

mod admin;
mod backend_tls;
mod callers;
mod cures;
mod effective;
mod environment;
mod every_option;
mod functions;
mod identity;
mod limits;
mod listeners;
mod mistakes;
mod quotas;
mod secrets;
mod tasks;
mod values;

use std::net::SocketAddr;
use std::time::Duration;

use tidegate::admin::Token;
use tidegate::admit::{ClassDeadline, ClassPool, ClassRule, Postpone, WhenFull, WindowStamp};
use tidegate::call::listener::{ClientAuth, ProxyProtocol};
use tidegate::call::{Bind, Protocol, UserFrom};
use tidegate::classify::class;
use tidegate::config::{self, Config, LoadedConfig, Problems, Severity};
use tidegate::forward::{BackendAddress, Remote};

use crate::certificates::Files;

const EXAMPLE: &str = include_str!("../../config.toml.example");

/// The least that is a config.
const LEAST: &str = "
[[listen]]
name = \"nova\"
bind = \"127.0.0.1:8080\"
[backend]
socket = \"127.0.0.1:2000\"
kind = \"zvm\"
http = \"http://127.0.0.1:8081\"
[limits]
per_window = \"total:30\"
";

/// A line that changes nothing, as the tests below count the lines.
const CALM: &str = "max_wait = \"50s\"\n";

/// With the ports that all texts have: 8081 and 2000 in front, 8080 and 2001 behind.
fn shipped(text: &str) -> String {
    text.replace("127.0.0.1:8081", "behind")
        .replace("127.0.0.1:8080", "127.0.0.1:8081")
        .replace("behind", "127.0.0.1:8080")
        .replace("127.0.0.1:2000", "127.0.0.1:2001")
}

fn read(text: &str) -> Result<LoadedConfig, Problems> {
    config::read(text, "config.toml", std::iter::empty())
}

fn read_with(text: &str, env: &[(&str, &str)]) -> Result<LoadedConfig, Problems> {
    let env = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    config::read(text, "config.toml", env)
}

#[track_caller]
fn good(text: &str) -> Config {
    match read(text) {
        Ok(checked) => checked.config,
        Err(problems) => panic!("{text}\n{problems}"),
    }
}

/// The least config with lines added to its `[limits]`, and sections after it.
fn with(lines: &str) -> String {
    format!("{LEAST}{CALM}{lines}\n")
}

/// Checks that one line, in its own section, is exactly one error with these words, in message or cure.
#[track_caller]
fn wrong(section: &str, line: &str, words: &[&str]) {
    let text = match section {
        "limits" => with(line),
        "per_window" => LEAST.replace("\"total:30\"", line),
        "listen" => LEAST.replace("[backend]", &format!("{line}\n[backend]")),
        "bind" => LEAST.replace("\"127.0.0.1:8080\"", line),
        "backend" => LEAST.replace("[limits]", &format!("{line}\n[limits]")),
        _ => with(&format!("[{section}]\n{line}")),
    };
    let problems = read(&text).expect_err(line);
    let errors: Vec<_> = problems
        .iter()
        .filter(|p| p.severity == Severity::Error)
        .collect();
    assert_eq!(errors.len(), 1, "{line}\n{problems}");
    let told = problems.plain(errors[0]);
    for word in words {
        assert!(told.contains(word), "{line}: no {word:?} in\n{told}");
    }
}

/// A config that is taken with exactly one warning that says these words.
#[track_caller]
fn doubted(text: &str, words: &[&str]) {
    let checked = read(text).unwrap_or_else(|problems| panic!("{text}\n{problems}"));
    let told = checked.warnings.to_string();
    assert_eq!(checked.warnings.len(), 1, "{text}\n{told}");
    for word in words {
        assert!(told.contains(word), "no {word:?} in\n{told}");
    }
}

#[test]
fn the_least_config_gets_the_documented_defaults() {
    let config = good(LEAST);
    assert_eq!(config.listen.threads, 2);
    assert_eq!(config.listen.drain_timeout, Duration::from_secs(30));
    assert_eq!(config.listen.max_connections, 16384);
    let listener = &config.listen.listeners[0];
    assert_eq!(&*listener.name, "nova");
    let bind = SocketAddr::from(([127, 0, 0, 1], 8080));
    assert_eq!(listener.bind, Bind::Tcp(bind));
    assert_eq!(listener.unix_mode, 0o660);
    assert_eq!(listener.protocol, Protocol::Auto);
    assert!(listener.cancel_on_eof);
    assert_eq!(listener.proxy_protocol, ProxyProtocol::Off);
    assert_eq!(listener.user_from, UserFrom::Peer);
    assert_eq!(listener.tls, None);
    let trusted = &config.protocol.trusted_proxies;
    assert!(trusted.networks.is_empty() && !trusted.unix);
    assert_eq!(config.protocol.handshake_timeout, Duration::from_secs(5));
    assert_eq!(config.protocol.request_timeout, Duration::from_secs(30));
    assert_eq!(config.protocol.idle_timeout, Duration::from_secs(75));
    assert_eq!(config.protocol.body_timeout, Duration::from_secs(600));
    assert_eq!(config.protocol.body_min_rate, 1024);
    assert_eq!(config.protocol.max_request_bytes, 4096);
    assert_eq!(config.protocol.buffer_bytes, 65536);
    assert!(config.classify.has_socket && config.classify.has_http);
    assert_eq!(config.admit.capacity, 4096);
    assert_eq!(config.admit.workers, 64);
    assert_eq!(config.admit.max_unlimited, 64);
    assert_eq!(config.admit.when_full, WhenFull::Wait);
    let (min, max) = (Duration::from_secs(1), Duration::from_secs(3));
    assert_eq!(config.admit.postpone, Postpone::Jitter { min, max });
    assert_eq!(config.admit.outstanding_max, Some(10));
    assert_eq!(config.admit.max_wait, Duration::from_secs(60));
    assert_eq!(config.admit.door_max, 16384);
    let classes = [
        ClassRule::weighing("user", 4),
        ClassRule::weighing("polling", 1),
    ];
    assert_eq!(config.admit.classes, classes);
    assert_eq!(config.admit.promote_for, Some(Duration::from_secs(10)));
    assert_eq!(config.classify.classes, class::ClassSettings::default());
    assert!(config.classify.exempt.is_empty());
    let window = config.admit.window.expect("windows are on by default");
    assert_eq!(window.length, Duration::from_secs(1));
    assert_eq!(window.total, Some(30));
    assert_eq!(window.functions, []);
    assert!(!window.fixed && window.stamp == WindowStamp::Sent);
    assert_eq!(window.guard, Duration::from_millis(5));
    let socket = BackendAddress::Ip(SocketAddr::from(([127, 0, 0, 1], 2000)));
    let socket = Remote {
        address: socket,
        tls: None,
    };
    assert_eq!(config.forward.socket, Some(socket));
    assert_eq!(config.forward.tcp, None);
    assert_eq!(
        config.forward.bounds.response_timeout,
        Duration::from_secs(3600)
    );
    assert_eq!(config.forward.bounds.max_reply_bytes, 16 << 20);
    assert_eq!(config.forward.bounds.pool_max_idle, 64);
    assert_eq!(config.forward.bounds.slow_readers_max, 16);
    let wide = good(&format!("{LEAST}\n[queue]\nworkers = 256\n"))
        .forward
        .bounds;
    assert_eq!((wide.pool_max_idle, wide.slow_readers_max), (256, 64));
    assert_eq!(
        config.forward.bounds.pool_idle_timeout,
        Duration::from_secs(4)
    );
    assert_eq!(
        config.admin.bind,
        Some(SocketAddr::from(([127, 0, 0, 1], 9180)))
    );
    assert_eq!(config.admin.token, None);
    assert_eq!(&*config.telemetry.level, "info");
    assert!(config.telemetry.access);
}

#[test]
fn calls_go_in_turn_unless_the_backend_is_of_zvm() {
    let postpone = |backend: &str, line: &str| {
        let text = format!(
            "[[listen]]\nname = \"a\"\nbind = \"127.0.0.1:8081\"\nprotocol = \"{}\"\n[backend]\n{backend}\n\
             [limits]\nper_window = \"total:30\"\n[queue]\n{line}\n",
            if backend.contains("tcp") {
                "tcp"
            } else {
                "http"
            },
        );
        good(&text).admit.postpone
    };
    let jitter = Postpone::Jitter {
        min: Duration::from_secs(1),
        max: Duration::from_secs(3),
    };
    let http = |kind: &str| format!("kind = \"{kind}\"\nhttp = \"http://127.0.0.1:8080\"");
    assert_eq!(postpone(&http("http"), ""), Postpone::InTurn);
    assert_eq!(postpone(&http("zvm"), ""), jitter);
    assert_eq!(postpone("tcp = \"127.0.0.1:5432\"", ""), Postpone::InTurn);
    let line = "postpone = \"jitter\"";
    assert_eq!(postpone(&http("http"), line), jitter);
    let line = "postpone = \"in_turn\"";
    assert_eq!(postpone(&http("zvm"), line), Postpone::InTurn);
    let early = "early_refusal = true";
    assert_eq!(postpone(&http("http"), early), Postpone::InTurn);
    assert!(read(&with(&format!("[queue]\n{early}"))).is_err());
}

#[test]
fn the_example_says_every_default_and_no_line_of_it_changes_one() {
    assert_eq!(good(EXAMPLE), good(&shipped(LEAST)));
    let warnings = read(EXAMPLE).expect("the example is good").warnings;
    assert!(warnings.is_empty(), "{warnings}");
}

#[test]
fn the_example_is_short_and_the_reference_has_every_option_with_its_level() {
    const REFERENCE: &str = include_str!("../../docs/reference/options.md");
    let lines = EXAMPLE.lines().count();
    assert!(lines <= 130, "{lines} lines");
    let known = |level: &str| REFERENCE.matches(&format!("\n- Level: {level}\n")).count();
    assert_eq!(known("first"), 20);
    let options = config::catalogue().allowed();
    let all = ["first", "usual", "expert"].map(known);
    assert_eq!(all.iter().sum::<usize>(), options.len());
    for name in options.keys() {
        let (_, text) = REFERENCE
            .split_once(&format!("\n### `{name}`\n\n"))
            .unwrap_or_else(|| panic!("{name} is missing"));
        assert!(!text.starts_with("- Value"), "{name} has no reason");
    }
}

#[test]
fn all_options_can_be_taken_as_they_stand() {
    let files = Files::new();
    let mut section = "";
    let every = config::catalogue().every_option("");
    let text: String = every
        .lines()
        .map(|line| {
            let bare = line.strip_prefix("# ").unwrap_or(line);
            let taken = [
                "tcp = ",
                "token = ",
                "method = ",
                "path = ",
                "function = ",
                "[[route]]",
                "[listen.tls]",
                "cert = ",
                "key = ",
                "client_ca = ",
                "client_auth = ",
                "required = ",
                "state_file = ",
                "[[caller]]",
                "label = ",
                "match = ",
                "groups = ",
                "rate_limit = ",
                "weight = ",
                "[[bucket]]",
                "name = ",
                "burst = ",
                "fill = ",
                "mode = ",
                "on_excess = ",
                "order = ",
                "settle = ",
                "max_wait = ",
                "functions = ",
                "[[class]]",
                "name = ",
                "weight = ",
                "max_wait = ",
                "functions = ",
                "effort = ",
                "outstanding_max = ",
                "beside_total = ",
                "per_window = ",
                "reserve_outstanding = ",
                "reserve_per_window = ",
                "class = ",
            ];
            if bare.starts_with('[') {
                section = bare;
            }
            let is_other = [
                "[[pace]]",
                "[[quota]]",
                "[quota_store]",
                "[backend.tls]",
                "[[backend.server]]",
                "[coordinate]",
            ]
            .contains(&section);
            let is_taken = taken.iter().any(|start| bare.starts_with(start));
            let line = if is_taken && !is_other { bare } else { line };
            format!("{line}\n").replace("the output of: openssl rand -hex 32", "secret")
        })
        .collect();
    let dir = files.dir.path().display();
    let config = good(&text.replace("/etc/tidegate", &dir.to_string()));
    let tls = config.listen.listeners[0].tls.as_ref().expect("it has TLS");
    assert!(tls.required);
    assert_eq!(tls.client_auth, ClientAuth::Required);
    assert_eq!(config.admin.token, Some(Token("secret".into())));
    assert_eq!(config.classify.routes.len(), 1);
    assert_eq!(&*config.classify.functions[0], "report_get");
    assert!(config.forward.tcp.is_some());
    assert_eq!(config.callers.callers.len(), 1);
    assert_eq!(&*config.callers.rate_limits[0].name, "poller");
    assert_eq!(config.callers.costs.functions.len(), 7);
    assert!(config.callers.state_file.is_some());
    let class = &config.admit.classes[1];
    assert_eq!((&*class.name, class.weight), ("long", 2));
    assert_eq!(class.deadline, ClassDeadline::Never);
    assert_eq!(class.pool, Some(ClassPool::Inside(4)));
    assert_eq!(class.per_window, Some(10));
    assert_eq!(
        (class.reserve_outstanding, class.reserve_per_window),
        (1, 2)
    );
}

#[test]
fn every_config_in_the_docs_is_valid() {
    const DOCS: &str = include_str!("../../docs/reference/configuration.md");
    let least = DOCS
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let least = good(least.expect("the docs show a config"));
    assert_eq!(least, good(&shipped(LEAST)));

    let shown = DOCS
        .split('`')
        .filter(|code| code.starts_with("TIDEGATE_") && code.contains('='));
    let mut count = 0;
    for code in shown {
        let (name, value) = code.split_once('=').expect("it has a value");
        let value = value.trim_matches(['"', '\'']);
        let value = if value == "…" { "secret" } else { value };
        let config = read_with(&shipped(LEAST), &[(name, value)])
            .unwrap_or_else(|p| panic!("{code}\n{p}"))
            .config;
        assert_ne!(config, good(&shipped(LEAST)), "{code} changes nothing");
        count += 1;
    }
    assert_eq!(count, 6);
    let parameters = [
        "bind_addr",
        "bind_port",
        "request_queue_size",
        "max_worker_count",
        "window",
        "per_window",
        "outstanding",
        "max_wait",
    ];
    for parameter in parameters {
        assert!(DOCS.contains(&format!("`{parameter}`")), "{parameter}");
    }
}
