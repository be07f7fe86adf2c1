//! The bare proxies pass on calls and their replies, and nothing else.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_lab::backend::{self, RunningBackend, StandInBackend};
use tidegate_lab::bench::{self, TargetProtocol};
use tidegate_lab::relay::{RelayKind, relay};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

async fn backend() -> RunningBackend {
    let options = backend::StandInOptions {
        delay: Duration::ZERO,
        ..backend::StandInOptions::on_free_ports()
    };
    StandInBackend::start(options).await.expect("free ports")
}

async fn proxy(kind: RelayKind, to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(relay(kind, listener, to));
    address
}

async fn load(protocol: TargetProtocol, target: SocketAddr) -> bench::LoadReport {
    let options = bench::BenchOptions {
        target,
        protocol,
        connections: 4,
        calls: Some(200),
        timeout: Duration::from_secs(10),
        ..bench::BenchOptions::default()
    };
    bench::run(options).await.expect("a load that can be run")
}

#[tokio::test]
async fn bytes_have_a_connection_of_their_own_for_each_client() {
    let backend = backend().await;
    for (protocol, to, connections) in [
        (TargetProtocol::Socket, backend.socket_addr(), 200),
        (TargetProtocol::Http, backend.http_addr(), 4),
    ] {
        backend.reset();
        let report = load(protocol, proxy(RelayKind::Bytes, to).await).await;
        assert_eq!((report.ok, report.failed), (200, 0), "{report:?}");
        let seen = backend.report();
        assert_eq!((seen.answered, seen.connections), (200, connections));
    }
}

#[tokio::test]
async fn once_passes_on_a_call_and_its_reply_on_the_socket_protocol() {
    let backend = backend().await;
    let proxy = proxy(RelayKind::Once, backend.socket_addr()).await;
    let report = load(TargetProtocol::Socket, proxy).await;
    assert_eq!((report.ok, report.failed), (200, 0), "{report:?}");
    let big = bench::BenchOptions {
        target: proxy,
        userid: "BIG".to_owned(),
        calls: Some(1),
        ..bench::BenchOptions::default()
    };
    let report = bench::run(big).await.expect("a load that can be run");
    assert_eq!((report.ok, report.failed), (1, 0), "{report:?}");
}

#[tokio::test]
async fn bytes_pass_on_the_end_of_each_direction() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let to = listener.local_addr().expect("bound");
    let mut client = TcpStream::connect(proxy(RelayKind::Bytes, to).await)
        .await
        .expect("it listens");
    let (mut backend, _) = listener.accept().await.expect("it connects");
    client.write_all(b"question").await.expect("open");
    client.shutdown().await.expect("open");
    let mut heard = String::new();
    backend.read_to_string(&mut heard).await.expect("a text");
    assert_eq!(heard, "question");
    backend.write_all(b"answer").await.expect("still open");
    drop(backend);
    heard.clear();
    client.read_to_string(&mut heard).await.expect("a text");
    assert_eq!(heard, "answer");
}

#[tokio::test]
async fn hyper_uses_its_connections_again() {
    let backend = backend().await;
    let proxy = proxy(RelayKind::Hyper, backend.http_addr()).await;
    for _ in 0..2 {
        let report = load(TargetProtocol::Http, proxy).await;
        assert_eq!((report.ok, report.failed), (200, 0), "{report:?}");
    }
    let seen = backend.report();
    assert_eq!(seen.answered, 400);
    assert!(seen.connections <= 8, "{}", seen.connections);
}
