//! Ten minutes of calls over both protocols, of which every tenth client leaves at a random moment,
//! while the backend is restarted and the config is reloaded. The same clients and the same backend
//! try HAProxy, for the HTTP part.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::account::{Allowed, Broken, Evidence, Finding, Law};
use super::backend::{Backend, Mode, Recorder};
use super::client::{Attempt, Client, Outcome, Shape, Way, Wire};
use super::run::{Tags, at_rest, own_ip};
use super::subject::Subject;
use crate::sidecar::TIDEGATE;
use crate::stores::free_ports;

/// The tried faults, and their duration.
pub(super) struct Plan {
    pub(super) lasts: Duration,
    /// Between two faults of the backend.
    pub(super) restart_every: Duration,
    pub(super) seed: u64,
}

/// Clients that speak HTTP, and the socket protocol.
const CLIENTS: (usize, usize) = (12, 5);
/// The number of calls of which one loses its client.
const LEAVES_ONE_IN: u32 = 10;
/// The limits that the gate keeps.
const LAW: Law = Law {
    in_flight: 16,
    per_window: 400,
    window: Duration::from_secs(1),
    gives_up: Duration::from_millis(4500),
};

/// The result of a soak.
pub(super) struct Soaked {
    pub(super) findings: Vec<Finding>,
    pub(super) row: String,
}

/// The heading of the rows.
pub(super) const HEADING: &str = "\
| proxy | protocol | seed | minutes | calls | calls a second | answered | errors at clients that stayed | clients left | reloads | backend restarts, closes, resets | hung | foreign | doubled | lost |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
";

fn tidegate(backend: SocketAddr) -> String {
    format!(
        "[server]\ndrain_timeout = \"10s\"\n\
         [[listen]]\nname = \"test\"\nbind = \"127.0.0.1:0\"\n\
         [client]\nrequest_timeout = \"5s\"\nwrite_timeout = \"5s\"\nbody_timeout = \"10s\"\n\
         [backend]\nkind = \"zvm\"\nsocket = \"{backend}\"\nhttp = \"http://{backend}\"\n\
         response_timeout = \"5s\"\npool_idle_timeout = \"2s\"\nreply_buffer_bytes = \"256KiB\"\n\
         [queue]\npostpone = \"in_turn\"\nworkers = 32\n\
         [limits]\nper_window = \"total:{}\"\n\
         outstanding = {}\n\
         max_wait = \"15s\"\nwindow_stamp = \"replied\"\n\
         [classes]\npromote_for = \"10s\"\n\
         [admin]\nbind = \"127.0.0.1:0\"\n\
         [log]\nformat = \"json\"\n",
        LAW.per_window, LAW.in_flight
    )
}

/// Calls of one client, one after the other.
async fn client(
    addr: SocketAddr,
    wire: Wire,
    mut random: StdRng,
    tags: Tags,
    stop: Arc<AtomicBool>,
) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    let (_, quiet) = watch::channel(false);
    let mut client = Client::new(addr, wire, Way::Stays, quiet);
    while !stop.load(Ordering::Relaxed) {
        let ms = Duration::from_millis;
        let shape = match random.random_range(0..40_u32) {
            0 if wire == Wire::Http => Shape {
                up: 150_000,
                up_takes: ms(100),
                down: 64,
                takes: ms(10),
            },
            1 => Shape {
                up: 0,
                up_takes: ms(0),
                down: 500_000,
                takes: ms(100),
            },
            _ => Shape {
                up: 0,
                up_takes: ms(0),
                down: random.random_range(8..2000),
                takes: ms(random.random_range(1..40)),
            },
        };
        let (tell, leaves) = watch::channel(false);
        client.fault = leaves;
        client.way = match random.random_range(0..3 * LEAVES_ONE_IN) {
            0 => Way::Leaves,
            1 => Way::Resets,
            2 => Way::HalfCloses,
            _ => Way::Stays,
        };
        let after = ms(random.random_range(0..60));
        let leaving = tokio::spawn(async move {
            sleep(after).await;
            // The call may be over.
            let _ = tell.send(true);
            tell.closed().await;
        });
        let attempt = client.call(tags.next(), tags.next(), shape).await;
        leaving.abort();
        if attempt.outcome == Outcome::NoConnection {
            sleep(ms(50)).await;
        }
        attempts.push(attempt);
        sleep(ms(random.random_range(0..40))).await;
    }
    attempts
}

