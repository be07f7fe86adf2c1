//! Causal promotion: a read about a guest is in the user class while users act on it.
//!
//! The wire does not show why a guest is read. But user work comes with reads of the same guest:
//! nova asks for the power state before and after each action, and Terraform reads back what it
//! has made. So reads of a guest count as user work while a user call on it is under way, and for
//! a while after. Reads that already wait when the user call arrives are promoted where they
//! wait.
//!
//! Everything here is behind the gate's lock. It is bounded: the guests by [`GUESTS_MAX`], the
//! waiting reads by the calls that wait at the gate.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use foldhash::HashMap;
use tidegate_limits::{Ticket, Timestamp};

use crate::call::steps::StepKind;
use crate::call::{Record, Role};

/// The most guests. Beyond it, the least recently used one is forgotten.
const GUESTS_MAX: usize = 4096;

/// The number of noted reads at which those that no longer wait are first removed.
const SWEEP_MIN: usize = 64;

/// A waiting read, and where its new class is recorded.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) ticket: Ticket,
    /// Weak, because a call is reported when its last owner drops it, and this is not an owner.
    pub(super) record: Weak<Record>,
}

/// The guests on which users act, and the reads that wait.
#[derive(Debug, Default)]
pub(super) struct Promotions {
    /// How long after a user call its guest's reads are still promoted; `None` switches it off.
    lasts: Option<Duration>,
    guests: HashMap<Arc<str>, GuestWork>,
    /// The guests by their last use, the least recent first.
    touched: BTreeMap<u64, Arc<str>>,
    touches: u64,
    followers: HashMap<Box<str>, Vec<Follower>>,
    noted: usize,
    /// The number of noted reads at which those that no longer wait are removed.
    sweep_at: usize,
}

/// The user work on a guest.
#[derive(Debug)]
struct GuestWork {
    /// User calls under way.
    running: usize,
    /// Until when its reads are promoted without one.
    until: Timestamp,
    touch: u64,
}

impl GuestWork {
    fn is_under_way(&self, now: Timestamp) -> bool {
        self.running > 0 || now < self.until
    }
}

impl Promotions {
    pub(super) fn new(lasts: Option<Duration>) -> Self {
        Self {
            lasts,
            ..Self::default()
        }
    }

    /// Whether a call of this role looks whose guest it is about. A read does so only while users act on
    /// any guest.
    pub(super) fn looks_at_guest(&self, role: Role) -> bool {
        match role {
            Role::Apart => false,
            Role::Follows => !self.guests.is_empty(),
            Role::Acts => self.is_on(),
        }
    }

    /// Whether promotion is on.
    pub(super) fn is_on(&self) -> bool {
        self.lasts.is_some()
    }

    /// Takes a new setting. If it is switched off, everything is forgotten.
    pub(super) fn apply(&mut self, lasts: Option<Duration>) {
        if lasts.is_none() {
            *self = Self::default();
        }
        self.lasts = lasts;
    }

    /// A user call on a guest has arrived. Returns the reads that wait for the same guest, as last
    /// noted.
    pub(super) fn begins(&mut self, guest: &Arc<str>, now: Timestamp) -> Vec<Follower> {
        self.touch(guest, now).running += 1;
        let followers = self.followers.remove(&**guest).unwrap_or_default();
        self.noted -= followers.len();
        followers
    }

    /// A user call on a guest has ended. Later reads of the guest are promoted only if the call succeeded.
    pub(super) fn ends(&mut self, guest: &Arc<str>, now: Timestamp, ending: WorkEnd) {
        // Forgotten, or switched off meanwhile.
        let (Some(lasts), true) = (self.lasts, self.guests.contains_key(guest)) else {
            return;
        };
        let acted = self.touch(guest, now);
        acted.running = acted.running.saturating_sub(1);
        if ending == WorkEnd::Success {
            acted.until = acted.until.max(now + lasts);
        }
    }

