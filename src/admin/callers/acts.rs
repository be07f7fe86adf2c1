//! `/v1/backend` and `/v1/acts`: what operators do to the backend, and what they have done.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use serde::{Serialize, Serializer};
use tidegate_record::digits::Utc;

use super::asked::{ApiResult, FromFields};
use super::extract::{JsonBody, PathIds};
use super::json::{LocatedValue, ObjectFields};
use super::query::InPath;
use super::refused::ApiRefusal;
use super::{Api, ask, remove};
use crate::admin::author::Author;
use crate::admin::routes::Routes;
use crate::options::json;

/// The longest hold of a pause, and the longest ramp.   s
pub const HOLD_SECONDS_MAX: f64 = 86_400.0;
/// The shortest hold.   s
const HOLD_SECONDS_MIN: f64 = 0.1;
/// The largest value of a limit.   calls, or tokens a second
const VALUE_MAX: u32 = 1_000_000;
/// The longest reason.   characters
const WHY_MAX: usize = 200;

/// Acts of operators on the backend.
///
/// Each method is called off the event loop, and may take a lock and write to a disk.
pub trait ActsSource: Send + Sync + 'static {
    /// The state of the backend: whether calls are sent to it now.
    fn backend(&self) -> BackendState;
    /// Sends nothing new to the backend, for a while. It takes effect even if it cannot be saved.
    ///
    /// # Errors
    /// If another process takes over.
    fn pause(&self, author: &Author, asked: PauseAsked) -> Result<BackendState, ApiRefusal>;
    /// Sends calls again.
    ///
    /// # Errors
    /// If another process takes over.
    fn resume(&self, author: &Author, asked: ResumeAsked) -> Result<BackendState, ApiRefusal>;
    /// Lets a limit give out less for a while.
    ///
    /// # Errors
    /// If there is no such limit, if it only observes, if the config allows less, or if another process takes over.
    fn override_limit(
        &self,
        author: &Author,
        limit: &LimitName,
        asked: OverrideAsked,
    ) -> Result<OverrideState, ApiRefusal>;
    /// Gives a limit its own value again.
    ///
    /// # Errors
    /// If there is no such limit, or if another process takes over.
    fn end_override(&self, author: &Author, limit: &LimitName) -> Result<(), ApiRefusal>;
    /// The limits that have lower values now.
    fn overrides(&self) -> Vec<OverrideState>;
    /// The last acts, the latest first.
    fn acts(&self) -> Vec<ActState>;
    /// Starts the program anew, which takes over. Returns once it serves.
    ///
    /// # Errors
    /// Why this process still serves.
    fn upgrade(&self, author: &Author) -> Result<UpgradeState, ApiRefusal>;
}

/// `POST /v1/backend/pause`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseAsked {
    /// Until it ends by itself.
    pub hold: Duration,
    /// The reason.
    pub why: Arc<str>,
    /// Whether calls may wait longer by the time that they were paused.
    pub extend_deadlines: bool,
}

/// `POST /v1/backend/resume`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeAsked {
    /// How long the limits grow from a tenth to full. `None` is as in the config.
    pub ramp: Option<Duration>,
    /// The reason.
    pub why: Arc<str>,
}

/// The name of a limit in a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitName(pub String);

/// `POST /v1/limits/{name}`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideAsked {
    /// The most that it gives out.   calls, or tokens a second
    pub value: u32,
    /// Until it ends by itself.
    pub time: Duration,
    /// The reason.
    pub why: Arc<str>,
}

/// A limit that has a lower value for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OverrideState {
    /// The name of the limit.
    pub limit: String,
    /// The most that it gives out.   calls, or tokens a second
    pub value: u32,
    /// When it ends by itself.
    #[serde(rename = "ends_unix_ms", serialize_with = "unix_ms")]
    pub ends: Option<SystemTime>,
    /// Who asked for it.
    pub author: String,
    /// The reason, if one was given.
    pub why: String,
    /// Whether it goes on after a restart of the process.
    pub survives_restart: bool,
}

impl OverrideState {
    /// A notice for an operator.
    #[must_use]
    pub fn notice(&self) -> String {
        let Self {
            limit,
            value,
            author,
            ..
        } = self;
        let ends = self.ends.map(|ends| Utc(ends).to_string());
        let ends = ends.unwrap_or_default();
        let why = because(&self.why);
        format!("limit {limit} is at most {value} until {ends} by {author}{why}")
    }
}

