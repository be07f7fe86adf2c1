//! The connection to one member.

use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, Uri, header};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tonic::Status;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic::codegen::tokio_stream::{self, StreamExt as _};
use tonic_prost::ProstCodec;

use super::endpoint::{Endpoint, Tls};
use super::failure::Failure;
use crate::lock;

/// One member of a cluster, and its connection, which all calls share.
pub(super) struct Member {
    endpoint: Endpoint,
    tls: Option<Tls>,
    connection: Mutex<Option<SendRequest<Body>>>,
}

/// What carries a connection. One type for TCP and TLS: each type has an HTTP/2 of its own in the program, 150 KB.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Messages of a stream, in order.
pub(super) type Messages<T> = tonic::Streaming<T>;

impl Member {
    pub(super) fn new(endpoint: Endpoint, tls: Option<Tls>) -> Self {
        Self {
            endpoint,
            tls,
            connection: Mutex::default(),
        }
    }

    /// Sends one message and reads the reply to its end, by `end`.
    pub(super) async fn unary<Q, R>(
        &self,
        path: &'static str,
        request: Q,
        token: Option<&str>,
        end: Instant,
        max_reply: usize,
    ) -> Result<R, Failure>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.grpc(token, end, max_reply).await?;
        let codec = ProstCodec::<Q, R>::default();
        let path = PathAndQuery::from_static(path);
        let answer = grpc.unary(tonic::Request::new(request), path, codec);
        self.answered(timeout_at(end, answer).await)
    }

    /// Sends one message. The head of the reply must come by `end`; the reply may go on for ever.
    pub(super) async fn stream<Q, R>(
        &self,
        path: &'static str,
        request: Q,
        token: Option<&str>,
        end: Instant,
        max_reply: usize,
    ) -> Result<Messages<R>, Failure>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.grpc(token, end, max_reply).await?;
        let codec = ProstCodec::<Q, R>::default();
        // The sending side of the stream stays open: its end would end the other side.
        let requests = tokio_stream::once(request).chain(tokio_stream::pending());
        let path = PathAndQuery::from_static(path);
        let answer = grpc.streaming(tonic::Request::new(requests), path, codec);
        self.answered(timeout_at(end, answer).await)
    }

    async fn grpc(
        &self,
        token: Option<&str>,
        end: Instant,
        max_reply: usize,
    ) -> Result<Grpc<Caller>, Failure> {
        let token = match token.map(HeaderValue::from_str) {
            None => None,
            Some(Ok(token)) => Some(token),
            Some(Err(_)) => return Err(self.garbage("a token that is no header's value")),
        };
        let kept = self.kept();
        let connection = match kept.filter(|kept| kept.is_ready()) {
            Some(kept) => kept,
            None => {
                let connected = self.connect(end).await?;
                *lock(&self.connection) = Some(connected.clone());
                connected
            }
        };
        let caller = Caller { connection, token };
        let grpc = Grpc::with_origin(caller, self.endpoint.origin());
        Ok(grpc.max_decoding_message_size(max_reply))
    }

    /// The result of an answer. After any answer that is not etcd's, the next call connects again.
    fn answered<T>(
        &self,
        answer: Result<Result<tonic::Response<T>, Status>, tokio::time::error::Elapsed>,
    ) -> Result<T, Failure> {
        let failure = match answer {
            Ok(Ok(response)) => return Ok(response.into_inner()),
            Ok(Err(status)) => {
                let unanswered = status.source().and_then(|source| source.downcast_ref());
                match unanswered {
                    Some(Unanswered::Never(cause)) => self.never(cause),
                    Some(Unanswered::Perhaps(cause)) => self.perhaps(cause),
                    Some(Unanswered::Garbage(cause)) => self.garbage(cause),
                    None => return Err(Failure::of(&status)),
                }
            }
            Err(_) => self.perhaps("no answer in time"),
        };
        *lock(&self.connection) = None;
        Err(failure)
    }

    fn kept(&self) -> Option<SendRequest<Body>> {
        lock(&self.connection).clone()
    }

    async fn connect(&self, end: Instant) -> Result<SendRequest<Body>, Failure> {
        let connecting = async {
            let stream = TcpStream::connect(&*self.endpoint.authority)
                .await
                .map_err(|error| self.never(error))?;
            // Small requests, each answered before the next.
            let _ = stream.set_nodelay(true);
            if !self.endpoint.https {
                return self.handshake(Box::new(stream)).await;
            }
            let Some(Tls(tls)) = &self.tls else {
                return Err(self.never("https, but no authority to trust is configured"));
            };
            let Some(name) = self.endpoint.server_name() else {
                return Err(self.never("its host is no name that a certificate can carry"));
            };
            let stream = TlsConnector::from(Arc::clone(tls))
                .connect(name, stream)
                .await
                .map_err(|error| self.never(error))?;
            self.handshake(Box::new(stream)).await
        };
        timeout_at(end, connecting)
            .await
            .unwrap_or_else(|_| Err(self.never("not connected in time")))
    }

    async fn handshake(&self, stream: Box<dyn Stream>) -> Result<SendRequest<Body>, Failure> {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|error| self.never(error))?;
        // Ends with its sender and the last reply; the calls get its errors.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn never(&self, cause: impl fmt::Display) -> Failure {
        Failure::Unsent(format!("{}: {cause}", self.endpoint).into())
    }

    fn perhaps(&self, cause: impl fmt::Display) -> Failure {
        Failure::Trouble(format!("{}: {cause}", self.endpoint).into())
    }

    fn garbage(&self, cause: impl fmt::Display) -> Failure {
        Failure::Garbage(format!("{}: {cause}", self.endpoint).into())
    }
}

