//! Every section of the sidecar's config: each is read, and written as the config in effect.

use crate::admin;
use crate::admit::options::{
    CLASSES_MAX, ClassSection, LimitsSection, PromoteSection, QueueSection,
};
use crate::call::listener::{LISTENERS_MAX, ListenSection, Tls, TlsSection};
use crate::call::{Listener, Protocol};
use crate::callers::options::{CALLERS_MAX, CallerSection, CallersSection, CostsSection};
use crate::callers::rate_limit::RATE_LIMITS_MAX;
use crate::callers::rate_limit::options::{QuotaSection, RateLimitSection};
use crate::callers::rate_limit::profiles::Profiles;
use crate::classify::options::{
    ExemptSection, HeaderSection, KindSection, ListenerClassSection, PathsSection, PlacedSection,
    ROUTES_MAX, RouteSection,
};
use crate::coalesce;
use crate::forward::options::{BackendSection, BoundsSection};
use crate::listen::ServerSection;
use crate::options::{At, Options, Reading, Section, Toml, write_section};
use crate::protocol::ClientSection;
use crate::protocol::trusted::ProxiesSection;
use crate::tasks;
use crate::telemetry;

use super::certificates;
use super::coordinate::Coordinate;
use super::quota_store::QuotaStore;

/// The whole config, as it was given.
pub(super) struct Sections {
    pub(super) server: ServerSection,
    /// None where the listeners can't be read.
    pub(super) listen: Option<Vec<Listen>>,
    /// Where listeners would stand.
    pub(super) listen_at: At,
    pub(super) client: ClientSection,
    pub(super) paths: PathsSection,
    pub(super) proxies: ProxiesSection,
    pub(super) callers: CallersSection,
    pub(super) caller: Vec<CallerSection>,
    pub(super) rate_limits: Vec<RateLimit>,
    pub(super) costs: CostsSection,
    pub(super) profiles: Profiles,
    pub(super) kind: KindSection,
    pub(super) backend: BackendSection,
    pub(super) bounds: BoundsSection,
    pub(super) queue: QueueSection,
    pub(super) limits: LimitsSection,
    pub(super) exempt: ExemptSection,
    pub(super) header: HeaderSection,
    pub(super) promote: PromoteSection,
    pub(super) classes: Vec<Class>,
    pub(super) coalesce: coalesce::Section,
    pub(super) tasks: tasks::Section,
    pub(super) coordinate: Coordinate,
    pub(super) quota: QuotaStore,
    pub(super) admin: admin::Section,
    pub(super) log: telemetry::Section,
    pub(super) routes: Vec<RouteSection>,
}

/// `[[listen]]`
pub(super) struct Listen {
    pub(super) listen: ListenSection,
    pub(super) class: ListenerClassSection,
    pub(super) tls: TlsSection,
    /// None without TLS, and where a file is missing or bad, which has been noted.
    pub(super) loaded: Option<Tls>,
}

/// `[[rate_limit]]`
pub(super) struct RateLimit {
    pub(super) limit: RateLimitSection,
    pub(super) quota: QuotaSection,
}

/// `[[class]]`
pub(super) struct Class {
    pub(super) class: ClassSection,
    pub(super) placed: PlacedSection,
}

