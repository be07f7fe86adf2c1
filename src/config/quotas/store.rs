//! `[quota]`: in which store quotas are kept, and how it is reached.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_quota::Engine;
use tidegate_quota::etcd::Certificates;
use tidegate_runtime::election::TimeToLive;
use tidegate_runtime::etcd;
use tokio_rustls::rustls::ClientConfig;

#[cfg(feature = "zookeeper")]
use crate::forward::Address;

use super::super::effective::{Toml, quoted as toml_text};
use super::super::problem::Place;
use super::super::reader::{At, Notes, Section, Setting};
use super::super::secret;
use super::super::text::file;
#[cfg(feature = "zookeeper")]
use super::super::text::host_and_port;
use super::super::tree::{Node, Value, quoted};
use super::super::value::{Kind, Mistake, choice, duration, integer, show_duration, text};

/// Most servers that are named.
const SERVERS_MAX: usize = 64;
/// Most sidecars that share quotas.
const SIDECARS_MAX: u32 = 10_000;
/// Most keys that are kept at once.
const KEYS_MAX: u32 = 1_000_000;
/// Longest text of an option of the store.   bytes
const TEXT_BYTES_MAX: usize = 1024;

/// `engine`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Memory,
    ZooKeeper,
    Etcd,
    Redis,
}

const STORES: &[(&str, Store)] = &[
    ("memory", Store::Memory),
    ("zookeeper", Store::ZooKeeper),
    ("etcd", Store::Etcd),
    ("redis", Store::Redis),
];

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

/// `[quota]`
pub(in crate::config) struct RawStore {
    pub(super) at: At,
    pub(super) given: bool,
    store: Setting<Store>,
    servers: Setting<Vec<(String, Place)>>,
    user: Setting<Option<String>>,
    password: Setting<Option<String>>,
    root: Setting<Option<String>>,
    session_timeout: Setting<Option<Duration>>,
    ca: Setting<Option<PathBuf>>,
    cert: Setting<Option<PathBuf>>,
    key: Setting<Option<PathBuf>>,
    expected_sidecars: Setting<Option<u32>>,
    pub(super) keys_max: Setting<u32>,
    /// None where something is wrong with it, which has been noted.
    pub(super) engine: Option<Engine>,
}

/// What TLS to etcd needs.
struct Tls {
    certificates: Certificates,
    client: Arc<ClientConfig>,
}

pub(in crate::config) fn read(mut section: Section<'_>) -> RawStore {
    let session = TimeToLive::MIN.get()..=TimeToLive::MAX.get();
    let sidecars = integer(1..=SIDECARS_MAX);
    let mut raw = RawStore {
        at: section.at().clone(),
        given: section.is_given(),
        store: section.read("engine", Store::Memory, choice(STORES)),
        servers: section.read("servers", Vec::new(), servers()),
        user: section.read("user", None, plain("tidegate").optional()),
        password: section.read("password", None, password().optional()),
        root: section.read("root", None, plain("/quota").optional()),
        session_timeout: section.read("session_timeout", None, duration(session).optional()),
        ca: section.read("ca", None, file().optional()),
        cert: section.read("cert", None, file().optional()),
        key: section.read("key", None, file().optional()),
        expected_sidecars: section.read("expected_sidecars", None, sidecars.optional()),
        keys_max: section.read("keys_max", 10_000, integer(1..=KEYS_MAX)),
        engine: None,
    };
    if raw.given {
        raw.engine = raw.engine(section.notes());
    }
    section.finish();
    raw
}

fn servers() -> Kind<Vec<(String, Place)>> {
    const CURE: &str = "give their addresses in brackets, such as [\"10.0.0.1:2181\"]";
    Kind {
        allowed: format!("up to {SERVERS_MAX} addresses in brackets"),
        read: Box::new(|node: &Node| {
            let Value::List(list) = &node.value else {
                return Err(Mistake::new("it is not a list", CURE));
            };
            if list.len() > SERVERS_MAX {
                let told = format!("there are {} of them", list.len());
                return Err(Mistake::new(told, format!("give at most {SERVERS_MAX}")));
            }
            let mut servers: Vec<(String, Place)> = Vec::new();
            for item in list {
                let Some(server) = item.text() else {
                    let told = format!("{} is not a string", item.told());
                    return Err(Mistake::new(told, CURE));
                };
                if servers.iter().any(|(other, _)| other == server) {
                    let told = "a server is named twice";
                    return Err(Mistake::new(told, "leave one of the two out"));
                }
                servers.push((server.to_owned(), item.place.clone()));
            }
            Ok(servers)
        }),
    }
}

