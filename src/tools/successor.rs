//! The program that takes over from this process: it is started with the same arguments, and may have been replaced since.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

/// The argument of a process that takes over.
pub const TAKE_OVER: &str = "--take-over";

/// Variables that mean one process alone.
const OF_ONE_PROCESS: [&str; 4] = ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// The program of this process, as it was when the process began.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    id: Option<(u64, u64)>,
}

impl Program {
    /// The program of this process. By the name under which it was started, so that a link leads to a new version.
    ///
    /// # Errors
    /// If the system does not say which program this is.
    pub fn of_this_process() -> io::Result<Self> {
        let mut arguments = env::args_os();
        let name = arguments.next().map(PathBuf::from);
        let path = match name.filter(|name| name.components().count() > 1) {
            Some(path) => std::path::absolute(path)?,
            None => env::current_exe()?,
        };
        let mut arguments: Vec<_> = arguments.collect();
        if !arguments.iter().any(|it| it == TAKE_OVER) {
            arguments.push(TAKE_OVER.into());
        }
        Ok(Self {
            id: id(&path),
            path,
            arguments,
        })
    }

    /// Whether there is another program in its place.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        // While it is being replaced there may be none.
        id(&self.path).is_some_and(|id| Some(id) != self.id)
    }

    /// Starts it.
    ///
    /// # Errors
    /// The error of the system.
    pub fn start(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        for variable in OF_ONE_PROCESS {
            command.env_remove(variable);
        }
        command.spawn()
    }
}

fn id(path: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Waits until no process is left that this one has started, or that was left to it.
pub fn wait_for_children() {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Sends a signal to the process with this pid. One that is gone needs none.
pub fn pass_on(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = kill_process(pid, signal);
    }
}

/// How a process ended, in words.
#[must_use]
pub fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}; its log says why"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "for an unknown reason".to_owned(),
    }
}
