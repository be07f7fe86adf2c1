//! The connection to one member.

use std::error::Error as _;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, Uri, header};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic::codegen::tokio_stream::{self, StreamExt as _};
use tonic_prost::ProstCodec;

use super::EtcdSettings;
use super::endpoint::Endpoint;
use super::failure::EtcdFailure;
use crate::tls::{CloseReason, TlsClient};
use crate::{ByteStream, lock};

/// A member of a cluster, and its connection, which all calls share.
pub(super) struct EtcdMember {
    endpoint: Endpoint,
    tls: Option<TlsClient>,
    max_reply: usize,
    connection: Mutex<Option<MemberLink>>,
}

/// A connection, and why its server ended it.
type MemberLink = (SendRequest<Body>, CloseReason);

/// Messages of a stream, in order.
pub(super) type Messages<T> = tonic::Streaming<T>;

impl EtcdMember {
    pub(super) fn new(endpoint: Endpoint, settings: &EtcdSettings) -> Self {
        Self {
            endpoint,
            tls: settings.tls.clone(),
            max_reply: settings.max_reply,
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
    ) -> Result<R, EtcdFailure>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.grpc(token, end).await?;
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
    ) -> Result<Messages<R>, EtcdFailure>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.grpc(token, end).await?;
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
    ) -> Result<Grpc<RequestSender>, EtcdFailure> {
        let token = match token.map(HeaderValue::from_str) {
            None => None,
            Some(Ok(token)) => Some(token),
            Some(Err(_)) => return Err(self.endpoint.garbage("a token that is no header's value")),
        };
        let kept = lock(&self.connection).clone();
        let (connection, said) = match kept.filter(|(kept, _)| kept.is_ready()) {
            Some(kept) => kept,
            None => {
                let connected = self.connect(end).await?;
                *lock(&self.connection) = Some(connected.clone());
                connected
            }
        };
        let endpoint = self.endpoint.clone();
        let caller = RequestSender {
            endpoint,
            connection,
            said,
            token,
        };
        let grpc = Grpc::with_origin(caller, self.endpoint.origin());
        Ok(grpc.max_decoding_message_size(self.max_reply))
    }

    /// The result of an answer. After any answer that is not etcd's, the next call connects again.
    fn answered<T>(
        &self,
        answer: Result<Result<tonic::Response<T>, Status>, tokio::time::error::Elapsed>,
    ) -> Result<T, EtcdFailure> {
        let failure = match answer {
            Ok(Ok(response)) => return Ok(response.into_inner()),
            Ok(Err(status)) => {
                let unanswered = status
                    .source()
                    .and_then(|it| it.downcast_ref::<EtcdFailure>());
                unanswered
                    .cloned()
                    .ok_or_else(|| EtcdFailure::of(&status))?
            }
            Err(_) => self.endpoint.trouble("no answer in time"),
        };
        *lock(&self.connection) = None;
        Err(failure)
    }

    async fn connect(&self, end: Instant) -> Result<MemberLink, EtcdFailure> {
        let endpoint = &self.endpoint;
        let connecting = async {
            let stream = TcpStream::connect(&*endpoint.authority)
                .await
                .map_err(|error| endpoint.unsent(error))?;
            // Small requests, each answered before the next.
            let _ = stream.set_nodelay(true);
            if !endpoint.https {
                return self
                    .handshake(Box::new(stream), CloseReason::default())
                    .await;
            }
            let Some(tls) = &self.tls else {
                return Err(endpoint.unsent("https, but no authority to trust is configured"));
            };
            let session = tls.connect(&endpoint.host, stream).await;
            let stream = session.map_err(|error| endpoint.unsent(error))?;
            let said = stream.said();
            self.handshake(Box::new(stream), said).await
        };
        timeout_at(end, connecting)
            .await
            .unwrap_or_else(|_| Err(endpoint.unsent("not connected in time")))
    }

    async fn handshake(
        &self,
        stream: Box<dyn ByteStream>,
        said: CloseReason,
    ) -> Result<MemberLink, EtcdFailure> {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|error| {
                self.endpoint
                    .unsent(said.get().unwrap_or(&error.to_string()))
            })?;
        // Ends with its sender and the last reply; the calls get its errors.
        tokio::spawn(connection);
        Ok((sender, said))
    }
}

/// Sends requests as one user.
struct RequestSender {
    endpoint: Endpoint,
    connection: SendRequest<Body>,
    said: CloseReason,
    token: Option<HeaderValue>,
}

impl Service<Request<Body>> for RequestSender {
    type Response = Response<Incoming>;
    type Error = EtcdFailure;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, EtcdFailure>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), EtcdFailure>> {
        let ready = self.connection.poll_ready(cx);
        ready.map_err(|error| self.endpoint.unsent(cause(&error, &self.said)))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(token) = &self.token {
            request.headers_mut().insert("token", token.clone());
        }
        let sent = self.connection.try_send_request(request);
        let (endpoint, said) = (self.endpoint.clone(), self.said.clone());
        Box::pin(async move {
            let response = sent.await.map_err(|mut refused| {
                let unsent = refused.take_message().is_some();
                let error = refused.into_error();
                let cause = cause(&error, &said);
                if is_no_http2(&error) {
                    endpoint.garbage(cause)
                } else if unsent {
                    endpoint.unsent(cause)
                } else {
                    endpoint.trouble(cause)
                }
            })?;
            let kind = response.headers().get(header::CONTENT_TYPE);
            let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
            if is_grpc {
                Ok(response)
            } else {
                Err(endpoint.garbage(format!("status {} without gRPC", response.status())))
            }
        })
    }
}

/// The server's own words, or else an error with its innermost cause, which says most.
fn cause(error: &hyper::Error, said: &CloseReason) -> String {
    if let Some(said) = said.get() {
        return said.to_owned();
    }
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

    fn unsent(&self, cause: impl fmt::Display) -> EtcdFailure {
        EtcdFailure::Unsent(format!("{self}: {cause}").into())
    }

    fn trouble(&self, cause: impl fmt::Display) -> EtcdFailure {
        EtcdFailure::Trouble(format!("{self}: {cause}").into())
    }

    fn garbage(&self, cause: impl fmt::Display) -> EtcdFailure {
        EtcdFailure::Garbage(format!("{self}: {cause}").into())
    }
}