fn plain(example: &'static str) -> Kind<String> {
    text("1 to 1024 bytes", example, move |given| {
        if given.is_empty() || given.len() > TEXT_BYTES_MAX || given.contains(char::is_control) {
            return Err(Mistake::new(
                "it is empty, too long, or has a control character",
                format!("give 1 to 1024 bytes, such as {}", quoted(example)),
            ));
        }
        Ok(given.to_owned())
    })
}

/// A secret. It stands in no message.
fn password() -> Kind<String> {
    Kind {
        allowed: "1 to 1024 bytes".to_owned(),
        read: Box::new(|node| match node.text() {
            Some(text) if (1..=TEXT_BYTES_MAX).contains(&text.len()) => Ok(text.to_owned()),
            _ => Err(Mistake::new(
                "the password is not a string, or is empty or too long",
                "give 1 to 1024 bytes in quotes",
            )),
        }),
    }
}

impl RawStore {
    /// How many sidecars share the quotas, if that could be read.
    pub(super) fn sidecars(&self) -> Option<u32> {
        match (self.store.meant()?, self.expected_sidecars.meant()?) {
            (Store::Memory, _) => Some(1),
            (_, sidecars) => *sidecars,
        }
    }

    /// Whether they are kept in this process.
    pub(super) fn is_memory(&self) -> bool {
        self.store.meant() == Some(&Store::Memory)
    }

    /// The settings of the engine, or None with a note why there are none.
    fn engine(&self, notes: &Notes) -> Option<Engine> {
        let store = *self.store.meant()?;
        let read = [
            self.servers.sound,
            self.user.sound,
            self.password.sound,
            self.root.sound,
            self.session_timeout.sound,
            self.ca.sound,
            self.cert.sound,
            self.key.sound,
            self.expected_sidecars.sound,
        ];
        let sound = [
            read.iter().all(|sound| *sound),
            self.has_nothing_foreign(store, notes),
            self.is_whole(store, notes),
            self.credentials_are_whole(store, notes),
        ];
        let engine = match store {
            Store::Memory => Some(Engine::Memory),
            Store::ZooKeeper => self.zookeeper(notes),
            Store::Etcd => self.etcd(notes),
            Store::Redis => self.redis(notes),
        };
        engine.filter(|_| sound.iter().all(|sound| *sound))
    }

    /// What a store has no use for was probably meant for another one.
    fn has_nothing_foreign(&self, store: Store, notes: &Notes) -> bool {
        let of_servers = [
            (&self.servers.at, self.servers.given, "servers"),
            (&self.user.at, self.user.given, "user"),
            (&self.password.at, self.password.given, "password"),
            (&self.root.at, self.root.given, "root"),
            (
                &self.session_timeout.at,
                self.session_timeout.given,
                "session_timeout",
            ),
        ];
        let of_tls = [
            (&self.ca.at, self.ca.given, "ca"),
            (&self.cert.at, self.cert.given, "cert"),
            (&self.key.at, self.key.given, "key"),
        ];
        let mut sound = true;
        let mut foreign = |at: &At, told: String, cure: &str| {
            notes.error(at, Mistake::new(told, cure));
            sound = false;
        };
        if store == Store::Memory {
            let cure = "leave it out, or write engine = \"zookeeper\", \"etcd\" or \"redis\"";
            for (at, _, what) in of_servers.into_iter().filter(|(_, given, _)| *given) {
                foreign(at, format!("a quota in memory has no {what}"), cure);
            }
            if self.expected_sidecars.value.is_some_and(|count| count > 1) {
                let told = "what is in memory is shared with no other sidecar".to_owned();
                foreign(&self.expected_sidecars.at, told, cure);
            }
        }
        if store != Store::Etcd {
            for (at, _, what) in of_tls.into_iter().filter(|(_, given, _)| *given) {
                let told = format!(
                    "{} is not reached over TLS, and has no {what}",
                    store.name()
                );
                foreign(at, told, "leave it out: only etcd is");
            }
        }
        sound
    }

