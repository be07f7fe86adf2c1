//! The service of a call, and the flows that are served.

use core::time::Duration;

use crate::bucket::{TokenCount, Tokens};
use crate::call::{Caller, Class, Weight};
use crate::queue::budget::FlowId;

/// The window of a limit that has none, for a call that meets no window.
pub(crate) const WINDOW: Duration = Duration::from_secs(1);

/// How far the service of a call moves the start of its caller, and that of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TurnAdvance {
    pub(super) caller: u64,
    pub(super) class: u64,
}

impl TurnAdvance {
    /// No service.
    pub(crate) const NONE: Self = Self {
        caller: 0,
        class: 0,
    };

    /// The service where it is no loss to other classes.
    #[must_use]
    pub(crate) const fn within_its_class(self) -> Self {
        Self { class: 0, ..self }
    }

    /// How much further it moves the starts than another one.
    #[must_use]
    pub(crate) const fn beyond(self, other: Self) -> Self {
        Self {
            caller: self.caller.saturating_sub(other.caller),
            class: self.class.saturating_sub(other.class),
        }
    }

    /// How far it moves the start of the caller.
    pub(crate) const fn of_caller(self) -> u64 {
        self.caller
    }

    /// The service of a call of a caller of this weight, in a class of that weight. At weight 1 a
    /// unit of a class is 2^20, so weights divide finely. The most expensive call has 10^12
    /// millionths, less than 2^40, so nothing overflows.
    pub(crate) fn new(tokens: Tokens, weight: Weight, of_class: u32) -> Self {
        let micros = TokenCount::of_turn(tokens).micros();
        let caller = match weight.get() {
            1 => micros,
            weight => micros.div_ceil(u64::from(weight)),
        };
        Self {
            caller,
            class: (micros << 20) / u64::from(of_class),
        }
    }
}

/// A flow, as an entry of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowEntry {
    pub(crate) class: Class,
    pub(crate) caller: Caller,
    /// Of its first call.
    pub(crate) arrival: u64,
    pub(crate) flow: FlowId,
}

/// The classes of an order to look at: a limit with a reserve answers the class with the reserve and all others
/// separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClassFilter {
    All,
    Only(Class),
    But(Class),
}

impl ClassFilter {
    pub(super) fn has(self, class: usize) -> bool {
        match self {
            Self::All => true,
            Self::Only(only) => only.0 as usize == class,
            Self::But(but) => but.0 as usize != class,
        }
    }
}

/// The settings that all orders of a scheduler share.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OrderSettings {
    /// How many classes there are.
    pub(crate) classes: usize,
    /// Deals the hands of callers that are too many.
    pub(crate) seed: u64,
    /// Calls served so far, anywhere.
    pub(crate) served: u64,
}
