//! Clients whose requests have tags, that notice every byte that is not theirs, and some of which
//! misbehave when a fault begins.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::tag::{LENGTH, Tag};

/// The protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Wire {
    Http,
    Socket,
    Tcp,
}

impl Wire {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Socket => "socket",
            Self::Tcp => "tcp",
        }
    }
}

/// How a client behaves from the moment when the fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The client waits for its answer.
    Stays,
    /// The client closes.
    Leaves,
    /// The client closes with a reset.
    Resets,
    /// The client closes its sending side and reads on.
    HalfCloses,
    /// The client neither reads nor writes for so long, then closes.
    Stalls(Duration),
    /// The client sends one request more, and reads on.
    SendsMore,
    /// The client sends a byte more, and closes.
    SendsMoreAndLeaves,
}

/// The shape of a call's request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Bytes of its body.
    pub(super) up: usize,
    /// For how long the client sends it.
    pub(super) up_takes: Duration,
    /// Bytes of its answer.
    pub(super) down: usize,
    /// How long the backend takes for it.
    pub(super) takes: Duration,
}

/// How a call ended for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With its whole answer.
    Served,
    /// With an error of the proxy's own, and its reason.
    Refused(String),
    /// With an invalid answer of the backend: the bytes.
    Odd(String),
    /// The connection was closed or reset without a byte.
    Dropped,
    /// The answer broke off.
    Cut,
    /// The client left.
    Left,
    /// No connection.
    NoConnection,
    /// The answer did not come in time.
    Hung,
    /// With bytes of another call's answer.
    Foreign,
    /// With an answer that ended properly and is too short or too long.
    Truncated,
}

/// A call as its client saw it.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) tag: Tag,
    /// The client's own port.
    pub(super) port: u16,
    pub(super) began: Instant,
    /// When the whole request had been written.
    pub(super) sent: Option<Instant>,
    /// When the client left or half-closed.
    pub(super) left: Option<Instant>,
    pub(super) ended: Instant,
    pub(super) outcome: Outcome,
    /// Whether its body or its answer is too large to be held whole.
    pub(super) streams: bool,
}

/// Longest time without an answer that is no hang.
pub(super) const HUNG: Duration = Duration::from_secs(20);

/// The reasons of docs/reference/errors.md, as answers have them.
const REASONS: &[&str] = &[
    "queue_full",
    "deadline_passed",
    "deadline_unreachable",
    "predicted_late",
    "never_possible",
    "draining",
    "backend_unreachable",
    "backend_closed",
    "backend_cut",
    "backend_slow",
    "reply_too_large",
    "bad_request",
    "too_large",
    "request_slow",
    "no_backend",
    "internal",
    "rate_limited",
    "quota_store_away",
];

fn refusal(text: &str) -> Option<String> {
    let ours = [
        "\"modID\": 130",
        "\"modID\":130",
        "application/problem+json",
    ];
    if !ours.iter().any(|it| text.contains(it)) {
        return None;
    }
    let found = REASONS.iter().filter(|reason| text.contains(**reason));
    let longest = found.max_by_key(|reason| reason.len());
    Some(longest.map_or_else(|| "unnamed".to_owned(), |it| (*it).to_owned()))
}

/// A client, which keeps its connection where the protocol does.
pub(super) struct Client {
    pub(super) addr: SocketAddr,
    pub(super) wire: Wire,
    pub(super) way: Way,
    /// Whether the fault has begun.
    pub(super) fault: watch::Receiver<bool>,
    /// After which time without an answer a call counts as hung.
    pub(super) patience: Duration,
    kept: Option<TcpStream>,
}

/// A connection on which one call is under way.
struct Call {
    /// The connection; `None` once the client has closed it.
    stream: Option<TcpStream>,
    came: Vec<u8>,
}

enum Whole {
    /// An answer: its body, and whether the connection can be kept.
    Answer { body: Vec<u8>, keep: bool },
    /// A refusal or another answer that is no success.
    Error(String, bool),
    /// The connection ended first.
    Ended,
}

impl Client {
    pub(super) fn new(
        addr: SocketAddr,
        wire: Wire,
        way: Way,
        fault: watch::Receiver<bool>,
    ) -> Self {
        Self {
            addr,
            wire,
            way,
            fault,
            patience: HUNG,
            kept: None,
        }
    }

