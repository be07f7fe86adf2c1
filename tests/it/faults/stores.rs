//! The store of quotas and the capacity server of a cell, each behind a relay, and what befalls
//! them.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::client::Wire;
use super::matrix::{Cell, Column, Row};
use super::run::own_ip;
use crate::child::Process;
use crate::relay::{Mode, Relay};
use crate::sidecar::with_programs;
use crate::stores::Etcd;
use crate::stores::Redis;

/// The stores of a cell.
#[derive(Default)]
pub(super) struct Stores {
    redis: Option<(Redis, Relay)>,
    leases: Option<(LeaseServer, Relay)>,
    etcd: Option<Cluster>,
}

/// Three members, one of which may be dead.
struct Cluster {
    etcd: Etcd,
    dead: Option<usize>,
}

struct LeaseServer {
    addr: SocketAddr,
    folder: tempfile::TempDir,
    process: Process,
}

impl LeaseServer {
    fn start() -> Self {
        let addr = SocketAddr::from((own_ip(), 9190));
        let folder = tempfile::tempdir().expect("there is room");
        let process = Self::run(addr, folder.path(), true);
        Self {
            addr,
            folder,
            process,
        }
    }

    fn run(addr: SocketAddr, folder: &std::path::Path, knows: bool) -> Process {
        let glob = if knows { "vm/outstanding" } else { "other" };
        let text = format!(
            "bind = \"{addr}\"\nstatus_bind = \"\"\nminimum_interval = \"0s\"\n\
             unmatched = \"refuse\"\n[log]\nformat = \"json\"\n\
             [[resource]]\nglob = \"{glob}\"\ncapacity = 4\n[resource.algorithm]\n\
             lease = \"2s\"\nrefresh = \"1s\"\nlearning = \"0s\"\nreserved_clients = 1\n\
             safe_share = 2\n"
        );
        let path = folder.join("leases.toml");
        std::fs::write(&path, text).expect("there is room");
        let mut command = Command::new(with_programs());
        command.args(["lease-server", "--config"]).arg(path);
        Process::start("lease server", &mut command)
    }

