//! Sidecars as processes, each with its own links to the store, its config, and its log.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::Plan;
use super::call::{EVERYBODY, EXPENSIVE_COST, PER_USER};
use super::store::Store;
use crate::child::Process;
use crate::relay::{Mode, Relay};
use crate::sidecar::TIDEGATE;
use crate::stores::free_ports;
use crate::support::PATIENCE;

/// The config of one sidecar. All names of options stand here.
fn config(plan: &Plan, store: &Store, links: &[Relay], addrs: [SocketAddr; 3]) -> String {
    let [http, admin, backend] = addrs;
    let servers = links.iter().map(|link| store.server(link.addr));
    let servers: Vec<String> = servers.map(|it| format!("\"{it}\"")).collect();
    let shared = match store {
        Store::Memory => String::new(),
        _ => format!(
            "servers = [{}]\nsession_timeout = \"2s\"\nexpected_sidecars = {}\n{}",
            servers.join(", "),
            plan.sidecars,
            match store {
                Store::Sentinels(_) => "sentinel = \"mymaster\"\n",
                _ => "",
            }
        ),
    };
    let quota = |name: &str, applies_to: &str, total: u64, on_excess: &str| {
        let safe = match plan.away {
            "safe" => "safe = 50\n",
            _ => "",
        };
        format!(
            "[[quota]]\nname = \"{name}\"\napplies_to = \"{applies_to}\"\n\
             total = {total}\nrefresh_window = \"{}ms\"\non_excess = \"{on_excess}\"\n\
             when_store_away = \"{}\"\n{safe}",
            plan.window.as_millis(),
            plan.away,
        )
    };
    format!(
        "[[listen]]\nname = \"test\"\nbind = \"{http}\"\nprotocol = \"http\"\nuser_from = \"basic\"\n\
         [backend]\nkind = \"zvm\"\nhttp = \"http://{backend}\"\n\
         [queue]\npostpone = \"in_turn\"\nworkers = 256\nwhen_full = \"refuse\"\n\
         [limits]\nper_window = \"total:100000\"\n\
         outstanding = 0\nmax_wait = \"1s\"\n\
         [costs]\nfunctions = {{ guest_get_info = {EXPENSIVE_COST} }}\n\
         [quota_store]\nengine = \"{}\"\n{shared}\
         {}{}\
         [admin]\nbind = \"{admin}\"\n\
         [log]\nformat = \"json\"\n",
        store.engine(),
        quota(PER_USER, "user", plan.per_user, "delay"),
        quota(EVERYBODY, "total", plan.everybody, "reject"),
    )
}

/// A sidecar of the run.
pub(super) struct Sidecar {
    pub(super) number: usize,
    pub(super) http: SocketAddr,
    admin: SocketAddr,
    config: PathBuf,
    /// Of all its lives.
    pub(super) log: PathBuf,
    process: Process,
    links: Vec<Relay>,
    counts: Counts,
}

/// Counters by their series, summed up over lives.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts(BTreeMap<String, f64>);

impl Counts {
    /// The sum of all series of this name that have all of these labels.
    pub(super) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |series: &str| {
            series.strip_prefix(name).is_some_and(|rest| {
                let has =
                    |(label, value): &(&str, &str)| rest.contains(&format!("{label}=\"{value}\""));
                rest.starts_with('{') && labels.iter().all(has)
            })
        };
        let series = self.0.iter().filter(|(series, _)| fits(series));
        series.map(|(_, value)| value).sum()
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (series, value) in &other.0 {
            *self.0.entry(series.clone()).or_default() += value;
        }
    }

    fn read(page: &str) -> Self {
        let series = page
            .lines()
            .filter(|line| line.starts_with("tidegate_quota_"));
        let series = series.filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        });
        Self(series.collect())
    }
}

impl Sidecar {
    /// Starts it and waits until it listens.
    async fn start(
        number: usize,
        plan: &Plan,
        store: &Store,
        links: Vec<Relay>,
        backend: SocketAddr,
        folder: &Path,
    ) -> Self {
        let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let ports = free_ports(2);
        let (http, admin) = (addr(ports[0]), addr(ports[1]));
        let text = config(plan, store, &links, [http, admin, backend]);
        let path = folder.join(format!("{number}.toml"));
        let mut file = File::create(&path).expect("it can be made");
        file.write_all(text.as_bytes()).expect("there is room");
        let log = folder.join(format!("{number}.log"));
        let mut sidecar = Self {
            number,
            http,
            admin,
            process: Self::run(&path, &log),
            config: path,
            log,
            links,
            counts: Counts::default(),
        };
        sidecar.listens().await;
        sidecar
    }

