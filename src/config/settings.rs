//! Hands every stage its settings, out of a config without an error.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tidegate_quota::{QuotaLimit, QuotaSettings};

use crate::admit::options::unless_off;
use crate::admit::{AfterCrash, LedgerLost, PacedLimit};
use crate::call::Bind;
use crate::callers::rate_limit::options::{PaceSection, QuotaMode, QuotaSection};
use crate::callers::settings::{Quota, QuotaBy, StaticRateLimit};
use crate::options::{LocatedKey, Setting};
use crate::telemetry::calls::RATE_LIMIT_PREFIX;
use crate::{admit, callers, classify};

use super::sections::{Listen, Sections};
use super::shared_limits;
use super::{CertificateFile, Config};

/// The settings.
///
/// # Panics
///
/// If the config has an error, such as a listener without an address.
pub(super) fn of(mut all: Sections) -> Config {
    let coordinate = shared_limits::settings(&all);
    // The config in effect has the names in metrics.
    let shared = coordinate.iter().flat_map(|it| &it.limits);
    for (section, shared) in all.coordinate.limits.iter_mut().zip(shared) {
        section.limit.value = Some(shared.limit.to_string());
    }
    let all = &all;
    let listeners = all.listen.iter().flatten().map(Listen::listener);
    let own = all.own_addresses().filter_map(|(bind, _)| bind.tcp());
    let own: Arc<[SocketAddr]> = own.filter(|bind| bind.port() != 0).collect();
    let (effective, restarts) = all.write();
    let trusted_proxies = all.proxies.trusted_proxies.value.clone();
    let forwarded = all.forwarded.settings();
    Config {
        listen: all.server.settings(listeners.collect()),
        protocol: all
            .client
            .settings(trusted_proxies, all.backend_kind(), forwarded),
        allow_unknown: all.exempt.allow_unknown.value,
        classify: classify(all),
        coalesce: all.coalesce.settings(),
        tasks: all.tasks.settings(),
        callers: callers(all),
        admit: admit(all),
        forward: all.backend.settings(
            &all.bounds,
            own,
            &all.backend_tls.loaded,
            all.servers.forward(),
        ),
        coordinate,
        quotas: quotas(all),
        admin: all.admin.settings(),
        telemetry: all.log.settings(),
        trace: all.trace.settings(),
        certificates: certificates(all),
        effective,
        restarts,
    }
}

impl Sections {
    /// Where the sidecar listens itself, each with where that is said.
    pub(super) fn own_addresses(&self) -> impl Iterator<Item = (Bind, &LocatedKey)> {
        let listeners = self.listen.iter().flatten().map(|it| &it.listen.bind);
        let listeners = listeners.filter_map(|bind| Some((bind.said()?.clone(), &***bind)));
        let admin = &self.admin.bind;
        let file = &self.admin.socket;
        let path = file.value.clone().map(|path| (Bind::Unix(path), &***file));
        let listeners = listeners.chain(path);
        listeners.chain(admin.said().map(|bind| (Bind::Tcp(*bind), &***admin)))
    }

    /// The paces of callers, or all others.
    fn paces(&self, of_callers: bool) -> impl Iterator<Item = &PaceSection> {
        self.paces
            .iter()
            .filter(move |it| it.is_of_callers() == of_callers)
    }
}

/// Every file once, in the order of the sections.
fn certificates(all: &Sections) -> Vec<CertificateFile> {
    let own = |option, path: &Option<PathBuf>| (option, path.clone(), false);
    let authorities = |option, path: &Option<PathBuf>| (option, path.clone(), true);
    let listeners = all.listen.iter().flatten().map(|it| &it.tls);
    let mut given: Vec<_> = listeners
        .flat_map(|tls| {
            [
                own("listen.tls.cert", &tls.cert.value),
                authorities("listen.tls.client_ca", &tls.client_ca.value),
            ]
        })
        .collect();
    let backend = all.backend_tls.section();
    given.push(authorities("backend.tls.ca", &backend.ca.value));
    given.push(own("backend.tls.cert", &backend.cert.value));
    given.push(authorities("coordinate.ca", &all.coordinate.tls.ca.value));
    given.push(own("coordinate.cert", &all.coordinate.tls.cert.value));
    given.push(authorities("quota_store.ca", &all.quota_store.tls.ca.value));
    given.push(own("quota_store.cert", &all.quota_store.tls.cert.value));
    let mut files: Vec<CertificateFile> = Vec::new();
    for (option, path, is_of_authorities) in given {
        let Some(path) = path else { continue };
        let file = CertificateFile {
            option,
            path,
            is_of_authorities,
        };
        if !files.contains(&file) {
            files.push(file);
        }
    }
    files
}

