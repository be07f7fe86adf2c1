//! A ledger of rows that change as a whole, such as the records of quotas that only one process keeps.
//!
//! | region | words |
//! |---|---|
//! | head | magic and version, boot (2), zero of the rows' clock, rows at most, seal |
//! | places | for each: which of its two copies counts, then both, each with a seal |
//!
//! A change writes the copy that does not count, and then one word. So a process that dies within it leaves the row as
//! it was before, and no other part has seen the change.

use crate::Memory;
use crate::layout::Boot;
use crate::read::Void;
use crate::seal::{RecordKind, seal};

const HEAD: usize = 6;
const MAGIC: u64 = u64::from_be_bytes(*b"TGrows\0\x01");
/// The words of a copy, without its seal.
const ROW: usize = 8;
const PLACE: usize = 1 + 2 * (ROW + 1);

/// A row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// A hash of the name that tells it from others.
    pub key: [u64; 2],
    /// The content.
    pub values: [u64; 5],
    /// From when on it need not be kept, by the rows' clock.   nanoseconds
    pub kept_until: u64,
}

/// The rows that a process left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PastRows {
    /// The moment at which the rows' clock has its zero.   nanoseconds
    pub zero: u64,
    /// The rows, in no order.
    pub rows: Vec<Row>,
}

/// A ledger of rows.
#[derive(Debug)]
pub struct RowLedger<M> {
    memory: M,
    /// By place, which copy counts: 0 is none.
    counts: Vec<u8>,
    free: Vec<u32>,
}

impl Row {
    fn words(&self) -> [u64; ROW] {
        let ([high, low], [a, b, c, d, e]) = (self.key, self.values);
        [high, low, a, b, c, d, e, self.kept_until]
    }

    fn of(words: &[u64; ROW]) -> Self {
        let [high, low, a, b, c, d, e, kept_until] = *words;
        Self {
            key: [high, low],
            values: [a, b, c, d, e],
            kept_until,
        }
    }
}

/// The first word of a copy.
fn copy(place: u32, which: u8) -> usize {
    HEAD + place as usize * PLACE + 1 + (usize::from(which) - 1) * (ROW + 1)
}

fn seal_of(place: u32, which: u8, words: &[u64]) -> u64 {
    seal(
        RecordKind::Row,
        u64::from(place) << 8 | u64::from(which),
        words,
    )
}

impl<M: Memory> RowLedger<M> {
    /// Words for this number of rows.
    #[must_use]
    pub fn words(rows: u32) -> usize {
        HEAD + rows as usize * PLACE
    }

    /// Begins a ledger without a row in this memory, whatever was there before.
    ///
    /// # Panics
    /// If the memory has fewer words than [`RowLedger::words`].
    pub fn create(memory: M, rows: u32, boot: Boot, zero: u64) -> Self {
        let words = Self::words(rows);
        assert!(words <= memory.words(), "the memory is large enough");
        for at in 0..words {
            memory.store(at, 0);
        }
        let head = [MAGIC, boot.0[0], boot.0[1], zero, u64::from(rows)];
        for (at, &word) in head.iter().enumerate().skip(1) {
            memory.store(at, word);
        }
        memory.store(HEAD - 1, seal(RecordKind::Head, 1, &head));
        memory.store(0, MAGIC);
        Self {
            memory,
            counts: vec![0; rows as usize],
            free: (0..rows).rev().collect(),
        }
    }

    /// A place for a row; `None` if all are used.
    pub fn take_place(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Writes the row of a place that was taken.
    pub fn set(&mut self, place: u32, row: &Row) {
        let which = match self.counts[place as usize] {
            1 => 2,
            _ => 1,
        };
        let (at, words) = (copy(place, which), row.words());
        for (word, at) in words.iter().zip(at..) {
            self.memory.store(at, *word);
        }
        self.memory.store(at + ROW, seal_of(place, which, &words));
        self.memory.store(copy(place, 1) - 1, u64::from(which));
        self.counts[place as usize] = which;
    }

    /// Removes the row of a place, and gives the place back.
    pub fn free_place(&mut self, place: u32) {
        self.memory.store(copy(place, 1) - 1, 0);
        self.counts[place as usize] = 0;
        self.free.push(place);
    }
}

/// Reads the bytes of a ledger of rows that no process writes any more.
///
/// # Errors
/// If the ledger says nothing that can be trusted.
pub fn read_rows(bytes: &[u8], boot: Boot) -> Result<PastRows, Void> {
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|chunk| u64::from_ne_bytes(chunk.try_into().expect("eight bytes")))
        .collect();
    let head = words.first_chunk::<HEAD>().ok_or(Void::NotALedger)?;
    let &[magic, boot_high, boot_low, zero, rows, head_seal] = head;
    if magic != MAGIC {
        return Err(match magic >> 16 == MAGIC >> 16 {
            true => Void::OtherVersion,
            false => Void::NotALedger,
        });
    }
    let places = words[HEAD..].chunks_exact(PLACE);
    if head_seal != seal(RecordKind::Head, 1, &head[..HEAD - 1]) || rows > places.len() as u64 {
        return Err(Void::Damaged);
    }
    if Boot([boot_high, boot_low]) != boot {
        return Err(Void::OtherBoot);
    }
    let mut found = Vec::new();
    for (place, words) in (0..rows as u32).zip(places) {
        let which = match words[0] {
            0 => continue,
            which @ (1 | 2) => which as u8,
            _ => return Err(Void::Damaged),
        };
        let at = copy(0, which) - HEAD;
        let row: &[u64; ROW] = words[at..].first_chunk().ok_or(Void::Damaged)?;
        if words[at + ROW] != seal_of(place, which, row) {
            return Err(Void::Damaged);
        }
        found.push(Row::of(row));
    }
    Ok(PastRows { zero, rows: found })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    const BOOT: Boot = Boot([1, 2]);