/// `POST /v1/upgrade`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UpgradeAsked;

impl FromFields for UpgradeAsked {
    const FIELDS: &[&[&str]] = &[&[]];

    fn read(_: &mut ObjectFields) -> ApiResult<Self> {
        Ok(Self)
    }
}

/// The process that serves after an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct UpgradeState {
    /// The pid.
    pub pid: u32,
    /// The time from the question until it served.
    pub milliseconds: u64,
}

/// The sending of calls to the backend, as operators set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendActing {
    /// Calls are sent by the limits of the config.
    Running,
    /// Calls wait.
    Paused,
    /// Calls are sent by a share of the limits, which grows.
    Ramping,
}

/// The sending of calls to the backend, and until when.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackendState {
    /// The state.
    pub state: BackendActing,
    /// Calls that were sent, or are about to be, and have not ended.
    pub in_flight: u64,
    /// The share of the limits that is in force: 0 while paused, 1 while running.
    pub share: f64,
    /// Since when.
    #[serde(rename = "since_unix_ms", serialize_with = "unix_ms")]
    pub since: Option<SystemTime>,
    /// When it ends by itself.
    #[serde(rename = "ends_unix_ms", serialize_with = "unix_ms")]
    pub ends: Option<SystemTime>,
    /// The reason.
    pub why: Option<String>,
    /// Who did it.
    pub author: Option<String>,
    /// Whether calls may wait longer by the time that they were paused.
    pub extend_deadlines: bool,
    /// Whether it goes on after a restart of the process.
    pub survives_restart: bool,
}

impl BackendState {
    /// A notice for an operator, unless the limits of the config are in force.
    #[must_use]
    pub fn notice(&self) -> Option<String> {
        let author = self.author.as_deref().unwrap_or_default();
        let why = because(self.why.as_deref().unwrap_or_default());
        let ends = self.ends.map(|ends| Utc(ends).to_string());
        let ends = ends.unwrap_or_default();
        match self.state {
            BackendActing::Running => None,
            BackendActing::Paused => Some(format!(
                "the backend is paused until {ends} by {author}{why}; {} calls still run; \
                 `tidegate resume` ends it",
                self.in_flight
            )),
            BackendActing::Ramping => Some(format!(
                "the limits grow until {ends}, now to {:.0} % of the config, by {author}{why}",
                self.share * 100.0
            )),
        }
    }
}

/// The kinds of acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActKind {
    /// The backend was paused.
    Pause,
    /// The backend was resumed, or the pause ended by itself.
    Resume,
    /// The limits are whole again after a ramp.
    RampEnd,
    /// A backend came back, and the limits grow.
    BackendUp,
    /// A limit was given a lower value.
    Limit,
    /// A limit has its own value again.
    LimitEnd,
}

/// Something that an operator did, or that ended by itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActState {
    /// When.
    #[serde(rename = "at_unix_ms", serialize_with = "unix_ms")]
    pub at: Option<SystemTime>,
    /// Who: `tidegate` if it came by itself.
    pub author: String,
    /// The kind of the act.
    pub act: ActKind,
    /// The details of the act.
    pub what: String,
    /// The reason, if one was given.
    pub why: String,
}

fn unix_ms<S: Serializer>(at: &Option<SystemTime>, to: S) -> Result<S::Ok, S::Error> {
    at.map(unix_milliseconds).serialize(to)
}

/// A reason behind what was done: nothing if none was given.
pub(crate) fn because(why: &str) -> String {
    match why {
        "" => String::new(),
        why => format!(": {why}"),
    }
}

/// Milliseconds since 1970.
#[must_use]
pub fn unix_milliseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn routes(
    routes: Routes<Arc<dyn super::CallersSource>>,
) -> Routes<Arc<dyn super::CallersSource>> {
    routes
        .get("/v1/backend", |api: Api| ask(api, |it| Ok(it.backend())))
        .on(Method::POST, "/v1/backend/pause", pause)
        .on(Method::POST, "/v1/backend/resume", resume)
        .on(Method::POST, "/v1/limits/{name}", override_limit)
        .on(Method::DELETE, "/v1/limits/{name}", end_override)
        .on(Method::POST, "/v1/upgrade", upgrade)
        .get("/v1/acts", |api: Api| {
            ask(api, |it| {
                Ok(ActsNow {
                    acts: it.acts(),
                    overrides: it.overrides(),
                })
            })
        })
}