    fn is_whole(&self, store: Store, notes: &Notes) -> bool {
        if store == Store::Memory {
            return true;
        }
        let mut sound = true;
        if self.servers.sound && self.servers.value.is_empty() {
            let told = format!("it is not said where {} is", store.name());
            let example = quoted(store.example());
            let cure = format!("add servers = [{example}] to [quota]");
            notes.missing(&self.at, Mistake::new(told, cure));
            sound = false;
        }
        if self.expected_sidecars.is_missing() {
            let told = "it is not said how many sidecars share the quotas";
            let cure = "add expected_sidecars, the most that will ever run at once: each of them \
                        owns its safe share of every window";
            notes.missing(&self.at, Mistake::new(told, cure));
            sound = false;
        }
        sound
    }

    /// Redis may ask for a password alone.
    fn credentials_are_whole(&self, store: Store, notes: &Notes) -> bool {
        let (user, password) = (&self.user, &self.password);
        let mut sound = true;
        let mut wrong = |at: &At, told: &str, cure: &str| {
            notes.missing(at, Mistake::new(told, cure));
            sound = false;
        };
        if store == Store::Memory {
            return true;
        }
        if user.value.is_some() && password.is_missing() {
            let cure = "add password to [quota], or leave user out";
            wrong(&user.at, "a user is named without a password", cure);
        }
        if password.value.is_some() && user.is_missing() && store != Store::Redis {
            let cure = "add user to [quota], or leave password out";
            wrong(&password.at, "it is not said whose password it is", cure);
        }
        if store == Store::ZooKeeper
            && let Some(user) = &user.value
            && user.contains(':')
        {
            let told = "a user of ZooKeeper has no colon in the name";
            wrong(&self.user.at, told, "give another name");
        }
        sound
    }

    fn server_at(&self, place: &Place) -> At {
        At {
            key: self.servers.at.key.clone(),
            place: place.clone(),
        }
    }

    /// Every server as `take` reads it, unless there is a mistake in one.
    fn servers<T>(
        &self,
        notes: &Notes,
        take: impl Fn(&str) -> Result<T, Mistake>,
    ) -> Option<Vec<T>> {
        let taken = self.servers.value.iter().map(|(server, place)| {
            let mistake = match take(server) {
                Ok(server) => return Some(server),
                // None is quoted that may hold a password.
                Err(_) if server.contains('@') => Mistake::new(
                    "the address holds a user or a password",
                    "give them as user and password in [quota], which are never shown",
                ),
                Err(mistake) => mistake,
            };
            notes.error(&self.server_at(place), mistake);
            None
        });
        // All of them first: each has a mistake of its own.
        let taken: Vec<Option<T>> = taken.collect();
        taken.into_iter().collect()
    }

