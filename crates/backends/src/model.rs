//! The backend itself.
//!
//! All calls at the backend run at the same speed at a moment, 1/stretch. So one clock is enough: the work that a
//! call would have attained that was there all the time. A call that starts ends when that clock
//! has advanced by its demand. This is exact, not a small-step approximation, and costs O(log n) a
//! call. Ends are rounded to whole nanoseconds.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::num::NonZeroU32;

use crate::law::Sharing;
use crate::profile::ValueProfile;
use crate::{OutOfRange, within};

/// The properties of a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendModel {
    /// How much slower calls become as more run at once.
    pub sharing: Sharing,
    /// How much a call of each function counts in the load. A function beyond the list counts as
    /// one call.
    pub weights: Vec<Weight>,
    /// The backend's behaviour above a load, if it changes.
    pub breaking: Option<Breaking>,
    /// The share of the full capacity over time.
    pub capacity: ValueProfile,
}

impl BackendModel {
    /// A backend of this law that never breaks and never changes.
    #[must_use]
    pub fn new(sharing: Sharing) -> Self {
        Self {
            sharing,
            weights: Vec::new(),
            breaking: None,
            capacity: ValueProfile::constant(1.0).expect("1 is above 0"),
        }
    }

    /// The backend with a breaking point: it breaks above this load.
    #[must_use]
    pub fn breaks(self, above: NonZeroU32, then: BreakBehaviour) -> Self {
        let breaking = Some(Breaking { above, then });
        Self { breaking, ..self }
    }
}

/// How much a call counts in the load, in thousandths of an ordinary call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(u32);

impl Weight {
    /// An ordinary call.
    pub const ONE: Self = Self(1000);

    /// A call that counts as this many ordinary ones, 0.001 to 1000. It is rounded to thousandths.
    ///
    /// # Errors
    ///
    /// A number out of this range.
    pub fn new(calls: f64) -> Result<Self, OutOfRange> {
        let is_right = (0.001..=1000.0).contains(&calls);
        let calls = within(calls, is_right, "the weight of a function", "0.001 to 1000")?;
        Ok(Self((calls * 1000.0).round() as u32))
    }
}

/// A load that the backend does not bear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaking {
    /// The highest load that it bears.
    pub above: NonZeroU32,
    /// The backend's behaviour when a call would bring more.
    pub then: BreakBehaviour,
}

/// The behaviour of a backend above its breaking point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakBehaviour {
    /// The backend resets the connection of the new call, and the others continue.
    Reset,
    /// All calls at the backend fail, the new one too, and no connection is accepted for a time.
    Collapse {
        /// The time of a restart.   ns
        restart: u64,
    },
}