    /// Whether reads of this guest are promoted now.
    pub(super) fn is_acted_on(&self, guest: &str, now: Timestamp) -> bool {
        let acted = self.guests.get(guest);
        acted.is_some_and(|acted| acted.is_under_way(now))
    }

    /// A read of a guest must wait. `waits` returns whether another one still does.
    pub(super) fn waits(
        &mut self,
        guest: &str,
        follower: Follower,
        mut waits: impl FnMut(Ticket) -> bool,
    ) {
        if self.noted >= self.sweep_at {
            self.followers.retain(|_, followers| {
                followers.retain(|follower| waits(follower.ticket));
                !followers.is_empty()
            });
            self.noted = self.followers.values().map(Vec::len).sum();
            // Twice as many, so that a look at all of them costs each a constant.
            self.sweep_at = (2 * self.noted).max(SWEEP_MIN);
        }
        match self.followers.get_mut(guest) {
            Some(followers) => followers.push(follower),
            None => drop(self.followers.insert(guest.into(), vec![follower])),
        }
        self.noted += 1;
    }

    /// The guest, which is now the most recently used.
    fn touch(&mut self, guest: &Arc<str>, now: Timestamp) -> &mut GuestWork {
        self.touches += 1;
        let touch = self.touches;
        match self.guests.get(guest) {
            Some(acted) => drop(self.touched.remove(&acted.touch)),
            None => self.make_room(now),
        }
        self.touched.insert(touch, Arc::clone(guest));
        let acted = self.guests.entry(Arc::clone(guest)).or_insert(GuestWork {
            running: 0,
            until: now,
            touch,
        });
        acted.touch = touch;
        acted
    }

    /// Forgets guests without user calls, from the least recently used one to the first that has
    /// some. If there is no room, forgets that one too.
    fn make_room(&mut self, now: Timestamp) {
        while let Some(oldest) = self.touched.first_entry()
            && (self.guests.len() >= GUESTS_MAX || !self.guests[oldest.get()].is_under_way(now))
        {
            self.guests.remove(&oldest.remove());
        }
    }
}

/// The guest that a call is about, in upper case: the backend ignores case. `target` names it if the
/// record does not.
pub(super) fn guest_of(target: Option<&str>, record: &Record) -> Option<Box<str>> {
    let target = target.map(Box::from);
    let mut guest = target.or_else(|| record.note(|facts| facts.target.clone()))?;
    guest.make_ascii_uppercase();
    Some(guest)
}

/// The records of calls that move to another class. They are dropped outside the lock: the last
/// owner of a record reports the call to observers.
#[derive(Default)]
pub(super) struct PromotedRecords {
    /// The name of the other class, if a call may have moved to it.
    pub(super) class: Option<Arc<str>>,
    pub(super) records: Vec<Arc<Record>>,
}

impl PromotedRecords {
    /// A call that waits moves at this instant. Noted under the lock: with the change it may get its
    /// turn, and end before anything else is noted.
    pub(super) fn moves(&mut self, record: &Weak<Record>, now: Timestamp) {
        let Some((class, record)) = self.class.as_ref().zip(record.upgrade()) else {
            return;
        };
        record.note(|facts| {
            facts.class = Arc::clone(class);
            facts.step(now, StepKind::Class(Arc::clone(class)));
        });
        self.records.push(record);
    }

    /// The call that asks moved before it was submitted.
    pub(super) fn note_class(&self, record: &Record) {
        if let Some(class) = &self.class {
            record.note(|facts| facts.class = Arc::clone(class));
        }
    }
}

/// The class in which a call waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EffectiveClass {
    /// The own class of the call.
    #[default]
    Own,
    /// The class of users, to which the call was promoted.
    Users,
}

/// How a user call on a guest ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkEnd {
    /// The backend reported success.
    Success,
    /// The call failed, was given back, or its end is unknown.
    NoSuccess,
}

#[cfg(test)]
mod tests {
    use tidegate_limits::policy::{ClassShare, Postpone, WhenFull};
    use tidegate_limits::{Call, Policy};

    use super::*;

