//! ZooKeeper, over TCP or TLS.
//!
//! Every call has a deadline, and an error says whether a write may have been done. A session goes
//! on over lost connections and is replaced when it ends. ClickHouse Keeper gives a new session
//! without notice if it does not know the old one. So no code here relies on a session: not on the
//! nodes it owns, and not on its end. (docs/decisions/0032-zookeeper-client.md)

mod servers;
mod session;
mod watches;
mod wire;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use self::servers::{ServerAddresses, is_path};
pub use self::session::FailureReason;
use self::session::{CallReply, PendingCall, SessionFailure, WAITING_MAX};
use self::watches::NodeWatch;
pub use self::wire::{Code, Stat};
use self::wire::{Lifetime, Meaning, Op, Reader, WireFields};
use crate::Renewable;
use crate::tls::TlsClient;

/// The address of ZooKeeper, the credentials, and the time limits of an answer.
#[derive(Clone, PartialEq, Eq)]
pub struct ZooKeeperSettings {
    /// `host:port,host:port/chroot`, as in every ZooKeeper client.
    pub servers: String,
    /// How long the servers keep a silent session. They bound it by their own settings.
    pub session_timeout: Duration,
    /// Scheme and credentials, such as `digest` and `user:password`. If they are renewed, the session goes
    /// on over a new connection.
    pub auth: Renewable<Option<(String, Vec<u8>)>>,
    /// The certificates to trust and to show, if the servers speak TLS.
    pub tls: Option<TlsClient>,
    /// The time limit of a call, including a new session if needed.
    pub deadline: Duration,
}

impl ZooKeeperSettings {
    /// A session of 4 s, a call of 2 s.
    #[must_use]
    pub fn new(servers: impl Into<String>) -> Self {
        Self {
            servers: servers.into(),
            session_timeout: Duration::from_secs(4),
            auth: Renewable::new(None),
            tls: None,
            deadline: Duration::from_secs(2),
        }
    }
}

impl fmt::Debug for ZooKeeperSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("servers", &self.servers)
            .field("session_timeout", &self.session_timeout)
            .field(
                "auth",
                &self.auth.get().as_ref().as_ref().map(|(scheme, _)| scheme),
            )
            .field("tls", &self.tls)
            .field("deadline", &self.deadline)
            .finish()
    }
}

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum ZooKeeperError {
    /// ZooKeeper refused, and did nothing.
    #[error("ZooKeeper refused: {0}")]
    Refused(Code),
    /// The call may have been applied, or may still be: the answer did not come.
    #[error("ZooKeeper did not say whether it was done: {0}")]
    Unknown(FailureReason),
    /// No server answers; the call had no effect.
    #[error("no ZooKeeper server answers: {0}")]
    Unreachable(FailureReason),
    /// The credentials do not allow it, or are missing; the call had no effect.
    #[error("ZooKeeper denies it to these credentials: {0}")]
    Denied(Code),
    /// The credentials are wrong; the call had no effect.
    #[error("ZooKeeper wants other credentials: {0}")]
    Unauthenticated(Code),
    /// The server's answer is not ZooKeeper's. A write may have been done or not.
    #[error("an answer that ZooKeeper does not give: {0}")]
    Garbage(FailureReason),
}

impl ZooKeeperError {
    /// The meaning of a failure for a call.
    fn of(failure: SessionFailure, kind: AccessKind) -> Self {
        let open = |trouble| match kind {
            AccessKind::Read => Self::Unreachable(trouble),
            AccessKind::Write => Self::Unknown(trouble),
        };
        match failure {
            SessionFailure::Said(code) => match code.meaning() {
                Meaning::Refused => Self::Refused(code),
                Meaning::Denied => Self::Denied(code),
                Meaning::Unauthenticated => Self::Unauthenticated(code),
                Meaning::Open => open(FailureReason::new(code)),
                Meaning::Garbage => Self::Garbage(FailureReason::new(code)),
            },
            SessionFailure::Unsent(trouble) => Self::Unreachable(trouble),
            SessionFailure::Unanswered(trouble) => open(trouble),
            SessionFailure::Garbage(trouble) => Self::Garbage(trouble),
        }
    }
}