/// Restarts the backend, and closes its connections, at random moments.
async fn disturb(
    backend: &Backend,
    every: Duration,
    mut random: StdRng,
    until: Instant,
) -> [usize; 3] {
    let mut done = [0; 3];
    loop {
        let pause = every.mul_f64(random.random_range(0.5..1.5));
        if Instant::now() + pause + Duration::from_secs(1) > until {
            sleep(until - Instant::now()).await;
            return done;
        }
        sleep(pause).await;
        let kind = random.random_range(0..3_usize);
        let mode = [Mode::Down, Mode::Fin, Mode::Rst][kind];
        backend.set(mode).await;
        sleep(Duration::from_millis(random.random_range(50..400))).await;
        backend.set(Mode::Well).await;
        done[kind] += 1;
    }
}

/// A proxy that reads its config again at a signal.
trait Reloads {
    fn reload(&mut self, number: usize);
}

impl Reloads for Subject {
    fn reload(&mut self, number: usize) {
        let path = self.folder.path().join("config.toml");
        let text = std::fs::read_to_string(&path).expect("it is ours");
        let turns = ["promote_for = \"10s\"", "promote_for = \"11s\""];
        let text = text.replace(turns[number % 2], turns[(number + 1) % 2]);
        self.write_config(&text);
        self.signal("HUP");
    }
}

/// HAProxy as a master with workers.
struct HaProxy {
    child: Child,
    addr: SocketAddr,
    _folder: tempfile::TempDir,
}

