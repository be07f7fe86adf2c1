//! Limits fed by leases: real sidecars and real capacity servers, each in a separate runtime that
//! is killed like a process: all its tasks end at once, and its sockets close.

mod mistakes;
mod suspended;

use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tidegate::app::App;
use tidegate_lease_server::config as server_config;
use tidegate_lease_server::running::LeaseServer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::runtime::{Builder, Runtime};

use crate::seeds::any_seed;
use crate::sidecar::{Sidecar as Process, field};
use crate::stores::free_ports;
use crate::support::{self, Answer, OK, PATIENCE, Scripted, array, closed_port, config, densest};

/// Per second, and at once, over all sidecars.
const TOTAL: usize = 12;
const OUTSTANDING: usize = 7;
/// The share that each sidecar always owns of the total.
const SAFE: u64 = 2;
const WINDOW: Duration = Duration::from_secs(1);

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// A program in a separate runtime, until it is killed.
struct Killable<T> {
    it: T,
    runtime: Option<Runtime>,
}

impl<T> Killable<T> {
    fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl<T> Drop for Killable<T> {
    fn drop(&mut self) {
        self.end();
    }
}

struct Sidecar {
    app: App,
    address: SocketAddr,
}

type RunningSidecar = Killable<Sidecar>;

impl RunningSidecar {
    fn start(text: &str) -> Self {
        let runtime = runtime();
        let entered = runtime.enter();
        let app = App::start(config(text), None).expect("it starts");
        drop(entered);
        let address = app.listeners()[0].1.tcp().expect("it listens on TCP");
        Self {
            it: Sidecar { app, address },
            runtime: Some(runtime),
        }
    }

    fn reload(&self, text: &str) {
        let runtime = self.runtime.as_ref().expect("it runs");
        let _entered = runtime.enter();
        self.it.app.reload(config(text)).expect("it is taken");
    }

    async fn get(&self, path: &str) -> Answer {
        let admin = self.it.app.admin().expect("it has an admin address");
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        Answer::read(support::ask(admin, request).await.as_bytes())
    }

    /// A limit or a bucket as operators see it.
    async fn seen(&self, kind: &str, name: &str) -> serde_json::Value {
        let all = self.get("/v1/limits").await.json();
        let list = all[kind].as_array().expect("a list");
        let found = list.iter().find(|it| it["name"] == name);
        found.unwrap_or_else(|| panic!("{name} in {all}")).clone()
    }

    /// The master of the leases as operators see it.
    async fn master(&self) -> Option<SocketAddr> {
        let now = self.get("/v1/now").await.json();
        let master = now["lease_master"].as_str()?;
        Some(master.parse().expect("an address"))
    }

