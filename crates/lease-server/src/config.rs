//! Reads the config of `tidegate lease-server`: options as the sidecar has them, and Doorman's
//! own form for the rules.

mod doorman;
mod options;
mod rules;
mod yaml;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_leases::book::Split;
use tidegate_leases::server::{
    Frees, NetworkBounds, ServerSettings, Template, Templates, TreePlace as InTree,
};
use tidegate_leases::wire::Epoch;
use tidegate_runtime::election::{self, TimeToLive};
use tidegate_runtime::etcd;
use tidegate_runtime::tls::{TlsClient, TlsServer};
use tidegate_runtime::zookeeper;

use self::options::{
    BoundsSection, ClientTlsSection, ElectionSection, Engine, EtcdSection, LogSection, RootSection,
    RuleSource, ZooKeeperSection,
};
use tidegate::config::certificates::{self, Files};
use tidegate::config::checks::asks_with_an_authority;
use tidegate::config::part::ConfigPart;
use tidegate::config::server_tls::{Inside, ServerTlsSection};
use tidegate::config::{LoadError, read_text};
use tidegate::options::{
    Catalogue, ConfigForm, ConfigReader, Notes, OptionMark, Options, Problems, Section, Toml,
};
use tidegate::telemetry::{self, Format};

pub use doorman::templates;

/// Where the config is looked for.
pub const DEFAULT_PATH: &str = "/etc/tidegate/lease-server.toml";

/// The file that lists every option.
pub const FORM: ConfigForm = ConfigForm {
    reference: "config.lease-server.toml.example",
    elsewhere: &[
        "listen",
        "backend",
        "limits",
        "queue",
        "admin",
        "quota",
        "quota_store",
    ],
    cure: "that is of a sidecar: check its file with `tidegate check --config FILE`",
    every: catalogue,
    former: |_, _| Vec::new(),
};
/// Descriptors that are not for clients.
const DESCRIPTORS_KEPT: u64 = 128;

/// Everything that the config decides, checked.
#[derive(Clone, Debug)]
pub struct LeaseServerSettings {
    /// Where clients ask.
    pub bind: SocketAddr,
    /// Where there is something to see, if anywhere.
    pub status_bind: Option<SocketAddr>,
    /// Names by which the status address may be asked, besides IP addresses and those of loopback.
    pub status_allowed_hosts: Arc<[Box<str>]>,
    /// Set if clients use TLS.
    pub tls: Option<TlsServer>,
    /// The servers above, `host:port`; none at the root.
    pub parents: Vec<String>,
    /// Set if the servers above use TLS.
    pub parent_tls: Option<TlsClient>,
    /// The bounds of the network.
    pub reach: NetworkBounds,
    /// How the master is found.
    pub election: election::ElectionSettings,
    /// Where the rules are.
    pub rules: Rules,
    /// Settings of logs.
    pub telemetry: telemetry::LogSettings,
    /// Every option in effect except the rules, as TOML without secrets.
    pub shown: Arc<str>,
    /// The settings of the machine, except the time.
    machine: ServerSettings,
}

/// Where the rules are.
#[derive(Clone, Debug)]
pub enum Rules {
    /// In the config itself.
    Here(Templates),
    /// In a file in Doorman's form.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The templates of the file.
        templates: Templates,
    },
    /// In a key of etcd, in Doorman's form.
    Etcd {
        /// Where etcd is.
        store: etcd::EtcdSettings,
        /// The key.
        key: String,
    },
}

/// A config without an error.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    /// The settings.
    pub config: LeaseServerSettings,
    /// Options that work and were probably not meant.
    pub warnings: Problems,
}

impl LeaseServerSettings {
    /// The settings of the machine, at a process's start.
    #[must_use]
    pub fn machine(&self, epoch: Epoch) -> ServerSettings {
        ServerSettings {
            epoch,
            ..self.machine.clone()
        }
    }

    /// Takes over the certificates of a later config, for later connections. Whether there is TLS at
    /// all stays as it is.
    pub fn renew_certificates(&self, later: &Self) {
        if let (Some(own), Some(later)) = (&self.tls, &later.tls) {
            own.renew(later);
        }
        let stores = |config: &Self| {
            let rules = match &config.rules {
                Rules::Etcd { store, .. } => store.tls.clone(),
                _ => None,
            };
            [
                config.parent_tls.clone(),
                config.election.place.tls().cloned(),
                rules,
            ]
        };
        for both in stores(self).into_iter().zip(stores(later)) {
            if let (Some(own), Some(later)) = both {
                own.renew(&later);
            }
        }
    }

