//! `/v1/callers`, `/v1/rate-limits` and related paths: callers, the costs of calls, and rate
//! limits.
//!
//! Unlike the rest of the admin address this changes things. It uses [`CallersSource`], to which
//! it passes only valid values. A mistake in a request is answered here, with the field's name,
//! and has changed nothing.

mod asked;
mod body;
mod csv;
mod json;
mod refused;
mod state;

use std::cmp::Reverse;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_callers::Span;
use tidegate_callers::{CallerId, Group, NewCaller};
use tidegate_limits::Weight;

pub use self::asked::{
    CallerPatch, Costs, Derive, Merge, NewRateLimit, Question, Rate, RateLimitPatch, RatePatch,
    Rules,
};
use self::asked::{Column, Listing, Sort};
use self::body::JsonBody;
pub use self::refused::{Refused, What};
pub use self::state::{
    Basis, CallId, CallerState, CallerUsage, CallerUsed, Classified, CommonCall, CostsState,
    Delayed, Explained, Held, HeldBy, MatchState, Moment, Origin, PaceState, Profile, QueueRow,
    RateLimitKind, RateLimitState, RequestRow, RequestState, Spans, Suggested, SuggestedCost, Top,
    UsageTable, Used, milliseconds,
};
use super::api;
use super::routes::Routes;
use crate::call::claim::RateLimitId;

/// Callers and rate limits, for reading and changing.
///
/// Each method is called off the event loop, and may take a lock and write to a disk. A change
/// returns only after it would survive the end of the process. A refused change has changed
/// nothing.
#[expect(clippy::missing_errors_doc, reason = "`Refused` says why, each time")]
pub trait CallersSource: Send + Sync + 'static {
    /// Every caller.
    fn callers(&self) -> Vec<CallerState>;
    /// One caller.
    fn caller(&self, id: CallerId) -> Result<CallerState, Refused>;
    /// Makes a caller.
    fn create_caller(&self, new: NewCaller, weight: Option<Weight>)
    -> Result<CallerState, Refused>;
    /// Changes a caller.
    fn patch_caller(&self, id: CallerId, patch: CallerPatch) -> Result<CallerState, Refused>;
    /// Removes a caller.
    fn delete_caller(&self, id: CallerId) -> Result<(), Refused>;
    /// Merges callers into one.
    fn merge_callers(&self, merge: Merge) -> Result<CallerState, Refused>;
    /// The usage of a caller.
    fn caller_usage(&self, id: CallerId) -> Result<CallerUsage, Refused>;
    /// The usage of all callers, or of those of a group, the most expensive first.
    fn usage(&self, span: Span, group: Option<&Group>) -> Result<UsageTable, Refused>;
    /// A suitable limit for a caller.
    fn suggest(&self, derive: Derive) -> Result<Suggested, Refused>;

    /// Every rate limit.
    fn rate_limits(&self) -> Vec<RateLimitState>;
    /// One rate limit.
    fn rate_limit(&self, id: RateLimitId) -> Result<RateLimitState, Refused>;
    /// Makes a rate limit, and moves the callers that it names to it.
    fn create_rate_limit(&self, new: NewRateLimit) -> Result<RateLimitState, Refused>;
    /// Changes a rate limit in place: its tokens and waiting calls are kept.
    fn patch_rate_limit(
        &self,
        id: RateLimitId,
        patch: RateLimitPatch,
    ) -> Result<RateLimitState, Refused>;
    /// Removes a rate limit. Calls that wait for it meet the limits that remain.
    fn delete_rate_limit(&self, id: RateLimitId) -> Result<(), Refused>;
    /// Gives a caller a rate limit, which replaces its current one.
    fn attach(&self, id: RateLimitId, caller: CallerId) -> Result<RateLimitState, Refused>;
    /// Removes a rate limit from a caller.
    fn detach(&self, id: RateLimitId, caller: CallerId) -> Result<(), Refused>;

    /// Every profile.
    fn profiles(&self) -> Vec<Profile>;
    /// The costs of calls.
    fn costs(&self) -> CostsState;
    /// Replaces the costs of calls.
    fn put_costs(&self, costs: Costs) -> Result<CostsState, Refused>;
    /// Suggested costs, from the backend's time for each function.
    fn suggested_costs(&self) -> Vec<SuggestedCost>;
    /// A dry run of a call, which is neither counted nor charged.
    fn classify(&self, question: &Question) -> Classified;

    /// Waiting calls, by what they wait for.
    fn queues(&self) -> Vec<QueueRow>;
    /// Calls under way, the oldest first; at most as many as the queue and the workers hold.
    fn requests(&self) -> Vec<RequestRow>;
    /// The result of a call that ended recently.
    fn explain(&self, id: CallId) -> Result<Explained, Refused>;
}

