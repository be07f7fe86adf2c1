//! A backend that records every request it gets, and answers each with its method and target.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::strict::{self, Message, Read};
use crate::support::Scripted;

/// An arrival at the backend.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    Request(Message),
    /// Bytes that are no request in the strictest reading, and why.
    Bad {
        why: String,
        bytes: Vec<u8>,
    },
    /// Part of a request.
    Part(Vec<u8>),
}

#[derive(Default)]
struct State {
    seen: Vec<Seen>,
    /// By connection, what is not yet a whole request.
    pending: BTreeMap<usize, Vec<u8>>,
}

pub(super) struct Recording {
    pub(super) addr: SocketAddr,
    state: Arc<Mutex<State>>,
    _backend: Scripted,
}

impl Recording {
    pub(super) async fn start() -> Self {
        let state = Arc::<Mutex<State>>::default();
        let record = Arc::clone(&state);
        let backend =
            Scripted::start(move |number, stream| serve(number, stream, Arc::clone(&record))).await;
        Self {
            addr: backend.addr,
            state,
            _backend: backend,
        }
    }

    /// Takes the arrivals since the last call.
    pub(super) fn take(&self) -> Vec<Seen> {
        let mut state = self.state.lock().expect("not poisoned");
        let mut seen = std::mem::take(&mut state.seen);
        let pending = std::mem::take(&mut state.pending).into_values();
        seen.extend(pending.filter(|it| !it.is_empty()).map(Seen::Part));
        seen
    }
}

async fn serve(number: usize, mut stream: TcpStream, state: Arc<Mutex<State>>) {
    stream.set_nodelay(true).expect("a socket takes it");
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let read = stream.read(&mut chunk).await.unwrap_or(0);
        if read == 0 {
            return;
        }
        let (answers, is_over) = state
            .lock()
            .expect("not poisoned")
            .take(number, &chunk[..read]);
        if stream.write_all(answers.as_bytes()).await.is_err() || is_over {
            return;
        }
    }
}

impl State {
    /// Takes bytes of a connection. Returns the answers, and whether it is at its end.
    fn take(&mut self, number: usize, bytes: &[u8]) -> (String, bool) {
        let held = self.pending.entry(number).or_default();
        held.extend_from_slice(bytes);
        let mut answers = String::new();
        loop {
            match strict::request(held) {
                Read::Whole(request, length) => {
                    held.drain(..length);
                    answers += &answer(&request);
                    let is_last = request.header("connection").as_deref() == Some("close");
                    self.seen.push(Seen::Request(request));
                    if is_last {
                        return (answers, true);
                    }
                }
                Read::Partial => return (answers, false),
                Read::Bad(why) => {
                    let bytes = std::mem::take(held);
                    self.seen.push(Seen::Bad { why, bytes });
                    answers += "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nX-Backend: yes\r\nContent-Length: 0\r\n\r\n";
                    return (answers, true);
                }
            }
        }
    }
}

fn answer(request: &Message) -> String {
    let method = &request.first[0];
    let body = echo(request);
    let shown = if method == "HEAD" { "" } else { &body };
    format!(
        "HTTP/1.1 200 OK\r\nX-Backend: yes\r\nX-Method: {method}\r\nContent-Length: {}\r\n\r\n{shown}",
        body.len()
    )
}

/// The body of the answer to a request.
pub(super) fn echo(request: &Message) -> String {
    let text = format!("{} {}", request.first[0], request.first[1]);
    text.replace(|it: char| !it.is_ascii(), "?")
}
