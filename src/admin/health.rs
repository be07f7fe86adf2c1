//! `/livez`, `/readyz`, `/healthz`: what orchestrators ask. No token: a kubelet has none.
//!
//! Alive means that this answers at all, and asks nothing else: a sidecar that is draining,
//! or whose backend is down, must not be killed for it. Ready means that calls are taken.
//! `healthz` is both, for those who know only one.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::routes::Routes;
use super::{Source, api};

pub(super) fn routes() -> Routes<Arc<dyn Source>> {
    Routes::new()
        .get("/livez", live)
        .get("/readyz", ready)
        .get("/healthz", health)
}

/// One thing that was looked at.
struct Check {
    name: &'static str,
    result: Result<(), String>,
}

async fn live(query: RawQuery) -> Response {
    answer(&[LIVE], &[], &query)
}

async fn ready(State(source): State<Arc<dyn Source>>, query: RawQuery) -> Response {
    answer(&[is_ready(source).await], &[], &query)
}

async fn health(State(source): State<Arc<dyn Source>>, query: RawQuery) -> Response {
    let notices = if is_verbose(&query) {
        api::read(Arc::clone(&source), |source| source.notices()).await
    } else {
        Vec::new()
    };
    answer(&[LIVE, is_ready(source).await], &notices, &query)
}

const LIVE: Check = Check {
    name: "live",
    result: Ok(()),
};

async fn is_ready(source: Arc<dyn Source>) -> Check {
    Check {
        name: "ready",
        result: api::read(source, |source| source.ready()).await,
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
