//! The state and the rules as JSON.

use crate::book::Split;
use serde_json::{Value, json};
use tidegate_limits::Timestamp;

use super::PageState;
use crate::server::{Frees, LeaseNow, ResourceNow, ServerRole, ServerStatus, Template, Templates};
use crate::wire::Epoch;
use crate::wire::algorithm::Kind;

/// Mastership, resources, and their leases, as far as they were copied.
pub(super) fn leases(shown: &PageState, status: &ServerStatus) -> String {
    let epoch = shown.service.epoch();
    let resources: Vec<_> = status
        .resources
        .iter()
        .map(|one| resource(epoch, one))
        .collect();
    let (is_master, master, since) = match &status.standing {
        ServerRole::Master { since } => {
            (true, Some(status.id.clone()), Some(seconds(epoch, *since)))
        }
        ServerRole::Other { master } => (false, master.clone(), None),
    };
    let mut counts = json!(status.counts);
    counts["redirected"] = shown.service.redirected().into();
    let unmatched: Vec<_> = status
        .unmatched
        .iter()
        .map(|(id, times)| json!({"resource_id": id, "requests": times}))
        .collect();
    let state = json!({
        "server_id": status.id,
        "time_seconds": seconds(epoch, status.at),
        "mastership": {"is_master": is_master, "master": master, "since_seconds": since},
        "holders": status.holders,
        "resources": resources,
        "resources_left_out": status.resources_left_out,
        "unmatched": unmatched,
        "counts": counts,
    });
    text(&state)
}

fn resource(epoch: Epoch, of: &ResourceNow) -> Value {
    let leases: Vec<_> = of.leases.iter().map(|it| lease(epoch, it)).collect();
    json!({
        "resource_id": of.id,
        "template": of.template,
        "algorithm": name_of(of.split),
        "capacity": of.capacity.get(),
        "has": of.held.get(),
        "wants": of.wanted.get(),
        "clients": of.clients,
        "safe_capacity": of.safe_capacity,
        "reserved_capacity": of.reserved.get(),
        "safe_shares_used": of.reserved_clients,
        "refresh_interval_seconds": of.refresh.as_secs(),
        "learning_until_seconds": of.learning_until.map(|at| seconds(epoch, at)),
        "leased_until_seconds": of.leased_until.map(|at| seconds(epoch, at)),
        "leases": leases,
        "leases_left_out": of.leases_total.saturating_sub(of.leases.len()),
    })
}

fn lease(epoch: Epoch, of: &LeaseNow) -> Value {
    json!({
        "holder": of.holder,
        "is_server": of.server,
        "clients": of.clients,
        "has": of.capacity,
        "wants": of.wants,
        "expires_seconds": seconds(epoch, of.expires),
    })
}

/// The rules, with the names of Doorman's own form.
pub(super) fn rules(templates: &Templates) -> String {
    let resources: Vec<_> = templates.in_order().iter().map(rule).collect();
    text(&json!({"resources": resources}))
}

fn rule(of: &Template) -> Value {
    let algorithm = &of.algorithm;
    let (frees, after) = match algorithm.frees {
        Frees::AtOnce => ("at_once", 0.0),
        Frees::Confirmed(after) => ("confirmed", after.as_secs_f64()),
    };
    json!({
        "identifier_glob": of.glob.as_str(),
        "capacity": of.capacity.get(),
        "safe_capacity": of.safe_capacity,
        "description": of.description,
        "algorithm": {
            "kind": name_of(algorithm.split),
            "lease_length": algorithm.lease.as_secs(),
            "refresh_interval": algorithm.refresh.as_secs(),
            "learning_mode_duration": algorithm.learning.as_secs(),
            "decay_factor": algorithm.decay,
            "priority_bands": algorithm.by_priority,
            "frees": frees,
            "frees_after_seconds": after,
            "reserved_clients": algorithm.reserve.map(|it| it.clients.get()),
            "safe_share": algorithm.reserve.map(|it| it.share.get()),
        },
    })
}

/// The name of a split on the wire.
pub(super) fn name_of(split: Split) -> &'static str {
    Kind::from(split).as_str_name()
}

/// Since 1970.
fn seconds(epoch: Epoch, at: Timestamp) -> f64 {
    epoch.millis(at) as f64 / 1e3
}

fn text(value: &Value) -> String {
    let mut text = serde_json::to_string(value).expect("a value is JSON");
    text.push('\n');
    text
}
