//! The leases, and the decision about each request.
//!
//! A decision needs the sum of the other leases (`sums`), and the holder's share among all
//! demands (`demand`). Both are sums in trees, so it takes O(log n) for any split. Expirations
//! are in a heap (`due`), with one entry for each holder. An entry is moved only when it is
//! reached, so a lease that is renewed in time costs the heap nothing.
//!
//! A holder's number is the number of its row, so nothing is searched for. The data of each
//! holder is small and in chunks (`rows`): a row, a place in the order of demands, an entry in
//! the heap, and an eighth of a sum.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::num::NonZeroU64;
use core::time::Duration;

use tidegate_limits::Timestamp;

use super::demand::DemandOrder;
use super::due::Due;
use super::outgoing::EarlierLeases;
use super::rows::Rows;
use super::sums::Sums;
use super::{Band, Capacity, Holder, HolderReport, Lease, Terms};

/// The leases on one resource.
///
/// What it promises, for a split that shares:
///
/// - What counts as held ([`Book::held`]) adds up to at most the capacity, except for the
///   rounding of the last of 15 digits. A lowered capacity, and learned leases, may be exceeded
///   until the leases shrink. Until then no holder gets more than it had.
/// - No lease is larger than the demand, except a learned one.
/// - Once all demands are constant, all have what [`Split`](super::Split) decides after each has
///   asked twice: first holders with too much get less, then the others get the rest.
///
/// Sums are never added to and subtracted from, so rounding does not pile up in them.
///
/// All methods take `now`, which must not go back. [`Book::ask`], [`Book::learn`] and
/// [`Book::release`] take O(log n) in the number of holders, and so does each expiration. Memory
/// grows with the highest number, so number holders from zero, and reuse vacant numbers
/// ([`Book::is_vacant`]).
///
/// ```
/// use std::time::Duration;
/// use tidegate_limits::Timestamp;
/// use tidegate_leases::book::{Band, Book, Capacity, Holder, HolderReport, Split, Terms};
///
/// let mut book = Book::new(Terms {
///     capacity: Capacity::new(120.0)?,
///     split: Split::Fair,
///     by_priority: false,
///     lease: Duration::from_secs(60),
///     refresh: Duration::from_secs(16),
///     frees_after: Duration::ZERO,
/// });
/// let mut ask = |holder, wants| -> Result<f64, tidegate_limits::bucket::OutOfRange> {
///     let bands = [Band {
///         priority: 0,
///         clients: 1.try_into().unwrap(),
///         wants: Capacity::new(wants)?,
///     }];
///     let report = HolderReport { bands: &bands, has: Capacity::ZERO };
///     let lease = book.ask(Timestamp::ZERO, Holder(holder), report, None);
///     Ok(lease.capacity.get())
/// };
/// assert_eq!(ask(0, 1000.0)?, 120.0);
/// // All of it is held. What it holds too much, the first gives up when it asks again.
/// assert_eq!(ask(1, 50.0)?, 0.0);
/// assert_eq!(ask(0, 1000.0)?, 70.0);
/// assert_eq!(ask(1, 50.0)?, 50.0);
/// # Ok::<(), tidegate_limits::bucket::OutOfRange>(())
/// ```
#[derive(Clone, Debug)]
pub struct Book {
    terms: Terms,
    /// By the holders' numbers.
    rows: Rows<BookRow>,
    /// How many rows are not vacant.
    occupied: usize,
    /// How many rows have a lease that has not ended.
    live: usize,
    /// Their demands, by row.
    demand: DemandOrder,
    /// The capacity that counts as held, by groups of rows.
    counted: Sums,
    /// When to check a row again. An entry that differs from the row's `looked_at` is obsolete.
    due: Due,
}

/// Rows that share one number in the sums. A number for each would be a sixth of a row, and
/// summing a few rows is fast.
const GROUP: usize = 8;

