//! hyper itself as a second opinion: its server reads requests, and its client reads responses, from memory.
//! What the crate reads to its end, hyper reads in the same way.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use tidegate_h1::request::{HttpVersion, RequestHead, RequestTarget};
use tidegate_h1::{ByteSpan, Framing};

use super::chunks::{self, Body};
use super::inputs::Kind;
use super::requests::BOUNDS;
use super::subject::{AsItIs, Effort, Subject, shown};

/// More polls than any of these inputs takes.
const POLLS: usize = 10_000;

/// A connection whose other side sends these bytes in pieces and then closes.
struct Wire {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
    /// Whether the peer sends only after something is written to it, as a backend does.
    waits: bool,
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.waits {
            return Poll::Pending;
        }
        let left = self.bytes.len() - self.at;
        let length = self.piece.min(left).min(buf.remaining());
        let (from, to) = (self.at, self.at + length);
        buf.put_slice(&self.bytes[from..to]);
        self.at = to;
        Poll::Ready(Ok(()))
    }
}

impl Write for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.waits = false;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A message with its body.
#[derive(Debug, PartialEq, Eq)]
struct Message {
    /// Method and target, or the status.
    first: String,
    /// Names in lower case, and values; sorted.
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

fn fields(headers: &http::HeaderMap) -> Vec<(String, Vec<u8>)> {
    let fields = headers
        .iter()
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()));
    passed(fields.collect())
}

/// The fields that a proxy passes on, sorted. Order counts only among fields of one name.
fn passed(mut fields: Vec<(String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    fields.retain(|(name, _)| {
        let name = name.as_bytes();
        !tidegate_h1::is_hop_by_hop(name) && name != b"content-length"
    });
    fields.sort_by(|one, other| one.0.cmp(&other.0));
    fields
}

fn own_fields(fields: &[tidegate_h1::HeadField], head: &[u8]) -> Vec<(String, Vec<u8>)> {
    let fields = fields.iter().map(|field| {
        let name = String::from_utf8_lossy(field.name.of(head)).to_ascii_lowercase();
        (name, field.value.of(head).to_vec())
    });
    passed(fields.collect())
}

/// Compares what the crate reads of this input with what hyper reads.
pub(crate) fn check(kind: Kind, bytes: &[u8], effort: &mut Effort) -> Result<(), String> {
    let piece = match effort.random.below(3) {
        0 => bytes.len().max(1),
        _ => effort.random.between(1, 40) as usize,
    };
    match kind {
        Kind::Requests => check_requests(bytes, piece),
        Kind::Responses => check_response(bytes, piece, effort.random.one_in(4)),
        Kind::Chunks => {
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            check_response(&[head, bytes].concat(), piece, false)?;
            let head = b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
            check_requests(&[head, bytes].concat(), piece)
        }
    }
}

/// Method, host if the target names one, path, and version.
fn first_line(request: &RequestHead, head: &[u8]) -> String {
    let text = |span: ByteSpan| String::from_utf8_lossy(span.of(head)).into_owned();
    let (authority, path) = match request.target {
        RequestTarget::Path(path) => (String::new(), text(path)),
        RequestTarget::Absolute {
            authority,
            path_and_query,
        } => match text(path_and_query) {
            path if path.starts_with('/') => (text(authority), path),
            query => (text(authority), format!("/{query}")),
        },
        RequestTarget::Asterisk => (String::new(), "*".to_owned()),
    };
    let version = match request.version {
        HttpVersion::Http10 => "HTTP/1.0",
        HttpVersion::Http11 => "HTTP/1.1",
    };
    format!("{} {authority} {path} {version}", text(request.method))
}

/// The requests that the crate reads to their ends.
fn requests(bytes: &[u8]) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut rest = bytes;
    while let Ok(Some(head)) = AsItIs.request(rest, BOUNDS) {
        let behind = &rest[head.length..];
        let Some((body, length)) = body(head.framing, behind) else {
            break;
        };
        messages.push(Message {
            first: first_line(&head, rest),
            fields: own_fields(&head.fields, rest),
            body,
        });
        if head.closes {
            break;
        }
        rest = &behind[length..];
    }
    messages
}

/// A body that is whole, and its length.
fn body(framing: Framing, bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    match framing {
        Framing::None => Some((Vec::new(), 0)),
        Framing::Length(length) => {
            let length = usize::try_from(length).ok()?;
            Some((bytes.get(..length)?.to_vec(), length))
        }
        Framing::Chunked => match chunks::read(&AsItIs, bytes, &[]) {
            Body::Whole { data, length } => Some((data, length)),
            Body::Partial | Body::Bad => None,
        },
        Framing::Close => Some((bytes.to_vec(), bytes.len())),
    }
}

