//! The options of the lease server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_runtime::election::TimeToLive;
use tidegate_runtime::etcd;

use tidegate::admin::hosts;
use tidegate::call::listener::{ClientAuth, address_or_off};
use tidegate::forward::BackendAddress;
use tidegate::options::kind::{
    DAY, HOUR, MIB, MS, SECOND, choice, duration, flag, integer, line, list, number, pem, secret,
    size, text,
};
use tidegate::options::shown::quoted;
use tidegate::options::{Mistake, Setting, ValueKind, options, words};
use tidegate::telemetry::{Format, level};
use tidegate_leases::book::Split;
use tidegate_leases::server::{NetworkBounds, RawAlgorithm, RawKind, ServerBounds, Unmatched};
use tidegate_leases::wire::{self, NamedParameter};

/// Longest lease.
const YEAR: Duration = Duration::from_secs(366 * 24 * 3_600);
/// Most parents, and members of a store.
const ADDRESSES_MAX: usize = 16;

words! {
    /// How the master is found.
    pub(super) enum Engine {
        None = "none",
        Etcd = "etcd",
        ZooKeeper = "zookeeper",
    }

    /// When a lowered share is free for others.
    pub(super) enum FreesAt {
        Confirmed = "confirmed",
        AtOnce = "at_once",
    }
}

words! {
    /// Decision on a resource without a rule.
    pub(super) enum WithoutRule { Grant = "grant", Refuse = "refuse", }

    /// How the capacity is shared.
    pub(super) enum SplitKind {
        None = "none",
        Static = "static",
        Proportional = "proportional_share",
        Fair = "fair_share",
    }
}

impl From<WithoutRule> for Unmatched {
    fn from(given: WithoutRule) -> Self {
        match given {
            WithoutRule::Grant => Self::Grant,
            WithoutRule::Refuse => Self::Refuse,
        }
    }
}

impl From<SplitKind> for Split {
    fn from(given: SplitKind) -> Self {
        match given {
            SplitKind::None => Self::None,
            SplitKind::Static => Self::Static,
            SplitKind::Proportional => Self::Proportional,
            SplitKind::Fair => Self::Fair,
        }
    }
}

/// Where the rules are.
#[derive(Clone, Debug)]
pub(super) enum RuleSource {
    File(PathBuf),
    Etcd(String),
}

options! {
    /// The addresses of the server, and its place among others.
    pub struct RootSection {
        /// The address for clients and child servers, over gRPC. Without [tls] and its client_auth it
        /// authenticates no client: then keep it on a network that you trust.
        bind: Option<SocketAddr> = address_or_off().or(Some(([127, 0, 0, 1], 9_190).into()));

        /// The address of the status page, its JSON, and metrics; "" for none.
        status_bind: Option<SocketAddr> =
            address_or_off().or(Some(([127, 0, 0, 1], 9_191).into()));

        /// Host names of the status address, besides IP addresses and localhost. A request with another
        /// name is refused, so that no web page can read the state through a browser. Add the name that
        /// Prometheus or a browser uses.
        status_allowed_hosts: Box<[Box<str>]> = hosts().or(Box::default());

        /// The address by which clients find this server when it is the master. Needed if bind is
        /// 0.0.0.0.
        address: Option<BackendAddress> = BackendAddress::kind("leases-1:9190").optional()
            .example("\"leases-1:9190\"");

        /// The name of this server at its parents. The candidates of one election share it, so that a
        /// new master continues with the capacity of the old one. The default is the address.
        id: Option<String> = server_id().optional().example("\"rack-7\"");

        /// The parent servers, any of which may be the master; none at the root.
        parents: Vec<BackendAddress> = list(
            ADDRESSES_MAX, "[\"leases-1:9190\"]", BackendAddress::kind("leases-1:9190"),
        ).described("up to 16 of host:port").or(Vec::new()).key("parent");

        /// The shortest time between two requests for one resource. An earlier request gets no answer
        /// about it, and the client keeps its lease.
        minimum_interval: Duration = duration(Duration::ZERO..=HOUR).or(5 * SECOND);

        /// What happens to an id that no rule matches. "grant" grants what it asks for, and counts it.
        /// "refuse" refuses the request.
        unmatched: WithoutRule = choice().or(WithoutRule::Grant);

        /// The rules in Doorman's own form, instead of [[resource]] below: "file:PATH" (YAML or JSON) or
        /// "etcd:/KEY", which is watched for changes.
        resources: Option<RuleSource> = source().optional()
            .example("\"file:/etc/tidegate/resources.yaml\"");
    }
}

