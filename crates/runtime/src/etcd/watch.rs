//! Follows the changes of keys, also when the stream breaks.

use std::time::Duration;

use crate::BackOff;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::connection::Messages;
use super::failure::EtcdFailure;
use super::messages::{self, KeyValue, Range, revision, unsigned};
use super::proto::event::EventType;
use super::proto::{WatchRequest, WatchResponse};
use super::{EtcdClient, EtcdError, GRANT, Ordering, PERMISSION_DENIED};

/// A stream that is silent for this long is opened again, at another member: this is the only
/// sign of a paused member or a cut connection. Without changes it costs one request in this
/// time.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// The pauses between attempts to open the stream.
const RETRY: BackOff = BackOff::doubling(Duration::from_millis(50), Duration::from_secs(1));

/// The change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// The key was written.
    Put(KeyValue),
    /// The key was deleted, or its lease expired.
    Deleted {
        /// The key.
        key: Vec<u8>,
        /// The revision that deleted it.
        revision: u64,
    },
}

/// Changes of one revision or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The store's revision at this message.
    pub revision: u64,
    /// In their order, none missing and none twice.
    pub changes: Vec<KeyChange>,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// Keys changed.
    Changes(Changes),
    /// Changes were missed: etcd has compacted all before this revision. The watch continues from
    /// it; the keys must be read again.
    Compacted {
        /// The first revision that the watch follows again.
        revision: u64,
    },
}

/// Follows changes. See [`EtcdClient::watch`].
#[derive(Debug)]
pub struct EtcdWatch {
    client: EtcdClient,
    range: Range,
    /// The first revision not reported yet; 0 for the next change.
    from: u64,
    /// The member of the stream.
    member: usize,
    back_off: BackOff,
    /// The stream is not opened again before this moment.
    not_before: Instant,
    stream: Option<WatchStream>,
}

#[derive(Debug)]
struct WatchStream {
    messages: Messages<WatchResponse>,
    silent_until: Instant,
}

impl EtcdWatch {
    pub(super) fn new(client: EtcdClient, range: Range, from: u64) -> Self {
        let member = client.0.preferred.load(Ordering::Relaxed);
        Self {
            client,
            range,
            from,
            member,
            back_off: RETRY,
            not_before: Instant::now(),
            stream: None,
        }
    }

    /// Waits for the next event. A broken stream is continued without a gap.
    ///
    /// Can be dropped and called again: no event is lost.
    ///
    /// # Errors
    ///
    /// [`EtcdError::Refused`] and [`EtcdError::Unauthenticated`], where a retry does not help; the next
    /// call tries again nevertheless.
    pub async fn next(&mut self) -> Result<WatchEvent, EtcdError> {
        loop {
            match self.message().await {
                Ok(Some(reply)) => {
                    self.back_off.reset();
                    if let Some(news) = self.news(reply)? {
                        return Ok(news);
                    }
                }
                Ok(None) => self.broken(),
                Err(error) => {
                    self.broken();
                    if matches!(
                        error,
                        EtcdError::Refused { .. } | EtcdError::Unauthenticated(_)
                    ) {
                        return Err(error);
                    }
                    debug!(%error, "etcd: a watch broke, or could not be opened");
                }
            }
        }
    }

    /// The event of one message.
    fn news(&mut self, reply: WatchResponse) -> Result<Option<WatchEvent>, EtcdError> {
        if reply.canceled {
            self.broken();
            let revision = unsigned(reply.compact_revision)?;
            if revision > 0 {
                self.from = revision;
                self.not_before = Instant::now();
                return Ok(Some(WatchEvent::Compacted { revision }));
            }
            let reason = reply.cancel_reason;
            return if reason.contains("permission denied") {
                Err(EtcdError::Refused {
                    code: PERMISSION_DENIED,
                    message: format!("{reason}: {GRANT}"),
                })
            } else {
                debug!(reason, "etcd: a watch was ended");
                Ok(None)
            };
        }
        let revision = revision(reply.header)?;
        if reply.created && self.from == 0 {
            // "From now on" means from here, even if the stream breaks later.
            self.from = revision + 1;
        }
        let mut changes = Vec::with_capacity(reply.events.len());
        for event in reply.events {
            let deleted = event.r#type() == EventType::Delete;
            let entry = KeyValue::try_from(event.kv.unwrap_or_default())?;
            // Only the events show the progress: during catch-up, the revision beside them is the
            // store's and not theirs.
            self.from = self.from.max(entry.mod_revision + 1);
            changes.push(if deleted {
                KeyChange::Deleted {
                    key: entry.key,
                    revision: entry.mod_revision,
                }
            } else {
                KeyChange::Put(entry)
            });
        }
        let told =
            (!changes.is_empty()).then_some(WatchEvent::Changes(Changes { revision, changes }));
        Ok(told)
    }

    /// Drops the stream, if there is one, to open another after a pause.
    fn broken(&mut self) {
        self.stream = None;
        self.member = self.member.wrapping_add(1);
        let pause = self.back_off.pause_with_jitter(rand::random());
        self.not_before = Instant::now() + pause;
    }

    async fn open(&self) -> Result<WatchStream, EtcdError> {
        let shared = &*self.client.0;
        let count = shared.members.len();
        if count == 0 {
            return Err(EtcdError::Unreachable("there are no endpoints".into()));
        }
        let deadline = Instant::now() + shared.settings.deadline;
        let token = self.client.token(deadline).await?;
        let request = messages::watch(&self.range, self.from);
        let member = &shared.members[self.member % count];
        let end = Instant::now() + shared.settings.try_timeout;
        let path = "/etcdserverpb.Watch/Watch";
        let opened = member
            .stream::<WatchRequest, _>(path, request, token.as_deref(), end)
            .await
            .map_err(EtcdFailure::of_harmless);
        if let (Err(EtcdError::Unauthenticated(_)), Some(token)) = (&opened, token) {
            self.client.forget(&token).await;
        }
        Ok(WatchStream {
            messages: opened?,
            silent_until: Instant::now() + SILENCE_MAX,
        })
    }

    /// The next message of the stream, which is opened if there is none; `None` at its end.
    async fn message(&mut self) -> Result<Option<WatchResponse>, EtcdError> {
        if self.stream.is_none() {
            tokio::time::sleep_until(self.not_before).await;
            self.stream = Some(self.open().await?);
        }
        let Some(stream) = &mut self.stream else {
            return Ok(None);
        };
        match timeout_at(stream.silent_until, stream.messages.message()).await {
            // Silent for too long, or ended.
            Err(_) | Ok(Ok(None)) => Ok(None),
            Ok(Ok(Some(reply))) => {
                stream.silent_until = Instant::now() + SILENCE_MAX;
                Ok(Some(reply))
            }
            Ok(Err(status)) => Err(EtcdFailure::of(&status).of_harmless()),
        }
    }
}
