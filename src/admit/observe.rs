//! Whether limits only observe, and the shadow that they have while they do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::call::BucketId;
use tidegate_limits::policy::LimitRule;
use tidegate_limits::quota::StoreTime;
use tidegate_limits::scheduler::{
    BucketNow, BucketRule, LimitNow, QuotaRef, QuotaRule, Supplier, Supply, SupplyShare,
};
use tidegate_limits::{Call, Class, Fill, Policy, Scheduler, Timestamp};

use super::journal::SchedulerEvent;
use super::policy;
use super::settings::GateSettings;
use super::shadow::{CallEnd, QuotaAsks, Shadow, ShadowDecision, ShadowId};
use crate::call::{LimitMode, Would, WouldEnd};

/// How far the shadow may be behind while calls would wait. Catching up takes the lock of the gate,
/// so it must not have much to do at once.
const BEHIND_MAX: Duration = Duration::from_millis(100);

/// The limits that only observe, their shadow, and everything that a shadow needs when it begins.
pub(super) struct Observer {
    seed: u64,
    /// With every limit.
    policy: Policy,
    /// The limits that only observe.
    names: Vec<Arc<str>>,
    buckets: BTreeMap<BucketId, ObservedBucket>,
    /// The buckets by the names of their rules.
    named: BTreeMap<Arc<str>, BucketId>,
    supplies: BTreeMap<(Arc<str>, Supplier), Supply>,
    share: SupplyShare,
    quotas: ObservedQuotas,
    last_id: u64,
    /// How many there have been.
    shadows: u32,
    shadow: Option<Box<Shadow>>,
    /// The last decisions of a shadow that has ended.
    left: Vec<ShadowDecision>,
    /// The keys of quotas of shadows that have ended.
    forgotten: Vec<(u32, QuotaRef)>,
}

struct ObservedBucket {
    rule: BucketRule,
    mode: LimitMode,
    fill: Supply<Fill>,
    /// Calls that it would have delayed longest of all limits, if it only observes.
    delayed: u64,
}

/// The quotas that only observe.
#[derive(Default)]
struct ObservedQuotas {
    rules: BTreeMap<Arc<str>, QuotaRule>,
    keys_max: usize,
    nodes: u32,
    time: StoreTime,
    untouched_from: Option<Duration>,
    /// Of shadows that have ended.
    shares_until: Duration,
}

/// An event of a call at the gate, after its first question.
pub(super) enum CallEvent {
    /// The bytes of the call left.
    Sent {
        /// When the turn of the call was.
        admitted: Timestamp,
    },
    /// The first byte of the reply came.
    Replied {
        /// When the turn of the call was.
        admitted: Timestamp,
    },
    /// The call may wait until another moment, in another class.
    Waits {
        /// The moment; `None` without a bound.
        deadline: Option<Timestamp>,
        /// The class and its name.
        class: (Class, Arc<str>),
    },
    /// The call is over.
    Ended(CallEnd),
}

/// The state of the shadow.
#[derive(Clone, Debug, Default)]
pub struct ObservedNow {
    /// Calls that would wait, also at the door.
    pub depth: usize,
    /// The most that would have waited at once since observing began.
    pub peak: usize,
    /// The limits that only observe, as they would be.
    pub limits: Vec<(LimitRule, LimitNow)>,
}

impl Observer {
    pub(super) fn new(
        settings: &GateSettings,
        phase: Duration,
        seed: u64,
        began: Timestamp,
    ) -> Self {
        let mut this = Self {
            seed,
            policy: policy::of(settings, phase),
            names: policy::observed(settings),
            buckets: BTreeMap::new(),
            named: BTreeMap::new(),
            supplies: BTreeMap::new(),
            share: SupplyShare::FULL,
            quotas: ObservedQuotas::default(),
            last_id: 0,
            shadows: 0,
            shadow: None,
            left: Vec::new(),
            forgotten: Vec::new(),
        };
        this.begin_or_end(began);
        this
    }

    /// Takes new settings.
    pub(super) fn apply(&mut self, now: Timestamp, settings: &GateSettings, phase: Duration) {
        self.policy = policy::of(settings, phase);
        self.names = policy::observed(settings);
        let policy = &self.policy;
        if let Some(shadow) = &mut self.shadow {
            shadow.change(now, |calls| calls.apply(now, policy.clone()));
        }
        self.begin_or_end(now);
    }

    /// Changes the scheduler of the shadow, if there is one.
    fn in_shadow<R>(&mut self, now: Timestamp, change: impl FnOnce(&mut Scheduler<ShadowId>) -> R) {
        if let Some(shadow) = &mut self.shadow {
            shadow.change(now, change);
        }
    }