options! {
    /// Bounds. A request beyond them is refused as a whole, and no other client is affected.
    pub struct BoundsSection {
        /// Resources in all.
        resources: usize = integer(1..=1_000_000).of("resources").or(ServerBounds::default().resources);

        /// How many of these one client may create by asking for them. An id that a rule names literally
        /// does not count, nor does one that the client has left and others hold. Raise it for a client
        /// that alone uses more.
        resources_per_client: usize = integer(1..=65_000).of("resources")
            .or(ServerBounds::default().resources_per_client);

        /// Leases over all resources.
        leases: usize = integer(1..=50_000_000).of("leases").or(ServerBounds::default().leases);

        /// Leases of one client, and resources in one request.
        leases_per_client: usize = integer(1..=100_000).of("leases")
            .or(ServerBounds::default().leases_per_client);

        /// Priorities in the request of a server.
        bands: usize = integer(1..=10_000).of("priorities").or(ServerBounds::default().bands);

        /// The longest id.
        id_bytes: usize = integer(1..=65_536).of("bytes").or(ServerBounds::default().id_bytes);

        /// Open connections. Further ones wait.
        connections: usize = integer(1..=1_000_000).of("connections")
            .or(NetworkBounds::default().connections);

        /// Requests at once. Further ones are refused.
        requests: usize = integer(1..=100_000).of("requests").or(NetworkBounds::default().requests);

        /// The largest request.
        message_bytes: usize = size(1 << 10..=64 * MIB).or(NetworkBounds::default().message_bytes);

        /// How long a request may take.
        request_timeout: Duration = duration(100 * MS..=HOUR)
            .or(NetworkBounds::default().request_timeout);

        /// How long a new connection may take to begin HTTP/2. After that it is closed, logged and
        /// counted.
        handshake_timeout: Duration = duration(100 * MS..=HOUR)
            .or(NetworkBounds::default().handshake_timeout);

        /// How long a connection may be without a request. After that it is closed and counted; clients
        /// connect again.
        idle_timeout: Duration = duration(SECOND..=DAY).or(NetworkBounds::default().idle_timeout);
    }
}

options! {
    /// TLS to clients and child servers. A reload reads the files again, for later connections. They
    /// set ca, and cert and key if client_auth is "required".
    pub struct ClientTlsSection {
        /// The certificate, followed by the chain to a known authority. All candidates of an election
        /// need the names by which clients find them. Required.
        cert: Option<PathBuf> = pem("/etc/tidegate/tls.crt").required(
            "there is no cert",
            "add cert = \"/etc/tidegate/tls.crt\", or leave tls out",
        ).example("\"/etc/tidegate/tls.crt\"");

        /// Its key, without a passphrase. Required.
        key: Option<PathBuf> = pem("/etc/tidegate/tls.key").required(
            "there is no key",
            "add key = \"/etc/tidegate/tls.key\", or leave tls out",
        ).example("\"/etc/tidegate/tls.key\"");

        /// The authorities that sign the certificates of clients. Required if clients are asked for
        /// one. No other authority is accepted.
        client_ca: Option<PathBuf> = pem("/etc/tidegate/clients.crt").optional()
            .example("\"/etc/tidegate/clients.crt\"");

        /// Whether clients are asked for a certificate. "optional" checks it if there is one.
        /// "required" closes a connection without a good one.
        client_auth: ClientAuth = choice().or(ClientAuth::Off).example("\"required\"");
    }
}

