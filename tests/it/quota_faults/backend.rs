//! The backend: answers at once, and remembers every call that arrives and when.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use super::call::{CallId, now};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"overallRC\":0}";

/// A call that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// µs since the epoch
    pub(super) at: u64,
    pub(super) call: CallId,
}

type Arrivals = Arc<Mutex<Vec<Arrival>>>;

/// A backend with its own thread, so that no other work delays its notes.
pub(super) struct Backend {
    pub(super) addr: SocketAddr,
    arrivals: Arrivals,
    runtime: Option<Runtime>,
}

impl Backend {
    pub(super) fn start() -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("backend")
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        listener.set_nonblocking(true).expect("a socket takes it");
        let arrivals = Arrivals::default();
        let notes = Arc::clone(&arrivals);
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).expect("it does not block");
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, Arc::clone(&notes)));
            }
        });
        Self {
            addr,
            arrivals,
            runtime: Some(runtime),
        }
    }

    /// How many have arrived.
    pub(super) fn count(&self) -> usize {
        self.arrivals.lock().expect("unpoisoned").len()
    }

    /// All that have arrived, in that order.
    pub(super) fn arrivals(&self) -> Vec<Arrival> {
        let mut arrivals = self.arrivals.lock().expect("unpoisoned").clone();
        arrivals.sort_by_key(|arrival| arrival.at);
        arrivals
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn converse(mut stream: TcpStream, arrivals: Arrivals) {
    let mut head = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut chunk).await {
        head.extend_from_slice(&chunk[..read]);
        // A GET has no body, and a connection one call at a time.
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let at = now();
        let text = str::from_utf8(&head).expect("it is ASCII");
        let userid = text.split('/').nth(2).and_then(CallId::parse);
        let call = userid.unwrap_or_else(|| panic!("no client called this: {text}"));
        let arrival = Arrival { at, call };
        arrivals.lock().expect("unpoisoned").push(arrival);
        head.clear();
        if stream.write_all(ANSWER).await.is_err() {
            return;
        }
    }
}
