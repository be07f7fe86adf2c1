//! The requests to the agent, and its answers.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::error_handling::HandleErrorLayer;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate_leases::client::{
    Allowance, NotACapacity, OpenError, ResourceKind, ResourceState, Tokens, WaitError,
};
use tidegate_runtime::origin::foreign;
use tokio::time::{Instant, timeout};
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::set_header::SetResponseHeaderLayer;

use super::{Agent, OpenFailure};

/// The largest body.   bytes
const BODY_MAX: usize = 1024;
/// The default and the maximum time to wait.
const TIMEOUT: Duration = Duration::from_secs(30);
const TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// The default and the maximum time for which a place is kept.
const TTL: Duration = Duration::from_secs(60);
const TTL_MAX: Duration = Duration::from_secs(3600);

type AgentState = State<Arc<Agent>>;
type OneId = Result<Path<String>, PathRejection>;
type IdAndToken = Result<Path<(String, String)>, PathRejection>;
type ParsedQuery = Result<Query<QueryParameters>, QueryRejection>;

/// The query parameters.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueryParameters {
    cost: Option<f64>,
    /// Seconds.
    timeout: Option<f64>,
    /// Seconds.
    ttl: Option<f64>,
}

pub(super) fn router(agent: Arc<Agent>, allowed_hosts: Arc<[Box<str>]>) -> Router {
    Router::new()
        .route("/v1/rate/{id}/wait", post(wait))
        .route("/v1/rate/{id}/wants", put(rate_wants))
        .route("/v1/gauge/{id}/enter", post(enter))
        .route("/v1/gauge/{id}/wants", put(gauge_wants))
        .route("/v1/gauge/{id}/{token}", put(renew).delete(give_back))
        .route("/v1/resources", get(resources))
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .fallback(|| async { error(StatusCode::NOT_FOUND, "there is nothing here") })
        .method_not_allowed_fallback(|| async {
            error(
                StatusCode::METHOD_NOT_ALLOWED,
                "this method is not allowed here",
            )
        })
        .with_state(agent)
        .layer(
            ServiceBuilder::new()
                .layer(SetResponseHeaderLayer::overriding(
                    header::CACHE_CONTROL,
                    HeaderValue::from_static("no-store"),
                ))
                .layer(CatchPanicLayer::custom(|_| -> Response {
                    error(StatusCode::INTERNAL_SERVER_ERROR, "a bug in the agent")
                }))
                .layer(from_fn_with_state(allowed_hosts, no_browsers))
                .layer(HandleErrorLayer::new(|_| async {
                    error(StatusCode::BAD_REQUEST, "the request is malformed")
                }))
                .layer(RequestBodyLimitLayer::new(BODY_MAX)),
        )
}

async fn wait(
    State(agent): AgentState,
    id: OneId,
    asked: ParsedQuery,
) -> Result<Response, ErrorReply> {
    let (Path(id), Query(asked)) = (id?, asked?);
    absent("ttl", asked.ttl)?;
    let cost = Tokens::new(asked.cost.unwrap_or(1.0))
        .map_err(|_| bad("cost must be a number from 0 to 1,000,000"))?;
    let patience = seconds("timeout", asked.timeout, TIMEOUT, TIMEOUT_MAX)?;
    let rate = agent.rate(&id)?;
    let ((), waited_seconds) = within(patience, rate.wait_with_cost(cost)).await?;
    Ok(Json(json!({ "waited_seconds": waited_seconds })).into_response())
}

async fn enter(
    State(agent): AgentState,
    id: OneId,
    asked: ParsedQuery,
) -> Result<Response, ErrorReply> {
    let (Path(id), Query(asked)) = (id?, asked?);
    absent("cost", asked.cost)?;
    let patience = seconds("timeout", asked.timeout, TIMEOUT, TIMEOUT_MAX)?;
    let ttl = ttl(&asked)?;
    let gauge = agent.gauge(&id)?;
    let (guard, waited_seconds) = within(patience, gauge.enter()).await?;
    let token = agent.guards.keep(&id, guard, ttl).ok_or_else(|| {
        let why = "too many places are held through this agent";
        ErrorReply::new(StatusCode::SERVICE_UNAVAILABLE, why)
    })?;
    let entered = json!({
        "token": token,
        "ttl_seconds": ttl.as_secs_f64(),
        "waited_seconds": waited_seconds,
    });
    Ok(Json(entered).into_response())
}

async fn renew(
    State(agent): AgentState,
    path: IdAndToken,
    asked: ParsedQuery,
) -> Result<Response, ErrorReply> {
    let (Path((id, token)), Query(asked)) = (path?, asked?);
    absent("cost", asked.cost)?;
    absent("timeout", asked.timeout)?;
    let ttl = ttl(&asked)?;
    held(agent.guards.renew(&id, &token, ttl))
}

async fn give_back(State(agent): AgentState, path: IdAndToken) -> Result<Response, ErrorReply> {
    let Path((id, token)) = path?;
    held(agent.guards.give_back(&id, &token))
}

