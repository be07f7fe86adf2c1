//! The admin address, where operators see and change state: metrics, health, the queue and its limits; callers, the
//! costs of their calls, and their rate limits.
//!
//! It uses [`AdminSource`], which only reads, and [`CallersSource`], which can also change things, so
//! it knows no stage. Both are called off the event loop, because a scrape renders thousands of
//! lines, a change waits for a disk, and calls should wait for neither.

mod api;
mod author;
mod callers;
mod errors;
mod guard;
mod health;
mod now;
mod page;
mod places;
mod quotas;
mod routes;
mod series;
mod server;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use serde::Serialize;
use tokio::sync::{Semaphore, watch};
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::classify::ServerErrorsFailureClass;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::trace::TraceLayer;

pub use author::{AdminPeer, Author};
pub use callers::{
    ActKind, ActState, ActsSource, BackendActing, BackendState, HOLD_SECONDS_MAX, LimitName,
    OverrideAsked, OverrideState, PauseAsked, ResumeAsked, UpgradeState, unix_milliseconds,
};
pub use callers::{
    ApiRefusal, Basis, CallDelay, CallId, CallState, CallerState, CallerUsage, CallerUsed,
    CallersSource, CommonCall, CostsState, Delayed, DryRunRequest, DryRunState, Explained, Figures,
    HeldBy, MatchState, Merge, Moment, ObjectKind, ObjectOrigin, PaceState, ProfileState, QueueRow,
    RateLimitKind, RateLimitState, RequestRow, RequestState, SpanFigures, Suggested, Top,
    UsageTable, Used, milliseconds,
};
pub(crate) use callers::{because, without_name, written};
pub use errors::{link_to_what_to_do, what_to_do};
pub use guard::{NamedToken, Token};
pub use now::{
    AddressNow, BackendNow, CallNow, FRAMES_MAX, HeldByJob, LimitNow, NowState, QueueLevels,
    ReadyNow, RefusalCount, ReloadNow, SeriesSpan, StoreNow, Traffic,
};
pub use quotas::{
    Decisions, QuotaKeyState, QuotaState, QuotaStoreState, QuotaStoreTrouble, QuotasState,
};
pub use series::{
    Frame, LimitHistory, MarkState, PointFigures, PointState, SeriesState, VIEWERS_MAX, line,
};
pub use server::{Inlet, ServeError, needs_token, serve, serve_router};

use self::series::Viewers;
use crate::call::listener::{address_or_off, socket_path};
use crate::options::kind::{is_plain, list, text};
use crate::options::shown::quoted;
use crate::options::tree::Node;
use crate::options::{Mistake, ValueKind, options};

/// The longest time for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The most requests that are answered at once; further ones are refused. Health checks are not
/// counted, and wait for none of them.
const REQUESTS_MAX: usize = 16;
/// A request that only reads has no body.   bytes
const BODY_MAX: usize = 1024;

options! {
    /// Where operators look: metrics, health checks, and the API.
    pub struct AdminSection => AdminSettings {
        /// Where /metrics, the health checks and /v1/ are served. "" or false switches it off.
        bind: Option<SocketAddr> = address_or_off().or(Some(([127, 0, 0, 1], 9180).into())).restart().first(17);

        /// The secret that every request needs, except the health checks: as "Authorization: Bearer …",
        /// or in a browser as the password, with any user name. Required if bind is not an address of
        /// this machine alone. In a container, set it as TIDEGATE_ADMIN__TOKEN.
        token: Option<Token> = token().optional().restart()
            .example("\"the output of: openssl rand -hex 32\"").first(18);

        /// More tokens, each with the name of who has it: "NAME:TOKEN". The log of what operators changed
        /// shows the name. The one above has the name "admin".
        tokens: Box<[NamedToken]> = named_tokens().or(Box::default()).restart()
            .example("[\"ann:the output of openssl rand -hex 32\"]");

        /// A socket file where the same is served to programs of this machine. The kernel says which user
        /// asks, so no token is needed there. Owner and group of the file may connect (its mode is 0660).
        socket: Option<Arc<Path>> = socket_file().optional().restart()
            .example("\"unix:/run/tidegate/admin.sock\"");

        /// Host names by which clients ask for this address. A request with another name in "Host" is
        /// refused, because a web page could have pointed its own name here. IP addresses and localhost
        /// need no entry. Add the name of the sidecar, or of a proxy before it, if clients use one.
        allowed_hosts: Box<[Box<str>]> = hosts().or(Box::default()).restart();
    }
}

