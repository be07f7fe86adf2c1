//! Capacity that a holder claims to have, and the book's grant for it.

use tidegate_limits::Timestamp;

use crate::book::{Band, Capacity, Holder, HolderReport, Lease, Split};

use super::super::status::ServerCounts;
use super::seen::HolderRecord;
use super::{CapacitySource, LeaseRequest, Rules, ServerResource};

/// A holder that asks, as far as it is known.
#[derive(Clone, Copy)]
pub(super) struct HolderClaim {
    pub(super) holder: Holder,
    pub(super) seen: Option<HolderRecord>,
    /// The capacity that the holder has, as far as it is believed.
    pub(super) has: f64,
    /// The holder's share of the reserve.
    pub(super) share: f64,
}

impl ServerResource {
    /// The capacity that the holder claims to have, as far as it is believed.
    pub(super) fn claimed(
        &mut self,
        now: Timestamp,
        rules: Rules,
        ask: &LeaseRequest<'_>,
        is_live: bool,
        counts: &mut ServerCounts,
    ) -> f64 {
        let has = ask
            .has
            .filter(|has| rules.epoch.timestamp(has.expiry_time) > now)
            .map_or(0.0, |has| has.capacity);
        if self.is_learning(now) {
            return self.believed(has, counts);
        }
        if has > 0.0 && !is_live {
            counts.unrecorded += 1;
            // A client that makes them up must not fill the log.
            if counts.unrecorded.is_power_of_two() {
                tracing::warn!(
                    resource = %self.id,
                    has,
                    count = counts.unrecorded,
                    "a lease is claimed of which there is no record"
                );
            }
        }
        has
    }

    /// The grant of the book beyond the holder's share of the reserve.
    pub(super) fn lease_beyond(
        &mut self,
        now: Timestamp,
        rules: Rules,
        ask: &LeaseRequest<'_>,
        claimed: &HolderClaim,
    ) -> Lease {
        let HolderClaim {
            holder,
            seen,
            has,
            share,
        } = *claimed;
        let learning = self.is_learning(now);
        let beyond = |amount: f64| Capacity::new((amount - share).max(0.0)).unwrap_or_default();
        let own_band;
        let bands = match ask.bands {
            // Only clients have a share, and a client has one band.
            [band] if share > 0.0 => {
                own_band = [Band {
                    wants: beyond(band.wants.get()),
                    ..*band
                }];
                &own_band
            }
            bands => bands,
        };
        let knows_last = match (ask.has, seen) {
            // A server may report more, never less.
            (Some(has), Some(seen)) => {
                let expiry_time = rules.epoch.seconds(seen.expires);
                has.expiry_time == expiry_time && has.capacity >= seen.capacity
            }
            _ => false,
        };
        let report = |has| HolderReport { bands, has };
        if learning && !self.knows_reserve() {
            // Its safe share is not known yet, and no server above may learn it as granted. So it
            // is echoed, with its end, and not recorded.
            let entered = self.book.learn(now, holder, report(Capacity::ZERO), None);
            let ends = ask.has.map(|has| rules.epoch.timestamp(has.expiry_time));
            Lease {
                capacity: beyond(has),
                expires: ends.unwrap_or(entered.expires).min(entered.expires),
                ..entered
            }
        } else if learning {
            let cap = self.cap_learned(ask, holder, beyond(has), rules);
            self.book.learn(now, holder, report(beyond(has)), cap)
        } else {
            // A report that proves nothing must not free anything.
            let has = if knows_last {
                beyond(has)
            } else {
                Capacity::MAX
            };
            let cap = self.cap(now);
            self.book.ask(now, holder, report(has), cap)
        }
    }

    /// The accepted part of a claim while this server learns: at most the capacity of the resource,
    /// if that is known. For a static split it is the maximum of each client.
    pub(super) fn believed(&self, has: f64, counts: &mut ServerCounts) -> f64 {
        let most = match (self.algorithm.split, &self.source) {
            (Split::None, _) => return has,
            (Split::Static, _) => self.book.terms().capacity,
            (_, CapacitySource::Above(above)) if above.grant.is_none() => return has,
            _ => self.capacity(),
        };
        let most = most.get();
        if has <= most {
            return has;
        }
        counts.overclaimed += 1;
        if counts.overclaimed.is_power_of_two() {
            tracing::warn!(
                resource = %self.id,
                has,
                capacity = most,
                count = counts.overclaimed,
                "leases: a client claims to hold more than there is; the capacity is believed"
            );
        }
        most
    }

    /// Whether the reserve is known: from the config, or from the server above.
    pub(super) fn knows_reserve(&self) -> bool {
        match &self.source {
            CapacitySource::Template(_) => true,
            CapacitySource::Above(above) => above.heard || self.algorithm.reserve.is_some(),
        }
    }
}