    /// Makes one call. A client that misbehaves does it once the fault has begun; `more` is the
    /// tag of the request that it may send beyond its own.
    pub(super) async fn call(&mut self, tag: Tag, more: Tag, shape: Shape) -> Attempt {
        let began = Instant::now();
        let mut attempt = Attempt {
            tag,
            port: 0,
            began,
            sent: None,
            left: None,
            ended: began,
            outcome: Outcome::NoConnection,
            streams: shape.up > 0 || shape.down > HELD,
        };
        let stream = match self.kept.take() {
            Some(stream) if is_open(&stream) => Ok(stream),
            _ => tokio::time::timeout(HUNG, TcpStream::connect(self.addr))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
        };
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                attempt.ended = Instant::now();
                // Connected and reset at once.
                if error.kind() == io::ErrorKind::ConnectionReset {
                    attempt.outcome = Outcome::Dropped;
                }
                return attempt;
            }
        };
        attempt.port = stream.local_addr().map_or(0, |it| it.port());
        let mut call = Call {
            stream: Some(stream),
            came: Vec::new(),
        };
        let way = self.way;
        let mut fault = self.fault.clone();
        let outcome = {
            let exchange = call.exchange(self.wire, tag, shape, &mut attempt.sent);
            let begins = async {
                if way == Way::Stays {
                    std::future::pending::<()>().await;
                }
                if fault.wait_for(|is_on| *is_on).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                biased;
                outcome = exchange => Some(outcome),
                () = begins => None,
                () = sleep(self.patience) => Some((Outcome::Hung, false)),
            }
        };
        let (outcome, keep) = match outcome {
            Some(outcome) => outcome,
            None => {
                call.misbehave(self.wire, way, tag, more, shape, &mut attempt)
                    .await
            }
        };
        attempt.outcome = outcome;
        attempt.ended = Instant::now();
        if keep {
            self.kept = call.stream;
        }
        attempt
    }

    /// Closes the kept connections.
    pub(super) fn closes(&mut self) {
        self.kept = None;
    }
}

/// Whether a kept connection can take another request, as far as a client can know.
fn is_open(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0]);
    read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn head(wire: Wire, tag: Tag, shape: Shape, chunked: bool) -> String {
    let (size, up, ms) = (shape.down, shape.up, shape.takes.as_millis());
    match wire {
        Wire::Http if shape.up > 0 => {
            let framing = match chunked {
                true => "Transfer-Encoding: chunked".to_owned(),
                false => format!("Content-Length: {up}"),
            };
            format!(
                "POST /guests/{tag}/disks?size={size}&up={up}&ms={ms} HTTP/1.1\r\nHost: t\r\n\
                 Content-Type: application/octet-stream\r\n{framing}\r\n\r\n"
            )
        }
        Wire::Http => format!(
            "GET /guests/{tag}/user_direct?size={size}&up=0&ms={ms} HTTP/1.1\r\nHost: t\r\n\r\n"
        ),
        Wire::Socket => {
            format!(
                "[\"guest_get_user_direct\", [\"{tag}\"], {{\"note\": \"size={size} ms={ms}\"}}]"
            )
        }
        Wire::Tcp => format!("{tag} size={size} up={up} ms={ms}\n"),
    }
}

impl Call {
    /// Sends the request and reads its answer; returns whether the connection can be kept.
    async fn exchange(
        &mut self,
        wire: Wire,
        tag: Tag,
        shape: Shape,
        sent: &mut Option<Instant>,
    ) -> (Outcome, bool) {
        let chunked = tag.0 % 2 == 1;
        let request = head(wire, tag, shape, chunked).into_bytes();
        let wrote = async {
            self.write(&request).await?;
            if shape.up > 0 {
                self.upload(wire, tag, shape, chunked).await?;
            }
            Ok::<_, io::Error>(())
        };
        // An answer can come before the whole request; then at worst a write fails.
        if wrote.await.is_ok() {
            *sent = Some(Instant::now());
        }
        self.read(wire, tag, shape.down).await
    }

