//! The process: the app of the product, in a runtime of its own whose time the simulation moves.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate::app::{App, PAST, Predecessor, Surroundings};
use tidegate::config::{self, Config};
use tidegate::listen::InheritedSockets;
use tidegate_runtime::Clock;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, advance, sleep};

use crate::lease_servers::{RESOURCE, WayToServers};
use crate::plan::{Limits, Mistake, Plan, RESPONSE_TIMEOUT, Sharing};
use crate::record::Millis;
use crate::store::Store;
use crate::world::World;

/// The machine has run for this long when the simulation begins.
pub(crate) const UP: Duration = Duration::from_secs(90_000);
/// The time of day when the machine was booted, since the epoch.
const BOOTED: Duration = Duration::from_secs(1_900_000_000);
/// Turns of all tasks, and looks at all sockets, in one step.
const TURNS: usize = 4;

/// A runtime whose time stands still until it is moved.
pub(crate) fn paused_runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    let builder = builder.enable_all().start_paused(true);
    builder.build().expect("a runtime")
}

/// Lets a runtime do all that it can do now.
pub(crate) fn settle(runtime: &Runtime) {
    runtime.block_on(async {
        for _ in 0..TURNS {
            yield_now().await;
        }
    });
}

/// Moves the time of a runtime by a millisecond, once its threads that wait for a disk are done.
pub(crate) fn pass(runtime: &Runtime) {
    runtime.block_on(async { sleep(Duration::from_millis(1)).await });
}

/// The ways of a process to what it shares with others.
#[derive(Default)]
pub(crate) struct Ways {
    /// The store of quotas, and when its time began.
    pub(crate) store: Option<(Store, Instant)>,
    /// The folder with the sockets of the lease servers.
    pub(crate) servers: Option<PathBuf>,
}

/// The process, or its absence.
pub(crate) struct Process {
    ways: Ways,
    running: Option<(Runtime, Arc<App>)>,
    drain: Option<JoinHandle<bool>>,
}

/// The text of a config. A mistake makes it differ from what the judge knows.
pub(crate) fn text(world: &World, plan: &Plan, limits: Limits, mistake: Option<Mistake>) -> String {
    let is = |other| mistake == Some(other);
    let Limits {
        outstanding,
        per_window,
        window,
        max_wait,
        capacity,
    } = limits;
    let outstanding = outstanding + usize::from(is(Mistake::OneTooMany));
    let window = window
        - if is(Mistake::WindowTooShort) {
            window / 4
        } else {
            0
        };
    let max_wait = max_wait + if is(Mistake::WaitsTooLong) { 100 } else { 0 };
    let capacity = capacity + if is(Mistake::QueueTooLong) { 10 } else { 0 };
    let postpone = if is(Mistake::SleepsInTurn) {
        "jitter"
    } else {
        "in_turn"
    };
    let when_full = if plan.refuses { "refuse" } else { "wait" };
    let after_crash = if is(Mistake::KeepsSlotsOfTheDead) {
        "300s"
    } else {
        "3s"
    };
    let left = if plan.finishes { "finish" } else { "close" };
    let (front, back) = (world.front(), world.back());
    let (front, back) = (front.display(), back.display());
    format!(
        r#"
        [server]
        threads = 1
        drain_timeout = "3s"
        [[listen]]
        name = "front"
        bind = "unix:{front}"
        protocol = "http"
        cancel_on_eof = {watched}
        [admin]
        bind = ""
        [backend]
        kind = "http"
        http = "unix:{back}"
        on_client_left = "{left}"
        after_crash = "{after_crash}"
        response_timeout = "{RESPONSE_TIMEOUT}ms"
        retry_reads = {retries}
        [queue]
        capacity = {capacity}
        when_full = "{when_full}"
        postpone = "{postpone}"
        [limits]
        per_window = "total:{per_window}"
        window = "{window}ms"
        outstanding = {outstanding}
        max_wait = "{max_wait}ms"
        ledger_lost = "assume_empty"
        {shared}
        "#,
        shared = shared(plan.sharing, &world.folder().display().to_string()),
        watched = !is(Mistake::KeepsWhoLeft),
        retries = is(Mistake::SendsTwice),
    )
}

/// The part of a config that is about what processes share.
fn shared(sharing: Option<Sharing>, id: &str) -> String {
    match sharing {
        None => String::new(),
        // The engine is none that anybody connects to.
        Some(Sharing::Quota { total, window }) => format!(
            r#"
            [quota_store]
            engine = "etcd"
            servers = ["http://127.0.0.1:1"]
            expected_sidecars = 2
            [[quota]]
            name = "shared"
            applies_to = "total"
            total = {total}
            refresh_window = "{window}ms"
            "#
        ),
        Some(Sharing::Lease { safe, .. }) => format!(
            r#"
            [coordinate]
            servers = ["lease-0:1", "lease-1:1"]
            id = "{id}"
            expected_sidecars = 2
            request_timeout = "500ms"
            minimum_interval = "200ms"
            [[coordinate.limit]]
            limit = "total"
            resource = "{RESOURCE}"
            safe = {safe}
            "#
        ),
    }
}

