//! Clients at every sidecar: for each user some that call at a rate, independent of the answers,
//! and some that call again after each answer. Connections bound the calls in progress.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::call::{CallId, USERS};

/// Of each user at each sidecar, that call at a rate.
const OPEN: usize = 8;
/// The number of clients that wait for their answers and think.
const CLOSED: usize = 2;
/// At one sidecar.
pub(super) const CONNECTIONS: usize = USERS.len() * (OPEN + CLOSED);
/// A call that was sent later than this, because no connection was free, is left out.
const BEHIND: Duration = Duration::from_millis(20);
/// After that a client gives up. Longer than any call may wait.
const ANSWER: Duration = Duration::from_secs(3);
/// Before an unavailable sidecar is called again.
const AWAY: Duration = Duration::from_millis(20);
const HEAD_MAX: usize = 16 * 1024;

/// How much is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Calls a second of each user at each sidecar, and twice as many of the first user.
    pub(super) open: f64,
    /// How long a client in a closed loop thinks between two calls.
    pub(super) think: Duration,
}

/// The results of the calls, as the clients see them.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) answered: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) failed: AtomicU64,
}

/// Goes on until it is dropped.
pub(super) struct Load {
    pub(super) seen: Arc<Seen>,
    stop: CancellationToken,
    runtime: Option<Runtime>,
}

impl Load {
    /// Clients at these sidecars.
    pub(super) fn start(sidecars: &[SocketAddr], demand: Demand) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("load")
            .enable_all()
            .build()
            .expect("a runtime");
        let (seen, stop) = (Arc::<Seen>::default(), CancellationToken::new());
        for (sidecar, addr) in sidecars.iter().enumerate() {
            for user in 0..USERS.len() {
                let rate = demand.open * if user == 0 { 2.0 } else { 1.0 };
                let every = Duration::from_secs_f64(1.0 / rate);
                let calls = Arc::new(Calls {
                    sidecar,
                    user,
                    next: AtomicU32::new(0),
                    due: Mutex::new(Instant::now()),
                    every,
                });
                for number in 0..OPEN + CLOSED {
                    let client = Client {
                        addr: *addr,
                        calls: Arc::clone(&calls),
                        think: (number >= OPEN).then_some(demand.think),
                        seen: Arc::clone(&seen),
                    };
                    let stop = stop.clone();
                    runtime.spawn(stop.run_until_cancelled_owned(client.call()));
                }
            }
        }
        Self {
            seen,
            stop,
            runtime: Some(runtime),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The calls of one user at one sidecar.
struct Calls {
    sidecar: usize,
    user: usize,
    next: AtomicU32,
    /// When the next call at a rate is due.
    due: Mutex<Instant>,
    every: Duration,
}

impl Calls {
    fn next(&self) -> CallId {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        CallId::new(self.sidecar, self.user, number)
    }

    /// When this client calls next.
    fn due(&self) -> Instant {
        let mut due = self.due.lock().expect("unpoisoned");
        let at = (*due).max(Instant::now() - BEHIND);
        *due = at + self.every;
        at
    }
}

struct Client {
    addr: SocketAddr,
    calls: Arc<Calls>,
    /// The time to think; `None` for a client that calls at the rate.
    think: Option<Duration>,
    seen: Arc<Seen>,
}

impl Client {
    async fn call(self) {
        let mut connection = None;
        loop {
            match self.think {
                None => sleep_until(self.calls.due().into()).await,
                Some(think) => sleep(think).await,
            }
            let stream = match connection.take() {
                Some(stream) => stream,
                None => match timeout(ANSWER, TcpStream::connect(self.addr)).await {
                    Ok(Ok(stream)) => stream,
                    _ => {
                        sleep(AWAY).await;
                        continue;
                    }
                },
            };
            match timeout(ANSWER, ask(stream, self.calls.next())).await {
                Ok(Some((status, stream))) => {
                    let count = match status {
                        200 => &self.seen.answered,
                        _ => &self.seen.refused,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    connection = Some(stream);
                }
                _ => {
                    self.seen.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Makes a call: its status, and the connection for the next one. `None` if there is no whole answer.
async fn ask(mut stream: TcpStream, call: CallId) -> Option<(u16, TcpStream)> {
    let (_, user) = USERS[usize::from(call.user)];
    let path = call.path();
    let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\nAuthorization: Basic {user}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk).await.ok()? {
            0 => return None,
            read => answer.extend_from_slice(&chunk[..read]),
        }
        let Some(head) = answer.windows(4).position(|it| it == b"\r\n\r\n") else {
            assert!(answer.len() < HEAD_MAX, "an answer without an end");
            continue;
        };
        let text = str::from_utf8(&answer[..head]).expect("a head is ASCII");
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.parse::<usize>().expect("a length"))
        });
        let length = length.expect("an answer says how long it is");
        if answer.len() >= head + 4 + length {
            let status = text.split(' ').nth(1).expect("it has a status");
            return Some((status.parse().expect("a status"), stream));
        }
    }
}
