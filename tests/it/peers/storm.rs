//! Three hundred calls at once, at a backend that falls over above 12 at once or 40 in any
//! second.
//!
//! At the backend no second may show more than what may leave in one, and what may be under
//! way besides: a call that left late in one second may start late in the next. In flight is
//! exact. So is what left, by the proxy's own log.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tempfile::TempDir;

use super::stage::{Auth, Backend, Client, Hop, Logged, Tidegate, Wsgi, alone};

const CALLS: usize = 300;
/// The limit of these tests.
const PER_SECOND: usize = 30;
const AT_ONCE: usize = 10;

fn limits(postpone: &str, stamp: &str) -> String {
    format!(
        "[queue]\n\
         postpone = \"{postpone}\"\n\
         [limits]\n\
         smapi_rate_limit_per_window = \"total:{PER_SECOND}\"\n\
         smapi_max_outstanding_requests = {AT_ONCE}\n\
         window_stamp = \"{stamp}\"\n"
    )
}

/// The result of one call, as its client saw it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Result {
    /// `overallRC`, `modID`, `rc`, `rs`; none if the client raised, or got an answer that
    /// was meant for another.
    pub(super) code: Option<(i64, Option<i64>, i64, i64)>,
    pub(super) errmsg: String,
}

/// The result of a storm.
#[derive(Deserialize)]
pub(super) struct Storm {
    /// By userid: each call asks for another.
    pub(super) results: BTreeMap<String, Result>,
    /// From the first call to the last answer.
    pub(super) seconds: f64,
}

impl Storm {
    pub(super) fn of(client: Client) -> Self {
        let mut lines = client.finish();
        let line = lines.pop().expect("one line for the storm");
        serde_json::from_value(line).expect("the form of a storm")
    }

    pub(super) fn answered(&self) -> BTreeSet<&str> {
        let results = self.results.iter();
        results
            .filter(|(_, result)| result.code == Some((0, None, 0, 0)))
            .map(|(userid, _)| userid.as_str())
            .collect()
    }

    pub(super) fn not_answered(&self) -> BTreeMap<&str, &Result> {
        let results = self.results.iter();
        results
            .filter(|(_, result)| result.code != Some((0, None, 0, 0)))
            .map(|(userid, result)| (userid.as_str(), result))
            .collect()
    }
}

/// The most calls that left within any second, by brute force over every span.
pub(super) fn densest_second(log: &[Logged]) -> usize {
    let sent: Vec<u64> = log.iter().filter_map(|line| line.sent_us).collect();
    sent.iter()
        .map(|&from| {
            let second = from..from + 1_000_000;
            sent.iter().filter(|&at| second.contains(at)).count()
        })
        .max()
        .unwrap_or(0)
}

#[test]
fn the_densest_second_is_found_wherever_it_begins() {
    let log = |times: &[u64]| -> Vec<Logged> {
        let line = |&sent: &u64| Logged {
            function: "guest_get_info".to_owned(),
            userid: None,
            verdict: "passed".to_owned(),
            reason: None,
            sent_us: Some(sent),
        };
        times.iter().map(line).collect()
    };
    assert_eq!(densest_second(&log(&[])), 0);
    assert_eq!(densest_second(&log(&[0, 1_000_000, 2_000_000])), 1);
    // The log is in the order of ends, not of sends.
    assert_eq!(
        densest_second(&log(&[1_900_000, 100_000, 999_999, 1_000_000])),
        3
    );
}

/// Where bounds are exact: at the proxy, or at the backend as well.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stamp {
    Sent,
    Replied,
}

fn check(postpone: &str, stamp: Stamp, backend: &Backend, proxy: &Tidegate, client: Client) {
    let storm = Storm::of(client);
    assert_eq!(storm.results.len(), CALLS);
    let failed = storm.not_answered();
    assert!(failed.is_empty(), "{} failed: {failed:?}", failed.len());

    let seen = backend.seen();
    let mut userids = backend.userids();
    userids.sort_unstable();
    let asked: Vec<&str> = storm.results.keys().map(String::as_str).collect();
    assert_eq!(userids, asked, "each call arrives once");
    assert_eq!(seen.breaks, 0, "{seen:?}");
    assert!(seen.in_flight_peak <= AT_ONCE, "{seen:?}");
    let bound = match stamp {
        Stamp::Sent => PER_SECOND + AT_ONCE,
        Stamp::Replied => PER_SECOND,
    };
    assert!(seen.densest_window <= bound, "{seen:?}");

    let log = proxy.log(CALLS);
    assert_eq!(log.len(), CALLS);
    for line in &log {
        assert!(
            ["passed", "delayed"].contains(&line.verdict.as_str()),
            "{line:?}"
        );
        assert_eq!(line.function, "guest_get_info");
        assert!(line.sent_us.is_some(), "{line:?}");
    }
    let densest = densest_second(&log);
    assert!(densest <= PER_SECOND, "{densest} left within one second");
    println!(
        "{postpone}: {CALLS} answered in {:.2} s; at the backend {} at once, {} in a second; \
         {densest} left in a second",
        storm.seconds, seen.in_flight_peak, seen.densest_window,
    );
}

