//! The steps of calls, packed: most of what a log has is steps, and all of them are in memory.
//!
//! A step is one word of 8 bytes, and two if it has a value: 8 bits for what it was, 56 for its
//! instant, which is enough for two years. A call that is answered at once has four or five.

use tidegate_record::step::{StepType, WORDS};
use tidegate_record::{GateStep, StepKind, StepValue};

use super::names::Name;

const AT_BITS: u32 = 56;
const AT_MASK: u64 = (1 << AT_BITS) - 1;
/// Of the 8 bits for what it was: the next word is its value.
const VALUED: u8 = 1 << 7;

/// A step of a call.
pub(super) type LoggedStep = GateStep<Name>;
/// The event of a step.
pub(super) type StepEvent = StepKind<Name>;

/// Whether the scheduler decided it, and did not get it.
pub(super) const fn is_decided(what: StepEvent) -> bool {
    matches!(
        what,
        StepEvent::Postponed(_) | StepEvent::Admitted | StepEvent::Refused | StepEvent::Expired
    )
}

/// The number of the word, and the value.
fn packed(what: StepEvent) -> (u8, Option<u64>) {
    let (word, value) = what.into_parts();
    let value = match value {
        StepValue::Absent | StepValue::Null => None,
        StepValue::Whole(value) => Some(value),
        StepValue::Tokens(tokens) => Some(tokens.to_bits()),
        StepValue::Name(name) => Some(u64::from(name.number())),
    };
    (word, value)
}

/// The event with this word and value; `None` if it is none.
fn unpacked(word: u8, value: Option<u64>) -> Option<StepEvent> {
    let (_, value_type, _) = WORDS.get(usize::from(word))?;
    let value = match (value, value_type) {
        (None, _) => StepValue::Null,
        (Some(value), StepType::Class) => {
            StepValue::Name(Name::numbered(u32::try_from(value).ok()?)?)
        }
        (Some(bits), StepType::TokensOrNull) => StepValue::Tokens(f64::from_bits(bits)),
        (Some(value), _) => StepValue::Whole(value),
    };
    StepEvent::of_parts(word, value)
}

/// The steps of all calls of a process, one call after the other.
#[derive(Debug, Default)]
pub(super) struct Packed(Vec<u64>);

/// Where the steps of a call are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    /// The first word.
    pub(super) first: u32,
    /// How many words.
    pub(super) words: u16,
}

impl Packed {
    /// Adds the steps of a call; `None` if it has none, has them in another order than that of
    /// time, or has more than there is room for.
    pub(super) fn push(&mut self, steps: &[LoggedStep]) -> Option<Steps> {
        let begin = self.0.len();
        let first = u32::try_from(begin).ok()?;
        let is_in_order = steps.is_sorted_by_key(|step| step.at);
        let fits = steps.last().is_some_and(|step| step.at <= AT_MASK);
        if !is_in_order || !fits {
            return None;
        }
        for step in steps {
            let (word, value) = packed(step.what);
            let valued = if value.is_some() { VALUED } else { 0 };
            self.0.push(u64::from(word | valued) << AT_BITS | step.at);
            self.0.extend(value);
        }
        match u16::try_from(self.0.len() - begin) {
            Ok(words) => Some(Steps { first, words }),
            Err(_) => {
                self.0.truncate(begin);
                None
            }
        }
    }

    /// The steps of a call, in order.
    pub(super) fn of(&self, steps: Steps) -> impl Iterator<Item = LoggedStep> + '_ {
        let mut next = Some(steps.first);
        std::iter::from_fn(move || {
            let (step, after) = self.at(steps, next?);
            next = after;
            Some(step)
        })
    }

    /// The step at this word, and the word of the next step of the call.
    pub(super) fn at(&self, steps: Steps, word: u32) -> (LoggedStep, Option<u32>) {
        let packed = self.0[word as usize];
        let [kind, ..] = packed.to_be_bytes();
        let is_valued = kind & VALUED != 0;
        let value = is_valued.then(|| self.0[word as usize + 1]);
        let step = LoggedStep {
            at: packed & AT_MASK,
            what: unpacked(kind & !VALUED, value).expect("only steps are packed"),
        };
        let after = word + 1 + u32::from(is_valued);
        (step, (after < steps.end()).then_some(after))
    }
}

impl Steps {
    const fn end(self) -> u32 {
        self.first + self.words as u32
    }
}

#[cfg(test)]
mod tests {
    use tidegate_limits::Tokens;
    use tidegate_limits::scheduler::Outcome;

    use super::*;

    #[test]
    fn steps_are_read_back_as_they_were_packed() {
        let tokens = Tokens::new(2.5).ok();
        let name = Name::numbered(9).expect("not 0");
        let all = [
            StepEvent::Asked(name),
            StepEvent::Postponed(77),
            StepEvent::Deadline(None),
            StepEvent::Deadline(Some(5)),
            StepEvent::Bucket(Some(3)),
            StepEvent::Admitted,
            StepEvent::Sent,
            StepEvent::Ended(Outcome::Overloaded, tokens),
        ];
        let steps = |first: u64| -> Vec<LoggedStep> {
            let numbered = all.into_iter().zip(first..);
            numbered.map(|(what, at)| LoggedStep { at, what }).collect()
        };
        let mut packed = Packed::default();
        let one = packed.push(&steps(1)).expect("they are in order");
        let other = packed.push(&steps(100)).expect("they are in order");
        assert_eq!(packed.of(one).collect::<Vec<_>>(), steps(1));
        assert_eq!(packed.of(other).collect::<Vec<_>>(), steps(100));
    }

    #[test]
    fn steps_out_of_order_are_refused() {
        let step = |at| LoggedStep {
            at,
            what: StepEvent::Sent,
        };
        let mut packed = Packed::default();
        assert_eq!(packed.push(&[step(2), step(1)]), None);
        assert_eq!(packed.push(&[]), None);
        assert_eq!(packed.push(&[step(1 << AT_BITS)]), None);
        assert_eq!(packed.push(&vec![step(1); 1 << 16]), None);
        assert!(packed.push(&[step(1)]).is_some());
    }
}
