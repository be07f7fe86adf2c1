//! The long form: writes docs/reports/restarts.md.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::oom::MemoryGroup;
use super::peers::{Peer, replacements};
use super::{CASES, Case, End, Ledger, Seen, WINDOW, restarts};
use crate::open_sockets::exchanges;
use crate::support::not_tried;

/// Restarts of the first row at least.
const FIRST: usize = 100;

/// The rows, and what went wrong.
#[derive(Default)]
struct Report {
    rows: String,
    wrong: Vec<String>,
}

impl Report {
    fn add(&mut self, row: String) {
        println!("{row}");
        self.rows += &row;
        self.rows += "\n";
    }

    /// A row of a sidecar.
    async fn sidecar(&mut self, case: &Case<'_>, end: End<'_>, ledger: Ledger, times: usize) {
        let seen = restarts(end, times, case, ledger).await;
        let excess = seen.excess(case);
        let holds = if excess.is_some() { "no" } else { "yes" };
        let name = match end {
            End::Signal(name) => name,
            End::Memory(_) => "OOM",
        };
        let ledger = match ledger {
            Ledger::Kept => {
                self.wrong.extend(excess);
                "kept"
            }
            Ledger::Lost => "lost",
        };
        self.add(row(case, [case.name, name, ledger, holds], times, &seen));
    }

    /// The rows of another proxy.
    async fn peer(&mut self, peer: Peer, times: usize) {
        let Some(version) = peer.version().await else {
            return not_tried(
                "make restarts",
                &format!("{} is not installed", peer.program()),
            );
        };
        for case in &CASES[..2] {
            // So that the new process has taken over counts, if it can.
            let pause = Duration::from_secs(2);
            let (report, starts, took) = replacements(peer, times, case.delay, pause).await;
            let seen = Seen {
                over: case.rule.calls_over(&starts),
                report,
                took,
                said: Vec::new(),
            };
            let [limits, end] = peer.row();
            let name = format!("{} {version}: {limits}", peer.program());
            let holds = if seen.excess(case).is_some() {
                "no"
            } else {
                "yes"
            };
            self.add(row(case, [&name, end, "none", holds], times, &seen));
        }
    }
}

fn row(case: &Case<'_>, names: [&str; 4], times: usize, seen: &Seen) -> String {
    let [name, end, ledger, holds] = names;
    let report = &seen.report;
    format!(
        "| {name} | {:.2} s | {end} | {ledger} | {times} | {} | {:.0} s | {} | {} | {} | {} | {} | {holds} |",
        case.delay.as_secs_f64(),
        report.calls,
        seen.took.as_secs_f64(),
        report.densest_second,
        case.rule.densest_second(),
        report.peak_in_flight,
        case.at_once,
        seen.over,
    )
}

/// A row about connects while sidecars are exchanged.
async fn sockets_row(kind: &str, name: &str, signal: &str, times: usize) -> (String, u64) {
    let (met, _) = exchanges(kind, signal, times).await;
    let [refused, answered, cut] =
        [&met.refused, &met.answered, &met.cut].map(|it| it.load(Ordering::Relaxed));
    let row = format!("| {name} | {signal} | {times} | {answered} | {refused} | {cut} |");
    (row, refused)
}

/// Writes docs/reports/restarts.md.
#[tokio::test]
#[ignore = "`make restarts` runs it; it takes minutes"]
async fn the_table() {
    let times = std::env::var("RESTARTS").ok();
    let times = times.map_or(100, |it| it.parse().expect("a number of restarts"));
    let mut report = Report::default();
    for (index, case) in CASES.iter().enumerate() {
        let kills = if index == 0 { times.max(FIRST) } else { times };
        let kill = End::Signal("KILL");
        report.sidecar(case, kill, Ledger::Kept, kills).await;
        // Each is a drain of all that waits, which takes half a minute for a bucket.
        let term = End::Signal("TERM");
        report
            .sidecar(case, term, Ledger::Kept, (times / 5).clamp(2, 10))
            .await;
        report
            .sidecar(case, kill, Ledger::Lost, times.min(20))
            .await;
    }
    match MemoryGroup::create() {
        Ok(group) => {
            let end = End::Memory(&group);
            report.sidecar(&WINDOW, end, Ledger::Kept, times).await;
        }
        Err(why) => not_tried("make restarts: OOM", &why),
    }
    for peer in Peer::ALL {
        report.peer(peer, times.min(10)).await;
    }
    let mut sockets = String::new();
    for (kind, name, signal) in [
        ("socket", "a socket unit", "TERM"),
        ("socket", "a socket unit", "KILL"),
        ("store", "`FDSTORE`", "TERM"),
        ("nothing", "none", "TERM"),
    ] {
        let times = if kind == "nothing" { 10 } else { 100 };
        let (row, refused) = sockets_row(kind, name, signal, times).await;
        println!("{row}");
        sockets += &row;
        sockets += "\n";
        if kind != "nothing" && refused > 0 {
            report.wrong.push(row);
        }
    }
    let page = format!("{PAGE}{}{SOCKETS}{sockets}", report.rows);
    std::fs::write("docs/reports/restarts.md", page).expect("the page is ours");
    assert!(report.wrong.is_empty(), "{:#?}", report.wrong);
}

/// HAProxy and nginx are replaced as in `make restarts`, if they are installed. They forget, as a sidecar without its ledger.
#[tokio::test]
async fn another_proxy_is_replaced_in_a_storm() {
    for peer in Peer::ALL {
        if peer.version().await.is_none() {
            not_tried("another_proxy_is_replaced_in_a_storm", peer.program());
            continue;
        }
        let delay = Duration::from_millis(50);
        let (report, ..) = replacements(peer, 2, delay, Duration::ZERO).await;
        assert!(report.calls > 6, "{peer:?}: {report}");
    }
}

const PAGE: &str = "\
# Restarts

What a backend sees while a sidecar is killed or stopped in a storm of 60 clients, and started again at once with the same
config. Measured by `make restarts` at the backend, by its own count.

- With `lost`, the ledger is removed between the two processes and windows begin empty, as it was before there was a ledger.
- With `OOM`, another process uses up the memory of the control group, and the kernel ends the sidecar.
- HAProxy and nginx have 30 calls a second and 10 at once in their own words, and are replaced as their manuals say, with two seconds between.
  HAProxy's new process takes over the counts of the old one (`peers`). nginx's new master begins with empty zones.
- \"allowed\" is what the rule of the row allows: the most calls in any second, and the most at once. A window of 2 s that is full at its end, and
  the next one that is full at its beginning, are two totals in one second. A bucket allows its burst and what
  flows in within a second, and a pace two calls after a silence and its rate.
- \"over\" counts calls that were one too many by that rule, over any time and not only a second. A bucket, a pace and a quota have 200 ms for the
  moment at which a busy backend notes a call.

`make try-here` does the same with `systemctl restart` and `systemctl kill` under a real systemd.

| limit | a call takes | ended by | ledger | restarts | calls | in | densest second | allowed | most at once | allowed | over | holds |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
";

const SOCKETS: &str = "
## Connects

16 clients connect for each call, while the sidecar is ended and the next one started at once. \"cut\" are calls that were under way when their
sidecar was killed.

| sockets stay open by | ended by | restarts | calls answered | connects refused | cut |
|---|---|---|---|---|---|
";
