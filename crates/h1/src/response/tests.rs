use super::*;

fn whole(head: &str, to_head: bool) -> ResponseHead {
    match read(head.as_bytes(), to_head, 64) {
        Ok(Some(response)) => response,
        other => panic!("{head:?}: {other:?}"),
    }
}

fn framing(fields: &str) -> Result<(Framing, bool), ResponseFlaw> {
    let head = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
    let response = read(head.as_bytes(), false, 64)?.expect("it is whole");
    Ok((response.framing, response.closes))
}

#[test]
fn how_a_body_ends() {
    use Framing::{Chunked, Close, Length};
    assert_eq!(framing(""), Ok((Close, true)));
    assert_eq!(framing("Content-Length: 5\r\n"), Ok((Length(5), false)));
    assert_eq!(framing("Content-Length: 5, 5\r\n"), Ok((Length(5), false)));
    assert_eq!(
        framing("Content-Length: 5\r\nContent-Length: 5\r\n"),
        Ok((Length(5), false))
    );
    assert_eq!(
        framing("Content-Length: 5\r\nConnection: x, Close\r\n"),
        Ok((Length(5), true))
    );
    assert_eq!(
        framing("Transfer-Encoding: chunked\r\n"),
        Ok((Chunked, false))
    );
    assert_eq!(
        framing("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
        Ok((Chunked, false))
    );
    for bad in [
        "5, 6",
        "",
        "+5",
        "five",
        "5 5",
        "18446744073709551614",
        "99999999999999999999",
    ] {
        assert_eq!(
            framing(&format!("Content-Length: {bad}\r\n")),
            Err(ResponseFlaw::Length),
            "{bad}"
        );
    }
    for bad in [
        "cow",
        "gzip, chunked",
        "chunked, gzip",
        "identity",
        "chunked\r\nTransfer-Encoding: chunked",
    ] {
        assert_eq!(
            framing(&format!("Transfer-Encoding: {bad}\r\n")),
            Err(ResponseFlaw::Coding),
            "{bad}"
        );
    }
}

#[test]
fn what_has_no_body() {
    for (head, to_head, announced) in [
        (
            "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n",
            false,
            None,
        ),
        (
            "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
            false,
            None,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            true,
            Some(5),
        ),
        ("HTTP/1.1 200 OK\r\n\r\n", true, None),
        ("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", false, None),
    ] {
        let response = whole(head, to_head);
        assert_eq!(response.framing, Framing::None, "{head}");
        assert_eq!(response.announced, announced, "{head}");
        assert!(!response.closes, "{head}");
    }
}

#[test]
fn a_switch_names_its_protocol() {
    let good = "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: a/1\r\n\r\n";
    for (from, to, protocol) in [
        ("", "", Some(&b"a/1"[..])),
        ("Connection", "X", None),
        ("Upgrade: a/1", "Upgrade: a/1\r\nUpgrade: a/1", None),
        ("Upgrade: a/1", "X: a/1", None),
        ("1.1", "1.0", None),
        ("101", "103", None),
    ] {
        let head = good.replace(from, to);
        let head = if from.is_empty() { good } else { &head };
        let response = whole(head, false);
        let upgrade = response.upgrade.map(|it| it.of(head.as_bytes()));
        assert_eq!(upgrade, protocol, "{head}");
        assert_eq!(response.framing, Framing::None, "{head}");
    }
}

#[test]
fn a_login_of_the_connection_is_noted() {
    for (value, is_stateful) in [
        ("NTLM", true),
        ("negotiate abc=", true),
        ("Basic realm=\"a\", Negotiate", true),
        ("Digest a=b,kerberos", true),
        ("Basic realm=\"NTLM\"", false),
        ("Negotiated", false),
        ("Basic, ntlm=1", false),
    ] {
        let head = format!("HTTP/1.1 401 x\r\nWWW-Authenticate: {value}\r\n\r\n");
        let response = whole(&head, false);
        assert_eq!(response.is_stateful, is_stateful, "{value}");
        assert_eq!(response.fields.len(), 1);
    }
}

#[test]
fn http_1_0_closes_unless_it_says_otherwise() {
    assert!(whole("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", false).closes);
    assert!(
        !whole(
            "HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n",
            false
        )
        .closes
    );
    let doubtful = "HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive, \u{e9}\r\n\r\n";
    assert!(whole(doubtful, false).closes);
    let coded = b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(read(coded, false, 64), Err(ResponseFlaw::EarlyCoding));
}

#[test]
fn fields_of_one_hop_and_those_named_are_left_out() {
    let head = "HTTP/1.1 200 Fine\r\nServer: a\r\nConnection: X-Hop, host\r\nx-hop: 1\r\nKeep-Alive: 5\r\nContent-Length: 0\r\nDate: b\r\nHost: h\r\n\r\n";
    let response = whole(head, false);
    let names: Vec<_> = response
        .fields
        .iter()
        .map(|it| it.name.of(head.as_bytes()))
        .collect();
    assert_eq!(names, [&b"Server"[..], b"Date", b"Host"]);
    assert_eq!(response.reason.of(head.as_bytes()), b"Fine");
}

#[test]
fn a_field_that_is_called_close_is_left_out_if_it_is_named() {
    for (connection, left) in [("close", 0), ("x", 1)] {
        let head = format!("HTTP/1.1 204 x\r\nClose: 1\r\nConnection: {connection}\r\n\r\n");
        assert_eq!(whole(&head, false).fields.len(), left, "{connection}");
    }
}

#[test]
fn a_status_has_a_class() {
    for status in ["000", "099"] {
        let head = format!("HTTP/1.1 {status} OK\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(
            read(head.as_bytes(), false, 64),
            Err(ResponseFlaw::Malformed(httparse::Error::Status)),
            "{status}"
        );
    }
}

#[test]
fn a_head_has_bounds() {
    let head = |fields: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(fields));
    assert_eq!(whole(&head(64), false).fields.len(), 64);
    for max in [64, 16] {
        let many = read(head(max + 1).as_bytes(), false, max);
        assert_eq!(many, Err(ResponseFlaw::TooManyFields(max)), "{max}");
    }
    let long = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(HEAD_BYTES_MAX));
    assert_eq!(read(long.as_bytes(), false, 64), Err(ResponseFlaw::Large));
}
