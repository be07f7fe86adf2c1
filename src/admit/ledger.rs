//! Notes in a ledger what the gate must not forget when its process dies.
//!
//! Only calls that meet limits are in it. They are noted before the message that lets them go, so none is at the
//! backend that the ledger does not know.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use tidegate_ledger::{
    Admission, Boot, CallStage, Layout, Ledger, TooLarge, WindowRegion, level_key,
};
use tidegate_limits::call::BucketId;
use tidegate_limits::policy::{Scope, WindowStamp};
use tidegate_limits::scheduler::LedgerEvent;
use tidegate_limits::{Call, Limit, Policy, Scheduler, Timestamp};
use tidegate_mapping::MappedFile;
use tidegate_runtime::Clock;

use super::service_times::{FunctionTable, KnownFunction};

/// Most calls at once that a ledger notes. Their departures are noted in any case.
const CALLS_MAX: u32 = 1 << 16;

/// Most calls at once where no limit says how many calls there are at once: only the moments in windows count then.
const UNBOUNDED_CALLS_MAX: u32 = 1 << 12;

/// Most buckets whose levels a ledger notes.
const LEVELS_MAX: u32 = 1 << 10;

/// The ledger of a gate, and the places of its calls and buckets in it.
#[derive(Debug)]
pub struct GateLedger {
    ledger: Ledger<MappedFile>,
    clock: Clock,
    names: LedgerNames,
    functions: FunctionTable,
    /// By place, the calls that the ledger has.
    calls: Vec<Option<NotedCall>>,
    levels: LevelPlaces,
    /// Empty, for the next events.
    events: Vec<LedgerEvent>,
}

/// A call that the ledger has.
#[derive(Clone, Copy, Debug)]
struct NotedCall {
    bucket: Option<BucketId>,
    function: KnownFunction,
}

/// A call of a process before, until it is finished.
#[derive(Clone, Copy, Debug)]
pub(super) struct CarriedHold {
    /// Since when it has been held as such.
    pub(super) since: Timestamp,
    /// Until when it is held.
    pub(super) until: Timestamp,
    /// How long most such calls take; 0 if that is not known.   ms
    pub(super) usual_ms: u32,
}

/// The names by which the next process finds limits, functions and classes.
#[derive(Debug, PartialEq, Eq)]
struct LedgerNames {
    layout: Layout,
    /// The ring of each limit of the policy, if it is a window.
    rings: Vec<Option<usize>>,
    /// The moments at which calls count in any window: no other is worth a note.
    stamps: Vec<WindowStamp>,
}

/// The places of buckets, with their keys.
#[derive(Debug, Default)]
struct LevelPlaces {
    used: HashMap<BucketId, (u32, [u64; 2])>,
    /// Places of buckets that are gone.
    free: Vec<u32>,
}

