//! `[quota_store]`: in which store quotas are kept, and how it is reached.

#[cfg_attr(not(feature = "quotas"), path = "quota_store/without_engines.rs")]
mod engines;

use std::time::Duration;

use tidegate_quota::Engine;

use crate::call::claim::QUOTA_KEY_BYTES_MAX;
use crate::options::kind::{HOUR, SECOND, choice, distinct, duration, integer, line, list, secret};
use crate::options::shown::quoted;
use crate::options::{Notes, OptionMark, Section, Toml, options, words};

use super::part::ConfigPart;
use super::server_tls::ServerTlsSection;

/// Most servers that are named.
const SERVERS_MAX: usize = 64;
/// Longest text of an option of the store.   bytes
const TEXT_MAX: usize = 1024;

// A store takes every key that a claim may have.
const _: () = assert!(QUOTA_KEY_BYTES_MAX <= tidegate_quota::RecordKey::BYTES_MAX);

words! {
    /// `engine`
    pub(super) enum Store {
        Memory = "memory",
        ZooKeeper = "zookeeper",
        Etcd = "etcd",
        Redis = "redis",
    }
}

impl Store {
    /// The name of the store for people.
    pub(super) fn name(self) -> &'static str {
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
    /// The store of the quotas: see [[quota]]. Required if there is one.
    pub struct QuotaStoreSection {
        /// The kind of store. "memory" is for this sidecar alone: what was spent survives a restart of
        /// the process, not of the machine.
        /// "zookeeper" and "etcd" never admit more than the total. "redis" is fastest; after a fail-over
        /// it may grant again what the primary had not replicated yet.
        engine: Store = choice().or(Store::Memory).example("\"zookeeper\"").restart();

        /// Its addresses. ZooKeeper: "host:port", for TLS with ca below. etcd: "http://host:port" or "https://host:port". Redis
        /// or Valkey: one "redis://host:port", or "rediss://host:port" for TLS, with /database if needed;
        /// or several, if they are sentinels. Required, except for memory.
        servers: Vec<String> = distinct(
            list(SERVERS_MAX, "[\"10.0.0.1:2181\"]", line(TEXT_MAX, "10.0.0.1:2181")),
        ).described("up to 64 addresses in brackets").or(Vec::new()).restart()
            .example("[\"10.0.0.1:2181\", \"10.0.0.2:2181\"]");

        /// The user name, if the store asks for one.
        user: Option<String> = line(TEXT_MAX, "tidegate").optional()
            .example("\"tidegate\"");

        /// The password of that user. In a container, set it as TIDEGATE_QUOTA_STORE__PASSWORD.
        password: Option<String> = secret("password", TEXT_MAX).optional()
            .example("\"…\"");

        /// Redis: the name of the primary in its sentinels, which are then the servers above. After a
        /// failover the sidecar asks them for the new primary.
        sentinel: Option<String> = line(TEXT_MAX, "mymaster").optional().restart()
            .example("\"mymaster\"");

        /// Redis: the user name at the sentinels, if they ask for one besides a password.
        sentinel_user: Option<String> = line(TEXT_MAX, "tidegate").optional()
            .example("\"tidegate\"");

        /// Redis: the password at the sentinels. In a container, set it as
        /// TIDEGATE_QUOTA_STORE__SENTINEL_PASSWORD.
        sentinel_password: Option<String> = secret("password", TEXT_MAX).optional()
            .example("\"…\"");

        /// The place of the keys: a node of ZooKeeper, a prefix in the others. The same in every sidecar.
        /// The default is "/quota", "/tidegate/quota/" in etcd and "tidegate:quota:" in Redis.
        root: Option<String> = line(TEXT_MAX, "/quota").optional().restart().example("\"/quota\"");

        /// How long a silent sidecar still counts as one. It changes the size of draws, not the amount
        /// that may be spent. The default is 4s in ZooKeeper, 10s in the others.
        session_timeout: Option<Duration> =
            duration(SECOND..=HOUR).optional().restart()
            .example("\"4s\"").expert();

        /// The most sidecars that will ever run at once. Each of them owns its safe share of every window,
        /// so more sidecars may spend more than the total. Required, except for memory.
        expected_sidecars: Option<u32> = integer(1..=10_000).of("sidecars").optional().example("3");

        /// Keys of quotas in memory at once. When it is full, the least recently used key is evicted: it
        /// returns its tokens, and draws again when it comes back. Set it above the number of users in a
        /// window.
        keys_max: u32 = integer(1..=1_000_000).of("keys").or(10_000).expert();
    }
}