    #[cfg(feature = "zookeeper")]
    fn zookeeper(&self, notes: &Notes) -> Option<Engine> {
        use tidegate_runtime::zookeeper;
        let servers = self.servers(notes, |given| {
            host_and_port(given, None, Store::ZooKeeper.example()).map(|address| match address {
                Address::Ip(address) => address.to_string(),
                Address::Name(name, port) => format!("{name}:{port}"),
                Address::Unix(path) => format!("unix:{}", path.display()),
            })
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
        let mut store = zookeeper::Settings::new(servers?.join(","));
        store.session_timeout = self.session_timeout.value.unwrap_or(store.session_timeout);
        if let (Some(user), Some(password)) = (&self.user.value, &self.password.value) {
            let credentials = format!("{user}:{password}");
            store.auth = Some(("digest".to_owned(), credentials.into_bytes()));
        }
        let mut settings = tidegate_quota::zookeeper::Settings::new(store);
        if let Some(root) = root? {
            // Whoever keeps other records is no node of ours. No key begins with a dot.
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
                Mistake::new(
                    told,
                    "write it as \"http://host:port\" or \"https://host:port\"",
                )
            })
        });
        let root = self.root(notes, |root| {
            let cure = "let it end with a slash, such as \"/tidegate/quota/\"";
            root.ends_with('/').then_some(()).ok_or(cure)
        });
        let tls = self.tls(notes);
        let (endpoints, root, tls) = (endpoints?, root?, tls?);
        let mut store = etcd::Settings::new(endpoints);
        if let (Some(user), Some(password)) = (&self.user.value, &self.password.value) {
            store.credentials = Some(etcd::Credentials {
                user: user.clone(),
                password: password.clone(),
            });
        }
        let mut settings = tidegate_quota::etcd::Settings::new(store);
        if let Some(tls) = tls {
            settings.store.tls = Some(tls.client);
            settings.certificates = Some(tls.certificates);
        }
        settings.prefix = root.unwrap_or(settings.prefix);
        if let Some(time_to_live) = self.session_timeout.value {
            let fits = TimeToLive::new(time_to_live);
            settings.time_to_live = fits.expect("it is within the range of the option");
        }
        Some(Engine::Etcd(settings))
    }

    /// What TLS needs, where an endpoint asks for it; None if that can't be had.
    fn tls(&self, notes: &Notes) -> Option<Option<Tls>> {
        let is_asked_for = |(server, _): &&(String, Place)| server.starts_with("https:");
        let Some(authority) = &self.ca.value else {
            let mut servers = self.servers.value.iter();
            if self.ca.sound
                && let Some((_, place)) = servers.find(is_asked_for)
            {
                let at = self.server_at(place);
                let told = "it is not said who signs the certificates of etcd";
                let cure = "add ca = \"/etc/tidegate/etcd-ca.pem\" to [quota]";
                notes.missing(&at, Mistake::new(told, cure));
                return None;
            }
            for (at, given) in [
                (&self.cert.at, self.cert.given),
                (&self.key.at, self.key.given),
            ] {
                if given {
                    let told = "it has no effect without ca";
                    notes.error(at, Mistake::new(told, "leave it out, or add ca"));
                }
            }
            return Some(None);
        };
        let identity = match (&self.cert.value, &self.key.value) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (one, _) => {
                let (at, told, cure) = match one {
                    Some(_) => (&self.cert.at, "there is no key to it", "add key"),
                    None => (&self.key.at, "there is no certificate to it", "add cert"),
                };
                notes.missing(at, Mistake::new(told, cure));
                return None;
            }
        };
        let read = |path: &Path, at: &At| {
            let read = fs::read(path).map_err(|error| {
                let told = format!("{} can't be read: {error}", quoted(&path.to_string_lossy()));
                let cure = "give a PEM file that can be read";
                notes.error(at, Mistake::new(told, cure));
            });
            read.ok()
        };
        let authorities = read(authority, &self.ca.at);
        let own = identity.as_ref().map(|(cert, key)| {
            let (cert, key) = (read(cert, &self.cert.at), read(key, &self.key.at));
            cert.zip(key)
        });
        let own = match own {
            None => None,
            Some(read) => Some(read?),
        };
        let own = own.as_ref().map(|(cert, key)| (&cert[..], &key[..]));
        match etcd::tls(&authorities?, own) {
            Ok(client) => Some(Some(Tls {
                certificates: Certificates {
                    authority: authority.clone(),
                    identity,
                },
                client,
            })),
            Err(error) => {
                let cure = "give certificates and keys in PEM that belong together";
                notes.error(&self.ca.at, Mistake::new(error.to_string(), cure));
                None
            }
        }
    }

    #[cfg(feature = "redis")]
    fn redis(&self, notes: &Notes) -> Option<Engine> {
        use tidegate_quota::redis::Settings;
        let servers = self.servers(notes, |given| {
            let wrong = |told: &str, cure: &str| {
                Err(Mistake::new(format!("{} {told}", quoted(given)), cure))
            };
            if given.starts_with("rediss:") {
                let cure = "give redis://host:port, with TLS ended in front of it or not at all";
                return wrong("asks for TLS, which can't be spoken to Redis", cure);
            }
            let cure = "write it as \"redis://host:port\", with /database behind it if need be";
            match Settings::new(given) {
                Ok(settings) if given.starts_with("redis://") && !given.contains(['@', '?']) => {
                    Ok(settings)
                }
                _ => wrong("is no address of Redis", cure),
            }
        });
        if let Some((_, place)) = self.servers.value.get(1) {
            let told = "Redis is one server, and several are named";
            let cure = "name the primary alone";
            notes.error(&self.server_at(place), Mistake::new(told, cure));
            return None;
        }
        let mut settings = servers?.into_iter().next()?;
        if let Some(password) = &self.password.value {
            settings = settings.with_credentials(self.user.value.as_deref(), password);
        }
        if let Some(root) = &self.root.value {
            settings.prefix.clone_from(root);
        }
        settings.member_ttl = self.session_timeout.value.unwrap_or(settings.member_ttl);
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
        notes.error(&self.store.at, Mistake::new(told, cure));
        None
    }

    /// The root if it fits, or None with a note; `check` says what would be right.
    fn root(
        &self,
        notes: &Notes,
        check: impl Fn(&str) -> Result<(), &'static str>,
    ) -> Option<Option<String>> {
        let Some(root) = &self.root.value else {
            return Some(None);
        };
        match check(root) {
            Ok(()) => Some(Some(root.clone())),
            Err(cure) => {
                let told = format!("{} can't be where the keys stand", quoted(root));
                notes.error(&self.root.at, Mistake::new(told, cure));
                None
            }
        }
    }
}

