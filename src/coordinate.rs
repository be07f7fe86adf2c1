//! Sharing one capacity with others: leases, elections, and the stores they stand on.
//!
//! Nothing here knows of the scheduler: what is wanted comes in and what may be used goes out as
//! plain values, which `app` carries.

pub mod election;
pub mod etcd;
pub mod lease_client;
pub mod lease_server;
pub mod quota_store;
mod settings;
pub(crate) mod supply;
pub mod wire;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use self::settings::{QuotaLimit, Quotas, Safe, Servers, Settings, SharedLimit};
