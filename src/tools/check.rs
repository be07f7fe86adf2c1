//! `tidegate check`: reads a config and reports every mistake in it, or its limits.

mod examples;
mod json;
pub(super) mod new_guest;
pub mod probe;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tidegate_limits::pace::{BurstRatio, Rate};
use tidegate_limits::quota;
use tidegate_limits::scheduler::OnExcess;
use tidegate_quota::Engine;
use tidegate_runtime::command::{exit_code, note, printed};

use crate::admit::{self, ClassDeadline, ClassPool, ClassRule, Postpone, WhenFull, WindowStamp};
use crate::app::own_places;
use crate::call::Protocol;
use crate::call::pace::{CostRange, pace};
use crate::callers::rate_limit::Allowance;
use crate::callers::settings::QuotaBy;
use crate::config::{self, Config, LoadedConfig};
use crate::state;
use crate::telemetry::journal::{Priority, with_priority};
use crate::tools::service_user;
use crate::tools::table::aligned;

use self::new_guest::NewGuest;

/// The output of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// Whether the config can be used.
    pub good: bool,
    /// Mistakes and warnings, for stderr.
    pub problems: String,
    /// The settings in force and a table of the limits, for stdout; empty if the config is invalid.
    pub settings: String,
}

/// `tidegate check`
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArguments {
    /// The config file
    #[arg(long, short, env = "TIDEGATE_CONFIG", default_value = config::DEFAULT_PATH, value_name = "FILE")]
    pub config: PathBuf,
    /// Print mistakes and warnings alone, and nothing for a good config
    #[arg(long, short)]
    pub quiet: bool,
    /// Print mistakes, warnings and the limits in force as JSON
    #[arg(long, conflicts_with = "quiet")]
    pub json: bool,
    /// Also look at this machine, the ports, the backend, the stores and the lease servers, and print
    /// a checklist. Exit 0 if nothing failed
    #[arg(long)]
    pub probe: bool,
    /// Where /proc, /sys, /etc and /run of the machine are, such as in a container that sees those of
    /// its host
    #[arg(
        long,
        hide = true,
        requires = "probe",
        default_value = "/",
        value_name = "DIR"
    )]
    pub root: PathBuf,
    /// Look with the rights of this user. For root it is the user `tidegate`, if there is one,
    /// because the service runs as that user. Only root can choose another one
    #[arg(long, requires = "probe", value_name = "NAME")]
    pub user: Option<String>,
}

/// Runs the command: exit code 0 if the config can be used, 1 if not. `graphical` draws the
/// lines of the file under each mistake.
pub(crate) fn run(arguments: &CheckArguments, graphical: bool) -> ExitCode {
    let path = &arguments.config;
    if arguments.probe {
        return probe::run(&probe::ProbeOptions {
            config: path,
            quiet: arguments.quiet,
            json: arguments.json,
            root: &arguments.root,
            user: arguments.user.as_deref(),
        });
    }
    let report = match arguments.json {
        true => json::report(path),
        false => report(path, graphical),
    };
    let priority = match report.good {
        true => Priority::WARNING,
        false => Priority::ERROR,
    };
    note(with_priority(&report.problems, priority));
    match arguments.quiet {
        true => exit_code(report.good),
        false => printed(&report.settings, exit_code(report.good)),
    }
}

/// The whole output of the command.
#[must_use]
pub fn report(path: &Path, graphical: bool) -> CheckReport {
    match config::load(path) {
        Ok(LoadedConfig { config, warnings }) => CheckReport {
            good: true,
            problems: match warnings.is_empty() {
                true => String::new(),
                false => whole_lines(&warnings.render(graphical)),
            } + &state_file_warning(&config)
                + &service_warning(path),
            settings: format!(
                "{}\n{}\n{} is good\n",
                config::effective(&config),
                table(&config),
                path.display()
            ),
        },
        Err(error) => CheckReport {
            good: false,
            problems: whole_lines(&error.render(graphical)),
            settings: String::new(),
        },
    }
}

/// A line if this user cannot write the state file: then `serve` would not start.
fn state_file_warning(config: &Config) -> String {
    let path = config.callers.state_file.as_deref();
    match path.map_or(Ok(()), state::check_writable) {
        Ok(()) => String::new(),
        Err(error) => format!(
            "warning: {error}; give the user that runs `tidegate serve` write access to the \
             directory (StateDirectory= in systemd), or change callers.state_file\n"
        ),
    }
}

