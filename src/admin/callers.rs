//! `/v1/callers`, `/v1/rate-limits` and related paths: callers, the costs of calls, and rate
//! limits.
//!
//! Unlike the rest of the admin address this changes things. It uses [`CallersSource`], to which
//! it passes only valid values. A mistake in a request is answered here, with the field's name,
//! and has changed nothing.

mod acts;
mod asked;
mod csv;
mod explained;
mod extract;
mod json;
mod query;
mod refused;
mod state;
pub(crate) mod written;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tidegate_callers::{CallerId, Group, NewCaller, Patch, RateLimitId, UsageSpan};

pub(crate) use self::acts::because;
pub use self::acts::{
    ActKind, ActState, ActsSource, BackendActing, BackendState, HOLD_SECONDS_MAX, LimitName,
    OverrideAsked, OverrideState, PauseAsked, ResumeAsked, UpgradeState, unix_milliseconds,
};
pub use self::asked::{DryRunRequest, Merge};
pub use self::explained::{CallDelay, CallState, Explained, HeldBy};
pub(super) use self::extract::Parameters;
use self::extract::{JsonBody, PathIds};
pub(super) use self::query::{Frames, QuotaKeys};
use self::query::{Listing, Sort, Suggest, UsageOf};
pub(crate) use self::refused::without_name;
pub use self::refused::{ApiRefusal, ObjectKind};
pub use self::state::{
    Basis, CallId, CallerState, CallerUsage, CallerUsed, CommonCall, CostsState, Delayed,
    DryRunState, Figures, MatchState, Moment, ObjectOrigin, PaceState, ProfileState, QueueRow,
    RateLimitKind, RateLimitState, RequestRow, RequestState, SpanFigures, Suggested, Top,
    UsageTable, Used, milliseconds,
};
use super::api;
use super::routes::Routes;
use crate::call::costs::{Costs, SuggestedCost};
use crate::call::rate_limit::{Derive, NewRateLimit, RateLimitPatch};

/// Callers and rate limits, for reading and changing, and what operators do to the backend.
///
/// Each method is called off the event loop, and may take a lock and write to a disk. A change
/// returns only after it would survive the end of the process. A refused change has changed
/// nothing.
#[expect(
    clippy::missing_errors_doc,
    reason = "`ApiRefusal` says why, each time"
)]
pub trait CallersSource: ActsSource {
    /// Every caller.
    fn callers(&self) -> Vec<CallerState>;
    /// The state of a caller.
    fn caller(&self, id: CallerId) -> Result<CallerState, ApiRefusal>;
    /// Makes a caller.
    fn create_caller(&self, new: NewCaller) -> Result<CallerState, ApiRefusal>;
    /// Changes a caller.
    fn patch_caller(&self, id: CallerId, patch: Patch) -> Result<CallerState, ApiRefusal>;
    /// Removes a caller.
    fn delete_caller(&self, id: CallerId) -> Result<(), ApiRefusal>;
    /// Merges callers into one.
    fn merge_callers(&self, merge: Merge) -> Result<CallerState, ApiRefusal>;
    /// The usage of a caller.
    fn caller_usage(&self, id: CallerId) -> Result<CallerUsage, ApiRefusal>;
    /// The usage of all callers, or of those of a group, the most expensive first.
    fn usage(&self, span: UsageSpan, group: Option<&Group>) -> Result<UsageTable, ApiRefusal>;
    /// A suitable limit for a caller.
    fn suggest(&self, derive: Derive) -> Result<Suggested, ApiRefusal>;

    /// Every rate limit.
    fn rate_limits(&self) -> Vec<RateLimitState>;
    /// The state of a rate limit.
    fn rate_limit(&self, id: RateLimitId) -> Result<RateLimitState, ApiRefusal>;
    /// Makes a rate limit, and moves the callers that it names to it.
    fn create_rate_limit(&self, new: NewRateLimit) -> Result<RateLimitState, ApiRefusal>;
    /// Changes a rate limit in place: its tokens and waiting calls are kept.
    fn patch_rate_limit(
        &self,
        id: RateLimitId,
        patch: RateLimitPatch,
    ) -> Result<RateLimitState, ApiRefusal>;
    /// Removes a rate limit. Calls that wait for it meet the limits that remain.
    fn delete_rate_limit(&self, id: RateLimitId) -> Result<(), ApiRefusal>;
    /// Gives a caller a rate limit, which replaces its current one.
    fn attach(&self, id: RateLimitId, caller: CallerId) -> Result<RateLimitState, ApiRefusal>;
    /// Removes a rate limit from a caller.
    fn detach(&self, id: RateLimitId, caller: CallerId) -> Result<(), ApiRefusal>;

