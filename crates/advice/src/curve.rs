//! How service times grow with the number of calls at the backend.
//!
//! The *stretch* `s(n)` is how many times longer a call takes among `n` than alone, so the backend
//! completes `n / s(n)` calls in the time of a single one.
//!
//! - **Universal scalability law** (N. J. Gunther, "Guerrilla Capacity Planning", Springer 2007,
//!   chapter 4): `s(n) = 1 + σ(n − 1) + κn(n − 1)`. σ is what calls wait for one another, κ what
//!   they cost one another. With κ above 0, throughput falls beyond `√((1 − σ)/κ)`.
//! - **Processor sharing** among `c` servers (L. Kleinrock, "Time-shared systems: a theoretical
//!   treatment", Journal of the ACM 14, 1967, for one server): `s(n) = max(1, n / c)`. Throughput
//!   is constant from `c` on.

/// A stretch by the number of calls at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Curve {
    /// No call delays another one.
    Flat,
    /// The universal scalability law.
    Scalability {
        /// The share of a call that waits for others, at least 0.
        sigma: f64,
        /// The cost of each pair of calls, at least 0.
        kappa: f64,
    },
    /// Processor sharing.
    Sharing {
        /// How many calls run at full speed, above 0.
        servers: f64,
    },
}

impl Curve {
    /// How many times longer a call takes among `n` (itself included) than alone; at least 1.
    #[must_use]
    pub fn stretch(&self, n: f64) -> f64 {
        let others = (n - 1.0).max(0.0);
        match *self {
            Self::Flat => 1.0,
            Self::Scalability { sigma, kappa } => 1.0 + sigma * others + kappa * n * others,
            Self::Sharing { servers } => (n / servers).max(1.0),
        }
    }

    /// Calls completed among `n`, in the time that one call takes alone.
    #[must_use]
    pub fn throughput(&self, n: u32) -> f64 {
        let n = f64::from(n);
        n / self.stretch(n)
    }

    /// The smallest `n` up to `most` that has this share of the highest throughput up to `most`.
    #[must_use]
    pub fn knee(&self, most: u32, share: f64) -> u32 {
        let highest = (1..=most).map(|n| self.throughput(n)).fold(0.0, f64::max);
        (1..=most)
            .find(|n| self.throughput(*n) >= share * highest)
            .unwrap_or(1)
    }

    /// Every curve that is tried for levels up to `most`.
    #[must_use]
    pub(crate) fn candidates(most: u32) -> Vec<Self> {
        let mut all = vec![Self::Flat];
        let sigmas = [
            0.0, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8,
            1.0,
        ];
        let kappas = [
            0.0, 1e-5, 3e-5, 1e-4, 2e-4, 4e-4, 7e-4, 0.001, 0.002, 0.003, 0.005, 0.008, 0.012,
            0.02, 0.035, 0.06, 0.1, 0.2,
        ];
        for sigma in sigmas {
            for kappa in kappas {
                if sigma + kappa > 0.0 {
                    all.push(Self::Scalability { sigma, kappa });
                }
            }
        }
        let mut servers = 1.0;
        while servers < f64::from(most) {
            all.push(Self::Sharing { servers });
            servers += (servers / 16.0_f64).floor().max(1.0);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_of_the_scalability_law_is_before_its_peak() {
        let curve = Curve::Scalability {
            sigma: 0.02,
            kappa: 0.005,
        };
        let peak = (0.98_f64 / 0.005).sqrt().round() as u32;
        assert_eq!(curve.knee(100, 1.0), peak);
        let knee = curve.knee(100, 0.95);
        assert!(knee < peak);
        assert!(curve.throughput(knee) >= 0.95 * curve.throughput(peak));
    }

    #[test]
    fn the_knee_of_sharing_is_the_number_of_servers() {
        for servers in [1, 4, 16] {
            let curve = Curve::Sharing {
                servers: f64::from(servers),
            };
            assert_eq!(curve.knee(64, 0.95), servers);
            assert_eq!(curve.knee(servers, 0.95), servers);
        }
        assert_eq!(Curve::Flat.knee(8, 0.95), 8);
    }
}
