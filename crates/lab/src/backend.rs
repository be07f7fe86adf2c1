//! A stand-in z/VM SDK server: answers at once or after a pause, counts what it sees, and falls
//! over under too many calls, as the real one's SMAPI does.
//!
//! It speaks the socket protocol of sdkserver and the HTTP of sdkwsgi on two ports, with one
//! recorder behind both. Benchmarks measure the program in front of it, so a call costs two short
//! locks, no log line and, for an immediate answer, no timer.
//!
//! Some userids have a meaning, on both protocols:
//!
//! | userid | what happens |
//! |---|---|
//! | `SLOW<n>` | the call takes `n` seconds longer |
//! | `NOEXIST` | 404/10/404/1, as for a guest that does not exist |
//! | `BIG` | the output is 1 MiB long |
//! | `CUT` | the connection closes in the middle of the JSON |
//! | `CLOSE` | the connection closes without a byte |
//! | `SILENT` | nothing, until the client leaves |

mod recorder;

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream as BareStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::value::RawValue;
use tidegate_runtime::command::{executor, listen, parse_duration};
use tidegate_zvm::array::Elements;
use tidegate_zvm::framer::{Framed, Framer, Misframed};
use tidegate_zvm::reply::{ErrorReply, http_status};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::recorder::{Call, CallEnd, Recorder};
use crate::conn::{self, Conn};
use crate::framing::{Body, Http};

pub use self::recorder::Report;

/// The most that one `recv` of the real server reads; a longer request gets no answer.   bytes
const REQUEST_MAX: usize = 4096;
/// How much of an HTTP body is read.   bytes
const BODY_KEPT: usize = 64 * 1024;
/// Output for the userid `BIG`.   bytes
const BIG: usize = 1024 * 1024;
/// Longest sleep for `SLOW<n>`, the socket client's own timeout.
const SLOW_MAX: Duration = Duration::from_secs(3600);
/// Pause after a failed accept: without free descriptors, the next would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How the backend behaves.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Address of the socket protocol; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2001")]
    pub socket: SocketAddr,
    /// Address of HTTP; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub http: SocketAddr,
    /// Address of GET /stats and POST /reset
    #[arg(long, value_name = "ADDR")]
    pub stats: Option<SocketAddr>,
    /// How long a call takes
    #[arg(long, default_value = "50ms", value_parser = parse_duration)]
    pub delay: Duration,
    /// Each call takes up to this much longer, uniformly
    #[arg(long, default_value = "0ms", value_parser = parse_duration)]
    pub jitter: Duration,
    /// Share of calls that fail by chance (500/1/-110/0)
    #[arg(long, default_value = "0.0", value_parser = crate::parse_share)]
    pub fail_rate: f64,
    /// Seed of jitter and chance
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Falls over when more calls than this are in flight; 0 means never
    #[arg(long, value_name = "CALLS", default_value_t = 0)]
    pub break_in_flight: u32,
    /// Falls over when more calls than this start within any second; 0 means never
    #[arg(long, value_name = "CALLS", default_value_t = 0)]
    pub break_per_second: u32,
    /// How long it stays down; meanwhile every call fails at once (500/1/-110/0)
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    pub recover: Duration,
    /// Padding in each answer
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub reply_bytes: usize,
    /// Connections that may wait to be accepted; the real server has 5
    #[arg(long, value_name = "CONNECTIONS", default_value_t = 4096)]
    pub backlog: u32,
    /// Threads
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        crate::defaults()
    }
}

impl Options {
    /// The defaults, on free ports of the loopback address.
    #[must_use]
    pub fn on_free_ports() -> Self {
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            socket: free,
            http: free,
            ..Self::default()
        }
    }
}

/// The command: serves until ctrl-c, then prints the statistics.
///
/// # Errors
/// An address that cannot be listened on.
pub fn main(options: Options) -> io::Result<ExitCode> {
    executor(options.threads)?.block_on(async {
        let running = Backend::start(options).await?;
        let mut line = format!(
            "backend: socket protocol on {}, HTTP on {}",
            running.socket_addr(),
            running.http_addr()
        );
        if let Some(stats) = running.stats_addr() {
            line.push_str(&format!(", GET /stats and POST /reset on {stats}"));
        }
        eprintln!("{line}; ctrl-c ends it");
        tokio::signal::ctrl_c().await?;
        println!("{}", running.stop().await);
        Ok(ExitCode::SUCCESS)
    })
}

