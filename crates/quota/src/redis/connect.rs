//! Connections to Redis: over TCP or TLS, to one server or to one that sentinels name.
//!
//! Each server must say that it is a primary: an address may lead to a server that was demoted, and
//! for a moment after a failover a sentinel can still name the old one (Redis's guidelines for
//! clients of Sentinel). The name of a server is looked up for every new connection.

use std::fmt;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use tidegate_runtime::{ByteStream, Renewable};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::super::{Cause, StoreError};
use super::{CallKind, OF_SENTINEL, OF_SERVER, RedisSettings, not_connected, told};

/// The address of a server or a sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// A name or an IP address.
    pub host: Box<str>,
    /// The port of the server.
    pub port: u16,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// The primary's name and the login for sentinels.
#[derive(Clone, PartialEq, Eq)]
pub struct Sentinel {
    /// The name under which they watch the primary.
    pub primary: Box<str>,
    /// User and password of the sentinels themselves.
    pub login: Renewable<Credentials>,
}

impl fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sentinel").field(&self.primary).finish()
    }
}

/// A connection, and the task that carries it as long as a clone exists.
#[derive(Clone)]
pub(super) struct RedisConnection {
    pub(super) redis: MultiplexedConnection,
    carries: Arc<AbortOnDropHandle<()>>,
    pub(super) since: Instant,
}

impl RedisConnection {
    /// Whether the server has closed it.
    pub(super) fn is_closed(&self) -> bool {
        self.carries.is_finished()
    }
}

/// The database, the user and the password. Its `Debug` shows no password.
#[derive(Clone)]
pub struct Credentials(pub RedisConnectionInfo);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        let (own, other) = (&self.0, &other.0);
        own.db() == other.db()
            && own.username() == other.username()
            && own.password() == other.password()
    }
}

impl Eq for Credentials {}

/// A connection to a server that is a primary.
pub(super) async fn connect(
    settings: &RedisSettings,
    server: &Server,
    config: AsyncConnectionConfig,
    deadline: Instant,
) -> Result<RedisConnection, StoreError> {
    let connected = async {
        let login = Login::of(settings);
        let opened = open(settings, server, login, config, deadline).await?;
        super::server::check(opened.redis.clone(), server).await?;
        Ok(opened)
    };
    timeout_at(deadline, connected).await.unwrap_or_else(late)
}

/// The user of a connection, and what to check if the server does not know it.
pub(super) struct Login<'a> {
    login: &'a Renewable<Credentials>,
    cure: &'static str,
}

impl<'a> Login<'a> {
    fn of(settings: &'a RedisSettings) -> Self {
        Self {
            login: &settings.login,
            cure: OF_SERVER,
        }
    }

    pub(super) fn of_sentinel(sentinel: &'a Sentinel) -> Self {
        Self {
            login: &sentinel.login,
            cure: OF_SENTINEL,
        }
    }
}

/// Connects to one server and logs in, by `deadline`.
pub(super) async fn open(
    settings: &RedisSettings,
    server: &Server,
    Login { login, cure }: Login<'_>,
    config: AsyncConnectionConfig,
    deadline: Instant,
) -> Result<RedisConnection, StoreError> {
    let of_server = |error: std::io::Error| unavailable(format!("{server}: {error}"));
    let late = |what: &str| unavailable(format!("{server}: {what} in time"));
    let connecting = TcpStream::connect((&*server.host, server.port));
    let connected = timeout_at(deadline, connecting).await;
    let stream = connected
        .map_err(|_| late("no connection"))?
        .map_err(of_server)?;
    // Small requests, each answered before the next.
    let _ = stream.set_nodelay(true);
    let stream: Box<dyn ByteStream> = match (settings.asks_tls, &settings.tls) {
        (false, _) => Box::new(stream),
        (true, Some(tls)) => {
            let secured = timeout_at(deadline, tls.connect(&server.host, stream)).await;
            // A server without TLS waits for the rest of a command.
            let silent = "the port may not speak TLS: no TLS handshake";
            Box::new(secured.map_err(|_| late(silent))?.map_err(of_server)?)
        }
        (true, None) => {
            let cause = "rediss, but no authority to trust is configured: set ca";
            return Err(unavailable(cause.to_owned()));
        }
    };
    let credentials = login.get();
    let made = MultiplexedConnection::new_with_config(&credentials.0, stream, config);
    let made = timeout_at(deadline, made).await;
    let made = made.map_err(|_| late("no answer to the login"))?;
    let (redis, carries) = made.map_err(|error| match error.is_io_error() {
        true => unavailable(format!("{server}: {error}")),
        false => told(error, CallKind::Read, cure),
    })?;
    Ok(RedisConnection {
        redis,
        carries: Arc::new(AbortOnDropHandle::new(tokio::spawn(carries))),
        since: Instant::now(),
    })
}

fn late<T>(elapsed: tokio::time::error::Elapsed) -> Result<T, StoreError> {
    Err(not_connected(elapsed))
}

fn unavailable(cause: String) -> StoreError {
    StoreError::Unavailable(Cause::from(cause))
}
