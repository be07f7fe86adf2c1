//! A paced limit in the scheduler: the limiter, and how fast it really went.

use alloc::vec::Vec;
use core::time::Duration;

use super::paced::{Pace, Paced, PoolsNow, Rate};
use super::token_bucket::Tokens;
use crate::time::Timestamp;
use crate::verdict::Verdict;

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

/// Changes of the pace that are remembered one by one; of older ones only the lowest price.
const PRICES_MAX: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    paced: Paced,
    /// What a token cost before, each until when, the oldest first: what is given back is the time
    /// that it took, whatever the pace is by then.
    prices: Vec<(Timestamp, i128)>,
    /// It was told from outside to let less through than is configured.
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
            prices: Vec::new(),
            is_share: false,
            drawn: 0.0,
            since: now,
            this: 0.0,
            last: 0.0,
        }
    }

    pub(crate) const fn pace(&self) -> &Pace {
        self.paced.pace()
    }

    /// Goes on as configured, or with what was told from outside if that is less: tokens a second.
    /// While it is told less, nothing catches up, and what is not claimed is lost, since it may have
    /// been claimed elsewhere. While it is told that there is nothing, no time accrues.
    pub(crate) fn follow(&mut self, now: Timestamp, configured: Pace, told: Option<f64>) {
        let told = told.filter(|&told| told < configured.rate().get());
        let was_share = core::mem::replace(&mut self.is_share, told.is_some());
        match told.map(Rate::new) {
            Some(Err(_)) => self.paced.stop(now),
            Some(Ok(rate)) => {
                self.paced.resume(now);
                self.set_pace(now, configured.share(rate));
            }
            None => {
                self.paced.resume(now);
                self.set_pace(now, configured);
            }
        }
        if was_share || self.is_share {
            self.paced.forget_unclaimed(now);
        }
    }

    fn set_pace(&mut self, now: Timestamp, pace: Pace) {
        let before = self.pace().price();
        if pace.price() != before {
            if self.prices.len() >= PRICES_MAX {
                let (_, oldest) = self.prices.remove(0);
                self.prices[0].1 = self.prices[0].1.min(oldest);
            }
            self.prices.push((now, before));
        }
        self.paced.set_pace(now, pace);
    }

    /// What a token that was taken then is by the present price: more if it was cheaper now, less if
    /// it is more expensive. At the moment of a change the lower price counts.
    fn at_price_of(&self, taken_at: Timestamp) -> f64 {
        let now = self.pace().price();
        let mut price = None;
        for &(until, before) in &self.prices {
            if until >= taken_at {
                price = Some(price.map_or(before, |price: i128| price.min(before)));
            }
            if until > taken_at {
                return ratio(price.unwrap_or(now), now);
            }
        }
        ratio(price.map_or(now, |price| price.min(now)), now)
    }

    pub(crate) fn now(&self, now: Timestamp) -> PacingNow {
        PacingNow {
            pace: *self.pace(),
            pools: self.paced.peek_pools(now),
            achieved: self.achieved(now),
            drawn: self.drawn,
        }
    }

    pub(crate) fn peek(&self, now: Timestamp) -> f64 {
        self.paced.peek(now)
    }

    pub(crate) fn has(&self, now: Timestamp, tokens: Tokens) -> bool {
        self.paced.has(now, tokens)
    }

    pub(crate) fn verdict(&self, now: Timestamp, tokens: Tokens) -> Verdict {
        self.paced.verdict(now, tokens)
    }

    pub(crate) fn delay_until_available(&self, now: Timestamp, tokens: Tokens) -> Duration {
        self.paced.delay_until_available(now, tokens)
    }

    pub(crate) fn wait_behind(&self, now: Timestamp, ahead: f64, tokens: Tokens) -> Duration {
        self.paced.wait_behind(now, ahead, tokens)
    }

    /// Takes what a call costs. Returns what was taken.
    pub(crate) fn draw(&mut self, now: Timestamp, tokens: Tokens) -> f64 {
        let taken = self.paced.draw(now, tokens);
        self.count(now, taken);
        taken
    }

    /// Puts back what a call took then that never left.
    pub(crate) fn undraw(&mut self, now: Timestamp, taken: f64, taken_at: Timestamp) {
        self.put_back(now, taken, taken_at);
        // It was drawn a moment ago, at most as long as a connect takes.
        self.drawn -= taken;
        self.this = (self.this - taken).max(0.0);
    }

    /// Puts back a part of what a call took then.
    pub(crate) fn put_back(&mut self, now: Timestamp, tokens: f64, taken_at: Timestamp) {
        self.paced
            .put_back(now, tokens * self.at_price_of(taken_at));
    }

    /// Takes `tokens` more for a call that costs `whole` in all. Returns what was taken.
    pub(crate) fn take_more(&mut self, now: Timestamp, tokens: f64, whole: f64) -> f64 {
        self.paced.take_more(now, tokens, whole)
    }

    /// What a call of this cost has taken at least, if it was let through.
    pub(crate) fn taken_by(&self, tokens: Tokens) -> f64 {
        self.paced.least_taken(tokens)
    }

    fn count(&mut self, now: Timestamp, tokens: f64) {
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

/// Exactly one where both are the same.
fn ratio(price: i128, other: i128) -> f64 {
    if price == other {
        1.0
    } else {
        price as f64 / other as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::BurstRatio;

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn the_achieved_rate_is_what_went_through_lately() {
        let rate = Rate::new(100.0).expect("a rate");
        let pace = Pace::new(rate, BurstRatio::STRICT);
        let mut pacing = Pacing::new(Timestamp::ZERO, pace);
        for tick in 0..3000 {
            pacing.draw(at(tick * 20), Tokens::ONE);
        }
        let now = pacing.now(at(60_000));
        assert!((now.achieved - 50.0).abs() < 0.2, "{}", now.achieved);
        assert_eq!(now.drawn, 3000.0);
        // What was is forgotten within two spans.
        let later = pacing.now(at(65_000)).achieved;
        assert!(later > 10.0 && later < 40.0, "{later}");
        assert_eq!(pacing.now(at(80_000)).achieved, 0.0);
        pacing.draw(at(90_000), Tokens::ONE);
        assert_eq!(pacing.now(at(90_000)).achieved, 0.1);
    }

    #[test]
    fn what_never_left_was_never_let_through() {
        let rate = Rate::new(100.0).expect("a rate");
        let mut pacing = Pacing::new(Timestamp::ZERO, Pace::new(rate, BurstRatio::STRICT));
        let before = pacing.now(at(100));
        let taken = pacing.draw(at(100), Tokens::ONE);
        pacing.undraw(at(100), taken, at(100));
        assert_eq!(pacing.now(at(100)), before);
    }

    #[test]
    fn what_is_given_back_is_the_time_that_it_took_whatever_the_pace_is_by_then() {
        let pace = |rate| Pace::new(Rate::new(rate).expect("a rate"), BurstRatio::STRICT);
        let dear = Tokens::new(600.0).expect("tokens");
        for rates in [
            &[100.0, 1.0][..],
            &[1.0, 100.0],
            &[5.0, 1.0, 7.0, 2.0],
            &[3.0; 5],
        ] {
            for drawn_in in 0..rates.len() {
                let configured = pace(rates[0]).with_room_for(dear);
                let mut drawn = Pacing::new(Timestamp::ZERO, configured);
                let mut untouched = drawn.clone();
                let mut taken = 0.0;
                for (step, &rate) in (0..).zip(rates) {
                    for pacing in [&mut drawn, &mut untouched] {
                        pacing.follow(at(step * 1000), pace(rate).with_room_for(dear), None);
                    }
                    if step == drawn_in as u64 {
                        taken = drawn.draw(at(step * 1000 + 1), dear);
                    }
                }
                let drawn_at = at(drawn_in as u64 * 1000 + 1);
                let now = at(rates.len() as u64 * 1000);
                drawn.undraw(now, taken, drawn_at);
                let waits = |pacing: &Pacing| pacing.now(now).pools.wait_time().as_secs_f64();
                let (with, without) = (waits(&drawn), waits(&untouched));
                assert!(
                    (with - without).abs() < 1e-6,
                    "{rates:?} {drawn_in}: {with} {without}"
                );
            }
        }
    }

    #[test]
    fn a_pace_that_changes_all_the_time_gives_back_no_more_than_was_taken() {
        let pace = |rate| Pace::new(Rate::new(rate).expect("a rate"), BurstRatio::STRICT);
        let mut pacing = Pacing::new(Timestamp::ZERO, pace(1000.0));
        let taken = pacing.draw(at(0), Tokens::ONE);
        for step in 1..100 {
            pacing.follow(at(step), pace(1000.0 / step as f64), None);
        }
        assert_eq!(pacing.prices.len(), PRICES_MAX);
        let waits = |pacing: &Pacing| pacing.now(at(100)).pools.wait_time();
        let before = waits(&pacing);
        pacing.undraw(at(100), taken, at(0));
        assert!(waits(&pacing) <= before + Duration::from_millis(1));
    }
}
