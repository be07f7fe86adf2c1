//! The bare proxies pass on calls and their replies, and nothing else.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_lab::backend::{self, Backend, Running};
use tidegate_lab::bench::{self, Protocol};
use tidegate_lab::relay::{Kind, relay};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

async fn backend() -> Running {
    let options = backend::Options {
        delay: Duration::ZERO,
        ..backend::Options::on_free_ports()
    };
    Backend::start(options).await.expect("free ports")
}

async fn proxy(kind: Kind, to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(relay(kind, listener, to));
    address
}

async fn load(protocol: Protocol, target: SocketAddr) -> bench::Report {
    let options = bench::Options {
        target,
        protocol,
        connections: 4,
        calls: Some(200),
        timeout: Duration::from_secs(10),
        ..bench::Options::default()
    };
    bench::run(options).await.expect("a load that can be run")
}

#[tokio::test]
async fn bytes_have_a_connection_of_their_own_for_each_client() {
    let backend = backend().await;
    for (protocol, to, connections) in [
        (Protocol::Socket, backend.socket_addr(), 200),
        (Protocol::Http, backend.http_addr(), 4),
    ] {
        backend.reset();
        let report = load(protocol, proxy(Kind::Bytes, to).await).await;
        assert_eq!((report.ok, report.failed), (200, 0), "{report:?}");
        let seen = backend.report();
        assert_eq!((seen.answered, seen.connections), (200, connections));
    }
}

#[tokio::test]
async fn once_passes_on_a_call_and_its_reply_on_the_socket_protocol() {
    let backend = backend().await;
    let proxy = proxy(Kind::Once, backend.socket_addr()).await;
    let report = load(Protocol::Socket, proxy).await;
    assert_eq!((report.ok, report.failed), (200, 0), "{report:?}");
    let big = bench::Options {
        target: proxy,
        userid: "BIG".to_owned(),
        calls: Some(1),
        ..bench::Options::default()
    };
    let report = bench::run(big).await.expect("a load that can be run");
    assert_eq!((report.ok, report.failed), (1, 0), "{report:?}");
}

#[tokio::test]
async fn bytes_pass_on_the_end_of_each_direction() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let to = listener.local_addr().expect("bound");
    let mut client = TcpStream::connect(proxy(Kind::Bytes, to).await)
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
    let proxy = proxy(Kind::Hyper, backend.http_addr()).await;
    for _ in 0..2 {
        let report = load(Protocol::Http, proxy).await;
        assert_eq!((report.ok, report.failed), (200, 0), "{report:?}");
    }
    let seen = backend.report();
    assert_eq!(seen.answered, 400);
    assert!(seen.connections <= 8, "{}", seen.connections);
}
