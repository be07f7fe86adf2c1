//! The threads that serve connections.
//!
//! A connection stays on one thread, with its calls and their connections to the backend. So threads share the
//! limits and the counts, and nothing else: no thread takes work from another one. (docs/decisions/0027)

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use tidegate_runtime::command::executor;
use tidegate_runtime::lock;
use tokio::runtime::{Handle, Runtime};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// A thread is started when each that runs has this number of connections. Fewer are not worth its memory.
const BEFORE_THE_NEXT: usize = 8;

/// Starts a thread with this number.
type Start = fn(usize, CancellationToken) -> io::Result<Thread>;

/// The thread that accepts, and those beside it.
pub struct Threads {
    here: Load,
    /// There may be others beside the one that accepts.
    may_be_many: bool,
    beside: Mutex<ExtraThreads>,
    stop: CancellationToken,
    start: Start,
}

/// The threads beside the one that accepts.
struct ExtraThreads {
    /// How many there may be.
    most: usize,
    /// The next is started when each has this number of connections.
    next_at: usize,
    started: Vec<Thread>,
}

struct Thread {
    executor: Handle,
    load: Load,
    running: JoinHandle<()>,
}

/// The connections of a thread.
#[derive(Clone, Default)]
struct Load(Arc<AtomicUsize>);

/// A place on a thread.
pub struct ThreadPlace {
    /// `None` for the thread that accepts.
    pub executor: Option<Handle>,
    /// Counts a connection until it is dropped.
    pub taken: ThreadLoad,
}

/// A connection counts for its thread.
pub struct ThreadLoad(Load);

/// Guess whether the next connection of a listener is one call of the socket protocol.
///
/// Such a call stays on the thread that accepts: two threads take 0.81 to 0.85 of HAProxy's CPU for it, and one takes
/// 0.75 to 0.80 (docs/decisions/0027). A connection without a first byte is probably like the one before it.
#[derive(Default)]
pub struct CallGuess {
    is_one_call: AtomicBool,
}

impl Load {
    fn connections(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn take(&self) -> ThreadLoad {
        self.0.fetch_add(1, Ordering::Relaxed);
        ThreadLoad(self.clone())
    }
}

impl Drop for ThreadLoad {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Threads {
    /// At most this number of threads, and no more than there are processors. Those beside the thread that accepts are
    /// started when they are needed.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::with(most.min(processors), start)
    }

    fn with(most: usize, start: Start) -> Self {
        Self {
            here: Load::default(),
            may_be_many: most > 1,
            beside: Mutex::new(ExtraThreads {
                most: most.saturating_sub(1),
                next_at: BEFORE_THE_NEXT,
                started: Vec::new(),
            }),
            stop: CancellationToken::new(),
            start,
        }
    }

    /// Chooses the thread of a new connection. `is_one_call` returns whether it is one call of the socket
    /// protocol, or `None` if that is not known yet.
    pub fn place_for(
        &self,
        guess: &CallGuess,
        is_one_call: impl FnOnce() -> Option<bool>,
    ) -> ThreadPlace {
        if !self.may_be_many {
            return self.here();
        }
        if let Some(known) = is_one_call() {
            guess.is_one_call.store(known, Ordering::Relaxed);
        }
        match guess.is_one_call.load(Ordering::Relaxed) {
            true => self.here(),
            false => self.place(),
        }
    }

    /// A place on the thread that accepts.
    fn here(&self) -> ThreadPlace {
        ThreadPlace {
            executor: None,
            taken: self.here.take(),
        }
    }

    /// A place on the thread with the fewest connections. On the thread that accepts if there is no other.
    fn place(&self) -> ThreadPlace {
        let mut beside = lock(&self.beside);
        let loads = beside.started.iter().map(|it| it.load.connections());
        let fewest = loads.min().unwrap_or(usize::MAX);
        let here = self.here.connections();
        if fewest.min(here) >= beside.next_at && beside.started.len() < beside.most {
            match (self.start)(beside.started.len() + 2, self.stop.clone()) {
                Ok(thread) => {
                    beside.started.push(thread);
                    beside.next_at = BEFORE_THE_NEXT;
                }
                Err(error) => {
                    // Tried again, but not for each connection.
                    beside.next_at *= 2;
                    let threads = beside.started.len() + 1;
                    warn!(%error, threads, "cannot start one more thread for calls, the others serve them");
                }
            }
        }
        let quietest = beside.started.iter().min_by_key(|it| it.load.connections());
        match quietest.filter(|it| it.load.connections() < here) {
            Some(thread) => ThreadPlace {
                executor: Some(thread.executor.clone()),
                taken: thread.load.take(),
            },
            None => self.here(),
        }
    }

    /// Waits until each thread beside this one has done a little work. Returns whether all did; one
    /// that has ended does none.
    pub async fn answer(&self) -> bool {
        let executors: Vec<Handle> = {
            let beside = lock(&self.beside);
            beside
                .started
                .iter()
                .map(|it| it.executor.clone())
                .collect()
        };
        let asked: Vec<_> = executors.iter().map(|it| it.spawn(async {})).collect();
        let mut all = true;
        for answer in asked {
            all &= answer.await.is_ok();
        }
        all
    }

    /// Ends those beside the thread that accepts, and drops what they still serve. No other is started.
    pub fn end(&self) {
        let started = {
            let mut beside = lock(&self.beside);
            beside.most = 0;
            std::mem::take(&mut beside.started)
        };
        self.stop.cancel();
        for thread in started {
            // If it has panicked, which is a bug, that is in the log.
            let _ = thread.running.join();
        }
    }
}

/// The loop of a thread. Calls that are left in it end with it.
struct Loop(Option<Runtime>);

impl Loop {
    fn run(&self, stop: &CancellationToken) {
        if let Some(runtime) = &self.0 {
            runtime.block_on(stop.cancelled());
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // If it got no thread, it ends on that of another loop, where nothing may wait.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

fn start(number: usize, stop: CancellationToken) -> io::Result<Thread> {
    let runtime = executor(1)?;
    let executor = runtime.handle().clone();
    let its = Loop(Some(runtime));
    let run = move || its.run(&stop);
    let named = thread::Builder::new().name(format!("calls-{number}"));
    Ok(Thread {
        executor,
        load: Load::default(),
        running: named.spawn(run)?,
    })
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests;
