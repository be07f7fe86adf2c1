//! The word that was probably meant.

use strsim::osa_distance;

/// The candidate with the fewest edits to what was given, if they are few enough to be a
/// slip. Of several, the first.
pub(crate) fn nearest<'a>(
    given: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // A third of the word may be wrong; no name of ours is longer than 64 characters.
    let length = given.chars().count();
    if length > 64 {
        return None;
    }
    let edits_max = (length / 3).max(1);
    let given = given.to_lowercase();
    let candidates = candidates.into_iter();
    let near = candidates.map(|candidate| (osa_distance(&given, candidate), candidate));
    let near = near.filter(|(edits, _)| *edits <= edits_max);
    near.min_by_key(|(edits, _)| *edits).map(|(_, near)| near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_differs_from_another_word() {
        let words = ["workers", "capacity", "when_full"];
        let check = |given, expected| assert_eq!(nearest(given, words), expected, "{given}");
        check("worker", Some("workers"));
        check("wrokers", Some("workers"));
        check("CAPACITY", Some("capacity"));
        check("whenfull", Some("when_full"));
        check("threads", None);
        check("", None);
        check(&"w".repeat(100_000), None);
    }
}
