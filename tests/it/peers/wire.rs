//! Bare connections: what a client library would not send.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};

use serde_json::Value;
use socket2::SockRef;

use super::stage::PATIENCE;

/// How a conversation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// In order.
    Eof,
    /// By a reset, which may destroy an answer.
    Reset,
}

/// A connection, on which no step takes longer than [`PATIENCE`].
pub(super) struct Wire(TcpStream);

impl Wire {
    pub(super) fn to(port: u16) -> Self {
        let stream =
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a server listens there");
        stream.set_nodelay(true).expect("a fresh socket");
        stream
            .set_read_timeout(Some(PATIENCE))
            .expect("a fresh socket");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("a fresh socket");
        Self(stream)
    }

    /// A call on the socket protocol, sent and not yet answered.
    pub(super) fn calling(port: u16, userid: &str) -> Self {
        Self::to(port).with(info(userid).as_bytes())
    }

    /// A wire that sends the call as a request over HTTP.
    pub(super) fn getting(port: u16, userid: &str) -> Self {
        Self::to(port).with(get(&format!("/guests/{userid}/info")).as_bytes())
    }

    pub(super) fn with(mut self, bytes: &[u8]) -> Self {
        self.0
            .write_all(bytes)
            .expect("there is room for so little");
        self
    }

    /// Sends what the other side may not care to read to its end.
    pub(super) fn with_as_much_as_it_takes(mut self, bytes: &[u8]) -> Self {
        match self.0.write_all(bytes) {
            Ok(()) => {}
            Err(error) if is_reset(error.kind()) => {}
            Err(error) => panic!("writing: {error}"),
        }
        self
    }

    pub(super) fn half_closed(self) -> Self {
        self.0.shutdown(Shutdown::Write).expect("it is connected");
        self
    }

    /// Leaves with a reset instead of a close.
    pub(super) fn reset(self) {
        SockRef::from(&self.0)
            .set_linger(Some(std::time::Duration::ZERO))
            .expect("an open socket");
    }

    /// Everything until the other side closes.
    pub(super) fn answer(mut self) -> (Vec<u8>, End) {
        let mut answer = Vec::new();
        match self.0.read_to_end(&mut answer) {
            Ok(_) => (answer, End::Eof),
            Err(error) if is_reset(error.kind()) => (answer, End::Reset),
            Err(error) => panic!("neither answered nor closed: {error}"),
        }
    }

    /// The answer of the socket protocol, which must be one whole object and an EOF.
    pub(super) fn object(self) -> Value {
        let (answer, end) = self.answer();
        let text = String::from_utf8_lossy(&answer);
        assert_eq!(end, End::Eof, "{text}");
        assert!(answer.is_ascii(), "the client reads ASCII: {text}");
        serde_json::from_slice(&answer).unwrap_or_else(|error| panic!("{error}: {text:?}"))
    }

    /// The head and the body of the next HTTP answer on a connection that stays open.
    pub(super) fn next_http(&mut self) -> (String, String) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).expect("a whole head");
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).expect("the servers here answer in UTF-8");
        let length = head
            .to_ascii_lowercase()
            .split("\r\ncontent-length: ")
            .nth(1)
            .and_then(|rest| rest.split("\r\n").next()?.parse().ok())
            .unwrap_or_else(|| panic!("an answer without a length: {head}"));
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).expect("a whole body");
        let body = String::from_utf8(body).expect("the servers here answer in UTF-8");
        (head, body)
    }

    /// The status and the body of an HTTP answer that ends with the connection.
    pub(super) fn http(self) -> (u16, String) {
        let (answer, end) = self.answer();
        let text = String::from_utf8(answer).expect("the servers here answer in UTF-8");
        assert_eq!(end, End::Eof, "{text}");
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no HTTP: {text:?}"));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .unwrap_or_else(|| panic!("no HTTP: {head:?}"));
        (status, body.to_owned())
    }
}

fn is_reset(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// The request of the socket client, as it writes it.
pub(super) fn info(userid: &str) -> String {
    format!(r#"["guest_get_info", ["{userid}"], {{}}]"#)
}

/// A request after which the connection ends.
pub(super) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
}