/// Whether the backend took a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CallStart {
    /// The call was sent. [`Model::due`] reports how it ends, also if it is reset at once.
    Taken,
    /// The backend is down until this moment: nothing was sent.   ns
    Down(u64),
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServiceOutcome {
    /// The call was answered.
    Served,
    /// The call came above the breaking point and was reset.
    Reset,
    /// The call was at the backend when that collapsed.
    Collapsed,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedCall {
    /// The number that it started with.
    pub id: u64,
    /// When it ended.   ns
    pub at: u64,
    /// How it ended.
    pub outcome: ServiceOutcome,
}

/// A backend at work. Moments that are passed in never decrease.
#[derive(Clone, Debug)]
pub struct Model {
    backend: BackendModel,
    now: u64,
    /// The work that a call has attained that was there since the backend was last idle.   ns
    attained: f64,
    /// Calls by what `attained` is when they end: bits of a float that is not negative, which
    /// are in its order. Then by order of start.
    finishing: BTreeMap<(u64, u64), u64>,
    /// The key in `finishing` of each call, and its weight.
    inside: HashMap<u64, ((u64, u64), Weight)>,
    /// The sum of the weights.   thousandths
    load: u64,
    /// The number of calls that were taken.
    started: u64,
    /// Calls that have ended, and were not reported yet.
    over: Vec<EndedCall>,
    down_until: u64,
    most: usize,
    breaks: u64,
}

impl Model {
    /// A backend with no calls, at moment 0.
    #[must_use]
    pub fn new(backend: BackendModel) -> Self {
        Self {
            backend,
            now: 0,
            attained: 0.0,
            finishing: BTreeMap::new(),
            inside: HashMap::new(),
            load: 0,
            started: 0,
            over: Vec::new(),
            down_until: 0,
            most: 0,
            breaks: 0,
        }
    }

    /// A call starts: `demand` is how long it would take alone.   ns
    ///
    /// # Panics
    ///
    /// If `now` is in the past, or a call of this id is at the backend.
    pub fn starts(&mut self, now: u64, id: u64, function: usize, demand: u64) -> CallStart {
        self.advance(now);
        if now < self.down_until {
            return CallStart::Down(self.down_until);
        }
        let weights = &self.backend.weights;
        let weight = weights.get(function).copied().unwrap_or(Weight::ONE);
        let load = self.load + u64::from(weight.0);
        let breaking = self.backend.breaking;
        if let Some(breaking) = breaking.filter(|it| load > u64::from(it.above.get()) * 1000) {
            self.breaks(breaking.then, id);
            return CallStart::Taken;
        }
        let key = ((self.attained + demand as f64).to_bits(), self.started);
        self.started += 1;
        let before = self.inside.insert(id, (key, weight));
        assert!(before.is_none(), "call {id} is at the backend already");
        self.finishing.insert(key, id);
        self.load = load;
        self.most = self.most.max(self.inside.len());
        CallStart::Taken
    }

    /// When to call [`Self::due`] next; `None` if nothing will end by itself. Nothing may have
    /// ended by then, because the capacity may have changed.   ns
    #[must_use]
    pub fn wake(&self) -> Option<u64> {
        if !self.over.is_empty() {
            return Some(self.now);
        }
        self.next_end().map(|(end, change)| match change {
            Some(change) => end.min(change),
            None => end,
        })
    }

    /// The calls that have ended by `now` and were not reported yet, in the order of their ends.
    ///
    /// # Panics
    ///
    /// If `now` is in the past.
    pub fn due(&mut self, now: u64) -> Vec<EndedCall> {
        self.advance(now);
        mem::take(&mut self.over)
    }

    /// A call is taken back, and the backend does no more for it. Returns whether it was there.
    ///
    /// # Panics
    ///
    /// If `now` is in the past.
    pub fn leaves(&mut self, now: u64, id: u64) -> bool {
        self.advance(now);
        let Some((key, weight)) = self.inside.remove(&id) else {
            return false;
        };
        self.finishing.remove(&key);
        self.load -= u64::from(weight.0);
        true
    }

    /// Until when the backend accepts no connection, if it does not.   ns
    #[must_use]
    pub fn down_until(&self, now: u64) -> Option<u64> {
        (now < self.down_until).then_some(self.down_until)
    }

    /// The calls at the backend.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.inside.len()
    }

    /// The most calls that were at the backend at once. One that it reset was not.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// How often its breaking point was crossed.
    #[must_use]
    pub fn times_broken(&self) -> u64 {
        self.breaks
    }

    /// A new call brings more than it bears.
    fn breaks(&mut self, then: BreakBehaviour, id: u64) {
        self.breaks += 1;
        let at = self.now;
        let outcome = match then {
            BreakBehaviour::Reset => ServiceOutcome::Reset,
            BreakBehaviour::Collapse { restart } => {
                self.down_until = at.saturating_add(restart);
                self.inside.clear();
                self.load = 0;
                let mut lost: Vec<_> = mem::take(&mut self.finishing).into_iter().collect();
                lost.sort_unstable_by_key(|((_, started), _)| *started);
                let outcome = ServiceOutcome::Collapsed;
                let lost = lost
                    .into_iter()
                    .map(|(_, id)| EndedCall { id, at, outcome });
                self.over.extend(lost);
                outcome
            }
        };
        self.over.push(EndedCall { id, at, outcome });
    }

    /// How many times longer a call takes now than alone, and until when the capacity stays.
    fn stretch(&self) -> (f64, Option<u64>) {
        let (capacity, change) = self.backend.capacity.at(self.now);
        let load = self.load as f64 / 1000.0;
        (self.backend.sharing.stretch(load, capacity), change)
    }

    /// When the next call ends if nothing changes, and when the capacity does.
    fn next_end(&self) -> Option<(u64, Option<u64>)> {
        let ((bits, _), _) = self.finishing.first_key_value()?;
        let (stretch, change) = self.stretch();
        let left = (f64::from_bits(*bits) - self.attained).max(0.0);
        let end = self.now.saturating_add((left * stretch).round() as u64);
        Some((end, change))
    }

    /// Lets time pass. Calls that end at `now` have ended before anything else happens then.
    fn advance(&mut self, now: u64) {
        assert!(now >= self.now, "a model never goes back in time");
        while let Some((end, change)) = self.next_end() {
            let next = change.map_or(end, |change| end.min(change));
            if next > now {
                let (stretch, _) = self.stretch();
                self.attained += (now - self.now) as f64 / stretch;
                break;
            }
            if next < end {
                let (stretch, _) = self.stretch();
                self.attained += (next - self.now) as f64 / stretch;
                self.now = next;
                continue;
            }
            self.now = end;
            let ((key, id), at) = (self.finishing.pop_first().expect("it was looked at"), end);
            // The rounding of one end must not add up over many.
            self.attained = f64::from_bits(key.0);
            let (_, weight) = self.inside.remove(&id).expect("it has not ended yet");
            self.load -= u64::from(weight.0);
            let outcome = ServiceOutcome::Served;
            self.over.push(EndedCall { id, at, outcome });
        }
        self.now = now;
        if self.inside.is_empty() {
            // Small numbers are exact.
            self.attained = 0.0;
        }
    }
}
