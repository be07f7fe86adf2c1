//! The requests to the capacity server, and what each resource may use after its answers: a state
//! machine without clock, socket or randomness.
//!
//! Everything due is in one request, and one request is under way at a time. A resource is never
//! requested twice within the minimum interval, because the server would leave it out of its
//! answer. The only exception is a request that is known to be unanswered. Without answers the
//! pauses grow, and the leases expire by themselves: users check the time, not this.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_runtime::BackOff;

use super::entitlement::{AfterExpiry, Entitlement, LastLease, SafeCapacity, capacity, length};
use crate::wire;

/// The first pause without an answer.
const PAUSE_FIRST: Duration = Duration::from_millis(1_300);
/// Resources that will be due this soon are requested together with the due ones.
const TOGETHER: Duration = Duration::from_secs(1);
/// The most resources of one request; further ones follow in the next.
pub(super) const RESOURCES_PER_REQUEST: usize = 1000;
/// A demand that changed by this share is sent early.
const BIG_CHANGE: f64 = 0.25;
/// The longest refresh interval that is obeyed.
const REFRESH_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Every resource of one client.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    client_id: String,
    interval_min: Duration,
    resources: BTreeMap<Arc<str>, LeasedResource>,
    under_way: Option<SentRequest>,
    requests: u64,
    back_off: BackOff,
    /// The earliest moment of the next request.
    not_before: Timestamp,
}

#[derive(Clone, Debug)]
struct LeasedResource {
    phase: Phase,
    priority: i64,
    wants: f64,
    /// The amount that the user of a share admits and uses. The client reports this much as held, for as long as it
    /// is true.
    in_use: f64,
    /// The demand in the last request.
    told: Option<f64>,
    entitlement: Entitlement,
    /// When it should be requested; never earlier than the minimum interval allows.
    due: Timestamp,
    /// When a server saw it last, at the latest; while the answer is out, when it was sent.
    sent: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The resource is in use.
    Used,
    /// The resource is unused, and not released yet.
    Left,
    /// The resource is released. Kept until it may be requested again.
    Released,
}

#[derive(Clone, Debug)]
struct SentRequest {
    request: RequestId,
    sent: Timestamp,
    /// The resources, and when each was sent before.
    resources: Vec<(Arc<str>, Option<Timestamp>)>,
}

/// Tells requests apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestId(u64);

/// The options of a user that opens a resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceOpening {
    pub(super) priority: i64,
    pub(super) wants: f64,
    pub(super) after_expiry: AfterExpiry,
    pub(super) safe: Option<SafeCapacity>,
}

/// Why a request was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestFailure {
    /// The request reached no server that could have granted a lease.
    NotSeen,
    /// A server may have answered it, and the answer is lost.
    Unknown,
}

/// The result of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AnswerEffect {
    /// The usable amount of every resource for which it changed.
    pub(super) changed: Vec<(Arc<str>, Entitlement)>,
    /// The parts of the reply that were ignored.
    pub(super) ignored: Ignored,
}

/// The ignored parts of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ignored {
    /// Leases of no capacity: negative, infinite, not a number.
    pub(super) capacity: u64,
    /// Leases that had ended when they arrived.
    pub(super) expired: u64,
    /// Resources that were not requested, or answered twice.
    pub(super) unasked: u64,
    /// Invalid safe capacities.
    pub(super) safe_capacity: u64,
}

impl Leases {
    pub(super) fn new(client_id: String, interval_min: Duration) -> Self {
        Self {
            client_id,
            interval_min,
            resources: BTreeMap::new(),
            under_way: None,
            requests: 0,
            back_off: BackOff::gentle(PAUSE_FIRST),
            not_before: Timestamp::ZERO,
        }
    }

    pub(super) fn client_id(&self) -> &str {
        &self.client_id
    }

    /// Resources that are used or not yet forgotten.
    pub(super) fn len(&self) -> usize {
        self.resources.len()
    }

    /// Opens a resource, or opens one again that was just closed: a lease that was not released yet
    /// is kept. If it is in use, this only raises its priority.
    pub(super) fn open(
        &mut self,
        now: Timestamp,
        id: &Arc<str>,
        opening: ResourceOpening,
    ) -> Entitlement {
        let resource = self
            .resources
            .entry(Arc::clone(id))
            .or_insert_with(|| LeasedResource {
                phase: Phase::Released,
                priority: opening.priority,
                wants: 0.0,
                in_use: 0.0,
                told: None,
                entitlement: Entitlement {
                    lease: None,
                    after_expiry: opening.after_expiry,
                    safe: opening.safe,
                },
                due: Timestamp::MAX,
                sent: None,
            });
        if resource.phase == Phase::Used {
            resource.priority = resource.priority.max(opening.priority);
        } else {
            resource.priority = opening.priority;
            resource.entitlement.after_expiry = opening.after_expiry;
            resource.entitlement.safe = resource.entitlement.safe.or(opening.safe);
        }
        resource.phase = Phase::Used;
        let entitlement = resource.entitlement;
        self.set_wants(now, id, opening.wants);
        entitlement
    }

