//! Records in memory that a restart of the process keeps.

use std::collections::HashMap;
use std::time::Duration;

use tidegate_ledger::{PastRows, Row, RowLedger, level_key};
use tidegate_limits::quota::{QuotaRecord, RecordVersion};
use tidegate_mapping::MappedFile;

use crate::{RecordKey, StoreEntry};

/// Versions of records of the process before begin here, far from those of this one.
const BEFORE: u64 = 1 << 63;

/// The longest window that counts as used up if its record is not known, as `limits.ledger_lost` has it for other windows.
const SHORT_WINDOW_MAX: Duration = Duration::from_secs(10);

/// The key of the row that says until when keys without a row have short windows that count. No other key is 0.
const BEYOND: [u64; 2] = [0; 2];

/// The records that the next process finds, and those of the process before.
#[derive(Debug)]
pub struct KeptRecords {
    ledger: RowLedger<MappedFile>,
    zero: u64,
    beyond: u32,
    /// The end of the last short window of this process that has no row.
    beyond_until: Duration,
    /// The end of the last short window of the process before that has no row.
    unknown_until: Duration,
    /// When the first row is of a window that is over, if there was no place.
    room_from: Duration,
    /// The places of the rows, by the hashes of their keys.
    places: HashMap<[u64; 2], KeptPlace>,
}

#[derive(Clone, Copy, Debug)]
struct KeptPlace {
    place: u32,
    /// The row, if this process has not changed it yet.
    before: Option<Row>,
    /// The end of its window.
    until: Duration,
}

impl KeptRecords {
    /// Most keys: 156 KB. A key for which there is no place has no record after a restart.
    pub const KEYS_MAX: u32 = 1024;

    /// The rows of a ledger.
    pub const ROWS: u32 = Self::KEYS_MAX + 1;

