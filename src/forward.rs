//! Sends a call to its backend, once, and reads the reply to its end.
//!
//! From the first byte written, a call belongs to the backend. If its client leaves, the connection to the backend
//! is closed, or the exchange continues in a task of its own and its slot comes back when the backend is done
//! ([`OnClientLeft`]). Before that byte nothing has happened, and dropping the exchange leaves no
//! trace. A call of which no byte was written comes back as [`UnsentCall`], to wait again. No other
//! call is ever sent twice.

mod addresses;
mod backend;
mod client_left;
mod complaint;
mod connect;
mod deadline;
mod failure;
mod http;
pub mod metrics;
pub(crate) mod options;
mod outgoing;
mod pinned;
mod pool;
mod reply_head;
mod running_reply;
mod servers;
mod settings;
mod socket;
mod stream;
mod streamed;
#[cfg_attr(not(feature = "tls"), path = "forward/without_tls.rs")]
mod tls;
mod tls_failure;
mod tunnel;
mod upstream;

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};

pub use self::addresses::{AddressState, NameState};
use self::backend::{BackendHandle, CurrentBackend};
use self::client_left::{AsyncExchange, Carry};
pub use self::connect::{ConnectError, Resolve, Resolving};
pub use self::options::{BackendAddress, Bounds, Remote};
use self::servers::Servers;
pub use self::servers::{NamedRemote, StickyBy};
pub use self::settings::ForwarderSettings;
pub use self::tls::BackendTls;
pub use self::tls_failure::TlsFailure;
pub use self::tunnel::TcpConnection;
use crate::call::{
    ArrayCall, Destination, HttpCall, Message, OnClientLeft, Record, Refusal, Reply, RequestBody,
    Slot,
};

/// The result of an exchange: the reply or a refusal, or the call if no byte of it left.
type ExchangeResult<S> = Result<Result<Reply, Refusal>, UnsentCall<Message, S>>;

/// A message that can be sent to a backend, with the type of its answer.
pub trait Forward: Sized + Send + Unpin + 'static {
    /// The backend's answer to this kind of message.
    type Answer: Send;
    /// Future that sends the message.
    type Sending<S: Slot>: Future<Output = Result<Result<Self::Answer, Refusal>, UnsentCall<Self, S>>>
        + Send
        + Unpin;

    /// Where it goes.
    fn destination(&self) -> Destination;

    /// Copies the message, if all of it is here.
    fn copy(&self) -> Option<Self>;

    /// Releases the buffer that it was read into, for a call that waits.
    fn compact(&mut self);

    /// Sends it, and returns what came back, or itself if no byte of it left.
    ///
    /// # Errors
    /// [`UnsentCall`] if the backend could not be reached.
    fn send<S: Slot>(self, forwarder: &Forwarder, slot: S, record: Arc<Record>)
    -> Self::Sending<S>;
}

/// A request is answered with one reply.
impl Forward for Message {
    type Answer = Reply;
    type Sending<S: Slot> = Sending<S>;

    fn destination(&self) -> Destination {
        match self {
            Self::Socket(_) => Destination::Socket,
            Self::Http(_) => Destination::Http,
        }
    }

    fn copy(&self) -> Option<Self> {
        match self {
            Self::Socket(call) => Some(Self::Socket(call.clone())),
            Self::Http(call) => match &call.body {
                RequestBody::Whole(bytes) => Some(Self::Http(Box::new(HttpCall {
                    head: Arc::clone(&call.head),
                    forwarded: call.forwarded.clone(),
                    body: RequestBody::Whole(bytes.clone()),
                    array: call.array.clone(),
                    on_client_left: call.on_client_left,
                    pinned: call.pinned.clone(),
                    meter: call.meter.clone(),
                }))),
                RequestBody::Streamed { .. } => None,
            },
        }
    }

    fn compact(&mut self) {
        if let Self::Http(call) = self {
            call.compact();
        }
    }

    fn send<S: Slot>(self, forwarder: &Forwarder, mut slot: S, record: Arc<Record>) -> Sending<S> {
        match forwarder.pick(self.destination(), &mut slot) {
            Err(refusal) => Sending::boxed(ready(Ok(Err(refusal)))),
            Ok(backend) => match self {
                Self::Socket(call) => Sending::boxed(send_array(backend, call, slot, record)),
                Self::Http(call) => http::send(backend, call, slot, record),
            },
        }
    }
}

/// A message that is being sent. It is only a pointer to what is under way.
pub struct Sending<S: Slot>(SendPath<S>);

/// How it is sent.
enum SendPath<S: Slot> {
    /// On HTTP, over a connection that was idle.
    Http(Carry<Box<http::Exchange<S>>>),
    /// By any other.
    Boxed(Pin<Box<dyn Future<Output = ExchangeResult<S>> + Send>>),
}

