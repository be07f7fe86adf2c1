//! `[quota]`: in which store quotas are kept, and how it is reached.

use std::time::Duration;

use tidegate_quota::Engine;
use tidegate_runtime::election::TimeToLive;
use tidegate_runtime::etcd;

use crate::call::claim::QUOTA_KEY_BYTES_MAX;
#[cfg(feature = "zookeeper")]
use crate::forward::Address;
use crate::options::kind::{choice, distinct, duration, integer, line, list, secret};
use crate::options::shown::quoted;
use crate::options::{Mistake, Notes, Options, Section, Toml, options, words, write_section};

use super::etcd_tls::{EtcdTlsSection, Tls};

/// Most servers that are named.
const SERVERS_MAX: usize = 64;
/// Longest text of an option of the store.   bytes
const TEXT_MAX: usize = 1024;

// A store takes every key that a claim may have.
const _: () = assert!(QUOTA_KEY_BYTES_MAX <= tidegate_quota::Key::BYTES_MAX);

/// `engine`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Memory,
    ZooKeeper,
    Etcd,
    Redis,
}

words!(Store {
    "memory" => Memory, "zookeeper" => ZooKeeper, "etcd" => Etcd, "redis" => Redis
});

impl Store {
    /// What people call it.
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::ZooKeeper => "ZooKeeper",
            Self::Etcd => "etcd",
            Self::Redis => "Redis",
        }
    }

    /// How its servers are written.
    fn example(self) -> &'static str {
        match self {
            Self::Memory | Self::ZooKeeper => "10.0.0.1:2181",
            Self::Etcd => "http://10.0.0.1:2379",
            Self::Redis => "redis://10.0.0.1:6379",
        }
    }
}

options! {
    /// The store of the quotas, which are the rate limits of kind "quota". Required if there is one.
    pub struct QuotaStoreSection {
        /// The kind of store. "memory" is for this sidecar alone, and loses everything at a restart.
        /// "zookeeper" and "etcd" never admit more than the total. "redis" is fastest; after a fail-over
        /// it may grant again what the primary had not replicated yet.
        engine: Store = choice().or(Store::Memory).example("\"zookeeper\"").restart();

        /// Its addresses. ZooKeeper: "host:port". etcd: "http://host:port" or "https://host:port". Redis
        /// or Valkey: one "redis://host:port", with /database if needed. Required, except for memory.
        servers: Vec<String> = distinct(
            list(SERVERS_MAX, "[\"10.0.0.1:2181\"]", line(TEXT_MAX, "10.0.0.1:2181")),
        ).described("up to 64 addresses in brackets").or(Vec::new()).restart()
            .example("[\"10.0.0.1:2181\", \"10.0.0.2:2181\"]");

        /// The user name, if the store asks for one.
        user: Option<String> = line(TEXT_MAX, "tidegate").optional().restart()
            .example("\"tidegate\"");

        /// The password of that user. In a container, set it as TIDEGATE_QUOTA__PASSWORD.
        password: Option<String> = secret("password", TEXT_MAX).optional().restart()
            .example("\"…\"");

        /// The place of the keys: a node of ZooKeeper, a prefix in the others. The same in every sidecar.
        /// The default is "/quota", "/tidegate/quota/" in etcd and "tidegate:quota:" in Redis.
        root: Option<String> = line(TEXT_MAX, "/quota").optional().restart().example("\"/quota\"");

        /// How long a silent sidecar still counts as one. It changes the size of draws, not the amount
        /// that may be spent. The default is 4s in ZooKeeper, 10s in the others.
        session_timeout: Option<Duration> =
            duration(TimeToLive::MIN.get()..=TimeToLive::MAX.get()).optional().restart()
            .example("\"4s\"");

        /// The most sidecars that will ever run at once. Each of them owns its safe share of every window,
        /// so more sidecars may spend more than the total. Required, except for memory.
        expected_sidecars: Option<u32> = integer(1..=10_000).of("sidecars").optional().example("3");

        /// Keys of quotas in memory at once. When it is full, the least recently used key is evicted: it
        /// returns its tokens, and draws again when it comes back. Set it above the number of users in a
        /// window.
        keys_max: u32 = integer(1..=1_000_000).of("keys").or(10_000);
    }
}

/// `[quota]`, with the files that it names.
pub(super) struct QuotaStore {
    pub(super) store: QuotaStoreSection,
    tls: EtcdTlsSection,
    /// None where something is wrong with it, which has been noted.
    pub(super) engine: Option<Engine>,
}

impl QuotaStore {
    pub(super) fn read(section: &Section<'_>) -> Self {
        let mut this = Self {
            store: section.read(),
            tls: section.read(),
            engine: None,
        };
        if this.store.section.given {
            this.engine = this.engine(section.notes());
            this.store.servers.mark.muted = this.store.servers.value.is_empty();
        }
        this
    }

    /// How many sidecars share the quotas, if that could be read.
    pub(super) fn sidecars(&self) -> Option<u32> {
        match self.store.engine.meant()? {
            Store::Memory => self.store.expected_sidecars.sound.then_some(1),
            _ => self.store.expected_sidecars.said().copied(),
        }
    }

