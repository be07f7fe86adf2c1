//! Ends replies and tunnels that have no end of their own, when the sidecar goes down.
//!
//! A stream is a reply whose length is not known when it begins, or a tunnel. Most replies without a length are short
//! nevertheless, so each stream has the same time: from the beginning of the drain, or from its own if that is later. The
//! last moment of a drain ends all of them.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::sleep;

use super::stop::Stop;

/// The end of all streams in a drain, and how many it ended. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct StreamDrain {
    /// Set when the time of the streams that were open at the beginning of the drain is over.
    ending: Stop,
    /// Set at the last moment of the drain.
    last: Stop,
    inner: Arc<StreamDrainState>,
}

#[derive(Debug, Default)]
struct StreamDrainState {
    /// The time that a stream has.
    time: OnceLock<Duration>,
    replies: AtomicUsize,
    tunnels: AtomicUsize,
}

/// The kind of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// A reply whose length was not known when it began.
    Reply,
    /// A tunnel.
    Tunnel,
}

impl StreamDrain {
    /// Ends the streams: each after `time`, and all of them when nine tenths of `drain_timeout` are over, so that the
    /// drain still ends in time. Returns then.
    pub async fn end_all(&self, time: Duration, drain_timeout: Duration) {
        let last = drain_timeout * 9 / 10;
        let time = time.min(last);
        // A drain is begun once.
        let _ = self.inner.time.set(time);
        if !time.is_zero() {
            sleep(time).await;
        }
        self.ending.set();
        sleep(last.saturating_sub(time)).await;
        self.last.set();
    }

    /// The numbers of replies and tunnels that were ended so far.
    #[must_use]
    pub fn ended(&self) -> (usize, usize) {
        let inner = &self.inner;
        let [replies, tunnels] =
            [&inner.replies, &inner.tunnels].map(|count| count.load(Ordering::Relaxed));
        (replies, tunnels)
    }

    /// Watches for the end of a stream that begins now.
    pub(super) fn watch(&self, kind: StreamKind) -> StreamWatch {
        let end: Pin<Box<dyn Future<Output = ()> + Send>> = match self.ending.is_set() {
            false => Box::pin(self.ending.wait_owned()),
            true => {
                let time = self.inner.time.get().copied().unwrap_or_default();
                let last = self.last.wait_owned();
                Box::pin(async move {
                    let _ = tokio::time::timeout(time, last).await;
                })
            }
        };
        StreamWatch {
            drain: self.clone(),
            kind,
            end,
            is_asked: false,
        }
    }

    /// Waits until streams end that were open at the beginning of the drain.
    pub(super) async fn wait(&self) {
        self.ending.wait().await;
    }
}

/// A stream, watched by one task.
pub(super) struct StreamWatch {
    drain: StreamDrain,
    kind: StreamKind,
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_asked: bool,
}

impl StreamWatch {
    /// Ready when the stream must end, which is then counted. Not polled again after that.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Asked once, it wakes this task by itself; until the flag is set, it has nothing new.
        if self.is_asked && !self.drain.ending.is_set() {
            return Poll::Pending;
        }
        self.is_asked = true;
        ready!(self.end.as_mut().poll(cx));
        let inner = &self.drain.inner;
        let count = match self.kind {
            StreamKind::Reply => &inner.replies,
            StreamKind::Tunnel => &inner.tunnels,
        };
        count.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use tokio::time::Instant;

    const SECOND: Duration = Duration::from_secs(1);

    /// The time after which this stream ends.
    async fn end_of(mut watch: StreamWatch, begun: Instant) -> Duration {
        poll_fn(|cx| watch.poll_end(cx)).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_has_its_time_from_the_drain_or_from_its_own_beginning() {
        let drain = StreamDrain::default();
        let begun = Instant::now();
        let before = end_of(drain.watch(StreamKind::Tunnel), begun);
        let later = async {
            sleep(4 * SECOND).await;
            end_of(drain.watch(StreamKind::Reply), begun).await
        };
        let after = async {
            sleep(6 * SECOND).await;
            end_of(drain.watch(StreamKind::Reply), begun).await
        };
        let (before, later, after, ()) =
            tokio::join!(before, later, after, drain.end_all(5 * SECOND, 30 * SECOND));
        assert_eq!(before, 5 * SECOND);
        assert_eq!(later, 5 * SECOND);
        assert_eq!(after, 11 * SECOND);
        assert_eq!(drain.ended(), (2, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn no_stream_outlasts_nine_tenths_of_the_drain() {
        for time in [Duration::ZERO, 8 * SECOND, 60 * SECOND] {
            let drain = StreamDrain::default();
            let begun = Instant::now();
            let open = end_of(drain.watch(StreamKind::Reply), begun);
            let new = async {
                sleep(8500 * Duration::from_millis(1)).await;
                end_of(drain.watch(StreamKind::Reply), begun).await
            };
            let ending = drain.end_all(time, 10 * SECOND);
            let (open, new, ()) = tokio::join!(open, new, ending);
            assert_eq!(open, time.min(9 * SECOND));
            assert!(new <= 9 * SECOND, "{new:?}");
        }
    }
}
