//! What waits at one limit, bucket or quota.

use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::call::Class;
use crate::policy::LimitId;
use crate::queue::fair::{Order, Part};
use crate::queue::{Bar, LineId};
use crate::time::Timestamp;

/// Lines that are looked at together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Spot {
    /// At a limit, bucket or quota.
    At(Bar),
    /// At a limit, those of the class for which it keeps something.
    Kept(LimitId),
}

impl Spot {
    pub(crate) const fn bar(self) -> Bar {
        match self {
            Self::At(bar) => bar,
            Self::Kept(limit) => Bar::Limit(limit),
        }
    }
}

/// What waits at a limit, bucket or quota.
#[derive(Debug, Default)]
pub(super) struct At {
    pub(super) order: Order,
    /// By arrival.
    pub(super) claims: BTreeMap<(u64, LineId), Claim>,
    /// What they are for, together.
    pub(super) claimed: u64,
    /// For how long room was kept, over all claims that are over.
    pub(super) idle: Duration,
    /// The class for which it keeps something.
    pub(super) kept_for: Option<Class>,
    pub(super) all: Look,
    /// The class for which it keeps something.
    pub(super) kept: Look,
}

/// A line is first among those at a limit, or has room kept there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    /// How much of the limit it is for.
    pub(super) draw: u64,
    pub(super) since: Timestamp,
    /// `None` if the line is here, at the front; or else when the claim lapses.
    pub(super) until: Option<Timestamp>,
}

/// The line that was asked last, and the result.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    pub(super) asked: Option<LineId>,
    /// The moment in `openings`.
    pub(super) opens: Option<Timestamp>,
    /// On the `changed` list.
    pub(super) changed: bool,
}

impl At {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty() && self.claims.is_empty()
    }

    #[inline]
    pub(super) fn look(&mut self, spot: Spot) -> &mut Look {
        match spot {
            Spot::At(_) => &mut self.all,
            Spot::Kept(_) => &mut self.kept,
        }
    }

    /// The lines of the order that wait at this spot.
    #[inline]
    pub(super) fn part(&self, spot: Spot) -> Part {
        match (self.kept_for, spot) {
            (None, _) => Part::All,
            (Some(class), Spot::Kept(_)) => Part::Only(class),
            (Some(class), Spot::At(_)) => Part::But(class),
        }
    }
}
