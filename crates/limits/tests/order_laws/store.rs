//! A store of quotas: its answers come late, and sometimes not at all. Sometimes it can't be reached.

use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{QuestionId, StoreReply, StoreTime};
use tidegate_limits::scheduler::{QuotaAsk, QuotaQuestion, QuotaRef};
use tidegate_replay::RecordStore;

use super::MS;
use crate::random::Random;

/// The store's time when the local clock is at zero: a multiple of every length.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);
/// Questions in a row that are not answered, or in vain.
const SILENT_MAX: u32 = 2;

/// An answer on its way.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) to: QuotaRef,
    pub(crate) question: QuestionId,
    pub(crate) outcome: StoreReply,
}

pub(crate) struct Store {
    records: RecordStore,
    /// The number of questions of which one is not answered.
    pub(crate) silent: Option<u64>,
    in_a_row: u32,
}

impl Store {
    pub(crate) fn new(silent: Option<u64>) -> Self {
        Self {
            records: RecordStore::default(),
            silent,
            in_a_row: 0,
        }
    }

    /// The store's time, known to within a few milliseconds.
    pub(crate) fn time(now: u64, random: &mut Random) -> StoreTime {
        let now_there = EPOCH + Duration::from_nanos(now);
        let (before, after) = (random.below(2 * MS), random.below(2 * MS));
        StoreTime::between(
            Timestamp::from_nanos(now),
            now_there - Duration::from_nanos(before),
            now_there + Duration::from_nanos(after),
        )
    }

    /// A question reaches the store at once. Its answer takes up to 20 ms: how long, and the answer, if one comes.
    pub(crate) fn ask(
        &mut self,
        question: &QuotaQuestion,
        random: &mut Random,
    ) -> Option<(Duration, Answer)> {
        let (asked, reply) = self.records.answer(&question.of, question.ask)?;
        let is_silent = self.silent.is_some_and(|every| random.one_in(every));
        let fails = is_silent && self.in_a_row < SILENT_MAX;
        self.in_a_row = if fails { self.in_a_row + 1 } else { 0 };
        let outcome = match fails {
            true if random.one_in(2) => return None,
            // A read or a time that is not had changes nothing there; of a write it is not said then.
            true if !matches!(question.ask, QuotaAsk::Write(..)) => StoreReply::Unavailable,
            true => StoreReply::Unknown,
            false => reply,
        };
        let answer = Answer {
            to: question.at,
            question: asked,
            outcome,
        };
        Some((Duration::from_nanos(1 + random.below(20 * MS)), answer))
    }
}
