//! The claims of docs/reference/evidence.md, as a run reports them.

use std::fmt;

/// A claim that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// By its number in docs/explanation/promises.md.
    Promise(u8),
    /// Processes never lease more than the capacity together.
    Leases,
    /// No window of a quota is spent beyond its total.
    Quotas,
    /// An answer, and a call, arrive as they were sent.
    Bytes,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Promise(number) => write!(f, "promise {number}"),
            Self::Leases => f.write_str("leases"),
            Self::Quotas => f.write_str("quotas"),
            Self::Bytes => f.write_str("bytes"),
        }
    }
}
