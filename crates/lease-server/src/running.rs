//! Builds the capacity server, and stops it again.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tidegate_leases::dial::{TcpDial, TlsDial};
use tidegate_leases::server::page::{self, PageState};
use tidegate_leases::server::{
    CapacityService, Metrics, NetworkBounds, Templates, keep_asking, serve,
};
use tidegate_leases::wire::Epoch;
use tidegate_limits::Timestamp;
use tidegate_runtime::election::Mastership;
use tidegate_runtime::{BackOff, Clock, Live, etcd};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::config::{self, Rules};
use tidegate::admin;
use tidegate::listen::{self, InheritedSockets, descriptors};

/// The time for answers under way when it must stop.
const DRAIN: Duration = Duration::from_secs(5);
/// The first pause when etcd does not answer. Each further pause is 1.3 times as long.
const PAUSE_FIRST: Duration = Duration::from_secs(1);

/// Why the server did not start: an address cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({what}): {cause}")]
pub struct StartError {
    address: SocketAddr,
    /// The purpose of the address.
    what: &'static str,
    #[source]
    cause: io::Error,
}

/// A running capacity server.
pub struct LeaseServer {
    address: SocketAddr,
    status_address: Option<SocketAddr>,
    rules: Arc<CurrentRules>,
    stop: CancellationToken,
    /// Ends when every answer under way was sent.
    serving: JoinHandle<()>,
    /// The background tasks: status page, election, requests to the server above.
    beside: TaskTracker,
    /// Ends it.
    stop_beside: CancellationToken,
    /// Ends the candidacy of this server: it resigns.
    stop_candidacy: CancellationToken,
    /// Closed once it has resigned, or failed to.
    mastership: watch::Receiver<Mastership>,
}

/// The rules in force.
struct CurrentRules {
    service: CapacityService,
    templates: Arc<Live<Templates>>,
    metrics: Arc<Metrics>,
}

impl CurrentRules {
    fn apply(&self, templates: Templates) {
        self.service.apply(templates.clone());
        self.templates.set(templates);
        self.metrics.reloaded();
        info!("leases: the rules were read anew");
    }
}

impl LeaseServer {
    /// Binds every address, then starts. If the rules are in etcd, it waits for the first valid
    /// ones before it binds anything.
    ///
    /// # Errors
    ///
    /// If an address cannot be used; then no part is running.
    pub async fn start(config: &config::LeaseServerSettings) -> Result<Self, StartError> {
        let (templates, followed) = first_rules(&config.rules).await;
        let listener = bind(config.bind, "leases")?;
        let status = config
            .status_bind
            .map(|at| bind(at, "status"))
            .transpose()?;
        let local =
            |listener: &tokio::net::TcpListener, bind| listener.local_addr().unwrap_or(bind);
        let address = local(&listener, config.bind);
        let status_address = status
            .as_ref()
            .zip(config.status_bind)
            .map(|(listener, bind)| local(listener, bind));

        let clock = Clock::start();
        let epoch = Epoch::new(Timestamp::ZERO, clock.phase());
        let (stop, stop_beside) = (CancellationToken::new(), CancellationToken::new());
        let stop_candidacy = CancellationToken::new();
        let mastership = config.election.clone().start(clock, stop_candidacy.clone());
        let machine = config.machine(epoch);
        let service = CapacityService::new(machine, templates.clone(), clock, mastership.clone());
        let metrics = Arc::new(Metrics::default());
        let rules = Arc::new(CurrentRules {
            service: service.clone(),
            templates: Arc::new(Live::new(templates)),
            metrics: Arc::clone(&metrics),
        });

        let beside = TaskTracker::new();
        beside.spawn(service.clone().keep_following(stop_beside.clone()));
        if !config.parents.is_empty() {
            beside.spawn(keep_asking(
                service.clone(),
                config.parents.clone(),
                match config.parent_tls.clone() {
                    Some(tls) => Arc::new(TlsDial(tls)),
                    None => Arc::new(TcpDial),
                },
                Arc::clone(&metrics),
                stop_beside.clone(),
            ));
        }
        if let Some(followed) = followed {
            let following = followed.follow(Arc::clone(&rules));
            beside.spawn(stop_beside.clone().run_until_cancelled_owned(following));
        }
        if let Some(listener) = status {
            let router = page::router(PageState {
                service: service.clone(),
                metrics: Arc::clone(&metrics),
                rules: Arc::clone(&rules.templates),
                settings: Arc::clone(&config.shown),
                allowed_hosts: Arc::clone(&config.status_allowed_hosts),
            });
            beside.spawn(admin::serve_router(listener, router, stop_beside.clone()));
        }
        let (tls, reach) = (config.tls.clone(), reach(config));
        let answering = serve(listener, service, tls, reach, metrics, stop.clone());
        let serving = tokio::spawn(async move {
            if let Err(error) = answering.await {
                error!(%error, "leases: no longer served");
            }
        });
        let status_text = status_address.map_or("off".to_owned(), |it| it.to_string());
        info!(%address, status = %status_text, "leases: ready");
        Ok(Self {
            address,
            status_address,
            rules,
            stop,
            serving,
            beside,
            stop_beside,
            stop_candidacy,
            mastership,
        })
    }