fn classify(all: &Sections) -> classify::ClassifierSettings {
    classify::ClassifierSettings {
        kind: all.backend_kind(),
        odd_paths: all.paths.odd_paths.value,
        routes: all.every_route(),
        functions: all.functions().into_iter().map(Arc::from).collect(),
        has_socket: all.backend.socket.value.is_some(),
        has_http: all.backend.http.value.is_some(),
        exempt: all.exempt_functions(),
        classes: all.class_settings(),
        jobs: all.jobs.settings(),
    }
}

fn callers(all: &Sections) -> callers::CallersSettings {
    let table = all.backend_kind().functions();
    let functions = table.iter().map(|function| function.name);
    let functions = functions.chain(all.functions());
    let buckets = all
        .buckets
        .iter()
        .map(|it| (&it.name, it.rule(&all.profiles)));
    let paces = all.paces(true).map(|it| (&it.name, it.rule()));
    let others = all.paces(false).map(|it| &it.name);
    let reserved = others.chain(all.quotas.iter().map(|it| &it.name));
    callers::CallersSettings {
        table: all.callers.table(),
        callers: all.caller.iter().map(|caller| caller.caller()).collect(),
        rate_limits: buckets
            .chain(paces)
            .map(|(name, rule)| StaticRateLimit {
                name: name.required(),
                rule,
            })
            .collect(),
        quotas: all
            .quotas
            .iter()
            .map(|quota| Quota {
                name: in_metrics(quota),
                by: by_of(quota),
            })
            .collect(),
        reserved: reserved.map(Setting::required).collect(),
        profiles: all.profiles.list.clone(),
        costs: all.every_cost(),
        functions: functions.map(Arc::from).collect(),
        state_file: all.callers.state_file.value.clone(),
    }
}

fn admit(all: &Sections) -> admit::GateSettings {
    let (queue, limits) = (&all.queue, &all.limits);
    let tasks = &all.tasks;
    // These wait at the door without a connection.
    let handed_over = match tasks.enabled.value {
        true => u32::try_from(tasks.tasks_max.value).expect("it is within the range"),
        false => 0,
    };
    let promote_for = all.promote.promote_for.value;
    admit::GateSettings {
        capacity: queue.capacity.value,
        workers: queue.workers.value,
        max_unlimited: queue.max_unlimited.value,
        when_full: queue.when_full.value,
        early_refusal: queue.early_refusal.value,
        postpone: queue.how_postponed(),
        window: limits.windows(),
        paced: paced(all),
        outstanding_max: unless_off(limits.outstanding.value),
        outstanding_mode: limits.at_once_mode(),
        max_wait: limits.max_wait.value,
        door_max: all.server.max_connections.value.saturating_add(handed_over),
        classes: all.class_rules(),
        promote_for: (!promote_for.is_zero()).then_some(promote_for),
        ledger_lost: limits.ledger_lost.value.unwrap_or(LedgerLost::AssumeEmpty),
        after_crash: (all.backend.after_crash.value).map_or(AfterCrash::Usual, AfterCrash::Fixed),
        ramp: all.backend.ramp.value,
        servers: all.servers.gate(),
    }
}

/// The paces of all calls, or of a function.
fn paced(all: &Sections) -> Vec<PacedLimit> {
    let costs = all.every_cost();
    let paced = all.paces(false).map(|pace| {
        let (rate, ratio) = pace.pacing().expect("a pace without a rate is an error");
        let function = pace.function_met();
        PacedLimit {
            name: pace.name.required(),
            function: function.cloned(),
            rate,
            ratio,
            costs: costs.range(function.map(|name| &**name)),
            mode: pace.mode.value,
        }
    });
    paced.collect()
}

fn quotas(all: &Sections) -> Option<QuotaSettings> {
    all.quotas.first()?;
    let store = &all.quota_store;
    let sidecars = store.sidecars();
    let sidecars = sidecars.expect("a store without a number of sidecars is an error");
    let limits = all.quotas.iter().map(|quota| {
        let rule = |total| {
            let rule = quota.rule(total, sidecars);
            rule.expect("a quota that can't be is an error")
        };
        let totals = quota.totals.value.iter();
        let totals = totals.map(|(key, total)| (key.as_str().into(), rule(*total)));
        QuotaLimit {
            name: in_metrics(quota),
            rule: rule(quota.total.required()),
            on_excess: quota.on_excess.value,
            observes: quota.mode.value == QuotaMode::Observe,
            totals: totals.collect::<BTreeMap<_, _>>(),
            namespace: quota.namespace(&by_of(quota)).map(Arc::from),
        }
    });
    let engine = store.engine.clone();
    Some(QuotaSettings {
        engine: engine.expect("a store that can't be reached is an error"),
        keys_max: store.store.keys_max.value as usize,
        expected_sidecars: sidecars,
        limits: limits.collect(),
    })
}

fn in_metrics(quota: &QuotaSection) -> Arc<str> {
    format!("{RATE_LIMIT_PREFIX}{}", quota.name.required()).into()
}

fn by_of(quota: &QuotaSection) -> QuotaBy {
    quota
        .by()
        .expect("a quota that applies to nothing is an error")
}
