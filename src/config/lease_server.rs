//! Reads the config of `tidegate lease-server`: the same TOML machinery as for the sidecar's,
//! and Doorman's own form for the rules.

mod doorman;
mod yaml;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_leases::book::Split;
use tidegate_leases::server::{
    Bounds, Catchall, Frees, Place as InTree, RawAlgorithm, RawKind, RawParameter, RawTemplate,
    Reach, Settings, Template, TemplateMistake, Templates, Unmatched,
};
use tidegate_leases::wire::Epoch;
use tidegate_runtime::election::{self, TimeToLive};
use tidegate_runtime::etcd;

use crate::forward::Address;
use crate::telemetry::{self, Format};

use super::admin::hosts;
use super::problem::{Place, Problems};
use super::reader::{At, Notes, Section, Setting};
use super::text::{address, bind_or_off, file, level};
use super::tree::{Node, Value, quoted};
use super::value::{
    Kind, Mistake, choice, duration, flag, integer, number, show_duration, size, text,
};
use super::{LoadError, read_text, syntax};

pub use doorman::templates;

/// Where the config is looked for.
pub const DEFAULT_PATH: &str = "/etc/tidegate/lease-server.toml";

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
/// Longest lease.
const YEAR: Duration = Duration::from_secs(366 * 24 * 3_600);
/// Descriptors that are not for clients.
const DESCRIPTORS_KEPT: u64 = 128;
/// Most servers that are asked above, and members of a store.
const ADDRESSES_MAX: usize = 16;

/// Everything that the config decides, checked.
#[derive(Clone, Debug)]
pub struct LeaseServer {
    /// Where clients ask.
    pub bind: SocketAddr,
    /// Where there is something to see, if anywhere.
    pub status_bind: Option<SocketAddr>,
    /// Names by which the status address may be asked, besides IP addresses and those of loopback.
    pub status_allowed_hosts: Arc<[Box<str>]>,
    /// The servers above, `host:port`; none at the root.
    pub parents: Vec<String>,
    /// What is taken from the network at most.
    pub reach: Reach,
    /// How the master is found.
    pub election: election::Settings,
    /// Where the rules are.
    pub rules: Rules,
    /// Settings of logs.
    pub telemetry: telemetry::Settings,
    /// What the machine is told, but for the time.
    machine: Settings,
}

/// Where the rules are.
#[derive(Clone, Debug)]
pub enum Rules {
    /// In the config itself.
    Here(Templates),
    /// In a file in Doorman's form.
    File {
        /// Its path.
        path: PathBuf,
        /// What it says now.
        templates: Templates,
    },
    /// In a key of etcd, in Doorman's form.
    Etcd {
        /// Where etcd is.
        store: etcd::Settings,
        /// The key.
        key: String,
    },
}

/// A config without an error.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The settings.
    pub config: LeaseServer,
    /// What works and was probably not meant.
    pub warnings: Problems,
}

impl LeaseServer {
    /// What the machine is told, at a process's start.
    #[must_use]
    pub fn machine(&self, epoch: Epoch) -> Settings {
        Settings {
            epoch,
            ..self.machine.clone()
        }
    }

    /// Everything but the rules, as text for people, without secrets.
    #[must_use]
    pub fn shown(&self) -> String {
        let machine = &self.machine;
        let or_none = |list: &[String]| match list {
            [] => "none: this is the root".to_owned(),
            list => list.join(", "),
        };
        let rules = match &self.rules {
            Rules::Here(_) => "in the config".to_owned(),
            Rules::File { path, .. } => format!("file:{}", path.display()),
            Rules::Etcd { key, .. } => format!("etcd:{key}"),
        };
        let status = self
            .status_bind
            .map_or("off".to_owned(), |it| it.to_string());
        let names = match &*self.status_allowed_hosts {
            [] => "IP addresses and localhost".to_owned(),
            names => format!("IP addresses, localhost, {}", names.join(", ")),
        };
        let unmatched = match machine.unmatched {
            Unmatched::Grant => "grant",
            Unmatched::Refuse => "refuse",
        };
        let rows = [
            ("bind", self.bind.to_string()),
            ("id", machine.id.clone()),
            ("address", machine.address.clone()),
            ("status_bind", status),
            ("status names", names),
            ("parent", or_none(&self.parents)),
            ("minimum_interval", show_duration(machine.minimum_interval)),
            ("unmatched", unmatched.to_owned()),
            ("resources", rules),
            ("election", self.election.to_string_for_people()),
            ("bounds", bounds_for_people(&machine.bounds)),
            ("network", reach_for_people(&self.reach)),
        ];
        let rows = rows.map(|(name, value)| format!("{name:<17} {value}\n"));
        rows.concat()
    }

