//! A store of quotas: its answers come late, and sometimes not at all. Sometimes it can't be reached.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{Question, Record, Standing, StoreReply, StoreTime, Version};
use tidegate_limits::scheduler::{QuotaAsk, QuotaQuestion, QuotaRef};

use super::MS;
use crate::random::Random;

/// The store's time when the local clock is at zero: a multiple of every length.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);
/// Questions in a row that are not answered, or in vain.
const SILENT_MAX: u32 = 2;

/// An answer on its way.
pub(crate) struct Answer {
    pub(crate) to: QuotaRef,
    pub(crate) question: Question,
    pub(crate) outcome: StoreReply,
}

pub(crate) struct Store {
    record: Option<(Version, Record)>,
    written: u64,
    /// The number of questions of which one is not answered.
    pub(crate) silent: Option<u64>,
    in_a_row: u32,
    /// By moment, then by number.
    answers: BTreeMap<(u64, u64), Answer>,
    asked: u64,
}

impl Store {
    pub(crate) fn new(silent: Option<u64>) -> Self {
        Self {
            record: None,
            written: 0,
            silent,
            in_a_row: 0,
            answers: BTreeMap::new(),
            asked: 0,
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

    /// A question reaches the store at once. Its answer takes up to 20 ms.
    pub(crate) fn ask(&mut self, now: u64, question: &QuotaQuestion, random: &mut Random) {
        let answer = match question.ask {
            QuotaAsk::Time(asked) => (asked, StoreReply::Time),
            QuotaAsk::Read(asked) => (asked, StoreReply::Stands(self.standing())),
            QuotaAsk::Write(asked, write) => {
                if self.record.map(|(version, _)| version) == write.replaces {
                    self.written += 1;
                    let version = Version(self.written);
                    self.record = Some((version, write.record));
                    (asked, StoreReply::Written(version))
                } else {
                    (asked, StoreReply::Stands(self.standing()))
                }
            }
            QuotaAsk::Watch(_) | QuotaAsk::Settings => return,
        };
        let is_silent = self.silent.is_some_and(|every| random.one_in(every));
        let fails = is_silent && self.in_a_row < SILENT_MAX;
        self.in_a_row = if fails { self.in_a_row + 1 } else { 0 };
        let answer = match fails {
            true if random.one_in(2) => return,
            // A read or a time that is not had changes nothing there; of a write it is not said then.
            true if !matches!(question.ask, QuotaAsk::Write(..)) => {
                (answer.0, StoreReply::Unavailable)
            }
            true => (answer.0, StoreReply::Unknown),
            false => answer,
        };
        self.asked += 1;
        let arrives = now + 1 + random.below(20 * MS);
        let (question, outcome, to) = (answer.0, answer.1, question.at);
        let answer = Answer {
            to,
            question,
            outcome,
        };
        self.answers.insert((arrives, self.asked), answer);
    }

    fn standing(&self) -> Standing {
        match self.record {
            None => Standing::Absent,
            Some((version, record)) => Standing::Record { version, record },
        }
    }

    /// When the next answer comes.
    pub(crate) fn next(&self) -> Option<u64> {
        self.answers.keys().next().map(|&(moment, _)| moment)
    }

    pub(crate) fn pop(&mut self) -> Option<Answer> {
        self.answers.pop_first().map(|(_, answer)| answer)
    }
}