/// A line if root checks the file of the service and the user of the service cannot read it.
fn service_warning(path: &Path) -> String {
    let is_of_service = Path::new(config::DEFAULT_PATH).parent() == path.parent();
    let user = match service_user::is_root() && is_of_service {
        true => service_user::User::find(Path::new("/"), service_user::NAME),
        false => None,
    };
    let read = user.map(|user| (service_user::can_read(&user, path), user));
    match read {
        Some((Err(error), user)) => {
            let (name, path) = (user.name, path.display());
            format!(
                "warning: {name}, the user of the service, cannot read {path}: {error}; \
                 chgrp {name} {path} && chmod 0640 {path}\n"
            )
        }
        Some((Ok(()), _)) | None => String::new(),
    }
}

fn whole_lines(text: &str) -> String {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}")
}

/// The limits in force, a line each.
fn table(config: &Config) -> String {
    let gate = &config.admit;
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
    for listener in &config.listen.listeners {
        if listener.protocol == Protocol::Tcp {
            let call = "one TCP connection, from its turn until both sides have ended";
            row(&format!("a call at {}", listener.name), call.to_owned());
        }
    }
    windows(gate, &mut row);
    paces(config, &mut row);
    if let Some(quotas) = &config.quotas {
        self::quotas(config, quotas, &mut row);
    }
    for class in &gate.classes {
        row(&format!("class {}", class.name), class_in_words(class));
    }
    if let Some(ignored) = ignored_headers(config) {
        row("shared reads", ignored);
    }
    for (index, exempt) in exempt(config).into_iter().enumerate() {
        row(if index == 0 { "no limits" } else { "" }, exempt);
    }
    examples::rows(config, &mut row);
    waiting(config, &mut row);
    if let Some(new_guest) = NewGuest::of(config) {
        new_guest.rows(&mut row);
    }
    if let Some(coordinate) = &config.coordinate {
        shares(config, coordinate, &mut row);
    }
    aligned(&rows, |_| false)
}

/// The windows, and the calls that may be outstanding.
fn windows(gate: &admit::GateSettings, row: &mut impl FnMut(&str, String)) {
    match &gate.window {
        None => row("per window", "off".to_owned()),
        Some(window) => {
            let length = seconds(window.length);
            let span = match window.fixed {
                true => format!("in each {length} (fixed)"),
                false => format!("in any {length} (sliding)"),
            };
            let calls = |n: u32| format!("{n} calls {span}");
            row("total", window.total.map_or("off".to_owned(), calls));
            for (function, n) in &window.functions {
                row(function, calls(*n));
            }
        }
    }
    let outstanding = gate.outstanding_max;
    let calls = |n| format!("{n} calls at once");
    row("outstanding", outstanding.map_or("off".to_owned(), calls));
    if let (Some(max), Some(sum)) = (outstanding, gate.outstanding_sum())
        && sum > max
    {
        let beside = sum - max;
        let text = format!("{sum} calls at once: {max}, and {beside} in pools beside them");
        row("outstanding in all", text);
    }
}

/// The rate limits with a pace, each with its largest burst.
fn paces(config: &Config, row: &mut impl FnMut(&str, String)) {
    let mut pace = |name: &str, calls: &str, rate: Rate, ratio: BurstRatio, costs| {
        let largest = burst(rate, ratio, costs);
        let (rate, times) = (rate.get(), ratio.get());
        let text =
            format!("{rate} tokens a second for {calls}, {times} times as many for late calls");
        row(&format!("rate_limit:{name}"), text);
        row("  largest burst", largest);
    };
    for limit in &config.admit.paced {
        let calls = limit.function.as_deref().unwrap_or("all calls");
        pace(&limit.name, calls, limit.rate, limit.ratio, limit.costs);
    }
    for limit in &config.callers.rate_limits {
        if let Allowance::Paced { rate, ratio } = limit.rule.allowance {
            let costs = config.callers.costs.range(None);
            pace(&limit.name, "callers that name it", rate, ratio, costs);
        }
    }
}

/// How long calls wait, and for what.
fn waiting(config: &Config, row: &mut impl FnMut(&str, String)) {
    let gate = &config.admit;
    let max_wait = match gate.max_wait {
        Duration::ZERO => "not at all: refused at the first closed limit".to_owned(),
        max_wait => format!("{} from arrival at most", seconds(max_wait)),
    };
    row("a call waits", max_wait);
    if config.classify.kind.has_table() && config.forward.http.is_some() {
        let cause = "an X-Auth-Token that expires while its call waits is answered 401 by sdkwsgi: \
                    keep its token_validation_period well above the wait";
        row("tokens", cause.to_owned());
    }
    let postponed = match gate.postpone {
        Postpone::InTurn => "in its turn".to_owned(),
        Postpone::Jitter { min, max } => {
            format!("for {} to {} at a time", seconds(min), seconds(max))
        }
    };
    row("postponed", postponed);
    let full = match gate.when_full {
        WhenFull::Wait => "the next waits at the door",
        WhenFull::Refuse => "the next is refused",
    };
    row("queue", format!("{} calls, then {full}", gate.capacity));
    row("workers", format!("{} calls", gate.workers));
}

