//! A connection for one request and its answer.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tidegate_runtime::ByteStream;
use tidegate_runtime::command::executor;
use tokio::net::{TcpStream, UnixStream};

use crate::tools::address::AdminAddress;

/// The largest answer.   bytes
const ANSWER_MAX: usize = 64 << 20;

/// No process answers, or not with what was asked for.
#[derive(Debug, thiserror::Error)]
#[error("no answer from {address}: {why}")]
pub struct NoAnswer {
    address: AdminAddress,
    why: String,
}

impl NoAnswer {
    pub(super) fn new(address: AdminAddress, why: String) -> Self {
        Self { address, why }
    }
}

/// The kind of a request to a path.
#[derive(Clone, Copy, Debug)]
pub enum AdminRequest<'a> {
    /// The state of the path.
    Read,
    /// A change, as JSON.
    Change(&'a Value),
    /// Removal of the path.
    Remove,
}

/// Asks a path, and returns the status and the body, if they come within `bound`.
pub fn answer(
    address: &AdminAddress,
    path: &str,
    asked: AdminRequest<'_>,
    token: Option<&str>,
    bound: Duration,
) -> Result<(u16, Bytes), NoAnswer> {
    let asking = async {
        match tokio::time::timeout(bound, ask(address, path, asked, token)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!(
                "nothing within {} s; does a firewall drop the packets, or is another program \
                 there?",
                bound.as_secs()
            )
            .into()),
        }
    };
    let answer = executor(1).map_err(BoxError::from);
    let answer = answer.and_then(|runtime| {
        let answer = runtime.block_on(asking);
        // A resolver that hangs keeps its thread, and this command does not wait for it.
        runtime.shutdown_background();
        answer
    });
    answer.map_err(|error| NoAnswer::new(address.clone(), error.to_string()))
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Connects to the socket file, or to the first of the addresses that takes the connection.
async fn connect(address: &AdminAddress) -> Result<Box<dyn ByteStream>, BoxError> {
    if let Some(file) = address.file() {
        return match UnixStream::connect(file).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(cause) => Err(format!(
                "{cause}; is the sidecar running, is this its admin.socket, and may this user \
                 open it? Its owner and its group may"
            )
            .into()),
        };
    }
    let all = address.resolve().await;
    let all = all.map_err(|cause| {
        format!("the host name has no address ({cause}); check its spelling, or give an IP address")
    })?;
    let mut tried = Vec::new();
    for one in all {
        match TcpStream::connect(one).await {
            Ok(stream) => return Ok(Box::new(stream)),
            Err(cause) => tried.push(format!("{one}: {cause}")),
        }
    }
    let tried = tried.join(", ");
    Err(format!(
        "tried {tried}; is the sidecar running, and is this its admin.bind? An admin.bind of \
         127.0.0.1 takes connections of its own machine alone"
    )
    .into())
}

async fn ask(
    address: &AdminAddress,
    path: &str,
    asked: AdminRequest<'_>,
    token: Option<&str>,
) -> Result<(u16, Bytes), BoxError> {
    let response = open(address, path, asked, token).await?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_MAX);
    Ok((status, body.collect().await?.to_bytes()))
}

/// Asks, and returns the answer once its head has come.
pub(super) async fn open(
    address: &AdminAddress,
    path: &str,
    asked: AdminRequest<'_>,
    token: Option<&str>,
) -> Result<http::Response<Incoming>, BoxError> {
    let stream = connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (method, body) = match asked {
        AdminRequest::Read => (http::Method::GET, Bytes::new()),
        AdminRequest::Change(change) => (http::Method::POST, change.to_string().into()),
        AdminRequest::Remove => (http::Method::DELETE, Bytes::new()),
    };
    let is_json = !body.is_empty();
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, address.host())
        .header(http::header::ACCEPT, "application/json")
        .header(http::header::CONNECTION, "close");
    if is_json {
        request = request.header(http::header::CONTENT_TYPE, "application/json");
    }
    if let Some(token) = token {
        request = request.header(http::header::AUTHORIZATION, format!("Bearer {token}"));
    }
    Ok(sender.send_request(request.body(Full::new(body))?).await?)
}
