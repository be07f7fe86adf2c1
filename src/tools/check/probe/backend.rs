//! Whether each backend answers: one harmless call, over the connection that a call would get.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::kinds::{BACKEND, BACKEND_CLOCK};
use super::{Finding, STEP_MAX, in_words, name};
use crate::call::Destination;
use crate::config::Config;
use crate::forward::{BackendAddress, ConnectError, Forwarder, ForwarderSettings, Remote};

/// A call that sdkserver answers from its own database. It always sends a whole request: a silent
/// connection would keep one of its workers.
const LIST: (&str, &[u8]) = ("guest_list", b"[\"guest_list\", [], {}]");
/// How far the clock of a backend may be from ours, as its `Date` has whole seconds.
const CLOCK_APART_MAX: Duration = Duration::from_secs(2);
/// The most of an answer that is read.   bytes
const ANSWER_MAX: usize = 4 << 20;
/// How much of a strange answer is shown.   letters
const SHOWN: usize = 40;
const HEADERS_MAX: usize = 64;

/// The request that a backend is probed with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProbeRequest {
    /// sdkserver's list of guests, which is in its own database.
    List,
    /// The version of sdkwsgi, which it knows by itself.
    Version,
    /// The head of `/` of any HTTP server.
    Head,
    /// Only a connection.
    Connection,
}

impl ProbeRequest {
    fn name(self) -> &'static str {
        match self {
            Self::List => LIST.0,
            Self::Version => "GET /",
            Self::Head => "HEAD /",
            Self::Connection => "a connection",
        }
    }
}

/// A backend to probe.
struct ProbedBackend<'a> {
    to: Destination,
    /// The name of the server, if the backend has several.
    server: Option<Arc<str>>,
    address: &'a BackendAddress,
    question: ProbeRequest,
    /// The bound of each step.
    bound: Duration,
}

/// The names of the servers of a backend, and the settings with each alone; one without a name if it has no several.
pub(super) fn servers(
    to: Destination,
    config: &Config,
) -> Vec<(Option<Arc<str>>, ForwarderSettings)> {
    let forward = &config.forward;
    let alone = |http: Option<Remote>| ForwarderSettings {
        http,
        servers: Vec::new(),
        ..forward.clone()
    };
    if to != Destination::Http || forward.servers.is_empty() {
        return vec![(None, alone(forward.http.clone()))];
    }
    let servers = forward.servers.iter();
    servers
        .map(|server| {
            let remote = server.remote.clone();
            (Some(Arc::clone(&server.name)), alone(Some(remote)))
        })
        .collect()
}

/// A finding for this backend, one for its name and one for its clock; none if the config has no such backend.
pub(super) async fn check(
    to: Destination,
    config: &Config,
    (server, mut settings): (Option<Arc<str>>, ForwarderSettings),
) -> Vec<Finding> {
    let forward = settings.clone();
    let has_table = config.classify.kind.has_table();
    let (remote, question) = match to {
        Destination::Socket if has_table => (&forward.socket, ProbeRequest::List),
        Destination::Http if has_table => (&forward.http, ProbeRequest::Version),
        Destination::Http => (&forward.http, ProbeRequest::Head),
        Destination::Tcp => (&forward.tcp, ProbeRequest::Connection),
        Destination::Socket => (&forward.socket, ProbeRequest::Connection),
        Destination::Nowhere => return Vec::new(),
    };
    let Some(Remote { address, .. }) = remote else {
        return Vec::new();
    };
    let bound = settings.bounds.connect_timeout.min(STEP_MAX);
    settings.bounds.connect_timeout = bound;
    let backend = ProbedBackend {
        to,
        server,
        address,
        question,
        bound,
    };
    let began = Instant::now();
    let forwarder = Forwarder::new(&settings);
    let connected = forwarder.reach(to).await;
    let name = forwarder.name_state(to);
    let name = name.and_then(|state| name::finding(to, address, &state));
    let mut found = match connected.expect("the config has this backend") {
        Ok(mut stream) => backend.put_question(&mut stream, began).await,
        Err(error) => vec![backend.not_connected(&error)],
    };
    found.extend(name);
    found
}

/// Bytes that came back, and how reading ended.
struct ReceivedBytes {
    bytes: Vec<u8>,
    end: End,
}

/// Why reading ended.
enum End {
    /// There is all that was asked for.
    Enough,
    /// The backend closed the connection.
    Closed,
    /// The time is over.
    Late,
    /// The connection broke.
    Broken(io::Error),
}