    /// How many connections fit where the process may open so many descriptors, if that is fewer
    /// than the config says. The rest is kept for stores, the servers above and the status page,
    /// so that no number of clients shuts those out.
    #[must_use]
    pub fn connections_that_fit(&self, descriptors: u64) -> Option<usize> {
        let fit = descriptors.saturating_sub(DESCRIPTORS_KEPT).max(1);
        let fit = usize::try_from(fit).unwrap_or(usize::MAX);
        (fit < self.reach.connections).then_some(fit)
    }

    /// The rules as they are now, a line each; where etcd has them, that they are not known here.
    #[must_use]
    pub fn rules_shown(&self) -> String {
        let templates = match &self.rules {
            Rules::Here(templates) | Rules::File { templates, .. } => templates,
            Rules::Etcd { key, .. } => {
                return format!("rules             in etcd:{key}, read when the server starts\n");
            }
        };
        let rules = templates.in_order().iter().map(rule_for_people);
        rules.collect()
    }
}

fn rule_for_people(rule: &Template) -> String {
    let algorithm = &rule.algorithm;
    let mut words = vec![
        format!("capacity {}", rule.capacity.get()),
        match algorithm.split {
            Split::None => "as wanted".to_owned(),
            Split::Static => "static".to_owned(),
            Split::Proportional => "proportional share".to_owned(),
            Split::Fair => "fair share".to_owned(),
        },
        format!("lease {} s", algorithm.lease.as_secs()),
        format!("refresh {} s", algorithm.refresh.as_secs()),
        format!("learning {} s", algorithm.learning.as_secs()),
        if algorithm.by_priority {
            "the greater priority first".to_owned()
        } else {
            "priorities ignored".to_owned()
        },
        match algorithm.frees {
            Frees::AtOnce => "a lowered share is free at once".to_owned(),
            Frees::Confirmed(Duration::ZERO) => "a lowered share is free when confirmed".to_owned(),
            Frees::Confirmed(after) => format!(
                "a lowered share is free {} s after it is confirmed",
                after.as_secs_f64()
            ),
        },
    ];
    if let Some(reserve) = &algorithm.reserve {
        let (clients, share) = (reserve.clients, reserve.share.get());
        words.push(format!("{share} set aside for each of {clients} clients"));
    }
    if let Some(each) = algorithm.each {
        words.push(format!("{} for each", each.get()));
    }
    if let Some(safe) = rule.safe_capacity {
        words.push(format!("safe capacity {safe}"));
    }
    format!("rule {:<12} {}\n", rule.glob.as_str(), words.join(", "))
}

fn bounds_for_people(bounds: &Bounds) -> String {
    format!(
        "resources {}, of one client {}; leases {}, of one client {}; bands {}; ids of {} bytes",
        bounds.resources,
        bounds.resources_per_client,
        bounds.leases,
        bounds.leases_per_client,
        bounds.bands,
        bounds.id_bytes
    )
}

fn reach_for_people(reach: &Reach) -> String {
    format!(
        "connections {}, closed after {} without a handshake or {} without a request; \
         requests {} at once, of {} bytes and {} at most",
        reach.connections,
        show_duration(reach.handshake_timeout),
        show_duration(reach.idle_timeout),
        reach.requests,
        reach.message_bytes,
        show_duration(reach.request_timeout)
    )
}

/// How an election is shown.
trait ForPeople {
    fn to_string_for_people(&self) -> String;
}

impl ForPeople for election::Settings {
    fn to_string_for_people(&self) -> String {
        let ttl = show_duration(self.time_to_live.get());
        match &self.place {
            election::Place::OneNode => "none: this is the only one".to_owned(),
            election::Place::Etcd { key, store } => {
                let endpoints: Vec<String> =
                    store.endpoints.iter().map(ToString::to_string).collect();
                format!("etcd, key {key}, {ttl}, {}", endpoints.join(", "))
            }
            #[cfg(feature = "zookeeper")]
            election::Place::ZooKeeper { path, store } => {
                format!("ZooKeeper, node {path}, {ttl}, {}", store.servers)
            }
        }
    }
}

