//! Connections to one member.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;

use super::endpoint::Endpoint;

/// Connections kept for the next call; more are made, and closed after use.
const IDLE_MAX: usize = 4;

/// Why there is no whole reply.
#[derive(Debug)]
pub(super) enum Unsent {
    /// Not a byte of the request has left.
    Never(Box<str>),
    /// It may have been done.
    Perhaps(Box<str>),
    /// Something answered, but not as etcd does.
    Garbage(Box<str>),
}

/// A whole reply.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

/// The idle connections to one member.
pub(super) struct Pool {
    endpoint: Endpoint,
    tls: Option<Arc<ClientConfig>>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Pool {
    pub(super) fn new(endpoint: Endpoint, tls: Option<Arc<ClientConfig>>) -> Self {
        Self {
            endpoint,
            tls,
            idle: Mutex::default(),
        }
    }

    /// Posts a body and reads the reply to its end, by `end`.
    pub(super) async fn post(
        &self,
        path: &str,
        body: &[u8],
        token: Option<&str>,
        end: Instant,
        max_reply: usize,
    ) -> Result<Reply, Unsent> {
        let (response, sender) = self.send(path, body, token, end).await?;
        let status = response.status();
        let mut incoming = response.into_body();
        let mut body = Vec::new();
        loop {
            let frame = timeout_at(end, incoming.frame())
                .await
                .map_err(|_| self.perhaps("its answer did not end in time"))?;
            match frame {
                None => break,
                Some(Err(error)) => return Err(self.perhaps(error)),
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    if body.len() + data.len() > max_reply {
                        let told = format!("{}: an answer over {max_reply} bytes", self.endpoint);
                        return Err(Unsent::Garbage(told.into()));
                    }
                    body.extend_from_slice(&data);
                }
            }
        }
        self.keep(sender);
        Ok(Reply { status, body })
    }

    /// Posts a body; the reply, of which the head must come by `end`, may go on for ever.
    pub(super) async fn stream(
        &self,
        path: &str,
        body: &[u8],
        token: Option<&str>,
        end: Instant,
    ) -> Result<http::Response<Incoming>, Unsent> {
        let (response, _) = self.send(path, body, token, end).await?;
        Ok(response)
    }

    async fn send(
        &self,
        path: &str,
        body: &[u8],
        token: Option<&str>,
        end: Instant,
    ) -> Result<(http::Response<Incoming>, SendRequest<Full<Bytes>>), Unsent> {
        let mut request = self.request(path, body, token)?;
        loop {
            let (mut sender, kept) = match self.idle() {
                Some(sender) => (sender, true),
                None => (self.connect(end).await?, false),
            };
            let sent = timeout_at(end, sender.try_send_request(request)).await;
            match sent {
                Err(_) => return Err(self.perhaps("no answer in time")),
                Ok(Ok(response)) => return Ok((response, sender)),
                Ok(Err(mut refused)) => match refused.take_message() {
                    // The member had closed it before anything was written.
                    Some(unsent) if kept => request = unsent,
                    Some(_) => return Err(self.never(refused.into_error())),
                    None => {
                        let error = refused.into_error();
                        return Err(if error.is_parse() || error.is_parse_too_large() {
                            Unsent::Garbage(format!("{}: {error}", self.endpoint).into())
                        } else {
                            self.perhaps(error)
                        });
                    }
                },
            }
        }
    }

    fn request(
        &self,
        path: &str,
        body: &[u8],
        token: Option<&str>,
    ) -> Result<Request<Full<Bytes>>, Unsent> {
        let mut request = Request::post(path)
            .header(header::HOST, &*self.endpoint.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, token);
        }
        request
            .body(Full::new(Bytes::copy_from_slice(body)))
            // Only the token is not our own text.
            .map_err(|_| Unsent::Garbage("a token that is no header's value".into()))
    }

    fn idle(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(sender) = idle.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, sender: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !sender.is_closed() {
            idle.push(sender);
        }
    }

    async fn connect(&self, end: Instant) -> Result<SendRequest<Full<Bytes>>, Unsent> {
        let connecting = async {
            let stream = TcpStream::connect(&*self.endpoint.authority)
                .await
                .map_err(|error| self.never(error))?;
            // Small requests, each answered before the next.
            let _ = stream.set_nodelay(true);
            if !self.endpoint.https {
                return self.handshake(stream).await;
            }
            let Some(tls) = &self.tls else {
                return Err(self.never("https, but nobody to trust is configured"));
            };
            let Some(name) = self.endpoint.server_name() else {
                return Err(self.never("its host is no name that a certificate can carry"));
            };
            let stream = TlsConnector::from(Arc::clone(tls))
                .connect(name, stream)
                .await
                .map_err(|error| self.never(error))?;
            self.handshake(stream).await
        };
        timeout_at(end, connecting)
            .await
            .unwrap_or_else(|_| Err(self.never("not connected in time")))
    }

    async fn handshake<S>(&self, stream: S) -> Result<SendRequest<Full<Bytes>>, Unsent>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.never(error))?;
        // Ends with its sender and the last reply; what goes wrong reaches whoever waits.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn never(&self, cause: impl std::fmt::Display) -> Unsent {
        Unsent::Never(format!("{}: {cause}", self.endpoint).into())
    }

    fn perhaps(&self, cause: impl std::fmt::Display) -> Unsent {
        Unsent::Perhaps(format!("{}: {cause}", self.endpoint).into())
    }
}