    /// Every profile.
    fn profiles(&self) -> Vec<ProfileState>;
    /// The costs of calls.
    fn costs(&self) -> CostsState;
    /// Replaces the costs of calls.
    fn put_costs(&self, costs: Costs) -> Result<CostsState, ApiRefusal>;
    /// Suggested costs, from the backend's time for each function.
    fn suggested_costs(&self) -> Vec<SuggestedCost>;
    /// A dry run of a call, which is neither counted nor charged.
    fn classify(&self, question: &DryRunRequest) -> DryRunState;

    /// Waiting calls, by what they wait for.
    fn queues(&self) -> Vec<QueueRow>;
    /// Calls under way, the oldest first; at most as many as the queue and the workers hold.
    fn requests(&self) -> Vec<RequestRow>;
    /// Explains a call that is under way, or ended recently.
    fn explain(&self, id: CallId) -> Result<Explained, ApiRefusal>;
}

type Api = State<Arc<dyn CallersSource>>;
type JsonResult<T> = Result<Json<T>, ApiRefusal>;

pub(super) fn routes() -> Routes<Arc<dyn CallersSource>> {
    let routes = acts::routes(of_rate_limits(of_callers(Routes::new())));
    routes
        .get("/v1/profiles", |api: Api| {
            list(api, "profiles", |it| it.profiles())
        })
        .get("/v1/costs", |api: Api| ask(api, |it| Ok(it.costs())))
        .on(Method::PUT, "/v1/costs", |api: Api, JsonBody(costs)| {
            ask(api, move |it| it.put_costs(costs))
        })
        .get("/v1/costs/suggested", |api: Api| {
            list(api, "costs", |it| it.suggested_costs())
        })
        .on(
            Method::POST,
            "/v1/classify",
            |api: Api, JsonBody(question)| ask(api, move |it| Ok(it.classify(&question))),
        )
        .get("/v1/calls/{id}", |api: Api, PathIds(id)| {
            ask(api, move |it| it.explain(id))
        })
        .get("/v1/debug/limiters", |api: Api, headers: HeaderMap| {
            dump(api, headers, "limiters", |it| it.rate_limits())
        })
        .get("/v1/debug/queues", |api: Api, headers: HeaderMap| {
            dump(api, headers, "queues", |it| it.queues())
        })
        .get("/v1/debug/requests", |api: Api, headers: HeaderMap| {
            dump(api, headers, "requests", |it| it.requests())
        })
}

fn of_callers(routes: Routes<Arc<dyn CallersSource>>) -> Routes<Arc<dyn CallersSource>> {
    const CALLERS: &str = "/v1/callers";
    const CALLER: &str = "/v1/callers/{id}";
    routes
        .get(CALLERS, |api: Api, Parameters(listing)| {
            ask(api, move |it| Ok(page(it.callers(), &listing)))
        })
        .on(Method::POST, CALLERS, async |api: Api, JsonBody(new)| {
            let made = ask(api, |it| it.create_caller(new)).await?;
            Ok::<_, ApiRefusal>(created(format!("{CALLERS}/{}", made.id), made))
        })
        .on(
            Method::POST,
            "/v1/callers/merge",
            |api: Api, JsonBody(merge)| ask(api, move |it| merged(it, merge)),
        )
        .get(CALLER, |api: Api, PathIds(id)| {
            ask(api, move |it| it.caller(id))
        })
        .on(
            Method::PATCH,
            CALLER,
            |api: Api, PathIds(id), JsonBody(patch)| ask(api, move |it| it.patch_caller(id, patch)),
        )
        .on(Method::DELETE, CALLER, |api: Api, PathIds(id)| {
            remove(api, move |it| it.delete_caller(id))
        })
        .get("/v1/callers/{id}/usage", |api: Api, PathIds(id)| {
            ask(api, move |it| it.caller_usage(id))
        })
        .get("/v1/callers/{id}/suggest", suggest)
        .get(
            "/v1/usage",
            |api: Api, Parameters(of): Parameters<UsageOf>| {
                ask(api, move |it| it.usage(of.span, of.group.as_ref()))
            },
        )
}

