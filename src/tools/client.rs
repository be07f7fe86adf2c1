//! Asks a running sidecar's admin address: one request, one answer, within a bound.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tidegate_runtime::command::executor;
use tokio::net::TcpStream;

use super::failed;

/// The bound of connecting, asking and the answer together.
const BOUND: Duration = Duration::from_secs(10);
/// The largest answer.   bytes
const ANSWER_MAX: usize = 64 << 20;

/// The sidecar to ask, and its token.
#[derive(Clone, Debug, clap::Args)]
pub struct Admin {
    /// The sidecar's admin address
    #[arg(
        long,
        env = "TIDEGATE_ADMIN",
        default_value = "127.0.0.1:9180",
        value_name = "ADDR"
    )]
    pub admin: SocketAddr,
    /// A file with the admin token, if the sidecar requires one
    #[arg(long, env = "TIDEGATE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print the raw answer, as JSON
    #[arg(long)]
    pub json: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The token cannot be read.
    #[error("cannot read the token in {}: {cause}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        cause: std::io::Error,
    },
    /// No sidecar answers there.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// The request was refused.
    #[error("{address} says {status}: {message}")]
    Refused {
        /// The admin address.
        address: SocketAddr,
        /// The HTTP status.
        status: u16,
        /// The message.
        message: String,
    },
}

/// No process answers, or not with what was asked for.
#[derive(Debug, thiserror::Error)]
#[error("no answer from {address}: {why}")]
pub struct NoAnswer {
    address: SocketAddr,
    why: String,
}

impl Admin {
    /// The JSON answer of a path.
    ///
    /// # Errors
    /// If the file has no token, if there is no answer, or if the request was refused.
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        let (status, body) = answer(self.admin, path, token.as_deref(), BOUND)?;
        let answer: Value = serde_json::from_slice(&body).map_err(|_| NoAnswer {
            address: self.admin,
            why: "what it says is no JSON".to_owned(),
        })?;
        if status == 200 {
            return Ok(answer);
        }
        Err(ClientError::Refused {
            address: self.admin,
            status,
            message: message(&answer),
        })
    }
}

fn read_token(path: &Path) -> Result<String, ClientError> {
    let token = std::fs::read_to_string(path);
    let token = token.map_err(|cause| ClientError::Token {
        path: path.to_owned(),
        cause,
    })?;
    Ok(token.trim().to_owned())
}

/// Asks for a path and returns the status and the body, if they come within `bound`.
pub(super) fn answer(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
    bound: Duration,
) -> Result<(u16, Bytes), NoAnswer> {
    let asking = async {
        match tokio::time::timeout(bound, ask(address, path, token)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("nothing within {} s", bound.as_secs()).into()),
        }
    };
    let answer = executor(1).map_err(Anything::from);
    let answer = answer.and_then(|runtime| runtime.block_on(asking));
    answer.map_err(|error| NoAnswer {
        address,
        why: error.to_string(),
    })
}

type Anything = Box<dyn std::error::Error + Send + Sync>;

async fn ask(
    address: SocketAddr,
    path: &str,
    token: Option<&str>,
) -> Result<(u16, Bytes), Anything> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request = http::Request::get(path)
        .header(http::header::HOST, address.to_string())
        .header(http::header::ACCEPT, "application/json")
        .header(http::header::CONNECTION, "close");
    if let Some(token) = token {
        request = request.header(http::header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let response = sender
        .send_request(request.body(Empty::<Bytes>::new())?)
        .await?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_MAX);
    Ok((status, body.collect().await?.to_bytes()))
}

/// The message of an error, in one line.
fn message(answer: &Value) -> String {
    let text = |name: &str| answer[name].as_str().unwrap_or_default();
    match (text("what"), text("field")) {
        ("", "") => text("error").to_owned(),
        ("", field) => format!("{}: {field} {}", text("error"), text("reason")),
        (what, _) => format!("there is no {what} {}", text("id")),
    }
}

/// The list of this name.
pub(super) fn list<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

/// A figure with its significant digits; `-` for none.
pub(super) fn figure(value: &Value) -> String {
    match value.as_f64() {
        None => "-".to_owned(),
        Some(number) if number.fract() == 0.0 => format!("{number:.0}"),
        Some(number) => format!("{number:.2}"),
    }
}

/// A text without control characters of a terminal; `-` for none.
pub(super) fn word(value: &Value) -> String {
    match value.as_str() {
        None | Some("") => "-".to_owned(),
        Some(text) => text
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect(),
    }
}

/// Prints the result of `show`, or the whole answer as JSON.
pub(super) fn print(
    admin: &Admin,
    answer: Result<Value, ClientError>,
    show: impl FnOnce(&Value) -> String,
) -> ExitCode {
    let text = match &answer {
        Ok(answer) if admin.json => format!("{answer:#}\n"),
        Ok(answer) => show(answer),
        Err(error) => return failed(error),
    };
    // The reader may have closed the pipe.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_speak_to_the_terminal() {
        assert_eq!(word(&Value::from("a\u{1b}[2Jb\n")), "a?[2Jb?");
    }
}
