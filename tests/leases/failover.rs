//! Two capacity servers as processes, of which a store makes one the master: killed, started
//! again, paused, resumed and stopped, while clients hold leases.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_leases::client::{
    Allowance, ClientOptions, GaugeResource, LeaseClient, ResourceOptions,
};
use tidegate_leases::wire::capacity_client::CapacityClient;
use tidegate_leases::wire::{
    DiscoveryRequest, DiscoveryResponse, GetCapacityRequest, GetCapacityResponse, ResourceRequest,
};

use crate::child::Process;
use crate::sidecar::with_programs;
use crate::started::channel;
use crate::stores::ZooKeeper;
use crate::stores::{Etcd, free_ports};
use crate::support::{PATIENCE, until};

struct Candidate {
    process: Process,
    folder: TempDir,
    address: SocketAddr,
}

/// The part of a config that says where the master is elected.
fn on_etcd(etcd: &Etcd) -> String {
    let url = etcd.url(0);
    format!("engine = \"etcd\"\n[etcd]\nendpoints = [\"{url}\"]\n")
}

fn on_zookeeper(zookeeper: &ZooKeeper) -> String {
    let servers = zookeeper.servers();
    format!("engine = \"zookeeper\"\n[zookeeper]\nservers = \"{servers}\"\n")
}

impl Candidate {
    /// Ten for all, of which one is set aside for each of two.
    fn start(store: &str, time_to_live: Duration, port: u16) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let text = format!(
            "bind = \"{address}\"\nstatus_bind = \"\"\nid = \"leases\"\nminimum_interval = \"0s\"\n\
             [election]\nkey = \"/tests/master\"\ntime_to_live = \"{time_to_live:?}\"\n{store}\
             [[resource]]\nglob = \"*\"\ncapacity = 10\nsafe_capacity = 1\n\
             algorithm = {{ kind = \"fair_share\", lease = \"12s\", refresh = \"1s\", \
             reserved_clients = 2 }}\n"
        );
        std::fs::write(folder.path().join("leases.toml"), text).expect("written");
        let process = Self::run(&folder);
        Self {
            process,
            folder,
            address,
        }
    }

    fn run(folder: &TempDir) -> Process {
        let mut command = Command::new(with_programs());
        command
            .args(["lease-server", "--config"])
            .arg(folder.path().join("leases.toml"));
        Process::start("lease-server", &mut command)
    }

    fn again(&mut self) {
        self.process = Self::run(&self.folder);
    }

    async fn discovery(&self) -> Option<DiscoveryResponse> {
        let mut client = CapacityClient::new(channel(self.address));
        let answer = client.discovery(DiscoveryRequest {}).await;
        answer.ok().map(tonic::Response::into_inner)
    }

    async fn is_master(&self) -> bool {
        self.discovery().await.is_some_and(|it| it.is_master)
    }

    /// Whether it knows that another one is the master.
    async fn follows(&self, other: &Self) -> bool {
        let told = self.discovery().await;
        told.and_then(|it| it.mastership.master_address) == Some(other.address.to_string())
    }

    async fn asked_by(&self, client_id: &str) -> Option<GetCapacityResponse> {
        let request = GetCapacityRequest {
            client_id: client_id.to_owned(),
            resource: vec![ResourceRequest {
                resource_id: "disks".to_owned(),
                priority: 0,
                has: None,
                wants: 10.0,
            }],
        };
        let mut client = CapacityClient::new(channel(self.address));
        let answer = client.get_capacity(request).await;
        answer.ok().map(tonic::Response::into_inner)
    }
}