impl<S: Slot> Sending<S> {
    fn http(exchange: Box<http::Exchange<S>>) -> Self {
        Self(SendPath::Http(Carry::new(exchange)))
    }

    fn boxed(exchange: impl Future<Output = ExchangeResult<S>> + Send + 'static) -> Self {
        Self(SendPath::Boxed(Box::pin(exchange)))
    }
}

impl<S: Slot> Future for Sending<S> {
    type Output = ExchangeResult<S>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ExchangeResult<S>> {
        match &mut self.0 {
            SendPath::Http(exchange) => Pin::new(exchange).poll(cx),
            SendPath::Boxed(exchange) => exchange.as_mut().poll(cx),
        }
    }
}

async fn send_array<S: Slot>(
    backend: Arc<BackendHandle>,
    call: Box<ArrayCall>,
    slot: S,
    record: Arc<Record>,
) -> ExchangeResult<S> {
    let on_client_left = backend.bounds.on_client_left;
    match backend.connect_and_write(&call.bytes).await {
        Ok((link, written)) => {
            if written > 0 {
                record.commit();
            }
            let own = Arc::clone(&record);
            let exchange = socket::array(link, written, call, slot, record, backend);
            Carry::new(AsyncExchange::new(own, on_client_left, exchange)).await
        }
        Err(cause) => Err(UnsentCall::new(Message::Socket(call), slot, cause)),
    }
}

/// A call of which no byte was written. It may wait for another turn.
#[derive(Debug)]
pub struct UnsentCall<O, S> {
    /// The call.
    pub outgoing: O,
    /// The slot that the call holds.
    pub slot: S,
    /// The failure.
    pub cause: ConnectError,
}

impl<O, S> UnsentCall<O, S> {
    fn new(outgoing: O, slot: S, cause: ConnectError) -> Self {
        Self {
            outgoing,
            slot,
            cause,
        }
    }
}

/// Sends calls.
#[derive(Clone)]
pub struct Forwarder {
    shared: Arc<ForwarderState>,
}

struct ForwarderState {
    /// In the order of [`Destination::BACKENDS`].
    backends: [CurrentBackend; Destination::BACKENDS.len()],
    servers: Servers,
    has_servers: AtomicBool,
    resolve: Arc<dyn Resolve>,
    retry_reads: AtomicBool,
}

impl Forwarder {
    /// Opens no connection yet.
    #[must_use]
    pub fn new(settings: &ForwarderSettings) -> Self {
        Self::resolving(settings, Arc::new(connect::System))
    }

    /// Makes a forwarder with another resolver than the system's.
    #[must_use]
    pub fn resolving(settings: &ForwarderSettings, resolve: Arc<dyn Resolve>) -> Self {
        let forwarder = Self {
            shared: Arc::new(ForwarderState {
                backends: Default::default(),
                servers: Servers::default(),
                has_servers: AtomicBool::new(false),
                resolve,
                retry_reads: AtomicBool::new(settings.retry_reads),
            }),
        };
        // The gate expects the first one of each.
        let _ = forwarder.apply(settings);
        forwarder
    }

    /// Connects to a backend as a call does, and sends nothing. `None` if there is no such backend.
    pub async fn reach(
        &self,
        to: Destination,
    ) -> Option<Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, ConnectError>> {
        let backend = self.shared.backends[to as usize].pick()?;
        Some(backend.connect().await)
    }

    /// The meaning of the name of a backend now. `None` if there is no such backend, or if its address is
    /// not a name.
    #[must_use]
    pub fn name_state(&self, of: Destination) -> Option<NameState> {
        self.shared.backends[of as usize].pick()?.name_state()
    }

    /// The backend of a destination, which the call goes to.
    fn pick(&self, to: Destination, slot: &mut impl Slot) -> Result<Arc<BackendHandle>, Refusal> {
        let servers = &self.shared.servers;
        let backend = match self.has_servers().then(|| slot.server()).flatten() {
            None => self.shared.backends[to as usize].pick(),
            Some(server) => servers.pick(server),
        };
        let backend = backend.ok_or_else(|| Refusal::no_backend(to.label()))?;
        slot.goes_to(backend.generation);
        Ok(backend)
    }

    /// How a call at the backend ends when its client leaves.
    #[must_use]
    pub fn on_client_left(&self, message: &Message) -> OnClientLeft {
        let own = match message {
            Message::Http(call) => call.on_client_left,
            Message::Socket(_) => None,
        };
        let backend = || self.shared.backends[message.destination() as usize].pick();
        own.or_else(|| Some(backend()?.bounds.on_client_left))
            .unwrap_or_default()
    }

    /// Whether a read may be sent once more.
    #[must_use]
    pub fn retries_reads(&self) -> bool {
        self.shared.retry_reads.load(Ordering::Relaxed)
    }
}
