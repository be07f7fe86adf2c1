//! The state of a limit, as words of a digest.

use super::level::Level;
use super::state::{LimitState, Outstanding, Stake};
use super::{Limiter, ReserveState};
use crate::digest::Digest;
use crate::supply::Supply;
use crate::time::Timestamp;

impl Limiter {
    pub(crate) fn digest(&self, to: &mut Digest) {
        let Self {
            // A search knows which policy is in force.
            rule: _,
            configured: _,
            supplies,
            share,
            is_lowered: _,
            state,
            kept,
            // Follows from the calls that wait.
            queued: _,
            reported: _,
        } = self;
        for supply in supplies {
            digest_supply(supply, to);
        }
        to.word(u64::from(share.thousandths()));
        state.digest(to);
        if let Some(kept) = kept {
            let ReserveState { reserve: _, used } = &**kept;
            used.digest(to);
        }
    }
}

impl LimitState {
    fn digest(&self, to: &mut Digest) {
        match self {
            Self::Outstanding(Outstanding {
                in_use,
                // Both only foretell when calls start.
                holds: _,
                begun: _,
            }) => to.word(u64::from(*in_use)),
            Self::Window(window) => window.digest(to),
            Self::Paced(_) => unreachable!("a digest has no paces"),
        }
    }
}

impl Level {
    pub(crate) fn digest(&self, now: Timestamp, to: &mut Digest) {
        match self {
            Self::Bucket(bucket) => bucket.digest(now, to),
            Self::Paced(_) => unreachable!("a digest has no paces"),
        }
    }
}

impl Stake {
    pub(crate) fn digest(self, to: &mut Digest) {
        let (kind, cost) = match self {
            Self::Slot => (0, 0),
            Self::Reserved(cost) => (1, cost.get()),
            Self::Departed(cost) => (2, cost.get()),
            Self::Tokens(_) => unreachable!("a digest has no paces"),
        };
        to.word(kind);
        to.word(u64::from(cost));
    }
}

fn digest_supply(supply: &Supply, to: &mut Digest) {
    match *supply {
        Supply::Configured => to.word(u64::MAX),
        Supply::Capacity {
            capacity,
            expires_at,
            then,
        } => {
            to.word(u64::from(capacity));
            to.maybe_coming(expires_at);
            to.word(u64::from(then));
        }
    }
}
