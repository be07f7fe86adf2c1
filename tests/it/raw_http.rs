//! Both ends of an HTTP exchange as bytes: a client, and a backend whose connections the test itself
//! plays. Each end sees how a message ended: whole, cut by a FIN, or cut by a reset.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::sidecar::Sidecar;
use crate::support::{Answer, connect, json, listens};

/// Each step takes no longer than this, unless it hangs.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// A config for an HTTP service at this address, with these lines in `[backend]` and these sections
/// after it. No limit is reached. What the sections begin with belongs to `[queue]`.
pub(crate) fn service(http: SocketAddr, backend: &str, sections: &str) -> String {
    limited("", http, backend, sections)
}

/// A config as of [`service`] in which one call at a time is at the backend.
pub(crate) fn one_at_a_time(http: SocketAddr, backend: &str, sections: &str) -> String {
    limited("outstanding = 1", http, backend, sections)
}

/// A config as of [`service`] with these lines in `[limits]`.
pub(crate) fn limited(limits: &str, http: SocketAddr, backend: &str, sections: &str) -> String {
    let backend = format!("http = \"http://{http}\"\n{backend}");
    let kind = match backend.contains("kind =") {
        true => "",
        false => "kind = \"http\"\n",
    };
    let sections = format!(
        r#"
        [admin]
        bind = "127.0.0.1:0"
        [limits]
        per_window = "total:100000"
        ledger_lost = "assume_empty"
        {limits}
        [queue]
        postpone = "in_turn"
        {sections}
        "#
    );
    listens("", &format!("{kind}{backend}"), &sections)
}

/// How the bytes of a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    /// A clean end.
    Fin,
    /// An error.
    Reset,
}

/// How the body of a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// All bytes of its length came, or it has no body.
    Length,
    /// The last chunk came.
    LastChunk,
    /// The body ends with its connection, which ended in a FIN.
    Close,
    /// The connection ended before the message did.
    Cut(StreamEnd),
}

/// A reply as a client reads it.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The heads of the interim replies before it.
    pub(crate) interim: Vec<Answer>,
    pub(crate) answer: Answer,
    pub(crate) end: BodyEnd,
}

impl Reply {
    pub(crate) fn status(&self) -> u16 {
        self.answer.status
    }

    pub(crate) fn is_whole(&self) -> bool {
        !matches!(self.end, BodyEnd::Cut(_))
    }

    /// Asserts that it is whole and has this status and body.
    #[track_caller]
    pub(crate) fn is(&self, status: u16, body: &str) {
        assert!(self.is_whole(), "{self:?}");
        let seen = (self.status(), self.answer.body.as_str());
        assert_eq!(seen, (status, body), "{self:?}");
    }
}

/// An end of a connection, and the bytes that it has read ahead.
pub(crate) struct Peer<S = TcpStream> {
    pub(crate) stream: S,
    buffer: Vec<u8>,
    end: Option<StreamEnd>,
}

