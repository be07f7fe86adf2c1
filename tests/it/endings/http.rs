//! The cells of the table with HTTP on both sides.

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;

use super::{BackendSees, ClientSees, Ending, Expected, Told};
use crate::backend_tls::server;
use crate::certificates::Authority;
use crate::raw_http::{Acceptor, BodyEnd, Peer, Reply, StreamEnd, get, ok, service};
use crate::sidecar::Sidecar;
use crate::support::{connect, reset};

/// A reply in two halves.
struct Message {
    body: String,
    first: String,
    rest: String,
    /// The bytes that the client gets before the message ends.
    streamed: usize,
}

impl Message {
    fn new(ending: Ending, told: Told) -> Self {
        let is_small = told == Told::Small;
        let size = if is_small { 1_000 } else { 400_000 };
        let body: String = ('a'..='z').cycle().take(size).collect();
        let (one, two) = body.split_at(size / 2);
        let with_length = matches!(told, Told::Small | Told::Large);
        let framing = match ending {
            Ending::LengthComplete | Ending::LengthCut => "length",
            Ending::ChunksComplete | Ending::ChunksCut => "chunks",
            Ending::Close => "close",
            _ if with_length => "length",
            Ending::Reset | Ending::TlsCut => "close",
            _ => "chunks",
        };
        let half = size / 2;
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
        let (first, rest) = match framing {
            "length" => (
                format!("{head}Content-Length: {size}\r\n\r\n{one}"),
                two.to_owned(),
            ),
            "chunks" => (
                format!("{head}Transfer-Encoding: chunked\r\n\r\n{half:x}\r\n{one}\r\n"),
                format!("{half:x}\r\n{two}\r\n0\r\n\r\n"),
            ),
            _ => (
                format!("{head}Connection: close\r\n\r\n{one}"),
                two.to_owned(),
            ),
        };
        Self {
            first,
            rest,
            streamed: if is_small { 0 } else { half },
            body,
        }
    }

    fn has_length(&self) -> bool {
        self.first.contains("Content-Length")
    }
}

fn request(told: Told) -> String {
    match told {
        Told::Http10 => "GET /reply HTTP/1.0\r\nHost: t\r\n\r\n".to_owned(),
        _ => get("/reply", ""),
    }
}

pub(super) async fn check(ending: Ending, told: Told, expected: Expected) {
    match ending {
        Ending::EarlyAnswer => check_early_answer(told, expected).await,
        Ending::TlsCut => check_tls_cut(told, expected).await,
        _ => check_plain(ending, told, expected).await,
    }
}

fn config(backend: &Acceptor, ending: Ending, told: Told) -> String {
    let (lines, sections) = super::options(ending, told);
    let lines = format!("reply_buffer_bytes = \"64KiB\"\n{lines}");
    service(backend.addr, &lines, sections)
}

async fn check_plain(ending: Ending, told: Told, expected: Expected) {
    let acceptor = Acceptor::start().await;
    let sidecar = Sidecar::start(&config(&acceptor, ending, told)).await;
    let addr = sidecar.listener("test").await;
    let mut client = Peer::sending(addr, request(told)).await;
    let mut backend = acceptor.accept().await;
    let message = Message::new(ending, told);
    exchange_first_half(&mut client, &mut backend, &message).await;
    // The backend's connection, unless the backend has ended it.
    let backend = match ending {
        Ending::LengthComplete | Ending::ChunksComplete => {
            backend.send(&message.rest).await;
            Some(backend)
        }
        Ending::Close => {
            backend.send(&message.rest).await;
            drop(backend);
            None
        }
        Ending::Reset => {
            reset(backend.stream);
            None
        }
        Ending::Drain => {
            sidecar.signal("TERM");
            sidecar.log().wait(&["draining;"]).await;
            if message.has_length() {
                backend.send(&message.rest).await;
            }
            Some(backend)
        }
        Ending::ClientLeft | Ending::Deadline => Some(backend),
        Ending::ChunksCut | Ending::LengthCut => {
            drop(backend);
            None
        }
        Ending::TlsCut | Ending::EarlyAnswer => unreachable!("they have tests of their own"),
    };
    if expected.client == ClientSees::Left {
        drop(client);
    } else {
        check_reply(told, &client.reply().await, &message.body, expected);
        drop(client);
    }
    if let Some(mut backend) = backend {
        match ending {
            // A client that keeps its connection open is given a second.
            Ending::Drain => drop(backend.end().await),
            _ => check_backend(backend, &sidecar, expected).await,
        }
    }
    super::check_line(&sidecar, expected).await;
    if ending == Ending::Drain {
        let (status, log) = sidecar.ended().await;
        assert_eq!(status.code(), Some(0), "{}", log.join("\n"));
    }
}

/// Sends the first half of the reply, of which the client gets as much as is streamed.
async fn exchange_first_half<S: AsyncRead + AsyncWrite + Unpin>(
    client: &mut Peer,
    backend: &mut Peer<S>,
    message: &Message,
) {
    backend.head().await;
    let sending = backend.send(&message.first);
    tokio::join!(sending, client.read_ahead(message.streamed));
}

