//! The negative controls: a small proxy of the test's own that does one thing wrong. If the account
//! did not find it, it would say nothing about Tidegate either.
//!
//! It is a process like the one under test: this test binary, started once more for the test below.

use std::collections::VecDeque;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use super::tag::{Tag, number};

/// The fault of the stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    Nothing,
    Hang,
    DoubledCall,
    LostSlot,
    ForeignAnswer,
    LeakedDescriptor,
    LeakedTask,
    ToldTwice,
    NeverTold,
    OneMoreInAWindow,
    OneMoreInFlight,
    TruncatedBody,
    SentAfterLeft,
}

impl Wrong {
    pub(super) const ALL: [Self; 13] = [
        Self::Nothing,
        Self::Hang,
        Self::DoubledCall,
        Self::LostSlot,
        Self::ForeignAnswer,
        Self::LeakedDescriptor,
        Self::LeakedTask,
        Self::ToldTwice,
        Self::NeverTold,
        Self::OneMoreInAWindow,
        Self::OneMoreInFlight,
        Self::TruncatedBody,
        Self::SentAfterLeft,
    ];
}

/// The command that runs it.
pub(super) fn command(wrong: Wrong) -> Command {
    let mut command = Command::new("sh");
    // What follows is for Tidegate; it finds its config by its folder.
    let script = "exec \"$0\" faults::stand_in::runs_a_proxy_that_does_one_thing_wrong \
                  --exact --ignored --nocapture";
    let itself = std::env::current_exe().expect("a test knows its binary");
    command.args(["-c", script]).arg(itself);
    command.env("FAULTS_WRONG", format!("{wrong:?}"));
    command
}

