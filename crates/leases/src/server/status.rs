//! What a server shows of itself: plain values for the page, the JSON and the metrics.

use std::time::Duration;

use tidegate_limits::Timestamp;

use crate::book::{Capacity, Split};

/// Everything that is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// When it was looked at.
    pub at: Timestamp,
    /// Under which name and address the server is known.
    pub id: String,
    /// Master or not, since when.
    pub standing: Standing,
    /// The resources that were asked for, by id.
    pub resources: Vec<ResourceNow>,
    /// Resources that come after these.
    pub resources_left_out: usize,
    /// Ids that no template matched, the latest last, and how often each was asked for.
    pub unmatched: Vec<(String, u64)>,
    /// What was counted since the start.
    pub counts: Counts,
    /// Different clients and servers that hold something.
    pub holders: usize,
}

/// What is to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    /// Of which resources.
    pub resources: Resources<'a>,
    /// How many of these, the first by id. The server answers no client while they are copied.
    pub resources_max: usize,
    /// Whether the resources that come after these are counted, which takes time for each. If not,
    /// they count as one.
    pub counts_rest: bool,
    /// How many leases in all, of the first of these resources. The server answers nobody while
    /// they are copied, so those who only want sums ask for none.
    pub leases_max: usize,
}

/// Which resources are to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resources<'a> {
    /// All.
    All,
    /// Those whose ids come after this one.
    After(&'a str),
    /// The one of this id, if there is one.
    One(&'a str),
}

impl Default for View<'_> {
    /// All resources, and 1,000 leases.
    fn default() -> Self {
        Self {
            resources: Resources::All,
            resources_max: usize::MAX,
            counts_rest: true,
            leases_max: 1_000,
        }
    }
}

/// Whether the server lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does, since then.
    Master {
        /// When it was elected.
        since: Timestamp,
    },
    /// Somebody else does.
    Other {
        /// Who, as far as is known.
        master: Option<String>,
    },
}

/// A resource as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceNow {
    /// Its id.
    pub id: String,
    /// Whether its id is the text of a template, so that it may be a label.
    pub literal: bool,
    /// The glob of its template; none where the server above says what it is.
    pub template: Option<String>,
    /// How much there is.
    pub capacity: Capacity,
    /// What is set aside as safe shares.
    pub reserved: Capacity,
    /// How much of that is in use: clients with a safe share.
    pub reserved_clients: u64,
    /// What is lent out, safe shares not included.
    pub held: Capacity,
    /// What all ask for, beyond their safe shares.
    pub wanted: Capacity,
    /// Clients, those of the servers below included.
    pub clients: u64,
    /// How it is split.
    pub split: Split,
    /// Until when it only learns.
    pub learning_until: Option<Timestamp>,
    /// When the server's own lease ends; none at the root.
    pub leased_until: Option<Timestamp>,
    /// When whoever asks is told to ask again.
    pub refresh: Duration,
    /// What clients are told is safe.
    pub safe_capacity: f64,
    /// Leases that have not ended.
    pub leases_total: usize,
    /// Who holds what, by name: as many of them as were asked for ([`View::leases_max`]). Which, if
    /// these are not all, nobody should rely on.
    pub leases: Vec<LeaseNow>,
}

/// A lease as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseNow {
    /// Who holds it.
    pub holder: String,
    /// Whether that is a server.
    pub server: bool,
    /// How many clients it speaks for.
    pub clients: u64,
    /// What it holds, its safe share included.
    pub capacity: f64,
    /// What it asks for.
    pub wants: f64,
    /// Until when.
    pub expires: Timestamp,
}

/// What was counted since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Resources asked for again too early, left out of the answer.
    pub early: u64,
    /// Requests for an id that no template matches.
    pub unmatched: u64,
    /// Claims outside of learning mode to hold something that there is no record of.
    pub unrecorded: u64,
    /// Claims in learning mode to hold more than there is of a resource.
    pub overclaimed: u64,
    /// Times that a capacity fell below what was lent out.
    pub shortfalls: u64,
    /// The most by which it did.
    pub shortfall_max: f64,
    /// Requests that were refused whole.
    pub rejected: u64,
    /// Clients for which no safe share was left.
    pub unreserved: u64,
    /// Answers of the server above that came too late or for something else.
    pub parent_strays: u64,
}
