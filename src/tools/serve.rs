//! `tidegate serve`: runs the sidecar until it is stopped.
//!
//! Signal handlers come first, before the config is read. Code that reads or writes files runs
//! off the thread that moves calls: the config, a reload, the last save.

use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tidegate_runtime::command::{executor, exit_code, note};
use tidegate_runtime::lock;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinSet, spawn_blocking};
use tracing::{debug, error, info, warn};

use super::client::AdminAddress;
use super::runtime_file::{self, RuntimeFile};
use super::service_manager;
use crate::app::{App, Predecessor, REVISION};
use crate::config::{self, LoadError, LoadedConfig, Problems};
use crate::listen::{InheritedSockets, descriptors};
use crate::telemetry::journal::{Priority, with_priority};
use crate::telemetry::{self, Format, Logs};

/// After this time, the tasks that a start has begun have done what they do once, and the first calls have been made.
const START_SETTLES: Duration = Duration::from_secs(5);

/// The time for a save that a second signal has cut short.
const LAST_SAVE: Duration = Duration::from_secs(1);

/// Runs the sidecar. Exit code 0 after a drain that finished everything, 1 otherwise.
pub(crate) fn run(
    begun: Result<StartingSidecar, String>,
    path: &Path,
    graphical: bool,
) -> ExitCode {
    let StartingSidecar {
        runtime,
        mut signals,
        sockets,
    } = match begun {
        Ok(begun) => begun,
        Err(message) => return plain(&message),
    };
    let loading = path.to_owned();
    let loaded = runtime.block_on(async {
        #[expect(clippy::disallowed_methods, reason = "on a thread that waits")]
        let loading = spawn_blocking(move || config::load(&loading));
        tokio::select! {
            loaded = loading => Some(loaded.expect("reading a config does not panic")),
            _ = signals.stop.next() => None,
        }
    });
    let code = match loaded {
        None => ExitCode::SUCCESS,
        Some(Err(error)) => unreadable(config::log_format(path), &error, graphical),
        Some(Ok(checked)) => return serve(runtime, checked, signals, sockets, path),
    };
    // Do not wait for a file system that hangs.
    runtime.shutdown_background();
    code
}

fn serve(
    runtime: Runtime,
    checked: LoadedConfig,
    signals: Signals,
    sockets: InheritedSockets,
    path: &Path,
) -> ExitCode {
    let LoadedConfig { config, warnings } = checked;
    let logs = match log(&config.telemetry, &warnings) {
        Ok(logs) => logs,
        Err(message) => return plain(&message),
    };
    descriptors::raise();
    let finished = runtime.block_on(async {
        let before = Predecessor {
            ledger: Some(runtime_file::ledger(path)),
            sockets,
        };
        let app = App::start_after(config, Some(logs.clone()), before);
        let app = app.map_err(|error| error.to_string())?;
        let app = Arc::new(app);
        let written = write_down(Arc::clone(&app), path.to_owned()).await;
        info!(
            version = env!("CARGO_PKG_VERSION"),
            revision = REVISION,
            config = %path.display(),
            "ready"
        );
        service_manager::keep_sockets(app.listening_sockets());
        service_manager::ready();
        unmap_start();
        Ok::<_, String>(until_stopped(app, signals, path, written).await)
    });
    // Do not wait for a reload or a save that hangs.
    runtime.shutdown_background();
    ended(&logs, finished)
}

/// Unmaps the code that only a start or a reload needs, once what they have begun has come to rest. It stays in the
/// kernel's cache.
fn unmap_start() {
    tokio::spawn(async {
        tokio::time::sleep(START_SETTLES).await;
        let unmapped = spawn_blocking(tidegate_mapping::unmap_unused_code).await;
        if let Ok(Err(error)) = unmapped {
            debug!(%error, "the code that only a start needs stays mapped");
        }
    });
}

/// A sidecar that has not read its config yet.
pub(crate) struct StartingSidecar {
    runtime: Runtime,
    signals: Signals,
    sockets: InheritedSockets,
}

/// Begins a sidecar: takes the sockets that were passed to it, and handles signals.
pub(crate) fn begin_sidecar() -> Result<StartingSidecar, String> {
    // While there are no threads.
    let sockets = InheritedSockets::take();
    let (runtime, signals) = begin()?;
    Ok(StartingSidecar {
        runtime,
        signals,
        sockets,
    })
}