    const LASTS: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_guest_is_acted_on_until_a_while_after_the_last_call_on_it() {
        let mut promotions = Promotions::new(Some(LASTS));
        let guest: Arc<str> = "LINUX1".into();
        assert!(!promotions.is_acted_on("LINUX1", at(0)));
        promotions.begins(&guest, at(0));
        promotions.begins(&guest, at(5));
        promotions.ends(&guest, at(6), WorkEnd::Success);
        assert!(promotions.is_acted_on("LINUX1", at(1000)), "one runs still");
        promotions.ends(&guest, at(1000), WorkEnd::Success);
        assert!(promotions.is_acted_on("LINUX1", at(1009)));
        assert!(!promotions.is_acted_on("LINUX1", at(1010)));
        assert!(!promotions.is_acted_on("LINUX2", at(1009)));
    }

    #[test]
    fn no_more_guests_are_remembered_than_there_is_room_for_and_the_idle_go_first() {
        let mut promotions = Promotions::new(Some(LASTS));
        for number in 0..GUESTS_MAX + 100 {
            let guest: Arc<str> = format!("G{number}").into();
            promotions.begins(&guest, at(0));
            promotions.ends(&guest, at(0), WorkEnd::Success);
        }
        assert_eq!(promotions.guests.len(), GUESTS_MAX);
        assert_eq!(promotions.touched.len(), GUESTS_MAX);
        assert!(!promotions.is_acted_on("G99", at(1)), "forgotten");
        assert!(promotions.is_acted_on("G100", at(1)));
        // One call later, when all of them are over, only its guest is left.
        promotions.begins(&"LATE".into(), at(60));
        assert_eq!(promotions.guests.len(), 1);
        // The end of one that was forgotten does no harm.
        promotions.ends(&"G0".into(), at(60), WorkEnd::Success);
        assert_eq!(promotions.guests.len(), 1);
    }

    #[test]
    fn no_more_reads_are_noted_than_twice_those_that_wait() {
        let mut slots = tidegate_limits::Scheduler::new(policy());
        let mut promotions = Promotions::new(Some(LASTS));
        for number in 0..10_000 {
            let guest = format!("G{}", number % 100);
            let submitted = slots.submit(at(0), call(), ());
            let ticket = submitted.expect("there is room");
            let record = Weak::new();
            let follower = Follower { ticket, record };
            promotions.waits(&guest, follower, |ticket| {
                slots.payload_mut(ticket).is_some()
            });
            // Every tenth stays.
            if number % 10 != 0 {
                slots.cancel(at(0), ticket);
            }
            assert!(promotions.noted <= (2 * slots.waiting()).max(SWEEP_MIN) + 1);
        }
        let noted: usize = promotions.followers.values().map(Vec::len).sum();
        assert_eq!(noted, promotions.noted);
        let stay = slots.waiting();
        assert_eq!(stay, 1000);
        let mut found = 0;
        for number in 0..100 {
            for follower in promotions.begins(&format!("G{number}").into(), at(0)) {
                found += usize::from(slots.cancel(at(0), follower.ticket).is_some());
            }
        }
        assert_eq!((found, promotions.noted), (stay, 0));
        assert!(promotions.followers.is_empty());
    }

    fn policy() -> Policy {
        let class = ClassShare::new("polling", 1);
        let full = WhenFull::Refuse;
        Policy::new(Vec::new(), 10_000, full, Postpone::InTurn, vec![class]).expect("it is sound")
    }

    fn call() -> Call {
        Call::new("guest_get_info", at(0))
    }

    #[test]
    fn switched_off_it_forgets_everything() {
        let mut promotions = Promotions::new(Some(LASTS));
        let guest: Arc<str> = "LINUX1".into();
        promotions.begins(&guest, at(0));
        promotions.apply(None);
        promotions.ends(&guest, at(1), WorkEnd::Success);
        promotions.apply(Some(LASTS));
        assert!(!promotions.is_acted_on("LINUX1", at(1)));
    }
}
