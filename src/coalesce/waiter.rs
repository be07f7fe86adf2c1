//! A client's part in a shared call, while it waits for the answer.

use std::sync::Arc;

use tidegate_runtime::lock;
use tokio::sync::{oneshot, watch};

use super::CoalescerState;
use super::store::{SeatId, SharedCallId, SharedResult};
use crate::call::{Progress, Reason, Refusal};

/// Waits for the answer of a shared call. Dropping it leaves the call.
#[must_use]
pub struct SharedCallWaiter {
    pub(super) shared: Arc<CoalescerState>,
    pub(super) call: SharedCallId,
    pub(super) seat: SeatId,
    pub(super) told: oneshot::Receiver<SharedResult>,
    pub(super) admitted: watch::Receiver<bool>,
}

impl SharedCallWaiter {
    /// Waits for the message, and shows the progress of the call meanwhile.
    pub async fn told(mut self, progress: &Progress) -> SharedResult {
        loop {
            if *self.admitted.borrow_and_update() {
                progress.admit();
            } else {
                progress.wait();
            }
            tokio::select! {
                biased;
                told = &mut self.told => {
                    // Only a panic ends a call without a message to its reads.
                    return told.unwrap_or_else(|_| {
                        let detail = "the call that was shared broke down";
                        SharedResult::Answer(Err(Refusal::new(Reason::Internal, detail)))
                    });
                }
                Ok(()) = self.admitted.changed() => {}
            }
        }
    }
}

impl Drop for SharedCallWaiter {
    fn drop(&mut self) {
        let left = lock(&self.shared.store).leave(self.call, self.seat);
        // Not under the lock, because its record may be reported.
        drop(left);
    }
}
