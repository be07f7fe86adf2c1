//! What happens in a log, instant by instant.
//!
//! Calls are in the order in which they asked, and the steps of a call in the order of their times.
//! So it is enough to hold one step of each call that has asked and is not over yet.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::iter::Peekable;
use std::ops::Range;

use super::line::Gate;
use super::trace::{Call, What};

/// Something that happens at an instant. At the same instant, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// A step of a call that the scheduler gets.
    Told { call: u32, step: u16 },
    /// A call is changed by another one.
    Changed { call: u32, step: u16 },
    /// A line of the gate.
    Given(u32),
    /// A step that the scheduler decides.
    Decided { call: u32, step: u16 },
}

/// The instants of a log, in order.
pub(super) struct Agenda<'t> {
    calls: &'t [Call],
    given: &'t [Gate],
    next_call: Peekable<Range<u32>>,
    next_given: Peekable<Range<u32>>,
    /// The next step of each call that has asked.
    steps: BinaryHeap<Reverse<(u64, u32, u16)>>,
}

impl<'t> Agenda<'t> {
    /// Of these calls, which are in the order in which they asked, and these lines of the gate, in
    /// the order of their instants.
    pub(super) fn new(calls: &'t [Call], which: Range<u32>, given: &'t [Gate], first: u32) -> Self {
        let lines = u32::try_from(given.len()).unwrap_or(u32::MAX);
        Self {
            calls,
            given,
            next_call: which.peekable(),
            next_given: (first..lines).peekable(),
            steps: BinaryHeap::new(),
        }
    }

    /// The next instant, and everything that happens at it; `None` at the end.
    pub(super) fn next(&mut self, items: &mut Vec<Item>) -> Option<u64> {
        items.clear();
        let step = self.steps.peek().map(|Reverse((at, ..))| *at);
        let (calls, lines) = (self.calls, self.given);
        let asks = self.next_call.peek().map(|&call| asked(calls, call));
        let given = self.next_given.peek().map(|&line| line_at(lines, line));
        let now = [step, asks, given].into_iter().flatten().min()?;
        while let Some(call) = self.next_call.next_if(|&call| asked(calls, call) <= now) {
            self.steps.push(Reverse((now, call, 0)));
        }
        while let Some(&Reverse((at, call, step))) = self.steps.peek()
            && at == now
        {
            self.steps.pop();
            let steps = &calls[call as usize].steps;
            if let Some(next) = steps.get(usize::from(step) + 1) {
                self.steps.push(Reverse((next.at.max(now), call, step + 1)));
            }
            items.push(match steps[usize::from(step)].what {
                what if what.is_decided() => Item::Decided { call, step },
                What::Class(_) | What::Deadline(_) | What::Bucket(_) => {
                    Item::Changed { call, step }
                }
                _ => Item::Told { call, step },
            });
        }
        while let Some(line) = self.next_given.next_if(|&line| line_at(lines, line) <= now) {
            items.push(Item::Given(line));
        }
        items.sort_unstable();
        Some(now)
    }
}

fn asked(calls: &[Call], call: u32) -> u64 {
    calls[call as usize].asked()
}

fn line_at(lines: &[Gate], line: u32) -> u64 {
    lines[line as usize].at_ns
}
