//! What operators see, on the admin address only.

use std::net::SocketAddr;

/// What this part is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The address; none switches it off.
    pub bind: Option<SocketAddr>,
    /// Asked for as `Authorization: Bearer …` on everything but the health checks.
    pub token: Option<Token>,
}

/// A secret that never shows itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub Box<str>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}