/// The headers by which reads on the operator's own routes are compared, if such reads are
/// shared.
fn ignored_headers(config: &Config) -> Option<String> {
    let shared = &config.coalesce.functions;
    let routes = config.classify.routes.iter();
    let mut own = routes.filter_map(|route| route.function.as_ref());
    own.find(|function| shared.contains(function))?;
    let ignored = config.coalesce.ignored_headers.iter();
    let ignored: Vec<&str> = ignored.map(http::HeaderName::as_str).collect();
    let except = match ignored.is_empty() {
        true => String::new(),
        false => format!(" except {}", ignored.join(", ")),
    };
    Some(format!("on your own routes by all headers{except}"))
}

/// Everything that meets no limit, and its bound.
fn exempt(config: &Config) -> Vec<String> {
    let routes = config.classify.exempt_routes();
    let routes = routes.iter().map(|route| {
        let why = match route.is_built_in {
            true => "built in for kind \"zvm\"",
            false => "a [[route]] without function",
        };
        format!("{} {} ({why})", route.method, route.path)
    });
    let functions = config.classify.exempt.iter();
    let functions = functions.map(|name| format!("{name} (exempt)"));
    let mut list: Vec<String> = routes.chain(functions).collect();
    if !list.is_empty() {
        let max = config.admit.max_unlimited;
        list.push(format!("at most {max} of these at once (max_unlimited)"));
    }
    list
}

/// Describes how much a pace admits at once after a silence: cheap calls, or one expensive call, which is
/// repaid after it.
fn burst(rate: Rate, ratio: BurstRatio, costs: CostRange) -> String {
    let pace = pace(rate, ratio, costs);
    let tokens = |amount: f64| match (amount * 1e3).round() / 1e3 {
        1.0 => "1 token".to_owned(),
        amount => format!("{amount} tokens"),
    };
    let (cheapest, most_expensive) = (costs.cheapest.get(), costs.most_expensive.get());
    // The pool is kept in whole parts of a nanosecond.
    let calls = (pace.burst() / cheapest + 1e-6).floor();
    let mut words = format!("{calls} calls of {} at once", tokens(cheapest));
    if most_expensive > cheapest {
        // It takes the whole content, and the calls after it wait for the rest.
        let waits = (most_expensive + cheapest - pace.burst()).max(0.0) / rate.get();
        words.push_str(&format!(
            ", or one call of {}, after which the next waits for up to {} s",
            tokens(most_expensive),
            (waits * 1e3).round() / 1e3
        ));
    }
    words
}

/// Lists how much all sidecars together may spend in a window, and what happens without the store.
fn quotas(
    config: &Config,
    quotas: &tidegate_quota::QuotaSettings,
    row: &mut impl FnMut(&str, String),
) {
    for limit in &quotas.limits {
        let settings = limit.rule.settings();
        let mut claims = config.callers.quotas.iter();
        let by = claims.find(|claim| claim.name == limit.name);
        let whose = match by.map(|claim| &claim.by) {
            Some(QuotaBy::Caller) => "each caller".to_owned(),
            Some(QuotaBy::User) => "each user".to_owned(),
            Some(QuotaBy::Function(None)) => "each function".to_owned(),
            Some(QuotaBy::Function(Some(function))) => function.to_string(),
            Some(QuotaBy::Total) | None => "all calls".to_owned(),
        };
        let length = seconds(settings.length);
        let total = settings.total;
        let mut words = vec![format!("{total} tokens for {whose} in each {length}")];
        match limit.totals.len() {
            0 => {}
            1 => words.push("one key has a total of its own".to_owned()),
            keys => words.push(format!("{keys} keys have a total of their own")),
        }
        if settings.mode == quota::DrawMode::Optimistic {
            words.push("optimistic".to_owned());
        }
        if limit.on_excess == OnExcess::Reject {
            words.push("refused at once beyond it".to_owned());
        }
        row(&limit.name, words.join(", "));
        let away = match settings.away {
            quota::OutagePolicy::Deny => "nothing passes".to_owned(),
            quota::OutagePolicy::Allow => "everything passes".to_owned(),
            quota::OutagePolicy::Safe { .. } => {
                format!("{} tokens for each sidecar", limit.rule.safe_share())
            }
        };
        let kept = if quotas.engine == Engine::Memory {
            "in memory, for this sidecar alone".to_owned()
        } else {
            format!(
                "in {}, for {} sidecars; while it is unavailable {away}",
                quotas.engine.name(),
                quotas.expected_sidecars
            )
        };
        row("  kept", kept);
        let share = limit.rule.safe_share();
        if quotas.engine != Engine::Memory && share > 0 {
            let rest = total - share;
            let but = match quotas.expected_sidecars {
                1 => ", except after a drain if none of its own share was spent before",
                _ => " for a sidecar alone, without its own share",
            };
            let text = format!("at most {rest} of {total} tokens until the window ends{but}");
            row("  after a restart", text);
        }
    }
}

