//! The address of a member of etcd.

use std::fmt;
use std::str::FromStr;

/// The address of a member: `http://host:port` or `https://host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// `host:port`, for the connect.
    pub(super) authority: Box<str>,
    pub(super) host: Box<str>,
    pub(super) https: bool,
}

/// An invalid endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an etcd endpoint is http://HOST:PORT or https://HOST:PORT, not {given:?}")]
pub struct EndpointError {
    /// The text as given.
    pub given: String,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let wrong = || EndpointError {
            given: text.to_owned(),
        };
        let uri: http::Uri = text.parse().map_err(|_| wrong())?;
        let https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        // Without user and path: both would get lost silently.
        let plain = uri.path_and_query().is_none_or(|path| path == "/");
        if authority.port_u16().is_none() || authority.as_str().contains('@') || !plain {
            return Err(wrong());
        }
        let host = authority.host();
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        Ok(Self {
            authority: authority.as_str().into(),
            host: bare.unwrap_or(host).into(),
            https,
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}
