//! Limits derived from what a caller used.
//!
//! Usage is a row of slots of five seconds, `x[i]` tokens in each. The bucket fills at the rate `r` of
//! the busiest minute, times a headroom. So an idle hour does not make the fill smaller. A minute may
//! begin anywhere and touches 13 slots, so its tokens are at most the most in any 13 in a row.
//!
//! Within a slot, the moments of calls are not known. The burst is for calls that come together at
//! the start of theirs: `max (b[i-1] + x[i])`, where `b[i] = max(0, b[i-1] + x[i] - 5 r)` is the level
//! of a queue that is served at `r`. Calls that bunch at the end of one slot and the start of the
//! next may find `5 r` tokens less, so they wait five seconds at most.
//!
//! For the latest five minutes and the latest hour all slots are known. For a day only stretches of
//! 24 minutes are, each with its tokens `X`, the most in any of its slots `p`, and the most in any of
//! its minutes `q`. Any `k` slots in a row then have at most `a(k) = min(X, k p, m(k) q)` tokens, where
//! `m(k)` is how many minutes they can touch: an arrival curve as network calculus has it (R. Cruz, "A
//! Calculus for Network Delay", IEEE Trans. Information Theory 37, 1991). So a minute has at most
//! `min(X, 13 p, 2 q)` tokens. Within a stretch the level rises by at most
//! `g = max (a(k) - 5 r (k - 1))`, and at its end it is at most `max(b + X - 5 r n, g - 5 r)`. What comes
//! of that is never too small, and up to a few times too large.

/// Seconds in a slot.
pub(super) const SLOT_SECONDS: f64 = 5.0;
const SLOTS_IN_MINUTE: u64 = 12;
/// Slots that a minute touches, at most.
const TOUCHED: usize = SLOTS_IN_MINUTE as usize + 1;
const MINUTE_SECONDS: f64 = 60.0;
/// The smallest numbers of a bucket, in tokens and tokens a second.
const LEAST: f64 = 1e-6;
const MOST: f64 = 1e9;
/// The share of a caller's tokens that a profile may delay, at most, to be offered for it.
pub const DELAYED_MAX: f64 = 0.001;
/// Rounding of sums may make a level differ from the burst by less than this share.
const ROUNDING: f64 = 1e-9;

/// By how much a derived limit fills faster than the busiest minute: 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Headroom(f64);

impl Headroom {
    /// As fast as the busiest minute.
    pub const DEFAULT: Self = Self(1.0);

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

/// A token bucket that would have admitted what a caller used, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suggestion {
    /// Tokens a second; finite, above zero.
    pub fill: f64,
    /// Tokens; finite, above zero, and at least the cost of the most expensive single call.
    pub burst: f64,
    /// The figures that the suggestion is derived from.
    pub basis: Basis,
}

/// The figures that a [`Suggestion`] is derived from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Basis {
    /// Tokens a second in the busiest minute: the most that it can have had.
    pub busiest: f64,
    /// Slots of five seconds from the first call or the start of the span until now.
    pub slots: u64,
    /// The most tokens in one slot of five seconds.
    pub peak: f64,
    /// The burst that would do if the calls of each slot were spread evenly over it: usually, the right
    /// one is between this and the suggested. `None` if not every slot is known.
    pub even_burst: Option<f64>,
    /// Whether every slot is known. Otherwise both figures are upper bounds.
    pub every_slot_known: bool,
    /// Slots in which the suggested bucket would have been short, if it had been full at first and
    /// calls came at the start of their slots: none, unless the limits of what a bucket may be given
    /// cut it. Of a day, stretches of 24 minutes in which it could have been.
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
    /// A stretch of a single slot.
    pub(super) const fn slot(tokens: f64) -> Self {
        Self {
            slots: 1,
            tokens,
            slot_peak: tokens,
            minute_peak: tokens,
        }
    }

    /// The most that any minute in here can have had.
    fn busiest_minute(&self) -> f64 {
        let by_slot = TOUCHED as f64 * self.slot_peak;
        by_slot.min(2.0 * self.minute_peak).min(self.tokens)
    }

    /// The most by which a run of slots in here can exceed what fills until the start of its last.
    fn rise(&self, fill: f64) -> f64 {
        let mut highest = 0.0_f64;
        for slots in 1..=self.slots {
            // A run may begin and end anywhere in a minute.
            let minutes = (slots + SLOTS_IN_MINUTE - 2) / SLOTS_IN_MINUTE + 1;
            let by_slot = slots as f64 * self.slot_peak;
            let by_minute = minutes as f64 * self.minute_peak;
            let most = by_slot.min(by_minute).min(self.tokens);
            highest = highest.max(most - (slots - 1) as f64 * SLOT_SECONDS * fill);
            if most >= self.tokens {
                break;
            }
        }
        highest
    }
}

