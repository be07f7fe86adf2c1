//! Notes in a ledger what the gate must not forget when its process dies.
//!
//! Only calls that meet limits are in it. They are noted before the message that lets them go, so none is at the
//! backend that the ledger does not know.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use foldhash::{HashMap, HashSet};
use tidegate_ledger::{
    Admission, Boot, CallStage, JobRecord, Layout, Ledger, PromisedPlace, TooLarge, WindowRegion,
    level_key,
};
use tidegate_limits::call::{ANY_FUNCTION, Backend, BucketId, ServerChoice, ServerNumber};
use tidegate_limits::policy::{Scope, WindowStamp};
use tidegate_limits::scheduler::LedgerEvent;
use tidegate_limits::{Call, Limit, Policy, Scheduler, Timestamp};
use tidegate_mapping::MappedFile;
use tidegate_runtime::Clock;

use super::decision::{CallOwner, Lane};
use super::kept_places::KeptPlace;
use super::service_times::{FunctionTable, KnownFunction};
use crate::call::CallDigest;
use crate::call::ticket::TicketSecret;

/// Most calls at once that a ledger notes, which is as many as there can be workers. While there are more, the next
/// process finds only that.
const CALLS_MAX: u32 = 1 << 16;

/// Most buckets whose levels a ledger notes: all that rate limits can have.
const LEVELS_MAX: u32 = 1 << 10;

/// Most promised places that a ledger notes. Clients of further ones begin anew after a restart.
const PLACES_MAX: u32 = 1 << 12;

/// The ledger of a gate, and the places of its calls and buckets in it.
#[derive(Debug)]
pub struct GateLedger {
    ledger: Ledger<MappedFile>,
    clock: Clock,
    plan: LedgerPlan,
    functions: FunctionTable,
    /// By place, the calls that the ledger has.
    calls: Vec<Option<NotedCall>>,
    levels: LevelPlaces,
    promises: PromiseRows,
    /// The places of running calls for which there is no room.
    beyond: HashSet<u32>,
    /// Empty, for the next events.
    events: Vec<LedgerEvent>,
}

/// The rows of places in the queue that clients were promised.
#[derive(Debug, Default)]
struct PromiseRows {
    used: HashMap<CallDigest, u32>,
    /// Rows that were used before.
    free: Vec<u32>,
}

/// A call that the ledger has.
#[derive(Clone, Copy, Debug)]
struct NotedCall {
    bucket: Option<BucketId>,
    function: KnownFunction,
}

/// Whether a tag names a server.
const HAS_SERVER: u32 = 1 << 24;

/// The tag of a call in the ledger: its backend, and the server to which it is bound.
fn tag_of(backend: Backend, server: Option<ServerNumber>) -> u32 {
    let server = server.map_or(0, |server| HAS_SERVER | u32::from(server.get()) << 8);
    server | u32::from(backend.0)
}

/// The backend that a tag names, and the server.
pub(super) fn backend_of(tag: u32) -> (Backend, ServerChoice) {
    let server = match tag & HAS_SERVER {
        0 => ServerChoice::ANY,
        _ => ServerNumber::new((tag >> 8) as u16).map_or(ServerChoice::ANY, ServerChoice::only),
    };
    (Backend(tag as u8), server)
}

/// The regions that a ledger needs, and the names by which the next process finds limits, functions and classes.
#[derive(Debug, PartialEq, Eq)]
pub struct LedgerPlan {
    layout: Layout,
    /// The ring of each limit of the policy, if it is a window.
    rings: Vec<Option<usize>>,
    /// The moments at which calls count in any window: no other is worth a note.
    stamps: Vec<WindowStamp>,
    /// The paces of the policy, with the keys of their levels, which have the first places.
    paces: Vec<(u32, [u64; 2])>,
    /// The secret by which places in the queue are found.
    secret: TicketSecret,
}

/// The paces of a policy: their places and names, and the keys of their levels. A bucket's name has no space.
pub(super) fn pace_keys(policy: &Policy) -> impl Iterator<Item = (u32, &str, [u64; 2])> {
    let rules = policy.limits().iter().zip(0..);
    let paced = rules.filter(|(rule, _)| matches!(rule.limit, Limit::Paced { .. }));
    paced.map(|(rule, limit)| {
        let key = level_key(&format!("limit {}", rule.name));
        (limit, &*rule.name, key)
    })
}

