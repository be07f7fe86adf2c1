//! What is asked of the store, each until its deadline.

use tidegate_limits::quota::StoreReply;
use tidegate_limits::scheduler::QuotaAsk;
use tidegate_quota::{Configured, Entry, Error, Key, Swapped, Write};
use tokio::time::{Instant, timeout_at};

use super::{Asked, Done, Driver, Failure, Kind};

impl Driver {
    /// Sends one request for a key; for a new key also one for its settings.
    pub(super) async fn question(
        &self,
        asked: Asked,
        key: Key,
        is_new: bool,
        sent: Instant,
    ) -> Done {
        let at = asked.of.at;
        // The ledger gives its request up after twice this time.
        let deadline = (sent + asked.timeout).min(asked.taken + asked.timeout * 15 / 8);
        let (question, mut says) = match asked.of.ask {
            QuotaAsk::Read(question) => (question, None),
            QuotaAsk::Write(question, _) => (question, None),
            QuotaAsk::Time(_) | QuotaAsk::Watch(_) => {
                unreachable!("neither is among the questions that are sent")
            }
        };
        let (outcome, failure) = match asked.of.ask {
            QuotaAsk::Write(_, write) => {
                let quota = &asked.of.of.quota;
                self.write(quota, key, write, deadline).await
            }
            _ if is_new => {
                let known = Configured::default();
                let (read, said) = tokio::join!(
                    self.read(&key, deadline),
                    self.configured(&key, &known, deadline)
                );
                match said {
                    Ok(said) => {
                        says = Some(said);
                        read
                    }
                    Err(_) if read.1.is_some() => read,
                    Err(failure) => (unread(&failure), Some(failure)),
                }
            }
            _ => self.read(&key, deadline).await,
        };
        if failure.is_some() && says.is_some() {
            // It is read again with the record.
            says = None;
        }
        Done::Answered {
            at,
            question,
            outcome,
            sent,
            says,
            failure,
        }
    }

    /// The settings of a key in the store.
    pub(super) async fn configured(
        &self,
        key: &Key,
        known: &Configured,
        deadline: Instant,
    ) -> Result<Configured, Failure> {
        match timeout_at(deadline, self.store.configured(key, known)).await {
            Ok(Ok(says)) => Ok(says),
            Ok(Err(error)) => Err(failed(&error).1),
            Err(_) => Err(late().1),
        }
    }

    pub(super) async fn read(&self, key: &Key, deadline: Instant) -> (StoreReply, Option<Failure>) {
        let keys = [key.clone()];
        match timeout_at(deadline, self.store.get(&keys)).await {
            Ok(Ok(found)) => (stands(&found), None),
            Ok(Err(error)) => with(failed(&error)),
            Err(_) => with(late()),
        }
    }

    async fn write(
        &self,
        limit: &str,
        key: Key,
        write: tidegate_limits::quota::Write,
        deadline: Instant,
    ) -> (StoreReply, Option<Failure>) {
        let writes = [Write {
            key,
            expected: write.replaces,
            text: write.record.to_string().into_bytes(),
        }];
        let sent = self.clock.now();
        let swapped = timeout_at(deadline, self.store.compare_and_set(&writes)).await;
        let took = self.clock.now().since(sent);
        if let Ok(Ok(_)) = swapped {
            let seconds = self.metrics.quota_draw_seconds(limit);
            seconds.observe(took.as_secs_f64());
        }
        match swapped {
            Ok(Ok(Swapped::Done(versions))) => {
                let version = versions.first().copied();
                (
                    StoreReply::Written(version.expect("there is one for each write")),
                    None,
                )
            }
            Ok(Ok(Swapped::Conflict(found))) => (stands(&found), None),
            Ok(Err(error)) => with(failed(&error)),
            Err(_) => with(late()),
        }
    }
}

fn with((outcome, failure): (StoreReply, Failure)) -> (StoreReply, Option<Failure>) {
    (outcome, Some(failure))
}

/// The result of a failed read.
fn unread(failure: &Failure) -> StoreReply {
    match failure.kind {
        Kind::Late => StoreReply::Unknown,
        Kind::Away | Kind::Stranger | Kind::Garbage | Kind::Key => StoreReply::Unavailable,
    }
}

fn stands(found: &[Option<Entry>]) -> StoreReply {
    let entry = found.first().expect("there is one for each key");
    StoreReply::Stands(Entry::standing(entry.as_ref()))
}

/// The meaning of an error for a ledger, and its report for operators.
fn failed(error: &Error) -> (StoreReply, Failure) {
    let outcome = if error.is_open() {
        StoreReply::Unknown
    } else {
        StoreReply::Unavailable
    };
    let text = error.with_cause();
    let kind = match error {
        Error::Unavailable(_) | Error::Unknown(_) => Kind::Away,
        Error::Unauthenticated(_) => Kind::Stranger,
        Error::Garbage(_) => Kind::Garbage,
        Error::Refused(_) | Error::Denied(_) => Kind::Key,
    };
    (outcome, Failure { kind, text })
}

fn late() -> (StoreReply, Failure) {
    let text = "it did not answer within the draw timeout".to_owned();
    let kind = Kind::Late;
    (StoreReply::Unknown, Failure { kind, text })
}
