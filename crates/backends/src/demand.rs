//! How much work a call brings: how long the backend would take for it alone.
//!
//! Each distribution is its quantile function. An even random number in `0.0..1.0` becomes a
//! demand, so the randomness stays with the one who asks.

use crate::{OutOfRange, within};

/// A distribution of demands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceDemand(DemandShape);

#[derive(Clone, Copy, Debug, PartialEq)]
enum DemandShape {
    Even { min: f64, max: f64 },
    Exponential { mean: f64 },
    Lognormal { median: f64, sigma: f64 },
    Pareto { min: f64, max: f64, alpha: f64 },
}

/// The longest demand.   ns
const DEMAND_MAX: f64 = 1e18;

impl ServiceDemand {
    /// Always the same.   ns
    #[must_use]
    pub fn fixed(demand: u64) -> Self {
        let demand = (demand as f64).min(DEMAND_MAX);
        Self(DemandShape::Even {
            min: demand,
            max: demand,
        })
    }

    /// Evenly spread between two times.   ns
    ///
    /// # Errors
    ///
    /// The first is larger than the second.
    pub fn even(min: u64, max: u64) -> Result<Self, OutOfRange> {
        let (min, max) = (min as f64, max as f64);
        let max = within(
            max,
            min <= max,
            "the longest demand",
            "at least the shortest",
        )?;
        Ok(Self(DemandShape::Even { min, max }))
    }

    /// Exponential with this mean.   ns
    #[must_use]
    pub fn exponential(mean: u64) -> Self {
        let mean = mean as f64;
        Self(DemandShape::Exponential { mean })
    }

    /// Lognormal: half of the demands are below `median` ns, and `sigma` (0 to 10) is the standard
    /// deviation of their logarithm. The mean is median·exp(σ²/2).
    ///
    /// # Errors
    ///
    /// A number out of its range.
    pub fn lognormal(median: u64, sigma: f64) -> Result<Self, OutOfRange> {
        let is_right = (0.0..=10.0).contains(&sigma);
        let sigma = within(sigma, is_right, "σ of a lognormal demand", "0 to 10")?;
        let median = median as f64;
        Ok(Self(DemandShape::Lognormal { median, sigma }))
    }

    /// Pareto between two times in ns, with the tail index `alpha` (above 0, at most 100): the smaller it is,
    /// the heavier the tail. M. Harchol-Balter, M. Crovella, C. Murta, "On choosing a task assignment
    /// policy for a distributed server system", Journal of Parallel and Distributed Computing 59(2), 1999.
    ///
    /// # Errors
    ///
    /// A number out of its range: `min` is at least 1 and below `max`.
    pub fn bounded_pareto(min: u64, max: u64, alpha: f64) -> Result<Self, OutOfRange> {
        let is_right = alpha > 0.0 && alpha <= 100.0;
        let alpha = within(
            alpha,
            is_right,
            "α of a Pareto demand",
            "above 0, at most 100",
        )?;
        let (min, max) = (min as f64, max as f64);
        let min = within(
            min,
            min >= 1.0 && min < max,
            "the shortest demand",
            "at least 1 ns, and below the longest",
        )?;
        Ok(Self(DemandShape::Pareto { min, max, alpha }))
    }

    /// The demand that a share `unit` of calls stay below. `unit` is in `0.0..1.0`; outside of
    /// it, it is the nearest number inside.   ns
    #[must_use]
    pub fn quantile(self, unit: f64) -> u64 {
        // The ends of the range are nearer to 0 and 1 than a random number of 53 bits comes.
        let unit = unit.clamp(f64::MIN_POSITIVE, 1.0 - f64::EPSILON / 2.0);
        let demand = match self.0 {
            DemandShape::Even { min, max } => min + (max - min) * unit,
            DemandShape::Exponential { mean } => -mean * (1.0 - unit).ln(),
            DemandShape::Lognormal { median, sigma } => {
                median * (sigma * normal_quantile(unit)).exp()
            }
            DemandShape::Pareto { min, max, alpha } => {
                let ratio = (min / max).powf(alpha);
                (min * (1.0 - unit * (1.0 - ratio)).powf(-1.0 / alpha)).min(max)
            }
        };
        demand.min(DEMAND_MAX).round() as u64
    }

    /// The mean.   ns
    #[must_use]
    pub fn mean(self) -> f64 {
        match self.0 {
            DemandShape::Even { min, max } => f64::midpoint(min, max),
            DemandShape::Exponential { mean } => mean,
            DemandShape::Lognormal { median, sigma } => median * (sigma * sigma / 2.0).exp(),
            DemandShape::Pareto { min, max, alpha } => {
                let whole = 1.0 - (min / max).powf(alpha);
                if (alpha - 1.0).abs() < 1e-9 {
                    min / whole * (max / min).ln()
                } else {
                    let tail = 1.0 - (min / max).powf(alpha - 1.0);
                    alpha / (alpha - 1.0) * min * tail / whole
                }
            }
        }
    }
}

/// The number that a standard normal variable stays below with this probability, to a relative
/// error of 1.2e-9. The rational approximation is P. J. Acklam's, "An algorithm for computing the inverse
/// normal cumulative distribution function", 2003.
fn normal_quantile(unit: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    /// Where the tails begin.
    const TAIL: f64 = 0.024_25;
    let polynomial = |terms: &[f64], x: f64| terms.iter().fold(0.0, |sum, term| sum * x + term);
    let tail = |share: f64| {
        let x = (-2.0 * share.ln()).sqrt();
        polynomial(&C, x) / polynomial(&D, x)
    };
    if unit < TAIL {
        tail(unit)
    } else if unit > 1.0 - TAIL {
        -tail(1.0 - unit)
    } else {
        let x = unit - 0.5;
        let square = x * x;
        x * polynomial(&A, square) / polynomial(&B, square)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_the_normal_distribution_match_the_tables() {
        for (unit, right) in [
            (0.5, 0.0),
            (0.9, 1.281_551_565_544_600_4),
            (0.975, 1.959_963_984_540_054),
            (0.99, 2.326_347_874_040_841),
            (0.999, 3.090_232_306_167_813),
            (1e-6, -4.753_424_308_822_899),
        ] {
            let found = normal_quantile(unit);
            assert!((found - right).abs() < 1e-7, "{unit}: {found}, not {right}");
        }
    }
}