    /// How many connections fit where the process may open this many descriptors, if that is fewer
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

/// Reads the config in a file, and the rules in the file that it names.
///
/// # Errors
///
/// A file that can't be read, is no UTF-8 or is larger than 1 MiB; or every mistake in it.
pub fn load(path: &Path) -> Result<LoadedConfig, LoadError> {
    let text = read_text(path)?;
    let origin = path.display().to_string();
    let (mut config, warnings) = read(&text, &origin)?;
    if let Rules::File { path, templates } = &mut config.rules {
        *templates = load_templates(path)?;
    }
    Ok(LoadedConfig { config, warnings })
}

/// The log format of a config that has mistakes elsewhere. The default if even this cannot be read.
#[must_use]
pub fn log_format(path: &Path) -> Format {
    let text = read_text(path).unwrap_or_default();
    let reading = ConfigReader::of(&text, FORM);
    let log: LogSection = reading.root().section("log").read();
    log.format.value
}

/// Reads rules in Doorman's form from a file.
///
/// # Errors
///
/// As [`load`].
pub fn load_templates(path: &Path) -> Result<Templates, LoadError> {
    let text = read_text(path)?;
    Ok(templates(&text, &path.display().to_string())?)
}

/// Reads a config. Rules in a file of their own are left for [`load_templates`]. `origin` is the
/// name of the file, for messages.
///
/// # Errors
///
/// Every mistake, warnings included.
pub fn read(text: &str, origin: &str) -> Result<(LeaseServerSettings, Problems), Problems> {
    let mut reading = ConfigReader::of(text, FORM);
    let config = root(&reading.root());
    let problems = Problems::new(origin, text, reading.problems());
    match config {
        Some(config) if !problems.has_error() => Ok((config, problems)),
        _ => Err(problems),
    }
}

/// Every option there is.
#[must_use]
pub fn catalogue() -> Catalogue {
    let reading = ConfigReader::of("[[resource]]\nalgorithm = {}\n", FORM);
    root(&reading.root());
    reading.catalogue()
}

/// The text of `config.lease-server.toml.example`.
#[must_use]
pub fn example() -> String {
    catalogue().every_option(
        "\
tidegate lease-server: leases shares of a capacity, on Doorman's wire.
Every option, with its default; docs/how-to/leases.md explains more. Generated from the source: change
an option there, and run `make docs`. Check a config with
    tidegate lease-server --check --config FILE
",
    )
}

/// The text of `docs/reference/lease-server-options.md`.
#[must_use]
pub fn reference() -> String {
    catalogue().reference(
        "\
# Options of the lease server

Every option of `tidegate lease-server`. [Leases](../how-to/leases.md) explains how to begin, and
[config.lease-server.toml.example](../../config.lease-server.toml.example) is the same list as a file.
Generated from the source: change an option there, and run `make docs`.

",
        false,
    )
}

/// Every option there is, by its path, with what it allows in words.
#[must_use]
pub fn options() -> BTreeMap<String, String> {
    catalogue().allowed()
}

/// `None` only where something was reported.
fn root(section: &Section<'_>) -> Option<LeaseServerSettings> {
    let notes = section.notes();
    let mut own = RootSection::read(section);
    let bounds: BoundsSection = section.section("bounds").read();
    let elected: ElectionSection = section.section("election").read();
    let etcd = Etcd::read(&section.section("etcd"));
    let zookeeper = ZooKeeper::read(&section.section("zookeeper"));
    let log: LogSection = section.section("log").read();
    let tls: ClientTlsSection = section.section("tls").aside().read();
    let tls_loaded = client_tls(&tls, notes);
    let parent_tls: ServerTlsSection = section.section("parent_tls").read();
    let parent_tls_loaded = parent_tls.load(Inside::Http2, notes);
    if let Some(ca) = Some(&parent_tls.ca).filter(|ca| ca.given)
        && own.parents.value.is_empty()
        && own.parents.sound
    {
        let cure = "leave it out, or add parent = [\"host:port\"]";
        notes.error(ca, "it has no effect without a parent", cure);
    }
    let templates = rules::read(section, &own.resources);

    let address = address(&own, notes);
    if let Some(open) = own.status_bind.value.filter(|it| !it.ip().is_loopback()) {
        let cause = format!("a client that reaches {open} can read who holds what");
        let cure = "give a loopback address, or keep others off by a firewall";
        notes.warn(&own.status_bind, cause, cure);
    }
    let election = election(&elected, &address, &etcd, &zookeeper, notes);
    let parents: Vec<String> = own.parents.value.iter().map(ToString::to_string).collect();
    let rules = rules_of(&own, templates, &etcd, notes);
    let (Some(bind), Some(election), Some(rules)) = (own.bind.value, election, rules) else {
        return None;
    };
    let id = own.id.value.get_or_insert_with(|| address.clone()).clone();
    let mut shown = Toml::default();
    own.write(&mut shown);
    bounds.write_under("bounds", &mut shown);
    elected.write_under("election", &mut shown);
    etcd.write(&mut shown);
    zookeeper.write(&mut shown);
    log.write_under("log", &mut shown);
    if tls.section.given {
        tls.write_under("tls", &mut shown);
    }
    if parent_tls.ca.value.is_some() {
        parent_tls.write_under("parent_tls", &mut shown);
    }
    let (shown, _) = shown.finish();
    Some(LeaseServerSettings {
        bind,
        tls: tls_loaded?,
        parent_tls: parent_tls_loaded?,
        status_bind: own.status_bind.value,
        status_allowed_hosts: own.status_allowed_hosts.value.iter().cloned().collect(),
        reach: bounds.reach(),
        election,
        rules,
        telemetry: telemetry::LogSettings {
            format: log.format.value,
            level: log.level.value,
            access: false,
            replay: false,
        },
        machine: ServerSettings {
            id,
            address,
            place: if parents.is_empty() {
                InTree::Root
            } else {
                InTree::Below
            },
            epoch: Epoch::new(tidegate_limits::Timestamp::ZERO, Duration::ZERO),
            minimum_interval: own.minimum_interval.value,
            unmatched: own.unmatched.value.into(),
            bounds: bounds.bounds(),
        },
        parents,
        shown: shown.into(),
    })
}

/// TLS to clients. None inside without it; none at all where something is wrong, which is noted.
fn client_tls(section: &ClientTlsSection, notes: &Notes) -> Option<Option<TlsServer>> {
    if !section.section.given {
        return Some(None);
    }
    asks_with_an_authority(&section.client_auth, &section.client_ca, notes);
    let files = Files {
        cert: &section.cert,
        key: &section.key,
        client_ca: &section.client_ca,
        client_auth: &section.client_auth,
        inside: Some(b"h2"),
    };
    let config = certificates::read_files(&files, notes)?;
    Some(Some(TlsServer::new(config)))
}

/// Where the rules are, and those of the config itself.
fn rules_of(
    own: &RootSection,
    templates: Option<Templates>,
    etcd: &Etcd,
    notes: &Notes,
) -> Option<Rules> {
    match (&own.resources.value, templates) {
        (Some(RuleSource::File(path)), _) => Some(Rules::File {
            path: path.clone(),
            templates: Templates::default(),
        }),
        (Some(RuleSource::Etcd(key)), _) => {
            let store = etcd.needed_by(&own.resources, notes);
            store.map(|store| Rules::Etcd {
                store,
                key: key.clone(),
            })
        }
        (None, Some(templates)) => {
            if templates.in_order().is_empty() && own.parents.value.is_empty() && own.parents.sound
            {
                let cause = "there are no resources, and no parent server";
                let cure = "add [[resource]], or resources = \"file:/…\", or parent = \
                            [\"host:port\"]";
                notes.missing(&own.section, cause, cure);
            }
            Some(Rules::Here(templates))
        }
        (None, None) => None,
    }
}

/// Where clients find this server.
fn address(own: &RootSection, notes: &Notes) -> String {
    if own.bind.sound && own.bind.value.is_none() {
        let cure = "give one, such as \"127.0.0.1:9190\"";
        notes.error(&own.bind, "there is no address to listen on", cure);
    }
    match (&own.address.value, own.bind.value) {
        (Some(address), _) => address.to_string(),
        (None, Some(bind)) => {
            if bind.ip().is_unspecified() && own.address.sound {
                let cause = format!("clients can't be sent to {bind}");
                let cure = "give the address by which they find this server, such as \
                            \"leases-1:9190\"";
                notes.error(&own.address, cause, cure);
            }
            bind.to_string()
        }
        (None, None) => String::new(),
    }
}

/// `[etcd]`
struct Etcd {
    options: EtcdSection,
    tls: ServerTlsSection,
    /// The settings; `None` where they are not given, or can't be read.
    settings: Option<etcd::EtcdSettings>,
    /// Whether what is missing has been reported.
    cause: bool,
}

impl Etcd {
    /// Writes the section, if it is given.
    fn write(&self, shown: &mut Toml) {
        if self.settings.is_some() {
            self.options.write_under("etcd", shown);
            self.tls.write_under("etcd", shown);
        }
    }

