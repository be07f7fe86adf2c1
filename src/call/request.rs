//! A request: what was asked, and where it came in.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tidegate_limits::Timestamp;

use super::reply::{BodyError, ByteStream};
use super::sdk::ArrayCall;
use super::{Dialect, Identity, Record};

/// Where a call came in.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Who it comes from.
    pub identity: Arc<Identity>,
    /// When its clock started: when the last byte came of its request, or of the part of a large body
    /// that is read before the call queues.
    pub arrived: Timestamp,
}

/// One whole request, as a protocol passes it on.
#[derive(Debug)]
pub struct Request {
    /// Where and when it came in.
    pub origin: Origin,
    /// What was asked.
    pub message: Message,
}

/// What was asked, in the client's dialect. A TCP connection asks nothing: it is passed on.
#[derive(Debug)]
pub enum Message {
    /// One array of the socket protocol.
    Socket(ArrayCall),
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
}

/// An HTTP request: its head, and as much of its body as had to be read.
#[derive(Debug)]
pub struct HttpCall {
    /// Method, target, headers.
    pub head: http::request::Parts,
    /// The body.
    pub body: RequestBody,
    /// Set where this is the socket protocol's array in HTTP dress: a `POST /` whose body
    /// is one.
    pub array: Option<ArrayCall>,
}

impl HttpCall {
    /// What it holds of its request: target, headers, and what is here of the body.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let headers = self.head.headers.iter();
        let headers = headers.map(|(name, value)| name.as_str().len() + value.len());
        let target = self
            .head
            .uri
            .path_and_query()
            .map_or(0, |it| it.as_str().len());
        let body = match &self.body {
            RequestBody::Whole(bytes) => bytes.len(),
            RequestBody::Streamed { read, .. } => read.iter().map(Bytes::len).sum(),
        };
        target + headers.sum::<usize>() + body
    }

    /// Copies what still lies in the buffer that the request was read into, so that a call
    /// that waits does not keep all of that.
    pub fn compact(&mut self) {
        self.head.headers = compact_headers(&self.head.headers);
        if let Ok(uri) = http::Uri::try_from(self.head.uri.to_string()) {
            self.head.uri = uri;
        }
        self.head.extensions.clear();
        if let RequestBody::Whole(bytes) = &mut self.body
            && !bytes.is_unique()
        {
            *bytes = Bytes::copy_from_slice(bytes);
        }
    }
}

/// A copy of headers that holds nothing of the buffer in which they came.
#[must_use]
pub fn compact_headers(headers: &http::HeaderMap) -> http::HeaderMap {
    let mut compact = http::HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let name = http::HeaderName::from_bytes(name.as_str().as_bytes());
        let mut copy = http::HeaderValue::from_bytes(value.as_bytes());
        if let Ok(copy) = &mut copy {
            copy.set_sensitive(value.is_sensitive());
        }
        // Both were valid a moment ago.
        if let (Ok(name), Ok(copy)) = (name, copy) {
            compact.append(name, copy);
        }
    }
    compact
}

/// A request body: held whole while the call waits, or streamed once it may go.
#[derive(Debug)]
pub enum RequestBody {
    /// All of it.
    Whole(Bytes),
    /// Too large to hold: what was read so far, and the rest still at the client.
    Streamed {
        /// Frames already read.
        read: Vec<Bytes>,
        /// What is still to come; it ends in an error if the client is too slow.
        rest: ByteStream,
    },
}

impl RequestBody {
    /// Counts the bytes of a streamed body into the record as they leave.
    pub fn count_into(&mut self, record: &Arc<Record>) {
        if let Self::Streamed { read, rest } = self {
            let counted = Counted {
                rest: std::mem::take(rest),
                before: read.iter().map(|bytes| bytes.len() as u64).sum(),
                record: Arc::clone(record),
            };
            *rest = ByteStream::new(counted);
        }
    }
}

/// The rest of a streamed body. When it is first polled, the part that was read before has left.
struct Counted {
    rest: ByteStream,
    before: u64,
    record: Arc<Record>,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BodyError>>> {
        let frame = Pin::new(&mut self.rest).poll_frame(cx);
        let mut more = std::mem::take(&mut self.before);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(bytes) = frame.data_ref()
        {
            more += bytes.len() as u64;
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
