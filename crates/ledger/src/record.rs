//! Parts of records that are both written and read.

use crate::seal::{RecordKind, seal};

/// The progress of a call at the backend. Windows count one of the last two as its departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallStage {
    /// Admitted: its first byte may have left since.
    Admitted = 0,
    /// Sent: its last byte has left.
    Sent = 1,
    /// Replied: the first byte of its reply has come.
    Replied = 2,
}

impl CallStage {
    pub(crate) const ALL: [Self; 3] = [Self::Admitted, Self::Sent, Self::Replied];
}

/// The upper bit of a ring's next entry: it has been around once.
pub(crate) const FULL: u32 = 1 << 31;

/// The second word of a departure: its cost, and half a seal of all.
pub(crate) fn sealed_cost(window: usize, entry: u32, at: u64, cost: u32) -> u64 {
    let place = (window as u64) << 32 | u64::from(entry);
    let seal = seal(RecordKind::Departure, place, &[at, u64::from(cost)]);
    seal & !u64::from(u32::MAX) | u64::from(cost)
}
