//! How much slower each call becomes as more run at once.
//!
//! The *stretch* at a load is how many times longer a call takes than alone. All calls at the
//! backend have the same stretch at the same moment, which is what makes [`Model`](crate::Model)
//! exact.

use std::num::NonZeroU32;

use crate::{OutOfRange, within};

/// The law of a backend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sharing {
    /// Processor sharing with this many servers. Up to that many calls run at full speed, more
    /// share the servers evenly: the stretch is max(1, n/c). With one server it is the model of
    /// L. Kleinrock, "Time-shared systems: a theoretical treatment", Journal of the ACM 14(2), 1967.
    Servers(NonZeroU32),
    /// The universal scalability law.
    Scalability(Scalability),
}

/// The two numbers of the universal scalability law: N. J. Gunther, "A general theory of
/// computational scalability based on rational functions", arXiv:0808.1431, 2008.
///
/// n calls at once finish n / (1 + σ(n−1) + κn(n−1)) times as many calls a second as one does, so each takes
/// 1 + σ(n−1) + κn(n−1) times as long. With κ above 0, throughput has a peak at √((1−σ)/κ), and falls
/// beyond it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scalability {
    contention: f64,
    coherency: f64,
}

impl Scalability {
    /// The law with this share of work that only one call at a time can do (σ, 0 to 1), and this
    /// cost for each pair of calls (κ, 0 to 1).
    ///
    /// # Errors
    ///
    /// A number out of its range.
    pub fn new(contention: f64, coherency: f64) -> Result<Self, OutOfRange> {
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        Ok(Self {
            contention: within(contention, is_share(contention), "σ", "0 to 1")?,
            coherency: within(coherency, is_share(coherency), "κ", "0 to 1")?,
        })
    }

    /// The load at which throughput has its peak; `None` if it never falls.
    #[must_use]
    pub fn peak(self) -> Option<f64> {
        (self.coherency > 0.0).then(|| ((1.0 - self.contention) / self.coherency).sqrt())
    }
}

impl Sharing {
    /// How many times longer a call takes at this load than alone, with this share of the full
    /// capacity.
    ///
    /// Of servers, a share of capacity is that share of the servers, so a lone call is not
    /// slower while one whole server is left. In the universal scalability law everything becomes slower.
    #[must_use]
    pub fn stretch(self, load: f64, capacity: f64) -> f64 {
        match self {
            Self::Servers(servers) => (load / (f64::from(servers.get()) * capacity)).max(1.0),
            Self::Scalability(Scalability {
                contention,
                coherency,
            }) => {
                let others = (load - 1.0).max(0.0);
                (1.0 + contention * others + coherency * load * others) / capacity
            }
        }
    }
}
