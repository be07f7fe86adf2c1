//! The cells of the table whose bytes have no framing: connections of `protocol = "tcp"`, and
//! connections that were switched to WebSocket.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::{BackendSees, ClientSees, Ending, Expected, Told};
use crate::backend_tls::server;
use crate::certificates::Authority;
use crate::raw_http::{Acceptor, Peer, StreamEnd, service};
use crate::sidecar::Sidecar;
use crate::support::{listens, reset};
use crate::websocket::{handshake, switched};

/// The backend's last bytes.
const LAST: &str = "the last bytes";

fn config(acceptor: &Acceptor, ending: Ending, told: Told) -> String {
    let (_, sections) = super::options(ending, told);
    if told == Told::WebSocket {
        return service(acceptor.addr, "", sections);
    }
    let backend = format!("tcp = \"{}\"", acceptor.addr);
    let more = format!(
        "[limits]\nper_window = \"total:1000\"\nledger_lost = \"assume_empty\"\n[admin]\nbind = \"127.0.0.1:0\"\n{sections}"
    );
    listens("protocol = \"tcp\"", &backend, &more)
}

pub(super) async fn check(ending: Ending, told: Told, expected: Expected) {
    match ending {
        Ending::EarlyAnswer => check_early_answer(told, expected).await,
        Ending::TlsCut => check_tls_cut(told, expected).await,
        _ => check_plain(ending, told, expected).await,
    }
}

/// A client that has asked for a tunnel.
async fn ask(addr: SocketAddr, told: Told) -> Peer {
    match told {
        Told::WebSocket => Peer::sending(addr, handshake("/chat", "")).await,
        _ => Peer::connect(addr).await,
    }
}

/// Passes bytes both ways, the last of them from the backend.
async fn pass<S: AsyncRead + AsyncWrite + Unpin>(
    client: &mut Peer,
    backend: &mut Peer<S>,
    told: Told,
) {
    if told == Told::WebSocket {
        backend.head().await;
        backend.send(switched()).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    }
    client.send("ping").await;
    assert_eq!(backend.bytes(4).await, b"ping");
    backend.send(LAST).await;
    client.read_ahead(LAST.len()).await;
}

async fn check_plain(ending: Ending, told: Told, expected: Expected) {
    let acceptor = Acceptor::start().await;
    let sidecar = Sidecar::start(&config(&acceptor, ending, told)).await;
    let mut client = ask(sidecar.listener("test").await, told).await;
    let mut backend = acceptor.accept().await;
    pass(&mut client, &mut backend, told).await;
    let backend = match ending {
        Ending::Close => {
            drop(backend);
            None
        }
        Ending::Reset => {
            reset(backend.stream);
            None
        }
        _ => Some(backend),
    };
    if ending == Ending::Drain {
        sidecar.signal("TERM");
    }
    if expected.client == ClientSees::Left {
        reset(client.stream);
    } else {
        check_client(&mut client, expected).await;
        drop(client);
    }
    match backend {
        None => assert_eq!(expected.backend, BackendSees::Itself),
        Some(mut backend) => {
            assert_eq!(expected.backend, BackendSees::Reset);
            assert_eq!(backend.ends_within_a_second().await, StreamEnd::Reset);
        }
    }
    super::check_line(&sidecar, expected).await;
    if ending == Ending::Drain {
        let (status, log) = sidecar.ended().await;
        assert_eq!(status.code(), Some(0), "{}", log.join("\n"));
    }
}

async fn check_client<S: AsyncRead + AsyncWrite + Unpin>(client: &mut Peer<S>, expected: Expected) {
    let (bytes, end) = client.end().await;
    let wanted = match expected.client {
        ClientSees::Whole => StreamEnd::Fin,
        _ => StreamEnd::Reset,
    };
    assert_eq!(end, wanted);
    assert_eq!(String::from_utf8_lossy(&bytes), LAST);
}

/// The end of TLS is missing, as if an attacker had cut the connection.
async fn check_tls_cut(told: Told, expected: Expected) {
    let authority = Authority::new();
    let acceptor = Acceptor::start().await;
    let ca = authority.ca().display().to_string();
    let config = config(&acceptor, Ending::TlsCut, told)
        .replace("http = \"http://", "http = \"https://")
        .replace("tcp = \"127", "tcp = \"tls://127");
    let config = format!("{config}\n[backend.tls]\nca = \"{ca}\"");
    let sidecar = Sidecar::start(&config).await;
    let mut client = ask(sidecar.listener("test").await, told).await;
    let tls = TlsAcceptor::from(server(&authority.issue(&["127.0.0.1"])));
    let secured = tls.accept(acceptor.stream().await).await;
    let mut backend = Peer::new(secured.expect("a handshake"));
    pass(&mut client, &mut backend, told).await;
    drop(backend);
    check_client(&mut client, expected).await;
    super::check_line(&sidecar, expected).await;
}

/// The client sends as much as it can, and the backend reads none of it.
async fn check_early_answer(told: Told, expected: Expected) {
    let acceptor = Acceptor::start().await;
    let sidecar = Sidecar::start(&config(&acceptor, Ending::EarlyAnswer, told)).await;
    let addr = sidecar.listener("test").await;
    let mut client = ask(addr, told).await;
    let mut backend = acceptor.accept().await;
    backend.send(LAST).await;
    // A client that still writes could lose the reset to its write, so it writes until no more is
    // accepted.
    let part = vec![b'x'; 64 << 10];
    let moment = Duration::from_millis(50);
    while let Ok(written) = timeout(moment, client.stream.write_all(&part)).await {
        written.expect("the connection is open");
    }
    client.read_ahead(LAST.len()).await;
    backend.stream.readable().await.expect("there is more");
    drop(backend);
    check_client(&mut client, expected).await;
    super::check_line(&sidecar, expected).await;
}
