//! The steps of calls, packed: most of what a log has is steps, and all of them are in memory.
//!
//! A step is one word of 8 bytes, and two if it has a value: 8 bits for what it was, 56 for its
//! instant, which is enough for two years. A call that is answered at once has four or five.

use tidegate_limits::Tokens;
use tidegate_limits::scheduler::Outcome;

use super::names::Name;
use tidegate::call::steps::Word;

const AT_BITS: u32 = 56;
const AT_MASK: u64 = (1 << AT_BITS) - 1;
/// Of the 8 bits for what it was: the next word is its value.
const VALUED: u64 = 1 << 7;

/// A step of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    /// Since the start of the process.   ns
    pub(super) at: u64,
    pub(super) what: What,
}

/// What a step was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
    Asked,
    Postponed(u64),
    Class(Name),
    Deadline(Option<u64>),
    Bucket(Option<u64>),
    Admitted,
    Sent,
    Replied,
    Requeued,
    GivenBack,
    Ended(Outcome, Option<Tokens>),
    Refused,
    Expired,
    Left,
    Evicted,
}

impl What {
    /// Whether the scheduler decided it, and did not get it.
    pub(super) const fn is_decided(self) -> bool {
        matches!(
            self,
            Self::Postponed(_) | Self::Admitted | Self::Refused | Self::Expired
        )
    }

    /// The word of it, and its value.
    fn parts(self) -> (Word, Option<u64>) {
        let ended = |word, tokens: Option<Tokens>| (word, tokens.map(|it| it.get().to_bits()));
        match self {
            Self::Asked => (Word::Asked, None),
            Self::Postponed(aside) => (Word::Postponed, Some(aside)),
            Self::Class(name) => (Word::Class, Some(u64::from(name.number()))),
            Self::Deadline(deadline) => (Word::Deadline, deadline),
            Self::Bucket(bucket) => (Word::Bucket, bucket),
            Self::Admitted => (Word::Admitted, None),
            Self::Sent => (Word::Sent, None),
            Self::Replied => (Word::Replied, None),
            Self::Requeued => (Word::Requeued, None),
            Self::GivenBack => (Word::GivenBack, None),
            Self::Ended(Outcome::Served, tokens) => ended(Word::Served, tokens),
            Self::Ended(Outcome::Overloaded, tokens) => ended(Word::Overloaded, tokens),
            Self::Ended(Outcome::Failed, tokens) => ended(Word::Failed, tokens),
            Self::Refused => (Word::Refused, None),
            Self::Expired => (Word::Expired, None),
            Self::Left => (Word::Left, None),
            Self::Evicted => (Word::Evicted, None),
        }
    }

    /// The step of this word; `None` if it lacks its value.
    fn of(word: Word, value: Option<u64>) -> Option<Self> {
        let tokens = || value.and_then(|bits| Tokens::new(f64::from_bits(bits)).ok());
        Some(match word {
            Word::Asked => Self::Asked,
            Word::Postponed => Self::Postponed(value?),
            Word::Class => Self::Class(Name::numbered(u32::try_from(value?).ok()?)?),
            Word::Deadline => Self::Deadline(value),
            Word::Bucket => Self::Bucket(value),
            Word::Admitted => Self::Admitted,
            Word::Sent => Self::Sent,
            Word::Replied => Self::Replied,
            Word::Requeued => Self::Requeued,
            Word::GivenBack => Self::GivenBack,
            Word::Served => Self::Ended(Outcome::Served, tokens()),
            Word::Overloaded => Self::Ended(Outcome::Overloaded, tokens()),
            Word::Failed => Self::Ended(Outcome::Failed, tokens()),
            Word::Refused => Self::Refused,
            Word::Expired => Self::Expired,
            Word::Left => Self::Left,
            Word::Evicted => Self::Evicted,
        })
    }
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
    pub(super) fn push(&mut self, steps: &[Step]) -> Option<Steps> {
        let begin = self.0.len();
        let first = u32::try_from(begin).ok()?;
        let is_in_order = steps.is_sorted_by_key(|step| step.at);
        let fits = steps.last().is_some_and(|step| step.at <= AT_MASK);
        if !is_in_order || !fits {
            return None;
        }
        for step in steps {
            let (word, value) = step.what.parts();
            let valued = if value.is_some() { VALUED } else { 0 };
            self.0.push((word as u64 | valued) << AT_BITS | step.at);
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
    pub(super) fn of(&self, steps: Steps) -> impl Iterator<Item = Step> + '_ {
        let mut next = Some(steps.first);
        std::iter::from_fn(move || {
            let (step, after) = self.at(steps, next?);
            next = after;
            Some(step)
        })
    }

    /// The step at this word, and the word of the next step of the call.
    pub(super) fn at(&self, steps: Steps, word: u32) -> (Step, Option<u32>) {
        let packed = self.0[word as usize];
        let is_valued = packed >> AT_BITS & VALUED != 0;
        let value = is_valued.then(|| self.0[word as usize + 1]);
        let index = (packed >> AT_BITS & !VALUED) as usize;
        let what = Word::ALL.get(index).and_then(|&word| What::of(word, value));
        let step = Step {
            at: packed & AT_MASK,
            what: what.expect("only steps are packed"),
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
    use super::*;

    #[test]
    fn steps_are_read_back_as_they_were_packed() {
        let tokens = Tokens::new(2.5).ok();
        let all = [
            What::Asked,
            What::Postponed(77),
            What::Deadline(None),
            What::Deadline(Some(5)),
            What::Bucket(Some(3)),
            What::Admitted,
            What::Sent,
            What::Ended(Outcome::Overloaded, tokens),
        ];
        let steps = |first: u64| -> Vec<Step> {
            let numbered = all.into_iter().zip(first..);
            numbered.map(|(what, at)| Step { at, what }).collect()
        };
        let mut packed = Packed::default();
        let one = packed.push(&steps(1)).expect("they are in order");
        let other = packed.push(&steps(100)).expect("they are in order");
        assert_eq!(packed.of(one).collect::<Vec<_>>(), steps(1));
        assert_eq!(packed.of(other).collect::<Vec<_>>(), steps(100));
    }

    #[test]
    fn steps_out_of_order_are_refused() {
        let step = |at| Step {
            at,
            what: What::Sent,
        };
        let mut packed = Packed::default();
        assert_eq!(packed.push(&[step(2), step(1)]), None);
        assert_eq!(packed.push(&[]), None);
        assert_eq!(packed.push(&[step(1 << AT_BITS)]), None);
        assert_eq!(packed.push(&vec![step(1); 1 << 16]), None);
        assert!(packed.push(&[step(1)]).is_some());
    }
}