impl Sections {
    pub(super) fn read(reading: &Reading) -> Self {
        let root = reading.root();
        let server = root.section("server").read();
        let listen = root.sections("listen", LISTENERS_MAX);
        let (client, callers) = (root.section("client"), root.section("callers"));
        Self {
            server,
            listen: listen.map(|list| list.iter().map(Listen::read).collect()),
            listen_at: root.mark().inside("listen"),
            client: client.read(),
            paths: client.read(),
            proxies: callers.read(),
            callers: callers.read(),
            caller: root.each("caller", CALLERS_MAX, CallerSection::read),
            rate_limits: root.each("rate_limit", RATE_LIMITS_MAX, |it| RateLimit {
                limit: it.read(),
                quota: it.read(),
            }),
            costs: root.section("costs").read(),
            profiles: Profiles::read(&root.section("profiles")),
            kind: root.section("backend").read(),
            backend: root.section("backend").read(),
            bounds: root.section("backend").read(),
            queue: root.section("queue").read(),
            limits: root.section("limits").read(),
            exempt: root.section("limits").read(),
            header: root.section("classes").read(),
            promote: root.section("classes").read(),
            classes: root.each("class", CLASSES_MAX, Class::read),
            coalesce: root.section("coalesce").read(),
            tasks: root.section("tasks").read(),
            coordinate: Coordinate::read(&root.section("coordinate").aside()),
            quota: QuotaStore::read(&root.section("quota").aside()),
            admin: root.section("admin").read(),
            log: root.section("log").read(),
            routes: root.each("route", ROUTES_MAX, RouteSection::read),
        }
    }

    /// The config in effect as TOML, defaults filled in. Secrets are hidden; apart from them,
    /// reading the text gives the same config again.
    pub(super) fn write(&self) -> String {
        let mut out = Toml::default();
        write_section(&mut out, "[server]", &[&self.server]);
        for listener in self.listen.iter().flatten() {
            write_section(&mut out, "[[listen]]", &[&listener.listen, &listener.class]);
            if listener.tls.section.given {
                write_section(&mut out, "[listen.tls]", &[&listener.tls]);
            }
        }
        write_section(&mut out, "[client]", &[&self.client, &self.paths]);
        write_section(&mut out, "[callers]", &[&self.proxies, &self.callers]);
        write_section(&mut out, "[costs]", &[&self.costs]);
        out.header("[profiles]");
        self.profiles.write(&mut out);
        for RateLimit { limit, quota } in &self.rate_limits {
            write_section(&mut out, "[[rate_limit]]", &[limit, quota]);
        }
        for caller in &self.caller {
            write_section(&mut out, "[[caller]]", &[caller]);
        }
        self.quota.write(&mut out);
        write_section(
            &mut out,
            "[backend]",
            &[&self.kind, &self.backend, &self.bounds],
        );
        write_section(&mut out, "[queue]", &[&self.queue]);
        write_section(&mut out, "[limits]", &[&self.limits, &self.exempt]);
        write_section(&mut out, "[classes]", &[&self.header, &self.promote]);
        for Class { class, placed } in &self.classes {
            write_section(&mut out, "[[class]]", &[class, placed]);
        }
        write_section(&mut out, "[coalesce]", &[&self.coalesce]);
        write_section(&mut out, "[tasks]", &[&self.tasks]);
        self.coordinate.write(&mut out);
        write_section(&mut out, "[admin]", &[&self.admin]);
        write_section(&mut out, "[log]", &[&self.log]);
        for route in &self.routes {
            write_section(&mut out, "[[route]]", &[route]);
        }
        out.finish()
    }
}

impl Class {
    pub(super) fn read(section: &Section<'_>) -> Self {
        Self {
            class: section.read(),
            placed: section.read(),
        }
    }
}

impl Listen {
    fn read(section: &Section<'_>) -> Self {
        let listen: ListenSection = section.read();
        let class = section.read();
        let mut tls: TlsSection = section.section("tls").aside().read();
        let protocol = listen.protocol.value;
        tls.required.value.get_or_insert(protocol != Protocol::Auto);
        let loaded = certificates::load(&tls, protocol, section.notes());
        Self {
            loaded: loaded.map(|loaded| tls.tls(loaded)),
            listen,
            class,
            tls,
        }
    }

    /// The listener, of a config without an error.
    pub(super) fn listener(&self) -> Listener {
        let is_loaded = self.loaded.is_some() || !self.tls.section.given;
        assert!(is_loaded, "files that can't be used are an error");
        self.listen.settings(self.loaded.clone())
    }
}