    /// Whether they are kept in this process.
    pub(super) fn is_memory(&self) -> bool {
        self.store.engine.meant() == Some(&Store::Memory)
    }

    pub(super) fn write(&self, out: &mut Toml) {
        if self.store.section.given {
            write_section(out, "[quota]", &[&self.store, &self.tls]);
        }
    }

    /// The settings of the engine, with a note of all that is wrong: then they are not used. Fills
    /// in the defaults that depend on the engine.
    fn engine(&mut self, notes: &Notes) -> Option<Engine> {
        let store = *self.store.engine.meant()?;
        self.has_nothing_foreign(store, notes);
        if store != Store::Memory {
            self.is_whole(store, notes);
            self.credentials_are_whole(store, notes);
        }
        match store {
            Store::Memory => Some(Engine::Memory),
            Store::ZooKeeper => self.zookeeper(notes),
            Store::Etcd => self.etcd(notes),
            Store::Redis => self.redis(notes),
        }
    }

    /// An option that a store does not use was probably meant for another one.
    fn has_nothing_foreign(&self, store: Store, notes: &Notes) {
        let sidecars = &self.store.expected_sidecars;
        if store == Store::Memory {
            let cure = "leave it out, or write engine = \"zookeeper\", \"etcd\" or \"redis\"";
            let of_memory = ["engine", "expected_sidecars", "keys_max"];
            for (name, mark) in self.store.marks() {
                if mark.given && !of_memory.contains(&name) {
                    notes.error(mark, format!("a quota in memory has no {name}"), cure);
                }
            }
            if sidecars.value.is_some_and(|count| count > 1) {
                let told = "a quota in memory is shared with no other sidecar";
                notes.error(sidecars, told, cure);
            }
        }
        if store != Store::Etcd {
            let store = store.name();
            for (name, mark) in self.tls.marks().into_iter().filter(|(_, mark)| mark.given) {
                let told = format!("{store} is not reached over TLS, and has no {name}");
                notes.error(mark, told, "leave it out: only etcd is");
            }
        }
    }

    fn is_whole(&self, store: Store, notes: &Notes) {
        let QuotaStoreSection {
            section, servers, ..
        } = &self.store;
        if servers.sound && servers.value.is_empty() {
            let told = format!("the address of {} is missing", store.name());
            let cure = format!("add servers = [{}] to [quota]", quoted(store.example()));
            notes.missing(section, told, cure);
        }
        if self.store.expected_sidecars.is_missing() {
            let told = "the number of sidecars that share the quotas is missing";
            let cure = "add expected_sidecars, the most that will ever run at once: each of them \
                        owns its safe share of every window";
            notes.missing(section, told, cure);
        }
    }

    /// Redis may ask for a password alone.
    fn credentials_are_whole(&self, store: Store, notes: &Notes) {
        let QuotaStoreSection { user, password, .. } = &self.store;
        let is_odd = user.value.as_ref().is_some_and(|it| it.contains(':'));
        if user.value.is_some() && password.is_missing() {
            let cure = "add password to [quota], or leave user out";
            notes.missing(user, "a user is named without a password", cure);
        } else if password.value.is_some() && user.is_missing() && store != Store::Redis {
            let cure = "add user to [quota], or leave password out";
            notes.missing(password, "the user of this password is missing", cure);
        } else if store == Store::ZooKeeper && is_odd {
            let told = "a user name of ZooKeeper has no colon";
            notes.missing(user, told, "give another name");
        }
    }

    fn credentials(&self) -> Option<(String, String)> {
        let QuotaStoreSection { user, password, .. } = &self.store;
        user.value.clone().zip(password.value.clone())
    }

    /// Every server that `take` can read, and a note of every other.
    fn servers<T>(&self, notes: &Notes, take: impl Fn(&str) -> Result<T, Mistake>) -> Vec<T> {
        let servers = &self.store.servers;
        let taken = servers.value.iter().enumerate().map(|(index, server)| {
            let mistake = match take(server) {
                Ok(server) => return Some(server),
                // No address is quoted that may hold a password.
                Err(_) if server.contains('@') => Mistake::new(
                    "the address holds a user or a password",
                    "give them as user and password in [quota], which are never shown",
                ),
                Err(mistake) => mistake,
            };
            notes.mistake(&servers.item(index), mistake);
            None
        });
        taken.flatten().collect()
    }

    /// Notes a root that can't be one; the cure says what would be right.
    fn check_root(&self, notes: &Notes, fits: impl Fn(&str) -> bool, cure: &str) {
        let setting = &self.store.root;
        if let Some(root) = setting.value.as_deref().filter(|root| !fits(root)) {
            let told = format!("{} can't be the root of the keys", quoted(root));
            notes.error(setting, told, cure);
        }
    }

