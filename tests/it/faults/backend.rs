//! A backend that speaks HTTP, the socket protocol and plain bytes on one port, does what a
//! fault says, and records every call that arrives.
//!
//! A call is counted as in flight from the moment when its head has been read until just before
//! the last byte of its answer is written. So with `window_stamp = "replied"` the record obeys
//! the gate's law exactly, however late this task runs.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::client::NOISE;
use super::tag::{Tag, number};

/// The treatment of connections and calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Answers.
    Well,
    /// Closes every connection, and each call's instead of an answer.
    Fin,
    /// The backend closes with a reset.
    Rst,
    /// Closes its sending side only: at once without a call in progress, otherwise after the
    /// answer.
    HalfClose,
    /// Reads and never answers.
    BlackHole,
    /// Accepts nothing.
    SlowAccept,
    /// Sends bytes that are no answer.
    Garbage,
    /// Answers before it has read the request, and unasked where there is none.
    Early,
    /// The backend does not listen, and every connection is reset.
    Down,
}

/// A call that arrived.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) tag: Tag,
    pub(super) at: Instant,
    /// When its last byte was about to be written, or its connection was lost.
    pub(super) until: Option<Instant>,
    /// At which of several backends.
    pub(super) backend: usize,
    /// Whether it was answered to the end.
    pub(super) answered: bool,
    /// Whether the body ended properly but differs from the sent one.
    pub(super) truncated: bool,
}

/// Of one or more backends.
#[derive(Clone, Default)]
pub(super) struct Recorder(Arc<Mutex<Vec<Arrival>>>);

impl Recorder {
    pub(super) fn all(&self) -> Vec<Arrival> {
        self.0.lock().expect("no test panics with it").clone()
    }

    /// Calls in flight.
    pub(super) fn running(&self) -> usize {
        let all = self.0.lock().expect("no test panics with it");
        all.iter().filter(|it| it.until.is_none()).count()
    }

    fn begin(&self, tag: Tag, backend: usize) -> usize {
        let mut all = self.0.lock().expect("no test panics with it");
        all.push(Arrival {
            tag,
            at: Instant::now(),
            until: None,
            backend,
            answered: false,
            truncated: false,
        });
        all.len() - 1
    }

    fn change(&self, at: usize, change: impl FnOnce(&mut Arrival)) {
        change(&mut self.0.lock().expect("no test panics with it")[at]);
    }
}

pub(super) struct Backend {
    pub(super) addr: SocketAddr,
    number: usize,
    mode: watch::Sender<Mode>,
    recorder: Recorder,
    listening: Mutex<JoinHandle<()>>,
}

impl Backend {
    /// Listens on a port of an address that no other test uses, so that it can be had again.
    pub(super) async fn start(ip: [u8; 4], number: usize, recorder: Recorder) -> Self {
        let listener = TcpListener::bind(SocketAddr::from((ip, 0)));
        let listener = listener.await.expect("loopback has free ports");
        let addr = listener.local_addr().expect("it is bound");
        let mode = watch::Sender::new(Mode::Well);
        let listening = tokio::spawn(accept(listener, number, mode.subscribe(), recorder.clone()));
        Self {
            addr,
            number,
            mode,
            recorder,
            listening: Mutex::new(listening),
        }
    }

    pub(super) async fn set(&self, mode: Mode) {
        let was = self.mode.send_replace(mode);
        if mode == Mode::Down {
            let listening = {
                let mut slot = self.listening.lock().expect("no test panics with it");
                std::mem::replace(&mut *slot, tokio::spawn(async {}))
            };
            listening.abort();
            let _ = listening.await;
        } else if was == Mode::Down {
            let listener = TcpListener::bind(self.addr).await.expect("it was ours");
            let (modes, recorder) = (self.mode.subscribe(), self.recorder.clone());
            let listening = tokio::spawn(accept(listener, self.number, modes, recorder));
            *self.listening.lock().expect("no test panics with it") = listening;
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.listening
            .lock()
            .expect("no test panics with it")
            .abort();
    }
}

async fn accept(
    listener: TcpListener,
    number: usize,
    mut modes: watch::Receiver<Mode>,
    recorder: Recorder,
) {
    loop {
        if modes
            .wait_for(|mode| *mode != Mode::SlowAccept)
            .await
            .is_err()
        {
            return;
        }
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = modes.changed() => continue,
        };
        let Ok((stream, _)) = accepted else {
            sleep(Duration::from_millis(5)).await;
            continue;
        };
        let mut conn = Conn {
            heard: Instant::now(),
            left: false,
            stream,
            buffer: Vec::new(),
            modes: modes.clone(),
            recorder: recorder.clone(),
            number,
        };
        tokio::spawn(async move {
            // How it ends is what a test is about.
            let _ = conn.converse().await;
        });
    }
}