type Callers = State<Arc<dyn CallersSource>>;
pub(super) type Parameters = Result<Query<Vec<(String, String)>>, QueryRejection>;
type InPath<T> = Result<Path<T>, PathRejection>;

pub(super) fn routes() -> Routes<Arc<dyn CallersSource>> {
    const CALLERS: &str = "/v1/callers";
    const CALLER: &str = "/v1/callers/{id}";
    const RATE_LIMITS: &str = "/v1/rate-limits";
    const RATE_LIMIT: &str = "/v1/rate-limits/{id}";
    const ATTACHED: &str = "/v1/rate-limits/{id}/callers/{caller}";
    Routes::new()
        .get(CALLERS, list_callers)
        .on(Method::POST, CALLERS, create_caller)
        .on(Method::POST, "/v1/callers/merge", merge_callers)
        .get(CALLER, caller)
        .on(Method::PATCH, CALLER, patch_caller)
        .on(Method::DELETE, CALLER, delete_caller)
        .get("/v1/callers/{id}/usage", caller_usage)
        .get("/v1/callers/{id}/suggest", suggest)
        .get("/v1/usage", usage)
        .get(RATE_LIMITS, list_rate_limits)
        .on(Method::POST, RATE_LIMITS, create_rate_limit)
        .get(RATE_LIMIT, rate_limit)
        .on(Method::PATCH, RATE_LIMIT, patch_rate_limit)
        .on(Method::DELETE, RATE_LIMIT, delete_rate_limit)
        .on(Method::PUT, ATTACHED, attach)
        .on(Method::DELETE, ATTACHED, detach)
        .get("/v1/profiles", profiles)
        .get("/v1/costs", costs)
        .on(Method::PUT, "/v1/costs", put_costs)
        .get("/v1/costs/suggested", suggested_costs)
        .on(Method::POST, "/v1/classify", classify)
        .get("/v1/calls/{id}", explain)
        .get("/v1/debug/limiters", limiters)
        .get("/v1/debug/queues", queues)
        .get("/v1/debug/requests", requests)
}

/// Asks the source off the event loop.
async fn ask<T: Send + 'static>(
    State(source): Callers,
    what: impl FnOnce(&dyn CallersSource) -> T + Send + 'static,
) -> T {
    api::off_the_loop(move || what(&*source)).await
}

// Callers.

async fn list_callers(source: Callers, parameters: Parameters) -> Result<Response, Refused> {
    #[derive(Serialize)]
    struct List {
        callers: Vec<CallerState>,
        total: usize,
    }
    let listing = asked::listing(given(parameters)?)?;
    let list = ask(source, move |source| {
        let (callers, total) = page(source.callers(), &listing);
        List { callers, total }
    });
    Ok(Json(list.await).into_response())
}

/// The requested callers, in the requested order, and the total count.
fn page(mut callers: Vec<CallerState>, listing: &Listing) -> (Vec<CallerState>, usize) {
    callers.retain(|caller| {
        let group = listing.group.as_ref();
        listing.auto.is_none_or(|auto| caller.auto == auto)
            && group.is_none_or(|group| caller.groups.contains(group))
    });
    callers.sort_unstable_by_key(|caller| caller.id);
    match listing.sort {
        Sort::Id => {}
        Sort::Label => callers.sort_by(|a, b| {
            let key = |it: &CallerState| (it.label.is_none(), it.label.clone());
            key(a).cmp(&key(b))
        }),
        Sort::LastAccess => callers.sort_by_key(|caller| Reverse(caller.last_access)),
        Sort::Calls(column) => callers.sort_by_key(|it| Reverse(figure(&it.calls, column))),
        Sort::Tokens(column) => {
            callers.sort_by(|a, b| figure(&b.tokens, column).total_cmp(&figure(&a.tokens, column)))
        }
    }
    let total = callers.len();
    let shown = callers.into_iter().skip(listing.offset).take(listing.limit);
    (shown.collect(), total)
}

