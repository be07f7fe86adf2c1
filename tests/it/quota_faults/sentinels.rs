//! A primary of Redis, its replica, and the three sentinels that watch them.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::stores::{Redis, Sentinels};
use crate::support::PATIENCE;

/// The replica copies at once, so that a test need not wait for it.
const FLAGS: &[&str] = &["--repl-diskless-sync-delay", "0"];

/// Two servers, of which one is the primary.
pub(super) struct Group {
    servers: [Redis; 2],
    sentinels: Sentinels,
}

impl Group {
    pub(super) async fn start() -> Self {
        let primary = Redis::start(FLAGS);
        let port = primary.addr().port();
        let of = port.to_string();
        let replica = Redis::start(&[FLAGS, &["--replicaof", "127.0.0.1", &of]].concat());
        let sentinels = Sentinels::start(port, |_| Vec::new());
        sentinels.each_until("+sentinel ", 2);
        sentinels.each_until("+slave ", 1);
        let group = Self {
            servers: [primary, replica],
            sentinels,
        };
        group.primary().await;
        group
    }

    /// The sentinels, which are the servers of a config.
    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        let ports = self.sentinels.ports().iter();
        ports.map(|port| ([127, 0, 0, 1], *port).into()).collect()
    }

    /// The primary, once the other server is its replica.
    async fn primary(&self) -> usize {
        let found = async {
            loop {
                for at in 0..2 {
                    let told = ask(self.servers[at].addr().port(), &["info", "replication"]).await;
                    if told.contains("role:master") && told.contains("state=online") {
                        return at;
                    }
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let found = timeout(PATIENCE, found).await;
        found.expect("there is a primary with a replica")
    }

    /// Has the sentinels exchange the two. Returns when both are well.
    pub(super) async fn fail_over(&self) {
        let before = self.primary().await;
        let sentinel = self.sentinels.ports()[0];
        let failed_over = async {
            loop {
                // It is refused for a while after the last one.
                ask(sentinel, &["sentinel", "failover", "mymaster"]).await;
                sleep(Duration::from_millis(200)).await;
                if self.primary().await != before {
                    return;
                }
            }
        };
        let failed_over = timeout(PATIENCE, failed_over).await;
        failed_over.expect("the replica becomes the primary");
    }

    /// Kills the primary, and starts it again after a while. Returns when both are well.
    pub(super) async fn kill_primary(&mut self, away: Duration) {
        let primary = self.primary().await;
        self.servers[primary].kill();
        let promoted = async {
            let other = self.servers[1 - primary].addr().port();
            while !ask(other, &["role"]).await.starts_with("master") {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let promoted = timeout(PATIENCE, promoted).await;
        promoted.expect("the replica becomes the primary");
        sleep(away).await;
        self.servers[primary].restart(FLAGS);
        self.primary().await;
    }
}

async fn ask(port: u16, command: &[&str]) -> String {
    let mut cli = Command::new("redis-cli");
    cli.args(["-p", &port.to_string()]).args(command);
    let told = cli.output().await.expect("it comes with Redis");
    String::from_utf8_lossy(&told.stdout).into_owned()
}
