//! A small client of etcd v3, over gRPC with the messages of `proto/etcd.proto`.
//!
//! A call goes to the member that answered last. If a member does not answer within
//! [`EtcdSettings::try_timeout`], the next one is asked, until [`EtcdSettings::deadline`]. A call that
//! may have been applied is never sent again: it returns [`EtcdError::Unknown`], and the caller finds
//! out by reading. Leases are an exception, because an unknown lease expires by itself.

mod connection;
mod endpoint;
mod failure;
mod messages;
mod watch;

/// The output of protox and prost for `proto/etcd.proto`; a test compares the two.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
#[rustfmt::skip]
mod proto;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use self::connection::EtcdMember;
pub use self::endpoint::{Endpoint, EndpointError};
use self::failure::EtcdFailure;
pub use self::messages::{KeySwap, KeyValue, Range, RangeContents};
pub use self::watch::{Changes, EtcdWatch, KeyChange, WatchEvent};
use crate::Renewable;
use crate::tls::TlsClient;

/// The address of etcd, the user, and the time limits of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSettings {
    /// The members, in the order of attempts.
    pub endpoints: Vec<Endpoint>,
    /// Name and password, if etcd requires them. After they are renewed, a new token is fetched.
    pub credentials: Renewable<Option<Credentials>>,
    /// For `https` endpoints. It needs `h2` among its protocols.
    pub tls: Option<TlsClient>,
    /// The time limit of one member, from the connect to the last byte of its answer.
    pub try_timeout: Duration,
    /// The time limit of a call over all members.
    pub deadline: Duration,
    /// The largest answer, and the largest batch of a watch. Bytes.
    pub max_reply: usize,
}

impl EtcdSettings {
    /// 500 ms for a member, 2 s for a call, 4 MiB for an answer.
    #[must_use]
    pub fn new(endpoints: Vec<Endpoint>) -> Self {
        Self {
            endpoints,
            credentials: Renewable::new(None),
            tls: None,
            try_timeout: Duration::from_millis(500),
            deadline: Duration::from_secs(2),
            max_reply: 4 << 20,
        }
    }
}

/// A user of etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The name.
    pub user: String,
    /// The password; never shown.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:***", self.user)
    }
}

/// Why a call has no result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EtcdError {
    /// etcd refused, and did nothing.
    #[error("etcd refused: {message} (code {code})")]
    Refused {
        /// The gRPC status code.
        code: i32,
        /// etcd's message.
        message: String,
    },
    /// The call may have been applied, or may still be: the answer did not come.
    #[error("etcd did not say whether it was done: {0}")]
    Unknown(Box<str>),
    /// No member answered; the call had no effect.
    #[error("no etcd member answers: {0}")]
    Unreachable(Box<str>),
    /// etcd requires a user, or does not know this name and password.
    #[error("etcd wants other credentials: {0}: check user and password")]
    Unauthenticated(Box<str>),
    /// The server is not etcd, or has another dialect. A write may have been done or not.
    #[error("an answer that etcd does not give: {0}")]
    Garbage(Box<str>),
}

/// A lease as granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The id of the lease.
    pub id: i64,
    /// The time to live, from the grant or the last renewal. etcd counts in whole seconds and has a minimum.
    pub time_to_live: Duration,
}

/// gRPC's status code for an object that does not exist.
pub const NOT_FOUND: i32 = 5;
/// The code of etcd for a user that may not do this.
const PERMISSION_DENIED: i32 = 7;
/// The cure for a missing permission.
const GRANT: &str = "grant a role of this user readwrite on these keys, with `etcdctl role \
                     grant-permission`";

/// Whether a call can be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// Twice has the same effect as once.
    Harmless,
    /// Not sent again after it may have been applied.
    Never,
}

/// A client of one cluster. Clones share connections.
#[derive(Clone)]
pub struct EtcdClient(Arc<EtcdState>);

struct EtcdState {
    settings: EtcdSettings,
    members: Vec<EtcdMember>,
    /// The member that answered last.
    preferred: AtomicUsize,
    /// For the name and password of this number.
    token: Mutex<Option<(u64, String)>>,
}

impl fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.0.settings).finish()
    }
}