/// Why a request has no reply of gRPC.
#[derive(Debug)]
enum Unanswered {
    /// No byte of it has left.
    Never(Box<str>),
    /// It may have been done.
    Perhaps(Box<str>),
    /// The server's answer is not etcd's.
    Garbage(Box<str>),
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never(cause) | Self::Perhaps(cause) | Self::Garbage(cause) => f.write_str(cause),
        }
    }
}

impl std::error::Error for Unanswered {}

/// Sends requests as one user.
struct Caller {
    connection: SendRequest<Body>,
    token: Option<HeaderValue>,
}

impl Service<Request<Body>> for Caller {
    type Response = Response<Incoming>;
    type Error = Unanswered;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Unanswered>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Unanswered>> {
        let ready = self.connection.poll_ready(cx);
        ready.map_err(|error| Unanswered::Never(cause(&error).into()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(token) = &self.token {
            request.headers_mut().insert("token", token.clone());
        }
        let sent = self.connection.try_send_request(request);
        Box::pin(async move {
            let response = sent.await.map_err(|mut refused| {
                let unsent = refused.take_message().is_some();
                let error = refused.into_error();
                let cause = cause(&error).into();
                if is_no_http2(&error) {
                    Unanswered::Garbage(cause)
                } else if unsent {
                    Unanswered::Never(cause)
                } else {
                    Unanswered::Perhaps(cause)
                }
            })?;
            let kind = response.headers().get(header::CONTENT_TYPE);
            let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
            if is_grpc {
                Ok(response)
            } else {
                let told = format!("status {} without gRPC", response.status());
                Err(Unanswered::Garbage(told.into()))
            }
        })
    }
}

/// An error with its innermost cause, which says most.
fn cause(error: &hyper::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Whether the other side has sent bytes that are not HTTP/2.
fn is_no_http2(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|it| it.downcast_ref::<h2::Error>());
    source.is_some_and(|error| {
        let reason = error.reason();
        error.is_library()
            && matches!(
                reason,
                Some(h2::Reason::PROTOCOL_ERROR | h2::Reason::FRAME_SIZE_ERROR)
            )
    })
}

impl Endpoint {
    /// Scheme and authority of requests.
    fn origin(&self) -> Uri {
        self.to_string().parse().expect("an endpoint is a URI")
    }
}
