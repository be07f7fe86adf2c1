//! The store of quotas in a free run.
//!
//! The questions of a free run are others than those of the log, so the log's answers do not fit them.
//! But they show what the other sidecars drew: what was missing from a record that this sidecar did
//! not draw itself. In a free run the store holds this sidecar's own draws, and of the others those
//! of the log, at the same instants. It takes as long to answer as it did, and fails when it did.

use foldhash::HashMap;
use tidegate_limits::call::QuotaKey;
use tidegate_limits::quota::{QuestionId, QuotaRecord, RecordWrite, StoreReply, StoredRecord};
use tidegate_limits::scheduler::{QuotaAsk, QuotaQuestion};
use tidegate_replay::RecordStore;

use super::given::Answered;

/// An answer takes at least this long, so that a question without an answer is not asked for ever
/// at one instant.   ns
const LATENCY_MIN: u64 = 100_000;

/// The store of quotas, as far as a log shows it.
#[derive(Debug, Default)]
pub(super) struct StoreHistory {
    keys: HashMap<QuotaKey, KeyHistory>,
    /// Since when the store failed with this, or did not.
    failures: Vec<(u64, Option<StoreReply>)>,
    waited: u64,
    answers: u64,
    /// Questions without an answer so far: when they were asked, and what they write.
    open: HashMap<(QuotaKey, QuestionId), (u64, Option<RecordWrite>)>,
}

/// The history of one key in a log.
#[derive(Debug, Default)]
struct KeyHistory {
    last: Option<QuotaRecord>,
    others: Vec<ForeignDraws>,
}

/// Tokens that other sidecars have drawn of a window until an instant. Less than before, if they returned
/// some.
#[derive(Clone, Copy, Debug)]
struct ForeignDraws {
    at: u64,
    window: u64,
    drew: i64,
}

impl StoreHistory {
    /// The fed scheduler has asked this.
    pub(super) fn asked(&mut self, at: u64, question: QuotaQuestion) {
        let QuotaQuestion { of, ask, .. } = question;
        let (question, write) = match ask {
            QuotaAsk::Time(question) | QuotaAsk::Read(question) => (question, None),
            QuotaAsk::Write(question, write) => (question, Some(write)),
            QuotaAsk::Watch(_) | QuotaAsk::Settings => return,
        };
        self.open.insert((of, question), (at, write));
    }

    /// The log has this answer.
    pub(super) fn answered(&mut self, at: u64, of: QuotaKey, answer: &Answered) {
        let asked = self.open.remove(&(of.clone(), answer.question));
        if let Some((since, _)) = asked {
            self.waited += at.saturating_sub(since);
            self.answers += 1;
        }
        let failure = match answer.reply {
            StoreReply::Unknown | StoreReply::Unavailable => Some(answer.reply),
            StoreReply::Late | StoreReply::NotYet => Some(answer.reply),
            _ => None,
        };
        if self
            .failures
            .last()
            .map_or(failure.is_some(), |(_, last)| *last != failure)
        {
            self.failures.push((at, failure));
        }
        let key = self.keys.entry(of).or_default();
        match (answer.reply, asked.and_then(|(_, write)| write)) {
            (StoreReply::Stands(StoredRecord::Record { record, .. }), _) => key.stands(at, record),
            (StoreReply::Written(_), Some(write)) => key.last = Some(write.record),
            _ => {}
        }
    }

    /// How long an answer took.   ns
    pub(super) fn latency(&self) -> u64 {
        let mean = self.waited.checked_div(self.answers).unwrap_or(0);
        mean.max(LATENCY_MIN)
    }

    fn failure(&self, at: u64) -> Option<StoreReply> {
        let before = self.failures.partition_point(|(since, _)| *since <= at);
        self.failures.get(before.checked_sub(1)?)?.1
    }

    /// Tokens that other sidecars had drawn of a window at an instant.
    fn others(&self, of: &QuotaKey, window: u64, at: u64) -> i64 {
        let Some(key) = self.keys.get(of) else {
            return 0;
        };
        let before = key.others.partition_point(|others| others.at <= at);
        let mut before = key.others[..before].iter().rev();
        before
            .find(|it| it.window == window)
            .map_or(0, |it| it.drew)
    }

    /// When a record is next changed by others.   ns
    pub(super) fn next_change(&self, of: &QuotaKey, at: u64) -> Option<u64> {
        let others = &self.keys.get(of)?.others;
        let next = others.partition_point(|others| others.at <= at);
        others.get(next).map(|others| others.at)
    }
}

