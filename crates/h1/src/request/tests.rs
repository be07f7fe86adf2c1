//! Tests of heads that are read or refused.

use super::*;
use crate::HeadField;

const BOUNDS: HeadBounds = HeadBounds {
    fields: 4,
    bytes: 1024,
};

fn get(fields: &str) -> String {
    format!("GET /a?b=c HTTP/1.1\r\n{fields}\r\n")
}

fn whole(head: &str) -> RequestHead {
    match read(head.as_bytes(), BOUNDS) {
        Ok(Some(request)) => request,
        other => panic!("{head:?}: {other:?}"),
    }
}

/// The fields that pass, as `name=value`.
fn passed(head: &str) -> Vec<String> {
    let text = |span: ByteSpan| {
        str::from_utf8(span.of(head.as_bytes()))
            .expect("text")
            .to_owned()
    };
    let field = |it: &HeadField| format!("{}={}", text(it.name), text(it.value));
    whole(head).fields.iter().map(field).collect()
}

fn flaw(head: &[u8]) -> Flaw {
    match read(head, BOUNDS) {
        Err(bad) => bad.flaw,
        other => panic!("{}: {other:?}", String::from_utf8_lossy(head)),
    }
}

fn is_usual(head: &str) -> bool {
    usual::read(head.as_bytes(), BOUNDS).is_ok()
}

#[test]
fn a_usual_head_is_read() {
    let head = get("Host: t:80\r\nUser-Agent:  x y \r\nX:\r\nConnection: Close\r\n");
    let request = whole(&head);
    assert!(is_usual(&head));
    assert_eq!(request.method.of(head.as_bytes()), b"GET");
    assert_eq!(request.target, RequestTarget::Path(ByteSpan::new(4, 6)));
    assert_eq!(request.version, HttpVersion::Http11);
    assert_eq!(passed(&head), ["Host=t:80", "User-Agent=x y", "X="]);
    assert_eq!(request.framing, Framing::None);
    assert!(request.closes);
    assert_eq!(request.length, head.len());
}

#[test]
fn every_method_is_read_except_connect() {
    for (method, usual) in [
        ("GET", true),
        ("HEAD", true),
        ("POST", true),
        ("PUT", true),
        ("DELETE", true),
        ("OPTIONS", true),
        ("PATCH", true),
        ("TRACE", false),
        ("get", false),
        ("GETX", false),
        ("PATC", false),
        ("P", false),
        ("M-SEARCH", false),
        ("a!#$%&'*+-.^_`|~9", false),
    ] {
        let head = format!("{method} / HTTP/1.1\r\nHost: t\r\n\r\n");
        let read = whole(&head).method.of(head.as_bytes());
        assert_eq!(read, method.as_bytes());
        assert_eq!(is_usual(&head), usual, "{method}");
    }
    assert_eq!(
        flaw(b"CONNECT t:1 HTTP/1.1\r\nHost: t\r\n\r\n"),
        Flaw::Connect
    );
    for method in ["", "GE T", "G\u{e9}T", "G(T"] {
        let head = format!("{method} / HTTP/1.1\r\nHost: t\r\n\r\n");
        assert!(read(head.as_bytes(), BOUNDS).is_err(), "{method}");
    }
}

