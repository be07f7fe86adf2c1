//! The configuration: what is taken, and that every mistake is told with its place and cure.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate::admin::Token;
use tidegate::admit::{ClassRule, Deadline, Pool, Postpone, WhenFull};
use tidegate::call::listener::{ClientAuth, ProxyProtocol};
use tidegate::call::{Bind, Protocol, UserFrom};
use tidegate::classify::class;
use tidegate::config::{self, Checked, Config, LoadError, Place, Problems, Severity};
use tidegate::forward::Address;
use tidegate::tools;

use crate::certificates::Files;

const EXAMPLE: &str = include_str!("../../config.toml.example");

/// The least that is a config.
const LEAST: &str = "
[[listen]]
name = \"nova\"
bind = \"127.0.0.1:8080\"
[backend]
socket = \"127.0.0.1:2000\"
http = \"http://127.0.0.1:8081\"
[limits]
smapi_rate_limit_per_window = \"total:30\"
";

/// A threshold that no Apache cuts off, so that the tests below see only their own warnings.
const CALM: &str = "smapi_request_postpone_threshold_seconds = 50\n";

fn read(text: &str) -> Result<Checked, Problems> {
    config::read(text, "config.toml", std::iter::empty())
}

fn read_with(text: &str, env: &[(&str, &str)]) -> Result<Checked, Problems> {
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

/// One line, in its own section, is exactly one error that says these words, in message or
/// cure.
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
    assert_eq!(config.threads, 1);
    assert_eq!(config.drain_timeout, Duration::from_secs(30));
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
    assert_eq!(
        trusted
            .networks
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["127.0.0.1/32", "::1/128"]
    );
    assert!(!trusted.unix);
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
    assert_eq!(config.admit.threshold, Duration::from_secs(60));
    assert_eq!(config.admit.door_max, 16384);
    let classes = [
        ClassRule::weighing("user", 4),
        ClassRule::weighing("polling", 1),
    ];
    assert_eq!(config.admit.classes, classes);
    assert_eq!(config.admit.promote_for, Some(Duration::from_secs(10)));
    assert_eq!(config.classify.classes, class::Settings::default());
    assert_eq!(config.classify.exempt, []);
    let window = config.admit.window.expect("windows are on by default");
    assert_eq!(window.length, Duration::from_secs(1));
    assert_eq!(window.total, Some(30));
    assert_eq!(window.functions, []);
    assert!(!window.fixed && !window.stamp_replied);
    assert_eq!(window.guard, Duration::from_millis(5));
    let socket = Address::Ip(SocketAddr::from(([127, 0, 0, 1], 2000)));
    assert_eq!(config.forward.socket, Some(socket));
    assert_eq!(config.forward.tcp, None);
    assert_eq!(config.forward.response_timeout, Duration::from_secs(3600));
    assert_eq!(config.forward.max_reply_bytes, 16 << 20);
    assert_eq!(config.forward.pool_idle_timeout, Duration::from_secs(4));
    assert_eq!(
        config.admin.bind,
        Some(SocketAddr::from(([127, 0, 0, 1], 9180)))
    );
    assert_eq!(config.admin.token, None);
    assert_eq!(&*config.telemetry.level, "info");
    assert!(config.telemetry.access);
}

#[test]
fn the_example_says_every_default_and_no_line_of_it_changes_one() {
    assert_eq!(good(EXAMPLE), good(LEAST));
    let warnings = read(EXAMPLE).expect("the example is good").warnings;
    assert_eq!(warnings.len(), 1, "only the one about Apache:\n{warnings}");
}

/// The options that stand in the example, by their paths, each with the comment above it.
fn documented() -> Vec<(String, String)> {
    let (mut section, mut comment) = (String::new(), String::new());
    let mut options = Vec::new();
    for line in EXAMPLE.lines() {
        let bare = line.strip_prefix("# ").unwrap_or(line);
        let header = bare.strip_prefix('[').and_then(|_| bare.strip_suffix(']'));
        let option = bare.split_once(" = ").map(|(key, _)| key);
        let is_key =
            |key: &str| !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        if let Some(header) = header {
            section = header.trim_matches(['[', ']']).to_owned();
        } else if let Some(key) = option.filter(|key| is_key(key)) {
            options.push((format!("{section}.{key}"), std::mem::take(&mut comment)));
        } else if line.starts_with('#') {
            comment.push_str(bare);
            comment.push('\n');
        } else {
            comment.clear();
        }
    }
    options
}

#[test]
fn the_example_has_exactly_the_options_that_are_read_each_with_its_range() {
    let documented = documented();
    let names: BTreeSet<_> = documented.iter().map(|(name, _)| name.clone()).collect();
    let options = config::options();
    assert_eq!(names, options.keys().cloned().collect());
    assert_eq!(
        names.len(),
        documented.len(),
        "an option stands there twice"
    );
    for (name, comment) in documented {
        let allowed = &options[&name];
        let last = comment.lines().last().unwrap_or_default();
        assert!(last.contains(allowed), "{name}: no {allowed:?} in {last:?}");
        assert!(comment.lines().count() > 1, "{name} has no reason");
    }
}

#[test]
fn the_examples_commented_options_can_be_taken_as_they_stand() {
    let files = Files::new();
    let text: String = EXAMPLE
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
                "[[rate_limit]]",
                "name = ",
                "kind = ",
                "burst = ",
                "fill = ",
                "mode = ",
                "on_excess = ",
                "order = ",
                "settle = ",
                "deadline = ",
                "functions = ",
                "[[class]]",
                "name = ",
                "weight = ",
                "deadline = ",
                "functions = ",
                "effort = ",
                "outstanding_max = ",
                "beside_total = ",
                "per_window = ",
                "reserve_outstanding = ",
                "reserve_per_window = ",
                "class = ",
            ];
            // What only a paced rate limit has.
            let is_other_kind = bare == "function = \"guest_list\"";
            let is_taken = taken.iter().any(|start| bare.starts_with(start));
            let line = if is_taken && !is_other_kind {
                bare
            } else {
                line
            };
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
    assert_eq!(class.deadline, Deadline::Never);
    assert_eq!(class.pool, Some(Pool::Inside(4)));
    assert_eq!(class.per_window, Some(10));
    assert_eq!(
        (class.reserve_outstanding, class.reserve_per_window),
        (1, 2)
    );
}

#[test]
fn the_value_per_window_is_taken_in_both_spellings() {
    let check = |value: &str, total: Option<u32>, functions: &[(&str, u32)]| {
        let config = good(&LEAST.replace("\"total:30\"", value));
        let window = config.admit.window.expect("windows are on");
        assert_eq!(window.total, total, "{value}");
        let given: Vec<_> = window
            .functions
            .iter()
            .map(|(name, n)| (&**name, *n))
            .collect();
        assert_eq!(given, functions, "{value}");
    };
    check("\"total:30\"", Some(30), &[]);
    check(
        "\"total:30, guest_list:10\"",
        Some(30),
        &[("guest_list", 10)],
    );
    check(
        "\"guest_list:10,total:30\"",
        Some(30),
        &[("guest_list", 10)],
    );
    check(
        "\"  total : 30 ,  guest_list :10 \"",
        Some(30),
        &[("guest_list", 10)],
    );
    check("\"total\\t:\\t30\"", Some(30), &[]);
    check(
        "{ total = 30, guest_list = 10 }",
        Some(30),
        &[("guest_list", 10)],
    );
    check("\"total:0, guest_list:10\"", None, &[("guest_list", 10)]);
    check("\"total:30, guest_list:0\"", Some(30), &[]);
    check("\"total:1000000\"", Some(1_000_000), &[]);
}

