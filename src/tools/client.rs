//! Asks a running sidecar's admin address: one request, one answer, within a bound.

mod address;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tidegate_runtime::command::executor;
use tokio::net::TcpStream;

pub use self::address::Address;
use super::failed;
use crate::config;

/// The bound of connecting, asking and the answer together.
const BOUND: Duration = Duration::from_secs(10);
/// The largest answer.   bytes
const ANSWER_MAX: usize = 64 << 20;
/// The default of `admin.bind`.
const DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9180);

/// The sidecar to ask, and its token.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Admin {
    /// The sidecar's admin address: an IP address or a host name with a port, or http://HOST:PORT.
    /// Without it, the one in --config, else 127.0.0.1:9180
    #[arg(long, env = "TIDEGATE_ADMIN", value_name = "ADDR")]
    pub admin: Option<Address>,
    /// A file with the admin token, if the sidecar requires one
    #[arg(long, env = "TIDEGATE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The sidecar's config file: its admin.bind, and the admin.token for that address
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
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
    /// The config does not say where to ask.
    #[error("{0}; or give --admin ADDR, and --token-file if it requires a token")]
    Config(String),
    /// No sidecar answers there.
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
    /// The request was refused.
    #[error("{address} says {status}: {message}")]
    Refused {
        /// The admin address.
        address: Address,
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
    address: Address,
    why: String,
}

/// Where to ask, and with what token.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) address: Address,
    token: Option<Box<str>>,
}

impl Admin {
    /// The JSON answer of a path.
    ///
    /// # Errors
    /// If the token or the config cannot be read, if there is no answer, or if the request was
    /// refused.
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.target()?.get(path)
    }

    /// The JSON answer to a change, whose body is JSON.
    ///
    /// # Errors
    /// If the token or the config cannot be read, if there is no answer, or if the change was
    /// refused.
    pub fn post(&self, path: &str, change: &Value) -> Result<Value, ClientError> {
        self.target()?.ask(path, Some(change))
    }

    /// Where to ask. The token of a config is sent to the address of that config alone.
    pub(super) fn target(&self) -> Result<Target, ClientError> {
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        match (&self.admin, &self.config) {
            (Some(address), _) => Ok(Target {
                address: address.clone(),
                token,
            }),
            (None, None) => Ok(Target {
                address: DEFAULT.into(),
                token,
            }),
            (None, Some(path)) => {
                let settings = match config::load(path) {
                    Ok(checked) => checked.config.admin,
                    Err(error) => {
                        return Err(ClientError::Config(error.render(false).trim_end().into()));
                    }
                };
                let address = settings.bind.filter(|bind| bind.port() != 0);
                let address = address.ok_or_else(|| {
                    let path = path.display();
                    ClientError::Config(format!(
                        "{path} has no admin address with a port: set admin.bind"
                    ))
                })?;
                Ok(Target {
                    address: Address::from(address).reachable(),
                    token: token.or(settings.token.map(|token| token.0)),
                })
            }
        }
    }
}

impl Target {
    /// The JSON answer of a path.
    pub(super) fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.ask(path, None)
    }

    /// The JSON answer of a path, to a change if there is one.
    fn ask(&self, path: &str, change: Option<&Value>) -> Result<Value, ClientError> {
        let address = || self.address.clone();
        let token = self.token.as_deref();
        let (status, body) = answer(&self.address, path, change, token, BOUND)?;
        let answer: Result<Value, _> = serde_json::from_slice(&body);
        match answer {
            Ok(answer) if (200..300).contains(&status) => Ok(answer),
            Ok(answer) => Err(ClientError::Refused {
                address: address(),
                status,
                message: message(&answer) + &self.cure(status, &answer),
            }),
            Err(_) if status == 404 => Err(ClientError::Refused {
                address: address(),
                status,
                message: format!("it has no {path}"),
            }),
            Err(_) => Err(ClientError::NoAnswer(NoAnswer {
                address: address(),
                why: "what it sends is not JSON; is it the admin address of a sidecar?".to_owned(),
            })),
        }
    }

    /// What to do about a refusal, where its message does not say it in terms of this command.
    fn cure(&self, status: u16, answer: &Value) -> String {
        match (status, self.address.name()) {
            (401, _) if self.token.is_some() => {
                "; the token that was sent is another one: compare it with admin.token".to_owned()
            }
            (401, _) => {
                "; give --token-file FILE, or --config FILE with the sidecar's config".to_owned()
            }
            (403, Some(name)) if answer["field"] == "host" => format!(
                "; add allowed_hosts = [\"{name}\"] to [admin] in the sidecar's config and restart \
                 it, or give --admin its IP address"
            ),
            _ => String::new(),
        }
    }
}

