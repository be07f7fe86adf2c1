//! Questions to the store, each until its deadline.

use tidegate_limits::quota::{RecordWrite, StoreReply};
use tidegate_quota::{RecordKey, StoreEntry, StoreError, StoredSettings, SwapResult};
use tokio::time::{Instant, timeout_at};

use super::super::breaker::Proof;
use super::{CompletedRequest, Driver, StoreFailure, StoreRequest, TroubleKind, Work};

impl Driver {
    /// Sends one request for a key; for a new key also one for its settings.
    pub(super) async fn question(
        &self,
        asked: StoreRequest,
        key: RecordKey,
        is_new: bool,
        sent: Instant,
    ) -> CompletedRequest {
        // The ledger gives its request up after twice this time.
        let deadline = (sent + asked.timeout).min(asked.taken + asked.timeout * 15 / 8);
        let mut says = None;
        let is_write = asked.write.is_some();
        let reply = match asked.write {
            Some(write) => self.write(&asked.quota, &key, write, deadline).await,
            None if is_new => {
                let known = StoredSettings::default();
                let (read, said) = tokio::join!(
                    self.read(&key, deadline),
                    self.configured(&key, &known, deadline)
                );
                match said {
                    // Else it is read again with the record.
                    Ok(said) => {
                        says = Some(said).filter(|_| read.is_ok());
                        read
                    }
                    Err(failure) => read.and(Err(failure)),
                }
            }
            None => self.read(&key, deadline).await,
        };
        let (outcome, failure) = match reply {
            Ok(outcome) => (outcome, None),
            Err(failure) => (failure.outcome, Some(failure)),
        };
        // A write that lost against another one shows only that the store reads.
        let asked_for = match (is_write, outcome) {
            (false, _) | (true, StoreReply::Stands(_)) => Proof::Read,
            (true, _) => Proof::Write,
        };
        CompletedRequest {
            sent,
            asked: asked_for,
            failure,
            work: Work::Question {
                answer: asked.answer(outcome),
                away: asked.away,
                says,
            },
        }
    }

    /// The settings of a key in the store.
    pub(super) async fn configured(
        &self,
        key: &RecordKey,
        known: &StoredSettings,
        deadline: Instant,
    ) -> Result<StoredSettings, StoreFailure> {
        in_time(deadline, self.store.configured(key, known)).await
    }

    /// Tries the store out: whether it reads and writes.
    pub(super) async fn trial(
        &self,
        sent: Instant,
        deadline: Instant,
        work: Work,
    ) -> CompletedRequest {
        CompletedRequest {
            sent,
            asked: Proof::Write,
            failure: in_time(deadline, self.store.try_out()).await.err(),
            work,
        }
    }

    async fn read(&self, key: &RecordKey, deadline: Instant) -> Result<StoreReply, StoreFailure> {
        let found = in_time(deadline, self.store.get(key)).await?;
        Ok(stands(found.as_ref()))
    }

    async fn write(
        &self,
        limit: &str,
        key: &RecordKey,
        write: RecordWrite,
        deadline: Instant,
    ) -> Result<StoreReply, StoreFailure> {
        let text = write.record.to_string();
        let sent = self.clock.now();
        let (replaces, kept_until) = (write.replaces, write.record.kept_until());
        let swapped = self
            .store
            .compare_and_set(key, replaces, text.as_bytes(), kept_until);
        let swapped = in_time(deadline, swapped).await?;
        let took = self.clock.now().since(sent);
        let seconds = self.metrics.quota_draw_seconds(limit);
        seconds.observe(took.as_secs_f64());
        Ok(match swapped {
            SwapResult::Done(version) => StoreReply::Written(version),
            SwapResult::Conflict(found) => stands(found.as_ref()),
        })
    }
}

/// The answer of the store until the deadline.
async fn in_time<T>(
    deadline: Instant,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreFailure> {
    match timeout_at(deadline, answer).await {
        Ok(answer) => answer.map_err(|error| StoreFailure::of(&error)),
        Err(_) => Err(StoreFailure {
            kind: TroubleKind::Late,
            text: "it did not answer within the draw timeout".to_owned(),
            outcome: StoreReply::Unknown,
        }),
    }
}

fn stands(found: Option<&StoreEntry>) -> StoreReply {
    StoreReply::Stands(StoreEntry::standing(found))
}

impl StoreFailure {
    /// The meaning of an error for a ledger, and its report for operators.
    fn of(error: &StoreError) -> Self {
        let outcome = match error.is_open() {
            true => StoreReply::Unknown,
            false => StoreReply::Unavailable,
        };
        let kind = match error {
            StoreError::Unavailable(_) | StoreError::Unknown(_) => TroubleKind::Away,
            StoreError::Unauthenticated(_) => TroubleKind::Stranger,
            StoreError::Garbage(_) | StoreError::Unsuitable(_) => TroubleKind::Garbage,
            StoreError::Refused(_) | StoreError::Denied(_) => TroubleKind::Key,
        };
        let text = error.with_cause();
        Self {
            kind,
            text,
            outcome,
        }
    }
}
