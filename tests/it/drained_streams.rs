//! Streams without an end of their own do not keep a drain: event streams and tunnels are cut off, and the rest is
//! finished.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::sidecar::{Sidecar, field};
use crate::support::{PATIENCE, connect, read_all, read_until, sending};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n";
/// The time of a stream in these tests, unless one says another.
const STREAMS: Duration = Duration::from_millis(400);

fn config(protocol: &str, backend: SocketAddr, streams: Duration) -> String {
    let backend = match protocol {
        "tcp" => format!("tcp = \"{backend}\""),
        _ => format!("kind = \"http\"\nhttp = \"http://{backend}\""),
    };
    format!(
        "[server]\ndrain_timeout = \"20s\"\ndrain_streams = \"{}ms\"\n\
         [[listen]]\nname = \"test\"\nbind = \"127.0.0.1:0\"\nprotocol = \"{protocol}\"\n\
         [backend]\n{backend}\nreply_buffer_bytes = \"1KiB\"\n\
         [queue]\npostpone = \"in_turn\"\n\
         [limits]\nper_window = \"total:1000\"\noutstanding = 1\nledger_lost = \"assume_empty\"\n\
         [admin]\nbind = \"127.0.0.1:0\"\n",
        streams.as_millis()
    )
}

/// A process before a backend that the test plays itself.
struct Between {
    sidecar: Sidecar,
    backend: TcpListener,
    address: SocketAddr,
}

impl Between {
    async fn start(protocol: &str, streams: Duration) -> Self {
        let backend = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = backend.local_addr().expect("it is bound");
        let sidecar = Sidecar::start(&config(protocol, at, streams)).await;
        let address = sidecar.listener("test").await;
        Self {
            sidecar,
            backend,
            address,
        }
    }

    /// Sends a request, and answers it with these bytes. Returns both ends.
    async fn answered(&self, answer: &[u8]) -> (TcpStream, TcpStream) {
        let client = sending(self.address, GET).await;
        (client, self.answer_next(answer).await)
    }

    async fn answer_next(&self, answer: &[u8]) -> TcpStream {
        let accepted = timeout(PATIENCE, self.backend.accept()).await;
        let (mut stream, _) = accepted.expect("it connects").expect("it connects");
        read_until(&mut stream, "\r\n\r\n").await;
        stream.write_all(answer).await.expect("it is read");
        stream
    }

    async fn drain(&self) -> Instant {
        let begun = Instant::now();
        self.sidecar.signal("TERM");
        self.sidecar.log().wait(&["draining;"]).await;
        begun
    }

    /// The exit code and the log.
    async fn ended(self) -> (Option<i32>, std::sync::Arc<Vec<String>>) {
        let (status, log) = self.sidecar.ended().await;
        (status.code(), log)
    }
}

/// The access line of the only call.
#[track_caller]
fn call_line(log: &[String]) -> &str {
    let mut lines = log.iter().filter(|line| line.contains("\"verdict\""));
    let line = lines.next().expect("the call has a line");
    assert!(lines.next().is_none(), "one call: {log:#?}");
    line
}

/// The bytes until the end, be it a reset.
async fn rest_of(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    let _ = read.expect("it ends");
    bytes
}

const EVENT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                       Transfer-Encoding: chunked\r\n\r\n5\r\ndata\n\r\n";

#[tokio::test]
async fn an_event_stream_is_cut_off_and_the_drain_is_a_success() {
    let until_close = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata\n";
    for answer in [EVENT, &until_close[..]] {
        let it = Between::start("http", STREAMS).await;
        let (mut client, mut backend) = it.answered(answer).await;
        read_until(&mut client, "data\n").await;
        it.drain().await;
        // It may go on meanwhile.
        let more = match answer == EVENT {
            true => &b"5\r\nmore\n\r\n"[..],
            false => b"more\n",
        };
        backend.write_all(more).await.expect("it is read");
        let rest = String::from_utf8(rest_of(&mut client).await).expect("text");
        assert!(rest.contains("more\n"), "{rest:?}");
        assert!(!rest.ends_with("0\r\n\r\n"), "it looks whole: {rest:?}");
        rest_of(&mut backend).await;
        let (code, log) = it.ended().await;
        assert_eq!(code, Some(0), "{log:#?}");
        let line = call_line(&log);
        assert_eq!(field(line, "verdict"), "failed", "{line}");
        assert_eq!(field(line, "reason"), "draining", "{line}");
        let told = log.iter().find(|line| line.contains("ended streams"));
        let told = told.unwrap_or_else(|| panic!("{log:#?}"));
        let counts = ["\"replies\":1", "\"tunnels\":0"];
        assert!(counts.iter().all(|it| told.contains(it)), "{told}");
    }
}

