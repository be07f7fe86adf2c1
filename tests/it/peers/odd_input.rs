//! Input that no client library sends. The real server answers some of it with a closed connection only when the
//! next client comes, and some with nothing; through Tidegate each gets an answer and a close, and the backend
//! never hears of it.

use serde_json::Value;
use tidegate::call::Reason;

use super::stage::{Backend, Hop, Tidegate, WIDE};
use super::wire::{End, Wire, info};

fn stage() -> (Backend, Tidegate) {
    let backend = Backend::quick();
    let rest = format!("[client]\nrequest_timeout = \"500ms\"\nidle_timeout = \"500ms\"\n{WIDE}");
    let proxy = Tidegate::start(Hop::Socket(backend.port), &rest);
    (backend, proxy)
}

/// The answer has the shape of the sdkserver's own, and says this.
fn check_refused(answer: &Value, reason: Reason, input: &str) {
    let code = ["overallRC", "modID", "rc", "rs"].map(|key| answer[key].as_i64());
    let rs = i64::from(reason.rs());
    assert_eq!(
        code,
        [Some(400), Some(130), Some(400), Some(rs)],
        "{input}: {answer}"
    );
    assert_eq!(answer["output"], "", "{input}: {answer}");
    let errmsg = answer["errmsg"].as_str().expect("a text");
    assert!(!errmsg.is_empty(), "{input}: {answer}");
}

fn check_served(answer: &Value, input: &str) {
    assert_eq!(answer["overallRC"], 0, "{input}: {answer}");
    assert_eq!(answer["output"]["userid"], "HRX00000", "{input}: {answer}");
}

/// `info` in this many bytes, by blanks between its tokens.
fn padded(bytes: usize) -> String {
    let call = info("HRX00000");
    let blanks = " ".repeat(bytes - call.len());
    call.replace("{}", &format!("{blanks}{{}}"))
}

#[test]
fn bytes_that_are_no_call_are_answered_and_never_reach_the_backend() {
    let (backend, proxy) = stage();
    let call = info("HRX00000");
    let two = format!("{call}{call}");
    for (input, bytes) in [
        ("no JSON", b"hello\n".as_slice()),
        ("not UTF-8", b"\xff\xfe[\"guest_list\""),
        (
            "not UTF-8 within a string",
            b"[\"guest_get_info\", [\"\xff\xfe\"], {}]",
        ),
        ("an object", b"{\"a\": 1}"),
        ("a number", b"7\n"),
        ("an array of two", b"[\"guest_list\", []]"),
        ("an array of four", b"[\"guest_list\", [], {}, 1]"),
        ("a name that is no string", b"[7, [], {}]"),
        ("no name", b"[\"\", [], {}]"),
        ("args that are no array", b"[\"guest_list\", {}, {}]"),
        ("kwargs null", b"[\"guest_list\", [], null]"),
        ("a comma too many", b"[\"guest_list\", [], {},]"),
        ("two calls in one write", two.as_bytes()),
        ("a call and more", b"[\"guest_list\", [], {}] x"),
    ] {
        let answer = Wire::to(proxy.port).with(bytes).object();
        check_refused(&answer, Reason::BadRequest, input);
    }
    let half = &call.as_bytes()[..20];
    let answer = Wire::to(proxy.port).with(half).half_closed().object();
    check_refused(
        &answer,
        Reason::BadRequest,
        "half a call, then half a close",
    );
    let answer = Wire::to(proxy.port).with(half).object();
    check_refused(&answer, Reason::RequestSlow, "half a call, then silence");

    let seen = backend.seen();
    assert_eq!((seen.total, seen.connections), (0, 0), "{seen:?}");
}

#[test]
fn a_silent_client_is_disconnected() {
    let (backend, proxy) = stage();
    let nothing = Wire::to(proxy.port).half_closed().answer();
    assert_eq!(nothing, (vec![], End::Eof), "nothing, then half a close");
    // The proxy may choose its answer, but it closes within the time for a request.
    let (_, end) = Wire::to(proxy.port).answer();
    assert_eq!(end, End::Eof, "nothing, and no close");
    assert_eq!(backend.seen().connections, 0);
}

#[test]
fn a_call_is_served_however_its_bytes_come() {
    let (backend, proxy) = stage();
    let call = info("HRX00000");
    let check = |input: &str, wire: Wire| check_served(&wire.object(), input);
    let open = || Wire::to(proxy.port);
    check("one write", open().with(call.as_bytes()));
    check(
        "then half a close",
        open().with(call.as_bytes()).half_closed(),
    );
    check(
        "then a newline",
        open().with(format!("{call}\n").as_bytes()),
    );
    check(
        "after blanks",
        open().with(format!(" \r\n\t{call}").as_bytes()),
    );
    let bytewise = call.bytes().fold(open(), |wire, byte| wire.with(&[byte]));
    check("byte by byte", bytewise);
    check(
        "no more than the backend reads",
        open().with(padded(4096).as_bytes()),
    );
    // Without its blanks it fits.
    check("one byte more", open().with(padded(4097).as_bytes()));
    check("far more", open().with(padded(8000).as_bytes()));
    assert_eq!(backend.seen().total, 8);
}

#[test]
fn a_call_split_in_two_with_a_pause_between_is_served() {
    let (backend, proxy) = stage();
    let call = info("HRX00000");
    let wire = Wire::to(proxy.port).with(&call.as_bytes()[..20]);
    // The pause: another call comes and goes.
    check_served(&Wire::calling(proxy.port, "HRX00000").object(), "the other");
    check_served(&wire.with(&call.as_bytes()[20..]).object(), "the split one");
    assert_eq!(backend.seen().total, 2);
}

#[test]
fn a_request_the_backend_cannot_read_gets_a_readable_refusal() {
    let (backend, proxy) = stage();
    for bytes in [4097, 8192, 30_000] {
        // Without blanks there is nothing to take out.
        let call = |userid: &str| info(userid).replace(' ', "");
        let call = call(&"X".repeat(bytes - call("").len()));
        assert_eq!(call.len(), bytes);
        let answer = Wire::to(proxy.port).with(call.as_bytes()).object();
        check_refused(&answer, Reason::TooLarge, &format!("{bytes} bytes"));
    }
    // So much is not read to its end, so that the answer may be lost on its way; but the
    // connection ends.
    let million = |byte: u8| vec![byte; 1 << 20];
    for (input, bytes) in [
        ("a million brackets", million(b'[')),
        (
            "a string of a million",
            [b"[\"".as_slice(), &million(b'x')].concat(),
        ),
        ("a million blanks", million(b' ')),
    ] {
        let (answer, _) = Wire::to(proxy.port)
            .with_as_much_as_it_takes(&bytes)
            .answer();
        if let Ok(answer) = serde_json::from_slice::<Value>(&answer) {
            assert_eq!(answer["overallRC"], 400, "{input}: {answer}");
        }
    }
    let seen = backend.seen();
    assert_eq!((seen.total, seen.connections), (0, 0), "{seen:?}");
}

#[test]
fn arguments_are_judged_by_the_backend_alone() {
    let (backend, proxy) = stage();
    for call in [
        r#"["_vmops", [], {}]"#,
        r#"["no_such_function", [], {}]"#,
        r#"["guest_get_info", [], {}]"#,
        r#"["guest_get_info", ["HRX00000"], {"no_such": 1}]"#,
    ] {
        let direct = Wire::to(backend.port).with(call.as_bytes()).answer();
        let through = Wire::to(proxy.port).with(call.as_bytes()).answer();
        assert_eq!(through, direct, "{call}");
    }
}
