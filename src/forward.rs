//! Sends a call to its backend, once, and reads the reply to its end.
//!
//! From the first byte written on, a call belongs to the backend: an exchange whose
//! client leaves is not cancelled but carried on in a task of its own, so its slot comes
//! back when the backend is done and not before. Until then nothing has happened yet, and
//! dropping it leaves no trace. A call of which no byte was written comes back as
//! [`Unsent`], to wait again; no other call is ever sent twice.

mod backend;
mod carry;
mod connect;
mod deadline;
mod doorbell;
mod exchange;
mod http;
pub mod metrics;
mod pool;
mod reply;
mod stream;
mod streamed;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_limits::Outcome;

use self::backend::Backends;
use self::carry::Carry;
pub use self::connect::{ConnectError, Handshake, Resolve, begin, established};
use self::stream::Stream;
use crate::call::{
    ArrayCall, Destination, Generation, HttpCall, Record, Refusal, Reply, RequestBody, Slot, Tunnel,
};

/// Where a backend listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address.
    Ip(SocketAddr),
    /// A name, looked up at each connect.
    Name(Box<str>, u16),
    /// A socket file.
    Unix(Box<Path>),
}

/// What this stage is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The sdkserver.
    pub socket: Option<Address>,
    /// The HTTP backend.
    pub http: Option<Address>,
    /// The TCP backend.
    pub tcp: Option<Address>,
    /// Whether a read whose connection closed before one byte of reply is sent once more.
    pub retry_reads: bool,
    /// What holds for each of them.
    pub bounds: Bounds,
}

/// How long each step of an exchange may take, and what may be held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Where this sidecar listens itself: a backend that leads there is none.
    pub own: Arc<[SocketAddr]>,
    /// Until a connect counts as failed.
    pub connect_timeout: Duration,
    /// From the last byte sent to the last byte of the reply.
    pub response_timeout: Duration,
    /// Largest reply of the socket backend.   bytes
    pub max_reply_bytes: usize,
    /// Replies up to this are held whole, so that one that is cut becomes a whole error and
    /// a slow reader holds no slot; larger ones are streamed.   bytes
    pub reply_buffer_bytes: usize,
    /// Idle HTTP connections kept.
    pub pool_max_idle: usize,
    /// How long one is kept idle.
    pub pool_idle_timeout: Duration,
    /// The least that a backend may take of a request.   bytes a second, 0 for any
    pub send_min_rate: u64,
    /// A client that takes less of a reply is slow.   bytes a second, 0 for none
    pub reply_min_rate: u64,
    /// Replies that may hold a slot for a slow client.
    pub slow_readers_max: usize,
}

/// What is to be sent.
#[derive(Debug)]
pub enum Outgoing {
    /// One array, to the socket backend.
    Array(ArrayCall),
    /// A request, to the HTTP backend.
    Http(Box<HttpCall>),
    /// A connection, to the TCP backend.
    Tcp,
}

impl Outgoing {
    /// Where it goes.
    #[must_use]
    pub fn destination(&self) -> Destination {
        match self {
            Self::Array(_) => Destination::Socket,
            Self::Http(_) => Destination::Http,
            Self::Tcp => Destination::Tcp,
        }
    }

    /// What it holds while it waits.   bytes
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Array(call) => call.bytes.len(),
            Self::Http(call) => call.bytes(),
            Self::Tcp => 0,
        }
    }

    /// The same again, if all of it is here.
    #[must_use]
    pub fn copy(&self) -> Option<Self> {
        match self {
            Self::Array(call) => Some(Self::Array(call.clone())),
            Self::Http(call) => match &call.body {
                RequestBody::Whole(bytes) => Some(Self::Http(Box::new(HttpCall {
                    head: call.head.clone(),
                    body: RequestBody::Whole(bytes.clone()),
                    array: call.array.clone(),
                }))),
                RequestBody::Streamed { .. } => None,
            },
            Self::Tcp => None,
        }
    }

    /// Lets go of the buffer that it was read into, for a call that waits.
    pub fn compact(&mut self) {
        if let Self::Http(call) = self {
            call.compact();
        }
    }
}

/// A call of which no byte was written: it may wait for another turn.
#[derive(Debug)]
pub struct Unsent<S> {
    /// The call.
    pub outgoing: Outgoing,
    /// What it holds.
    pub slot: S,
    /// Why.
    pub cause: ConnectError,
}

