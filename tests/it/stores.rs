//! Real etcd, ZooKeeper and Redis on loopback, for one test each.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use tidegate_runtime::etcd::{self, Endpoint};

use crate::authority::Issued;
use crate::child::{Found, Process};
use crate::support::PATIENCE;

/// A script below `tests/peers`.
fn script(name: &str) -> Command {
    // The root of the workspace: tests of several crates start stores.
    let mut roots = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let peers = roots
        .find_map(|root| Some(root.join("tests/peers")).filter(|peers| peers.exists()))
        .expect("the workspace has peers");
    let mut command = Command::new("sh");
    command.arg(peers.join(name));
    command
}

fn needs(path: &[&str]) {
    assert!(
        path.iter().any(|path| Path::new(path).exists()),
        "{path:?}: not installed; `make stores` does it"
    );
}

/// A port without a listener, which no other test of this process gets. It is below the range of outgoing
/// connections: a port from that range could be taken until its server listens or while it is down, even by a
/// connection to itself.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Two runs side by side begin in different places.
    let start = std::process::id().wrapping_mul(61);
    (0..20_000)
        .find_map(|_| {
            let step = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let port = u16::try_from(10_000 + step % 20_000).expect("below 30,000");
            TcpListener::bind((Ipv4Addr::LOCALHOST, port))
                .is_ok()
                .then_some(port)
        })
        .expect("one of 20,000 ports is free")
}

/// Several such ports.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    (0..count).map(|_| free_port()).collect()
}

/// A cluster of etcd, gone with its value.
pub(crate) struct Etcd {
    members: Vec<Process>,
    ports: Vec<u16>,
    peers: Vec<u16>,
    /// The test's own of each member.
    flags: Vec<Vec<String>>,
    scheme: &'static str,
    folder: tempfile::TempDir,
}

impl Etcd {
    /// Starts N members and waits until each serves.
    pub(crate) fn start(count: usize) -> Self {
        Self::with(count, "http", |_, _| Vec::new())
    }

    /// A member with flags of the test's own, made from its client port and its folder.
    pub(crate) fn with(
        count: usize,
        scheme: &'static str,
        flags: impl Fn(u16, &Path) -> Vec<String>,
    ) -> Self {
        needs(&["/usr/bin/etcd", "/usr/local/bin/etcd"]);
        let folder = tempfile::tempdir().expect("there is room");
        let ports = free_ports(2 * count);
        let (clients, peers) = ports.split_at(count);
        let flags = clients.iter().map(|port| flags(*port, folder.path()));
        let mut etcd = Self {
            members: Vec::new(),
            ports: clients.to_vec(),
            peers: peers.to_vec(),
            flags: flags.collect(),
            scheme,
            folder,
        };
        // All of them first: none serves alone.
        etcd.members = (0..count).map(|at| etcd.run(at)).collect();
        for member in 0..count {
            etcd.serves(member);
        }
        etcd
    }

    fn run(&self, at: usize) -> Process {
        let cluster = self.peers.iter().enumerate();
        let cluster: Vec<String> = cluster
            .map(|(at, port)| format!("m{at}=http://127.0.0.1:{port}"))
            .collect();
        let mut command = script("etcd/member.sh");
        command
            .arg(format!("m{at}"))
            .arg(self.folder.path().join(at.to_string()))
            .args([self.ports[at].to_string(), self.peers[at].to_string()])
            .arg(cluster.join(","))
            .args(&self.flags[at]);
        Process::start(format!("etcd {at}"), &mut command)
    }

    fn serves(&self, member: usize) {
        let said = &self.members[member].stderr;
        said.until("serving", PATIENCE, |lines| {
            lines
                .iter()
                .any(|line| line.contains("serving client traffic"))
                .then_some(())
        });
    }

    /// Restarts a killed member with its data, and waits until it serves.
    pub(crate) fn restart(&mut self, at: usize) {
        self.members[at] = self.run(at);
        self.serves(at);
    }

