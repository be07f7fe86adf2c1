//! A paced limit in the scheduler: the limiter, and how fast it really went.

use core::time::Duration;

use super::paced::{Pace, Paced, PoolsNow, Rate};
use crate::time::Timestamp;

/// Over how long the achieved rate is taken.
const SPAN: Duration = Duration::from_secs(10);

/// A paced limit, as it is now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PacingNow {
    /// What is in force: as configured, or as told from outside.
    pub pace: Pace,
    /// What can be taken, and how far behind schedule the demand is.
    pub pools: PoolsNow,
    /// Tokens a second that were let through over the last ten seconds or so.
    pub achieved: f64,
    /// Tokens that were let through so far.
    pub drawn: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    pub(super) paced: Paced,
    /// The pace is a share: a supply lowers it below what is configured.
    is_share: bool,
    drawn: f64,
    /// When the span began that is being counted.
    since: Timestamp,
    /// Drawn in it.
    this: f64,
    /// Drawn in the one before.
    last: f64,
}

impl Pacing {
    pub(crate) fn new(now: Timestamp, pace: Pace) -> Self {
        Self {
            paced: Paced::new(now, pace),
            is_share: false,
            drawn: 0.0,
            since: now,
            this: 0.0,
            last: 0.0,
        }
    }

    /// Runs at the configured pace, or at the supply (tokens a second) if that is lower. While the
    /// supply is lower, the pace is a share: it never catches up, and unclaimed time is lost, because
    /// another process may have used it. While the supply is 0, no time accrues.
    pub(crate) fn follow(&mut self, now: Timestamp, configured: Pace, supply: Option<f64>) {
        let share = supply.filter(|&supply| supply < configured.rate().get());
        let was_share = core::mem::replace(&mut self.is_share, share.is_some());
        match share.map(Rate::new) {
            Some(Err(_)) => self.paced.stop(now),
            Some(Ok(rate)) => {
                self.paced.resume(now);
                self.paced.set_pace(now, configured.share(rate));
            }
            None => {
                self.paced.resume(now);
                self.paced.set_pace(now, configured);
            }
        }
        if was_share || self.is_share {
            self.paced.forget_unclaimed(now);
        }
    }

    pub(crate) fn now(&self, now: Timestamp) -> PacingNow {
        PacingNow {
            pace: *self.paced.pace(),
            pools: self.paced.peek_pools(now),
            achieved: self.achieved(now),
            drawn: self.drawn,
        }
    }

    /// Counts what was let through.
    pub(super) fn count(&mut self, now: Timestamp, tokens: f64) {
        let spans = now.since(self.since).as_nanos() / SPAN.as_nanos();
        match spans {
            0 => {}
            1 => {
                (self.last, self.this) = (self.this, 0.0);
                self.since = self.since + SPAN;
            }
            _ => (self.last, self.this, self.since) = (0.0, 0.0, now),
        }
        self.this += tokens;
        self.drawn += tokens;
    }

    /// What was let through a moment ago, at most as long as a connect takes, never left.
    pub(super) fn uncount(&mut self, tokens: f64) {
        self.drawn -= tokens;
        self.this = (self.this - tokens).max(0.0);
    }

    /// The span that is being counted, and as much of the one before as makes up a whole one.
    fn achieved(&self, now: Timestamp) -> f64 {
        let span = SPAN.as_secs_f64();
        let part = now.since(self.since).as_secs_f64() / span;
        let counted = if part < 1.0 {
            self.this + self.last * (1.0 - part)
        } else {
            self.this * (2.0 - part).max(0.0)
        };
        counted / span
    }
}