    /// There is a shadow while anything only observes.
    fn begin_or_end(&mut self, now: Timestamp) {
        let has_rules = !self.names.is_empty() || !self.quotas.rules.is_empty();
        let observes = has_rules || self.observes_buckets();
        if !observes {
            self.end(now);
        } else if self.shadow.is_none() {
            self.shadows += 1;
            self.shadow = Some(Box::new(self.begin(now)));
        }
    }

    fn begin(&self, now: Timestamp) -> Shadow {
        let mut shadow = Shadow::new(self.policy.clone(), self.seed, self.last_id, now);
        shadow.change(now, |calls| {
            for (id, bucket) in &self.buckets {
                // There are no more than the real scheduler has.
                let _ = calls.set_bucket(now, *id, bucket.rule.clone());
                calls.supply_fill(now, *id, bucket.fill);
            }
            for ((limit, by), supply) in &self.supplies {
                calls.supply(now, limit, *by, *supply);
            }
            calls.set_share(now, self.share);
            let quotas = &self.quotas;
            calls.set_quota_nodes(quotas.nodes);
            calls.learn_store_time(now, quotas.time);
            // A shadow before may have spent shares since.
            if let Some(from) = quotas.untouched_from.filter(|_| self.shadows == 1) {
                calls.set_quota_past(now, from);
            }
            calls.set_quotas(now, quotas.rules.clone(), quotas.keys_max);
        });
        shadow
    }

    /// The shadow ends, and so does the wait of every call in it.
    pub(super) fn end(&mut self, now: Timestamp) {
        if let Some(mut shadow) = self.shadow.take() {
            let until = shadow.scheduler().quota_shares_until();
            self.quotas.shares_until = self.quotas.shares_until.max(until);
            self.last_id = shadow.last_id();
            shadow.end(now);
            self.left.extend(shadow.take_decided());
            let forgotten = shadow.take_quota_questions().forgotten.into_iter();
            self.forgotten
                .extend(forgotten.map(|at| (self.shadows, at)));
        }
    }

    fn set_bucket(&mut self, now: Timestamp, id: BucketId, rule: &BucketRule, mode: LimitMode) {
        let before = self.forget_bucket(id);
        let fill = before.as_ref().map_or(Supply::Configured, |it| it.fill);
        let delayed = before.map_or(0, |it| it.delayed);
        self.named.insert(Arc::clone(&rule.name), id);
        let rule = rule.clone();
        if let Some(shadow) = &mut self.shadow {
            // There are fewer than there may be.
            let _ = shadow.change(now, |calls| calls.set_bucket(now, id, rule.clone()));
        }
        let bucket = ObservedBucket {
            rule,
            mode,
            fill,
            delayed,
        };
        self.buckets.insert(id, bucket);
        self.begin_or_end(now);
    }

    /// A bucket was removed. What would wait for it waits only for its other limits.
    fn remove_bucket(&mut self, now: Timestamp, id: BucketId) {
        self.forget_bucket(id);
        self.in_shadow(now, |calls| calls.remove_bucket(now, id, |_| None));
        self.begin_or_end(now);
    }

    fn forget_bucket(&mut self, id: BucketId) -> Option<ObservedBucket> {
        let bucket = self.buckets.remove(&id)?;
        // Two buckets may exchange their names.
        if self.named.get(&bucket.rule.name) == Some(&id) {
            self.named.remove(&bucket.rule.name);
        }
        Some(bucket)
    }

    fn observes_buckets(&self) -> bool {
        let mut buckets = self.buckets.values();
        buckets.any(|bucket| bucket.mode == LimitMode::Observe)
    }

    /// How fast a bucket fills, as its suppliers say.
    pub(super) fn fill_of(&self, id: BucketId) -> Supply<Fill> {
        let bucket = self.buckets.get(&id);
        bucket.map_or(Supply::Configured, |bucket| bucket.fill)
    }

    fn fill(&mut self, now: Timestamp, id: BucketId, supply: Supply<Fill>) {
        if let Some(bucket) = self.buckets.get_mut(&id) {
            bucket.fill = supply;
        }
        self.in_shadow(now, |calls| calls.supply_fill(now, id, supply));
    }

    /// Sets what a limit may give out. The calls that probe a backend are admitted by the real scheduler alone.
    fn supply(&mut self, now: Timestamp, limit: &str, by: Supplier, supply: Supply) {
        let key = (Arc::from(limit), by);
        match supply {
            Supply::Configured => _ = self.supplies.remove(&key),
            Supply::Capacity { .. } => _ = self.supplies.insert(key, supply),
        }
        self.in_shadow(now, |calls| calls.supply(now, limit, by, supply));
    }

