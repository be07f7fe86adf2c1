//! Sessions one after the other, each over one connection after the other.
//!
//! A task owns all of it. It sends the calls in order, and ZooKeeper answers in that order; so the
//! oldest call that waits for its answer shows by its deadline whether the server still answers.
//! A lost connection is replaced at the next server, and the session goes on, if the servers still
//! know it. The task ends with the last client, and ends the session.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom as _;
use tokio::io::{AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_stream::StreamExt as _;
use tokio_util::codec::FramedRead;
use tokio_util::codec::length_delimited::{LengthDelimitedCodec, LengthDelimitedCodecError};
use tracing::debug;

use super::ZooKeeperSettings;
use super::servers::{Server, ServerAddresses};
use super::watches::{NodeWatch, Removals, Watches};
use super::wire::{ANY_WATCH, AUTH, Code, Op, PING, Reader, WATCH, WireFields};
use crate::{BackOff, ByteStream};

/// Calls that wait for a connection, and as many again that wait for a place among these.
pub(super) const WAITING_MAX: usize = 1024;
/// Calls that wait for an answer. A server reads no more than this of all its clients.
const SENT_MAX: usize = 1000;
/// The largest answer. ZooKeeper's own limit of a value is 1 MiB, but it lists any number of children.
const ANSWER_MAX: usize = 32 << 20;
/// The first and the longest pause after no server could be reached. Meanwhile calls fail at once.
const BREAK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long the end of a session may take to be sent.
const FAREWELL: Duration = Duration::from_secs(1);
/// After this part of the session's timeout without a request the server is asked whether it lives;
/// after twice that without a word it is left.
const PING_SHARE: u32 = 3;

/// A request, and where its reply goes.
pub(super) struct PendingCall {
    pub(super) op: Op,
    pub(super) fields: WireFields,
    /// The watch that it sets.
    pub(super) watch: Option<NodeWatch>,
    /// The path at which its caller waits no more: all that it is for.
    pub(super) leaves: Option<String>,
    /// Not sent after this. A server that has not answered by then is left.
    pub(super) deadline: Instant,
    pub(super) answer: oneshot::Sender<Result<CallReply, SessionFailure>>,
}

/// The fields of an answer.
pub(super) struct CallReply {
    /// The newest transaction that the server knew.
    pub(super) zxid: i64,
    pub(super) fields: Vec<u8>,
}

/// Why a call has no reply.
#[derive(Clone, Debug)]
pub(super) enum SessionFailure {
    /// ZooKeeper says so.
    Said(Code),
    /// The request was not sent.
    Unsent(FailureReason),
    /// The request was sent, and may have been done.
    Unanswered(FailureReason),
    /// The answer is none of ZooKeeper's.
    Garbage(FailureReason),
}

/// A failure at a server, with its cause.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FailureReason(Arc<str>);

impl FailureReason {
    pub(super) fn new(text: impl std::fmt::Display) -> Self {
        Self(text.to_string().into())
    }
}

/// A session as the servers have it.
#[derive(Default)]
struct ZooKeeperSession {
    /// 0: none yet.
    id: i64,
    password: Vec<u8>,
    timeout: Duration,
    /// The newest transaction that was seen. A server that is behind it refuses the session.
    zxid: i64,
}

/// Messages of a server.
type ServerMessages = FramedRead<ReadHalf<Box<dyn ByteStream>>, LengthDelimitedCodec>;

struct SessionConnection {
    server: Server,
    answers: ServerMessages,
    requests: OutgoingBytes,
    /// The number of the credentials that the connection shows.
    auth: u64,
}

/// Bytes on their way to a server.
struct OutgoingBytes {
    to: WriteHalf<Box<dyn ByteStream>>,
    bytes: Vec<u8>,
    written: usize,
}

impl OutgoingBytes {
    /// Sends the rest. Nothing is lost or sent twice if this is dropped in between.
    async fn send(&mut self) -> io::Result<()> {
        while self.written < self.bytes.len() {
            match self.to.write(&self.bytes[self.written..]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => self.written += count,
            }
        }
        self.to.flush().await?;
        self.bytes.clear();
        self.written = 0;
        Ok(())
    }
}

/// Serves the calls until no client is left.
pub(super) async fn serve(
    settings: ZooKeeperSettings,
    mut servers: ServerAddresses,
    calls: mpsc::Receiver<PendingCall>,
) {
    servers.all.shuffle(&mut rand::rng());
    let task = SessionTask {
        settings,
        servers: servers.all,
        next: 0,
        session: ZooKeeperSession::default(),
        heard: Instant::now(),
        back_off: BackOff::doubling(BREAK.0, BREAK.1),
        calls,
        waiting: VecDeque::new(),
        removals: Removals::default(),
    };
    task.run().await;
}

struct SessionTask {
    settings: ZooKeeperSettings,
    servers: Vec<Server>,
    /// The server to try next.
    next: usize,
    session: ZooKeeperSession,
    /// When a server last said something in this session.
    heard: Instant,
    back_off: BackOff,
    calls: mpsc::Receiver<PendingCall>,
    /// Calls for the next connection.
    waiting: VecDeque<PendingCall>,
    removals: Removals,
}

impl SessionTask {
    async fn run(mut self) {
        loop {
            match self.connected().await {
                None => return,
                Some(Ok(connection)) => {
                    self.back_off.reset();
                    if self.serve_over(connection).await {
                        return;
                    }
                }
                Some(Err(failure)) => {
                    debug!(?failure, "zookeeper: no server could be reached");
                    for call in self.waiting.drain(..) {
                        let _ = call.answer.send(Err(failure.clone()));
                    }
                    if self.paused(&failure).await {
                        return;
                    }
                }
            }
        }
    }

    /// Fails every call during a pause. Whether no client is left.
    async fn paused(&mut self, failure: &SessionFailure) -> bool {
        let end = Instant::now() + self.back_off.pause_with_jitter(rand::random());
        loop {
            match timeout_at(end, self.calls.recv()).await {
                Err(_) => return false,
                Ok(None) => return true,
                Ok(Some(call)) => {
                    let _ = call.answer.send(Err(failure.clone()));
                }
            }
        }
    }

    /// A connection to the first server that takes one. Calls wait meanwhile, each until its deadline.
    /// `None` if no client is left.
    async fn connected(&mut self) -> Option<Result<SessionConnection, SessionFailure>> {
        if self.session.id != 0 && self.heard.elapsed() > self.session.timeout {
            debug!("zookeeper: the session has ended");
            self.session = ZooKeeperSession::default();
        }
        let mut connecting = pin!(connect_to_one(
            &self.settings,
            &self.servers,
            &mut self.next,
            &mut self.session,
        ));
        let waiting = &mut self.waiting;
        loop {
            let oldest = waiting.front().map(|call| call.deadline);
            tokio::select! {
                connected = &mut connecting => {
                    if connected.is_ok() {
                        self.heard = Instant::now();
                    }
                    return Some(connected);
                }
                call = self.calls.recv(), if waiting.len() < WAITING_MAX => waiting.push_back(call?),
                () = until(oldest) => {
                    if let Some(call) = waiting.pop_front() {
                        let _ = call.answer.send(Err(SessionFailure::Unsent(in_time())));
                    }
                }
            }
        }
    }

    /// Serves calls over a connection until it is lost. Whether no client is left.
    async fn serve_over(&mut self, connection: SessionConnection) -> bool {
        let SessionConnection {
            server,
            mut answers,
            mut requests,
            auth,
        } = connection;
        debug!(%server, session = self.session.id, "zookeeper: connected");
        let mut open = OpenRequests {
            number: 0,
            sent: VecDeque::new(),
            watches: Watches::default(),
            patience: self.settings.deadline,
            removals: self.removals,
        };
        for call in self.waiting.drain(..) {
            open.take(call, &mut requests.bytes);
        }
        let mut spoke = Instant::now();
        let silence = self.session.timeout / PING_SHARE;
        let lost = loop {
            let oldest = open.sent.front().map(|sent| sent.deadline);
            let mut timer = (self.heard + 2 * silence).min(spoke + silence);
            timer = oldest.map_or(timer, |oldest| timer.min(oldest));
            let has_requests = !requests.bytes.is_empty();
            tokio::select! {
                answer = answers.next() => {
                    self.heard = Instant::now();
                    let done = match answer {
                        None => Err(io::Error::other("the server closed the connection").into()),
                        Some(Err(error)) => Err(ConnectionFault::from(error)),
                        Some(Ok(message)) => open.answered(&message, &mut self.session, &mut requests.bytes),
                    };
                    if let Err(lost) = done {
                        break lost;
                    }
                }
                call = self.calls.recv(), if open.sent.len() < SENT_MAX => {
                    let Some(call) = call else {
                        let close = WireFields::default().request(open.next(), Op::Close);
                        requests.bytes.extend(close);
                        let _ = timeout(FAREWELL, close_session(&mut requests, &mut answers)).await;
                        return true;
                    };
                    if auth != self.settings.auth.number() && open.sent.is_empty() {
                        // Credentials are those of a connection. Nothing is under way.
                        self.waiting.push_back(call);
                        break ConnectionFault::No("the credentials were renewed".into());
                    }
                    open.take(call, &mut requests.bytes);
                }
                sent = requests.send(), if has_requests => {
                    spoke = Instant::now();
                    if let Err(error) = sent {
                        break error.into();
                    }
                }
                () = sleep_until(timer) => {
                    let now = Instant::now();
                    let is_late = oldest.is_some_and(|oldest| oldest <= now);
                    if is_late || self.heard + 2 * silence <= now {
                        break ConnectionFault::No(in_time().0);
                    }
                    if spoke + silence <= now {
                        spoke = now;
                        requests.bytes.extend(WireFields::default().request(PING, Op::Ping));
                    }
                }
            }
        };
        debug!(%server, ?lost, "zookeeper: the connection is lost");
        self.fail_sent(open, &lost.at(&server));
        false
    }

    /// Fails the requests that were not answered over a lost connection.
    fn fail_sent(&mut self, open: OpenRequests, failure: &SessionFailure) {
        self.removals = open.removals;
        let is_removal = |sent: &SentCall| sent.op == Op::RemoveWatches;
        if open.sent.iter().any(is_removal) {
            self.removals.lost();
        }
        for sent in open.sent {
            let _ = sent.answer.send(Err(failure.clone()));
        }
    }
}

/// Sends the end of the session, and waits until the server closes the connection behind its answer.
async fn close_session(requests: &mut OutgoingBytes, answers: &mut ServerMessages) {
    if requests.send().await.is_ok() {
        while let Some(Ok(_)) = answers.next().await {}
    }
}

/// Requests that were sent over a connection, and not answered.
struct OpenRequests {
    number: i32,
    sent: VecDeque<SentCall>,
    watches: Watches,
    /// How long the end of a watch may take.
    patience: Duration,
    removals: Removals,
}

struct SentCall {
    number: i32,
    op: Op,
    watch: Option<NodeWatch>,
    deadline: Instant,
    answer: oneshot::Sender<Result<CallReply, SessionFailure>>,
}

impl OpenRequests {
    /// Numbers go from 1 to the highest, and begin again.
    fn next(&mut self) -> i32 {
        self.number = self.number.checked_add(1).unwrap_or(1);
        self.number
    }

    /// Sends a call, unless it is too late or its caller is gone.
    fn take(&mut self, call: PendingCall, requests: &mut Vec<u8>) {
        let PendingCall {
            op,
            fields,
            watch,
            leaves,
            deadline,
            answer,
        } = call;
        if let Some(path) = leaves {
            if self.watches.leave(&path) {
                self.unwatch(&path, requests);
            }
            return;
        }
        if answer.is_closed() {
            return;
        }
        if deadline <= Instant::now() {
            let _ = answer.send(Err(SessionFailure::Unsent(in_time())));
            return;
        }
        let number = self.next();
        requests.extend(fields.request(number, op));
        self.sent.push_back(SentCall {
            number,
            op,
            watch,
            deadline,
            answer,
        });
    }

    /// Has the server forget its watches at a path where no caller waits, unless another one is about
    /// to.
    fn unwatch(&mut self, path: &str, requests: &mut Vec<u8>) {
        let mut others = self.sent.iter().filter_map(|sent| sent.watch.as_ref());
        if others.any(|watch| watch.path == path) || !self.removals.are_known() {
            return;
        }
        let number = self.next();
        let fields = WireFields::default().text(path).int(ANY_WATCH);
        requests.extend(fields.request(number, Op::RemoveWatches));
        self.sent.push_back(SentCall {
            number,
            op: Op::RemoveWatches,
            watch: None,
            deadline: Instant::now() + self.patience,
            // No caller waits for it.
            answer: oneshot::channel().0,
        });
    }

    /// Hands a message to the call or the watches that it is for.
    fn answered(
        &mut self,
        message: &[u8],
        session: &mut ZooKeeperSession,
        requests: &mut Vec<u8>,
    ) -> Result<(), ConnectionFault> {
        let mut fields = Reader(message);
        let header = (fields.int(), fields.long(), fields.int());
        let (Some(number), Some(zxid), Some(code)) = header else {
            return Err(ConnectionFault::garbage("an answer without a header"));
        };
        match number {
            WATCH => {
                let event = (fields.int(), fields.int(), fields.text());
                let (Some(_), Some(_), Some(path)) = event else {
                    return Err(ConnectionFault::garbage("an event without a path"));
                };
                self.watches.changed(path);
                return Ok(());
            }
            PING => return Ok(()),
            _ => {}
        }
        let Some(sent) = self.sent.pop_front().filter(|sent| sent.number == number) else {
            return Err(ConnectionFault::garbage("an answer to another request"));
        };
        session.zxid = session.zxid.max(zxid);
        let code = Code::of(code);
        let is_watched = match code {
            None => true,
            // The server watches for a node that is not there yet.
            Some(code) => code == Code::NO_NODE && sent.op == Op::Exists,
        };
        if sent.op == Op::RemoveWatches {
            self.removals.answered();
        }
        if let Some(watch) = sent.watch.filter(|_| is_watched) {
            for path in self.watches.add(watch) {
                self.unwatch(&path, requests);
            }
        }
        let reply = match code {
            Some(code) => Err(SessionFailure::Said(code)),
            None => Ok(CallReply {
                zxid,
                fields: fields.0.to_vec(),
            }),
        };
        let _ = sent.answer.send(reply);
        Ok(())
    }
}

/// Why a connection is of no use.
#[derive(Debug)]
enum ConnectionFault {
    /// The server is gone, or does not answer.
    No(Arc<str>),
    /// The server speaks another protocol.
    Garbage(Arc<str>),
    /// The server gave a reason.
    Said(Code),
}

impl ConnectionFault {
    fn garbage(what: &str) -> Self {
        Self::Garbage(what.into())
    }

    /// For the calls that were sent.
    fn at(self, server: &Server) -> SessionFailure {
        let trouble = |text: Arc<str>| FailureReason::new(format_args!("{server}: {text}"));
        match self {
            Self::No(text) => SessionFailure::Unanswered(trouble(text)),
            Self::Garbage(text) => SessionFailure::Garbage(trouble(text)),
            Self::Said(code) => SessionFailure::Said(code),
        }
    }
}

impl From<io::Error> for ConnectionFault {
    fn from(error: io::Error) -> Self {
        let is_foreign = error
            .get_ref()
            .is_some_and(|it| it.is::<LengthDelimitedCodecError>());
        match is_foreign {
            true => Self::garbage("an answer that is too long for ZooKeeper"),
            false => Self::No(error.to_string().into()),
        }
    }
}

fn in_time() -> FailureReason {
    FailureReason::new("no answer in time")
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => sleep_until(end).await,
        None => pending().await,
    }
}

