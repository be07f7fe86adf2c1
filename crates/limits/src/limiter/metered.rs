//! A paced limit in the scheduler: a pacer, and the rate that calls achieved.

use core::time::Duration;

use crate::pace::{Pace, Pacer, PoolsNow, Rate};
use crate::time::Timestamp;

/// The span over which the achieved rate is measured.
const SPAN: Duration = Duration::from_secs(10);

/// A paced limit, as it is now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PacerNow {
    /// The pace in force: as configured, or as a lower supply sets it.
    pub pace: Pace,
    /// What is available, and how far demand is behind schedule.
    pub pools: PoolsNow,
    /// Tokens per second that were admitted over about the last ten seconds.
    pub achieved: f64,
    /// Tokens that were admitted so far.
    pub drawn: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct MeteredPacer {
    pub(super) pacer: Pacer,
    /// The pace is a share: a supply lowers it below the configured one.
    is_share: bool,
    drawn: f64,
    /// When the present span began.
    since: Timestamp,
    /// Drawn in the present span.
    this: f64,
    /// Drawn in the span before.
    last: f64,
}

impl MeteredPacer {
    pub(crate) fn new(now: Timestamp, pace: Pace) -> Self {
        Self {
            pacer: Pacer::new(now, pace),
            is_share: false,
            drawn: 0.0,
            since: now,
            this: 0.0,
            last: 0.0,
        }
    }

    /// Runs at the configured pace, or at the supply (tokens per second) if that is lower. While the supply
    /// is lower, the pace is a share: it never catches up, and unclaimed time is lost, because another
    /// process may have used it. While the supply is 0, no time accrues.
    pub(crate) fn follow(&mut self, now: Timestamp, configured: Pace, supply: Option<f64>) {
        let share = supply.filter(|&supply| supply < configured.rate().get());
        let was_share = core::mem::replace(&mut self.is_share, share.is_some());
        match share.map(Rate::new) {
            Some(Err(_)) => self.pacer.stop(now),
            Some(Ok(rate)) => {
                self.pacer.resume(now);
                self.pacer.set_pace(now, configured.share(rate));
            }
            None => {
                self.pacer.resume(now);
                self.pacer.set_pace(now, configured);
            }
        }
        if was_share || self.is_share {
            self.pacer.forget_unclaimed(now);
        }
    }

    pub(crate) fn now(&self, now: Timestamp) -> PacerNow {
        PacerNow {
            pace: *self.pacer.pace(),
            pools: self.pacer.peek_pools(now),
            achieved: self.achieved(now),
            drawn: self.drawn,
        }
    }

    /// Counts admitted tokens.
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

    /// Uncounts tokens of a call that was never sent. It was admitted at most the time of a connect ago.
    pub(super) fn uncount(&mut self, tokens: f64) {
        self.drawn -= tokens;
        self.this = (self.this - tokens).max(0.0);
    }

    /// The rate over the present span and enough of the span before to make a whole one.
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
