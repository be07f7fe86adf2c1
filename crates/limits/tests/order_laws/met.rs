//! A limit of the oracle, and the calls that it admits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_limits::Limit;

/// The rule by which a limit admits calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Lets {
    Window {
        max: usize,
        length: u64,
    },
    Outstanding {
        max: usize,
    },
    /// Tokens a second.
    Flow(f64),
    /// Tokens in a window, of which the store grants a part at a time.
    Quota {
        total: u64,
        length: u64,
        /// How long the store may leave questions unanswered.
        silent: u64,
    },
}

impl Lets {
    /// The longest until there is room for a call of this many tokens that is next.
    pub(crate) fn next_room(self, longest: u64, tokens: f64) -> f64 {
        match self {
            Self::Window { length, .. } => length as f64,
            Self::Outstanding { .. } => longest as f64,
            Self::Flow(rate) => tokens / rate * 1e9,
            Self::Quota { length, silent, .. } => (2 * length + silent) as f64,
        }
    }

    /// How long it takes to let this many tokens through, of calls that cost at least one.
    pub(crate) fn takes(self, longest: u64, tokens: f64, kept: f64) -> f64 {
        let at_once = match self {
            Self::Flow(rate) => return tokens / rate * 1e9,
            Self::Window { max, .. } | Self::Outstanding { max } => max as f64 - kept,
            // What is left of a window may not be enough for the next call.
            Self::Quota { total, .. } => total as f64 / 2.0,
        };
        let room = match self {
            Self::Quota { length, .. } => length as f64,
            _ => self.next_room(longest, 1.0),
        };
        room * (tokens / at_once).ceil()
    }

    /// How long a departure counts.
    pub(crate) fn window(self) -> Option<u64> {
        match self {
            Self::Window { length, .. } | Self::Quota { length, .. } => Some(length),
            Self::Outstanding { .. } | Self::Flow(_) => None,
        }
    }
}

/// The calls that meet a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Function(usize),
    Class(usize),
    Every,
    Bucket,
    Quota,
}

/// The properties of a call that decide which limits it meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) class: usize,
    pub(crate) function: usize,
    pub(crate) has_bucket: bool,
    pub(crate) has_quota: bool,
}

/// Whether there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Open,
    Closed,
    /// A reload made the count inexact.
    Unknown,
}

/// A limit, who meets it, and what has been let through.
pub(crate) struct Met {
    pub(crate) name: String,
    pub(crate) lets: Lets,
    pub(crate) who: Who,
    /// As the policy has it; none for a bucket and a quota.
    pub(crate) limit: Option<Limit>,
    /// For which class it keeps how much.
    pub(crate) kept: Option<(usize, usize)>,
    /// When what counts in a window departed, and of which class it was.
    pub(crate) departed: VecDeque<(u64, usize)>,
    /// By class.
    pub(crate) in_flight: BTreeMap<usize, usize>,
    /// Tokens that each caller of each class was served here.
    pub(crate) served: BTreeMap<(usize, u64), f64>,
    /// The service of a class from what is kept for it: that is no loss to others.
    pub(crate) served_kept: BTreeMap<usize, f64>,
    /// Tokens that each caller of each class was given back here and has not had since.
    pub(crate) owed: BTreeMap<(usize, u64), f64>,
    /// How much is claimed here, by calls or in tokens.
    pub(crate) claimed: f64,
    /// Callers of which a claim was served here, as long as their class waits here.
    pub(crate) claimants: BTreeSet<(usize, u64)>,
    /// Classes for which it had room when nothing more happened at the moment before.
    pub(crate) had_room: BTreeSet<usize>,
    /// Whether the limit is in force.
    pub(crate) is_there: bool,
    /// The moment from which on the figures that a reload made inexact are exact.
    pub(crate) exact_from: u64,
}

impl Met {
    pub(crate) fn new(name: impl Into<String>, who: Who, lets: Lets, limit: Option<Limit>) -> Self {
        Self {
            name: name.into(),
            lets,
            who,
            limit,
            kept: None,
            departed: VecDeque::new(),
            in_flight: BTreeMap::new(),
            served: BTreeMap::new(),
            served_kept: BTreeMap::new(),
            owed: BTreeMap::new(),
            claimed: 0.0,
            claimants: BTreeSet::new(),
            had_room: BTreeSet::new(),
            is_there: true,
            exact_from: 0,
        }
    }

    pub(crate) fn meets(&self, kind: Kind) -> bool {
        match self.who {
            Who::Function(function) => function == kind.function,
            Who::Class(class) => class == kind.class,
            Who::Every => true,
            Who::Bucket => kind.has_bucket,
            Who::Quota => kind.has_quota,
        }
    }

    pub(crate) fn kept_amount(&self) -> f64 {
        self.kept.map_or(0.0, |(_, amount)| amount as f64)
    }

    /// Calls that count at `now`, and those of one class among them.
    fn counted(&self, now: u64, class: usize) -> (usize, usize) {
        match self.lets {
            Lets::Window { length, .. } => {
                let recent = self.departed.iter().rev();
                let counts = recent.take_while(|(at, _)| at + length > now);
                counts.fold((0, 0), |(all, of), &(_, one)| {
                    (all + 1, of + usize::from(one == class))
                })
            }
            Lets::Outstanding { .. } => {
                let all = self.in_flight.values().sum();
                (all, self.in_flight.get(&class).copied().unwrap_or(0))
            }
            Lets::Flow(_) | Lets::Quota { .. } => (0, 0),
        }
    }

    /// How many calls of a class it has room for, at a limit that counts calls.
    pub(crate) fn room(&self, now: u64, class: usize) -> Option<usize> {
        let (Lets::Window { max, .. } | Lets::Outstanding { max }) = self.lets else {
            return None;
        };
        let (used, unused) = match self.kept {
            Some((kept, amount)) => {
                let (all, of_kept) = self.counted(now, kept);
                let unused = amount.saturating_sub(of_kept);
                (all, if kept == class { 0 } else { unused })
            }
            None => (self.counted(now, class).0, 0),
        };
        Some(max.saturating_sub(used + unused))
    }

    /// Whether the next call of a class takes only what is kept for the class.
    fn is_kept_for(&self, now: u64, class: usize) -> bool {
        self.kept
            .is_some_and(|(kept, amount)| kept == class && self.counted(now, class).1 < amount)
    }

    /// A call departs. True if it takes only what is kept for its class.
    pub(crate) fn serve(&mut self, now: u64, class: usize, caller: u64, tokens: f64) -> bool {
        let is_kept = self.is_there && self.is_kept_for(now, class);
        if is_kept {
            *self.served_kept.entry(class).or_default() += tokens;
        }
        *self.in_flight.entry(class).or_default() += 1;
        self.departed.push_back((now, class));
        *self.served.entry((class, caller)).or_default() += tokens;
        let owed = self.owed.entry((class, caller)).or_default();
        *owed = (*owed - tokens).max(0.0);
        is_kept
    }

    /// Notes that a call is not in flight any more.
    pub(crate) fn ends(&mut self, class: usize) {
        let of_class = self.in_flight.get_mut(&class);
        *of_class.expect("it was in flight") -= 1;
    }

    /// Forgets what counts no more.
    pub(crate) fn tidy(&mut self, now: u64) {
        let Lets::Window { length, .. } = self.lets else {
            self.departed.clear();
            return;
        };
        let counts_no_more = |&(at, _): &(u64, usize)| at + length <= now;
        while self.departed.front().is_some_and(counts_no_more) {
            self.departed.pop_front();
        }
    }
}