    async fn upload(
        &mut self,
        wire: Wire,
        tag: Tag,
        shape: Shape,
        chunked: bool,
    ) -> io::Result<()> {
        const PIECES: usize = 16;
        let body = tag.body(shape.up);
        // A piece begins where a tag does.
        let piece = shape.up.div_ceil(PIECES).next_multiple_of(LENGTH);
        let chunked = chunked && wire == Wire::Http;
        for piece in body.chunks(piece) {
            sleep(shape.up_takes / PIECES as u32).await;
            if chunked {
                let length = format!("{:x}\r\n", piece.len());
                self.write(length.as_bytes()).await?;
            }
            self.write(piece).await?;
            if chunked {
                self.write(b"\r\n").await?;
            }
        }
        if chunked {
            self.write(b"0\r\n\r\n").await?;
        }
        Ok(())
    }

    async fn read(&mut self, wire: Wire, tag: Tag, expected: usize) -> (Outcome, bool) {
        match self.whole(wire).await {
            Whole::Answer { body, keep } => {
                if !tag.owns(&body) {
                    (Outcome::Foreign, false)
                } else if body.len() == expected {
                    (Outcome::Served, keep)
                } else if wire == Wire::Tcp && body.len() < expected {
                    // Only the connection's end shows the end of plain bytes.
                    let nothing = body.is_empty();
                    (
                        if nothing {
                            Outcome::Dropped
                        } else {
                            Outcome::Cut
                        },
                        false,
                    )
                } else {
                    (Outcome::Truncated, false)
                }
            }
            Whole::Error(text, keep) => match refusal(&text) {
                Some(reason) => (Outcome::Refused(reason), keep),
                None => (Outcome::Odd(text.chars().take(80).collect()), false),
            },
            Whole::Ended if self.came.is_empty() => (Outcome::Dropped, false),
            Whole::Ended if self.came.starts_with(NOISE) => (Outcome::Odd("noise".into()), false),
            Whole::Ended => {
                let is_foreign = Tag::find(&self.came).is_some_and(|it| it != tag);
                (
                    if is_foreign {
                        Outcome::Foreign
                    } else {
                        Outcome::Cut
                    },
                    false,
                )
            }
        }
    }

    async fn whole(&mut self, wire: Wire) -> Whole {
        let mut ended = false;
        loop {
            let whole = match wire {
                Wire::Http => self.http_answer(),
                Wire::Socket => self.array_answer(ended),
                Wire::Tcp if ended => Some(Whole::Answer {
                    body: std::mem::take(&mut self.came),
                    keep: false,
                }),
                Wire::Tcp => None,
            };
            if let Some(whole) = whole {
                return whole;
            }
            if ended {
                return Whole::Ended;
            }
            let before = self.came.len();
            if self.came.capacity() - before < 4096 {
                self.came.reserve(64 * 1024);
            }
            let Some(stream) = self.stream.as_mut() else {
                return Whole::Ended;
            };
            match stream.read_buf(&mut self.came).await {
                Ok(1..) => {}
                Ok(0) => ended = true,
                // A reset: unread bytes are lost, so no reply is complete by it.
                Err(_) => return Whole::Ended,
            }
        }
    }

    /// The next answer, which it takes out of what came.
    fn http_answer(&mut self) -> Option<Whole> {
        let came = &self.came;
        let end = came.windows(4).position(|it| it == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&came[..end]).to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let field = |name: &str| {
            head.lines()
                .find_map(|line| line.strip_prefix(name).map(str::trim))
        };
        let (body, used) = match field("content-length:").and_then(|it| it.parse::<usize>().ok()) {
            Some(length) => {
                let body = came.get(end..end + length)?;
                (body.to_vec(), end + length)
            }
            None => dechunked(&came[end..]).map(|(body, used)| (body, end + used))?,
        };
        let keep = field("connection:") != Some("close");
        self.came.drain(..used);
        let keep = keep && self.came.is_empty();
        Some(match &*status {
            "200" => Whole::Answer { body, keep },
            _ => Whole::Error(String::from_utf8_lossy(&body).into_owned(), keep),
        })
    }

    fn array_answer(&self, ended: bool) -> Option<Whole> {
        if !ended {
            return None;
        }
        let answer: serde_json::Value = serde_json::from_slice(&self.came).ok()?;
        Some(
            match (answer["overallRC"].as_i64(), answer["output"].as_str()) {
                (Some(0), Some(output)) => Whole::Answer {
                    body: output.as_bytes().to_vec(),
                    keep: false,
                },
                _ => Whole::Error(String::from_utf8_lossy(&self.came).into_owned(), false),
            },
        )
    }