#[derive(Serialize)]
struct ActsNow {
    acts: Vec<ActState>,
    overrides: Vec<OverrideState>,
}

async fn upgrade(
    State(source): Api,
    Extension(author): Extension<Author>,
    JsonBody(UpgradeAsked): JsonBody<UpgradeAsked>,
) -> super::JsonResult<UpgradeState> {
    ask(State(source), move |it| it.upgrade(&author)).await
}

async fn override_limit(
    State(source): Api,
    Extension(author): Extension<Author>,
    PathIds(limit): PathIds<LimitName>,
    JsonBody(asked): JsonBody<OverrideAsked>,
) -> super::JsonResult<OverrideState> {
    ask(State(source), move |it| {
        it.override_limit(&author, &limit, asked)
    })
    .await
}

async fn end_override(
    State(source): Api,
    Extension(author): Extension<Author>,
    PathIds(limit): PathIds<LimitName>,
) -> Result<StatusCode, ApiRefusal> {
    remove(State(source), move |it| it.end_override(&author, &limit)).await
}

async fn pause(
    State(source): Api,
    Extension(author): Extension<Author>,
    JsonBody(asked): JsonBody<PauseAsked>,
) -> super::JsonResult<BackendState> {
    ask(State(source), move |it| it.pause(&author, asked)).await
}

async fn resume(
    State(source): Api,
    Extension(author): Extension<Author>,
    JsonBody(asked): JsonBody<ResumeAsked>,
) -> super::JsonResult<BackendState> {
    ask(State(source), move |it| it.resume(&author, asked)).await
}

impl FromFields for PauseAsked {
    const FIELDS: &[&[&str]] = &[&["hold_seconds", "why", "extend_deadlines"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        Ok(Self {
            hold: fields.need("hold_seconds", |it| seconds(it, HOLD_SECONDS_MIN))?,
            why: fields.optional("why", why)?.unwrap_or_default(),
            extend_deadlines: fields
                .optional("extend_deadlines", |it| it.read(json::flag))?
                .unwrap_or(false),
        })
    }
}

impl FromFields for OverrideAsked {
    const FIELDS: &[&[&str]] = &[&["value", "for_seconds", "why"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        Ok(Self {
            value: fields.need("value", value)?,
            time: fields.need("for_seconds", |it| seconds(it, HOLD_SECONDS_MIN))?,
            why: fields.optional("why", why)?.unwrap_or_default(),
        })
    }
}

impl InPath for LimitName {
    fn read(ids: &mut impl Iterator<Item = String>) -> ApiResult<Self> {
        // Only the limits in force decide which names there are.
        Ok(Self(ids.next().unwrap_or_default()))
    }
}

/// A limit, as the config allows it: 0 would switch it off there, and close it here.
fn value(value: LocatedValue) -> Result<u32, ApiRefusal> {
    value.number(|number| {
        let is_within = number.fract() == 0.0 && (1.0..=f64::from(VALUE_MAX)).contains(&number);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is a whole number in range"
        )]
        match is_within {
            true => Ok(number as u32),
            false => Err(format!(
                "must be a whole number from 1 to {VALUE_MAX}, not {number:?}"
            )),
        }
    })
}

impl FromFields for ResumeAsked {
    const FIELDS: &[&[&str]] = &[&["ramp_seconds", "why"]];

    fn read(fields: &mut ObjectFields) -> ApiResult<Self> {
        Ok(Self {
            ramp: fields.optional("ramp_seconds", |it| seconds(it, 0.0))?,
            why: fields.optional("why", why)?.unwrap_or_default(),
        })
    }
}

fn seconds(value: LocatedValue, least: f64) -> Result<Duration, ApiRefusal> {
    value.number(
        |seconds| match (least..=HOLD_SECONDS_MAX).contains(&seconds) {
            true => Ok(Duration::from_secs_f64(seconds)),
            false => Err(format!(
                "must be a number of seconds from {least} to {HOLD_SECONDS_MAX}, not {seconds:?}"
            )),
        },
    )
}

fn why(value: LocatedValue) -> Result<Arc<str>, ApiRefusal> {
    value.text(
        |text| match text.chars().count() > WHY_MAX || text.chars().any(char::is_control) {
            true => Err(format!(
                "must be a text of at most {WHY_MAX} characters without control characters"
            )),
            false => Ok(text.into()),
        },
    )
}
