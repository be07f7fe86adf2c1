//! The settings of ZooKeeper, etcd and Redis.

use tidegate_quota::Engine;
use tidegate_runtime::election::TimeToLive;
use tidegate_runtime::etcd;
use tidegate_runtime::tls::TlsClient;

use super::super::server_tls::Inside;
use super::{QuotaStore, QuotaStoreSection, Store};
use crate::forward::Address;
use crate::options::shown::quoted;
use crate::options::{Mistake, Notes};

impl QuotaStore {
    /// The engine of a store that sidecars share, or none with a note why there is none.
    pub(super) fn shared(&mut self, store: Store, notes: &Notes) -> Option<Engine> {
        match store {
            Store::Memory => None,
            Store::ZooKeeper => self.zookeeper(notes),
            Store::Etcd => self.etcd(notes),
            Store::Redis => self.redis(notes),
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
            let cause = format!("{} can't be the root of the keys", quoted(root));
            notes.error(setting, cause, cure);
        }
    }

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
                let cause = format!("{} is no address of etcd", quoted(given));
                let cure = "write it as \"http://host:port\" or \"https://host:port\"";
                Mistake::new(cause, cure)
            })
        });
        let cure = "let it end with a slash, such as \"/tidegate/quota/\"";
        self.check_root(notes, |root| root.ends_with('/'), cure);
        let mut store = etcd::Settings::new(endpoints);
        let credentials = self.credentials();
        store.credentials =
            credentials.map(|(user, password)| etcd::Credentials { user, password });
        let mut settings = tidegate_quota::etcd::Settings::new(store);
        let is_tls = |server: &str| server.starts_with("https:");
        settings.store.tls = self.tls(is_tls, Inside::Http2, notes);
        let root = &mut self.store.root.value;
        settings.prefix = root.get_or_insert(settings.prefix).clone();
        let session = &mut self.store.session_timeout.value;
        let session = *session.get_or_insert(settings.time_to_live.get());
        let fits = TimeToLive::new(session);
        settings.time_to_live = fits.expect("it is within the range of the option");
        Some(Engine::Etcd(settings))
    }

    /// TLS, if an address asks for it.
    fn tls(&self, is_tls: fn(&str) -> bool, inside: Inside, notes: &Notes) -> Option<TlsClient> {
        let servers = &self.store.servers;
        let asks = servers.value.iter().position(|server| is_tls(server));
        if let Some(index) = asks.filter(|_| self.tls.ca.is_missing()) {
            let cause = "the authorities that sign the certificates of the store are missing";
            let cure = "add ca = \"/etc/tidegate/store-ca.pem\" to [quota]";
            notes.missing(&servers.item(index), cause, cure);
            return None;
        }
        self.tls.load(inside, notes).flatten()
    }

    fn redis(&mut self, notes: &Notes) -> Option<Engine> {
        let servers = self.servers(notes, |given| {
            let wrong = |cause, cure| Mistake::new(format!("{} {cause}", quoted(given)), cure);
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
            let cause = "Redis is one server, and several are named";
            notes.error(&self.store.servers.item(1), cause, "name the primary alone");
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
}
