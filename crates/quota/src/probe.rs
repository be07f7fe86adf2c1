//! Tries a store out, without becoming one of its nodes: `tidegate check --probe`.
//!
//! It reads, writes and removes a record of its own, at the places where a node writes. No key begins
//! with a dot, so no quota has this record.

use tidegate_runtime::Clock;

use super::{Engine, Obstacle};

impl Engine {
    /// Each server as a store of its own, with its address, to find out which of them answers. None
    /// for memory.
    #[must_use]
    pub fn servers(&self) -> Vec<(String, Self)> {
        match self {
            Self::Memory => Vec::new(),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(settings) => {
                let apart = settings.apart().into_iter();
                apart
                    .map(|one| (one.store.servers.clone(), Self::ZooKeeper(one)))
                    .collect()
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(settings) => {
                let apart = settings.apart().into_iter();
                apart
                    .map(|one| (one.store.endpoints[0].to_string(), Self::Etcd(one)))
                    .collect()
            }
            #[cfg(feature = "redis")]
            Self::Redis(settings) => vec![(settings.address(), self.clone())],
        }
    }

    /// Where its records are: a node of ZooKeeper, a prefix in the others.
    #[must_use]
    pub fn root(&self) -> &str {
        match self {
            Self::Memory => "",
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(settings) => &settings.records,
            #[cfg(feature = "etcd")]
            Self::Etcd(settings) => &settings.prefix,
            #[cfg(feature = "redis")]
            Self::Redis(settings) => &settings.prefix,
        }
    }

    /// Does once what a node does: reads and writes a record, and counts as a member for a moment. All
    /// of it is removed again, or ends with its session or lease. Returns a danger for the records, with its cure,
    /// if there is one.
    ///
    /// # Errors
    ///
    /// The first step that failed.
    pub async fn try_out(&self, clock: Clock) -> Result<Option<String>, Obstacle> {
        match self {
            Self::Memory => Ok(None),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(settings) => {
                let tried = super::zookeeper::try_out(settings.clone()).await;
                tried.map(|()| None)
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(settings) => {
                let tried = super::etcd::try_out(settings.clone()).await;
                tried.map(|()| None)
            }
            #[cfg(feature = "redis")]
            Self::Redis(settings) => super::redis::try_out(settings.clone(), clock).await,
        }
    }
}
