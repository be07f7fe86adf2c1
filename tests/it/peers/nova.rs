//! Nova's own z/VM driver with the threads of one nova-compute: all of them have work, all the time.
//!
//! nova 34 runs nova-compute on native threads. With the default sizes of its pools they make about 90 calls at once, where
//! older releases made a thousand. `tests/peers/nova/drive.py` has the pools. The short form runs in `make test`; the long
//! one, `make nova-mix`, has the limits of the how-tos and writes docs/reports/nova.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use tempfile::TempDir;

use super::stage::{Auth, Backend, Client, Hop, PATIENCE, Seen, Tidegate, Wsgi, alone};
use super::storm::densest_second;

/// The pools, and the users that always want something of each.
const POOLS: [(&str, usize); 5] = [
    ("build", 10),
    ("snapshot", 5),
    ("power sync", 5),
    ("default", 10),
    ("RPC", 64),
];
/// The most calls that can be at once: builds and snapshots share ten threads.
const THREADS: usize = 89;
/// The longest wait that is configured.
const LONGEST_WAIT: usize = 50;
const PAGE: &str = "docs/reports/nova.md";

/// Where Tidegate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// In front of sdkwsgi.
    H,
    /// Between sdkwsgi and sdkserver.
    S,
    /// Nowhere.
    Absent,
}

/// The load, and the limits that hold it back.
#[derive(Clone, Copy)]
struct MixLoad {
    work: Duration,
    per_second: usize,
    at_once: usize,
    postpone: &'static str,
    /// Seconds of a call at the backend, and of one that builds, captures or deletes.
    latency: f64,
    slow: f64,
}

const SHORT: MixLoad = MixLoad {
    work: Duration::from_secs(2),
    per_second: 60,
    at_once: 10,
    postpone: "in_turn",
    latency: 0.02,
    slow: 0.1,
};

/// The result for one pool, as nova saw it.
#[derive(Debug, Deserialize)]
struct Pool {
    operations: usize,
    calls: usize,
    /// Calls that failed.
    errors: usize,
    /// Operations that failed.
    failures: usize,
    /// The first of both.
    first: Vec<String>,
    middle_seconds: f64,
    longest_seconds: f64,
}

/// The result of the driver.
#[derive(Debug, Deserialize)]
struct Mix {
    pools: BTreeMap<String, Pool>,
    most_at_once: usize,
    seconds: f64,
}

/// A driver at work, and all that it works with.
struct MixRun {
    position: Position,
    load: MixLoad,
    backend: Backend,
    _wsgi: Wsgi,
    proxy: Option<Tidegate>,
    client: Client,
    _files: TempDir,
}

impl MixRun {
    fn start(position: Position, load: MixLoad) -> Self {
        let files = TempDir::new().expect("a temporary directory");
        let MixLoad {
            per_second,
            at_once,
            postpone,
            latency,
            slow,
            work,
        } = load;
        // What left late in one second may start early in the next.
        let most_in_a_second = per_second + at_once;
        let backend = Backend::start(&[
            &format!("--breaks-above-at-once={at_once}"),
            &format!("--breaks-above-per-second={most_in_a_second}"),
            &format!("--latency={latency}"),
            &format!("--slow={slow}"),
        ]);
        let limits = format!(
            "[limits]\n\
             smapi_rate_limit_per_window = \"total:{per_second}\"\n\
             smapi_max_outstanding_requests = {at_once}\n\
             smapi_request_postpone_threshold_seconds = {LONGEST_WAIT}\n\
             [queue]\n\
             postpone = \"{postpone}\"\n"
        );
        let inner =
            (position == Position::S).then(|| Tidegate::start(Hop::Socket(backend.port), &limits));
        let sdkserver = inner.as_ref().map_or(backend.port, |it| it.port);
        let wsgi = Wsgi::start(sdkserver, files.path(), Auth::None);
        let outer =
            (position == Position::H).then(|| Tidegate::start(Hop::Http(wsgi.port), &limits));
        let port = outer.as_ref().map_or(wsgi.port, |it| it.port);
        Self {
            position,
            load,
            backend,
            _wsgi: wsgi,
            proxy: inner.or(outer),
            client: Client::nova(port, work),
            _files: files,
        }
    }