#[test]
fn framings() {
    for (fields, framing) in [
        ("", Ok(Framing::None)),
        ("Content-Length: 0\r\n", Ok(Framing::Length(0))),
        ("content-length:7\r\n", Ok(Framing::Length(7))),
        ("Content-Length:\t7 \t\r\n", Ok(Framing::Length(7))),
        ("Transfer-Encoding: Chunked\r\n", Ok(Framing::Chunked)),
        (
            "Content-Length: 9999999999999999999\r\n",
            Ok(Framing::Length(9_999_999_999_999_999_999)),
        ),
        (
            "Content-Length: 00000000000000000005\r\n",
            Ok(Framing::Length(5)),
        ),
        (
            "Content-Length: 18446744073709551613\r\n",
            Ok(Framing::Length(18_446_744_073_709_551_613)),
        ),
        (
            "Content-Length: 18446744073709551614\r\n",
            Err(Flaw::Length),
        ),
        (
            "Content-Length: 99999999999999999999\r\n",
            Err(Flaw::Length),
        ),
        ("Content-Length: +1\r\n", Err(Flaw::Length)),
        ("Content-Length: 1, 1\r\n", Err(Flaw::Length)),
        ("Content-Length:\r\n", Err(Flaw::Length)),
        (
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            Err(Flaw::ManyLengths),
        ),
        (
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            Err(Flaw::TwoFramings),
        ),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            Err(Flaw::Coding),
        ),
        ("Transfer-Encoding: gzip, chunked\r\n", Err(Flaw::Coding)),
        ("Transfer-Encoding:\r\n", Err(Flaw::Coding)),
        ("Content_Length: 1\r\n", Err(Flaw::LikeFraming)),
    ] {
        let head = get(&format!("Host: t\r\n{fields}"));
        let read = read(head.as_bytes(), BOUNDS).map(|it| it.expect("whole").framing);
        assert_eq!(read.map_err(|bad| bad.flaw), framing, "{fields:?}");
    }
    let early = "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(flaw(early.as_bytes()), Flaw::EarlyCoding);
}

#[test]
fn what_a_parser_could_read_differently_is_refused() {
    let bad = |head: &str, expected: Flaw| {
        assert_eq!(flaw(head.as_bytes()), expected, "{head:?}");
    };
    bad(&get(""), Flaw::NoHost);
    bad(&get("Host: t\r\nHost: t\r\n"), Flaw::ManyHosts);
    bad(&get("Host: a b\r\n"), Flaw::Host);
    bad(&get("Host: t\n"), Flaw::LineEnd);
    bad("GET / HTTP/1.1\nHost", Flaw::LineEnd);
    bad("\nGET / HTTP/1.1\r\n", Flaw::LineEnd);
    bad("GET / HTTP/1.1\r\nHost: t\r\n\n", Flaw::LineEnd);
    bad("GET / HTTP/1.1\rHost", Flaw::LineEnd);
    bad(&get("Host: t\r\n X: y\r\n"), Flaw::Field);
    bad(&get("Host: t\r\r\n"), Flaw::Field);
    bad(&get("Host: t\r\nX : y\r\n"), Flaw::Field);
    bad(&get("Host: t\r\nX: a\0b\r\n"), Flaw::Field);
    bad(&get("Host: t\r\nX\r\n"), Flaw::Field);
    bad(&get("Host: t\r\n: y\r\n"), Flaw::Field);
    bad("GET  / HTTP/1.1\r\n", Flaw::FirstLine);
    bad("GET /\t HTTP/1.1\r\n", Flaw::FirstLine);
    bad("GET /a\r\n", Flaw::FirstLine);
    bad("GET / HTTP/1.2\r\n", Flaw::Version);
    bad("GET / HTTP/2.0\r\n", Flaw::Version);
    bad("GET /  HTTP/1.1\r\n", Flaw::Version);
}

