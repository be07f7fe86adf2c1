//! The addresses of an ensemble.

use std::fmt;

/// `host:port,host:port/chroot`, as every ZooKeeper client takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerAddresses {
    pub(super) all: Vec<Server>,
    /// The prefix of every path; empty without a chroot.
    pub(super) chroot: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) host: Box<str>,
    pub(super) port: u16,
}

impl ServerAddresses {
    /// `None` if it is no list of addresses. A server without a port has ZooKeeper's own.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (addresses, chroot) = match text.find('/') {
            Some(at) => (&text[..at], text[at..].trim_end_matches('/')),
            None => (text, ""),
        };
        let all = addresses.split(',').map(|it| Server::parse(it.trim()));
        Some(Self {
            all: all.collect::<Option<_>>()?,
            chroot: chroot.to_owned(),
        })
        .filter(|it| it.chroot.is_empty() || is_path(&it.chroot))
    }
}

impl Server {
    fn parse(address: &str) -> Option<Self> {
        let (host, port) = match address.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => address.split_at(address.find(':').unwrap_or(address.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok()?,
            None if port.is_empty() => 2181,
            None => return None,
        };
        (!host.is_empty()).then(|| Self {
            host: host.into(),
            port,
        })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

/// Whether a node can have this path.
pub(super) fn is_path(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else {
        return false;
    };
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
    rest.is_empty() || rest.split('/').all(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_a_chroot_are_read() {
        for (text, all, chroot) in [
            ("a:1", &["a:1"][..], ""),
            ("a", &["a:2181"], ""),
            ("a:1,b:2/c/d", &["a:1", "b:2"], "/c/d"),
            ("a:1/", &["a:1"], ""),
            ("[::1]:7,10.0.0.1:8/x", &["[::1]:7", "10.0.0.1:8"], "/x"),
            ("[::1]", &["[::1]:2181"], ""),
        ] {
            let servers = ServerAddresses::parse(text).expect(text);
            let found: Vec<_> = servers.all.iter().map(ToString::to_string).collect();
            assert_eq!(
                (&found[..], &*servers.chroot),
                (
                    &all.iter().map(ToString::to_string).collect::<Vec<_>>()[..],
                    chroot
                )
            );
        }
        for wrong in [
            "", ",", "a:", "a:x", "a:70000", ":1", "[::1", "[]:1", "a:1//b", "::1",
        ] {
            assert_eq!(ServerAddresses::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_impossible_path_is_none() {
        for path in ["/", "/a", "/a/b c/d"] {
            assert!(is_path(path), "{path}");
        }
        for path in ["", "a", "/a/", "//", "/a/../b", "/a/./b", "/a\0"] {
            assert!(!is_path(path), "{path:?}");
        }
    }
}
