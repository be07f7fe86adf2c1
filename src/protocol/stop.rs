//! Tells connections that the sidecar goes down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::{
    CancellationToken, WaitForCancellationFuture, WaitForCancellationFutureOwned,
};

/// Set once, and seen by all connections. Each call looks whether it is set, and a look writes no memory that
/// threads share, as the lock within a token would.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    is_set: Arc<AtomicBool>,
    token: CancellationToken,
}

impl Stop {
    /// From now on connections finish what is under way, and begin nothing.
    pub fn set(&self) {
        // First, so that what the token wakes sees it.
        self.is_set.store(true, Ordering::Release);
        self.token.cancel();
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Waits until it is set.
    pub(super) fn wait(&self) -> WaitForCancellationFuture<'_> {
        self.token.cancelled()
    }

    /// Waits until it is set, for a future that outlives this value.
    pub(super) fn wait_owned(&self) -> WaitForCancellationFutureOwned {
        self.token.clone().cancelled_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_waits_for_it_wakes_and_sees_it_set() {
        let stop = Stop::default();
        let waiting = tokio::spawn({
            let stop = stop.clone();
            async move {
                stop.wait().await;
                stop.is_set()
            }
        });
        tokio::task::yield_now().await;
        assert!(!stop.is_set() && !waiting.is_finished());
        stop.set();
        assert!(waiting.await.expect("it does not panic"));
    }
}