/// A runtime with one thread, and the signals that arrive.
pub type HandledRuntime = (Runtime, Signals);

/// Starts a runtime with one thread, and the handlers of signals.
pub fn begin() -> Result<HandledRuntime, String> {
    let wrong = |error| format!("tidegate: cannot start threads: {error}");
    let runtime = executor(1).map_err(wrong)?;
    let signals = runtime.block_on(async { Signals::listen() });
    let wrong = |error| format!("tidegate: cannot handle signals: {error}");
    Ok((runtime, signals.map_err(wrong)?))
}

/// The log, and in it the warnings about the config.
pub fn log(settings: &telemetry::LogSettings, warnings: &Problems) -> Result<Logs, String> {
    let logs = telemetry::log::init(settings).map_err(|error| format!("tidegate: {error}"))?;
    warn_of(warnings);
    Ok(logs)
}

/// The warnings about a config, as events.
pub fn warn_of(warnings: &Problems) {
    for warning in warnings.iter() {
        warn!("{}", warnings.plain(warning));
    }
}

/// The exit code of a process that ran: a success if all its calls finished.
pub fn ended(logs: &Logs, finished: Result<bool, String>) -> ExitCode {
    match finished {
        Ok(finished) => {
            logs.finish();
            exit_code(finished)
        }
        Err(error) => fatal(logs, &error),
    }
}

/// Writes the reason of the exit to stderr, while there is no log yet.
pub fn plain(message: &str) -> ExitCode {
    let message = format!("{}\n", message.trim_end());
    note(with_priority(&message, Priority::ERROR));
    ExitCode::FAILURE
}

fn fatal(logs: &Logs, message: &str) -> ExitCode {
    exit_with(logs, &format!("tidegate: {message}"), &[message.to_owned()])
}

/// The config is invalid: drawn for people, one event for each mistake if the log is JSON.
pub fn unreadable(format: Format, error: &LoadError, graphical: bool) -> ExitCode {
    let settings = telemetry::LogSettings {
        format,
        level: "error".into(),
        access: false,
        replay: false,
    };
    let drawn = error.render(graphical);
    match telemetry::log::init(&settings) {
        Ok(logs) => exit_with(&logs, &drawn, &messages(error)),
        Err(_) => plain(&drawn),
    }
}

/// Reports the reason of the exit in the format of the log: as events, at any log level, or as
/// plain text.
fn exit_with(logs: &Logs, text: &str, events: &[String]) -> ExitCode {
    if !logs.is_json() {
        return plain(text);
    }
    logs.set_level(telemetry::log::filter("error"));
    for event in events {
        error!("{event}");
    }
    logs.finish();
    ExitCode::FAILURE
}

/// Each mistake as an event.
pub fn messages(error: &LoadError) -> Vec<String> {
    match error {
        LoadError::Wrong(problems) => problems.iter().map(|it| problems.plain(it)).collect(),
        error @ LoadError::Unreadable { .. } => vec![error.render(false)],
    }
}

/// The written admin address of a running sidecar, if there is one.
type SharedRuntimeFile = Arc<Mutex<Option<RuntimeFile>>>;

/// Writes the admin address for `tidegate healthcheck`.
async fn write_down(app: Arc<App>, config: PathBuf) -> SharedRuntimeFile {
    let written = spawn_blocking(move || write_runtime_file(&app, &config)).await;
    let written = written.expect("writing a file does not panic");
    Arc::new(Mutex::new(written))
}

/// Writes the runtime file. It waits for a disk.
fn write_runtime_file(app: &App, config: &Path) -> Option<RuntimeFile> {
    let file = || app.admin_file().map(|file| AdminAddress::from(&*file));
    let admin = app.admin().map(AdminAddress::from).or_else(file);
    let error = match RuntimeFile::write(config, admin.as_ref()) {
        Ok(file) => return Some(file),
        Err(error) => error,
    };
    let file = runtime_file::path(config);
    let message = format!(
        "cannot write the admin address to {}: {error}; give `tidegate healthcheck` the \
         address with --admin",
        file.display()
    );
    match runtime_file::chosen() {
        Some(_) => warn!("{message}"),
        None => info!("{message}"),
    }
    None
}