/// Reads a config.
///
/// # Errors
/// Its mistakes.
pub(crate) fn read(text: &str) -> Result<Config, Vec<String>> {
    match config::read(text, "simulation.toml", std::iter::empty()) {
        Ok(loaded) => Ok(loaded.config),
        Err(problems) => Err(problems.iter().map(|it| problems.plain(it)).collect()),
    }
}

impl Process {
    pub(crate) const fn absent(ways: Ways) -> Self {
        Self {
            ways,
            running: None,
            drain: None,
        }
    }

    /// Starts a process as the successor of the one before.
    pub(crate) fn start(&mut self, world: &World, text: &str, now: Millis) {
        let config = read(text).expect("a good config");
        let runtime = paused_runtime();
        let app = runtime.block_on(async {
            let up = UP + Duration::from_millis(now);
            let mut surroundings = Surroundings::real();
            surroundings.clock = Clock::simulated(PAST, up, time_of_day(now));
            if let Some((store, began)) = self.ways.store.clone() {
                surroundings.open = Box::new(move |_, clock| store.way(clock, began));
            }
            if let Some(folder) = self.ways.servers.clone() {
                surroundings.dial = Some(Arc::new(WayToServers(folder)));
            }
            let before = Predecessor::ended(world.ledger(), InheritedSockets::default());
            App::start_in(config, None, before, surroundings).expect("it starts")
        });
        self.running = Some((runtime, Arc::new(app)));
    }

    pub(crate) fn is_there(&self) -> bool {
        self.running.is_some()
    }

    /// Calls past the gate, and calls that wait.
    pub(crate) fn busy(&self) -> Option<(usize, usize)> {
        self.running.as_ref().map(|(_, app)| app.busy())
    }

    /// Lets it do all that it can do now.
    pub(crate) fn settle(&self) {
        if let Some((runtime, _)) = &self.running {
            settle(runtime);
        }
    }

    /// A millisecond passes.
    pub(crate) fn pass(&self) {
        if let Some((runtime, _)) = &self.running {
            pass(runtime);
        }
    }

    /// Time jumps, as after a while without a processor.
    pub(crate) fn jump(&self, by: Millis) {
        if let Some((runtime, _)) = &self.running {
            runtime.block_on(async { advance(Duration::from_millis(by)).await });
        }
    }

    /// Kills it: nothing that it would do at its end happens, apart from what the kernel does. Its ledger stays as it is.
    pub(crate) fn kill(&mut self, world: &World) {
        let ledger = std::fs::read(world.ledger());
        self.end();
        if let Ok(ledger) = ledger {
            // In a file of its own, because the other one is mapped.
            let other = world.folder().join("kept");
            std::fs::write(&other, ledger).expect("there is room");
            std::fs::rename(&other, world.ledger()).expect("it can be renamed");
        }
        leave_socket_file(&world.front());
    }

    fn end(&mut self) {
        self.drain = None;
        if let Some((runtime, app)) = self.running.take() {
            // Tasks first: they get no notice.
            runtime.shutdown_background();
            drop(app);
        }
    }

    /// Tells it to end.
    pub(crate) fn begin_to_drain(&mut self) {
        if let Some((runtime, app)) = &self.running {
            let app = Arc::clone(app);
            self.drain = Some(runtime.spawn(async move {
                // A signal comes with a look at the sockets, and not before it.
                yield_now().await;
                app.drain().await
            }));
        }
    }

    /// Whether it has ended since it was told to.
    pub(crate) fn has_drained(&mut self) -> bool {
        let has_drained = self.drain.as_ref().is_some_and(JoinHandle::is_finished);
        if has_drained {
            self.end();
        }
        has_drained
    }

    /// Takes a config, as the program does at SIGHUP.
    pub(crate) fn reload(&self, text: &str) -> bool {
        let Some((runtime, app)) = &self.running else {
            return false;
        };
        let _here = runtime.enter();
        match read(text) {
            Ok(config) => app.reload(config).is_ok(),
            Err(mistakes) => {
                app.reload_refused(mistakes);
                false
            }
        }
    }
}

/// The time of day at a moment of the simulation.
pub(crate) fn time_of_day(now: Millis) -> SystemTime {
    UNIX_EPOCH + BOOTED + UP + Duration::from_millis(now)
}

/// A killed process leaves the file of its socket behind.
fn leave_socket_file(path: &Path) {
    let _ = std::fs::remove_file(path);
    drop(UnixListener::bind(path).expect("a free path"));
}
