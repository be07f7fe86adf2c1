//! The store that the sidecars share, and its faults.

use std::net::SocketAddr;
use std::time::Duration;

use super::sentinels::Group;
use crate::stores::Etcd;
use crate::stores::Redis;
use crate::stores::ZooKeeper;

/// Real servers on loopback.
pub(super) enum Store {
    /// No store: each sidecar is alone.
    Memory,
    ZooKeeper(ZooKeeper),
    Etcd(Etcd),
    /// A server, and the flags that it is started with.
    Redis(Redis, &'static [&'static str]),
    /// A primary and its replica, behind sentinels.
    Sentinels(Group),
}

/// The writes that go to disk before their confirmation.
pub(super) const REDIS_KEEPS: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

impl Store {
    /// As the config calls it.
    pub(super) fn engine(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::ZooKeeper(_) => "zookeeper",
            Self::Etcd(_) => "etcd",
            Self::Redis(..) | Self::Sentinels(_) => "redis",
        }
    }

    /// Whether its time is the time of day of this machine.
    pub(super) fn tells_the_time_of_day(&self) -> bool {
        matches!(self.engine(), "zookeeper" | "redis")
    }

    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        match self {
            Self::Memory => Vec::new(),
            Self::ZooKeeper(ensemble) => (0..3).map(|at| ensemble.addr(at)).collect(),
            Self::Etcd(cluster) => (0..3).map(|at| cluster.addr(at)).collect(),
            Self::Redis(server, _) => vec![server.addr()],
            Self::Sentinels(group) => group.addrs(),
        }
    }

    /// A server as the config names it, by its address or that of a relay before it.
    pub(super) fn server(&self, addr: SocketAddr) -> String {
        match self.engine() {
            "etcd" => format!("http://{addr}"),
            "redis" => format!("redis://{addr}"),
            _ => addr.to_string(),
        }
    }

    /// The server that leads, once all are well.
    async fn leader(&self) -> usize {
        match self {
            Self::Memory => unreachable!("it has no server"),
            Self::ZooKeeper(ensemble) => {
                ensemble.serves().await;
                ensemble.leader()
            }
            Self::Etcd(cluster) => loop {
                if let Some(leader) = cluster.known_leader() {
                    return leader;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            },
            Self::Redis(..) | Self::Sentinels(_) => 0,
        }
    }

    /// Kills the leader, and starts it again after a while, with its data on disk. Returns when all
    /// servers are well.
    pub(super) async fn kill_leader(&mut self, away: Duration) {
        if let Self::Sentinels(group) = self {
            return group.kill_primary(away).await;
        }
        let leader = self.leader().await;
        match self {
            Self::Memory | Self::Sentinels(_) => unreachable!("it has no such server"),
            Self::ZooKeeper(ensemble) => ensemble.member(leader).kill(),
            Self::Etcd(cluster) => cluster.member(leader).kill(),
            Self::Redis(server, _) => server.kill(),
        }
        tokio::time::sleep(away).await;
        match self {
            Self::Memory | Self::Sentinels(_) => unreachable!("it has no such server"),
            Self::ZooKeeper(ensemble) => ensemble.restart(leader),
            Self::Etcd(cluster) => cluster.restart(leader),
            Self::Redis(server, flags) => server.restart(flags),
        }
        self.leader().await;
    }

    /// Stops the leader where it stands, for a while. Returns when all servers are well.
    pub(super) async fn pause_leader(&mut self, pause: Duration) {
        let leader = self.leader().await;
        self.signal(leader, "STOP");
        tokio::time::sleep(pause).await;
        self.signal(leader, "CONT");
        self.leader().await;
    }

    /// Has another server lead, in order.
    pub(super) async fn fail_over(&mut self) {
        let Self::Sentinels(group) = self else {
            unreachable!("only sentinels do that")
        };
        group.fail_over().await;
    }

    fn signal(&mut self, server: usize, name: &str) {
        match self {
            Self::Memory | Self::Sentinels(_) => unreachable!("it has no such server"),
            Self::ZooKeeper(ensemble) => ensemble.member(server).signal(name),
            Self::Etcd(cluster) => cluster.member(server).signal(name),
            Self::Redis(redis, _) => redis.signal(name),
        }
    }
}