/// Reads the config in a file, and the rules in the file that it names.
///
/// # Errors
///
/// A file that can't be read, is no UTF-8 or is larger than 1 MiB; or every mistake in it.
pub fn load(path: &Path) -> Result<Checked, LoadError> {
    let text = read_text(path).map_err(|cause| LoadError::Unreadable {
        path: path.to_owned(),
        cause,
    })?;
    let origin = path.display().to_string();
    let (mut config, warnings) = read(&text, &origin)?;
    if let Rules::File { path, templates } = &mut config.rules {
        *templates = load_templates(path)?;
    }
    Ok(Checked { config, warnings })
}

/// The log format of a config that has mistakes elsewhere. The default if even this cannot be read.
#[must_use]
pub fn log_format(path: &Path) -> Format {
    let text = read_text(path).unwrap_or_default();
    let tree = syntax::parse(&text).tree;
    let notes = Notes::default();
    log(Section::root(&tree, &notes).section("log")).format
}

/// Reads rules in Doorman's form from a file.
///
/// # Errors
///
/// As [`load`].
pub fn load_templates(path: &Path) -> Result<Templates, LoadError> {
    let text = read_text(path).map_err(|cause| LoadError::Unreadable {
        path: path.to_owned(),
        cause,
    })?;
    Ok(templates(&text, &path.display().to_string())?)
}

/// Reads a config. Rules in a file of their own are left for [`load_templates`]. `origin` is the
/// name of the file, for messages.
///
/// # Errors
///
/// Every mistake, warnings included.
pub fn read(text: &str, origin: &str) -> Result<(LeaseServer, Problems), Problems> {
    let syntax::Parsed {
        tree,
        problems: mut list,
        broken,
        lost,
    } = syntax::parse(text);
    let notes = Notes::of("config.lease-server.toml.example", broken, lost);
    let config = root(Section::root(&tree, &notes));
    let (noted, _) = notes.finish();
    list.extend(noted);
    let problems = Problems::new(origin, text, list);
    match config {
        Some(config) if !problems.has_error() => Ok((config, problems)),
        _ => Err(problems),
    }
}