/// The places of buckets, with their keys.
#[derive(Debug, Default)]
struct LevelPlaces {
    /// The first place.
    first: u32,
    used: HashMap<BucketId, (u32, [u64; 2])>,
    /// Places of buckets that are gone.
    free: Vec<u32>,
    /// A bucket had no place.
    is_exceeded: bool,
}

impl LedgerPlan {
    /// The plan for this policy, with room for at least this number of calls: those of a policy before may be more than
    /// this one allows.
    pub(super) fn of(policy: &Policy, calls: u32, secret: TicketSecret) -> Self {
        let places = policy.capacity().min(PLACES_MAX);
        let paces: Vec<_> = pace_keys(policy).map(|(at, _, key)| (at, key)).collect();
        let mut layout = Layout {
            levels: LEVELS_MAX + paces.len() as u32,
            places,
            ..Layout::default()
        };
        let (mut rings, mut stamps) = (Vec::new(), Vec::new());
        // The first name is of all functions without a limit of their own.
        let mut functions: Vec<Arc<str>> = vec!["".into()];
        for rule in policy.limits() {
            if let Scope::Function(function) = &rule.scope
                && !functions.contains(function)
            {
                functions.push(Arc::clone(function));
            }
            rings.push(match rule.limit {
                Limit::Window {
                    max,
                    length,
                    guard,
                    stamp,
                    ..
                } => {
                    if !stamps.contains(&stamp) {
                        stamps.push(stamp);
                    }
                    layout.windows.push(WindowRegion {
                        name: (&*rule.name).into(),
                        max,
                        length: nanos(length + guard),
                    });
                    Some(layout.windows.len() - 1)
                }
                Limit::Outstanding { .. } | Limit::Paced { .. } => None,
            });
        }
        if functions.len() > 1 {
            // A call that may be of any of them has drawn from all.
            functions.push(ANY_FUNCTION.into());
        }
        let at_once = policy.limits().iter().filter_map(|rule| match rule.limit {
            Limit::Outstanding { max } if rule.scope == Scope::Every => Some(max),
            _ => None,
        });
        let at_once = at_once.min().unwrap_or(CALLS_MAX);
        layout.calls = at_once.max(calls).min(CALLS_MAX);
        layout.functions = functions.iter().map(|it| (&**it).into()).collect();
        let classes = policy.classes().iter();
        layout.classes = classes.map(|it| (&*it.name).into()).collect();
        Self {
            layout,
            rings,
            stamps,
            paces,
            secret,
        }
    }

    /// Words that the ledger needs.
    ///
    /// # Errors
    /// If no ledger may be as large.
    pub fn words(&self) -> Result<usize, TooLarge> {
        self.layout.words()
    }

    fn functions(&self) -> impl Iterator<Item = Arc<str>> {
        self.layout.functions.iter().map(|it| (&**it).into())
    }
}

impl LevelPlaces {
    /// The place of a bucket, which gets one if there is room.
    fn place(&mut self, id: BucketId, key: impl FnOnce() -> [u64; 2]) -> Option<(u32, [u64; 2])> {
        if let Some(&place) = self.used.get(&id) {
            return Some(place);
        }
        let used = self.used.len() as u32;
        let at = match self.free.pop() {
            Some(at) => at,
            None if used < LEVELS_MAX => self.first + used,
            None => return None,
        };
        self.used.insert(id, (at, key()));
        Some((at, self.used[&id].1))
    }

    /// The place that a bucket had.
    fn remove(&mut self, id: BucketId) -> Option<u32> {
        let (at, _) = self.used.remove(&id)?;
        self.free.push(at);
        Some(at)
    }
}

impl GateLedger {
    /// Begins a ledger in this memory, without a call.
    ///
    /// # Errors
    /// If no ledger may be as large.
    pub fn create(
        memory: MappedFile,
        plan: LedgerPlan,
        boot: Boot,
        clock: Clock,
    ) -> Result<Self, TooLarge> {
        Ok(Self {
            ledger: Ledger::create(
                memory,
                &plan.layout,
                boot,
                std::process::id(),
                plan.secret.0,
            )?,
            clock,
            calls: vec![None; plan.layout.calls as usize],
            functions: FunctionTable::new(plan.functions(), FunctionTable::default()),
            levels: LevelPlaces {
                first: plan.paces.len() as u32,
                ..LevelPlaces::default()
            },
            plan,
            promises: PromiseRows::default(),
            beyond: HashSet::default(),
            events: Vec::new(),
        })
    }

