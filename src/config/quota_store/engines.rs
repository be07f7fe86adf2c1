//! The settings of ZooKeeper, etcd and Redis.

use tidegate_quota::Engine;
use tidegate_runtime::election::TimeToLive;
use tidegate_runtime::etcd;
use tidegate_runtime::tls::TlsClient;

use super::super::server_tls::Inside;
use super::{QuotaStore, QuotaStoreSection, Store};
use crate::forward::BackendAddress;
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
                    "give them as user and password in [quota_store], which are never shown",
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
            BackendAddress::parse(given, None, Store::ZooKeeper.example()).map(|it| it.to_string())
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
        let mut store = tidegate_runtime::zookeeper::ZooKeeperSettings::new(servers.join(","));
        let session = &mut self.store.session_timeout.value;
        store.session_timeout = *session.get_or_insert(store.session_timeout);
        let digest = |(user, password)| ("digest".to_owned(), format!("{user}:{password}").into());
        store.auth = self.credentials().map(digest).into();
        // Its addresses have no scheme.
        store.tls = self.tls.load(Inside::Other, notes).flatten();
        let mut settings = tidegate_quota::zookeeper::ZooKeeperStoreSettings::new(store);
        let root = self
            .store
            .root
            .value
            .get_or_insert(settings.records.clone());
        if *root != settings.records {
            // A sidecar with other records is no member of ours.
            settings = settings.below(root);
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
        let mut store = etcd::EtcdSettings::new(endpoints);
        let credentials = self.credentials();
        let credentials = credentials.map(|(user, password)| etcd::Credentials { user, password });
        store.credentials = credentials.into();
        let mut settings = tidegate_quota::etcd::EtcdStoreSettings::new(store);
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
            let cure = "add ca = \"/etc/tidegate/store-ca.pem\" to [quota_store]";
            notes.missing(&servers.item(index), cause, cure);
            return None;
        }
        if asks.is_none() && !servers.value.is_empty() && servers.sound && self.tls.ca.given {
            let cause = "it has no effect: no address asks for TLS";
            let cure =
                "write the addresses with https:// (etcd) or rediss:// (Redis), or leave it out";
            notes.error(&self.tls.ca, cause, cure);
            return None;
        }
        self.tls.load(inside, notes).flatten()
    }

    fn redis(&mut self, notes: &Notes) -> Option<Engine> {
        let servers = self.servers(notes, |given| {
            let is_url = given.starts_with("redis://") || given.starts_with("rediss://");
            let is_plain = is_url && !given.contains(['@', '?']);
            let settings = tidegate_quota::redis::RedisSettings::new(given);
            settings.ok().filter(|_| is_plain).ok_or_else(|| {
                let cause = format!("{} is no address of Redis", quoted(given));
                let cure = "write it as \"redis://host:port\", or \"rediss://host:port\" for TLS, \
                            with /database behind it if needed";
                Mistake::new(cause, cure)
            })
        });
        let given = &self.store.servers;
        let QuotaStoreSection { sentinel, .. } = &self.store;
        if given.value.len() > 1 && sentinel.is_missing() {
            let cause = "Redis is one server, and several are named";
            let cure = "name the primary alone; or name its sentinels, and add sentinel = \
                        \"mymaster\"";
            notes.error(&given.item(1), cause, cure);
            return None;
        }
        let mut all = servers.into_iter();
        let mut settings = all.next()?;
        for (index, other) in all.enumerate() {
            if (other.asks_tls, other.database()) != (settings.asks_tls, settings.database()) {
                let cause = "it asks for another database than the first, or differs in TLS";
                let cure = "write the same scheme and the same /database behind each: they are the \
                            primary's";
                notes.error(&given.item(index + 1), cause, cure);
            }
            settings.servers.extend(other.servers);
        }
        if let Some(password) = &self.store.password.value {
            settings = settings.with_credentials(self.store.user.value.as_deref(), password);
        }
        if let Some(primary) = &sentinel.value {
            let user = self.store.sentinel_user.value.as_deref();
            let password = self.store.sentinel_password.value.as_deref();
            settings = settings.with_sentinel(primary, password.map(|it| (user, it)));
        }
        let is_tls = |server: &str| server.starts_with("rediss:");
        settings.tls = self.tls(is_tls, Inside::Other, notes);
        let root = &mut self.store.root.value;
        settings.prefix = root.get_or_insert(settings.prefix).clone();
        let session = &mut self.store.session_timeout.value;
        settings.member_ttl = *session.get_or_insert(settings.member_ttl);
        Some(Engine::Redis(settings))
    }
}