#[test]
fn the_value_per_window_is_refused_with_a_cure() {
    let check = |value, words: &[&str]| wrong("per_window", value, words);
    check(
        "\"total:30,\"",
        &[
            "config.toml:9:41: limits.smapi_rate_limit_per_window",
            "last comma",
        ],
    );
    check("\"total:30,,guest_list:1\"", &["between two commas"]);
    check("\"\"", &["empty", "total:30, guest_list:10"]);
    check("\"total\"", &["\"total\" has no number", "total:30"]);
    check(
        "\"total:30, guest_list\"",
        &["\"guest_list\" has no number", ":9:42:"],
    );
    check(
        "\"total:30, guest_list:\"",
        &["\"guest_list\" has no number"],
    );
    check("\"total:30, :10\"", &["name is empty"]);
    check("\"total:x\"", &["\"x\" of \"total\" is not an integer"]);
    check("\"total:3.5\"", &["\"3.5\" of \"total\" is not an integer"]);
    check("\"total:3 0\"", &["\"3 0\" of \"total\" is not an integer"]);
    check(
        "\"total:-1\"",
        &[
            "\"total\": -1 is out of range",
            "0 to 1000000",
            "switches the limit off",
        ],
    );
    check("\"total:1000001\"", &["out of range", "0 to 1000000"]);
    check("\"total:30, total:20\"", &["\"total\" is given twice"]);
    check("\"total:30, a:1, a:2\"", &["\"a\" is given twice"]);
    check(
        "\"total:30, guest list:1\"",
        &["\"guest list\" is not the name of a function"],
    );
    check("\"guest_list:10\"", &["\"total\" is not given", "total:30"]);
    check("{ guest_list = 10 }", &["\"total\" is not given"]);
    check(
        "{ total = \"30\" }",
        &[
            "per_window.total",
            "\"30\" is not an integer",
            "without quotes",
        ],
    );
    check(
        "{ total = 30, guest_list = -1 }",
        &["per_window.guest_list", "-1 is out of range"],
    );
    check("30", &["30 is neither a string nor a table", "total:30"]);
    check(
        "\"total:30, guest_list:31\"",
        &["more than the total of 30", "at most 30", ":9:42:"],
    );
    check(
        "{ total = 30, guest_list = 31 }",
        &["per_window.guest_list", "at most 30"],
    );
}

#[test]
fn several_mistakes_in_one_value_are_told_one_by_one() {
    let text = LEAST.replace("\"total:30\"", "\"total:x, guest_list, :1,\"");
    let problems = read(&text).expect_err("four mistakes");
    let errors = problems
        .iter()
        .filter(|p| p.severity == Severity::Error)
        .count();
    assert_eq!(errors, 4, "{problems}");
}

#[test]
fn zero_switches_a_limit_off() {
    let config = good(&with("smapi_max_outstanding_requests = 0"));
    assert_eq!(config.admit.outstanding_max, None);
    let off = LEAST.replace(
        "smapi_rate_limit_per_window = \"total:30\"",
        "smapi_rate_limit_window_size_seconds = 0",
    );
    assert_eq!(good(&off).admit.window, None);
    let threshold = format!("{LEAST}smapi_request_postpone_threshold_seconds = 0\n");
    assert_eq!(good(&threshold).admit.threshold, Duration::ZERO);
}

#[test]
fn the_per_window_value_is_obligatory_while_windows_are_on() {
    let none = LEAST.replace("smapi_rate_limit_per_window = \"total:30\"", "");
    let problems = read(&none).expect_err("no value");
    let told = problems.to_string();
    assert!(told.contains("the limit per window is not given"), "{told}");
    assert!(
        told.contains("smapi_rate_limit_window_size_seconds = 0"),
        "{told}"
    );
}

#[test]
fn a_value_pasted_without_quotes_is_shown_with_them() {
    let quoted = "smapi_rate_limit_per_window = \"total:30, guest_list:10\"";
    wrong(
        "per_window",
        "total:30, guest_list:10",
        &[
            "config.toml:9:31: limits.smapi_rate_limit_per_window: ",
            quoted,
        ],
    );
    wrong("per_window", "total:30, guest_list:10 # pasted", &[quoted]);
    wrong(
        "per_window",
        "total:30",
        &["smapi_rate_limit_per_window = \"total:30\""],
    );
    wrong("bind", "127.0.0.1:8080", &["bind = \"127.0.0.1:8080\""]);
    wrong(
        "client",
        "request_timeout = 30s",
        &["request_timeout = \"30s\""],
    );
    wrong("queue", "postpone = in_turn", &["postpone = \"in_turn\""]);
}

#[test]
fn durations_and_sizes_carry_units() {
    let timeout = |text: &str| {
        let text = with(&format!("[client]\nrequest_timeout = {text}"));
        good(&text).protocol.request_timeout
    };
    assert_eq!(timeout("\"250ms\""), Duration::from_millis(250));
    assert_eq!(timeout("\"1s\""), Duration::from_secs(1));
    assert_eq!(timeout("\"2m\""), Duration::from_secs(120));
    assert_eq!(timeout("\"1h\""), Duration::from_secs(3600));
    assert_eq!(timeout("\" 5 s \""), Duration::from_secs(5));
    let buffer = |text: &str| {
        let text = with(&format!("[client]\nbuffer_bytes = {text}"));
        good(&text).protocol.buffer_bytes
    };
    assert_eq!(buffer("\"4096B\""), 4096);
    assert_eq!(buffer("\"4KiB\""), 4096);
    assert_eq!(buffer("\"16MiB\""), 16 << 20);

    let check = |line, words: &[&str]| wrong("client", line, words);
    check("request_timeout = 30", &["30 has no unit", "\"30s\""]);
    check("request_timeout = \"30\"", &["30 has no unit", "\"30s\""]);
    check(
        "request_timeout = \"30 seconds\"",
        &["unknown unit", "ms, s, m, h"],
    );
    check("request_timeout = \"1.5s\"", &["not a whole number"]);
    check("request_timeout = \"-1s\"", &["not a whole number"]);
    check("request_timeout = \"\"", &["not a whole number"]);
    check("request_timeout = true", &["true is not a duration"]);
    check("request_timeout = 1.5", &["1.5 is not a duration"]);
    check("request_timeout = \"0s\"", &["out of range", "1ms to 1h"]);
    check("request_timeout = \"2h\"", &["out of range", "1ms to 1h"]);
    check(
        "request_timeout = \"99999999999999999999h\"",
        &["too large"],
    );
    check("request_timeout = \"9999999999999999999h\"", &["too large"]);
    check("buffer_bytes = 4096", &["4096 has no unit", "\"4096B\""]);
    check(
        "buffer_bytes = \"64KB\"",
        &["unknown unit", "B, KiB, MiB, GiB"],
    );
    check(
        "buffer_bytes = \"1GiB\"",
        &["out of range", "1KiB to 16MiB"],
    );
    check("buffer_bytes = []", &["an array is not a size"]);
}

