//! Intervals of shares and of quantiles, without an assumption about how times are distributed.
//!
//! **Shares**: Wilson's score interval ("Probable inference, the law of succession, and
//! statistical inference", Journal of the American Statistical Association 22, 1927). It stays
//! within 0 and 1, and is of use where no call failed.
//!
//! **Quantiles**: two values of the sample itself. The number of values below the quantile `p` of
//! `n` independent values is binomial with `n` and `p`, so the values at two ranks enclose it with
//! a probability that follows from that alone (H. A. David and H. N. Nagaraja, "Order
//! Statistics", 3rd ed., section 7.1).

/// Two-sided: of a hundred such intervals, about five miss.
const Z: f64 = 1.959_964;
const ALPHA: f64 = 0.05;
/// Up to here ranks come from the binomial distribution itself, beyond from the normal one.
const EXACT_MAX: usize = 5_000;

/// A share and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredShare {
    /// The lower bound.
    pub low: f64,
    /// The measured share.
    pub share: f64,
    /// The upper bound.
    pub high: f64,
}

/// The 95 % interval of a share: `of` calls, `hits` among them. Without calls it is 0 to 1.
#[must_use]
pub fn share(hits: usize, of: usize) -> MeasuredShare {
    if of == 0 {
        return MeasuredShare {
            low: 0.0,
            share: 0.0,
            high: 1.0,
        };
    }
    let (count, share) = (of as f64, hits as f64 / of as f64);
    let denominator = 1.0 + Z * Z / count;
    let centre = (share + Z * Z / (2.0 * count)) / denominator;
    let half =
        Z / denominator * (share * (1.0 - share) / count + Z * Z / (4.0 * count * count)).sqrt();
    MeasuredShare {
        low: (centre - half).max(0.0),
        share,
        high: (centre + half).min(1.0),
    }
}

/// A quantile and two values of the sample that enclose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantile {
    /// The lower one.
    pub low: u64,
    /// The quantile of the sample.
    pub value: u64,
    /// The upper one.
    pub high: u64,
}

/// The quantile `p` of sorted values with its 95 % interval; `None` if there are too few values
/// to enclose it on both sides.
#[must_use]
pub fn quantile(sorted: &[u64], p: f64) -> Option<Quantile> {
    let (low, high) = ranks(sorted.len(), p)?;
    let middle = (p * sorted.len() as f64).ceil() as usize;
    Some(Quantile {
        low: sorted[low - 1],
        value: sorted[middle.clamp(1, sorted.len()) - 1],
        high: sorted[high - 1],
    })
}

/// How many values the interval of the quantile `p` needs: with fewer, the smallest or the largest
/// value is still inside of it.
#[must_use]
pub fn values_needed(p: f64) -> usize {
    let side = |p: f64| ((ALPHA / 2.0).ln() / p.ln()).ceil() as usize;
    side(p).max(side(1.0 - p))
}

/// The ranks, from 1, of the values that enclose the quantile `p` of `count` values.
fn ranks(count: usize, p: f64) -> Option<(usize, usize)> {
    if !(p > 0.0 && p < 1.0) || count < values_needed(p) {
        return None;
    }
    if count > EXACT_MAX {
        let (mean, count) = (p * count as f64, count as f64);
        let half = Z * (count * p * (1.0 - p)).sqrt();
        let low = (mean - half).floor().max(1.0);
        let high = (mean + half).ceil() + 1.0;
        return (high <= count).then_some((low as usize, high as usize));
    }
    // `low` is the largest rank with P(X < low) <= 2.5 %, and `high` the smallest with
    // P(X >= high) <= 2.5 %, where X counts the values at or below the quantile.
    let (mut low, mut high) = (None, None);
    let mut probability = count as f64 * (1.0 - p).ln();
    let mut below = 0.0;
    for hits in 0..=count {
        if below <= ALPHA / 2.0 && hits > 0 {
            low = Some(hits);
        }
        if high.is_none() && 1.0 - below <= ALPHA / 2.0 {
            high = Some(hits);
        }
        below += probability.exp();
        let ratio = (count - hits) as f64 / (hits + 1) as f64 * p / (1.0 - p);
        probability += ratio.ln();
    }
    Some((low?, high?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;

    #[test]
    fn wilsons_interval_is_the_published_one() {
        // Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in
        // Medicine 17, 1998, table I, method 3.
        for (hits, of, low, high) in [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ] {
            let it = share(hits, of);
            assert!((it.low - low).abs() < 1e-4, "{it:?}");
            assert!((it.high - high).abs() < 1e-4, "{it:?}");
        }
    }

    #[test]
    fn the_interval_of_a_quantile_encloses_it_in_95_of_100_samples() {
        for p in [0.5, 0.9, 0.95] {
            for count in [80, 400] {
                let mut draw = Draw::new(7);
                let hits = (0..2_000).filter(|_| {
                    let mut values: Vec<_> =
                        (0..count).map(|_| draw.below(1_000_000) as u64).collect();
                    values.sort_unstable();
                    let it = quantile(&values, p).expect("enough");
                    let truth = (p * 1e6) as u64;
                    it.low <= truth && truth <= it.high
                });
                let hits = hits.count();
                assert!((1_880..=1_990).contains(&hits), "{p} {count}: {hits}");
            }
        }
    }

    #[test]
    fn too_few_values_have_no_interval() {
        assert_eq!(values_needed(0.5), 6);
        assert_eq!(values_needed(0.95), 72);
        let values: Vec<_> = (0..72).collect();
        assert_eq!(quantile(&values[..71], 0.95), None);
        assert!(quantile(&values, 0.95).is_some());
        assert_eq!(quantile(&[], 0.5), None);
    }
}
