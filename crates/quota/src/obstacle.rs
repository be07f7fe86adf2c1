//! What keeps a node from its store, as a probe finds it.

use super::Error;

/// The name of the record, and the beginning of others beside it.
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
pub(super) const NAME: &str = ".probe";

/// What a node does with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It reads a record.
    Read,
    /// It writes a record.
    Write,
    /// It counts itself as a member.
    Join,
    /// It subscribes to the changes of a record.
    Subscribe,
}

/// The first step that failed.
#[derive(Debug)]
pub struct Obstacle {
    /// What was tried.
    pub step: Step,
    /// Where: the key, the node or the channel.
    pub place: String,
    /// Why it failed.
    pub error: Error,
}

#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
impl Obstacle {
    /// Names the step that an error stopped.
    pub(super) fn at(step: Step, place: &str) -> impl FnOnce(Error) -> Self {
        let place = place.to_owned();
        move |error| Self { step, place, error }
    }
}