/// A node and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeValue {
    /// The value of the node.
    pub data: Vec<u8>,
    /// The number, time and transaction of its writes.
    pub stat: Stat,
    /// The newest transaction that the server had seen when it answered. What is older is in the
    /// answer.
    pub seen: i64,
}

/// A write of several that are done together, or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeWrite<'a> {
    /// Writes nothing, if the node has this number of writes.
    Check(&'a str, i32),
    /// Writes a node, as [`ZooKeeperClient::set`].
    Set(&'a str, &'a [u8], i32),
    /// Writes a node over any earlier value.
    Put(&'a str, &'a [u8]),
    /// Deletes a node with this number of writes.
    Delete(&'a str, i32),
}

/// Ready when the node may have changed since it was read, or the connection is lost. If it is dropped
/// before, the server forgets the watch.
pub struct ChangeSignal {
    changed: oneshot::Receiver<()>,
    is_ready: bool,
    path: String,
    /// Also leaves the session to its end.
    calls: mpsc::WeakSender<PendingCall>,
    patience: Duration,
}

impl fmt::Debug for ChangeSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changed").field("path", &self.path).finish()
    }
}

impl Future for ChangeSignal {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let changed = Pin::new(&mut self.changed).poll(cx).map(|_| ());
        self.is_ready |= changed.is_ready();
        changed
    }
}

impl Drop for ChangeSignal {
    fn drop(&mut self) {
        let fired = self.is_ready || self.changed.try_recv() != Err(TryRecvError::Empty);
        // The session must see that no caller waits here.
        self.changed.close();
        if let Some(calls) = self.calls.upgrade().filter(|_| !fired) {
            // If there is no place for it, the session notices later.
            let _ = calls.try_send(PendingCall {
                op: Op::RemoveWatches,
                fields: WireFields::default(),
                watch: None,
                leaves: Some(std::mem::take(&mut self.path)),
                deadline: Instant::now() + self.patience,
                answer: oneshot::channel().0,
            });
        }
    }
}

/// Whether a call without an answer may have had an effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AccessKind {
    Read,
    Write,
}

/// A client of one ensemble. Clones share its session, which ends with the last of them.
#[derive(Clone)]
pub struct ZooKeeperClient(Arc<ZooKeeperState>);

struct ZooKeeperState {
    settings: ZooKeeperSettings,
    /// The servers, or `None` if the addresses are not valid.
    servers: Option<ServerAddresses>,
    calls: OnceLock<mpsc::Sender<PendingCall>>,
}

impl fmt::Debug for ZooKeeperClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.0.settings).finish()
    }
}

impl ZooKeeperClient {
    /// Connects with the first call, which needs a tokio runtime.
    #[must_use]
    pub fn new(settings: ZooKeeperSettings) -> Self {
        Self(Arc::new(ZooKeeperState {
            servers: ServerAddresses::parse(&settings.servers),
            settings,
            calls: OnceLock::new(),
        }))
    }

    /// A node's value, possibly slightly old; `None` if the node does not exist.
    ///
    /// # Errors
    ///
    /// Any except [`ZooKeeperError::Unknown`].
    pub async fn get(&self, path: &str) -> Result<Option<NodeValue>, ZooKeeperError> {
        let of = self.at(path, AccessKind::Read)?;
        of.error(match of.get().await {
            Err(SessionFailure::Said(Code::NO_NODE)) => Ok(None),
            read => read.map(Some),
        })
    }

    /// As [`get`](Self::get), with one notice when the node changes or is made.
    ///
    /// # Errors
    ///
    /// Any except [`ZooKeeperError::Unknown`].
    pub async fn get_and_watch(
        &self,
        path: &str,
    ) -> Result<(Option<NodeValue>, ChangeSignal), ZooKeeperError> {
        let of = self.at(path, AccessKind::Read)?;
        let found = async {
            loop {
                match of.get_and_watch().await {
                    Err(SessionFailure::Said(Code::NO_NODE)) => {}
                    found => return found.map(|(node, changed)| (Some(node), changed)),
                }
                let (is_there, changed) = of.exists_and_watch().await?;
                if !is_there {
                    return Ok((None, changed));
                }
                // It was made in between.
            }
        };
        of.error(found.await)
    }

