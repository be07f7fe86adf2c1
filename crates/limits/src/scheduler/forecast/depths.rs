//! How much of other callers goes before a call.
//!
//! Callers take turns, so of each other caller at most as much goes before a call as its own caller has ahead of
//! it. Summed over callers, that needs how many callers have how much, and not which. So callers are counted by
//! how much they have, in steps of a quarter of the power of two, and a prediction looks at the steps.

use alloc::vec::Vec;

use super::lately::RecentArrivals;
use super::{CallerLoad, DrawAmounts, OwnDraws};
use crate::limiter::Unit;
use crate::time::Timestamp;

/// The callers of a class that wait at one limit, by how far their calls move their turns.
#[derive(Clone, Debug, Default)]
pub(super) struct Depths {
    /// By step, ascending; none is empty. Those that have had a turn are apart.
    steps: Vec<((u8, bool), DepthStep)>,
    draw: DrawAmounts,
    depth: u64,
    loads: u32,
    pub(super) lately: RecentArrivals,
}

#[derive(Clone, Copy, Debug, Default)]
struct DepthStep {
    loads: u32,
    depth: u64,
    draw: DrawAmounts,
}

/// The step of a depth: four to each power of two.
fn step(depth: u64) -> u8 {
    let depth = depth.max(4);
    let power = depth.ilog2();
    let quarter = (depth >> (power - 2)) & 3;
    (power * 4 + quarter as u32) as u8
}

impl Depths {
    pub(super) const fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The sum of all draws.
    pub(super) const fn draw(&self, unit: Unit) -> u64 {
        self.draw.in_unit(unit)
    }

    pub(super) fn insert(&mut self, load: &CallerLoad) {
        if load.calls == 0 {
            return;
        }
        let of = (step(load.depth), load.had_turn);
        let place = match self.steps.binary_search_by_key(&of, |(at, _)| *at) {
            Ok(place) => place,
            Err(place) => {
                self.steps.insert(place, (of, DepthStep::default()));
                place
            }
        };
        let (_, step) = &mut self.steps[place];
        step.loads += 1;
        step.depth += load.depth;
        step.draw += load.draw;
        self.draw += load.draw;
        self.depth += load.depth;
        self.loads += 1;
    }

    /// Takes a flow out that was put in as it is.
    pub(super) fn remove(&mut self, load: &CallerLoad) {
        if load.calls == 0 {
            return;
        }
        let of = (step(load.depth), load.had_turn);
        let Ok(place) = self.steps.binary_search_by_key(&of, |(at, _)| *at) else {
            return;
        };
        let (_, step) = &mut self.steps[place];
        step.loads -= 1;
        step.depth -= load.depth;
        step.draw -= load.draw;
        self.draw -= load.draw;
        self.depth -= load.depth;
        self.loads -= 1;
        if step.loads == 0 {
            self.steps.remove(place);
        }
    }

    /// The draws expected in this span.
    pub(super) fn comes(&self, (now, until): (Timestamp, Timestamp), unit: Unit) -> f64 {
        let mean = self.draw(unit) as f64 / self.draw(Unit::Calls).max(1) as f64;
        self.lately.expected(now, until) * mean
    }

    /// The draws of other flows before a call that is this far behind in its own.
    pub(super) fn ahead(
        &self,
        own: &OwnDraws,
        unit: Unit,
        span: (Timestamp, Timestamp),
        coming: f64,
    ) -> f64 {
        // What comes is spread over the flows, also over its own. Of that, only what waits elsewhere is before it.
        let loads = f64::from((self.loads + u32::from(own.load.calls == 0)).max(1));
        let from_elsewhere = coming / loads;
        let comes = self.comes(span, unit) / loads + from_elsewhere;
        let deeper = from_elsewhere * self.depth as f64 / (self.draw(unit) as f64).max(1.0);
        // Flows in turn go before it with a call more. Of those that had a turn, it is half of them.
        let fresh = (own.depth + own.one) as f64 + deeper;
        let turned = own.depth as f64 + own.one as f64 / 2.0 + deeper;
        let mut ahead = from_elsewhere;
        let itself = (step(own.load.depth), own.load.had_turn);
        for &(of, mut step) in &self.steps {
            if of == itself && own.load.calls > 0 {
                step.loads -= 1;
                step.depth -= own.load.depth;
                step.draw -= own.load.draw;
            }
            if step.loads == 0 {
                continue;
            }
            let until = if of.1 { turned } else { fresh };
            let loads = f64::from(step.loads);
            let draw = step.draw.in_unit(unit) as f64;
            let each = step.depth as f64 / draw.max(1.0);
            let draw = draw + comes * loads;
            let mean = draw * each / loads;
            let part = if mean > until { until / mean } else { 1.0 };
            ahead += draw * part;
        }
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Call;

    fn one_call(depth: u64, had_turn: bool) -> CallerLoad {
        CallerLoad {
            calls: 1,
            depth,
            draw: DrawAmounts::of(&Call::new("any", Timestamp::ZERO)),
            had_turn,
        }
    }

    /// The calls before one that has this much of its own flow before it, and moves its turn by this much.
    fn calls_ahead(depths: &Depths, depth: u64, one: u64, coming: f64) -> f64 {
        let own = OwnDraws {
            depth,
            one,
            ..OwnDraws::default()
        };
        let no_time = (Timestamp::ZERO, Timestamp::ZERO);
        depths.ahead(&own, Unit::Calls, no_time, coming)
    }

    #[test]
    fn all_that_comes_is_before_a_call_that_is_far_behind() {
        let coming = 12.0;
        let mut depths = Depths::default();
        for others in 0..4_u32 {
            let ahead = calls_ahead(&depths, 1_000, 0, coming);
            assert!((ahead - coming - f64::from(others)).abs() < 1e-9, "{ahead}");
            depths.insert(&one_call(1, false));
        }
    }

    #[test]
    fn half_a_call_of_a_caller_that_had_its_turn_goes_before_a_first_call() {
        for (had_turn, expected) in [(false, 1.0), (true, 0.5)] {
            let mut depths = Depths::default();
            depths.insert(&one_call(8, had_turn));
            let ahead = calls_ahead(&depths, 0, 8, 0.0);
            assert!((ahead - expected).abs() < 1e-9, "{ahead}");
        }
    }
}
