//! `tidegate serve`: runs the sidecar until it is stopped.
//!
//! Signal handlers come first, before the config is read. Code that reads or writes files runs
//! off the thread that moves calls: the config, a reload, the last save.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tidegate_runtime::command::{executor, exit_code};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinSet, spawn_blocking};
use tracing::{error, info, warn};

use super::runtime_file::{self, RuntimeFile};
use super::service_manager;
use crate::app::{App, REVISION};
use crate::config::{self, Checked, Config, LoadError, Problems};
use crate::listen::descriptors;
use crate::telemetry::{self, Format, Logs};

/// The time for a save that a second signal has cut short.
const LAST_SAVE: Duration = Duration::from_secs(1);

/// Runs the sidecar. Exit code 0 after a drain that finished everything, 1 otherwise.
#[must_use]
pub fn run(path: &Path, graphical: bool) -> ExitCode {
    // One data-plane thread is the default. It keeps strict order without contention.
    // (docs/benchmarks.md compares it with two.)
    let (runtime, mut signals) = match begin() {
        Ok(begun) => begun,
        Err(message) => return plain(&message),
    };
    let loading = path.to_owned();
    let loaded = runtime.block_on(async {
        #[expect(clippy::disallowed_methods, reason = "on a thread that waits")]
        let loading = spawn_blocking(move || config::load(&loading));
        tokio::select! {
            loaded = loading => Some(loaded.expect("reading a config does not panic")),
            _ = signals.stop() => None,
        }
    });
    let code = match loaded {
        None => ExitCode::SUCCESS,
        Some(Err(error)) => unreadable(config::log_format(path), &error, graphical),
        Some(Ok(checked)) => return serve(runtime, checked, signals, path),
    };
    // Do not wait for a file system that hangs.
    runtime.shutdown_background();
    code
}

fn serve(runtime: Runtime, checked: Checked, signals: Signals, path: &Path) -> ExitCode {
    let Checked { config, warnings } = checked;
    let logs = match log(&config.telemetry, &warnings) {
        Ok(logs) => logs,
        Err(message) => return plain(&message),
    };
    let runtime = if config.listen.threads > 1 {
        runtime.shutdown_background();
        match executor(config.listen.threads) {
            Ok(runtime) => runtime,
            Err(error) => return fatal(&logs, &format!("cannot start threads: {error}")),
        }
    } else {
        runtime
    };
    descriptors::raise();
    let finished = runtime.block_on(async {
        let app = App::start(config, Some(logs.clone())).map_err(|error| error.to_string())?;
        let written = write_down(&app, path).await;
        info!(
            version = env!("CARGO_PKG_VERSION"),
            revision = REVISION,
            config = %path.display(),
            "ready"
        );
        service_manager::ready();
        Ok::<_, String>(until_told(app, signals, path, written).await)
    });
    // Do not wait for a reload or a save that hangs.
    runtime.shutdown_background();
    ended(&logs, finished)
}

/// One thread, and the handlers of signals.
pub(super) fn begin() -> Result<(Runtime, Signals), String> {
    let wrong = |error| format!("tidegate: cannot start threads: {error}");
    let runtime = executor(1).map_err(wrong)?;
    let signals = runtime.block_on(async { Signals::listen() });
    let wrong = |error| format!("tidegate: cannot handle signals: {error}");
    Ok((runtime, signals.map_err(wrong)?))
}

/// The log, and in it the warnings about the config.
pub(super) fn log(settings: &telemetry::Settings, warnings: &Problems) -> Result<Logs, String> {
    let logs = telemetry::log::init(settings).map_err(|error| format!("tidegate: {error}"))?;
    for warning in warnings.iter() {
        warn!("{}", warnings.plain(warning));
    }
    Ok(logs)
}

/// The exit code of a process that ran: a success if all its calls finished.
pub(super) fn ended(logs: &Logs, finished: Result<bool, String>) -> ExitCode {
    match finished {
        Ok(finished) => {
            logs.finish();
            exit_code(finished)
        }
        Err(error) => fatal(logs, &error),
    }
}

/// Writes the reason of the exit to stderr, while there is no log yet.
pub(super) fn plain(message: &str) -> ExitCode {
    // If stderr cannot be written, the exit code still shows the failure.
    let _ = writeln!(io::stderr(), "{}", message.trim_end());
    ExitCode::FAILURE
}

/// Reports the reason of the exit, in the format of the log.
fn fatal(logs: &Logs, message: &str) -> ExitCode {
    if !logs.is_json() {
        return plain(&format!("tidegate: {message}"));
    }
    say(logs, || error!("{message}"));
    ExitCode::FAILURE
}

/// Logs the reason of the exit, at any log level.
fn say(logs: &Logs, reason: impl FnOnce()) {
    logs.set_level(telemetry::log::filter("error"));
    reason();
    logs.finish();
}