fn of_rate_limits(routes: Routes<Arc<dyn CallersSource>>) -> Routes<Arc<dyn CallersSource>> {
    const RATE_LIMITS: &str = "/v1/rate-limits";
    const RATE_LIMIT: &str = "/v1/rate-limits/{id}";
    const ATTACHED: &str = "/v1/rate-limits/{id}/callers/{caller}";
    routes
        .get(RATE_LIMITS, |api: Api| {
            list(api, "rate_limits", |it| it.rate_limits())
        })
        .on(
            Method::POST,
            RATE_LIMITS,
            async |api: Api, JsonBody(new)| {
                let made = ask(api, |it| it.create_rate_limit(new)).await?;
                Ok::<_, ApiRefusal>(created(format!("{RATE_LIMITS}/{}", made.id), made))
            },
        )
        .get(RATE_LIMIT, |api: Api, PathIds(id)| {
            ask(api, move |it| it.rate_limit(id))
        })
        .on(
            Method::PATCH,
            RATE_LIMIT,
            |api: Api, PathIds(id), JsonBody(patch)| {
                ask(api, move |it| it.patch_rate_limit(id, patch))
            },
        )
        .on(Method::DELETE, RATE_LIMIT, |api: Api, PathIds(id)| {
            remove(api, move |it| it.delete_rate_limit(id))
        })
        .on(Method::PUT, ATTACHED, |api: Api, PathIds((id, caller))| {
            ask(api, move |it| it.attach(id, caller))
        })
        .on(
            Method::DELETE,
            ATTACHED,
            |api: Api, PathIds((id, caller))| remove(api, move |it| it.detach(id, caller)),
        )
}

/// Asks the source off the event loop.
async fn ask<T: Send + 'static>(
    State(source): Api,
    what: impl FnOnce(&dyn CallersSource) -> Result<T, ApiRefusal> + Send + 'static,
) -> JsonResult<T> {
    api::off_the_loop(move || what(&*source)).await.map(Json)
}

async fn remove(
    api: Api,
    what: impl FnOnce(&dyn CallersSource) -> Result<(), ApiRefusal> + Send + 'static,
) -> Result<StatusCode, ApiRefusal> {
    let Json(()) = ask(api, what).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// An object with one list.
async fn list<R: Send + 'static>(
    api: Api,
    name: &'static str,
    rows: impl FnOnce(&dyn CallersSource) -> Vec<R> + Send + 'static,
) -> JsonResult<BTreeMap<&'static str, Vec<R>>> {
    ask(api, move |it| Ok([(name, rows(it))].into())).await
}

/// Answers with a list as JSON, or CSV if the client prefers that.
async fn dump<R: csv::CsvRow + Send + 'static>(
    api: Api,
    headers: HeaderMap,
    name: &'static str,
    rows: impl FnOnce(&dyn CallersSource) -> Vec<R> + Send + 'static,
) -> Result<Response, ApiRefusal> {
    let Json(dump) = list(api, name, rows).await?;
    Ok(match csv::is_wanted(&headers) {
        true => csv::answer(&dump[name]),
        false => Json(dump).into_response(),
    })
}

/// An answer with the location of the new object.
fn created(location: String, made: impl IntoResponse) -> impl IntoResponse {
    (StatusCode::CREATED, [(header::LOCATION, location)], made)
}

async fn suggest(
    api: Api,
    PathIds(caller): PathIds<CallerId>,
    asked: Parameters<Suggest>,
) -> JsonResult<Suggested> {
    let Suggest { span, headroom } = asked.0;
    let derive = Derive {
        caller,
        span,
        headroom,
    };
    ask(api, move |it| it.suggest(derive)).await
}

#[derive(Serialize)]
struct MergedState {
    #[serde(flatten)]
    caller: CallerState,
    merged: Vec<String>,
}

fn merged(source: &dyn CallersSource, merge: Merge) -> Result<MergedState, ApiRefusal> {
    let merged = merge.from.iter().map(CallerId::to_string).collect();
    let caller = source.merge_callers(merge)?;
    Ok(MergedState { caller, merged })
}

#[derive(Serialize)]
struct Page {
    callers: Vec<CallerState>,
    total: usize,
}

/// The requested callers, in the requested order, and the total count.
fn page(mut callers: Vec<CallerState>, listing: &Listing) -> Page {
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
        Sort::Calls(span) => callers.sort_by_key(|it| Reverse(it.calls.over(span))),
        Sort::Tokens(span) => {
            callers.sort_by(|a, b| b.tokens.over(span).total_cmp(&a.tokens.over(span)))
        }
    }
    let total = callers.len();
    let shown = callers.into_iter().skip(listing.offset).take(listing.limit);
    let callers = shown.collect();
    Page { callers, total }
}
