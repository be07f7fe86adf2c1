//! Changes for a time of day that is set, and for a machine that was suspended.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tracing::{error, info, warn};

use super::{AppState, with_costs};

const LOOK_EVERY: Duration = Duration::from_secs(1);

impl AppState {
    /// Follows the clocks until dropped.
    pub(super) async fn keep_in_step(self: Arc<Self>) {
        let mut beats = tokio::time::interval(LOOK_EVERY);
        beats.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut before = Duration::ZERO;
        loop {
            beats.tick().await;
            let suspended = self.clock.notice_suspension();
            if suspended > before {
                let seconds = (suspended - before).as_secs_f64();
                warn!(
                    seconds,
                    "the machine was suspended, or this clock stood still: leases and windows have ended meanwhile"
                );
                before = suspended;
            }
            let config = self.config.get();
            let window = config.admit.window.as_ref();
            if !window.is_some_and(|window| window.fixed) || !self.gate.is_out_of_step() {
                continue;
            }
            let shared = Arc::clone(&self);
            let aligning = tokio::task::spawn_blocking(move || shared.align_windows());
            if let Err(failed) = aligning.await {
                error!(error = %failed, "windows were not aligned by our own mistake");
            }
        }
    }

    /// Fixed windows follow the time of day as it is now.
    fn align_windows(&self) {
        // Else the new process aligns its own.
        let Ok(_one_at_a_time) = self.changes.begin() else {
            return;
        };
        let config = self.config.get();
        let limits = with_costs(&config.admit, &self.callers);
        let at = self.gate.align(&limits);
        self.journal.reloaded(at, &self.gate, &config, &limits);
        info!("the time of day was set: fixed windows are aligned to it anew");
    }
}
