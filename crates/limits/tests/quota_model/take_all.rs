//! A call that several keys cover together, or none does.

use tidegate_limits::Verdict;
use tidegate_limits::quota::{Coverage, Ledger, Payment, StoreTime};

/// Takes the tokens of one call from several ledgers, such as its user's and the one of all: from
/// each what it costs there, or from none anything.
///
/// # Errors
///
/// Which ledger does not cover it, counted from 0, and why: of several the one by which it waits
/// longest. Then nothing was taken from any.
pub(crate) fn take_all(
    calls: &mut [(&mut Ledger, u64)],
    time: &StoreTime,
) -> Result<Vec<Payment>, (usize, Coverage)> {
    let mut worst: Option<(usize, Coverage)> = None;
    for (at, (ledger, cost)) in calls.iter_mut().enumerate() {
        let answer = ledger.peek(*cost, time);
        if answer == Coverage::Covered {
            continue;
        }
        assert_eq!(ledger.take(*cost, time), Err(answer));
        if worst.is_none_or(|(_, other)| Verdict::from(answer) > Verdict::from(other)) {
            worst = Some((at, answer));
        }
    }
    match worst {
        Some(worst) => Err(worst),
        None => Ok(calls
            .iter_mut()
            .map(|(ledger, cost)| ledger.take(*cost, time).expect("it was just covered"))
            .collect()),
    }
}
