//! Records in memory that a restart of the process keeps.

use std::collections::HashMap;
use std::time::Duration;

use tidegate_ledger::{PastRows, Row, RowLedger, level_key};
use tidegate_limits::quota::{QuotaRecord, RecordVersion};
use tidegate_mapping::MappedFile;

use crate::{RecordKey, StoreEntry};

/// Versions of records of the process before begin here, far from those of this one.
const BEFORE: u64 = 1 << 63;

/// The records that the next process finds, and those of the process before.
#[derive(Debug)]
pub struct KeptRecords {
    ledger: RowLedger<MappedFile>,
    zero: u64,
    /// The places of the rows, by the hashes of their keys.
    places: HashMap<[u64; 2], KeptPlace>,
}

#[derive(Clone, Copy, Debug)]
struct KeptPlace {
    place: u32,
    /// The row, if this process has not changed it yet.
    before: Option<Row>,
    kept_until: Duration,
}

impl KeptRecords {
    /// Most rows: 156 KB. The record of a key for which there is no place is forgotten at a restart.
    pub const ROWS_MAX: u32 = 1024;

    /// Takes over the rows of the process before, into a new ledger with the same zero.
    #[must_use]
    pub fn new(mut ledger: RowLedger<MappedFile>, before: &PastRows) -> Self {
        let mut places = HashMap::new();
        for row in &before.rows {
            let Some(place) = ledger.take_place() else {
                break;
            };
            ledger.set(place, row);
            let kept = KeptPlace {
                place,
                before: Some(*row),
                kept_until: Duration::from_nanos(row.kept_until),
            };
            places.insert(row.key, kept);
        }
        Self {
            ledger,
            zero: before.zero,
            places,
        }
    }

    /// The zero of the records' time.   ns
    pub(super) const fn zero(&self) -> u64 {
        self.zero
    }

    /// The record that the process before left for a key.
    pub(super) fn before(&self, key: &RecordKey) -> Option<StoreEntry> {
        let kept = self.places.get(&level_key(key.encoded()))?;
        let [window, left, total, reserved, millis] = kept.before?.values;
        let length = Duration::from_millis(millis);
        let record = QuotaRecord::new(window, left, total, reserved, length).ok()?;
        Some(StoreEntry {
            version: RecordVersion(BEFORE | u64::from(kept.place)),
            text: record.to_string().into_bytes(),
        })
    }

    /// A record was written. It is in the ledger when this returns, if there is a place for it.
    pub(super) fn put(&mut self, key: &RecordKey, text: &[u8], kept_until: Duration) {
        let Ok(record) = QuotaRecord::parse(text) else {
            return self.remove(key);
        };
        let key = level_key(key.encoded());
        let known = self.places.get(&key).map(|kept| kept.place);
        let Some(place) = known.or_else(|| self.ledger.take_place()) else {
            return;
        };
        let row = Row {
            key,
            values: [
                record.window(),
                record.left(),
                record.total(),
                record.reserved(),
                nanos(record.length()) / 1_000_000,
            ],
            kept_until: nanos(kept_until),
        };
        self.ledger.set(place, &row);
        let kept = KeptPlace {
            place,
            before: None,
            kept_until,
        };
        self.places.insert(key, kept);
    }

    pub(super) fn remove(&mut self, key: &RecordKey) {
        if let Some(kept) = self.places.remove(&level_key(key.encoded())) {
            self.ledger.free_place(kept.place);
        }
    }

    /// Gives the places of records back that need not be kept.
    pub(super) fn make_room(&mut self, now: Duration) {
        let ledger = &mut self.ledger;
        self.places.retain(|_, kept| {
            let stays = now < kept.kept_until;
            if !stays {
                ledger.free_place(kept.place);
            }
            stays
        });
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests serve no calls")]
mod tests {
    use std::fs;

    use tempfile::NamedTempFile;
    use tidegate_ledger::{Boot, read_rows};

    use super::*;

    const BOOT: Boot = Boot([1, 2]);

    fn kept(before: &PastRows) -> (NamedTempFile, KeptRecords) {
        let file = NamedTempFile::new().expect("a file");
        let rows = KeptRecords::ROWS_MAX;
        let words = RowLedger::<MappedFile>::words(rows);
        let memory = MappedFile::create(file.as_file(), words).expect("it is mapped");
        let ledger = RowLedger::create(memory, rows, BOOT, before.zero);
        (file, KeptRecords::new(ledger, before))
    }

    fn key(number: u32) -> RecordKey {
        RecordKey::new(&format!("user-{number}")).expect("it is a key")
    }

    fn left(file: &NamedTempFile) -> PastRows {
        let bytes = fs::read(file.path()).expect("it is there");
        read_rows(&bytes, BOOT).expect("it is whole")
    }

    #[test]
    fn as_many_records_as_there_are_places_survive_and_a_place_that_is_free_is_used_again() {
        let (file, mut first) = kept(&PastRows::default());
        let record = QuotaRecord::new(29, 60, 100, 10, Duration::from_secs(60));
        let text = record.expect("a record").to_string();
        let most = KeptRecords::ROWS_MAX;
        for number in 0..most + 10 {
            let kept_until = Duration::from_secs(if number < 5 { 10 } else { 1_000 });
            first.put(&key(number), text.as_bytes(), kept_until);
        }
        assert_eq!(left(&file).rows.len(), most as usize);
        let (_, second) = kept(&left(&file));
        for number in 0..most {
            let entry = second.before(&key(number)).expect("it was kept");
            assert_eq!(entry.text, text.as_bytes());
        }
        assert_eq!(second.before(&key(most)), None);

        first.make_room(Duration::from_secs(10));
        assert_eq!(left(&file).rows.len(), most as usize - 5);
        first.put(&key(most), text.as_bytes(), Duration::from_secs(1_000));
        first.remove(&key(5));
        let (_, third) = kept(&left(&file));
        assert!(third.before(&key(most)).is_some());
        assert_eq!((third.before(&key(0)), third.before(&key(5))), (None, None));
    }

    #[test]
    fn a_record_that_this_process_has_changed_is_no_longer_the_one_before() {
        let (file, mut first) = kept(&PastRows::default());
        let record = |left| QuotaRecord::new(29, left, 100, 10, Duration::from_secs(60));
        let text = |left| record(left).expect("a record").to_string();
        first.put(&key(1), text(60).as_bytes(), Duration::MAX);
        let (file, mut second) = kept(&left(&file));
        assert!(second.before(&key(1)).is_some());
        second.put(&key(1), text(50).as_bytes(), Duration::MAX);
        assert_eq!(second.before(&key(1)), None);
        let (_, third) = kept(&left(&file));
        let entry = third.before(&key(1)).expect("it was kept");
        assert_eq!(entry.text, text(50).into_bytes());
    }
}
