//! The capacity server: grants shares of a resource's capacity until a moment.
//!
//! [`CapacityServer`] makes every decision. It is a state machine without a clock, a socket or a
//! thread: requests and the time go in, answers come out. The rest transports bytes.

mod checks;
mod connection;
mod glob;
mod health;
mod metrics;
mod observed;
pub mod page;
mod parent;
mod reflection;
mod rejected;
mod reply;
mod resource;
mod roster;
mod serve;
mod service;
mod settings;
mod state;
mod status;
mod templates;

pub use glob::{BadGlob, Glob};
pub use metrics::Metrics;
pub use parent::keep_asking;
pub use rejected::Rejected;
pub use serve::serve;
pub use service::CapacityService;
pub use settings::{NetworkBounds, ServerBounds, ServerSettings, TreePlace, Unmatched};
pub use state::CapacityServer;
pub use status::{LeaseNow, ResourceNow, Resources, ServerCounts, ServerRole, ServerStatus, View};
pub use templates::{
    Algorithm, Catchall, Frees, RawAlgorithm, RawKind, RawTemplate, Reserve, Template,
    TemplateMistake, Templates,
};
