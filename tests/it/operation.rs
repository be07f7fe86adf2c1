//! A call is classified by the table, the operator's routes and its method.

use std::sync::Arc;

use bytes::Bytes;
use tidegate::call::sdk::{ArrayCall, BackendKind, array};
use tidegate::call::{
    ByteStream, Destination, HttpCall, Message, Origin, ReplyBody, Request, RequestBody,
};
use tidegate::classify::{Classifier, ClassifierSettings, OddPaths, Operation, Route, class};
use tidegate_limits::Timestamp;

use crate::support::identity;

fn settings() -> ClassifierSettings {
    ClassifierSettings {
        kind: BackendKind::Zvm,
        odd_paths: OddPaths::Refuse,
        routes: Vec::new(),
        functions: vec!["of_a_site".into()],
        has_socket: true,
        has_http: true,
        exempt: Vec::new(),
        classes: class::ClassSettings::default(),
        jobs: tidegate::call::jobs::JobSettings::default(),
    }
}

fn origin() -> Origin {
    Origin {
        identity: identity("nova", ([127, 0, 0, 1], 50_000)),
        arrived: Timestamp::ZERO,
    }
}

fn request(message: Message) -> Request {
    Request {
        origin: origin(),
        message,
    }
}

fn http_message(method: &str, path: &str, body: &'static str) -> Message {
    let request = http::Request::builder().method(method).uri(path).body(());
    let (head, ()) = request.expect("a good request").into_parts();
    // As the HTTP side reads it: an array posted to / is a call of the socket protocol.
    let array = (path == "/" && body.trim_start().starts_with('['))
        .then(|| array::parse(body.trim().as_bytes(), 4096).ok())
        .flatten();
    let body = RequestBody::Whole(Bytes::from_static(body.as_bytes()));
    Message::Http(Box::new(HttpCall {
        array: array.map(Box::new),
        ..HttpCall::new(Arc::new(head.into()), body)
    }))
}

fn array_message(function: &str, target: Option<&str>) -> Message {
    Message::Socket(Box::new(ArrayCall {
        bytes: Bytes::from_static(b"[]"),
        function: function.into(),
        target: target.map(Into::into),
    }))
}

fn classify(settings: &ClassifierSettings, message: Message) -> Operation {
    Classifier::new(settings).classify(&request(message))
}

/// In short: function, label, target, destination, limited.
fn in_short(operation: &Operation) -> String {
    format!(
        "{} {} {} {:?} {}",
        operation.function,
        operation.label,
        operation.target.as_deref().unwrap_or("-"),
        operation.destination,
        if operation.limited { "limited" } else { "free" },
    )
}

fn check(message: Message, expected: &str) {
    assert_eq!(in_short(&classify(&settings(), message)), expected);
}

