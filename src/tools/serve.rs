//! `tidegate serve`: runs the sidecar until it is stopped.
//!
//! Signal handlers come first, before the config is read. Code that reads or writes files runs
//! off the thread that moves calls: the config, a reload, the last save.

use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use rustix::process::Signal as Signalled;
use tidegate_runtime::command::{executor, exit_code, note};
use tidegate_runtime::lock;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinSet, spawn_blocking};
use tracing::{debug, error, info, warn};

use super::client::AdminAddress;
use super::runtime_file::{self, RuntimeFile};
use super::service_manager;
use super::successor::{self, Program, in_words};
use crate::app::{App, HandoverPhase, Predecessor, REVISION, StartError, Surroundings, TakingOver};
use crate::config::{self, Config, LoadError, LoadedConfig, Problems};
use crate::listen::{InheritedSockets, descriptors};
use crate::telemetry::journal::{Priority, with_priority};
use crate::telemetry::{self, Format, Logs};

/// After this time, the tasks that a start has begun have done what they do once, and the first calls have been made.
const START_SETTLES: Duration = Duration::from_secs(5);

/// The pid of the first process of a container.
const FIRST: u32 = 1;

/// The time for a save that a second signal has cut short.
const LAST_SAVE: Duration = Duration::from_secs(1);

/// Runs the sidecar. Exit code 0 after a drain that finished everything, 1 otherwise.
pub(crate) fn run(
    begun: Result<StartingSidecar, String>,
    path: &Path,
    kind: StartKind,
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
        Some(Ok(checked)) => {
            let start = StartingSidecar {
                runtime,
                signals,
                sockets,
            };
            return serve(start, checked, path, kind);
        }
    };
    // Do not wait for a file system that hangs.
    runtime.shutdown_background();
    code
}

/// How a sidecar starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartKind {
    /// No other process has its ledger.
    Alone,
    /// In the place of the process that has its ledger.
    TakesOver,
}

fn serve(begun: StartingSidecar, checked: LoadedConfig, path: &Path, kind: StartKind) -> ExitCode {
    let StartingSidecar {
        runtime,
        signals,
        sockets,
    } = begun;
    let LoadedConfig { config, warnings } = checked;
    let logs = match log(&config.telemetry, &warnings) {
        Ok(logs) => logs,
        Err(message) => return plain(&message),
    };
    descriptors::raise();
    let finished = runtime.block_on(async {
        let app = start(config, &logs, path, kind, sockets).await;
        let app = Arc::new(app.map_err(|error| error.to_string())?);
        let program = prepare_successor(&app);
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
        Ok::<_, String>(until_stopped(app, signals, path, written, program).await)
    });
    // Do not wait for a reload or a save that hangs.
    runtime.shutdown_background();
    ended(&logs, finished)
}

async fn start(
    config: Config,
    logs: &Logs,
    path: &Path,
    kind: StartKind,
    sockets: InheritedSockets,
) -> Result<App, StartError> {
    let (ledger, logs) = (runtime_file::ledger(path), Some(logs.clone()));
    match kind {
        StartKind::Alone => App::start_after(config, logs, Predecessor::ended(ledger, sockets)),
        StartKind::TakesOver if !config.forward.servers.is_empty() => {
            Err(StartError::SeveralServers)
        }
        StartKind::TakesOver => match TakingOver::begin(ledger.clone(), &config, path).await? {
            Some(taking) => App::take_over(config, logs, sockets, taking, Surroundings::real()),
            None => App::start_after(config, logs, Predecessor::ended(ledger, sockets)),
        },
    }
}

/// Tells the app how its program is started anew. None if the system does not say which program this is.
fn prepare_successor(app: &Arc<App>) -> Option<Program> {
    let program = Program::of_this_process();
    let program = program
        .inspect_err(|error| warn!(%error, "this process does not know its own program, so it cannot be upgraded"))
        .ok()?;
    let (starting, app_of_child) = (program.clone(), Arc::downgrade(app));
    app.set_successor(Arc::new(move || {
        let mut child = starting.start()?;
        let (pid, app) = (child.id(), app_of_child.clone());
        // It ends with the child, which may live as long as this process.
        let waiting = std::thread::Builder::new().name("successor".to_owned());
        waiting.spawn(move || {
            let how = child
                .wait()
                .map_or_else(|error| error.to_string(), in_words);
            if let Some(app) = app.upgrade() {
                app.successor_ended(pid, how);
            }
        })?;
        Ok(pid)
    }));
    Some(program)
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
    /// SIGUSR2: start the program anew, which takes over.
    pub upgrade: Signal,
    /// SIGUSR1.
    pub meaningless: NamedSignals<1>,
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
            upgrade: signal(user_2)?,
            meaningless: NamedSignals([("SIGUSR1", signal(user_1)?)]),
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
    program: Option<Program>,
) -> bool {
    let watched = Arc::clone(&app);
    let alive = service_manager::keep_alive(async || watched.moves_calls().await);
    tokio::select! {
        never = alive => match never {},
        finished = until_signalled(app, signals, path, written, program) => finished,
    }
}