    /// Takes over the rows of the process before, into a new ledger with the same zero.
    ///
    /// # Panics
    /// If the ledger has no place.
    #[must_use]
    pub fn new(mut ledger: RowLedger<MappedFile>, before: &PastRows) -> Self {
        let mut places = HashMap::new();
        let beyond = ledger.take_place().expect("a ledger with places");
        let mut unknown_until = Duration::ZERO;
        for row in &before.rows {
            if row.key == BEYOND {
                ledger.set(beyond, row);
                unknown_until = Duration::from_nanos(row.kept_until);
                continue;
            }
            let Some(place) = ledger.take_place() else {
                break;
            };
            ledger.set(place, row);
            let kept = KeptPlace {
                place,
                before: Some(*row),
                until: Duration::from_nanos(row.kept_until),
            };
            places.insert(row.key, kept);
        }
        Self {
            ledger,
            zero: before.zero,
            beyond,
            beyond_until: unknown_until,
            unknown_until,
            room_from: Duration::ZERO,
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

    /// Whether the process before may have had a record for this key that is not known.
    pub(super) fn is_unknown(&self, key: &RecordKey, now: Duration) -> bool {
        now < self.unknown_until && !self.places.contains_key(&level_key(key.encoded()))
    }

    /// A record was written. It is in the ledger when this returns, if there is a place for it.
    pub(super) fn put(&mut self, key: &RecordKey, text: &[u8], now: Duration) {
        let Ok(record) = QuotaRecord::parse(text) else {
            return self.remove(key);
        };
        let key = level_key(key.encoded());
        let known = self.places.get(&key).map(|kept| kept.place);
        let Some(place) = known.or_else(|| self.take_place(now)) else {
            return self.go_beyond(&record);
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
            // In the next window all is new.
            kept_until: nanos(record.end()),
        };
        self.ledger.set(place, &row);
        let kept = KeptPlace {
            place,
            before: None,
            until: record.end(),
        };
        self.places.insert(key, kept);
    }

    fn take_place(&mut self, now: Duration) -> Option<u32> {
        if let Some(place) = self.ledger.take_place() {
            return Some(place);
        }
        // Looking through all of them for each further key would take long.
        if now < self.room_from {
            return None;
        }
        self.make_room(now);
        let ends = self.places.values().map(|kept| kept.until);
        self.room_from = ends.min().unwrap_or_default();
        self.ledger.take_place()
    }

    /// There is no place for this record.
    fn go_beyond(&mut self, record: &QuotaRecord) {
        if record.length() <= SHORT_WINDOW_MAX && record.end() > self.beyond_until {
            self.beyond_until = record.end();
            let row = Row {
                key: BEYOND,
                values: [0; 5],
                kept_until: nanos(record.end()),
            };
            self.ledger.set(self.beyond, &row);
        }
    }

    pub(super) fn remove(&mut self, key: &RecordKey) {
        if let Some(kept) = self.places.remove(&level_key(key.encoded())) {
            self.ledger.free_place(kept.place);
        }
    }

    /// Gives the places of records back whose windows are over.
    pub(super) fn make_room(&mut self, now: Duration) {
        let ledger = &mut self.ledger;
        self.places.retain(|_, kept| {
            let stays = now < kept.until;
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
        let words = RowLedger::<MappedFile>::words(KeptRecords::ROWS);
        let memory = MappedFile::create(file.as_file(), words).expect("it is mapped");
        let ledger = RowLedger::create(memory, KeptRecords::ROWS, BOOT, before.zero);
        (file, KeptRecords::new(ledger, before))
    }

    /// The text of a record for the window with the number `window`, which is `seconds` long.
    fn text(window: u64, seconds: u64) -> Vec<u8> {
        let record = QuotaRecord::new(window, 60, 100, 10, Duration::from_secs(seconds));
        record.expect("a record").to_string().into_bytes()
    }

    fn key(number: u32) -> RecordKey {
        RecordKey::new(&format!("user-{number}")).expect("it is a key")
    }

    fn left(file: &NamedTempFile) -> PastRows {
        let bytes = fs::read(file.path()).expect("it is there");
        read_rows(&bytes, BOOT).expect("it is whole")
    }

    #[test]
    fn as_many_keys_as_there_are_places_survive_and_a_place_of_a_window_that_is_over_is_used_again()
    {
        let (file, mut first) = kept(&PastRows::default());
        let most = KeptRecords::KEYS_MAX;
        let now = Duration::from_secs(1_790);
        for number in 0..most + 10 {
            // The first five end at 1,791 s, all others at 1,800 s.
            let text = if number < 5 {
                text(1_790, 1)
            } else {
                text(29, 60)
            };
            first.put(&key(number), &text, now);
        }
        assert_eq!(left(&file).rows.len(), most as usize);
        let (_, second) = kept(&left(&file));
        for number in 5..most {
            let entry = second.before(&key(number)).expect("it was kept");
            assert_eq!(entry.text, text(29, 60));
        }
        assert_eq!(second.before(&key(most)), None);

        first.put(&key(most), &text(29, 60), Duration::from_secs(1_791));
        assert_eq!(left(&file).rows.len(), most as usize - 4);
        first.remove(&key(5));
        let (_, third) = kept(&left(&file));
        assert!(third.before(&key(most)).is_some());
        assert_eq!((third.before(&key(0)), third.before(&key(5))), (None, None));
    }

    /// A restart would else give a key that has no place its window once more.
    #[test]
    fn a_short_window_without_a_place_counts_as_used_up_after_a_restart_and_a_long_one_as_full() {
        let now = Duration::from_secs(1_790);
        let most = KeptRecords::KEYS_MAX;
        let beyond = |seconds: u64| {
            let (file, mut first) = kept(&PastRows::default());
            for number in 0..most {
                first.put(&key(number), &text(29, 60), now);
            }
            first.put(&key(most), &text(1_790 / seconds, seconds), now);
            assert!(
                !first.is_unknown(&key(most), now),
                "it is known to this one"
            );
            let (again, second) = kept(&left(&file));
            assert!(!second.is_unknown(&key(0), now), "it has a place");
            // Another crash soon after.
            let (_, third) = kept(&left(&again));
            let unknown = |seconds| {
                let at = Duration::from_secs(seconds);
                let is_unknown = second.is_unknown(&key(most), at);
                assert_eq!(third.is_unknown(&key(most), at), is_unknown);
                is_unknown
            };
            [unknown(1_790), unknown(1_799), unknown(1_800)]
        };
        assert_eq!(beyond(10), [true, true, false]);
        assert_eq!(beyond(11), [false; 3]);
    }

    #[test]
    fn a_record_that_this_process_has_changed_is_no_longer_the_one_before() {
        let (file, mut first) = kept(&PastRows::default());
        let record = |left| QuotaRecord::new(29, left, 100, 10, Duration::from_secs(60));
        let text = |left| record(left).expect("a record").to_string();
        first.put(&key(1), text(60).as_bytes(), Duration::ZERO);
        let (file, mut second) = kept(&left(&file));
        assert!(second.before(&key(1)).is_some());
        second.put(&key(1), text(50).as_bytes(), Duration::ZERO);
        assert_eq!(second.before(&key(1)), None);
        let (_, third) = kept(&left(&file));
        let entry = third.before(&key(1)).expect("it was kept");
        assert_eq!(entry.text, text(50).into_bytes());
    }
}
