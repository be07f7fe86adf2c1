//! Spending of the sidecar before this one from its own share.
//!
//! A sidecar that starts does not know whether a process before it has spent its own share of the
//! window that runs, so it does not spend that share. A sidecar that is alone can know: it keeps a
//! word in the store. The word is missing if no sidecar ever ran. While one runs, and after a
//! crash, the word is that one runs. A sidecar that has drained says which windows it has touched.
//!
//! Among several sidecars the word says nothing, because one of another name may have had the same
//! share. They write it all the same, so that a sidecar that is alone later finds it.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::quota::{LENGTH_MAX, RecordVersion};
use tidegate_quota::{Engine, RecordKey, StoreError, SwapResult};
use tidegate_runtime::BackOff;
use tokio::time::timeout;
use tracing::{debug, info};

use super::{Driver, PROBE};

/// The word of a sidecar that runs.
const RUNS: &[u8] = b"tidegate 1 runs";
/// How the word of a sidecar that has drained begins. The end of the last window of which it has spent
/// its own share is behind it, by the store's clock.   ms
const TOUCHED: &str = "tidegate 1 touched_until_ms=";
/// Far longer than any window.
const KEPT_FOR: Duration = LENGTH_MAX.saturating_mul(3);
/// The first and the longest pause after the store did not answer.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long the last word may take.
const FAREWELL: Duration = Duration::from_millis(500);

/// The word of this sidecar in the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartRecord {
    version: RecordVersion,
    /// The end of the last window that the sidecars before may have touched, by the store's clock.
    touched_until: Duration,
}

impl Driver {
    /// Takes over from the sidecar before, once the store answers.
    pub(in crate::app::quotas) async fn begin(self: Arc<Self>) {
        if self.engine == Engine::Memory {
            return;
        }
        let mut time = self.store.time();
        // An error means that the store is closed.
        let _ = time.wait_for(|time| time.latest() < Duration::MAX).await;
        let mut back_off = BackOff::doubling(RETRY.0, RETRY.1);
        loop {
            match timeout(PROBE, self.take_over()).await {
                Ok(Ok(true)) => return,
                // Another sidecar came at the same moment.
                Ok(Ok(false)) => {}
                Ok(Err(error)) => debug!(%error, "quota: the sidecar before is not known"),
                Err(_) => debug!("quota: the sidecar before is not known: no answer"),
            }
            tokio::time::sleep(back_off.pause_with_jitter(rand::random())).await;
        }
    }

    /// Replaces the word of the sidecar before. Returns whether it was still the one that was read.
    async fn take_over(&self) -> Result<bool, StoreError> {
        let key = RecordKey::of_sidecars();
        let found = self.store.get(&key).await?;
        let now = self.store.now(self.clock.now()).latest();
        let version = found.as_ref().map(|found| found.version);
        let kept_until = now.saturating_add(KEPT_FOR);
        let swapped = self.store.compare_and_set(&key, version, RUNS, kept_until);
        let SwapResult::Done(version) = swapped.await? else {
            return Ok(false);
        };
        let settings = Arc::clone(&self.settings.borrow());
        let known = match &found {
            None => Some(Duration::ZERO),
            Some(found) => touched_until(&found.text),
        };
        if settings.expected_sidecars == 1
            && let Some(from) = known
        {
            info!("quota: what was spent of the own share before is known");
            self.gate.set_quota_past(from);
        }
        let lengths = settings.limits.iter();
        let longest = lengths.map(|limit| limit.rule.settings().length).max();
        let any = now.saturating_add(longest.unwrap_or_default());
        self.lock().begun = Some(StartRecord {
            version,
            touched_until: known.unwrap_or(any),
        });
        Ok(true)
    }

    /// Leaves the last word, behind the last call.
    pub(in crate::app::quotas) async fn end(&self) {
        let Some(begun) = self.lock().begun.take() else {
            return;
        };
        let until = begun.touched_until.max(self.gate.quota_shares_until());
        let alone = self.settings.borrow().expected_sidecars == 1;
        if !alone || until == Duration::MAX {
            return;
        }
        let kept_until = self.store.now(self.clock.now()).latest();
        let kept_until = kept_until.saturating_add(KEPT_FOR);
        let word = format!("{TOUCHED}{}", until.as_nanos().div_ceil(1_000_000));
        let key = RecordKey::of_sidecars();
        let left =
            self.store
                .compare_and_set(&key, Some(begun.version), word.as_bytes(), kept_until);
        // If it is lost, the next sidecar takes this one for one that crashed.
        let _ = timeout(FAREWELL, left).await;
    }
}

/// The moment that a sidecar has noted when it drained; `None` if it has not.
fn touched_until(word: &[u8]) -> Option<Duration> {
    let word = str::from_utf8(word).ok()?;
    let millis = word.strip_prefix(TOUCHED)?.parse().ok()?;
    Some(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sidecar_that_has_drained_says_what_it_touched() {
        let check = |word: &[u8], millis: Option<u64>| {
            assert_eq!(touched_until(word), millis.map(Duration::from_millis));
        };
        check(b"tidegate 1 touched_until_ms=7", Some(7));
        check(RUNS, None);
        for word in [
            &b""[..],
            b"tidegate 1 touched_until_ms=",
            b"\xff",
            b"tidegate 2 touched_until_ms=7",
        ] {
            check(word, None);
        }
    }
}
