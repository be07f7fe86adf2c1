//! `tidegate check --probe`: whether a sidecar with this config could do its work here and now.
//!
//! Each check looks at the real thing: the port, the backend, the store. All of them together take
//! ten seconds at most. What is looked at stays as it is: a backend gets one harmless call, a store
//! gets a record that is removed again, and a sidecar that runs already is left alone.

mod apache;
mod backend;
#[cfg(feature = "tls")]
mod certificates;
mod eyes;
mod holder;
mod kinds;
#[cfg(feature = "leases")]
mod leases;
mod listeners;
mod machine;
mod name;
mod shown;
mod sidecar;
mod stores;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
#[cfg(feature = "tls")]
use std::time::SystemTime;
use std::time::{Duration, Instant};

use tidegate_runtime::command::{executor, exit_code, printed, wants_colours};
use tokio::task::JoinSet;

use self::eyes::ProbeUser;
use self::kinds::{
    ADMIN, BACKEND, CONFIG_FILE, CONFIG_MISTAKE, CONFIG_WARNING, LISTENER, STATE_FILE, USER,
};
pub use self::kinds::{CHECKS, CheckKind, CheckStatus, Finding, Group};
use self::shown::TerminalStyle;
use self::sidecar::Sidecar;
use crate::call::Destination;
use crate::config::descriptors::Descriptors;
use crate::config::{self, Config, ConfigPlace, LoadError, LoadedConfig, Problem};
use crate::listen::descriptors;

/// The bound of each step of a check: a lookup, a connect, an answer.
const STEP_MAX: Duration = Duration::from_secs(2);
/// The bound of all checks that wait for a peer or a disk.
const ALL_MAX: Duration = Duration::from_millis(9_300);

/// Arguments of the command, and the folder of the machine to look at.
pub(super) struct ProbeOptions<'a> {
    pub(super) config: &'a Path,
    /// Warnings and failures alone.
    pub(super) quiet: bool,
    pub(super) json: bool,
    /// Where this machine's `/proc`, `/sys`, `/etc` and `/run` are.
    pub(super) root: &'a Path,
    /// The user to look as, if it is given.
    pub(super) user: Option<&'a str>,
}

/// Runs the checks: exit code 0 if none failed, 1 otherwise.
pub(super) fn run(asked: &ProbeOptions<'_>) -> ExitCode {
    let findings = match ProbeUser::of(asked.root, asked.user) {
        Ok(eyes) => findings(asked.config, asked.root, &eyes),
        Err(why) => {
            let user = asked.user.unwrap_or_default();
            let cure = "name a user of this machine, and run this as root; or leave --user out";
            vec![USER.failed("user", format!("cannot look as {user}"), why, cure)]
        }
    };
    let text = if asked.json {
        shown::json(asked.config, &findings)
    } else {
        let look = TerminalStyle::of_the_terminal(wants_colours(&io::stdout()));
        shown::text(&findings, look, asked.quiet)
    };
    let code = exit_code(findings.iter().all(|it| it.status != CheckStatus::Failed));
    printed(&text, code)
}

/// Runs every check. The findings are in the order of the groups.
fn findings(path: &Path, root: &Path, eyes: &ProbeUser) -> Vec<Finding> {
    let machine = machine::Machine::at(root);
    let mut findings = match eyes.look(|| config::load(path)) {
        Ok(LoadedConfig { config, warnings }) => {
            let descriptors = Descriptors::divide(&config, descriptors::allowed());
            // It has a check of its own.
            let known = descriptors.warning();
            let others = warnings.iter().filter(|it| Some(*it) != known.as_ref());
            let mut all = vec![CONFIG_FILE.ok("file", format!("{} is good", path.display()))];
            all.extend(others.map(|it| problem(it, CONFIG_WARNING)));
            all.push(machine::descriptors(&descriptors));
            all.push(machine.local_ports(&config));
            #[cfg(feature = "tls")]
            all.extend(eyes.look(|| certificates::check(&config, SystemTime::now())));
            all.extend(of_a_good_config(path, root, eyes, &Arc::new(config)));
            all
        }
        Err(error) => of_a_bad_config(path, &error, eyes),
    };
    findings.extend(eyes.finding());
    findings.push(machine.somaxconn());
    findings.push(machine.clock());
    findings.push(machine.clock_source());
    findings.sort_by_key(|finding| finding.kind.order());
    findings
}

/// A mistake or a warning about the config.
fn problem(problem: &Problem, kind: CheckKind) -> Finding {
    let about = match &problem.place {
        ConfigPlace::Whole => "file".to_owned(),
        ConfigPlace::File { line, .. } => format!("line {line}"),
        ConfigPlace::Variable(name) => name.to_string(),
    };
    let is_error = problem.severity == config::Severity::Error;
    let found = match &*problem.key {
        "" => "the whole of it".to_owned(),
        key => key.to_owned(),
    };
    let (cause, cure) = (problem.message.clone(), problem.cure.clone());
    match is_error {
        true => kind.failed(about, found, cause, cure),
        false => kind.warning(about, found, cause, cure),
    }
}