    fn read(section: &Section<'_>) -> Self {
        let notes = section.notes();
        let (own, tls): (EtcdSection, ServerTlsSection) = (section.read(), section.read());
        let mut cause = !own.endpoints.sound;
        let (user, password) = (&own.user.value, &own.password.value);
        if user.is_some() != password.is_some() {
            let told_of = "its counterpart of user and password is missing";
            notes.error(&own.user, told_of, "give user and password, or neither");
            cause = true;
        }
        let mut settings = etcd::EtcdSettings::new(own.endpoints.value.clone());
        let credentials = user.clone().zip(password.clone());
        settings.credentials = credentials
            .map(|(user, password)| etcd::Credentials { user, password })
            .into();
        let secured = own.endpoints.value.iter().map(ToString::to_string);
        let secured = secured.map(|endpoint| endpoint.starts_with("https:"));
        let secured: Vec<bool> = secured.collect();
        if secured.contains(&true) && tls.ca.is_missing() {
            let cause = "the authorities that sign the certificates of etcd are missing";
            let cure = "add ca = \"/etc/tidegate/store-ca.pem\" to [etcd]";
            notes.missing(&own.endpoints, cause, cure);
        } else if !secured.is_empty() && !secured.contains(&true) && tls.ca.given {
            let cause = "it has no effect: no endpoint asks for TLS";
            notes.error(
                &tls.ca,
                cause,
                "write the endpoints with https://, or leave it out",
            );
        }
        match tls.load(Inside::Http2, notes) {
            Some(tls) => settings.tls = tls,
            None => cause = true,
        }
        Self {
            settings: (!settings.endpoints.is_empty()).then_some(settings),
            options: own,
            tls,
            cause,
        }
    }