#[tokio::test]
async fn a_stream_whose_client_takes_nothing_is_cut_off_too() {
    let it = Between::start("http", STREAMS).await;
    let (client, mut backend) = it.answered(EVENT).await;
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let flooding = tokio::spawn(async move {
        let chunk = [&b"ffff\r\n"[..], &[b'x'; 0xffff], b"\r\n"].concat();
        while backend.write_all(&chunk).await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    // Until all buffers on the way are full.
    let mut before = usize::MAX;
    while before != written.load(Ordering::SeqCst) {
        before = written.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    it.drain().await;
    let (code, log) = it.ended().await;
    assert_eq!(code, Some(0), "{log:#?}");
    assert_eq!(field(call_line(&log), "reason"), "draining");
    flooding.await.expect("it does not panic");
    drop(client);
}

#[tokio::test]
async fn a_tunnel_is_reset_after_its_time_and_the_drain_is_a_success() {
    let it = Between::start("tcp", STREAMS).await;
    let mut client = connect(it.address).await;
    let (mut backend, _) = it.backend.accept().await.expect("it connects");
    client.write_all(b"ping").await.expect("it is passed");
    let mut four = [0; 4];
    backend.read_exact(&mut four).await.expect("it is passed");
    // Has no turn, and would end at once.
    let mut waiting = connect(it.address).await;
    let begun = it.drain().await;
    backend.write_all(b"pong").await.expect("it is passed");
    client.read_exact(&mut four).await.expect("it is passed");
    for stream in [&mut client, &mut backend] {
        let read = timeout(PATIENCE, stream.read_exact(&mut four)).await;
        let error = read.expect("it ends").expect_err("it is cut off");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    assert!(begun.elapsed() >= STREAMS, "it has its time");
    assert_eq!(rest_of(&mut waiting).await, b"");
    let (code, log) = it.ended().await;
    assert_eq!(code, Some(0), "{log:#?}");
    let told = log.iter().find(|line| line.contains("ended streams"));
    let told = told.unwrap_or_else(|| panic!("{log:#?}"));
    assert!(told.contains("\"tunnels\":1"), "{told}");
    let lines = log.iter().filter(|line| line.contains("\"verdict\""));
    let mut ends: Vec<_> = lines
        .map(|line| format!("{} {}", field(line, "verdict"), field(line, "reason")))
        .collect();
    ends.sort();
    assert_eq!(ends, ["failed draining", "refused draining"], "{log:#?}");
}

#[tokio::test]
async fn a_download_of_known_length_is_finished() {
    let it = Between::start("http", Duration::from_millis(100)).await;
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
    let (mut client, mut backend) = it.answered(head).await;
    backend
        .write_all(&[b'x'; 50_000])
        .await
        .expect("it is read");
    read_until(&mut client, "xxxx").await;
    it.drain().await;
    // Longer than streams have.
    tokio::time::sleep(Duration::from_millis(400)).await;
    backend
        .write_all(&[b'y'; 50_000])
        .await
        .expect("it is read");
    let rest = read_all(&mut client).await;
    assert!(rest.ends_with(&"y".repeat(50_000)), "{} bytes", rest.len());
    let (code, log) = it.ended().await;
    assert_eq!(code, Some(0), "{log:#?}");
    assert_eq!(field(call_line(&log), "verdict"), "passed");
}

#[tokio::test]
async fn a_waiting_call_is_finished_also_if_its_reply_has_no_length() {
    let it = Between::start("http", STREAMS).await;
    let mut running = sending(it.address, GET).await;
    let (mut backend, _) = it.backend.accept().await.expect("it connects");
    read_until(&mut backend, "\r\n\r\n").await;
    let mut waiting = sending(it.address, GET).await;
    let in_queue = async {
        while it.sidecar.metric("tidegate_queue_depth").await < 1.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, in_queue).await.expect("it waits");
    it.drain().await;
    // When it begins, the time of the streams that were open is over.
    tokio::time::sleep(STREAMS + Duration::from_millis(200)).await;
    let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
    backend.write_all(reply).await.expect("it is read");
    assert!(read_all(&mut running).await.ends_with("ok"));
    let mut backend = it.answer_next(EVENT).await;
    read_until(&mut waiting, "data\n").await;
    backend.write_all(b"0\r\n\r\n").await.expect("it is read");
    assert!(read_all(&mut waiting).await.ends_with("0\r\n\r\n"));
    let (code, log) = it.ended().await;
    assert_eq!(code, Some(0), "{log:#?}");
}
