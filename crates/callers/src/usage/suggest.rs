//! Limits derived from what a caller used.
//!
//! Usage is a row of slots of five seconds, `x[i]` tokens in each. With a headroom `h` the
//! bucket fills at `r = h * mean(x) / 5` tokens a second, and holds `max b[i]`, where
//! `b[i] = max(0, b[i-1] + x[i] - 5 r)`. The smallest bucket that would have delayed nothing is
//! the highest level of a queue that is served at the fill rate.
//!
//! For the latest five minutes and the latest hour these slots are known, and the burst is
//! exact. For a day only stretches of 24 minutes are, each with its tokens `X`, the most in any
//! of its slots `p`, and the most in any of its minutes `q`. Any `k` slots in a row then have
//! at most `a(k) = min(X, k p, m(k) q)` tokens, where `m(k)` is how many minutes they can touch:
//! an arrival curve as network calculus has it (R. Cruz, "A Calculus for Network Delay", IEEE
//! Trans. Information Theory 37, 1991). So within a stretch the level rises by at most
//! `g = max (a(k) - 5 r k)`, and at its end it is at most `max(b + X - 5 r n, g)`: what comes
//! of that is never too small, and up to a few times too large.

/// Seconds in a slot.
pub(super) const SLOT_SECONDS: f64 = 5.0;
const SLOTS_IN_MINUTE: u64 = 12;
/// What a bucket may be given, in tokens and tokens a second.
const LEAST: f64 = 1e-6;
const MOST: f64 = 1e9;
/// Rounding of sums may make a level differ from the burst by less than this share.
const ROUNDING: f64 = 1e-9;

/// By how much a derived limit fills faster than was used on average: 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Headroom(f64);

impl Headroom {
    /// Half as much again.
    pub const DEFAULT: Self = Self(1.5);

    /// A headroom from 1 to 100; `None` for anything else.
    #[must_use]
    pub fn new(headroom: f64) -> Option<Self> {
        (1.0..=100.0).contains(&headroom).then_some(Self(headroom))
    }

    /// The factor.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

/// A token bucket that would have let through what a caller used, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suggestion {
    /// Tokens a second; finite, above zero.
    pub fill: f64,
    /// Tokens; finite, above zero, and at least the cost of the most expensive single call.
    pub burst: f64,
    /// What it is derived from.
    pub basis: Basis,
}

/// What a [`Suggestion`] is derived from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Basis {
    /// Tokens a second, on average.
    pub mean: f64,
    /// Slots of five seconds from the first call or the start of the span until now.
    pub slots: u64,
    /// The most tokens in one slot of five seconds.
    pub peak: f64,
    /// Whether every slot is known. Otherwise the burst is an upper bound.
    pub every_slot_known: bool,
    /// Slots in which the suggested bucket would have been short, if it had been full at first
    /// and calls were spread evenly over their slots: none, unless the limits of what a bucket
    /// may be given cut it. Of a day, stretches of 24 minutes in which it could have been.
    pub short_slots: u64,
}

/// Some slots in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) slots: u64,
    pub(super) tokens: f64,
    /// The most in one slot.
    pub(super) slot_peak: f64,
    /// The most in one minute.
    pub(super) minute_peak: f64,
}

impl Stretch {
    /// One slot.
    pub(super) const fn slot(tokens: f64) -> Self {
        Self {
            slots: 1,
            tokens,
            slot_peak: tokens,
            minute_peak: tokens,
        }
    }

    /// The most by which a run of slots in here can exceed what fills meanwhile.
    fn rise(&self, fill: f64) -> f64 {
        let mut highest = 0.0_f64;
        for slots in 1..=self.slots {
            // A run may begin and end anywhere in a minute.
            let minutes = (slots + SLOTS_IN_MINUTE - 2) / SLOTS_IN_MINUTE + 1;
            let by_slot = slots as f64 * self.slot_peak;
            let by_minute = minutes as f64 * self.minute_peak;
            let most = by_slot.min(by_minute).min(self.tokens);
            highest = highest.max(most - slots as f64 * SLOT_SECONDS * fill);
            if most >= self.tokens {
                break;
            }
        }
        highest
    }
}

