//! The tokens of a bucket or a paced limit, and what a paced one has achieved.

use alloc::boxed::Box;
use core::time::Duration;

use crate::bucket::{Burst, Fill, TokenBucket, TokenLimiter, Tokens};
use crate::pace::{Pace, Pacer, PoolsNow, Rate};
use crate::time::Timestamp;

use super::refunds::RefundedBucket;

/// How many tokens a rate limit admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketLimit {
    /// A burst at once, then a steady rate.
    Bucket {
        /// The most tokens at once.
        burst: Burst,
        /// Tokens per second.
        fill: Fill,
    },
    /// A rate, and more while demand is behind schedule.
    Paced(Pace),
}

impl BucketLimit {
    /// The most tokens that are available at once after idle time.
    #[must_use]
    pub fn most(&self) -> f64 {
        match self {
            Self::Bucket { burst, .. } => burst.get(),
            Self::Paced(pace) => pace.burst(),
        }
    }

    /// Tokens that flow in per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        match self {
            Self::Bucket { fill, .. } => fill.get(),
            Self::Paced(pace) => pace.rate().get(),
        }
    }
}

/// Tokens that were taken, and from where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenDraw {
    pub(crate) tokens: f64,
    origin: DrawOrigin,
}

impl TokenDraw {
    /// The number of the draw from a bucket; `None` if it came from a pace.
    pub(crate) const fn number(&self) -> Option<u64> {
        self.origin.draw()
    }

    pub(crate) const NOTHING: Self = Self {
        tokens: 0.0,
        origin: DrawOrigin::of_pace(0.0),
    };
}

/// Where a draw came from, in one word, because each limit of each call keeps one: the time that each token took from a pace, or
/// the number of the draw from a bucket with the sign of a number below zero, which no time has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DrawOrigin(u64);

impl DrawOrigin {
    const BUCKET: u64 = 1 << 63;

    const fn of_pace(price: f64) -> Self {
        Self(price.to_bits())
    }

    const fn of_bucket(draw: u64) -> Self {
        Self(draw | Self::BUCKET)
    }

    /// The number of the draw from a bucket.
    const fn draw(self) -> Option<u64> {
        match self.0 & Self::BUCKET {
            0 => None,
            _ => Some(self.0 & !Self::BUCKET),
        }
    }

    /// The time that each token took from a pace; 0 if it came from a bucket.
    const fn price(self) -> f64 {
        match self.draw() {
            None => f64::from_bits(self.0),
            Some(_) => 0.0,
        }
    }
}

/// The state of a bucket or of a pace.
#[derive(Clone, Debug)]
pub(crate) enum Level {
    Bucket(Box<RefundedBucket>),
    Paced(Box<MeteredPacer>),
}

impl Level {
    pub(crate) fn new(now: Timestamp, limit: BucketLimit) -> Self {
        match limit {
            BucketLimit::Bucket { burst, fill } => {
                let bucket = TokenBucket::new(now, burst, fill);
                Self::Bucket(Box::new(RefundedBucket::new(bucket)))
            }
            BucketLimit::Paced(pace) => Self::Paced(Box::new(MeteredPacer::new(now, pace))),
        }
    }

    /// Changes the limit in place: to its own rate, or to the supply (tokens per second) if that is lower.
    /// A limit of the other kind starts from its initial state.
    pub(crate) fn follow(&mut self, now: Timestamp, limit: BucketLimit, supply: Option<f64>) {
        match (&mut *self, limit) {
            (Self::Bucket(bucket), BucketLimit::Bucket { burst, fill }) => {
                let supply = supply.filter(|&supply| supply < fill.get());
                let supply = supply.and_then(|supply| Fill::new(supply).ok());
                bucket.set_parameters(now, burst, supply.unwrap_or(fill));
            }
            (Self::Paced(metered), BucketLimit::Paced(pace)) => metered.follow(now, pace, supply),
            (level, limit) => {
                *level = Self::new(now, limit);
                level.follow(now, limit, supply);
            }
        }
    }

    /// Lowers the level to what one of the same rule has now that had `tokens` at `since`. It never rises, so a pace has
    /// nothing saved up.
    pub(crate) fn carry(&mut self, now: Timestamp, tokens: f64, since: Timestamp) {
        match self {
            Self::Bucket(bucket) => bucket.lower(now, tokens, since),
            Self::Paced(metered) => {
                let rate = metered.pacer.pace().rate().get();
                let then = tokens + rate * now.since(since).as_secs_f64();
                let lower = then - metered.pacer.peek(now);
                if lower < 0.0 {
                    metered.pacer.put_back(now, lower);
                }
            }
        }
    }