    /// A resource is no longer used.
    pub(super) fn leave(&mut self, id: &str) {
        let resource = self.resources.get_mut(id);
        if resource.is_some_and(|resource| !resource.leave()) {
            self.resources.remove(id);
        }
    }

    /// No resource is used any more.
    pub(super) fn leave_all(&mut self) {
        // No user waits for an answer that is still under way.
        self.under_way = None;
        self.resources
            .retain(|_, resource| resource.phase != Phase::Used || resource.leave());
    }

    /// Sets the demand of a resource. True if it must be requested earlier than planned.
    pub(super) fn set_wants(&mut self, now: Timestamp, id: &str, wants: f64) -> bool {
        debug_assert!(wants.is_finite() && wants >= 0.0, "{wants}");
        let Some(resource) = self.resources.get_mut(id) else {
            return false;
        };
        let before = resource.due;
        resource.wants = wants;
        if resource
            .told
            .map_or(wants > 0.0, |told| is_big_change(told, wants))
        {
            resource.due = resource.due.min(now);
        }
        resource.due < before
    }

    /// Sets the amount of a resource that is used or may be, for any current lease.
    pub(super) fn set_in_use(&mut self, id: &str, in_use: f64) {
        debug_assert!(in_use.is_finite() && in_use >= 0.0, "{in_use}");
        if let Some(resource) = self.resources.get_mut(id) {
            resource.in_use = in_use;
        }
    }

    /// The entitlement to a resource that is open.
    #[cfg(test)]
    pub(super) fn entitlement(&self, id: &str) -> Entitlement {
        self.resources[id].entitlement
    }

    /// When to ask next. `None` while a request is under way, or if there is nothing to request.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        if self.under_way.is_some() {
            return None;
        }
        self.resources
            .values()
            .filter_map(|resource| resource.due_at(self.interval_min))
            .min()
            .map(|due| due.max(self.not_before))
    }

    /// The request that is due, if one is.
    pub(super) fn ask(&mut self, now: Timestamp) -> Option<(RequestId, wire::GetCapacityRequest)> {
        if self.next_due().is_none_or(|due| now < due) {
            return None;
        }
        let mut asked = Vec::new();
        let mut message = wire::GetCapacityRequest {
            client_id: self.client_id.clone(),
            resource: Vec::new(),
        };
        for urgent in [true, false] {
            for (id, resource) in &mut self.resources {
                if asked.len() == RESOURCES_PER_REQUEST {
                    break;
                }
                if !resource.is_requested_at(now, self.interval_min, urgent) {
                    continue;
                }
                message.resource.push(wire::ResourceRequest {
                    resource_id: id.to_string(),
                    priority: resource.priority,
                    has: resource.entitlement.live(now).map(|held| wire::Lease {
                        expiry_time: held.expiry_time,
                        refresh_interval: held.refresh_interval,
                        capacity: held.capacity.max(resource.in_use),
                    }),
                    wants: resource.wants,
                });
                asked.push((Arc::clone(id), resource.sent));
                resource.told = Some(resource.wants);
                resource.sent = Some(now);
                resource.due = Timestamp::MAX;
            }
        }
        self.requests += 1;
        let request = RequestId(self.requests);
        self.under_way = Some(SentRequest {
            request,
            sent: now,
            resources: asked,
        });
        Some((request, message))
    }

    /// The current request goes to another server, because the first is not the master: its answer
    /// counts from now.
    pub(super) fn sent_again(&mut self, now: Timestamp, request: RequestId) {
        let Some(under_way) = &mut self.under_way else {
            return;
        };
        if under_way.request == request {
            under_way.sent = now;
            for (id, _) in &under_way.resources {
                if let Some(resource) = self.resources.get_mut(id) {
                    resource.sent = Some(now);
                }
            }
        }
    }

    /// A master answered. `server_now_ms` is its clock when it decided, in milliseconds since
    /// 1970, or ours when the request was sent.
    ///
    /// An answer to an older request is ignored.
    pub(super) fn answered(
        &mut self,
        now: Timestamp,
        request: RequestId,
        answer: &wire::GetCapacityResponse,
        server_now_ms: i64,
    ) -> AnswerEffect {
        let mut heard = AnswerEffect::default();
        let Some(under_way) = self.take(request) else {
            return heard;
        };
        self.back_off.reset();
        self.not_before = Timestamp::ZERO;
        let mut answers: BTreeMap<&str, &wire::ResourceResponse> = BTreeMap::new();
        for of_resource in &answer.response {
            // The first of two is as good as the other.
            if answers.contains_key(&*of_resource.resource_id) {
                heard.ignored.unasked += 1;
            } else {
                answers.insert(&of_resource.resource_id, of_resource);
            }
        }
        for (id, _) in &under_way.resources {
            let answer = answers.remove(&**id);
            // It may have been closed meanwhile and forgotten.
            let Some(resource) = self.resources.get_mut(id) else {
                continue;
            };
            // The server decided before now, by an unknown time.
            resource.sent = Some(now);
            let before = resource.entitlement;
            if let Some(answer) = answer {
                resource.take(
                    now,
                    under_way.sent,
                    answer,
                    server_now_ms,
                    &mut heard.ignored,
                );
            }
            // Left out, or without a usable answer: ask again by its current lease, and without one
            // as soon as allowed.
            resource.due = resource.due.min(resource.refreshed_at(under_way.sent));
            if resource.entitlement != before {
                heard.changed.push((Arc::clone(id), resource.entitlement));
            }
        }
        heard.ignored.unasked += answers.len() as u64;
        heard
    }

    /// No server answered. `entropy` spreads the retries.
    pub(super) fn failed(
        &mut self,
        now: Timestamp,
        request: RequestId,
        failure: RequestFailure,
        entropy: u64,
    ) {
        let Some(under_way) = self.take(request) else {
            return;
        };
        for (id, sent_before) in under_way.resources {
            let Some(resource) = self.resources.get_mut(&id) else {
                continue;
            };
            if failure == RequestFailure::NotSeen {
                resource.sent = sent_before;
            }
            resource.due = resource.due.min(now);
        }
        self.not_before = now + self.back_off.pause_with_jitter(entropy);
    }

    fn take(&mut self, request: RequestId) -> Option<SentRequest> {
        self.under_way
            .take_if(|under_way| under_way.request == request)
    }

    /// The unused resources, for one release; `None` if there are none.
    ///
    /// It may be lost: a lease that is not released expires by itself.
    pub(super) fn release(&mut self, now: Timestamp) -> Option<wire::ReleaseCapacityRequest> {
        let interval_min = self.interval_min;
        self.resources.retain(|_, resource| {
            let sent = resource.sent.unwrap_or_default();
            resource.phase != Phase::Released || now < sent + interval_min
        });
        let mut resource_id = Vec::new();
        for (id, resource) in &mut self.resources {
            if resource.phase == Phase::Left && resource_id.len() < RESOURCES_PER_REQUEST {
                resource.phase = Phase::Released;
                resource.in_use = 0.0;
                resource.entitlement.lease = None;
                resource.told = None;
                resource.due = Timestamp::MAX;
                resource_id.push(id.to_string());
            }
        }
        (!resource_id.is_empty()).then(|| wire::ReleaseCapacityRequest {
            client_id: self.client_id.clone(),
            resource_id,
        })
    }
}

