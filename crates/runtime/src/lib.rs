//! The needs of every long-running part of Tidegate: time, values that a reload replaces, pauses
//! between attempts. Behind features, what commands share, and the shared parts of leases and
//! quotas: TLS to servers, connections to etcd and ZooKeeper, and elections.

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests serve no calls")
)]

mod back_off;
mod causes;
mod clock;
#[cfg(feature = "command")]
#[expect(
    clippy::disallowed_methods,
    reason = "for commands, before they serve anything"
)]
pub mod command;
#[cfg(feature = "election")]
#[cfg_attr(
    not(any(feature = "etcd", feature = "zookeeper")),
    allow(dead_code, unused_variables, reason = "there is nowhere to contend")
)]
pub mod election;
#[cfg(feature = "etcd")]
pub mod etcd;
mod live;
mod lock;
pub mod measure;
#[cfg(feature = "metrics")]
pub mod metric;
#[cfg(feature = "origin")]
pub mod origin;
#[cfg(feature = "page")]
pub mod page;
mod per_thread;
mod process_name;
mod renewable;
mod scratch;
#[cfg(test)]
#[path = "../../limits/tests/random/seeds.rs"]
mod seeds;
mod stream;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use back_off::BackOff;
pub use causes::Causes;
pub use clock::{Clock, Timer};
pub use live::Live;
pub use lock::{lock, try_lock};
pub use per_thread::PerThread;
pub use process_name::ProcessName;
pub use renewable::Renewable;
pub use scratch::with_scratch;
pub use stream::{ByteStream, poll_write_both};
