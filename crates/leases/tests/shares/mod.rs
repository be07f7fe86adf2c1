//! The splits as pure functions of all demands: what a book must give once all have asked.
//!
//! Letters: C is the capacity, w what a band wants, n its clients, N those of all, E = n·C/N its
//! equal share. Every function is O(n log n) in the number of bands.

use std::cmp::Reverse;

use super::book::{Band, Split};

/// The share of each of these bands, in their order, without priorities.
pub(crate) fn share(split: Split, capacity: f64, bands: &[Band]) -> Vec<f64> {
    match split {
        Split::None => bands.iter().map(|band| band.wants.get()).collect(),
        Split::Static => bands
            .iter()
            .map(|band| band.wants.get().min(capacity))
            .collect(),
        Split::Proportional => proportional(capacity, bands),
        Split::Fair => fair(capacity, bands),
    }
}

/// The share of each of these bands, in their order, if the higher priority is served first and
/// each priority shares the rest of those above it.
pub(crate) fn share_by_priority(split: Split, capacity: f64, bands: &[Band]) -> Vec<f64> {
    if !split.shares() {
        return share(split, capacity, bands);
    }
    let mut order: Vec<usize> = (0..bands.len()).collect();
    order.sort_by_key(|&index| Reverse(bands[index].priority));
    let mut shares = vec![0.0; bands.len()];
    let mut left = capacity;
    for rank in order.chunk_by(|&a, &b| bands[a].priority == bands[b].priority) {
        let members: Vec<Band> = rank.iter().map(|&index| bands[index]).collect();
        for (&index, share) in rank.iter().zip(share(split, left, &members)) {
            shares[index] = share;
        }
        let wanted: f64 = members.iter().map(|band| band.wants.get()).sum();
        left = (left - wanted).max(0.0);
    }
    shares
}

/// The clients as a weight.
fn weight(band: &Band) -> f64 {
    band.clients.get().min(u32::MAX.into()) as f64
}

/// The demand for each client.
fn each(band: &Band) -> f64 {
    band.wants.get() / weight(band)
}

fn proportional(capacity: f64, bands: &[Band]) -> Vec<f64> {
    let wanted: f64 = bands.iter().map(|band| band.wants.get()).sum();
    if wanted <= capacity {
        return bands.iter().map(|band| band.wants.get()).collect();
    }
    let equal = capacity / bands.iter().map(weight).sum::<f64>();
    // What small demands leave of their equal shares, and what the others want beyond theirs.
    let (mut left, mut beyond) = (0.0, 0.0);
    for band in bands {
        let excess = band.wants.get() - equal * weight(band);
        if each(band) < equal {
            left -= excess;
        } else {
            beyond += excess;
        }
    }
    let share = |band: &Band| {
        let (wants, equal_share) = (band.wants.get(), equal * weight(band));
        if each(band) < equal || wants <= equal_share {
            return wants;
        }
        // More is wanted beyond than is left; no rounding makes it the other way round.
        let ratio = if beyond > left { left / beyond } else { 1.0 };
        (equal_share + (wants - equal_share) * ratio).min(wants)
    };
    bands.iter().map(share).collect()
}

fn fair(capacity: f64, bands: &[Band]) -> Vec<f64> {
    let mut order: Vec<&Band> = bands.iter().collect();
    order.sort_by(|a, b| each(a).total_cmp(&each(b)));
    let mut clients: f64 = bands.iter().map(weight).sum();
    let mut satisfied = 0.0;
    let mut level = f64::INFINITY;
    for band in order {
        // Whether all with at least this demand for each client could have as much as this one.
        if satisfied + each(band) * clients > capacity {
            level = (capacity - satisfied).max(0.0) / clients;
            break;
        }
        satisfied += band.wants.get();
        clients -= weight(band);
    }
    let share = |band: &Band| {
        if each(band) <= level {
            band.wants.get()
        } else {
            (level * weight(band)).min(band.wants.get())
        }
    };
    bands.iter().map(share).collect()
}