    #[inline]
    pub(crate) fn limiter(&self) -> &dyn TokenLimiter {
        match self {
            Self::Bucket(bucket) => &**bucket,
            Self::Paced(metered) => &metered.pacer,
        }
    }

    #[inline]
    fn limiter_mut(&mut self) -> &mut dyn TokenLimiter {
        match self {
            Self::Bucket(bucket) => &mut **bucket,
            Self::Paced(metered) => &mut metered.pacer,
        }
    }

    fn price(&self) -> f64 {
        match self {
            Self::Bucket(_) => 0.0,
            Self::Paced(metered) => metered.pacer.pace().price() as f64,
        }
    }

    /// Takes the cost of a call, even if that leaves a debt.
    pub(crate) fn draw(&mut self, now: Timestamp, cost: Tokens) -> TokenDraw {
        let tokens = self.limiter_mut().draw(now, cost);
        let price = self.price();
        let origin = match self {
            Self::Bucket(bucket) => DrawOrigin::of_bucket(bucket.count_draw(tokens)),
            Self::Paced(metered) => {
                metered.count(now, tokens);
                DrawOrigin::of_pace(price)
            }
        };
        TokenDraw { tokens, origin }
    }

    /// Takes this number of tokens more for a call that costs `whole` in all. Returns how many it took.
    pub(crate) fn take_more(&mut self, now: Timestamp, tokens: f64, whole: f64) -> f64 {
        self.limiter_mut().take_more(now, tokens, whole)
    }

    /// Puts back what a call took that never left.
    pub(crate) fn undraw(&mut self, now: Timestamp, taken: TokenDraw) {
        self.put_back(now, taken, taken.tokens);
        if let Self::Paced(metered) = self {
            metered.uncount(taken.tokens);
        }
    }

    /// Puts back this many of the tokens that a call took, which has ended. A pace gets the time back that they took, even if
    /// the pace has changed since.
    pub(crate) fn put_back(&mut self, now: Timestamp, taken: TokenDraw, tokens: f64) {
        match (&mut *self, taken.origin.draw()) {
            // Drawn from this bucket, and not from a pace that was here before.
            (Self::Bucket(bucket), Some(draw)) if tokens > 0.0 => bucket.refund(now, draw, tokens),
            _ => {
                let (price, then) = (self.price(), taken.origin.price());
                let tokens = if price == then || price == 0.0 || then == 0.0 {
                    tokens
                } else {
                    tokens * (then / price)
                };
                self.limiter_mut().put_back(now, tokens);
            }
        }
        self.keep(taken);
    }

    /// A call has ended that took these: no more of them comes back.
    pub(crate) fn keep(&mut self, taken: TokenDraw) {
        if let (Self::Bucket(bucket), Some(draw)) = (self, taken.origin.draw()) {
            bucket.keep(draw, taken.tokens);
        }
    }

    /// Tokens that flow in per second: at the supply, if that is lower than the limit.
    pub(crate) fn per_second(&self) -> f64 {
        match self {
            Self::Bucket(bucket) => bucket.fill().get(),
            Self::Paced(metered) => metered.pacer.pace().rate().get(),
        }
    }

    /// The state of a pace; `None` for a bucket.
    pub(crate) fn paced_now(&self, now: Timestamp) -> Option<PacerNow> {
        match self {
            Self::Bucket(_) => None,
            Self::Paced(metered) => Some(metered.now(now)),
        }
    }
}

/// The span over which the achieved rate is measured.
const SPAN: Duration = Duration::from_secs(10);

