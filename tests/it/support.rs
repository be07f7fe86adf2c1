//! Parts that several tests need: the stages put together with an observer that keeps the facts of every call,
//! scripted backends, and raw clients.

use std::error::Error;
use std::fmt::Display;
use std::fs::File;
use std::future::Future;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tidegate::admin::{LimitKind, LimitState, Opens};
use tidegate::admit::{Admission, Ask, Claimed, Gate, Permit, Waits};
use tidegate::app;
use tidegate::call::claim::ClaimDeadline;
use tidegate::call::{
    Destination, Facts, Identity, Listener, Observe, Peer, Record, Refusal, Rejection, Role, Serve,
    TaskWakers, TlsCause,
};
use tidegate::callers::{Callers, ChangeResult};
use tidegate::classify::Classifier;
use tidegate::coalesce::Coalescer;
use tidegate::config::{self, Config};
use tidegate::forward::{Forwarder, Resolve};
use tidegate::listen::{self, Connections, InheritedSockets};
use tidegate::pipeline::Pipeline;
use tidegate::protocol::{self, AcceptedConnection, Conversation, Stop, StreamDrain};
use tidegate::tasks::Tasks;
use tidegate_lab::backend::{RunningBackend, StandInBackend, StandInOptions};
use tidegate_limits::{Caller, Timestamp, Tokens, Weight};
use tidegate_runtime::{Clock, Live};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// No step of a test takes longer than this, unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Reports a test that cannot run on this machine, and why. Where CI is set, that is a failure.
pub(crate) fn cannot_run(test: &str, why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{test}: {why}");
    not_tried(test, why);
}

/// Lists a test for the end of `make test`.
pub(crate) fn not_tried(test: &str, why: &str) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("not-run");
    let list = File::options().create(true).append(true).open(path);
    let line = format!("NOT RUN: {test}: {why}\n");
    let written = list.and_then(|mut list| list.write_all(line.as_bytes()));
    written.expect("the list can be written");
}

/// A config from its text, which must be good.
pub(crate) fn config(text: &str) -> Config {
    match config::read(text, "test.toml", std::iter::empty()) {
        Ok(checked) => checked.config,
        Err(problems) => panic!("{}", problems.render(false)),
    }
}

/// The facts of every call that has ended, in that order.
#[derive(Clone)]
pub(crate) struct Seen {
    facts: Arc<Mutex<Vec<Facts>>>,
    count: watch::Sender<usize>,
    rejected: watch::Sender<Vec<Rejection>>,
    callers: Callers,
    clock: Clock,
}

impl Seen {
    pub(crate) fn new(callers: Callers, clock: Clock) -> Self {
        Self {
            callers,
            clock,
            facts: Arc::default(),
            count: watch::Sender::new(0),
            rejected: watch::Sender::default(),
        }
    }

    pub(crate) fn all(&self) -> Vec<Facts> {
        self.facts.lock().expect("no test panics with it").clone()
    }

    /// Waits until N calls have ended.
    pub(crate) async fn ended(&self, calls: usize) -> Vec<Facts> {
        let mut count = self.count.subscribe();
        tokio::time::timeout(PATIENCE, count.wait_for(|&ended| ended >= calls))
            .await
            .unwrap_or_else(|_| panic!("{} of {calls} calls ended", self.all().len()))
            .expect("the sender lives in self");
        self.all()
    }

    /// Waits until N connections were closed before their first request; returns why.
    pub(crate) async fn rejected(&self, connections: usize) -> Vec<Rejection> {
        let mut rejected = self.rejected.subscribe();
        let enough = rejected.wait_for(|all| all.len() >= connections);
        tokio::time::timeout(PATIENCE, enough)
            .await
            .unwrap_or_else(|_| panic!("fewer than {connections} were closed"))
            .expect("the sender lives in self")
            .clone()
    }
}

impl Observe for Seen {
    fn next_id(&self) -> u64 {
        0
    }

    fn call_began(&self, _: u64, _: Weak<Record>) {}

    fn backend_finished(&self) {}

    fn keeps_spans(&self) -> bool {
        false
    }