#[test]
#[ignore = "it is the process that the negative controls start"]
fn runs_a_proxy_that_does_one_thing_wrong() {
    let (Ok(folder), Ok(wrong)) = (
        std::env::var("FAULTS_FOLDER"),
        std::env::var("FAULTS_WRONG"),
    ) else {
        return;
    };
    let mut all = Wrong::ALL.into_iter();
    let wrong = all
        .find(|it| format!("{it:?}") == wrong)
        .expect("one of them");
    let text = std::fs::read_to_string(Path::new(&folder).join("config.toml"));
    let text = text.expect("it was written");
    let backend = text.split("http = \"http://").nth(1).expect("a backend");
    let backend = backend.split('"').next().expect("in quotes");
    let value = |name: &str| {
        let rest = text.split(name).nth(1).unwrap_or_default();
        number(
            format!("v={}", rest.trim_start_matches([' ', '=', '"'])).as_bytes(),
            "v",
        )
    };
    let proxy = Arc::new(Proxy {
        wrong,
        backend: backend.parse().expect("an address"),
        in_flight_max: value("outstanding") + usize::from(wrong == Wrong::OneMoreInFlight),
        window_max: value("total:") + usize::from(wrong == Wrong::OneMoreInAWindow),
        gate: Mutex::default(),
        calls: AtomicUsize::new(0),
        waiting: AtomicUsize::new(0),
        connections: AtomicUsize::new(0),
        tasks: TaskTracker::new(),
        last: Mutex::default(),
        closing: AtomicBool::new(false),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let finished = runtime.block_on(serve(proxy));
    std::process::exit(i32::from(!finished));
}

struct Proxy {
    wrong: Wrong,
    backend: SocketAddr,
    in_flight_max: usize,
    window_max: usize,
    gate: Mutex<Gate>,
    /// Calls that have ended.
    calls: AtomicUsize,
    waiting: AtomicUsize,
    connections: AtomicUsize,
    tasks: TaskTracker,
    last: Mutex<Vec<u8>>,
    closing: AtomicBool,
}

#[derive(Default)]
struct Gate {
    in_flight: usize,
    /// When calls were answered that still count.
    replied: VecDeque<Instant>,
    admitted: usize,
}

/// The number of calls of which one fails.
const ONE_IN: usize = 10;

fn log(line: &serde_json::Value) {
    // Without a reader there is nothing to report.
    let _ = writeln!(std::io::stderr(), "{line}");
}

async fn serve(proxy: Arc<Proxy>) -> bool {
    let mut terminate = signal(SignalKind::terminate()).expect("a handler");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let admin = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = |it: &TcpListener| it.local_addr().expect("it is bound").to_string();
    log(&json!({"message": "listening", "listener": "test", "address": address(&listener)}));
    log(&json!({"message": "the admin address is up", "bind": address(&admin)}));
    let pages = tokio::spawn(pages(admin, Arc::clone(&proxy)));
    log(&json!({"message": "ready"}));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            accepted = listener.accept() => {
                if let Ok((stream, peer)) = accepted {
                    let one = Arc::clone(&proxy);
                    proxy.tasks.spawn(async move {
                        one.connections.fetch_add(1, Ordering::SeqCst);
                        one.converse(stream, peer).await;
                        one.connections.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            }
        }
    }
    proxy.closing.store(true, Ordering::SeqCst);
    proxy.tasks.close();
    let finished = timeout(Duration::from_secs(5), proxy.tasks.wait())
        .await
        .is_ok();
    pages.abort();
    finished
}

async fn pages(admin: TcpListener, proxy: Arc<Proxy>) {
    while let Ok((mut stream, _)) = admin.accept().await {
        let (in_flight, window) = {
            let mut gate = proxy.gate.lock().expect("nothing panics with it");
            gate.forget();
            (gate.in_flight, gate.replied.len())
        };
        let body = format!(
            "tidegate_outstanding {in_flight}\ntidegate_queue_depth {}\ntidegate_connections {}\n\
             tidegate_window_used {window}\ntidegate_calls_total {}\n\
             tidegate_access_lines_lost_total{{cause=\"slow_reader\"}} 0\n",
            proxy.waiting.load(Ordering::SeqCst),
            proxy.connections.load(Ordering::SeqCst),
            proxy.calls.load(Ordering::SeqCst),
        );
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut request = [0; 1024];
        // A client that leaves after its request needs no answer.
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all(answer.as_bytes()).await;
    }
}

impl Gate {
    fn forget(&mut self) {
        let now = Instant::now();
        let length = Duration::from_millis(1005);
        while self.replied.front().is_some_and(|at| *at + length <= now) {
            self.replied.pop_front();
        }
    }
}

impl Proxy {
    /// Whether it is to go wrong with this call.
    fn goes_wrong(&self, number: usize) -> bool {
        number > ONE_IN && number.is_multiple_of(ONE_IN)
    }

    fn admit(&self) -> Option<usize> {
        let mut gate = self.gate.lock().expect("nothing panics with it");
        gate.forget();
        let is_open = gate.in_flight < self.in_flight_max
            && gate.in_flight + gate.replied.len() < self.window_max;
        is_open.then(|| {
            gate.in_flight += 1;
            gate.admitted += 1;
            gate.admitted
        })
    }

    fn finish(&self, number: usize) {
        let mut gate = self.gate.lock().expect("nothing panics with it");
        gate.replied.push_back(Instant::now());
        let keeps = self.wrong == Wrong::LostSlot && number == 2 * ONE_IN;
        gate.in_flight -= usize::from(!keeps);
    }

    async fn converse(self: &Arc<Self>, mut client: TcpStream, peer: SocketAddr) {
        let mut buffer = Vec::new();
        while !self.closing.load(Ordering::SeqCst) {
            let read = timeout(Duration::from_millis(100), client.read_buf(&mut buffer)).await;
            match read {
                Err(_) => continue,
                Ok(Ok(1..)) => {}
                Ok(_) => return,
            }
            let Some(end) = buffer.windows(4).position(|it| it == b"\r\n\r\n") else {
                continue;
            };
            let head: Vec<u8> = buffer.drain(..end + 4).collect();
            if !self.call(&mut client, peer, head).await {
                return;
            }
        }
    }

    fn tell(&self, tag: Tag, peer: SocketAddr, verdict: &str, number: usize) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let times = match self.wrong {
            Wrong::ToldTwice if self.goes_wrong(number) => 2,
            Wrong::NeverTold if self.goes_wrong(number) => 0,
            _ => 1,
        };
        for _ in 0..times {
            log(&json!({
                "target": "access",
                "userid": tag.to_string(),
                "peer": peer.to_string(),
                "verdict": verdict,
                "reason": null,
            }));
        }
    }

    /// Serves a call; returns whether another may come on this connection.
    async fn call(
        self: &Arc<Self>,
        client: &mut TcpStream,
        peer: SocketAddr,
        head: Vec<u8>,
    ) -> bool {
        let tag = Tag::find(&head).expect("every request has one");
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut left = false;
        let number = loop {
            if let Some(number) = self.admit() {
                break Some(number);
            }
            let mut more = [0; 1];
            let watching = client.peek(&mut more);
            let is_gone = timeout(Duration::from_millis(5), watching).await;
            if matches!(is_gone, Ok(Ok(0) | Err(_))) {
                if self.wrong != Wrong::SentAfterLeft {
                    break None;
                }
                left = true;
                sleep(Duration::from_millis(5)).await;
            }
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        let Some(number) = number else {
            self.tell(tag, peer, "aborted", 0);
            return false;
        };
        if left {
            sleep(Duration::from_secs(1)).await;
        }
        let goes_wrong = self.goes_wrong(number);
        if self.wrong == Wrong::DoubledCall && goes_wrong {
            // Two calls of the limits for one of the client.
            let _ = self.exchange(&head, false).await;
        }
        let leaks = self.wrong == Wrong::LeakedDescriptor && goes_wrong;
        let body = self.exchange(&head, leaks).await;
        self.finish(number);
        if self.wrong == Wrong::LeakedTask && goes_wrong {
            self.tasks.spawn(std::future::pending::<()>());
        }
        let Some(body) = body else {
            self.tell(tag, peer, "failed", number);
            return false;
        };
        let own = body.clone();
        let mut body = match self.wrong {
            Wrong::ForeignAnswer if goes_wrong => {
                self.last.lock().expect("nothing panics with it").clone()
            }
            _ => body,
        };
        *self.last.lock().expect("nothing panics with it") = own;
        if self.wrong == Wrong::TruncatedBody && goes_wrong {
            body.truncate(body.len() - 8);
        }
        if self.wrong == Wrong::Hang && goes_wrong {
            let mut rest = Vec::new();
            // The client goes away at last.
            let _ = client.read_to_end(&mut rest).await;
            self.tell(tag, peer, "aborted", number);
            return false;
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let wrote = client.write_all(&[head.as_bytes(), &body].concat()).await;
        self.tell(tag, peer, "passed", number);
        wrote.is_ok()
    }

    /// Sends a request to the backend over a new connection, and reads the answer's body.
    async fn exchange(&self, head: &[u8], leaks: bool) -> Option<Vec<u8>> {
        let mut backend = TcpStream::connect(self.backend).await.ok()?;
        backend.write_all(head).await.ok()?;
        let mut answer = Vec::new();
        let body = loop {
            if backend.read_buf(&mut answer).await.ok()? == 0 {
                return None;
            }
            let Some(end) = answer.windows(4).position(|it| it == b"\r\n\r\n") else {
                continue;
            };
            let length = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
            let length = number(length.replace("content-length: ", "v=").as_bytes(), "v");
            if let Some(body) = answer.get(end + 4..end + 4 + length) {
                break body.to_vec();
            }
        };
        if leaks {
            std::mem::forget(backend);
        }
        Some(body)
    }
}