async fn rate_wants(
    State(agent): AgentState,
    id: OneId,
    body: Bytes,
) -> Result<Response, ErrorReply> {
    let (Path(id), wants) = (id?, wants(&body)?);
    agent.rate(&id)?.set_wants(wants)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn gauge_wants(
    State(agent): AgentState,
    id: OneId,
    body: Bytes,
) -> Result<Response, ErrorReply> {
    let (Path(id), wants) = (id?, wants(&body)?);
    agent.gauge(&id)?.set_wants(wants)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn resources(State(agent): AgentState) -> Response {
    let resources = agent.client.resources();
    let shown: Vec<ResourceView> = resources.iter().map(ResourceView::of).collect();
    Json(shown).into_response()
}

async fn metrics(State(agent): AgentState) -> Response {
    agent.registry.text().into_response()
}

/// The result of a wait, and the seconds that it took.
async fn within<T>(
    patience: Duration,
    waiting: impl Future<Output = Result<T, WaitError>>,
) -> Result<(T, f64), ErrorReply> {
    let began = Instant::now();
    let ended = timeout(patience, waiting).await.map_err(|_| {
        let why = format!("no capacity within {} s", patience.as_secs_f64());
        ErrorReply::new(StatusCode::GATEWAY_TIMEOUT, why)
    })?;
    Ok((ended?, began.elapsed().as_secs_f64()))
}

/// A resource, as JSON.
#[derive(Serialize)]
struct ResourceView<'a> {
    id: &'a str,
    kind: &'static str,
    /// Null: no limit.
    allowance: Option<f64>,
    /// Null: it has ended, or there was none yet.
    lease: Option<Value>,
    wants: f64,
    waiting: usize,
    held: u64,
}

impl<'a> ResourceView<'a> {
    fn of(state: &'a ResourceState) -> Self {
        Self {
            id: &state.id,
            kind: match state.kind {
                ResourceKind::Rate => "rate",
                ResourceKind::Gauge => "gauge",
            },
            allowance: match state.allowance {
                Allowance::UpTo(up_to) => Some(up_to),
                Allowance::Unlimited => None,
            },
            lease: state.lease.map(|(capacity, ends_in)| {
                json!({ "capacity": capacity, "ends_in_seconds": ends_in.as_secs_f64() })
            }),
            wants: state.wants,
            waiting: state.waiting,
            held: state.held,
        }
    }
}

/// Refuses requests that a browser sends for a page: no page may use up the capacity of this
/// machine.
async fn no_browsers(
    State(allowed_hosts): State<Arc<[Box<str>]>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    // There is no page here, so no page of this address and no link leads to it.
    let is_of_a_page = headers.contains_key(header::ORIGIN)
        || headers
            .get_all("sec-fetch-site")
            .iter()
            .any(|site| site != "none");
    if is_of_a_page || foreign(request.method(), headers, &allowed_hosts).is_some() {
        return error(
            StatusCode::FORBIDDEN,
            "only programs are answered, not web pages; Host must be an IP address, localhost or a \
             name of --allowed-host",
        );
    }
    next.run(request).await
}

/// A time in seconds, or its default.
fn seconds(
    name: &str,
    given: Option<f64>,
    default: Duration,
    most: Duration,
) -> Result<Duration, ErrorReply> {
    let Some(given) = given else {
        return Ok(default);
    };
    match Duration::try_from_secs_f64(given) {
        Ok(span) if span <= most => Ok(span),
        _ => Err(bad(format!(
            "{name} must be a number of seconds from 0 to {}, not {given}",
            most.as_secs()
        ))),
    }
}

fn ttl(asked: &QueryParameters) -> Result<Duration, ErrorReply> {
    let ttl = seconds("ttl", asked.ttl, TTL, TTL_MAX)?;
    if ttl.is_zero() {
        return Err(bad("ttl must be above 0"));
    }
    Ok(ttl)
}

fn absent(name: &str, given: Option<f64>) -> Result<(), ErrorReply> {
    match given {
        None => Ok(()),
        Some(_) => Err(bad(format!("{name} means nothing here"))),
    }
}

fn wants(body: &[u8]) -> Result<Option<f64>, ErrorReply> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct WantsBody {
        #[serde(deserialize_with = "Option::deserialize")]
        wants: Option<f64>,
    }
    serde_json::from_slice(body)
        .map(|body: WantsBody| body.wants)
        .map_err(|_| bad("the body must be like {\"wants\": 5} or {\"wants\": null}"))
}

fn held(is_held: bool) -> Result<Response, ErrorReply> {
    match is_held {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => {
            let why = "this place is not held, or no longer";
            Err(ErrorReply::new(StatusCode::NOT_FOUND, why))
        }
    }
}

fn bad(why: impl Into<String>) -> ErrorReply {
    ErrorReply::new(StatusCode::BAD_REQUEST, why)
}

/// The error, and its reason.
#[derive(Debug)]
struct ErrorReply {
    status: StatusCode,
    why: String,
}

impl ErrorReply {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { status, why }
    }
}

impl From<OpenFailure> for ErrorReply {
    fn from(why: OpenFailure) -> Self {
        let status = match why {
            OpenFailure::Refused(OpenError::BadId(_) | OpenError::NotACapacity(_)) => {
                StatusCode::BAD_REQUEST
            }
            OpenFailure::Refused(OpenError::OtherKind(_)) => StatusCode::CONFLICT,
            OpenFailure::Refused(OpenError::TooMany | OpenError::Closed) | OpenFailure::TooMany => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        Self::new(status, why.to_string())
    }
}

impl From<WaitError> for ErrorReply {
    fn from(why: WaitError) -> Self {
        let status = match why {
            WaitError::TooMany => StatusCode::TOO_MANY_REQUESTS,
            WaitError::Closed => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, why.to_string())
    }
}

impl From<NotACapacity> for ErrorReply {
    fn from(wrong: NotACapacity) -> Self {
        bad(wrong.to_string())
    }
}

impl From<PathRejection> for ErrorReply {
    fn from(rejection: PathRejection) -> Self {
        bad(rejection.body_text())
    }
}

impl From<QueryRejection> for ErrorReply {
    fn from(rejection: QueryRejection) -> Self {
        bad(rejection.body_text())
    }
}

impl IntoResponse for ErrorReply {
    fn into_response(self) -> Response {
        error(self.status, &self.why)
    }
}

/// An error, in the form of all errors here.
fn error(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "error": message }))).into_response()
}
