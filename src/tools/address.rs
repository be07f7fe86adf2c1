//! The address of a sidecar as people give it: an IP address or a host name, with a port; or a
//! socket file.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::str::FromStr;

use crate::call::listener::socket_path;

/// The longest name that DNS has.   bytes
const NAME_MAX: usize = 253;

/// An IP address or a host name, with a port; or a socket file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminAddress(AddressKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum AddressKind {
    Ip(SocketAddr),
    Name(Box<str>, u16),
    File(Box<Path>),
}

impl AdminAddress {
    /// The host name; none for an IP address.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match &self.0 {
            AddressKind::Name(name, _) => Some(name),
            AddressKind::Ip(_) | AddressKind::File(_) => None,
        }
    }

    /// The socket file, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.0 {
            AddressKind::File(path) => Some(path),
            AddressKind::Ip(_) | AddressKind::Name(..) => None,
        }
    }

    /// Returns the value for the `Host` field.
    pub fn host(&self) -> String {
        match &self.0 {
            AddressKind::File(_) => "localhost".to_owned(),
            AddressKind::Ip(_) | AddressKind::Name(..) => self.to_string(),
        }
    }

    /// Every socket address that it leads to; none of a file.
    ///
    /// # Errors
    /// If the system cannot resolve the host name.
    pub async fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        match &self.0 {
            AddressKind::Ip(address) => Ok(vec![*address]),
            AddressKind::Name(name, port) => {
                Ok(tokio::net::lookup_host((&**name, *port)).await?.collect())
            }
            AddressKind::File(_) => Ok(Vec::new()),
        }
    }

    /// Replaces a wildcard address by the loopback address, where a client reaches it.
    #[must_use]
    pub fn reachable(self) -> Self {
        let AddressKind::Ip(mut address) = self.0 else {
            return self;
        };
        if address.ip().is_unspecified() {
            address.set_ip(match address.ip() {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        Self(AddressKind::Ip(address))
    }
}

impl From<SocketAddr> for AdminAddress {
    fn from(address: SocketAddr) -> Self {
        Self(AddressKind::Ip(address))
    }
}

impl From<&Path> for AdminAddress {
    fn from(file: &Path) -> Self {
        Self(AddressKind::File(file.into()))
    }
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let given = text.trim();
        if let Some(path) = given.strip_prefix("unix:") {
            let path = socket_path(path)
                .map_err(|mistake| format!("{}; {}", mistake.message, mistake.cure))?;
            return Ok(path.into());
        }
        if has_scheme(given, "https://") {
            return Err(
                "the admin address has no TLS; use http://HOST:PORT, or a tunnel such as `ssh -L`"
                    .to_owned(),
            );
        }
        let given = match has_scheme(given, "http://") {
            true => &given["http://".len()..],
            false => given,
        };
        let given = given.strip_suffix('/').unwrap_or(given);
        if let Ok(address) = given.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        // What stands before an @ may be a secret, so nothing is quoted.
        if given.contains('@') {
            return Err(
                "an admin address has no user and no password; give the token with --token-file"
                    .to_owned(),
            );
        }
        let Some((host, port)) = given.rsplit_once(':') else {
            return Err(format!("no port; add it, such as {given}:9180"));
        };
        let port = port.parse::<u16>().map_err(|_| {
            "not HOST:PORT; give an address such as 10.0.0.1:9180, [::1]:9180 or gate.example:9180"
                .to_owned()
        })?;
        let is_label = |label: &str| {
            let mut bytes = label.bytes();
            !label.is_empty() && bytes.all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        let name = host.strip_suffix('.').unwrap_or(host);
        if name.len() > NAME_MAX || !name.split('.').all(is_label) {
            return Err(
                "the host is no IP address and no host name; put an IPv6 address in brackets, \
                 such as [::1]:9180"
                    .to_owned(),
            );
        }
        Ok(Self(AddressKind::Name(host.into(), port)))
    }
}

fn has_scheme(text: &str, scheme: &str) -> bool {
    let start = text.get(..scheme.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            AddressKind::Ip(address) => write!(f, "{address}"),
            AddressKind::Name(name, port) => write!(f, "{name}:{port}"),
            AddressKind::File(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(given: &str, expected: Result<&str, &str>) {
        let read = given.parse::<AdminAddress>();
        match expected {
            Ok(expected) => assert_eq!(read.expect(given).to_string(), expected),
            Err(part) => {
                let error = read.expect_err(given);
                assert!(error.contains(part), "{given}: {error}");
            }
        }
    }

    #[test]
    fn an_address_is_an_ip_address_or_a_host_name_with_a_port() {
        check("127.0.0.1:9180", Ok("127.0.0.1:9180"));
        check("[::1]:9180", Ok("[::1]:9180"));
        check("gate.example:9180", Ok("gate.example:9180"));
        check("HTTP://gate-1:80/", Ok("gate-1:80"));
        check("http://[::1]:9180", Ok("[::1]:9180"));
        check(
            "unix:/run/tidegate/admin.sock",
            Ok("unix:/run/tidegate/admin.sock"),
        );
        check("unix:run/admin.sock", Err("whole path"));
        check("gate.example", Err("gate.example:9180"));
        check("https://gate.example:9180", Err("no TLS"));
        check("::1:9180", Err("brackets"));
        check("gate:http", Err("HOST:PORT"));
        check("gate:99999", Err("HOST:PORT"));
        check("gate example:9180", Err("no host name"));
        check("http://ann:secret@gate:9180", Err("no password"));
        check("ann@gate", Err("--token-file"));
        check("gate/x:9180", Err("no host name"));
        check(&format!("{}:1", "a".repeat(254)), Err("no host name"));
    }
}
