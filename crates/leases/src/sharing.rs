//! The limits of a sidecar that are shares of a common capacity, and the addresses of the servers.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use tidegate_limits::Fill;

/// The longest id of a resource.   bytes
pub const ID_BYTES_MAX: usize = 1024;

/// The settings of shared limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharingSettings {
    /// The connection to the capacity servers, and the id of this sidecar.
    pub servers: SharedServers,
    /// The expected maximum of sidecars, each of which always owns its safe share.
    pub expected_sidecars: NonZeroU32,
    /// The limits, each once, each with its own resource.
    pub limits: Vec<SharedLimit>,
}

/// The connection to the capacity servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedServers {
    /// Their addresses; at least one.
    pub addresses: Vec<ServerAddress>,
    /// The id of this sidecar. `None`: a unique one.
    pub id: Option<Arc<str>>,
    /// How long a request may take.
    pub request_timeout: Duration,
    /// No resource is requested again before this.
    pub interval_min: Duration,
    /// Set if they are connected to over TLS. It needs `h2` among its protocols.
    #[cfg(feature = "client")]
    pub tls: Option<tidegate_runtime::tls::TlsClient>,
}

/// A limit that takes its capacity from a leased resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLimit {
    /// The name of the limit, as in metrics.
    pub limit: Arc<str>,
    /// The id of the resource.
    pub resource: Arc<str>,
    /// The safe share of this sidecar.
    pub safe: Safe,
}

/// A safe share, and of what kind of limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Safe {
    /// For a limit on calls or cost, or for a pace in tokens a second.
    Whole(NonZeroU32),
    /// For a bucket: tokens a second.
    Rate(Fill),
}

impl Safe {
    /// As a number.
    #[must_use]
    pub fn get(self) -> f64 {
        match self {
            Self::Whole(safe) => f64::from(safe.get()),
            Self::Rate(safe) => safe.get(),
        }
    }
}

/// Where a capacity server listens: `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerAddress(Box<str>);

/// A text that is not a server's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a server's address must be like \"capacity.example:6666\", not {given:?}")]
pub struct BadAddress {
    /// The text, or its first 100 characters.
    pub given: String,
}

impl FromStr for ServerAddress {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let text = text.strip_prefix("http://").unwrap_or(text);
        let text = text.strip_suffix('/').unwrap_or(text);
        let is_good = text.len() <= 300
            && text.parse::<Authority>().is_ok_and(|authority| {
                authority.port_u16().is_some_and(|port| port > 0)
                    && !authority.host().is_empty()
                    && !text.contains('@')
            });
        if is_good {
            Ok(Self(text.into()))
        } else {
            let given = text.chars().take(100).collect();
            Err(BadAddress { given })
        }
    }
}

impl ServerAddress {
    /// `host:port`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        let check = |text: &str, expected: Option<&str>| {
            let found = text.parse::<ServerAddress>().ok();
            assert_eq!(found.as_ref().map(ServerAddress::as_str), expected);
        };
        check("localhost:6666", Some("localhost:6666"));
        check("http://127.0.0.1:80/", Some("127.0.0.1:80"));
        check("[::1]:6666", Some("[::1]:6666"));
        for wrong in [
            "",
            "host",
            ":80",
            "host:0",
            "host:99999",
            "a b:80",
            "u@host:80",
            "host:80/path",
        ] {
            check(wrong, None);
        }
        check(&format!("{}:80", "h".repeat(300)), None);
    }
}
