//! Bytes to one whole request, and the reply back in the client's own dialect.
//!
//! A connection that has sent nothing holds no buffer and no parser: those come with the
//! first byte, which also tells the two protocols apart where one port speaks both.

#[cfg(feature = "tls")]
pub mod certificate;
pub mod dialect;
pub mod forwarded;
pub mod forwarded_options;
mod http;
mod io;
pub mod metrics;
mod preamble;
pub mod proxy_header;
mod socket;
mod stop;
mod stream;
mod streams;
mod tcp;
#[cfg_attr(not(feature = "tls"), path = "protocol/without_tls.rs")]
mod tls;
pub mod trusted;
mod tunnel;
mod wire;
mod yield_once;

use std::future::poll_fn;
use std::mem;
use std::net::TcpStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_runtime::{Clock, Timer};
use tokio::time::sleep;

use self::forwarded_options::ForwardedSettings;
pub use self::http::{answer, json, refused_with};
use self::io::Client;
pub use self::stop::Stop;
pub use self::streams::StreamDrain;
use self::trusted::TrustedProxies;
use crate::call::{
    BackendKind, Dialect, Identity, Listener, Origin, Peer, Protocol, Serve, TaskWakers,
};
use crate::options::kind::{DAY, GIB, HOUR, KIB, MIB, MS, SECOND, duration, integer, size};
use crate::options::options;

/// When the proxy goes down, a connection that has sent nothing yet is given this long: its
/// first request may be on its way.
const LAST_REQUEST: Duration = Duration::from_millis(100);

options! {
    /// Connections and requests of clients.
    pub struct ClientSection => ClientSettings + {
        /// The proxies that are trusted to name their clients.
        trusted_proxies: TrustedProxies,
        /// The kind of the backend: only a z/VM SDK server takes the socket protocol's array over HTTP.
        backend_kind: BackendKind,
        /// Rules for the fields that name a client to the service.
        forwarded: ForwardedSettings,
    } {
        /// How long a PROXY header, and then a TLS handshake, may take. Raise it for clients far away.
        handshake_timeout: Duration = duration(MS..=HOUR).or(5 * SECOND);

        /// How long it may take from accept to the first byte, then to the end of a request's head, then
        /// for the part of its body that is read before the call queues (up to buffer_bytes). The clock
        /// of the queue starts after that. Raise it for clients on slow lines. A slow client holds a
        /// connection, never a worker.
        request_timeout: Duration = duration(MS..=HOUR).or(30 * SECOND);

        /// How long a keep-alive connection may be idle between two requests. Set it above that of a
        /// load balancer in front, so that the balancer closes first.
        idle_timeout: Duration = duration(MS..=DAY).or(75 * SECOND);

        /// How long a tunnel (a connection with protocol = "tcp", or a WebSocket) may move no byte in either
        /// direction. After that it is reset on both sides, and its slot is free again. Raise it if clients
        /// keep quiet connections for longer. Peers that died are found within about two minutes in any case.
        tunnel_idle_timeout: Duration = duration(MS..=DAY).or(HOUR);

        /// How long a client may take nothing of its reply before it is disconnected.
        write_timeout: Duration = duration(MS..=HOUR).or(30 * SECOND);

        /// How long a request body that is streamed (larger than buffer_bytes) may take in all. Raise it
        /// for large uploads over slow lines.
        body_timeout: Duration = duration(MS..=DAY).or(600 * SECOND);

        /// The least bytes a second of such a body. A slower one is given up, because it holds a slot of
        /// the backend while it comes. With 0B only body_timeout applies.
        body_min_rate: u32 = size(0..=GIB).or(1024);

        /// Largest request of the socket protocol. The real sdkserver reads 4,096 bytes and not one
        /// more; raise it only for another backend.
        max_request_bytes: usize = size(64..=16 * MIB).or(4096);

        /// Largest HTTP body that is held in memory while its call waits. Multiplied by queue.capacity,
        /// it bounds the bodies in a full queue. A call with a larger body asks for a slot when this
        /// much of it is here; the rest is streamed.
        buffer_bytes: usize = size(KIB..=16 * MIB).or(64 << 10);

        /// Most header fields of an HTTP request. A request with more is refused with 431. Each field
        /// takes 64 bytes while a head is read.
        max_request_fields: usize = integer(16..=1024).of("fields").or(128);
    }
}

/// A connection that has just been accepted.
pub struct AcceptedConnection {
    client: Client,
    /// Bytes that were read from the connection.
    first: Vec<u8>,
    peer: Peer,
    listener: Arc<Listener>,
    at: Timestamp,
}