async fn until_signalled(
    app: Arc<App>,
    mut signals: Signals,
    path: &Path,
    written: SharedRuntimeFile,
    program: Option<Program>,
) -> bool {
    let mut reloads = JoinSet::new();
    let mut phase = app.handover_phase();
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
                let (written, program) = (Arc::clone(&written), program.clone());
                reloads.spawn_blocking(move || {
                    if program.is_some_and(|program| program.has_changed()) {
                        info!("there is another program, which takes over with the config as it is now");
                        return upgrade(&app);
                    }
                    reload(&app, &path, &written);
                });
                continue;
            }
            _ = signals.upgrade.recv() => {
                upgrade(&app);
                continue;
            }
            Ok(()) = phase.changed() => {
                let now = *phase.borrow_and_update();
                match now {
                    HandoverPhase::Serving => continue,
                    HandoverPhase::Draining => break "a new process",
                    // The last call may have ended at once.
                    HandoverPhase::HandedOver | HandoverPhase::Ended => {
                        let serving = Arc::clone(&app);
                        spawn_blocking(move || serving.serving_pid().map(service_manager::hand_over));
                        match until_handed_over(&app, &mut signals, &mut phase).await {
                            HandoverEnd::Serves => continue,
                            HandoverEnd::Ended(finished) => {
                                leave(written).await;
                                info!(finished, "stopped");
                                return finished;
                            }
                        }
                    }
                }
            }
            unknown = signals.meaningless.next() => unknown,
            by = signals.stop.next() => break by,
        };
        warn!(
            "{unknown} has no meaning here: SIGHUP reloads the config, SIGUSR2 starts the program anew, SIGTERM drains \
             and exits"
        );
    };
    app.stopping();
    drain(app, signals, written, by).await
}

/// Starts the program anew.
fn upgrade(app: &Arc<App>) {
    let app = Arc::clone(app);
    tokio::spawn(async move {
        if let Err(why) = app.upgrade().await {
            error!(why, "not upgraded: this process still serves");
        }
    });
}

/// The end of the time in which another process serves.
enum HandoverEnd {
    /// The process serves again.
    Serves,
    /// The process has ended; `true` if all its calls were finished.
    Ended(bool),
}

/// Finishes the calls of a process that has handed over.
async fn until_handed_over(
    app: &Arc<App>,
    signals: &mut Signals,
    phase: &mut tokio::sync::watch::Receiver<HandoverPhase>,
) -> HandoverEnd {
    let mut is_asked = false;
    loop {
        let now = *phase.borrow_and_update();
        match now {
            HandoverPhase::Serving => return HandoverEnd::Serves,
            HandoverPhase::HandedOver => {}
            HandoverPhase::Draining | HandoverPhase::Ended => break,
        }
        tokio::select! {
            Ok(()) = phase.changed() => {}
            _ = signals.hang_up.recv() => warn!("the new process reads its config, and not this one"),
            _ = signals.upgrade.recv() => warn!("the new process can be upgraded, once this one has ended"),
            by = signals.stop.next() => {
                if std::mem::replace(&mut is_asked, true) {
                    return HandoverEnd::Ended(false);
                }
                info!(signal = by, "this process has handed over, and ends with its last call; a second signal exits at once");
                app.stopping();
            }
        }
    }
    let finished = app.end_after_hand_over().await;
    if process::id() == FIRST {
        stay(app, signals).await;
    }
    HandoverEnd::Ended(finished)
}

/// Stays until no other process is left, and passes signals on to the one that serves. A container ends with its first
/// process, and a process that this one has started would end with it.
async fn stay(app: &Arc<App>, signals: &mut Signals) {
    info!("this process has ended its work, and stays because it is the first of its container");
    app.end_beside();
    let mut others = spawn_blocking(successor::wait_for_children);
    loop {
        let signal = tokio::select! {
            _ = &mut others => return,
            _ = signals.stop.next() => Signalled::TERM,
            _ = signals.hang_up.recv() => Signalled::HUP,
            _ = signals.upgrade.recv() => Signalled::USR2,
        };
        let serving = app.serving_pid().filter(|&pid| pid != FIRST);
        if let Some(pid) = serving {
            successor::pass_on(pid, signal);
        }
    }
}

/// Leaves the runtime file to the new process, which has written its own.
async fn leave(written: SharedRuntimeFile) {
    let _ = spawn_blocking(move || drop(lock(&written).take())).await;
}

fn reload(app: &App, path: &Path, written: &Mutex<Option<RuntimeFile>>) {
    service_manager::reloading();
    take_config(app, path);
    restore_runtime_file(app, path, written);
    service_manager::keep_sockets(app.listening_sockets());
    service_manager::ready();
    unmap_start();
}

async fn drain(
    app: Arc<App>,
    mut signals: Signals,
    written: SharedRuntimeFile,
    by: &'static str,
) -> bool {
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