    /// The store, for an option that needs it.
    fn needed_by(&self, option: &OptionMark, notes: &Notes) -> Option<etcd::EtcdSettings> {
        if self.settings.is_none() && !self.cause {
            let cause = format!("{} needs the address of etcd", option.key);
            let cure = "add [etcd] with endpoints = [\"http://127.0.0.1:2379\"]";
            notes.missing(&self.options.section, cause, cure);
        }
        self.settings.clone()
    }
}

fn election(
    section: &ElectionSection,
    address: &str,
    etcd: &Etcd,
    zookeeper: &ZooKeeper,
    notes: &Notes,
) -> Option<election::ElectionSettings> {
    let (engine, key) = (&section.engine, section.key.value.clone());
    let place = match engine.value {
        Engine::None => Some(election::ElectionStore::OneNode),
        Engine::Etcd => {
            let store = etcd.needed_by(engine, notes);
            store.map(|store| election::ElectionStore::Etcd { store, key })
        }
        Engine::ZooKeeper => {
            let store = zookeeper.needed_by(engine, notes);
            store.map(|store| election::ElectionStore::ZooKeeper { store, path: key })
        }
    };
    Some(election::ElectionSettings {
        address: address.to_owned(),
        time_to_live: TimeToLive::new(section.time_to_live.value).unwrap_or_default(),
        place: place?,
    })
}

/// `[zookeeper]`
struct ZooKeeper {
    options: ZooKeeperSection,
    tls: ServerTlsSection,
    /// The loaded files; `None` where something is wrong with them, which has been noted.
    loaded: Option<Option<TlsClient>>,
}

impl ZooKeeper {
    /// Writes the section, if it is given.
    fn write(&self, shown: &mut Toml) {
        if self.options.servers.value.is_some() {
            self.options.write_under("zookeeper", shown);
            self.tls.write_under("zookeeper", shown);
        }
    }

    fn read(section: &Section<'_>) -> Self {
        let (options, tls): (ZooKeeperSection, ServerTlsSection) = (section.read(), section.read());
        Self {
            options,
            loaded: tls.load(Inside::Other, section.notes()),
            tls,
        }
    }

    /// The store, for an option that needs it.
    fn needed_by(
        &self,
        option: &OptionMark,
        notes: &Notes,
    ) -> Option<zookeeper::ZooKeeperSettings> {
        let ZooKeeperSection {
            section,
            servers,
            auth,
        } = &self.options;
        let Some(addresses) = &servers.value else {
            if servers.is_missing() {
                let cause = format!("{} needs the address of ZooKeeper", option.key);
                let cure = "add [zookeeper] with servers = \"127.0.0.1:2181\"";
                notes.missing(section, cause, cure);
            }
            return None;
        };
        let mut store = zookeeper::ZooKeeperSettings::new(addresses.clone());
        store.tls.clone_from(self.loaded.as_ref()?);
        if let Some(text) = &auth.value {
            let Some((scheme, credentials)) = text.split_once(':') else {
                let cure = "write them as \"digest:user:password\"";
                notes.error(auth, "the credentials have no scheme", cure);
                return None;
            };
            store.auth = Some((scheme.to_owned(), credentials.as_bytes().to_vec())).into();
        }
        Some(store)
    }
}
