//! Durations, sizes, integers, words, flags and addresses.

use std::time::Duration;

use tidegate::forward::BackendAddress;

use super::{LEAST, good, read, with, wrong};

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
    assert_eq!(timeout("\"1.5s\""), Duration::from_millis(1500));
    assert_eq!(timeout("\"0.5m\""), Duration::from_secs(30));
    assert_eq!(timeout("\"5000us\""), Duration::from_millis(5));
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
    check(
        "request_timeout = \"1500us\"",
        &["no multiple of 1ms", "such as \"1ms\""],
    );
    check("request_timeout = \"-1s\"", &["not a number with a unit"]);
    check("request_timeout = \"\"", &["not a number with a unit"]);
    check("request_timeout = true", &["true is not a duration"]);
    check("request_timeout = 1.5", &["1.5 has no unit", "\"1.5s\""]);
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
    wrong("limits", "outstanding = \"10\"", &["not an integer"]);
    wrong(
        "limits",
        "outstanding = -1",
        &["out of range", "0 to 1000000"],
    );
    wrong("limits", "window = 1", &["1 has no unit", "\"1s\""]);
    wrong("limits", "window = \"25h\"", &["0s to 24h"]);
    wrong(
        "limits",
        "window = \"fixed\"",
        &["not the length of a window", "window_shape = \"fixed\""],
    );
    wrong(
        "limits",
        "window_shape = \"slidng\"",
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
    for level in ["info", "off", "info,tidegate=debug", " info, h2=off "] {
        let config = good(&with(&format!("[log]\nlevel = \"{level}\"")));
        // Panics at what it does not understand.
        let _ = tidegate::telemetry::log::filter(&config.telemetry.level);
    }
    for level in ["", "loud", "tidegate=verbose", "info;x=debug=1"] {
        wrong(
            "log",
            &format!("level = \"{level}\""),
            &["is not a log level"],
        );
    }
    wrong("log", "level = \"inof\"", &["did you mean \"info\"?"]);
    wrong(
        "log",
        "level = \"info,tidegate=debgu\"",
        &["did you mean \"debug\"?"],
    );
    wrong("log", "access = 1", &["neither true nor false"]);
}

#[test]
fn wrong_addresses_are_reported_with_the_right_form() {
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
        good(&text).forward.socket.expect("it is given").address
    };
    assert_eq!(
        socket("sdk.example:2000"),
        BackendAddress::Name("sdk.example".into(), 2000)
    );
    assert_eq!(
        socket("[::1]:2000"),
        BackendAddress::Ip("[::1]:2000".parse().unwrap())
    );
    let http = |text: &str| {
        let text = LEAST.replace("\"http://127.0.0.1:8081\"", &format!("\"{text}\""));
        good(&text).forward.http.expect("it is given").address
    };
    assert_eq!(
        http("http://sdk:8081/"),
        BackendAddress::Name("sdk".into(), 8081)
    );
    assert_eq!(
        http("http://10.0.0.1"),
        BackendAddress::Ip("10.0.0.1:80".parse().unwrap())
    );

    wrong(
        "backend",
        "tcp = \"9000\"",
        &["\"9000\" has no port", "127.0.0.1:9000"],
    );
    wrong("backend", "tcp = \"host:0\"", &["no port from 1 to 65535"]);
    wrong("backend", "tcp = \"::1\"", &["has no port", "[::1]:2001"]);
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
    http("\"tls://sdk:8081\"", &["https://host:port"]);
    http("\"sdk:8081\"", &["http://host:port"]);
    http("\"http://sdk:8081/api\"", &["has a path"]);
    let told = read(&LEAST.replace("http://127", "http://me:hunter2@127")).expect_err("a password");
    assert!(!told.to_string().contains("hunter2"), "{told}");
}