fn figure<T: Copy>(spans: &Spans<T>, column: Column) -> T {
    match column {
        Column::FiveMinutes => spans.five_minutes,
        Column::Hour => spans.hour,
        Column::Day => spans.day,
        Column::Total => spans.total,
    }
}

async fn create_caller(source: Callers, JsonBody(body): JsonBody) -> Result<Response, Refused> {
    let (new, weight) = asked::read(&body, asked::new_caller)?;
    let made = ask(source, move |source| source.create_caller(new, weight)).await?;
    Ok(created(&format!("/v1/callers/{}", made.id), made))
}

async fn caller(source: Callers, path: InPath<String>) -> Result<Response, Refused> {
    let id = asked::caller_in_path(&in_path(path))?;
    let caller = ask(source, move |source| source.caller(id)).await?;
    Ok(Json(caller).into_response())
}

async fn patch_caller(
    source: Callers,
    path: InPath<String>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refused> {
    let id = asked::caller_in_path(&in_path(path))?;
    let patch = asked::read(&body, asked::caller_patch)?;
    let caller = ask(source, move |source| source.patch_caller(id, patch)).await?;
    Ok(Json(caller).into_response())
}

async fn delete_caller(source: Callers, path: InPath<String>) -> Result<StatusCode, Refused> {
    let id = asked::caller_in_path(&in_path(path))?;
    ask(source, move |source| source.delete_caller(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn merge_callers(source: Callers, JsonBody(body): JsonBody) -> Result<Response, Refused> {
    #[derive(Serialize)]
    struct Merged {
        #[serde(flatten)]
        caller: CallerState,
        merged: Vec<String>,
    }
    let merge = asked::read(&body, asked::merge)?;
    let merged = merge.from.iter().map(CallerId::to_string).collect();
    let caller = ask(source, move |source| source.merge_callers(merge)).await?;
    Ok(Json(Merged { caller, merged }).into_response())
}

async fn caller_usage(source: Callers, path: InPath<String>) -> Result<Response, Refused> {
    let id = asked::caller_in_path(&in_path(path))?;
    let usage = ask(source, move |source| source.caller_usage(id)).await?;
    Ok(Json(usage).into_response())
}

async fn usage(source: Callers, parameters: Parameters) -> Result<Response, Refused> {
    let (span, group) = asked::usage(given(parameters)?)?;
    let table = ask(source, move |source| source.usage(span, group.as_ref())).await?;
    Ok(Json(table).into_response())
}

async fn suggest(
    source: Callers,
    path: InPath<String>,
    parameters: Parameters,
) -> Result<Response, Refused> {
    let id = asked::caller_in_path(&in_path(path))?;
    let derive = asked::derive(id, given(parameters)?)?;
    let suggested = ask(source, move |source| source.suggest(derive)).await?;
    Ok(Json(suggested).into_response())
}

// Rate limits.

async fn list_rate_limits(source: Callers) -> Response {
    #[derive(Serialize)]
    struct List {
        rate_limits: Vec<RateLimitState>,
    }
    let rate_limits = ask(source, |source| source.rate_limits()).await;
    Json(List { rate_limits }).into_response()
}

async fn create_rate_limit(source: Callers, JsonBody(body): JsonBody) -> Result<Response, Refused> {
    let new = asked::read(&body, asked::new_rate_limit)?;
    let made = ask(source, move |source| source.create_rate_limit(new)).await?;
    Ok(created(&format!("/v1/rate-limits/{}", made.id), made))
}

async fn rate_limit(source: Callers, path: InPath<String>) -> Result<Response, Refused> {
    let id = asked::rate_limit_in_path(&in_path(path))?;
    let limit = ask(source, move |source| source.rate_limit(id)).await?;
    Ok(Json(limit).into_response())
}

async fn patch_rate_limit(
    source: Callers,
    path: InPath<String>,
    JsonBody(body): JsonBody,
) -> Result<Response, Refused> {
    let id = asked::rate_limit_in_path(&in_path(path))?;
    let patch = asked::read(&body, asked::rate_limit_patch)?;
    let limit = ask(source, move |source| source.patch_rate_limit(id, patch)).await?;
    Ok(Json(limit).into_response())
}

async fn delete_rate_limit(source: Callers, path: InPath<String>) -> Result<StatusCode, Refused> {
    let id = asked::rate_limit_in_path(&in_path(path))?;
    ask(source, move |source| source.delete_rate_limit(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn attach(source: Callers, path: InPath<(String, String)>) -> Result<Response, Refused> {
    let (id, caller) = limit_and_caller(path)?;
    let limit = ask(source, move |source| source.attach(id, caller)).await?;
    Ok(Json(limit).into_response())
}

async fn detach(source: Callers, path: InPath<(String, String)>) -> Result<StatusCode, Refused> {
    let (id, caller) = limit_and_caller(path)?;
    ask(source, move |source| source.detach(id, caller)).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn limit_and_caller(path: InPath<(String, String)>) -> Result<(RateLimitId, CallerId), Refused> {
    let (id, caller) = in_path(path);
    let id = asked::rate_limit_in_path(&id)?;
    Ok((id, asked::caller_in_path(&caller)?))
}

// Costs, profiles, the dry run.

async fn profiles(source: Callers) -> Response {
    #[derive(Serialize)]
    struct List {
        profiles: Vec<Profile>,
    }
    let profiles = ask(source, |source| source.profiles()).await;
    Json(List { profiles }).into_response()
}

async fn costs(source: Callers) -> Response {
    Json(ask(source, |source| source.costs()).await).into_response()
}

async fn put_costs(source: Callers, JsonBody(body): JsonBody) -> Result<Response, Refused> {
    let costs = asked::read(&body, asked::costs)?;
    let costs = ask(source, move |source| source.put_costs(costs)).await?;
    Ok(Json(costs).into_response())
}

async fn suggested_costs(source: Callers) -> Response {
    #[derive(Serialize)]
    struct List {
        costs: Vec<SuggestedCost>,
    }
    let costs = ask(source, |source| source.suggested_costs()).await;
    Json(List { costs }).into_response()
}

async fn classify(source: Callers, JsonBody(body): JsonBody) -> Result<Response, Refused> {
    let question = asked::read(&body, asked::question)?;
    let classified = ask(source, move |source| source.classify(&question)).await;
    Ok(Json(classified).into_response())
}

// Calls and queues.

async fn explain(source: Callers, path: InPath<String>) -> Result<Response, Refused> {
    let id = asked::call_in_path(&in_path(path))?;
    let explained = ask(source, move |source| source.explain(id)).await?;
    Ok(Json(explained).into_response())
}

async fn limiters(source: Callers, headers: HeaderMap) -> Response {
    let rows = ask(source, |source| source.rate_limits()).await;
    dump("limiters", &headers, &rows)
}

async fn queues(source: Callers, headers: HeaderMap) -> Response {
    let rows = ask(source, |source| source.queues()).await;
    dump("queues", &headers, &rows)
}

async fn requests(source: Callers, headers: HeaderMap) -> Response {
    let rows = ask(source, |source| source.requests()).await;
    dump("requests", &headers, &rows)
}

/// Rows as an object with one list, or as CSV if the client prefers that.
fn dump<R: Serialize + csv::Row>(name: &str, headers: &HeaderMap, rows: &[R]) -> Response {
    if csv::is_wanted(headers) {
        return csv::answer(rows);
    }
    let dump: std::collections::BTreeMap<&str, &[R]> = [(name, rows)].into();
    Json(dump).into_response()
}

/// An answer with the location of the new object.
fn created(location: &str, made: impl Serialize) -> Response {
    let mut response = (StatusCode::CREATED, Json(made)).into_response();
    let location = HeaderValue::from_str(location).expect("an id is ASCII");
    response.headers_mut().insert(header::LOCATION, location);
    response
}

/// The id in the path; an unknown one if it cannot be read.
fn in_path<T: DeserializeOwned + Default>(path: InPath<T>) -> T {
    path.map(|Path(path)| path).unwrap_or_default()
}

/// The most keys of each quota to show.
pub(super) fn quota_keys(parameters: Parameters) -> Result<usize, Refused> {
    asked::quota_keys(given(parameters)?)
}

/// The parameters of a query.
fn given(parameters: Parameters) -> Result<Vec<(String, String)>, Refused> {
    match parameters {
        Ok(Query(given)) => Ok(given),
        Err(_) => Err(Refused::invalid("query", "must be name=value, joined by &")),
    }
}