/// The most tokens that any minute can have had.
fn busiest_minute(stretches: impl Iterator<Item = Stretch>) -> f64 {
    let mut busiest = 0.0_f64;
    // The newest slots, as a ring.
    let mut slots = [0.0; TOUCHED];
    let mut before: Option<Stretch> = None;
    for (number, stretch) in stretches.enumerate() {
        busiest = busiest.max(stretch.busiest_minute());
        if stretch.slots == 1 {
            slots[number % TOUCHED] = stretch.tokens;
            busiest = busiest.max(slots.iter().sum());
        } else {
            slots = [0.0; TOUCHED];
        }
        // A minute that begins in the stretch before ends in this one.
        if let Some(before) = before.filter(|before| before.slots > 1 || stretch.slots > 1) {
            let by_slot = TOUCHED as f64 * before.slot_peak.max(stretch.slot_peak);
            let by_minute = before.minute_peak + stretch.minute_peak;
            let most = before.tokens + stretch.tokens;
            busiest = busiest.max(by_slot.min(by_minute).min(most));
        }
        before = Some(stretch);
    }
    busiest
}

/// The highest level in each stretch of a queue that is served at `fill` tokens a second.
fn levels(stretches: impl Iterator<Item = Stretch>, fill: f64) -> impl Iterator<Item = f64> {
    stretches.scan(0.0_f64, move |level, stretch| {
        let slot = SLOT_SECONDS * fill;
        let rise = stretch.rise(fill);
        let highest = *level + rise;
        let left = *level + stretch.tokens - stretch.slots as f64 * slot;
        // Of a single slot, all is known.
        *level = match stretch.slots {
            1 => left.max(0.0),
            _ => left.max(rise - slot).max(0.0),
        };
        Some(highest)
    })
}

/// The share of the tokens that may have had to wait for a bucket that was full at first. `None` if
/// no token was used.
pub(super) fn delayed(
    stretches: impl Iterator<Item = Stretch> + Clone,
    fill: f64,
    burst: f64,
) -> Option<f64> {
    let (mut tokens, mut late) = (0.0, 0.0);
    for (level, stretch) in levels(stretches.clone(), fill).zip(stretches) {
        tokens += stretch.tokens;
        if level > burst * (1.0 + ROUNDING) {
            late += stretch.tokens;
        }
    }
    (tokens > 0.0).then(|| late / tokens)
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
    let busiest = busiest_minute(stretches.clone()) / MINUTE_SECONDS;
    let fill = (busiest * headroom.get()).clamp(LEAST, MOST);
    let burst = levels(stretches.clone(), fill)
        .fold(most_expensive, f64::max)
        .clamp(LEAST, MOST);
    let every_slot_known = stretches.clone().all(|stretch| stretch.slots == 1);
    let even_burst = every_slot_known.then(|| {
        let even = stretches.clone().scan(0.0_f64, |level, slot| {
            *level = (*level + slot.tokens - SLOT_SECONDS * fill).max(0.0);
            Some(*level)
        });
        even.fold(most_expensive, f64::max).clamp(LEAST, MOST)
    });
    let short = levels(stretches, fill).filter(|&level| level > burst * (1.0 + ROUNDING));
    Some(Suggestion {
        fill,
        burst,
        basis: Basis {
            busiest,
            slots,
            peak,
            even_burst,
            every_slot_known,
            short_slots: short.count() as u64,
        },
    })
}

impl Suggestion {
    /// The suggestion in figures that are easily read: the fill rate rounded up to three digits, the burst to two,
    /// so that what would have delayed nothing still does not.
    #[must_use]
    pub fn rounded_up(self) -> Self {
        Self {
            fill: round_up(self.fill, 3),
            burst: round_up(self.burst, 2),
            basis: Basis {
                even_burst: self.basis.even_burst.map(|burst| round_up(burst, 2)),
                ..self.basis
            },
        }
    }

    /// The profile whose fill rate and burst are nearest, each as a ratio: twice as much is as
    /// far as half as much. Those that are not finite and above zero are passed over; of
    /// several equally near the first is taken. Pass only profiles that would delay few calls
    /// ([`Usage::would_delay`](super::Usage::would_delay)).
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