    /// Makes a persistent node, and its missing ancestors. Returns its state, or `None` if it
    /// exists already.
    ///
    /// Any client can read and change it; with credentials, only clients with the same ones.
    ///
    /// # Errors
    ///
    /// Any.
    pub async fn create(&self, path: &str, data: &[u8]) -> Result<Option<Stat>, ZooKeeperError> {
        let of = self.at(path, AccessKind::Write)?;
        of.error(match of.make(data, Lifetime::Persistent).await {
            Err(SessionFailure::Said(Code::NODE_EXISTS)) => Ok(None),
            made => made.map(Some),
        })
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
    ) -> Result<Option<Stat>, ZooKeeperError> {
        let of = self.at(path, AccessKind::Write)?;
        of.error(match of.set(data, version).await {
            Err(SessionFailure::Said(Code::BAD_VERSION | Code::NO_NODE)) => Ok(None),
            set => set.map(Some),
        })
    }

    /// Writes a node that ends with this client's session at the latest, over any earlier value.
    /// Makes it and its ancestors if missing. Returns its state.
    ///
    /// Sessions are replaced without notice: to keep the node, write it regularly.
    ///
    /// # Errors
    ///
    /// Any.
    pub async fn put_ephemeral(&self, path: &str, data: &[u8]) -> Result<Stat, ZooKeeperError> {
        let of = self.at(path, AccessKind::Write)?;
        of.error(match of.set(data, ANY_VERSION).await {
            Err(SessionFailure::Said(Code::NO_NODE)) => of.make(data, Lifetime::Ephemeral).await,
            set => set,
        })
    }

    /// Deletes a node with any value. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// Any.
    pub async fn delete(&self, path: &str) -> Result<bool, ZooKeeperError> {
        let of = self.at(path, AccessKind::Write)?;
        let fields = WireFields::default().text(&of.path).int(ANY_VERSION);
        of.error(match of.ask(Op::Delete, fields, None).await {
            Err(SessionFailure::Said(Code::NO_NODE)) => Ok(false),
            deleted => deleted.map(|_| true),
        })
    }

    /// Does several writes together. Returns the new states of the nodes that were written, in their
    /// order, or `None` if nothing was done because a node has another number of writes, has children,
    /// or does not exist.
    ///
    /// # Errors
    ///
    /// Any.
    pub async fn write_all(
        &self,
        writes: &[NodeWrite<'_>],
    ) -> Result<Option<Vec<Stat>>, ZooKeeperError> {
        let of = self.at("/", AccessKind::Write)?;
        let mut fields = WireFields::default();
        for write in writes {
            let (NodeWrite::Check(path, _)
            | NodeWrite::Set(path, ..)
            | NodeWrite::Put(path, _)
            | NodeWrite::Delete(path, _)) = write;
            let NodeAccess { path, .. } = self.at(path, AccessKind::Write)?;
            fields = match *write {
                NodeWrite::Check(_, version) => {
                    fields.step(Some(Op::Check)).text(&path).int(version)
                }
                NodeWrite::Set(_, data, version) => {
                    let fields = fields.step(Some(Op::SetData)).text(&path);
                    fields.bytes(data).int(version)
                }
                NodeWrite::Put(_, data) => {
                    let fields = fields.step(Some(Op::SetData)).text(&path);
                    fields.bytes(data).int(ANY_VERSION)
                }
                NodeWrite::Delete(_, version) => {
                    fields.step(Some(Op::Delete)).text(&path).int(version)
                }
            };
        }
        let done = async {
            let reply = of.ask(Op::Multi, fields.step(None), None).await?;
            let steps = Reader(&reply.fields).steps().ok_or_else(cut_short)?;
            steps.map_err(SessionFailure::Said)
        };
        of.error(match done.await {
            Err(SessionFailure::Said(Code::BAD_VERSION | Code::NO_NODE | Code::NOT_EMPTY)) => {
                Ok(None)
            }
            done => done.map(Some),
        })
    }

    /// The names of a node's children; none if the node does not exist.
    ///
    /// # Errors
    ///
    /// Any except [`ZooKeeperError::Unknown`].
    pub async fn children(&self, path: &str) -> Result<Vec<String>, ZooKeeperError> {
        let of = self.at(path, AccessKind::Read)?;
        let fields = WireFields::default().text(&of.path).flag(false);
        let children = match of.ask(Op::GetChildren, fields, None).await {
            Err(SessionFailure::Said(Code::NO_NODE)) => Ok(Vec::new()),
            Err(failure) => Err(failure),
            Ok(reply) => Reader(&reply.fields).texts().ok_or_else(cut_short),
        };
        of.error(children)
    }

    /// The names of a node's children; none if the node does not exist. With one notice when a
    /// child is made or deleted.
    ///
    /// # Errors
    ///
    /// Any except [`ZooKeeperError::Unknown`].
    pub async fn children_and_watch(
        &self,
        path: &str,
    ) -> Result<(Vec<String>, ChangeSignal), ZooKeeperError> {
        let of = self.at(path, AccessKind::Read)?;
        let listed = async {
            let (reply, changed) = match of.ask_and_watch(Op::GetChildren).await {
                Err(SessionFailure::Said(Code::NO_NODE)) => {
                    let (_, changed) = of.exists_and_watch().await?;
                    return Ok((Vec::new(), changed));
                }
                listed => listed?,
            };
            let children = Reader(&reply.fields).texts().ok_or_else(cut_short)?;
            Ok((children, changed))
        };
        of.error(listed.await)
    }

    /// Something to do with one node, by a deadline from now.
    fn at(&self, path: &str, kind: AccessKind) -> Result<NodeAccess<'_>, ZooKeeperError> {
        let servers = self.0.servers.as_ref().filter(|_| is_path(path));
        let servers = servers.ok_or(ZooKeeperError::Refused(Code::BAD_ARGUMENTS))?;
        let path = match path {
            "/" if !servers.chroot.is_empty() => servers.chroot.clone(),
            path => format!("{}{path}", servers.chroot),
        };
        Ok(NodeAccess {
            client: self,
            servers,
            path,
            kind,
            deadline: Instant::now() + self.0.settings.deadline,
        })
    }
}