impl KeyHistory {
    /// The store contains this record.
    fn stands(&mut self, at: u64, record: QuotaRecord) {
        let tokens = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
        let window = record.window();
        let full = record.total() - record.reserved();
        let before = self.last.filter(|last| last.window() == window);
        let missing = tokens(before.map_or(full, |last| last.left())) - tokens(record.left());
        let of_window = self.others.last().filter(|others| others.window == window);
        let drew = of_window.map_or(0, |others| others.drew) + missing;
        if missing != 0 {
            self.others.push(ForeignDraws { at, window, drew });
        }
        self.last = Some(record);
    }
}

/// The store in a free run.
pub(super) struct ReplayedStore<'t> {
    seen: &'t StoreHistory,
    records: RecordStore,
    /// Tokens of each record's window that others drew and that are taken into account.
    others: HashMap<QuotaKey, i64>,
}

impl<'t> ReplayedStore<'t> {
    pub(super) fn new(seen: &'t StoreHistory) -> Self {
        Self {
            seen,
            records: RecordStore::default(),
            others: HashMap::default(),
        }
    }

    /// The answer to a question, at the instant at which it comes; `None` to one that has none.
    pub(super) fn answer(
        &mut self,
        at: u64,
        of: &QuotaKey,
        ask: QuotaAsk,
    ) -> Option<(QuestionId, StoreReply)> {
        let (QuotaAsk::Read(question) | QuotaAsk::Write(question, _)) = ask else {
            return self.records.answer(of, ask);
        };
        if let Some(failure) = self.seen.failure(at) {
            return Some((question, failure));
        }
        self.draw_of_others(at, of);
        let before = self.window(of);
        let answer = self.records.answer(of, ask);
        if self.window(of) != before {
            self.others.remove(of);
        }
        answer
    }

    /// The window of a record.
    fn window(&self, of: &QuotaKey) -> Option<u64> {
        self.records.get(of).map(|(_, record)| record.window())
    }

    /// Takes from the record what others drew until then.
    fn draw_of_others(&mut self, at: u64, of: &QuotaKey) {
        let Some((_, record)) = self.records.get(of) else {
            return;
        };
        let drew = self.seen.others(of, record.window(), at);
        let before = self.others.insert(of.clone(), drew).unwrap_or(0);
        let more = drew - before;
        if more == 0 {
            return;
        }
        let full = record.total() - record.reserved();
        let left = record
            .left()
            .saturating_add_signed(more.saturating_neg())
            .min(full);
        let (window, total, reserved) = (record.window(), record.total(), record.reserved());
        if let Ok(record) = QuotaRecord::new(window, left, total, reserved, record.length()) {
            self.records.put(of, record);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_limits::quota::{RecordVersion, StoreTime};

    use super::*;

    fn record(window: u64, left: u64) -> QuotaRecord {
        QuotaRecord::new(window, left, 100, 0, Duration::from_secs(60)).expect("it is sound")
    }

    fn key() -> QuotaKey {
        QuotaKey {
            quota: "rate_limit:all".into(),
            key: "".into(),
        }
    }

    #[test]
    fn others_draw_in_a_free_run_what_they_drew_in_the_log() {
        let mut seen = StoreHistory::default();
        let mut names = super::super::names::NameTable::default();
        let of = super::super::given::LoggedKey {
            quota: names.of("rate_limit:all"),
            key: names.of(""),
        };
        let mut stands = |at, window, left| {
            let record = record(window, left);
            let version = RecordVersion(at);
            let answer = Answered {
                key: of,
                question: QuestionId::numbered(at),
                reply: StoreReply::Stands(StoredRecord::Record { version, record }),
                entropy: 0,
                time: StoreTime::default(),
            };
            seen.answered(at, key(), &answer);
        };
        stands(10, 1, 70);
        stands(20, 1, 55);
        stands(30, 1, 60);
        stands(40, 2, 100);
        let drew = |window, at| seen.others(&key(), window, at);
        assert_eq!(
            [drew(1, 9), drew(1, 10), drew(1, 25), drew(1, 99)],
            [0, 30, 45, 40]
        );
        assert_eq!(drew(2, 99), 0);
        // A window of which this sidecar draws 20, while the others draw theirs.
        let mut store = ReplayedStore::new(&seen);
        let question = QuestionId::numbered;
        let write =
            |replaces, record| QuotaAsk::Write(question(1), RecordWrite { replaces, record });
        let mut left = |at, ask| {
            let (_, reply) = store.answer(at, &key(), ask).expect("an answer");
            match reply {
                StoreReply::Stands(StoredRecord::Record { record, .. }) => Some(record.left()),
                _ => None,
            }
        };
        assert_eq!(left(5, write(None, record(1, 80))), None, "it is written");
        assert_eq!(left(12, QuotaAsk::Read(question(2))), Some(50));
        // The record has changed since the version that is to be replaced.
        let late = write(Some(RecordVersion(2)), record(1, 30));
        assert_eq!(left(22, late), Some(35));
        assert_eq!(left(35, QuotaAsk::Read(question(3))), Some(40));
    }
}
