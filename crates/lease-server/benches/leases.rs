//! GetCapacity over gRPC: the cost of a request for the server, with few and with very many known
//! clients that together want far more than the capacity.
//!
//! The server is a separate process, `tidegate lease-server`, measured by its own CPU time
//! (`/proc/PID/stat`) and resident memory, so the cost of the load does not count.
//!
//! ```text
//! cargo bench -p tidegate-lease-server --bench leases [-- --seconds 5 --clients 10,1000,8000,100000 --kinds fair_share]
//! ```

#![allow(clippy::disallowed_methods, reason = "a benchmark serves no calls")]

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate_leases::wire::capacity_client::CapacityClient;
use tidegate_leases::wire::{GetCapacityRequest, Lease, ResourceRequest};
use tonic::transport::{Channel, Endpoint};

const CONNECTIONS: usize = 4;
/// Requests under way at once.
const OUTSTANDING: usize = 16;
/// Ticks of CPU time a second, as /proc counts them on Linux.
const TICKS: f64 = 100.0;

fn main() {
    let mut seconds = 5.0;
    let mut clients = vec![10, 1_000, 8_000, 100_000];
    let mut kinds = vec!["proportional_share".to_owned(), "fair_share".to_owned()];
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().expect("a value follows");
        match name.as_str() {
            "--seconds" => seconds = value().parse().expect("a number"),
            "--clients" => {
                let list = value();
                clients = list
                    .split(',')
                    .map(|it| it.parse().expect("a number"))
                    .collect();
            }
            "--kinds" => kinds = value().split(',').map(str::to_owned).collect(),
            // What cargo says to every bench.
            "--bench" => {}
            other => panic!("no argument {other}"),
        }
    }
    println!(
        "| algorithm | clients | requests/s | p50 ms | p99 ms | server CPU µs/request | bytes/client |"
    );
    println!("|---|---|---|---|---|---|---|");
    for kind in &kinds {
        for count in &clients {
            let figures = measure(kind, *count, Duration::from_secs_f64(seconds));
            println!("| {kind} | {count} | {figures}");
        }
    }
}

fn measure(kind: &str, clients: usize, span: Duration) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let config = folder.path().join("leases.toml");
    let text = format!(
        "bind = \"127.0.0.1:{port}\"\nstatus_bind = \"\"\nminimum_interval = \"0s\"\n\
         [log]\nlevel = \"info\"\nformat = \"text\"\n\
         [[resource]]\nglob = \"*\"\ncapacity = 1000\nalgorithm = {{ kind = \"{kind}\", \
         lease = \"1h\", refresh = \"8s\", learning = \"0s\" }}\n"
    );
    std::fs::write(&config, text).expect("written");
    let server = Server::start(&config);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let load = Load::new(port, clients);
        // A few, so that what every connection needs is there before memory is looked at.
        load.run(Until::Each(clients.min(OUTSTANDING))).await;
        let empty = server.resident();
        load.run(Until::Each(clients)).await;
        let full = server.resident();
        let (before, began) = (server.cpu(), Instant::now());
        let mut took = load.run(Until::After(span)).await;
        let (cpu, elapsed) = (server.cpu() - before, began.elapsed());
        took.sort_unstable();
        let requests = took.len() as f64;
        let quantile = |share: f64| {
            let at = ((took.len() - 1) as f64 * share) as usize;
            took[at].as_secs_f64() * 1e3
        };
        // An id here has ten bytes.
        let memory = full.saturating_sub(empty) as f64 / clients as f64 - 10.0;
        let memory = if clients >= 8_000 {
            format!("{memory:.0}")
        } else {
            "too few".to_owned()
        };
        format!(
            "{:.0} | {:.2} | {:.2} | {:.1} | {memory} |",
            requests / elapsed.as_secs_f64(),
            quantile(0.5),
            quantile(0.99),
            cpu * 1e6 / requests,
        )
    })
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it has one").port()
}

/// The server's process.
struct Server(Child);

impl Server {
    fn start(config: &std::path::Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate-leases"))
            .args(["server", "--config"])
            .arg(config)
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let said = BufReader::new(child.stderr.take().expect("piped"));
        let mut lines = said.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("ready")), "it is not ready");
        Self(child)
    }

    /// CPU seconds so far, its own and the kernel's for it.
    fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()));
        let stat = stat.expect("Linux, and it lives");
        let (_, rest) = stat.rsplit_once(')').expect("a name in brackets");
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = |at: usize| fields[at].parse::<f64>().expect("a number");
        (ticks(11) + ticks(12)) / TICKS
    }

    /// Bytes of memory that it has.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()));
        let status = status.expect("Linux, and it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        kib.and_then(|kib| kib.parse::<u64>().ok()).expect("a size") * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The duration of the load.
#[derive(Clone, Copy)]
enum Until {
    /// Each of the first N clients has asked once.
    Each(usize),
    /// A time has passed.
    After(Duration),
}

/// Clients that ask in turn, and send what they have.
struct Load {
    channels: Vec<CapacityClient<Channel>>,
    clients: usize,
    has: Arc<Vec<std::sync::Mutex<Option<Lease>>>>,
}

impl Load {
    fn new(port: u16, clients: usize) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"));
        let endpoint = endpoint.expect("an address");
        Self {
            channels: (0..CONNECTIONS)
                .map(|_| CapacityClient::new(endpoint.connect_lazy()))
                .collect(),
            clients,
            has: Arc::new((0..clients).map(|_| Default::default()).collect()),
        }
    }

    /// How long each request took.
    async fn run(&self, until: Until) -> Vec<Duration> {
        let next = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let (max, count) = match until {
            Until::Each(count) => (count as u64, count),
            Until::After(_) => (u64::MAX, self.clients),
        };
        let tasks: Vec<_> = (0..OUTSTANDING)
            .map(|at| {
                let mut client = self.channels[at % CONNECTIONS].clone();
                let (next, stop, has) =
                    (Arc::clone(&next), Arc::clone(&stop), Arc::clone(&self.has));
                tokio::spawn(async move {
                    let mut took = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let turn = next.fetch_add(1, Ordering::Relaxed);
                        if turn >= max {
                            break;
                        }
                        let who = turn as usize % count;
                        let began = Instant::now();
                        ask(&mut client, who, &has[who]).await;
                        took.push(began.elapsed());
                    }
                    took
                })
            })
            .collect();
        if let Until::After(span) = until {
            tokio::time::sleep(span).await;
            stop.store(true, Ordering::Relaxed);
        }
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.expect("no panic"));
        }
        all
    }
}

async fn ask(
    client: &mut CapacityClient<Channel>,
    who: usize,
    has: &std::sync::Mutex<Option<Lease>>,
) {
    let held = *has.lock().expect("no panic");
    let request = GetCapacityRequest {
        client_id: format!("cli-{who:06}"),
        resource: vec![ResourceRequest {
            resource_id: "disk".to_owned(),
            priority: 0,
            has: held,
            // Different wants, all of them far above an equal share.
            wants: 100.0 + (who % 97) as f64,
        }],
    };
    let answer = client.get_capacity(request).await.expect("an answer");
    let mut response = answer.into_inner().response;
    *has.lock().expect("no panic") = Some(response.remove(0).gets);
}