    fn lacked_resources(&self, _: Destination, _: &(dyn Error + 'static)) {}

    fn tls_failed(&self, _: Destination, _: TlsCause) {}

    fn call_ended(&self, facts: &Facts) {
        self.callers.ended(self.clock.now(), facts);
        let mut all = self.facts.lock().expect("no test panics with it");
        all.push(facts.clone());
        let ended = all.len();
        drop(all);
        self.count.send_replace(ended);
    }

    fn connection_rejected(&self, _: &Identity, rejection: Rejection) {
        self.rejected.send_modify(|all| all.push(rejection));
    }
}

/// The stages, listening on free ports.
pub(crate) struct Stack {
    /// The first listener's.
    pub(crate) addr: SocketAddr,
    /// Every listener's.
    pub(crate) addrs: Vec<SocketAddr>,
    pub(crate) callers: Callers,
    pub(crate) gate: Gate,
    pub(crate) coalescer: Coalescer,
    pub(crate) tasks: Tasks,
    pub(crate) seen: Seen,
    pub(crate) clock: Clock,
    pub(crate) connections: Arc<Connections>,
    pub(crate) pipeline: Pipeline,
    /// Once set, it makes the connections finish what is under way.
    pub(crate) closing: Stop,
    _stop: DropGuard,
}

impl Stack {
    /// Puts the stages together as the app does.
    pub(crate) fn start(text: &str) -> Self {
        let config = config(text);
        let forwarder = Forwarder::new(&config.forward);
        Self::of(config, forwarder)
    }

    /// A stack whose backends' names are looked up in this way.
    pub(crate) fn resolving(text: &str, resolve: Arc<dyn Resolve>) -> Self {
        let config = config(text);
        let forwarder = Forwarder::resolving(&config.forward, resolve);
        Self::of(config, forwarder)
    }

    fn of(config: Config, forwarder: Forwarder) -> Self {
        let clock = Clock::of_runtime();
        let gate = Gate::new(&config.admit, clock);
        let coalescer = Coalescer::new(config.coalesce.clone(), clock);
        let tasks = Tasks::new(config.tasks, clock);
        let ChangeResult {
            value: callers,
            buckets,
        } = Callers::start(&config.callers, None).expect("there is room for them");
        app::follow(&gate, &callers, buckets);
        let seen = Seen::new(callers.clone(), clock);
        let pipeline = Pipeline {
            classifier: Arc::new(Live::new(Classifier::new(&config.classify))),
            callers: callers.clone(),
            coalescer: coalescer.clone(),
            tasks: tasks.clone(),
            gate: gate.clone(),
            forwarder,
            observer: Arc::new(seen.clone()),
            clock,
            wakers: TaskWakers::default(),
        };
        let connections = Connections::new(config.listen.max_connections);
        let stop = CancellationToken::new();
        let timer = gate.clone();
        tokio::spawn(
            stop.clone()
                .run_until_cancelled_owned(async move { timer.keep_time().await }),
        );
        let closing = Stop::default();
        let conversation = Arc::new(Conversation {
            serve: pipeline.clone(),
            settings: config.protocol,
            clock,
            stop: closing.clone(),
            streams: StreamDrain::default(),
            wakers: pipeline.wakers.clone(),
        });
        let listeners = config.listen.listeners.into_iter().map(Arc::new);
        let binds: Vec<_> = listeners
            .map(|listener| {
                let socket = listen::bind(&listener, &InheritedSockets::default())
                    .expect("nothing is in the way");
                let bind = socket.address().clone();
                let connections = Arc::clone(&connections);
                let conversation = Arc::clone(&conversation);
                serve(socket, listener, connections, conversation, stop.clone());
                // For a path this is not used.
                bind.tcp().unwrap_or(([0; 4], 0).into())
            })
            .collect();
        Self {
            addr: binds[0],
            addrs: binds,
            callers,
            gate,
            coalescer,
            tasks,
            seen,
            clock,
            connections,
            pipeline,
            closing,
            _stop: stop.drop_guard(),
        }
    }

    /// Sends bytes and reads the answer until EOF.
    pub(crate) async fn ask(&self, bytes: impl AsRef<[u8]>) -> String {
        ask(self.addr, bytes).await
    }

    /// Takes the backends of another config, as a reload does.
    pub(crate) fn move_backends(&self, text: &str) {
        let moved = self.pipeline.forwarder.apply(&config(text).forward);
        for (destination, server, generation) in moved {
            self.gate.moved(destination, server, generation);
        }
    }

    /// Waits until the gate has admitted N calls and M wait.
    pub(crate) async fn busy(&self, in_flight: usize, waiting: usize) {
        until(
            || self.gate.busy() == (in_flight, waiting),
            || format!("{:?}, not {:?}", self.gate.busy(), (in_flight, waiting)),
        )
        .await;
    }

    /// Waits until N clients wait for shared calls.
    pub(crate) async fn sharing(&self, waiting: usize) {
        let now = || self.coalescer.snapshot().waiting;
        until(
            || now() == waiting,
            || format!("{} share, not {waiting}", now()),
        )
        .await;
    }

    /// Waits until no token is drawn and no call waits.
    pub(crate) async fn at_rest(&self) {
        self.busy(0, 0).await;
    }
}

/// Serves the connections of a listener until it is stopped.
pub(crate) fn serve<S: Serve>(
    socket: listen::Bound,
    listener: Arc<Listener>,
    connections: Arc<Connections>,
    conversation: Arc<Conversation<S>>,
    stop: CancellationToken,
) {
    let handle = move |stream, peer, connection| {
        let now = conversation.clock.now();
        let accepted = AcceptedConnection::new(stream, peer, Arc::clone(&listener), now);
        let conversation = Arc::clone(&conversation);
        tokio::spawn(protocol::converse(accepted, conversation, connection));
    };
    tokio::spawn(listen::accept(
        socket,
        connections,
        stop.into(),
        || std::future::ready(()),
        |error| panic!("accept failed: {error}"),
        handle,
    ));
}

/// A stand-in backend that answers after this time, with at least this many bytes.
pub(crate) async fn replying(delay: Duration, reply_bytes: usize) -> RunningBackend {
    let options = StandInOptions {
        delay,
        reply_bytes,
        ..StandInOptions::on_free_ports()
    };
    StandInBackend::start(options).await.expect("free ports")
}

/// The origin of a TCP call without identity headers.
pub(crate) fn identity(listener: &str, peer: impl Into<SocketAddr>) -> Arc<Identity> {
    let peer = Peer::Tcp(peer.into());
    Arc::new(Identity::without_names(listener.into(), peer))
}

/// A call that meets limits, without a known caller, a charge or a class of its own.
pub(crate) fn asking(function: &str, destination: Destination, arrived: Timestamp) -> Ask {
    Ask {
        function: function.into(),
        destination,
        server: tidegate_limits::call::ServerChoice::ANY,
        limited: true,
        arrived,
        waits: Waits::Client,
        claimed: Claimed {
            caller: Caller::ANONYMOUS,
            weight: Weight::ONE,
            cost: tidegate_limits::call::Cost::ONE,
            tokens: Tokens::ONE,
            bucket: None,
            quotas: None,
            settling: None,
            is_settled: false,
            deadline: ClaimDeadline::Ordinary,
        },
        class: "none".into(),
        role: Role::Apart,
        target: None,
        foreign: None,
        place: None,
    }
}

/// The permit, after any wait.
pub(crate) async fn admitted(asked: Admission) -> Result<Permit, Refusal> {
    match asked {
        Admission::Decided(answer) => answer,
        Admission::Queued(waiting) => waiting.await,
    }
}

/// A window of 30 calls a second, as the admin address shows it.
pub(crate) fn window(name: &str, used: u64, opens: Opens) -> LimitState {
    LimitState {
        name: name.into(),
        scope: if name == "total" { "all" } else { name }.into(),
        kind: LimitKind::Window,
        window_seconds: Some(1.0),
        configured: 30,
        used,
        rate: None,
        ratio: None,
        pace: None,
        opens,
        in_force: 9,
        shared: None,
        observes: false,
    }
}

/// The outstanding limit of 10 calls, as the admin address shows it.
pub(crate) fn outstanding(used: u64, opens: Opens) -> LimitState {
    LimitState {
        kind: LimitKind::Outstanding,
        scope: "all".into(),
        window_seconds: None,
        configured: 10,
        ..window("outstanding", used, opens)
    }
}

/// Yields until a condition holds, for conditions without an event.
pub(crate) async fn until(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("never came about: {}", what());
    }
}

/// Lets every task of this runtime do what it can: bytes that were sent are read and acted on. The runtime has one
/// thread; while it rests, the kernel delivers what was sent.
pub(crate) async fn settle() {
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Lets time pass at once for every task of this runtime, which must have one thread.
pub(crate) async fn pass(time: Duration) {
    settle().await;
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
    settle().await;
}

/// Waits until the program at the other end has accepted this connection.
pub(crate) async fn until_accepted(stream: &TcpStream) {
    let is_accepted = || other_end(stream).is_some();
    until(is_accepted, || format!("{stream:?} is not accepted")).await;
}

/// Waits until the program at the other end has read all that was sent over this connection.
pub(crate) async fn until_read(stream: &TcpStream) {
    let is_read = || other_end(stream) == Some(0);
    until(is_read, || format!("{stream:?} is not read")).await;
}

/// Bytes that the other end of a connection has still to read, by the kernel's table. None until it is accepted.
fn other_end(stream: &TcpStream) -> Option<u64> {
    let shown = |address: std::io::Result<SocketAddr>| match address.expect("it is connected") {
        SocketAddr::V4(it) => {
            let ip = u32::from_ne_bytes(it.ip().octets());
            format!("{ip:08X}:{:04X}", it.port())
        }
        SocketAddr::V6(it) => panic!("{it} is in another table"),
    };
    let ends = format!(
        " {} {} ",
        shown(stream.peer_addr()),
        shown(stream.local_addr())
    );
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let words: Vec<&str> = table
        .lines()
        .find(|line| line.contains(&ends))?
        .split_whitespace()
        .collect();
    // A connection has an inode once it is accepted.
    let is_accepted = words[9] != "0";
    let (_, unread) = words[4].split_once(':').expect("two queues");
    is_accepted.then(|| u64::from_str_radix(unread, 16).expect("a number"))
}

/// A connection to the listener there, which sends every byte at once.
pub(crate) async fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).await.expect("a server listens");
    stream.set_nodelay(true).expect("a socket takes it");
    stream
}