impl LedgerNames {
    fn of(policy: &Policy) -> Self {
        let mut layout = Layout {
            levels: LEVELS_MAX,
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
        let at_once = policy.limits().iter().filter_map(|rule| match rule.limit {
            Limit::Outstanding { max } if rule.scope == Scope::Every => Some(max),
            _ => None,
        });
        let at_once = at_once.min().unwrap_or(UNBOUNDED_CALLS_MAX);
        layout.calls = at_once.min(CALLS_MAX);
        layout.functions = functions.iter().map(|it| (&**it).into()).collect();
        let classes = policy.classes().iter();
        layout.classes = classes.map(|it| (&*it.name).into()).collect();
        Self {
            layout,
            rings,
            stamps,
        }
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
        let next = self.used.len() as u32;
        let at = match self.free.pop() {
            Some(at) => at,
            None if next < LEVELS_MAX => next,
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
    /// Words that the ledger of a gate with this policy needs.
    ///
    /// # Errors
    /// If no ledger may be as large.
    pub fn words(policy: &Policy) -> Result<usize, TooLarge> {
        LedgerNames::of(policy).layout.words()
    }

    /// Begins a ledger in this memory, without a call.
    ///
    /// # Errors
    /// If no ledger may be as large.
    pub fn create(
        memory: MappedFile,
        policy: &Policy,
        boot: Boot,
        clock: Clock,
    ) -> Result<Self, TooLarge> {
        let names = LedgerNames::of(policy);
        Ok(Self {
            ledger: Ledger::create(memory, &names.layout, boot, std::process::id())?,
            clock,
            calls: vec![None; names.layout.calls as usize],
            functions: FunctionTable::new(names.functions(), FunctionTable::default()),
            names,
            levels: LevelPlaces::default(),
            events: Vec::new(),
        })
    }

    /// Whether it has the regions that this policy needs.
    pub(super) fn fits(&self, policy: &Policy) -> bool {
        self.names == LedgerNames::of(policy)
    }

    /// Goes on with the times of functions that this ledger has measured.
    pub(super) fn keep_times(&mut self, before: &mut Self) {
        let times = std::mem::take(&mut before.functions);
        self.functions = FunctionTable::new(self.names.functions(), times);
    }

    /// The next process finds that nothing is known.
    pub(super) fn void(&self) {
        self.ledger.void();
    }

    /// Notes what the scheduler has done since it was asked last.
    #[inline]
    pub(super) fn follow<T>(&mut self, scheduler: &mut Scheduler<T>, now: Timestamp) {
        if !scheduler.has_events() {
            return;
        }
        let mut events = std::mem::take(&mut self.events);
        scheduler.swap_events(&mut events);
        for &event in &events {
            self.note(event, scheduler, now);
        }
        events.clear();
        self.events = events;
    }

    fn note<T>(&mut self, event: LedgerEvent, scheduler: &Scheduler<T>, now: Timestamp) {
        match event {
            LedgerEvent::Admitted { place } => {
                // If it has ended since, its departures follow, and nothing else counts.
                if let Some((call, since)) = scheduler.running(place) {
                    self.admit(place, call, since, None);
                    self.note_level(scheduler, call.bucket, now);
                }
            }
            LedgerEvent::Departed { limit, at, cost } => {
                if let Some(ring) = self.names.rings[limit as usize] {
                    self.ledger.depart(ring, self.clock.boot_time(at), cost);
                }
            }
            LedgerEvent::Stamped { place, stamp } => {
                if self.names.stamps.contains(&stamp) && self.has(place) {
                    self.ledger.advance(place, stage(stamp));
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

    fn has(&self, place: u32) -> bool {
        matches!(self.calls.get(place as usize), Some(Some(_)))
    }

    fn admit(&mut self, place: u32, call: &Call, since: Timestamp, carried: Option<CarriedHold>) {
        let Some(noted) = self.calls.get_mut(place as usize) else {
            return;
        };
        let function = self.functions.find(&call.function);
        *noted = Some(NotedCall {
            bucket: call.bucket,
            function,
        });
        let held_since = carried.map(|it| self.clock.boot_time(it.since));
        let admission = Admission {
            at: self.clock.boot_time(since),
            function: function.name,
            class: call.class.0 as u16,
            cost: call.cost.get(),
            held_since: held_since.and_then(NonZeroU64::new),
            tag: u32::from(call.backend.0),
            usual_ms: carried.map_or_else(|| self.functions.usual_ms(function), |it| it.usual_ms),
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
        if let Some((place, key)) = self.levels.place(id, key) {
            self.ledger
                .set_level(place, key, tokens, self.clock.boot_time(at));
        }
    }

    /// Notes everything that is in force now, in a ledger without a call. `carried` has, by their places,
    /// the calls of processes before.
    pub(super) fn note_all<T>(
        &mut self,
        scheduler: &mut Scheduler<T>,
        carried: &HashMap<u32, CarriedHold>,
        now: Timestamp,
    ) {
        scheduler.events().for_each(drop);
        for (limit, ring) in self.names.rings.clone().into_iter().enumerate() {
            let Some(ring) = ring else { continue };
            for (at, cost) in scheduler.window_departures(limit as u32) {
                self.ledger.depart(ring, self.clock.boot_time(at), cost);
            }
        }
        for place in scheduler.places() {
            if let Some((call, since)) = scheduler.running(place) {
                self.admit(place, call, since, carried.get(&place).copied());
                for stamp in scheduler.stamps(place) {
                    if self.has(place) {
                        self.ledger.advance(place, stage(stamp));
                    }
                }
            }
        }
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
