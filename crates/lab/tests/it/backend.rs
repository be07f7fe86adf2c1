//! The stand-in backend speaks both protocols, counts what it sees and falls when it
//! should. Its counting alone is tested beside the recorder, on paused time.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use serde_json::Value;
use tidegate_lab::backend::{
    ModelOptions, OverloadReaction, RunningBackend, StandInBackend, StandInOptions,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn start(options: StandInOptions) -> RunningBackend {
    StandInBackend::start(options).await.expect("free ports")
}

async fn send(to: SocketAddr, bytes: &str) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.expect("it listens");
    stream.write_all(bytes.as_bytes()).await.expect("it reads");
    stream
}

async fn rest(mut stream: TcpStream) -> String {
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.expect("text");
    reply
}

/// Sends a call on a connection of its own, and reads up to EOF.
async fn ask(to: SocketAddr, bytes: &str) -> String {
    rest(send(to, bytes).await).await
}

fn info(userid: &str) -> String {
    format!(r#"["guest_get_info", ["{userid}"], {{}}]"#)
}

fn get(userid: &str) -> String {
    format!("GET /guests/{userid}/info HTTP/1.1\r\nHost: z\r\n\r\n")
}

/// overallRC, modID, rc and rs of a reply, whatever stands before its JSON.
fn codes(reply: &str) -> (i64, Value, i64, i64) {
    let json = &reply[reply.find('{').expect("an object")..];
    let reply: Value = serde_json::from_str(json).expect("one whole object");
    let code = |name: &str| reply[name].as_i64().expect("a number");
    (
        code("overallRC"),
        reply["modID"].clone(),
        code("rc"),
        code("rs"),
    )
}

fn options() -> StandInOptions {
    StandInOptions {
        delay: Duration::ZERO,
        ..StandInOptions::on_free_ports()
    }
}

#[tokio::test]
async fn a_split_socket_call_gets_one_object_and_a_close() {
    let backend = start(options()).await;
    let call = info("HRX00001");
    for split in [1, 20, call.len() - 1] {
        let (first, second) = call.split_at(split);
        let mut stream = send(backend.socket_addr(), first).await;
        stream.write_all(second.as_bytes()).await.expect("it reads");
        let reply = rest(stream).await;
        assert_eq!(codes(&reply), (0, Value::Null, 0, 0));
        assert!(reply.contains(r#""userid": "HRX00001""#), "{reply}");
        assert!(reply.contains(r#""call": "guest_get_info""#), "{reply}");
    }
    let report = backend.stop().await;
    assert_eq!(
        (report.calls, report.answered, report.connections),
        (3, 3, 3)
    );
    assert_eq!(report.in_flight, 0);
}

#[tokio::test]
async fn an_unreadable_request_is_refused_and_is_not_a_call() {
    let backend = start(options()).await;
    let long = info(&"x".repeat(5000));
    let two = info("A").repeat(2);
    for bytes in [
        "{}",
        "hello",
        "[]",
        r#"["f", [], null]"#,
        r#"[7, [], {}]"#,
        &two,
    ] {
        assert_eq!(
            codes(&ask(backend.socket_addr(), bytes).await),
            (500, 100.into(), 500, 1)
        );
    }
    // Unread bytes make the close a reset, as with the real server; the answer may be lost.
    let mut stream = send(backend.socket_addr(), &long).await;
    let mut first = [0; 1];
    let _ = stream.read(&mut first).await;
    let report = backend.wait_until(|report| report.malformed == 7).await;
    assert_eq!(report.calls, 0);
}

#[tokio::test]
async fn http_keeps_the_connection_and_reads_bodies_of_both_framings() {
    let backend = start(options()).await;
    let chunked = "POST /guests/B/action HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
                   5\r\n{\"act\r\n9\r\nion\":\"x\"}\r\n0\r\n\r\n";
    let array = info("NOEXIST");
    let dressed = format!(
        "POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{array}",
        array.len()
    );
    let last = "GET /guests/C/info HTTP/1.1\r\nConnection: close\r\n\r\n";
    let pipelined = [&get("A"), chunked, &dressed, last].concat();
    let replies = ask(backend.http_addr(), &pipelined).await;
    let statuses: Vec<_> = replies
        .split("HTTP/1.1 ")
        .skip(1)
        .map(|reply| &reply[..3])
        .collect();
    assert_eq!(statuses, ["200", "200", "404", "200"], "{replies}");
    for (reply, userid) in replies
        .split("HTTP/1.1 ")
        .skip(1)
        .zip(["A", "B", "NOEXIST", "C"])
    {
        assert!(reply.contains(userid), "{reply}");
        codes(reply);
    }
    let report = backend.stop().await;
    assert_eq!((report.connections, report.calls), (1, 4));
    assert_eq!((report.answered, report.failed), (3, 1));
}

#[tokio::test]
async fn a_token_is_no_call() {
    let backend = start(options()).await;
    let reply = ask(
        backend.http_addr(),
        "POST /token HTTP/1.1\r\nX-Admin-Token: a\r\nConnection: close\r\n\r\n",
    )
    .await;
    assert!(reply.contains("X-Auth-Token: "), "{reply}");
    assert_eq!(backend.report().calls, 0);
}

#[tokio::test]
async fn a_special_userid_has_its_effect() {
    let backend = start(options()).await;
    let socket = async |userid| ask(backend.socket_addr(), &info(userid)).await;
    assert_eq!(codes(&socket("NOEXIST").await), (404, 10.into(), 404, 1));
    assert_eq!(socket("CLOSE").await, "");
    let cut = socket("CUT").await;
    assert!(
        cut.starts_with("{\"overallRC\"") && !cut.ends_with('}'),
        "{cut}"
    );
    let big = socket("BIG").await;
    assert!(big.len() > 1024 * 1024);
    assert_eq!(codes(&big).0, 0);

    let http = async |userid| ask(backend.http_addr(), &get(userid)).await;
    assert_eq!(http("CLOSE").await, "");
    let cut = http("CUT").await;
    let promised = cut.split("Content-Length: ").nth(1).expect("a length");
    let promised: usize = promised[..promised.find('\r').expect("a line")]
        .parse()
        .expect("digits");
    let came = cut.split("\r\n\r\n").nth(1).expect("part of a body").len();
    assert!(0 < came && came < promised, "{came} of {promised}");

    let report = backend.report();
    assert_eq!((report.answered, report.failed, report.broken), (1, 1, 4));
}

#[tokio::test]
async fn a_silent_call_stays_in_flight_until_its_client_leaves() {
    let backend = start(options()).await;
    for (addr, call) in [
        (backend.socket_addr(), info("SILENT")),
        (backend.http_addr(), get("SILENT")),
    ] {
        let stream = send(addr, &call).await;
        backend.wait_until(|report| report.in_flight == 1).await;
        drop(stream);
        backend.wait_until(|report| report.in_flight == 0).await;
    }
    assert_eq!(backend.report().broken, 2);
}

#[tokio::test]
async fn a_slow_call_takes_its_seconds() {
    let backend = start(options()).await;
    let stream = send(backend.socket_addr(), &info("SLOW3")).await;
    backend.wait_until(|report| report.in_flight == 1).await;
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    assert_eq!(codes(&rest(stream).await).0, 0);
    let took = begun.elapsed();
    assert!(
        (Duration::from_millis(2900)..Duration::from_millis(3100)).contains(&took),
        "{took:?}"
    );
}

#[tokio::test]
async fn too_many_at_once_make_it_fall_with_the_calls_in_flight() {
    let backend = start(StandInOptions {
        delay: Duration::from_secs(60),
        break_in_flight: 2,
        ..options()
    })
    .await;
    let first = send(backend.socket_addr(), &info("A")).await;
    let second = send(backend.http_addr(), &get("B")).await;
    backend.wait_until(|report| report.in_flight == 2).await;
    assert_eq!(backend.report().falls, 0);
    let third = ask(backend.socket_addr(), &info("C")).await;
    let smapi_down = (500, Value::from(1), -110, 0);
    assert_eq!(codes(&third), smapi_down);
    tokio::time::pause();
    assert_eq!(codes(&rest(first).await), smapi_down);
    drop(second);
    let report = backend.wait_until(|report| report.in_flight == 0).await;
    assert_eq!((report.falls, report.fallen, report.answered), (1, 3, 0));
    assert_eq!(report.peak_in_flight, 3);
}

#[tokio::test]
async fn statistics_can_be_read_and_reset_over_http() {
    let backend = start(StandInOptions {
        stats: Some(([127, 0, 0, 1], 0).into()),
        ..options()
    })
    .await;
    ask(backend.socket_addr(), &info("A")).await;
    let stats = backend.stats_addr().expect("asked for");
    let get = "GET /stats HTTP/1.1\r\nConnection: close\r\n\r\n";
    let answered = |reply: String| {
        let json: Value = serde_json::from_str(&reply[reply.find('{').expect("an object")..])
            .expect("one whole object");
        json["answered"].as_u64()
    };
    assert_eq!(answered(ask(stats, get).await), Some(1));
    ask(stats, "POST /reset HTTP/1.1\r\nConnection: close\r\n\r\n").await;
    assert_eq!(answered(ask(stats, get).await), Some(0));
}

#[tokio::test]
async fn stopping_frees_the_ports_and_ends_what_is_in_flight() {
    let backend = start(StandInOptions {
        delay: Duration::from_secs(3600),
        ..options()
    })
    .await;
    let addr = backend.socket_addr();
    let stream = send(addr, &info("A")).await;
    backend.wait_until(|report| report.in_flight == 1).await;
    let report = backend.stop().await;
    assert_eq!((report.in_flight, report.broken), (0, 1));
    assert_eq!(rest(stream).await, "");
    assert!(TcpStream::connect(addr).await.is_err(), "no server listens");
}

/// How long a call took, to the last byte of its answer.
async fn took(to: SocketAddr, bytes: &str) -> Duration {
    let begun = std::time::Instant::now();
    assert_eq!(codes(&ask(to, bytes).await).0, 0);
    begun.elapsed()
}

#[tokio::test]
async fn calls_of_both_protocols_share_one_model() {
    let backend = start(StandInOptions {
        delay: Duration::from_millis(100),
        model: ModelOptions {
            servers: NonZeroU32::new(1),
            ..ModelOptions::default()
        },
        ..options()
    })
    .await;
    let alone = took(backend.socket_addr(), &info("A")).await;
    let http = "GET /guests/C/info HTTP/1.1\r\nConnection: close\r\n\r\n";
    let long = info("WORK150");
    let together = tokio::join!(
        took(backend.socket_addr(), &long),
        took(backend.http_addr(), http),
    );
    // The second one has half of the server for 200 ms, and the first one all of it for 50 ms more.
    let check = |took: Duration, millis: u64| {
        let due = Duration::from_millis(millis);
        // A call is early by the time that another one came after it, and late on a loaded machine.
        let early = due - Duration::from_millis(5);
        let late = due + Duration::from_millis(60);
        assert!((early..late).contains(&took), "{took:?}, not {due:?}");
    };
    check(alone, 100);
    check(together.0, 250);
    check(together.1, 200);
}

#[tokio::test]
async fn a_model_that_breaks_resets_the_connection() {
    let reset = async |addr, bytes: &str| {
        let mut stream = send(addr, bytes).await;
        let error = stream.read(&mut [0; 100]).await.expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    };
    let backend = start(StandInOptions {
        delay: Duration::from_secs(60),
        model: ModelOptions {
            breaks_at: NonZeroU32::new(1),
            ..ModelOptions::default()
        },
        ..options()
    })
    .await;
    let first = send(backend.socket_addr(), &info("A")).await;
    backend.wait_until(|report| report.in_flight == 1).await;
    reset(backend.socket_addr(), &info("B")).await;
    reset(backend.http_addr(), &get("C")).await;
    let report = backend.report();
    assert_eq!((report.in_flight, report.broken), (1, 2));
    drop(first);
}

#[tokio::test]
async fn a_collapsed_backend_accepts_no_connection_until_it_is_up() {
    let backend = start(StandInOptions {
        recover: Duration::from_millis(300),
        model: ModelOptions {
            breaks_at: NonZeroU32::new(1),
            breaks: OverloadReaction::Collapse,
            ..ModelOptions::default()
        },
        ..options()
    })
    .await;
    let addr = backend.socket_addr();
    // Kept open between calls.
    let mut idle = send(backend.http_addr(), &get("A")).await;
    let answer = idle.read(&mut [0; 4096]).await.expect("an answer");
    assert!(answer > 0, "it is kept open");
    let mut first = send(addr, &info("WORK60000")).await;
    backend.wait_until(|report| report.in_flight == 1).await;
    let mut second = send(addr, &info("WORK60000")).await;
    for stream in [&mut first, &mut second] {
        let error = stream.read(&mut [0; 100]).await.expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(idle.read(&mut [0; 100]).await.expect("an end"), 0);
    let (mut refused, mut up) = (0, None);
    while up.is_none() {
        match TcpStream::connect(addr).await {
            Ok(stream) => up = Some(stream),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
                refused += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    assert!(refused > 0, "the port was closed");
    assert_eq!(codes(&ask(addr, &info("B")).await).0, 0);
}