/// Connects to the servers in turn until one takes the session, or gives a new one. Each has its part
/// of a call's time, so that one that hangs leaves some for the next.
async fn connect_to_one(
    settings: &ZooKeeperSettings,
    servers: &[Server],
    next: &mut usize,
    session: &mut ZooKeeperSession,
) -> Result<SessionConnection, SessionFailure> {
    let patience = (settings.session_timeout * 2 / 5).min(settings.deadline / 2);
    let mut failed = SessionFailure::Unsent(in_time());
    for _ in servers {
        let server = &servers[*next % servers.len()];
        *next = (*next + 1) % servers.len();
        let connecting = timeout(patience, connect(settings, server, session));
        let lost = match connecting.await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(lost)) => lost,
            Err(_) => ConnectionFault::No("no connection in time".into()),
        };
        failed = match lost.at(server) {
            // The handshake is no call.
            SessionFailure::Unanswered(trouble) => SessionFailure::Unsent(trouble),
            failure => failure,
        };
    }
    Err(failed)
}

async fn connect(
    settings: &ZooKeeperSettings,
    server: &Server,
    session: &mut ZooKeeperSession,
) -> Result<SessionConnection, ConnectionFault> {
    loop {
        let mut connection = open(settings, server).await?;
        if connection.begin(settings, session).await? {
            connection.show_credentials(settings).await?;
            return Ok(connection);
        }
        debug!(%server, "zookeeper: the session has expired");
        *session = ZooKeeperSession::default();
    }
}