    async fn misbehave(
        &mut self,
        wire: Wire,
        way: Way,
        tag: Tag,
        more: Tag,
        shape: Shape,
        attempt: &mut Attempt,
    ) -> (Outcome, bool) {
        match way {
            Way::Stays => unreachable!("it does not misbehave"),
            Way::Leaves => {
                // Its end goes out at once; the stream itself may live a little longer.
                self.shutdown().await;
                attempt.left = Some(Instant::now());
                self.abandon(false);
                (Outcome::Left, false)
            }
            Way::Resets => {
                self.abandon(true);
                attempt.left = Some(Instant::now());
                (Outcome::Left, false)
            }
            Way::HalfCloses => {
                self.shutdown().await;
                attempt.left = Some(Instant::now());
                let reading = self.read(wire, tag, shape.down);
                let read = tokio::time::timeout(HUNG, reading).await;
                // It can send nothing more over this connection.
                (read.map_or(Outcome::Hung, |(outcome, _)| outcome), false)
            }
            Way::Stalls(span) => {
                sleep(span).await;
                attempt.left = Some(Instant::now());
                (Outcome::Left, false)
            }
            // In the middle of a body, more of it would be sent.
            Way::SendsMore | Way::SendsMoreAndLeaves if attempt.sent.is_none() => {
                self.abandon(false);
                attempt.left = Some(Instant::now());
                (Outcome::Left, false)
            }
            Way::SendsMore => {
                let next = match wire {
                    Wire::Http => head(wire, more, SMALL, false),
                    Wire::Socket | Wire::Tcp => "\n".to_owned(),
                };
                let _ = self.write(next.as_bytes()).await;
                let until = Instant::now() + HUNG;
                let read = tokio::select! {
                    read = self.read(wire, tag, shape.down) => read,
                    () = sleep_until(until) => (Outcome::Hung, false),
                };
                if wire == Wire::Http && read.0 == Outcome::Served {
                    // The record judges what became of the other one.
                    let next = self.read(wire, more, SMALL.down);
                    let _ = tokio::time::timeout(HUNG, next).await;
                }
                (read.0, false)
            }
            Way::SendsMoreAndLeaves => {
                let more = match wire {
                    Wire::Http => "\r\n",
                    Wire::Socket | Wire::Tcp => "\n",
                };
                let _ = self.write(more.as_bytes()).await;
                self.shutdown().await;
                attempt.left = Some(Instant::now());
                self.abandon(false);
                (Outcome::Left, false)
            }
        }
    }

    /// Closes now.
    fn abandon(&mut self, reset: bool) {
        if let Some(stream) = self.stream.take()
            && reset
        {
            // A socket without this option is closed the ordinary way.
            let _ = stream.set_zero_linger();
        }
    }

    fn stream(&mut self) -> io::Result<&mut TcpStream> {
        self.stream
            .as_mut()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Writes, where the connection is still there.
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream()?.write_all(bytes).await
    }

    /// Closes the sending side, where the connection is still there.
    async fn shutdown(&mut self) {
        if let Ok(stream) = self.stream() {
            // One that is reset already has no sending side.
            let _ = stream.shutdown().await;
        }
    }
}

/// The bytes of a backend that sends no answer.
pub(super) const NOISE: &[u8] = b"\x00\xffnoise\r\n\r\n";

/// The most bytes of an answer that is held whole, in every config here.   bytes
const HELD: usize = 256 * 1024;

/// A small call.
pub(super) const SMALL: Shape = Shape {
    up: 0,
    up_takes: Duration::ZERO,
    down: 64,
    takes: Duration::from_millis(5),
};

/// A chunked body, and how many bytes it took; none if it is not all there.
fn dechunked(mut rest: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut body, all) = (Vec::new(), rest.len());
    loop {
        let end = rest.windows(2).position(|it| it == b"\r\n")?;
        let length = std::str::from_utf8(&rest[..end]).ok()?;
        let length = usize::from_str_radix(length.split(';').next()?.trim(), 16).ok()?;
        let chunk = rest.get(end + 2..end + 2 + length + 2)?;
        body.extend_from_slice(&chunk[..length]);
        rest = &rest[end + 4 + length..];
        if length == 0 {
            return Some((body, all - rest.len()));
        }
    }
}
