//! The share of one band, from sums over all demands.

use super::Band;

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

/// The share of a band by [`Split::Proportional`](super::Split::Proportional), if the sum of demands exceeds the capacity:
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

/// The share of a band by [`Split::Fair`](super::Split::Fair), if one client gets no more than `level`.
pub(super) fn at_level(band: &Band, level: f64) -> f64 {
    let wants = band.wants.get();
    if band.each() <= level {
        return wants;
    }
    (level * f64::from(band.weight())).min(wants)
}
