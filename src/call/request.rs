//! A request: what was asked, and where it came in.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tidegate_limits::Timestamp;

use super::reply::{BodyError, ByteStream, PolledFrame, data_bytes};
use super::sdk::ArrayCall;
use super::{
    AnswerMeter, Dialect, ForwardedFields, Head, Identity, OnClientLeft, PinnedConnection, Record,
};

/// The origin of a call.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The identity of the client.
    pub identity: Arc<Identity>,
    /// When its clock started: with the last byte of its request, or of the part of a large body
    /// that is read before the call queues.
    pub arrived: Timestamp,
}

/// A whole request, as a protocol passes it on.
#[derive(Debug)]
pub struct Request {
    /// Where and when it arrived.
    pub origin: Origin,
    /// The content.
    pub message: Message,
}

/// A request of a client in its protocol, or in that of the backend. A TCP connection asks nothing: it is passed
/// on.
#[derive(Debug)]
pub enum Message {
    /// An array of the socket protocol.
    Socket(Box<ArrayCall>),
    /// An HTTP request.
    Http(Box<HttpCall>),
}

impl Message {
    /// The client's dialect.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        match self {
            Self::Socket(_) => Dialect::Socket,
            Self::Http(_) => Dialect::Http,
        }
    }

    /// The size while the message waits.   bytes
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Socket(call) => call.bytes.len(),
            Self::Http(call) => call.bytes(),
        }
    }
}

/// An HTTP request: its head, and the part of its body that had to be read.
#[derive(Debug)]
pub struct HttpCall {
    /// Method, target, headers.
    pub head: Arc<Head>,
    /// The fields that name the client, from its connection, which are sent in place of what the client sends.
    /// `None` if the head is sent as it came.
    pub forwarded: Option<Arc<ForwardedFields>>,
    /// The body.
    pub body: RequestBody,
    /// Set if this is an array of the socket protocol over HTTP: a `POST /` with it as the body.
    pub array: Option<Box<ArrayCall>>,
    /// The fate of the call when its client leaves, if its route says so.
    pub on_client_left: Option<OnClientLeft>,
    /// The backend connection that its client has logged in.
    pub pinned: Option<PinnedConnection>,
    /// Reads the answer, if its route wants to know something of it.
    pub meter: Option<Box<AnswerMeter>>,
}

impl HttpCall {
    /// A call with this head and body, and nothing more.
    #[must_use]
    pub fn new(head: Arc<Head>, body: RequestBody) -> Self {
        Self {
            head,
            forwarded: None,
            body,
            array: None,
            on_client_left: None,
            pinned: None,
            meter: None,
        }
    }

    /// The size of its request: target, headers, and the present part of the body.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let (RequestBody::Whole(body) | RequestBody::Streamed { read: body, .. }) = &self.body;
        self.head.size() + body.len()
    }

    /// Copies a body that is still in a read buffer, so that a waiting call does not keep the whole buffer.
    pub fn compact(&mut self) {
        if let RequestBody::Whole(bytes) = &mut self.body
            && !bytes.is_unique()
        {
            *bytes = Bytes::copy_from_slice(bytes);
        }
    }
}

/// A request body: held whole while the call waits, or streamed after admission.
#[derive(Debug)]
pub enum RequestBody {
    /// All of it.
    Whole(Bytes),
    /// Too large to hold: the part that was read, and the rest still at the client.
    Streamed {
        /// The part that was read.
        read: Bytes,
        /// The rest. It ends in an error if the client is too slow.
        rest: ByteStream,
    },
}

impl RequestBody {
    /// The length of a body that is here as a whole.   bytes
    #[must_use]
    pub fn whole_length(&self) -> Option<u64> {
        match self {
            Self::Whole(bytes) => Some(bytes.len() as u64),
            Self::Streamed { .. } => None,
        }
    }

    /// Counts the bytes of a streamed body into the record as they leave.
    pub fn count_into(&mut self, record: &Arc<Record>) {
        if let Self::Streamed { read, rest } = self {
            let counted = CountedBody {
                rest: std::mem::take(rest),
                before: read.len() as u64,
                record: Arc::clone(record),
            };
            *rest = ByteStream::new(counted);
        }
    }
}

/// The rest of a streamed body. When it is first polled, the earlier part has left.
struct CountedBody {
    rest: ByteStream,
    before: u64,
    record: Arc<Record>,
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let frame = Pin::new(&mut self.rest).poll_frame(cx);
        let mut more = std::mem::take(&mut self.before);
        if let Poll::Ready(frame) = &frame {
            more += data_bytes(frame.as_ref());
        }
        if more > 0 {
            self.record.note(|facts| facts.bytes_in += more);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.rest.size_hint()
    }
}