impl ProbedBackend<'_> {
    /// The option with its address.
    fn key(&self) -> String {
        match self.server {
            Some(_) => "backend.server".to_owned(),
            None => format!("backend.{}", self.to.label()),
        }
    }

    fn about(&self) -> String {
        match &self.server {
            Some(name) => format!("server {name}"),
            None => self.to.label().to_owned(),
        }
    }

    fn ok(&self, found: impl Into<String>) -> Finding {
        BACKEND.ok(self.about(), format!("{} {}", self.address, found.into()))
    }

    fn warning(&self, found: String, cause: impl Into<String>, cure: impl Into<String>) -> Finding {
        BACKEND.warning(
            self.about(),
            format!("{} {found}", self.address),
            cause,
            cure,
        )
    }

    fn failed(&self, found: &str, cause: impl Into<String>, cure: impl Into<String>) -> Finding {
        BACKEND.failed(
            self.about(),
            format!("{} {found}", self.address),
            cause,
            cure,
        )
    }

    fn not_connected(&self, error: &ConnectError) -> Finding {
        let key = self.key();
        let (cause, cure) = match error {
            ConnectError::Refused(error) if error.kind() == io::ErrorKind::ConnectionRefused => (
                "nothing listens there: the connection was refused".to_owned(),
                format!("start the backend, or correct {key}"),
            ),
            ConnectError::Refused(error) if error.kind() == io::ErrorKind::NotFound => (
                "there is no such socket file".to_owned(),
                format!("start the backend, or correct {key}"),
            ),
            ConnectError::Refused(error) if error.kind() == io::ErrorKind::PermissionDenied => (
                "this user may not open the socket file".to_owned(),
                "let the group of the sidecar write to the file".to_owned(),
            ),
            ConnectError::TimedOut(bound) => (
                format!("it took no connection within {}", in_words(*bound)),
                format!(
                    "look for a firewall that drops packets, and for a backend whose backlog is \
                     full; or correct {key}"
                ),
            ),
            ConnectError::Unknown(_) | ConnectError::LookupTimedOut(_) => (
                with_causes(error),
                format!("correct the name in {key}, or the resolver of this machine"),
            ),
            ConnectError::Itself(_) => (with_causes(error), format!("correct {key}")),
            other => (
                with_causes(other),
                format!("look at the log of the backend, and at {key}"),
            ),
        };
        self.failed("cannot be reached", cause, cure)
    }

    /// Asks the question on a new connection, and judges the answer.
    async fn put_question(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        began: Instant,
    ) -> Vec<Finding> {
        if self.question == ProbeRequest::Connection {
            let took = in_words(began.elapsed());
            return vec![self.ok(format!("takes a connection in {took}"))];
        }
        let got = self.ask(stream).await;
        let took = began.elapsed();
        match self.question {
            ProbeRequest::List => vec![self.list(&got, took)],
            _ => self.http(&got, took),
        }
    }

    /// Asks, and reads what is needed of the answer.
    async fn ask(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> ReceivedBytes {
        let host = match self.address {
            BackendAddress::Unix(_) => "localhost".to_owned(),
            address => address.to_string(),
        };
        let request = match self.question {
            ProbeRequest::List => LIST.1.to_vec(),
            question => format!(
                "{} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: tidegate-check\r\nAccept: */*\r\n\
                 Connection: close\r\n\r\n",
                question.name()
            )
            .into_bytes(),
        };
        let mut bytes = Vec::new();
        let asked = timeout(self.bound, async {
            stream.write_all(&request).await?;
            let mut chunk = [0; 16 << 10];
            loop {
                let read = stream.read(&mut chunk).await?;
                if read == 0 {
                    return Ok(End::Closed);
                }
                bytes.extend_from_slice(&chunk[..read]);
                if bytes.len() >= ANSWER_MAX || self.is_enough(&bytes) {
                    return Ok(End::Enough);
                }
            }
        });
        let end = match asked.await {
            Ok(Ok(end)) => end,
            Ok(Err(error)) => End::Broken(error),
            Err(_) => End::Late,
        };
        ReceivedBytes { bytes, end }
    }

    fn is_enough(&self, bytes: &[u8]) -> bool {
        match self.question {
            // It ends with the connection.
            ProbeRequest::List => serde_json::from_slice::<Value>(bytes).is_ok() || is_http(bytes),
            _ if !may_be_http(bytes) => true,
            question => match HttpAnswerHead::read(bytes) {
                // The reason is in the body, which ends with the connection.
                Some(head) if question == ProbeRequest::Head => head.status != 400,
                Some(head) => head
                    .length
                    .is_some_and(|length| bytes.len() >= head.size + length),
                None => false,
            },
        }
    }

    /// Why there is no answer at all.
    fn silent(&self, got: &ReceivedBytes) -> Finding {
        let question = self.question.name();
        match &got.end {
            End::Late => self.failed(
                "does not answer",
                format!(
                    "it took the connection, and did not answer {question} within {}",
                    in_words(self.bound)
                ),
                "look at the backend: it may hang, or all of its workers may be busy",
            ),
            End::Broken(error) => self.failed(
                "does not answer",
                format!("it took the connection and broke it: {error}"),
                "look at the log of the backend",
            ),
            End::Closed | End::Enough => self.failed(
                "does not answer",
                format!("it took the connection, and closed it without an answer to {question}"),
                "look at the log of the backend",
            ),
        }
    }

    fn foreign(&self, bytes: &[u8]) -> Finding {
        let key = self.key();
        let (cause, cure) = if is_tls(bytes) {
            (
                "it speaks TLS, and the config does not".to_owned(),
                format!("lead {key} to a port without TLS, or to the same one with https://"),
            )
        } else if is_http(bytes) {
            (
                "it speaks HTTP, not the protocol of sdkserver".to_owned(),
                format!("give its address as backend.http, and that of sdkserver as {key}"),
            )
        } else {
            let is_json = serde_json::from_slice::<Value>(bytes).is_ok();
            let (with, cure) = match self.question {
                ProbeRequest::List => (
                    "not with JSON",
                    format!("give the address of sdkserver as {key}"),
                ),
                ProbeRequest::Version if is_json => (
                    "with JSON without HTTP, as sdkserver does",
                    format!("give its address as backend.socket, and that of sdkwsgi as {key}"),
                ),
                _ => (
                    "not with HTTP",
                    format!("give the address of an HTTP server as {key}"),
                ),
            };
            (format!("it answers {with}: {}", shown(bytes)), cure)
        };
        self.failed("speaks another protocol", cause, cure)
    }

    /// Judges the answer to sdkserver's list of guests.
    fn list(&self, got: &ReceivedBytes, took: Duration) -> Finding {
        let bytes = &got.bytes;
        if bytes.is_empty() {
            return self.silent(got);
        }
        let took = in_words(took);
        if bytes.len() >= ANSWER_MAX {
            return self.ok(format!("answers guest_list in {took}"));
        }
        let answer: Option<Value> = serde_json::from_slice(bytes).ok();
        let Some(answer) = answer.filter(|answer| answer["overallRC"].is_i64()) else {
            return match got.end {
                End::Late if !is_http(bytes) && bytes.starts_with(b"{") => self.silent(got),
                _ => self.foreign(bytes),
            };
        };
        match answer["overallRC"].as_i64() {
            Some(0) => {
                let guests = answer["output"].as_array().map(Vec::len);
                let guests = guests.map_or(String::new(), |count| format!(" with {count} guests"));
                self.ok(format!("answers guest_list{guests} in {took}"))
            }
            Some(code) => self.warning(
                format!("answers guest_list with overallRC {code}"),
                format!(
                    "sdkserver says: {}",
                    answer["errmsg"].as_str().unwrap_or("nothing")
                ),
                "look at the log of sdkserver, /var/log/zvmsdk/zvmsdk.log",
            ),
            None => self.foreign(bytes),
        }
    }

    /// Judges the answer of an HTTP server.
    fn http(&self, got: &ReceivedBytes, took: Duration) -> Vec<Finding> {
        let (bytes, question) = (&got.bytes, self.question.name());
        let head = match HttpAnswerHead::read(bytes) {
            Some(head) => head,
            None if bytes.is_empty() => return vec![self.silent(got)],
            None if may_be_http(bytes) && matches!(got.end, End::Late) => {
                return vec![self.silent(got)];
            }
            None => return vec![self.foreign(bytes)],
        };
        let body = String::from_utf8_lossy(&bytes[head.size..]).into_owned();
        let status = head.status;
        let asks_for_tls = ["HTTPS", "SSL"].iter().any(|word| body.contains(word));
        let answer = if status == 400 && asks_for_tls {
            self.foreign(&[TLS_ALERT, TLS_MAJOR])
        } else if status >= 500 {
            self.warning(
                format!("answers {question} with {status}"),
                "it is up, and cannot serve this harmless request",
                "look at the log of the backend, and at what is behind it",
            )
        } else if self.question == ProbeRequest::Version && !is_sdkwsgi(&body) {
            self.warning(
                format!("answers {question} with {status}, and not as sdkwsgi"),
                "backend.kind is \"zvm\", and sdkwsgi answers GET / with its version",
                "correct backend.http, or write kind = \"http\" for another server",
            )
        } else {
            let version = version(&body).map_or(String::new(), |it| format!(", z/VM SDK {it}"));
            let took = in_words(took);
            self.ok(format!(
                "answers {question} with {status} in {took}{version}"
            ))
        };
        let mut all = vec![answer];
        all.extend(
            head.date
                .map(|date| clock(self.about(), date, SystemTime::now())),
        );
        all
    }
}