#[test]
fn targets() {
    let of = |method: &str, target: &str| {
        let head = format!("{method} {target} HTTP/1.1\r\nHost: t\r\nX: y\r\n\r\n");
        let text = |span: ByteSpan| {
            str::from_utf8(span.of(head.as_bytes()))
                .expect("text")
                .to_owned()
        };
        let request = read(head.as_bytes(), BOUNDS).map_err(|bad| bad.flaw)?;
        let request = request.expect("it is whole");
        Ok(match request.target {
            RequestTarget::Path(path) => {
                format!("path {}, {} fields", text(path), request.fields.len())
            }
            RequestTarget::Absolute {
                authority,
                path_and_query,
            } => format!(
                "at {} {}, {} fields",
                text(authority),
                text(path_and_query),
                request.fields.len()
            ),
            RequestTarget::Asterisk => "all".to_owned(),
        })
    };
    for (method, target, expected) in [
        ("GET", "/", Ok("path /, 2 fields")),
        ("GET", "/a\"{}", Ok("path /a\"{}, 2 fields")),
        ("GET", "/\u{e9}", Ok("path /\u{e9}, 2 fields")),
        ("OPTIONS", "*", Ok("all")),
        ("GET", "*", Err(Flaw::Asterisk)),
        ("OPTIONS", "**", Err(Flaw::Authority)),
        ("GET", "/#", Err(Flaw::Fragment)),
        ("GET", "http://t/#a", Err(Flaw::Fragment)),
        ("GET", "http://u", Ok("at u , 1 fields")),
        ("GET", "HTTP://u:80/a?b", Ok("at u:80 /a?b, 1 fields")),
        ("GET", "https://[::1]?b", Ok("at [::1] ?b, 1 fields")),
        ("GET", "x+y://u/", Ok("at u /, 1 fields")),
        ("GET", "http://a@u/", Err(Flaw::User)),
        ("GET", "http://:80/", Err(Flaw::Target)),
        ("GET", "http:///a", Err(Flaw::Target)),
        ("GET", "http://a[b]/", Err(Flaw::Target)),
        ("GET", "http:/a", Err(Flaw::Target)),
        ("GET", "a/b", Err(Flaw::Target)),
        ("GET", "?a", Err(Flaw::Target)),
        ("GET", "t:80", Err(Flaw::Authority)),
        ("GET", "t", Err(Flaw::Authority)),
    ] {
        let expected = expected.map(str::to_owned);
        assert_eq!(of(method, target), expected, "{method} {target}");
    }
}

#[test]
fn empty_lines_before_a_request_are_skipped() {
    let head = format!("\r\n\r\n{}", get("Host: t\r\n"));
    let request = whole(&head);
    assert_eq!(request.method.of(head.as_bytes()), b"GET");
    assert_eq!(request.target, RequestTarget::Path(ByteSpan::new(8, 6)));
    assert_eq!(passed(&head), ["Host=t"]);
    assert_eq!(request.length, head.len());
    for cut in 0..head.len() {
        assert_eq!(read(&head.as_bytes()[..cut], BOUNDS), Ok(None), "{cut}");
    }
    let lines = "\r\n".repeat(513);
    assert_eq!(flaw(lines.as_bytes()), Flaw::TooManyBytes(1024));
}

#[test]
fn http_1_0_closes_unless_it_says_otherwise_and_needs_no_host() {
    let head = "GET / HTTP/1.0\r\n\r\n";
    assert_eq!(whole(head).version, HttpVersion::Http10);
    for (fields, closes) in [
        ("", true),
        ("Connection: Keep-Alive\r\n", false),
        ("Connection: x, keep-alive\r\n", false),
        ("Connection: keep-alive, close\r\n", true),
        ("Connection: keep-alive, \u{e9}\r\n", true),
        ("Connection: x\r\n", true),
    ] {
        let head = format!("GET / HTTP/1.0\r\n{fields}\r\n");
        assert_eq!(whole(&head).closes, closes, "{fields}");
    }
}

#[test]
fn connection_lists_what_is_left_out() {
    let head = get("Host: t\r\nConnection: X-Hop, host\r\nx-hop: 1\r\nClose: 2\r\n");
    assert_eq!(passed(&head), ["Host=t", "Close=2"]);
    assert!(!whole(&head).closes);
    let head = get("Host: t\r\nConnection: a\r\nConnection: b, Close\r\nClose: 2\r\n");
    assert_eq!(passed(&head), ["Host=t"]);
    assert!(whole(&head).closes);
}

#[test]
fn hop_by_hop_fields_are_left_out() {
    for fields in [
        "Keep-Alive: 5\r\nProxy-Connection: x\r\nProxy-Authorization: y\r\n",
        "TE: trailers\r\nTrailer: x\r\nExpect: y\r\n",
        "Upgrade: x\r\nExpect: 100-continue\r\n",
    ] {
        assert_eq!(passed(&get(&format!("Host: t\r\n{fields}"))), ["Host=t"]);
    }
}

