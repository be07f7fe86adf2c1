//! Compares two runs over time, in at most a few hundred slots.

use super::free::{CallCourse, ReplayedEnding};

/// The most slots.
const SLOTS_MAX: usize = 480;
/// The width of a slot at first; it doubles when the slots are used up.   ns
const WIDTH_MIN: u64 = 100_000_000;

/// A span of time in one run, and the calls in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    /// Calls that asked.
    pub(super) asked: u32,
    /// Calls that were sent.
    pub(super) sent: u32,
    /// Calls that were refused.
    pub(super) refused: u32,
    /// Times that calls waited in it, together.   ns
    waited: u64,
    /// Times that calls were at the backend in it, together.   ns
    ran: u64,
    /// The longest wait of a call that asked in it.   ns
    pub(super) longest: u64,
}

impl Slot {
    fn add(&mut self, other: Self) {
        self.asked += other.asked;
        self.sent += other.sent;
        self.refused += other.refused;
        self.waited += other.waited;
        self.ran += other.ran;
        self.longest = self.longest.max(other.longest);
    }
}

/// Two runs over time.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    /// The begin of the first slot.   ns since the epoch
    begin: Option<u64>,
    width: u64,
    slots: Vec<(Slot, Slot)>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            begin: None,
            width: WIDTH_MIN,
            slots: Vec::new(),
        }
    }
}

impl Timeline {
    /// Adds one call of the process whose clock began then.
    pub(super) fn add(&mut self, clock: u64, before: &CallCourse, after: &CallCourse) {
        self.begin.get_or_insert(clock.saturating_add(before.asked));
        self.count(clock, before, |(slot, _)| slot);
        self.count(clock, after, |(_, slot)| slot);
    }

    fn count(&mut self, clock: u64, ran: &CallCourse, of: fn(&mut (Slot, Slot)) -> &mut Slot) {
        let begin = self.begin.unwrap_or(0);
        let since = |at: u64| clock.saturating_add(at).saturating_sub(begin);
        let (asked, left) = (since(ran.asked), since(ran.left_queue));
        self.make_room(since(ran.ended).max(left));
        let slot = of(self.at(asked));
        slot.asked += 1;
        slot.longest = slot.longest.max(ran.waited());
        if ran.ending == ReplayedEnding::Refused {
            of(self.at(left)).refused += 1;
        }
        self.spread(asked, left, |pair| &mut of(pair).waited);
        if let Some(sent) = ran.sent().map(since) {
            of(self.at(sent)).sent += 1;
            self.spread(sent, since(ran.ended), |pair| &mut of(pair).ran);
        }
    }

    /// Doubles the width until this moment has a slot.
    fn make_room(&mut self, until: u64) {
        while until / self.width >= SLOTS_MAX as u64 {
            self.width *= 2;
            let pairs = self.slots.chunks(2).map(|pair| {
                let mut sum = pair[0];
                if let Some(second) = pair.get(1) {
                    sum.0.add(second.0);
                    sum.1.add(second.1);
                }
                sum
            });
            self.slots = pairs.collect();
        }
    }

    fn at(&mut self, moment: u64) -> &mut (Slot, Slot) {
        let nth = usize::try_from(moment / self.width).unwrap_or(SLOTS_MAX - 1);
        if nth >= self.slots.len() {
            self.slots
                .resize(nth + 1, (Slot::default(), Slot::default()));
        }
        &mut self.slots[nth]
    }

    /// Adds a time to all slots that it touches.
    fn spread(&mut self, from: u64, until: u64, of: impl Fn(&mut (Slot, Slot)) -> &mut u64) {
        let mut from = from;
        while from < until {
            let next = (from / self.width + 1) * self.width;
            *of(self.at(from)) += until.min(next) - from;
            from = next;
        }
    }

    /// The begin of the first slot.   ns since the epoch
    pub(super) fn begin(&self) -> u64 {
        self.begin.unwrap_or(0)
    }

    /// The width of a slot.   s
    #[expect(clippy::cast_precision_loss, reason = "2^53 ns are 104 days")]
    pub(super) fn width(&self) -> f64 {
        self.width as f64 / 1e9
    }

    /// The slots of both runs.
    pub(super) fn slots(&self) -> &[(Slot, Slot)] {
        &self.slots
    }

    /// How many calls waited on average in this slot.
    #[expect(clippy::cast_precision_loss, reason = "2^53 ns are 104 days")]
    pub(super) fn waiting(&self, slot: &Slot) -> f64 {
        slot.waited as f64 / self.width as f64
    }

    /// How many calls were at the backend on average in this slot.
    #[expect(clippy::cast_precision_loss, reason = "2^53 ns are 104 days")]
    pub(super) fn running(&self, slot: &Slot) -> f64 {
        slot.ran as f64 / self.width as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(asked: u64, left_queue: u64, ended: u64) -> CallCourse {
        CallCourse {
            asked,
            sent: left_queue,
            left_queue,
            ended,
            ending: ReplayedEnding::Answered,
            limit: None,
        }
    }

    #[test]
    fn a_longer_log_has_wider_slots_and_the_same_sums() {
        let mut timeline = Timeline::default();
        let second = 1_000_000_000;
        for nth in 0..5_000 {
            let at = nth * second;
            let one = ran(at, at + 3 * second / 2, at + 2 * second);
            let other = ran(at, at, at + second / 2);
            timeline.add(7, &one, &other);
        }
        assert!(timeline.slots().len() <= SLOTS_MAX);
        assert!(timeline.slots().len() > SLOTS_MAX / 2);
        let sum = |of: &dyn Fn(&(Slot, Slot)) -> f64| timeline.slots().iter().map(of).sum::<f64>();
        assert_eq!(sum(&|(one, _)| one.asked.into()), 5_000.0);
        assert_eq!(sum(&|(_, other)| other.sent.into()), 5_000.0);
        let width = timeline.width();
        let near = |sum: f64, wanted: f64| assert!((sum * width - wanted).abs() < 1e-6, "{sum}");
        near(sum(&|(one, _)| timeline.waiting(one)), 7_500.0);
        near(sum(&|(one, _)| timeline.running(one)), 2_500.0);
        near(sum(&|(_, other)| timeline.waiting(other)), 0.0);
        assert_eq!(timeline.begin(), 7);
    }
}
