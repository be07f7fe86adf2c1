//! Events of a log, instant by instant.
//!
//! Calls are in the order in which they asked, and the steps of a call in the order of their times.
//! So it is enough to hold one step of each call that has asked and is not over yet.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::iter::Peekable;
use std::ops::Range;

use super::steps::{What, is_decided};
use super::trace::Process;

/// Something that happens at an instant. At the same instant, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// A step of a call that the scheduler gets.
    Told { call: u32, step: u32 },
    /// A call is changed by another one.
    Changed { call: u32, step: u32 },
    /// A line of the gate.
    Given(u32),
    /// A step that the scheduler decides.
    Decided { call: u32, step: u32 },
}

/// The instants of a log, in order. A step is named by its word ([`super::steps`]).
pub(super) struct Agenda<'t> {
    process: &'t Process,
    next_call: Peekable<Range<u32>>,
    next_given: Peekable<Range<u32>>,
    /// The next step of each call that has asked.
    steps: BinaryHeap<Reverse<(u64, u32, u32)>>,
}

impl<'t> Agenda<'t> {
    /// Of these calls of a process, which are in the order in which they asked, and its lines of
    /// the gate from the first one on, in the order of their instants.
    pub(super) fn new(process: &'t Process, which: Range<u32>, first: u32) -> Self {
        let lines = u32::try_from(process.given.len()).unwrap_or(u32::MAX);
        Self {
            process,
            next_call: which.peekable(),
            next_given: (first..lines).peekable(),
            steps: BinaryHeap::new(),
        }
    }

    /// The next instant, and everything that happens at it; `None` at the end.
    pub(super) fn next(&mut self, items: &mut Vec<Item>) -> Option<u64> {
        items.clear();
        let process = self.process;
        let asked = |call: u32| process.asked(&process.calls[call as usize]);
        let line_at = |line: u32| process.given[line as usize].at;
        let step = self.steps.peek().map(|Reverse((at, ..))| *at);
        let asks = self.next_call.peek().map(|&call| asked(call));
        let given = self.next_given.peek().map(|&line| line_at(line));
        let now = [step, asks, given].into_iter().flatten().min()?;
        while let Some(call) = self.next_call.next_if(|&call| asked(call) <= now) {
            let first = process.calls[call as usize].steps().first;
            self.steps.push(Reverse((now, call, first)));
        }
        while let Some(&Reverse((at, call, word))) = self.steps.peek()
            && at == now
        {
            self.steps.pop();
            let (step, after) = process.step(call, word);
            if let Some(after) = after {
                let next = process.step(call, after).0.at;
                self.steps.push(Reverse((next.max(now), call, after)));
            }
            items.push(match step.what {
                what if is_decided(what) => Item::Decided { call, step: word },
                What::Class(_) | What::Deadline(_) | What::Bucket(_) => {
                    Item::Changed { call, step: word }
                }
                _ => Item::Told { call, step: word },
            });
        }
        while let Some(line) = self.next_given.next_if(|&line| line_at(line) <= now) {
            items.push(Item::Given(line));
        }
        items.sort_unstable();
        Some(now)
    }
}
