//! Asks a running sidecar's admin address: one request, one answer, within a bound.

mod connection;
mod stream;

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use tidegate_runtime::command::printed;

pub use self::connection::NoAnswer;
pub use self::connection::{AdminRequest, answer};
use self::stream::StreamEnd;
pub use super::address::AdminAddress;
use super::{failed, runtime_file};
use crate::config::{self, DEFAULT_PATH};
use crate::options::shown::quoted;

/// The bound of connecting, asking and the answer together.
const BOUND: Duration = Duration::from_secs(10);
/// The variable that names the config of the sidecar.
const CONFIG_VARIABLE: &str = "TIDEGATE_CONFIG";
/// `admin.bind` in the environment, which a container shares with its commands.
const BIND_VARIABLE: &str = "TIDEGATE_ADMIN__BIND";
/// The default of `admin.bind`.
const DEFAULT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9180);

/// The sidecar to ask, and its token.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Admin {
    /// The sidecar's admin address: an IP address or a host name with a port, http://HOST:PORT, or
    /// unix:/PATH of its socket file. Without it, the one that the sidecar wrote at its start
    #[arg(long, env = "TIDEGATE_ADMIN", value_name = "ADDR")]
    pub admin: Option<AdminAddress>,
    /// A file with the admin token, if the sidecar requires one
    #[arg(long, env = "TIDEGATE_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// The sidecar's config file: its admin.socket if that can be opened, which needs no token; else
    /// the address that the sidecar of this file wrote at its start, or its admin.bind, with the
    /// admin.token for that address or the first of admin.tokens
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
        address: AdminAddress,
        /// The HTTP status.
        status: u16,
        /// The message.
        message: String,
    },
}

/// Where to ask, and with what token.
#[derive(Clone)]
pub struct AdminTarget {
    /// The address of the sidecar.
    pub address: AdminAddress,
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
        self.target()?.ask(path, AdminRequest::Change(change))
    }

    /// Asks that something is no longer there.
    ///
    /// # Errors
    /// If the token or the config cannot be read, if there is no answer, or if it was refused.
    pub fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.target()?.ask(path, AdminRequest::Remove).map(|_| ())
    }

    /// Where to ask. The token of a config is sent to the address of that config alone.
    pub fn target(&self) -> Result<AdminTarget, ClientError> {
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        match (&self.admin, &self.config) {
            (Some(address), _) => Ok(AdminTarget {
                address: address.clone(),
                token,
            }),
            (None, None) => {
                let config = std::env::var_os(CONFIG_VARIABLE).map(PathBuf::from);
                let config = config.unwrap_or_else(|| DEFAULT_PATH.into());
                let (address, _) = locate(&config, false).map_err(ClientError::Config)?;
                Ok(AdminTarget {
                    address: address.reachable(),
                    token,
                })
            }
            (None, Some(path)) => of_config(path, token),
        }
    }
}

/// Where the sidecar of a config is, and how that is known; the config is not read. `is_named` if no
/// other sidecar may be meant.
///
/// # Errors
/// If it runs without an admin address, if a named one does not run, or if a variable is no address.
pub(super) fn locate(config: &Path, is_named: bool) -> Result<(AdminAddress, String), String> {
    let file = runtime_file::path(config);
    match runtime_file::read(config) {
        Ok(Some(admin)) => return Ok((admin, file.display().to_string())),
        Ok(None) => {
            let file = file.display();
            return Err(format!(
                "the sidecar runs without an admin address ({file}): set admin.bind or admin.socket"
            ));
        }
        Err(cause) if is_named => {
            let (config, file) = (config.display(), file.display());
            return Err(format!(
                "the sidecar with {config} does not run, or could not write {file} ({cause}): start \
                 it, or give its address with --admin"
            ));
        }
        // Not every sidecar can write there.
        Err(_) => {}
    }
    match std::env::var(BIND_VARIABLE) {
        Ok(given) => {
            let admin: SocketAddr = given.parse().map_err(|_| {
                format!(
                    "{BIND_VARIABLE} is {}, not an address with a port",
                    quoted(&given)
                )
            })?;
            Ok((admin.into(), BIND_VARIABLE.to_owned()))
        }
        Err(_) => Ok((
            DEFAULT.into(),
            format!("the default, since there is no {}", file.display()),
        )),
    }
}

