//! The costs of calls, and their correction by the time that the backend takes for them.
//!
//! One token stands for a unit of the backend's time, a tenth of a second unless the config
//! says otherwise. A call is charged what is configured for its function. Once its reply is
//! here, it can be settled by the time it took.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::ring::{Ring, RingSlot};
use crate::usage::FunctionId;
use tidegate_limits::bucket::{OutOfRange, TokenCount};
use tidegate_limits::{Timestamp, Tokens};

/// The backend's time that one token stands for: more than none, and at most an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostUnit(Duration);

impl CostUnit {
    const MAX: Duration = Duration::from_secs(60 * 60);

    /// A unit of this time; `None` if it is none at all, or more than an hour.
    #[must_use]
    pub fn new(time: Duration) -> Option<Self> {
        (!time.is_zero() && time <= Self::MAX).then_some(Self(time))
    }

    /// The time.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }
}

/// A tenth of a second.
impl Default for CostUnit {
    fn default() -> Self {
        Self(Duration::from_millis(100))
    }
}

/// The costs of calls by function.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    default: TokenCount,
    functions: BTreeMap<FunctionId, TokenCount>,
    unit: CostUnit,
}

/// Every call costs one token.
impl Default for CostModel {
    fn default() -> Self {
        Self::new(TokenCount::ONE, BTreeMap::new(), CostUnit::default())
    }
}

impl CostModel {
    /// Below this many units of the backend's time, the suggested cost of a call is one token.
    const CHEAP_UNITS: f64 = 2.6;

    /// The costs of some functions, and that of all others.
    #[must_use]
    pub const fn new(
        default: TokenCount,
        functions: BTreeMap<FunctionId, TokenCount>,
        unit: CostUnit,
    ) -> Self {
        Self {
            default,
            functions,
            unit,
        }
    }

    /// A cost of 0 to 1,000,000 tokens, rounded to millionths.
    ///
    /// # Errors
    ///
    /// If it is out of this range.
    pub fn rounded(tokens: f64) -> Result<TokenCount, OutOfRange> {
        let tokens = Tokens::new(tokens)?.get();
        Ok(TokenCount::new(tokens).expect("a cost is a count"))
    }

    /// The cost of a call of this function.
    #[must_use]
    pub fn cost(&self, function: FunctionId) -> TokenCount {
        *self.functions.get(&function).unwrap_or(&self.default)
    }

    /// The tokens that this much of the backend's time stands for, rounded down to millionths.
    #[must_use]
    pub fn tokens_of(&self, service: Duration) -> TokenCount {
        // At most 2^64 seconds, in nanoseconds, a million times: 2^114.
        let micros = service.as_nanos() * 1_000_000 / self.unit.get().as_nanos();
        TokenCount::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// The final charge of a call that was estimated to cost this much and took the backend so long: at least
    /// nothing, and at most five times the estimate. So what is charged or refunded after the reply lies from minus
    /// the estimate to four times it, and a call that is free stays so.
    #[must_use]
    pub fn settle(&self, estimated: TokenCount, service: Duration) -> FinalCharge {
        let most = TokenCount::from_micros(estimated.micros().saturating_mul(5));
        FinalCharge {
            estimated,
            charged: self.tokens_of(service).min(most),
        }
    }

    /// The cost that a mean service time suggests, in tokens: one for each unit, rounded to one
    /// digit, or to 1.2, 1.5 or 2.5 times a power of ten; 1 below 2.6 units, as most calls are
    /// not worth a line in the config; at most the 1,000,000 that a call may cost.
    #[must_use]
    pub fn suggest(&self, mean: Duration) -> f64 {
        let units = mean.as_nanos() as f64 / self.unit.get().as_nanos() as f64;
        if units < Self::CHEAP_UNITS {
            return 1.0;
        }
        round_to_step(units.min(Tokens::MAX.get()))
    }
}

/// The charge of a call when it went, and its final charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalCharge {
    /// The charge when the call went.
    pub estimated: TokenCount,
    /// The final charge.
    pub charged: TokenCount,
}

/// Rounds a number from 2.6 up to the nearest step; below ten steps are whole numbers.
fn round_to_step(value: f64) -> f64 {
    const STEPS: [f64; 13] = [
        10.0, 12.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0,
    ];
    let mut scale = 1.0;
    if value < 10.0 {
        return (value + 0.5) as u32 as f64;
    }
    while value / scale >= 100.0 {
        scale *= 10.0;
    }
    let distance = |step: &f64| (step * scale - value).abs();
    let nearest = STEPS
        .into_iter()
        .min_by(|a, b| distance(a).total_cmp(&distance(b)));
    nearest.expect("there are steps") * scale
}

/// The mean time that the backend took for each function, over the latest day.
///
/// It is a plain mean, not one that weighs late calls more: every reply of the latest sixty
/// slots of 24 minutes counts the same. Memory: 1,000 bytes for each of at most
/// [`ServiceTimes::FUNCTIONS_MAX`] functions and [`FunctionId::OTHER`], which all further ones
/// count as; 270 kB in all.
#[derive(Clone, Debug, Default)]
pub struct ServiceTimes {
    latest: Timestamp,
    /// Sorted by function.
    functions: Vec<(FunctionId, Ring<Replies, DAY_SLOT>)>,
}

const DAY_SLOT: u64 = 24 * 60;

/// How many replies came, and how long the backend took for them, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Replies {
    count: u64,
    nanos: u64,
}

impl RingSlot for Replies {}

/// The mean time that the backend took for a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceTime {
    /// The function.
    pub function: FunctionId,
    /// Replies over the latest day.
    pub samples: u64,
    /// From sending to the end of the reply, on average.
    pub mean: Duration,
}

impl ServiceTimes {
    /// Functions that have a mean of their own, at most.
    pub const FUNCTIONS_MAX: usize = 256;

    /// Counts a reply, for which the backend took so long.
    pub fn count(&mut self, now: Timestamp, function: FunctionId, service: Duration) {
        self.latest = self.latest.max(now);
        let slot = Ring::<Replies, DAY_SLOT>::number_at(self.latest);
        let ring = self.ring_of(function);
        ring.advance(slot);
        let replies = ring.newest_mut();
        replies.count = replies.count.saturating_add(1);
        let nanos = u64::try_from(service.as_nanos()).unwrap_or(u64::MAX);
        replies.nanos = replies.nanos.saturating_add(nanos);
    }

    fn ring_of(&mut self, function: FunctionId) -> &mut Ring<Replies, DAY_SLOT> {
        let search = |function| {
            self.functions
                .binary_search_by_key(&function, |(function, _)| *function)
        };
        // `OTHER` may always have a place, as the last.
        let index = match search(function) {
            Ok(index) => index,
            Err(index)
                if function == FunctionId::OTHER || self.functions.len() < Self::FUNCTIONS_MAX =>
            {
                self.functions.insert(index, (function, Ring::default()));
                index
            }
            Err(_) => return self.ring_of(FunctionId::OTHER),
        };
        &mut self.functions[index].1
    }

    /// The functions that were called within the latest day.
    pub fn at(&self, now: Timestamp) -> impl Iterator<Item = ServiceTime> {
        let now = now.max(self.latest);
        self.functions.iter().filter_map(move |(function, ring)| {
            let (mut samples, mut total) = (0_u64, 0_u128);
            for (_, replies) in ring.at(now) {
                samples = samples.saturating_add(replies.count);
                total += u128::from(replies.nanos);
            }
            let mean = total.checked_div(u128::from(samples))?;
            Some(ServiceTime {
                function: *function,
                samples,
                mean: Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX)),
            })
        })
    }
}