/// A secret. No message quotes it.
fn token() -> ValueKind<Token> {
    let read = |node: &Node| match node.text() {
        None => Err(wrong_token("the token is not a string")),
        Some(given) => secret_of(given),
    };
    ValueKind::new("1 to 1024 visible ASCII characters", read, |token| {
        token.0.to_string()
    })
}

fn secret_of(given: &str) -> Result<Token, Mistake> {
    match given {
        "" => Err(wrong_token("the token is empty")),
        _ if given.len() > 1024 || !given.bytes().all(|b| b.is_ascii_graphic()) => Err(
            wrong_token("the token holds what an HTTP header can't carry"),
        ),
        _ => Ok(Token(given.into())),
    }
}

fn wrong_token(told: &str) -> Mistake {
    let cure = "give 1 to 1024 letters, digits or signs in quotes, without spaces, such as the \
                output of `openssl rand -hex 32`";
    Mistake::new(told, cure)
}

/// Tokens with the names of those who have them. No message quotes a token.
fn named_tokens() -> ValueKind<Box<[NamedToken]>> {
    let read = move |node: &Node| {
        let wrong = || {
            let cure =
                "give each as \"NAME:TOKEN\", with a name of up to 64 letters, digits, - and _";
            Mistake::new("a token has no name", cure)
        };
        let named = node.text().and_then(|given| given.split_once(':'));
        let (name, secret) = named.ok_or_else(wrong)?;
        if name.is_empty() || name.len() > 64 || !is_plain(name, "-_") {
            return Err(wrong());
        }
        let token = secret_of(secret)?;
        Ok(NamedToken {
            name: name.into(),
            token,
        })
    };
    let one = ValueKind::new("NAME:TOKEN", read, |it: &NamedToken| {
        format!("{}:{}", it.name, it.token.0)
    });
    let list = list(64, "[\"ann:…\"]", one).described("a list of up to 64 names and tokens");
    list.map(Vec::into_boxed_slice, |tokens| tokens.to_vec())
}

/// The path of a socket file.
fn socket_file() -> ValueKind<Arc<Path>> {
    let example = "unix:/run/tidegate/admin.sock";
    let file = text("unix:/path of a socket file", example, |given| {
        let Some(path) = given.trim().strip_prefix("unix:") else {
            let cure = "give unix: and the whole path of the file, such as \
                        unix:/run/tidegate/admin.sock";
            return Err(Mistake::new(
                format!("{} is not a socket file", quoted(given)),
                cure,
            ));
        };
        socket_path(path).map(|_| given.trim().to_owned())
    });
    let path = |given: String| Arc::from(Path::new(given.trim_start_matches("unix:")));
    file.map(path, |path: &Arc<Path>| format!("unix:{}", path.display()))
}

/// Names as `Host` has them, without a port.
pub fn hosts() -> ValueKind<Box<[Box<str>]>> {
    let host = text("the name of a host", "tidegate.example.com", |given| {
        let name = given.strip_suffix('.').unwrap_or(given);
        let is_label = |label: &str| !label.is_empty() && is_plain(label, "-_");
        // The longest name that DNS has.
        if name.len() > 253 || !name.split('.').all(is_label) {
            let told = format!("{} is not the name of a host", quoted(given));
            let cure = "give names without scheme and port, such as [\"tidegate.example.com\"]; \
                        an IP address needs no entry";
            return Err(Mistake::new(told, cure));
        }
        Ok(name.to_ascii_lowercase().into_boxed_str())
    });
    let list = list(64, "[\"tidegate.example.com\"]", host).described("a list of host names");
    list.map(Vec::into_boxed_slice, |hosts| hosts.to_vec())
}

/// The visible state. Each method except [`ready`](Self::ready) is called off the event loop, and
/// may take a lock.
pub trait AdminSource: Send + Sync + 'static {
    /// Every limit, in the order of the config.
    fn limits(&self) -> Vec<LimitState>;
    /// The bucket of every rate limit that has one.
    fn buckets(&self) -> Vec<BucketState>;
    /// The queue.
    fn queue(&self) -> QueueState;
    /// The quotas, and at most this many keys of each.
    fn quotas(&self, keys_max: usize) -> QuotasState;
    /// The effective config, as TOML, without its secrets.
    fn config(&self) -> String;
    /// Every metric in Prometheus's text format.
    fn metrics(&self) -> String;
    /// The most open connections of this address.
    fn connections_max(&self) -> usize;
    /// Notices for an operator, one text each: why the last reload was refused, and what the system
    /// does not allow.
    fn notices(&self) -> Vec<String>;
    /// Everything of this moment.
    fn now(&self) -> NowState;
    /// The history.
    fn series(&self, span: SeriesSpan) -> SeriesState;
    /// A frame of a stream.
    fn frame(&self) -> Frame;
    /// The later frames, as lines of JSON; one a second while anybody looks, and the latest wins.
    /// Called on the event loop. They end with `None`, or with the sender.
    fn frames(&self) -> watch::Receiver<Option<Bytes>>;
    /// Whether calls are taken; if not, why. Called on the event loop, so that no other request
    /// delays a probe. It neither waits nor computes.
    ///
    /// # Errors
    ///
    /// The reason, as part of a sentence for people.
    fn ready(&self) -> Result<(), String>;
}

