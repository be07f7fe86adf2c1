//! `tidegate lease-server`: runs the capacity server until it is stopped.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_runtime::command::{note, printed};
use tracing::{error, info, warn};

use crate::config::{self, DEFAULT_PATH, LoadedConfig, Rules};
use crate::running::LeaseServer;
use tidegate::config::LoadError;
use tidegate::listen::descriptors;
use tidegate::telemetry::journal::{Priority, with_priority};
use tidegate::tools::serve::{Signals, begin, ended, log, messages, plain, unreadable, warn_of};
use tidegate::tools::service_manager;

/// The arguments of the command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LeaseServerArguments {
    /// The config file
    #[arg(long, short, env = "TIDEGATE_LEASE_CONFIG", default_value = DEFAULT_PATH, value_name = "FILE")]
    pub config: PathBuf,
    /// Read the config, print every mistake or the settings in force, and exit. Exit code 0 valid,
    /// 1 invalid
    #[arg(long)]
    pub check: bool,
}

/// Runs the server. Exit code 0 after a drain that finished everything, 1 otherwise.
#[expect(clippy::disallowed_methods, reason = "it serves no client yet")]
pub(crate) fn run(arguments: &LeaseServerArguments, graphical: bool) -> ExitCode {
    // One lock guards all decisions: more threads would wait for it.
    let (runtime, signals) = match begin() {
        Ok(begun) => begun,
        Err(message) => return plain(&message),
    };
    let path = &arguments.config;
    let LoadedConfig { config, warnings } = match config::load(path) {
        Ok(checked) => checked,
        // A check draws the mistakes for people, like `tidegate check`.
        Err(error) if arguments.check => return plain(&error.render(graphical)),
        Err(error) => return unreadable(config::log_format(path), &error, graphical),
    };
    if arguments.check {
        if !warnings.is_empty() {
            let warnings = format!("{}\n", warnings.render(graphical).trim_end());
            note(with_priority(&warnings, Priority::WARNING));
        }
        if let Some(fit) = config.connections_that_fit(descriptors::allowed()) {
            let warning = format!(
                "warning: the limit of open files leaves room for {fit} connections, fewer than \
                 bounds.connections: raise it with LimitNOFILE= or ulimit -n\n"
            );
            note(with_priority(&warning, Priority::WARNING));
        }
        let rules = config.rules_shown();
        let text = format!("{}\n{rules}\n{} is good\n", config.shown, path.display());
        return printed(&text, ExitCode::SUCCESS);
    }
    let logs = match log(&config.telemetry, &warnings) {
        Ok(logs) => logs,
        Err(message) => return plain(&message),
    };
    descriptors::raise();
    let finished = runtime.block_on(until_stopped(config, signals, path));
    ended(&logs, finished)
}

async fn until_stopped(
    config: config::LeaseServerSettings,
    mut signals: Signals,
    path: &Path,
) -> Result<bool, String> {
    // Rules in etcd may take time.
    let started = tokio::select! {
        started = LeaseServer::start(&config) => started,
        _ = signals.stop.next() => return Ok(true),
    };
    let server = started.map_err(|error| error.to_string())?;
    service_manager::ready();
    let alive = service_manager::keep_alive(async || true);
    tokio::select! {
        never = alive => match never {},
        finished = until_signalled(server, &config, signals, path) => Ok(finished),
    }
}

async fn until_signalled(
    server: LeaseServer,
    config: &config::LeaseServerSettings,
    mut signals: Signals,
    path: &Path,
) -> bool {
    loop {
        tokio::select! {
            _ = signals.hang_up.recv() => {
                service_manager::reloading();
                // Files are read off the thread that answers clients.
                let path = path.to_owned();
                #[expect(clippy::disallowed_methods, reason = "on a thread that waits")]
                let loaded = tokio::task::spawn_blocking(move || config::load(&path)).await;
                let loaded = loaded.expect("reading a config does not panic");
                reload(&server, loaded, config);
                service_manager::ready();
            }
            unknown = signals.meaningless.next() => warn!("{unknown} does nothing here"),
            // Only a sidecar hands over.
            _ = signals.upgrade.recv() => warn!("SIGUSR2 does nothing here"),
            _ = signals.stop.next() => break,
        }
    }
    info!("draining; a second signal exits at once");
    service_manager::stopping();
    let finished = tokio::select! {
        finished = server.drain() => finished,
        _ = signals.stop.next() => false,
    };
    info!(finished, "stopped");
    finished
}

/// Applies the rules and the certificates in the current files. An invalid file changes nothing.
fn reload(
    server: &LeaseServer,
    loaded: Result<LoadedConfig, LoadError>,
    config: &config::LeaseServerSettings,
) {
    let checked = match loaded {
        Ok(checked) => checked,
        Err(error) => {
            for mistake in messages(&error) {
                error!("{mistake}");
            }
            error!("config refused, the old one stays in force");
            return server.reload_refused();
        }
    };
    warn_of(&checked.warnings);
    if checked.config.shown != config.shown {
        warn!("only resources and certificates are reloaded; everything else needs a restart");
    }
    config.renew_certificates(&checked.config);
    match checked.config.rules {
        Rules::Here(templates) | Rules::File { templates, .. } => server.apply(templates),
        Rules::Etcd { .. } => info!("the rules are in etcd, and watched there"),
    }
}