/// How long a call waits behind its deadline to be told whether it was sent.
const GRACE: Duration = Duration::from_millis(100);
/// The version that each version of a node equals.
const ANY_VERSION: i32 = -1;

/// A node, and the deadline of all that is asked of it.
struct NodeAccess<'a> {
    client: &'a ZooKeeperClient,
    servers: &'a ServerAddresses,
    path: String,
    kind: AccessKind,
    deadline: Instant,
}

impl NodeAccess<'_> {
    fn error<T>(&self, done: Result<T, SessionFailure>) -> Result<T, ZooKeeperError> {
        done.map_err(|failure| ZooKeeperError::of(failure, self.kind))
    }

    async fn get(&self) -> Result<NodeValue, SessionFailure> {
        let fields = WireFields::default().text(&self.path).flag(false);
        node(&self.ask(Op::GetData, fields, None).await?)
    }

    async fn get_and_watch(&self) -> Result<(NodeValue, ChangeSignal), SessionFailure> {
        let (reply, changed) = self.ask_and_watch(Op::GetData).await?;
        Ok((node(&reply)?, changed))
    }

    /// Whether it is there, with a notice when it changes or is made.
    async fn exists_and_watch(&self) -> Result<(bool, ChangeSignal), SessionFailure> {
        let (sender, changed) = oneshot::channel();
        let is_there = match self.watch(Op::Exists, sender).await {
            Ok(_) => true,
            Err(SessionFailure::Said(Code::NO_NODE)) => false,
            Err(failure) => return Err(failure),
        };
        Ok((is_there, self.changed(changed)))
    }

    async fn ask_and_watch(&self, op: Op) -> Result<(CallReply, ChangeSignal), SessionFailure> {
        let (sender, changed) = oneshot::channel();
        let reply = self.watch(op, sender).await?;
        Ok((reply, self.changed(changed)))
    }

    fn changed(&self, changed: oneshot::Receiver<()>) -> ChangeSignal {
        let calls = self.client.0.calls.get();
        let calls = calls.expect("the watch was asked for over it");
        ChangeSignal {
            changed,
            is_ready: false,
            path: self.path.clone(),
            calls: calls.downgrade(),
            patience: self.client.0.settings.deadline,
        }
    }

    async fn watch(
        &self,
        op: Op,
        changed: oneshot::Sender<()>,
    ) -> Result<CallReply, SessionFailure> {
        let path = self.path.clone();
        let fields = WireFields::default().text(&path).flag(true);
        self.ask(op, fields, Some(NodeWatch { path, changed }))
            .await
    }

    async fn set(&self, data: &[u8], version: i32) -> Result<Stat, SessionFailure> {
        let fields = WireFields::default()
            .text(&self.path)
            .bytes(data)
            .int(version);
        let reply = self.ask(Op::SetData, fields, None).await?;
        Reader(&reply.fields).stat().ok_or_else(cut_short)
    }

    /// Makes the node, and its missing ancestors: from the node upwards, since a client may have no
    /// right above an ancestor that is there.
    async fn make(&self, data: &[u8], lifetime: Lifetime) -> Result<Stat, SessionFailure> {
        let mut missing = vec![&*self.path];
        loop {
            let at = missing[missing.len() - 1];
            let made = match missing.len() {
                1 => self.make_one(at, data, lifetime).await,
                _ => self.make_one(at, b"", Lifetime::Persistent).await,
            };
            match made {
                Err(SessionFailure::Said(Code::NO_NODE)) => match at.rsplit_once('/') {
                    Some((above, _)) if !above.is_empty() => missing.push(above),
                    _ => return made,
                },
                // Another client has made an ancestor.
                Err(SessionFailure::Said(Code::NODE_EXISTS)) if missing.len() > 1 => {
                    missing.pop();
                }
                Ok(_) if missing.len() > 1 => {
                    missing.pop();
                }
                made => return made,
            }
        }
    }

    async fn make_one(
        &self,
        at: &str,
        data: &[u8],
        lifetime: Lifetime,
    ) -> Result<Stat, SessionFailure> {
        let of_creator = self.client.0.settings.auth.get().is_some();
        let fields = WireFields::default().text(at).bytes(data);
        let fields = fields.access(of_creator).int(lifetime as i32);
        let reply = self.ask(Op::Create, fields, None).await?;
        let mut fields = Reader(&reply.fields);
        fields.text().ok_or_else(cut_short)?;
        // Some ZooKeepers do not tell the state of a new node.
        let untold = Stat {
            mzxid: reply.zxid,
            mtime: 0,
            version: 0,
        };
        Ok(fields.stat().unwrap_or(untold))
    }

    async fn ask(
        &self,
        op: Op,
        fields: WireFields,
        watch: Option<NodeWatch>,
    ) -> Result<CallReply, SessionFailure> {
        let (answer, answered) = oneshot::channel();
        let call = PendingCall {
            op,
            fields,
            watch,
            leaves: None,
            deadline: self.deadline,
            answer,
        };
        let calls = self.client.0.calls.get_or_init(|| {
            let (sender, calls) = mpsc::channel(WAITING_MAX);
            let settings = self.client.0.settings.clone();
            tokio::spawn(session::serve(settings, self.servers.clone(), calls));
            sender
        });
        let place = timeout_at(self.deadline, calls.reserve()).await;
        let Ok(Ok(place)) = place else {
            return Err(SessionFailure::Unsent(FailureReason::new(
                "too many calls wait already",
            )));
        };
        place.send(call);
        // The task looks at the deadline of the oldest call, which says whether that was sent. A later
        // step of an older call may have less time left.
        match timeout_at(self.deadline + GRACE, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(SessionFailure::Unanswered(FailureReason::new(
                "the client has ended",
            ))),
            Err(_) => Err(SessionFailure::Unanswered(FailureReason::new(
                "no answer in time",
            ))),
        }
    }
}

fn node(reply: &CallReply) -> Result<NodeValue, SessionFailure> {
    let mut fields = Reader(&reply.fields);
    let data = fields.bytes().ok_or_else(cut_short)?.to_vec();
    let stat = fields.stat().ok_or_else(cut_short)?;
    let seen = reply.zxid;
    Ok(NodeValue { data, stat, seen })
}

fn cut_short() -> SessionFailure {
    SessionFailure::Garbage(FailureReason::new("an answer without all its fields"))
}