/// 48 bytes, of which there is one for each holder.
#[derive(Clone, Debug)]
struct BookRow {
    wants: RowDemand,
    /// The last grant.
    granted: f64,
    /// When that ends. At the start: it has ended.
    expires: Timestamp,
    /// When the heap checks this row.
    looked_at: Timestamp,
    /// Earlier grants that may still be in use.
    outgoing: Option<Box<EarlierLeases>>,
}

#[derive(Clone, Debug, PartialEq)]
enum RowDemand {
    Nothing,
    /// A client with a priority of usual size: nearly every holder, in 16 bytes.
    Client {
        priority: i32,
        wants: f64,
    },
    /// Any other, by priority, each once.
    Bands(Box<Bands>),
}

/// Boxed, so that an absent holder takes only a pointer.
#[derive(Clone, Debug, PartialEq)]
struct Bands(Box<[Band]>);

/// The lease and the demand of one holder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldLease {
    /// Who.
    pub holder: Holder,
    /// The holder's last grant. `refresh` is that of the current terms.
    pub lease: Lease,
    /// The holder's reported demand.
    pub wants: Capacity,
    /// For how many clients.
    pub clients: u64,
}

impl Book {
    /// A book without leases.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self {
            rows: Rows::default(),
            occupied: 0,
            live: 0,
            demand: DemandOrder::new(terms.ranks()),
            counted: Sums::new(),
            due: Due::default(),
            terms,
        }
    }

    /// By what is leased.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Applies other terms from now on. Granted leases stay unchanged, and shares that wait until
    /// they are free wait as long as before. O(1), but O(n log n) if priorities begin or cease to
    /// count.
    pub fn set_terms(&mut self, now: Timestamp, terms: Terms) {
        self.expire(now);
        self.terms = terms;
        if self.demand.is_ranked() == terms.ranks() {
            return;
        }
        self.demand = DemandOrder::new(terms.ranks());
        for (row, place) in self.rows.iter().zip(0..) {
            row.wants.enter(&mut self.demand, place);
        }
    }

    /// Grants a holder its share, as far as the others do not hold it, instead of its previous
    /// lease. The lease ends no later than `cap`, the end of the lease that this one is part of. If
    /// that has already ended, nothing is granted.
    pub fn ask(
        &mut self,
        now: Timestamp,
        holder: Holder,
        report: HolderReport<'_>,
        cap: Option<Timestamp>,
    ) -> Lease {
        let place = self.record(now, holder, report);
        let own = self.rows[place as usize].counts();
        let held_by_others = self.held_by_others(place);
        let capacity = self.terms.capacity.get();
        let row = &self.rows[place as usize];
        let share = |band: &Band| self.demand.share(self.terms.split, capacity, band);
        let mut granted = row.wants.parts(self.demand.is_ranked(), |parts| {
            parts.iter().map(share).sum()
        });
        if self.terms.split.shares() {
            // If more is held than exists, each holder that asks shrinks to its share at once. To
            // take the whole excess from the first one would leave it with nothing.
            granted = f64::min(granted, f64::max(capacity - held_by_others, own));
        }
        self.give(now, place, Capacity::saturating(granted), cap)
    }

    /// Grants a holder what it reports to have, even if that exceeds the capacity or its demand. So
    /// an empty book learns the leases from before it was opened. `cap` is as for [`Book::ask`].
    pub fn learn(
        &mut self,
        now: Timestamp,
        holder: Holder,
        report: HolderReport<'_>,
        cap: Option<Timestamp>,
    ) -> Lease {
        let place = self.record(now, holder, report);
        self.give(now, place, report.has, cap)
    }

    /// Ends a holder's lease, which it reports as no longer used. False if it has none.
    pub fn release(&mut self, now: Timestamp, holder: Holder) -> bool {
        self.expire(now);
        let Holder(place) = holder;
        if !self.rows.get(place as usize).is_some_and(BookRow::is_live) {
            return false;
        }
        let frees = now + self.terms.frees_after;
        self.rows[place as usize].confirm(0.0, frees);
        self.end(now, place, frees);
        self.settle(now, place);
        true
    }

    /// Ends the leases that have expired by `now`. Every other method that takes `now` does so
    /// first, so this is for a book without requests.
    pub fn expire(&mut self, now: Timestamp) {
        while let Some((moment, place)) = self.due.first() {
            if moment > now {
                return;
            }
            self.due.pop();
            let row = &mut self.rows[place as usize];
            if row.looked_at != moment {
                continue;
            }
            row.looked_at = Timestamp::MAX;
            if row.is_live() && row.expires <= now {
                let frees = row.expires + self.terms.frees_after;
                self.end(now, place, frees);
            }
            self.settle(now, place);
        }
    }

    /// When [`Book::expire`] may next have something to do; `None` if nothing is held. It may be
    /// too early, and then returns a later moment, but is never too late.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(moment, _)| moment)
    }

    /// The capacity that counts as held: for each holder the last grant, or an earlier one as long as that is not
    /// free ([`Terms::frees_after`]), if that is larger.
    #[must_use]
    pub fn held(&self) -> Capacity {
        Capacity::saturating(self.counted.total())
    }

    /// The sum of all demands.
    #[must_use]
    pub fn wanted(&self) -> Capacity {
        Capacity::saturating(self.demand.total().wants)
    }

    /// The clients of all holders together.
    #[must_use]
    pub fn clients(&self) -> u64 {
        self.demand.total().clients
    }

    /// How many hold a lease, including leases on nothing.
    #[must_use]
    pub const fn holders(&self) -> usize {
        self.live
    }

    /// All demands, in one band for each priority, the highest first: what a server requests from
    /// the level above. O(n log n).
    #[must_use]
    pub fn bands(&self) -> Vec<Band> {
        let mut bands = Vec::new();
        for row in self.rows.iter() {
            row.wants.bands(|own| bands.extend_from_slice(own));
        }
        merge(&mut bands, |a, b| a.priority == b.priority);
        bands
    }

    /// The last grant of this holder, if it has not ended.
    #[must_use]
    pub fn get(&self, holder: Holder) -> Option<HeldLease> {
        let row = self.rows.get(holder.0 as usize)?;
        self.held_by(row, holder)
    }

    /// Whether this holder has no lease and nothing of it counts any more, so that its number may
    /// be reused. Otherwise what it may still use would count as another holder's.
    #[must_use]
    pub fn is_vacant(&self, holder: Holder) -> bool {
        let row = self.rows.get(holder.0 as usize);
        row.is_none_or(|row| row.next().is_none())
    }

    /// All leases that have not ended, by the holders' numbers.
    pub fn iter(&self) -> impl Iterator<Item = HeldLease> + '_ {
        let rows = self.rows.iter().zip(0..);
        rows.filter_map(|(row, place)| self.held_by(row, Holder(place)))
    }

    /// Records a holder's report. Returns its row.
    fn record(&mut self, now: Timestamp, holder: Holder, report: HolderReport<'_>) -> u32 {
        self.expire(now);
        let Holder(place) = holder;
        while self.rows.len() <= place as usize {
            self.rows.push(BookRow::VACANT);
        }
        let frees = now + self.terms.frees_after;
        let row = &mut self.rows[place as usize];
        if row.next().is_none() {
            self.occupied += 1;
        }
        row.confirm(report.has.get(), frees);
        self.want(place, report.bands);
        place
    }

    /// Records a holder's demand.
    fn want(&mut self, place: u32, bands: &[Band]) {
        let row = &mut self.rows[place as usize];
        let wants = match bands {
            [] => RowDemand::Nothing,
            [band] => RowDemand::of(*band),
            bands => {
                let mut bands = bands.to_vec();
                merge(&mut bands, |a, b| a.priority == b.priority);
                RowDemand::Bands(Box::new(Bands(bands.into())))
            }
        };
        if wants != row.wants {
            row.wants.leave(&mut self.demand, place);
            row.wants = wants;
            row.wants.enter(&mut self.demand, place);
        }
    }

    /// Records a grant to a holder.
    fn give(
        &mut self,
        now: Timestamp,
        place: u32,
        granted: Capacity,
        cap: Option<Timestamp>,
    ) -> Lease {
        let mut granted = granted;
        // A lease that ended at the very start would look like none.
        let mut expires = now + self.terms.lease.max(Duration::from_nanos(1));
        match cap {
            // Its demand is still needed, so the row stays.
            Some(cap) if cap <= now => granted = Capacity::ZERO,
            Some(cap) => expires = expires.min(cap),
            None => {}
        }
        let row = &mut self.rows[place as usize];
        if row.is_live() {
            let lowered = granted.get() < row.granted || expires < row.expires;
            if lowered && !self.terms.frees_after.is_zero() {
                let outgoing = row.outgoing.get_or_insert_default();
                outgoing.add(row.granted, row.expires + self.terms.frees_after);
            }
        } else {
            self.live += 1;
        }
        row.granted = granted.get();
        row.expires = expires;
        self.settle(now, place);
        Lease {
            capacity: granted,
            expires,
            refresh: refresh_within(expires.since(now), self.terms.refresh),
        }
    }

    /// Ends an active lease. Its grant is free at `frees`.
    fn end(&mut self, now: Timestamp, place: u32, frees: Timestamp) {
        let row = &mut self.rows[place as usize];
        if frees > now {
            let outgoing = row.outgoing.get_or_insert_default();
            outgoing.add(row.granted, frees);
        }
        row.wants.leave(&mut self.demand, place);
        row.wants = RowDemand::Nothing;
        row.granted = 0.0;
        row.expires = Timestamp::ZERO;
        self.live -= 1;
    }

    /// Updates the sum for a row, plans its next check, and removes the row if it is empty.
    fn settle(&mut self, now: Timestamp, place: u32) {
        let row = &mut self.rows[place as usize];
        if let Some(outgoing) = &mut row.outgoing {
            outgoing.expire(now);
            if outgoing.is_empty() {
                row.outgoing = None;
            }
        }
        self.count(place);
        let row = &mut self.rows[place as usize];
        let Some(next) = row.next() else {
            row.looked_at = Timestamp::MAX;
            self.occupied -= 1;
            if self.occupied == 0 {
                self.due = Due::default();
            }
            return;
        };
        if next < row.looked_at {
            row.looked_at = next;
            self.look_at(next, place);
        }
    }

    fn look_at(&mut self, moment: Timestamp, place: u32) {
        if self.due.len() > 64 + self.occupied + self.occupied / 4 {
            // Too many entries are obsolete.
            let rows = &self.rows;
            self.due
                .retain(|moment, place| rows[place as usize].looked_at == moment);
        }
        self.due.push(moment, place);
    }

    /// Updates the sum for the group of this row.
    fn count(&mut self, place: u32) {
        let held = self.group(place).map(|(_, row)| row.counts()).sum();
        self.counted.set(place as usize / GROUP, held);
    }

    /// The capacity that counts as held except by this row, whose sum must be updated afterwards.
    fn held_by_others(&mut self, place: u32) -> f64 {
        let others = self.group(place).filter(|(at, _)| *at != place as usize);
        let held = others.map(|(_, row)| row.counts()).sum();
        self.counted.set(place as usize / GROUP, held);
        self.counted.total()
    }

    /// The rows that are counted together with this one.
    fn group(&self, place: u32) -> impl Iterator<Item = (usize, &BookRow)> {
        let first = place as usize / GROUP * GROUP;
        let last = self.rows.len().min(first + GROUP);
        (first..last).map(|at| (at, &self.rows[at]))
    }

    fn held_by(&self, row: &BookRow, holder: Holder) -> Option<HeldLease> {
        row.is_live().then(|| {
            let (wants, clients) = row.wants.bands(|bands| {
                let wants = bands.iter().map(|band| band.wants.get()).sum();
                let clients = bands.iter().map(|band| u64::from(band.weight())).sum();
                (wants, clients)
            });
            HeldLease {
                holder,
                lease: Lease {
                    capacity: Capacity::saturating(row.granted),
                    expires: row.expires,
                    refresh: self.terms.refresh,
                },
                wants: Capacity::saturating(wants),
                clients,
            }
        })
    }
}

