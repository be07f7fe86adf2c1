//! Every test of the crate against real stores, in one binary.

#![allow(clippy::disallowed_methods, reason = "tests serve no calls")]

#[allow(dead_code)]
#[path = "../../../../tests/it/authority.rs"]
mod authority;
#[allow(dead_code)]
#[path = "../../../../tests/it/child.rs"]
mod child;
mod election;
mod etcd;
mod etcd_proto;
#[path = "../../../../tests/it/relay.rs"]
mod relay;
#[allow(dead_code)]
#[path = "../../../../tests/it/stores.rs"]
mod stores;
mod zookeeper;

mod support {
    use std::time::Duration;

    /// The longest time that anything in a test takes, unless it hangs.
    pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
}