#[test]
fn integers_words_and_flags_are_what_they_say() {
    wrong(
        "queue",
        "capacity = 0",
        &["queue.capacity: 0 is out of range", "1 to 1000000"],
    );
    wrong(
        "queue",
        "workers = \"64\"",
        &["\"64\" is not an integer", "without quotes"],
    );
    wrong("queue", "workers = 99999999999999999999", &["out of range"]);
    wrong("queue", "workers = 1.0", &["1.0 is not an integer"]);
    wrong("queue", "max_unlimited = 0", &["1 to 65536"]);
    wrong(
        "queue",
        "when_full = \"refused\"",
        &["did you mean \"refuse\"?"],
    );
    wrong(
        "queue",
        "when_full = true",
        &["true is not one of the words"],
    );
    wrong(
        "queue",
        "postpone = \"inturn\"",
        &["did you mean \"in_turn\"?"],
    );
    wrong(
        "queue",
        "postpone_jitter = \"1s\"",
        &["\"1s\" is not an array", "[\"1s\", \"3s\"]"],
    );
    wrong(
        "queue",
        "postpone_jitter = [\"1s\"]",
        &["there are 1 durations"],
    );
    wrong(
        "queue",
        "postpone_jitter = [\"3s\", \"1s\"]",
        &["swap them"],
    );
    wrong("queue", "postpone_jitter = [1, 3]", &["1 has no unit"]);
    wrong(
        "limits",
        "smapi_max_outstanding_requests = \"10\"",
        &["not an integer"],
    );
    wrong(
        "limits",
        "smapi_max_outstanding_requests = -1",
        &["out of range", "0 to 1000000"],
    );
    wrong(
        "limits",
        "smapi_rate_limit_window_size_seconds = 0.5",
        &["0.5 is not an integer"],
    );
    wrong(
        "limits",
        "smapi_rate_limit_window_size_seconds = \"1s\"",
        &["not an integer"],
    );
    wrong(
        "limits",
        "window = \"slidng\"",
        &["did you mean \"sliding\"?"],
    );
    wrong(
        "limits",
        "window_stamp = \"reply\"",
        &["\"sent\" | \"replied\""],
    );
    wrong("limits", "window_guard = \"11s\"", &["0s to 10s"]);
    wrong("server", "threads = 0", &["1 to 64"]);
    wrong("server", "threads = 65", &["1 to 64"]);
    wrong(
        "listen",
        "cancel_on_eof = \"yes\"",
        &["neither true nor false"],
    );
    wrong(
        "listen",
        "protocol = \"https\"",
        &["did you mean \"http\"?"],
    );
    wrong(
        "log",
        "format = \"xml\"",
        &["\"auto\" | \"text\" | \"json\""],
    );
    wrong("log", "level = \"inof\"", &["did you mean \"info\"?"]);
    wrong(
        "log",
        "level = \"info,tidegate=debgu\"",
        &["did you mean \"debug\"?"],
    );
    wrong("log", "access = 1", &["neither true nor false"]);
}

#[test]
fn addresses_are_told_how_to_be_written() {
    wrong("bind", "\"8080\"", &["127.0.0.1:8080"]);
    wrong(
        "bind",
        "\":8080\"",
        &["\"127.0.0.1:8080\" for this machine only", "0.0.0.0:8080"],
    );
    wrong("bind", "\"localhost:8080\"", &["\"127.0.0.1:8080\""]);
    wrong("bind", "\"127.0.0.1\"", &["has no port"]);
    wrong("bind", "\"::1\"", &["has no port"]);
    wrong("bind", "\"myhost:8080\"", &["a numeric address"]);
    wrong("bind", "\"127.0.0.1:99999\"", &["up to 65535"]);
    wrong("bind", "8080", &["8080 is not a string"]);
    wrong("bind", "\"\"", &["not an address"]);

    let socket = |text: &str| {
        let text = LEAST.replace("\"127.0.0.1:2000\"", &format!("\"{text}\""));
        good(&text).forward.socket.expect("it is given")
    };
    assert_eq!(
        socket("sdk.example:2000"),
        Address::Name("sdk.example".into(), 2000)
    );
    assert_eq!(
        socket("[::1]:2000"),
        Address::Ip("[::1]:2000".parse().unwrap())
    );
    let http = |text: &str| {
        let text = LEAST.replace("\"http://127.0.0.1:8081\"", &format!("\"{text}\""));
        good(&text).forward.http.expect("it is given")
    };
    assert_eq!(http("http://sdk:8081/"), Address::Name("sdk".into(), 8081));
    assert_eq!(
        http("http://10.0.0.1"),
        Address::Ip("10.0.0.1:80".parse().unwrap())
    );

    wrong(
        "backend",
        "tcp = \"9000\"",
        &["\"9000\" has no port", "127.0.0.1:9000"],
    );
    wrong("backend", "tcp = \"host:0\"", &["no port from 1 to 65535"]);
    wrong("backend", "tcp = \"::1\"", &["has no port", "[::1]:2000"]);
    wrong("backend", "tcp = \"::1:9000\"", &["brackets"]);
    wrong(
        "backend",
        "tcp = \"300.0.0.1:9000\"",
        &["neither an address nor a name"],
    );
    wrong(
        "backend",
        "tcp = \"a host:9000\"",
        &["no host that could be looked up"],
    );
    let http = |value: &str, words: &[&str]| {
        let text = LEAST.replace("\"http://127.0.0.1:8081\"", value);
        let told = read(&text).expect_err(value).to_string();
        for word in words {
            assert!(told.contains(word), "no {word:?} in\n{told}");
        }
    };
    http(
        "\"https://sdk:8081\"",
        &["can't be spoken to a backend yet"],
    );
    http("\"sdk:8081\"", &["http://host:port"]);
    http("\"http://sdk:8081/api\"", &["has a path"]);
    let told = read(&LEAST.replace("http://127", "http://me:hunter2@127")).expect_err("a password");
    assert!(!told.to_string().contains("hunter2"), "{told}");
}

#[test]
fn an_unknown_option_is_an_error_that_names_the_nearest() {
    wrong("queue", "worker = 3", &["queue.worker", "\"workers\""]);
    wrong("queue", "wrokers = 3", &["\"workers\""]);
    wrong(
        "queue",
        "request_queue_size = 128",
        &["capacity in [queue]"],
    );
    wrong("queue", "max_worker_count = 64", &["workers in [queue]"]);
    wrong("queue", "threads = 2", &["threads belongs in [server]"]);
    wrong(
        "queue",
        "colour = \"red\"",
        &["config.toml.example lists every option"],
    );
    wrong("quee", "x = 1", &["\"queue\""]);
    wrong(
        "sdkserver",
        "bind_addr = \"127.0.0.1\"",
        &["[[listen]], [queue] and [limits]"],
    );
    wrong(
        "limits",
        "smapi_max_outstanding_request = 3",
        &["smapi_max_outstanding_requests"],
    );
    wrong("listen", "bindd = \"x\"", &["listen[0].bindd", "\"bind\""]);
}