impl Peer {
    /// A new client of the listener there.
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        Self::new(connect(addr).await)
    }

    /// A new client that has sent this.
    pub(crate) async fn sending(addr: SocketAddr, bytes: impl AsRef<[u8]>) -> Self {
        let mut client = Self::connect(addr).await;
        client.send(bytes).await;
        client
    }

    /// A new client of a whole exchange.
    pub(crate) async fn ask(addr: SocketAddr, request: impl AsRef<[u8]>) -> Reply {
        Self::sending(addr, request).await.reply().await
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            end: None,
        }
    }

    /// Sends bytes, which the other end must accept.
    #[track_caller]
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        async move {
            let sending = async {
                self.stream.write_all(bytes.as_ref()).await?;
                self.stream.flush().await
            };
            match timeout(SOON, sending).await {
                Ok(Ok(())) => {}
                outcome => panic!("{place}: not sent: {outcome:?}"),
            }
        }
    }

    /// Reads once more, unless the end was read.
    async fn read_more(&mut self) -> Option<StreamEnd> {
        if self.end.is_none() {
            self.buffer.reserve(64 << 10);
            let reading = timeout(SOON, self.stream.read_buf(&mut self.buffer)).await;
            let text = String::from_utf8_lossy(&self.buffer);
            self.end = match reading {
                Ok(Ok(0)) => Some(StreamEnd::Fin),
                Ok(Ok(_)) => None,
                // TLS that ends without its alert.
                Ok(Err(error)) if error.kind() == ErrorKind::UnexpectedEof => Some(StreamEnd::Fin),
                Ok(Err(_)) => Some(StreamEnd::Reset),
                Err(_) => panic!("nothing more came, after {:?}", shortened(&text)),
            };
        }
        self.end
    }

    /// Reads until at least this many bytes are here, and leaves them where they are.
    pub(crate) async fn read_ahead(&mut self, bytes: usize) {
        while self.buffer.len() < bytes {
            let end = self.read_more().await;
            let text = String::from_utf8_lossy(&self.buffer);
            assert_eq!(end, None, "before {bytes} bytes: {:?}", shortened(&text));
        }
    }

    /// Exactly this many bytes.
    pub(crate) async fn bytes(&mut self, bytes: usize) -> Vec<u8> {
        self.read_ahead(bytes).await;
        self.buffer.drain(..bytes).collect()
    }

    /// All bytes up to the end, and which end it is.
    pub(crate) async fn end(&mut self) -> (Vec<u8>, StreamEnd) {
        loop {
            if let Some(end) = self.read_more().await {
                return (std::mem::take(&mut self.buffer), end);
            }
        }
    }

    /// The next head with its empty line; none if the connection ended before it.
    pub(crate) async fn next_head(&mut self) -> Option<String> {
        loop {
            let at = self.buffer.windows(4).position(|it| it == b"\r\n\r\n");
            if let Some(at) = at {
                let head = self.buffer.drain(..at + 4).collect();
                return Some(String::from_utf8(head).expect("ASCII"));
            }
            if self.read_more().await.is_some() {
                return None;
            }
        }
    }

    /// The next head, which must come.
    /// The body of a request, by the length in its head.
    pub(crate) async fn body_of(&mut self, head: &str) -> Vec<u8> {
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse().expect("a number"))
        });
        self.bytes(length.unwrap_or(0)).await
    }

    pub(crate) async fn head(&mut self) -> String {
        let head = self.next_head().await;
        head.unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&self.buffer);
            panic!("{:?} instead of a head: {text:?}", self.end)
        })
    }

    /// Whether nothing is here to be read, also after a moment. For what must not come.
    pub(crate) async fn is_silent(&mut self) -> bool {
        let reading = self.stream.read_buf(&mut self.buffer);
        let read = timeout(Duration::from_millis(50), reading).await;
        read.is_err() && self.buffer.is_empty()
    }

    /// The next reply to any method except HEAD, with the interim ones before it.
    pub(crate) async fn reply(&mut self) -> Reply {
        let mut interim = Vec::new();
        loop {
            let head = self.head().await;
            let answer = Answer::read(head.as_bytes());
            if answer.status < 200 && answer.status != 101 {
                interim.push(answer);
                continue;
            }
            let (body, end) = self.body(&answer).await;
            let answer = Answer::read(&[head.as_bytes(), &body].concat());
            return Reply {
                interim,
                answer,
                end,
            };
        }
    }

    /// The body behind a head.
    pub(crate) async fn body(&mut self, head: &Answer) -> (Vec<u8>, BodyEnd) {
        if head.header("transfer-encoding").is_some() {
            return self.chunks().await;
        }
        let length = head.header("content-length");
        let length = length.map(|length| length.parse().expect("a number"));
        let length = match head.status {
            101 | 204 | 304 => Some(0),
            _ => length,
        };
        let Some(length) = length else {
            return match self.end().await {
                (body, StreamEnd::Fin) => (body, BodyEnd::Close),
                (body, reset) => (body, BodyEnd::Cut(reset)),
            };
        };
        while self.buffer.len() < length {
            if let Some(end) = self.read_more().await {
                return (std::mem::take(&mut self.buffer), BodyEnd::Cut(end));
            }
        }
        (self.buffer.drain(..length).collect(), BodyEnd::Length)
    }

    /// The body of chunks, without trailers.
    async fn chunks(&mut self) -> (Vec<u8>, BodyEnd) {
        let mut body = Vec::new();
        loop {
            let line = loop {
                if let Some(at) = self.buffer.windows(2).position(|it| it == b"\r\n") {
                    break self.buffer.drain(..at + 2).collect::<Vec<_>>();
                }
                if let Some(end) = self.read_more().await {
                    return (body, BodyEnd::Cut(end));
                }
            };
            let size = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let size = usize::from_str_radix(&size, 16).expect("the size of a chunk");
            while self.buffer.len() < size + 2 {
                if let Some(end) = self.read_more().await {
                    body.append(&mut self.buffer);
                    return (body, BodyEnd::Cut(end));
                }
            }
            body.extend(self.buffer.drain(..size));
            assert_eq!(self.buffer.drain(..2).collect::<Vec<_>>(), b"\r\n");
            if size == 0 {
                return (body, BodyEnd::LastChunk);
            }
        }
    }

    /// The end of the connection, which must come within a second.
    pub(crate) async fn ends_within_a_second(&mut self) -> StreamEnd {
        let ended = timeout(Duration::from_secs(1), self.end()).await;
        ended.expect("it ends within a second").1
    }
}

