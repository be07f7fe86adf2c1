//! `tidegate serve`: runs the sidecar until it is told to stop.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info};

use super::service_manager;
use crate::app::{App, REVISION};
use crate::config::{self, Checked, Config, LoadError};
use crate::telemetry;

/// Runs the sidecar. Exit code 0 after a drain that finished everything, 1 otherwise.
#[must_use]
pub fn run(path: &Path, graphical: bool) -> ExitCode {
    let Checked { config, warnings } = match config::load(path) {
        Ok(checked) => checked,
        Err(error) => return fail(&error.render(graphical)),
    };
    let logs = match telemetry::log::init(&config.telemetry) {
        Ok(logs) => logs,
        Err(error) => return fail(&format!("tidegate: {error}")),
    };
    for warning in warnings.iter() {
        tracing::warn!("{}", warnings.plain(warning));
    }
    // One data-plane thread is the default: it keeps strict order and has nobody to contend
    // with. (docs/benchmarks.md compares it with two.)
    let runtime = match super::runtime(config.threads) {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("tidegate: cannot start threads: {error}")),
    };
    let finished = runtime.block_on(async {
        let signals = Signals::listen()?;
        let app =
            App::start(config, Some(logs)).map_err(|error| io::Error::other(error.to_string()))?;
        info!(
            version = env!("CARGO_PKG_VERSION"),
            revision = REVISION,
            config = %path.display(),
            "ready"
        );
        service_manager::ready();
        Ok(until_told(app, signals, path).await)
    });
    match finished {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let error: io::Error = error;
            fail(&format!("tidegate: {error}"))
        }
    }
}

fn fail(message: &str) -> ExitCode {
    // Where nobody can read why, the exit code still says that.
    let _ = writeln!(io::stderr(), "{}", message.trim_end());
    ExitCode::FAILURE
}

struct Signals {
    hang_up: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            hang_up: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn until_told(app: App, mut signals: Signals, path: &Path) -> bool {
    loop {
        tokio::select! {
            _ = signals.hang_up.recv() => {
                service_manager::reloading();
                reload(&app, path);
                service_manager::ready();
            }
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
        }
    }
    info!("draining; a second signal ends at once");
    service_manager::stopping();
    let finished = tokio::select! {
        finished = app.drain() => finished,
        () = signals.stop() => false,
    };
    app.save();
    info!(finished, "stopped");
    finished
}

/// Takes the file as it is now; a bad one changes nothing.
fn reload(app: &App, path: &Path) {
    let checked = match config::load(path) {
        Ok(checked) => checked,
        Err(LoadError::Wrong(problems)) => {
            for problem in problems.iter() {
                error!("{}", problems.plain(problem));
            }
            error!("config refused, the old one stays");
            return app.reload_refused();
        }
        Err(error) => {
            error!("{}; the old config stays", error.render(false));
            return app.reload_refused();
        }
    };
    for warning in checked.warnings.iter() {
        tracing::warn!("{}", checked.warnings.plain(warning));
    }
    let config: Config = checked.config;
    match app.reload(config) {
        Ok(()) => info!("config reloaded"),
        Err(error) => {
            error!("{error}; the old config stays");
            app.reload_refused();
        }
    }
}
