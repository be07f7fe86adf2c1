//! A call that has ended, as a span: one for each, with its queue, its limits and the backend as events.

use std::num::NonZeroU64;

use tidegate_limits::Timestamp;
use tidegate_limits::scheduler::DelayCause;
use tidegate_runtime::Clock;

use crate::call::{Claim, Facts, Reason, Verdict};
use crate::telemetry::calls::Durations;
use crate::telemetry::spans::{Attribute, AttributeValue, Span, SpanEvent};

/// The span of a call; none if its client did not sample it.
pub(super) fn span(facts: &Facts, took: &Durations, now: Timestamp, clock: &Clock) -> Option<Span> {
    let parent = facts.rare().parent?;
    let trace = facts.trace?.get();
    let arrived = facts.origin.arrived;
    Some(Span {
        trace,
        parent,
        // The id of its access line and of X-Tidegate-Call.
        id: NonZeroU64::new(facts.id).unwrap_or(NonZeroU64::MIN),
        name: (&*facts.function).into(),
        begun: clock.wall(arrived),
        ended: clock.wall(now),
        attributes: attributes(facts, took),
        events: events(facts, took, now, clock),
        error: match facts.verdict {
            Verdict::Aborted => Some("client_left"),
            _ => facts.reason.map(Reason::label),
        },
    })
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::Text(text.into())
}

fn attributes(facts: &Facts, took: &Durations) -> Vec<Attribute> {
    let mut all: Vec<Attribute> = vec![
        ("tidegate.listener", text(&facts.origin.identity.listener)),
        ("tidegate.class", text(&facts.class)),
        ("tidegate.verdict", text(facts.verdict.label())),
        (
            "tidegate.queue_seconds",
            AttributeValue::Number(took.queued().as_secs_f64()),
        ),
    ];
    if let Some(caller) = facts.claim.as_ref().map(|claim| claim.caller) {
        all.push(("tidegate.caller", text(&caller.to_string())));
    }
    if let Some(label) = facts.claim.as_ref().and_then(Claim::rate_limit) {
        all.push(("tidegate.rate_limit", text(label)));
    }
    if let Some(status) = facts.status {
        all.push((
            "http.response.status_code",
            AttributeValue::Whole(status.into()),
        ));
    }
    if facts.shared {
        all.push(("tidegate.shared", text("true")));
    }
    if let Some(first) = facts.rare().retry_of {
        all.push(("tidegate.retry_of", text(&format!("{first:016x}"))));
    }
    all
}

fn events(facts: &Facts, took: &Durations, now: Timestamp, clock: &Clock) -> Vec<SpanEvent> {
    let seconds = |time: std::time::Duration| AttributeValue::Number(time.as_secs_f64());
    let mut events = Vec::new();
    let mut add = |at: Timestamp, name, attributes| {
        let at = clock.wall(at);
        events.push(SpanEvent {
            at,
            name,
            attributes,
        });
    };
    add(
        facts.origin.arrived,
        "queue",
        vec![("seconds", seconds(took.queued()))],
    );
    // A limit is known to have held a call when it holds it no longer.
    let out_of_queue = facts.admitted.unwrap_or(now);
    for delay in facts.delays.iter() {
        let cause = match &delay.cause {
            DelayCause::Limit(limit) => &**limit,
            DelayCause::Turn => "turn",
            DelayCause::Others => "others",
        };
        add(
            out_of_queue,
            "limit",
            vec![("limit", text(cause)), ("seconds", seconds(delay.time))],
        );
    }
    if let (Some(limit), Some(reason)) = (&facts.limit, facts.reason) {
        add(
            now,
            "refused",
            vec![("limit", text(limit)), ("reason", text(reason.label()))],
        );
    }
    if let Some(sent) = facts.sent {
        let mut about = vec![("bytes", whole(facts.bytes_in))];
        if let Some(backend) = facts.destination {
            about.push(("backend", text(backend.label())));
        }
        add(sent, "backend", about);
    }
    if let Some(answered) = facts.answered {
        add(
            answered,
            "answered",
            vec![("bytes", whole(facts.bytes_out))],
        );
    }
    events
}

fn whole(number: u64) -> AttributeValue {
    AttributeValue::Whole(i64::try_from(number).unwrap_or(i64::MAX))
}