#[test]
fn listeners_stay_out_of_each_others_way() {
    let two = |second: &str, extra: &str| {
        LEAST.replace(
            "[backend]",
            &format!("[[listen]]\nname = \"two\"\nbind = \"{second}\"\n{extra}\n[backend]"),
        )
    };
    let check = |second: &str, words: &[&str]| {
        let problems = read(&two(second, "")).expect_err(second);
        let told = problems.to_string();
        for word in words {
            assert!(told.contains(word), "{second}: no {word:?} in\n{told}");
        }
    };
    check(
        "127.0.0.1:8080",
        &["listen[1].bind", "overlaps listen[0].bind"],
    );
    check("0.0.0.0:8080", &["overlaps listen[0].bind"]);
    check("[::]:8080", &["overlaps listen[0].bind"]);
    check("127.0.0.1:9180", &["admin.bind", "overlaps listen[1].bind"]);
    check("0.0.0.0:9180", &["overlaps listen[1].bind"]);
    good(&two("127.0.0.1:8081", ""));
    good(&two("127.0.0.2:8080", ""));
    good(&two("[::1]:8080", ""));
    let free = two("127.0.0.1:0", "").replace("127.0.0.1:8080", "127.0.0.1:0");
    assert_eq!(good(&free).listen.listeners.len(), 2);

    let same = two("127.0.0.1:8081", "").replace("\"two\"", "\"nova\"");
    let told = read(&same).expect_err("one name twice").to_string();
    assert!(told.contains("name of another listener too"), "{told}");
    wrong("route", "x = 1", &["[[route]]"]);
}

#[test]
fn a_config_without_listeners_shows_one() {
    let none = "[limits]\nsmapi_rate_limit_per_window = \"total:30\"\n";
    let problems = read(none).expect_err("no listener");
    assert_eq!(problems.len(), 1, "{problems}");
    let told = problems.to_string();
    for word in [
        "config.toml: listen: there is no listener",
        "[[listen]]",
        "name = ",
        "bind = ",
    ] {
        assert!(told.contains(word), "no {word:?} in\n{told}");
    }
    let told = read("").expect_err("empty").to_string();
    assert!(
        told.contains("no listener") && told.contains("per_window"),
        "{told}"
    );
    let bare = LEAST.replace("name = \"nova\"\nbind = \"127.0.0.1:8080\"", "");
    let told = read(&bare).expect_err("an empty listener").to_string();
    assert!(
        told.contains("has no name") && told.contains("has no address"),
        "{told}"
    );
}

#[test]
fn listeners_need_their_backends() {
    let socket = "socket = \"127.0.0.1:2000\"\n";
    let http = "http = \"http://127.0.0.1:8081\"\n";
    let text = |protocol: &str, without: &[&str]| {
        let mut text = with("").replace(
            "[backend]",
            &format!("protocol = \"{protocol}\"\n[backend]"),
        );
        for line in without {
            text = text.replace(line, "");
        }
        text
    };
    let refused = |protocol, without: &[&str], word| {
        let problems = read(&text(protocol, without)).expect_err(protocol);
        assert!(
            problems.len() == 1 && problems.to_string().contains(word),
            "{problems}"
        );
    };
    refused("socket", &[socket], "socket = \"127.0.0.1:2000\"");
    refused("tcp", &[], "tcp = \"127.0.0.1:9000\"");
    refused("auto", &[socket, http], "no backend");
    refused("http", &[socket, http], "no backend");
    doubted(&text("auto", &[http]), &["501", "protocol = \"socket\""]);
    doubted(
        &text("auto", &[socket]),
        &["no socket backend", "protocol = \"http\""],
    );
    doubted(&text("http", &[http]), &["501"]);
    for protocol in ["auto", "socket", "http"] {
        assert!(
            read(&text(protocol, &[]))
                .expect(protocol)
                .warnings
                .is_empty()
        );
    }
}

#[test]
fn what_was_probably_not_meant_is_a_warning() {
    let none = read(&with("")).expect("it is good").warnings;
    assert!(none.is_empty(), "{none}");
    doubted(
        LEAST,
        &["behind Apache", "60 s", "give 50", "threshold_seconds"],
    );
    let socket_only = LEAST.replace("[backend]", "protocol = \"socket\"\n[backend]");
    assert!(read(&socket_only).expect("it is good").warnings.is_empty());
    doubted(
        &with("[queue]\nworkers = 5"),
        &["config.toml:12:11: warning: queue.workers", "workers = 10"],
    );
    doubted(
        &with("smapi_max_outstanding_requests = 65\n[queue]\nworkers = 65"),
        &["64 calls at once"],
    );
    doubted(
        &with("smapi_max_outstanding_requests = 0\n[queue]\nworkers = 65"),
        &["queue.workers", "64 calls at once"],
    );
    doubted(
        &with("[client]\nmax_request_bytes = \"8KiB\""),
        &["reads 4096 bytes"],
    );
    doubted(
        &with("").replace("[limits]", "pool_idle_timeout = \"5s\"\n[limits]"),
        &["Apache closes"],
    );
    doubted(
        &with("[queue]\npostpone = \"in_turn\"\npostpone_jitter = [\"1s\", \"3s\"]"),
        &["no effect"],
    );
    doubted(
        &with("[queue]\npostpone_jitter = [\"50s\", \"60s\"]"),
        &["no postponed call comes back"],
    );
    doubted(
        &with("").replace("total:30", "total:30, guest_list:10, host_get_info:20"),
        &["sum", "below total"],
    );
    assert!(
        read(&with("").replace("total:30", "total:30, guest_list:10, host_get_info:19"))
            .expect("it is good")
            .warnings
            .is_empty()
    );
}

#[test]
fn a_limit_for_an_unknown_function_is_doubted_with_the_nearest_known_one() {
    let text = with("").replace("total:30", "total:30, guest_lst:3, guest_list:3, report:3");
    let text = format!("{text}[[route]]\nmethod = \"GET\"\npath = \"/r\"\nfunction = \"report\"\n");
    let known = ["guest_list", "guest_get_info"];
    let checked = config::read_knowing(&text, "config.toml", std::iter::empty(), &known);
    let warnings = checked.expect("it is only doubted").warnings;
    assert_eq!(warnings.len(), 1, "{warnings}");
    let told = warnings.to_string();
    assert!(
        told.contains("\"guest_lst\"") && told.contains("did you mean \"guest_list\"?"),
        "{told}"
    );
}