#[test]
fn an_expectation_is_that_of_http_1_1() {
    for (version, value, expects) in [
        ("1.1", "100-Continue", true),
        ("1.1", "100-continue, x", false),
        ("1.1", "x", false),
        ("1.0", "100-continue", false),
    ] {
        let head = format!("PUT / HTTP/{version}\r\nHost: t\r\nExpect: {value}\r\n\r\n");
        assert_eq!(whole(&head).expects_continue, expects, "{value}");
    }
}

#[test]
fn another_protocol_is_asked_for_by_three_signs() {
    let asked = |head: &str| {
        let upgrade = whole(head).upgrade?;
        Some(String::from_utf8_lossy(upgrade.of(head.as_bytes())).into_owned())
    };
    let offer = "Host: t\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n";
    assert_eq!(asked(&get(offer)).as_deref(), Some("websocket"));
    assert_eq!(passed(&get(offer)), ["Host=t"]);
    for (from, to) in [
        ("websocket", "a/1, b"),
        ("websocket", "h2c"),
        ("websocket", "a, H2C"),
        ("websocket", "h2c/1"),
        ("websocket", "a b"),
        ("websocket", ""),
        ("keep-alive, Upgrade", "keep-alive"),
        ("Connection", "X"),
        ("\nUpgrade", "\nUpgrade: a\r\nUpgrade"),
        ("Host: t", "Host: t\r\nContent-Length: 0"),
    ] {
        let head = get(&offer.replace(from, to));
        let expected = (to == "a/1, b").then_some(to);
        assert_eq!(asked(&head).as_deref(), expected, "{head}");
    }
    let early = get(offer).replace("HTTP/1.1", "HTTP/1.0");
    assert_eq!(asked(&early), None);
}

#[test]
fn an_offer_of_http_2_is_left_out() {
    let offer =
        "Host: t\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAE\r\n";
    let head = get(offer);
    assert!(is_usual(&head));
    let upper = get(&offer.replace("Upgrade, ", "upgrade,"));
    assert!(!is_usual(&upper));
    for head in [head, upper] {
        assert_eq!(passed(&head), ["Host=t"]);
        assert_eq!(whole(&head).upgrade, None);
    }
    let unnamed = get(&offer.replace("Connection", "X"));
    let left = ["Host=t", "X=Upgrade, HTTP2-Settings", "HTTP2-Settings=AAE"];
    assert_eq!(passed(&unnamed), left);
}

#[test]
fn some_fields_are_noted_in_both_ways_of_reading() {
    for (field, forwarded, stateful, max) in [
        ("X-Forwarded-For: 1", true, false, None),
        ("x-forwarded-proto: 1", true, false, None),
        ("X-Forwarded-Host: 1", true, false, None),
        ("FORWARDED: for=a", true, false, None),
        ("X-Real-IP: a", true, false, None),
        ("X-Forwarded-Port: 1", false, false, None),
        ("Authorization: Basic dTpw", false, false, None),
        ("Authorization: NTLM abc", false, true, None),
        ("authorization: negotiate", false, true, None),
        ("Authorization: Kerberos\tabc", false, true, None),
        ("Authorization: NTLMv9 abc", false, false, None),
        ("Max-Forwards: 0", false, false, Some("0")),
        ("Max-Forwards: 07", false, false, Some("07")),
        ("Max-Forwards: -1", false, false, None),
        ("Max-Forwards: 1\r\nMax-Forwards: 1", false, false, None),
    ] {
        // A tab makes the second one odd.
        for more in ["", "X: a\tb\r\n"] {
            for method in ["GET", "OPTIONS", "TRACE"] {
                let fields = format!("Host: t\r\n{field}\r\n{more}");
                let head = get(&fields).replace("GET", method);
                let request = whole(&head);
                let lines = fields.lines().count();
                assert_eq!(request.fields.len(), lines, "{head}");
                assert_eq!(request.is_forwarded, forwarded, "{head}");
                assert_eq!(request.is_stateful, stateful, "{head}");
                let number = request.max_forwards.map(|it| it.of(head.as_bytes()));
                let expected = max.filter(|_| method != "GET").map(str::as_bytes);
                assert_eq!(number, expected, "{head}");
            }
        }
    }
}

