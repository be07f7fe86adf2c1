//! Suggested buckets for the usage of a caller, through the stage of callers.

use std::time::Duration;

use tidegate::callers::Meets;
use tidegate::callers::rate_limit::{Derive, Size};
use tidegate::callers::{Error, NewRateLimit};
use tidegate_callers::{CallerId, Headroom, UsageSpan};

use crate::callers::{Door, who};

/// A caller without a rate limit.
const POLLER: &str = r#"
    [callers]
    auto_register = 0
    [[caller]]
    label = "poller"
    match = { user_agent = "poll" }
"#;

/// Calls of the caller, this far apart.
async fn calls(door: &Door, count: usize, apart: Duration) {
    for _ in 0..count {
        let now = door.clock.now();
        let claim = door
            .callers
            .claim(now, &who("poll"), "guest_list", Meets::Limits);
        assert_eq!(claim.caller, CallerId(1));
        tokio::time::advance(apart).await;
    }
}

fn derived(span: UsageSpan) -> Derive {
    Derive {
        caller: CallerId(1),
        span,
        headroom: Headroom::DEFAULT,
    }
}

/// Fill, burst and profile.
fn suggested(door: &Door, span: UsageSpan) -> (f64, f64, Option<String>) {
    let suggested = door.callers.suggest(door.clock.now(), derived(span));
    let (bucket, profile) = suggested.expect("it was used");
    let profile = profile.map(|name| name.to_string());
    (bucket.fill, bucket.burst, profile)
}

#[tokio::test(start_paused = true)]
async fn a_burst_and_an_idle_hour_are_not_offered_a_quarantine() {
    let door = Door::open_in_turn(POLLER);
    calls(&door, 60, Duration::ZERO).await;
    // The longer it is idle, the smaller is the mean, and the fill stays.
    for idle in [1, 600, 2_900] {
        tokio::time::advance(Duration::from_secs(idle)).await;
        let batch = Some("batch".to_owned());
        assert_eq!(
            suggested(&door, UsageSpan::Hour),
            (1.0, 60.0, batch),
            "{idle} s"
        );
    }
    // A limit that is derived from the same usage has the same figures.
    let new = NewRateLimit::of(Size::Derived(derived(UsageSpan::Hour)));
    let made = door.callers.create_rate_limit(door.clock.now(), new);
    let id = made.expect("it is right").value;
    let limit = door.callers.rate_limit(id).expect("it was made").rate_limit;
    let bucket = limit.rule.allowance.bucket();
    let bucket = bucket.map(|(burst, fill)| (burst.get(), fill.get()));
    assert_eq!(bucket, Some((60.0, 1.0)));
    tokio::time::advance(Duration::from_secs(3_600)).await;
    let nothing = door
        .callers
        .suggest(door.clock.now(), derived(UsageSpan::Hour));
    assert!(matches!(nothing, Err(Error::NothingUsed(CallerId(1)))));
}

#[tokio::test(start_paused = true)]
async fn a_steady_minute_is_suggested_its_rate() {
    let door = Door::open_in_turn(POLLER);
    calls(&door, 1_200, Duration::from_millis(50)).await;
    for idle in [1, 495, 2_900] {
        tokio::time::advance(Duration::from_secs(idle)).await;
        let (fill, burst, profile) = suggested(&door, UsageSpan::Hour);
        assert!((20.0..=20.1).contains(&fill), "{fill} after {idle} s");
        assert!((100.0..=110.0).contains(&burst), "{burst} after {idle} s");
        assert_eq!(profile.as_deref(), Some("interactive"));
    }
}