/// The beginning of a long text.
fn shortened(text: &str) -> String {
    text.chars().take(300).collect()
}

/// A backend whose connections the test itself accepts.
pub(crate) struct Acceptor {
    listener: TcpListener,
    pub(crate) addr: SocketAddr,
}

impl Acceptor {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        Self { listener, addr }
    }

    /// The next connection as it comes.
    pub(crate) async fn stream(&self) -> TcpStream {
        let accepted = timeout(SOON, self.listener.accept()).await;
        accepted.expect("a connection comes").expect("it listens").0
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> Peer {
        Peer::new(self.stream().await)
    }

    /// The next connection, and the head of the first request on it.
    pub(crate) async fn call(&self) -> (Peer, String) {
        let mut peer = self.accept().await;
        let head = peer.head().await;
        (peer, head)
    }

    /// Whether no connection comes, also not after a moment.
    pub(crate) async fn is_silent(&self) -> bool {
        let accepting = self.listener.accept();
        timeout(Duration::from_millis(50), accepting).await.is_err()
    }
}

/// A whole reply with this text.
pub(crate) fn ok(text: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    )
}

/// A GET of this path in HTTP/1.1, with these fields, each with its line's end.
pub(crate) fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: t\r\n{fields}\r\n")
}

/// The next access line from this line of the log on, and the index just past it.
pub(crate) async fn access_line(sidecar: &Sidecar, from: usize) -> (Value, usize) {
    let words = ["\"target\":\"access\"", "\"verdict\""];
    let (line, next) = sidecar.log().wait_from(from, &words).await;
    (json(&line), next)
}

/// The first N access lines.
pub(crate) async fn access_lines(sidecar: &Sidecar, calls: usize) -> Vec<Value> {
    let (mut lines, mut from) = (Vec::new(), 0);
    for _ in 0..calls {
        let (line, next) = access_line(sidecar, from).await;
        lines.push(line);
        from = next;
    }
    lines
}

/// Calls past the gate, and calls that wait.
pub(crate) async fn load(sidecar: &Sidecar) -> (u64, u64) {
    let (_, now) = sidecar.get("/v1/now").await;
    let queue = &json(&now)["queue"];
    let number = |name| queue[name].as_u64().expect("a number");
    (number("in_flight"), number("waiting"))
}

/// Waits, at most `within`, until exactly these numbers of calls are running and waiting.
pub(crate) async fn reach_load(sidecar: &Sidecar, wanted: (u64, u64), within: Duration) {
    let deadline = Instant::now() + within;
    loop {
        let now = load(sidecar).await;
        if now == wanted {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{now:?} running and waiting, not {wanted:?}"
        );
        sleep(Duration::from_millis(5)).await;
    }
}