/// The state of one limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitState {
    /// The name of the limit in the config, in metrics and in refusals.
    pub name: String,
    /// The calls that meet it: `all`, or the name of a function.
    pub scope: String,
    /// The kind of the limit.
    pub kind: LimitKind,
    /// Length of the window, for a window limit.
    pub window_seconds: Option<f64>,
    /// The configured value.   calls, or tokens a second, rounded
    pub configured: u64,
    /// The amount in use; always 0 for a pace.   calls
    pub used: u64,
    /// Tokens a second, of a pace.
    pub rate: Option<f64>,
    /// The burst ratio of a pace: late calls are admitted at this many times the rate.
    pub ratio: Option<f64>,
    /// The state of its pace, if it has one.
    pub pace: Option<PaceState>,
    /// When it has room for one more call.
    pub opens: Opens,
    /// The amount it may give out now: the configured value, or less while it is shared or paused.
    pub in_force: u64,
    /// How it is shared, if it is.
    pub shared: Option<SharedState>,
    /// Whether it only observes: it holds no call, and the figures are what they would be.
    pub observes: bool,
}

/// A limit that several sidecars share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharedState {
    /// The engine: `lease` means capacity servers.
    pub engine: &'static str,
    /// The name of the resource.
    pub resource: String,
    /// The part that this sidecar always owns.
    pub safe: f64,
    /// The amount that it wants.
    pub wants: f64,
    /// The leased amount; `None` without a lease.
    pub leased: Option<f64>,
    /// The remaining time of the lease.
    pub expires_in_seconds: Option<f64>,
}

/// The state of a rate limit's bucket.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BucketState {
    /// The name of the bucket in refusals and in what held a call.
    pub name: String,
    /// The id of the rate limit; `/v1/rate-limits` has the details.
    pub rate_limit: String,
    /// The most tokens at once, of a bucket.
    pub burst: Option<f64>,
    /// Tokens a second, of a bucket.
    pub fill: Option<f64>,
    /// Tokens a second, of a pace.
    pub rate: Option<f64>,
    /// The burst ratio of a pace: late calls are admitted at this many times the rate.
    pub ratio: Option<f64>,
    /// The state of its pace, if it has one.
    pub pace: Option<PaceState>,
    /// Tokens in it now; negative in debt.
    pub tokens: f64,
    /// Calls in the queue that will be charged to it, for any reason of their wait.
    pub queued: u64,
    /// When it has a token for one more call, with no call ahead.
    pub opens: Opens,
    /// Tokens that flow in each second now: as configured, or less while it is shared.
    pub per_second: f64,
    /// How it is shared, if it is.
    pub shared: Option<SharedState>,
}

/// The quantity that a limit bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Calls at the backend at once.
    Outstanding,
    /// Calls that leave within a window.
    Window,
    /// Tokens a second.
    Paced,
}

/// When a limit has room for one more call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Opens {
    /// The limit has room.
    Now,
    /// After this time.
    InSeconds(f64),
    /// When a call that holds it ends; the moment is unknown.
    #[serde(rename = "when_told")]
    OnChange,
}

/// The state of the queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueState {
    /// Calls that wait in the queue; not those at the door.
    pub depth: u64,
    /// Calls that may wait in the queue.
    pub capacity: u64,
    /// Calls that wait at the door of a full queue: the calls above the capacity.
    pub door: u64,
    /// Time since the arrival of the oldest; 0 when none waits.
    pub oldest_seconds: f64,
    /// The waiting calls, by function.
    pub functions: Vec<FunctionQueue>,
    /// The waiting calls, also at the door, by class; every class, the most urgent first.
    pub classes: Vec<ClassQueue>,
    /// The queue that there would be, if limits only observe.
    pub would_be: Option<WouldBe>,
}

