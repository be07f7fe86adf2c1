//! Parts of records that are both written and read.

use crate::seal::{RecordKind, seal, with_half_seal};

/// The key of a bucket with this name, in a level.
#[must_use]
pub fn level_key(name: &str) -> [u64; 2] {
    let words: Vec<u64> = name
        .as_bytes()
        .chunks(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        })
        .chain([name.len() as u64])
        .collect();
    [0, 1].map(|half| seal(RecordKind::Level, u64::MAX - half, &words))
}

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

/// A job that a call has begun: work of the backend behind its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// The number by which the job is known.
    pub key: u64,
    /// How long it may hold the slot of its call, from the admission of the call on.   milliseconds
    pub most_ms: u32,
}

/// The second word of the job of a call that has begun none.
pub(crate) fn no_job(place: u32) -> u64 {
    with_half_seal(RecordKind::Job, u64::from(place), 0)
}

/// The place in the seal of a job.
pub(crate) fn job_place(place: u32, key: u64) -> u64 {
    key ^ u64::from(place).rotate_left(32)
}

/// The upper bit of a ring's next entry: it has been around once.
pub(crate) const FULL: u32 = 1 << 31;

/// The second word of a departure: its cost, and half a seal of all.
pub(crate) fn sealed_cost(window: usize, entry: u32, at: u64, cost: u32) -> u64 {
    let place = (window as u64) << 32 | u64::from(entry);
    let seal = seal(RecordKind::Departure, place, &[at, u64::from(cost)]);
    seal & !u64::from(u32::MAX) | u64::from(cost)
}
