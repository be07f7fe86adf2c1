//! TCP connections that are forwarded unchanged: how each end reaches the other side, and the
//! reports.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tidegate::call::{Facts, Reason, Verdict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::sidecar::{Sidecar, field};
use crate::support::{PATIENCE, Stack, connect, pass, reset, settle};

fn config(backend: SocketAddr, client: &str) -> String {
    format!(
        r#"
        [server]
        drain_timeout = "100ms"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        protocol = "tcp"
        [client]
        {client}
        [backend]
        tcp = "{backend}"
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:100"
        outstanding = 1
        [admin]
        bind = "127.0.0.1:0"
        "#
    )
}

/// A tunnel through which four bytes have gone each way.
struct Through {
    stack: Stack,
    client: TcpStream,
    backend: TcpStream,
}

impl Through {
    async fn open(client_section: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let stack = Stack::start(&config(address, client_section));
        let mut client = connect(stack.addr).await;
        let (mut backend, _) = listener.accept().await.expect("it is let through");
        exchange(&mut client, &mut backend).await;
        Self {
            stack,
            client,
            backend,
        }
    }

    async fn told(&self) -> Facts {
        let facts = self.stack.seen.ended(1).await.remove(0);
        self.stack.at_rest().await;
        facts
    }
}

async fn exchange(client: &mut TcpStream, backend: &mut TcpStream) {
    let mut four = [0; 4];
    client.write_all(b"ping").await.expect("it is passed");
    backend.read_exact(&mut four).await.expect("it is passed");
    assert_eq!(&four, b"ping");
    backend.write_all(b"pong").await.expect("it is passed");
    client.read_exact(&mut four).await.expect("it is passed");
    assert_eq!(&four, b"pong");
}