/// The queue that there would be if the limits that only observe held calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WouldBe {
    /// Calls that would wait, also at the door.
    pub depth: u64,
    /// The most that would have waited at once since limits began to observe.
    pub peak: u64,
}

/// The calls of one class that wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassQueue {
    /// The class.
    pub class: String,
    /// How many.
    pub waiting: u64,
}

/// The calls of one function that wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionQueue {
    /// The function.
    pub function: String,
    /// How many.
    pub waiting: u64,
    /// The limit that the next of them waits for; `None` if it only waits for its turn.
    pub waits_for: Option<String>,
}

/// Every method and path that is answered, by the patterns of paths: `/v1/callers/{id}`.
#[must_use]
pub fn routes() -> Vec<(Method, &'static str)> {
    let shown = [
        api::routes(),
        quotas::routes(),
        page::routes(),
        errors::routes(),
        series::routes(),
        health::routes(),
    ];
    let shown = shown.iter().flat_map(|routes| routes.listed());
    shown.chain(callers::routes().listed()).collect()
}

/// Logs an answer that is our own fault. A draining or overloaded sidecar is not: the answer says
/// it.
fn log_failure(class: ServerErrorsFailureClass, took: Duration, _: &tracing::Span) {
    let expected = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
    match class {
        ServerErrorsFailureClass::StatusCode(status) if expected.contains(&status) => {
            tracing::debug!(%status, ?took, "admin request not answered");
        }
        class => tracing::error!(%class, ?took, "admin request failed"),
    }
}

/// The router of the admin address.
fn router(
    settings: AdminSettings,
    source: Arc<dyn AdminSource>,
    callers: Arc<dyn CallersSource>,
) -> Router {
    let settings = Arc::new(settings);
    let places = Arc::new(Semaphore::new(REQUESTS_MAX));
    let viewers = Viewers::beside(source.connections_max());
    let comes_with_it = page::ComesWithIt {
        no_token: !settings.has_token(),
        places: Arc::clone(&places),
    };
    // An unknown path is guarded too: without the token a client does not learn which paths exist.
    let guarded = api::routes()
        .router()
        .merge(quotas::routes().router())
        .merge(series::routes().router().layer(Extension(viewers)))
        .layer(RequestBodyLimitLayer::new(BODY_MAX))
        .merge(callers::routes().router().with_state(callers))
        .fallback(api::not_found)
        .method_not_allowed_fallback(api::method_not_allowed)
        .layer(
            ServiceBuilder::new()
                .layer(from_fn_with_state(Arc::clone(&settings), guard::check))
                .layer(from_fn_with_state(places, bounded)),
        );
    let open = page::routes()
        .router()
        .layer(Extension(comes_with_it))
        .merge(errors::routes().router())
        .method_not_allowed_fallback(api::method_not_allowed)
        .layer(from_fn_with_state(
            Arc::clone(&settings),
            guard::check_origin,
        ));
    health::routes()
        .router()
        .method_not_allowed_fallback(api::method_not_allowed)
        .layer(from_fn_with_state(settings, guard::check_probe))
        .merge(open)
        .merge(guarded)
        .with_state(source)
        .layer(
            ServiceBuilder::new()
                .layer(TraceLayer::new_for_http().on_failure(log_failure))
                .layer(SetResponseHeaderLayer::if_not_present(
                    header::CACHE_CONTROL,
                    HeaderValue::from_static("no-store"),
                ))
                .layer(CatchPanicLayer::custom(|_| -> Response {
                    api::error(StatusCode::INTERNAL_SERVER_ERROR, "our own mistake")
                })),
        )
}

/// Answers a request if there is a place for it, within the bound. A request that takes longer
/// gets an error, and keeps its place until its work has ended. Work that waits for a disk or a
/// lock cannot be stopped, and so no more of it piles up.
async fn bounded(State(places): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let Ok(place) = places.try_acquire_owned() else {
        return api::error(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once");
    };
    let answering = tokio::spawn(async move {
        let answer = next.run(request).await;
        drop(place);
        answer
    });
    match tokio::time::timeout(ANSWER_TIMEOUT, answering).await {
        Ok(Ok(answer)) => answer,
        // A panic in there concerns only this request; the layer above answers it.
        Ok(Err(failed)) => std::panic::resume_unwind(failed.into_panic()),
        Err(_) => api::error(
            StatusCode::GATEWAY_TIMEOUT,
            "no answer within 5 s; what was asked for may still be done",
        ),
    }
}
