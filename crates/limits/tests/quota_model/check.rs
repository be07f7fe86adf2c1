//! The invariants of a quota, checked on what happened.
//!
//! Whatever algorithm runs, it leaves a [`Log`]; [`check`] says which invariants it broke. The
//! checker knows nothing of ledgers.

use std::collections::BTreeMap;

/// Promises that nodes and the store keep together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Invariant {
    /// In a window no more is admitted than was granted and not given back, and that is no more
    /// than the total.
    I1,
    /// The rest in the store is what was not granted, in each version.
    I2,
    /// A window is never older than the one before it, and is opened once.
    I3,
    /// At no time has a node spent more of a window than was granted to it and not given back.
    I4,
    /// Tokens that were drawn from a window are spent in it.
    I5,
    /// Tokens that are asked for and there are admitted, except those that strand, die with a node, are granted to
    /// an unknown node, or can't be asked for as no answer comes.
    I6,
    /// A call that is covered by what a node holds does not wait.
    I7,
    /// Who is refused has changed no balance.
    I8,
    /// No more windows are opened in a time than have room in it.
    I9,
    /// A node has one question about a key under way.
    I10,
    /// A node that reaches the store again draws again.
    I11,
    /// Restarts make nothing.
    I12,
}

/// Time in nanoseconds: real, or by the store's clock.
pub(crate) type Nanos = u64;

/// An event, in order.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// A call was let through.
    Admit {
        node: usize,
        key: usize,
        /// The window whose tokens were spent.
        window: u64,
        /// Of these, drawn from the store and tagged with the window.
        drawn: u64,
        /// Of the node's own share.
        safe: u64,
        /// On account.
        owed: u64,
        /// When it went, by the store's clock.
        at: Nanos,
        /// How long the node stood still between its decision and this.
        pause: Nanos,
    },
    /// A call was refused, and what the node held before and after.
    Refuse {
        before: u64,
        after: u64,
    },
    /// A call that was covered was not let through at once.
    Stalled {
        node: usize,
        cost: u64,
    },
    /// The store's confirmation of a grant reached the node.
    Granted {
        node: usize,
        key: usize,
        window: u64,
        amount: u64,
    },
    /// Left the node's purse to be given back.
    Returned {
        node: usize,
        key: usize,
        window: u64,
        amount: u64,
    },
    /// Is back in it, since it was surely not written.
    Kept {
        node: usize,
        key: usize,
        window: u64,
        amount: u64,
    },
    /// A write was applied. What its writer meant to take or give back is reported separately, not by
    /// what stood there.
    Committed {
        key: usize,
        window: u64,
        left: u64,
        /// The tokens that the window was opened with.
        pool: u64,
        total: u64,
        granted: u64,
        back: u64,
        /// When, in real time.
        at: Nanos,
        opens: bool,
        /// When the window ends, in real time.
        ends: Nanos,
    },
    Asked {
        node: usize,
        key: usize,
    },
    Answered {
        node: usize,
        key: usize,
    },
    /// A node began to run again, by the store's clock.
    Restarted {
        node: usize,
        at: Nanos,
    },
    /// Went with a node that died, was granted and never confirmed, or was left in the store when every
    /// node waited for an answer that never came.
    Gone {
        key: usize,
        window: u64,
        amount: u64,
    },
    /// The demand of a window in which every node asked for more all the time.
    Demanded {
        key: usize,
        window: u64,
        amount: u64,
    },
    /// From here on, in real time, a node that has reached the store again is busy and undisturbed.
    Healed {
        node: usize,
        at: Nanos,
    },
    /// The node has got tokens, or knows for certain that there are none.
    Supplied {
        node: usize,
        at: Nanos,
    },
    /// The run ended.
    Ended {
        at: Nanos,
    },
}