/// How a connection ends: the bytes until then, and whether that was a reset.
async fn end_of(stream: &mut TcpStream) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    match read.expect("it ends") {
        Ok(_) => (bytes, false),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => (bytes, true),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_clean_end_is_passed_on_as_one_and_the_other_way_goes_on() {
    let mut it = Through::open("").await;
    it.client
        .write_all(b"the rest")
        .await
        .expect("it is passed");
    it.client.shutdown().await.expect("it half-closes");
    assert_eq!(end_of(&mut it.backend).await, (b"the rest".to_vec(), false));
    settle().await;
    it.backend.write_all(b"late").await.expect("it is passed");
    it.backend.shutdown().await.expect("it half-closes");
    assert_eq!(end_of(&mut it.client).await, (b"late".to_vec(), false));
    let facts = it.told().await;
    assert_eq!((facts.verdict, facts.reason), (Verdict::Passed, None));
    assert_eq!((facts.bytes_in, facts.bytes_out), (12, 8));
}

#[tokio::test]
async fn a_client_that_resets_has_its_backend_reset() {
    for is_settled in [false, true] {
        let mut it = Through::open("").await;
        it.client.write_all(b"half").await.expect("it is passed");
        let mut four = [0; 4];
        it.backend
            .read_exact(&mut four)
            .await
            .expect("it is passed");
        if is_settled {
            settle().await;
        }
        let client = std::mem::replace(&mut it.client, connect(it.stack.addr).await);
        reset(client);
        assert_eq!(end_of(&mut it.backend).await, (Vec::new(), true));
        let facts = it.stack.seen.ended(1).await.remove(0);
        assert_eq!((facts.verdict, facts.reason), (Verdict::Aborted, None));
        assert!(facts.left);
        assert_eq!((facts.bytes_in, facts.bytes_out), (8, 4));
    }
}

#[tokio::test]
async fn a_client_that_resets_behind_its_own_end_has_its_backend_reset() {
    let mut it = Through::open("").await;
    it.client.shutdown().await.expect("it half-closes");
    assert_eq!(end_of(&mut it.backend).await, (Vec::new(), false));
    let client = std::mem::replace(&mut it.client, connect(it.stack.addr).await);
    reset(client);
    // Its reading side has ended; that the other is reset shows when it writes.
    let writing = async {
        while it.backend.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, writing).await.expect("it is reset");
    let facts = it.stack.seen.ended(1).await.remove(0);
    assert_eq!(facts.verdict, Verdict::Aborted);
}

#[tokio::test]
async fn a_backend_that_resets_has_its_client_reset() {
    let mut it = Through::open("").await;
    it.backend.write_all(b"half").await.expect("it is passed");
    let mut four = [0; 4];
    it.client.read_exact(&mut four).await.expect("it is passed");
    let (spare, _) = tokio::join!(connect(it.stack.addr), async {});
    let backend = std::mem::replace(&mut it.backend, spare);
    reset(backend);
    assert_eq!(end_of(&mut it.client).await, (Vec::new(), true));
    let facts = it.stack.seen.ended(1).await.remove(0);
    assert_eq!(facts.verdict, Verdict::Failed);
    assert_eq!(facts.reason, Some(Reason::BackendCut));
    assert_eq!((facts.bytes_in, facts.bytes_out), (4, 8));
}

#[tokio::test]
async fn a_tunnel_in_which_no_byte_moves_is_cut_and_its_slot_comes_back() {
    let mut it = Through::open("tunnel_idle_timeout = \"30s\"").await;
    // What moves in one direction keeps the other open, too.
    let mut four = [0; 4];
    for _ in 0..6 {
        pass(Duration::from_secs(10)).await;
        it.client.write_all(b"more").await.expect("it is open");
        it.backend.read_exact(&mut four).await.expect("it is open");
    }
    pass(Duration::from_secs(31)).await;
    let (read, is_reset) = end_of(&mut it.backend).await;
    assert_eq!((read.len(), is_reset), (0, true));
    assert_eq!(end_of(&mut it.client).await, (Vec::new(), true));
    let facts = it.told().await;
    assert_eq!(facts.verdict, Verdict::Failed);
    assert_eq!(facts.reason, Some(Reason::TunnelIdle));
    assert_eq!((facts.bytes_in, facts.bytes_out), (28, 4));
}

#[tokio::test]
async fn a_dead_peer_of_either_side_is_found_out_by_the_kernel() {
    let it = Through::open("").await;
    let listener = tidegate::listen::bind_tcp(
        ([127, 0, 0, 1], 0).into(),
        &tidegate::listen::InheritedSockets::default(),
    )
    .expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let _client = connect(address).await;
    let listener = TcpListener::from_std(listener).expect("it is non-blocking");
    let (accepted, _) = listener.accept().await.expect("it is there");
    assert!(SockRef::from(&accepted).keepalive().expect("a socket"));
    // The kernel's table shows the sockets in between: 02 is a keep-alive timer.
    let ours = it.backend.peer_addr().expect("it is connected").port();
    let to_client = it.client.local_addr().expect("it is connected").port();
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    for (local, remote) in [
        (ours, it.backend.local_addr().expect("it is bound").port()),
        (it.stack.addr.port(), to_client),
    ] {
        let (local, remote) = (format!(":{local:04X}"), format!(":{remote:04X}"));
        let line = table.lines().find(|line| {
            let mut words = line.split_whitespace().skip(1);
            let mut ends_with = |port: &str| words.next().is_some_and(|it| it.ends_with(port));
            ends_with(&local) && ends_with(&remote)
        });
        let line = line.expect("the connection is in the table");
        let timer = line.split_whitespace().nth(5).expect("it has a timer");
        assert!(timer.starts_with("02:"), "{line}");
    }
}

#[tokio::test]
async fn a_tunnel_cut_by_a_drain_is_logged_with_its_bytes_and_resets_both_sides() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let sidecar = Sidecar::start(&config(address, "")).await;
    let mut client = connect(sidecar.listener("test").await).await;
    let (mut backend, _) = listener.accept().await.expect("it is let through");
    exchange(&mut client, &mut backend).await;
    sidecar.signal("TERM");
    assert_eq!(end_of(&mut backend).await, (Vec::new(), true));
    assert_eq!(end_of(&mut client).await, (Vec::new(), true));
    let (_, lines) = sidecar.ended().await;
    let line = lines.iter().find(|line| line.contains("\"verdict\""));
    let line = line.expect("the call has a line");
    assert_eq!(field(line, "verdict"), "failed", "{line}");
    assert_eq!(field(line, "reason"), "draining", "{line}");
    assert!(
        line.contains("\"bytes_in\":4") && line.contains("\"bytes_out\":4"),
        "{line}"
    );
}
