//! How a replay gives a scheduler again what it was given besides calls.

use std::sync::Arc;

use tidegate_limits::call::{Backend, BucketId, Cost, QuotaKey};
use tidegate_limits::policy::WindowStamp;
use tidegate_limits::scheduler::{BucketRule, Outcome};
use tidegate_limits::{Call, Hold, Scheduler, Timestamp};
use tidegate_record::kind::{CarriedCallFields, CarriedFields};

use super::given::{LoggedKey, SchedulerInput};
use super::names::NameTable;
use super::setup::Setup;

/// The calls of a process before that may still be at the backend.
#[derive(Default)]
pub(super) struct CarriedHolds(Vec<Hold>);

impl CarriedHolds {
    /// In the order of `Gate::carry`.
    fn carry(
        &mut self,
        scheduler: &mut Scheduler<u32>,
        now: Timestamp,
        carried: &CarriedFields,
        setup: &Setup,
    ) {
        if carried.full {
            scheduler.carry_full_windows(now);
        }
        for window in &carried.windows {
            for &(at, cost) in &window.departures {
                if let Some(cost) = Cost::new(cost) {
                    let at = Timestamp::from_nanos(at);
                    scheduler.carry_departure(&window.limit, at, cost);
                }
            }
        }
        for level in &carried.levels {
            let (id, at) = (BucketId(level.bucket), Timestamp::from_nanos(level.at_ns));
            match level.limit.as_str() {
                "" => scheduler.carry_tokens(now, id, level.tokens, at),
                limit => scheduler.carry_pace(now, limit, level.tokens, at),
            };
        }
        for fields in &carried.calls {
            let since = Timestamp::from_nanos(fields.since_ns);
            let call = call(fields, since, setup);
            let stamps = [
                (fields.sent, WindowStamp::Sent),
                (fields.replied, WindowStamp::Replied),
            ];
            let departed = stamps
                .into_iter()
                .filter_map(|(has, stamp)| has.then_some(stamp));
            let departed: Vec<_> = departed.collect();
            self.0
                .push(scheduler.carry_call(now, since, call, &departed));
        }
        let done = carried.done.min(self.0.len());
        for hold in self.0.drain(..done) {
            scheduler.finish(now, hold, Outcome::Failed, None);
        }
    }
}

fn call(fields: &CarriedCallFields, since: Timestamp, setup: &Setup) -> Call {
    Call::new(&*fields.function, since)
        .backend(Backend(fields.backend))
        .class(setup.class(&fields.class))
        .cost(Cost::new(fields.cost).unwrap_or(Cost::ONE))
}

/// Gives an event to a scheduler, except a config and costs.
pub(super) fn give(
    scheduler: &mut Scheduler<u32>,
    now: Timestamp,
    event: &SchedulerInput,
    setup: &Setup,
    names: &NameTable,
    carried: &mut CarriedHolds,
) {
    let at =
        |scheduler: &Scheduler<u32>, key: LoggedKey| scheduler.quota_ref(&quota_key(key, names));
    match event {
        SchedulerInput::Share(share) => scheduler.set_share(now, *share),
        SchedulerInput::Supply(it) => {
            scheduler.supply(now, names.get(it.limit), it.by, it.supply);
        }
        SchedulerInput::Fill(it) => {
            scheduler.supply_fill(now, it.0, it.1);
        }
        SchedulerInput::Bucket(it) => {
            set_bucket(scheduler, now, it.0, setup.rule(&it.1));
        }
        SchedulerInput::BucketGone(id) => {
            scheduler.remove_bucket(now, *id, |_| None);
        }
        SchedulerInput::Carried(it) => carried.carry(scheduler, now, it, setup),
        SchedulerInput::Quotas => {
            let (rules, keys_max) = setup.quotas();
            scheduler.set_quotas(now, rules, keys_max);
        }
        SchedulerInput::QuotaRule(it) => {
            let (key, figures) = &**it;
            let of = quota_key(*key, names);
            if let Some(at) = at(scheduler, *key) {
                let rule = figures.and_then(|figures| setup.quota_rule(&of, figures));
                scheduler.set_quota_rule(now, at, rule);
            }
        }
        SchedulerInput::QuotaNodes(nodes) => scheduler.set_quota_nodes(*nodes),
        SchedulerInput::QuotaPast(from) => scheduler.set_quota_past(now, *from),
        SchedulerInput::StoreTime(time) => scheduler.learn_store_time(now, **time),
        SchedulerInput::QuotaAnswer(it) => {
            // It came with the answer. Several at one instant have the same.
            scheduler.learn_store_time(now, it.time);
            if let Some(at) = at(scheduler, it.key) {
                scheduler.answer_quota(now, at, it.question, it.reply, it.entropy);
            }
        }
        SchedulerInput::QuotaChanged(key) => {
            if let Some(at) = at(scheduler, **key) {
                scheduler.tell_quota(now, at);
            }
        }
        SchedulerInput::StoreBack => scheduler.store_is_back(now),
        SchedulerInput::Start(_)
        | SchedulerInput::Reload(_)
        | SchedulerInput::Checkpoint(_)
        | SchedulerInput::Costs(_)
        | SchedulerInput::Woke
        | SchedulerInput::End => {}
    }
}

/// Makes or changes a bucket as `Gate::set_bucket` does. Without a rule it holds no call.
pub(super) fn set_bucket(
    scheduler: &mut Scheduler<u32>,
    now: Timestamp,
    id: BucketId,
    rule: Option<BucketRule>,
) {
    if let Some(rule) = rule {
        // There are no more than the sidecar had.
        let _ = scheduler.set_bucket(now, id, rule);
    } else {
        scheduler.remove_bucket(now, id, |call| call.bucket);
    }
}

/// The key in the words of the scheduler.
pub(super) fn quota_key(key: LoggedKey, names: &NameTable) -> QuotaKey {
    QuotaKey {
        quota: Arc::clone(names.get(key.quota)),
        key: Arc::clone(names.get(key.key)),
    }
}