/// The config is invalid: drawn for people, one event each if the log is JSON.
pub(super) fn unreadable(format: Format, error: &LoadError, graphical: bool) -> ExitCode {
    let settings = telemetry::Settings {
        format,
        level: "error".into(),
        access: false,
    };
    let logs = match telemetry::log::init(&settings) {
        Ok(logs) if logs.is_json() => logs,
        Ok(_) | Err(_) => return plain(&error.render(graphical)),
    };
    say(&logs, || {
        for message in messages(error) {
            error!("{message}");
        }
    });
    ExitCode::FAILURE
}

/// Each mistake as an event.
pub(super) fn messages(error: &LoadError) -> Vec<String> {
    match error {
        LoadError::Wrong(problems) => problems.iter().map(|it| problems.plain(it)).collect(),
        error @ LoadError::Unreadable { .. } => vec![error.render(false)],
    }
}

/// Writes the admin address for `tidegate healthcheck`.
async fn write_down(app: &App, path: &Path) -> Option<RuntimeFile> {
    let (admin, config) = (app.admin(), path.to_owned());
    let written = spawn_blocking(move || RuntimeFile::write(&config, admin)).await;
    match written.expect("writing a file does not panic") {
        Ok(file) => Some(file),
        Err(error) => {
            let file = runtime_file::path(path);
            let told = format!(
                "cannot write the admin address to {}: {error}; give `tidegate healthcheck` the \
                 address with --admin",
                file.display()
            );
            match runtime_file::is_chosen() {
                true => warn!("{told}"),
                false => info!("{told}"),
            }
            None
        }
    }
}

/// The signals with a meaning, and those that would kill the process silently by default.
pub(super) struct Signals {
    pub(super) hang_up: Signal,
    pub(super) terminate: Signal,
    pub(super) interrupt: Signal,
    pub(super) quit: Signal,
    pub(super) user_1: Signal,
    pub(super) user_2: Signal,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            hang_up: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
        })
    }

    /// The next signal that ends the process. Others that arrive meanwhile are kept.
    pub(super) async fn stop(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.quit.recv() => "SIGQUIT",
        }
    }
}

async fn until_told(
    app: App,
    mut signals: Signals,
    path: &Path,
    written: Option<RuntimeFile>,
) -> bool {
    let app = Arc::new(app);
    let mut reloads = JoinSet::new();
    let by = loop {
        let unknown = tokio::select! {
            Some(ended) = reloads.join_next() => {
                if let Err(failed) = ended {
                    error!("the reload failed, which is a bug: {failed}");
                    app.reload_refused(vec!["the reload failed, which is a bug".to_owned()]);
                }
                continue;
            }
            // One at a time. A signal that arrives meanwhile is kept for the next.
            _ = signals.hang_up.recv(), if reloads.is_empty() => {
                let (app, path) = (Arc::clone(&app), path.to_owned());
                reloads.spawn_blocking(move || {
                    service_manager::reloading();
                    take_config(&app, path);
                    service_manager::ready();
                });
                continue;
            }
            _ = signals.user_1.recv() => "SIGUSR1",
            _ = signals.user_2.recv() => "SIGUSR2",
            _ = signals.terminate.recv() => break "SIGTERM",
            _ = signals.interrupt.recv() => break "SIGINT",
            _ = signals.quit.recv() => break "SIGQUIT",
        };
        warn!("{unknown} has no meaning here: SIGHUP reloads the config, SIGTERM drains and exits");
    };
    info!(signal = by, "draining; a second signal exits at once");
    spawn_blocking(service_manager::stopping);
    let mut is_cut = false;
    let finished = tokio::select! {
        finished = app.drain() => finished,
        _ = signals.stop() => {
            is_cut = true;
            false
        }
    };
    let last = Arc::clone(&app);
    if app.keeps_state() {
        info!("saving the state of callers");
    }
    #[expect(clippy::disallowed_methods, reason = "on a thread that waits")]
    let saving = spawn_blocking(move || {
        last.save();
        drop(written);
    });
    let saved = tokio::select! {
        saved = saving => saved.is_ok(),
        _ = signals.stop(), if !is_cut => false,
        () = tokio::time::sleep(LAST_SAVE), if is_cut => false,
    };
    let finished = finished && saved;
    info!(finished, "stopped");
    finished
}

/// Applies the current file. An invalid file changes nothing. It waits for disks, so it has its
/// own thread.
#[expect(clippy::disallowed_methods, reason = "it has a thread of its own")]
fn take_config(app: &App, path: PathBuf) {
    let checked = match config::load(&path) {
        Ok(checked) => checked,
        Err(failed) => {
            let mistakes = messages(&failed);
            match &failed {
                LoadError::Wrong(_) => {
                    for mistake in &mistakes {
                        error!("{mistake}");
                    }
                    error!("config refused, the old one stays in force");
                }
                LoadError::Unreadable { cause, .. } => {
                    error!("{failed}: {cause}; the old config stays in force");
                }
            }
            return app.reload_refused(mistakes);
        }
    };
    for warning in checked.warnings.iter() {
        warn!("{}", checked.warnings.plain(warning));
    }
    let config: Config = checked.config;
    match app.reload(config) {
        Ok(()) => info!("config reloaded"),
        Err(failed) => {
            error!("{failed}; the old config stays in force");
            app.reload_refused(vec![failed.to_string()]);
        }
    }
}
