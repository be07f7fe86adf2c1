//! The interface that every store in another process implements.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{StoreTime, Version};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::node::Node;
use super::{Answer, Configured, Entry, Error, Key, QuotaStore, Swapped};

/// An engine: what differs from one store to the next. The methods are those of [`QuotaStore`].
pub(super) trait Remote: Send + Sync + 'static {
    /// Whether the store has settings for the quotas of keys.
    const CONFIGURES: bool;

    fn node(&self) -> &Node;

    fn get(&self, key: &Key) -> impl Future<Output = Result<Option<Entry>, Error>> + Send;

    fn compare_and_set(
        &self,
        key: &Key,
        expected: Option<Version>,
        text: &[u8],
        kept_until: Duration,
    ) -> impl Future<Output = Result<Swapped, Error>> + Send;

    fn changed(
        &self,
        key: &Key,
        since: Option<Version>,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    fn try_out(&self) -> impl Future<Output = Result<(), Error>> + Send;

    fn evictions(&self) -> Option<u64>;

    fn member_lifetime(&self) -> Duration;

    fn configured(
        &self,
        key: &Key,
        known: &Configured,
    ) -> impl Future<Output = Result<Configured, Error>> + Send;
}

/// A member of a store, until it is dropped.
pub(super) struct Member<R> {
    remote: Arc<R>,
    _stop: DropGuard,
}

impl<R: Remote> Member<R> {
    /// Starts what `live` does in the background until its token is cancelled; needs a tokio
    /// runtime.
    pub(super) fn start<F>(remote: R, live: impl FnOnce(Arc<R>, CancellationToken) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let remote = Arc::new(remote);
        let stopped = CancellationToken::new();
        tokio::spawn(live(Arc::clone(&remote), stopped.clone()));
        Self {
            remote,
            _stop: stopped.drop_guard(),
        }
    }
}

impl<R: Remote> QuotaStore for Member<R> {
    fn get<'a>(&'a self, key: &'a Key) -> Answer<'a, Option<Entry>> {
        Box::pin(self.remote.get(key))
    }

    fn compare_and_set<'a>(
        &'a self,
        key: &'a Key,
        expected: Option<Version>,
        text: &'a [u8],
        kept_until: Duration,
    ) -> Answer<'a, Swapped> {
        Box::pin(self.remote.compare_and_set(key, expected, text, kept_until))
    }

    fn time(&self) -> watch::Receiver<StoreTime> {
        self.remote.node().time.subscribe()
    }

    fn changed<'a>(&'a self, key: &'a Key, since: Option<Version>) -> Answer<'a, ()> {
        Box::pin(self.remote.changed(key, since))
    }

    fn members(&self) -> watch::Receiver<usize> {
        self.remote.node().members.subscribe()
    }

    fn member_lifetime(&self) -> Duration {
        self.remote.member_lifetime()
    }

    fn trouble(&self) -> Option<(Timestamp, Arc<str>)> {
        self.remote.node().trouble()
    }

    fn try_out(&self) -> Answer<'_, ()> {
        Box::pin(self.remote.try_out())
    }

    fn evictions(&self) -> Option<u64> {
        self.remote.evictions()
    }

    fn configures(&self) -> bool {
        R::CONFIGURES
    }

    fn configured<'a>(&'a self, key: &'a Key, known: &'a Configured) -> Answer<'a, Configured> {
        Box::pin(self.remote.configured(key, known))
    }
}
