//! A call that waits.

use alloc::sync::Arc;

use super::account::Stay;
use super::bar::{Bar, LineId};
use crate::call::Call;
use crate::policy::SetId;
use crate::slab::Key;
use crate::time::Timestamp;

/// A call that waits, and where.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub(crate) call: Call,
    pub(crate) payload: T,
    pub(crate) set: SetId,
    /// The bucket that is charged, if it exists.
    pub(crate) bucket: Option<Key>,
    /// The quotas that it draws from, if they have rules.
    pub(crate) quotas: Option<Arc<[Key]>>,
    /// Its place among the calls of its line: what came first goes first.
    pub(crate) arrival: u64,
    pub(crate) place: Place,
    /// Counts joins of the queue, to find the calls that waited while a line was held.
    pub(crate) joined: u64,
    /// What had it set aside last.
    pub(crate) held_by: Option<Bar>,
    /// Times it was set aside.
    pub(crate) postponed: u32,
    /// What it has waited for.
    pub(crate) stay: Stay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Line(LineId),
    Aside(Timestamp),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_call_stays_small() {
        // Thousands may wait. What each limit held it for takes 32 bytes of this, and the quotas that
        // it draws from another 32.
        let bytes = size_of::<Waiting<()>>();
        assert!(bytes <= 256, "{bytes} bytes for each call that waits");
    }
}
