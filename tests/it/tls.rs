//! TLS on every kind of listener: accepted and rejected clients, and the effect of a reload.

use tidegate::call::{Rejection, identity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::certificates::{Files, Shows, shown};
use crate::sidecar::Sidecar;
use crate::support::{
    Held, OK, PATIENCE, Scripted, Stack, array, connect, is_rejected, json, one_listener, settle,
};

const HTTP_OK: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{\"overallRC\": 0}";
const GET: &str = "GET /guests/X/info HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

/// Sends bytes over TLS and reads the answer to its end.
async fn ask(
    files: &Files,
    stack: &Stack,
    shows: Shows<'_>,
    bytes: &str,
) -> std::io::Result<String> {
    let stream = connect(stack.addr).await;
    let asking = async {
        let mut stream = files.connect(stream, shows).await?;
        stream.write_all(bytes.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .expect("it comes to an end")
}

#[tokio::test]
async fn both_protocols_come_over_tls_and_without_it_on_one_port() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let stack = Stack::start(&one_listener(backend.addr, &files.section(""), ""));
    let call = array("guest_get_info", "X");
    for bytes in [&*call, GET] {
        let tls = ask(&files, &stack, Shows::Nothing, bytes).await;
        let tls = tls.expect("it is answered and ends as TLS does");
        let plain = stack.ask(bytes).await;
        for answer in [tls, plain] {
            let (_, body) = answer.rsplit_once("\r\n").unwrap_or(("", &answer));
            assert_eq!(body.as_bytes(), OK, "{answer}");
        }
    }
    stack.at_rest().await;
    assert_eq!(stack.seen.ended(4).await.len(), 4);
}

#[tokio::test]
async fn each_protocol_comes_over_tls_on_a_port_of_its_own_and_nothing_else_does() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let call = array("guest_get_info", "X");
    for (protocol, bytes) in [("socket", &*call), ("http", GET), ("tcp", &*call)] {
        let listener = format!("protocol = \"{protocol}\"\n{}", files.section(""));
        let stack = Stack::start(&one_listener(backend.addr, &listener, ""));
        let answer = ask(&files, &stack, Shows::Nothing, bytes).await;
        let answer = answer.expect("it is answered and ends as TLS does");
        assert!(answer.contains("overallRC"), "{protocol}: {answer}");
        is_rejected(stack.addr, bytes).await;
        assert_eq!(stack.seen.rejected(1).await, [Rejection::NotTls]);
        stack.at_rest().await;
    }
}

#[tokio::test]
async fn over_tls_too_a_client_that_leaves_behind_unread_bytes_is_noticed() {
    let (mut held, files) = (Held::start(HTTP_OK).await, Files::new());
    let text = one_listener(held.backend.addr, &files.section(""), "")
        .replace("[limits]", "[limits]\noutstanding = 1");
    let stack = Stack::start(&text);
    let get = "GET /guests/X/info HTTP/1.1\r\nHost: t\r\n\r\n";
    // The size of decrypted read-ahead, and more.
    for more in [get.to_owned(), get.repeat(200)] {
        for says_goodbye in [true, false] {
            let mut first = connect(stack.addr).await;
            first.write_all(get.as_bytes()).await.expect("it reads");
            held.next().await;
            let second = connect(stack.addr).await;
            let mut second = files.connect(second, Shows::Nothing).await.expect("TLS");
            second.write_all(get.as_bytes()).await.expect("it reads");
            stack.busy(1, 1).await;
            second.write_all(more.as_bytes()).await.expect("it reads");
            second.flush().await.expect("it reads");
            settle().await;
            assert_eq!(stack.gate.busy(), (1, 1));
            if says_goodbye {
                second.shutdown().await.expect("it is open");
            }
            drop(second);
            stack.busy(1, 0).await;
            held.go.notify_one();
            stack.at_rest().await;
            assert!(held.got.try_recv().is_err(), "it was sent");
        }
    }
}

#[tokio::test]
async fn tls_that_is_required_turns_away_what_is_not() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let stack = Stack::start(&one_listener(
        backend.addr,
        &files.section("required = true"),
        "",
    ));
    is_rejected(stack.addr, array("guest_get_info", "X")).await;
    is_rejected(stack.addr, GET).await;
    assert_eq!(stack.seen.rejected(2).await, [Rejection::NotTls; 2]);
    ask(&files, &stack, Shows::Nothing, GET)
        .await
        .expect("TLS is what is required");
}

#[tokio::test]
async fn a_connection_that_closes_without_a_byte_is_no_failed_handshake() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let stack = Stack::start(&one_listener(
        backend.addr,
        &files.section("required = true"),
        "",
    ));
    drop(connect(stack.addr).await);
    crate::support::until(|| stack.connections.open() == 0, || "still open".into()).await;
    // Were it counted, it would be the first of the two.
    is_rejected(stack.addr, "x").await;
    assert_eq!(stack.seen.rejected(1).await, [Rejection::NotTls]);
}