    /// The address for clients, with its real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The status address, with its real port.
    #[must_use]
    pub fn status_address(&self) -> Option<SocketAddr> {
        self.status_address
    }

    /// Takes new rules. Leases stay.
    pub fn apply(&self, templates: Templates) {
        self.rules.apply(templates);
    }

    /// New rules have mistakes; the old ones stay in force.
    pub fn reload_refused(&self) {
        self.rules.metrics.reload_refused();
    }

    /// Accepts no new requests, sends the answers under way, and resigns. Returns whether all of
    /// them were sent in time.
    ///
    /// It resigns at once, and not after the last answer. From then on it answers that the master
    /// is unknown, so the next master may begin while a slow client still reads.
    pub async fn drain(self) -> bool {
        self.stop.cancel();
        self.stop_candidacy.cancel();
        let (mut serving, mut mastership) = (self.serving, self.mastership);
        let resigned = async { while mastership.changed().await.is_ok() {} };
        let (finished, resigned) = tokio::join!(
            tokio::time::timeout(DRAIN, &mut serving),
            tokio::time::timeout(DRAIN, resigned),
        );
        let finished = finished.is_ok();
        serving.abort();
        if resigned.is_err() {
            let seconds = DRAIN.as_secs();
            warn!(
                "leases: could not resign within {seconds} s: the next master waits for the time to live"
            );
        }
        self.stop_beside.cancel();
        self.beside.close();
        let ended = tokio::time::timeout(DRAIN, self.beside.wait()).await;
        finished && ended.is_ok()
    }
}

fn bind(address: SocketAddr, what: &'static str) -> Result<tokio::net::TcpListener, StartError> {
    let listener: io::Result<TcpListener> = listen::bind_tcp(address, &InheritedSockets::default());
    listener
        .and_then(tokio::net::TcpListener::from_std)
        .map_err(|cause| StartError {
            address,
            what,
            cause,
        })
}

/// The rules of the config. If they are in etcd, waits for the first valid ones, and returns how to follow them.
async fn first_rules(rules: &Rules) -> (Templates, Option<WatchedRules>) {
    match rules {
        Rules::Here(templates) | Rules::File { templates, .. } => (templates.clone(), None),
        Rules::Etcd { store, key } => {
            let mut followed = WatchedRules::new(store.clone(), key);
            (followed.first().await, Some(followed))
        }
    }
}

/// Rules in a key of etcd.
struct WatchedRules {
    client: etcd::EtcdClient,
    key: String,
    /// The revision after which changes count.
    from: u64,
}

