//! The resource towards the server above: when to ask for what, and what comes of the answer.

use std::num::NonZeroU64;
use std::time::Duration;

use tidegate_limits::Timestamp;

use crate::book::{Band, Capacity};
use crate::wire;

use super::super::status::ServerCounts;
use super::super::templates::{Algorithm, granted_until};
use super::{ASK_AGAIN, Above, CHANGE_IS_BIG, CapacitySource, Grant, Rules, ServerResource};

#[derive(Clone, Copy, Debug)]
pub(super) struct ParentRequest {
    pub(super) at: Timestamp,
    pub(super) wanted: f64,
    /// The capacity that was reported.
    pub(super) has: f64,
}

impl ServerResource {
    /// The capacity that this server reports to the one above as held: all its grants, if that is more than its
    /// lease.
    fn has(&self) -> f64 {
        self.capacity().get().max(self.book.held().get())
    }

    /// When to ask the server above for this.
    pub(in crate::server) fn ask_due(&self, rules: Rules) -> Option<Timestamp> {
        let CapacitySource::Above(above) = &self.source else {
            return None;
        };
        let Some(asked) = above.asked else {
            // No holder has anything yet: at once.
            return Some(self.made);
        };
        let refresh = match above.grant {
            Some(grant) if above.answered => grant.refresh,
            Some(grant) => grant.refresh.min(ASK_AGAIN),
            None => ASK_AGAIN,
        };
        if above.answered && self.has_news(above, &asked) {
            return Some(asked.at + refresh.min(rules.minimum_interval));
        }
        Some(asked.at + refresh)
    }

    /// The earliest time at which the server above answers.
    pub(in crate::server) fn ask_allowed(&self, rules: Rules) -> Timestamp {
        match &self.source {
            CapacitySource::Above(Above {
                asked: Some(asked),
                grant,
                ..
            }) => {
                let refresh = grant.map_or(ASK_AGAIN, |grant| grant.refresh);
                asked.at + refresh.min(rules.minimum_interval)
            }
            _ => self.made,
        }
    }

    /// Whether to ask the server above early: the demand changed much, clients were found to have
    /// more than was reported, or holders have given up what was taken back.
    fn has_news(&self, above: &Above, asked: &ParentRequest) -> bool {
        let wanted = self.book.wanted().get();
        let change = (wanted - asked.wanted).abs();
        if change > CHANGE_IS_BIG * wanted.max(asked.wanted) {
            return true;
        }
        let has = self.has();
        // A server above that learns knows only the reports.
        if self.learning_until.is_some() && has > asked.has {
            return true;
        }
        above
            .grant
            .is_some_and(|grant| grant.capacity.get() < asked.has && has < asked.has)
    }

    /// The request to the server above.
    pub(in crate::server) fn ask_above(
        &mut self,
        now: Timestamp,
        rules: Rules,
    ) -> Option<wire::ServerCapacityResourceRequest> {
        let has = self.has();
        let learning = self.is_learning(now);
        let mut bands = self.book.bands();
        let CapacitySource::Above(above) = &mut self.source else {
            return None;
        };
        if bands.is_empty() {
            // Without a demand, the lease is released.
            bands.push(Band {
                priority: 0,
                clients: NonZeroU64::MIN,
                wants: Capacity::ZERO,
            });
        }
        above.asked = Some(ParentRequest {
            at: now,
            wanted: bands.iter().map(|band| band.wants.get()).sum(),
            has,
        });
        above.answered = false;
        let lease = |expiry_time, refresh| wire::Lease {
            expiry_time,
            refresh_interval: wire::seconds(refresh),
            capacity: has,
        };
        let has = match above.grant {
            // A new master does not know all earlier grants. It reports those that it knows, with
            // a lease that the server above never granted: that proves nothing.
            Some(grant) => Some(lease(
                grant.expiry_time - i64::from(learning),
                grant.refresh,
            )),
            // What was learned from clients, for a server above that also learns. Without an end,
            // because the server above cannot know this lease.
            None if has > 0.0 => {
                let ends = rules.epoch.seconds(now + self.algorithm.lease);
                Some(lease(ends, self.algorithm.refresh))
            }
            None => None,
        };
        let wants = bands.iter().map(|band| wire::PriorityBandAggregate {
            priority: band.priority,
            num_clients: i64::try_from(band.clients.get()).unwrap_or(i64::MAX),
            wants: band.wants.get(),
        });
        let wants = wants.collect();
        Some(wire::ServerCapacityResourceRequest {
            resource_id: self.id.to_string(),
            has,
            wants,
        })
    }

    /// Applies the answer of the server above. False if it is invalid.
    pub(in crate::server) fn answered(
        &mut self,
        now: Timestamp,
        elected: Timestamp,
        answer: &wire::ServerCapacityResourceResponse,
        moment: impl Fn(i64) -> (Timestamp, Timestamp),
        counts: &mut ServerCounts,
    ) -> bool {
        let (expires, _) = moment(answer.gets.expiry_time);
        self.refill(now, counts);
        // A negative value of Doorman means nothing.
        let Ok(capacity) = Capacity::new(answer.gets.capacity.max(0.0)) else {
            return false;
        };
        if answer.gets.capacity.is_nan() || expires <= now {
            return false;
        }
        let held = self.book.held();
        let CapacitySource::Above(above) = &mut self.source else {
            return false;
        };
        if held > capacity
            && let Some(old) = above.grant
        {
            let by = above
                .shrinks_by
                .map_or(old.expires, |by| by.min(old.expires));
            above.shrinks_by = Some(by);
        }
        let refresh = u64::try_from(answer.gets.refresh_interval.max(1)).unwrap_or(1);
        let first = !above.heard && answer.algorithm.is_some();
        above.heard |= first;
        above.answered = true;
        above.grant = Some(Grant {
            capacity,
            expires,
            refresh: Duration::from_secs(refresh),
            expiry_time: answer.gets.expiry_time,
        });
        if answer.algorithm.is_some() {
            self.template = None;
            self.safe_capacity = answer.safe_capacity;
        }
        let heard = answer.algorithm.as_ref().and_then(Algorithm::from_wire);
        let algorithm = heard.unwrap_or_else(|| self.algorithm.clone());
        self.rule(now, elected, algorithm, counts);
        // The grants of the previous master were parts of its own lease, and end with that. After
        // the first answer it would be this master's own lease.
        let told = answer.algorithm.as_ref().and_then(granted_until);
        if first && let Some(seconds) = told {
            let (_, over) = moment(seconds);
            self.learning_until = self.learning_until.map(|until| until.min(over));
        }
        true
    }
}
