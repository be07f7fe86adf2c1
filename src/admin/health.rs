//! `/livez`, `/readyz`, `/healthz`: for orchestrators. They need no token, because a kubelet has
//! none.
//!
//! Alive means only that this answers: a sidecar that drains, or whose backend is down, must not
//! be killed for it. Ready means that calls are taken. `healthz` is both, for tools with only one
//! path.
//!
//! They have their own lane: no other request, however slow, and no work off the event loop
//! delays them.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::guard::Trusted;
use super::routes::Routes;
use super::{AdminSource, api};

pub(super) fn routes() -> Routes<Arc<dyn AdminSource>> {
    Routes::new()
        .get("/livez", live)
        .get("/readyz", ready)
        .get("/healthz", health)
}

/// A check of the health.
struct Check {
    name: &'static str,
    result: Result<(), String>,
}

async fn live(query: RawQuery) -> Response {
    answer(&[LIVE], &[], &query)
}

async fn ready(State(source): State<Arc<dyn AdminSource>>, query: RawQuery) -> Response {
    answer(&[is_ready(&*source)], &[], &query)
}

async fn health(
    State(source): State<Arc<dyn AdminSource>>,
    Extension(Trusted(trusted)): Extension<Trusted>,
    query: RawQuery,
) -> Response {
    let ready = is_ready(&*source);
    // They contain paths and values of the config.
    let notices = if trusted && is_verbose(&query) {
        api::read(source, |source| source.notices()).await
    } else {
        Vec::new()
    };
    answer(&[LIVE, ready], &notices, &query)
}

const LIVE: Check = Check {
    name: "live",
    result: Ok(()),
};

fn is_ready(source: &dyn AdminSource) -> Check {
    Check {
        name: "ready",
        result: source.ready(),
    }
}

fn is_verbose(RawQuery(query): &RawQuery) -> bool {
    let query = query.as_deref().unwrap_or_default();
    query
        .split('&')
        .any(|part| part.split('=').next() == Some("verbose"))
}

/// `ok`, or a line for each check that failed; `?verbose` has a line for every check, and one for
/// each notice, which fails nothing.
fn answer(checks: &[Check], notices: &[String], query: &RawQuery) -> Response {
    let verbose = is_verbose(query);
    let mut text = String::new();
    let mut status = StatusCode::OK;
    for check in checks {
        let line = match &check.result {
            Ok(()) if verbose => writeln!(text, "[+] {} ok", check.name),
            Ok(()) => Ok(()),
            Err(reason) => {
                status = StatusCode::SERVICE_UNAVAILABLE;
                writeln!(text, "[-] {} failed: {reason}", check.name)
            }
        };
        line.expect("writing to memory does not fail");
    }
    for notice in notices {
        writeln!(text, "[!] {notice}").expect("writing to memory does not fail");
    }
    if status == StatusCode::OK {
        text.push_str("ok\n");
    }
    (status, text).into_response()
}