impl EtcdClient {
    /// Connects with the first call.
    #[must_use]
    pub fn new(settings: EtcdSettings) -> Self {
        let members = settings
            .endpoints
            .iter()
            .map(|endpoint| EtcdMember::new(endpoint.clone(), &settings))
            .collect();
        Self(Arc::new(EtcdState {
            settings,
            members,
            preferred: AtomicUsize::new(0),
            token: Mutex::new(None),
        }))
    }

    /// A key's value, linearizably.
    ///
    /// # Errors
    ///
    /// Any except [`EtcdError::Unknown`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, EtcdError> {
        let mut found = self.range(&Range::key(key)).await?;
        Ok(found.entries.pop())
    }

    /// The values of a range of keys, linearizably.
    ///
    /// # Errors
    ///
    /// Any except [`EtcdError::Unknown`].
    pub async fn range(&self, range: &Range) -> Result<RangeContents, EtcdError> {
        let request: proto::RangeRequest = range.clone().into();
        let reply: proto::RangeResponse = self
            .call("/etcdserverpb.KV/Range", request, Repeat::Harmless)
            .await?;
        reply.try_into()
    }

    /// Writes a key, over any earlier value, and binds it to a lease or to none. Returns the
    /// revision of the write.
    ///
    /// # Errors
    ///
    /// Any. After [`EtcdError::Unknown`] and [`EtcdError::Garbage`] it may have been written or not.
    pub async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        lease: Option<i64>,
    ) -> Result<u64, EtcdError> {
        let request = messages::put(key, value, lease);
        let reply: proto::PutResponse = self
            .call("/etcdserverpb.KV/Put", request, Repeat::Never)
            .await?;
        messages::revision(reply.header)
    }

    /// Writes a key, as [`put`](Self::put), if it was last written by this revision; 0 if it does
    /// not exist.
    ///
    /// # Errors
    ///
    /// Any. After [`EtcdError::Unknown`] and [`EtcdError::Garbage`] it may have been written or not.
    pub async fn swap(
        &self,
        key: &[u8],
        expected: u64,
        value: &[u8],
        lease: Option<i64>,
    ) -> Result<KeySwap, EtcdError> {
        let request = messages::swap(messages::put(key, value, lease), expected);
        let reply: proto::TxnResponse = self
            .call("/etcdserverpb.KV/Txn", request, Repeat::Never)
            .await?;
        reply.try_into()
    }

    /// A new lease with at least this time to live, in whole seconds.
    ///
    /// # Errors
    ///
    /// Any except [`EtcdError::Unknown`]: after a lost answer another lease is requested.
    pub async fn lease_grant(&self, time_to_live: Duration) -> Result<Lease, EtcdError> {
        let whole = time_to_live.as_secs() + u64::from(time_to_live.subsec_nanos() > 0);
        let request = proto::LeaseGrantRequest {
            ttl: i64::try_from(whole.max(1)).unwrap_or(i64::MAX),
        };
        let reply: proto::LeaseResponse = self
            .call("/etcdserverpb.Lease/LeaseGrant", request, Repeat::Harmless)
            .await?;
        match (reply.id, reply.time_to_live()) {
            (id, Some(time_to_live)) if id != 0 => Ok(Lease { id, time_to_live }),
            _ => Err(EtcdError::Garbage("a lease without an id or a life".into())),
        }
    }

    /// Renews a lease once. Returns its new time to live, or `None` if the lease does not exist.
    ///
    /// Members before 3.4.28 and 3.5.10 answer this without asking the others. So a former leader
    /// that does not know its state yet renews leases that the new leader lets expire: do not rely
    /// on this where certainty is required.
    ///
    /// # Errors
    ///
    /// Any except [`EtcdError::Unknown`].
    pub async fn lease_keep_alive(&self, id: i64) -> Result<Option<Duration>, EtcdError> {
        // A stream to etcd with this one message.
        let path = "/etcdserverpb.Lease/LeaseKeepAlive";
        let reply: proto::LeaseResponse = self
            .call(path, proto::LeaseRequest { id }, Repeat::Harmless)
            .await?;
        Ok(reply.time_to_live())
    }

    /// Ends a lease and deletes the keys bound to it. Returns whether it existed.
    ///
    /// # Errors
    ///
    /// Any except [`EtcdError::Unknown`].
    pub async fn lease_revoke(&self, id: i64) -> Result<bool, EtcdError> {
        let path = "/etcdserverpb.Lease/LeaseRevoke";
        let revoked: Result<proto::LeaseRevokeResponse, _> = self
            .call(path, proto::LeaseRequest { id }, Repeat::Harmless)
            .await;
        match revoked {
            Ok(_) => Ok(true),
            Err(EtcdError::Refused { code, .. }) if code == NOT_FOUND => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Follows the changes of a range from a revision; from now on, if it is 0.
    #[must_use]
    pub fn watch(&self, range: Range, from: u64) -> EtcdWatch {
        EtcdWatch::new(self.clone(), range, from)
    }

    /// Sends a call until a member answers it.
    async fn call<Q, R>(
        &self,
        path: &'static str,
        request: Q,
        repeat: Repeat,
    ) -> Result<R, EtcdError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let deadline = Instant::now() + self.0.settings.deadline;
        let mut authenticated_anew = false;
        loop {
            let token = self.token(deadline).await?;
            let reply = self
                .answered(path, &request, token.as_deref(), repeat, deadline)
                .await;
            match (reply, token) {
                (Err(EtcdError::Unauthenticated(_)), Some(token)) if !authenticated_anew => {
                    // Tokens end, and members forget them when they restart.
                    authenticated_anew = true;
                    self.forget(&token).await;
                }
                (reply, _) => return reply,
            }
        }
    }

    /// Tries each member once, beginning with the one that answered last.
    async fn answered<Q, R>(
        &self,
        path: &'static str,
        request: &Q,
        token: Option<&str>,
        repeat: Repeat,
        deadline: Instant,
    ) -> Result<R, EtcdError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let shared = &*self.0;
        let count = shared.members.len();
        let first = shared.preferred.load(Ordering::Relaxed);
        let mut last = EtcdError::Unreachable("there are no endpoints".into());
        for at in (0..count).map(|at| (first + at) % count) {
            let member = &shared.members[at];
            let end = deadline.min(Instant::now() + shared.settings.try_timeout);
            last = match member.unary(path, request.clone(), token, end).await {
                Ok(reply) => {
                    shared.preferred.store(at, Ordering::Relaxed);
                    return Ok(reply);
                }
                Err(EtcdFailure::Final(error)) => return Err(error),
                Err(EtcdFailure::Trouble(cause)) if repeat == Repeat::Never => {
                    EtcdError::Unknown(cause)
                }
                Err(failure) => failure.of_harmless(),
            };
            if matches!(last, EtcdError::Unknown(_))
                || (repeat == Repeat::Never && matches!(last, EtcdError::Garbage(_)))
            {
                // The next call begins with another member.
                shared.preferred.store((at + 1) % count, Ordering::Relaxed);
                return Err(last);
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        shared
            .preferred
            .store((first + 1) % count.max(1), Ordering::Relaxed);
        Err(last)
    }

    /// The token to send, fetched if missing; `None` if no user is configured.
    async fn token(&self, deadline: Instant) -> Result<Option<String>, EtcdError> {
        let renewable = &self.0.settings.credentials;
        let (number, credentials) = (renewable.number(), renewable.get());
        let Some(credentials) = &*credentials else {
            return Ok(None);
        };
        let late = || EtcdError::Unreachable("no token in time".into());
        let mut token = timeout_at(deadline, self.0.token.lock())
            .await
            .map_err(|_| late())?;
        if let Some((_, token)) = token.as_ref().filter(|(of, _)| *of == number) {
            return Ok(Some(token.clone()));
        }
        let request = proto::AuthenticateRequest {
            name: credentials.user.clone(),
            password: credentials.password.clone(),
        };
        let path = "/etcdserverpb.Auth/Authenticate";
        let reply: proto::AuthenticateResponse = self
            .answered(path, &request, None, Repeat::Harmless, deadline)
            .await
            .map_err(|error| match error {
                EtcdError::Refused { message, .. } => EtcdError::Unauthenticated(message.into()),
                other => other,
            })?;
        if reply.token.is_empty() {
            return Err(EtcdError::Garbage("a token that is empty".into()));
        }
        *token = Some((number, reply.token.clone()));
        Ok(Some(reply.token))
    }

    /// Drops a token, unless another call has replaced it already.
    async fn forget(&self, spent: &str) {
        let mut token = self.0.token.lock().await;
        token.take_if(|(_, known)| known == spent);
    }
}