    /// How long most calls of a function take; 0 if that is not known.   milliseconds
    pub(super) fn usual_service_ms(&self, function: &str) -> u32 {
        self.functions.usual_of(function)
    }

    /// Notes that a client is promised a place.
    pub(super) fn keep_place(&mut self, digest: CallDigest, place: &KeptPlace) {
        let rows = &mut self.promises;
        let used = rows.used.len() as u32;
        let row = match rows.free.pop() {
            Some(row) => row,
            None if used < self.plan.layout.places => used,
            None => return,
        };
        rows.used.insert(digest, row);
        let promised = PromisedPlace {
            digest: digest.0,
            arrived: self.clock.boot_time(place.arrived),
            until: self.clock.boot_time(place.until),
            limited: place.lane == Lane::Limited,
        };
        self.ledger.promise(row, &promised);
    }

    /// A promised place is used, or its time is over.
    pub(super) fn forget_place(&mut self, digest: CallDigest) {
        if let Some(row) = self.promises.used.remove(&digest) {
            self.promises.free.push(row);
            self.ledger.forget_promise(row);
        }
    }

    /// Whether it has the regions of this plan.
    pub(super) fn fits(&self, plan: &LedgerPlan) -> bool {
        self.plan == *plan
    }

    /// Most calls that it has room for.
    pub(super) fn calls_max(&self) -> u32 {
        self.plan.layout.calls
    }

    /// Whether more happens than it has room for.
    pub(super) fn is_exceeded(&self) -> bool {
        self.levels.is_exceeded || !self.beyond.is_empty()
    }

    /// Goes on with the times of functions that this ledger has measured.
    pub(super) fn keep_times(&mut self, before: &mut Self) {
        let times = std::mem::take(&mut before.functions);
        self.functions = FunctionTable::new(self.plan.functions(), times);
    }

    /// The next process finds that another ledger has everything.
    pub(super) fn move_on(&self) {
        self.ledger.move_on();
    }

    /// The next process finds that nothing is known.
    pub(super) fn void(&self) {
        self.ledger.void();
    }

    /// Notes what the scheduler has done since it was asked last.
    #[inline]
    pub(super) fn follow<T>(
        &mut self,
        scheduler: &mut Scheduler<T>,
        owners: &HashMap<u32, CallOwner>,
        now: Timestamp,
    ) {
        if !scheduler.has_events() {
            return;
        }
        let mut events = std::mem::take(&mut self.events);
        scheduler.swap_events(&mut events);
        for &event in &events {
            self.note(event, scheduler, owners, now);
        }
        events.clear();
        self.events = events;
    }

    fn note<T>(
        &mut self,
        event: LedgerEvent,
        scheduler: &Scheduler<T>,
        owners: &HashMap<u32, CallOwner>,
        now: Timestamp,
    ) {
        match event {
            LedgerEvent::Admitted { place } => {
                // If it has ended since, its departures follow, and nothing else counts.
                if let Some((call, since)) = scheduler.running(place) {
                    let server = scheduler.server_at(place);
                    self.admit(place, (call, server), since, owners.get(&place));
                    self.note_level(scheduler, call.bucket, now);
                    self.note_paces(scheduler, now);
                }
            }
            LedgerEvent::Departed { limit, at, cost } => {
                if let Some(ring) = self.plan.rings[limit as usize] {
                    self.ledger.depart(ring, self.clock.boot_time(at), cost);
                }
            }
            LedgerEvent::Stamped { place, stamp } => {
                if self.plan.stamps.contains(&stamp) && self.has(place) {
                    self.ledger.advance(place, stage(stamp));
                }
            }
            LedgerEvent::Ended { place, .. } if self.beyond.remove(&place) => {
                if !self.is_exceeded() {
                    self.ledger.resume();
                }
            }
            LedgerEvent::Ended { place, took } => {
                if let Some(noted) = self.calls.get_mut(place as usize).and_then(Option::take) {
                    self.ledger.end(place);
                    // It may have been charged more than the estimate.
                    self.note_level(scheduler, noted.bucket, now);
                    if let Some(took) = took {
                        self.functions.add(noted.function, took);
                    }
                }
            }
        }
    }

    /// Notes the job that the call in this place has begun.
    pub(super) fn begin_job(&mut self, place: u32, job: JobRecord) {
        if self.has(place) {
            self.ledger.begin_job(place, job);
        }
    }