/// The highest level in each stretch of a queue that is served at `fill` tokens a second.
fn levels(stretches: impl Iterator<Item = Stretch>, fill: f64) -> impl Iterator<Item = f64> {
    stretches.scan(0.0_f64, move |level, stretch| {
        let rise = stretch.rise(fill);
        let highest = *level + rise;
        let served = stretch.slots as f64 * SLOT_SECONDS * fill;
        *level = (*level + stretch.tokens - served).max(rise);
        Some(if stretch.slots == 1 { *level } else { highest })
    })
}

/// `None` where no token was used: there is nothing to derive a limit from.
pub(super) fn suggest(
    stretches: impl Iterator<Item = Stretch> + Clone,
    headroom: Headroom,
    most_expensive: f64,
) -> Option<Suggestion> {
    let (mut tokens, mut slots, mut peak) = (0.0, 0, 0.0_f64);
    for stretch in stretches.clone() {
        tokens += stretch.tokens;
        slots += stretch.slots;
        peak = peak.max(stretch.slot_peak);
    }
    if tokens <= 0.0 {
        return None;
    }
    let mean = tokens / (slots as f64 * SLOT_SECONDS);
    let fill = (mean * headroom.get()).clamp(LEAST, MOST);
    let burst = levels(stretches.clone(), fill)
        .fold(most_expensive, f64::max)
        .clamp(LEAST, MOST);
    let short = levels(stretches.clone(), fill).filter(|&level| level > burst * (1.0 + ROUNDING));
    Some(Suggestion {
        fill,
        burst,
        basis: Basis {
            mean,
            slots,
            peak,
            every_slot_known: stretches.clone().all(|stretch| stretch.slots == 1),
            short_slots: short.count() as u64,
        },
    })
}

impl Suggestion {
    /// The same in figures that are easily read: the fill rate rounded up to three digits, the
    /// burst to two, so that what would have delayed nothing still does not.
    #[must_use]
    pub fn rounded_up(self) -> Self {
        Self {
            fill: round_up(self.fill, 3),
            burst: round_up(self.burst, 2),
            basis: self.basis,
        }
    }

    /// The profile whose fill rate and burst are nearest, each as a ratio: twice as much is as
    /// far as half as much. Those that are not finite and above zero are passed over; of
    /// several equally near the first is taken.
    pub fn nearest<P>(&self, profiles: impl IntoIterator<Item = (P, f64, f64)>) -> Option<P> {
        let mut nearest: Option<(P, f64)> = None;
        for (profile, fill, burst) in profiles {
            let is_bucket = |value: f64| value.is_finite() && value > 0.0;
            if !is_bucket(fill) || !is_bucket(burst) {
                continue;
            }
            // The product orders as the sum of logarithms does.
            let distance = ratio(self.fill, fill) * ratio(self.burst, burst);
            if nearest.as_ref().is_none_or(|(_, least)| distance < *least) {
                nearest = Some((profile, distance));
            }
        }
        nearest.map(|(profile, _)| profile)
    }
}

/// How many times the larger is the smaller.
fn ratio(a: f64, b: f64) -> f64 {
    (a / b).max(b / a)
}

/// The least number of this many digits that is not below `value`, which is above zero.
fn round_up(value: f64, digits: u32) -> f64 {
    let low = f64::from(10_u32.pow(digits - 1));
    let high = low * 10.0;
    let (mut times, mut by) = (1.0, 1.0);
    while value * times < low {
        times *= 10.0;
    }
    while value / by >= high {
        by *= 10.0;
    }
    let scaled = value * times / by;
    let whole = scaled as u64 as f64;
    let whole = if scaled > whole * (1.0 + ROUNDING) {
        whole + 1.0
    } else {
        whole
    };
    whole / times * by
}