    pub(crate) fn addr(&self, member: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports[member]))
    }

    pub(crate) fn url(&self, member: usize) -> String {
        format!("{}://{}", self.scheme, self.addr(member))
    }

    /// Of all members.
    pub(crate) fn urls(&self) -> Vec<String> {
        (0..self.ports.len())
            .map(|member| self.url(member))
            .collect()
    }

    pub(crate) fn settings(&self) -> etcd::EtcdSettings {
        settings(&self.urls())
    }

    pub(crate) fn member(&mut self, member: usize) -> &mut Process {
        &mut self.members[member]
    }

    /// Runs `etcdctl` against the first member.
    pub(crate) fn control(&self, arguments: &[&str]) -> String {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", self.url(0)))
            .args(arguments)
            .output()
            .expect("etcdctl comes with etcd; `make stores` installs it");
        assert!(output.status.success(), "etcdctl {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("it speaks UTF-8")
    }

    /// The member that leads.
    pub(crate) fn leader(&self) -> usize {
        self.known_leader().expect("one leads")
    }

    /// The member that leads, if all members agree that one does.
    pub(crate) fn known_leader(&self) -> Option<usize> {
        let endpoints = format!("--endpoints={}", self.urls().join(","));
        let told = self.control(&[&endpoints, "endpoint", "status", "-w", "json"]);
        let members: serde_json::Value = serde_json::from_str(&told).expect("it speaks JSON");
        let members = members.as_array().expect("a list of members");
        let leader = &members.first()?["Status"]["leader"];
        if members.iter().any(|it| it["Status"]["leader"] != *leader) {
            return None;
        }
        let leads = |it: &&serde_json::Value| it["Status"]["header"]["member_id"] == *leader;
        let url = members.iter().find(leads)?["Endpoint"].clone();
        let urls = self.urls();
        let found = urls.iter().position(|own| *own == url);
        Some(found.expect("it is one of ours"))
    }
}

/// Of a client of these endpoints.
pub(crate) fn settings(urls: &[String]) -> etcd::EtcdSettings {
    let endpoints = urls.iter().map(|url| url.parse::<Endpoint>());
    etcd::EtcdSettings::new(
        endpoints
            .collect::<Result<_, _>>()
            .expect("they are endpoints"),
    )
}

/// An ensemble of ZooKeeper, gone with its value.
pub(crate) struct ZooKeeper {
    servers: Vec<Process>,
    ports: Vec<u16>,
    folder: tempfile::TempDir,
    ensemble: Vec<String>,
    /// Of servers that speak TLS alone.
    secured: Option<Secured>,
}

/// The certificates that a server of ZooKeeper shows and trusts.
struct Secured {
    keys: PathBuf,
    ca: String,
}

impl ZooKeeper {
    /// Starts N servers and waits until they serve.
    pub(crate) async fn start(count: usize) -> Self {
        needs(&["/usr/share/java/zookeeper.jar"]);
        let folder = tempfile::tempdir().expect("there is room");
        let ports = free_ports(3 * count);
        let (clients, peers) = ports.split_at(count);
        let ensemble = (0..count)
            .map(|at| {
                let (peer, election) = (peers[2 * at], peers[2 * at + 1]);
                let client = clients[at];
                format!("127.0.0.1:{peer}:{election};127.0.0.1:{client}")
            })
            .collect();
        let mut zookeeper = Self {
            servers: Vec::new(),
            ports: clients.to_vec(),
            folder,
            ensemble: if count == 1 { Vec::new() } else { ensemble },
            secured: None,
        };
        for at in 0..count {
            let server = zookeeper.server(at);
            zookeeper.servers.push(server);
        }
        zookeeper.serves().await;
        zookeeper
    }

    /// Starts one that speaks TLS alone, shows a certificate, and wants those of an authority.
    pub(crate) fn secured(own: &Issued, ca: &str) -> Self {
        needs(&["/usr/share/java/zookeeper.jar"]);
        let folder = tempfile::tempdir().expect("there is room");
        let read = |path| std::fs::read_to_string(path).expect("a test wrote it");
        let keys = folder.path().join("server.pem");
        let both = read(&own.key) + &read(&own.cert);
        std::fs::write(&keys, both).expect("there is room");
        let mut zookeeper = Self {
            servers: Vec::new(),
            ports: free_ports(1),
            folder,
            ensemble: Vec::new(),
            secured: Some(Secured {
                keys,
                ca: ca.to_owned(),
            }),
        };
        let server = zookeeper.server(0);
        zookeeper.servers.push(server);
        zookeeper
    }

    /// Waits until every server answers, which takes a quorum.
    pub(crate) async fn serves(&self) {
        use tidegate_runtime::zookeeper::{ZooKeeperClient, ZooKeeperSettings};
        for port in &self.ports {
            let client = ZooKeeperClient::new(ZooKeeperSettings::new(format!("127.0.0.1:{port}")));
            // Each attempt waits for an answer as long as a call may take.
            let answers = async { while client.get("/").await.is_err() {} };
            let serves = tokio::time::timeout(2 * PATIENCE, answers).await;
            assert!(serves.is_ok(), "ZooKeeper at {port} does not serve");
        }
    }