fn read_token(path: &Path) -> Result<Box<str>, ClientError> {
    let token = std::fs::read_to_string(path);
    let token = token.map_err(|cause| ClientError::Token {
        path: path.to_owned(),
        cause,
    })?;
    Ok(token.trim().into())
}

/// Asks for a path, or for a change at it, and returns the status and the body, if they come within `bound`.
pub(super) fn answer(
    address: &Address,
    path: &str,
    change: Option<&Value>,
    token: Option<&str>,
    bound: Duration,
) -> Result<(u16, Bytes), NoAnswer> {
    let asking = async {
        match tokio::time::timeout(bound, ask(address, path, change, token)).await {
            Ok(answer) => answer,
            Err(_) => Err(format!(
                "nothing within {} s; does a firewall drop the packets, or is another program \
                 there?",
                bound.as_secs()
            )
            .into()),
        }
    };
    let answer = executor(1).map_err(Anything::from);
    let answer = answer.and_then(|runtime| {
        let answer = runtime.block_on(asking);
        // A resolver that hangs keeps its thread, and this command does not wait for it.
        runtime.shutdown_background();
        answer
    });
    answer.map_err(|error| NoAnswer {
        address: address.clone(),
        why: error.to_string(),
    })
}

type Anything = Box<dyn std::error::Error + Send + Sync>;

/// Connects to the first of the addresses that takes the connection.
async fn connect(address: &Address) -> Result<TcpStream, Anything> {
    let all = address.resolve().await;
    let all = all.map_err(|cause| {
        format!("the host name has no address ({cause}); check its spelling, or give an IP address")
    })?;
    let mut tried = Vec::new();
    for one in all {
        match TcpStream::connect(one).await {
            Ok(stream) => return Ok(stream),
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
    address: &Address,
    path: &str,
    change: Option<&Value>,
    token: Option<&str>,
) -> Result<(u16, Bytes), Anything> {
    let stream = connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (method, body) = match change {
        None => (http::Method::GET, Bytes::new()),
        Some(change) => (http::Method::POST, change.to_string().into()),
    };
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, address.to_string())
        .header(http::header::ACCEPT, "application/json")
        .header(http::header::CONNECTION, "close");
    if change.is_some() {
        request = request.header(http::header::CONTENT_TYPE, "application/json");
    }
    if let Some(token) = token {
        request = request.header(http::header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let response = sender.send_request(request.body(Full::new(body))?).await?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), ANSWER_MAX);
    Ok((status, body.collect().await?.to_bytes()))
}

/// The message of an error, in one line.
fn message(answer: &Value) -> String {
    let text = |name: &str| word_or_nothing(&answer[name]);
    match (&*text("what"), &*text("field")) {
        ("", "") => text("error"),
        ("", field) => format!("{}: {field} {}", text("error"), text("reason")),
        (what, _) => format!("there is no {what} {}", text("id")),
    }
}

fn word_or_nothing(value: &Value) -> String {
    match value.as_str() {
        None | Some("") => String::new(),
        Some(_) => word(value),
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
    fn an_unknown_host_name_is_refused_with_the_option_to_set() {
        let target = Target {
            address: "gate.example:9180".parse().expect("an address"),
            token: None,
        };
        let cure = target.cure(403, &serde_json::json!({"field": "host"}));
        assert!(
            cure.contains("allowed_hosts = [\"gate.example\"]"),
            "{cure}"
        );
        assert_eq!(
            target.cure(403, &serde_json::json!({"field": "origin"})),
            ""
        );
    }

    #[test]
    fn a_text_cannot_speak_to_the_terminal() {
        assert_eq!(word(&Value::from("a\u{1b}[2Jb\n")), "a?[2Jb?");
    }
}
