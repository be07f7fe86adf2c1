//! Bytes to one whole request, and the reply back in the client's own dialect.
//!
//! A connection that has sent nothing holds no buffer and no parser: those come with the
//! first byte, which also tells the two protocols apart where one port speaks both.

pub mod certificate;
pub mod dialect;
pub mod forwarded;
mod http;
mod io;
pub mod metrics;
mod preamble;
pub mod proxy_header;
mod socket;
mod stream;
mod tcp;
#[cfg_attr(not(feature = "tls"), path = "protocol/without_tls.rs")]
mod tls;
pub mod trusted;
mod tunnel;
mod wire;

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_runtime::Clock;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use self::http::{answer, json};
use self::io::Client;
use self::trusted::TrustedProxies;
use crate::call::{
    BackendKind, Dialect, HttpEngine, Identity, Listener, Origin, Peer, Protocol, Serve,
};
use crate::options::kind::{DAY, GIB, HOUR, KIB, MIB, MS, SECOND, choice, duration, integer, size};
use crate::options::options;

/// When the proxy goes down, a connection that has sent nothing yet is given this long: its
/// first request may be on its way.
const LAST_REQUEST: Duration = Duration::from_millis(100);

options! {
    /// Connections and requests of clients.
    pub struct ClientSection => Settings + {
        /// The proxies that are trusted to name their clients.
        trusted_proxies: TrustedProxies,
        /// What is behind: only a z/VM SDK server takes the socket protocol's array over HTTP.
        backend_kind: BackendKind,
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

        /// How long a connection with protocol = "tcp" may move no byte in either direction. After that
        /// it is reset on both sides, and its slot is free again. Raise it if clients keep quiet
        /// connections for longer. Peers that died are found within about two minutes in any case.
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

        /// What reads and writes HTTP: "fast", Tidegate's own code, which leaves every unusual request to hyper,
        /// or "hyper" for all of them. "fast" takes 55 to 85 % of the CPU. Set "hyper" if you suspect that "fast"
        /// treats a message wrongly, and report it.
        http_engine: HttpEngine = choice().or(HttpEngine::Fast);

        /// Most header fields of an HTTP request. A request with more is refused with 431. Each field
        /// takes 64 bytes while a head is read.
        max_request_fields: usize = integer(16..=1024).of("fields").or(128);
    }
}

/// A connection that has just been accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The connection, non-blocking.
    pub stream: TcpStream,
    /// Who is at the other end.
    pub peer: Peer,
    /// Where it came in.
    pub listener: Arc<Listener>,
    /// When it was accepted.
    pub at: Timestamp,
}

/// Where a connection came in; its clock began when it was accepted.
struct Whence {
    origin: Origin,
    listener: Arc<Listener>,
}

impl Whence {
    /// Where a request comes from. Made only once there is one: silent connections are many.
    fn new(
        known: Option<Arc<Identity>>,
        listener: Arc<Listener>,
        peer: Peer,
        arrived: Timestamp,
    ) -> Self {
        let identity = known.unwrap_or_else(|| Arc::new(Identity::of_connection(&listener, peer)));
        Self {
            origin: Origin { identity, arrived },
            listener,
        }
    }
}

/// What every connection needs to know; they share it.
#[derive(Clone)]
pub struct Conversation<S> {
    /// Answers the requests.
    pub serve: S,
    /// The settings that these connections began with.
    pub settings: Settings,
    /// Tells the time.
    pub clock: Clock,
    /// Set when the proxy goes down: finish what is under way, begin nothing.
    pub stop: CancellationToken,
    /// Set when that has taken too long: what has no end of its own is cut off.
    pub cut: CancellationToken,
}

/// Serves one connection to its end.
// Not an `async fn`, so that its being `Send` is settled here, for any `Serve`.
#[expect(clippy::manual_async_fn, reason = "the bound is the point")]
pub fn converse<S: Serve>(
    accepted: Accepted,
    conversation: Arc<Conversation<S>>,
) -> impl Future<Output = ()> + Send {
    async move { converse_to_the_end(accepted, conversation).await }
}

async fn converse_to_the_end<S: Serve>(accepted: Accepted, conversation: Arc<Conversation<S>>) {
    // Taken apart where it stands: what is copied is kept twice by each silent connection.
    let mut client = Client::new(accepted.stream);
    let mut known = None;
    if accepted.listener.has_preamble() {
        let reading = past_preamble(client, &accepted.listener, accepted.peer, &conversation);
        match Box::pin(reading).await {
            Some((past, identity)) => (client, known) = (past, Some(identity)),
            None => return,
        }
    }
    if accepted.listener.protocol == Protocol::Tcp {
        let whence = Whence::new(known, accepted.listener, accepted.peer, accepted.at);
        return Box::pin(tcp::serve(client, whence, &conversation)).await;
    }
    let mut first = Vec::new();
    let mut came = accepted.at;
    let read = match client.read_at_once(&mut first) {
        Some(read) => read,
        // Boxed, as is what follows: each phase of a connection pays for itself only.
        None => {
            let read = Box::pin(first_bytes(&mut client, &mut first, &conversation)).await;
            // What a client does before its request is here is its own time.
            came = conversation.clock.now();
            read
        }
    };
    match read {
        Ok(1..) => {}
        // Silent for too long, closed or reset before the first byte: nothing to answer.
        Ok(0) | Err(_) => return,
    }
    let whence = Whence::new(known, accepted.listener, accepted.peer, came);
    match whence.listener.protocol.dialect(first[0]) {
        Dialect::Http => Box::pin(http::serve(client, whence, conversation, first)).await,
        Dialect::Socket => Box::pin(socket::serve(client, whence, &conversation, first)).await,
        // Served above, without waiting for a byte.
        Dialect::Tcp => {}
    }
}

/// Reads what comes before the first request, where something does.
async fn past_preamble<S: Serve>(
    client: Client,
    listener: &Listener,
    peer: Peer,
    conversation: &Conversation<S>,
) -> Option<(Client, Arc<Identity>)> {
    let mut identity = Identity::of_connection(listener, peer);
    let reading = preamble::read(client, listener, &mut identity, &conversation.settings);
    let ended = tokio::select! {
        biased;
        past = reading => match past {
            Ok(client) => return Some((client, Arc::new(identity))),
            Err(ended) => ended,
        },
        () = stopped(&conversation.stop) => return None,
    };
    if let Some(rejection) = ended {
        conversation.serve.rejected(&identity, rejection);
    }
    None
}

/// Ends when the proxy goes down, and what may have been on its way has had its time.
async fn stopped(stop: &CancellationToken) {
    stop.cancelled().await;
    sleep(LAST_REQUEST).await;
}

/// Waits for a client to begin.
async fn first_bytes<S>(
    client: &mut Client,
    first: &mut Vec<u8>,
    conversation: &Conversation<S>,
) -> std::io::Result<usize> {
    let patience = conversation.settings.request_timeout;
    tokio::select! {
        biased;
        read = timeout(patience, client.read_some(first)) => read?,
        () = stopped(&conversation.stop) => Ok(0),
    }
}
