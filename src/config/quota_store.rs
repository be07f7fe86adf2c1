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
use crate::options::{
    At, Mistake, Notes, Options, Section, Setting, Toml, options, words, write_section,
};

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
    pub(super) fn read(mut section: Section<'_>) -> Self {
        let mut this = Self {
            store: QuotaStoreSection::read(&mut section),
            tls: EtcdTlsSection::read(&mut section),
            engine: None,
        };
        let notes = section.notes();
        section.finish();
        if this.store.section.given {
            this.engine = this.engine(notes);
            this.fill_in();
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

    /// The settings of the engine, or none with a note why there are none.
    fn engine(&self, notes: &Notes) -> Option<Engine> {
        let store = *self.store.engine.meant()?;
        let sound = [
            self.store.marks().iter().all(|(_, mark)| mark.sound),
            self.has_nothing_foreign(store, notes),
            store == Store::Memory || self.is_whole(store, notes),
            store == Store::Memory || self.credentials_are_whole(store, notes),
        ];
        let engine = match store {
            Store::Memory => Some(Engine::Memory),
            Store::ZooKeeper => self.zookeeper(notes),
            Store::Etcd => self.etcd(notes),
            Store::Redis => self.redis(notes),
        };
        engine.filter(|_| sound.iter().all(|sound| *sound))
    }

    /// Fills in the defaults that depend on the engine.
    fn fill_in(&mut self) {
        self.store.servers.mark.muted = self.store.servers.value.is_empty();
        let (root, session) = match &self.engine {
            None | Some(Engine::Memory) => return,
            #[cfg(feature = "zookeeper")]
            Some(Engine::ZooKeeper(settings)) => {
                (settings.records.clone(), settings.store.session_timeout)
            }
            Some(Engine::Etcd(settings)) => (settings.prefix.clone(), settings.time_to_live.get()),
            #[cfg(feature = "redis")]
            Some(Engine::Redis(settings)) => (settings.prefix.clone(), settings.member_ttl),
        };
        self.store.root.value.get_or_insert(root);
        self.store.session_timeout.value.get_or_insert(session);
    }

    /// An option that a store does not use was probably meant for another one.
    fn has_nothing_foreign(&self, store: Store, notes: &Notes) -> bool {
        let mut sound = true;
        let mut foreign = |at: &At, told: String, cure: &str| {
            notes.error(at, told, cure);
            sound = false;
        };
        let sidecars = &self.store.expected_sidecars;
        if store == Store::Memory {
            let cure = "leave it out, or write engine = \"zookeeper\", \"etcd\" or \"redis\"";
            let of_memory = ["engine", "expected_sidecars", "keys_max"];
            for (name, mark) in self.store.marks() {
                if mark.given && !of_memory.contains(&name) {
                    foreign(mark, format!("a quota in memory has no {name}"), cure);
                }
            }
            if sidecars.value.is_some_and(|count| count > 1) {
                let told = "a quota in memory is shared with no other sidecar";
                foreign(sidecars, told.to_owned(), cure);
            }
        }
        if store != Store::Etcd {
            for (name, mark) in self.tls.marks().into_iter().filter(|(_, mark)| mark.given) {
                let told = format!(
                    "{} is not reached over TLS, and has no {name}",
                    store.name()
                );
                foreign(mark, told, "leave it out: only etcd is");
            }
        }
        sound
    }

    fn is_whole(&self, store: Store, notes: &Notes) -> bool {
        let QuotaStoreSection {
            section, servers, ..
        } = &self.store;
        let mut sound = true;
        if servers.sound && servers.value.is_empty() {
            let told = format!("the address of {} is missing", store.name());
            let cure = format!("add servers = [{}] to [quota]", quoted(store.example()));
            notes.missing(section, told, cure);
            sound = false;
        }
        if self.store.expected_sidecars.is_missing() {
            let told = "the number of sidecars that share the quotas is missing";
            let cure = "add expected_sidecars, the most that will ever run at once: each of them \
                        owns its safe share of every window";
            notes.missing(section, told, cure);
            sound = false;
        }
        sound
    }

    /// Redis may ask for a password alone.
    fn credentials_are_whole(&self, store: Store, notes: &Notes) -> bool {
        let QuotaStoreSection { user, password, .. } = &self.store;
        let (at, told, cure) = if user.value.is_some() && password.is_missing() {
            let cure = "add password to [quota], or leave user out";
            (user, "a user is named without a password", cure)
        } else if password.value.is_some() && user.is_missing() && store != Store::Redis {
            let cure = "add user to [quota], or leave password out";
            (password, "the user of this password is missing", cure)
        } else if store == Store::ZooKeeper
            && user.value.as_ref().is_some_and(|it| it.contains(':'))
        {
            (
                user,
                "a user name of ZooKeeper has no colon",
                "give another name",
            )
        } else {
            return true;
        };
        notes.missing(at, told, cure);
        false
    }

    fn credentials(&self) -> Option<(String, String)> {
        self.store
            .user
            .value
            .clone()
            .zip(self.store.password.value.clone())
    }

    /// Every server as `take` reads it, unless there is a mistake in one.
    fn servers<T>(
        &self,
        notes: &Notes,
        take: impl Fn(&str) -> Result<T, Mistake>,
    ) -> Option<Vec<T>> {
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
        // All of them first: each has a mistake of its own.
        let taken: Vec<Option<T>> = taken.collect();
        taken.into_iter().collect()
    }

    #[cfg(feature = "zookeeper")]
    fn zookeeper(&self, notes: &Notes) -> Option<Engine> {
        let servers = self.servers(notes, |given| {
            Address::parse(given, None, Store::ZooKeeper.example()).map(|it| it.to_string())
        });
        let root = self.root(notes, |root| {
            let segments = || root.split('/').skip(1);
            let plain = |segment: &str| !matches!(segment, "" | "." | "..");
            let fits = root.starts_with('/')
                && segments().all(plain)
                // These nodes are ZooKeeper's own.
                && segments().next() != Some("zookeeper");
            fits.then_some(())
                .ok_or("write the node's whole path, such as \"/quota\"")
        });
        let mut store = tidegate_runtime::zookeeper::Settings::new(servers?.join(","));
        store.session_timeout = self
            .store
            .session_timeout
            .value
            .unwrap_or(store.session_timeout);
        let credentials = self.credentials();
        let digest = |(user, password)| ("digest".to_owned(), format!("{user}:{password}").into());
        store.auth = credentials.map(digest);
        let mut settings = tidegate_quota::zookeeper::Settings::new(store);
        if let Some(root) = root? {
            // A sidecar with other records is no member of ours. No key begins with a dot.
            if root != settings.records {
                settings.members = format!("{root}/.members");
            }
            settings.records = root;
        }
        Some(Engine::ZooKeeper(settings))
    }

    fn etcd(&self, notes: &Notes) -> Option<Engine> {
        let endpoints = self.servers(notes, |given| {
            given.parse::<etcd::Endpoint>().map_err(|_| {
                let told = format!("{} is no address of etcd", quoted(given));
                let cure = "write it as \"http://host:port\" or \"https://host:port\"";
                Mistake::new(told, cure)
            })
        });
        let root = self.root(notes, |root| {
            let cure = "let it end with a slash, such as \"/tidegate/quota/\"";
            root.ends_with('/').then_some(()).ok_or(cure)
        });
        let tls = self.etcd_tls(notes);
        let (endpoints, root, tls) = (endpoints?, root?, tls?);
        let mut store = etcd::Settings::new(endpoints);
        let credentials = self.credentials();
        store.credentials =
            credentials.map(|(user, password)| etcd::Credentials { user, password });
        let mut settings = tidegate_quota::etcd::Settings::new(store);
        if let Some(tls) = tls {
            settings.store.tls = Some(tls.client);
            settings.certificates = Some(tls.certificates);
        }
        settings.prefix = root.unwrap_or(settings.prefix);
        if let Some(time_to_live) = self.store.session_timeout.value {
            let fits = TimeToLive::new(time_to_live);
            settings.time_to_live = fits.expect("it is within the range of the option");
        }
        Some(Engine::Etcd(settings))
    }

    fn etcd_tls(&self, notes: &Notes) -> Option<Option<Tls>> {
        let servers = &self.store.servers;
        let https = servers
            .value
            .iter()
            .position(|server| server.starts_with("https:"));
        if let Some(index) = https.filter(|_| self.tls.ca.is_missing()) {
            let told = "the authorities that sign the certificates of etcd are missing";
            let cure = "add ca = \"/etc/tidegate/etcd-ca.pem\" to [quota]";
            notes.missing(&servers.item(index), told, cure);
            return None;
        }
        self.tls.load(notes)
    }

    #[cfg(feature = "redis")]
    fn redis(&self, notes: &Notes) -> Option<Engine> {
        let servers = self.servers(notes, |given| {
            let wrong = |told: &str, cure: &str| {
                Err(Mistake::new(format!("{} {told}", quoted(given)), cure))
            };
            if given.starts_with("rediss:") {
                let cure = "give redis://host:port, with TLS ended in front of it or not at all";
                return wrong("asks for TLS, which can't be spoken to Redis", cure);
            }
            let is_plain = given.starts_with("redis://") && !given.contains(['@', '?']);
            let settings = tidegate_quota::redis::Settings::new(given);
            settings.ok().filter(|_| is_plain).map_or_else(
                || {
                    let cure = "write it as \"redis://host:port\", with /database behind it if \
                                needed";
                    wrong("is no address of Redis", cure)
                },
                Ok,
            )
        });
        if self.store.servers.value.len() > 1 {
            let told = "Redis is one server, and several are named";
            notes.error(&self.store.servers.item(1), told, "name the primary alone");
            return None;
        }
        let mut settings = servers?.into_iter().next()?;
        if let Some(password) = &self.store.password.value {
            settings = settings.with_credentials(self.store.user.value.as_deref(), password);
        }
        if let Some(root) = &self.store.root.value {
            settings.prefix.clone_from(root);
        }
        settings.member_ttl = self
            .store
            .session_timeout
            .value
            .unwrap_or(settings.member_ttl);
        Some(Engine::Redis(settings))
    }

    #[cfg(not(feature = "zookeeper"))]
    fn zookeeper(&self, notes: &Notes) -> Option<Engine> {
        self.is_not_built(notes, "zookeeper")
    }

    #[cfg(not(feature = "redis"))]
    fn redis(&self, notes: &Notes) -> Option<Engine> {
        self.is_not_built(notes, "redis")
    }

    #[cfg(not(all(feature = "zookeeper", feature = "redis")))]
    fn is_not_built(&self, notes: &Notes, feature: &str) -> Option<Engine> {
        let told = "this program was built without it";
        let cure = format!("build it with the feature {}", quoted(feature));
        notes.error(&self.store.engine, told, cure);
        None
    }

    /// The root if it fits, or none with a note; `check` says what would be right.
    fn root(
        &self,
        notes: &Notes,
        check: impl Fn(&str) -> Result<(), &'static str>,
    ) -> Option<Option<String>> {
        let setting: &Setting<Option<String>> = &self.store.root;
        match setting.value.as_deref().map(check) {
            None | Some(Ok(())) => Some(setting.value.clone()),
            Some(Err(cure)) => {
                let root = setting.value.as_deref().unwrap_or_default();
                notes.error(
                    setting,
                    format!("{} can't be the root of the keys", quoted(root)),
                    cure,
                );
                None
            }
        }
    }
}
