//! `tidegate lease-agent`: the lease client for programs in any language, over HTTP and JSON, on
//! this machine.
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/rate/{id}/wait?cost=&timeout=` | 200 once the operation may run |
//! | `POST /v1/gauge/{id}/enter?ttl=&timeout=` | 200 with a token once there is a place |
//! | `PUT /v1/gauge/{id}/{token}?ttl=` | 204; the place is kept for another `ttl` |
//! | `DELETE /v1/gauge/{id}/{token}` | 204; the place is returned |
//! | `PUT /v1/rate/{id}/wants`, `PUT /v1/gauge/{id}/wants` | 204; body `{"wants": 5}`, or null for the observed demand |
//! | `GET /v1/resources` | every resource and its state |
//! | `GET /metrics`, `GET /livez` | for Prometheus, for monitoring |
//!
//! An id is one segment of the path: a "/" in it is written `%2F`. Times are seconds. A client
//! that disconnects while it waits leaves the line. A place whose user dies comes back when its
//! `ttl` is over. Each place comes back exactly once.

mod guards;
mod routes;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::{Args, ValueEnum};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::Signal;
use tidegate_leases::client::{
    AfterExpiry, ClientMetrics, ClientOptions, Dial, GaugeResource, LeaseClient, OpenError,
    RateResource, ResourceOptions, ResourceState, SafeCapacity, ServerAddress, TcpDial, TlsDial,
};
use tidegate_runtime::command::{executor, listen, note, parse_duration};
use tidegate_runtime::metric::Registry;
use tidegate_runtime::tls::{self, PemError, TlsClient, TlsIdentity};
use tidegate_runtime::{ProcessName, lock};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::guards::Guards;
use tidegate::telemetry::{self, Format};
use tidegate::tools::{failed, service_manager};

/// The most open connections, nearly all of them waiting. Further ones wait in the kernel's
/// backlog.
const CONNECTIONS_MAX: usize = 4096;
/// The most resources. An idle one is evicted for a new one.
const RESOURCES_MAX: usize = 1000;
/// A connection without a request for this long is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The pause after a failed accept, which would otherwise fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The values of `--after-expiry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// The observed demand
    Optimistic,
    /// No capacity
    Pessimistic,
    /// The safe capacity
    Safe,
}

/// The arguments of the agent.
#[derive(Args, Clone, Debug)]
pub struct AgentOptions {
    /// A capacity server; may be given several times. Any server may name another as the master
    #[arg(long = "server", value_name = "HOST:PORT", required = true)]
    pub servers: Vec<ServerAddress>,
    /// Connect to the servers over TLS, and trust this authority: a file in PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The certificate to show, if the servers ask for one
    #[arg(long, value_name = "FILE", requires = "key", requires = "ca")]
    pub cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// The name in the certificates of the servers, if it is not the host in their addresses
    #[arg(long, value_name = "NAME", requires = "ca")]
    pub server_name: Option<String>,
    /// The address for programs on this machine; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9192")]
    pub bind: SocketAddr,
    /// What may be used after a lease has expired while no server answers
    #[arg(long, value_enum, default_value = "safe")]
    pub after_expiry: Mode,
    /// The safe capacity until a server sends one: 0 blocks, -1 is no limit
    #[arg(long, value_name = "CAPACITY", value_parser = parse_safe, allow_negative_numbers = true)]
    pub safe_capacity: Option<SafeCapacity>,
    /// A higher value is more urgent
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i64,
    /// A resource that is idle for this long is released
    #[arg(long, default_value = "10m", value_parser = parse_duration)]
    pub forget_after: Duration,
    /// A host name that programs may use, besides IP addresses and localhost; may be given several
    /// times
    #[arg(long = "allowed-host", value_name = "NAME")]
    pub allowed_hosts: Vec<Box<str>>,
    /// Its client id; by default a name from this machine and the address, also after a restart
    #[arg(long, value_name = "ID")]
    pub client_id: Option<String>,
}

