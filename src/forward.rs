//! Sends a call to its backend, once, and reads the reply to its end.
//!
//! From the first byte written on, a call belongs to the backend: an exchange whose
//! client leaves is not cancelled but carried on in a task of its own, so its slot comes
//! back when the backend is done and not before. Until then nothing has happened yet, and
//! dropping it leaves no trace. A call of which no byte was written comes back as
//! [`Unsent`], to wait again; no other call is ever sent twice.

mod backend;
mod carry;
mod doorbell;
mod exchange;
mod http;
mod pool;
mod reply;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use self::backend::{ConnectError, Handshake, begin, established};
use self::carry::Carry;
use self::pool::Pool;
use tidegate_limits::Outcome;

use crate::call::{ArrayCall, HttpCall, Record, Refusal, Reply, Slot, Tunnel};
use crate::live::Live;

/// Where a backend listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address.
    Ip(SocketAddr),
    /// A name, looked up at each connect.
    Name(Box<str>, u16),
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
    /// What it holds while it waits.   bytes
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Array(call) => call.bytes.len(),
            Self::Http(call) => call.bytes(),
            Self::Tcp => 0,
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
    settings: Live<Settings>,
    pool: Pool,
}

impl Forwarder {
    /// Opens nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            shared: Arc::new(Shared {
                settings: Live::new(settings),
                pool: Pool::default(),
            }),
        }
    }

    /// Takes new settings for the calls to come. Pooled connections of another backend are
    /// closed; calls under way keep what they began with.
    pub fn apply(&self, settings: Settings) {
        let moved = self.shared.settings.get().http != settings.http;
        self.shared.settings.set(settings);
        if moved {
            self.shared.pool.clear();
        }
    }

    /// Sends one call and returns its reply, or the call itself if no byte of it left.
    ///
    /// # Errors
    /// [`Unsent`] if the backend could not be reached.
    pub async fn send<S: Slot>(
        &self,
        outgoing: Outgoing,
        slot: S,
        record: Arc<Record>,
    ) -> Result<Reply, Unsent<S>> {
        let settings = self.shared.settings.get();
        match outgoing {
            Outgoing::Array(call) => {
                let Some(address) = &settings.socket else {
                    return Ok(Reply::Refused(Refusal::no_backend("socket")));
                };
                let bound = settings.connect_timeout;
                match backend::connect_and_write(address, &call.bytes, bound).await {
                    Ok((stream, written)) => {
                        Carry::new(Arc::clone(&record), |committed| {
                            exchange::array(
                                stream, written, call, slot, record, settings, committed,
                            )
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
                if settings.http.is_none() {
                    return Ok(Reply::Refused(Refusal::no_backend("http")));
                }
                http::send(&self.shared.pool, call, slot, record, settings).await
            }
            Outgoing::Tcp => {
                let Some(address) = &settings.tcp else {
                    return Ok(Reply::Refused(Refusal::no_backend("tcp")));
                };
                match backend::connect(address, settings.connect_timeout).await {
                    Ok(stream) => {
                        let mut slot = slot;
                        slot.sent();
                        let slot = Box::new(Held(Some(slot)));
                        Ok(Reply::Tunnel(Tunnel {
                            stream,
                            slot,
                            record,
                        }))
                    }
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
