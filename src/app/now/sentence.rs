//! A sentence about the calls that wait, and why.

use std::collections::BTreeMap;

use tidegate_limits::scheduler::QueueNow;

use crate::admin::{BackendActing, BackendNow, BackendState, LimitNow};

/// How many wait, for how long, for which limit, and when the next leaves and all have left.
pub(super) fn sentence(
    queue: &QueueNow,
    held: &BTreeMap<&str, usize>,
    limits: &[LimitNow],
    backends: &[BackendNow],
    pause: Option<&BackendState>,
    in_flight: usize,
    all_left: Option<f64>,
) -> String {
    let waiting = queue.waiting + queue.at_door;
    let paused = pause.filter(|it| it.state == BackendActing::Paused);
    if waiting == 0 {
        if paused.is_some() {
            return format!("the backend is paused; nothing waits; {in_flight} in flight");
        }
        return match in_flight {
            0 => "nothing waits, and nothing runs".to_owned(),
            running => format!("nothing waits; {running} in flight"),
        };
    }
    let oldest = queue.oldest_waits.as_secs_f64();
    let begin = format!("{waiting} waiting, oldest {oldest:.1} s");
    if let Some(pause) = paused {
        let why = match pause.why.as_deref() {
            None | Some("") => String::new(),
            Some(why) => format!(" ({why})"),
        };
        return format!("{begin}, because the backend is paused{why}; {in_flight} in flight");
    }
    // While one of several servers is up, calls go there.
    let is_down = |it: &&BackendNow| {
        backends
            .iter()
            .all(|other| other.name != it.name || !other.up)
    };
    if let Some(down) = backends.iter().find(is_down) {
        let (name, address) = (down.name, &down.address);
        return format!("{begin}, because backend.{name} ({address}) accepts no connection");
    }
    let Some((&name, _)) = held.iter().max_by_key(|&(_, calls)| calls) else {
        return format!("{begin}, until their turn comes");
    };
    let Some(limit) = limits.iter().find(|limit| limit.name == name) else {
        return format!("{begin}, because of `{name}`");
    };
    let (used, allowed) = (amount(limit.used), amount(limit.allowed));
    let why = match (limit.open, limit.allowed > 0.0) {
        (true, _) => format!("for their turn at `{name}` ({used} of {allowed})"),
        (false, false) => format!("because `{name}` allows nothing now"),
        (false, true) => format!("because `{name}` is used up ({used} of {allowed})"),
    };
    let next = match (limit.open, limit.opens_in_seconds) {
        (true, _) => String::new(),
        (false, Some(seconds)) => format!("; the next leaves in {seconds:.1} s"),
        (false, None) if limit.kind == "outstanding" => {
            "; the next leaves when a call ends".to_owned()
        }
        (false, None) => String::new(),
    };
    let all = match (all_left, next.is_empty()) {
        (None, _) => String::new(),
        (Some(seconds), true) => format!("; all have left in {seconds:.1} s"),
        (Some(seconds), false) => format!(", all have left in {seconds:.1} s"),
    };
    format!("{begin}, {why}{next}{all}")
}

/// A whole number without a point, any other with one digit after it.
fn amount(of: f64) -> String {
    match of.fract() == 0.0 {
        true => format!("{of:.0}"),
        false => format!("{of:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_limits::scheduler::FunctionNow;

    use super::*;

    fn say(
        queue: &QueueNow,
        limits: &[LimitNow],
        backends: &[BackendNow],
        pause: Option<&BackendState>,
        in_flight: usize,
    ) -> String {
        sentence(
            queue,
            &super::super::held(queue),
            limits,
            backends,
            pause,
            in_flight,
            None,
        )
    }

    fn queue(waiting: usize) -> QueueNow {
        QueueNow {
            suspended: 0,
            waiting,
            oldest_waits: Duration::from_millis(4_120),
            functions: vec![FunctionNow {
                function: "guest_list".into(),
                class: "default".into(),
                held_by: Some("total".into()),
                waiting,
            }],
            ..QueueNow::default()
        }
    }

    fn total(opens_in_seconds: Option<f64>) -> LimitNow {
        LimitNow {
            name: "total".into(),
            kind: "window",
            scope: "all".into(),
            used: 30.0,
            allowed: 30.0,
            configured: 30.0,
            waiting: 12,
            opens_in_seconds,
            open: false,
            observes: false,
            shared: None,
            unit: "calls",
        }
    }

    #[test]
    fn the_sentence_names_the_limit_its_use_and_the_next_start() {
        assert_eq!(
            say(&queue(12), &[total(Some(0.31))], &[], None, 5),
            "12 waiting, oldest 4.1 s, because `total` is used up (30 of 30); the next leaves in \
             0.3 s"
        );
        assert_eq!(
            say(
                &queue(1),
                &[LimitNow {
                    kind: "outstanding",
                    ..total(None)
                }],
                &[],
                None,
                5
            ),
            "1 waiting, oldest 4.1 s, because `total` is used up (30 of 30); the next leaves when \
             a call ends"
        );
        assert_eq!(
            {
                let queue = queue(12);
                let held = super::super::held(&queue);
                sentence(
                    &queue,
                    &held,
                    &[total(Some(0.31))],
                    &[],
                    None,
                    5,
                    Some(0.42),
                )
            },
            "12 waiting, oldest 4.1 s, because `total` is used up (30 of 30); the next leaves in \
             0.3 s, all have left in 0.4 s"
        );
        let (used, allowed) = (0.0, 0.0);
        let nothing = LimitNow {
            used,
            allowed,
            ..total(None)
        };
        let told = say(&queue(1), &[nothing], &[], None, 0);
        assert!(
            told.contains("because `total` allows nothing now"),
            "{told}"
        );
        assert_eq!(
            say(&queue(0), &[], &[], None, 2),
            "nothing waits; 2 in flight"
        );
    }

    #[test]
    fn a_pause_is_the_cause_before_all_others() {
        let pause = BackendState {
            state: BackendActing::Paused,
            in_flight: 5,
            share: 0.0,
            since: None,
            ends: None,
            why: Some("re-IPL".to_owned()),
            author: None,
            extend_deadlines: false,
            survives_restart: true,
        };
        let paused = |waiting| say(&queue(waiting), &[total(None)], &[], Some(&pause), 5);
        assert_eq!(
            paused(12),
            "12 waiting, oldest 4.1 s, because the backend is paused (re-IPL); 5 in flight"
        );
        assert_eq!(
            paused(0),
            "the backend is paused; nothing waits; 5 in flight"
        );
        let ramp = BackendState {
            state: BackendActing::Ramping,
            ..pause.clone()
        };
        let told = say(&queue(12), &[total(None)], &[], Some(&ramp), 5);
        assert!(told.contains("because `total` is used up"), "{told}");
    }

    #[test]
    fn a_backend_that_is_down_is_the_cause_before_any_limit() {
        let backend = BackendNow {
            server: None,
            name: "socket",
            address: "127.0.0.1:35000".into(),
            up: false,
            since_unix_ms: 0,
            connections: 0,
            failures_1h: 0,
            addresses: Vec::new(),
            looked_up_seconds_ago: None,
            lookup_failure: None,
        };
        assert_eq!(
            say(&queue(3), &[total(None)], &[backend], None, 0),
            "3 waiting, oldest 4.1 s, because backend.socket (127.0.0.1:35000) accepts no \
             connection"
        );
    }
}