impl HaProxy {
    async fn start(backend: SocketAddr) -> Self {
        let addr = SocketAddr::from((own_ip(), free_ports(1)[0]));
        let folder = tempfile::tempdir().expect("there is room");
        let config = folder.path().join("haproxy.cfg");
        let text = format!(
            "global\n  maxconn 2000\ndefaults\n  mode http\n  timeout connect 2s\n  timeout client 20s\n  \
             timeout server 5s\n  timeout queue 15s\nfrontend test\n  bind {addr}\n  \
             default_backend test\nbackend test\n  server one {backend} maxconn {}\n",
            LAW.in_flight
        );
        std::fs::write(&config, text).expect("there is room");
        let child = Command::new("haproxy")
            .args(["-W", "-f"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("`make soak` installs it");
        let until = Instant::now() + Duration::from_secs(20);
        while tokio::net::TcpStream::connect(addr).await.is_err() {
            assert!(Instant::now() < until, "HAProxy does not listen");
            sleep(Duration::from_millis(10)).await;
        }
        Self {
            child,
            addr,
            _folder: folder,
        }
    }
}

impl Reloads for HaProxy {
    fn reload(&mut self, _: usize) {
        let pid = self.child.id().expect("it runs").to_string();
        // It reads its file again and starts new workers.
        let _ = std::process::Command::new("kill")
            .args(["-USR2", &pid])
            .status();
    }
}

impl HaProxy {
    async fn ends(mut self) {
        let pid = self.child.id().expect("it runs").to_string();
        // Its workers end with it.
        let _ = std::process::Command::new("kill")
            .args(["-TERM", &pid])
            .status();
        let _ = tokio::time::timeout(Duration::from_secs(20), self.child.wait()).await;
    }
}

struct Driven {
    attempts: HashMap<Wire, Vec<Attempt>>,
    reloads: usize,
    done: [usize; 3],
}

async fn drive(
    plan: &Plan,
    addr: SocketAddr,
    wires: &[Wire],
    backend: &Backend,
    proxy: &mut impl Reloads,
    tags: &Tags,
) -> Driven {
    let mut random = StdRng::seed_from_u64(plan.seed);
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for wire in wires {
        let count = if *wire == Wire::Http {
            CLIENTS.0
        } else {
            CLIENTS.1
        };
        for _ in 0..count {
            let random = StdRng::seed_from_u64(random.random());
            let calls = client(addr, *wire, random, tags.clone(), Arc::clone(&stop));
            let wire = *wire;
            clients.spawn(async move { (wire, calls.await) });
        }
    }
    let until = Instant::now() + plan.lasts;
    let reloading = async {
        let mut reloads = 0;
        while Instant::now() < until {
            sleep(Duration::from_secs(1)).await;
            proxy.reload(reloads);
            reloads += 1;
        }
        reloads
    };
    let random = StdRng::seed_from_u64(random.random());
    let disturbing = disturb(backend, plan.restart_every, random, until);
    let (reloads, done) = tokio::join!(reloading, disturbing);
    stop.store(true, Ordering::Relaxed);
    let mut attempts: HashMap<Wire, Vec<Attempt>> = HashMap::new();
    while let Some(ended) = clients.join_next().await {
        let (wire, calls) = ended.expect("a client does not panic");
        attempts.entry(wire).or_default().extend(calls);
    }
    Driven {
        attempts,
        reloads,
        done,
    }
}

fn row(proxy: &str, wire: Wire, plan: &Plan, driven: &Driven, recorder: &Recorder) -> String {
    let attempts = &driven.attempts[&wire];
    let count = |is: &dyn Fn(&Attempt) -> bool| attempts.iter().filter(|it| is(it)).count();
    let stays = |it: &Attempt| it.left.is_none();
    let mut errors: BTreeMap<String, usize> = BTreeMap::new();
    for attempt in attempts.iter().filter(|it| stays(it)) {
        let name = match &attempt.outcome {
            Outcome::Served => continue,
            Outcome::Refused(reason) => format!("`{reason}`"),
            Outcome::Odd(text) => {
                let status = text
                    .split(|it: char| !it.is_ascii_digit())
                    .find(|it| it.len() == 3);
                status.unwrap_or("odd").to_owned()
            }
            other => format!("{other:?}").to_lowercase(),
        };
        *errors.entry(name).or_default() += 1;
    }
    let errors: Vec<String> = errors
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let own: HashSet<_> = attempts.iter().map(|it| it.tag).collect();
    let mut arrived: HashMap<_, usize> = HashMap::new();
    for arrival in recorder.all() {
        if own.contains(&arrival.tag) {
            *arrived.entry(arrival.tag).or_default() += 1;
        }
    }
    let lost = count(&|it| {
        stays(it) && !it.streams && matches!(it.outcome, Outcome::Dropped | Outcome::NoConnection)
    });
    let [restarts, closes, resets] = driven.done;
    format!(
        "| {proxy} | {} | {} | {:.1} | {} | {:.0} | {} | {} | {} | {} | {restarts}, {closes}, {resets} | {} | {} | {} | {lost} |\n",
        wire.name(),
        plan.seed,
        plan.lasts.as_secs_f64() / 60.0,
        attempts.len(),
        attempts.len() as f64 / plan.lasts.as_secs_f64(),
        count(&|it| it.outcome == Outcome::Served),
        if errors.is_empty() {
            "0".to_owned()
        } else {
            errors.join(", ")
        },
        count(&|it| it.left.is_some()),
        driven.reloads,
        count(&|it| it.outcome == Outcome::Hung),
        count(&|it| matches!(it.outcome, Outcome::Foreign | Outcome::Truncated)),
        arrived.values().filter(|times| **times > 1).count(),
    )
}

/// Soaks Tidegate.
pub(super) async fn of_tidegate(plan: &Plan) -> Soaked {
    let recorder = Recorder::default();
    let backend = Backend::start(own_ip(), 0, recorder.clone()).await;
    let mut command = Command::new(TIDEGATE);
    command.arg("serve");
    let subject = Subject::start(command, |_| tidegate(backend.addr)).await;
    let mut subject = subject.unwrap_or_else(|how| panic!("{how}"));
    let descriptors = subject.descriptors();
    let addr = subject.addr;
    let tags = Tags::default();
    // Memory of a process that has worked.
    let short = Plan {
        lasts: Duration::from_secs(2),
        restart_every: Duration::from_secs(60),
        seed: plan.seed,
    };
    let wires = [Wire::Http, Wire::Socket];
    let warm = drive(&short, addr, &[Wire::Http], &backend, &mut subject, &tags).await;
    drop(warm);
    let memory = subject.memory();
    let (before, warm_arrivals) = (subject.lines().len(), recorder.all().len());
    let driven = drive(plan, addr, &wires, &backend, &mut subject, &tags).await;
    let (_, mut findings) = at_rest(&subject, descriptors, memory).await;
    subject.signal("TERM");
    match subject.ended(Duration::from_secs(15)).await {
        Some((status, _)) if status.success() => {}
        other => findings.push(Finding {
            broken: Broken::LeakedTask,
            how: format!("it does not end well: {:?}", other.map(|it| it.0)),
        }),
    }
    let (lines, arrivals) = (subject.lines(), recorder.all());
    let (lines, arrivals) = (&lines[before..], &arrivals[warm_arrivals..]);
    let mut rows = String::new();
    for wire in wires {
        rows += &row("Tidegate", wire, plan, &driven, &recorder);
        let attempts = driven.attempts[&wire].clone();
        let own: HashSet<_> = attempts.iter().map(|it| it.tag.to_string()).collect();
        let evidence = Evidence {
            wire,
            extra: HashSet::new(),
            silent: Vec::new(),
            arrivals: arrivals
                .iter()
                .filter(|it| own.contains(&it.tag.to_string()))
                .cloned()
                .collect(),
            lines: lines.to_vec(),
            attempts,
            // Together they are judged below.
            law: Law {
                in_flight: usize::MAX >> 1,
                per_window: usize::MAX >> 1,
                ..LAW
            },
            allowed: Allowed {
                reasons: &["backend_closed", "backend_cut", "backend_unreachable"],
                dropped: false,
                cut: true,
                no_connection: false,
                odd: false,
            },
            notices_within: Duration::from_secs(1),
            counted: None,
            has_log: true,
        };
        findings.extend(evidence.findings());
    }
    let both = Evidence {
        wire: Wire::Http,
        attempts: Vec::new(),
        extra: HashSet::new(),
        silent: Vec::new(),
        arrivals: arrivals.to_vec(),
        lines: Vec::new(),
        law: LAW,
        allowed: Allowed::default(),
        notices_within: Duration::ZERO,
        counted: None,
        has_log: false,
    };
    findings.extend(both.findings());
    Soaked {
        findings,
        row: rows,
    }
}

/// Soaks HAProxy, to have something to compare with.
pub(super) async fn of_haproxy(plan: &Plan) -> Soaked {
    let recorder = Recorder::default();
    let backend = Backend::start(own_ip(), 0, recorder.clone()).await;
    let mut haproxy = HaProxy::start(backend.addr).await;
    let addr = haproxy.addr;
    let driven = drive(
        plan,
        addr,
        &[Wire::Http],
        &backend,
        &mut haproxy,
        &Tags::default(),
    )
    .await;
    haproxy.ends().await;
    Soaked {
        findings: Vec::new(),
        row: row("HAProxy", Wire::Http, plan, &driven, &recorder),
    }
}