    fn has(&self, place: u32) -> bool {
        matches!(self.calls.get(place as usize), Some(Some(_)))
    }

    fn admit(
        &mut self,
        place: u32,
        (call, server): (&Call, Option<ServerNumber>),
        since: Timestamp,
        owner: Option<&CallOwner>,
    ) {
        let Some(noted) = self.calls.get_mut(place as usize) else {
            self.beyond.insert(place);
            self.ledger.exceed();
            return;
        };
        let function = self.functions.find(&call.function);
        *noted = Some(NotedCall {
            bucket: call.bucket,
            function,
        });
        let (carried, foreign) = match owner {
            None => (None, None),
            Some(CallOwner::Before(hold)) => (Some(hold), None),
            Some(CallOwner::Peer(id)) => (None, NonZeroU64::new(id.0)),
        };
        let held_since = carried.map(|it| self.clock.boot_time(it.since));
        let admission = Admission {
            at: self.clock.boot_time(since),
            function: function.name,
            class: call.class.0 as u16,
            cost: call.cost.get(),
            held_since: held_since.and_then(NonZeroU64::new),
            tag: tag_of(call.backend, server),
            usual_ms: carried.map_or_else(|| self.functions.usual_ms(function), |it| it.usual_ms),
            foreign,
        };
        self.ledger.admit(place, &admission);
    }

    fn note_level<T>(
        &mut self,
        scheduler: &Scheduler<T>,
        bucket: Option<BucketId>,
        now: Timestamp,
    ) {
        let Some(id) = bucket else { return };
        let Some((tokens, at)) = scheduler.bucket_level(now, id) else {
            return;
        };
        let key = || {
            let name = scheduler.bucket_name(id);
            level_key(name.map_or("", |name| name))
        };
        match self.levels.place(id, key) {
            Some((place, key)) => {
                let at = self.clock.boot_time(at);
                self.ledger.set_level(place, key, tokens, at);
            }
            None => {
                self.levels.is_exceeded = true;
                self.ledger.exceed();
            }
        }
    }

    fn note_paces<T>(&mut self, scheduler: &Scheduler<T>, now: Timestamp) {
        for (place, &(limit, key)) in (0..).zip(&self.plan.paces) {
            if let Some((tokens, at)) = scheduler.pace_level(now, limit) {
                let at = self.clock.boot_time(at);
                self.ledger.set_level(place, key, tokens, at);
            }
        }
    }

    /// Notes everything that is in force now, in a ledger without a call. `owners` has the calls that are
    /// not of this process, by their places.
    pub(super) fn note_all<T>(
        &mut self,
        scheduler: &mut Scheduler<T>,
        owners: &HashMap<u32, CallOwner>,
        jobs: &HashMap<u32, JobRecord>,
        now: Timestamp,
    ) {
        scheduler.events().for_each(drop);
        for (limit, ring) in self.plan.rings.clone().into_iter().enumerate() {
            let Some(ring) = ring else { continue };
            for (at, cost) in scheduler.window_departures(limit as u32) {
                self.ledger.depart(ring, self.clock.boot_time(at), cost);
            }
        }
        for place in scheduler.places() {
            if let Some((call, since)) = scheduler.running(place) {
                let server = scheduler.server_at(place);
                self.admit(place, (call, server), since, owners.get(&place));
                for stamp in scheduler.stamps(place) {
                    if self.has(place) {
                        self.ledger.advance(place, stage(stamp));
                    }
                }
                if let Some(job) = jobs.get(&place) {
                    self.begin_job(place, *job);
                }
            }
        }
        self.note_paces(scheduler, now);
        // Also of buckets that no call is charged to now.
        for id in scheduler.bucket_ids() {
            self.note_level(scheduler, Some(id), now);
        }
    }

    /// A bucket is gone.
    pub(super) fn forget_level(&mut self, id: BucketId) {
        if let Some(place) = self.levels.remove(id) {
            self.ledger.forget_level(place);
        }
    }
}

