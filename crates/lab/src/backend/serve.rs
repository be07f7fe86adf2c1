//! Calls on both protocols, from the first byte to the reply.

use std::io;
use std::net::TcpStream as BareStream;
use std::time::Duration;

use tidegate_backends::ServiceOutcome;
use tidegate_zvm::framer::{FrameError, FrameStatus, Framer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::StandInBackend;
use super::accept::Port;
use super::model::next;
use super::recorder::{CallEnd, RecordedCall};
use super::reply::{
    CallRequest, answer, ask_of_path, error, internal_error, parse_array, response,
};
use crate::conn::Conn;
use crate::framing::{BodyEnd, Http};

/// The most that one `recv` of the real server reads; a longer request gets no answer.   bytes
const REQUEST_MAX: usize = 4096;
/// How much of an HTTP body is read.   bytes
const BODY_KEPT: usize = 64 * 1024;
/// Longest sleep for `SLOW<n>`, the socket client's own timeout.
const SLOW_MAX: Duration = Duration::from_secs(3600);

/// The effect of a userid on its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whim {
    Answer,
    Slow(Duration),
    Work(Duration),
    NoSuchGuest,
    Big,
    Cut,
    Close,
    Silent,
}

impl Whim {
    fn of(userid: &str) -> Self {
        match userid {
            "NOEXIST" => Self::NoSuchGuest,
            "BIG" => Self::Big,
            "CUT" => Self::Cut,
            "CLOSE" => Self::Close,
            "SILENT" => Self::Silent,
            _ => Self::slow(userid).unwrap_or(Self::Answer),
        }
    }

    fn slow(userid: &str) -> Option<Self> {
        let number = |word| userid.strip_prefix(word).and_then(|it| it.parse().ok());
        let slow = |seconds| Self::Slow(Duration::from_secs(seconds).min(SLOW_MAX));
        let work = |millis| Self::Work(Duration::from_millis(millis).min(SLOW_MAX));
        number("SLOW")
            .map(slow)
            .or_else(|| number("WORK").map(work))
    }
}

/// How a call ends, for the writer of the reply.
#[derive(Debug)]
enum ReplyContent<'a> {
    /// A JSON object without its last bytes, and its `overallRC`.
    Reply {
        json: Vec<u8>,
        withheld: usize,
        overall_rc: u16,
    },
    /// No byte.
    Close,
    /// No byte, and a reset.
    Reset,
    /// No answer until the client leaves; the call is in flight until then.
    Silent(RecordedCall<'a>),
}

impl StandInBackend {
    /// Most calls are complete when their connection is accepted. They are answered without
    /// registering the connection with the runtime.
    pub(super) async fn serve_socket(&self, mut client: Conn) -> io::Result<()> {
        self.recorder.connected();
        let mut bytes = Vec::with_capacity(REQUEST_MAX);
        let mut framer = Framer::new(REQUEST_MAX);
        let mut framed = 0;
        let ask = loop {
            if client.read_some(&mut bytes).await? == 0 {
                return Ok(());
            }
            match framer.push(&bytes[framed..]) {
                FrameStatus::End(end) if bytes[end..].trim_ascii().is_empty() => {
                    break parse_array(&bytes[..end]);
                }
                FrameStatus::End(_) => break Err("Extra data".to_owned()),
                // The real server reads at most this much.
                FrameStatus::Bad(FrameError::TooLarge) => {
                    break Err(format!("no whole array in {REQUEST_MAX} bytes"));
                }
                FrameStatus::Bad(why) => break Err(why.to_string()),
                FrameStatus::More => framed = bytes.len(),
            }
        };
        let ask = match ask {
            Ok(ask) => ask,
            Err(message) => {
                self.recorder.malformed();
                return client.write_all(&internal_error(&message)).await;
            }
        };
        match self.run(&ask).await {
            ReplyContent::Reply { json, withheld, .. } => {
                client.write_all(&json[..json.len() - withheld]).await
            }
            ReplyContent::Close => Ok(()),
            ReplyContent::Reset => client.reset(),
            ReplyContent::Silent(call) => {
                while matches!(client.read_some(&mut bytes).await, Ok(1..)) {
                    bytes.clear();
                }
                drop(call);
                Ok(())
            }
        }
    }