/// The stand-in server.
#[derive(Debug)]
pub struct Backend {
    recorder: Recorder,
}

impl Backend {
    /// Listens and serves in the current runtime.
    ///
    /// # Errors
    /// An address that cannot be listened on.
    // Async although it never waits: to listen needs a runtime.
    #[allow(clippy::unused_async)]
    pub async fn start(options: Options) -> io::Result<Running> {
        let recorder = Recorder::new(options);
        let backend = Arc::new(Self { recorder });
        let options = &backend.recorder.options;
        let stop = CancellationToken::new();
        let mut acceptors = JoinSet::new();
        let mut open = |address, port| {
            let listener = listen(address, options.backlog)?;
            let address = listener.local_addr()?;
            acceptors.spawn(accept(listener, port, Arc::clone(&backend), stop.clone()));
            io::Result::Ok(address)
        };
        let socket_addr = open(options.socket, Port::Socket)?;
        let http_addr = open(options.http, Port::Http)?;
        let stats_addr = options.stats.map(|at| open(at, Port::Stats)).transpose()?;
        Ok(Running {
            backend,
            acceptors,
            stop: stop.drop_guard(),
            socket_addr,
            http_addr,
            stats_addr,
        })
    }
}

/// A running backend. A drop ends it.
#[derive(Debug)]
pub struct Running {
    backend: Arc<Backend>,
    acceptors: JoinSet<()>,
    stop: DropGuard,
    socket_addr: SocketAddr,
    http_addr: SocketAddr,
    stats_addr: Option<SocketAddr>,
}

impl Running {
    /// The address of the socket protocol.
    #[must_use]
    pub fn socket_addr(&self) -> SocketAddr {
        self.socket_addr
    }

    /// The address of HTTP.
    #[must_use]
    pub fn http_addr(&self) -> SocketAddr {
        self.http_addr
    }

    /// The address of the statistics, if there is one.
    #[must_use]
    pub fn stats_addr(&self) -> Option<SocketAddr> {
        self.stats_addr
    }

    /// The statistics so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.backend.recorder.report()
    }

    /// When each call started, from the start of the backend; the last million, in order.
    #[must_use]
    pub fn starts(&self) -> Vec<Duration> {
        self.backend.recorder.starts()
    }

    /// Waits until the statistics satisfy `is_so`. Checks again at each accepted connection, and at
    /// each start and end of a call.
    pub async fn wait_until(&self, is_so: impl Fn(&Report) -> bool) -> Report {
        self.backend.recorder.wait_until(is_so).await
    }

    /// Clears the statistics, and recovers from a fall.
    pub fn reset(&self) {
        self.backend.recorder.reset();
    }

    /// Stops listening, ends all connections and returns the statistics. The ports are free when
    /// this returns.
    pub async fn stop(mut self) -> Report {
        drop(self.stop);
        while self.acceptors.join_next().await.is_some() {}
        self.backend.recorder.report()
    }
}

/// The protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    Socket,
    Http,
    Stats,
}

async fn accept(listener: TcpListener, port: Port, backend: Arc<Backend>, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    // The runtime watches the listener itself, so that accepted connections need no watching.
    let watch = |listener| {
        #[expect(
            deprecated,
            reason = "safe for what keeps its descriptor, as the standard library's does"
        )]
        AsyncFd::with_interest(listener, Interest::READABLE)
    };
    let listener = listener.into_std().and_then(watch);
    let listener = listener.expect("the runtime has watched it before");
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = listener.async_io(Interest::READABLE, conn::accept) => accepted,
            () = stop.cancelled() => break,
        };
        let Ok(stream) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let backend = Arc::clone(&backend);
        // The client of a failed connection sees the failure; there is nothing to report here.
        match port {
            Port::Socket => connections.spawn(async move {
                let _ = backend.serve_socket(Conn::new(stream)).await;
            }),
            Port::Http | Port::Stats => connections.spawn(async move {
                let _ = backend.serve_http(stream, port).await;
            }),
        };
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    connections.shutdown().await;
}

