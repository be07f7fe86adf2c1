//! The origin of a call behind a proxy: PROXY headers, `Forwarded`, `X-Forwarded-For`; and the
//! caller in the headers of a request.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::call::identity::Field;
use tidegate::call::{Facts, Peer, Rejection};
use tidegate::protocol::proxy_header::{
    Header, MalformedHeader, V1_BYTES_MAX, V2_BYTES_MAX, parse,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::certificates::{Files, Shows};
use crate::sidecar::Sidecar;
use crate::support::{
    OK, PATIENCE, Scripted, Stack, array, ask, connect, is_rejected, one_listener, pass, read_all,
    settle,
};

const V2_BEGIN: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A header of version 2, and what a proxy adds behind the addresses.
fn v2(command: u8, family: u8, addresses: &[u8], more: &[u8]) -> Vec<u8> {
    let length = u16::try_from(addresses.len() + more.len()).expect("it fits");
    [
        V2_BEGIN,
        &[command, family],
        &length.to_be_bytes(),
        addresses,
        more,
    ]
    .concat()
}

/// From 192.0.2.1:4711 to 203.0.113.7:80.
fn v2_tcp4() -> Vec<u8> {
    let addresses = [192, 0, 2, 1, 203, 0, 113, 7, 0x12, 0x67, 0, 80];
    v2(0x21, 0x11, &addresses, b"")
}

/// From [2001:db8::1]:4711 to [2001:db8::2]:80.
fn v2_tcp6(more: &[u8]) -> Vec<u8> {
    let mut addresses = [0; 36];
    for (at, last) in [(0, 1), (16, 2)] {
        addresses[at..at + 4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        addresses[at + 15] = last;
    }
    addresses[32..].copy_from_slice(&[0x12, 0x67, 0, 80]);
    v2(0x21, 0x21, &addresses, more)
}

const V1_TCP4: &[u8] = b"PROXY TCP4 192.0.2.1 203.0.113.7 4711 80\r\n";

/// Good headers and the client that each names.
fn good_headers() -> Vec<(Vec<u8>, Option<&'static str>)> {
    let tlvs = [&[0x04, 0x01, 0x00][..], &[0xaa; 256]].concat();
    let v1_tcp6 = "PROXY TCP6 2001:db8::1 2001:db8::2 4711 80\r\n";
    let longest = "PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff \
                   ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
    let unknown = "PROXY UNKNOWN ffff:f...f:ffff whatever 65535 65535\r\n";
    let ones = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
    let unix = [0; 216];
    vec![
        (V1_TCP4.to_vec(), Some("192.0.2.1:4711")),
        (v1_tcp6.into(), Some("[2001:db8::1]:4711")),
        (longest.into(), Some(ones)),
        (b"PROXY UNKNOWN\r\n".to_vec(), None),
        (unknown.into(), None),
        (v2_tcp4(), Some("192.0.2.1:4711")),
        (v2_tcp6(b""), Some("[2001:db8::1]:4711")),
        (v2_tcp6(&tlvs), Some("[2001:db8::1]:4711")),
        (v2(0x20, 0x00, b"", b""), None),
        (v2(0x20, 0x11, b"too short", b""), None),
        (v2(0x21, 0x00, b"", &tlvs), None),
        (v2(0x21, 0x12, &[1; 12], b""), None),
        (v2(0x21, 0x31, &unix, b""), None),
        (v2(0x20, 0, b"", &[0; V2_BYTES_MAX - 16]), None),
    ]
}

#[test]
fn a_header_is_read_to_its_end_and_not_a_byte_further() {
    for (header, source) in good_headers() {
        let length = header.len();
        let source = source.map(|text| text.parse().expect("an address"));
        let whole = Ok(Some(Header { length, source }));
        assert_eq!(parse(&header), whole, "{header:?}");
        for end in 0..length {
            assert_eq!(parse(&header[..end]), Ok(None), "{header:?} up to {end}");
        }
        for behind in [&b"["[..], b"GET /", &[0x16, 3, 1], V1_TCP4] {
            assert_eq!(parse(&[&header, behind].concat()), whole);
        }
    }
}

#[test]
fn bytes_that_cannot_be_a_header_are_refused_at_once() {
    let check = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        assert_eq!(parse(bytes), Err(MalformedHeader), "{text:?}");
    };
    check(b"[");
    check(b"GET / HTTP/1.1\r\n");
    check(&[0x16, 3, 1]);
    check(b"proxy ");
    check(b"PROXY\r");
    check(b"\r\n\r\n\0\r\nQUIT\r");
    for line in [
        "TCP4 192.0.2.1 203.0.113.7 4711",
        "TCP4 192.0.2.1 203.0.113.7 4711 80 ",
        "TCP4 192.0.2.1 203.0.113.7 4711 80 1",
        "TCP4 192.0.2.1  203.0.113.7 4711 80",
        "TCP4 192.0.2.256 203.0.113.7 4711 80",
        "TCP4 192.0.2.1 x 4711 80",
        "TCP4 192.0.2.1 203.0.113.7 65536 80",
        "TCP4 192.0.2.1 203.0.113.7 +1 80",
        "TCP4 192.0.2.1 203.0.113.7 4711 ",
        "TCP4 2001:db8::1 2001:db8::2 4711 80",
        "TCP6 192.0.2.1 203.0.113.7 4711 80",
        "UDP4 192.0.2.1 203.0.113.7 4711 80",
        "tcp4 192.0.2.1 203.0.113.7 4711 80",
        "UNKNOWNS",
        "",
        "\u{e9}",
    ] {
        check(format!("PROXY {line}\r\n").as_bytes());
    }
    let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(V1_BYTES_MAX - 15));
    assert_eq!(long.len(), V1_BYTES_MAX + 1);
    check(long.as_bytes());
    // Refused at its bound, though its end has not come.
    check(&long.as_bytes()[..V1_BYTES_MAX]);
    assert_eq!(parse(&long.as_bytes()[..V1_BYTES_MAX - 1]), Ok(None));
    for command in [0x00, 0x10, 0x22, 0x2f, 0x31, 0xff] {
        check(&v2(command, 0x11, &[0; 12], b""));
    }
    check(&v2(0x21, 0x11, &[0; 11], b""));
    check(&v2(0x21, 0x21, &[0; 35], b""));
    // Its length field shows that it is too long.
    let large = v2(0x21, 0x11, &[0; 12], &[0; V2_BYTES_MAX - 27]);
    check(&large[..16]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_after_a_header_that_is_bent_more_bytes_never_undo_an_answer(
        number in 0..14_usize,
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        more in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let (mut header, _) = good_headers().swap_remove(number);
        let at = at.index(header.len());
        header[at] = value;
        let all = [&header[..], &more].concat();
        let mut answer = Ok(None);
        for end in 0..=all.len() {
            let now = parse(&all[..end]);
            if answer != Ok(None) {
                prop_assert_eq!(now, answer, "up to {}", end);
            }
            if let Ok(Some(header)) = now {
                prop_assert!(header.length <= end);
            }
            answer = now;
        }
    }
}

const REQUIRED: &str = "proxy_protocol = \"required\"";

/// The config that the proxy of these tests needs to be believed.
const TRUSTED: &str = "[callers]\ntrusted_proxies = [\"127.0.0.1\"]";

fn get(headers: &str) -> String {
    format!("GET /guests/X/info HTTP/1.1\r\nHost: t\r\n{headers}Connection: close\r\n\r\n")
}

/// The last call that has ended, the `number`-th.
async fn call(stack: &Stack, number: usize) -> Facts {
    let mut all = stack.seen.ended(number).await;
    assert_eq!(all.len(), number);
    all.pop().expect("there is one")
}

#[tokio::test]
async fn both_protocols_work_behind_a_header_and_come_from_the_named_client() {
    let backend = Scripted::in_both_dialects().await;
    let stack = Stack::start(&one_listener(backend.addr, REQUIRED, TRUSTED));
    let mut number = 0;
    for (header, source) in good_headers() {
        let source = source.map(|text| text.parse::<SocketAddr>().expect("an address"));
        for bytes in [array("guest_get_info", "X"), get("")] {
            let answer = ask(stack.addr, [&header, bytes.as_bytes()].concat()).await;
            assert!(answer.contains("overallRC\": 0"), "{answer}");
            number += 1;
            let identity = call(&stack, number).await.origin.identity;
            let address = source.map_or(LOOPBACK, |source| source.ip());
            assert_eq!(identity.address, Some(address));
            let Peer::Tcp(peer) = identity.peer else {
                panic!("it came over TCP")
            };
            assert_eq!(peer.ip(), LOOPBACK);
        }
    }
    stack.at_rest().await;
}

#[tokio::test]
async fn a_header_may_be_split_at_every_byte() {
    let backend = Scripted::in_both_dialects().await;
    let stack = Stack::start(&one_listener(backend.addr, REQUIRED, TRUSTED));
    let call_bytes = array("guest_get_info", "X");
    let mut number = 0;
    for header in [V1_TCP4.to_vec(), v2_tcp4()] {
        let all = [&header, call_bytes.as_bytes()].concat();
        for at in 1..=header.len() {
            let mut stream = connect(stack.addr).await;
            stream.set_nodelay(true).expect("a socket takes it");
            stream.write_all(&all[..at]).await.expect("it reads");
            settle().await;
            stream.write_all(&all[at..]).await.expect("it reads");
            assert_eq!(read_all(&mut stream).await.as_bytes(), OK);
            number += 1;
            let identity = call(&stack, number).await.origin.identity;
            assert_eq!(identity.address, "192.0.2.1".parse().ok());
        }
        let mut stream = connect(stack.addr).await;
        stream.set_nodelay(true).expect("a socket takes it");
        for byte in &all {
            stream.write_all(&[*byte]).await.expect("it reads");
            settle().await;
        }
        assert_eq!(read_all(&mut stream).await.as_bytes(), OK);
        number += 1;
    }
    assert_eq!(stack.seen.ended(number).await.len(), number);
}

#[tokio::test]
async fn a_connection_without_the_header_is_closed_and_counted() {
    let backend = Scripted::in_both_dialects().await;
    let stack = Stack::start(&one_listener(backend.addr, REQUIRED, TRUSTED));
    let call = array("guest_get_info", "X");
    let oversized = v2(0x21, 0x11, &[0; 12], &[0; V2_BYTES_MAX]);
    let http = get("");
    let bad: [&[u8]; 5] = [
        call.as_bytes(),
        http.as_bytes(),
        &[0x16, 3, 1, 0, 5],
        b"PROXY TCP4 192.0.2.1\r\n",
        &oversized,
    ];
    for bytes in bad {
        is_rejected(stack.addr, bytes).await;
    }
    assert_eq!(stack.seen.rejected(5).await, [Rejection::ProxyHeader; 5]);
    assert!(stack.seen.all().is_empty());
}

#[tokio::test]
async fn a_header_that_ends_in_the_middle_or_never_is_given_up() {
    let backend = Scripted::in_both_dialects().await;
    let short = format!("{TRUSTED}\n[client]\nhandshake_timeout = \"50ms\"");
    let stack = Stack::start(&one_listener(backend.addr, REQUIRED, &short));
    let mut cut = connect(stack.addr).await;
    cut.write_all(&V1_TCP4[..20]).await.expect("it reads");
    cut.shutdown().await.expect("the end is sent");
    assert_eq!(read_all(&mut cut).await, "");
    assert_eq!(stack.seen.rejected(1).await, [Rejection::ProxyHeader]);
    for begin in [&V1_TCP4[..20], &v2_tcp4()[..20]] {
        is_rejected(stack.addr, begin).await;
    }
    let expected = [
        Rejection::ProxyHeader,
        Rejection::HandshakeTimeout,
        Rejection::HandshakeTimeout,
    ];
    assert_eq!(stack.seen.rejected(3).await, expected);
    // A silent client is not counted.
    is_rejected(stack.addr, b"").await;
    drop(connect(stack.addr).await);
    crate::support::until(|| stack.connections.open() == 0, || "still open".into()).await;
    assert_eq!(stack.seen.rejected(3).await.len(), 3);
}

#[tokio::test]
async fn a_header_from_an_untrusted_peer_closes_the_connection() {
    let backend = Scripted::in_both_dialects().await;
    let elsewhere = "[callers]\ntrusted_proxies = [\"192.0.2.0/24\"]";
    let stack = Stack::start(&one_listener(backend.addr, REQUIRED, elsewhere));
    let call = [V1_TCP4, array("guest_get_info", "X").as_bytes()].concat();
    is_rejected(stack.addr, call).await;
    assert_eq!(stack.seen.rejected(1).await, [Rejection::UntrustedProxy]);
    assert!(stack.seen.all().is_empty());
}

#[tokio::test]
async fn a_header_that_is_not_asked_for_is_no_request() {
    let backend = Scripted::in_both_dialects().await;
    let stack = Stack::start(&one_listener(backend.addr, "", TRUSTED));
    for header in [V1_TCP4.to_vec(), v2_tcp4()] {
        let call = array("guest_get_info", "X");
        let answer = ask(stack.addr, [&header, call.as_bytes()].concat()).await;
        assert!(!answer.contains("overallRC\": 0"), "{answer}");
        for facts in stack.seen.all() {
            assert_eq!(facts.origin.identity.address, Some(LOOPBACK));
            assert_eq!(facts.sent, None);
        }
    }
}

#[tokio::test]
async fn tls_begins_right_behind_a_header() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let listener = format!(
        "{REQUIRED}\nuser_from = \"certificate\"\n{}",
        files.asking("required", "required = true")
    );
    let stack = Stack::start(&one_listener(backend.addr, &listener, TRUSTED));
    for header in [V1_TCP4.to_vec(), v2_tcp4(), v2_tcp6(&[0; 64])] {
        let mut stream = connect(stack.addr).await;
        stream.write_all(&header).await.expect("it reads");
        let stream = files.connect(stream, Shows::Name("nova")).await;
        let mut stream = stream.expect("the handshake");
        let bytes = get("");
        stream.write_all(bytes.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        let reading = stream.read_to_string(&mut answer);
        let read = tokio::time::timeout(PATIENCE, reading).await;
        read.expect("in time").expect("it is answered");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let addresses = stack.seen.ended(3).await.into_iter().map(|facts| {
        let identity = facts.origin.identity;
        assert_eq!(identity.user.as_deref(), Some("nova"));
        identity.address.expect("it has one").to_string()
    });
    let expected = ["192.0.2.1", "192.0.2.1", "2001:db8::1"];
    assert_eq!(addresses.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn forwarded_counts_only_from_a_trusted_proxy() {
    let backend = Scripted::in_both_dialects().await;
    let forged = get("Forwarded: for=192.0.2.1\r\nX-Forwarded-For: 192.0.2.2\r\n");
    for (trusted, address) in [
        ("[\"127.0.0.1\"]", "192.0.2.1"),
        ("[\"127.0.0.0/8\", \"192.0.2.0/24\"]", "192.0.2.1"),
        ("[\"10.0.0.0/8\"]", "127.0.0.1"),
        ("[\"unix\"]", "127.0.0.1"),
        ("[]", "127.0.0.1"),
    ] {
        let callers = format!("[callers]\ntrusted_proxies = {trusted}");
        let stack = Stack::start(&one_listener(backend.addr, "", &callers));
        ask(stack.addr, &forged).await;
        let identity = call(&stack, 1).await.origin.identity;
        assert_eq!(identity.address, address.parse().ok(), "{trusted}");
        assert!(identity.unusable.is_empty());
    }
}

#[tokio::test]
async fn behind_a_header_forwarded_counts_if_that_names_another_trusted_proxy() {
    let backend = Scripted::in_both_dialects().await;
    let callers = "[callers]\ntrusted_proxies = [\"127.0.0.1\", \"192.0.2.1\"]";
    let stack = Stack::start(&one_listener(backend.addr, REQUIRED, callers));
    let request = get("X-Forwarded-For: 198.51.100.9\r\n");
    let other = b"PROXY TCP4 192.0.2.99 203.0.113.7 4711 80\r\n";
    for (number, (header, address)) in [(V1_TCP4, "198.51.100.9"), (&other[..], "192.0.2.99")]
        .into_iter()
        .enumerate()
    {
        ask(stack.addr, [header, request.as_bytes()].concat()).await;
        let identity = call(&stack, number + 1).await.origin.identity;
        assert_eq!(identity.address, address.parse().ok());
    }
}

#[tokio::test]
async fn each_request_of_a_connection_is_known_by_its_own_headers() {
    let backend = Scripted::in_both_dialects().await;
    let stack = Stack::start(&one_listener(
        backend.addr,
        "user_from = \"basic\"",
        TRUSTED,
    ));
    let request = |headers: &str| get(headers).replace("Connection: close\r\n", "");
    let nova = "User-Agent: python-requests/2.31\r\nOriginator: nova\r\n\
                Authorization: Basic bm92YTpzZWNyZXQ=\r\n";
    let other = "User-Agent: foo*\r\nX-Forwarded-For: 192.0.2.1\r\n";
    let bytes = [request(nova), request(nova), request(other), get("")].concat();
    let answers = ask(stack.addr, bytes).await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 4, "{answers}");
    let identities: Vec<_> = stack
        .seen
        .ended(4)
        .await
        .into_iter()
        .map(|facts| facts.origin.identity)
        .collect();
    let [first, second, third, fourth] = &identities[..] else {
        panic!("four calls")
    };
    assert_eq!(first.user.as_deref(), Some("nova"));
    assert_eq!(first.user_agent.as_deref(), Some("python-requests/2.31"));
    assert_eq!(first.originator.as_deref(), Some("nova"));
    assert_eq!(first.address, Some(LOOPBACK));
    assert!(Arc::ptr_eq(first, second), "one for all that say the same");
    assert_eq!(
        third.user_agent.as_deref(),
        Some("foo*"),
        "exactly as it came"
    );
    assert_eq!((&third.user, &third.originator), (&None, &None));
    assert_eq!(third.address, "192.0.2.1".parse().ok());
    assert_eq!(
        (&fourth.user_agent, fourth.address),
        (&None, Some(LOOPBACK))
    );
}

#[tokio::test]
async fn a_value_that_is_too_long_or_malformed_counts_as_absent() {
    let backend = Scripted::in_both_dialects().await;
    let stack = Stack::start(&one_listener(
        backend.addr,
        "user_from = \"basic\"",
        TRUSTED,
    ));
    let long = "x".repeat(257);
    let cases = [
        (format!("User-Agent: {long}\r\n"), Field::UserAgent),
        (
            "User-Agent: a\r\nUser-Agent: b\r\n".into(),
            Field::UserAgent,
        ),
        (format!("Originator: {long}\r\n"), Field::Originator),
        ("Originator: a\tb\r\n".into(), Field::Originator),
        ("Authorization: Basic !\r\n".into(), Field::User),
        ("Forwarded: for=_hidden\r\n".into(), Field::Address),
        ("X-Forwarded-For: 1.2.3\r\n".into(), Field::Address),
    ];
    for (number, (headers, field)) in cases.into_iter().enumerate() {
        let answer = ask(stack.addr, get(&headers)).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{headers}: {answer}");
        let identity = call(&stack, number + 1).await.origin.identity;
        assert_eq!(
            identity.unusable.iter().collect::<Vec<_>>(),
            [field],
            "{headers}"
        );
        assert_eq!(identity.address, Some(LOOPBACK));
        assert_eq!(
            (&identity.user, &identity.user_agent, &identity.originator),
            (&None, &None, &None)
        );
    }
}

#[tokio::test]
async fn a_user_is_taken_from_basic_authentication_only_where_that_is_said() {
    let backend = Scripted::in_both_dialects().await;
    let stack = Stack::start(&one_listener(backend.addr, "", TRUSTED));
    ask(stack.addr, get("Authorization: Basic bm92YTpzZWNyZXQ=\r\n")).await;
    assert_eq!(call(&stack, 1).await.origin.identity.user, None);
}

#[tokio::test]
async fn the_access_line_has_client_and_user_but_no_password() {
    let backend = Scripted::in_both_dialects().await;
    let listener = format!("{REQUIRED}\nuser_from = \"basic\"");
    let sidecar = Sidecar::start(&one_listener(backend.addr, &listener, TRUSTED)).await;
    let addr = sidecar.listener("test").await;
    let request = get("User-Agent: a\tb\r\nAuthorization: Basic bm92YTpzZWNyZXQ=\r\n");
    let bytes = [V1_TCP4, request.as_bytes()].concat();
    let answer = ask(addr, bytes).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let words = ["\"client\":\"192.0.2.1\"", "\"user\":\"nova\""];
    let line = sidecar.log().wait(&words).await;
    assert!(line.contains("\"peer\":\"127.0.0.1:"), "{line}");
    is_rejected(addr, request).await;
    let rejected = "tidegate_connections_rejected_total{listener=\"test\",reason=\"proxy_header\"}";
    assert_eq!(sidecar.metric(rejected).await, 1.0);
    let unusable = "tidegate_identity_unusable_total{field=\"user_agent\"}";
    assert_eq!(sidecar.metric(unusable).await, 1.0);
    let log = sidecar.log().lines().join("\n");
    assert!(
        !log.contains("secret") && !log.contains("bm92YTpzZWNyZXQ="),
        "{log}"
    );
}

/// The time for the first byte of a request begins behind the header.
#[tokio::test]
async fn a_slow_header_leaves_the_request_its_own_time() {
    let backend = Scripted::in_both_dialects().await;
    let times =
        format!("{TRUSTED}\n[client]\nhandshake_timeout = \"5s\"\nrequest_timeout = \"1s\"");
    let config = one_listener(backend.addr, REQUIRED, &times);
    let stack = Stack::start(&config);
    let mut client = connect(stack.addr).await;
    pass(Duration::from_millis(4500)).await;
    client.write_all(V1_TCP4).await.expect("it is open");
    settle().await;
    let asked = client.write_all(array("guest_list", "X").as_bytes()).await;
    asked.expect("it is open");
    assert_eq!(read_all(&mut client).await.as_bytes(), OK);
}

#[tokio::test]
async fn a_proxy_that_is_not_trusted_is_named_in_the_log_with_the_cure() {
    let backend = Scripted::in_both_dialects().await;
    let elsewhere = "[callers]\ntrusted_proxies = [\"192.0.2.0/24\"]";
    let sidecar = Sidecar::start(&one_listener(backend.addr, REQUIRED, elsewhere)).await;
    let addr = sidecar.listener("test").await;
    for _ in 0..3 {
        is_rejected(addr, V1_TCP4).await;
    }
    let line = sidecar.log().wait(&["is no trusted proxy"]).await;
    for words in [
        "WARN",
        "127.0.0.1",
        "trusted_proxies in [callers]",
        "\"test\"",
    ] {
        assert!(line.contains(words), "{words:?}: {line}");
    }
    sidecar
        .log()
        .wait(&["is no trusted proxy", "\"count\":2"])
        .await;
    let lines = sidecar.log().lines();
    let told = lines.iter().filter(|it| it.contains("no trusted proxy"));
    assert_eq!(told.count(), 2, "{lines:#?}");
}