/// `[quota_store]`, with the files that it names.
pub(super) struct QuotaStore {
    pub(super) store: QuotaStoreSection,
    pub(super) tls: ServerTlsSection,
    /// The engine; `None` where something is wrong with it, which has been noted.
    pub(super) engine: Option<Engine>,
}

impl ConfigPart for QuotaStore {
    fn read_from(root: &Section<'_>, key: &'static str) -> Self {
        let section = root.section(key).aside();
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

    fn write_under(&self, key: &str, out: &mut Toml) {
        if self.store.section.given {
            self.store.write_under(key, out);
            self.tls.write_under(key, out);
        }
    }
}

impl QuotaStore {
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
            _ => self.shared(store, notes),
        }
    }

    /// An option that a store does not use was probably meant for another one.
    fn has_nothing_foreign(&self, store: Store, notes: &Notes) {
        let sidecars = &self.store.expected_sidecars;
        if store == Store::Memory {
            let cure = "leave it out, or write engine = \"zookeeper\", \"etcd\" or \"redis\"";
            let of_memory = ["engine", "expected_sidecars", "keys_max"];
            for (name, mark) in [self.store.marks(), self.tls.marks()].concat() {
                if mark.given && !of_memory.contains(&name) {
                    notes.error(mark, format!("a quota in memory has no {name}"), cure);
                }
            }
            if sidecars.value.is_some_and(|count| count > 1) {
                let cause = "a quota in memory is shared with no other sidecar";
                notes.error(sidecars, cause, cure);
            }
        }
        if !matches!(store, Store::Memory | Store::Redis) {
            let of_sentinels = self.of_sentinels();
            for (name, mark) in of_sentinels.into_iter().filter(|(_, mark)| mark.given) {
                let cause = format!("{} has no {name}", store.name());
                notes.error(mark, cause, "leave it out: only Redis has sentinels");
            }
        }
    }

    fn of_sentinels(&self) -> [(&'static str, &OptionMark); 3] {
        let store = &self.store;
        [
            ("sentinel", &store.sentinel),
            ("sentinel_user", &store.sentinel_user),
            ("sentinel_password", &store.sentinel_password),
        ]
    }

    fn is_whole(&self, store: Store, notes: &Notes) {
        let QuotaStoreSection {
            section, servers, ..
        } = &self.store;
        if servers.sound && servers.value.is_empty() {
            let cause = format!("the address of {} is missing", store.name());
            let cure = format!(
                "add servers = [{}] to [quota_store]",
                quoted(store.example())
            );
            notes.missing(section, cause, cure);
        }
        if self.store.expected_sidecars.is_missing() {
            let cause = "the number of sidecars that share the quotas is missing";
            let cure = "add expected_sidecars, the most that will ever run at once: each of them \
                        owns its safe share of every window";
            notes.missing(section, cause, cure);
        }
    }

    /// Redis may ask for a password alone.
    fn credentials_are_whole(&self, store: Store, notes: &Notes) {
        let QuotaStoreSection { user, password, .. } = &self.store;
        let is_odd = user.value.as_ref().is_some_and(|it| it.contains(':'));
        if user.value.is_some() && password.is_missing() {
            let cure = "add password to [quota_store], or leave user out";
            notes.missing(user, "a user is named without a password", cure);
        } else if password.value.is_some() && user.is_missing() && store != Store::Redis {
            let cure = "add user to [quota_store], or leave password out";
            notes.missing(password, "the user of this password is missing", cure);
        } else if store == Store::ZooKeeper && is_odd {
            let cause = "a user name of ZooKeeper has no colon";
            notes.missing(user, cause, "give another name");
        }
        let QuotaStoreSection {
            sentinel,
            sentinel_user,
            sentinel_password,
            ..
        } = &self.store;
        if store == Store::Redis && sentinel.is_missing() {
            for (_, mark) in self.of_sentinels().into_iter().filter(|(_, it)| it.given) {
                let cure = "add sentinel, the name of the primary, or leave it out";
                notes.missing(mark, "it has no effect without sentinel", cure);
            }
        } else if sentinel_user.value.is_some() && sentinel_password.is_missing() {
            let cure = "add sentinel_password to [quota_store], or leave sentinel_user out";
            notes.missing(sentinel_user, "a user is named without a password", cure);
        }
    }
}