/// The parts of a call that matter here.
#[derive(Debug)]
struct Ask {
    /// The function, or method and path.
    name: String,
    userid: String,
}

/// The effect of a userid on its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whim {
    Answer,
    Slow(Duration),
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
            _ => match userid.strip_prefix("SLOW").map(str::parse) {
                Some(Ok(seconds)) => Self::Slow(Duration::from_secs(seconds).min(SLOW_MAX)),
                _ => Self::Answer,
            },
        }
    }
}

/// How a call ends, for the writer of the reply.
#[derive(Debug)]
enum Ending<'a> {
    /// A JSON object without its last bytes, and its `overallRC`.
    Reply {
        json: Vec<u8>,
        withheld: usize,
        overall_rc: u16,
    },
    /// No byte.
    Close,
    /// No answer until the client leaves; the call is in flight until then.
    Silent(Call<'a>),
}

impl Backend {
    /// Most calls are complete when their connection is accepted. They are answered without
    /// registering the connection with the runtime.
    async fn serve_socket(&self, mut client: Conn) -> io::Result<()> {
        self.recorder.connected();
        let mut bytes = Vec::with_capacity(REQUEST_MAX);
        let mut framer = Framer::new(REQUEST_MAX);
        let mut framed = 0;
        let ask = loop {
            if client.read_some(&mut bytes).await? == 0 {
                return Ok(());
            }
            match framer.push(&bytes[framed..]) {
                Framed::End(end) if bytes[end..].trim_ascii().is_empty() => {
                    break parse_array(&bytes[..end]);
                }
                Framed::End(_) => break Err("Extra data".to_owned()),
                // The real server reads at most this much.
                Framed::Bad(Misframed::TooLarge) => {
                    break Err(format!("no whole array in {REQUEST_MAX} bytes"));
                }
                Framed::Bad(why) => break Err(why.to_string()),
                Framed::More => framed = bytes.len(),
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
            Ending::Reply { json, withheld, .. } => {
                client.write_all(&json[..json.len() - withheld]).await
            }
            Ending::Close => Ok(()),
            Ending::Silent(call) => {
                while matches!(client.read_some(&mut bytes).await, Ok(1..)) {
                    bytes.clear();
                }
                drop(call);
                Ok(())
            }
        }
    }

    async fn serve_http(&self, stream: BareStream, port: Port) -> io::Result<()> {
        let mut client = Http::new(TcpStream::from_std(stream)?)?;
        if port == Port::Http {
            self.recorder.connected();
        }
        while let Some(head) = client.head().await? {
            // Without the version.
            let request = head
                .line
                .rsplit_once(' ')
                .map_or("", |(request, _)| request);
            let body = head.body.unwrap_or(Body::Length(0));
            if head.expects_continue && body != Body::Length(0) {
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
            Ending::Reply {
                json,
                overall_rc,
                withheld,
            } => {
                let reply = response(overall_rc, &json, request.starts_with("HEAD "));
                let sent = reply.len().saturating_sub(withheld);
                stream.write_all(&reply[..sent]).await?;
                Ok(withheld > 0)
            }
            Ending::Close => Ok(true),
            Ending::Silent(call) => {
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
    async fn run(&self, ask: &Ask) -> Ending<'_> {
        let whim = Whim::of(&ask.userid);
        let call = self.recorder.begin();
        let mut pause = call.pause;
        match whim {
            Whim::Slow(longer) if !call.is_down => pause += longer,
            Whim::Silent if !call.is_down => return Ending::Silent(call),
            _ => {}
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let due = match whim {
            Whim::Cut | Whim::Close => CallEnd::Broken,
            Whim::NoSuchGuest => CallEnd::Failed,
            _ if call.fails_by_chance => CallEnd::Failed,
            _ => CallEnd::Answered,
        };
        let (json, overall_rc) = match (call.end(due), whim) {
            (CallEnd::Broken, Whim::Close) => return Ending::Close,
            (CallEnd::Failed, Whim::NoSuchGuest) => {
                let errmsg = format!("Guest '{}' does not exist.", ask.userid);
                (error(404, 10, 404, 1, &errmsg), 404)
            }
            (CallEnd::Failed | CallEnd::Fallen, _) => {
                let errmsg = "SMAPI is down: connection to the SMAPI server was refused";
                (error(500, 1, -110, 0, errmsg), 500)
            }
            (CallEnd::Answered | CallEnd::Broken, _) => (self.answer(ask), 0),
        };
        let is_cut = whim == Whim::Cut && overall_rc == 0;
        Ending::Reply {
            withheld: if is_cut { json.len() / 2 } else { 0 },
            json,
            overall_rc,
        }
    }

    /// The answer to a successful call. It repeats the request, so that a reply to the wrong client
    /// is noticed.
    fn answer(&self, ask: &Ask) -> Vec<u8> {
        let padding = if ask.userid == "BIG" {
            BIG
        } else {
            self.recorder.options.reply_bytes
        };
        let mut json = Vec::with_capacity(256 + padding);
        json.extend_from_slice(
            br#"{"overallRC": 0, "modID": null, "rc": 0, "rs": 0, "errmsg": "", "output": {"call": "#,
        );
        write_string(&mut json, &ask.name);
        json.extend_from_slice(br#", "userid": "#);
        write_string(&mut json, &ask.userid);
        json.extend_from_slice(
            br#", "power_state": "on", "num_cpu": 2, "max_mem_kb": 4194304, "cpu_time_us": 8796093022"#,
        );
        if padding > 0 {
            json.extend_from_slice(br#", "padding": ""#);
            json.resize(json.len() + padding, b'x');
            json.push(b'"');
        }
        json.extend_from_slice(b"}}");
        json
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

/// Reads `[function, args, kwargs]`.
fn parse_array(bytes: &[u8]) -> Result<Ask, String> {
    let text = std::str::from_utf8(bytes).map_err(|cause| cause.to_string())?;
    let call = Elements::read(text).map_err(|cause| cause.to_string())?;
    let args: Vec<&RawValue> =
        serde_json::from_str(call.args).map_err(|cause| cause.to_string())?;
    let userid = args
        .first()
        .and_then(|first| serde_json::from_str(first.get()).ok())
        .unwrap_or_default();
    let name = call.function.into_owned();
    Ok(Ask { name, userid })
}

/// `GET /guests/HRX00001/info` is about HRX00001, as is any path with another first word.
fn ask_of_path(request: &str) -> Ask {
    let name = request.split('?').next().unwrap_or(request).to_owned();
    let userid = name.split('/').nth(2).unwrap_or_default().to_owned();
    Ask { name, userid }
}

/// The server's answer to a request that it cannot read.
fn internal_error(message: &str) -> Vec<u8> {
    let errmsg = format!("Unexpected internal error in ZVM SDK, error: {message}");
    error(500, 100, 500, 1, &errmsg)
}

fn error(overall_rc: u16, module: u16, rc: i32, rs: u16, errmsg: &str) -> Vec<u8> {
    let reply = ErrorReply {
        overall_rc,
        module,
        rc,
        rs,
        errmsg,
        retry_after: None,
    };
    reply.to_json().into_bytes()
}

fn write_string(json: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(json, text).expect("a string can be written to memory");
}

/// An HTTP response as sdkwsgi frames it; its status follows from the `overallRC`.
fn response(overall_rc: u16, json: &[u8], head_only: bool) -> Vec<u8> {
    let status = match http_status(overall_rc.into()) {
        200 => "200 OK",
        404 => "404 Not Found",
        _ => "500 Internal Server Error",
    };
    let mut reply = Vec::with_capacity(192 + json.len());
    write!(
        reply,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nCache-Control: no-cache\r\n\
         Content-Length: {}\r\n\r\n",
        json.len()
    )
    .expect("memory can be written to");
    if !head_only {
        reply.extend_from_slice(json);
    }
    reply
}