fn over_the_socket(postpone: &str, stamp: Stamp) {
    let _alone = alone();
    let backend = Backend::fragile(&[]);
    let limits = limits(postpone, stamp.name());
    let proxy = Tidegate::start(Hop::Socket(backend.port), &limits);
    let client = Client::socket("storm", proxy.port, &[]);
    check(postpone, stamp, &backend, &proxy, client);
}

fn over_rest(postpone: &str, stamp: Stamp) {
    let _alone = alone();
    let files = TempDir::new().expect("a temporary directory");
    let backend = Backend::fragile(&[]);
    let wsgi = Wsgi::start(backend.port, files.path(), Auth::None);
    let limits = limits(postpone, stamp.name());
    let proxy = Tidegate::start(Hop::Http(wsgi.port), &limits);
    let client = Client::rest("storm", proxy.port, &[]);
    check(postpone, stamp, &backend, &proxy, client);
}

impl Stamp {
    fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Replied => "replied",
        }
    }
}

#[test]
fn straight_at_the_backend_a_fifth_of_the_storm_is_too_much() {
    let _alone = alone();
    // Calls of 50 ms do not meet one another on a machine that is so busy that a client needs
    // as long to send one. The first of these last until one more is there than it bears.
    let backend = Backend::fragile(&["--together=13"]);
    let storm = Storm::of(Client::socket("storm", backend.port, &["--count=60"]));
    let seen = backend.seen();
    assert!(seen.breaks > 0 && seen.in_flight_peak > AT_ONCE, "{seen:?}");
    assert!(!storm.not_answered().is_empty(), "{seen:?}");
}

#[test]
fn a_storm_over_the_socket_comes_through_in_turn() {
    over_the_socket("in_turn", Stamp::Sent);
}

#[test]
fn a_storm_over_the_socket_comes_through_with_jitter() {
    over_the_socket("jitter", Stamp::Sent);
}

#[test]
fn a_storm_over_rest_comes_through_in_turn() {
    over_rest("in_turn", Stamp::Sent);
}

#[test]
fn a_storm_over_rest_comes_through_with_jitter() {
    over_rest("jitter", Stamp::Sent);
}

#[test]
fn stamped_by_replies_a_storm_over_the_socket_keeps_the_bound_at_the_backend_itself() {
    over_the_socket("in_turn", Stamp::Replied);
}

#[test]
fn stamped_by_replies_a_storm_over_rest_keeps_the_bound_at_the_backend_itself() {
    over_rest("jitter", Stamp::Replied);
}

#[test]
fn a_storm_through_two_sidecars_with_the_same_limits_does_not_deadlock() {
    let _alone = alone();
    let files = TempDir::new().expect("a temporary directory");
    let backend = Backend::fragile(&[]);
    let limits = limits("in_turn", "sent");
    let inner = Tidegate::start(Hop::Socket(backend.port), &limits);
    let wsgi = Wsgi::start(inner.port, files.path(), Auth::None);
    let outer = Tidegate::start(Hop::Http(wsgi.port), &limits);
    let client = Client::rest("storm", outer.port, &["--count=100"]);
    let storm = Storm::of(client);
    let failed = storm.not_answered();
    assert!(failed.is_empty(), "{} failed: {failed:?}", failed.len());
    let seen = backend.seen();
    assert_eq!((seen.total, seen.breaks), (100, 0), "{seen:?}");
    assert!(seen.in_flight_peak <= AT_ONCE, "{seen:?}");
    for proxy in [&inner, &outer] {
        let densest = densest_second(&proxy.log(100));
        assert!(densest <= PER_SECOND, "{densest} left within one second");
    }
}