/// Lists the shared limits, and the settings that the servers need so that no limit is exceeded.
fn shares(
    config: &Config,
    coordinate: &tidegate_leases::sharing::SharingSettings,
    row: &mut impl FnMut(&str, String),
) {
    let sidecars = coordinate.expected_sidecars.get();
    let name = match (&coordinate.servers.id, own_places(config)) {
        (Some(id), _) => id.to_string(),
        (None, Some(_)) => {
            "by a name from this machine and the addresses of the listeners, also after a restart"
                .to_owned()
        }
        (None, None) => "by a new name with each start, because a port is 0: after a crash, only \
                         the safe share until the last lease ends; give id in [coordinate]"
            .to_owned(),
    };
    row("known to the servers", name);
    for shared in &coordinate.limits {
        let safe = shared.safe.get();
        row(
            &format!("shared: {}", shared.limit),
            format!(
                "as {}; safe {safe}, for {sidecars} sidecars {} of the whole",
                shared.resource,
                f64::from(sidecars) * safe
            ),
        );
        let counts = counts_for(config, &shared.limit);
        let servers = format!("reserved_clients = {sidecars}, safe_share = {safe}{counts}");
        row("  on the servers", servers);
    }
}

/// How long calls of an expired share may still count: until the calls that it admitted have left
/// and their window is over, or until they have ended.
fn counts_for(config: &Config, limit: &str) -> String {
    let bounds = &config.forward.bounds;
    let response = bounds.response_timeout;
    let forward = &config.forward;
    let remotes = [&forward.socket, &forward.http, &forward.tcp];
    let has_tls = remotes.into_iter().flatten().any(|it| it.tls.is_some());
    // The handshake has the same time again.
    let connect = bounds.connect_timeout * if has_tls { 2 } else { 1 };
    match &config.admit.window {
        _ if limit == "outstanding" => format!(
            ", frees_after: as long as a call takes, which may be {} here, learning: a lease and \
             as much",
            seconds(connect + response)
        ),
        Some(window) if limit == "total" || limit.starts_with("function:") => {
            let replied = match window.stamp {
                WindowStamp::Replied => response,
                WindowStamp::Sent => Duration::ZERO,
            };
            let counts = (window.length + window.guard + connect + replied).as_millis();
            format!(", frees_after = \"{counts}ms\" or more, learning: a lease and as much")
        }
        // What is drawn of a rate does not come back.
        Some(_) | None => String::new(),
    }
}

fn class_in_words(class: &ClassRule) -> String {
    let mut words = vec![format!("weight {}", class.weight)];
    match class.pool {
        None => {}
        Some(ClassPool::Inside(max)) => words.push(format!("{max} calls at once, of all")),
        Some(ClassPool::Beside(max)) => {
            words.push(format!("{max} calls at once, beside the others"))
        }
    }
    if let Some(calls) = class.per_window {
        words.push(format!("{calls} calls per window"));
    }
    for (kept, of) in [
        (class.reserve_outstanding, "at once"),
        (class.reserve_per_window, "per window"),
    ] {
        if kept > 0 {
            words.push(format!("{kept} {of} kept for it"));
        }
    }
    match class.deadline {
        ClassDeadline::Ordinary => {}
        ClassDeadline::After(length) => words.push(format!("waits {} at most", seconds(length))),
        ClassDeadline::Never => words.push("waits until it is served".to_owned()),
    }
    words.join(", ")
}

fn seconds(length: Duration) -> String {
    format!("{} s", length.as_secs_f64())
}
