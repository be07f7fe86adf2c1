//! ZooKeeper, with sessions that are replaced when they end.
//!
//! The client library keeps a session over lost connections, but cannot be used after the session
//! expires; [`Client`] then makes the next one. Every call has a deadline, and an error says
//! whether a write may have been done. ClickHouse Keeper gives a new session without notice if it
//! does not know the old one. So no code here relies on a session: not on the nodes it owns, and
//! not on its end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::timeout;
use tracing::debug;
use zookeeper_client as zk;

/// The address of ZooKeeper, the credentials, and the time limits of an answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// `host:port,host:port/chroot`, as in every ZooKeeper client.
    pub servers: String,
    /// How long the servers keep a silent session. They bound it by their own settings.
    pub session_timeout: Duration,
    /// Scheme and credentials, such as `digest` and `user:password`.
    pub auth: Option<(String, Vec<u8>)>,
    /// The time limit of a call, including a new session if needed.
    pub deadline: Duration,
}

impl Settings {
    /// A session of 4 s, a call of 2 s.
    #[must_use]
    pub fn new(servers: impl Into<String>) -> Self {
        Self {
            servers: servers.into(),
            session_timeout: Duration::from_secs(4),
            auth: None,
            deadline: Duration::from_secs(2),
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("servers", &self.servers)
            .field("session_timeout", &self.session_timeout)
            .field("auth", &self.auth.as_ref().map(|(scheme, _)| scheme))
            .field("deadline", &self.deadline)
            .finish()
    }
}

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// ZooKeeper refused, and did nothing.
    #[error("ZooKeeper refused")]
    Refused(#[source] zk::Error),
    /// It may have been applied, or may still be: the answer did not come.
    #[error("ZooKeeper did not say whether it was done")]
    Unknown(#[source] zk::Error),
    /// No server answers; the call had no effect.
    #[error("no ZooKeeper server answers")]
    Unreachable(#[source] zk::Error),
    /// The credentials are missing, wrong, or do not allow it; the call had no effect.
    #[error("ZooKeeper wants other credentials")]
    Unauthenticated(#[source] zk::Error),
    /// The server's answer is not ZooKeeper's. A write may have been done or not.
    #[error("an answer that ZooKeeper does not give")]
    Garbage(#[source] zk::Error),
}

/// A node and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its value.
    pub data: Vec<u8>,
    /// The number, time and transaction of its writes.
    pub stat: zk::Stat,
}

/// Ready when the node has changed since it was read, or its session has ended.
pub type Changed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Whether a call without an answer may have had an effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

/// A client of one ensemble. Clones share its session, which ends with the last of them.
#[derive(Clone)]
pub struct Client(Arc<Shared>);

struct Shared {
    settings: Settings,
    session: Arc<Mutex<Option<zk::Client>>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.0.settings).finish()
    }
}

impl Client {
    /// Connects with the first call.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(Shared {
            settings,
            session: Arc::default(),
        }))
    }

    /// A node's value, possibly slightly old; `None` if the node does not exist.
    ///
    /// # Errors
    ///
    /// Any except [`Error::Unknown`].
    pub async fn get(&self, path: &str) -> Result<Option<Node>, Error> {
        let read = self.call(Kind::Read, async |session| {
            let (data, stat) = session.get_data(path).await?;
            Ok(Node { data, stat })
        });
        match read.await {
            Err(Error::Refused(zk::Error::NoNode)) => Ok(None),
            read => read.map(Some),
        }
    }

    /// As [`get`](Self::get), with one notice when the node changes or is made.
    ///
    /// # Errors
    ///
    /// Any except [`Error::Unknown`].
    pub async fn get_and_watch(&self, path: &str) -> Result<(Option<Node>, Changed), Error> {
        self.call(Kind::Read, async |session| {
            let mut found = session.get_and_watch_data(path).await;
            if matches!(found, Err(zk::Error::NoNode)) {
                let (stat, watcher) = session.check_and_watch_stat(path).await?;
                if stat.is_none() {
                    return Ok((None, changed(watcher)));
                }
                // It was made in between.
                found = session.get_and_watch_data(path).await;
            }
            let (data, stat, watcher) = found?;
            Ok((Some(Node { data, stat }), changed(watcher)))
        })
        .await
    }

    /// Makes a persistent node, and its missing ancestors. Returns its state, or `None` if it
    /// exists already.
    ///
    /// Any client can read and change it; with credentials, only clients with the same ones.
    ///
    /// # Errors
    ///
    /// Any.
    pub async fn create(&self, path: &str, data: &[u8]) -> Result<Option<zk::Stat>, Error> {
        let made = self.call(Kind::Write, async |session| {
            self.make(session, path, data, zk::CreateMode::Persistent)
                .await
        });
        match made.await {
            Err(Error::Refused(zk::Error::NodeExists)) => Ok(None),
            made => made.map(Some),
        }
    }

    /// Writes a node, if it had this number of writes before. Returns its new state, or `None` if
    /// it was written meanwhile or does not exist.
    ///
    /// # Errors
    ///
    /// Any.
    pub async fn set(
        &self,
        path: &str,
        data: &[u8],
        version: i32,
    ) -> Result<Option<zk::Stat>, Error> {
        let set = self.call(Kind::Write, async |session| {
            session.set_data(path, data, Some(version)).await
        });
        match set.await {
            Err(Error::Refused(zk::Error::BadVersion | zk::Error::NoNode)) => Ok(None),
            set => set.map(Some),
        }
    }

    /// Writes a node that ends with this client's session at the latest, over any earlier value.
    /// Makes it and its ancestors if missing. Returns its state.
    ///
    /// Sessions are replaced without notice: to keep the node, write it regularly.
    ///
    /// # Errors
    ///
    /// Any.
    pub async fn put_ephemeral(&self, path: &str, data: &[u8]) -> Result<zk::Stat, Error> {
        self.call(Kind::Write, async |session| {
            match session.set_data(path, data, None).await {
                Err(zk::Error::NoNode) => {
                    self.make(session, path, data, zk::CreateMode::Ephemeral)
                        .await
                }
                set => set,
            }
        })
        .await
    }

    /// Deletes a node with any value. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// Any.
    pub async fn delete(&self, path: &str) -> Result<bool, Error> {
        let deleted = self.call(Kind::Write, async |session| {
            session.delete(path, None).await
        });
        match deleted.await {
            Err(Error::Refused(zk::Error::NoNode)) => Ok(false),
            deleted => deleted.map(|()| true),
        }
    }

    /// The names of a node's children; none if the node does not exist. With one notice when a
    /// child is made or deleted.
    ///
    /// # Errors
    ///
    /// Any except [`Error::Unknown`].
    pub async fn children_and_watch(&self, path: &str) -> Result<(Vec<String>, Changed), Error> {
        self.call(Kind::Read, async |session| {
            match session.list_and_watch_children(path).await {
                Ok((children, watcher)) => Ok((children, changed(watcher))),
                Err(zk::Error::NoNode) => {
                    let (_, watcher) = session.check_and_watch_stat(path).await?;
                    Ok((Vec::new(), changed(watcher)))
                }
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Any client can read and change the new nodes; with credentials, only clients with the same
    /// ones.
    fn acls(&self) -> zk::Acls<'static> {
        match self.0.settings.auth {
            Some(_) => zk::Acls::creator_all(),
            None => zk::Acls::anyone_all(),
        }
    }

    /// Makes a node, and its missing ancestors.
    async fn make(
        &self,
        session: &zk::Client,
        path: &str,
        data: &[u8],
        mode: zk::CreateMode,
    ) -> Result<zk::Stat, zk::Error> {
        let options = mode.with_acls(self.acls());
        let mut made = session.create(path, data, &options).await;
        if matches!(made, Err(zk::Error::NoNode)) {
            self.make_above(session, path).await?;
            made = session.create(path, data, &options).await;
        }
        made.map(|(stat, _)| stat)
    }

    /// Makes a node's missing ancestors.
    async fn make_above(&self, session: &zk::Client, path: &str) -> Result<(), zk::Error> {
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        let options = zk::CreateMode::Persistent.with_acls(self.acls());
        match session.mkdir(above, &options).await {
            Ok(()) | Err(zk::Error::NodeExists) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Calls once, in the current session or a new one.
    async fn call<T>(
        &self,
        kind: Kind,
        call: impl AsyncFnOnce(&zk::Client) -> Result<T, zk::Error>,
    ) -> Result<T, Error> {
        let deadline = self.0.settings.deadline;
        let mut used = None;
        let called = timeout(deadline, async {
            let session = self.session().await?;
            used = Some(session.session_id());
            call(&session).await
        });
        match called.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(classified(error, kind, used.is_some())),
            Err(_) => {
                if let Some(used) = used {
                    self.abandon(used).await;
                }
                Err(classified(zk::Error::Timeout, kind, used.is_some()))
            }
        }
    }

    /// Drops a session that does not answer. The library would keep it until it expires, even at a
    /// server that hangs. No code here needs it, and the next one is made at any server that
    /// answers.
    async fn abandon(&self, silent: zk::SessionId) {
        let mut session = self.0.session.lock().await;
        if session
            .as_ref()
            .is_some_and(|known| known.session_id() == silent)
        {
            *session = None;
        }
    }

    /// The session; a new one if there is none or it has ended.
    async fn session(&self) -> Result<zk::Client, zk::Error> {
        let mut session = Arc::clone(&self.0.session).lock_owned().await;
        if let Some(known) = session.as_ref() {
            let state = known.state();
            if !state.is_terminated() {
                return Ok(known.clone());
            }
            debug!(%state, "zookeeper: the session has ended");
            *session = None;
        }
        let settings = self.0.settings.clone();
        // In a separate task: a call that is dropped before the session is made must not prevent
        // the next call from getting it.
        let connecting = tokio::spawn(async move {
            let mut connector = zk::Client::connector()
                .with_session_timeout(settings.session_timeout)
                // A server that hangs must leave time for the next one within the same call.
                .with_connection_timeout(
                    (settings.session_timeout * 2 / 5).min(settings.deadline / 2),
                );
            if let Some((scheme, credentials)) = &settings.auth {
                connector = connector.with_auth(scheme, credentials);
            }
            let connected = timeout(settings.deadline, connector.connect(&settings.servers)).await;
            let made = connected.unwrap_or(Err(zk::Error::Timeout))?;
            debug!(session = %made.session_id(), "zookeeper: a new session");
            *session = Some(made.clone());
            Ok(made)
        });
        match connecting.await {
            Ok(made) => made,
            Err(failed) => Err(zk::Error::UnexpectedError(failed.to_string())),
        }
    }
}

fn changed(watcher: zk::OneshotWatcher) -> Changed {
    Box::pin(async move {
        watcher.changed().await;
    })
}

/// The meaning of the library's error for a call.
fn classified(error: zk::Error, kind: Kind, sent: bool) -> Error {
    use zk::Error as E;
    match error {
        E::NoAuth | E::AuthFailed => Error::Unauthenticated(error),
        E::NoNode
        | E::NodeExists
        | E::BadVersion
        | E::BadArguments(_)
        | E::NoChildrenForEphemerals
        | E::NotEmpty
        | E::InvalidAcl
        | E::QuotaExceeded
        | E::NotReadOnly
        | E::Throttled
        | E::Unimplemented => Error::Refused(error),
        E::NoHosts => Error::Unreachable(error),
        E::UnmarshalError { .. } | E::UnexpectedError(_) | E::UnexpectedErrorCode(_) => {
            Error::Garbage(error)
        }
        _ if sent && kind == Kind::Write => Error::Unknown(error),
        _ => Error::Unreachable(error),
    }
}
