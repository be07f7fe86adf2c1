//! The reply of a backend, on its way to the client.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

use super::{Link, PinnedConnection, Record, ReplyHead};

/// A reply of a backend. Every client can be given any reply: one on the socket protocol gets the body, one on HTTP
/// gets the head too, or one that is made for it.
pub struct Reply {
    /// The head of an HTTP backend's response; none from the socket backend.
    pub head: Option<Box<ReplyHead>>,
    /// The body. From the socket backend, one JSON object.
    pub body: ReplyBody,
    /// The backend connection that the client has logged in with this call or an earlier one.
    pub pinned: Option<PinnedConnection>,
}

impl Reply {
    /// A reply of the socket backend.
    #[must_use]
    pub fn object(body: ReplyBody) -> Self {
        Self {
            head: None,
            body,
            pinned: None,
        }
    }

    /// A response of our own.
    #[must_use]
    pub fn http(response: http::Response<ReplyBody>) -> Self {
        let (head, body) = response.into_parts();
        Self::with_head(Box::new(head.into()), body)
    }

    /// A reply from its head and its body.
    #[must_use]
    pub fn with_head(head: Box<ReplyHead>, body: ReplyBody) -> Self {
        let head = Some(head);
        Self {
            head,
            body,
            pinned: None,
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.head.as_ref().map(|head| head.status);
        match &self.body {
            ReplyBody::Whole(bytes) => {
                let len = bytes.as_ref().map_or(0, Bytes::len);
                write!(f, "Reply({status:?}, {len} bytes)")
            }
            ReplyBody::Stream(_) => write!(f, "Reply({status:?}, a stream)"),
            ReplyBody::Tunnel(_) => write!(f, "Reply({status:?}, a tunnel)"),
        }
    }
}

/// A reply that is here as a whole, and can be given repeatedly.
#[derive(Clone, Debug)]
pub struct BufferedReply {
    /// The head of an HTTP response; none of the socket backend's object.
    pub head: Option<Box<ReplyHead>>,
    /// The body.
    pub body: Bytes,
}

impl BufferedReply {
    /// The size of the answer.   bytes
    #[must_use]
    pub fn bytes(&self) -> usize {
        let headers = self.head.as_ref().map_or(0, |head| head.headers.size());
        headers + self.body.len()
    }

    /// The reply for one more client.
    #[must_use]
    pub fn reply(&self) -> Reply {
        Reply {
            head: self.head.clone(),
            body: ReplyBody::whole(self.body.clone()),
            pinned: None,
        }
    }
}

/// Why a body ended early.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The client left before it had sent the whole body.
#[derive(Debug, thiserror::Error)]
#[error("the client left before it had sent the whole body")]
pub struct ClientLeft;

/// The next part of a body, as [`http_body::Body`] returns it.
pub type PolledFrame = Poll<Option<Result<http_body::Frame<Bytes>, BodyError>>>;

/// The bytes of data in the next part of a body.
#[must_use]
pub fn data_bytes<E>(frame: Option<&Result<http_body::Frame<Bytes>, E>>) -> u64 {
    let data = frame.and_then(|frame| frame.as_ref().ok()?.data_ref());
    data.map_or(0, |bytes| bytes.len() as u64)
}

/// A body as it arrives.
pub type ByteStream = UnsyncBoxBody<Bytes, BodyError>;

/// The body of a reply on its way to the client. Dropping it halfway drops the client, not the
/// call: its owner reads the backend to the end.
#[derive(Debug)]
pub enum ReplyBody {
    /// All of it, until it is taken.
    Whole(Option<Bytes>),
    /// As it arrives.
    Stream(ByteStream),
    /// The connection to the backend, which speaks another protocol from here on, until it is taken.
    Tunnel(Option<Box<Tunnel>>),
}

impl ReplyBody {
    /// A complete body.
    #[must_use]
    pub fn whole(bytes: Bytes) -> Self {
        Self::Whole((!bytes.is_empty()).then_some(bytes))
    }

    /// A body that is still arriving.
    pub fn stream(
        body: impl http_body::Body<Data = Bytes, Error = BodyError> + Send + 'static,
    ) -> Self {
        Self::Stream(ByteStream::new(body))
    }
}

impl http_body::Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        match &mut *self {
            Self::Whole(bytes) => {
                Poll::Ready(bytes.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
            }
            Self::Stream(body) => Pin::new(body).poll_frame(cx),
            Self::Tunnel(_) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Stream(body) => body.is_end_stream(),
            Self::Tunnel(_) => true,
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Whole(bytes) => {
                http_body::SizeHint::with_exact(bytes.as_ref().map_or(0, |it| it.len() as u64))
            }
            Self::Stream(body) => body.size_hint(),
            Self::Tunnel(_) => http_body::SizeHint::with_exact(0),
        }
    }
}

/// A connection to a backend that passes any bytes, together with the slot it holds.
pub struct Tunnel {
    /// The connection.
    pub link: Link,
    /// Bytes of the backend that came already.
    pub first: Bytes,
    /// The slot. The connection is the call, so dropping both ends it.
    pub slot: Box<dyn Send>,
    /// The record of the call.
    pub record: Arc<Record>,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").finish_non_exhaustive()
    }
}