/// Where to ask the sidecar of a config. The socket file comes first: what is done there is logged
/// with its user. It needs no token, so only a token that was given on the command line is sent there.
/// Then comes what the running sidecar wrote, because the config may have changed since.
fn of_config(path: &Path, token: Option<Box<str>>) -> Result<AdminTarget, ClientError> {
    let running = runtime_file::read(path).ok().flatten();
    let settings = match (config::load(path), &running) {
        (Ok(checked), _) => checked.config.admin,
        (Err(_), Some(address)) => {
            let address = address.clone().reachable();
            return Ok(AdminTarget { address, token });
        }
        (Err(error), None) => {
            return Err(ClientError::Config(error.render(false).trim_end().into()));
        }
    };
    let bind = settings.bind.filter(|bind| bind.port() != 0);
    let running = running.filter(|address| address.file().is_none());
    let address = running
        .or(bind.map(AdminAddress::from))
        .map(AdminAddress::reachable);
    if let Some(file) = settings.socket.as_deref() {
        // Without another address, the error of the file is the one to report.
        if address.is_none() || UnixStream::connect(file).is_ok() {
            return Ok(AdminTarget {
                address: AdminAddress::from(file),
                token,
            });
        }
    }
    let Some(address) = address else {
        return Err(ClientError::Config(format!(
            "{} has no admin address with a port: set admin.bind or admin.socket",
            path.display()
        )));
    };
    let first = settings.tokens.first().map(|named| &named.token);
    let of_config = settings.token.as_ref().or(first);
    Ok(AdminTarget {
        address,
        token: token.or_else(|| of_config.map(|token| token.0.clone())),
    })
}

impl AdminTarget {
    /// The token for its address.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The JSON answer of a path.
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.ask(path, AdminRequest::Read)
    }

    /// Follows a path whose answer has a line of JSON each second, until the sidecar ends it.
    ///
    /// # Errors
    /// If there is no answer, if it was refused, or if its lines stop coming.
    pub fn follow(
        &self,
        path: &str,
        take: impl FnMut(Value) -> ControlFlow<()>,
    ) -> Result<(), ClientError> {
        match stream::follow(&self.address, path, self.token.as_deref(), take)? {
            StreamEnd::Whole => Ok(()),
            StreamEnd::Refused(status, body) => Err(self.refused(path, status, &body)),
        }
    }

    /// The JSON answer of a path. What is no longer there has none.
    fn ask(&self, path: &str, asked: AdminRequest<'_>) -> Result<Value, ClientError> {
        let token = self.token.as_deref();
        let (status, body) = answer(&self.address, path, asked, token, BOUND)?;
        if status == 204 {
            return Ok(Value::Null);
        }
        match serde_json::from_slice(&body) {
            Ok(answer) if (200..300).contains(&status) => Ok(answer),
            _ => Err(self.refused(path, status, &body)),
        }
    }

    /// The error of an answer that is not what was asked for.
    fn refused(&self, path: &str, status: u16, body: &[u8]) -> ClientError {
        let address = self.address.clone();
        let message = match serde_json::from_slice(body) {
            Ok(answer) => message(&answer) + &self.cure(status, &answer),
            Err(_) if status == 404 => format!("it has no {path}"),
            Err(_) => {
                let why = "what it sends is not JSON; is it the admin address of a sidecar?";
                return ClientError::NoAnswer(NoAnswer::new(address, why.to_owned()));
            }
        };
        ClientError::Refused {
            address,
            status,
            message,
        }
    }

    /// The cure for a refusal, where the message does not name it in terms of this command.
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

/// The message of an error, in one line.
fn message(answer: &Value) -> String {
    let text = |name: &str| word_or_nothing(&answer[name]);
    match (&*text("what"), &*text("field")) {
        ("", "") => text("error"),
        ("", field) => format!("{}: {field} {}", text("error"), text("reason")),
        (what, _) => match &*text("reason") {
            "" => format!("there is no {what} {}", text("id")),
            reason => format!("there is no {what} {}: {reason}", text("id")),
        },
    }
}

fn word_or_nothing(value: &Value) -> String {
    match value.as_str() {
        None | Some("") => String::new(),
        Some(_) => word(value),
    }
}

/// The list of this name.
pub fn list<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

/// A figure with its significant digits; `-` for none.
pub fn figure(value: &Value) -> String {
    match value.as_f64() {
        None => "-".to_owned(),
        Some(number) if number.fract() == 0.0 => format!("{number:.0}"),
        Some(number) => format!("{number:.2}"),
    }
}

/// A text without control characters of a terminal; `-` for none.
pub fn word(value: &Value) -> String {
    match value.as_str() {
        None | Some("") => "-".to_owned(),
        Some(text) => text
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect(),
    }
}

/// Prints the result of `show`, or the whole answer as JSON.
pub fn print(
    admin: &Admin,
    answer: Result<Value, ClientError>,
    show: impl FnOnce(&Value) -> String,
) -> ExitCode {
    let text = match &answer {
        Ok(answer) if admin.json => format!("{answer:#}\n"),
        Ok(answer) => show(answer),
        Err(error) => return failed(error),
    };
    printed(&text, ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_host_name_is_refused_with_the_option_to_set() {
        let target = AdminTarget {
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
