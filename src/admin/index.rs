//! `/`: the same figures for people.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use maud::{Markup, html};
use tidegate_runtime::page;

use super::routes::Routes;
use super::{LimitKind, LimitState, Opens, QueueState, Source, api};

/// The other paths, with a short description.
const PLACES: [(&str, &str); 14] = [
    ("/metrics", "every metric, for Prometheus"),
    ("/livez", "200 while the process answers"),
    ("/readyz", "200 while calls are taken, else 503 and why"),
    ("/healthz?verbose", "both, with a line for each check"),
    (
        "/v1/limits",
        "each limit and each rate limit's bucket: configured, used, opens when",
    ),
    ("/v1/queue", "waiting calls, how long, for which limit"),
    ("/quotas", "quotas of this sidecar, for people"),
    ("/v1/quotas", "the same, for tools"),
    ("/v1/config", "the effective config, as TOML"),
    (
        "/v1/callers?sort=tokens_1h",
        "callers, the most expensive first",
    ),
    ("/v1/usage", "usage of callers over the last hour"),
    ("/v1/rate-limits", "the rate limits of callers"),
    ("/v1/costs", "costs of calls"),
    ("/v1/openapi.json", "everything, for tools"),
];

pub(super) fn routes() -> Routes<Arc<dyn Source>> {
    Routes::new().get("/", index)
}

async fn index(State(source): State<Arc<dyn Source>>) -> Response {
    let body = api::read(source, |source| {
        body(
            &source.ready(),
            &source.notices(),
            &source.queue(),
            &source.limits(),
        )
    });
    answer("Tidegate", &body.await)
}

/// A page of the admin address.
pub(super) fn answer(title: &str, body: &Markup) -> Response {
    let page = page::page(title, env!("CARGO_PKG_VERSION"), 2, body);
    (page::HEADERS, Html(page)).into_response()
}

fn body(
    ready: &Result<(), String>,
    notices: &[String],
    queue: &QueueState,
    limits: &[LimitState],
) -> Markup {
    html! {
        @match ready {
            Ok(()) => p.good { "takes calls" },
            Err(reason) => p.bad { "not ready: " (reason) },
        }
        @for notice in notices {
            p.bad.notice { (notice) }
        }
        h2 { "Limits" }
        table {
            tr {
                th { "limit" } th { "calls" } th { "bounds" } th.n { "used" } th.n { "of" } th {}
                th { "opens" }
            }
            @for limit in limits { (row_of_limit(limit)) }
        }
        (waiting(queue))
        (page::places(&PLACES))
    }
}

fn row_of_limit(limit: &LimitState) -> Markup {
    let bounds = match (limit.kind, limit.window_seconds) {
        (LimitKind::Outstanding, _) => "at once".to_owned(),
        (LimitKind::Window, None) => "in a window".to_owned(),
        (LimitKind::Window, Some(seconds)) => format!("in any {seconds} s"),
        (LimitKind::Paced, _) => "tokens a second".to_owned(),
    };
    let pace = limit.pace.as_ref().zip(limit.rate);
    let (used, of, late) = match pace {
        Some((pace, rate)) => (
            format!("{:.1}", pace.achieved),
            rate.to_string(),
            format!(", {:.2} s late", pace.wait_seconds),
        ),
        None => (
            limit.used.to_string(),
            limit.configured.to_string(),
            String::new(),
        ),
    };
    let opens = match limit.opens {
        Opens::Now => "now".to_owned(),
        Opens::InSeconds(seconds) => format!("in {seconds:.2} s"),
        Opens::OnChange => "when a call ends".to_owned(),
    };
    let opens = match limit.observes {
        true => format!("observes; would open {opens}"),
        false => opens,
    };
    html! {
        tr {
            td { (limit.name) } td { (limit.scope) } td { (bounds) (late) }
            td.n { (used) } td.n { (of) } td { meter max=(of) value=(used) {} }
            td { (opens) }
        }
    }
}

fn waiting(queue: &QueueState) -> Markup {
    let oldest = format!("{:.1}", queue.oldest_seconds);
    html! {
        h2 { "Queue" }
        p {
            (queue.depth) " of " (queue.capacity) " wait, the oldest for " (oldest) " s; "
            (queue.door) " at the door"
        }
        @if let Some(would_be) = &queue.would_be {
            p {
                "If the limits that only observe held calls, " (would_be.depth)
                " would wait, and at most " (would_be.peak) " would have waited at once"
            }
        }
        @if !queue.functions.is_empty() {
            table {
                tr { th { "function" } th.n { "waiting" } th { "for" } }
                @for of in &queue.functions {
                    tr {
                        td { (of.function) } td.n { (of.waiting) }
                        td { (of.waits_for.as_deref().unwrap_or("its turn")) }
                    }
                }
            }
        }
    }
}