impl AcceptedConnection {
    /// A connection, non-blocking, with who is at its other end, where it came in and when.
    #[must_use]
    pub fn new(stream: TcpStream, peer: Peer, listener: Arc<Listener>, at: Timestamp) -> Self {
        Self {
            client: Client::new(stream),
            first: Vec::new(),
            peer,
            listener,
            at,
        }
    }

    /// Whether it is one call of the socket protocol, which is over soon; `None` if that is not known yet. Reads what
    /// is here.
    pub fn is_one_call(&mut self) -> Option<bool> {
        match self.listener.protocol {
            Protocol::Socket => Some(true),
            Protocol::Auto if !self.listener.has_preamble() => {
                // An end or an error shows again at the next read.
                let _ = self.client.read_at_once(&mut self.first);
                let first = *self.first.first()?;
                Some(self.listener.protocol.dialect(first) == Dialect::Socket)
            }
            Protocol::Auto | Protocol::Http | Protocol::Tcp => Some(false),
        }
    }
}

/// Where a connection came in, and when: at its accept, or when its first bytes came.
struct ConnectionOrigin {
    origin: Origin,
    listener: Arc<Listener>,
}

/// A connection before its first request.
struct PendingConnection {
    client: Client,
    peer: Peer,
    /// Set if something came before the request.
    identity: Option<Arc<Identity>>,
    listener: Arc<Listener>,
    at: Timestamp,
}

impl PendingConnection {
    /// Where its requests come from. Made only once there is one: silent connections are many.
    fn into_origin(self, arrived: Timestamp) -> (Client, ConnectionOrigin) {
        let of_connection = || Arc::new(Identity::of_connection(&self.listener, self.peer));
        let identity = self.identity.unwrap_or_else(of_connection);
        let from = ConnectionOrigin {
            origin: Origin { identity, arrived },
            listener: self.listener,
        };
        (self.client, from)
    }
}

/// Context that all connections share.
#[derive(Clone)]
pub struct Conversation<S> {
    /// Answers the requests.
    pub serve: S,
    /// The settings that these connections began with.
    pub settings: ClientSettings,
    /// Tells the time.
    pub clock: Clock,
    /// Set when the proxy goes down: finish what is under way, begin nothing.
    pub stop: Stop,
    /// Ends what has no end of its own, when the proxy goes down.
    pub streams: StreamDrain,
    /// Wakes connections when their calls are given up.
    pub wakers: TaskWakers,
}

/// Serves one connection to its end, and then drops what is held for it.
pub fn converse<S: Serve, H: Send + Unpin>(
    accepted: AcceptedConnection,
    conversation: Arc<Conversation<S>>,
    held: H,
) -> impl Future<Output = ()> + Send {
    let wakers = conversation.wakers.clone();
    wakers.watch(ConnectionTask {
        state: ConnectionState::Accepted(accepted, conversation),
        _held: held,
    })
}

/// A connection. It has room for its present part only, because 10,000 of them may be silent, idle or waiting.
struct ConnectionTask<S, H> {
    state: ConnectionState<S>,
    _held: H,
}

enum ConnectionState<S> {
    Accepted(AcceptedConnection, Arc<Conversation<S>>),
    Running(ConnectionPhase),
}

/// The present part of a connection.
enum ConnectionPhase {
    /// A part that names the next phase at its end.
    Interim(Pin<Box<dyn Future<Output = Self> + Send>>),
    /// The last part.
    Final(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// No part is left.
    Ended,
}

impl<S: Serve, H: Unpin> Future for ConnectionTask<S, H> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let phase = match &mut self.state {
                ConnectionState::Running(ConnectionPhase::Interim(part)) => {
                    ready!(part.as_mut().poll(cx))
                }
                ConnectionState::Running(ConnectionPhase::Final(part)) => {
                    ready!(part.as_mut().poll(cx));
                    ConnectionPhase::Ended
                }
                ConnectionState::Running(ConnectionPhase::Ended) => return Poll::Ready(()),
                ConnectionState::Accepted(..) => match mem::replace(
                    &mut self.state,
                    ConnectionState::Running(ConnectionPhase::Ended),
                ) {
                    ConnectionState::Accepted(accepted, conversation) => {
                        begin(accepted, conversation)
                    }
                    ConnectionState::Running(phase) => phase,
                },
            };
            self.state = ConnectionState::Running(phase);
        }
    }
}