    /// The result, after the driver has come to its end.
    fn finish(self) -> MixReport {
        let longest = self.load.work + 2 * PATIENCE;
        let line = self.client.finish_within(longest).pop();
        let mix: Mix = serde_json::from_value(line.expect("one line")).expect("its form");
        let seen = self.backend.seen();
        let log = self.proxy.map(|proxy| proxy.log(seen.total));
        MixReport {
            position: self.position,
            load: self.load,
            mix,
            seen,
            left_in_a_second: log.map_or(0, |log| densest_second(&log)),
        }
    }
}

struct MixReport {
    position: Position,
    load: MixLoad,
    mix: Mix,
    /// The backend's own record.
    seen: Seen,
    /// By the proxy's log.
    left_in_a_second: usize,
}

impl MixReport {
    /// Asserts that nova saw no error, and that no pool starved.
    fn check_nova(&self) {
        let Self { mix, seen, .. } = self;
        let what = format!("{:?}: {mix:#?} {seen:?}", self.position);
        for (name, users) in POOLS {
            let pool = &mix.pools[name];
            let wrong = pool.errors + pool.failures;
            assert_eq!(wrong, 0, "{name}: {:?} {what}", pool.first);
            assert!(pool.operations >= users, "{name} starves: {what}");
            assert!(
                pool.longest_seconds < LONGEST_WAIT as f64 + self.load.slow,
                "{name}: {what}"
            );
        }
        // A machine that is busy sends the first calls one after the other.
        assert!(mix.most_at_once > THREADS / 2, "{what}");
        assert!(mix.most_at_once <= THREADS, "{what}");
        // The driver asks for the host once, before the mix begins.
        let calls: usize = mix.pools.values().map(|it| it.calls).sum();
        assert_eq!(seen.total, calls + 1, "each call arrives once: {what}");
    }

    /// Asserts that the backend never saw more than the limits.
    fn check_backend(&self) {
        let seen = &self.seen;
        let what = format!("{:?}: {seen:?}", self.position);
        assert_eq!(seen.breaks, 0, "{what}");
        assert!(seen.in_flight_peak <= self.load.at_once, "{what}");
        let most = self.load.per_second + self.load.at_once;
        assert!(seen.densest_window <= most, "{what}");
        assert!(self.left_in_a_second <= self.load.per_second, "{what}");
    }

    fn pools(&self) -> String {
        let mut rows = String::new();
        for (name, users) in POOLS {
            let it = &self.mix.pools[name];
            let _ = writeln!(
                rows,
                "| {} | {:?} | {name} | {users} | {} | {} | {} | {:.1} s | {:.1} s |",
                self.load.postpone,
                self.position,
                it.operations,
                it.calls,
                it.errors,
                it.middle_seconds,
                it.longest_seconds,
            );
        }
        rows
    }

    fn backend(&self) -> String {
        let Self { mix, seen, .. } = self;
        format!(
            "| {} | {:?} | {:.0} s | {} | {} | {} | {} | {} | {} |\n",
            self.load.postpone,
            self.position,
            mix.seconds,
            seen.total,
            mix.most_at_once,
            seen.in_flight_peak,
            self.left_in_a_second,
            seen.densest_window,
            seen.breaks,
        )
    }
}

/// Starts all of them: each is mostly waiting.
fn beside_one_another<const N: usize>(runs: [(Position, MixLoad); N]) -> [MixRun; N] {
    thread::scope(|scope| {
        let starts =
            runs.map(|(position, load)| scope.spawn(move || MixRun::start(position, load)));
        starts.map(|start| start.join().expect("it starts"))
    })
}

#[test]
fn nova_on_native_threads_sees_no_error_at_h_nor_at_s_and_many_without_tidegate() {
    let _alone = alone();
    // A call takes so long that all threads meet, however busy the machine is.
    let absent = MixLoad {
        work: Duration::from_millis(500),
        latency: 0.5,
        slow: 0.5,
        ..SHORT
    };
    let runs = [
        (Position::H, SHORT),
        (Position::S, SHORT),
        (Position::Absent, absent),
    ];
    let [h, s, absent] = beside_one_another(runs);
    for outcome in [h.finish(), s.finish()] {
        println!("{}{}", outcome.pools(), outcome.backend());
        outcome.check_nova();
        outcome.check_backend();
    }
    let absent = absent.finish();
    let errors: usize = absent.mix.pools.values().map(|it| it.errors).sum();
    let seen = &absent.seen;
    assert!(seen.in_flight_peak > SHORT.at_once, "{seen:?}");
    assert!(seen.breaks > 0 && errors > 0, "{seen:?} {:?}", absent.mix);
}

