//! Values of the arguments of `tidegate init`.

use crate::classify::message::dialects::RpcDialect;
use crate::options::Words as _;

/// Reads the name of a dialect.
pub(super) fn dialect(text: &str) -> Result<RpcDialect, String> {
    let mut words = RpcDialect::WORDS.iter();
    let found = words.find(|(word, _)| *word == text);
    let all = || RpcDialect::WORDS.iter().map(|(word, _)| *word);
    found
        .map(|(_, dialect)| *dialect)
        .ok_or_else(|| format!("write one of {}", all().collect::<Vec<_>>().join(", ")))
}

/// The protocol of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BackendProtocol {
    /// The socket protocol of sdkserver.
    Socket,
    /// HTTP.
    Http,
    /// Any other protocol.
    Tcp,
}

/// The HTTP server that the backend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum HttpServerKind {
    /// sdkwsgi of the z/VM SDK server.
    Zvm,
    /// Any other one.
    Http,
}

/// Calls per window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerWindow {
    /// No limit per window.
    Off,
    /// As the option has it: `total:30, guest_list:10`.
    Calls(String),
}

impl std::str::FromStr for PerWindow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        match text.parse::<u32>() {
            _ if text == "off" => Ok(Self::Off),
            Ok(1..) => Ok(Self::Calls(format!("total:{text}"))),
            Err(_) if text.starts_with("total") => Ok(Self::Calls(text.to_owned())),
            _ => Err(format!(
                "`{text}` is not a number above 0, \"total:30, guest_list:10\" or off"
            )),
        }
    }
}
