//! Every section of the sidecar's config: each is read, and written as the config in effect.

use tidegate_callers::Label;

use crate::admin;
use crate::admit::options::{
    CLASSES_MAX, ClassSection, LimitsSection, PromoteSection, QueueSection,
};
use crate::call::jobs::JobsSection;
use crate::call::listener::{LISTENERS_MAX, ListenSection, ListenerTls, TlsSection};
use crate::call::{Listener, Protocol};
use crate::callers::options::{CALLERS_MAX, CallerSection, CallersSection, CostsSection};
use crate::callers::rate_limit::RATE_LIMITS_MAX;
use crate::callers::rate_limit::options::{BucketSection, PaceSection, QuotaSection};
use crate::callers::rate_limit::profiles::Profiles;
use crate::callers::settings::QUOTAS_MAX;
use crate::classify::options::{
    ExemptSection, HeaderSection, KindSection, ListenerClassSection, PathsSection, PlacedSection,
    ROUTES_MAX, RouteSection,
};
use crate::coalesce;
use crate::forward::options::{BackendSection, BoundsSection};
use crate::listen::ServerSection;
use crate::options::{ConfigReader, Options, Restarts, Section, Toml};
use crate::protocol::ClientSection;
use crate::protocol::forwarded_options::ForwardedSection;
use crate::protocol::trusted::ProxiesSection;
use crate::tasks;
use crate::telemetry;

use super::backend_tls::BackendTlsFiles;
use super::certificates;
use super::coordinate::Coordinate;
use super::part::{ConfigPart, NamedPart};
use super::quota_store::QuotaStore;
use super::servers::BackendServers;

macro_rules! sections {
    ($($(#[$about:meta])* $part:ident: $Part:ty = $key:literal;)*) => {
        /// The whole config, as it was given, in the order of the example.
        pub(super) struct Sections {
            $($(#[$about])* pub(super) $part: $Part,)*
        }

        impl Sections {
            pub(super) fn read(reading: &ConfigReader) -> Self {
                let root = reading.root();
                Self { $($part: ConfigPart::read_from(&root, $key),)* }
            }

            /// The config in effect as TOML, defaults filled in, and what of it needs a restart.
            /// Secrets are hidden; apart from them, reading the text gives the same config again.
            pub(super) fn write(&self) -> (String, Restarts) {
                let mut out = Toml::default();
                $(self.$part.write_under($key, &mut out);)*
                out.finish()
            }
        }
    };
}

sections! {
    server: ServerSection = "server";
    /// `None` if the listeners cannot be read.
    listen: Option<Vec<Listen>> = "listen";
    client: ClientSection = "client";
    paths: PathsSection = "client";
    forwarded: ForwardedSection = "forwarded";
    proxies: ProxiesSection = "callers";
    callers: CallersSection = "callers";
    caller: Vec<CallerSection> = "caller";
    buckets: Vec<BucketSection> = "bucket";
    paces: Vec<PaceSection> = "pace";
    quotas: Vec<QuotaSection> = "quota";
    costs: CostsSection = "costs";
    profiles: Profiles = "profiles";
    kind: KindSection = "backend";
    backend: BackendSection = "backend";
    bounds: BoundsSection = "backend";
    servers: BackendServers = "backend";
    backend_tls: BackendTlsFiles = "backend";
    queue: QueueSection = "queue";
    limits: LimitsSection = "limits";
    exempt: ExemptSection = "limits";
    header: HeaderSection = "classes";
    promote: PromoteSection = "classes";
    classes: Vec<Class> = "class";
    coalesce: coalesce::CoalesceSection = "coalesce";
    tasks: tasks::TasksSection = "tasks";
    jobs: JobsSection = "jobs";
    coordinate: Coordinate = "coordinate";
    quota_store: QuotaStore = "quota_store";
    admin: admin::AdminSection = "admin";
    log: telemetry::LogSection = "log";
    trace: telemetry::spans::TraceSection = "trace";
    routes: Vec<RouteSection> = "route";
}

/// `[[listen]]`
pub(super) struct Listen {
    pub(super) listen: ListenSection,
    pub(super) class: ListenerClassSection,
    pub(super) tls: TlsSection,
    /// The loaded files; `None` without TLS, and where a file is missing or bad, which has been noted.
    pub(super) loaded: Option<ListenerTls>,
}

/// `[[class]]`
pub(super) struct Class {
    pub(super) class: ClassSection,
    pub(super) placed: PlacedSection,
}

impl NamedPart for CallerSection {
    const MAX: usize = CALLERS_MAX;

    fn name(&self) -> Option<&str> {
        self.label.value.as_ref().map(Label::as_str)
    }
}

impl NamedPart for BucketSection {
    const MAX: usize = RATE_LIMITS_MAX;

    fn name(&self) -> Option<&str> {
        self.name.value.as_deref()
    }
}

impl NamedPart for PaceSection {
    const MAX: usize = RATE_LIMITS_MAX;

    fn name(&self) -> Option<&str> {
        self.name.value.as_deref()
    }
}

/// A call may meet all of them.
impl NamedPart for QuotaSection {
    const MAX: usize = QUOTAS_MAX;

    fn name(&self) -> Option<&str> {
        self.name.value.as_deref()
    }
}

impl NamedPart for Class {
    const MAX: usize = CLASSES_MAX;

    fn name(&self) -> Option<&str> {
        self.class.name.value.as_deref()
    }
}

impl NamedPart for RouteSection {
    const MAX: usize = ROUTES_MAX;

    fn name(&self) -> Option<&str> {
        self.function.value.as_deref()
    }
}

impl Options for Class {
    fn read(section: &Section<'_>) -> Self {
        let (class, placed) = (section.read(), section.read());
        Self { class, placed }
    }

    fn write(&self, out: &mut Toml) {
        self.class.write(out);
        self.placed.write(out);
    }
}

impl ConfigPart for Option<Vec<Listen>> {
    fn read_from(root: &Section<'_>, key: &'static str) -> Self {
        let listeners = root.sections(key, LISTENERS_MAX)?;
        Some(listeners.iter().map(Listen::read).collect())
    }

    fn write_under(&self, key: &str, out: &mut Toml) {
        for Listen {
            listen, class, tls, ..
        } in self.iter().flatten()
        {
            out.header(format!("[[{key}]]"));
            // A listener on another address is another one.
            out.entry(listen.bind.value.as_ref());
            listen.write(out);
            class.write(out);
            if tls.section.given {
                tls.write_under(&format!("{key}.tls"), out);
            }
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