#[test]
fn routes_are_read_and_their_functions_known() {
    let route = |lines: &str| with(&format!("[[route]]\n{lines}"));
    let config = good(&route(
        "method = \"GET\"\npath = \"/a/{b}\"\nfunction = \"a_get\"\n[[route]]\nmethod = \"*\"\npath = \"/free\"",
    ));
    assert_eq!(config.classify.routes[0].function.as_deref(), Some("a_get"));
    assert_eq!(config.classify.routes[1].function, None);
    assert_eq!(config.classify.functions, ["a_get".into()]);
    let both = good(
        &route("method = \"GET\"\npath = \"/a\"\nfunction = \"x\"")
            .replace("total:30", "total:30, y:1, x:2"),
    );
    assert_eq!(both.classify.functions, ["y".into(), "x".into()]);

    let check = |lines: &str, words: &[&str]| {
        let problems = read(&route(lines)).expect_err(lines);
        assert_eq!(problems.len(), 1, "{problems}");
        for word in words {
            assert!(
                problems.to_string().contains(word),
                "no {word:?} in\n{problems}"
            );
        }
    };
    check("method = \"GET\"", &["route[0].path", "has no path"]);
    check("path = \"/a\"", &["route[0].method", "has no method"]);
    check("method = \"get\"\npath = \"/a\"", &["\"GET\""]);
    check("method = \"G T\"\npath = \"/a\"", &["is not a method"]);
    check("method = \"GET\"\npath = \"a\"", &["does not begin with /"]);
    check("method = \"GET\"\npath = \"/a?b=1\"", &["query"]);
    check(
        "method = \"GET\"\npath = \"/a/x{b}\"",
        &["one whole segment"],
    );
    check(
        "method = \"GET\"\npath = \"/a\"\nfunction = \"total\"",
        &["all functions together"],
    );
    check(
        "method = \"GET\"\npath = \"/a\"\nfunction = \"a b\"",
        &["not the name of a function"],
    );
    let twice = "method = \"GET\"\npath = \"/a\"\n[[route]]\nmethod = \"GET\"\npath = \"/a\"";
    doubted(&route(twice), &["the first one wins"]);
    let no_http = route("method = \"GET\"\npath = \"/a\"")
        .replace("http = \"http://127.0.0.1:8081\"\n", "")
        .replace("[backend]", "protocol = \"socket\"\n[backend]");
    doubted(&no_http, &["routes are for the HTTP backend"]);
}

#[test]
fn the_admin_address_is_guarded() {
    let admin = |lines: &str| with(&format!("[admin]\n{lines}"));
    assert_eq!(good(&admin("bind = \"\"")).admin.bind, None);
    assert_eq!(good(&admin("bind = false")).admin.bind, None);
    wrong("admin", "bind = true", &["not a string"]);
    wrong(
        "admin",
        "bind = \"0.0.0.0:9180\"",
        &["admin.bind", "no token", "127.0.0.1:9180"],
    );
    wrong("admin", "bind = \"10.0.0.1:9180\"", &["no token"]);
    good(&admin("bind = \"0.0.0.0:9180\"\ntoken = \"s3cret\""));
    good(&admin("bind = \"[::1]:9180\""));
    wrong("admin", "token = \"\"", &["the token is empty"]);
    wrong("admin", "token = \"two words\"", &["header"]);
}