async fn open(
    settings: &ZooKeeperSettings,
    server: &Server,
) -> Result<SessionConnection, ConnectionFault> {
    let stream = TcpStream::connect((&*server.host, server.port)).await?;
    // Small requests, each answered soon.
    let _ = stream.set_nodelay(true);
    let stream: Box<dyn ByteStream> = match &settings.tls {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.connect(&server.host, stream).await?),
    };
    let (from, to) = split(stream);
    let codec = LengthDelimitedCodec::builder()
        .max_frame_length(ANSWER_MAX)
        .new_codec();
    Ok(SessionConnection {
        server: server.clone(),
        answers: FramedRead::new(from, codec),
        requests: OutgoingBytes {
            to,
            bytes: Vec::new(),
            written: 0,
        },
        auth: settings.auth.number(),
    })
}

impl SessionConnection {
    /// Sends one message and reads one.
    async fn ask(&mut self, message: Vec<u8>) -> Result<Vec<u8>, ConnectionFault> {
        self.requests.bytes = message;
        self.requests.send().await?;
        match self.answers.next().await {
            Some(answer) => Ok(answer?.to_vec()),
            None => Err(io::Error::other(
                "the server closed the connection: it may be no member of a quorum, know of \
                 fewer writes than another one, or speak TLS there",
            )
            .into()),
        }
    }