/// Sends calls.
#[derive(Clone)]
pub struct Forwarder {
    shared: Arc<Shared>,
}

struct Shared {
    socket: Backends,
    http: Backends,
    tcp: Backends,
    resolve: Arc<dyn Resolve>,
    retry_reads: AtomicBool,
}

impl Forwarder {
    /// Opens nothing yet.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self::resolving(settings, Arc::new(connect::System))
    }

    /// The same, with names looked up in another way than the system's.
    #[must_use]
    pub fn resolving(settings: &Settings, resolve: Arc<dyn Resolve>) -> Self {
        let forwarder = Self {
            shared: Arc::new(Shared {
                socket: Backends::default(),
                http: Backends::default(),
                tcp: Backends::default(),
                resolve,
                retry_reads: AtomicBool::new(settings.retry_reads),
            }),
        };
        // The gate expects the first of each.
        let _ = forwarder.apply(settings);
        forwarder
    }

    /// Takes new settings for the calls to come. Exchanges under way keep the backend that
    /// they began with. Returns which destinations lead to another backend from now on: what
    /// the gate knows of the old one says nothing of it.
    #[must_use = "the gate has to hear of backends that were moved"]
    pub fn apply(&self, settings: &Settings) -> Vec<(Destination, Generation)> {
        let shared = &*self.shared;
        let retry_reads = settings.retry_reads;
        shared.retry_reads.store(retry_reads, Ordering::Relaxed);
        let destinations = [
            (Destination::Socket, &shared.socket, &settings.socket),
            (Destination::Http, &shared.http, &settings.http),
            (Destination::Tcp, &shared.tcp, &settings.tcp),
        ];
        destinations
            .into_iter()
            .filter_map(|(destination, backends, address)| {
                let bounds = &settings.bounds;
                let new = backends.apply(address.as_ref(), bounds, &shared.resolve)?;
                Some((destination, new))
            })
            .collect()
    }

    /// Whether a read may be sent once more.
    #[must_use]
    pub fn retries_reads(&self) -> bool {
        self.shared.retry_reads.load(Ordering::Relaxed)
    }

    /// Sends one call and returns its reply, or the call itself if no byte of it left.
    ///
    /// # Errors
    /// [`Unsent`] if the backend could not be reached.
    pub async fn send<S: Slot>(
        &self,
        outgoing: Outgoing,
        mut slot: S,
        record: Arc<Record>,
    ) -> Result<Reply, Unsent<S>> {
        match outgoing {
            Outgoing::Array(call) => {
                let Some(backend) = self.shared.socket.pick() else {
                    return Ok(Reply::Refused(Refusal::no_backend("socket")));
                };
                slot.goes_to(backend.generation);
                match backend.connect_and_write(&call.bytes).await {
                    Ok((stream, written)) => {
                        Carry::new(Arc::clone(&record), |committed| {
                            exchange::array(stream, written, call, slot, record, backend, committed)
                        })
                        .await
                    }
                    Err(cause) => Err(Unsent {
                        outgoing: Outgoing::Array(call),
                        slot,
                        cause,
                    }),
                }
            }
            Outgoing::Http(call) => {
                let Some(backend) = self.shared.http.pick() else {
                    return Ok(Reply::Refused(Refusal::no_backend("http")));
                };
                slot.goes_to(backend.generation);
                http::send(backend, call, slot, record).await
            }
            Outgoing::Tcp => {
                let Some(backend) = self.shared.tcp.pick() else {
                    return Ok(Reply::Refused(Refusal::no_backend("tcp")));
                };
                slot.goes_to(backend.generation);
                match backend.connect().await {
                    Ok(Stream::Tcp(stream)) => {
                        slot.sent();
                        let slot = Box::new(Held(Some(slot)));
                        Ok(Reply::Tunnel(Tunnel {
                            stream,
                            slot,
                            record,
                        }))
                    }
                    // The config takes none for tcp.
                    Ok(Stream::Unix(_)) => Ok(Reply::Refused(Refusal::no_backend("tcp"))),
                    Err(cause) => Err(Unsent {
                        outgoing: Outgoing::Tcp,
                        slot,
                        cause,
                    }),
                }
            }
        }
    }
}

/// The slot of a tunnel: the connection is the call, so its end is the call's.
struct Held<S: Slot>(Option<S>);

impl<S: Slot> Drop for Held<S> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.finish(Outcome::Served);
        }
    }
}