/// A new connection, with these bytes sent over it.
pub(crate) async fn sending(addr: SocketAddr, bytes: impl AsRef<[u8]>) -> TcpStream {
    let mut stream = connect(addr).await;
    stream.write_all(bytes.as_ref()).await.expect("it reads");
    stream
}

/// Sends bytes over a new connection and reads the answer until EOF.
pub(crate) async fn ask(addr: SocketAddr, bytes: impl AsRef<[u8]>) -> String {
    read_all(&mut sending(addr, bytes).await).await
}

/// Sends bytes over a new connection, which is closed without an answer.
pub(crate) async fn is_rejected(addr: SocketAddr, bytes: impl AsRef<[u8]>) {
    let mut stream = connect(addr).await;
    // Closed with bytes unread is closed with a reset, which may come before all is written.
    let _ = stream.write_all(bytes.as_ref()).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("it is closed");
    assert_eq!(answer, b"", "{}", String::from_utf8_lossy(&answer));
}

/// Reads until EOF.
pub(crate) async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("the answer ends")
        .expect("no reset");
    String::from_utf8(answer).expect("ASCII")
}

/// Reads until some text has come in, and returns all that came.
pub(crate) async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = Vec::new();
    let reading = async {
        let mut chunk = [0; 4096];
        while !String::from_utf8_lossy(&text).contains(end) {
            match stream.read(&mut chunk).await.expect("no reset") {
                0 => break,
                read => text.extend_from_slice(&chunk[..read]),
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading)
        .await
        .expect("the text comes");
    String::from_utf8(text).expect("ASCII")
}

/// The threads of a process that serve calls beside the one that accepts. None once it has ended.
pub(crate) fn call_threads(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("calls-")).count()
}