    fn server(&self, at: usize) -> Process {
        let own = self.folder.path().join(at.to_string());
        let mut command = script("zookeeper/server.sh");
        command
            .arg((at + 1).to_string())
            .arg(own)
            .arg(self.ports[at].to_string())
            .args(&self.ensemble);
        if let Some(Secured { keys, ca }) = &self.secured {
            command
                .env("ZOOKEEPER_KEYS", keys)
                .env("ZOOKEEPER_TRUST", ca);
        }
        Process::start(format!("ZooKeeper {at}"), &mut command)
    }

    pub(crate) fn addr(&self, server: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports[server]))
    }

    /// All servers, for a client.
    pub(crate) fn servers(&self) -> String {
        let servers = self.ports.iter().map(|port| format!("127.0.0.1:{port}"));
        servers.collect::<Vec<_>>().join(",")
    }

    pub(crate) fn member(&mut self, server: usize) -> &mut Process {
        &mut self.servers[server]
    }

    /// The server that leads.
    pub(crate) fn leader(&self) -> usize {
        let leads = |at: &usize| {
            let told = self.told(*at, "srvr");
            told.is_ok_and(|told| told.contains("Mode: leader"))
        };
        let leader = (0..self.ports.len()).find(leads);
        leader.expect("one leads")
    }

    /// The answer of a server to a word of four letters.
    fn told(&self, server: usize, word: &str) -> std::io::Result<String> {
        use std::io::{Read, Write};
        let mut told = String::new();
        let mut stream = std::net::TcpStream::connect(self.addr(server))?;
        stream.write_all(word.as_bytes())?;
        stream.read_to_string(&mut told)?;
        Ok(told)
    }

    /// How many paths a server watches for its clients.
    pub(crate) fn watched_paths(&self, server: usize) -> usize {
        // "2 connections watching 3 paths", and the total of watches.
        let told = self.told(server, "wchs").expect("it is up");
        let count = told.split_whitespace().nth(3);
        let count = count.and_then(|count| count.parse().ok());
        count.unwrap_or_else(|| panic!("no count of paths: {told}"))
    }

    /// Restarts a killed server with its data.
    pub(crate) fn restart(&mut self, at: usize) {
        self.servers[at] = self.server(at);
    }

    /// Deletes the data of a killed server.
    pub(crate) fn forget(&self, at: usize) {
        let own = self.folder.path().join(at.to_string());
        std::fs::remove_dir_all(own).expect("it was started");
    }
}

/// A Redis, gone with its value.
pub(crate) struct Redis {
    server: Process,
    port: u16,
    folder: tempfile::TempDir,
}

impl Redis {
    /// Starts one, with flags of the test's own, and waits until it serves.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::with(|_| flags.iter().map(ToString::to_string).collect())
    }

    /// A server with flags made from its port.
    pub(crate) fn with(flags: impl Fn(u16) -> Vec<String>) -> Self {
        needs(&["/usr/bin/redis-server", "/usr/local/bin/redis-server"]);
        // Another test may take a free port before the server does.
        for _ in 0..5 {
            let folder = tempfile::tempdir().expect("there is room");
            let port = free_ports(1)[0];
            let flags = flags(port);
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            if let Some(server) = Self::serving(folder.path(), port, &flags) {
                return Self {
                    server,
                    port,
                    folder,
                };
            }
        }
        panic!("Redis ends before it serves");
    }

    fn server(folder: &Path, port: u16, flags: &[&str]) -> Process {
        Self::serving(folder, port, flags).expect("it does not end before it serves")
    }

    /// A server, or none if it has ended before it served.
    fn serving(folder: &Path, port: u16, flags: &[&str]) -> Option<Process> {
        let mut command = script("redis/server.sh");
        command.arg(folder).arg(port.to_string()).args(flags);
        let server = Process::start("Redis", &mut command);
        let found = server.stdout.find(PATIENCE, |lines| {
            let is_ready = |line: &String| line.contains("Ready to accept connections");
            lines.iter().any(is_ready).then_some(())
        });
        match found {
            Found::It(()) => Some(server),
            Found::Ended => None,
            Found::NotInTime => panic!("Redis does not serve"),
        }
    }

    /// Kills it and restarts it with its data.
    pub(crate) fn restart(&mut self, flags: &[&str]) {
        self.server.kill();
        self.server = Self::server(self.folder.path(), self.port, flags);
    }

    pub(crate) fn kill(&mut self) {
        self.server.kill();
    }

    /// Waits until its only replica has all that was written before. Redis's own `WAIT` counts only
    /// the writes of the connection that asks.
    pub(crate) async fn replicated(&self) {
        let number = |told: &str, of: &str| {
            let (_, rest) = told.split_once(of)?;
            let digits = rest.split(|it: char| !it.is_ascii_digit()).next()?;
            digits.parse::<u64>().ok()
        };
        let told = async || {
            let mut ask = tokio::process::Command::new("redis-cli");
            ask.args(["-p", &self.port.to_string(), "info", "replication"]);
            let told = ask.output().await.expect("it comes with Redis");
            String::from_utf8(told.stdout).expect("it speaks UTF-8")
        };
        let written = number(&told().await, "master_repl_offset:").expect("it has a replica");
        let has_all = async {
            loop {
                let told = told().await;
                let replica = told.lines().find(|line| line.starts_with("slave0:"));
                if replica.and_then(|it| number(it, "offset=")) >= Some(written) {
                    return;
                }
            }
        };
        let has_all = tokio::time::timeout(PATIENCE, has_all).await;
        has_all.expect("the replica has what was written");
    }

    pub(crate) fn signal(&self, name: &str) {
        self.server.signal(name);
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }
}