/// Plain TCP, or TLS with the files of the options.
#[expect(clippy::disallowed_methods, reason = "it serves no program yet")]
fn dial(options: &AgentOptions) -> Result<Arc<dyn Dial>, String> {
    let Some(ca) = &options.ca else {
        return Ok(Arc::new(TcpDial));
    };
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let told =
        |path: &Path, error: PemError| format!("{} {error}: {}", path.display(), error.cure());
    let authorities = tls::authorities(&read(ca)?).map_err(|error| told(ca, error))?;
    let shows = match options.cert.as_deref().zip(options.key.as_deref()) {
        Some((cert, key)) => Some(((cert, read(cert)?), (key, read(key)?))),
        None => None,
    };
    let own = match &shows {
        None => None,
        Some(((cert, cert_bytes), (key, key_bytes))) => {
            let identity = TlsIdentity {
                cert: cert_bytes,
                key: key_bytes,
            };
            let certified = identity
                .certified()
                .map_err(|error| match error.is_of_key() {
                    true => told(key, error),
                    false => told(cert, error),
                });
            Some(certified?)
        }
    };
    let mut config = tls::client_config(authorities, own);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = match options.server_name.clone() {
        Some(name) => {
            let wrong = format!("{name:?} is no name that a certificate can hold");
            Some(ServerName::try_from(name).map_err(|_| wrong)?)
        }
        None => None,
    };
    Ok(Arc::new(TlsDial(TlsClient::new(config, name))))
}

fn parse_safe(text: &str) -> Result<SafeCapacity, String> {
    let wrong = || format!("`{text}` is no safe capacity: -1, or a number from 0 up");
    let given: f64 = text.parse().map_err(|_| wrong())?;
    SafeCapacity::new(given).map_err(|_| wrong())
}

/// The command: answers until SIGTERM or ctrl-c, then releases its leases. Exit code 1 if it cannot
/// start.
pub(crate) fn run(options: AgentOptions) -> ExitCode {
    // Its client logs why a server does not answer.
    let settings = telemetry::LogSettings {
        format: Format::Auto,
        level: "info".into(),
        access: false,
        replay: false,
    };
    let logs = match telemetry::log::init(&settings) {
        Ok(logs) => logs,
        Err(error) => return failed(io::Error::other(error)),
    };
    let ended = executor(1).and_then(|runtime| runtime.block_on(until_stopped(options)));
    logs.finish();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(error),
    }
}

async fn until_stopped(options: AgentOptions) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    // As in a sidecar: a log that may grow no further ends no process.
    drop(signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?);
    let running = Agent::start(options).await?;
    note(format_args!(
        "lease agent: on http://{}; ctrl-c ends it\n",
        running.addr()
    ));
    service_manager::ready();
    tokio::select! {
        never = service_manager::keep_alive(async || true) => match never {},
        interrupted = tokio::signal::ctrl_c() => interrupted?,
        _ = terminate.recv() => {}
    }
    service_manager::stopping();
    running.stop().await;
    Ok(())
}

/// The lease client behind its address.
#[derive(Debug)]
pub struct Agent {
    client: LeaseClient,
    registry: Registry,
    defaults: ResourceOptions,
    forget_after: Duration,
    opened: Mutex<BTreeMap<String, CachedResource>>,
    guards: Guards,
    /// Claimed while it runs.
    _name: Option<ProcessName>,
}

#[derive(Debug)]
struct CachedResource {
    handle: ResourceHandle,
    used: Instant,
}

#[derive(Clone, Debug)]
enum ResourceHandle {
    Rate(RateResource),
    Gauge(GaugeResource),
}

/// Why a resource was not opened.
#[derive(Debug, thiserror::Error)]
enum OpenFailure {
    #[error(transparent)]
    Refused(#[from] OpenError),
    #[error("all resources that this agent keeps are in use")]
    TooMany,
}

/// A running agent. Dropping it stops it.
#[derive(Debug)]
pub struct RunningAgent {
    addr: SocketAddr,
    agent: Arc<Agent>,
    _stop: DropGuard,
}

impl RunningAgent {
    /// Address of the agent.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Releases everything, and stops.
    pub async fn stop(self) {
        self.agent.client.close().await;
    }
}

impl Agent {
    /// Listens and answers in the current runtime.
    ///
    /// # Errors
    ///
    /// An address that cannot be listened on, or is not a loopback address: any program that can
    /// reach it can use up the leases of others.
    pub async fn start(options: AgentOptions) -> io::Result<RunningAgent> {
        let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let bind = options.bind;
        if !bind.ip().to_canonical().is_loopback() {
            return Err(wrong(format!("{bind} is not a loopback address")));
        }
        let listener = listen(bind, 1024)?;
        let addr = listener.local_addr()?;
        let registry = Registry::default();
        // With port 0, the address is another one with each start.
        let name = match bind.port() {
            0 => None,
            _ => ProcessName::claim(&[bind.to_string()]),
        };
        let named = || name.as_ref().map(|name| name.as_str().to_owned());
        let client = ClientOptions {
            client_id: options.client_id.clone().or_else(named),
            metrics: ClientMetrics::new(&registry),
            dial: dial(&options).map_err(wrong)?,
            ..ClientOptions::default()
        };
        let client =
            LeaseClient::new(options.servers, client).map_err(|error| wrong(error.to_string()))?;
        let agent = Arc::new(Self {
            client,
            registry,
            defaults: ResourceOptions {
                priority: options.priority,
                after_expiry: match options.after_expiry {
                    Mode::Optimistic => AfterExpiry::Optimistic,
                    Mode::Pessimistic => AfterExpiry::Pessimistic,
                    Mode::Safe => AfterExpiry::Safe,
                },
                safe_capacity: options.safe_capacity,
                ..ResourceOptions::default()
            },
            forget_after: options.forget_after,
            opened: Mutex::default(),
            guards: Guards::default(),
            _name: name,
        });
        let stop = CancellationToken::new();
        let router = routes::router(Arc::clone(&agent), options.allowed_hosts.into());
        tokio::spawn(serve(listener, router, Arc::clone(&agent), stop.clone()));
        Ok(RunningAgent {
            addr,
            agent,
            _stop: stop.drop_guard(),
        })
    }