#[test]
fn a_call_of_either_dialect_is_known_for_the_same() {
    check(
        array_message("guest_get_info", Some("U1")),
        "guest_get_info guest_get_info U1 Socket limited",
    );
    check(
        http_message("GET", "/guests/U1/info?x=1", ""),
        "guest_get_info guest_get_info U1 Http limited",
    );
    check(
        http_message("POST", "/guests/U1/action", r#"{"action": "deploy"}"#),
        "guest_deploy guest_deploy U1 Http limited",
    );
    check(
        http_message("POST", "/", r#" ["guest_list", [], {}]"#),
        "guest_list guest_list - Socket limited",
    );
}

#[test]
fn labels_come_from_a_bounded_set_and_names_are_exact() {
    check(
        array_message("not_in_the_table", None),
        "not_in_the_table other - Socket limited",
    );
    check(
        array_message("of_a_site", None),
        "of_a_site of_a_site - Socket limited",
    );
    check(
        http_message("POST", "/", r#"["not_in_the_table", [], {}]"#),
        "not_in_the_table other - Socket limited",
    );
    check(
        http_message("POST", "/guests/U1/action", "no JSON"),
        "other other U1 Http limited",
    );
    check(
        http_message("GET", "/nowhere", ""),
        "other other - Http limited",
    );
    check(
        http_message("POST", "/", "{}"),
        "other other - Http limited",
    );
    let tunnel = Classifier::new(&settings()).tunnel(&origin());
    assert_eq!(in_short(&tunnel), "other other - Tcp limited");
}

#[test]
fn calls_that_reach_no_sdk_meet_no_limit() {
    check(
        http_message("POST", "/token", ""),
        "other other - Http free",
    );
    check(http_message("GET", "/", ""), "other other - Http free");
    check(http_message("PUT", "/files", ""), "other other - Http free");
}

#[test]
fn a_call_without_its_backend_is_for_nowhere() {
    let check = |has_socket, has_http, message, destination| {
        let settings = ClassifierSettings {
            has_socket,
            has_http,
            ..settings()
        };
        assert_eq!(classify(&settings, message).destination, destination);
    };
    let array = || array_message("guest_list", None);
    let rest = || http_message("GET", "/guests", "");
    let dressed = || http_message("POST", "/", r#"["guest_list", [], {}]"#);
    check(true, false, array(), Destination::Socket);
    check(true, false, rest(), Destination::Nowhere);
    check(true, false, dressed(), Destination::Socket);
    check(false, true, array(), Destination::Nowhere);
    check(false, true, rest(), Destination::Http);
    check(false, true, dressed(), Destination::Http);
    check(false, false, dressed(), Destination::Nowhere);
}

#[test]
fn the_operators_routes_are_asked_first() {
    let route = Route::new;
    let settings = ClassifierSettings {
        routes: vec![
            route("GET", "/v3/servers/{id}", Some("show_server")),
            route("*", "/v3/{any}/{userid}/x", Some("guest_list")),
            route("GET", "/guests/", None),
            route("POST", "/guests/{userid}/action", Some("any_action")),
        ],
        ..settings()
    };
    let check = |method, path, expected: &str| {
        let operation = classify(&settings, http_message(method, path, ""));
        assert_eq!(in_short(&operation), expected, "{method} {path}");
    };
    check(
        "GET",
        "/v3/servers/9",
        "show_server show_server - Http limited",
    );
    check(
        "HEAD",
        "/v3/servers/9/",
        "show_server show_server - Http limited",
    );
    check("PUT", "/v3/servers/9", "other other - Http limited");
    check(
        "PATCH",
        "/v3/q/U1/x",
        "guest_list guest_list U1 Http limited",
    );
    check("GET", "/guests", "other other - Http free");
    check(
        "POST",
        "/guests",
        "guest_create guest_create - Http limited",
    );
    check(
        "POST",
        "/guests/U1/action",
        "any_action any_action U1 Http limited",
    );
}

#[test]
fn a_body_too_large_to_read_is_missed_only_where_it_names_the_function() {
    let is_unread = |settings: &ClassifierSettings, method, path| {
        let Message::Http(mut call) = http_message(method, path, "") else {
            unreachable!("it is HTTP");
        };
        call.body = RequestBody::Streamed {
            read: Bytes::new(),
            rest: ByteStream::new(ReplyBody::whole(Bytes::new())),
        };
        Classifier::new(settings)
            .classify(&request(Message::Http(call)))
            .is_unread
    };
    let plain = settings();
    assert!(is_unread(&plain, "POST", "/"));
    assert!(is_unread(&plain, "POST", "/guests/U1/action"));
    assert!(is_unread(&plain, "PUT", "/guests/U1/nic/1000"));
    assert!(is_unread(&plain, "PUT", "/vswitches/V1"));
    assert!(!is_unread(&plain, "POST", "/guests"));
    assert!(!is_unread(&plain, "PUT", "/files"));
    assert!(!is_unread(&plain, "POST", "/nowhere"));
    let own = ClassifierSettings {
        routes: vec![Route::new("POST", "/", None)],
        ..settings()
    };
    assert!(!is_unread(&own, "POST", "/"));
}

#[test]
fn the_table_and_else_the_method_decides_what_is_a_write() {
    let own = ClassifierSettings {
        routes: vec![Route::new("*", "/own/{userid}", Some("of_a_site"))],
        ..settings()
    };
    let check = |message: Message, may_change: bool, guest: Option<&str>| {
        let request = request(message);
        let operation = Classifier::new(&own).classify(&request);
        let told = (
            operation.may_change(&request.message),
            operation.only_guest(),
        );
        assert_eq!(told, (may_change, guest), "{operation:?}");
    };
    check(
        array_message("guest_get_info", Some("U1")),
        false,
        Some("U1"),
    );
    check(array_message("guest_start", Some("U1")), true, Some("U1"));
    check(array_message("image_delete", None), true, None);
    check(http_message("GET", "/guests", ""), false, None);
    check(http_message("DELETE", "/guests/U1", ""), true, Some("U1"));
    check(
        http_message("GET", "/volumes/conn/U1", ""),
        true,
        Some("U1"),
    );
    check(
        http_message("POST", "/", r#"["guest_list", [], {}]"#),
        false,
        None,
    );
    // An unknown function may change any guest, even if its name suggests otherwise.
    check(array_message("guest_new", Some("U1")), true, None);
    check(http_message("POST", "/nowhere", ""), true, None);
    check(http_message("GET", "/nowhere", ""), false, None);
    check(http_message("GET", "/own/U1", ""), false, None);
    check(http_message("POST", "/own/U1", ""), true, None);
    // What reaches no SDK changes no guest.
    check(http_message("POST", "/token", ""), false, None);
}
