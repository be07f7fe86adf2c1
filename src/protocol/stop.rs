//! Tells connections that the sidecar goes down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio_util::sync::{
    CancellationToken, WaitForCancellationFuture, WaitForCancellationFutureOwned,
};

/// Set once, and seen by all connections. Each call looks whether it is set, and a look writes no memory that
/// threads share, as the lock within a token would.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    level: Arc<AtomicU8>,
    token: CancellationToken,
}

/// Connections go on.
const OFF: u8 = 0;
/// Connections end with their next answer.
const AFTER_ANSWER: u8 = 1;
/// Connections begin nothing.
const SET: u8 = 2;

impl Stop {
    /// From now on connections finish what is under way, and begin nothing.
    pub fn set(&self) {
        // First, so that what the token wakes sees it.
        self.level.store(SET, Ordering::Release);
        self.token.cancel();
    }

    /// From now on a connection ends with its next answer, and an idle one stays open for another request: another process
    /// serves new connections. With `false`, connections go on.
    pub fn after_answers(&self, ends: bool) {
        let (from, to) = match ends {
            true => (OFF, AFTER_ANSWER),
            false => (AFTER_ANSWER, OFF),
        };
        let order = Ordering::AcqRel;
        // What is set stays so.
        let _ = self
            .level
            .compare_exchange(from, to, order, Ordering::Acquire);
    }

    pub(super) fn is_set(&self) -> bool {
        self.level.load(Ordering::Acquire) == SET
    }

    /// Whether a connection ends with its next answer.
    pub(super) fn ends_after_answer(&self) -> bool {
        self.level.load(Ordering::Acquire) != OFF
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