/// Writes docs/reports/nova.md.
#[test]
#[ignore = "`make nova-mix` runs it; it takes eight minutes"]
fn the_table() {
    let minutes = std::env::var("NOVA_MINUTES").ok();
    let minutes: u64 = minutes.map_or(5, |it| it.parse().expect("a number of minutes"));
    let in_turn = MixLoad {
        work: Duration::from_secs(60 * minutes),
        per_second: 30,
        at_once: 10,
        postpone: "in_turn",
        latency: 0.05,
        slow: 5.0,
    };
    let jitter = MixLoad {
        postpone: "jitter",
        ..in_turn
    };
    let runs = [
        (Position::H, in_turn),
        (Position::S, in_turn),
        (Position::H, jitter),
        (Position::S, jitter),
    ];
    let outcomes = beside_one_another(runs).map(MixRun::finish);
    let minute = MixLoad {
        work: Duration::from_secs(60),
        ..in_turn
    };
    let absent = MixRun::start(Position::Absent, minute).finish();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    std::fs::write(path, page(&outcomes, &absent, minutes)).expect("the page is ours");
    outcomes.iter().for_each(MixReport::check_backend);
    // With jitter, a wait has no bound: docs/explanation/jitter-or-in-turn.md.
    let [in_turn @ .., _, _] = &outcomes;
    in_turn.iter().for_each(MixReport::check_nova);
    assert!(absent.seen.breaks > 0, "{:?}", absent.seen);
}

fn page(outcomes: &[MixReport; 4], absent: &MixReport, minutes: u64) -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find(|line| line.starts_with("model name"));
    let cpu = cpu
        .and_then(|line| line.split(": ").nth(1))
        .unwrap_or("a CPU without a name");
    let average = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let average = average.split(' ').next().unwrap_or("-");
    let load = &outcomes[0].load;
    let pools: String = outcomes.iter().map(MixReport::pools).collect();
    let backends: String = outcomes.iter().map(MixReport::backend).collect();
    let calls: usize = absent.mix.pools.values().map(|it| it.calls).sum();
    let errors: usize = absent.mix.pools.values().map(|it| it.errors).sum();
    format!(
        "# Nova's mix of calls

The z/VM driver of nova 34 with the threads of one nova-compute, for {minutes} minutes at each position of Tidegate. Measured by `make nova-mix` on
{cores} cores of {cpu}, with a debug build; load average {average} at the end. The driver, sdkwsgi and sdkserver are
the released ones (nova 34.0.0, zVMCloudConnector 1.6.3); only the API behind sdkserver is a stub. `make test` has a short form.

nova 34 runs nova-compute on native threads. Each thread of its pools always has work here: ten users of builds and five of
snapshots (they share ten threads), five power syncs, ten of the default pool, and 64 of RPC (start, stop, reboot, delete and so on). That is the
most that one nova-compute can ask for: {THREADS} calls at once.

The config is that of [z/VM: in front of sdkwsgi](../how-to/zvm-at-h.md) and of [the other position](../how-to/zvm-at-s.md): {} calls in
any second, {} at once. A call may wait for {LONGEST_WAIT} s here, and for 45 s there. `postpone` is `\"in_turn\"` in two runs and `\"jitter\"`, the default for z/VM, in two.
All four ran side by side. A call takes {} s at the backend; one that creates, deploys, captures, exports or deletes takes {} s. The backend falls over if more than {} calls are at once, or more than {} start in a second.

## What nova saw

With `\"in_turn\"`, nova sees no error, and the longest call of each pool stays far below the deadline. With `\"jitter\"`, a call that is set
aside has no place in a line, so a few meet their deadline (`deadline_passed`) while all threads call without a pause:
[Jitter or in turn](../explanation/jitter-or-in-turn.md).

The time of a call is from the driver's request to its answer, so it includes the wait in Tidegate.

| `postpone` | position | pool | users | operations | calls | errors | middle call | longest call |
|---|---|---|---|---|---|---|---|---|
{pools}
## What the backend saw

| `postpone` | position | time | calls | most at nova at once | most at the backend at once | left in the densest second | started in the densest second | times it fell over |
|---|---|---|---|---|---|---|---|---|
{backends}
The limits: at most {} calls leave Tidegate in any second, and at most {} are at the backend at once. More calls may start at the backend
in one second than left in one, as many as were under way.

Without Tidegate, the same load ran for a minute: {errors} of {calls} calls failed.
",
        load.per_second,
        load.at_once,
        load.latency,
        load.slow,
        load.at_once,
        load.per_second + load.at_once,
        load.per_second,
        load.at_once,
    )
}