fn check_requests(bytes: &[u8], piece: usize) -> Result<(), String> {
    let own = requests(bytes);
    if own.is_empty() {
        return Ok(());
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    let service = service_fn(move |request: http::Request<Incoming>| {
        let record = Arc::clone(&record);
        async move {
            let (head, body) = request.into_parts();
            if let Ok(body) = body.collect().await {
                let authority = head.uri.authority().map_or("", |it| it.as_str());
                // A target that is a host has none; the crate refuses it.
                let path = head.uri.path_and_query().map(ToString::to_string);
                let path = path.unwrap_or_default();
                let named = own_names(&head.headers);
                let mut fields = fields(&head.headers);
                fields.retain(|(name, _)| match name.as_str() {
                    "host" => authority.is_empty(),
                    name => !named.iter().any(|it| it == name),
                });
                let message = Message {
                    first: format!("{} {authority} {path} {:?}", head.method, head.version),
                    fields,
                    body: body.to_bytes().to_vec(),
                };
                record.lock().expect("not poisoned").push(message);
            }
            Ok::<_, Infallible>(http::Response::new(Empty::<Bytes>::new()))
        }
    });
    let wire = Wire {
        bytes: bytes.to_vec(),
        at: 0,
        piece,
        waits: false,
    };
    let mut serving = pin!(
        hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .serve_connection(wire, service)
    );
    let mut context = Context::from_waker(Waker::noop());
    let is_over = (0..POLLS).any(|_| serving.as_mut().poll(&mut context).is_ready());
    let seen = seen.lock().expect("not poisoned");
    match is_over && seen.len() >= own.len() && seen[..own.len()] == own {
        true => Ok(()),
        false => Err(format!(
            "in pieces of {piece}, over {is_over}: {own:?}, and hyper's server {seen:?} of {}",
            shown(bytes)
        )),
    }
}

/// The final response, if the crate reads it to its end.
fn response(bytes: &[u8], to_head: bool) -> Option<Message> {
    let mut rest = bytes;
    loop {
        let head = AsItIs.response(rest, to_head, 100).ok()??;
        let behind = &rest[head.length..];
        if head.status == 101 {
            // hyper's client has asked for no other protocol.
            return None;
        }
        if head.status < 200 {
            rest = behind;
            continue;
        }
        let (body, _) = body(head.framing, behind)?;
        return Some(Message {
            first: head.status.to_string(),
            fields: own_fields(&head.fields, rest),
            body,
        });
    }
}

fn check_response(bytes: &[u8], piece: usize, to_head: bool) -> Result<(), String> {
    let Some(own) = response(bytes, to_head) else {
        return Ok(());
    };
    let wire = Wire {
        bytes: bytes.to_vec(),
        at: 0,
        piece,
        waits: true,
    };
    let asking = async {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(wire)
                .await
                .map_err(|error| error.to_string())?;
        let answering = async {
            let method = if to_head { "HEAD" } else { "GET" };
            let request = http::Request::builder()
                .method(method)
                .body(Empty::new())
                .expect("it is valid");
            let (head, body) = sender.send_request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes().to_vec();
            Ok::<_, hyper::Error>((head, body))
        };
        let mut connection = pin!(connection);
        let mut answering = pin!(answering);
        let mut is_over = false;
        std::future::poll_fn(move |context| {
            if !is_over {
                is_over = connection.as_mut().poll(context).is_ready();
            }
            answering.as_mut().poll(context)
        })
        .await
        .map_err(|error| format!("{error:?}"))
    };
    let mut asking = pin!(asking);
    let mut context = Context::from_waker(Waker::noop());
    let answer = (0..POLLS).find_map(|_| match asking.as_mut().poll(&mut context) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    });
    let is_same = match &answer {
        Some(Ok((head, body))) => {
            let named = own_names(&head.headers);
            let mut theirs = fields(&head.headers);
            theirs.retain(|(name, _)| name == "host" || !named.contains(name));
            head.status.as_str() == own.first && *body == own.body && theirs == own.fields
        }
        Some(Err(_)) | None => false,
    };
    match is_same {
        true => Ok(()),
        false => Err(format!(
            "to HEAD {to_head}, in pieces of {piece}: {own:?}, and hyper's client {answer:?} of {}",
            shown(bytes)
        )),
    }
}

/// The names in Connection.
fn own_names(headers: &http::HeaderMap) -> Vec<String> {
    let values = headers.get_all(http::header::CONNECTION).iter();
    let names = values.flat_map(|it| {
        let names = it.as_bytes().split(|byte| *byte == b',');
        names.map(|name| String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase())
    });
    names.collect()
}
