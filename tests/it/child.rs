//! Child processes that end with the test, and the lines that they print.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Lines of a process that fails its test are shown from here on.
const LAST_LINES: usize = 20;

/// A child process. It is killed when this is dropped, also by a panic; the peers end with
/// their stdin besides, so that they outlive not even a test that was killed.
pub(crate) struct Process {
    name: String,
    child: Child,
    pub(crate) stdout: Lines,
    pub(crate) stderr: Lines,
}

impl Process {
    pub(crate) fn start(name: impl Into<String>, command: &mut Command) -> Self {
        let name = name.into();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let stdout = Lines::of(child.stdout.take().expect("stdout is piped"));
        let stderr = Lines::of(child.stderr.take().expect("stderr is piped"));
        Self {
            name,
            child,
            stdout,
            stderr,
        }
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Sends it a signal, such as `STOP` or `CONT`.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("sh")
            .args(["-c", "kill -s \"$1\" \"$2\"", "sh", signal, &pid])
            .status();
        assert!(
            sent.is_ok_and(|status| status.success()),
            "{signal} to {}",
            self.name
        );
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is ours and was not reaped");
        self.child.wait().expect("it was started by us");
    }

    /// Waits for its end, which must be a good one, and returns its stdout.
    pub(crate) fn finish(mut self, within: Duration) -> Vec<String> {
        let lines = self.stdout.to_the_end(within);
        // Its stdout is closed, so it is ending.
        let status = self.child.wait().expect("it was started by us");
        assert!(status.success(), "{} ended with {status}", self.name);
        lines
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let lines = self.stderr.all();
            let from = lines.len().saturating_sub(LAST_LINES);
            eprintln!("{} said last:\n{}", self.name, lines[from..].join("\n"));
        }
    }
}

/// The lines that one stream of a process has printed so far.
#[derive(Clone)]
pub(crate) struct Lines(Arc<Printed>);

/// The result of looking for something.
pub(crate) enum Found<T> {
    It(T),
    /// The stream ended first.
    Ended,
    NotInTime,
}

#[derive(Default)]
struct Printed {
    state: Mutex<State>,
    grown: Condvar,
}

#[derive(Default)]
struct State {
    lines: Vec<String>,
    has_ended: bool,
}

impl Lines {
    fn of(stream: impl Read + Send + 'static) -> Self {
        let printed = Arc::<Printed>::default();
        let reader = Arc::clone(&printed);
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                reader.lock().lines.push(line);
                reader.grown.notify_all();
            }
            reader.lock().has_ended = true;
            reader.grown.notify_all();
        });
        Self(printed)
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().lines.clone()
    }

    /// Waits until `pick` finds its text in the output so far.
    pub(crate) fn until<T>(
        &self,
        what: &str,
        within: Duration,
        pick: impl FnMut(&[String]) -> Option<T>,
    ) -> T {
        match self.find(within, pick) {
            Found::It(found) => found,
            Found::Ended => panic!("it ended before {what}"),
            Found::NotInTime => panic!("not within {within:?}: {what}"),
        }
    }

    /// As [`until`](Self::until), where not to find it is no failure.
    pub(crate) fn find<T>(
        &self,
        within: Duration,
        mut pick: impl FnMut(&[String]) -> Option<T>,
    ) -> Found<T> {
        let deadline = Instant::now() + within;
        let mut state = self.0.lock();
        loop {
            if let Some(found) = pick(&state.lines) {
                return Found::It(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.has_ended {
                return Found::Ended;
            }
            if left.is_zero() {
                return Found::NotInTime;
            }
            state = self
                .0
                .grown
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn to_the_end(&self, within: Duration) -> Vec<String> {
        let state = self.0.lock();
        let (state, waited) = self
            .0
            .grown
            .wait_timeout_while(state, within, |state| !state.has_ended)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.timed_out(), "not within {within:?}: its end");
        state.lines.clone()
    }
}

impl Printed {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