/// Writes the section but for what no store knows. Passwords are hidden.
pub(super) fn write(out: &mut Toml, engine: &Engine) {
    let list = |out: &mut Toml, servers: Vec<String>| {
        let servers: Vec<_> = servers.iter().map(|server| toml_text(server)).collect();
        out.bare("servers", format_args!("[{}]", servers.join(", ")));
    };
    let credentials = |out: &mut Toml, user: Option<&str>, has_password: bool| {
        if let Some(user) = user {
            out.text("user", user);
        }
        if has_password {
            out.text("password", secret::HIDDEN);
        }
    };
    match engine {
        Engine::Memory => out.text("engine", "memory"),
        #[cfg(feature = "zookeeper")]
        Engine::ZooKeeper(settings) => {
            out.text("engine", "zookeeper");
            let servers = settings.store.servers.split(',');
            list(out, servers.map(ToOwned::to_owned).collect());
            if let Some((_, user_and_password)) = &settings.store.auth {
                let text = String::from_utf8_lossy(user_and_password);
                let user = text.split_once(':').map(|(user, _)| user);
                credentials(out, user, true);
            }
            out.text("root", &settings.records);
            let session = show_duration(settings.store.session_timeout);
            out.text("session_timeout", &session);
        }
        Engine::Etcd(settings) => {
            out.text("engine", "etcd");
            let endpoints = settings.store.endpoints.iter();
            list(out, endpoints.map(ToString::to_string).collect());
            if let Some(known) = &settings.store.credentials {
                credentials(out, Some(&known.user), true);
            }
            out.text("root", &settings.prefix);
            let session = show_duration(settings.time_to_live.get());
            out.text("session_timeout", &session);
            // What was read from a config is UTF-8.
            let path = |out: &mut Toml, key: &str, path: &Path| {
                out.text(key, &path.to_string_lossy());
            };
            if let Some(certificates) = &settings.certificates {
                path(out, "ca", &certificates.authority);
                if let Some((cert, key)) = &certificates.identity {
                    path(out, "cert", cert);
                    path(out, "key", key);
                }
            }
        }
        #[cfg(feature = "redis")]
        Engine::Redis(settings) => {
            out.text("engine", "redis");
            list(out, vec![settings.address()]);
            credentials(out, settings.user(), settings.has_password());
            out.text("root", &settings.prefix);
            out.text("session_timeout", &show_duration(settings.member_ttl));
        }
    }
}