#[test]
fn a_token_is_never_shown() {
    let good = good(&with("[admin]\ntoken = \"hunter2\""));
    assert!(!config::effective(&good).contains("hunter2"));
    assert!(!format!("{good:?}").contains("hunter2"));
    for line in [
        "token = \"hunter2 x\"",
        "token = hunter2",
        "token = [\"hunter2\"]",
        "token = \"hunter2",
        "\"token\" = \"hunter2 x\"",
    ] {
        let problems = read(&with(&format!("[admin]\n{line}"))).expect_err(line);
        for graphical in [false, true] {
            let text = problems.render(graphical);
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}

#[test]
fn the_environment_wins_over_the_file() {
    let set = |name: &str, value: &str| {
        read_with(&with(""), &[(name, value)])
            .unwrap_or_else(|p| panic!("{name}={value}\n{p}"))
            .config
    };
    assert_eq!(
        set("TIDEGATE_LIMITS__SMAPI_MAX_OUTSTANDING_REQUESTS", "5")
            .admit
            .outstanding_max,
        Some(5)
    );
    assert_eq!(
        set("TIDEGATE_CLIENT__REQUEST_TIMEOUT", "5s")
            .protocol
            .request_timeout,
        Duration::from_secs(5)
    );
    assert_eq!(
        set("TIDEGATE_CLIENT__REQUEST_TIMEOUT", "\"5s\"")
            .protocol
            .request_timeout,
        Duration::from_secs(5)
    );
    assert_eq!(
        set("TIDEGATE_LISTEN__0__BIND", "0.0.0.0:80")
            .listen
            .listeners[0]
            .bind
            .to_string(),
        "0.0.0.0:80"
    );
    assert_eq!(set("TIDEGATE_ADMIN__BIND", "").admin.bind, None);
    assert_eq!(set("TIDEGATE_ADMIN__BIND", "false").admin.bind, None);
    assert_eq!(
        set("TIDEGATE_ADMIN__TOKEN", "123456").admin.token,
        Some(Token("123456".into()))
    );
    assert_eq!(
        set("TIDEGATE_ADMIN__TOKEN", "2024-01-01").admin.token,
        Some(Token("2024-01-01".into()))
    );
    assert!(!set("TIDEGATE_LOG__ACCESS", "false").telemetry.access);
    let window = |value| {
        set("TIDEGATE_LIMITS__SMAPI_RATE_LIMIT_PER_WINDOW", value)
            .admit
            .window
            .unwrap()
    };
    assert_eq!(window("total:7, guest_list:3").total, Some(7));
    assert_eq!(window("{ total = 7, guest_list = 3 }").functions.len(), 1);
    let jitter = set("TIDEGATE_QUEUE__POSTPONE_JITTER", "[\"2s\", \"4s\"]")
        .admit
        .postpone;
    let (min, max) = (Duration::from_secs(2), Duration::from_secs(4));
    assert_eq!(jitter, Postpone::Jitter { min, max });
    // Not ours: no section and key.
    assert_eq!(set("TIDEGATE_CONFIG", "/etc/x"), good(&with("")));
    assert_eq!(set("HOME__X", "y"), good(&with("")));
}

#[test]
fn the_environment_alone_can_be_a_config() {
    let env = [
        ("TIDEGATE_LISTEN__1__NAME", "two"),
        ("TIDEGATE_LISTEN__0__NAME", "one"),
        ("TIDEGATE_LISTEN__0__BIND", "127.0.0.1:1"),
        ("TIDEGATE_LISTEN__1__BIND", "127.0.0.1:2"),
        ("TIDEGATE_BACKEND__SOCKET", "sdk:2000"),
        ("TIDEGATE_LIMITS__SMAPI_RATE_LIMIT_PER_WINDOW__TOTAL", "30"),
        (
            "TIDEGATE_LIMITS__SMAPI_RATE_LIMIT_PER_WINDOW__GUEST_LIST",
            "3",
        ),
    ];
    let config = read_with("", &env).unwrap_or_else(|p| panic!("{p}")).config;
    let names: Vec<_> = config.listen.listeners.iter().map(|l| &*l.name).collect();
    assert_eq!(names, ["one", "two"]);
    let window = config.admit.window.expect("windows are on");
    assert_eq!((window.total, window.functions.len()), (Some(30), 1));
}

#[test]
fn what_the_docs_show_can_be_taken() {
    const DOCS: &str = include_str!("../../docs/configuration.md");
    let least = DOCS
        .split("```toml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    assert_eq!(good(least.expect("the docs show a config")), good(LEAST));

    let shown = DOCS
        .split('`')
        .filter(|code| code.starts_with("TIDEGATE_") && code.contains('='));
    let mut count = 0;
    for code in shown {
        let (name, value) = code.split_once('=').expect("it has a value");
        let value = value.trim_matches(['"', '\'']);
        let value = if value == "…" { "secret" } else { value };
        let config = read_with(LEAST, &[(name, value)])
            .unwrap_or_else(|p| panic!("{code}\n{p}"))
            .config;
        assert_ne!(config, good(LEAST), "{code} changes nothing");
        count += 1;
    }
    assert_eq!(count, 6);
    let parameters = [
        "bind_addr",
        "bind_port",
        "request_queue_size",
        "max_worker_count",
        "smapi_rate_limit_window_size_seconds",
        "smapi_rate_limit_per_window",
        "smapi_max_outstanding_requests",
        "smapi_request_postpone_threshold_seconds",
    ];
    for parameter in parameters {
        assert!(DOCS.contains(&format!("`{parameter}`")), "{parameter}");
    }
}

#[test]
fn a_wrong_variable_is_named() {
    let check = |name: &str, value: &str, words: &[&str]| {
        let problems = read_with(&with(""), &[(name, value)]).expect_err(name);
        assert_eq!(problems.len(), 1, "{problems}");
        let told = problems.to_string();
        assert!(told.starts_with(&format!("{name}: ")), "{told}");
        for word in words {
            assert!(told.contains(word), "no {word:?} in\n{told}");
        }
        assert!(problems.render(true).contains(name), "{told}");
    };
    check(
        "TIDEGATE_QUEUE__WORKERS",
        "many",
        &["queue.workers", "\"many\" is not an integer"],
    );
    check("TIDEGATE_QUEUE__WORKERS", "0", &["1 to 65536"]);
    check(
        "TIDEGATE_CLIENT__REQUEST_TIMEOUT",
        "30",
        &["30 has no unit"],
    );
    check(
        "TIDEGATE_QUEUE__WORKER",
        "3",
        &["queue.worker", "\"workers\""],
    );
    check("TIDEGATE_QUEU__WORKERS", "3", &["queu", "\"queue\""]);
    check(
        "TIDEGATE_LISTEN__2__BIND",
        "x",
        &["listen[2].bind", "there is no entry 2, the next one is 1"],
    );
    check("TIDEGATE_LISTEN__BIND", "x", &["the number of an entry"]);
    check(
        "TIDEGATE_QUEUE__0__WORKERS",
        "3",
        &["queue: an array is not a table"],
    );
    check(
        "TIDEGATE_QUEUE____WORKERS",
        "3",
        &["not the path of an option"],
    );
    check("TIDEGATE___", "3", &["not the path of an option"]);
    check(
        "TIDEGATE_LIMITS__SMAPI_RATE_LIMIT_PER_WINDOW__TOTAL",
        "3",
        &["no table"],
    );
    check(
        "TIDEGATE_LIMITS__SMAPI_RATE_LIMIT_PER_WINDOW",
        "total:3,",
        &["last comma"],
    );
    check("TIDEGATE_BACKEND__HTTP", "https://x:1", &["TLS"]);
}

#[test]
fn a_message_is_never_longer_than_a_few_lines() {
    let long = "A__".repeat(20_000);
    let variable = format!("TIDEGATE_{long}A");
    let texts = [
        format!("{} = 1\n{LEAST}", "k".repeat(10_000)),
        with(&format!("[log]\nlevel = \"{}\"", "l".repeat(10_000))),
        LEAST.replace("total:30", &format!("total:30, {}:1", "f".repeat(10_000))),
        LEAST.replace("nova", &"n".repeat(10_000)),
        LEAST.replace("\"127.0.0.1:2000\"", &"h".repeat(10_000)),
    ];
    let cases = texts.iter().map(|text| read(text));
    for result in cases.chain([read_with(LEAST, &[(&variable, "1")])]) {
        let told = result.expect_err("something long").to_string();
        assert!(told.len() < 2000, "{} bytes: {:.500}", told.len(), told);
    }
}

#[test]
fn ten_mistakes_give_ten_messages_with_line_and_key() {
    let text = "\
[server]
threads = 0
[[listen]]
name = \"nova\"
bind = \"127.0.0.1\"
protocol = \"sockte\"
[client]
request_timeout = 30
buffer_bytes = \"64KB\"
[queue]
capacity = 0
worker = 3
[backend]
socket = 127.0.0.1:2000
http = \"https://127.0.0.1\"
[limits]
smapi_rate_limit_per_window = total:30, guest_list:10
";
    let problems = read(text).expect_err("ten mistakes");
    let lines: Vec<_> = problems
        .iter()
        .filter(|p| p.severity == Severity::Error)
        .map(|p| match p.place {
            Place::File { line, .. } => line,
            _ => panic!("{}", problems.plain(p)),
        })
        .collect();
    assert_eq!(lines, [2, 5, 6, 8, 9, 11, 12, 14, 15, 17], "{problems}");
    let told = problems.to_string();
    assert_eq!(told.matches("\n  help: ").count(), 10, "{told}");
    assert!(
        told.contains(
            "config.toml:11:12: queue.capacity: 0 is out of range\n  help: give 1 to 1000000"
        ),
        "{told}"
    );
    let drawn = problems.render(true);
    assert!(
        drawn.contains("config.toml:11:12") && drawn.contains("capacity = 0"),
        "{drawn}"
    );
}

#[test]
fn a_broken_line_hides_no_other_mistake_and_makes_none_up() {
    let check = |text: &str, lines: &[usize]| {
        let problems = read(text).expect_err(text);
        let told: Vec<_> = problems
            .iter()
            .filter_map(|p| match p.place {
                Place::File { line, .. } => Some(line),
                _ => None,
            })
            .collect();
        assert_eq!(told, lines, "{text}\n{problems}");
        assert_eq!(problems.len(), lines.len(), "{problems}");
    };
    check(&with("[queue]\nworkers =\ncapacity = 0"), &[12, 13]);
    check(&with("[queue]\nworkers = 3 4\ncapacity = 0"), &[12, 13]);
    check(
        &with("[queue]\nworkers = 30\nworkers = 31\ncapacity = 0"),
        &[13, 14],
    );
    check(
        &with("[queue\nworkers = 30\n[client]\nbuffer_bytes = 1"),
        &[11, 14],
    );
    check(&with("").replace("[limits]", "[limits"), &[8]);
    check(&with("").replace("[[listen]]", "[[listen]"), &[2]);
    check(&with("[queue]\nwhat is this\ncapacity = 0"), &[12, 13]);
    check(
        &with("").replace("\"127.0.0.1:8080\"", "\"127.0.0.1:8080"),
        &[4],
    );
}

#[test]
fn wrong_shapes_of_sections_are_told() {
    let check = |text: &str, word: &str| {
        let told = read(text).expect_err(text).to_string();
        assert!(told.contains(word), "no {word:?} in\n{told}");
    };
    check(
        &format!("queue = 3\n{LEAST}"),
        "write [queue] on a line of its own",
    );
    check(
        &format!("route = 3\n{LEAST}"),
        "write [[route]] on a line of its own",
    );
    check(
        &format!("route = [3]\n{LEAST}"),
        "3 is not an array of tables",
    );
    check("[listen]\nname = \"x\"\n", "write [[listen]]");
    let many: String = (0..65)
        .map(|n| {
            format!(
                "[[listen]]\nname = \"l{n}\"\nbind = \"127.0.0.1:{}\"\n",
                n + 1
            )
        })
        .collect();
    check(
        &format!("{many}[limits]\nsmapi_rate_limit_per_window = \"total:1\"\n"),
        "at most 64",
    );
}

#[test]
fn what_is_effective_reads_back_as_the_same_config() {
    let again = |text: &str| {
        let config = good(text);
        let written = config::effective(&config);
        assert_eq!(good(&written), config, "{written}");
    };
    again(LEAST);
    again(EXAMPLE);
    again(&with(
        "smapi_max_outstanding_requests = 0\nwindow = \"fixed\"\nwindow_stamp = \"replied\"\nwindow_guard = \"0s\"",
    ));
    again(&with("smapi_rate_limit_window_size_seconds = 0"));
    again(&with("").replace("total:30", "total:0, b:2, a:1, c:0"));
    again(&with(
        "[queue]\npostpone = \"in_turn\"\nwhen_full = \"refuse\"\n[admin]\nbind = false\n[log]\nformat = \"json\"\nlevel = \"info,tidegate=debug\"\naccess = false",
    ));
    again(&with(
        "[[route]]\nmethod = \"*\"\npath = \"/a/{b}\"\nfunction = \"x\"\n[[route]]\nmethod = \"GET\"\npath = \"/\\\"q\\\"\"",
    ));
    again(&with(
        "[client]\nbody_min_rate = \"0B\"\nidle_timeout = \"90m\"\nwrite_timeout = \"1500ms\"\nbuffer_bytes = \"1025B\"",
    ));
    again(
        &with("")
            .replace("127.0.0.1:2000", "[::1]:2000")
            .replace("127.0.0.1:8081", "sdk.example"),
    );

    let secret = good(&with(
        "[admin]\nbind = \"0.0.0.0:9180\"\ntoken = \"s3cret\"",
    ));
    let mut back = good(&config::effective(&secret));
    assert_eq!(back.admin.token, Some(Token("(hidden)".into())));
    back.admin.token.clone_from(&secret.admin.token);
    assert_eq!(back, secret);
}

#[test]
fn every_config_drawn_at_random_reads_back_as_the_same() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for round in 0..500 {
        let mut pick = |words: &[&str]| words[random.random_range(0..words.len())].to_owned();
        let postpone = pick(&[
            "\"jitter\"\npostpone_jitter = [\"1ms\", \"90s\"]",
            "\"in_turn\"",
        ]);
        let text = format!(
            "[[listen]]\nname = \"a\"\nbind = \"{}\"\nprotocol = \"{}\"\ncancel_on_eof = {}\n\
             [backend]\nsocket = \"{}\"\nhttp = \"{}\"\ntcp = \"t:1\"\nresponse_timeout = \"{}\"\n\
             [queue]\nwhen_full = \"{}\"\npostpone = {postpone}\n\
             [limits]\nsmapi_rate_limit_window_size_seconds = {}\nsmapi_rate_limit_per_window = \"{}\"\n\
             window = \"{}\"\nwindow_guard = \"{}\"\n[admin]\nbind = \"{}\"\n[log]\nlevel = \"{}\"\n",
            pick(&["127.0.0.1:1", "[::]:1", "0.0.0.0:0"]),
            pick(&["auto", "socket", "http", "tcp"]),
            pick(&["true", "false"]),
            pick(&["127.0.0.1:1", "[::1]:65535", "a-b.c_d:2000"]),
            pick(&["http://x", "http://[::1]:1/", "http://1.2.3.4:5"]),
            pick(&["1ms", "999ms", "61s", "24h", "61m"]),
            pick(&["wait", "refuse"]),
            pick(&["0", "1", "86400"]),
            pick(&["total:0", "total:9,a:0,b:3", "total : 1000000 , x.y-z : 1"]),
            pick(&["sliding", "fixed"]),
            pick(&["0s", "1ms", "10s"]),
            pick(&["", "127.0.0.1:9180", "[::1]:9"]),
            pick(&["off", "trace", "warn,a::b=debug"]),
        );
        let config = good(&text);
        let written = config::effective(&config);
        assert_eq!(
            good(&written),
            config,
            "seed {seed}, round {round}\n{text}\n{written}"
        );
    }
}

#[test]
fn no_mutation_of_the_example_makes_the_reader_panic() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let lines: Vec<&str> = EXAMPLE
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty())
        .collect();
    let odd = [
        "=",
        "\"",
        "[",
        "]]",
        "{",
        "é",
        "\u{0}",
        "\r",
        "\n",
        "\t",
        "#",
        "'''",
        "1e9",
        "-",
        ".",
        ",",
        "\u{feff}",
        "\u{1f600}",
    ];
    let mut refused = 0;
    for round in 0..1000 {
        let mut text: Vec<char> = lines.join("\n").chars().collect();
        for _ in 0..random.random_range(1..6) {
            let at = random.random_range(0..text.len());
            match random.random_range(0..4) {
                0 => drop(text.remove(at)),
                1 => drop(text.splice(at..at, odd[random.random_range(0..odd.len())].chars())),
                2 => text.swap(at, (at + 1) % lines.len()),
                _ => {
                    let end = (at + random.random_range(0..40)).min(text.len());
                    drop(text.drain(at..end));
                }
            }
        }
        let text: String = text.into_iter().collect();
        let env = [
            ("TIDEGATE_QUEUE__WORKERS", "7"),
            ("TIDEGATE_LISTEN__0__NAME", "é"),
        ];
        println!("round {round}");
        match read_with(&text, &env[..round % 3]) {
            Ok(checked) => drop(config::effective(&checked.config)),
            Err(problems) => {
                refused += 1;
                assert!(problems.has_error());
                drop(problems.to_string());
                drop(problems.render(round % 2 == 0));
            }
        }
    }
    assert!(
        refused > 300,
        "the mutations are too tame: {refused} of 1000 refused"
    );
}

