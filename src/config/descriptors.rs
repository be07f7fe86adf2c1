//! Whether what the config allows fits into the descriptors that the process may open.
//!
//! Clients that wait need one descriptor each, and so do the backends, the admin address and the
//! stores of those calls that run. Clients get only what the others leave. So clients that wait
//! can never take the descriptor that a running call needs.

use super::Config;
use crate::options::{ConfigPlace, Problem, Severity};

/// The descriptors of the process itself: its standard streams, the runtime, the log, and the files and name
/// lookups of a moment.
const OWN: u64 = 32;
/// For each listener: its socket, and one connection in hand while the cap is full.
const EACH_LISTENER: u64 = 2;
/// For each thread beside the one that accepts: what its loop waits with.
const EACH_THREAD: u64 = 4;
/// For the store of the quotas, with the connections of a moment when it changes its leader.
const STORE: u64 = 16;
/// For each capacity server.
const EACH_LEASE_SERVER: u64 = 2;
/// For the collector of spans, with a name lookup.
const COLLECTOR: u64 = 2;
/// For the admin address, and the least of it where there are few.
const ADMIN: u64 = 64;
const ADMIN_MIN: u64 = 8;

/// How the descriptors are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// The number of descriptors that the process may open.
    pub limit: u64,
    /// The number of descriptors that the config could need.
    pub needed: u64,
    /// Client connections that the config wants.
    pub wanted: u32,
    /// Client connections that are accepted at once.
    pub connections: u32,
    /// Connections of the admin address at once.
    pub admin: u32,
}

impl Descriptors {
    /// Divides this many descriptors among what the config wants.
    #[must_use]
    pub fn divide(config: &Config, limit: u64) -> Self {
        let forward = &config.forward;
        let http = forward.http.as_ref();
        let pooled = http.map_or(0, |_| {
            forward.bounds.pool_max_idle as u64 * forward.servers.len().max(1) as u64
        });
        let backends =
            u64::from(config.admit.workers) + u64::from(config.admit.max_unlimited) + pooled;
        let admin = (limit / 16).clamp(ADMIN_MIN, ADMIN);
        let inlets = u64::from(config.admin.bind.is_some());
        let inlets = inlets + u64::from(config.admin.socket.is_some());
        let admin = admin * inlets;
        let leases = config.coordinate.as_ref();
        let lease_servers = leases.map_or(0, |it| it.servers.addresses.len() as u64);
        let others = OWN
            + EACH_LISTENER * config.listen.listeners.len() as u64
            + EACH_THREAD * (config.listen.threads as u64 - 1)
            + admin
            + config.quotas.as_ref().map_or(0, |_| STORE)
            + config.trace.otlp.as_ref().map_or(0, |_| COLLECTOR)
            + EACH_LEASE_SERVER * lease_servers;
        let left = limit.saturating_sub(others);
        // A call that runs has one client, and one connection to a backend. It may also have left
        // one idle in the pool before.
        let each = if pooled > 0 { 3 } else { 2 };
        let room = left.saturating_sub(backends).max(left / each).max(1);
        let wanted = config.listen.max_connections;
        Self {
            limit,
            needed: u64::from(wanted) + backends + others,
            wanted,
            connections: u32::try_from(room).map_or(wanted, |room| room.min(wanted)),
            admin: u32::try_from(admin).expect("it was clamped"),
        }
    }

    /// A warning if they are too few for what the config wants.
    #[must_use]
    pub fn warning(&self) -> Option<Problem> {
        let Self {
            limit,
            needed,
            wanted,
            connections,
            ..
        } = self;
        (connections < wanted).then(|| Problem {
            severity: Severity::Warning,
            place: ConfigPlace::Whole,
            key: "server.max_connections".to_owned(),
            message: format!(
                "{wanted} connections need {needed} file descriptors in all, and the process may \
                 open {limit}: at most {connections} connections are open at once, others wait"
            ),
            cure: format!(
                "raise the hard limit to {needed}: LimitNOFILE= in a systemd unit, ulimit -n in \
                 a shell, --ulimit nofile= for a container; or give max_connections = \
                 {connections}"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divide(more: &str, limit: u64) -> Descriptors {
        let text = format!(
            "[[listen]]\nname = \"a\"\nbind = \"127.0.0.1:8080\"\n[backend]\n\
             socket = \"127.0.0.1:2001\"\n[limits]\nper_window = \"total:30\"\n\
             {more}"
        );
        let config = crate::config::read(&text, "test", std::iter::empty());
        Descriptors::divide(&config.expect("it is good").config, limit)
    }

    #[test]
    fn a_config_that_fits_is_unchanged() {
        let all = divide("", u64::MAX);
        assert_eq!((all.connections, all.admin), (all.wanted, 64));
        assert_eq!(all.warning(), None);
        assert_eq!(divide("", all.needed).warning(), None);
        assert!(divide("", all.needed - 1).warning().is_some());
        let threads = divide("[server]\nthreads = 4", u64::MAX);
        assert_eq!(threads.needed, all.needed + 2 * EACH_THREAD);
        let traced = divide("[trace]\notlp = \"http://127.0.0.1:4318\"", u64::MAX);
        assert_eq!(traced.needed, all.needed + COLLECTOR);
    }

    #[test]
    fn clients_get_what_the_others_leave_and_a_share_where_there_are_few() {
        for limit in [0, 1, 64, 100, 128, 256, 1024, 4096] {
            let few = divide("", limit);
            assert!(few.connections >= 1);
            let others = u64::from(few.admin) + OWN + EACH_LISTENER;
            let run = u64::from(few.connections).min(128);
            if limit >= 64 {
                let together = u64::from(few.connections) + run + others;
                assert!(together <= limit, "{limit}: {few:?}");
            }
        }
        let cause = divide("", 1024).warning().expect("too few");
        assert!(cause.message.contains("16384") && cause.message.contains("1024"));
    }
}