/// Closes with a reset.
pub(crate) fn reset(stream: TcpStream) {
    stream.set_zero_linger().expect("a socket takes it");
    drop(stream);
}

/// The fields of a refusal or an answer.
pub(crate) fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

/// The answer of the admin address.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Reads a whole one.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").expect("a whole head");
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        Self {
            status: status.expect("a status"),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    /// The value of a header, whose name may be written in any case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers(name).first().copied()
    }

    /// Every value of a header.
    pub(crate) fn headers(&self, name: &str) -> Vec<&str> {
        let values = self.head.lines().filter_map(|line| {
            let (header, value) = line.split_once(": ")?;
            header.eq_ignore_ascii_case(name).then_some(value)
        });
        values.collect()
    }

    /// Asserts that it has this header, `name: value`.
    #[track_caller]
    pub(crate) fn has(&self, header: &str) -> &Self {
        let (name, value) = header.split_once(": ").expect("name: value");
        assert_eq!(self.header(name), Some(value), "{self:?}");
        self
    }

    /// Asserts its status, and that no cache may keep it.
    #[track_caller]
    pub(crate) fn is(&self, status: u16) -> &Self {
        assert_eq!(self.status, status, "{self:?}");
        // No cache keeps a state. A file with a tag is asked for again each time.
        let kept = self.header("etag").map_or("no-store", |_| "no-cache");
        self.has(&format!("cache-control: {kept}"))
    }

    /// Asserts that it is an error, in the one form that errors have.
    #[track_caller]
    pub(crate) fn error(&self, status: u16) {
        let body = self.is(status).json();
        let message = body["error"].as_str().expect("a message");
        assert!(!message.is_empty());
    }

    /// The body, which must be JSON and named as such.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        let kind = self.header("content-type");
        assert_eq!(kind, Some("application/json"), "{self:?}");
        json(&self.body)
    }
}

