//! A stand-in for a store of quotas.

use foldhash::HashMap;
use tidegate_limits::call::QuotaKey;
use tidegate_limits::quota::{
    QuestionId, QuotaRecord, RecordVersion, RecordWrite, StoreReply, StoredRecord,
};
use tidegate_limits::scheduler::QuotaAsk;

/// Records by key, changed only by comparing versions. A question is answered as it would be at the moment at which
/// it reaches a store: how long that takes, and what is lost on the way, is up to the user.
#[derive(Clone, Debug, Default)]
pub struct RecordStore {
    records: HashMap<QuotaKey, (RecordVersion, QuotaRecord)>,
}

impl RecordStore {
    /// The answer to a question. `None` to a watch, and to a question for settings: a stand-in has none.
    pub fn answer(&mut self, of: &QuotaKey, ask: QuotaAsk) -> Option<(QuestionId, StoreReply)> {
        match ask {
            QuotaAsk::Time(question) => Some((question, StoreReply::Time)),
            QuotaAsk::Read(question) => Some((question, self.read(of))),
            QuotaAsk::Write(question, write) => Some((question, self.write(of, write))),
            QuotaAsk::Watch(_) | QuotaAsk::Settings => None,
        }
    }

    /// The record of a key.
    #[must_use]
    pub fn get(&self, of: &QuotaKey) -> Option<(RecordVersion, QuotaRecord)> {
        self.records.get(of).copied()
    }

    /// The reply to a read.
    #[must_use]
    pub fn read(&self, of: &QuotaKey) -> StoreReply {
        StoreReply::Stands(match self.get(of) {
            None => StoredRecord::Absent,
            Some((version, record)) => StoredRecord::Record { version, record },
        })
    }

    /// Replaces a record if its version is the one that the write expects, and returns the reply.
    pub fn write(&mut self, of: &QuotaKey, write: RecordWrite) -> StoreReply {
        let version = self.get(of).map(|(version, _)| version);
        if version != write.replaces {
            return self.read(of);
        }
        StoreReply::Written(self.put(of, write.record))
    }

    /// Sets a record whatever its version is, as another program would.
    pub fn put(&mut self, of: &QuotaKey, record: QuotaRecord) -> RecordVersion {
        let version = self.get(of).map_or(0, |(version, _)| version.0);
        let version = RecordVersion(version + 1);
        self.records.insert(of.clone(), (version, record));
        version
    }
}
