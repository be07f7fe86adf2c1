//! Following the changes of some keys, over breaks of the stream.

use std::time::Duration;

use crate::BackOff;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::json::{self, Failure, KeyValue, Range, WatchMessage, WatchReply};
use super::{Client, Error, Ordering, Unsent};

/// A stream that says nothing for so long is opened anew, at another member: nothing else would
/// tell that a member is paused, or the way to it cut. Where nothing changes it costs one request
/// in this time.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// The pauses between attempts to open the stream.
const RETRY: BackOff = BackOff::doubling(Duration::from_millis(50), Duration::from_secs(1));

/// What became of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was written.
    Put(KeyValue),
    /// It was deleted, or its lease ended.
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
    /// The store's revision when it told.
    pub revision: u64,
    /// In the order in which they were made, none missing and none twice.
    pub changes: Vec<Change>,
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Something changed.
    Changes(Changes),
    /// Changes were missed: etcd has forgotten all before this revision. The watch goes on from
    /// it; what the keys hold must be read anew.
    Compacted {
        /// The first revision that is followed again.
        revision: u64,
    },
}

/// Follows changes. See [`Client::watch`].
#[derive(Debug)]
pub struct Watch {
    client: Client,
    range: Range,
    /// The first revision that was not told of yet; 0 for whatever comes next.
    from: u64,
    /// The member that is asked.
    member: usize,
    back_off: BackOff,
    /// Not before this moment is the stream opened again.
    not_before: Instant,
    stream: Option<Stream>,
}

#[derive(Debug)]
struct Stream {
    body: Incoming,
    /// What has come and was not told yet.
    buffer: Vec<u8>,
    /// How much of the buffer holds no end of a message.
    searched: usize,
    silent_until: Instant,
}

impl Watch {
    pub(super) fn new(client: Client, range: Range, from: u64) -> Self {
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

    /// Waits for the next news. Whatever breaks meanwhile is taken up again without a gap.
    ///
    /// May be dropped and called again: nothing is lost.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] and [`Error::Unauthenticated`], where to try again would not help; the
    /// next call tries again nevertheless.
    pub async fn next(&mut self) -> Result<Watched, Error> {
        loop {
            if self.stream.is_none() {
                tokio::time::sleep_until(self.not_before).await;
                if let Err(error) = self.open().await {
                    self.broken();
                    if matches!(error, Error::Refused { .. } | Error::Unauthenticated(_)) {
                        return Err(error);
                    }
                    debug!(%error, "etcd: a watch could not be opened");
                    continue;
                }
            }
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
                    if matches!(error, Error::Refused { .. } | Error::Unauthenticated(_)) {
                        return Err(error);
                    }
                    debug!(%error, "etcd: a watch broke");
                }
            }
        }
    }

    /// What one message comes to.
    fn news(&mut self, reply: WatchReply) -> Result<Option<Watched>, Error> {
        if reply.canceled {
            self.broken();
            if reply.compact_revision > 0 {
                let revision = reply.compact_revision;
                self.from = revision;
                self.not_before = Instant::now();
                return Ok(Some(Watched::Compacted { revision }));
            }
            let reason = reply.cancel_reason;
            return if reason.contains("permission denied") {
                Err(Error::Refused {
                    code: 7,
                    message: reason,
                })
            } else {
                debug!(reason, "etcd: a watch was ended");
                Ok(None)
            };
        }
        let revision = reply.revision();
        if reply.created && self.from == 0 {
            // From now on means from here on, whatever breaks later.
            self.from = revision + 1;
        }
        let mut changes = Vec::with_capacity(reply.events.len());
        for event in reply.events {
            let (entry, deleted) = event.read()?;
            // How far it has told is known by its events alone: while it catches up, the
            // revision beside them is the store's and not theirs.
            self.from = self.from.max(entry.mod_revision + 1);
            changes.push(if deleted {
                Change::Deleted {
                    key: entry.key,
                    revision: entry.mod_revision,
                }
            } else {
                Change::Put(entry)
            });
        }
        let told = (!changes.is_empty()).then_some(Watched::Changes(Changes { revision, changes }));
        Ok(told)
    }

    /// Leaves the stream, if there is one, to open another after a pause.
    fn broken(&mut self) {
        self.stream = None;
        self.member = self.member.wrapping_add(1);
        let pause = self.back_off.pause_with_jitter(rand::random());
        self.not_before = Instant::now() + pause;
    }

    async fn open(&mut self) -> Result<(), Error> {
        let shared = &*self.client.0;
        let count = shared.pools.len();
        if count == 0 {
            return Err(Error::Unreachable("there are no endpoints".into()));
        }
        let end = Instant::now() + shared.settings.try_timeout;
        let token = self
            .client
            .token(Instant::now() + shared.settings.deadline)
            .await?;
        let body = json::watch(&self.range, self.from).to_string();
        let pool = &shared.pools[self.member % count];
        let end = end.max(Instant::now() + shared.settings.try_timeout);
        let value = token.as_ref().map(|token| token.value.as_str());
        let response = pool
            .stream("/v3/watch", body.as_bytes(), value, end)
            .await
            .map_err(|unsent| match unsent {
                Unsent::Never(cause) | Unsent::Perhaps(cause) => Error::Unreachable(cause),
                Unsent::Garbage(cause) => Error::Garbage(cause),
            })?;
        if response.status() != http::StatusCode::OK {
            let (head, body) = response.into_parts();
            let max = shared.settings.max_reply;
            let body = http_body_util::Limited::new(body, max).collect();
            let body = timeout_at(end, body)
                .await
                .ok()
                .and_then(Result::ok)
                .map(|body| body.to_bytes().to_vec())
                .unwrap_or_default();
            let error = match json::checked(head.status, body) {
                Err(Failure::Final(error)) => error,
                Err(Failure::Trouble(cause)) => Error::Unreachable(cause),
                Ok(_) => Error::Garbage("a status that is none".into()),
            };
            if matches!(error, Error::Unauthenticated(_)) {
                self.client.forget(token).await;
            }
            return Err(error);
        }
        self.stream = Some(Stream {
            body: response.into_body(),
            buffer: Vec::new(),
            searched: 0,
            silent_until: Instant::now() + SILENCE_MAX,
        });
        Ok(())
    }

    /// The next message of the stream; `None` at its end.
    async fn message(&mut self) -> Result<Option<WatchReply>, Error> {
        let max = self.client.0.settings.max_reply;
        let Some(stream) = &mut self.stream else {
            return Ok(None);
        };
        loop {
            let unread = &stream.buffer[stream.searched..];
            if let Some(at) = memchr::memchr(b'\n', unread) {
                let end = stream.searched + at;
                let message = json::parse(&stream.buffer[..end]);
                stream.buffer.drain(..=end);
                stream.searched = 0;
                return match message? {
                    WatchMessage::Result(reply) => Ok(Some(reply)),
                    WatchMessage::Error(error) => Err(match json::stream_failure(error) {
                        Failure::Final(error) => error,
                        Failure::Trouble(cause) => Error::Unreachable(cause),
                    }),
                };
            }
            stream.searched = stream.buffer.len();
            if stream.buffer.len() > max {
                let told = format!("a message over {max} bytes");
                return Err(Error::Garbage(told.into()));
            }
            match timeout_at(stream.silent_until, stream.body.frame()).await {
                // Silent for too long, or ended.
                Err(_) | Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(Error::Unreachable(error.to_string().into())),
                Ok(Some(Ok(frame))) => {
                    stream.silent_until = Instant::now() + SILENCE_MAX;
                    if let Ok(data) = frame.into_data() {
                        stream.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}