    /// Waits until a limit may give out this amount.
    async fn in_force(&self, limit: &str, is_so: impl Fn(u64) -> bool) -> u64 {
        let look = async || {
            let seen = self.seen("limits", limit).await;
            seen["in_force"].as_u64().expect("a number")
        };
        wait_for(look, is_so).await
    }
}

/// Polls until the condition holds.
async fn wait_for<T, F: Future<Output = T>>(look: impl Fn() -> F, is_so: impl Fn(T) -> bool) -> T
where
    T: Copy + std::fmt::Debug,
{
    let started = Instant::now();
    loop {
        let seen = look().await;
        if is_so(seen) {
            return seen;
        }
        assert!(started.elapsed() < PATIENCE, "never came about: {seen:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Starts a capacity server, again and again until the one before has let go of its port.
async fn server(port: u16, learning: &str) -> Killable<SocketAddr> {
    server_that_lends(port, learning, "lease = \"3s\", refresh = \"1s\"").await
}

/// A server with other leases.
async fn server_that_lends(port: u16, learning: &str, leases: &str) -> Killable<SocketAddr> {
    let text = format!(
        r#"
        bind = "127.0.0.1:{port}"
        status_bind = ""
        minimum_interval = "200ms"
        [[resource]]
        glob = "zvm/total"
        capacity = {TOTAL}
        algorithm = {{ {leases}, learning = "{learning}", frees_after = "1500ms", reserved_clients = 3, safe_share = {SAFE} }}
        [[resource]]
        glob = "zvm/outstanding"
        capacity = {OUTSTANDING}
        algorithm = {{ {leases}, learning = "{learning}", frees_after = "700ms", reserved_clients = 3, safe_share = 1 }}
        [[resource]]
        glob = "zvm/poller"
        capacity = 40
        algorithm = {{ {leases}, learning = "{learning}", reserved_clients = 3, safe_share = 1 }}
        "#
    );
    let (config, _) = server_config::read(&text, "leases.toml").unwrap_or_else(|it| panic!("{it}"));
    let started = Instant::now();
    loop {
        let runtime = runtime();
        let config = config.clone();
        let starting = runtime.spawn(async move {
            let server = LeaseServer::start(&config).await?;
            let address = server.address();
            // It lives as long as its runtime.
            std::mem::forget(server);
            Ok::<_, tidegate_lease_server::running::StartError>(address)
        });
        match starting.await.expect("it does not panic") {
            Ok(it) => {
                return Killable {
                    it,
                    runtime: Some(runtime),
                };
            }
            Err(error) => {
                runtime.shutdown_background();
                assert!(started.elapsed() < PATIENCE, "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// A backend that records when each call came, and how many it had at once. A call ends with its
/// sidecar.
struct Recorded {
    backend: Scripted,
    arrivals: Arc<Mutex<Vec<Duration>>>,
    peak: Arc<AtomicUsize>,
    epoch: Instant,
}

impl Recorded {
    async fn start() -> Self {
        let epoch = Instant::now();
        let arrivals = Arc::new(Mutex::new(Vec::new()));
        let in_flight = Arc::new(AtomicUsize::new(0));
        let peak = Arc::new(AtomicUsize::new(0));
        let (log, highest) = (Arc::clone(&arrivals), Arc::clone(&peak));
        let backend = Scripted::start(move |number, mut stream: TcpStream| {
            let log = Arc::clone(&log);
            let in_flight = Arc::clone(&in_flight);
            let highest = Arc::clone(&highest);
            async move {
                let mut request = [0; 1024];
                if stream.read(&mut request).await.unwrap_or(0) == 0 {
                    return;
                }
                log.lock()
                    .expect("no test panics with it")
                    .push(epoch.elapsed());
                let now = in_flight.fetch_add(1, Ordering::SeqCst) + 1;
                highest.fetch_max(now, Ordering::SeqCst);
                let served = Duration::from_millis(20 + number as u64 * 37 % 200);
                tokio::select! {
                    () = tokio::time::sleep(served) => {}
                    _ = stream.read(&mut request) => {}
                }
                in_flight.fetch_sub(1, Ordering::SeqCst);
                let _ = stream.write_all(OK).await;
            }
        })
        .await;
        Self {
            backend,
            arrivals,
            peak,
            epoch,
        }
    }

    fn arrivals(&self) -> Vec<Duration> {
        self.arrivals
            .lock()
            .expect("no test panics with it")
            .clone()
    }

    /// The most that came within any window that began after a moment.
    fn densest_after(&self, moment: Instant) -> usize {
        let after = moment.saturating_duration_since(self.epoch);
        let later = self.arrivals().into_iter().filter(|&at| at >= after);
        densest(&later.collect::<Vec<_>>(), WINDOW)
    }

    /// Waits until N more have come.
    async fn more(&self, calls: usize) {
        let before = self.arrivals().len();
        wait_for(async || self.arrivals().len(), |now| now >= before + calls).await;
    }
}

fn sidecar_text(backend: SocketAddr, coordinate: &str) -> String {
    format!(
        r#"
        [[listen]]
        name = "test"
        bind = "127.0.0.1:0"
        protocol = "socket"
        [backend]
        socket = "{backend}"
        [queue]
        postpone = "in_turn"
        [limits]
        per_window = "total:{TOTAL}"
        outstanding = {OUTSTANDING}
        window_guard = "100ms"
        [[bucket]]
        name = "poller"
        mode = "observe"
        burst = 1000
        fill = 30
        [[caller]]
        label = "everybody"
        match = {{ ip = "127.0.0.1" }}
        rate_limit = "poller"
        [admin]
        bind = "127.0.0.1:0"
        {coordinate}
        "#
    )
}

fn coordinate(server: SocketAddr) -> String {
    format!(
        r#"
        [coordinate]
        servers = ["{server}"]
        expected_sidecars = 3
        request_timeout = "400ms"
        minimum_interval = "250ms"
        [[coordinate.limit]]
        limit = "total"
        resource = "zvm/total"
        safe = {SAFE}
        [[coordinate.limit]]
        limit = "outstanding"
        resource = "zvm/outstanding"
        safe = 1
        [[coordinate.limit]]
        limit = "poller"
        resource = "zvm/poller"
        safe = 1
        "#
    )
}

/// Clients that call one after the other, again and again, with or without an answer.
struct Load {
    stop: Arc<AtomicBool>,
}

impl Load {
    fn start(
        clients: usize,
        address: impl Fn() -> Option<SocketAddr> + Send + Clone + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for number in 0..clients {
            let (stop, address) = (Arc::clone(&stop), address.clone());
            tokio::spawn(async move {
                let request = array("guest_list", &format!("U{number}"));
                while !stop.load(Ordering::SeqCst) {
                    let to = address();
                    let answered = async {
                        let mut stream = TcpStream::connect(to?).await.ok()?;
                        stream.write_all(request.as_bytes()).await.ok()?;
                        let mut answer = Vec::new();
                        stream.read_to_end(&mut answer).await.ok()
                    };
                    if answered.await.is_none() {
                        // No server is there; a killed one comes back.
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            });
        }
        Self { stop }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_grows_with_demand_and_losing_every_server_leaves_the_safe_share() {
    let backend = Recorded::start().await;
    let port = closed_port().port();
    let unused = SocketAddr::from(([127, 0, 0, 1], port));
    let shared = sidecar_text(backend.backend.addr, &coordinate(unused));
    let started = Instant::now();
    let sidecar = RunningSidecar::start(&shared);
    let address = sidecar.it.address;
    let load = Load::start(20, move || Some(address));

    // No server has ever answered: the window is closed for its own length, then the safe share.
    assert_eq!(sidecar.master().await, None);
    sidecar.in_force("total", |max| max == SAFE).await;
    let opened = started.elapsed();
    assert!(opened >= WINDOW, "opened after {opened:?}");
    backend.more(4).await;
    assert_eq!(backend.densest_after(started), SAFE as usize);
    assert_eq!(sidecar.in_force("outstanding", |max| max > 0).await, 1);
    let bucket = sidecar.seen("buckets", "rate_limit:poller").await;
    assert_eq!(bucket["per_second"], 1.0, "{bucket}");

    // A server: two others keep their own parts. The demand is all that is left.
    let first = server(port, "0s").await;
    wait_for(|| sidecar.master(), |master| master == Some(unused)).await;
    let most = (TOTAL as u64) - 2 * SAFE;
    sidecar.in_force("total", |max| max == most).await;
    sidecar.in_force("outstanding", |max| max == 5).await;
    let look = async || {
        let bucket = sidecar.seen("buckets", "rate_limit:poller").await;
        bucket["per_second"].as_f64().expect("a number")
    };
    let rate = wait_for(look, |rate| rate > 2.0).await;
    assert!(rate <= 30.0, "{rate}");
    let seen = sidecar.seen("limits", "total").await;
    assert_eq!(seen["shared"]["engine"], "lease", "{seen}");
    assert_eq!(seen["shared"]["resource"], "zvm/total", "{seen}");
    let left = seen["shared"]["expires_in_seconds"]
        .as_f64()
        .expect("leased");
    assert!(left > 0.0 && left <= 3.0, "{seen}");
    let metrics = sidecar.get("/metrics").await.body;
    for line in [
        "tidegate_lease_capacity{limit=\"total\"} 8",
        "tidegate_lease_safe{limit=\"total\"} 2",
        "doorman_client_requests{",
    ] {
        assert!(metrics.contains(line), "no {line} in {metrics}");
    }

    // It dies: its lease expires, and no other sidecar has to wait.
    first.kill();
    sidecar.in_force("total", |max| max == SAFE).await;
    wait_for(|| sidecar.master(), |master| master.is_none()).await;
    let lost = Instant::now() + WINDOW;
    assert_eq!(sidecar.get("/readyz").await.status, 200);
    backend.more(8).await;
    assert!(backend.densest_after(lost) <= SAFE as usize);
    let seen = sidecar.seen("limits", "total").await;
    assert!(seen["shared"]["leased"].is_null(), "{seen}");

    // It comes back.
    let second = server(port, "0s").await;
    sidecar.in_force("total", |max| max == most).await;

    // A limit that is shared no more is what the config says, and one that is begins safe.
    sidecar.reload(&sidecar_text(backend.backend.addr, ""));
    let alone = sidecar.in_force("total", |_| true).await;
    assert_eq!(alone, TOTAL as u64);
    assert!(sidecar.seen("limits", "total").await["shared"].is_null());
    second.kill();
    sidecar.reload(&shared);
    assert_eq!(sidecar.in_force("total", |_| true).await, SAFE);
    drop(load);
    sidecar.kill();
}

fn between(random: &mut StdRng, milliseconds: Range<u64>) -> Duration {
    Duration::from_millis(random.random_range(milliseconds))
}

/// Reloads in a loop exchange the limits that are shared, while calls meet them and the leases are
/// carried on another thread.
#[tokio::test]
async fn reloads_that_exchange_the_limits_of_shared_resources_panic_no_thread() {
    let backend = Scripted::in_both_dialects().await;
    let server = server(0, "0s").await;
    let shared = |limits: [&str; 2]| {
        let mut text = sidecar_text(
            backend.addr,
            &format!(
                "[server]\nthreads = 2\n[coordinate]\n\
            servers = [\"{}\"]\nexpected_sidecars = 3\nrequest_timeout = \"400ms\"\n\
            minimum_interval = \"250ms\"\n",
                server.it
            ),
        );
        for (limit, resource) in limits.iter().zip(["zvm/total", "zvm/outstanding"]) {
            text += &format!(
                "[[coordinate.limit]]\nlimit = \"{limit}\"\nresource = \"{resource}\"\nsafe = 1\n"
            );
        }
        text
    };
    let configs = [
        shared(["total", "outstanding"]),
        shared(["outstanding", "total"]),
        shared(["poller", "total"]),
    ];
    let sidecar = Process::start_with(&configs[0], |binary| {
        // Another binary, to check that the test finds a violation.
        Command::new(std::env::var("TIDEGATE_MEASURE").unwrap_or_else(|_| binary.to_owned()))
    })
    .await;
    let address = sidecar.listener("test").await;
    let _load = Load::start(8, move || Some(address));
    for round in 1..=200 {
        sidecar.reload(&configs[round % configs.len()]).await;
    }
    let lines = sidecar.log().lines();
    let panicked = lines.iter().find(|line| line.contains("panicked"));
    assert_eq!(panicked, None);
    let (status, body) = sidecar.get("/readyz").await;
    assert_eq!(status, 200, "{body}");
    let passed = sidecar
        .metric("tidegate_config_reloads_total{outcome=\"taken\"}")
        .await;
    assert!(passed >= 200.0, "{passed}");
}

/// The lease of a sidecar is its own again as soon as it is started again.
#[tokio::test]
async fn a_sidecar_that_was_killed_has_the_same_name_at_the_servers_and_no_other_has_it() {
    let servers = closed_port();
    let shared = format!(
        "[coordinate]\nservers = [\"{servers}\"]\nexpected_sidecars = 2\n\
         [[coordinate.limit]]\nlimit = \"total\"\nresource = \"zvm/total\"\nsafe = 1\n"
    );
    let any_port = support::one_listener(closed_port(), "", &shared);
    let at = |ports: &[u16]| {
        let place = |port: &u16| format!("127.0.0.1:{port}");
        let places = ports.iter().map(place);
        places.fold(any_port.clone(), |text, place| {
            text.replacen("127.0.0.1:0", &place, 1)
        })
    };
    let started = async |text: &str| {
        let sidecar = Process::start(text).await;
        let line = sidecar
            .log()
            .wait(&["leases are asked for by this name"])
            .await;
        (field(&line, "id"), sidecar)
    };
    let ports = free_ports(3);
    let (name, first) = started(&at(&ports[..2])).await;
    first.signal("KILL");
    first.exited().await;
    let (again, second) = started(&at(&ports[..2])).await;
    assert_eq!(again, name);
    // Beside it: at another place, and at a port that is another one with each start.
    for text in [at(&[ports[2], 0]), any_port.clone()] {
        let (other, _sidecar) = started(&text).await;
        assert_ne!(other, name);
    }
    // While it drains, its name is its own.
    second.signal("KILL");
    second.exited().await;
    let claimed = tidegate_runtime::ProcessName::claim(&[
        format!("127.0.0.1:{}", ports[0]),
        format!("127.0.0.1:{}", ports[1]),
    ]);
    let claimed = claimed.expect("the process is gone");
    assert_eq!(claimed.as_str(), name);
    let (other, _third) = started(&at(&ports[..2])).await;
    assert_ne!(other, name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_sidecars_before_one_backend_never_exceed_it_while_they_and_the_servers_are_killed() {
    let mut random = StdRng::seed_from_u64(any_seed());
    let backend = Recorded::start().await;
    let port = closed_port().port();
    let text = sidecar_text(
        backend.backend.addr,
        &coordinate(SocketAddr::from(([127, 0, 0, 1], port))),
    );
    // A lease, and what may be left of one when it ends.
    let learning = "5s";
    let mut current = Some(server(port, learning).await);
    let addresses = Arc::new(Mutex::new([None; 3]));
    let mut sidecars: Vec<Option<RunningSidecar>> = Vec::new();
    let mut loads = Vec::new();
    let begun = Instant::now();
    for slot in 0..3 {
        let sidecar = RunningSidecar::start(&text);
        addresses.lock().expect("unpoisoned")[slot] = Some(sidecar.it.address);
        sidecars.push(Some(sidecar));
        let addresses = Arc::clone(&addresses);
        // Demands differ, so that shares do.
        loads.push(Load::start([20, 6, 2][slot], move || {
            addresses.lock().expect("unpoisoned")[slot]
        }));
    }
    let greedy = sidecars[0].as_ref().expect("it runs");
    greedy.in_force("total", |max| max > 3).await;

    // Ten seconds of this: in turn a sidecar, the server, a sidecar …
    for step in 0..5 {
        let until_next = Instant::now() + between(&mut random, 800..2_500);
        if step % 2 == 0 {
            let slot = random.random_range(0..3);
            addresses.lock().expect("unpoisoned")[slot] = None;
            sidecars[slot].take().expect("it runs").kill();
            tokio::time::sleep(between(&mut random, 50..500)).await;
            let sidecar = RunningSidecar::start(&text);
            addresses.lock().expect("unpoisoned")[slot] = Some(sidecar.it.address);
            sidecars[slot] = Some(sidecar);
        } else {
            current.take().expect("it runs").kill();
            tokio::time::sleep(between(&mut random, 50..2_000)).await;
            current = Some(server(port, learning).await);
        }
        backend.more(3).await;
        tokio::time::sleep_until(until_next.into()).await;
    }
    drop(loads);
    let arrivals = backend.arrivals();
    let took = begun.elapsed();
    let most = densest(&arrivals, WINDOW);
    let peak = backend.peak.load(Ordering::SeqCst);
    eprintln!(
        "{} calls in {took:?}, {most} within a window, {peak} at once",
        arrivals.len()
    );
    assert!(most <= TOTAL, "{most} within a window");
    assert!(peak <= OUTSTANDING, "{peak} at once");
    // With no more than their safe shares they would never have come to this.
    assert!(most > 3 * SAFE as usize, "{most} within a window");
}
