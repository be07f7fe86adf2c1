//! A backend that is killed in the middle of a storm, and comes back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate::call::Reason;

use super::stage::{Backend, Client, Hop, Tidegate, alone, until};
use super::storm::{Storm, densest_second};
use crate::stores::free_port;

const AT_ONCE: usize = 10;

#[test]
fn a_backend_killed_and_restarted_fails_only_the_calls_that_it_had() {
    let _alone = alone();
    let journals = TempDir::new().expect("a temporary directory");
    let journal = journals.path().join("journal");
    let port = format!("--port={}", free_port());
    let journal_option = format!("--journal={}", journal.display());
    let options = [port.as_str(), journal_option.as_str()];

    let mut backend = Backend::fragile(&options);
    let proxy = Tidegate::start(
        Hop::Socket(backend.port),
        "[queue]\n\
         postpone = \"in_turn\"\n\
         [limits]\n\
         smapi_rate_limit_per_window = \"total:30\"\n\
         smapi_max_outstanding_requests = 10\n",
    );
    let client = Client::socket("storm", proxy.port, &[]);
    until("the storm is well under way", || {
        let seen = backend.seen();
        (seen.total >= 60 && seen.in_flight > 0).then_some(())
    });
    backend.kill();
    let killed = Instant::now();
    let backend = Backend::fragile(&options);
    let down = killed.elapsed();
    assert!(
        down < Duration::from_secs(5),
        "it was back only after {down:?}"
    );
    let storm = Storm::of(client);

    let failed = storm.not_answered();
    assert!(
        failed.len() <= AT_ONCE,
        "{} failed: {failed:?}",
        failed.len()
    );
    assert_eq!(storm.answered().len() + failed.len(), 300);

    // A failed call had been sent, and got a complete answer that says so.
    let log = proxy.log(300);
    assert_eq!(log.len(), 300);
    let lost = [Reason::BackendClosed, Reason::BackendCut];
    for (userid, result) in &failed {
        let (overall_rc, mod_id, rc, rs) = result.code.expect("an answer");
        assert_eq!(
            (overall_rc, mod_id, rc),
            (500, Some(130), 500),
            "{result:?}"
        );
        assert!(
            lost.map(|reason| i64::from(reason.rs())).contains(&rs),
            "{result:?}"
        );
        assert!(
            result.errmsg.is_ascii() && !result.errmsg.is_empty(),
            "{result:?}"
        );
        let line = log
            .iter()
            .find(|line| line.userid.as_deref() == Some(userid))
            .expect("every call is logged");
        assert_eq!(line.verdict, "failed", "{line:?}");
        assert!(line.sent_us.is_some(), "{line:?}");
        assert!(
            lost.map(Reason::label)
                .map(Some)
                .contains(&line.reason.as_deref()),
            "{line:?}"
        );
    }

    // No call was sent twice, and none that was answered was made up.
    let journal = std::fs::read_to_string(&journal).expect("both backends wrote it");
    let mut starts: BTreeMap<&str, usize> = BTreeMap::new();
    for userid in journal.lines() {
        *starts.entry(userid).or_default() += 1;
    }
    for (userid, count) in &starts {
        assert_eq!(*count, 1, "{userid} reached the backend {count} times");
    }
    for userid in storm.answered() {
        assert!(
            starts.contains_key(userid),
            "{userid} never reached the backend"
        );
    }

    let seen = backend.seen();
    assert_eq!(seen.breaks, 0, "{seen:?}");
    assert!(seen.in_flight_peak <= AT_ONCE, "{seen:?}");
    let densest = densest_second(&log);
    assert!(densest <= 30, "{densest} left within one second");
    println!(
        "down for {:.2} s: {} answered, {} failed, in {:.2} s",
        down.as_secs_f64(),
        storm.answered().len(),
        failed.len(),
        storm.seconds
    );
}
