//! How a replay gives a scheduler again what it was given besides calls.

use std::sync::Arc;

use tidegate_limits::call::QuotaKey;
use tidegate_limits::{Scheduler, Timestamp};

use super::given::{Event, Key};
use super::names::Names;
use super::setup::Setup;

/// Gives an event to a scheduler, except a config and costs.
pub(super) fn give(
    scheduler: &mut Scheduler<u32>,
    now: Timestamp,
    event: &Event,
    setup: &Setup,
    names: &Names,
) {
    let at = |scheduler: &Scheduler<u32>, key: Key| scheduler.quota_ref(&quota_key(key, names));
    match event {
        Event::Share(share) => scheduler.set_share(now, *share),
        Event::Supply(it) => {
            scheduler.supply(now, names.get(it.limit), it.by, it.supply);
        }
        Event::Fill(it) => {
            scheduler.supply_fill(now, it.0, it.1);
        }
        Event::Bucket(it) => {
            if let Some(rule) = setup.rule(&it.1) {
                // There are no more than the sidecar had.
                let _ = scheduler.set_bucket(now, it.0, rule);
            }
        }
        Event::BucketGone(id) => {
            scheduler.remove_bucket(now, *id, |_| None);
        }
        Event::Quotas => {
            let (rules, keys_max) = setup.quotas();
            scheduler.set_quotas(now, rules, keys_max);
        }
        Event::QuotaRule(it) => {
            let (key, figures) = &**it;
            let of = quota_key(*key, names);
            if let Some(at) = at(scheduler, *key) {
                let rule = figures.and_then(|figures| setup.quota_rule(&of, figures));
                scheduler.set_quota_rule(now, at, rule);
            }
        }
        Event::QuotaNodes(nodes) => scheduler.set_quota_nodes(*nodes),
        Event::QuotaPast(from) => scheduler.set_quota_past(now, *from),
        Event::StoreTime(time) => scheduler.learn_store_time(now, **time),
        Event::QuotaAnswer(it) => {
            // It came with the answer. Several at one instant have the same.
            scheduler.learn_store_time(now, it.time);
            if let Some(at) = at(scheduler, it.key) {
                scheduler.answer_quota(now, at, it.question, it.reply, it.entropy);
            }
        }
        Event::QuotaChanged(key) => {
            if let Some(at) = at(scheduler, **key) {
                scheduler.tell_quota(now, at);
            }
        }
        Event::StoreBack => scheduler.store_is_back(now),
        Event::Start(_)
        | Event::Reload(_)
        | Event::Checkpoint(_)
        | Event::Costs(_)
        | Event::Woke
        | Event::End => {}
    }
}

/// The key in the words of the scheduler.
pub(super) fn quota_key(key: Key, names: &Names) -> QuotaKey {
    QuotaKey {
        quota: Arc::clone(names.get(key.quota)),
        key: Arc::clone(names.get(key.key)),
    }
}