#[tokio::test]
async fn bytes_that_only_begin_like_tls_are_rejected() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let stack = Stack::start(&one_listener(backend.addr, &files.section(""), ""));
    let mut stream = connect(stack.addr).await;
    let nonsense = b"\x16\x03\x01\x00\x05hello";
    stream.write_all(nonsense).await.expect("it reads");
    let mut alert = Vec::new();
    // A reset would be as good an end as any.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut alert)).await;
    assert_eq!(stack.seen.rejected(1).await, [Rejection::TlsHandshake]);
    assert!(stack.seen.all().is_empty());
}

#[tokio::test]
async fn a_handshake_that_stops_in_the_middle_is_given_up() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let short = "[client]\nhandshake_timeout = \"50ms\"";
    let stack = Stack::start(&one_listener(backend.addr, &files.section(""), short));
    let mut stream = connect(stack.addr).await;
    stream.write_all(&[0x16, 3, 1]).await.expect("it reads");
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("it is closed");
    assert_eq!(stack.seen.rejected(1).await, [Rejection::HandshakeTimeout]);
}

#[tokio::test]
async fn a_certificate_that_is_required_names_the_user() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let listener = format!(
        "user_from = \"certificate\"\n{}",
        files.asking("required", "required = true")
    );
    let stack = Stack::start(&one_listener(backend.addr, &listener, ""));
    let call = array("guest_get_info", "X");
    for bytes in [&*call, GET] {
        ask(&files, &stack, Shows::Name("nova"), bytes)
            .await
            .expect("a good certificate");
    }
    for facts in stack.seen.ended(2).await {
        let identity = &facts.origin.identity;
        assert_eq!(identity.user.as_deref(), Some("nova"));
        assert!(identity.unusable.is_empty());
    }
    // In TLS 1.3 the client hears of it only when it reads.
    for shows in [Shows::Nothing, Shows::Forged("nova")] {
        ask(&files, &stack, shows, &call)
            .await
            .expect_err("not let in");
    }
    assert_eq!(stack.seen.rejected(2).await, [Rejection::TlsHandshake; 2]);
    assert_eq!(stack.seen.all().len(), 2);
}

#[tokio::test]
async fn a_certificate_that_is_optional_is_checked_where_there_is_one() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let listener = format!(
        "user_from = \"certificate\"\n{}",
        files.asking("optional", "")
    );
    let stack = Stack::start(&one_listener(backend.addr, &listener, ""));
    let call = array("guest_get_info", "X");
    let long = "x".repeat(300);
    // The rest of a long name is a number.
    let short = identity::fitting(long.as_str().into()).into_owned();
    assert_eq!(short.len(), identity::TEXT_BYTES_MAX);
    let cases = [
        (Shows::Nothing, None, true),
        (Shows::Name("cinder"), Some("cinder"), true),
        (Shows::Name("foo*"), Some("foo*"), true),
        (Shows::Name("uid:0"), None, false),
        (Shows::Name(&long), Some(&*short), true),
    ];
    for (number, (shows, user, usable)) in cases.into_iter().enumerate() {
        ask(&files, &stack, shows, &call).await.expect("let in");
        let all = stack.seen.ended(number + 1).await;
        let identity = &all[number].origin.identity;
        assert_eq!(identity.user.as_deref(), user);
        assert_eq!(identity.unusable.is_empty(), usable);
    }
    ask(&files, &stack, Shows::Forged("cinder"), &call)
        .await
        .expect_err("no known authority");
    assert_eq!(stack.seen.rejected(1).await, [Rejection::TlsHandshake]);
}

#[tokio::test]
async fn a_certificate_names_no_user_if_the_user_comes_from_elsewhere() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let stack = Stack::start(&one_listener(
        backend.addr,
        &files.asking("optional", ""),
        "",
    ));
    ask(&files, &stack, Shows::Name("nova"), GET)
        .await
        .expect("let in");
    assert_eq!(stack.seen.ended(1).await[0].origin.identity.user, None);
}

