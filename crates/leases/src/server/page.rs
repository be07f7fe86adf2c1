//! The status over HTTP: a page for people, JSON and metrics for tools, health for orchestrators.
//! It only reads, and refuses pages of other origins.

mod html;
mod json;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use serde::Deserialize;
use tidegate_runtime::{Live, origin, page};
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::TimeoutLayer;

use super::metrics::Metrics;
use super::service::CapacityService;
use super::{Resources, ServerStatus, Templates, View};

/// The most requests that are answered at once; further ones are refused.
const REQUESTS_MAX: usize = 8;
/// The longest time of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// No request here has a body.   bytes
const BODY_MAX: usize = 1_024;
/// The most resources, and leases, of one answer.
const SHOWN_MAX: usize = 1_000;

/// The shown state.
#[derive(Clone)]
pub struct PageState {
    /// The server.
    pub service: CapacityService,
    /// The counts.
    pub metrics: Arc<Metrics>,
    /// The rules in force.
    pub rules: Arc<Live<Templates>>,
    /// The settings, as text without secrets.
    pub settings: Arc<str>,
    /// Names that clients may use for the status address, besides IP addresses and those of
    /// loopback.
    pub allowed_hosts: Arc<[Box<str>]>,
}

/// The router of the status address.
pub fn router(shown: PageState) -> Router {
    let hosts = Arc::clone(&shown.allowed_hosts);
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
        .route("/", get(overview))
        .route("/debug/status", get(overview))
        .route("/debug/resources", get(resources))
        .route("/v1/leases", get(leases))
        .route("/v1/config", get(config))
        .route("/metrics", get(metrics))
        .route("/page/{file}", get(file))
        .layer(bounded)
        .layer(from_fn_with_state(hosts, only_from_here))
        // Probes are answered whatever `Host` is: they show only whether this server is ready.
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .fallback(nothing)
        .layer(SetResponseHeaderLayer::overriding(
            header::CACHE_CONTROL,
            HeaderValue::from_static("no-store"),
        ))
        .with_state(shown)
}

/// Refuses a request of a page of another origin.
async fn only_from_here(
    State(hosts): State<Arc<[Box<str>]>>,
    request: Request,
    next: Next,
) -> Response {
    match origin::foreign(request.method(), request.headers(), &hosts) {
        None => next.run(request).await,
        Some(header) => {
            let (field, reason) = (header.field(), header.reason("status_allowed_hosts"));
            (StatusCode::FORBIDDEN, format!("{field} {reason}\n")).into_response()
        }
    }
}

/// The requested resources.
#[derive(Debug, Default, Deserialize)]
struct PageQuery {
    /// The one, with its leases.
    resource: Option<String>,
    /// The id after which the page starts.
    after: Option<String>,
}

impl PageQuery {
    /// A page of these resources, with at most `leases_max` leases.
    fn view(&self, leases_max: usize) -> View<'_> {
        let resources = match (&self.resource, &self.after) {
            (Some(id), _) => Resources::One(id),
            (None, Some(id)) => Resources::After(id),
            (None, None) => Resources::All,
        };
        View {
            resources,
            resources_max: SHOWN_MAX,
            counts_rest: true,
            leases_max,
        }
    }
}

/// The state, off the event loop: there may be thousands of resources.
async fn look<T: Send + 'static>(
    shown: PageState,
    which: PageQuery,
    leases_max: usize,
    show: impl FnOnce(&PageState, ServerStatus) -> T + Send + 'static,
) -> T {
    let looked = tokio::task::spawn_blocking(move || {
        let status = shown.service.view(which.view(leases_max));
        show(&shown, status)
    });
    looked.await.expect("looking does not fail")
}

async fn overview(State(shown): State<PageState>, Query(which): Query<PageQuery>) -> Response {
    let which = PageQuery {
        resource: None,
        ..which
    };
    let is_first = which.after.is_none();
    let html = look(shown, which, 0, move |shown, status| {
        html::overview(shown, &status, is_first)
    });
    as_page(html.await)
}

async fn resources(State(shown): State<PageState>, Query(which): Query<PageQuery>) -> Response {
    if which.resource.is_none() {
        return Redirect::to("/").into_response();
    }
    let html = look(shown, which, SHOWN_MAX, |_, status| {
        (!status.resources.is_empty()).then(|| html::resource(&status))
    });
    match html.await {
        Some(html) => as_page(html),
        None => (StatusCode::NOT_FOUND, "there is no such resource\n").into_response(),
    }
}

/// A file of the page.
async fn file(Path(name): Path<String>) -> Response {
    match page::FILES.iter().find(|file| file.name == name) {
        Some(file) => {
            let kind = [(header::CONTENT_TYPE, file.kind)];
            (page::HEADERS, kind, file.body).into_response()
        }
        None => nothing().await.into_response(),
    }
}

async fn nothing() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "there is nothing here\n")
}

fn as_page(html: String) -> Response {
    (page::HEADERS, Html(html)).into_response()
}

async fn leases(State(shown): State<PageState>, Query(which): Query<PageQuery>) -> Response {
    let json = look(shown, which, SHOWN_MAX, |shown, status| {
        json::leases(shown, &status)
    });
    ([(header::CONTENT_TYPE, "application/json")], json.await).into_response()
}

async fn config(State(shown): State<PageState>) -> Response {
    let rules = json::rules(&shown.rules.get());
    ([(header::CONTENT_TYPE, "application/json")], rules).into_response()
}

async fn metrics(State(shown): State<PageState>) -> Response {
    let text = look(shown, PageQuery::default(), 0, |shown, mut status| {
        let service = &shown.service;
        // Page by page, so that requests of clients are answered in between.
        while status.resources_left_out > 0
            && let Some(last) = status.resources.last()
        {
            let after = PageQuery {
                after: Some(last.id.clone()),
                ..PageQuery::default()
            };
            // The thread that answers clients may wait for the lock.
            std::thread::yield_now();
            let more = service.view(View {
                counts_rest: false,
                ..after.view(0)
            });
            status.resources.extend(more.resources);
            status.resources_left_out = more.resources_left_out;
        }
        let wall = service.clock().wall(status.at);
        shown.metrics.text(&status, service.redirected(), wall)
    });
    const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, FORMAT)], text.await).into_response()
}

/// Ready means that the master is known: this server or another.
async fn ready(State(shown): State<PageState>) -> Response {
    if shown.service.knows_the_master() {
        return "ok\n".into_response();
    }
    let told = "[-] ready failed: the master is not known\n";
    (StatusCode::SERVICE_UNAVAILABLE, told).into_response()
}