options! {
    /// The election of the master.
    pub struct ElectionSection {
        /// "none": this is the only server. "etcd" and "zookeeper": one of several candidates is the
        /// master.
        engine: Engine = choice().or(Engine::None);

        /// A key of etcd or a node of ZooKeeper, the same for all candidates, and used for nothing else.
        key: String = key_path().or("/tidegate/leases/master".to_owned());

        /// How long a silent master stays the master. A longer time survives longer trouble of the store,
        /// a shorter one hands over sooner.
        time_to_live: Duration = duration(TimeToLive::MIN.get()..=TimeToLive::MAX.get())
            .or(TimeToLive::DEFAULT.get());
    }
}

options! {
    /// etcd, for the election and for resources = "etcd:/KEY".
    pub struct EtcdSection {
        /// Its addresses.
        endpoints: Vec<etcd::Endpoint> = etcd_endpoints().or(Vec::new());

        /// The user name, if etcd asks for one.
        user: Option<String> = line(1024, "tidegate").optional().example("\"tidegate\"");

        /// The password of that user.
        password: Option<String> = secret("password", 1024).optional().example("\"…\"");
    }
}

options! {
    /// ZooKeeper, for the election.
    pub struct ZooKeeperSection {
        /// Its addresses.
        servers: Option<String> = zookeeper_servers().optional().example("\"127.0.0.1:2181\"");

        /// The credentials, if ZooKeeper asks for them.
        auth: Option<String> = secret("text", 1024).described("scheme:credentials").optional()
            .example("\"digest:user:password\"");
    }
}

options! {
    /// What the process logs, and how.
    pub struct LogSection {
        /// How a log line looks. "auto" writes text on a terminal and JSON elsewhere.
        format: Format = choice().or(Format::Auto);

        /// How much is logged. A filter such as "info,tidegate::forward=debug" logs more of one module.
        level: Box<str> = level().or("info".into());
    }
}

options! {
    /// A rule; one section for each. A resource has the rule whose glob equals its id, else the first
    /// rule that matches. * is any run without a /, ? one character, [a-z] one of a class.
    pub struct ResourceSection {
        /// The resources of this rule. Required.
        identifier_glob: Option<String> = plain("a glob", "disk-*").optional().key("glob")
            .line("\"disk-*\"");

        /// The capacity to share; for "static", of each client. Required.
        capacity: Option<f64> = any_number().optional().line("500");

        /// What a client may use that loses every server; -1 is no limit. The default is capacity /
        /// clients.
        safe_capacity: Option<f64> = any_number().optional().example("5");

        /// A text for people.
        description: Option<String> = plain("a text", "the old disk array").optional()
            .line("\"each disk array\"");
    }
}

options! {
    /// How the capacity is divided.
    pub struct AlgorithmSection {
        /// How the capacity is divided among the clients.
        kind: SplitKind = choice().or(SplitKind::Fair).line("\"fair_share\"");

        /// The length of a lease, not shorter than refresh.
        lease_length: Duration = whole_seconds(SECOND).or(60 * SECOND).key("lease").line("\"60s\"");

        /// When clients ask again.
        refresh_interval: Duration = whole_seconds(SECOND).or(16 * SECOND).key("refresh")
            .line("\"16s\"");

        /// How long a new master only collects the leases that exist. The default is the length of a
        /// lease and frees_after, in whole seconds.
        learning_mode_duration: Option<Duration> = whole_seconds(Duration::ZERO).optional()
            .key("learning").example("\"60s\"");
    }
}