fn of_a_bad_config(path: &Path, error: &LoadError, eyes: &ProbeUser) -> Vec<Finding> {
    let file = path.display();
    let mut all = match error {
        LoadError::Wrong(problems) => {
            let mistakes = problems
                .iter()
                .filter(|it| it.severity == config::Severity::Error);
            let count = mistakes.count();
            let plural = if count == 1 { "" } else { "s" };
            let mut all = vec![CONFIG_FILE.failed(
                "file",
                format!("{file} has {count} mistake{plural}"),
                "serve does not start, and a reload keeps the old config",
                "correct each mistake below",
            )];
            all.extend(problems.iter().map(|it| {
                let is_error = it.severity == config::Severity::Error;
                problem(
                    it,
                    if is_error {
                        CONFIG_MISTAKE
                    } else {
                        CONFIG_WARNING
                    },
                )
            }));
            all
        }
        LoadError::Unreadable { cause, .. } => {
            let is_denied = cause.kind() == io::ErrorKind::PermissionDenied;
            vec![match eyes.name().filter(|_| is_denied) {
                None => CONFIG_FILE.failed(
                    "file",
                    format!("{file} cannot be read"),
                    cause.to_string(),
                    "create it, let this user read it, or name another file with --config",
                ),
                Some(user) => CONFIG_FILE.failed(
                    "file",
                    format!("{file} cannot be read by {user}"),
                    format!("the service runs as that user, and does not start: {cause}"),
                    format!(
                        "chgrp {user} {file} && chmod 0640 {file}, and let that user pass its \
                         directories"
                    ),
                ),
            }]
        }
    };
    for (kind, about) in [
        (LISTENER, "listeners"),
        (ADMIN, "admin"),
        (BACKEND, "backend"),
    ] {
        all.push(kind.skipped(about, "not checked: the config cannot be used"));
    }
    all
}

fn of_a_good_config(
    path: &Path,
    root: &Path,
    eyes: &ProbeUser,
    config: &Arc<Config>,
) -> Vec<Finding> {
    let began = Instant::now();
    let left = || ALL_MAX.saturating_sub(began.elapsed());
    // A disk that hangs holds up its own check alone.
    let state_file = in_a_thread({
        let (config, eyes) = (Arc::clone(config), eyes.clone());
        move || machine::state_file(&config, &eyes)
    });
    let apache = in_a_thread({
        let (root, config) = (root.to_owned(), Arc::clone(config));
        move || Some(apache::check(&root, &config))
    });
    let sidecar = sidecar::find(path, config);
    let mut all = listeners::check(config, sidecar.as_ref(), eyes);
    all.extend(sidecar.as_ref().and_then(Sidecar::finding));
    all.extend(eyes.look(|| peers(config, left())));
    let late = || {
        let place: PathBuf = config.callers.state_file.clone().unwrap_or_default();
        let found = format!("no answer from {}", place.display());
        let cause = "the disk did not answer within the time of this command";
        STATE_FILE.failed(
            "state file",
            found,
            cause,
            "look at the disk or the network behind it",
        )
    };
    match state_file.recv_timeout(left()) {
        Ok(finding) => all.extend(finding),
        Err(_) => all.push(late()),
    }
    all.extend(apache.recv_timeout(left()).ok().flatten());
    all
}

fn in_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (tell, told) = mpsc::sync_channel(1);
    thread::spawn(move || {
        // The command may have given up by then.
        let _ = tell.send(work());
    });
    told
}

/// Everything that another process has to answer, all at once.
fn peers(config: &Arc<Config>, bound: Duration) -> Vec<Finding> {
    let runtime = match executor(1) {
        Ok(runtime) => runtime,
        Err(error) => {
            let cure = "raise the limits of this user, and try again";
            let cause = error.to_string();
            return vec![BACKEND.failed("backend", "cannot start a runtime", cause, cure)];
        }
    };
    let findings = runtime.block_on(async {
        let mut checks: JoinSet<((usize, usize), Vec<Finding>)> = JoinSet::new();
        for (order, to) in Destination::BACKENDS.into_iter().enumerate() {
            for (place, server) in backend::servers(to, config).into_iter().enumerate() {
                let (config, order) = (Arc::clone(config), (order, place));
                checks.spawn(async move { (order, backend::check(to, &config, server).await) });
            }
        }
        if let Some(quotas) = &config.quotas {
            let quotas = quotas.clone();
            checks.spawn(async move { ((10, 0), stores::check(&quotas).await) });
        }
        #[cfg(feature = "leases")]
        if let Some(coordinate) = &config.coordinate {
            let servers = coordinate.servers.clone();
            checks.spawn(async move { ((20, 0), leases::check(&servers).await) });
        }
        let mut found = Vec::new();
        let all = async {
            while let Some(done) = checks.join_next().await {
                found.push(done.expect("a check does not panic"));
            }
        };
        let is_late = tokio::time::timeout(bound, all).await.is_err();
        found.sort_by_key(|(order, _)| *order);
        let mut findings: Vec<Finding> = found.into_iter().flat_map(|(_, it)| it).collect();
        if is_late {
            let cause = "a check did not end within the time of this command";
            let cure = "run it again; if it stays, report it as a bug";
            findings.push(BACKEND.failed("backend", "no result", cause, cure));
        }
        findings
    });
    // A resolver that hangs keeps its thread, and this command does not wait for it.
    runtime.shutdown_background();
    findings
}

/// A time as people read it.
fn in_words(length: Duration) -> String {
    match length.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{} s", (seconds * 10.0).round() / 10.0),
    }
}