#[tokio::test]
async fn requests_that_are_pipelined_over_tls_are_answered_one_by_one() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let stack = Stack::start(&one_listener(backend.addr, &files.section(""), ""));
    let keep = GET.replace("Connection: close\r\n", "");
    let large = format!(
        "POST /guests HTTP/1.1\r\nHost: t\r\nContent-Length: 30000\r\n\r\n{{\"guest\":{{}}{}}}",
        " ".repeat(30_000 - 13)
    );
    let bytes = format!("{keep}{keep}{large}{GET}");
    let answers = ask(&files, &stack, Shows::Nothing, &bytes).await;
    let answers = answers.expect("they are answered");
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 4, "{answers}");
    stack.at_rest().await;
}

#[tokio::test]
async fn a_tls_client_that_leaves_while_it_waits_is_never_sent() {
    let (mut backend, files) = (Held::start(OK).await, Files::new());
    let one = one_listener(backend.backend.addr, &files.section(""), "")
        .replace("[admin]", "outstanding = 1\n[admin]");
    let stack = Stack::start(&one);
    let connect = async || {
        let stream = connect(stack.addr).await;
        let stream = files.connect(stream, Shows::Nothing).await;
        stream.expect("the handshake")
    };
    let mut first = connect().await;
    let call = array("guest_get_info", "FIRST");
    first.write_all(call.as_bytes()).await.expect("it reads");
    assert_eq!(backend.next().await, call);
    for bytes in [&*array("guest_get_info", "GONE"), GET] {
        for is_said in [true, false] {
            let mut second = connect().await;
            second.write_all(bytes.as_bytes()).await.expect("it reads");
            stack.busy(1, 1).await;
            if is_said {
                // As TLS ends; the connection itself stays open.
                second.shutdown().await.expect("the end is sent");
                stack.busy(1, 0).await;
            } else {
                drop(second);
                stack.busy(1, 0).await;
            }
        }
    }
    backend.go.notify_one();
    let mut answer = String::new();
    first.read_to_string(&mut answer).await.expect("answered");
    assert_eq!(answer.as_bytes(), OK);
    stack.at_rest().await;
    assert_eq!(backend.done(), 1);
}

#[tokio::test]
async fn a_reply_larger_than_any_buffer_comes_whole_over_tls() {
    const REPLY: usize = 3 << 20;
    let backend = Scripted::start(|_, mut stream| async move {
        let mut request = [0; 4096];
        if stream.read(&mut request).await.unwrap_or(0) > 0 {
            let reply = format!(
                "{{\"overallRC\": 0, \"output\": \"{}\"}}",
                "x".repeat(REPLY)
            );
            stream
                .write_all(reply.as_bytes())
                .await
                .expect("it is read");
        }
    })
    .await;
    let files = Files::new();
    let stack = Stack::start(&one_listener(backend.addr, &files.section(""), ""));
    let answer = ask(&files, &stack, Shows::Nothing, &array("guest_list", "X")).await;
    let answer = json(&answer.expect("it comes whole"));
    assert_eq!(answer["output"].as_str().map(str::len), Some(REPLY));
}

/// Opens a connection to a real process and says whose certificate it shows.
async fn shake_hands(
    sidecar: &Sidecar,
    files: &Files,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let addr = sidecar.listener("test").await;
    let stream = connect(addr).await;
    let shaking = tokio::time::timeout(PATIENCE, files.connect(stream, Shows::Nothing));
    shaking.await.expect("in time").expect("the handshake")
}