impl LeasedResource {
    /// Marks the resource as unused. False if no server knows it, so that it can be forgotten.
    fn leave(&mut self) -> bool {
        self.phase = Phase::Left;
        self.sent.is_some()
    }

    /// The earliest time of its next request, if it needs one.
    fn due_at(&self, interval_min: Duration) -> Option<Timestamp> {
        if self.phase != Phase::Used || self.due == Timestamp::MAX {
            return None;
        }
        Some(self.due.max(self.allowed_at(interval_min)))
    }

    fn allowed_at(&self, interval_min: Duration) -> Timestamp {
        self.sent
            .map_or(Timestamp::ZERO, |sent| sent + interval_min)
    }

    /// Whether it is part of a request at `now`: because it is due, or will be soon.
    fn is_requested_at(&self, now: Timestamp, interval_min: Duration, urgent: bool) -> bool {
        let Some(due) = self.due_at(interval_min) else {
            return false;
        };
        if urgent {
            due <= now
        } else {
            now < due && due <= now + TOGETHER && self.allowed_at(interval_min) <= now
        }
    }

    /// When to ask again after a request at that moment.
    fn refreshed_at(&self, sent: Timestamp) -> Timestamp {
        let Some(lease) = self.entitlement.lease else {
            return sent;
        };
        let length = lease.expires.since(sent);
        let refresh = u64::try_from(lease.refresh_interval).unwrap_or(0);
        let refresh = Duration::from_secs(refresh).min(REFRESH_MAX);
        // A client that asks only at the end of the lease has none meanwhile.
        sent + if refresh < length {
            refresh
        } else {
            length / 2
        }
    }

    fn take(
        &mut self,
        now: Timestamp,
        sent: Timestamp,
        answer: &wire::ResourceResponse,
        server_now_ms: i64,
        ignored: &mut Ignored,
    ) {
        match answer.safe_capacity.map(SafeCapacity::new) {
            None => {}
            Some(Ok(safe)) => self.entitlement.safe = Some(safe),
            Some(Err(_)) => ignored.safe_capacity += 1,
        }
        let Ok(capacity) = capacity("a lease", answer.gets.capacity) else {
            ignored.capacity += 1;
            return;
        };
        let expires = length(answer.gets.expiry_time, server_now_ms).map(|length| sent + length);
        match expires.filter(|&expires| now < expires) {
            Some(expires) => {
                self.entitlement.lease = Some(LastLease {
                    capacity,
                    expires,
                    expiry_time: answer.gets.expiry_time,
                    refresh_interval: answer.gets.refresh_interval,
                });
            }
            None => ignored.expired += 1,
        }
    }
}

/// Whether a server should learn early that the demand is `wants` instead of `told`.
fn is_big_change(told: f64, wants: f64) -> bool {
    (wants - told).abs() > told.max(wants) * BIG_CHANGE
}

#[cfg(test)]
mod digest;
#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;
