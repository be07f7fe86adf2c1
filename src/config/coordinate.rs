//! `[coordinate]`: which limits are shares of a capacity that several sidecars have together.

use std::sync::Arc;
use std::time::Duration;

use tidegate_leases::sharing::{ID_BYTES_MAX, ServerAddress};
use tidegate_limits::Fill;

use super::part::ConfigPart;
use super::server_tls::ServerTlsSection;
use crate::options::kind::{
    HOUR, MINUTE, MS, SECOND, distinct, duration, integer, list, number, parsed, text,
};
use crate::options::{Mistake, Options, Section, Toml, ValueKind, options};

/// Most limits that are shared.
const LIMITS_MAX: usize = 64;

options! {
    /// Limits that several sidecars in front of one backend share: docs/how-to/leases-sidecar.md.
    pub struct CoordinateSection {
        /// The capacity servers (`tidegate lease-server`, or Doorman's own). Any of them can name the
        /// master. Required.
        servers: Vec<ServerAddress> = servers().or(Vec::new())
            .example("[\"10.0.0.1:9190\", \"10.0.0.2:9190\"]");

        /// The name of this sidecar at the servers. No two running sidecars may have the same name: they
        /// would get one share and both use it. The default is made from the boot of the machine, its
        /// network namespace, and the addresses of the listeners, so a restart keeps the name and the
        /// lease. If a port is 0, or another process has that name, the default is a new name.
        id: Option<Arc<str>> = id("proxy-1").optional().example("\"proxy-1\"");

        /// The most sidecars that will ever run at once. Each of them owns its safe shares in any case,
        /// so the servers must set the same number aside: reserved_clients there. Required.
        expected_sidecars: Option<u32> = integer(1..=100_000).of("sidecars").required(
            "the number of sidecars that share the limits is missing",
            "add expected_sidecars, the most that will ever run at once: each of them owns its safe \
             share whatever happens",
        ).example("3");

        /// How long a request to a server may take. Set it far below the length of a lease.
        request_timeout: Duration = duration(10 * MS..=MINUTE).or(2 * SECOND).expert();

        /// The shortest time between two requests for one limit, however fast its demand changes. Servers
        /// ignore limits that are asked for more often than their own minimum_interval.
        minimum_interval: Duration = duration(10 * MS..=HOUR).or(5 * SECOND).expert();
    }
}

options! {
    /// A limit that is shared; one section for each.
    pub struct SharedSection {
        /// The limit: "total", "outstanding", "function:guest_list", "rate_limit:poller". Its number
        /// elsewhere in this file stays the most that this sidecar admits. Required.
        limit: Option<String> = text(
            "the name of a limit, as in metrics", "total", |given| Ok(given.to_owned()),
        ).required(
            "the limit that is shared is missing",
            "add limit = \"total\", or another name from the metrics",
        ).example("\"total\"");

        /// Its name at the servers: the same in every sidecar. Required.
        resource: Option<Arc<str>> = id("zvm1/total").required(
            "the name of the limit at the servers is missing",
            "add resource = \"zvm1/total\", the same in every sidecar",
        ).example("\"zvm1/total\"");

        /// The share that this sidecar always owns: before the first answer, and when every server is
        /// lost. Whole calls, except for the rate of a bucket. Required.
        safe: Option<Fill> = number(
            "0.000001 to 1000000000", |given| Fill::new(given).ok(), |safe| safe.get(),
        ).of("calls, cost or tokens a second").required(
            "the share that this sidecar always owns is missing",
            "add safe = 5, which it may use whatever happens to the servers",
        ).example("5");
    }
}

/// `[coordinate]` and every `[[coordinate.limit]]`.
pub(super) struct Coordinate {
    pub(super) section: CoordinateSection,
    pub(super) tls: ServerTlsSection,
    /// The loaded files; `None` without TLS, and where something is wrong with it, which has been noted.
    #[cfg(feature = "leases")]
    pub(super) loaded: Option<tidegate_runtime::tls::TlsClient>,
    pub(super) limits: Vec<SharedSection>,
}

fn id(example: &'static str) -> ValueKind<Arc<str>> {
    text("1 to 1024 bytes", example, |given| {
        if given.is_empty() || given.len() > ID_BYTES_MAX {
            let cause = format!("an id of {} bytes", given.len());
            return Err(Mistake::new(cause, "give 1 to 1024 bytes"));
        }
        Ok(given.into())
    })
}

fn servers() -> ValueKind<Vec<ServerAddress>> {
    let wrong = (
        "is not the address of a server",
        "write each as \"host:port\"",
    );
    let server = parsed("host:port", "10.0.0.1:5101", |it| it.parse().ok(), wrong);
    distinct(list(64, "[\"10.0.0.1:5101\"]", server)).described("[\"host:port\", …]")
}

impl ConfigPart for Coordinate {
    fn read_from(root: &Section<'_>, key: &'static str) -> Self {
        let section = root.section(key).aside();
        let tls: ServerTlsSection = section.read();
        Self {
            section: section.read(),
            #[cfg(feature = "leases")]
            loaded: tls
                .load(super::server_tls::Inside::Http2, root.notes())
                .flatten(),
            tls,
            limits: section.each("limit", LIMITS_MAX),
        }
    }

    fn write_under(&self, key: &str, out: &mut Toml) {
        if self.section.section.given {
            self.section.write_under(key, out);
            self.tls.write(out);
            for limit in &self.limits {
                out.header(format!("[[{key}.limit]]"));
                limit.write(out);
            }
        }
    }
}