    pub(super) async fn serve_http(&self, stream: BareStream, port: Port) -> io::Result<()> {
        let mut client = Http::new(TcpStream::from_std(stream)?)?;
        if port == Port::Http {
            self.recorder.connected();
        }
        let mut collapses = self.collapses(port);
        loop {
            let head = tokio::select! {
                head = client.head() => head?,
                _ = next(&mut collapses) => None,
            };
            let Some(head) = head else {
                break;
            };
            // Without the version.
            let request = head
                .line
                .rsplit_once(' ')
                .map_or("", |(request, _)| request);
            let body = head.body.unwrap_or(BodyEnd::Length(0));
            if head.expects_continue && body != BodyEnd::Length(0) {
                let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
                client.stream.write_all(go_on).await?;
            }
            let names_a_function = request.ends_with(" /") || request.ends_with("/action");
            let most = if names_a_function { BODY_KEPT } else { 0 };
            let mut kept = Vec::new();
            if let Err(error) = client.body(body, &mut kept, most).await {
                if error.kind() == io::ErrorKind::InvalidData {
                    self.recorder.malformed();
                }
                return Err(error);
            }
            let stream = &mut client.stream;
            let is_over = match port {
                Port::Stats => {
                    stream.write_all(&self.stats(request)).await?;
                    false
                }
                Port::Socket | Port::Http => self.answer_http(request, &kept, stream).await?,
            };
            if is_over || head.close {
                break;
            }
        }
        Ok(())
    }

    /// Answers one request. True if the connection ends with it.
    async fn answer_http(
        &self,
        request: &str,
        kept: &[u8],
        stream: &mut TcpStream,
    ) -> io::Result<bool> {
        if request == "POST /token" {
            // Answered by sdkwsgi itself: no call.
            let token =
                b"HTTP/1.1 200 OK\r\nX-Auth-Token: server-auth-closed\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(token).await?;
            return Ok(false);
        }
        let ask = match request.ends_with(" /") {
            true => parse_array(kept).unwrap_or_else(|_| ask_of_path(request)),
            false => ask_of_path(request),
        };
        match self.run(&ask).await {
            ReplyContent::Reply {
                json,
                overall_rc,
                withheld,
            } => {
                let reply = response(overall_rc, &json, request.starts_with("HEAD "));
                let sent = reply.len().saturating_sub(withheld);
                stream.write_all(&reply[..sent]).await?;
                Ok(withheld > 0)
            }
            ReplyContent::Close => Ok(true),
            ReplyContent::Reset => {
                stream.set_zero_linger()?;
                Ok(true)
            }
            ReplyContent::Silent(call) => {
                let mut ignored = [0; 512];
                while matches!(stream.read(&mut ignored).await, Ok(1..)) {}
                drop(call);
                Ok(true)
            }
        }
    }

    /// Runs one call until its reply can be written.
    ///
    /// The call leaves the count before its reply leaves. Otherwise a client that reads the reply
    /// and sends its next call at once would count as one too many.
    async fn run(&self, ask: &CallRequest) -> ReplyContent<'_> {
        let whim = Whim::of(&ask.userid);
        let call = self.recorder.begin();
        let mut pause = call.pause;
        match whim {
            Whim::Slow(longer) if !call.is_down => pause += longer,
            Whim::Work(work) if !call.is_down => pause = work,
            Whim::Silent if !call.is_down => return ReplyContent::Silent(call),
            _ => {}
        }
        match &self.model {
            Some(model) if !call.is_down => {
                let ended = model.works(&ask.name, pause).await;
                if ended != Some(ServiceOutcome::Served) {
                    call.end(CallEnd::Broken);
                    return ReplyContent::Reset;
                }
            }
            _ if pause.is_zero() => {}
            _ => tokio::time::sleep(pause).await,
        }
        let due = match whim {
            Whim::Cut | Whim::Close => CallEnd::Broken,
            Whim::NoSuchGuest => CallEnd::Failed,
            _ if call.fails_by_chance => CallEnd::Failed,
            _ => CallEnd::Answered,
        };
        let (json, overall_rc) = match (call.end(due), whim) {
            (CallEnd::Broken, Whim::Close) => return ReplyContent::Close,
            (CallEnd::Failed, Whim::NoSuchGuest) => {
                let errmsg = format!("Guest '{}' does not exist.", ask.userid);
                (error(404, 10, 404, 1, &errmsg), 404)
            }
            (CallEnd::Failed | CallEnd::Fallen, _) => {
                let errmsg = "SMAPI is down: connection to the SMAPI server was refused";
                (error(500, 1, -110, 0, errmsg), 500)
            }
            (CallEnd::Answered | CallEnd::Broken, _) => {
                (answer(ask, self.recorder.options.reply_bytes), 0)
            }
        };
        let is_cut = whim == Whim::Cut && overall_rc == 0;
        ReplyContent::Reply {
            withheld: if is_cut { json.len() / 2 } else { 0 },
            json,
            overall_rc,
        }
    }

    /// The answer on the port of the statistics.
    fn stats(&self, request: &str) -> Vec<u8> {
        match request {
            "GET /stats" => {
                let json = serde_json::to_vec(&self.recorder.report())
                    .expect("a report is numbers and a flag");
                response(0, &json, false)
            }
            "POST /reset" => {
                self.recorder.reset();
                response(0, b"{}", false)
            }
            _ => response(404, br#"{"have": ["GET /stats", "POST /reset"]}"#, false),
        }
    }
}
