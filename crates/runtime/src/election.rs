//! An election among several servers: which is the master, and until when that is certain.
//!
//! A master has a *fence*: the moment of its own monotonic clock after which it must not act any
//! more, because another may act from then on. The fence counts from the moment of sending the
//! write that proved the mastership, never from its reply. So after a pause, a process finds that
//! its fence has passed.
//!
//! With a store, the candidates contend for one register: a record that a writer replaces only if
//! it still has the version that the writer read. The master renews its record every third of its
//! time to live. A candidate takes it over only after it has seen the same version for a whole
//! time to live of its own clock. So clocks need not agree, and the store need not know which
//! process has died: two fences overlap only if clocks differ in rate by more than the guard, a
//! twentieth. `candidate` is this rule, without I/O; [`etcd`](super::etcd) and
//! [`zookeeper`](super::zookeeper) keep the record.

mod candidate;
#[cfg(feature = "etcd")]
mod etcd;
mod register;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::time::Duration;

use crate::{Causes, Clock};
use rand::RngExt;
use tidegate_limits::Timestamp;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::candidate::{Candidate, CandidateStep};
use self::register::{Register, RegisterFailure, RegisterSwap};

/// The mastership as a candidate sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mastership {
    /// The candidate itself is the master.
    Master {
        /// The fence: after this moment of its own clock it must not act as the master, even if
        /// this value still says so. Renewed regularly while the store confirms it.
        until: Timestamp,
        /// The number of this mastership. It stays the same while the fence is renewed. It
        /// increases whenever another candidate may have been the master in between: then the state
        /// of the last mastership is void.
        term: u64,
    },
    /// Another, by its address.
    Other(String),
    /// The master is unknown, or there is no master.
    Unknown,
}

impl Mastership {
    /// Whether this candidate may act as the master at this moment of its own clock.
    #[must_use]
    pub fn holds_at(&self, now: Timestamp) -> bool {
        matches!(self, Self::Master { until, .. } if now < *until)
    }
}

/// How long a silent master stays the master.
///
/// A longer time survives longer outages of the store; a shorter one hands over sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeToLive(Duration);

impl TimeToLive {
    /// Below this, an ordinary hiccup of a store deposes masters.
    pub const MIN: Self = Self(Duration::from_secs(1));
    /// Ten seconds, as Doorman has it.
    pub const DEFAULT: Self = Self(Duration::from_secs(10));
    /// Above this, no client waits for the next master.
    pub const MAX: Self = Self(Duration::from_secs(3_600));

    /// `None` if it is shorter than [`MIN`](Self::MIN) or longer than [`MAX`](Self::MAX).
    #[must_use]
    pub fn new(span: Duration) -> Option<Self> {
        (Self::MIN.0..=Self::MAX.0)
            .contains(&span)
            .then_some(Self(span))
    }

    /// As a span of time.
    #[must_use]
    pub fn get(self) -> Duration {
        self.0
    }

    /// From one renewal to the next.
    fn renewal(self) -> Duration {
        self.0 / 3
    }

    /// How much before its time to live a master's fence ends: clocks may differ in rate by a
    /// twentieth, a hundred times the error of quartz.
    fn guard(self) -> Duration {
        self.0 / 20
    }

    /// The time between two reads of another's record, without news of a change.
    fn look(self) -> Duration {
        (self.0 / 6).min(Duration::from_millis(500))
    }
}

impl Default for TimeToLive {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A candidate, and how its election works.
#[derive(Clone, Debug)]
pub struct ElectionSettings {
    /// The address for the others and their clients when this candidate is the master.
    pub address: String,
    /// How long it stays the master without a renewal.
    pub time_to_live: TimeToLive,
    /// Where the election takes place.
    pub place: ElectionStore,
}

/// Where an election takes place.
#[derive(Clone, Debug)]
pub enum ElectionStore {
    /// No store is needed: this is the only candidate.
    OneNode,
    /// At a key of etcd, bound to a lease.
    #[cfg(feature = "etcd")]
    Etcd {
        /// Where it is and who asks.
        store: super::etcd::EtcdSettings,
        /// The key of the register, the same for all candidates and without any other use.
        key: String,
    },
    /// At a node of ZooKeeper.
    #[cfg(feature = "zookeeper")]
    ZooKeeper {
        /// Where it is and who asks.
        store: super::zookeeper::ZooKeeperSettings,
        /// The absolute path of a node, the same for all candidates and without any other use. A
        /// missing node is made, with its ancestors.
        path: String,
    },
}

#[cfg(feature = "tls")]
impl ElectionStore {
    /// The certificates that are trusted and shown there, if it is connected to over TLS.
    #[must_use]
    pub fn tls(&self) -> Option<&crate::tls::TlsClient> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd { store, .. } => store.tls.as_ref(),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper { store, .. } => store.tls.as_ref(),
            Self::OneNode => None,
        }
    }
}

impl ElectionSettings {
    /// Becomes a candidate; needs a tokio runtime.
    ///
    /// When `shutdown` is cancelled it resigns, so that another takes over at once. It closes the
    /// channel when the store knows, or after a third of the time to live.
    #[must_use]
    pub fn start(self, clock: Clock, shutdown: CancellationToken) -> watch::Receiver<Mastership> {
        let ttl = self.time_to_live;
        match self.place {
            ElectionStore::OneNode => always_the_master(shutdown),
            #[cfg(feature = "etcd")]
            ElectionStore::Etcd { store, key } => {
                let register = etcd::EtcdRegister::new(store, &key, ttl);
                contend(register, self.address, ttl, clock, shutdown)
            }
            #[cfg(feature = "zookeeper")]
            ElectionStore::ZooKeeper { store, path } => {
                let register = zookeeper::ZooKeeperRegister::new(store, path, ttl);
                contend(register, self.address, ttl, clock, shutdown)
            }
        }
    }
}

