//! Connections to Redis: over TCP or TLS, to one server or to the primary that sentinels name.
//!
//! Sentinels are asked again for every new connection, because a lost connection may be the
//! failover itself. A server that they name must answer that it is a primary: for a moment after
//! a failover a sentinel can still name the old one (Redis's guidelines for clients of Sentinel).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use tidegate_runtime::Stream;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::super::{Cause, Error};
use super::{Kind, OF_SENTINEL, OF_SERVER, Settings, not_connected, told};

/// A sentinel gets this part of a call's time, so that another one can answer in the rest.
const OF_DEADLINE: u32 = 4;
/// The shortest time for it.
const TRY_MIN: Duration = Duration::from_millis(100);

/// The address of a server or a sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// A name or an IP address.
    pub host: Box<str>,
    /// Its port.
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

/// What to ask sentinels.
#[derive(Clone)]
pub struct Sentinel {
    /// The name under which they watch the primary.
    pub primary: Box<str>,
    /// User and password of the sentinels themselves. Its `Debug` does not show the password.
    pub login: RedisConnectionInfo,
}

impl fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sentinel").field(&self.primary).finish()
    }
}

impl PartialEq for Sentinel {
    fn eq(&self, other: &Self) -> bool {
        self.primary == other.primary
            && self.login.username() == other.login.username()
            && self.login.password() == other.login.password()
    }
}

impl Eq for Sentinel {}

/// A connection, and the task that carries it as long as a clone exists.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) redis: MultiplexedConnection,
    _carries: Arc<AbortOnDropHandle<()>>,
}

/// Which sentinel is asked first: the one that answered last.
#[derive(Debug, Default)]
pub(super) struct Route {
    first: usize,
}

impl Route {
    /// A connection to the server, or to the primary of the moment.
    pub(super) async fn connect(
        &mut self,
        settings: &Settings,
        config: AsyncConnectionConfig,
        deadline: Instant,
    ) -> Result<Connection, Error> {
        let Some(sentinel) = &settings.sentinel else {
            let server = settings.servers.first().ok_or_else(no_server)?;
            return open(settings, server, Login::of(settings), config, deadline).await;
        };
        let primary = self.primary(settings, sentinel, deadline).await?;
        let connected = async {
            let opened = open(settings, &primary, Login::of(settings), config, deadline).await?;
            is_primary(opened, &primary).await
        };
        timeout_at(deadline, connected).await.unwrap_or_else(late)
    }

    /// The address of the primary, from the first sentinel that knows it.
    async fn primary(
        &mut self,
        settings: &Settings,
        sentinel: &Sentinel,
        deadline: Instant,
    ) -> Result<Server, Error> {
        let count = settings.servers.len();
        let patience = (settings.deadline / OF_DEADLINE).max(TRY_MIN);
        let mut last = no_server();
        for at in (0..count).map(|at| (self.first + at) % count) {
            let server = &settings.servers[at];
            let end = deadline.min(Instant::now() + patience);
            let asked = timeout_at(end, ask(settings, sentinel, server, end)).await;
            match asked.unwrap_or_else(|_| Err(unavailable(format!("no answer of {server}")))) {
                Ok(primary) => {
                    self.first = at;
                    return Ok(primary);
                }
                // Another one may know the password, or the primary.
                Err(error) => last = error,
            }
            if Instant::now() >= deadline {
                // The next attempt begins behind those that cost the time.
                self.first = (at + 1) % count;
                break;
            }
        }
        Err(last)
    }
}

/// Asks one sentinel for the address of the primary.
async fn ask(
    settings: &Settings,
    sentinel: &Sentinel,
    server: &Server,
    deadline: Instant,
) -> Result<Server, Error> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(settings.deadline));
    let login = Login {
        login: &sentinel.login,
        cure: OF_SENTINEL,
    };
    let mut connection = open(settings, server, login, config, deadline).await?;
    let mut asks = redis::cmd("SENTINEL");
    asks.arg("GET-MASTER-ADDR-BY-NAME").arg(&*sentinel.primary);
    let answer: Result<Option<(String, u16)>, _> = asks.query_async(&mut connection.redis).await;
    match answer {
        Ok(Some((host, port))) => Ok(Server {
            host: host.into(),
            port,
        }),
        Ok(None) => Err(unavailable(format!(
            "the sentinel {server} watches no primary named {:?}: set sentinel in [quota] to a \
             name from its `sentinel monitor` lines",
            sentinel.primary
        ))),
        Err(error) if error.code() == Some("ERR") => Err(unavailable(format!(
            "{server} is no sentinel ({error}): give the sentinels as servers in [quota], or leave \
             sentinel out"
        ))),
        Err(error) => Err(told(error, Kind::Read, OF_SENTINEL)),
    }
}

/// The same connection, if its server is a primary.
async fn is_primary(connection: Connection, server: &Server) -> Result<Connection, Error> {
    let mut asked = connection.redis.clone();
    let ask = redis::cmd("ROLE");
    let role = ask.query_async::<Vec<redis::Value>>(&mut asked).await;
    let role = role.map_err(|error| told(error, Kind::Read, OF_SERVER))?;
    match role.first() {
        Some(redis::Value::BulkString(role)) if role == b"master" => Ok(connection),
        Some(redis::Value::SimpleString(role)) if role == "master" => Ok(connection),
        _ => Err(unavailable(format!(
            "{server} is not the primary yet, or no longer"
        ))),
    }
}

/// The user, and what to check if the server does not know it.
struct Login<'a> {
    login: &'a RedisConnectionInfo,
    cure: &'static str,
}

impl<'a> Login<'a> {
    fn of(settings: &'a Settings) -> Self {
        Self {
            login: &settings.login,
            cure: OF_SERVER,
        }
    }
}

/// Connects to one server and logs in, by `deadline`.
async fn open(
    settings: &Settings,
    server: &Server,
    Login { login, cure }: Login<'_>,
    config: AsyncConnectionConfig,
    deadline: Instant,
) -> Result<Connection, Error> {
    let of_server = |error: std::io::Error| unavailable(format!("{server}: {error}"));
    let late = |what: &str| unavailable(format!("{server}: {what} in time"));
    let connecting = TcpStream::connect((&*server.host, server.port));
    let connected = timeout_at(deadline, connecting).await;
    let stream = connected
        .map_err(|_| late("no connection"))?
        .map_err(of_server)?;
    // Small requests, each answered before the next.
    let _ = stream.set_nodelay(true);
    let stream: Box<dyn Stream> = match (settings.asks_tls, &settings.tls) {
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
    let made = MultiplexedConnection::new_with_config(login, stream, config);
    let made = timeout_at(deadline, made).await;
    let made = made.map_err(|_| late("no answer to the login"))?;
    let (redis, carries) = made.map_err(|error| match error.is_io_error() {
        true => unavailable(format!("{server}: {error}")),
        false => told(error, Kind::Read, cure),
    })?;
    Ok(Connection {
        redis,
        _carries: Arc::new(AbortOnDropHandle::new(tokio::spawn(carries))),
    })
}

fn late<T>(elapsed: tokio::time::error::Elapsed) -> Result<T, Error> {
    Err(not_connected(elapsed))
}

fn no_server() -> Error {
    unavailable("no server is configured".to_owned())
}

fn unavailable(cause: String) -> Error {
    Error::Unavailable(Cause::from(cause))
}