#[test]
fn a_file_full_of_rubbish_is_told_in_good_time() {
    let text = "x\n".repeat(1 << 16);
    let problems = read(&text).expect_err("rubbish");
    assert_eq!(
        problems
            .iter()
            .filter(|p| matches!(p.place, Place::File { .. }))
            .count(),
        1 << 16
    );
    read(&"[".repeat(1 << 16)).expect_err("brackets");
    read(&"a.".repeat(1 << 16)).expect_err("dots");
    read(&format!("a = {}", "{a=".repeat(1 << 14))).expect_err("braces");
}

#[test]
fn a_file_that_cannot_be_read_is_one_line_that_says_which_and_why() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let missing = directory.path().join("missing.toml");
    let check = |path: &std::path::Path, why: &str| {
        let error = config::load(path).expect_err(why);
        assert!(matches!(error, LoadError::Unreadable { .. }), "{error:?}");
        let line = error.render(false);
        assert!(
            line.contains(&path.display().to_string()) && line.contains(why),
            "{line}"
        );
        assert_eq!(line.lines().count(), 1);
        let report = tools::check::report(path, false);
        assert!(
            !report.good && report.problems == format!("{line}\n"),
            "{report:?}"
        );
    };
    check(&missing, "No such file");
    check(directory.path(), "directory");
    let latin = directory.path().join("latin.toml");
    fs::write(&latin, b"[log]\n# caf\xe9\n").expect("written");
    check(&latin, "line 2 is not UTF-8");
    let large = directory.path().join("large.toml");
    fs::write(&large, vec![b'\n'; (1 << 20) + 1]).expect("written");
    check(&large, "larger than 1 MiB");
}