    async fn listens(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(self.addr).await.is_err() {
            assert!(
                Instant::now() < until,
                "the capacity server does not listen:\n{}",
                self.process.stderr.all().join("\n")
            );
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn restart(&mut self, knows: bool) {
        self.process.kill();
        self.process = Self::run(self.addr, self.folder.path(), knows);
        self.listens().await;
    }
}

impl Stores {
    pub(super) async fn start(cell: Cell) -> Self {
        let mut stores = Self::default();
        // Where the clock steps, leases and quotas are in use, too.
        let all =
            cell.column == Column::ClockStep && cell.wire != Wire::Tcp && cell.row != Row::FailOver;
        if cell.column.is_of_leases() || all {
            let server = LeaseServer::start();
            server.listens().await;
            let relay = Relay::start(server.addr).await;
            stores.leases = Some((server, relay));
        }
        if cell.column.is_of_the_store() || all {
            let redis = tokio::task::spawn_blocking(|| Redis::start(&[]));
            let redis = redis.await.expect("it starts");
            let relay = Relay::start(redis.addr()).await;
            stores.redis = Some((redis, relay));
        }
        if cell.row == Row::FailOver {
            let etcd = tokio::task::spawn_blocking(|| Etcd::start(3));
            stores.etcd = Some(Cluster {
                etcd: etcd.await.expect("it starts"),
                dead: None,
            });
        }
        stores
    }

    /// The part of the process's config about the stores.
    pub(super) fn config(&self) -> String {
        let mut text = String::new();
        if let Some((_, relay)) = &self.leases {
            text += &format!(
                "[coordinate]\nservers = [\"{}\"]\nexpected_sidecars = 1\n\
                 request_timeout = \"500ms\"\nminimum_interval = \"100ms\"\n\
                 [[coordinate.limit]]\nlimit = \"outstanding\"\nresource = \"vm/outstanding\"\n\
                 safe = 2\n",
                relay.addr
            );
        }
        let quota = |engine: &str, servers: &str| {
            format!(
                "[quota_store]\nengine = \"{engine}\"\nservers = [{servers}]\nexpected_sidecars = 1\n\
                 [[quota]]\nname = \"all\"\napplies_to = \"total\"\n\
                 total = 1000\nrefresh_window = \"1s\"\non_excess = \"delay\"\n\
                 when_store_away = \"safe\"\nsafe = 50\n"
            )
        };
        if let Some((_, relay)) = &self.redis {
            text += &quota("redis", &format!("\"redis://{}\"", relay.addr));
        }
        if let Some(cluster) = &self.etcd {
            let urls = cluster.etcd.urls();
            let urls: Vec<String> = urls.iter().map(|url| format!("\"{url}\"")).collect();
            text += &quota("etcd", &urls.join(", "));
        }
        text
    }

    /// Descriptors that connections to them may take or leave.
    pub(super) fn links(&self) -> usize {
        let mut links = 0;
        if self.redis.is_some() {
            links += 3;
        }
        if self.leases.is_some() {
            links += 3;
        }
        if self.etcd.is_some() {
            // Up to four to each member, and a watch.
            links += 16;
        }
        links
    }

    pub(super) async fn strike(&mut self, column: Column, lasts: Duration) {
        if let Some((redis, relay)) = &self.redis {
            match column {
                Column::StoreAway => relay_is(relay, Mode::Cut, lasts).await,
                Column::StoreSlow => relay_is(relay, Mode::Stalled, lasts).await,
                Column::StoreWiped => {
                    tell(redis.addr(), "FLUSHALL\r\n").await;
                    sleep(lasts).await;
                }
                Column::StoreDenied => {
                    // A connected client has already identified itself.
                    let deny =
                        "CONFIG SET requirepass secret\r\nCLIENT KILL TYPE normal SKIPME yes\r\n";
                    tell(redis.addr(), deny).await;
                    sleep(lasts).await;
                    let admit = "AUTH secret\r\nCONFIG SET requirepass \"\"\r\n";
                    tell(redis.addr(), admit).await;
                }
                _ => {}
            }
        }
        if let Some((server, relay)) = &mut self.leases {
            match column {
                Column::LeaseAway => relay_is(relay, Mode::Cut, lasts).await,
                Column::LeaseSlow => relay_is(relay, Mode::Stalled, lasts).await,
                Column::LeaseWiped => {
                    server.restart(true).await;
                    sleep(lasts).await;
                }
                Column::LeaseDenied => {
                    server.restart(false).await;
                    sleep(Duration::from_secs(2)).await;
                    server.restart(true).await;
                }
                _ => {}
            }
        }
    }

    pub(super) async fn kill_leader(&mut self) {
        let Some(cluster) = &mut self.etcd else {
            return;
        };
        let leader = tokio::task::block_in_place(|| cluster.etcd.leader());
        cluster.etcd.member(leader).kill();
        cluster.dead = Some(leader);
    }

    pub(super) async fn restart_member(&mut self) {
        let Some(cluster) = &mut self.etcd else {
            return;
        };
        if let Some(dead) = cluster.dead.take() {
            tokio::task::block_in_place(|| cluster.etcd.restart(dead));
        }
    }
}

async fn relay_is(relay: &Relay, mode: Mode, lasts: Duration) {
    relay.set(mode);
    sleep(lasts).await;
    relay.set(Mode::Open);
}

/// Sends a command to Redis, and reads the answer.
async fn tell(addr: SocketAddr, commands: &str) {
    let mut stream = TcpStream::connect(addr).await.expect("Redis listens");
    let commands = format!("{commands}QUIT\r\n");
    stream
        .write_all(commands.as_bytes())
        .await
        .expect("it reads");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer).await;
    let refused = answer.lines().any(|line| line.starts_with('-'));
    assert!(!refused, "{commands:?}: {answer}");
}
