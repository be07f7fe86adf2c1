//! The status of a server: plain values for the page, the JSON and the metrics.

use std::time::Duration;

use serde::Serialize;
use tidegate_limits::Timestamp;

use crate::book::{Capacity, Split};

/// The status.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerStatus {
    /// The time of the status.
    pub at: Timestamp,
    /// The id and the address of the server.
    pub id: String,
    /// Master or not, since when.
    pub standing: ServerRole,
    /// The requested resources, by id.
    pub resources: Vec<ResourceNow>,
    /// Resources that come after these.
    pub resources_left_out: usize,
    /// Ids without a matching template, the latest last, and how often each was requested.
    pub unmatched: Vec<(String, u64)>,
    /// The counts since the start.
    pub counts: ServerCounts,
    /// Different clients and servers that hold something.
    pub holders: usize,
}

/// The selection of a status page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    /// Of which resources.
    pub resources: Resources<'a>,
    /// The most of these, the first by id. The server answers no client while they are copied.
    pub resources_max: usize,
    /// Whether the resources that come after these are counted, which takes time for each. If not,
    /// they count as one.
    pub counts_rest: bool,
    /// The most leases in all, of the first of these resources. The server answers no client while
    /// they are copied, so request none for sums only.
    pub leases_max: usize,
}

/// The resources to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resources<'a> {
    /// All.
    All,
    /// The resources whose ids come after this one.
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

/// Whether the server grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerRole {
    /// The server is the master, since this moment.
    Master {
        /// When it was elected.
        since: Timestamp,
    },
    /// Another server does.
    Other {
        /// The address of the master, if known.
        master: Option<String>,
    },
}

/// The state of a resource.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceNow {
    /// The id of the resource.
    pub id: String,
    /// Whether its id is the text of a template, so that it may be a label.
    pub literal: bool,
    /// The glob of its template; none where the server above says what it is.
    pub template: Option<String>,
    /// The capacity.
    pub capacity: Capacity,
    /// The reserve for safe shares.
    pub reserved: Capacity,
    /// How much of that is in use: clients with a safe share.
    pub reserved_clients: u64,
    /// The granted amount, without safe shares.
    pub held: Capacity,
    /// The sum of demands beyond safe shares.
    pub wanted: Capacity,
    /// Clients, including those of the servers below.
    pub clients: u64,
    /// How it is split.
    pub split: Split,
    /// Until when it only learns.
    pub learning_until: Option<Timestamp>,
    /// When the server's own lease ends; `None` at the root.
    pub leased_until: Option<Timestamp>,
    /// The refresh interval for clients.
    pub refresh: Duration,
    /// The safe capacity for clients.
    pub safe_capacity: f64,
    /// Leases that have not ended.
    pub leases_total: usize,
    /// The leases, by holder, at most [`View::leases_max`]. If these are not all, the choice is
    /// arbitrary.
    pub leases: Vec<LeaseNow>,
}

/// The state of a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseNow {
    /// Who holds it.
    pub holder: String,
    /// Whether that is a server.
    pub server: bool,
    /// How many clients it speaks for.
    pub clients: u64,
    /// The capacity of the lease, including its safe share.
    pub capacity: f64,
    /// The demand of the holder.
    pub wants: f64,
    /// Until when.
    pub expires: Timestamp,
}

/// Counts since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ServerCounts {
    /// Resources that were requested too early, and left out of the answer.
    pub early: u64,
    /// Requests for an id that no template matches.
    pub unmatched: u64,
    /// Claims without a record, outside of learning mode.
    pub unrecorded: u64,
    /// Claims above the capacity, in learning mode.
    pub overclaimed: u64,
    /// How often a capacity fell below the grants.
    pub shortfalls: u64,
    /// The largest such difference.
    pub shortfall_max: f64,
    /// Requests that were refused whole.
    pub rejected: u64,
    /// Clients for which no safe share was left.
    pub unreserved: u64,
    /// Answers of the server above that arrived too late or were for another request.
    pub parent_strays: u64,
}