fn stage(stamp: WindowStamp) -> CallStage {
    match stamp {
        WindowStamp::Sent => CallStage::Sent,
        WindowStamp::Replied => CallStage::Replied,
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests serve no calls")]
mod tests {
    use tempfile::NamedTempFile;
    use tidegate_ledger::{Void, read};
    use tidegate_limits::policy::{ClassShare, LimitRule, Postpone, WhenFull};
    use tidegate_limits::scheduler::Outcome;

    use super::*;

    const BOOT: Boot = Boot([1, 2]);
    const SECRET: TicketSecret = TicketSecret([3, 4]);

    fn policy(at_once: u32) -> Policy {
        let rule = LimitRule {
            name: "workers".into(),
            scope: Scope::Every,
            limit: Limit::Outstanding { max: at_once },
            reserve: None,
        };
        let classes = vec![ClassShare::new("", 1)];
        Policy::new(vec![rule], 1, WhenFull::Refuse, Postpone::InTurn, classes)
            .expect("it is sound")
    }

    /// A scheduler with its ledger, in a file.
    struct Noted {
        scheduler: Scheduler<()>,
        ledger: GateLedger,
        clock: Clock,
        file: NamedTempFile,
    }

    impl Noted {
        fn new(plan: LedgerPlan, at_once: u32) -> Self {
            let file = NamedTempFile::new().expect("a file");
            let words = plan.words().expect("it is small");
            let memory = MappedFile::create(file.as_file(), words).expect("it is mapped");
            let clock = Clock::start();
            let mut scheduler = Scheduler::new(policy(at_once));
            scheduler.keep_events();
            let ledger = GateLedger::create(memory, plan, BOOT, clock);
            Self {
                scheduler,
                ledger: ledger.expect("it is small"),
                clock,
                file,
            }
        }

        fn begin(&mut self) -> tidegate_limits::Hold {
            let now = self.clock.now();
            let hold = self.scheduler.run_at_once(now, Call::new("any", now));
            let hold = hold.unwrap_or_else(|_| panic!("there is room"));
            self.ledger
                .follow(&mut self.scheduler, &HashMap::default(), now);
            hold
        }

        fn end(&mut self, hold: tidegate_limits::Hold) {
            let now = self.clock.now();
            self.scheduler.finish(now, hold, Outcome::Served, None);
            self.ledger
                .follow(&mut self.scheduler, &HashMap::default(), now);
        }

        /// The calls that the next process finds.
        fn left(&self) -> Result<usize, Void> {
            let bytes = std::fs::read(self.file.path()).expect("it is there");
            read(&bytes, BOOT, u64::MAX).map(|carried| carried.calls.len())
        }
    }

    #[test]
    fn while_there_are_more_calls_than_places_the_next_process_finds_only_that() {
        let at_once = CALLS_MAX + 10;
        let plan = LedgerPlan::of(&policy(at_once), 0, SECRET);
        assert_eq!(plan.layout.calls, CALLS_MAX);
        let mut noted = Noted::new(plan, at_once);
        let mut holds: Vec<_> = (0..CALLS_MAX).map(|_| noted.begin()).collect();
        assert_eq!(noted.left(), Ok(CALLS_MAX as usize));
        let beyond = [noted.begin(), noted.begin()];
        assert!(noted.ledger.is_exceeded());
        assert_eq!(noted.left(), Err(Void::Exceeded));
        noted.end(holds.pop().expect("there are many"));
        let [one, other] = beyond;
        noted.end(one);
        assert_eq!(noted.left(), Err(Void::Exceeded), "one is still beyond");
        noted.end(other);
        assert!(!noted.ledger.is_exceeded());
        assert_eq!(noted.left(), Ok(CALLS_MAX as usize - 1));
    }

    #[test]
    fn a_ledger_has_room_for_the_calls_that_a_policy_before_allowed() {
        let plan = LedgerPlan::of(&policy(2), 5, SECRET);
        assert_eq!(plan.layout.calls, 5);
        let plan = LedgerPlan::of(&policy(7), 5, SECRET);
        assert_eq!(plan.layout.calls, 7);
    }

    #[test]
    fn each_bucket_has_a_place_as_long_as_there_is_one() {
        let mut levels = LevelPlaces::default();
        for id in 0..LEVELS_MAX {
            let number = u64::from(id);
            let place = levels.place(BucketId(number), || [1, number]);
            assert_eq!(place.map(|(place, _)| place), Some(id));
        }
        assert_eq!(
            levels.place(BucketId(u64::from(LEVELS_MAX)), || [1, 2]),
            None
        );
        assert_eq!(levels.remove(BucketId(7)), Some(7));
        let place = levels.place(BucketId(u64::from(LEVELS_MAX)), || [1, 2]);
        assert_eq!(place.map(|(place, _)| place), Some(7));
    }
}