/// Every option there is, by its path, with what it allows in words.
#[must_use]
pub fn options() -> BTreeMap<String, String> {
    let parsed = syntax::parse("[[resource]]\nalgorithm = {}\n");
    let notes = Notes::default();
    root(Section::root(&parsed.tree, &notes));
    notes.finish().1
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Engine {
    None,
    Etcd,
    ZooKeeper,
}

/// Where the rules are, as `resources` says it.
#[derive(Clone)]
enum Source {
    File(PathBuf),
    Etcd(String),
}

/// `None` only where something was complained about.
fn root(mut section: Section<'_>) -> Option<LeaseServer> {
    const UNMATCHED: &[(&str, Unmatched)] =
        &[("grant", Unmatched::Grant), ("refuse", Unmatched::Refuse)];
    let notes = section.notes();
    let bind = section.read("bind", Some(([127, 0, 0, 1], 9_190).into()), bind_or_off());
    let status_bind = section.read(
        "status_bind",
        Some(([127, 0, 0, 1], 9_191).into()),
        bind_or_off(),
    );
    let status_hosts = section.read("status_allowed_hosts", Vec::new(), hosts());
    let own_address = section.read("address", None, address("leases-1:9190").optional());
    let id = section.read("id", None, id_text().optional());
    let parents = section.read("parent", Vec::new(), addresses());
    let minimum_interval = section.read(
        "minimum_interval",
        5 * SECOND,
        duration(Duration::ZERO..=HOUR),
    );
    let unmatched = section.read("unmatched", Unmatched::Grant, choice(UNMATCHED));
    let source = section.read("resources", None, source().optional());

    if bind.sound && bind.value.is_none() {
        let mistake = Mistake::new(
            "there is no address to listen on",
            "give one, such as \"127.0.0.1:9190\"",
        );
        notes.error(&bind.at, mistake);
    }
    let told = match (&own_address.value, bind.value) {
        (Some(address), _) => host_and_port(address),
        (None, Some(bind)) if bind.ip().is_unspecified() && own_address.sound => {
            let mistake = Mistake::new(
                format!("clients can't be sent to {bind}"),
                "give the address by which they find this server, such as \"leases-1:9190\"",
            );
            notes.error(&own_address.at, mistake);
            bind.to_string()
        }
        (None, Some(bind)) => bind.to_string(),
        (None, None) => String::new(),
    };
    if let Some(open) = status_bind.value.filter(|it| !it.ip().is_loopback()) {
        let mistake = Mistake::new(
            format!("whoever reaches {open} can read who holds what"),
            "give a loopback address, or keep others off by a firewall",
        );
        notes.warn(&status_bind.at, mistake);
    }

    let (bounds, reach) = bounds(section.section("bounds"));
    let store = etcd_store(section.section("etcd"));
    let zookeeper = zookeeper(section.section("zookeeper"));
    let election = election(section.section("election"), &told, &store, &zookeeper);
    let telemetry = log(section.section("log"));
    let templates = resources(&mut section, &source);
    let rules = match (&source.value, templates) {
        (Some(Source::File(path)), _) => Some(Rules::File {
            path: path.clone(),
            templates: Templates::default(),
        }),
        (Some(Source::Etcd(key)), _) => {
            let store = store.for_whom(notes, &source.at);
            store.map(|store| Rules::Etcd {
                store,
                key: key.clone(),
            })
        }
        (None, Some(templates)) => {
            if templates.in_order().is_empty() && parents.value.is_empty() && parents.sound {
                let mistake = Mistake::new(
                    "there are no resources, and no server above that knows of any",
                    "add [[resource]], or resources = \"file:/…\", or parent = [\"host:port\"]",
                );
                notes.missing(section.at(), mistake);
            }
            Some(Rules::Here(templates))
        }
        (None, None) => None,
    };
    section.finish();
    let (Some(bind), Some(election), Some(rules)) = (bind.value, election, rules) else {
        return None;
    };
    let place = if parents.value.is_empty() {
        InTree::Root
    } else {
        InTree::Below
    };
    Some(LeaseServer {
        bind,
        status_bind: status_bind.value,
        status_allowed_hosts: status_hosts.value.into_iter().map(Into::into).collect(),
        parents: parents.value,
        reach,
        election,
        rules,
        telemetry,
        machine: Settings {
            id: id.value.unwrap_or_else(|| told.clone()),
            address: told,
            place,
            epoch: Epoch::new(tidegate_limits::Timestamp::ZERO, Duration::ZERO),
            minimum_interval: minimum_interval.value,
            unmatched: unmatched.value,
            bounds,
        },
    })
}

fn bounds(mut section: Section<'_>) -> (Bounds, Reach) {
    let (kept, taken) = (Bounds::default(), Reach::default());
    let count = |max: usize| integer(1..=max);
    let bounds = Bounds {
        resources: section
            .read("resources", kept.resources, count(1_000_000))
            .value,
        resources_per_client: section
            .read(
                "resources_per_client",
                kept.resources_per_client,
                count(65_000),
            )
            .value,
        leases: section.read("leases", kept.leases, count(50_000_000)).value,
        leases_per_client: section
            .read("leases_per_client", kept.leases_per_client, count(100_000))
            .value,
        bands: section.read("bands", kept.bands, count(10_000)).value,
        id_bytes: section.read("id_bytes", kept.id_bytes, count(65_536)).value,
    };
    let message = size(1 << 10..=64 << 20);
    let reach = Reach {
        connections: section
            .read("connections", taken.connections, count(1_000_000))
            .value,
        requests: section
            .read("requests", taken.requests, count(100_000))
            .value,
        message_bytes: section
            .read("message_bytes", taken.message_bytes as u64, message)
            .value as usize,
        request_timeout: section
            .read(
                "request_timeout",
                taken.request_timeout,
                duration(100 * MS..=HOUR),
            )
            .value,
        handshake_timeout: section
            .read(
                "handshake_timeout",
                taken.handshake_timeout,
                duration(100 * MS..=HOUR),
            )
            .value,
        idle_timeout: section
            .read("idle_timeout", taken.idle_timeout, duration(SECOND..=DAY))
            .value,
    };
    section.finish();
    (bounds, reach)
}

/// `[etcd]`
struct EtcdStore {
    at: At,
    /// None where it is not given, or can't be read.
    settings: Option<etcd::Settings>,
    /// Whether what is missing has been complained about.
    told: bool,
}

impl EtcdStore {
    /// The store, for something that needs it.
    fn for_whom(&self, notes: &Notes, who: &At) -> Option<etcd::Settings> {
        if self.settings.is_none() && !self.told {
            let mistake = Mistake::new(
                format!("{} needs to know where etcd is", who.key),
                "add [etcd] with endpoints = [\"http://127.0.0.1:2379\"]",
            );
            notes.missing(&self.at, mistake);
        }
        self.settings.clone()
    }
}

fn etcd_store(mut section: Section<'_>) -> EtcdStore {
    let notes = section.notes();
    let endpoints = section.read("endpoints", Vec::new(), etcd_endpoints());
    let user = section.read("user", None, secret_text("root").optional());
    let password = section.read("password", None, secret_text("…").optional());
    let ca = section.read("ca", None, file().optional());
    let cert = section.read("cert", None, file().optional());
    let key = section.read("key", None, file().optional());
    let at = section.at().clone();
    section.finish();
    let mut told = !endpoints.sound;
    let mut pair = |one: &At, first: bool, second: bool, missing: &str| {
        if first != second {
            let message = format!("{missing} belongs to it and is not given");
            notes.error(one, Mistake::new(message, format!("give {missing} too")));
            told = true;
        }
    };
    pair(
        &user.at,
        user.value.is_some(),
        password.value.is_some(),
        "its counterpart of user and password",
    );
    pair(
        &cert.at,
        cert.value.is_some(),
        key.value.is_some(),
        "its counterpart of cert and key",
    );
    let credentials = user.value.zip(password.value);
    let mut settings = etcd::Settings::new(endpoints.value);
    settings.credentials = credentials.map(|(user, password)| etcd::Credentials { user, password });
    let mut read = |path: &Option<PathBuf>, at: &At| {
        let path = path.as_ref()?;
        std::fs::read(path)
            .map_err(|error| {
                let message = format!("{} can't be read: {error}", quoted(&path.to_string_lossy()));
                notes.error(
                    at,
                    Mistake::new(message, "give a PEM file that can be read"),
                );
                told = true;
            })
            .ok()
    };
    let authorities = read(&ca.value, &ca.at);
    let identity = read(&cert.value, &cert.at).zip(read(&key.value, &key.at));
    if let Some(authorities) = authorities {
        let identity = identity.as_ref().map(|(cert, key)| (&cert[..], &key[..]));
        match etcd::tls(&authorities, identity) {
            Ok(tls) => settings.tls = Some(tls),
            Err(error) => {
                let cure = "give certificates and keys in PEM";
                notes.error(&ca.at, Mistake::new(error.to_string(), cure));
                told = true;
            }
        }
    }
    EtcdStore {
        at,
        settings: (!settings.endpoints.is_empty()).then_some(settings),
        told,
    }
}

/// `[zookeeper]`
struct ZooKeeperStore {
    at: At,
    servers: Setting<Option<String>>,
    auth: Setting<Option<String>>,
}

fn zookeeper(mut section: Section<'_>) -> ZooKeeperStore {
    let servers = text("host:port,host:port/chroot", "127.0.0.1:2181", |given| {
        let (hosts, _) = given.split_once('/').unwrap_or((given, ""));
        let bad = |host: &&str| {
            host.rsplit_once(':')
                .is_none_or(|(name, port)| name.is_empty() || port.parse::<u16>().is_err())
        };
        match hosts.split(',').find(bad) {
            None => Ok(given.to_owned()),
            Some(host) => Err(Mistake::new(
                format!("{} has no host and port", quoted(host)),
                "write it as \"host:port,host:port/chroot\"",
            )),
        }
    });
    let store = ZooKeeperStore {
        at: section.at().clone(),
        servers: section.read("servers", None, servers.optional()),
        auth: section.read("auth", None, secret_text("digest:user:password").optional()),
    };
    section.finish();
    store
}

fn election(
    mut section: Section<'_>,
    address: &str,
    etcd: &EtcdStore,
    zookeeper: &ZooKeeperStore,
) -> Option<election::Settings> {
    const ENGINES: &[(&str, Engine)] = &[
        ("none", Engine::None),
        ("etcd", Engine::Etcd),
        ("zookeeper", Engine::ZooKeeper),
    ];
    let notes = section.notes();
    let engine = section.read("engine", Engine::None, choice(ENGINES));
    let key = section.read("key", "/tidegate/leases/master".to_owned(), key_path());
    let time_to_live = section.read(
        "time_to_live",
        TimeToLive::DEFAULT.get(),
        duration(TimeToLive::MIN.get()..=TimeToLive::MAX.get()),
    );
    section.finish();
    let place = match engine.value {
        Engine::None => Some(election::Place::OneNode),
        Engine::Etcd => etcd
            .for_whom(notes, &engine.at)
            .map(|store| election::Place::Etcd {
                store,
                key: key.value,
            }),
        Engine::ZooKeeper => zookeeper_place(notes, &engine.at, zookeeper, key.value),
    };
    Some(election::Settings {
        address: address.to_owned(),
        time_to_live: TimeToLive::new(time_to_live.value).unwrap_or_default(),
        place: place?,
    })
}

#[cfg(feature = "zookeeper")]
fn zookeeper_place(
    notes: &Notes,
    who: &At,
    store: &ZooKeeperStore,
    path: String,
) -> Option<election::Place> {
    let Some(servers) = &store.servers.value else {
        if store.servers.is_missing() {
            let mistake = Mistake::new(
                format!("{} needs to know where ZooKeeper is", who.key),
                "add [zookeeper] with servers = \"127.0.0.1:2181\"",
            );
            notes.missing(&store.at, mistake);
        }
        return None;
    };
    let mut settings = tidegate_runtime::zookeeper::Settings::new(servers.clone());
    if let Some(auth) = &store.auth.value {
        let Some((scheme, credentials)) = auth.split_once(':') else {
            let mistake = Mistake::new(
                "the credentials have no scheme",
                "write them as \"digest:user:password\"",
            );
            notes.error(&store.auth.at, mistake);
            return None;
        };
        settings.auth = Some((scheme.to_owned(), credentials.as_bytes().to_vec()));
    }
    Some(election::Place::ZooKeeper {
        store: settings,
        path,
    })
}

#[cfg(not(feature = "zookeeper"))]
fn zookeeper_place(
    notes: &Notes,
    who: &At,
    store: &ZooKeeperStore,
    _: String,
) -> Option<election::Place> {
    let _ = (&store.at, &store.servers, &store.auth);
    let mistake = Mistake::new(
        "this program was built without ZooKeeper",
        "build it with the feature \"zookeeper\", or elect through etcd",
    );
    notes.error(who, mistake);
    None
}

fn log(mut section: Section<'_>) -> telemetry::Settings {
    const FORMATS: &[(&str, Format)] = &[
        ("auto", Format::Auto),
        ("text", Format::Text),
        ("json", Format::Json),
    ];
    let format = section.read("format", Format::Auto, choice(FORMATS));
    let level = section.read("level", "info".to_owned(), level());
    section.finish();
    telemetry::Settings {
        format: format.value,
        level: level.value.as_str().into(),
        access: false,
    }
}

/// `[[resource]]`. None where something was complained about.
fn resources(section: &mut Section<'_>, source: &Setting<Option<Source>>) -> Option<Templates> {
    let notes = section.notes();
    let list = section.sections("resource", doorman::TEMPLATES_MAX)?;
    if source.value.is_some()
        && let Some(first) = list.first()
    {
        let mistake = Mistake::new(
            "resources says that the rules are elsewhere",
            "leave out either resources or [[resource]]",
        );
        notes.error(first.at(), mistake);
    }
    let mut raw = Vec::new();
    let mut places = Vec::new();
    for section in list {
        let (template, keys) = resource(section);
        raw.push(template);
        places.push(keys);
    }
    let mistakes = match Templates::new(raw, Catchall::Optional) {
        Ok(templates) => return Some(templates),
        Err(mistakes) => mistakes,
    };
    for mistake in mistakes {
        complain(notes, &places, mistake);
    }
    None
}

/// Where the keys of a rule stand, by the names that its mistakes have; and which of them
/// could not be read, so that they only seem to be missing.
#[derive(Default)]
struct Keys {
    index: String,
    /// By the name in a mistake: its name here, and its place.
    places: BTreeMap<String, (String, Place)>,
    unsound: Vec<String>,
}

impl Keys {
    fn note<T>(&mut self, name: &str, setting: &Setting<T>) {
        let own = setting.at.key.clone();
        self.places
            .insert(name.to_owned(), (own, setting.at.place.clone()));
        if !setting.sound {
            self.unsound.push(name.to_owned());
        }
    }
}

fn complain(notes: &Notes, places: &[Keys], mistake: TemplateMistake) {
    let keys = mistake.template.and_then(|at| places.get(at));
    let at = match keys {
        Some(keys) if keys.unsound.contains(&mistake.key) => return,
        Some(keys) => match keys.places.get(&mistake.key) {
            Some((key, place)) => At {
                key: key.clone(),
                place: place.clone(),
            },
            None => At {
                key: format!("{}.{}", keys.index, mistake.key),
                place: keys
                    .places
                    .get("")
                    .map_or(Place::Whole, |(_, place)| place.clone()),
            },
        },
        None => At {
            key: "resource".to_owned(),
            place: Place::Whole,
        },
    };
    notes.error(&at, doorman::told(&mistake.problem));
}

fn resource(mut section: Section<'_>) -> (RawTemplate, Keys) {
    let mut keys = Keys {
        index: section.at().key.clone(),
        ..Keys::default()
    };
    let whole = (section.at().key.clone(), section.at().place.clone());
    keys.places.insert(String::new(), whole);
    let glob = section.read("glob", None, plain_text("a glob", "disk-*").optional());
    keys.note("identifier_glob", &glob);
    let capacity = section.read("capacity", None, any_number().optional());
    keys.note("capacity", &capacity);
    let safe_capacity = section.read("safe_capacity", None, any_number().optional());
    keys.note("safe_capacity", &safe_capacity);
    let description = section.read(
        "description",
        None,
        plain_text("a text", "the old disk array").optional(),
    );
    let inner = section.section("algorithm");
    let algorithm = inner.is_given().then(|| algorithm(inner, &mut keys));
    section.finish();
    let template = RawTemplate {
        identifier_glob: glob.value,
        capacity: capacity.value,
        safe_capacity: safe_capacity.value,
        description: description.value,
        algorithm,
    };
    (template, keys)
}

/// `algorithm = { … }`: what is left out is as in a rule without one.
fn algorithm(mut section: Section<'_>, keys: &mut Keys) -> RawAlgorithm {
    const KINDS: &[(&str, &str)] = &[
        ("none", "NO_ALGORITHM"),
        ("static", "STATIC"),
        ("proportional_share", "PROPORTIONAL_SHARE"),
        ("fair_share", "FAIR_SHARE"),
    ];
    const FREES: &[(&str, &str)] = &[("confirmed", "confirmed"), ("at_once", "at_once")];
    let kind = section.read("kind", "FAIR_SHARE", choice(KINDS));
    keys.note("algorithm.kind", &kind);
    let lease = section.read("lease", 60, whole_seconds(SECOND));
    keys.note("algorithm.lease_length", &lease);
    let refresh = section.read("refresh", 16, whole_seconds(SECOND));
    keys.note("algorithm.refresh_interval", &refresh);
    let learning = section.read("learning", None, whole_seconds(Duration::ZERO).optional());
    keys.note("algorithm.learning_mode_duration", &learning);
    let frees_after = section.read(
        "frees_after",
        None,
        duration(Duration::ZERO..=DAY).optional(),
    );
    keys.note("algorithm.parameters.frees_after_ms", &frees_after);
    let mut parameters = Vec::new();
    let mut parameter = |name: &str, value: Option<String>| {
        parameters.extend(value.map(|value| RawParameter {
            name: name.to_owned(),
            value: Some(value),
        }));
    };
    let decay = section.read("decay_factor", None, any_number().optional());
    keys.note("algorithm.parameters.decay_factor", &decay);
    parameter("decay_factor", decay.value.map(|it| it.to_string()));
    let bands = section.read("priority_bands", None, flag().optional());
    parameter("priority_bands", bands.value.map(|it| it.to_string()));
    let frees = section.read("frees", None, choice(FREES).optional());
    keys.note("algorithm.parameters.frees", &frees);
    parameter("frees", frees.value.map(str::to_owned));
    parameter(
        "frees_after_ms",
        frees_after.value.map(|it| it.as_millis().to_string()),
    );
    let clients = section.read(
        "reserved_clients",
        None,
        integer(0..=1_000_000_000u64).optional(),
    );
    keys.note("algorithm.parameters.reserved_clients", &clients);
    parameter("reserved_clients", clients.value.map(|it| it.to_string()));
    let share = section.read("safe_share", None, any_number().optional());
    keys.note("algorithm.parameters.safe_share", &share);
    parameter("safe_share", share.value.map(|it| it.to_string()));
    let each = section.read("each", None, any_number().optional());
    keys.note("algorithm.parameters.capacity", &each);
    parameter("capacity", each.value.map(|it| it.to_string()));
    section.finish();
    RawAlgorithm {
        kind: Some(RawKind::Name(kind.value.to_owned())),
        lease_length: Some(lease.value),
        refresh_interval: Some(refresh.value),
        learning_mode_duration: learning.value,
        parameters,
    }
}

fn any_number() -> Kind<f64> {
    number("a number, 0 or more", Ok::<_, ()>)
}

/// A time of whole seconds, as the wire has it.
fn whole_seconds(least: Duration) -> Kind<i64> {
    let kind = duration(least..=YEAR);
    let read = kind.read;
    Kind {
        allowed: format!("{}, whole seconds", kind.allowed),
        read: Box::new(move |node| {
            let length = read(node)?;
            if length.subsec_nanos() > 0 {
                return Err(Mistake::new(
                    format!("{} is no whole number of seconds", node.told()),
                    "give whole seconds: the protocol has no shorter ones",
                ));
            }
            Ok(i64::try_from(length.as_secs()).unwrap_or(i64::MAX))
        }),
    }
}

fn plain_text(allowed: &str, example: &'static str) -> Kind<String> {
    text(allowed, example, |given| {
        if given.len() > 4_096 {
            let told = format!("it has {} bytes", given.len());
            return Err(Mistake::new(told, "give at most 4096"));
        }
        Ok(given.to_owned())
    })
}

/// A text that stands in no message.
fn secret_text(example: &'static str) -> Kind<String> {
    Kind {
        allowed: "a text".to_owned(),
        read: Box::new(move |node| match node.text() {
            Some(text) if !text.is_empty() => Ok(text.to_owned()),
            _ => Err(Mistake::new(
                "it is no text, or an empty one",
                format!("give a text in quotes, such as {}", quoted(example)),
            )),
        }),
    }
}

/// The name of a server.
fn id_text() -> Kind<String> {
    text("1 to 256 visible characters", "leases-1:9190", |given| {
        let visible = given.chars().all(|c| !c.is_control() && c != ' ');
        if given.is_empty() || given.len() > 256 || !visible {
            return Err(Mistake::new(
                format!("{} can't be a name", quoted(given)),
                "give 1 to 256 visible characters, such as \"leases-1:9190\"",
            ));
        }
        Ok(given.to_owned())
    })
}

/// A key of etcd, or a node of ZooKeeper.
fn key_path() -> Kind<String> {
    text("a path from /", "/tidegate/leases/master", |given| {
        if !given.starts_with('/') || given.len() < 2 || given.ends_with('/') {
            return Err(Mistake::new(
                format!("{} is no path", quoted(given)),
                "write it from /, such as \"/tidegate/leases/master\"",
            ));
        }
        Ok(given.to_owned())
    })
}

fn source() -> Kind<Source> {
    const EXAMPLE: &str = "file:/etc/tidegate/resources.yaml";
    text("file:PATH or etcd:/KEY", EXAMPLE, |given| {
        // As in Doorman: only the two prefixes are special, all else is the name of a file.
        let source = match (given.strip_prefix("etcd:"), given.strip_prefix("file:")) {
            (Some(key), _) => Source::Etcd(key.to_owned()),
            (None, Some(path)) => Source::File(path.into()),
            (None, None) => Source::File(given.into()),
        };
        let empty = match &source {
            Source::Etcd(key) => key.is_empty(),
            Source::File(path) => path.as_os_str().is_empty(),
        };
        if empty || given.contains('\0') {
            return Err(Mistake::new(
                format!("{} names nothing", quoted(given)),
                "give \"file:PATH\" or \"etcd:/KEY\"",
            ));
        }
        Ok(source)
    })
}

/// A list of what `one` reads.
fn list_of<T: 'static>(one: Kind<T>, what: &str, example: &'static str) -> Kind<Vec<T>> {
    Kind {
        allowed: format!("up to {ADDRESSES_MAX} of {what}"),
        read: Box::new(move |node: &Node| {
            let cure = || format!("give a list, such as [{}]", quoted(example));
            let Value::List(list) = &node.value else {
                let told = format!("{} is not an array", node.told());
                return Err(Mistake::new(told, cure()));
            };
            if list.len() > ADDRESSES_MAX {
                let told = format!("there are {} of them", list.len());
                return Err(Mistake::new(told, format!("give at most {ADDRESSES_MAX}")));
            }
            list.iter().map(|item| (one.read)(item)).collect()
        }),
    }
}

fn addresses() -> Kind<Vec<String>> {
    const EXAMPLE: &str = "leases-1:9190";
    let one = address(EXAMPLE);
    let read = one.read;
    let one = Kind {
        allowed: one.allowed,
        read: Box::new(move |node: &Node| read(node).map(|address| host_and_port(&address))),
    };
    list_of(one, "host:port", EXAMPLE)
}

fn host_and_port(address: &Address) -> String {
    match address {
        Address::Ip(address) => address.to_string(),
        Address::Name(name, port) => format!("{name}:{port}"),
        Address::Unix(path) => format!("unix:{}", path.display()),
    }
}

fn etcd_endpoints() -> Kind<Vec<etcd::Endpoint>> {
    const EXAMPLE: &str = "http://127.0.0.1:2379";
    let one = text("http://host:port", EXAMPLE, |given| {
        given.parse().map_err(|_| {
            Mistake::new(
                format!("{} is no address of etcd", quoted(given)),
                format!("write it as {}", quoted(EXAMPLE)),
            )
        })
    });
    list_of(one, "http://host:port", EXAMPLE)
}
