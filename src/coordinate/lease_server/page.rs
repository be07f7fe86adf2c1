//! What there is to see over HTTP: a page for people, JSON and metrics for machines, health for
//! orchestrators. It only looks.

mod html;
mod json;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::extract::{Query, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use serde::Deserialize;
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;

use super::metrics::Metrics;
use super::service::Service;
use super::{Status, Templates};
use crate::live::Live;

/// Requests that are answered at once; further ones are turned away.
const REQUESTS_MAX: usize = 8;
/// No answer takes longer than this.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Nothing here takes a body.   bytes
const BODY_MAX: usize = 1_024;
/// Resources, and leases, that one answer shows.
const SHOWN_MAX: usize = 1_000;

/// What is shown.
#[derive(Clone)]
pub struct Shown {
    /// The server.
    pub service: Service,
    /// What was counted.
    pub metrics: Arc<Metrics>,
    /// The rules in force.
    pub rules: Arc<Live<Templates>>,
    /// The settings, as text without secrets.
    pub settings: Arc<str>,
}

/// Everything that answers on the status address.
pub fn router(shown: Shown) -> Router {
    let bounded = ServiceBuilder::new()
        .layer(CatchPanicLayer::new())
        .layer(RequestBodyLimitLayer::new(BODY_MAX))
        .layer(HandleErrorLayer::new(|_| async {
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "too many requests at once\n",
            )
        }))
        .load_shed()
        .concurrency_limit(REQUESTS_MAX)
        .layer(TimeoutLayer::with_status_code(
            StatusCode::GATEWAY_TIMEOUT,
            ANSWER_TIMEOUT,
        ));
    Router::new()
        .route("/", get(page))
        .route("/debug/status", get(page))
        .route("/debug/resources", get(resources))
        .route("/v1/leases", get(leases))
        .route("/v1/config", get(config))
        .route("/metrics", get(metrics))
        .layer(bounded)
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is nothing here\n") })
        .layer(SetResponseHeaderLayer::overriding(
            header::CACHE_CONTROL,
            HeaderValue::from_static("no-store"),
        ))
        .with_state(shown)
}

/// Which resources are asked about.
#[derive(Debug, Default, Deserialize)]
struct Which {
    /// The one, with its leases.
    resource: Option<String>,
    /// The id after which to go on.
    after: Option<String>,
}

/// The state, off the event loop: there may be a million leases.
async fn look<T: Send + 'static>(
    shown: Shown,
    show: impl FnOnce(&Shown, Status) -> T + Send + 'static,
) -> T {
    let looked = tokio::task::spawn_blocking(move || {
        let status = shown.service.status();
        show(&shown, status)
    });
    looked.await.expect("looking does not fail")
}

async fn page(State(shown): State<Shown>) -> Response {
    let html = look(shown, |shown, mut status| {
        let left_out = cut(&mut status.resources);
        html::overview(shown, &status, left_out)
    });
    as_page(html.await)
}

async fn resources(State(shown): State<Shown>, Query(which): Query<Which>) -> Response {
    let Some(id) = which.resource else {
        return Redirect::to("/").into_response();
    };
    let html = look(shown, move |shown, mut status| {
        status.resources.retain(|resource| resource.id == id);
        let resource = status.resources.first_mut()?;
        let left_out = cut(&mut resource.leases);
        Some(html::resource(shown, &status, left_out))
    });
    match html.await {
        Some(html) => as_page(html),
        None => (StatusCode::NOT_FOUND, "there is no such resource\n").into_response(),
    }
}

/// Drops what is too much to show; says how much that is.
fn cut<T>(list: &mut Vec<T>) -> usize {
    let left_out = list.len().saturating_sub(SHOWN_MAX);
    list.truncate(SHOWN_MAX);
    left_out
}

/// The page runs nothing and loads nothing, and says so to the browser.
fn as_page(html: String) -> Response {
    let headers: [(HeaderName, &str); 2] = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, Html(html)).into_response()
}

async fn leases(State(shown): State<Shown>, Query(which): Query<Which>) -> Response {
    let json = look(shown, move |shown, mut status| {
        if let Some(id) = &which.resource {
            status.resources.retain(|resource| resource.id == *id);
        } else if let Some(after) = &which.after {
            status.resources.retain(|resource| resource.id > *after);
        }
        let left_out = cut(&mut status.resources);
        json::leases(shown, &status, left_out)
    });
    ([(header::CONTENT_TYPE, "application/json")], json.await).into_response()
}

async fn config(State(shown): State<Shown>) -> Response {
    let rules = json::rules(&shown.rules.get());
    ([(header::CONTENT_TYPE, "application/json")], rules).into_response()
}

async fn metrics(State(shown): State<Shown>) -> Response {
    let text = look(shown, |shown, status| {
        let service = &shown.service;
        let wall = service.clock().wall(status.at);
        shown.metrics.text(&status, service.redirected(), wall)
    });
    const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, FORMAT)], text.await).into_response()
}

/// Ready is who can say who the master is, itself or another.
async fn ready(State(shown): State<Shown>) -> Response {
    if shown.service.knows_the_master() {
        return "ok\n".into_response();
    }
    let told = "[-] ready failed: the master is not known\n";
    (StatusCode::SERVICE_UNAVAILABLE, told).into_response()
}