    /// Every limit gives out this part of what it would.
    fn set_share(&mut self, now: Timestamp, share: SupplyShare) {
        self.share = share;
        self.in_shadow(now, |calls| calls.set_share(now, share));
    }

    /// Waiting calls may wait until another moment.
    pub(super) fn move_deadlines(
        &mut self,
        now: Timestamp,
        moved: impl Fn(Timestamp) -> Timestamp,
    ) {
        self.in_shadow(now, |calls| {
            calls.move_deadlines(|_, deadline| moved(deadline));
        });
    }

    /// The quotas that only observe. Their draws are real, so that the store has what all sidecars
    /// would spend together.
    pub(super) fn set_quotas(
        &mut self,
        now: Timestamp,
        rules: BTreeMap<Arc<str>, QuotaRule>,
        keys_max: usize,
    ) {
        self.in_shadow(now, |calls| calls.set_quotas(now, rules.clone(), keys_max));
        self.quotas.rules = rules;
        self.quotas.keys_max = keys_max;
        self.begin_or_end(now);
    }

    fn set_quota_nodes(&mut self, now: Timestamp, nodes: u32) {
        self.quotas.nodes = nodes;
        self.in_shadow(now, |calls| calls.set_quota_nodes(nodes));
    }

    fn set_quota_past(&mut self, now: Timestamp, from: Duration) {
        self.quotas.untouched_from = Some(from);
        if let Some(shadow) = self.shadow.as_mut().filter(|_| self.shadows == 1) {
            shadow.change(now, |calls| calls.set_quota_past(now, from));
        }
    }

    /// The end of the latest window that any own share was spent in.
    pub(super) fn quota_shares_until(&self) -> Duration {
        let shadow = self.shadow.as_ref();
        let until = shadow.map(|it| it.scheduler().quota_shares_until());
        self.quotas.shares_until.max(until.unwrap_or_default())
    }

    fn learn_store_time(&mut self, now: Timestamp, time: StoreTime) {
        self.quotas.time = time;
        self.in_shadow(now, |calls| calls.learn_store_time(now, time));
    }

    /// The shadow of this number, if it has not ended.
    pub(super) fn shadow(&mut self, number: u32) -> Option<&mut Shadow> {
        let shadow = self.shadow.as_deref_mut();
        shadow.filter(|_| number == self.shadows)
    }

    /// The shadow, and its number.
    pub(super) fn numbered(&mut self) -> Option<(u32, &mut Shadow)> {
        let shadow = self.shadow.as_deref_mut()?;
        Some((self.shadows, shadow))
    }

    /// Takes what the shadow has for the store of quotas, and the keys of shadows that have ended.
    pub(super) fn take_quota_questions(&mut self) -> (QuotaAsks, Vec<(u32, QuotaRef)>) {
        let shadow = self.shadow.as_mut();
        let asks = shadow.map_or_else(QuotaAsks::default, |it| it.take_quota_questions());
        let mut forgotten = std::mem::take(&mut self.forgotten);
        let now = asks.forgotten.iter().map(|&at| (self.shadows, at));
        forgotten.extend(now);
        (asks, forgotten)
    }

    /// Whether [`take_quota_questions`](Self::take_quota_questions) has anything to take.
    pub(super) fn asks_of_quotas(&self) -> bool {
        let shadow = self.shadow.as_ref();
        !self.forgotten.is_empty() || shadow.is_some_and(|it| it.scheduler().asks_of_quotas())
    }

    /// Takes an event of the gate: the shadow gets it too, and later shadows what is in force of it.
    pub(super) fn observe(&mut self, now: Timestamp, event: SchedulerEvent<'_>) {
        match event {
            SchedulerEvent::Supply { limit, by, supply } => self.supply(now, limit, by, supply),
            SchedulerEvent::Share(share) => self.set_share(now, share),
            SchedulerEvent::Bucket { id, rule, mode } => self.set_bucket(now, id, rule, mode),
            SchedulerEvent::BucketRemoved { id } => self.remove_bucket(now, id),
            SchedulerEvent::Fill { id, supply } => self.fill(now, id, supply),
            SchedulerEvent::QuotaNodes(nodes) => self.set_quota_nodes(now, nodes),
            SchedulerEvent::QuotaPast(from) => self.set_quota_past(now, from),
            SchedulerEvent::StoreTime(time) => self.learn_store_time(now, time),
            SchedulerEvent::StoreBack => {
                if let Some(shadow) = &mut self.shadow {
                    shadow.change(now, |calls| calls.store_is_back(now));
                }
            }
            // The shadow wakes by itself, and its quotas have keys of their own. Limits that only observe are not in
            // the ledger.
            SchedulerEvent::Woke
            | SchedulerEvent::Carried(_)
            | SchedulerEvent::CarriedFull
            | SchedulerEvent::CarriedDone(_)
            | SchedulerEvent::Quotas
            | SchedulerEvent::QuotaRule { .. }
            | SchedulerEvent::QuotaAnswer { .. }
            | SchedulerEvent::QuotaChanged { .. } => {}
        }
    }