fn begin<S: Serve>(
    accepted: AcceptedConnection,
    conversation: Arc<Conversation<S>>,
) -> ConnectionPhase {
    let (first, at) = (accepted.first, accepted.at);
    let pending = PendingConnection {
        client: accepted.client,
        peer: accepted.peer,
        identity: None,
        listener: accepted.listener,
        at,
    };
    if !first.is_empty() {
        return dispatch(pending, at, first, conversation);
    }
    if pending.listener.has_preamble() {
        return ConnectionPhase::Interim(Box::pin(read_preamble(pending, conversation)));
    }
    read_first_bytes(pending, conversation)
}

/// Reads what comes before the first request.
async fn read_preamble<S: Serve>(
    pending: PendingConnection,
    conversation: Arc<Conversation<S>>,
) -> ConnectionPhase {
    let mut identity = Identity::of_connection(&pending.listener, pending.peer);
    let settings = &conversation.settings;
    let reading = preamble::read(pending.client, &pending.listener, &mut identity, settings);
    let ended = tokio::select! {
        biased;
        past = reading => match past {
            Ok(client) => {
                let identity = Some(Arc::new(identity));
                return read_first_bytes(PendingConnection { client, identity, ..pending }, conversation);
            }
            Err(ended) => ended,
        },
        () = stopped(&conversation.stop) => return ConnectionPhase::Ended,
    };
    if let Some(rejection) = ended {
        conversation.serve.rejected(&identity, rejection);
    }
    ConnectionPhase::Ended
}

/// Ends when the proxy goes down, and what may have been on its way has had its time.
async fn stopped(stop: &Stop) {
    stop.wait().await;
    sleep(LAST_REQUEST).await;
}

/// Reads the first bytes of a connection, or waits for them.
fn read_first_bytes<S: Serve>(
    mut pending: PendingConnection,
    conversation: Arc<Conversation<S>>,
) -> ConnectionPhase {
    let at = pending.at;
    if pending.listener.protocol == Protocol::Tcp {
        let (client, from) = pending.into_origin(at);
        return ConnectionPhase::Final(Box::pin(tcp::serve(client, from, conversation)));
    }
    let mut first = Vec::new();
    match pending.client.read_at_once(&mut first) {
        Some(Ok(1..)) => dispatch(pending, at, first, conversation),
        // Closed or reset before the first byte: nothing to answer.
        Some(_) => ConnectionPhase::Ended,
        None => ConnectionPhase::Interim(Box::pin(wait_for_first(pending, conversation))),
    }
}

/// Waits for a client to begin.
fn wait_for_first<S: Serve>(
    mut pending: PendingConnection,
    conversation: Arc<Conversation<S>>,
) -> impl Future<Output = ConnectionPhase> + Send {
    // A header or a handshake before this had its own time.
    let mut due = conversation.clock.now() + conversation.settings.request_timeout;
    let mut timer = Timer::default();
    let mut is_stopping = false;
    async move {
        let mut stop = pin!(conversation.stop.wait());
        let first = poll_fn(|cx| {
            let mut first = Vec::new();
            if let Poll::Ready(read) = pending.client.poll_some(cx, &mut first) {
                return Poll::Ready(read.map(|_| first));
            }
            if !is_stopping && stop.as_mut().poll(cx).is_ready() {
                is_stopping = true;
                due = due.min(conversation.clock.now() + LAST_REQUEST);
            }
            let due = conversation.clock.instant(due);
            timer.poll_until(due, cx).map(|()| Ok(first))
        })
        .await;
        match first {
            Ok(first) if !first.is_empty() => {
                // What a client does before its request is here is its own time.
                let came = conversation.clock.now();
                dispatch(pending, came, first, Arc::clone(&conversation))
            }
            // Silent for too long, closed or reset.
            _ => ConnectionPhase::Ended,
        }
    }
}

/// Serves what begins with these bytes.
fn dispatch<S: Serve>(
    pending: PendingConnection,
    came: Timestamp,
    first: Vec<u8>,
    conversation: Arc<Conversation<S>>,
) -> ConnectionPhase {
    let (client, from) = pending.into_origin(came);
    match from.listener.protocol.dialect(first[0]) {
        Dialect::Http => http::serve(client, from, conversation, first),
        Dialect::Socket => {
            ConnectionPhase::Final(Box::pin(socket::serve(client, from, conversation, first)))
        }
        // Served without waiting for a byte.
        Dialect::Tcp => ConnectionPhase::Ended,
    }
}
