//! The time of a decision about a call that draws from a quota, while ZooKeeper answers and while
//! it is stopped (SIGSTOP), in turn.
//!
//! Calls of fifty users arrive at a steady rate at the gate of a whole sidecar. Half of what they
//! spend is the sidecar's own share, the rest is drawn: about a hundred draws a second, which all
//! fail while the server is stopped. Measured is the time until the gate decides that a call may
//! go, or that it waits.
//!
//! ```text
//! cargo bench -p tidegate --bench quota [-- --rounds 5 --seconds 4 --rate 10000]
//! ```

#![allow(clippy::disallowed_methods, reason = "a benchmark serves no calls")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::admit::{Admission, Ask, Claimed, Gate, Waits};
use tidegate::app::App;
use tidegate::call::claim::ClaimDeadline;
use tidegate::call::{Destination, Identity, NoObserver, Origin, Peer, Record, Role, Slot as _};
use tidegate::config;
use tidegate_limits::call::{QuotaKey, ServerChoice};
use tidegate_limits::quota::{OutagePolicy, RuleSettings, WindowRule};
use tidegate_limits::scheduler::{OnExcess, Outcome};
use tidegate_limits::{Caller, Timestamp, Tokens, Weight};
use tidegate_quota::zookeeper::ZooKeeperStoreSettings as ZooKeeper;
use tidegate_quota::{Engine, QuotaLimit, QuotaSettings};
use tidegate_runtime::zookeeper;

const USERS: usize = 50;
const WINDOW: Duration = Duration::from_secs(2);
/// The demand of a user, as a part of its quota.
const TIMES_LESS: u64 = 10;
/// A sidecar finds out within this time that a store was stopped.
const SETTLES: Duration = Duration::from_secs(5);

fn main() {
    let (mut rounds, mut seconds, mut rate) = (5_u32, 4.0, 10_000.0);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().expect("a value follows");
        match name.as_str() {
            "--rounds" => rounds = value().parse().expect("a number"),
            "--seconds" => seconds = value().parse().expect("a number"),
            "--rate" => rate = value().parse().expect("a number"),
            // What cargo says to every bench.
            "--bench" => {}
            other => panic!("no argument {other}"),
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let server = Server::start();
    let spent = (rate / USERS as f64 * WINDOW.as_secs_f64()) as u64;
    let app = runtime.block_on(async { sidecar(server.port, spent * TIMES_LESS) });
    let span = Duration::from_secs_f64(seconds);
    let load = Load::new(app.gate(), rate);
    // Until the ledgers know how fast their tokens go.
    load.run(true, SETTLES);
    let mut found = BTreeMap::<&str, Vec<Decision>>::new();
    for _ in 0..rounds {
        let free = load.run(false, span);
        found.entry("1 no quota").or_default().extend(free);
        let up = load.run(true, span);
        found.entry("2 the store answers").or_default().extend(up);
        server.signal("STOP");
        let stopped = load.run(true, span);
        server.signal("CONT");
        let entry = found.entry("3 the store is stopped").or_default();
        entry.extend(stopped);
        load.run(true, SETTLES);
    }
    println!("| | decisions | admitted at once | p50 us | p99 us | p99.9 us | max us |");
    println!("|---|---|---|---|---|---|---|");
    for (name, decisions) in found {
        let at_once = decisions.iter().filter(|it| it.at_once).count();
        let mut took: Vec<Duration> = decisions.iter().map(|it| it.took).collect();
        took.sort_unstable();
        let quantile = |share: f64| {
            let at = ((took.len() - 1) as f64 * share) as usize;
            took[at].as_secs_f64() * 1e6
        };
        println!(
            "| {} | {} | {:.1} % | {:.1} | {:.1} | {:.1} | {:.0} |",
            &name[2..],
            took.len(),
            100.0 * at_once as f64 / took.len() as f64,
            quantile(0.5),
            quantile(0.99),
            quantile(0.999),
            quantile(1.0),
        );
    }
    drop(runtime);
}

/// A sidecar with its quotas in the store at this port. A twentieth of each user's tokens in a
/// window is its own share.
fn sidecar(port: u16, total: u64) -> App {
    let text = "[[listen]]\nname = \"bench\"\nbind = \"127.0.0.1:0\"\n\
                [backend]\nkind = \"zvm\"\nhttp = \"http://127.0.0.1:1\"\n[queue]\nworkers = 65536\npostpone = \"in_turn\"\n\
                [limits]\nper_window = \"total:0\"\n\
                outstanding = 0\n[admin]\nbind = \"\"\n";
    let checked = config::read(text, "bench.toml", std::iter::empty());
    let mut config = match checked {
        Ok(checked) => checked.config,
        Err(problems) => panic!("{}", problems.render(false)),
    };
    let rule = WindowRule::check(RuleSettings {
        nodes_expected: 2,
        away: OutagePolicy::Safe { percent: 10 },
        ..RuleSettings::new(total, WINDOW)
    });
    let mut store = zookeeper::ZooKeeperSettings::new(format!("127.0.0.1:{port}"));
    store.session_timeout = Duration::from_secs(10);
    config.quotas = Some(QuotaSettings {
        engine: Engine::ZooKeeper(ZooKeeper::new(store)),
        keys_max: 10_000,
        expected_sidecars: 2,
        limits: vec![QuotaLimit {
            name: "rate_limit:per_user".into(),
            rule: rule.expect("it is a rule"),
            on_excess: OnExcess::Delay,
            observes: false,
            totals: BTreeMap::new(),
            namespace: None,
        }],
    });
    App::start(config, None).expect("it starts")
}

/// A decision.
struct Decision {
    took: Duration,
    /// Whether the call was admitted without a wait.
    at_once: bool,
}

/// Calls at a steady rate, of each user in turn.
struct Load<'a> {
    gate: &'a Gate,
    every: Duration,
    identity: Arc<Identity>,
    users: Vec<Arc<[QuotaKey]>>,
    began: Instant,
}