/// The time of day of a backend beside ours.
fn clock(about: String, theirs: SystemTime, ours: SystemTime) -> Finding {
    // It was rounded down to a second.
    let theirs = theirs + Duration::from_millis(500);
    let (apart, word) = match theirs.duration_since(ours) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(behind) => (behind.duration(), "behind"),
    };
    let about = about + " clock";
    if apart <= CLOCK_APART_MAX {
        return BACKEND_CLOCK.ok(about, "within 2 s of this machine's");
    }
    BACKEND_CLOCK.warning(
        about,
        format!(
            "{} {word} this machine's",
            in_words(Duration::from_secs(apart.as_secs()))
        ),
        "the times in both logs differ, tokens of one expire early or late at the other, and \
         fixed windows begin at other moments",
        "set both clocks by one time service (chronyd, systemd-timesyncd)",
    )
}

/// The beginning of an HTTP answer.
struct HttpAnswerHead {
    status: u16,
    date: Option<SystemTime>,
    /// The declared length of the body.   bytes
    length: Option<usize>,
    /// Length of the head.   bytes
    size: usize,
}

impl HttpAnswerHead {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let Ok(httparse::Status::Complete(size)) = response.parse(bytes) else {
            return None;
        };
        let value = |name: &str| {
            let mut headers = response.headers.iter();
            let header = headers.find(|header| header.name.eq_ignore_ascii_case(name))?;
            str::from_utf8(header.value).ok()
        };
        Some(Self {
            status: response.code?,
            date: value("date").and_then(|date| httpdate::parse_http_date(date).ok()),
            length: value("content-length").and_then(|length| length.trim().parse().ok()),
            size,
        })
    }
}