    /// Goes on with a session, or begins one. Returns `false` if the session has ended.
    async fn begin(
        &mut self,
        settings: &ZooKeeperSettings,
        session: &mut ZooKeeperSession,
    ) -> Result<bool, ConnectionFault> {
        let asked = settings.session_timeout.as_millis();
        let message = WireFields::default()
            .int(0)
            .long(session.zxid)
            .int(i32::try_from(asked).unwrap_or(i32::MAX))
            .long(session.id)
            .bytes(&session.password)
            .flag(false)
            .message();
        let answer = self.ask(message).await?;
        let mut fields = Reader(&answer);
        let given = (fields.int(), fields.int(), fields.long(), fields.bytes());
        let (Some(_), Some(millis), Some(id), Some(password)) = given else {
            return Err(ConnectionFault::garbage("an answer that begins no session"));
        };
        let Some(millis) = u64::try_from(millis).ok().filter(|millis| *millis > 0) else {
            // A server that gives no session at all must not be asked for ever.
            return match session.id {
                0 => Err(ConnectionFault::No("the server gives no session".into())),
                _ => Ok(false),
            };
        };
        session.id = id;
        session.password = password.to_vec();
        session.timeout = Duration::from_millis(millis);
        Ok(true)
    }

    async fn show_credentials(
        &mut self,
        settings: &ZooKeeperSettings,
    ) -> Result<(), ConnectionFault> {
        let auth = settings.auth.get();
        let Some((scheme, credentials)) = &*auth else {
            return Ok(());
        };
        let fields = WireFields::default().int(0).text(scheme).bytes(credentials);
        let answer = self.ask(fields.request(AUTH, Op::Auth)).await?;
        let mut fields = Reader(&answer);
        match (fields.int(), fields.long(), fields.int()) {
            (Some(AUTH), Some(_), Some(code)) => match Code::of(code) {
                None => Ok(()),
                Some(code) => Err(ConnectionFault::Said(code)),
            },
            _ => Err(ConnectionFault::garbage("no answer to the credentials")),
        }
    }
}