/// The flags of a member of etcd that speaks TLS alone with clients, and asks for certificates.
pub(crate) fn secured_etcd(port: u16, own: &Issued, ca: &str) -> Vec<String> {
    vec![
        format!("--listen-client-urls=https://127.0.0.1:{port}"),
        format!("--advertise-client-urls=https://127.0.0.1:{port}"),
        format!("--cert-file={}", own.cert()),
        format!("--key-file={}", own.key()),
        format!("--trusted-ca-file={ca}"),
        "--client-cert-auth".to_owned(),
        // To check a password is made to take long, and a test does it often.
        "--bcrypt-cost=4".to_owned(),
        "--auth-token-ttl=1".to_owned(),
    ]
}

/// Switches users on, with one who may use the keys below a prefix.
pub(crate) fn enable_users(etcd: &Etcd, shows: &Issued, ca: &str, prefix: &str) {
    let secured = ["--cacert", ca, "--cert", shows.cert(), "--key", shows.key()];
    let control = |more: &[&str]| etcd.control(&[&secured[..], more].concat());
    control(&["user", "add", "root:secret"]);
    control(&["user", "grant-role", "root", "root"]);
    control(&["role", "add", "sidecars"]);
    let grant = ["role", "grant-permission", "sidecars", "readwrite", prefix];
    control(&[&grant[..], &["--prefix=true"]].concat());
    control(&["user", "add", "tidegate:password"]);
    control(&["user", "grant-role", "tidegate", "sidecars"]);
    control(&["user", "add", "stranger:password"]);
    control(&["auth", "enable"]);
}

/// The flags of a server of Redis that speaks TLS alone on its port, and asks for certificates.
pub(crate) fn secured_redis(port: u16, own: &Issued, ca: &str) -> Vec<String> {
    let flags = [
        "--port",
        "0",
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        own.cert(),
        "--tls-key-file",
        own.key(),
        "--tls-ca-cert-file",
        ca,
        "--tls-replication",
        "yes",
    ];
    flags.into_iter().map(str::to_owned).collect()
}

/// Three sentinels, gone with their value.
pub(crate) struct Sentinels {
    processes: Vec<Process>,
    ports: Vec<u16>,
    _folder: tempfile::TempDir,
}

impl Sentinels {
    /// Starts three that watch a primary as "mymaster". Each has more lines in its file, made from
    /// its port.
    pub(crate) fn start(primary: u16, lines: impl Fn(u16) -> Vec<String>) -> Self {
        let folder = tempfile::tempdir().expect("there is room");
        let ports = free_ports(3);
        let run = |port: &u16| {
            let mut command = script("redis/sentinel.sh");
            command
                .arg(folder.path().join(port.to_string()))
                .args([port.to_string(), primary.to_string()])
                .args(lines(*port));
            let process = Process::start(format!("sentinel {port}"), &mut command);
            process.stdout.until("watching", PATIENCE, |lines| {
                let mut lines = lines.iter();
                lines.any(|line| line.contains("+monitor")).then_some(())
            });
            process
        };
        Self {
            processes: ports.iter().map(run).collect(),
            ports,
            _folder: folder,
        }
    }

    pub(crate) fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Waits until one of them has printed this.
    pub(crate) fn until(&self, text: &str) {
        let deadline = std::time::Instant::now() + PATIENCE;
        let printed = || {
            let mut all = self.processes.iter().flat_map(|it| it.stdout.all());
            all.any(|line| line.contains(text))
        };
        while !printed() {
            assert!(std::time::Instant::now() < deadline, "never: {text}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Waits until each has printed this as often as asked.
    pub(crate) fn each_until(&self, text: &str, times: usize) {
        for process in &self.processes {
            process.stdout.until(text, PATIENCE, |lines| {
                let found = lines.iter().filter(|line| line.contains(text)).count();
                (found >= times).then_some(())
            });
        }
    }

    pub(crate) fn kill(&mut self, at: usize) {
        self.processes[at].kill();
    }
}
