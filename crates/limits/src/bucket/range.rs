//! Numbers that are checked when they are made.

use core::fmt;

/// A number is outside its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutOfRange {
    /// The quantity that was out of range: `tokens`, `burst`, `fill`, `rate`, `burst ratio`, `largest cost`, `pool
    /// seconds` or `capacity`.
    pub what: &'static str,
    /// The number.
    pub given: f64,
    /// The smallest valid number.
    pub min: f64,
    /// The largest valid number.
    pub max: f64,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            given,
            min,
            max,
        } = self;
        write!(
            f,
            "{what} must be a number from {min:?} to {max:?}, not {given:?}"
        )
    }
}

impl core::error::Error for OutOfRange {}

/// `given` if it is within the range. NaN never is.
pub(crate) fn in_range(
    what: &'static str,
    given: f64,
    min: f64,
    max: f64,
) -> Result<f64, OutOfRange> {
    if given >= min && given <= max {
        // Minus zero becomes zero.
        Ok(given + 0.0)
    } else {
        Err(OutOfRange {
            what,
            given,
            min,
            max,
        })
    }
}

/// Defines a type for a number within a range.
macro_rules! ranged {
    ($(#[$doc:meta])* $name:ident, $what:literal, $min:literal to $max:literal, $unit:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
        pub struct $name(f64);

        impl $name {
            /// The smallest value.
            pub const MIN: Self = Self($min);
            /// The largest value.
            pub const MAX: Self = Self($max);

            #[doc = concat!("A value in ", $unit, ".")]
            ///
            /// # Errors
            ///
            #[doc = concat!("If it is not a number from ", $min, " to ", $max, ".")]
            pub fn new(value: f64) -> Result<Self, $crate::bucket::OutOfRange> {
                $crate::bucket::in_range($what, value, $min, $max).map(Self)
            }

            #[doc = concat!("The value in ", $unit, ".")]
            #[must_use]
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        // NaN is never a value, so equality is total.
        impl Eq for $name {}
    };
}
pub(crate) use ranged;