/// A backend that does with each connection what a test says. Ends when dropped.
pub(crate) struct Scripted {
    pub(crate) addr: SocketAddr,
    _stop: DropGuard,
}

impl Scripted {
    pub(crate) async fn start<F>(script: impl Fn(usize, TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start_at(([127, 0, 0, 1], 0).into(), script).await
    }

    /// A backend that listens at this address.
    pub(crate) async fn start_at<F>(
        addr: SocketAddr,
        script: impl Fn(usize, TcpStream) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(addr).await.expect("a free port");
        let addr = listener.local_addr().expect("it is bound");
        let stop = CancellationToken::new();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            for number in 0.. {
                let (stream, _) = listener.accept().await.expect("it listens");
                tokio::spawn(script(number, stream));
            }
        }));
        Self {
            addr,
            _stop: stop.drop_guard(),
        }
    }
}

impl Scripted {
    /// A backend that answers each call at once, in the dialect it was asked in.
    pub(crate) async fn in_both_dialects() -> Self {
        Self::start(|_, mut stream| async move {
            let mut request = [0; 4096];
            while stream.read(&mut request).await.unwrap_or(0) > 0 {
                if request.starts_with(b"[") {
                    stream.write_all(OK).await.expect("it is read");
                    return;
                }
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", OK.len());
                let answer = [head.as_bytes(), OK].concat();
                stream.write_all(&answer).await.expect("it is read");
            }
        })
        .await
    }
}

/// A config of one listener, `test`, with these lines in its section, these lines in `[backend]`,
/// and these sections after it.
pub(crate) fn listens(listener: &str, backend: &str, sections: &str) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        {listener}
        [backend]
        {backend}
        {sections}
        "#
    )
}

/// The lines in `[backend]` for a backend that speaks both protocols.
pub(crate) fn both(socket: impl Display, http: impl Display) -> String {
    format!(
        r#"
        kind = "zvm"
        socket = "{socket}"
        http = "http://{http}"
        "#
    )
}

/// A config of one listener before a backend that speaks everything, with limits that are not
/// reached.
pub(crate) fn one_listener(backend: SocketAddr, listener: &str, sections: &str) -> String {
    let backend = format!("{}\ntcp = \"{backend}\"", both(backend, backend));
    within_limits(&backend, listener, sections)
}

/// A config of one listener with these lines in `[backend]`, and limits that are not reached.
pub(crate) fn within_limits(backend: &str, listener: &str, sections: &str) -> String {
    let sections = format!(
        r#"
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:10000"
        [admin]
        bind = "127.0.0.1:0"
        {sections}
        "#
    );
    listens(listener, backend, &sections)
}