    /// Words that a process leaves when it dies after this number of stores.
    #[derive(Clone)]
    struct Words(Rc<RefCell<(Vec<u64>, usize)>>);

    impl Memory for Words {
        fn load(&self, at: usize) -> u64 {
            self.0.borrow().0[at]
        }

        fn store(&self, at: usize, word: u64) {
            let mut words = self.0.borrow_mut();
            if words.1 > 0 {
                words.1 -= 1;
                words.0[at] = word;
            }
        }

        fn words(&self) -> usize {
            self.0.borrow().0.len()
        }
    }

    impl Words {
        fn bytes(&self) -> Vec<u8> {
            let words = self.0.borrow();
            words.0.iter().flat_map(|word| word.to_ne_bytes()).collect()
        }
    }

    fn row(key: u64, value: u64) -> Row {
        Row {
            key: [key, !key],
            values: [value, 1, 2, 3, 4],
            kept_until: 9,
        }
    }

    fn ledger(rows: u32) -> (Words, RowLedger<Words>) {
        let words = vec![7; RowLedger::<Words>::words(rows)];
        let words = Words(Rc::new(RefCell::new((words, usize::MAX))));
        (words.clone(), RowLedger::create(words, rows, BOOT, 5))
    }

    #[test]
    fn rows_are_read_as_they_were_written_last() {
        let (words, mut ledger) = ledger(2);
        let places = [ledger.take_place(), ledger.take_place()].map(|it| it.expect("there is one"));
        assert_eq!(ledger.take_place(), None, "there are two");
        for value in 0..3 {
            ledger.set(places[0], &row(1, value));
        }
        ledger.set(places[1], &row(2, 0));
        let read = |words: &Words| read_rows(&words.bytes(), BOOT).map(|it| it.rows);
        assert_eq!(read(&words), Ok(vec![row(1, 2), row(2, 0)]));
        ledger.free_place(places[0]);
        assert_eq!(read(&words), Ok(vec![row(2, 0)]));
        assert_eq!(ledger.take_place(), Some(places[0]));
        assert_eq!(read_rows(&words.bytes(), BOOT).map(|it| it.zero), Ok(5));
        assert_eq!(
            read_rows(&words.bytes(), Boot([1, 3])),
            Err(Void::OtherBoot)
        );
        assert_eq!(read_rows(b"x", BOOT), Err(Void::NotALedger));
    }

    #[test]
    fn a_process_that_dies_within_a_change_leaves_the_row_before_or_the_row_after() {
        for stores in 0..=ROW + 2 {
            let (words, mut ledger) = ledger(1);
            let place = ledger.take_place().expect("there is one");
            ledger.set(place, &row(1, 0));
            words.0.borrow_mut().1 = stores;
            ledger.set(place, &row(1, 1));
            let after = u64::from(stores == ROW + 2);
            let read = read_rows(&words.bytes(), BOOT).map(|it| it.rows);
            assert_eq!(read, Ok(vec![row(1, after)]), "after {stores} stores");
        }
    }

    #[test]
    fn a_change_of_any_bit_that_counts_is_found() {
        let (words, mut ledger) = ledger(1);
        let place = ledger.take_place().expect("there is one");
        ledger.set(place, &row(1, 0));
        let bytes = words.bytes();
        let counts = (HEAD + 1 + ROW + 1) * 8;
        for bit in 0..counts * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let read = read_rows(&other, BOOT);
            // The word that says which copy counts may say that none does, or the other, which is none.
            let is_none = read.as_ref().is_ok_and(|it| it.rows.is_empty());
            assert!(read.is_err() || is_none, "bit {bit}: {read:?}");
        }
        for length in 0..bytes.len() {
            read_rows(&bytes[..length], BOOT).expect_err("a part is none");
        }
    }
}
