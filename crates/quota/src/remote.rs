//! The interface that every store in another process implements.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{RecordVersion, StoreTime};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::node::StoreNode;
use super::{QuotaStore, RecordKey, StoreCall, StoreEntry, StoreError, StoredSettings, SwapResult};

/// An engine: what differs from one store to the next. The methods are those of [`QuotaStore`].
pub(super) trait Remote: Send + Sync + 'static {
    /// Whether the store has settings for the quotas of keys.
    const CONFIGURES: bool;

    fn node(&self) -> &StoreNode;

    fn get(
        &self,
        key: &RecordKey,
    ) -> impl Future<Output = Result<Option<StoreEntry>, StoreError>> + Send;

    fn compare_and_set(
        &self,
        key: &RecordKey,
        expected: Option<RecordVersion>,
        text: &[u8],
        kept_until: Duration,
    ) -> impl Future<Output = Result<SwapResult, StoreError>> + Send;

    fn changed(
        &self,
        key: &RecordKey,
        since: Option<RecordVersion>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    fn try_out(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    fn evictions(&self) -> Option<u64>;

    fn member_lifetime(&self) -> Duration;

    fn configured(
        &self,
        key: &RecordKey,
        known: &StoredSettings,
    ) -> impl Future<Output = Result<StoredSettings, StoreError>> + Send;
}

/// A member of a store, until it is dropped.
pub(super) struct StoreMember<R> {
    remote: Arc<R>,
    _stop: DropGuard,
}

impl<R: Remote> StoreMember<R> {
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

impl<R: Remote> QuotaStore for StoreMember<R> {
    fn get<'a>(&'a self, key: &'a RecordKey) -> StoreCall<'a, Option<StoreEntry>> {
        Box::pin(self.remote.get(key))
    }

    fn compare_and_set<'a>(
        &'a self,
        key: &'a RecordKey,
        expected: Option<RecordVersion>,
        text: &'a [u8],
        kept_until: Duration,
    ) -> StoreCall<'a, SwapResult> {
        Box::pin(self.remote.compare_and_set(key, expected, text, kept_until))
    }

    fn time(&self) -> watch::Receiver<StoreTime> {
        self.remote.node().time.subscribe()
    }

    fn changed<'a>(
        &'a self,
        key: &'a RecordKey,
        since: Option<RecordVersion>,
    ) -> StoreCall<'a, ()> {
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

    fn try_out(&self) -> StoreCall<'_, ()> {
        Box::pin(self.remote.try_out())
    }

    fn evictions(&self) -> Option<u64> {
        self.remote.evictions()
    }

    fn configures(&self) -> bool {
        R::CONFIGURES
    }

    fn configured<'a>(
        &'a self,
        key: &'a RecordKey,
        known: &'a StoredSettings,
    ) -> StoreCall<'a, StoredSettings> {
        Box::pin(self.remote.configured(key, known))
    }
}