impl BookRow {
    const VACANT: Self = Self {
        wants: RowDemand::Nothing,
        granted: 0.0,
        expires: Timestamp::ZERO,
        looked_at: Timestamp::MAX,
        outgoing: None,
    };

    fn is_live(&self) -> bool {
        self.expires > Timestamp::ZERO
    }

    /// The holder reports what it has. Of grants before the last lease, the part above that is free
    /// at `frees`. The last lease itself counts in full, because its answer may be on its way.
    fn confirm(&mut self, has: f64, frees: Timestamp) {
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.limit(has, frees);
        }
    }

    /// The capacity that counts as held by this row.
    fn counts(&self) -> f64 {
        let outgoing = self.outgoing.as_ref();
        self.granted
            .max(outgoing.map_or(0.0, |outgoing| outgoing.amount()))
    }

    /// When to check it again.
    fn next(&self) -> Option<Timestamp> {
        let expires = self.is_live().then_some(self.expires);
        let outgoing = self.outgoing.as_ref();
        let frees = outgoing.and_then(|outgoing| outgoing.next());
        match (expires, frees) {
            (Some(expires), Some(frees)) => Some(expires.min(frees)),
            (expires, frees) => expires.or(frees),
        }
    }
}

impl RowDemand {
    fn of(band: Band) -> Self {
        match i32::try_from(band.priority) {
            Ok(priority) if band.clients == NonZeroU64::MIN => Self::Client {
                priority,
                wants: band.wants.get(),
            },
            _ => Self::Bands(Box::new(Bands(Box::new([band])))),
        }
    }