/// The only candidate is the master at once, until `shutdown`.
fn always_the_master(shutdown: CancellationToken) -> watch::Receiver<Mastership> {
    let (mastership, told) = watch::channel(Mastership::Master {
        until: Timestamp::MAX,
        term: 1,
    });
    tokio::spawn(async move {
        shutdown.cancelled().await;
        mastership.send_replace(Mastership::Unknown);
    });
    told
}

/// Contends for a register until `shutdown`.
fn contend<R: Register + 'static>(
    register: R,
    address: String,
    ttl: TimeToLive,
    clock: Clock,
    shutdown: CancellationToken,
) -> watch::Receiver<Mastership> {
    let id = format!("{:032x}", rand::rng().random::<u128>());
    let candidate = Candidate::new(id, address, ttl);
    let (tell, told) = watch::channel(Mastership::Unknown);
    tokio::spawn(async move {
        let mut contest = Contest {
            register,
            candidate,
            ttl,
            clock,
            tell,
            troubles: None,
        };
        shutdown.run_until_cancelled(contest.go_on()).await;
        contest.resign().await;
    });
    told
}

/// A candidate with the register that it contends for.
struct Contest<R> {
    register: R,
    candidate: Candidate,
    ttl: TimeToLive,
    clock: Clock,
    tell: watch::Sender<Mastership>,
    /// Why the store did not answer as it should, as logged since it last did.
    troubles: Option<Causes>,
}

impl<R: Register> Contest<R> {
    /// Carries out the candidate's steps, for ever. May be dropped at any point: the step in
    /// progress then has an unknown outcome, which [`Candidate`] allows for at any time.
    async fn go_on(&mut self) {
        loop {
            let now = self.clock.now();
            self.publish(self.candidate.mastership(now));
            match self.candidate.next(now) {
                CandidateStep::Read => {
                    let read = timeout(self.ttl.renewal(), self.register.read()).await;
                    match read.unwrap_or(Err(RegisterFailure::Late)) {
                        Ok(entry) => {
                            self.candidate.found(self.clock.now(), entry);
                            self.answered();
                        }
                        Err(trouble) => self.failed(&trouble),
                    }
                }
                CandidateStep::Write { expected, record } => {
                    // Reads the clock before it sends: the fence counts from here.
                    self.candidate.sent(self.clock.now());
                    let swap = self.register.swap(expected, &record);
                    let swap = timeout(self.ttl.renewal(), swap).await;
                    match swap.unwrap_or(Err(RegisterFailure::Late)) {
                        Ok(swapped) => {
                            self.candidate.swapped(self.clock.now(), swapped);
                            self.answered();
                        }
                        Err(trouble) => self.failed(&trouble),
                    }
                }
                CandidateStep::Wait(until) => {
                    tokio::select! {
                        () = self.clock.sleep_until(until) => {}
                        () = self.register.changed() => self.candidate.look(self.clock.now()),
                    }
                }
            }
        }
    }

    fn answered(&mut self) {
        if !self.candidate.writes_fail() && self.troubles.take().is_some() {
            info!("election: the store answers again");
        }
    }

    fn failed(&mut self, trouble: &RegisterFailure) {
        let troubles = self.troubles.get_or_insert_default();
        if let Some(count) = troubles.count(&trouble.to_string()) {
            warn!(%trouble, count, "election: the store did not answer as it should");
        }
        self.candidate.failed(self.clock.now(), rand::random());
    }

    /// Publishes the master, if it has changed.
    fn publish(&self, mastership: Mastership) {
        self.tell.send_if_modified(|told| {
            if *told == mastership {
                return false;
            }
            let term = |of: &Mastership| match of {
                Mastership::Master { term, .. } => Some(*term),
                _ => None,
            };
            match &mastership {
                // A renewed fence wakes no reader: none needs it.
                Mastership::Master { .. } if term(told) == term(&mastership) => {}
                Mastership::Master { term, .. } => info!(term, "election: this one is the master"),
                Mastership::Other(address) => info!(%address, "election: another is the master"),
                Mastership::Unknown => warn!("election: the master is not known"),
            }
            *told = mastership;
            true
        });
    }

    /// Gives up the mastership, if this candidate has it, so that no other waits for its end.
    async fn resign(&mut self) {
        self.publish(Mastership::Unknown);
        let Some(record) = self.candidate.resignation() else {
            return;
        };
        let resign = async {
            // The step in progress may have changed the version.
            let Some(entry) = self.register.read().await? else {
                return Ok(false);
            };
            if !self.candidate.wrote(&entry.record) {
                return Ok(false);
            }
            let swapped = self.register.swap(Some(entry.version), &record).await?;
            self.register.settle().await;
            Ok::<_, RegisterFailure>(matches!(swapped, RegisterSwap::Done(_)))
        };
        match timeout(self.ttl.renewal(), resign).await {
            Ok(Ok(true)) => info!("election: resigned"),
            Ok(Ok(false)) => debug!("election: there was nothing to resign from"),
            Ok(Err(trouble)) => warn!(%trouble, "election: could not resign"),
            Err(_) => warn!("election: could not resign in time"),
        }
    }
}
