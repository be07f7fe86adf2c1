//! Options from the environment, above the file or without one.

use std::time::Duration;

use tidegate::admin::Token;
use tidegate::admit::Postpone;

use super::{good, read_with, with};

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
    check("TIDEGATE_LIMITS__PER_WINDOW__TOTAL", "3", &["no table"]);
    check("TIDEGATE_LIMITS__PER_WINDOW", "total:3,", &["last comma"]);
    check(
        "TIDEGATE_BACKEND__HTTP",
        "tls://x:1",
        &["https://host:port"],
    );
}

#[test]
fn a_variable_without_an_option_is_reported_with_the_nearest_name() {
    let warned = |name: &str| {
        let checked =
            read_with(&with(""), &[(name, "7")]).unwrap_or_else(|p| panic!("{name}\n{p}"));
        assert_eq!(checked.config, good(&with("")), "{name}");
        checked.warnings.to_string()
    };
    for (name, meant) in [
        ("TIDEGATE_QUEUE_WORKERS", "TIDEGATE_QUEUE__WORKERS?"),
        ("TIDEGATE_QUEUE_WORKRES", "TIDEGATE_QUEUE__WORKERS?"),
        ("TIDEGATE_LISTEN_0_BIND", "TIDEGATE_LISTEN__0__BIND?"),
        (
            "TIDEGATE_LIMITS_SMAPI_MAX_OUTSTANDING_REQUESTS",
            "TIDEGATE_LIMITS__SMAPI_MAX_OUTSTANDING_REQUESTS?",
        ),
        ("TIDEGATE_NOTHING_LIKE_IT", "TIDEGATE_SECTION__KEY"),
    ] {
        let told = warned(name);
        for word in [name, "warning", "names no option", meant] {
            assert!(told.contains(word), "no {word:?} in\n{told}");
        }
    }
    // Another program's, the command line's, and those that Kubernetes sets for a service.
    for name in [
        "TIDE_QUEUE_WORKERS",
        "TIDEGATE_CONFIG",
        "TIDEGATE_ADMIN",
        "TIDEGATE_PORT",
        "TIDEGATE_SERVICE_HOST",
        "TIDEGATE_SERVICE_PORT_HTTP",
        "TIDEGATE_PORT_8081_TCP_ADDR",
        // For a service tidegate-leases.
        "TIDEGATE_LEASES_SERVICE_HOST",
        "TIDEGATE_LEASES_SERVICE_PORT",
        "TIDEGATE_LEASES_SERVICE_PORT_GRPC",
        "TIDEGATE_LEASES_PORT_9190_TCP",
        "TIDEGATE_LEASES_PORT_9190_TCP_PROTO",
        "TIDEGATE_LEASES_PORT_9190_TCP_PORT",
        "TIDEGATE_LEASES_PORT_9190_TCP_ADDR",
        "TIDEGATE__2_SERVICE_HOST",
    ] {
        assert_eq!(warned(name), "", "{name}");
    }
    let port = [("TIDEGATE_LEASES_PORT", "tcp://10.0.0.1:9190")];
    let checked = read_with(&with(""), &port).expect("a good config");
    assert_eq!(checked.warnings.to_string(), "");
    assert!(warned("TIDEGATE_LEASES_PORT").contains("names no option"));
}
