//! The word that was probably meant.

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
    candidates
        .into_iter()
        .map(|candidate| (edits(&given.to_lowercase(), candidate), candidate))
        .filter(|(edits, _)| *edits <= edits_max)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Letters to insert, drop, change or swap with their neighbour, to get from one word to
/// the other (optimal string alignment: no letter is edited twice).
fn edits(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows = vec![vec![0; to.len() + 1]; from.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=from.len() {
        for j in 1..=to.len() {
            let change = usize::from(from[i - 1] != to[j - 1]);
            let mut best = (rows[i - 1][j] + 1)
                .min(rows[i][j - 1] + 1)
                .min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[from.len()][to.len()]
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