/// Writes the runtime file again if it was removed, or could not be written before.
fn restore_runtime_file(app: &App, config: &Path, written: &Mutex<Option<RuntimeFile>>) {
    let mut written = lock(written);
    if written.as_ref().is_none_or(RuntimeFile::is_lost) {
        // Before the new file is written, which may get the inode of the lost one.
        drop(written.take());
        *written = write_runtime_file(app, config);
    }
}

/// The signals with a meaning, and those that would kill the process silently by default.
pub struct Signals {
    /// SIGHUP.
    pub hang_up: Signal,
    /// Each ends the process.
    pub stop: NamedSignals<3>,
    /// SIGUSR1 and SIGUSR2.
    pub meaningless: NamedSignals<2>,
}

/// Some signals with their names.
pub struct NamedSignals<const N: usize>([(&'static str, Signal); N]);

impl Signals {
    fn listen() -> io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        let (user_1, user_2) = (SignalKind::user_defined1(), SignalKind::user_defined2());
        // By default it ends the process. With a handler, a write beyond `ulimit -f` fails instead,
        // and the lines that it loses are counted.
        let too_large = rustix::process::Signal::XFSZ.as_raw();
        drop(signal(SignalKind::from_raw(too_large))?);
        Ok(Self {
            hang_up: signal(SignalKind::hangup())?,
            stop: NamedSignals([
                ("SIGTERM", signal(terminate)?),
                ("SIGINT", signal(interrupt)?),
                ("SIGQUIT", signal(SignalKind::quit())?),
            ]),
            meaningless: NamedSignals([("SIGUSR1", signal(user_1)?), ("SIGUSR2", signal(user_2)?)]),
        })
    }
}

impl<const N: usize> NamedSignals<N> {
    /// The next of them. Others that arrive meanwhile are kept.
    pub async fn next(&mut self) -> &'static str {
        poll_fn(|cx| {
            let mut signals = self.0.iter_mut();
            let arrived = signals.find_map(|(name, signal)| {
                let has_arrived = signal.poll_recv(cx).is_ready();
                has_arrived.then_some(*name)
            });
            arrived.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

async fn until_stopped(
    app: Arc<App>,
    signals: Signals,
    path: &Path,
    written: SharedRuntimeFile,
) -> bool {
    let watched = Arc::clone(&app);
    let alive = service_manager::keep_alive(async || watched.moves_calls().await);
    tokio::select! {
        never = alive => match never {},
        finished = until_signalled(app, signals, path, written) => finished,
    }
}

async fn until_signalled(
    app: Arc<App>,
    mut signals: Signals,
    path: &Path,
    written: SharedRuntimeFile,
) -> bool {
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
                let written = Arc::clone(&written);
                reloads.spawn_blocking(move || {
                    service_manager::reloading();
                    take_config(&app, &path);
                    restore_runtime_file(&app, &path, &written);
                    service_manager::keep_sockets(app.listening_sockets());
                    service_manager::ready();
                    unmap_start();
                });
                continue;
            }
            unknown = signals.meaningless.next() => unknown,
            by = signals.stop.next() => break by,
        };
        warn!("{unknown} has no meaning here: SIGHUP reloads the config, SIGTERM drains and exits");
    };
    info!(signal = by, "draining; a second signal exits at once");
    spawn_blocking(service_manager::stopping);
    let mut is_cut = false;
    let finished = tokio::select! {
        finished = app.drain() => finished,
        _ = signals.stop.next() => {
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
        // A reload that hangs may have another handle.
        drop(lock(&written).take());
    });
    let saved = tokio::select! {
        saved = saving => saved.is_ok(),
        _ = signals.stop.next(), if !is_cut => false,
        () = tokio::time::sleep(LAST_SAVE), if is_cut => false,
    };
    let finished = finished && saved;
    info!(finished, "stopped");
    finished
}

/// Applies the current file. An invalid file changes nothing. It waits for disks, so it has its
/// own thread.
#[expect(clippy::disallowed_methods, reason = "it has a thread of its own")]
fn take_config(app: &App, path: &Path) {
    let checked = match config::load(path) {
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
    warn_of(&checked.warnings);
    match app.reload(checked.config) {
        Ok(()) => info!("config reloaded"),
        Err(failed) => {
            error!("{failed}; the old config stays in force");
            app.reload_refused(vec![failed.to_string()]);
        }
    }
}