    /// The resource with this id as a rate, opened if it is new.
    fn rate(&self, id: &str) -> Result<RateResource, OpenFailure> {
        let open = || Ok(ResourceHandle::Rate(self.client.rate(id, self.defaults)?));
        match self.open(id, open)? {
            ResourceHandle::Rate(rate) => Ok(rate),
            ResourceHandle::Gauge(_) => Err(OpenError::OtherKind(id.to_owned()).into()),
        }
    }

    /// The resource with this id as a gauge, opened if it is new.
    fn gauge(&self, id: &str) -> Result<GaugeResource, OpenFailure> {
        let open = || Ok(ResourceHandle::Gauge(self.client.gauge(id, self.defaults)?));
        match self.open(id, open)? {
            ResourceHandle::Gauge(gauge) => Ok(gauge),
            ResourceHandle::Rate(_) => Err(OpenError::OtherKind(id.to_owned()).into()),
        }
    }

    fn open(
        &self,
        id: &str,
        open: impl FnOnce() -> Result<ResourceHandle, OpenError>,
    ) -> Result<ResourceHandle, OpenFailure> {
        let mut opened = lock(&self.opened);
        let used = Instant::now();
        if let Some(known) = opened.get_mut(id) {
            known.used = used;
            return Ok(known.handle.clone());
        }
        if opened.len() >= RESOURCES_MAX {
            self.forget_idle(&mut opened, used);
            if opened.len() >= RESOURCES_MAX {
                return Err(OpenFailure::TooMany);
            }
        }
        let handle = open()?;
        let new = CachedResource {
            handle: handle.clone(),
            used,
        };
        opened.insert(id.to_owned(), new);
        Ok(handle)
    }

    /// Releases idle resources, without waiting operations or places in use.
    fn forget_idle(&self, opened: &mut BTreeMap<String, CachedResource>, now: Instant) {
        opened.retain(|_, opened| {
            let state = opened.handle.state();
            let is_recent = now.duration_since(opened.used) < self.forget_after;
            is_recent || state.waiting > 0 || state.held > 0
        });
    }

    async fn forget(&self) {
        loop {
            tokio::time::sleep((self.forget_after / 4).max(Duration::from_millis(100))).await;
            self.forget_idle(&mut lock(&self.opened), Instant::now());
        }
    }
}

impl ResourceHandle {
    fn state(&self) -> ResourceState {
        match self {
            Self::Rate(rate) => rate.state(),
            Self::Gauge(gauge) => gauge.state(),
        }
    }
}

/// Answers until it is stopped. Waiting clients are disconnected then.
async fn serve(
    listener: TcpListener,
    router: axum::Router,
    agent: Arc<Agent>,
    stop: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let answering = async {
        let mut connections = JoinSet::new();
        loop {
            let place = Arc::clone(&places)
                .acquire_owned()
                .await
                .expect("no task closes the semaphore");
            while connections.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((stream, _)) => {
                    let router = router.clone();
                    connections.spawn(async move {
                        answer(stream, router).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "lease agent's accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = answering => {}
        () = agent.guards.expire() => {}
        () = agent.forget() => {}
        () = stop.cancelled() => {}
    }
}

/// Answers the requests of one connection. If the client disconnects, its waits are dropped.
async fn answer(stream: TcpStream, router: axum::Router) {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "lease agent's connection ended early");
    }
}
