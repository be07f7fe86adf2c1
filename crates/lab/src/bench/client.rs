//! A client: sends a call, reads the answer to its end and classifies it.
//!
//! On the socket protocol it behaves as zVMCloudConnector does: a connection for each call, one
//! write, and reads until EOF, which is the only end mark. Bytes before a reset are discarded.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use serde::Serialize;
use serde_json::json;
use tidegate_zvm::reply::{self, MODULE_ID, ReplyEnding};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpStream;

use super::{BenchOptions, TargetProtocol};
use crate::conn;
use crate::framing::{BodyEnd, Http};

/// Largest answer that is read.   bytes
const ANSWER_MAX: usize = 64 * 1024 * 1024;

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallAnswer {
    /// `overallRC` is 0.
    Ok,
    /// From the proxy itself.
    Refused,
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CallFailure {
    /// No connection.
    Connect,
    /// The connection broke.
    Reset,
    /// Closed without a byte.
    Empty,
    /// No complete JSON object, or no complete HTTP response.
    Cut,
    /// A complete answer whose `overallRC` is not 0.
    Error,
    /// Took longer than `--timeout`.
    Timeout,
}

/// The bytes to send, made once.
#[derive(Debug)]
pub(crate) struct Requests {
    protocol: TargetProtocol,
    /// Call `n` sends the entry at `n` modulo their number.
    turns: Vec<Vec<u8>>,
    /// Bytes to send for every Nth call, whose trace is sampled.
    sampled: Option<(NonZeroU64, Vec<Vec<u8>>)>,
}

/// The header of a call that belongs to a trace.
const TRACED: &str = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00\r\n";
const SAMPLED: &str = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";

impl Requests {
    pub(crate) fn new(options: &BenchOptions) -> Self {
        let mut functions = vec![options.function.as_str()];
        if options.mix {
            functions.push("guest_start");
        }
        let turns = |more: &str| {
            let turn = |function: &&str| match options.protocol {
                TargetProtocol::Socket => array(function, &options.userid),
                TargetProtocol::Http => {
                    http_request(function, &options.userid, options.target, more)
                }
            };
            functions.iter().map(turn).collect()
        };
        let every = options.sampled_every;
        Self {
            protocol: options.protocol,
            turns: turns(every.map_or("", |_| TRACED)),
            sampled: every.map(|every| (every, turns(SAMPLED))),
        }
    }

    fn turn(&self, call: u64) -> &[u8] {
        let turns = match &self.sampled {
            Some((every, sampled)) if call.is_multiple_of(every.get()) => sampled,
            _ => &self.turns,
        };
        &turns[(call % turns.len() as u64) as usize]
    }
}

/// `[function, args, kwargs]`; functions about the host or all guests take no userid.
fn array(function: &str, userid: &str) -> Vec<u8> {
    let about_a_guest = function.starts_with("guest_") && function != "guest_list";
    let function = json!(function);
    let args = if about_a_guest {
        json!([userid])
    } else {
        json!([])
    };
    // Python's separators.
    format!("[{function}, {args}, {{}}]").into_bytes()
}

fn http_request(function: &str, userid: &str, target: SocketAddr, more: &str) -> Vec<u8> {
    let (method, path, body) = match function {
        "guest_get_info" => ("GET", format!("/guests/{userid}/info"), vec![]),
        "guest_get_power_state" => ("GET", format!("/guests/{userid}/power_state"), vec![]),
        "guest_list" => ("GET", "/guests".to_owned(), vec![]),
        "host_get_info" => ("GET", "/host".to_owned(), vec![]),
        "guest_start" | "guest_stop" | "guest_reboot" => (
            "POST",
            format!("/guests/{userid}/action"),
            json!({ "action": &function["guest_".len()..] })
                .to_string()
                .into_bytes(),
        ),
        _ => ("POST", "/".to_owned(), array(function, userid)),
    };
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: tidegate-bench\r\n\
         Accept: */*\r\nContent-Type: application/json\r\n{more}"
    );
    if method == "POST" {
        request.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    request.push_str("\r\n");
    let mut request = request.into_bytes();
    request.extend_from_slice(&body);
    request
}

/// A client with at most one connection.
#[derive(Debug)]
pub(crate) struct LoadClient {
    target: SocketAddr,
    requests: Arc<Requests>,
    /// The persistent connection, on HTTP.
    kept: Option<Http>,
    /// The answer.
    bytes: Vec<u8>,
}

impl LoadClient {
    pub(crate) fn new(target: SocketAddr, requests: Arc<Requests>) -> Self {
        Self {
            target,
            requests,
            kept: None,
            bytes: Vec::new(),
        }
    }

    /// Opens the connection for HTTP calls.
    pub(crate) async fn connect(&mut self) -> io::Result<()> {
        let stream = TcpStream::connect(self.target).await?;
        self.kept = Some(Http::new(stream)?);
        Ok(())
    }

    /// Makes a call. A drop before its end closes its connection.
    pub(crate) async fn call(&mut self, call: u64) -> Result<CallAnswer, CallFailure> {
        self.bytes.clear();
        match self.requests.protocol {
            TargetProtocol::Socket => self.call_socket(call).await,
            TargetProtocol::Http => self.call_http(call).await,
        }
    }

    async fn call_socket(&mut self, call: u64) -> Result<CallAnswer, CallFailure> {
        let request = self.requests.turn(call);
        let connecting = conn::connect_and_write(self.target, request);
        let (mut stream, written) = connecting.await.map_err(|_| CallFailure::Connect)?;
        if written < request.len() {
            let rest = stream.write_all(&request[written..]);
            rest.await.map_err(|_| CallFailure::Reset)?;
        }
        self.read_to_end(&stream).await?;
        judge(&self.bytes)
    }

    /// Reads until the connection ends. An end that came with the last bytes needs no further read.
    async fn read_to_end(&mut self, stream: &TcpStream) -> Result<(), CallFailure> {
        loop {
            let ready = stream.ready(Interest::READABLE | Interest::ERROR).await;
            let ready = ready.map_err(|_| CallFailure::Reset)?;
            // A reset is an end too, and only the next read shows it.
            let is_end = ready.is_read_closed() && !ready.is_error();
            if self.bytes.len() > ANSWER_MAX {
                return Err(CallFailure::Cut);
            }
            self.bytes.reserve(4096);
            match stream.try_read_buf(&mut self.bytes) {
                Ok(0) => return Ok(()),
                Ok(_) if is_end && self.bytes.len() < self.bytes.capacity() => return Ok(()),
                Ok(_) => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(CallFailure::Reset),
            }
        }
    }

    async fn call_http(&mut self, call: u64) -> Result<CallAnswer, CallFailure> {
        if self.kept.as_ref().is_none_or(Http::is_stale) {
            self.connect().await.map_err(|_| CallFailure::Connect)?;
        }
        let mut http = self.kept.take().expect("connected above");
        let sent = http.stream.write_all(self.requests.turn(call)).await;
        sent.map_err(failure)?;
        let head = loop {
            match http.head().await.map_err(failure)? {
                None => return Err(CallFailure::Empty),
                Some(head) if head.line.starts_with("HTTP/1.1 1") => {}
                Some(head) => break head,
            }
        };
        let body = head.body.unwrap_or(BodyEnd::UntilClose);
        let read = http.body(body, &mut self.bytes, ANSWER_MAX).await;
        read.map_err(failure)?;
        if !head.close && body != BodyEnd::UntilClose {
            self.kept = Some(http);
        }
        judge(&self.bytes)
    }
}

/// Why an answer over HTTP was not read to its end.
fn failure(error: io::Error) -> CallFailure {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => CallFailure::Cut,
        _ => CallFailure::Reset,
    }
}

/// The class of an answer, by its JSON alone.
fn judge(json: &[u8]) -> Result<CallAnswer, CallFailure> {
    if json.is_empty() {
        return Err(CallFailure::Empty);
    }
    match reply::read(json) {
        ReplyEnding::Cut | ReplyEnding::Whole(None) => Err(CallFailure::Cut),
        ReplyEnding::Whole(Some(0)) => Ok(CallAnswer::Ok),
        ReplyEnding::Whole(Some(_)) if reply::module(json) == Some(MODULE_ID.into()) => {
            Ok(CallAnswer::Refused)
        }
        ReplyEnding::Whole(Some(_)) => Err(CallFailure::Error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_classifies_an_answer() {
        let check = |json: &str, expected| assert_eq!(judge(json.as_bytes()), expected, "{json}");
        check(
            r#"{"overallRC": 0, "modID": null, "output": [1]}"#,
            Ok(CallAnswer::Ok),
        );
        check(
            r#"{"overallRC": 503, "modID": 130, "rs": 1}"#,
            Ok(CallAnswer::Refused),
        );
        check(
            r#"{"overallRC": 501, "modID": "guest"}"#,
            Err(CallFailure::Error),
        );
        check(
            r#"{"overallRC": 404, "modID": 10}"#,
            Err(CallFailure::Error),
        );
        check(
            r#"{"overallRC": 0, "modID": null, "outp"#,
            Err(CallFailure::Cut),
        );
        check("<html>502</html>", Err(CallFailure::Cut));
        check("", Err(CallFailure::Empty));
    }

    #[test]
    fn a_call_has_the_bytes_of_the_real_client() {
        let check = |function, expected: &str| {
            assert_eq!(array(function, "HRX00001"), expected.as_bytes());
        };
        check("guest_get_info", r#"["guest_get_info", ["HRX00001"], {}]"#);
        check("guest_list", r#"["guest_list", [], {}]"#);
        check("host_get_info", r#"["host_get_info", [], {}]"#);
    }
}
