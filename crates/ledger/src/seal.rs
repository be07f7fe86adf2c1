//! The hash over a record, which finds damage.
//!
//! A seal guards against accidents, not against people: who may write the file may also count wrong. Its speed matters,
//! because each call seals about four records.

/// The kinds of sealed records. The kind is part of each seal, so that a record of one kind never counts as another.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(crate) enum RecordKind {
    Head = 1,
    Directory = 2,
    Live = 3,
    Ring = 4,
    Departure = 5,
    Level = 6,
    /// A place in the queue that is promised.
    Place = 17,
    Secret = 18,
    /// The second word of a job.
    Job = 20,
    /// A row of a ledger of rows.
    Row = 16,
    /// A call that was admitted; two more kinds follow for its later stages.
    Call = 7,
}

/// Odd constants with bits in no pattern: fractions of the square roots of 2, 3, 5 and 7.
const SEEDS: [u64; 4] = [
    0x6a09_e667_f3bc_c909,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
];

/// Folds a product of 128 bits into 64, which mixes each bit of both into all others.
const fn fold(one: u64, other: u64) -> u64 {
    let product = one as u128 * other as u128;
    product as u64 ^ (product >> 64) as u64
}

/// The seal of these words of a record of this kind at this place. Never 0, so that a range of zeros has no valid seal.
#[inline]
pub(crate) fn seal(kind: RecordKind, place: u64, words: &[u64]) -> u64 {
    sealed_as(kind as u64, place, words)
}

/// The seal of a call's words at a stage: the stage is part of the kind, so one store changes it.
#[inline]
pub(crate) fn seal_call(stage: u64, place: u64, words: &[u64]) -> u64 {
    sealed_as(RecordKind::Call as u64 + stage, place, words)
}

#[inline]
fn sealed_as(kind: u64, place: u64, words: &[u64]) -> u64 {
    let mut hash = fold(
        SEEDS[0] ^ kind,
        SEEDS[1] ^ place.rotate_left(32) ^ words.len() as u64,
    );
    for &word in words {
        hash = fold(hash ^ SEEDS[2], word ^ SEEDS[3]).wrapping_add(hash.rotate_left(23));
    }
    hash | 1
}

/// A number and the upper half of its seal in one word, so that one store changes both.
#[inline]
pub(crate) fn with_half_seal(kind: RecordKind, place: u64, number: u32) -> u64 {
    let seal = seal(kind, place, &[u64::from(number)]);
    seal & !u64::from(u32::MAX) | u64::from(number)
}

/// The number in a word of [`with_half_seal`]; `None` if the seal does not fit.
pub(crate) fn of_half_sealed(kind: RecordKind, place: u64, word: u64) -> Option<u32> {
    let number = (word & u64::from(u32::MAX)) as u32;
    (with_half_seal(kind, place, number) == word).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_the_kind_and_the_place_change_a_seal() {
        let words = [0, 7, u64::MAX, SEEDS[2], SEEDS[3]];
        let whole = seal(RecordKind::Call, 3, &words);
        assert_ne!(whole, seal(RecordKind::Level, 3, &words));
        assert_ne!(whole, seal(RecordKind::Call, 4, &words));
        assert_ne!(whole, seal(RecordKind::Call, 3, &words[..4]));
        for at in 0..words.len() {
            for bit in 0..64 {
                let mut other = words;
                other[at] ^= 1 << bit;
                assert_ne!(
                    whole,
                    seal(RecordKind::Call, 3, &other),
                    "word {at}, bit {bit}"
                );
            }
        }
        assert_ne!(seal(RecordKind::Call, 0, &[0, 0, 0]), 0);
        assert_eq!(of_half_sealed(RecordKind::Ring, 2, 0), None);
        let word = with_half_seal(RecordKind::Ring, 2, 9);
        assert_eq!(of_half_sealed(RecordKind::Ring, 2, word), Some(9));
        assert_eq!(of_half_sealed(RecordKind::Ring, 3, word), None);
    }
}
