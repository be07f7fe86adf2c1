//! A client that sends bytes and reads every answer in the strictest way.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::strict::{self, Message, Read, latin};
use crate::support::PATIENCE;

/// How long a server whose behaviour is not known may be silent before it counts as waiting.
const SILENCE: Duration = Duration::from_millis(300);

/// When a client closes its sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// Never: the server closes.
    Closed,
    /// When it has sent all and has this number of answers.
    Answers(usize),
    /// When the server is silent.
    Silence,
}

/// The answer that a client got.
#[derive(Debug)]
pub(super) struct Got {
    /// The answers, without interim ones.
    pub(super) answers: Vec<Message>,
    /// Whether the server closed before the client did.
    pub(super) closed: bool,
    /// The bytes that are no answer.
    pub(super) bad: Option<String>,
}

/// Sends bytes in pieces over a connection, and reads it to its end.
pub(super) async fn exchange(addr: SocketAddr, pieces: &[&[u8]], until: Until) -> Got {
    let mut stream = TcpStream::connect(addr).await.expect("it listens");
    stream.set_nodelay(true).expect("a socket takes it");
    let starts_with_head = pieces.concat().starts_with(b"HEAD");
    for (number, piece) in pieces.iter().enumerate() {
        if number > 0 {
            // Sets the pace: the server reads the pieces one by one.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // It may have closed already.
        let _ = stream.write_all(piece).await;
    }
    let mut got = Got {
        answers: Vec::new(),
        closed: false,
        bad: None,
    };
    let mut half_closed = false;
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let enough = match until {
            Until::Answers(enough) => got.answers.len() >= enough,
            Until::Closed | Until::Silence => false,
        };
        if enough && !half_closed {
            half_closed = true;
            let _ = stream.shutdown().await;
        }
        let patience = match until {
            Until::Silence if !half_closed => SILENCE,
            Until::Silence => 10 * SILENCE,
            _ => PATIENCE,
        };
        let read = match timeout(patience, stream.read(&mut chunk)).await {
            Ok(read) => read.unwrap_or(0),
            Err(_) if until == Until::Silence && !half_closed => {
                half_closed = true;
                let _ = stream.shutdown().await;
                continue;
            }
            Err(_) => {
                got.bad = Some(format!("nothing came, after {:?}", latin(&bytes)));
                return got;
            }
        };
        bytes.extend_from_slice(&chunk[..read]);
        take_answers(&mut bytes, starts_with_head, &mut got);
        if read == 0 || got.bad.is_some() {
            got.closed = !half_closed;
            if !bytes.is_empty() && got.bad.is_none() {
                got.bad = Some(format!("part of an answer: {:?}", latin(&bytes)));
            }
            return got;
        }
    }
}

/// The frame with which a server of HTTP/2 begins, here to refuse it.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

fn take_answers(bytes: &mut Vec<u8>, starts_with_head: bool, got: &mut Got) {
    if bytes.starts_with(SETTINGS) {
        // `prior_knowledge` reads its frames.
        bytes.clear();
    }
    loop {
        let to_head = match bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            Some(end) => {
                let head = latin(&bytes[..end]).to_ascii_lowercase();
                let is_own = !head.contains("x-backend");
                head.contains("x-method: head\r\n") || is_own && starts_with_head
            }
            None => return,
        };
        match strict::response(bytes, to_head) {
            Read::Whole(answer, length) => {
                bytes.drain(..length);
                if !answer.first[1].starts_with('1') {
                    got.answers.push(answer);
                }
            }
            Read::Partial => return,
            Read::Bad(why) => {
                got.bad = Some(format!("an answer with {why}: {:?}", latin(bytes)));
                return;
            }
        }
    }
}