const TLS_ALERT: u8 = 0x15;
const TLS_MAJOR: u8 = 3;

fn is_tls(bytes: &[u8]) -> bool {
    bytes.starts_with(&[TLS_ALERT, TLS_MAJOR])
}

fn is_http(bytes: &[u8]) -> bool {
    bytes.starts_with(b"HTTP/")
}

fn may_be_http(bytes: &[u8]) -> bool {
    let begins = &bytes[..bytes.len().min(5)];
    b"HTTP/".starts_with(begins)
}

/// The object in a body, which may be in chunks.
fn object(body: &str) -> Option<Value> {
    let object = body.get(body.find('{')?..=body.rfind('}')?)?;
    serde_json::from_str(object).ok()
}

fn is_sdkwsgi(body: &str) -> bool {
    object(body).is_some_and(|answer| answer["overallRC"].is_i64())
}

fn version(body: &str) -> Option<String> {
    let answer = object(body)?;
    Some(answer["output"]["version"].as_str()?.to_owned())
}

/// The beginning of an answer, in one line.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * SHOWN)]);
    let line: String = text.chars().take(SHOWN).collect();
    let dots = if text.chars().count() > SHOWN {
        "…"
    } else {
        ""
    };
    let escaped = line.chars().map(|c| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    });
    format!("{}{dots}", escaped.collect::<String>())
}

/// An error with all its causes.
pub(super) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::tools::check::probe::CheckStatus;

    #[test]
    fn a_clock_may_be_two_seconds_apart() {
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds);
        let check = |theirs, ours, status, found: &str| {
            let finding = clock("http".to_owned(), at(theirs), at(ours));
            assert_eq!((finding.status, &*finding.found), (status, found));
        };
        check(10, 10, CheckStatus::Ok, "within 2 s of this machine's");
        check(10, 12, CheckStatus::Ok, "within 2 s of this machine's");
        check(10, 20, CheckStatus::Warning, "9 s behind this machine's");
        check(20, 10, CheckStatus::Warning, "10 s ahead of this machine's");
    }

    #[test]
    fn the_version_is_read_from_a_body_in_chunks_too() {
        let body = r#"{"overallRC": 0, "output": {"version": "1.6.3"}}"#;
        assert_eq!(version(body).as_deref(), Some("1.6.3"));
        let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        assert_eq!(version(&chunked).as_deref(), Some("1.6.3"));
        assert!(is_sdkwsgi(&chunked));
        assert!(!is_sdkwsgi("<html>"));
    }

    #[test]
    fn a_strange_answer_is_shown_in_one_line() {
        assert_eq!(shown(b"220 mail\r\n\x1b[2J"), "220 mail\\r\\n\\u{1b}[2J");
        assert_eq!(shown("ü".repeat(100).as_bytes()).chars().count(), SHOWN + 1);
    }
}
