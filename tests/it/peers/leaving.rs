//! Clients that leave, clients that say nothing, and clients that must not wait.

use tempfile::TempDir;

use super::stage::{ADMIN_TOKEN, Auth, Backend, Hop, Tidegate, Wsgi, until};
use super::wire::Wire;

/// Limits that let one call run at a time.
const NARROW: &str = "
    [limits]
    smapi_rate_limit_per_window = \"total:1000\"
    smapi_max_outstanding_requests = 1
    ledger_lost = \"assume_empty\"
";

/// Makes a call with the first, and three that wait behind it: the second client closes, the
/// third resets its connection, the fourth stays.
fn check(backend: &Backend, proxy: &Tidegate, call: impl Fn(&str) -> Wire) {
    let running = call("SLOW15");
    until("the first call runs", || {
        (backend.seen().in_flight == 1).then_some(())
    });
    let closing = call("HRX00001");
    proxy.until_waiting(1);
    let resetting = call("HRX00002");
    proxy.until_waiting(2);
    let staying = call("HRX00003");
    proxy.until_waiting(3);
    drop(closing);
    proxy.until_waiting(2);
    resetting.reset();
    proxy.until_waiting(1);
    assert_eq!(
        backend.seen().in_flight,
        1,
        "all of that while the first call runs"
    );

    let answered = |wire: Wire| {
        let (answer, _) = wire.answer();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.contains(r#""overallRC": 0"#), "{answer}");
    };
    answered(running);
    answered(staying);
    assert_eq!(backend.userids(), ["SLOW15", "HRX00003"]);
    let log = proxy.log(4);
    let ended = |userid: &str| {
        let line = log
            .iter()
            .find(|line| line.userid.as_deref() == Some(userid))
            .unwrap_or_else(|| panic!("{userid} is not in {log:?}"));
        (line.verdict.as_str(), line.sent_us.is_some())
    };
    assert_eq!(ended("SLOW15"), ("passed", true));
    assert_eq!(ended("HRX00001"), ("aborted", false));
    assert_eq!(ended("HRX00002"), ("aborted", false));
    assert_eq!(ended("HRX00003"), ("delayed", true));
}

#[test]
fn a_socket_client_that_leaves_while_it_waits_never_reaches_the_backend() {
    let backend = Backend::quick();
    let proxy = Tidegate::start(Hop::Socket(backend.port), NARROW);
    check(&backend, &proxy, |userid| Wire::calling(proxy.port, userid));
}

#[test]
fn an_http_client_that_leaves_while_it_waits_never_reaches_the_backend() {
    let files = TempDir::new().expect("a temporary directory");
    let backend = Backend::quick();
    let wsgi = Wsgi::start(backend.port, files.path(), Auth::None);
    let proxy = Tidegate::start(Hop::Http(wsgi.port), NARROW);
    check(&backend, &proxy, |userid| Wire::getting(proxy.port, userid));
}

#[test]
fn connections_that_say_nothing_do_not_stop_a_call() {
    let backend = Backend::quick();
    let proxy = Tidegate::start(Hop::Socket(backend.port), NARROW);
    // As many of each kind as the sdkserver has workers.
    let silent: Vec<Wire> = (0..64).map(|_| Wire::to(proxy.port)).collect();
    let halting: Vec<Wire> = (0..64)
        .map(|_| Wire::to(proxy.port).with(br#"["guest_get_in"#))
        .collect();
    for userid in ["HRX00001", "HRX00002"] {
        let answer = Wire::calling(proxy.port, userid).object();
        assert_eq!(answer["output"]["userid"], userid);
    }
    // They were still there, and the backend had not seen them.
    drop((silent, halting));
    assert_eq!(backend.seen().connections, 2);
    assert_eq!(backend.userids(), ["HRX00001", "HRX00002"]);
}

/// A queue of two behind one call that runs, all taken; then another client wants a token.
fn check_token(when_full: &str, next_call: impl FnOnce(Wire, &Tidegate) -> Option<Wire>) {
    let files = TempDir::new().expect("a temporary directory");
    let backend = Backend::quick();
    let wsgi = Wsgi::start(backend.port, files.path(), Auth::Token);
    let full_at_two = format!("[queue]\ncapacity = 2\nwhen_full = \"{when_full}\"\n{NARROW}");
    let proxy = Tidegate::start(Hop::Http(wsgi.port), &full_at_two);
    let token = ask_for_token(&proxy);
    let call = |userid: &str| {
        let request = format!(
            "GET /guests/{userid}/info HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
             X-Auth-Token: {token}\r\n\r\n"
        );
        Wire::to(proxy.port).with(request.as_bytes())
    };
    let running = call("SLOW20");
    until("the first call runs", || {
        (backend.seen().in_flight == 1).then_some(())
    });
    let waiting = [call("HRX00001"), call("HRX00002")];
    proxy.until_waiting(2);
    let at_the_door = next_call(call("HRX00003"), &proxy);

    ask_for_token(&proxy);
    assert_eq!(proxy.waiting(), 2, "the queue was full all that time");
    assert_eq!(backend.seen().in_flight, 1);
    let [first, second] = waiting;
    let mut calls = vec![
        (running, "SLOW20"),
        (first, "HRX00001"),
        (second, "HRX00002"),
    ];
    calls.extend(at_the_door.map(|wire| (wire, "HRX00003")));
    for (wire, userid) in calls {
        let (status, body) = wire.http();
        assert!(status == 200 && body.contains(userid), "{status} {body}");
    }
}

fn ask_for_token(proxy: &Tidegate) -> String {
    let request = format!(
        "POST /token HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
         X-Admin-Token: {ADMIN_TOKEN}\r\nContent-Length: 0\r\n\r\n"
    );
    let (answer, _) = Wire::to(proxy.port).with(request.as_bytes()).answer();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let token = answer.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("x-auth-token").then_some(value)
    });
    token
        .unwrap_or_else(|| panic!("no token in {answer}"))
        .to_owned()
}

#[test]
fn a_token_is_given_out_while_a_full_queue_refuses() {
    check_token("refuse", |call, _| {
        let (status, body) = call.http();
        assert_eq!(status, 503, "{body}");
        None
    });
}

#[test]
fn a_token_is_given_out_while_a_full_queue_lets_wait() {
    check_token("wait", |call, proxy| {
        until("the next call waits at the door", || {
            (proxy.at_the_door() == 1).then_some(())
        });
        Some(call)
    });
}
