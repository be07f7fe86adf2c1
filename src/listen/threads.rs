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
mod tests {
    use std::future::pending;
    use std::sync::mpsc;

    use super::*;

    fn executors(places: &[ThreadPlace]) -> Vec<Option<tokio::runtime::Id>> {
        let executor = |place: &ThreadPlace| place.executor.as_ref().map(Handle::id);
        places.iter().map(executor).collect()
    }

    fn take(threads: &Threads, number: usize) -> Vec<ThreadPlace> {
        (0..number).map(|_| threads.place()).collect()
    }

    #[test]
    fn a_thread_is_started_when_the_others_are_full_and_each_gets_as_many() {
        let threads = Threads::with(3, start);
        let first = take(&threads, BEFORE_THE_NEXT);
        assert!(executors(&first).iter().all(Option::is_none));
        let second = take(&threads, BEFORE_THE_NEXT);
        let third = take(&threads, BEFORE_THE_NEXT);
        let (second, third) = (executors(&second), executors(&third));
        assert!(second[0].is_some() && third[0].is_some() && second[0] != third[0]);
        assert!(second.iter().all(|it| *it == second[0]), "{second:?}");
        assert!(third.iter().all(|it| *it == third[0]), "{third:?}");
        threads.end();
    }

    #[test]
    fn a_connection_goes_to_the_thread_with_the_fewest() {
        let threads = Threads::with(2, start);
        let mut here = take(&threads, BEFORE_THE_NEXT);
        let mut beside = take(&threads, BEFORE_THE_NEXT);
        assert_eq!(executors(&take(&threads, 1)), [None]);
        drop(beside.pop());
        assert_eq!(executors(&take(&threads, 1)), executors(&beside[..1]));
        here.truncate(2);
        assert_eq!(executors(&take(&threads, 5)), [None; 5]);
        threads.end();
    }

    #[test]
    fn a_call_of_the_socket_protocol_stays_and_an_unknown_connection_is_like_the_one_before() {
        let threads = Threads::with(2, start);
        let guess = CallGuess::default();
        let mut places = take(&threads, BEFORE_THE_NEXT);
        for (known, stays) in [
            (Some(true), true),
            (None, true),
            (Some(false), false),
            (None, false),
            (Some(true), true),
        ] {
            let place = threads.place_for(&guess, || known);
            assert_eq!(place.executor.is_none(), stays, "{known:?}");
            places.push(place);
        }
        threads.end();
    }

    #[test]
    fn one_thread_stays_one_and_so_do_those_after_the_end() {
        let threads = Threads::with(1, start);
        assert_eq!(executors(&take(&threads, 20)), [None; 20]);
        let threads = Threads::with(2, start);
        threads.end();
        assert_eq!(executors(&take(&threads, 20)), [None; 20]);
        threads.end();
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_tried_again_at_twice_as_many_connections() {
        static TRIED: AtomicUsize = AtomicUsize::new(0);
        let threads = Threads::with(2, |_, _| {
            TRIED.fetch_add(1, Ordering::Relaxed);
            Err(io::ErrorKind::OutOfMemory.into())
        });
        let mut places = Vec::new();
        for (connections, tried) in [(8, 0), (16, 1), (32, 2), (64, 3), (100, 4)] {
            places.extend(take(&threads, connections - places.len()));
            assert_eq!(TRIED.load(Ordering::Relaxed), tried, "{connections}");
        }
        assert!(executors(&places).iter().all(Option::is_none));
    }

    #[tokio::test]
    async fn a_loop_that_gets_no_thread_ends_on_that_of_another() {
        let runtime = executor(1).expect("there is room");
        drop(Loop(Some(runtime)));
    }

    #[tokio::test]
    async fn all_threads_answer_only_while_none_is_stuck() {
        let threads = Threads::with(2, start);
        assert!(threads.answer().await, "there is no other");
        let places = take(&threads, BEFORE_THE_NEXT + 1);
        assert!(threads.answer().await);
        let executor = places.iter().find_map(|place| place.executor.clone());
        let (resume, stuck) = mpsc::channel::<()>();
        executor.expect("a second thread").spawn(async move {
            // What no task may do.
            let _ = stuck.recv();
        });
        let mut answer = std::pin::pin!(threads.answer());
        let waited = tokio::time::timeout(std::time::Duration::from_millis(50), &mut answer);
        assert!(waited.await.is_err(), "one is stuck");
        drop(resume);
        assert!(answer.await, "it is free again");
        threads.end();
    }

    #[test]
    fn what_is_left_on_a_thread_is_dropped_before_it_ends() {
        struct Left(mpsc::Sender<Option<String>>);
        impl Drop for Left {
            fn drop(&mut self) {
                let name = thread::current().name().map(str::to_owned);
                self.0.send(name).expect("it is read below");
            }
        }
        let threads = Threads::with(2, start);
        let (tell, told) = mpsc::channel();
        let mut places = take(&threads, BEFORE_THE_NEXT + 1);
        let executor = places.pop().and_then(|place| place.executor);
        let left = Left(tell);
        executor.expect("a second thread").spawn(async move {
            let _left = left;
            pending::<()>().await;
        });
        threads.end();
        assert_eq!(told.try_recv(), Ok(Some("calls-2".to_owned())));
    }
}