#[tokio::test]
async fn a_reload_shows_the_new_certificate_to_new_connections_alone() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let config = one_listener(backend.addr, &files.section(""), "");
    let sidecar = Sidecar::start(&config).await;
    let mut old = shake_hands(&sidecar, &files).await;
    assert_eq!(shown(&old), "first");
    files.renew("second");
    assert_eq!(shown(&shake_hands(&sidecar, &files).await), "first");
    sidecar.hang_up("config reloaded").await;
    assert_eq!(shown(&shake_hands(&sidecar, &files).await), "second");
    old.write_all(GET.as_bytes()).await.expect("it still reads");
    let mut answer = String::new();
    old.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn a_bad_certificate_keeps_the_old_config_and_is_reported_with_file_and_reason() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let config = one_listener(backend.addr, &files.section(""), "");
    let sidecar = Sidecar::start(&config).await;
    let good = files.read("tls.crt");
    files.write("tls.crt", "not a certificate");
    // What else the file says is not taken either.
    sidecar.write_config(&config.replace("total:10000", "total:1"));
    let said = sidecar.hang_up("the old one stays").await.join("\n");
    for word in ["listen[0].tls.cert", "tls.crt", "holds no certificate"] {
        assert!(said.contains(word), "no {word} in\n{said}");
    }
    assert_eq!(
        sidecar
            .metric("tidegate_config_last_reload_successful")
            .await,
        0.0
    );
    let mut stream = shake_hands(&sidecar, &files).await;
    assert_eq!(shown(&stream), "first");
    stream.write_all(GET.as_bytes()).await.expect("it reads");
    stream.read_u8().await.expect("it is answered");
    assert_eq!(
        sidecar
            .metric("tidegate_window_limit{limit=\"total\"}")
            .await,
        10_000.0
    );
    files.write("tls.crt", &good);
    sidecar.hang_up("config reloaded").await;
    shake_hands(&sidecar, &files).await;
}

#[tokio::test]
async fn a_reload_switches_tls_on_and_off_for_new_connections() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let with = one_listener(backend.addr, &files.section("required = true"), "");
    let without = one_listener(backend.addr, "", "");
    let sidecar = Sidecar::start(&without).await;
    let addr = sidecar.listener("test").await;
    let plain = crate::support::ask(addr, GET).await;
    assert!(plain.starts_with("HTTP/1.1 200"), "{plain}");
    sidecar.reload(&with).await;
    is_rejected(addr, GET).await;
    assert_eq!(shown(&shake_hands(&sidecar, &files).await), "first");
    let rejected = "tidegate_connections_rejected_total{listener=\"test\",reason=\"not_tls\"}";
    assert_eq!(sidecar.metric(rejected).await, 1.0);
    sidecar.reload(&without).await;
    let plain = crate::support::ask(addr, GET).await;
    assert!(plain.starts_with("HTTP/1.1 200"), "{plain}");
}

#[tokio::test]
async fn a_drain_does_not_wait_for_who_never_shakes_hands() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let patient = "[client]\nhandshake_timeout = \"1h\"\nrequest_timeout = \"1h\"";
    let sidecar = Sidecar::start(&one_listener(backend.addr, &files.section(""), patient)).await;
    let addr = sidecar.listener("test").await;
    let silent = connect(addr).await;
    let mut begun = connect(addr).await;
    begun.write_all(&[0x16, 3, 1]).await.expect("it reads");
    // Both are accepted once a later connection is answered.
    shake_hands(&sidecar, &files).await;
    sidecar.signal("TERM");
    let (status, _) = sidecar.ended().await;
    assert!(status.success(), "{status}");
    drop((silent, begun));
}

#[tokio::test]
async fn each_cause_of_a_refused_handshake_is_logged_with_its_cure_among_many_of_another() {
    let (backend, files) = (Scripted::in_both_dialects().await, Files::new());
    let listener = files.asking("required", "required = true");
    let sidecar = Sidecar::start(&one_listener(backend.addr, &listener, "")).await;
    let addr = sidecar.listener("test").await;
    let refused = async |shows: Shows<'_>| {
        let stream = connect(addr).await;
        // In TLS 1.3 the client finds out only when it reads.
        if let Ok(mut stream) = files.connect(stream, shows).await {
            let mut answer = Vec::new();
            let read = stream.read_to_end(&mut answer).await;
            assert!(read.is_err() && answer.is_empty(), "{answer:?}");
        }
    };
    for _ in 0..20 {
        refused(Shows::Nothing).await;
    }
    let cases = [
        (Shows::Nothing, "the client shows no certificate"),
        (Shows::Forged("nova"), "no authority in client_ca"),
        (
            Shows::Version1("nova"),
            "X.509 version 1, which is not taken: issue one of version 3",
        ),
    ];
    for (shows, words) in cases {
        refused(shows).await;
        let line = sidecar.log().wait(&["no TLS handshake", words]).await;
        for part in ["127.0.0.1", "test", "WARN"] {
            assert!(line.contains(part), "{part:?}: {line}");
        }
    }
    // The first, and then each time that the number has doubled.
    let all = sidecar.log().lines();
    let lines = all
        .iter()
        .filter(|line| line.contains("shows no certificate"));
    assert_eq!(lines.count(), 5, "{all:#?}");
}
