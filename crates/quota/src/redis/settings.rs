//! The address of Redis, its users, and the time limits of answers.

use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError};
use tidegate_runtime::Renewable;
use tidegate_runtime::tls::TlsClient;

use super::connect::{Credentials, Sentinel, Server};

/// The address of Redis, the user, and the time limit of an answer.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// The server; or the sentinels, in the order of attempts.
    pub servers: Vec<Server>,
    /// The questions to the servers if they are sentinels.
    pub sentinel: Option<Sentinel>,
    /// Whether every connection uses TLS, also to sentinels.
    pub asks_tls: bool,
    /// The certificates to trust and to show over TLS.
    pub tls: Option<TlsClient>,
    /// The database, the user and the password. A renewed one is used by the next call.
    pub login: Renewable<Credentials>,
    /// The prefix of all keys and channels.
    pub prefix: String,
    /// The time limit of a call, including a new connection if needed.
    pub deadline: Duration,
    /// How long a silent node counts as a member.
    pub member_ttl: Duration,
    /// The node's name among the members; `None` for a random one.
    pub member: Option<Arc<str>>,
}

/// An invalid address of Redis.
#[derive(Debug, thiserror::Error)]
#[error(
    "an address of Redis reads redis://[user[:password]@]host[:port][/database], or rediss:// for TLS"
)]
pub struct AddressError(#[source] Option<RedisError>);

impl RedisSettings {
    /// `redis://[user[:password]@]host[:port][/database]`, or `rediss://` for TLS; 1 s for a call,
    /// 10 s for a member.
    ///
    /// # Errors
    ///
    /// If the address is invalid.
    pub fn new(address: &str) -> Result<Self, AddressError> {
        let secured = address.strip_prefix("rediss://");
        // The library would connect by itself; all that it reads here is the address.
        let plain = secured.map(|rest| format!("redis://{rest}"));
        let given = plain.as_deref().unwrap_or(address);
        let server = given.into_connection_info();
        let server = server.map_err(|error| AddressError(Some(error)))?;
        let ConnectionAddr::Tcp(host, port) = server.addr() else {
            return Err(AddressError(None));
        };
        Ok(Self {
            servers: vec![Server {
                host: host.as_str().into(),
                port: *port,
            }],
            sentinel: None,
            asks_tls: secured.is_some(),
            tls: None,
            login: Credentials(with_news(server.redis_settings().clone())).into(),
            prefix: "tidegate:quota:".into(),
            deadline: Duration::from_secs(1),
            member_ttl: Duration::from_secs(10),
            member: None,
        })
    }

    /// The server, or the sentinels, each as `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
        servers.join(", ")
    }

    /// The settings with a user; without one, as the default user.
    #[must_use]
    pub fn with_credentials(mut self, user: Option<&str>, password: &str) -> Self {
        let login = self.login.get().0.clone();
        self.login = Credentials(logged_in(login, user, password)).into();
        self
    }

    /// The number of the database.
    #[must_use]
    pub fn database(&self) -> i64 {
        self.login.get().0.db()
    }

    /// Takes over the users and passwords of other settings.
    pub(crate) fn renew_logins(&self, other: &Self) {
        self.login.renew(&other.login);
        if let (Some(own), Some(other)) = (&self.sentinel, &other.sentinel) {
            own.login.renew(&other.login);
        }
    }

    /// The settings for sentinels that watch a primary by this name.
    #[must_use]
    pub fn with_sentinel(mut self, primary: &str, login: Option<(Option<&str>, &str)>) -> Self {
        let mut settings = with_news(RedisConnectionInfo::default());
        if let Some((user, password)) = login {
            settings = logged_in(settings, user, password);
        }
        self.sentinel = Some(Sentinel {
            primary: primary.into(),
            login: Credentials(settings).into(),
        });
        self
    }
}

/// Only this protocol reports changes on the connection of the calls.
fn with_news(login: RedisConnectionInfo) -> RedisConnectionInfo {
    login.set_protocol(ProtocolVersion::RESP3)
}

fn logged_in(
    mut login: RedisConnectionInfo,
    user: Option<&str>,
    password: &str,
) -> RedisConnectionInfo {
    if let Some(user) = user {
        login = login.set_username(user);
    }
    login.set_password(password)
}

impl PartialEq for RedisSettings {
    fn eq(&self, other: &Self) -> bool {
        self.servers == other.servers
            && self.sentinel == other.sentinel
            && self.asks_tls == other.asks_tls
            && self.database() == other.database()
            && self.prefix == other.prefix
            && self.deadline == other.deadline
            && self.member_ttl == other.member_ttl
            && self.member == other.member
    }
}

impl Eq for RedisSettings {}