#[test]
fn the_preface_of_http_2_is_recognised_from_its_first_line() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for length in 0..preface.len() {
        let part = &preface[..length];
        match length {
            ..16 => assert_eq!(read(part, BOUNDS), Ok(None)),
            _ => assert_eq!(flaw(part), Flaw::Http2Preface),
        }
    }
    assert_eq!(flaw(b"PRI * HTTP/2.1\r\n"), Flaw::Version);
}

#[test]
fn a_refused_head_says_who_asked() {
    let bad = |head: &str| {
        let bad = read(head.as_bytes(), BOUNDS).expect_err("it is refused");
        let names = bad.fields.iter().map(|it| it.name.of(head.as_bytes()));
        let names = names.map(|it| String::from_utf8_lossy(it).into_owned());
        (bad.to_head, names.collect::<Vec<_>>())
    };
    let head = "HEAD / HTTP/1.1\r\nHost: a b\r\nUser-Agent: x\r\nX:\r\n\r\n";
    assert_eq!(
        bad(head),
        (true, vec!["User-Agent".to_owned(), "X".to_owned()])
    );
    assert_eq!(bad("\r\nHEAD / HTTP/3\r\n\r\n"), (true, vec![]));
    assert_eq!(bad("HEADER / HTTP/3\r\n\r\n"), (false, vec![]));
}

#[test]
fn a_head_has_bounds() {
    let max = Flaw::TooManyFields(4);
    let fields = get("Host: t\r\nA:\r\nB:\r\nC:\r\nD:\r\n");
    assert_eq!(flaw(fields.as_bytes()), max);
    assert_eq!(flaw(fields.replace("A:", "A:\t").as_bytes()), max);
    assert!(max.is_too_large());
    let many = HeadBounds {
        fields: 100,
        ..BOUNDS
    };
    for fields in [99, 100] {
        let head = get(&format!("Host: t\r\n{}", "X:\t\r\n".repeat(fields)));
        let is_good = read(head.as_bytes(), many).is_ok();
        assert_eq!(is_good, fields == 99, "{fields}");
    }
    let max = Flaw::TooManyBytes(1024);
    for head in [
        get(&format!("Host: t\r\nX: {}\r\n", "x".repeat(1024))),
        get(&format!("Host: t\r\nX:\t{}\r\n", "x".repeat(1024))),
        format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "x".repeat(1024)),
        "x".repeat(1025),
    ] {
        assert_eq!(flaw(head.as_bytes()), max);
    }
    for length in [1024, 1025] {
        for space in [" ", "\t"] {
            let head = get("Host: t\r\nX: \r\n");
            let long = format!("X:{space}{}", "x".repeat(length - head.len()));
            let head = head.replace("X: ", &long);
            let is_good = read(head.as_bytes(), BOUNDS).is_ok();
            assert_eq!(is_good, length == 1024, "{length} {space:?}");
        }
    }
}

#[test]
fn every_flaw_has_a_text_of_its_own() {
    let texts: std::collections::BTreeSet<_> =
        Flaw::TEXTS.iter().map(|it| it.to_string()).collect();
    assert_eq!(texts.len(), Flaw::TEXTS.len());
    assert!(texts.iter().all(|it| it.is_ascii()));
}

#[test]
fn a_part_of_a_usual_head_is_a_part() {
    let head = get("Host: t:80\r\nUser-Agent: x\r\nConnection: keep-alive\r\nX: \u{e9}\r\n");
    for cut in 0..head.len() {
        assert_eq!(read(&head.as_bytes()[..cut], BOUNDS), Ok(None), "{cut}");
    }
    let mut bytes = head.clone().into_bytes();
    bytes.extend_from_slice(b"GET / HTTP/1.1\r\n");
    assert_eq!(read(&bytes, BOUNDS), Ok(Some(whole(&head))));
}