    /// Each band, for a visitor.
    fn bands<T>(&self, look: impl FnOnce(&[Band]) -> T) -> T {
        match self {
            Self::Nothing => look(&[]),
            Self::Client { priority, wants } => look(&[Band {
                priority: i64::from(*priority),
                clients: NonZeroU64::MIN,
                wants: Capacity::saturating(*wants),
            }]),
            Self::Bands(bands) => look(&bands.0),
        }
    }

    /// The entries in the order: each band if priorities count, else all as one.
    fn parts<T>(&self, ranked: bool, look: impl FnOnce(&[Band]) -> T) -> T {
        self.bands(|bands| {
            if ranked || bands.len() < 2 {
                return look(bands);
            }
            let mut all = bands.to_vec();
            merge(&mut all, |_, _| true);
            look(&all)
        })
    }

    fn enter(&self, demand: &mut DemandOrder, owner: u32) {
        self.parts(demand.is_ranked(), |parts| {
            parts.iter().for_each(|band| demand.insert(owner, band));
        });
    }

    fn leave(&self, demand: &mut DemandOrder, owner: u32) {
        self.parts(demand.is_ranked(), |parts| {
            parts.iter().for_each(|band| demand.remove(owner, band));
        });
    }
}

impl Terms {
    /// Whether priorities decide the order.
    const fn ranks(&self) -> bool {
        self.by_priority && self.split.shares()
    }
}

/// How long to wait before the next request, if the lease lasts this long: not until its end,
/// because it would expire before its renewal.
fn refresh_within(left: Duration, refresh: Duration) -> Duration {
    if refresh < left {
        return refresh;
    }
    let second_before = left.saturating_sub(Duration::from_secs(1));
    second_before.max(left / 2)
}

/// Merges bands of the same priority, the highest first.
fn merge(bands: &mut Vec<Band>, together: impl Fn(&Band, &Band) -> bool) {
    bands.sort_by_key(|band| Reverse(band.priority));
    bands.dedup_by(|next, kept| {
        let merges = together(next, kept);
        if merges {
            kept.wants = Capacity::saturating(kept.wants.get() + next.wants.get());
            kept.clients = kept.clients.saturating_add(next.clients.get());
        }
        merges
    });
}

#[cfg(test)]
mod digest;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_takes_48_bytes() {
        assert_eq!(size_of::<BookRow>(), 48);
    }
}
