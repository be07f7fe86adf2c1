//! How long one exchange may take, from its first byte to the last of its reply.
//!
//! It has two parts. While the request is sent, only the time counts in which the backend could
//! take more and does not. The time in which the client owes its own body is bounded by the
//! reader of that body. From the last byte sent, all time counts, up to `response_timeout`.

use std::time::Duration;

use tokio::time::Instant;

use super::Bounds;

/// The grace time before the minimum rate applies. It is also the most time that a side can earn
/// by being quick.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// How much longer a side of a transfer may delay the other. Each byte that it takes earns it
/// time. A burst, such as a buffer full, earns no more than the maximum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    left: Duration,
    most: Duration,
    /// Bytes a second; with 0, any byte earns the maximum.
    min_rate: u64,
    /// Since when it delays the other.
    waiting_since: Option<Instant>,
}

impl Credit {
    pub(super) const fn new(most: Duration, min_rate: u64) -> Self {
        Self {
            left: most,
            most,
            min_rate,
            waiting_since: None,
        }
    }

    pub(super) fn earn(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let earned = match self.min_rate {
            0 => self.most,
            rate => Duration::from_secs_f64(bytes as f64 / rate as f64),
        };
        self.left = self.most.min(self.left.saturating_add(earned));
    }

    /// From this moment on it delays the other.
    pub(super) fn begin_to_wait(&mut self, now: Instant) {
        self.waiting_since = Some(now);
    }

    /// Ends the delay of the other side. Its time is spent.
    pub(super) fn end_waiting(&mut self) {
        if let Some(since) = self.waiting_since.take() {
            self.left = self.left.saturating_sub(since.elapsed());
        }
    }

    /// When nothing is left; `None` while it delays nothing.
    pub(super) fn due(&self) -> Option<Instant> {
        Some(self.waiting_since? + self.left)
    }

    pub(super) const fn left(&self) -> Duration {
        self.left
    }
}

/// The deadline of one exchange.
#[derive(Debug)]
pub(super) enum ExchangeDeadline {
    /// The request is not sent yet.
    Sending {
        /// How much longer the backend may delay us.
        credit: Credit,
        /// The bytes that it had taken at the last check.
        written: u64,
    },
    /// The request is sent, and the reply must arrive by then.
    Answering(Instant),
}

impl ExchangeDeadline {
    pub(super) fn new(bounds: &Bounds) -> Self {
        let most = match bounds.send_min_rate {
            0 => bounds.response_timeout,
            _ => GRACE.min(bounds.response_timeout),
        };
        Self::Sending {
            credit: Credit::new(most, bounds.send_min_rate),
            written: 0,
        }
    }

    /// The last byte of the request has left at this moment. Returns when the reply must be here.
    pub(super) fn sent(&mut self, at: Instant, bounds: &Bounds) -> Instant {
        if let Self::Answering(due) = self {
            return *due;
        }
        let due = at + bounds.response_timeout;
        *self = Self::Answering(due);
        due
    }

    /// When the reply must be here, which has begun, perhaps before the request had left.
    pub(super) fn of_reply(&mut self, bounds: &Bounds) -> Instant {
        match self {
            Self::Answering(due) => *due,
            Self::Sending { .. } => self.sent(Instant::now(), bounds),
        }
    }

    /// The deadline; none while the client owes something. `taken` is the number of bytes that the
    /// backend has taken so far.
    pub(super) fn due(&mut self, taken: u64, client_owes: bool) -> Option<Instant> {
        let (credit, written) = match self {
            Self::Answering(due) => return Some(*due),
            Self::Sending { credit, written } => (credit, written),
        };
        credit.end_waiting();
        // A new connection starts from zero.
        credit.earn(taken.saturating_sub(*written));
        *written = taken;
        if client_owes {
            return None;
        }
        credit.begin_to_wait(Instant::now());
        credit.due()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    pub(in crate::forward) fn bounds() -> Bounds {
        Bounds {
            own: [].into(),
            after_close: Duration::ZERO,
            on_client_left: crate::call::OnClientLeft::Finish,
            connect_timeout: SECOND,
            response_timeout: 60 * SECOND,
            max_reply_bytes: 0,
            reply_buffer_bytes: 0,
            pool_max_idle: 0,
            pool_idle_timeout: SECOND,
            pool_max_age: SECOND,
            send_min_rate: 1000,
            reply_min_rate: 1000,
            slow_readers_max: 1,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn while_sending_only_the_backends_delay_counts() {
        let bounds = bounds();
        let mut deadline = ExchangeDeadline::new(&bounds);
        let began = Instant::now();
        assert_eq!(deadline.due(0, false), Some(began + 5 * SECOND));
        tokio::time::advance(2 * SECOND).await;
        // The client is slow for a minute, which costs nothing.
        assert_eq!(deadline.due(0, true), None);
        tokio::time::advance(60 * SECOND).await;
        let now = Instant::now();
        assert_eq!(deadline.due(0, false), Some(now + 3 * SECOND));
        // What the backend takes earns it time, but a burst earns no more than the initial grace.
        assert_eq!(deadline.due(1000, false), Some(now + 4 * SECOND));
        assert_eq!(deadline.due(1_000_000, false), Some(now + 5 * SECOND));
        tokio::time::advance(SECOND).await;
        deadline.sent(Instant::now(), &bounds);
        let due = Instant::now() + 60 * SECOND;
        assert_eq!(deadline.due(1_000_000, true), Some(due));
        tokio::time::advance(SECOND).await;
        deadline.sent(Instant::now(), &bounds);
        assert_eq!(deadline.due(1_000_000, false), Some(due));
    }
}