/// The log of a run, and the settings that it was run with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) entries: Vec<Entry>,
    /// A window's length, for each key.
    pub(crate) lengths: Vec<Nanos>,
    /// The tokens that may be admitted in a window, for each key.
    pub(crate) totals: Vec<u64>,
    /// How much may pass on account in a window of a key, by all nodes together.
    pub(crate) on_account: Vec<u64>,
    /// The tokens that may strand in a window of a key, at all nodes together.
    pub(crate) stranded: Vec<u64>,
    /// By how much the store's clock was set forward or back, in sum.
    pub(crate) steps: Nanos,
    pub(crate) step_count: u64,
    /// By when a node that reaches the store again has drawn.
    pub(crate) supplied_within: Nanos,
}

/// An invariant that does not hold, and how.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) invariant: Invariant,
    pub(crate) how: String,
}

#[derive(Default)]
struct Window {
    drawn: u64,
    safe: u64,
    owed: u64,
    granted: u64,
    returned: u64,
    committed: u64,
    back: u64,
    total: u64,
    opened: u64,
    demanded: Option<u64>,
    gone: u64,
    restarted: bool,
}

/// Whatever is broken, in the order in which it was found.
pub(crate) fn check(log: &Log) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut broken = |invariant: Invariant, how: String| found.push(Violation { invariant, how });
    let mut windows: BTreeMap<(usize, u64), Window> = BTreeMap::new();
    let mut purses: BTreeMap<(usize, usize, u64), i128> = BTreeMap::new();
    let mut newest: BTreeMap<usize, u64> = BTreeMap::new();
    let mut opened_at: BTreeMap<usize, Vec<Nanos>> = BTreeMap::new();
    let mut asking: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    let mut healed: BTreeMap<usize, Nanos> = BTreeMap::new();

    for entry in &log.entries {
        match *entry {
            Entry::Admit {
                node,
                key,
                window,
                drawn,
                safe,
                owed,
                at,
                pause,
            } => {
                let length = log.lengths[key];
                // A share has no tag: it counts where it was decided.
                let own = windows.entry((key, (at - pause) / length)).or_default();
                own.safe += safe;
                let own = windows.entry((key, window)).or_default();
                own.drawn += drawn;
                own.owed += owed;
                if drawn > 0 {
                    let purse = purses.entry((node, key, window)).or_default();
                    *purse -= i128::from(drawn);
                    if *purse < 0 {
                        broken(
                            Invariant::I4,
                            format!(
                                "node {node} spent {} of {key}/{window} that it has not",
                                -*purse
                            ),
                        );
                    }
                    let (start, end) = (window * length, (window + 1) * length);
                    if at + log.steps < start || at >= end + pause + log.steps {
                        broken(
                            Invariant::I5,
                            format!("node {node} spent of {key}/{start}..{end} at {at}"),
                        );
                    }
                }
            }
            Entry::Refuse { before, after } => {
                if before != after {
                    broken(Invariant::I8, format!("a refusal left {after} of {before}"));
                }
            }
            Entry::Stalled { node, cost } => {
                broken(Invariant::I7, format!("node {node} held up {cost}"));
            }
            Entry::Granted {
                node,
                key,
                window,
                amount,
            } => {
                *purses.entry((node, key, window)).or_default() += i128::from(amount);
                windows.entry((key, window)).or_default().granted += amount;
            }
            Entry::Returned {
                node,
                key,
                window,
                amount,
            } => {
                let purse = purses.entry((node, key, window)).or_default();
                *purse -= i128::from(amount);
                if *purse < 0 {
                    broken(
                        Invariant::I4,
                        format!("node {node} returned what it has not"),
                    );
                }
                windows.entry((key, window)).or_default().returned += amount;
            }
            Entry::Kept {
                node,
                key,
                window,
                amount,
            } => {
                *purses.entry((node, key, window)).or_default() += i128::from(amount);
                windows.entry((key, window)).or_default().returned -= amount;
            }
            Entry::Committed {
                key,
                window,
                left,
                pool,
                total,
                granted,
                back,
                at,
                opens,
                ends,
            } => {
                let last = newest.entry(key).or_insert(window);
                if window < *last {
                    broken(Invariant::I3, format!("{key} went from {last} to {window}"));
                }
                *last = window;
                let own = windows.entry((key, window)).or_default();
                own.committed += granted;
                own.back += back;
                own.total = total;
                if opens {
                    own.opened += 1;
                    // A write may reach the store when its window is over. Nothing of that window is spent
                    // then, so the window counts as opened at its end.
                    opened_at.entry(key).or_default().push(at.min(ends));
                    if own.opened > 1 {
                        broken(
                            Invariant::I3,
                            format!("{key}/{window} was opened {} times", own.opened),
                        );
                    }
                }
                let there = i128::from(pool) - i128::from(own.committed) + i128::from(own.back);
                if i128::from(left) != there {
                    broken(
                        Invariant::I2,
                        format!("{key}/{window} has {left} left, but {there} were not granted"),
                    );
                }
            }
            Entry::Asked { node, key } => {
                let count = asking.entry((node, key)).or_default();
                *count += 1;
                if *count > 1 {
                    broken(
                        Invariant::I10,
                        format!("node {node} asks twice about {key}"),
                    );
                }
            }
            Entry::Answered { node, key } => {
                *asking.entry((node, key)).or_default() -= 1;
            }
            Entry::Restarted { node, at } => {
                asking.retain(|(asks, _), _| *asks != node);
                // What it held is gone, and nothing of it may be spent.
                purses.retain(|(holds, _, _), _| *holds != node);
                healed.remove(&node);
                for (key, length) in log.lengths.iter().enumerate() {
                    let own = windows.entry((key, at / length)).or_default();
                    own.restarted = true;
                }
            }
            Entry::Gone {
                key,
                window,
                amount,
            } => windows.entry((key, window)).or_default().gone += amount,
            Entry::Demanded {
                key,
                window,
                amount,
            } => windows.entry((key, window)).or_default().demanded = Some(amount),
            Entry::Healed { node, at } => {
                healed.insert(node, at);
            }
            Entry::Supplied { node, at } => {
                if let Some(since) = healed.remove(&node)
                    && at - since > log.supplied_within
                {
                    broken(
                        Invariant::I11,
                        format!("node {node} drew {} ns after it could", at - since),
                    );
                }
            }
            Entry::Ended { at } => {
                for (node, since) in &healed {
                    if at - since > log.supplied_within {
                        broken(Invariant::I11, format!("node {node} never drew again"));
                    }
                }
            }
        }
    }

    for ((key, window), own) in &windows {
        let name = format!("{key}/{window}");
        let admitted = own.drawn + own.safe + own.owed;
        let held = i128::from(own.granted) - i128::from(own.returned);
        // A store that has committed nothing has no total: then only shares of their own were spent.
        let total = if own.total > 0 { own.total } else { admitted };
        let account = own.owed.min(log.on_account[*key]);
        let mut exceeded = Vec::new();
        if i128::from(own.drawn) > held {
            exceeded.push(format!("{name}: {} of {held} granted", own.drawn));
        }
        if held + i128::from(own.safe) > i128::from(total) {
            exceeded.push(format!(
                "{name}: {held} and {} granted of {total}",
                own.safe
            ));
        }
        if admitted > total + account {
            exceeded.push(format!("{name}: {admitted} admitted of {total}"));
        }
        for how in exceeded {
            if own.restarted {
                broken(Invariant::I12, how.clone());
            }
            broken(Invariant::I1, how);
        }
        if let Some(demanded) = own.demanded {
            let due = demanded.min(log.totals[*key]);
            let lost = own.gone + log.stranded[*key];
            if admitted + lost < due {
                broken(
                    Invariant::I6,
                    format!("{name}: {admitted} of {due} admitted, {} gone", own.gone),
                );
            }
        }
    }
    for (key, times) in &opened_at {
        let length = log.lengths[*key];
        for (at, from) in times.iter().enumerate() {
            for (further, until) in times[at..].iter().enumerate() {
                // One may be opened at its end and the next at its beginning: two, in no time.
                let room = until.saturating_sub(*from) / length + 2 + log.step_count;
                if (further as u64) + 1 > room {
                    broken(
                        Invariant::I9,
                        format!(
                            "{key} opened {} windows in {} ns",
                            further + 1,
                            until.saturating_sub(*from)
                        ),
                    );
                }
            }
        }
    }
    found
}