impl WatchedRules {
    fn new(store: etcd::EtcdSettings, key: &str) -> Self {
        Self {
            client: etcd::EtcdClient::new(store),
            key: key.to_owned(),
            from: 0,
        }
    }

    /// The first valid rules, as soon as there are some.
    async fn first(&mut self) -> Templates {
        let mut back_off = BackOff::gentle(PAUSE_FIRST);
        loop {
            match self.read().await {
                Ok(Some(text)) => match self.parse(&text) {
                    Ok(templates) => return templates,
                    Err(()) => warn!("leases: waiting for rules without a mistake"),
                },
                Ok(None) => warn!(key = self.key, "leases: there are no rules in etcd yet"),
                Err(error) => warn!(%error, "leases: etcd does not say what the rules are"),
            }
            tokio::time::sleep(back_off.pause()).await;
        }
    }

    async fn read(&mut self) -> Result<Option<Vec<u8>>, etcd::EtcdError> {
        let mut found = self
            .client
            .range(&etcd::Range::key(self.key.as_bytes()))
            .await?;
        self.from = found.revision + 1;
        Ok(found.entries.pop().map(|entry| entry.value))
    }

    fn parse(&self, text: &[u8]) -> Result<Templates, ()> {
        let origin = format!("etcd:{}", self.key);
        let Ok(text) = std::str::from_utf8(text) else {
            error!("{origin} is not UTF-8");
            return Err(());
        };
        config::templates(text, &origin).map_err(|problems| {
            for problem in problems.iter() {
                error!("{}", problems.plain(problem));
            }
        })
    }

    /// Applies every change at once. A change with a mistake changes nothing.
    async fn follow(mut self, current: Arc<CurrentRules>) {
        let mut back_off = BackOff::gentle(PAUSE_FIRST);
        loop {
            let range = etcd::Range::key(self.key.as_bytes());
            let mut watch = self.client.watch(range, self.from);
            let error = loop {
                match self.next(&mut watch).await {
                    Ok(text) => self.take(text, &current),
                    Err(error) => break error,
                }
                back_off.reset();
            };
            warn!(%error, "leases: the rules in etcd can't be followed");
            tokio::time::sleep(back_off.pause()).await;
            // Changes that were missed meanwhile are read again.
            let text = self.read().await.unwrap_or_default();
            self.take(text, &current);
        }
    }

    /// The rules after the next change, if there are any.
    async fn next(
        &mut self,
        watch: &mut etcd::EtcdWatch,
    ) -> Result<Option<Vec<u8>>, etcd::EtcdError> {
        let mut changes = match watch.next().await? {
            etcd::WatchEvent::Changes(changes) => changes.changes,
            etcd::WatchEvent::Compacted { .. } => return self.read().await,
        };
        match changes.pop() {
            Some(etcd::KeyChange::Put(entry)) => Ok(Some(entry.value)),
            Some(etcd::KeyChange::Deleted { .. }) => {
                warn!("leases: the rules are gone from etcd; the old ones stay");
                Ok(None)
            }
            None => Ok(None),
        }
    }

    fn take(&self, text: Option<Vec<u8>>, current: &CurrentRules) {
        match text.map(|text| self.parse(&text)) {
            Some(Ok(templates)) => current.apply(templates),
            Some(Err(())) => {
                error!("leases: rules refused, the old ones stay");
                current.metrics.reload_refused();
            }
            None => {}
        }
    }
}

/// The bounds of connections, lowered to what the limit of open files leaves room for.
fn reach(config: &config::LeaseServerSettings) -> NetworkBounds {
    let mut reach = config.reach;
    if let Some(fit) = config.connections_that_fit(descriptors::in_force()) {
        warn!(
            connections = reach.connections,
            fit,
            "leases: the limit of open files leaves room for fewer connections than \
             bounds.connections: raise it with LimitNOFILE= or ulimit -n"
        );
        reach.connections = fit;
    }
    reach
}