options! {
    /// Parameters of the division.
    pub struct ParametersSection {
        /// Child servers tell their clients refresh times this factor, and so on at each level.
        decay_factor: Option<f64> = any_number().optional().line("0.5");

        /// Whether the greater priority is served first. A client that sends none has priority 0: it gets
        /// only what those with a greater priority leave. A child server of Doorman's sends 1 for all of
        /// its clients, and its clients send 0. So set this to false unless all clients, or none, send a
        /// priority. In the rules of Doorman's own form (resources above) it is off unless a rule
        /// switches it on.
        priority_bands: Option<bool> = flag().optional().line("true");

        /// When a lowered share is free for others. "confirmed": when its holder has confirmed the lower
        /// share. "at_once": immediately, as in Doorman; until the holder hears of it, more is used than
        /// there is.
        frees: Option<FreesAt> = choice().optional().line("\"confirmed\"");

        /// How long after that. For a limit on a window: the window and its guard.
        frees_after_ms: Option<Duration> = duration(Duration::ZERO..=DAY).optional()
            .key("frees_after").example("\"1s\"");

        /// The number of clients that always own safe_share each: new clients have it at once, also while
        /// a new master learns. The product of the two is set aside from capacity.
        reserved_clients: Option<u64> = integer(0..=1_000_000_000).of("clients").optional()
            .example("20");

        /// The share of each of these clients.
        safe_share: Option<f64> = any_number().optional().example("5");

        /// For "static": the share of each client, if not capacity.
        capacity: Option<f64> = any_number().optional().key("each").example("5");
    }
}

impl BoundsSection {
    pub(super) fn bounds(&self) -> ServerBounds {
        ServerBounds {
            resources: self.resources.value,
            resources_per_client: self.resources_per_client.value,
            leases: self.leases.value,
            leases_per_client: self.leases_per_client.value,
            bands: self.bands.value,
            id_bytes: self.id_bytes.value,
        }
    }

    pub(super) fn reach(&self) -> NetworkBounds {
        NetworkBounds {
            connections: self.connections.value,
            requests: self.requests.value,
            message_bytes: self.message_bytes.value,
            request_timeout: self.request_timeout.value,
            handshake_timeout: self.handshake_timeout.value,
            idle_timeout: self.idle_timeout.value,
        }
    }
}

impl AlgorithmSection {
    /// In the form of the protocol.
    pub(super) fn raw(&self, parameters: &ParametersSection) -> RawAlgorithm {
        RawAlgorithm {
            kind: Some(RawKind::Number(
                wire::algorithm::Kind::from(Split::from(self.kind.value)) as i64,
            )),
            lease_length: Some(wire::seconds(self.lease_length.value)),
            refresh_interval: Some(wire::seconds(self.refresh_interval.value)),
            learning_mode_duration: self.learning_mode_duration.value.map(wire::seconds),
            parameters: parameters.raw(),
        }
    }
}

impl ParametersSection {
    fn raw(&self) -> Vec<NamedParameter> {
        fn named<T: ToString>(name: &str, setting: &Setting<Option<T>>) -> Option<NamedParameter> {
            let value = setting.value.as_ref()?;
            Some(NamedParameter::new(name, value.to_string()))
        }
        let frees = self.frees.value.map(|frees| match frees {
            FreesAt::Confirmed => NamedParameter::new("frees", "confirmed"),
            FreesAt::AtOnce => NamedParameter::new("frees", "at_once"),
        });
        let frees_after = self.frees_after_ms.value;
        let parameters = [
            named("decay_factor", &self.decay_factor),
            named("priority_bands", &self.priority_bands),
            frees,
            frees_after.map(|it| NamedParameter::new("frees_after_ms", it.as_millis())),
            named("reserved_clients", &self.reserved_clients),
            named("safe_share", &self.safe_share),
            named("capacity", &self.capacity),
        ];
        parameters.into_iter().flatten().collect()
    }
}

pub(super) fn any_number() -> ValueKind<f64> {
    number("a number, 0 or more", Some, |number| *number)
}

/// A time of whole seconds, as the wire has it.
fn whole_seconds(least: Duration) -> ValueKind<Duration> {
    let kind = duration(least..=YEAR);
    let (read, show) = (kind.read, kind.show);
    ValueKind {
        allowed: format!("{}, whole seconds", kind.allowed),
        read: Box::new(move |node| {
            let length = read(node)?;
            if length.subsec_nanos() > 0 {
                let cause = format!("{} is no whole number of seconds", node.in_words());
                let cure = "give whole seconds: the protocol has no shorter ones";
                return Err(Mistake::new(cause, cure).into());
            }
            Ok(length)
        }),
        show,
    }
}

