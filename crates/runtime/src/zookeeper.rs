//! ZooKeeper, as sessions that are replaced when they end.
//!
//! The client library holds a session over lost connections, and is dead for good once it has
//! expired; [`Client`] then makes the next one. Every call has a deadline, and an error says
//! whether a write may have been done. ClickHouse Keeper gives a new session without a word where
//! it does not know the old one: nothing here relies on a session, neither on what it owns nor on
//! its end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::timeout;
use tracing::debug;
use zookeeper_client as zk;

/// Where ZooKeeper is, who asks, and how long an answer may take.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// `host:port,host:port/chroot`, as every ZooKeeper client takes it.
    pub servers: String,
    /// How long the servers keep a session without a sign of life. They bound it by their own
    /// settings.
    pub session_timeout: Duration,
    /// Scheme and credentials, such as `digest` and `user:password`.
    pub auth: Option<(String, Vec<u8>)>,
    /// How long a call may take, a session that must first be made included.
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
    /// ZooKeeper says no, and has done nothing.
    #[error("ZooKeeper refused")]
    Refused(#[source] zk::Error),
    /// It may have been applied, or may yet be: the answer did not come.
    #[error("ZooKeeper did not say whether it was done")]
    Unknown(#[source] zk::Error),
    /// No server answers; nothing was done.
    #[error("no ZooKeeper server answers")]
    Unreachable(#[source] zk::Error),
    /// The credentials are missing, wrong, or do not allow it; nothing was done.
    #[error("ZooKeeper wants other credentials")]
    Unauthenticated(#[source] zk::Error),
    /// Something answered, but not as ZooKeeper does. Of a write it says nothing about whether it
    /// was done.
    #[error("an answer that ZooKeeper does not give")]
    Garbage(#[source] zk::Error),
}

/// A node and what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What it holds.
    pub data: Vec<u8>,
    /// How often it was written, when and by which transaction.
    pub stat: zk::Stat,
}

/// One of the writes of [`Client::write_all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The node.
    pub path: &'a str,
    /// What it is to hold.
    pub data: &'a [u8],
    /// How often it must have been written before; `None` to make it.
    pub version: Option<i32>,
}

/// Ready once the node that was read has changed, or its session has ended.
pub type Changed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Whether a call that got no answer may have changed anything.
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

    /// What a node holds, as of a moment ago at the server that is asked; `None` if it does not
    /// exist.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Unknown`].
    pub async fn get(&self, path: &str) -> Result<Option<Node>, Error> {
        let read = self.call(Kind::Read, async |session| session.get_data(path).await);
        match read.await {
            Ok((data, stat)) => Ok(Some(Node { data, stat })),
            Err(Error::Refused(zk::Error::NoNode)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// As [`get`](Self::get), and tells once when it changes, or comes to exist.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Unknown`].
    pub async fn get_and_watch(&self, path: &str) -> Result<(Option<Node>, Changed), Error> {
        self.call(Kind::Read, async |session| {
            match session.get_and_watch_data(path).await {
                Ok((data, stat, watcher)) => Ok((Some(Node { data, stat }), changed(watcher))),
                // Made in between, it is found by the watcher's first word.
                Err(zk::Error::NoNode) => {
                    let (stat, watcher) = session.check_and_watch_stat(path).await?;
                    match stat {
                        None => Ok((None, changed(watcher))),
                        Some(_) => {
                            let (data, stat, watcher) = session.get_and_watch_data(path).await?;
                            Ok((Some(Node { data, stat }), changed(watcher)))
                        }
                    }
                }
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Makes a node that lasts, and those above it that are missing. Its state, or `None` if it
    /// exists already.
    ///
    /// Everybody may read and change it, or with credentials only who has the same.
    ///
    /// # Errors
    ///
    /// Any.
    pub async fn create(&self, path: &str, data: &[u8]) -> Result<Option<zk::Stat>, Error> {
        let options = zk::CreateMode::Persistent.with_acls(self.acls());
        let made = self.call(Kind::Write, async |session| {
            match session.create(path, data, &options).await {
                Err(zk::Error::NoNode) => {}
                made => return made,
            }
            make_above(session, path, &options).await?;
            session.create(path, data, &options).await
        });
        match made.await {
            Ok((stat, _)) => Ok(Some(stat)),
            Err(Error::Refused(zk::Error::NodeExists)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a node, if it was written so often before. Its new state, or `None` if it was
    /// written meanwhile, or does not exist.
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
            Ok(stat) => Ok(Some(stat)),
            Err(Error::Refused(zk::Error::BadVersion | zk::Error::NoNode)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What several nodes hold at one moment, in their order; `None` for those that do not
    /// exist. Takes ZooKeeper 3.6 or later, unless it is one.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Unknown`].
    pub async fn get_all(&self, paths: &[String]) -> Result<Vec<Option<Node>>, Error> {
        if let [path] = paths {
            return Ok(vec![self.get(path).await?]);
        }
        self.call(Kind::Read, async |session| {
            let mut reader = session.new_multi_reader();
            for path in paths {
                reader.add_get_data(path)?;
            }
            let results = reader.commit().await?;
            if results.len() != paths.len() {
                return Err(zk::Error::UnexpectedError("other reads than asked".into()));
            }
            let node = |result| match result {
                zk::MultiReadResult::Data { data, stat } => Ok(Some(Node { data, stat })),
                zk::MultiReadResult::Error {
                    err: zk::Error::NoNode,
                } => Ok(None),
                zk::MultiReadResult::Error { err } => Err(err),
                _ => Err(zk::Error::UnexpectedError("another kind of read".into())),
            };
            results.into_iter().map(node).collect()
        })
        .await
    }

    /// Makes and writes several nodes, all or none. Their new states in order, or `None` if one
    /// of them was made or written meanwhile, or does not exist. Ancestors that are missing are
    /// made, and stay.
    ///
    /// The state of a node that was just made may be [invalid](zk::Stat::is_invalid): not every
    /// ZooKeeper tells it (ZOOKEEPER-4026, ZOOKEEPER-4667). Its version is 0.
    ///
    /// # Errors
    ///
    /// Any.
    pub async fn write_all(&self, writes: &[Write<'_>]) -> Result<Option<Vec<zk::Stat>>, Error> {
        let options = zk::CreateMode::Persistent.with_acls(self.acls());
        self.call(Kind::Write, async |session| {
            let mut made_ancestors = false;
            loop {
                let mut writer = session.new_multi_writer();
                for Write {
                    path,
                    data,
                    version,
                } in writes
                {
                    match version {
                        None => writer.add_create(path, data, &options)?,
                        Some(version) => writer.add_set_data(path, data, Some(*version))?,
                    }
                }
                let (index, error) = match writer.commit().await {
                    Ok(results) => {
                        let stat = |result| match result {
                            zk::MultiWriteResult::Create { stat, .. }
                            | zk::MultiWriteResult::SetData { stat } => Ok(stat),
                            // It is done, all the same.
                            _ => Err(zk::Error::UnexpectedError("another kind of write".into())),
                        };
                        let stats: Result<Vec<_>, _> = results.into_iter().map(stat).collect();
                        return stats.map(Some);
                    }
                    Err(zk::MultiWriteError::RequestFailed { source }) => return Err(source),
                    Err(zk::MultiWriteError::OperationFailed { index, source }) => (index, source),
                };
                let failed = writes.get(index);
                match error {
                    zk::Error::BadVersion | zk::Error::NodeExists => return Ok(None),
                    // It was not made because what it would stand in is missing.
                    zk::Error::NoNode
                        if !made_ancestors
                            && failed.is_some_and(|write| write.version.is_none()) =>
                    {
                        made_ancestors = true;
                        for write in writes.iter().filter(|write| write.version.is_none()) {
                            make_above(session, write.path, &options).await?;
                        }
                    }
                    zk::Error::NoNode => return Ok(None),
                    error => return Err(error),
                }
            }
        })
        .await
    }

    /// Writes a node that lives no longer than this client's session, whatever it holds, and
    /// makes it and what it stands in if it is missing. Its state.
    ///
    /// Sessions are replaced without a word: who needs it to live on writes it again and again.
    ///
    /// # Errors
    ///
    /// Any.
    pub async fn put_ephemeral(&self, path: &str, data: &[u8]) -> Result<zk::Stat, Error> {
        let lasting = zk::CreateMode::Persistent.with_acls(self.acls());
        let ephemeral = zk::CreateMode::Ephemeral.with_acls(self.acls());
        self.call(Kind::Write, async |session| {
            match session.set_data(path, data, None).await {
                Err(zk::Error::NoNode) => {}
                set => return set,
            }
            let made = match session.create(path, data, &ephemeral).await {
                Err(zk::Error::NoNode) => {
                    make_above(session, path, &lasting).await?;
                    session.create(path, data, &ephemeral).await
                }
                made => made,
            };
            made.map(|(stat, _)| stat)
        })
        .await
    }

    /// Deletes a node, whatever it holds. Whether there was one.
    ///
    /// # Errors
    ///
    /// Any.
    pub async fn delete(&self, path: &str) -> Result<bool, Error> {
        let deleted = self.call(Kind::Write, async |session| {
            session.delete(path, None).await
        });
        match deleted.await {
            Ok(()) => Ok(true),
            Err(Error::Refused(zk::Error::NoNode)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The names of the nodes in a node; none, if it does not exist. Tells once when one comes or
    /// goes.
    ///
    /// # Errors
    ///
    /// Any but [`Error::Unknown`].
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

    /// Everybody may read and change what is made, or with credentials only who has the same.
    fn acls(&self) -> zk::Acls<'static> {
        match self.0.settings.auth {
            Some(_) => zk::Acls::creator_all(),
            None => zk::Acls::anyone_all(),
        }
    }

    /// Calls once, in the session there is or in a new one.
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

    /// Leaves a session that does not answer. The library would hold on to it for as long as it
    /// may live, at a server that hangs too; nothing here needs it, and the next one is made at
    /// whichever server answers.
    async fn abandon(&self, silent: zk::SessionId) {
        let mut session = self.0.session.lock().await;
        if session
            .as_ref()
            .is_some_and(|known| known.session_id() == silent)
        {
            *session = None;
        }
    }

    /// The session, made if there is none or if it has ended.
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
        // In a task of its own: a call that is given up before the session is made must not keep the
        // next one from having it.
        let connecting = tokio::spawn(async move {
            let mut connector = zk::Client::connector()
                .with_session_timeout(settings.session_timeout)
                // A server that hangs must leave time for the next within one call.
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

/// Makes what a node stands in, as far as it is missing.
async fn make_above(
    session: &zk::Client,
    path: &str,
    options: &zk::CreateOptions<'_>,
) -> Result<(), zk::Error> {
    let above = path.rsplit_once('/').map_or("", |(above, _)| above);
    match session.mkdir(above, options).await {
        Ok(()) | Err(zk::Error::NodeExists) => Ok(()),
        Err(error) => Err(error),
    }
}

fn changed(watcher: zk::OneshotWatcher) -> Changed {
    Box::pin(async move {
        watcher.changed().await;
    })
}

/// What an error of the library says about a call.
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
