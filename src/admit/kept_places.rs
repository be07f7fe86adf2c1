//! The places in the queue that are kept for clients, by the digests of their calls.

use std::collections::BTreeSet;

use foldhash::HashMap;
use tidegate_limits::{Ticket, Timestamp};

use super::decision::Lane;
use crate::call::CallDigest;
use crate::call::ticket::TicketSecret;

/// The places that are kept.
#[derive(Debug)]
pub(super) struct KeptPlaces {
    /// The secret of tickets and digests, which the next process takes over.
    pub(super) secret: TicketSecret,
    places: HashMap<CallDigest, KeptPlace>,
    ends: BTreeSet<(Timestamp, CallDigest)>,
    pub(super) counts: TicketCounts,
}

/// A place that is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptPlace {
    pub(super) lane: Lane,
    pub(super) ticket: Ticket,
    /// When the client came first.
    pub(super) arrived: Timestamp,
    /// When the call was suspended.
    pub(super) since: Timestamp,
    pub(super) until: Timestamp,
    /// The id of the call that was refused; `None` if an earlier process refused it.
    pub(super) call: Option<u64>,
}

/// The fate of the place of a call that is refused before its client gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceFate {
    /// The place is kept.
    Kept,
    /// Another call of this caller, the same as this one, has a place already.
    Taken,
    /// The client does not wait at all.
    GivenUp,
    /// Another process decides, or the queue is drained.
    NotDecided,
}

impl PlaceFate {
    /// The reason, for the reader of the refusal.
    pub(super) const fn detail(self) -> &'static str {
        match self {
            Self::Kept => "the client's time-out is near: its place is kept until it comes back",
            Self::Taken => {
                "the client's time-out is near, and no place is kept: the same call of its caller has one"
            }
            Self::GivenUp => "the client does not wait, so it has no place",
            Self::NotDecided => {
                "the client's time-out is near, and no place is kept, because this process is about to end"
            }
        }
    }
}

/// Tickets by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TicketCounts {
    /// Calls that were refused with a ticket.
    pub given: u64,
    /// Calls that came back in time.
    pub used: u64,
    /// Places whose clients did not come back in time.
    pub lapsed: u64,
    /// Calls that were refused without a ticket, because the same call of the same caller has a place.
    pub taken: u64,
}

impl KeptPlaces {
    pub(super) fn new(secret: TicketSecret) -> Self {
        Self {
            secret,
            places: HashMap::default(),
            ends: BTreeSet::new(),
            counts: TicketCounts::default(),
        }
    }

    pub(super) fn keep(&mut self, digest: CallDigest, place: KeptPlace) {
        self.ends.insert((place.until, digest));
        self.places.insert(digest, place);
    }

    /// The place of a call.
    pub(super) fn find(&self, digest: CallDigest) -> Option<&KeptPlace> {
        self.places.get(&digest)
    }

    /// Takes the place of a call.
    pub(super) fn take(&mut self, digest: CallDigest) -> Option<KeptPlace> {
        let place = self.places.remove(&digest)?;
        self.ends.remove(&(place.until, digest));
        Some(place)
    }

    /// Forgets places whose time is over. The scheduler has ended them.
    pub(super) fn forget_lapsed(&mut self, now: Timestamp) -> Vec<CallDigest> {
        let mut lapsed = Vec::new();
        while let Some(&(until, digest)) = self.ends.first()
            && until < now
        {
            self.ends.pop_first();
            self.places.remove(&digest);
            self.counts.lapsed += 1;
            lapsed.push(digest);
        }
        lapsed
    }

    /// The places that are kept.
    pub(super) fn iter(&self) -> impl Iterator<Item = (CallDigest, &KeptPlace)> {
        self.places.iter().map(|(digest, place)| (*digest, place))
    }
}