struct Conn {
    /// When something came last.
    heard: Instant,
    /// Whether the other side closed before it was answered.
    left: bool,
    stream: TcpStream,
    buffer: Vec<u8>,
    modes: watch::Receiver<Mode>,
    recorder: Recorder,
    number: usize,
}

/// The connection has ended.
struct Over;

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl From<tokio::time::error::Elapsed> for Over {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Self
    }
}

enum Asked {
    Http { head: Vec<u8>, tag: Tag },
    Array { tag: Tag, text: Vec<u8> },
    Bytes { tag: Tag, line: Vec<u8> },
}

impl Conn {
    fn mode(&mut self) -> Mode {
        *self.modes.borrow_and_update()
    }

    async fn converse(&mut self) -> Result<(), Over> {
        while let Some(asked) = self.asked().await? {
            self.heard = Instant::now();
            let (Asked::Http { tag, .. } | Asked::Array { tag, .. } | Asked::Bytes { tag, .. }) =
                asked;
            let at = self.recorder.begin(tag, self.number);
            let ended = match &asked {
                Asked::Http { head, .. } => self.http(at, head, tag).await,
                Asked::Array { text, .. } => self.array(at, tag, text).await,
                Asked::Bytes { line, .. } => self.bytes(at, tag, line).await,
            };
            self.ends(at);
            ended?;
            if !matches!(asked, Asked::Http { .. }) {
                if self.mode() == Mode::HalfClose {
                    self.stream.shutdown().await?;
                    self.read_out().await?;
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// The next request; none where the other side has closed.
    async fn asked(&mut self) -> Result<Option<Asked>, Over> {
        let mut mode = self.mode();
        loop {
            if let Some(asked) = self.parse() {
                return Ok(Some(asked));
            }
            let may_act = self.buffer.is_empty();
            match mode {
                Mode::Fin if may_act => return Err(Over),
                Mode::Rst | Mode::Down => return self.reset(),
                _ => {}
            }
            let silent = mode == Mode::HalfClose && may_act;
            tokio::select! {
                read = self.stream.read_buf(&mut self.buffer) => if read? == 0 {
                    return Ok(None);
                },
                () = sleep(KEPT), if silent => {
                    self.stream.shutdown().await?;
                    self.read_out().await?;
                    return Ok(None);
                }
                changed = self.modes.changed() => {
                    changed.map_err(|_| Over)?;
                    mode = self.mode();
                    match mode {
                        Mode::Garbage if self.buffer.is_empty() => {
                            self.stream.write_all(NOISE).await?;
                            // A client that still sends a request gets nothing more.
                            self.read_out().await?;
                            return Ok(None);
                        }
                        Mode::Early if self.buffer.is_empty() => {
                            let late = b"HTTP/1.1 408 Request Timeout\r\n\
                                Connection: close\r\nContent-Length: 0\r\n\r\n";
                            self.stream.write_all(late).await?;
                            return Ok(None);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    fn parse(&mut self) -> Option<Asked> {
        let buffer = &self.buffer;
        match buffer.first()? {
            b'[' => {
                let end = buffer.iter().rposition(|byte| *byte == b']')?;
                serde_json::from_slice::<serde_json::Value>(&buffer[..=end]).ok()?;
                let text = buffer[..=end].to_vec();
                let tag = Tag::find(&text)?;
                Some(Asked::Array { tag, text })
            }
            b'T' => {
                let end = buffer.iter().position(|byte| *byte == b'\n')?;
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let tag = Tag::find(&line)?;
                Some(Asked::Bytes { tag, line })
            }
            _ => {
                let end = buffer.windows(4).position(|it| it == b"\r\n\r\n")? + 4;
                let head: Vec<u8> = self.buffer.drain(..end).collect();
                let tag = Tag::find(&head)?;
                Some(Asked::Http { head, tag })
            }
        }
    }

    /// Closes with a reset.
    fn reset<T>(&mut self) -> Result<T, Over> {
        self.stream.set_zero_linger()?;
        Err(Over)
    }

    /// Reads until the other side closes.
    async fn read_out(&mut self) -> Result<(), Over> {
        let mut rest = vec![0; 16 * 1024];
        while self.stream.read(&mut rest).await.unwrap_or(0) > 0 {
            self.heard = Instant::now();
        }
        self.left = true;
        Ok(())
    }

    /// Lets time pass, and acts at once where every connection is closed.
    async fn pause(&mut self, span: Duration) -> Result<(), Over> {
        let until = Instant::now() + span;
        loop {
            match self.mode() {
                Mode::Fin => return Err(Over),
                Mode::Rst | Mode::Down => return self.reset(),
                _ => {}
            }
            tokio::select! {
                () = tokio::time::sleep_until(until) => return Ok(()),
                // A tunnel that is reset holds nothing any more.
                ready = self.stream.ready(Interest::ERROR) => {
                    if ready.is_ok_and(|it| it.is_error()) {
                        self.left = true;
                        return Err(Over);
                    }
                }
                changed = self.modes.changed() => changed.map_err(|_| Over)?,
            }
        }
    }

    /// Notes that a call holds nothing any more. Where the other side gave up, it did so after it
    /// had sent its last byte: when it closed is known only later.
    fn ends(&self, at: usize) {
        let until = if self.left {
            self.heard
        } else {
            Instant::now()
        };
        self.recorder.change(at, |it| {
            it.until.get_or_insert(until);
        });
    }

    /// Carries out a fault instead of an answer; returns whether there is to be one.
    async fn before_answer(&mut self, at: usize) -> Result<(), Over> {
        match self.mode() {
            Mode::Fin => Err(Over),
            Mode::Rst | Mode::Down => self.reset(),
            Mode::BlackHole => {
                // Whether the fault has ended or not, this one is lost.
                timeout(Duration::from_secs(30), self.read_out()).await??;
                // It is given up after response_timeout, and counts until then.
                self.left = false;
                Err(Over)
            }
            Mode::Garbage => {
                self.ends(at);
                self.stream.write_all(NOISE).await?;
                Err(Over)
            }
            Mode::Well | Mode::HalfClose | Mode::SlowAccept | Mode::Early => Ok(()),
        }
    }

    /// Writes an answer, at an even pace where it is to take some time.
    async fn answer(
        &mut self,
        at: usize,
        head: &[u8],
        body: &[u8],
        takes: Duration,
    ) -> Result<(), Over> {
        let chunks = body.len().div_ceil(CHUNK).max(1);
        if chunks == 1 {
            self.ends(at);
            self.recorder.change(at, |it| it.answered = true);
            self.stream.write_all(&[head, body].concat()).await?;
            return Ok(());
        }
        self.stream.write_all(head).await?;
        for (number, chunk) in body.chunks(CHUNK).enumerate() {
            self.pause(takes / chunks as u32).await?;
            if matches!(self.mode(), Mode::BlackHole | Mode::Garbage) {
                self.before_answer(at).await?;
            }
            if number + 1 == chunks {
                self.ends(at);
                self.recorder.change(at, |it| it.answered = true);
            }
            if self.stream.write_all(chunk).await.is_err() {
                self.left = true;
                return Err(Over);
            }
        }
        Ok(())
    }

    async fn http(&mut self, at: usize, head: &[u8], tag: Tag) -> Result<(), Over> {
        let (size, up) = (number(head, "size"), number(head, "up"));
        let takes = Duration::from_millis(number(head, "ms") as u64);
        let streams = size > CHUNK;
        let answer_head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {size}\r\n\r\n"
        );
        let is_early = self.mode() == Mode::Early && !streams;
        if is_early {
            let body = tag.body(size);
            self.answer(at, answer_head.as_bytes(), &body, Duration::ZERO)
                .await?;
        }
        let body = self.body(head).await?;
        if body.len() != up || !tag.owns(&body) {
            self.recorder.change(at, |it| it.truncated = true);
        }
        if is_early {
            return Ok(());
        }
        if !streams {
            self.pause(takes).await?;
        }
        self.before_answer(at).await?;
        let body = tag.body(size);
        self.answer(at, answer_head.as_bytes(), &body, takes)
            .await?;
        Ok(())
    }

    /// Reads a request's body to its end.
    async fn body(&mut self, head: &[u8]) -> Result<Vec<u8>, Over> {
        let head = String::from_utf8_lossy(head).to_ascii_lowercase();
        if head.contains("transfer-encoding: chunked") {
            let mut body = Vec::new();
            loop {
                let line = self.line().await?;
                let length = usize::from_str_radix(line.trim(), 16).map_err(|_| Over)?;
                let chunk = self.exactly(length + 2).await?;
                body.extend_from_slice(&chunk[..length]);
                if length == 0 {
                    return Ok(body);
                }
            }
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        self.exactly(length.unwrap_or(0)).await
    }

    async fn more(&mut self) -> Result<(), Over> {
        loop {
            match self.mode() {
                Mode::Fin => return Err(Over),
                Mode::Rst | Mode::Down => return self.reset(),
                _ => {}
            }
            match self.stream.try_read_buf(&mut self.buffer) {
                // It is open now. What is read says less: this task may read it long after it was sent.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.heard = Instant::now();
                }
                Ok(1..) => return Ok(()),
                Ok(0) | Err(_) => {
                    self.left = true;
                    return Err(Over);
                }
            }
            tokio::select! {
                ready = self.stream.readable() => ready?,
                changed = self.modes.changed() => changed.map_err(|_| Over)?,
            }
        }
    }

    async fn exactly(&mut self, bytes: usize) -> Result<Vec<u8>, Over> {
        while self.buffer.len() < bytes {
            self.more().await?;
        }
        Ok(self.buffer.drain(..bytes).collect())
    }

    async fn line(&mut self) -> Result<String, Over> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            self.more().await?;
        }
    }

    async fn array(&mut self, at: usize, tag: Tag, text: &[u8]) -> Result<(), Over> {
        let size = number(text, "size");
        let takes = Duration::from_millis(number(text, "ms") as u64);
        let output = String::from_utf8(tag.body(size)).expect("tags are ASCII");
        let answer = format!(
            "{{\"overallRC\": 0, \"modID\": null, \"rc\": 0, \"rs\": 0, \"errmsg\": \"\", \"output\": \"{output}\"}}"
        );
        if size <= CHUNK && self.mode() != Mode::Early {
            self.pause(takes).await?;
        }
        self.before_answer(at).await?;
        self.answer(at, b"", answer.as_bytes(), takes).await?;
        Ok(())
    }

    async fn bytes(&mut self, at: usize, tag: Tag, line: &[u8]) -> Result<(), Over> {
        let (size, up) = (number(line, "size"), number(line, "up"));
        let takes = Duration::from_millis(number(line, "ms") as u64);
        if self.mode() != Mode::Early {
            let body = self.exactly(up).await?;
            if !tag.owns(&body) {
                self.recorder.change(at, |it| it.truncated = true);
            }
            if size <= CHUNK {
                self.pause(takes).await?;
            }
        }
        self.before_answer(at).await?;
        self.answer(at, b"", &tag.body(size), takes).await?;
        Ok(())
    }
}

/// How long a connection is kept where it is half-closed after that.
const KEPT: Duration = Duration::from_millis(10);
/// The size of the pieces in which a longer answer is written.   bytes
const CHUNK: usize = 64 * 1024;