impl<'a> Load<'a> {
    fn new(gate: &'a Gate, rate: f64) -> Self {
        let peer = Peer::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 53_422)));
        let key = |user: usize| -> Arc<[QuotaKey]> {
            [QuotaKey {
                quota: "rate_limit:per_user".into(),
                key: format!("user{user}").into(),
            }]
            .into()
        };
        Self {
            gate,
            every: Duration::from_secs_f64(1.0 / rate),
            identity: Arc::new(Identity::without_names("bench".into(), peer)),
            users: (0..USERS).map(key).collect(),
            began: Instant::now(),
        }
    }

    fn run(&self, draws: bool, span: Duration) -> Vec<Decision> {
        let function: Arc<str> = "guest_get_info".into();
        let mut decisions = Vec::new();
        let begin = Instant::now();
        let mut due = begin;
        for user in self.users.iter().cycle() {
            due += self.every;
            if due - begin > span {
                break;
            }
            // Not slept for: to be woken takes longer than to decide. Who is behind catches up.
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            let origin = Origin {
                identity: Arc::clone(&self.identity),
                arrived: Timestamp::ZERO,
            };
            let record = Record::open(
                origin,
                tidegate::call::Dialect::Http,
                Arc::clone(&function),
                "polling".into(),
                None,
                Arc::new(NoObserver),
            );
            let arrived = Timestamp::ZERO + self.began.elapsed();
            let ask = Ask {
                function: Arc::clone(&function),
                destination: Destination::Http,
                server: ServerChoice::ANY,
                limited: true,
                arrived,
                waits: Waits::Client,
                claimed: Claimed {
                    caller: Caller::ANONYMOUS,
                    weight: Weight::ONE,
                    cost: tidegate_limits::call::Cost::ONE,
                    tokens: Tokens::ONE,
                    bucket: None,
                    quotas: draws.then(|| Arc::clone(user)),
                    settling: None,
                    is_settled: false,
                    deadline: ClaimDeadline::Ordinary,
                },
                class: "none".into(),
                role: Role::Apart,
                target: None,
                foreign: None,
                place: None,
            };
            let before = Instant::now();
            let asked = self.gate.ask(ask, &record);
            let took = before.elapsed();
            let at_once = match asked {
                Admission::Decided(Ok(mut permit)) => {
                    // Given back, it would have drawn nothing.
                    permit.sent();
                    permit.finish(Outcome::Served);
                    true
                }
                // Who waits leaves.
                Admission::Decided(Err(_)) | Admission::Queued(_) => false,
            };
            decisions.push(Decision { took, at_once });
        }
        decisions
    }
}

/// A server of ZooKeeper, in its own folder.
struct Server {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts it. Who needs it waits until it serves.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it has one").port();
        drop(listener);
        let folder = tempfile::tempdir().expect("a folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/zookeeper/server.sh");
        let process = Command::new("sh")
            .arg(script)
            .arg("1")
            .arg(folder.path())
            .arg(port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a shell");
        Self {
            process,
            port,
            _folder: folder,
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill")
            .args([format!("-{name}"), pid])
            .status();
        assert!(sent.expect("there is a kill command").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