    fn run(config: &Path, log: &Path) -> Process {
        let mut command = Command::new("sh");
        // Its log is a file, so no reader delays it. It exits with the process that started it.
        let script = "setpriv=; command -v setpriv >/dev/null && setpriv='setpriv --pdeathsig KILL'\n\
                      exec $setpriv \"$0\" serve --config \"$1\" 2>>\"$2\"";
        command.args(["-c", script, TIDEGATE]).args([config, log]);
        Process::start("sidecar", &mut command)
    }

    async fn listens(&mut self) {
        let listening = async {
            while TcpStream::connect(self.http).await.is_err() {
                if self.process.has_ended() {
                    let said = std::fs::read_to_string(&self.log).expect("it has a log");
                    panic!("sidecar {} does not start: {said}", self.number);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let listens = timeout(PATIENCE, listening).await;
        assert!(listens.is_ok(), "sidecar {} does not listen", self.number);
    }

    /// Kills it, and starts it again after a while.
    pub(super) async fn kill(&mut self, away: Duration) {
        self.count().await;
        self.process.kill();
        tokio::time::sleep(away).await;
        self.process = Self::run(&self.config, &self.log);
        self.listens().await;
    }

    /// Stops it where it stands, for a while.
    pub(super) async fn pause(&self, pause: Duration) {
        self.process.signal("STOP");
        tokio::time::sleep(pause).await;
        self.process.signal("CONT");
    }

    /// Disturbs its links to the store, for a while.
    pub(super) async fn disturb_links(&self, mode: Mode, lasts: Duration) {
        for link in &self.links {
            link.set(mode);
        }
        tokio::time::sleep(lasts).await;
        for link in &self.links {
            link.set(Mode::Open);
        }
    }

    /// A page of its admin address, if it answers soon.
    pub(super) async fn get(&self, path: &str) -> Option<String> {
        let asking = async {
            let mut stream = TcpStream::connect(self.admin).await.ok()?;
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            Some(answer)
        };
        timeout(Duration::from_secs(2), asking).await.ok().flatten()
    }

    /// Adds what this life of it has counted.
    async fn count(&mut self) {
        if let Some(page) = self.get("/metrics").await {
            self.counts.add(&Counts::read(&page));
        }
    }

    /// Asks it to end and waits until it has; returns what all its lives have counted.
    async fn end(mut self) -> Counts {
        self.count().await;
        self.process.signal("TERM");
        let ending = async {
            while !self.process.has_ended() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let ended = timeout(PATIENCE, ending).await;
        assert!(ended.is_ok(), "sidecar {} does not end", self.number);
        self.counts
    }
}

/// All sidecars, and what runs their links.
pub(super) struct Fleet {
    pub(super) sidecars: Vec<Sidecar>,
    relays: Option<Runtime>,
    folder: tempfile::TempDir,
}

impl Fleet {
    pub(super) async fn start(plan: &Plan, store: &Store, backend: SocketAddr) -> Self {
        let relays = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("relays")
            .enable_all()
            .build()
            .expect("a runtime");
        let folder = tempfile::tempdir().expect("there is room");
        let mut sidecars = Vec::new();
        for number in 0..plan.sidecars {
            let mut links = Vec::new();
            for addr in store.addrs() {
                let link = relays.spawn(Relay::start(addr));
                links.push(link.await.expect("it does not panic"));
            }
            let sidecar = Sidecar::start(number, plan, store, links, backend, folder.path());
            sidecars.push(sidecar.await);
        }
        Self {
            sidecars,
            relays: Some(relays),
            folder,
        }
    }

    pub(super) fn addrs(&self) -> Vec<SocketAddr> {
        self.sidecars.iter().map(|it| it.http).collect()
    }

    pub(super) fn logs(&self) -> Vec<PathBuf> {
        self.sidecars.iter().map(|it| it.log.clone()).collect()
    }

    /// Ends all of them; returns what all together have counted. Their logs live on with this.
    pub(super) async fn end(&mut self) -> Counts {
        let mut counts = Counts::default();
        for sidecar in self.sidecars.drain(..) {
            counts.add(&sidecar.end().await);
        }
        counts
    }

    /// Keeps the logs for inspection, and prints their place.
    pub(super) fn keep(&mut self) -> &Path {
        self.folder.disable_cleanup(true);
        self.folder.path()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if let Some(relays) = self.relays.take() {
            relays.shutdown_background();
        }
    }
}