    #[cfg(feature = "zookeeper")]
    fn zookeeper(&mut self, notes: &Notes) -> Option<Engine> {
        let servers = self.servers(notes, |given| {
            Address::parse(given, None, Store::ZooKeeper.example()).map(|it| it.to_string())
        });
        let fits = |root: &str| {
            let mut segments = root.split('/').skip(1);
            root.starts_with('/')
                // These nodes are ZooKeeper's own.
                && segments.clone().next() != Some("zookeeper")
                && segments.all(|segment| !matches!(segment, "" | "." | ".."))
        };
        let cure = "write the node's whole path, such as \"/quota\"";
        self.check_root(notes, fits, cure);
        let mut store = tidegate_runtime::zookeeper::Settings::new(servers.join(","));
        let session = &mut self.store.session_timeout.value;
        store.session_timeout = *session.get_or_insert(store.session_timeout);
        let digest = |(user, password)| ("digest".to_owned(), format!("{user}:{password}").into());
        store.auth = self.credentials().map(digest);
        let mut settings = tidegate_quota::zookeeper::Settings::new(store);
        let root = self
            .store
            .root
            .value
            .get_or_insert(settings.records.clone());
        if *root != settings.records {
            // A sidecar with other records is no member of ours. No key begins with a dot.
            settings.members = format!("{root}/.members");
            settings.records.clone_from(root);
        }
        Some(Engine::ZooKeeper(settings))
    }

    fn etcd(&mut self, notes: &Notes) -> Option<Engine> {
        let endpoints = self.servers(notes, |given| {
            given.parse::<etcd::Endpoint>().map_err(|_| {
                let told = format!("{} is no address of etcd", quoted(given));
                let cure = "write it as \"http://host:port\" or \"https://host:port\"";
                Mistake::new(told, cure)
            })
        });
        let cure = "let it end with a slash, such as \"/tidegate/quota/\"";
        self.check_root(notes, |root| root.ends_with('/'), cure);
        let mut store = etcd::Settings::new(endpoints);
        let credentials = self.credentials();
        store.credentials =
            credentials.map(|(user, password)| etcd::Credentials { user, password });
        let mut settings = tidegate_quota::etcd::Settings::new(store);
        if let Some(tls) = self.etcd_tls(notes) {
            settings.store.tls = Some(tls.client);
            settings.certificates = Some(tls.certificates);
        }
        let root = &mut self.store.root.value;
        settings.prefix = root.get_or_insert(settings.prefix).clone();
        let session = &mut self.store.session_timeout.value;
        let session = *session.get_or_insert(settings.time_to_live.get());
        let fits = TimeToLive::new(session);
        settings.time_to_live = fits.expect("it is within the range of the option");
        Some(Engine::Etcd(settings))
    }

    fn etcd_tls(&self, notes: &Notes) -> Option<Tls> {
        let servers = &self.store.servers;
        let mut addresses = servers.value.iter();
        let https = addresses.position(|server| server.starts_with("https:"));
        if let Some(index) = https.filter(|_| self.tls.ca.is_missing()) {
            let told = "the authorities that sign the certificates of etcd are missing";
            let cure = "add ca = \"/etc/tidegate/etcd-ca.pem\" to [quota]";
            notes.missing(&servers.item(index), told, cure);
            return None;
        }
        self.tls.load(notes).flatten()
    }

    #[cfg(feature = "redis")]
    fn redis(&mut self, notes: &Notes) -> Option<Engine> {
        let servers = self.servers(notes, |given| {
            let wrong = |told, cure| Mistake::new(format!("{} {told}", quoted(given)), cure);
            if given.starts_with("rediss:") {
                let cure = "give redis://host:port, with TLS ended in front of it or not at all";
                return Err(wrong("asks for TLS, which can't be spoken to Redis", cure));
            }
            let is_plain = given.starts_with("redis://") && !given.contains(['@', '?']);
            let settings = tidegate_quota::redis::Settings::new(given);
            settings.ok().filter(|_| is_plain).ok_or_else(|| {
                let cure = "write it as \"redis://host:port\", with /database behind it if needed";
                wrong("is no address of Redis", cure)
            })
        });
        if self.store.servers.value.len() > 1 {
            let told = "Redis is one server, and several are named";
            notes.error(&self.store.servers.item(1), told, "name the primary alone");
            return None;
        }
        let mut settings = servers.into_iter().next()?;
        if let Some(password) = &self.store.password.value {
            settings = settings.with_credentials(self.store.user.value.as_deref(), password);
        }
        let root = &mut self.store.root.value;
        settings.prefix = root.get_or_insert(settings.prefix).clone();
        let session = &mut self.store.session_timeout.value;
        settings.member_ttl = *session.get_or_insert(settings.member_ttl);
        Some(Engine::Redis(settings))
    }

    #[cfg(not(feature = "zookeeper"))]
    fn zookeeper(&mut self, notes: &Notes) -> Option<Engine> {
        self.is_not_built(notes, "zookeeper")
    }

    #[cfg(not(feature = "redis"))]
    fn redis(&mut self, notes: &Notes) -> Option<Engine> {
        self.is_not_built(notes, "redis")
    }

    #[cfg(not(all(feature = "zookeeper", feature = "redis")))]
    fn is_not_built(&self, notes: &Notes, feature: &str) -> Option<Engine> {
        let told = "this program was built without it";
        let cure = format!("build it with the feature {}", quoted(feature));
        notes.error(&self.store.engine, told, cure);
        None
    }
}
