//! A count in two bytes, rounded up by less than a thousandth.

use tidegate_limits::bucket::TokenCount;

/// Ten bits of mantissa and six of exponent, which is enough for every [`TokenCount`]. Counts
/// below 1024 millionths, and none at all, are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RoundedUp(u16);

const MANTISSA_BITS: u32 = 10;
const MANTISSAS: u64 = 1 << MANTISSA_BITS;

impl RoundedUp {
    pub(super) const ZERO: Self = Self(0);

    pub(super) fn new(count: TokenCount) -> Self {
        let micros = count.micros();
        let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(MANTISSA_BITS + 1);
        // From MANTISSAS to twice that if anything was shifted out. Twice that is the first
        // mantissa of the next exponent, which the sum below writes as just that.
        let mantissa = (micros >> shift) + u64::from(micros & ((1 << shift) - 1) != 0);
        let code = (u64::from(shift) << MANTISSA_BITS) + mantissa;
        Self(u16::try_from(code).expect("the largest count has a code below 2^16"))
    }

    pub(super) fn count(self) -> TokenCount {
        let code = u64::from(self.0);
        if code < MANTISSAS {
            return TokenCount::from_micros(code);
        }
        let shift = code / MANTISSAS - 1;
        let micros = u128::from(MANTISSAS + code % MANTISSAS) << shift;
        TokenCount::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_upward_by_less_than_a_thousandth_and_keeps_the_order() {
        let mut last = RoundedUp::ZERO;
        let check = |micros: u64, last: &mut RoundedUp| {
            let rounded = RoundedUp::new(TokenCount::from_micros(micros));
            let count = rounded.count().micros();
            assert!(count >= micros, "{micros} became {count}");
            assert!(count - micros <= micros / 1024, "{micros} became {count}");
            assert!(rounded >= *last, "{micros}");
            assert_eq!(RoundedUp::new(rounded.count()), rounded, "{micros}");
            *last = rounded;
        };
        for micros in 0..10_000 {
            check(micros, &mut last);
        }
        for bit in 14..64 {
            for offset in [-1_i64, 0, 1] {
                check((1_u64 << bit).wrapping_add_signed(offset), &mut last);
            }
        }
        check(u64::MAX, &mut last);
    }
}