fn check_reply(told: Told, reply: &Reply, body: &str, expected: Expected) {
    let context = (reply.status(), reply.end, reply.answer.body.len());
    match expected.client {
        ClientSees::Whole => {
            assert!(reply.is_whole(), "{context:?}");
            assert_eq!(reply.status(), 200);
            assert_eq!(reply.answer.body.len(), body.len(), "{context:?}");
            assert!(reply.answer.body == body);
        }
        ClientSees::Cut => assert!(!reply.is_whole(), "{context:?}"),
        ClientSees::Reset => assert_eq!(reply.end, BodyEnd::Cut(StreamEnd::Reset), "{context:?}"),
        ClientSees::Status(status) => {
            assert!(reply.is_whole(), "{reply:?}");
            assert_eq!(reply.status(), status, "{reply:?}");
        }
        ClientSees::Left => unreachable!("it reads no reply"),
    }
    let is_chunked = reply.answer.header("transfer-encoding").is_some();
    let is_own = matches!(expected.client, ClientSees::Status(502 | 504));
    assert_eq!(is_chunked, told == Told::Chunked && !is_own, "{context:?}");
}

async fn check_backend(mut backend: Peer, sidecar: &Sidecar, expected: Expected) {
    match expected.backend {
        BackendSees::Kept => {
            let addr = sidecar.listener("test").await;
            let mut client = Peer::sending(addr, get("/next", "")).await;
            let head = backend.head().await;
            assert!(head.starts_with("GET /next "), "{head}");
            backend.send(ok("next")).await;
            client.reply().await.is(200, "next");
        }
        BackendSees::Closed => {
            backend.ends_within_a_second().await;
        }
        BackendSees::Reset => {
            assert_eq!(backend.ends_within_a_second().await, StreamEnd::Reset);
        }
        BackendSees::Itself => {}
    }
}

/// The end of TLS is missing, as if an attacker had cut the connection.
async fn check_tls_cut(told: Told, expected: Expected) {
    let authority = Authority::new();
    let acceptor = Acceptor::start().await;
    let ca = authority.ca().display().to_string();
    let config =
        config(&acceptor, Ending::TlsCut, told).replace("http = \"http://", "http = \"https://");
    let config = format!("{config}\n[backend.tls]\nca = \"{ca}\"");
    let sidecar = Sidecar::start(&config).await;
    let addr = sidecar.listener("test").await;
    let mut client = Peer::sending(addr, request(told)).await;
    let tls = TlsAcceptor::from(server(&authority.issue(&["127.0.0.1"])));
    let secured = tls.accept(acceptor.stream().await).await;
    let mut backend = Peer::new(secured.expect("a handshake"));
    let message = Message::new(Ending::TlsCut, told);
    exchange_first_half(&mut client, &mut backend, &message).await;
    drop(backend);
    check_reply(told, &client.reply().await, &message.body, expected);
    super::check_line(&sidecar, expected).await;
}

const UPLOAD: usize = 20 << 20;
const TOO_LARGE: &str = "{\"error\": \"too large\"}";

async fn check_early_answer(told: Told, expected: Expected) {
    let acceptor = Acceptor::start().await;
    let sidecar = Sidecar::start(&config(&acceptor, Ending::EarlyAnswer, told)).await;
    let addr = sidecar.listener("test").await;
    // Where the answer is lost, it is lost now and then.
    for _ in 0..4 {
        let (reading, mut writing) = connect(addr).await.into_split();
        let uploading = tokio::spawn(async move {
            let version = if told == Told::Http10 { "1.0" } else { "1.1" };
            let head = format!(
                "POST /files HTTP/{version}\r\nHost: t\r\nContent-Length: {UPLOAD}\r\n\r\n"
            );
            writing.write_all(head.as_bytes()).await?;
            let part = vec![b'x'; 64 << 10];
            for _ in 0..UPLOAD / part.len() {
                writing.write_all(&part).await?;
            }
            std::io::Result::Ok(writing)
        });
        let mut client = Peer::new(tokio::io::join(reading, tokio::io::sink()));
        let (mut backend, head) = acceptor.call().await;
        assert!(head.starts_with("POST /files "), "{head}");
        backend.read_ahead(64 << 10).await;
        let size = TOO_LARGE.len();
        let framed = match told {
            Told::Chunked => {
                format!("Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n{TOO_LARGE}\r\n0\r\n\r\n")
            }
            _ => format!("Content-Length: {size}\r\n\r\n{TOO_LARGE}"),
        };
        let answer = format!("HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n{framed}");
        backend.send(answer).await;
        backend.stream.readable().await.expect("there is more");
        drop(backend);
        let reply = client.reply().await;
        check_reply(told, &reply, TOO_LARGE, expected);
        assert_eq!(reply.answer.body, TOO_LARGE, "{reply:?}");
        uploading.abort();
    }
    super::check_line(&sidecar, expected).await;
}
