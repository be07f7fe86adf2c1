//! The obstacle between a node and its store, as a probe finds it.

use super::StoreError;

/// The name of the record, and the beginning of others beside it.
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
pub(super) const NAME: &str = ".probe";

/// A step of a node's work with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreStep {
    /// The node reads a record.
    Read,
    /// The node writes a record.
    Write,
    /// The node counts itself as a member.
    Join,
    /// The node subscribes to the changes of a record.
    Subscribe,
}

/// The first step that failed.
#[derive(Debug)]
pub struct Obstacle {
    /// The step that was tried.
    pub step: StoreStep,
    /// Where: the key, the node or the channel.
    pub place: String,
    /// Why it failed.
    pub error: StoreError,
}

#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
impl Obstacle {
    /// Names the step that an error stopped.
    pub(super) fn at(step: StoreStep, place: &str) -> impl FnOnce(StoreError) -> Self {
        let place = place.to_owned();
        move |error| Self { step, place, error }
    }
}