/// A config of one listener whose calls wait in turn, with these lines in `[backend]` and these
/// sections after it.
pub(crate) fn in_turn(backend: &str, sections: &str) -> String {
    let sections = format!(
        r#"
        [queue]
        postpone = "in_turn"
        {sections}
        [limits]
        per_window = "total:10000"
        max_wait = "30s"
        "#
    );
    listens("", &format!("kind = \"zvm\"\n{backend}"), &sections)
}

/// A good answer of the sdkserver.
pub(crate) const OK: &[u8] = b"{\"overallRC\": 0, \"modID\": null, \"rc\": 0, \"rs\": 0, \"errmsg\": \"\", \"output\": \"\"}";

/// A backend that reports each request and answers on command.
pub(crate) struct Held {
    pub(crate) backend: Scripted,
    pub(crate) got: mpsc::UnboundedReceiver<String>,
    pub(crate) go: Arc<Notify>,
    done: Arc<AtomicUsize>,
}

impl Held {
    pub(crate) async fn start(answer: &'static [u8]) -> Self {
        let (tell, got) = mpsc::unbounded_channel();
        let go = Arc::new(Notify::new());
        let done = Arc::new(AtomicUsize::new(0));
        let (wait, count) = (Arc::clone(&go), Arc::clone(&done));
        let backend = Scripted::start(move |_, mut stream| {
            let (tell, wait, count) = (tell.clone(), Arc::clone(&wait), Arc::clone(&count));
            async move {
                let mut request = vec![0; 4096];
                loop {
                    let read = stream.read(&mut request).await.unwrap_or(0);
                    if read == 0 {
                        return;
                    }
                    let text = String::from_utf8_lossy(&request[..read]).into_owned();
                    let is_http = text.contains("HTTP/1.1");
                    tell.send(text).expect("the test listens");
                    wait.notified().await;
                    // A task reads it to the end, with or without the client.
                    stream.write_all(answer).await.expect("it is read");
                    count.fetch_add(1, Ordering::SeqCst);
                    if !is_http {
                        return;
                    }
                }
            }
        })
        .await;
        Self {
            backend,
            got,
            go,
            done,
        }
    }

    /// Answers call after call until something has come about.
    pub(crate) async fn answer_until<T>(&self, comes_about: impl Future<Output = T>) -> T {
        let answering = async {
            loop {
                self.go.notify_one();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            biased;
            outcome = comes_about => outcome,
            () = answering => unreachable!("it goes on for ever"),
        }
    }

    /// The next request that comes in.
    pub(crate) async fn next(&mut self) -> String {
        tokio::time::timeout(PATIENCE, self.got.recv())
            .await
            .expect("a call comes")
            .expect("the backend lives in self")
    }

    pub(crate) fn done(&self) -> usize {
        self.done.load(Ordering::SeqCst)
    }
}

/// A port without a listener.
pub(crate) fn closed_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], crate::stores::free_port()))
}

/// An array of the socket protocol.
pub(crate) fn array(function: &str, userid: &str) -> String {
    format!(r#"["{function}", ["{userid}"], {{}}]"#)
}

/// The most events within any half-open span of a length, by brute force.
pub(crate) fn densest(times: &[Duration], span: Duration) -> usize {
    times
        .iter()
        .map(|&from| {
            times
                .iter()
                .filter(|&&at| at >= from && at < from + span)
                .count()
        })
        .max()
        .unwrap_or(0)
}

/// Fails if promtool has something to say about these metrics.
pub(crate) fn promtool_is_content(text: &str) {
    let spawned = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match spawned {
        Ok(promtool) => promtool,
        Err(error) if std::env::var_os("CI").is_none() => {
            eprintln!(
                "SKIPPED, NOTHING CHECKED: promtool does not run ({error}); `make test` installs it"
            );
            return;
        }
        Err(error) => panic!("promtool does not run: {error}"),
    };
    let mut stdin = promtool.stdin.take().expect("piped");
    std::io::Write::write_all(&mut stdin, text.as_bytes()).expect("promtool reads");
    drop(stdin);
    let said = promtool.wait_with_output().expect("promtool ends");
    let words = [said.stdout, said.stderr].concat();
    let words = String::from_utf8_lossy(&words);
    assert!(said.status.success() && words.is_empty(), "{words}\n{text}");
}