#[test]
fn check_prints_the_limits_of_a_good_file_and_every_mistake_of_a_bad_one() {
    let directory = tempfile::tempdir().expect("a directory for the test");
    let path = directory.path().join("config.toml");
    fs::write(
        &path,
        EXAMPLE.replace("\"total:30\"", "\"total:30, guest_list:10\""),
    )
    .expect("written");
    let report = tools::check::report(&path, false);
    assert!(
        report.good && report.problems.contains("behind Apache"),
        "{report:?}"
    );
    for line in [
        "total          30 calls in any 1 s (sliding)",
        "guest_list     10 calls in any 1 s (sliding)",
        "outstanding    10 calls at once",
        "class user     weight 4",
        "class polling  weight 1",
        "a call waits   60 s from arrival at most",
        "smapi_rate_limit_per_window = \"total:30, guest_list:10\"",
        "config.toml is good",
    ] {
        assert!(
            report.settings.contains(line),
            "no {line:?} in\n{}",
            report.settings
        );
    }
    fs::write(&path, "[queue]\ncapacity = 0\n").expect("written");
    let report = tools::check::report(&path, false);
    assert!(!report.good && report.settings.is_empty(), "{report:?}");
    let first = format!("{}: listen: there is no listener", path.display());
    assert!(report.problems.starts_with(&first), "{report:?}");
    assert!(
        report.problems.contains("config.toml:2:12: queue.capacity"),
        "{report:?}"
    );
}

#[test]
fn only_reads_that_are_known_are_coalesced() {
    let lists = |names: &str| format!("functions = [{names}]");
    let config = good(&with(
        "[coalesce]\nfunctions = [\"host_get_info\", \"guest_list\"]\nfresh_for = \"2s\"\n\
         max_entries = 7\nmax_bytes = \"1MiB\"",
    ));
    let names: Vec<&str> = config
        .coalesce
        .functions
        .iter()
        .map(|name| &**name)
        .collect();
    assert_eq!(names, ["host_get_info", "guest_list"]);
    assert_eq!(config.coalesce.fresh_for, Duration::from_secs(2));
    assert_eq!(config.coalesce.entries_max, 7);
    assert_eq!(config.coalesce.bytes_max, 1 << 20);
    assert_eq!(good(LEAST).coalesce.functions.len(), 0);

    let check = |names: &str, words: &[&str]| wrong("coalesce", &lists(names), words);
    check(
        "\"guest_start\"",
        &["\"guest_start\" changes something", "only reads"],
    );
    check(
        "\"guest_list\", \"host_get_inof\"",
        &["\"host_get_inof\"", "did you mean \"host_get_info\"?"],
    );
    check("\"reports\"", &["no function is known", "[[route]]"]);
    check("\"guest_list\", \"guest_list\"", &["given twice"]);
    check("1", &["1 is not a string"]);
    wrong(
        "coalesce",
        "functions = \"guest_list\"",
        &["is not an array"],
    );
    let many: Vec<String> = (0..65).map(|n| format!("\"f{n}\"")).collect();
    check(&many.join(", "), &["there are 65 functions", "at most 64"]);
    wrong("coalesce", "max_entries = 0", &["1 to 1000000"]);
    wrong("coalesce", "fresh_for = \"2h\"", &["0s to 1h"]);

    doubted(
        &with("[coalesce]\nfresh_for = \"2s\""),
        &["coalesce.fresh_for", "no effect"],
    );
}

#[test]
fn a_function_of_ones_own_route_is_coalesced_if_its_method_says_that_it_is_a_read() {
    let with_route = |method: &str| {
        with(&format!(
            "[coalesce]\nfunctions = [\"report_get\"]\n[[route]]\nmethod = \"{method}\"\n\
             path = \"/reports\"\nfunction = \"report_get\""
        ))
    };
    assert_eq!(good(&with_route("GET")).coalesce.functions.len(), 1);
    for method in ["*", "POST"] {
        let problems = read(&with_route(method)).expect_err("it may change something");
        assert!(
            problems.to_string().contains("another method"),
            "{problems}"
        );
    }
}

#[test]
fn calls_can_be_handed_over_only_where_that_is_switched_on_and_within_bounds() {
    assert!(!good(LEAST).tasks.enabled);
    let tasks = good(&with(
        "[tasks]\nenabled = true\nmax_tasks = 7\nmax_tasks_per_caller = 3\n\
         max_bytes = \"2MiB\"\nmax_bytes_per_caller = \"1MiB\"\nkeep_for = \"1h\"",
    ))
    .tasks;
    assert!(tasks.enabled);
    assert_eq!((tasks.tasks_max, tasks.tasks_per_caller_max), (7, 3));
    assert_eq!(
        (tasks.bytes_max, tasks.bytes_per_caller_max),
        (2 << 20, 1 << 20)
    );
    assert_eq!(tasks.time_to_live, Duration::from_secs(3600));
    // Each of them may wait at the door without a connection.
    let door = |tasks: &str| {
        let config = good(&with(&format!("[tasks]\nmax_tasks = 7\n{tasks}")));
        config.admit.door_max
    };
    assert_eq!(door("enabled = true"), door("enabled = false") + 7);
    for (line, allowed) in [
        ("enabled = 1", "true or false"),
        ("max_tasks = 0", "1 to 1000000"),
        ("max_tasks_per_caller = -1", "1 to 1000000"),
        ("max_bytes = \"1B\"", "1KiB to 1GiB"),
        ("max_bytes_per_caller = \"2GiB\"", "1KiB to 1GiB"),
        ("keep_for = \"0s\"", "1s to 24h"),
        ("max = 1", "max"),
    ] {
        wrong("tasks", line, &[allowed]);
    }
}