    /// A call asks for its turn; `None` if nothing observes. `id` returns that of its line.
    #[inline]
    pub(super) fn begin_call(
        &mut self,
        now: Timestamp,
        call: &Call,
        class: &Arc<str>,
        id: impl FnOnce() -> u64,
    ) -> Option<ShadowId> {
        let shadow = self.shadow.as_mut()?;
        Some(shadow.begin_call(now, call.clone(), Arc::clone(class), id()))
    }

    /// Takes an event of a call. Returns what the call would have met, once it is over.
    #[inline]
    pub(super) fn observe_call(
        &mut self,
        now: Timestamp,
        id: Option<ShadowId>,
        event: CallEvent,
    ) -> Option<Would> {
        let (shadow, id) = self.shadow.as_mut().zip(id)?;
        match event {
            CallEvent::Sent { admitted } => shadow.sent(now, id, admitted),
            CallEvent::Replied { admitted } => shadow.replied(now, id, admitted),
            CallEvent::Waits { deadline, class } => shadow.wait_as(now, id, deadline, class),
            CallEvent::Ended(end) => return shadow.end_call(now, id, end),
        }
        None
    }

    /// Lets everything happen up to `now`.
    pub(super) fn advance(&mut self, now: Timestamp) {
        if let Some(shadow) = &mut self.shadow {
            shadow.advance(now);
        }
    }

    /// Whether there are decisions since the last time. Asked after each change of the gate, so it costs less
    /// than to take none.
    pub(super) fn has_decided(&self) -> bool {
        let shadow = self.shadow.as_ref();
        !self.left.is_empty() || shadow.is_some_and(|shadow| shadow.has_decided())
    }

    /// The decisions since the last time.
    pub(super) fn take_decided(&mut self) -> impl Iterator<Item = ShadowDecision> {
        let shadow = self.shadow.iter_mut();
        let decided = shadow.flat_map(|shadow| shadow.take_decided());
        let (named, buckets) = (&self.named, &mut self.buckets);
        self.left.drain(..).chain(decided).inspect(|decided| {
            let would = &decided.would;
            let limit = would.limit.as_ref();
            let limit = limit.filter(|_| would.ending == WouldEnd::Runs);
            let id = limit.and_then(|limit| named.get(limit));
            if let Some(bucket) = id.and_then(|id| buckets.get_mut(id))
                && bucket.mode == LimitMode::Observe
            {
                bucket.delayed += 1;
            }
        })
    }

    /// When the shadow must catch up.
    pub(super) fn due(&self) -> Option<Timestamp> {
        let since = self.shadow.as_ref()?.busy_since()?;
        Some(since + BEHIND_MAX)
    }

    /// Whether anything only observes.
    pub(super) fn is_on(&self) -> bool {
        self.shadow.is_some()
    }

    /// Whether this limit only observes.
    pub(super) fn has(&self, limit: &str) -> bool {
        self.names.iter().any(|name| **name == *limit)
    }

    /// Whether this quota only observes.
    pub(super) fn has_quota(&self, quota: &str) -> bool {
        self.quotas.rules.contains_key(quota)
    }

    /// The state of the shadow; `None` if nothing observes. [`advance`](Self::advance) it before.
    pub(super) fn now(&self) -> Option<ObservedNow> {
        let shadow = self.shadow.as_ref()?;
        let mut limits = shadow.limits_now();
        limits.retain(|(rule, _)| self.has(&rule.name));
        Some(ObservedNow {
            depth: shadow.depth(),
            peak: shadow.peak(),
            limits,
        })
    }

    /// A bucket that only observes, as it would be now.
    pub(super) fn bucket_now(&self, now: Timestamp, id: BucketId) -> Option<BucketNow> {
        let bucket = self.buckets.get(&id)?;
        let shadow = self
            .shadow
            .as_ref()
            .filter(|_| bucket.mode == LimitMode::Observe)?;
        shadow.scheduler().bucket_now(now, id)
    }

    /// The calls that a bucket would have delayed longest of all limits; 0 if it does not only observe.
    pub(super) fn would_have_delayed(&self, id: BucketId) -> u64 {
        self.buckets.get(&id).map_or(0, |bucket| bucket.delayed)
    }

    /// A limit that only observes, as it would be now.
    pub(super) fn limit_now(&self, limit: &str) -> Option<LimitNow> {
        let shadow = self.shadow.as_ref().filter(|_| self.has(limit))?;
        shadow.limit_now(limit)
    }
}
