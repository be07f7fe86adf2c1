//! Who asks at the admin address, for the log of what operators changed.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// The origin of a connection, as the kernel says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminPeer {
    /// An address.
    Address(SocketAddr),
    /// A process of this user, at the socket file.
    Uid(u32),
}

/// The author of a request that may change something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Author {
    /// The request carried the token of this name.
    Token(Arc<str>),
    /// A process of this user, at the socket file.
    Uid(u32),
    /// There is no token, and every program that can connect is trusted.
    Anybody(SocketAddr),
}

impl Author {
    /// Of a request from `peer`, which carried the token of this name, if any.
    pub(super) fn new(peer: AdminPeer, token: Option<&Arc<str>>) -> Self {
        match (token, peer) {
            (Some(name), _) => Self::Token(Arc::clone(name)),
            (None, AdminPeer::Uid(uid)) => Self::Uid(uid),
            (None, AdminPeer::Address(address)) => Self::Anybody(address),
        }
    }
}

/// As logs and `/v1/acts` have it.
impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(name) => write!(f, "token {name}"),
            Self::Uid(uid) => write!(f, "uid {uid}"),
            Self::Anybody(address) => write!(f, "{}, without a token", address.ip()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_more_than_the_user_and_the_user_more_than_the_address() {
        let address = AdminPeer::Address(([127, 0, 0, 1], 5000).into());
        let ops: Arc<str> = "ops".into();
        let check = |peer, token, shown: &str| {
            assert_eq!(Author::new(peer, token).to_string(), shown);
        };
        check(AdminPeer::Uid(1000), Some(&ops), "token ops");
        check(address, Some(&ops), "token ops");
        check(AdminPeer::Uid(1000), None, "uid 1000");
        check(address, None, "127.0.0.1, without a token");
    }
}
