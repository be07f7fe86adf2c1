//! The splits as pure functions of all demands.
//!
//! Letters: C is the capacity, w what a band wants, n its clients, N those of all, E = n·C/N its
//! equal share.

use alloc::vec::Vec;

use super::{Band, Capacity, Split};

impl Split {
    /// The share of each of these bands, in their order, without priorities.
    ///
    /// O(n log n) in the number of bands.
    ///
    /// ```
    /// use tidegate_leases::book::{Band, Capacity, Split};
    ///
    /// let want = |wants| Band {
    ///     priority: 0,
    ///     clients: 1.try_into().unwrap(),
    ///     wants: Capacity::new(wants).unwrap(),
    /// };
    /// let capacity = Capacity::new(120.0).unwrap();
    /// let shares = Split::Fair.share(capacity, &[want(1000.0), want(50.0), want(10.0)]);
    /// assert_eq!(shares, [60.0, 50.0, 10.0].map(|share| Capacity::new(share).unwrap()));
    /// ```
    #[must_use]
    pub fn share(self, capacity: Capacity, bands: &[Band]) -> Vec<Capacity> {
        let capacity = capacity.get();
        let share: Vec<f64> = match self {
            Self::None => bands.iter().map(|band| band.wants.get()).collect(),
            Self::Static => bands
                .iter()
                .map(|band| band.wants.get().min(capacity))
                .collect(),
            Self::Proportional => proportional(capacity, bands),
            Self::Fair => fair(capacity, bands),
        };
        share.into_iter().map(Capacity::saturating).collect()
    }

    /// The share of each of these bands, in their order, if the higher priority is served first and
    /// each priority shares the rest of those above it.
    ///
    /// O(n log n) in the number of bands.
    #[must_use]
    pub fn share_by_priority(self, capacity: Capacity, bands: &[Band]) -> Vec<Capacity> {
        if !self.shares() {
            return self.share(capacity, bands);
        }
        let mut order: Vec<usize> = (0..bands.len()).collect();
        order.sort_by_key(|&index| core::cmp::Reverse(bands[index].priority));
        let mut shares = alloc::vec![Capacity::ZERO; bands.len()];
        let mut left = capacity.get();
        for rank in order.chunk_by(|&a, &b| bands[a].priority == bands[b].priority) {
            let members: Vec<Band> = rank.iter().map(|&index| bands[index]).collect();
            let got = self.share(Capacity::saturating(left), &members);
            for (&index, share) in rank.iter().zip(got) {
                shares[index] = share;
            }
            let wanted: f64 = members.iter().map(|band| band.wants.get()).sum();
            left = (left - wanted).max(0.0);
        }
        shares
    }
}

impl Band {
    /// The clients as a weight.
    pub(super) fn weight(&self) -> u32 {
        u32::try_from(self.clients.get()).unwrap_or(u32::MAX)
    }

    /// The demand for each client: smaller demands are satisfied first.
    pub(super) fn each(&self) -> f64 {
        self.wants.get() / f64::from(self.weight())
    }
}

fn proportional(capacity: f64, bands: &[Band]) -> Vec<f64> {
    let wanted: f64 = bands.iter().map(|band| band.wants.get()).sum();
    if wanted <= capacity {
        return bands.iter().map(|band| band.wants.get()).collect();
    }
    let clients: f64 = bands.iter().map(|band| f64::from(band.weight())).sum();
    let each = capacity / clients;
    // What small demands leave of their equal shares, and what the others want beyond theirs.
    let (mut left, mut beyond) = (0.0, 0.0);
    for band in bands {
        let excess = band.wants.get() - each * f64::from(band.weight());
        if band.each() < each {
            left -= excess;
        } else {
            beyond += excess;
        }
    }
    bands
        .iter()
        .map(|band| above_equal_share(band, each, left, beyond))
        .collect()
}

/// The share of a band by [`Split::Proportional`], if the sum of demands exceeds the capacity:
/// `each` is the equal share of one client, `left` what is not wanted of those and `beyond` what
/// is wanted above them.
pub(super) fn above_equal_share(band: &Band, each: f64, left: f64, beyond: f64) -> f64 {
    let wants = band.wants.get();
    let equal = each * f64::from(band.weight());
    if band.each() < each || wants <= equal {
        return wants;
    }
    // More is wanted beyond than is left; no rounding makes it the other way round.
    let ratio = if beyond > left { left / beyond } else { 1.0 };
    (equal + (wants - equal) * ratio).min(wants)
}

fn fair(capacity: f64, bands: &[Band]) -> Vec<f64> {
    let mut order: Vec<&Band> = bands.iter().collect();
    order.sort_by(|a, b| a.each().total_cmp(&b.each()));
    let mut clients: u64 = bands.iter().map(|band| u64::from(band.weight())).sum();
    let mut satisfied = 0.0;
    let mut level = f64::INFINITY;
    for band in order {
        // Whether all with at least this demand for each client could have as much as this one.
        if satisfied + band.each() * clients as f64 > capacity {
            level = (capacity - satisfied).max(0.0) / clients as f64;
            break;
        }
        satisfied += band.wants.get();
        clients -= u64::from(band.weight());
    }
    bands.iter().map(|band| at_level(band, level)).collect()
}

/// The share of a band by [`Split::Fair`], if one client gets no more than `level`.
pub(super) fn at_level(band: &Band, level: f64) -> f64 {
    let wants = band.wants.get();
    if band.each() <= level {
        return wants;
    }
    (level * f64::from(band.weight())).min(wants)
}
