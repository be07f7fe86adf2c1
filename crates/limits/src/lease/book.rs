//! Who holds what.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::num::NonZeroU64;
use core::time::Duration;

use super::{Band, Capacity, Claim, Holder, Lease, Terms};
use crate::time::Timestamp;

/// The leases on one resource.
///
/// All methods take `now`, which must not go back.
#[derive(Debug)]
pub struct Book {
    terms: Terms,
    rows: BTreeMap<Holder, Row>,
}

#[derive(Debug)]
struct Row {
    bands: Box<[Band]>,
    granted: Capacity,
    expires: Timestamp,
}

/// What one holder holds and wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// Who.
    pub holder: Holder,
    /// What it was given last.
    pub lease: Lease,
    /// What it said that it wants.
    pub wants: Capacity,
    /// For how many clients.
    pub clients: u64,
}

impl Book {
    /// A book without leases.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self {
            terms,
            rows: BTreeMap::new(),
        }
    }

    /// By what is leased.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Leases by other terms from now on. Leases that were given stay as they are.
    pub fn set_terms(&mut self, now: Timestamp, terms: Terms) {
        self.expire(now);
        self.terms = terms;
    }

    /// Gives a holder what it ought to have, as far as it is free, and forgets what it had. The
    /// lease ends at `cap` at the latest, which is when the lease ends from which this one is cut.
    pub fn ask(
        &mut self,
        now: Timestamp,
        holder: Holder,
        claim: Claim<'_>,
        cap: Option<Timestamp>,
    ) -> Lease {
        self.expire(now);
        let mut bands: Vec<Band> = Vec::new();
        let mut own = 0..0;
        self.rows.remove(&holder);
        for row in self.rows.values() {
            bands.extend(&row.bands);
        }
        let merged = self.merged(claim.bands);
        own.start = bands.len();
        bands.extend(&merged);
        own.end = bands.len();
        let Terms {
            split, capacity, ..
        } = self.terms;
        let shares = if self.terms.by_priority {
            split.share_by_priority(capacity, &bands)
        } else {
            split.share(capacity, &bands)
        };
        let mut granted: f64 = shares[own].iter().map(|share| share.get()).sum();
        if split.shares() {
            granted = granted.min(capacity.get() - self.held().get());
        }
        let wants: f64 = merged.iter().map(|band| band.wants.get()).sum();
        self.give(
            now,
            holder,
            merged,
            Capacity::saturating(granted.min(wants)),
            cap,
        )
    }

    fn merged(&self, bands: &[Band]) -> Vec<Band> {
        let mut merged = bands.to_vec();
        merged.sort_by_key(|band| band.priority);
        let by_priority = self.terms.by_priority;
        merged.dedup_by(|later, earlier| {
            let same = !by_priority || later.priority == earlier.priority;
            if same {
                earlier.wants = Capacity::saturating(earlier.wants.get() + later.wants.get());
                earlier.clients = earlier.clients.saturating_add(later.clients.get());
            }
            same
        });
        merged
    }

    fn give(
        &mut self,
        now: Timestamp,
        holder: Holder,
        bands: Vec<Band>,
        granted: Capacity,
        cap: Option<Timestamp>,
    ) -> Lease {
        let mut expires = now + self.terms.lease;
        if let Some(cap) = cap {
            expires = expires.min(cap);
        }
        let row = Row {
            bands: bands.into(),
            granted,
            expires,
        };
        let lease = self.lease_of(now, &row);
        self.rows.insert(holder, row);
        lease
    }

    fn lease_of(&self, now: Timestamp, row: &Row) -> Lease {
        let last = row
            .expires
            .since(now)
            .saturating_sub(Duration::from_secs(1));
        Lease {
            capacity: row.granted,
            expires: row.expires,
            refresh: self.terms.refresh.min(last),
        }
    }

    /// Gives a holder what it says that it has, even if that is more than there is: how a book
    /// that knows nothing yet finds out what was leased before it was opened.
    pub fn learn(
        &mut self,
        now: Timestamp,
        holder: Holder,
        claim: Claim<'_>,
        cap: Option<Timestamp>,
    ) -> Lease {
        self.expire(now);
        let merged = self.merged(claim.bands);
        self.give(now, holder, merged, claim.has, cap)
    }

    /// Ends a lease. False if there is none.
    pub fn release(&mut self, now: Timestamp, holder: Holder) -> bool {
        self.expire(now);
        self.rows.remove(&holder).is_some()
    }

    /// Ends what has expired. Every other method that takes `now` does it first.
    pub fn expire(&mut self, now: Timestamp) {
        self.rows.retain(|_, row| row.expires > now);
    }

    /// When [`Book::expire`] may next have something to do; `None` if nothing is held.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.rows.values().map(|row| row.expires).min()
    }

    /// What counts as held.
    #[must_use]
    pub fn held(&self) -> Capacity {
        Capacity::saturating(self.rows.values().map(|row| row.granted.get()).sum())
    }

    /// What all holders want together.
    #[must_use]
    pub fn wanted(&self) -> Capacity {
        let bands = self.rows.values().flat_map(|row| row.bands.iter());
        Capacity::saturating(bands.map(|band| band.wants.get()).sum())
    }

    /// The clients of all holders together.
    #[must_use]
    pub fn clients(&self) -> u64 {
        let bands = self.rows.values().flat_map(|row| row.bands.iter());
        bands.map(|band| band.clients.get()).sum()
    }

    /// How many hold a lease.
    #[must_use]
    pub fn holders(&self) -> usize {
        self.rows.len()
    }

    /// What all want, together for each priority, the greatest first: what a server asks the level
    /// above for. O(n log n).
    #[must_use]
    pub fn bands(&self) -> Vec<Band> {
        let mut sums: BTreeMap<i64, (f64, u64)> = BTreeMap::new();
        for band in self.rows.values().flat_map(|row| row.bands.iter()) {
            let sum = sums.entry(band.priority).or_default();
            sum.0 += band.wants.get();
            sum.1 = sum.1.saturating_add(band.clients.get());
        }
        sums.iter()
            .rev()
            .filter_map(|(&priority, &(wants, clients))| {
                Some(Band {
                    priority,
                    clients: NonZeroU64::new(clients)?,
                    wants: Capacity::saturating(wants),
                })
            })
            .collect()
    }

    /// What this holder was given last, if it has not expired. Its `refresh` is that of the terms.
    #[must_use]
    pub fn get(&self, holder: Holder) -> Option<Held> {
        self.rows.get(&holder).map(|row| self.held_by(holder, row))
    }

    /// Who holds a lease, by the holders' numbers.
    pub fn iter(&self) -> impl Iterator<Item = Held> + '_ {
        self.rows
            .iter()
            .map(|(&holder, row)| self.held_by(holder, row))
    }

    fn held_by(&self, holder: Holder, row: &Row) -> Held {
        Held {
            holder,
            lease: Lease {
                capacity: row.granted,
                expires: row.expires,
                refresh: self.terms.refresh,
            },
            wants: Capacity::saturating(row.bands.iter().map(|band| band.wants.get()).sum()),
            clients: row.bands.iter().map(|band| band.clients.get()).sum(),
        }
    }
}