async fn comes_to_lead(candidate: &Candidate) {
    let leads = async {
        while !candidate.is_master().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let within = tokio::time::timeout(PATIENCE, leads).await;
    assert!(within.is_ok(), "{} never came to lead", candidate.address);
}

async fn comes_to_follow(candidate: &Candidate, other: &Candidate) {
    let follows = async {
        while !candidate.follows(other).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let within = tokio::time::timeout(PATIENCE, follows).await;
    assert!(
        within.is_ok(),
        "{} never knew of {}",
        candidate.address,
        other.address
    );
}

fn may_use(gauge: &GaugeResource) -> f64 {
    match gauge.state().allowance {
        Allowance::UpTo(amount) => amount,
        Allowance::Unlimited => f64::INFINITY,
    }
}

fn lasts(gauge: &GaugeResource, at_least: Duration) -> bool {
    let lease = gauge.state().lease;
    lease.is_some_and(|(_, left)| left >= at_least)
}

/// Stops the master by SIGTERM, with one client connected that asks and one that is silent. The
/// other candidate takes over long before the time to live has passed.
async fn a_master_that_gets_sigterm_resigns(store: &str) {
    // Longer than the test waits for the other one.
    let time_to_live = Duration::from_secs(600);
    let ports = free_ports(2);
    let first = Candidate::start(store, time_to_live, ports[0]);
    comes_to_lead(&first).await;
    let second = Candidate::start(store, time_to_live, ports[1]);
    comes_to_follow(&second, &first).await;
    let silent = tokio::net::TcpStream::connect(first.address).await;
    let _silent = silent.expect("it accepts");
    let mut asks = CapacityClient::new(channel(first.address));
    let answer = asks.discovery(DiscoveryRequest {}).await;
    assert!(answer.expect("it answers").into_inner().is_master);

    first.process.signal("TERM");
    comes_to_lead(&second).await;
    let log = first.process.stderr.clone();
    first.process.finish(PATIENCE);
    let resigned = log.all().iter().any(|line| line.contains("resigned"));
    assert!(resigned, "{:?}", log.all());
}

#[tokio::test]
async fn on_etcd_a_master_resigns_at_sigterm() {
    let etcd = Etcd::start(1);
    a_master_that_gets_sigterm_resigns(&on_etcd(&etcd)).await;
}

#[tokio::test]
async fn on_zookeeper_a_master_that_gets_sigterm_resigns_before_it_ends() {
    let zookeeper = ZooKeeper::start(1).await;
    a_master_that_gets_sigterm_resigns(&on_zookeeper(&zookeeper)).await;
}

/// A store that is unavailable does not hold up the end.
#[tokio::test]
async fn a_master_whose_store_is_gone_ends_in_time() {
    let mut etcd = Etcd::start(1);
    let ports = free_ports(1);
    let time_to_live = Duration::from_secs(600);
    let only = Candidate::start(&on_etcd(&etcd), time_to_live, ports[0]);
    comes_to_lead(&only).await;
    etcd.member(0).signal("STOP");
    only.process.signal("TERM");
    only.process.finish(PATIENCE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_outlive_their_master_and_a_paused_one_grants_nothing() {
    let etcd = Etcd::start(1);
    let ports = free_ports(2);
    let store = on_etcd(&etcd);
    let second_long = Duration::from_secs(1);
    let mut first = Candidate::start(&store, second_long, ports[0]);
    comes_to_lead(&first).await;
    let second = Candidate::start(&store, second_long, ports[1]);

    let options = ClientOptions {
        interval_min: Duration::from_millis(100),
        request_timeout: Duration::from_secs(1),
        ..ClientOptions::default()
    };
    let servers = [&first, &second].map(|one| one.address.to_string().parse().expect("address"));
    let client = LeaseClient::new(servers.to_vec(), options).expect("options are right");
    let gauge = client
        .gauge("disks", ResourceOptions::default())
        .expect("it opens");
    gauge.set_wants(Some(10.0)).expect("a capacity");
    // While the first one learns, a new client has the share that is set aside for it.
    until(|| may_use(&gauge) == 1.0, || "the safe share".to_owned()).await;
    // All but the share that is set aside for another.
    until(|| may_use(&gauge) == 9.0, || "all there is".to_owned()).await;

    // Killed: the other one leads, and the lease goes on.
    first.process.kill();
    comes_to_lead(&second).await;
    let fresh = Duration::from_secs(11);
    let so = || {
        assert!(may_use(&gauge) <= 9.0);
        lasts(&gauge, fresh)
    };
    until(so, || "a lease of the new master".to_owned()).await;
    assert_eq!(may_use(&gauge), 9.0, "learned from the holders");
    let newcomer = second.asked_by("newcomer").await.expect("it answers");
    let gets = newcomer.response[0].gets;
    assert_eq!(gets.capacity, 1.0, "what is set aside, and no more");

    // Paused: the first one is master again. The one that wakes up grants nothing.
    first.again();
    second.process.signal("STOP");
    comes_to_lead(&first).await;
    second.process.signal("CONT");
    for _ in 0..50 {
        let Some(answer) = second.asked_by("late").await else {
            continue;
        };
        assert!(answer.response.is_empty(), "two lend: {answer:?}");
        assert!(answer.mastership.is_some(), "{answer:?}");
    }
    until(so, || "a lease of the first one again".to_owned()).await;
    assert_eq!(may_use(&gauge), 9.0);
}