pub(super) fn plain(allowed: &'static str, example: &'static str) -> ValueKind<String> {
    text(allowed, example, |given| {
        if given.len() > 4_096 {
            return Err(Mistake::new(
                format!("it has {} bytes", given.len()),
                "give at most 4096",
            ));
        }
        Ok(given.to_owned())
    })
}

/// The name of a server.
fn server_id() -> ValueKind<String> {
    text("1 to 256 visible characters", "leases-1:9190", |given| {
        let visible = given.chars().all(|c| !c.is_control() && c != ' ');
        if given.is_empty() || given.len() > 256 || !visible {
            let cause = format!("{} can't be a name", quoted(given));
            let cure = "give 1 to 256 visible characters, such as \"leases-1:9190\"";
            return Err(Mistake::new(cause, cure));
        }
        Ok(given.to_owned())
    })
}

/// A key of etcd, or a node of ZooKeeper.
fn key_path() -> ValueKind<String> {
    text("a path from /", "/tidegate/leases/master", |given| {
        if !given.starts_with('/') || given.len() < 2 || given.ends_with('/') {
            let cause = format!("{} is no path", quoted(given));
            let cure = "write it from /, such as \"/tidegate/leases/master\"";
            return Err(Mistake::new(cause, cure));
        }
        Ok(given.to_owned())
    })
}

fn source() -> ValueKind<RuleSource> {
    let example = "file:/etc/tidegate/resources.yaml";
    let kind = text("file:PATH or etcd:/KEY", example, |given| {
        if matches!(given, "" | "etcd:" | "file:") || given.contains('\0') {
            let cause = format!("{} names nothing", quoted(given));
            return Err(Mistake::new(cause, "give \"file:PATH\" or \"etcd:/KEY\""));
        }
        Ok(given.to_owned())
    });
    // As in Doorman: only the two prefixes are special, all else is the name of a file.
    kind.map(
        |given| match (given.strip_prefix("etcd:"), given.strip_prefix("file:")) {
            (Some(key), _) => RuleSource::Etcd(key.to_owned()),
            (None, Some(path)) => RuleSource::File(path.into()),
            (None, None) => RuleSource::File(given.into()),
        },
        |source| match source {
            RuleSource::File(path) => format!("file:{}", path.display()),
            RuleSource::Etcd(key) => format!("etcd:{key}"),
        },
    )
}

fn etcd_endpoints() -> ValueKind<Vec<etcd::Endpoint>> {
    const EXAMPLE: &str = "http://127.0.0.1:2379";
    let one = text("http://host:port", EXAMPLE, |given| {
        given.parse().map_err(|_| {
            let cause = format!("{} is no address of etcd", quoted(given));
            Mistake::new(cause, format!("write it as {}", quoted(EXAMPLE)))
        })
    });
    let list = list(ADDRESSES_MAX, "[\"http://127.0.0.1:2379\"]", one);
    list.described("up to 16 of http://host:port or https://host:port")
}

fn zookeeper_servers() -> ValueKind<String> {
    text("host:port,host:port/chroot", "127.0.0.1:2181", |given| {
        let (hosts, _) = given.split_once('/').unwrap_or((given, ""));
        let is_bad = |host: &&str| {
            let parts = host.rsplit_once(':');
            parts.is_none_or(|(name, port)| name.is_empty() || port.parse::<u16>().is_err())
        };
        match hosts.split(',').find(is_bad) {
            None => Ok(given.to_owned()),
            Some(host) => {
                let cause = format!("{} has no host and port", quoted(host));
                Err(Mistake::new(
                    cause,
                    "write it as \"host:port,host:port/chroot\"",
                ))
            }
        }
    })
}