/// A paced limit, as it is now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PacerNow {
    /// The pace in force: as configured, or as a lower supply sets it.
    pub pace: Pace,
    /// The tokens available, and how far demand is behind schedule.
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

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::pace::{BurstRatio, Rate};

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    fn pace(rate: f64) -> Pace {
        Pace::new(Rate::new(rate).expect("a rate"), BurstRatio::STRICT)
    }

    fn paced(rate: f64) -> Level {
        Level::new(Timestamp::ZERO, BucketLimit::Paced(pace(rate)))
    }

    fn now(level: &Level, moment: Timestamp) -> PacerNow {
        level.paced_now(moment).expect("it is a pace")
    }

    #[test]
    fn the_achieved_rate_counts_recent_calls() {
        let mut level = paced(100.0);
        for tick in 0..3000 {
            level.draw(at(tick * 20), Tokens::ONE);
        }
        let minute = now(&level, at(60_000));
        assert!((minute.achieved - 50.0).abs() < 0.2, "{}", minute.achieved);
        assert_eq!(minute.drawn, 3000.0);
        // Calls are forgotten within two spans.
        let later = now(&level, at(65_000)).achieved;
        assert!(later > 10.0 && later < 40.0, "{later}");
        assert_eq!(now(&level, at(80_000)).achieved, 0.0);
        level.draw(at(90_000), Tokens::ONE);
        assert_eq!(now(&level, at(90_000)).achieved, 0.1);
    }

    #[test]
    fn a_pace_goes_on_behind_the_call_that_went_last() {
        let mut first = paced(2.0);
        first.draw(at(1_000), Tokens::new(3.0).expect("tokens"));
        let left = first.limiter().peek(at(1_100));
        let begun = |millis| {
            let mut second = Level::new(at(millis), BucketLimit::Paced(pace(2.0)));
            second.carry(at(millis), left, at(1_100));
            second.limiter().available_at(at(millis), Tokens::ONE)
        };
        let opens = first.limiter().available_at(at(1_100), Tokens::ONE);
        assert_eq!(opens, at(2_000));
        let apart = begun(1_200).since(opens).max(opens.since(begun(1_200)));
        assert!(apart < Duration::from_micros(1), "{apart:?}");
        // Long after it, one may go at once and no more.
        assert_eq!(begun(60_000), at(60_000));
        let mut late = Level::new(at(60_000), BucketLimit::Paced(pace(2.0)));
        late.carry(at(60_000), 100.0, at(1_100));
        late.draw(at(60_000), Tokens::ONE);
        assert!(!late.limiter().has(at(60_000), Tokens::ONE));
    }

    #[test]
    fn a_call_that_was_never_sent_is_uncounted() {
        let mut level = paced(100.0);
        let before = now(&level, at(100));
        let taken = level.draw(at(100), Tokens::ONE);
        level.undraw(at(100), taken);
        assert_eq!(now(&level, at(100)), before);
    }

    #[test]
    fn a_pace_gets_the_time_back_even_if_it_has_changed() {
        let expensive = Tokens::new(600.0).expect("tokens");
        let pace = |rate| BucketLimit::Paced(pace(rate).with_room_for(expensive));
        let often: alloc::vec::Vec<f64> = (1..100).map(|step| 1000.0 / f64::from(step)).collect();
        for rates in [
            &[100.0, 1.0][..],
            &[1.0, 100.0],
            &[5.0, 1.0, 7.0, 2.0],
            &[3.0; 5],
            &often,
        ] {
            for drawn_in in 0..rates.len() {
                let mut drawn = Level::new(Timestamp::ZERO, pace(rates[0]));
                let mut untouched = drawn.clone();
                let mut taken = TokenDraw::NOTHING;
                for (step, &rate) in (0..).zip(rates) {
                    for level in [&mut drawn, &mut untouched] {
                        level.follow(at(step * 1000), pace(rate), None);
                    }
                    if step == drawn_in as u64 {
                        taken = drawn.draw(at(step * 1000 + 1), expensive);
                    }
                }
                let end = at(rates.len() as u64 * 1000);
                drawn.undraw(end, taken);
                let waits = |level: &Level| now(level, end).pools.wait_time().as_secs_f64();
                let (with, without) = (waits(&drawn), waits(&untouched));
                assert!(
                    (with - without).abs() < 1e-6,
                    "{rates:?} {drawn_in}: {with} {without}"
                );
            }
        }
    }

    #[test]
    fn tokens_of_a_bucket_come_back_even_to_a_pace() {
        let bucket = BucketLimit::Bucket {
            burst: Burst::new(10.0).expect("a burst"),
            fill: Fill::new(1.0).expect("a rate"),
        };
        let mut level = Level::new(at(0), bucket);
        let taken = level.draw(at(0), Tokens::ONE);
        assert_eq!(level.limiter().peek(at(0)), 9.0);
        level.undraw(at(0), taken);
        assert_eq!(level.limiter().peek(at(0)), 10.0);
        let taken = level.draw(at(0), Tokens::ONE);
        level.follow(at(0), BucketLimit::Paced(pace(10.0)), None);
        let before = now(&level, at(0)).pools.wait_time();
        level.put_back(at(0), taken, taken.tokens);
        let one = Duration::from_millis(100);
        assert_eq!(now(&level, at(0)).pools.wait_time(), before + one);
    }
}
