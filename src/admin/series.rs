//! `/v1/now`, `/v1/series` and `/v1/stream`: this moment, the latest day, and each second.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body::Frame as Part;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::callers::{Frames, Parameters};
use super::now::{NowState, SeriesSpan};
use super::routes::Routes;
use super::{AdminSource, api};

/// The most streams at once.
pub const VIEWERS_MAX: usize = 8;

/// The history: the oldest point first, `None` where there was no process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SeriesState {
    /// The length of a point.
    pub step_seconds: u64,
    /// When the first point begins.   Unix ms
    pub start_unix_ms: u64,
    /// How many points each list has.
    pub points: usize,
    /// Counts of each step, and the maximum of each level in it.
    pub series: BTreeMap<&'static str, Vec<Option<f32>>>,
    /// Refusals by reason; only reasons that occurred.
    pub refused: BTreeMap<&'static str, Vec<Option<u32>>>,
    /// The use of limits.
    pub limits: Vec<LimitHistory>,
    /// The events, the oldest first.
    pub marks: Vec<MarkState>,
}

/// The use of a limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitHistory {
    /// The name of the limit.
    pub name: String,
    /// The kind of the limit, as in `/v1/now`.
    pub kind: &'static str,
    /// How much was used.
    pub used: Vec<Option<f32>>,
    /// How much was allowed.
    pub allowed: Vec<Option<f32>>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MarkState {
    /// When.   Unix ms
    pub at_unix_ms: u64,
    /// The subject of the mark, in one word.
    pub kind: &'static str,
    /// The event in words.
    pub text: String,
}

/// A line of a stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Frame {
    /// As `/v1/now` has it.
    pub now: NowState,
    /// The latest second.
    pub point: PointState,
    /// The events since the frame before.
    pub marks: Vec<MarkState>,
}

/// The figures of a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PointState {
    /// When it began.   Unix ms
    pub at_unix_ms: u64,
    /// The figures of the point.
    #[serde(flatten)]
    pub figures: PointFigures,
    /// Refusals by reason; only reasons that occurred.
    pub refused: BTreeMap<&'static str, u32>,
    /// Used and allowed of each limit, in the order of `now.limits`.
    pub limits: Vec<(f64, f64)>,
}

/// The figures of a step, as in `/v1/series`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PointFigures {
    /// Calls that arrived.
    pub arrivals: u32,
    /// Calls that left for the backend.
    pub sent: u32,
    /// Calls with an answer of the backend.
    pub answered: u32,
    /// Calls that waited.
    pub waiting: u32,
    /// The wait of the oldest.
    pub oldest_ms: f32,
    /// Calls past the gate.
    pub in_flight: u32,
    /// The median time at the backend.
    pub backend_p50_ms: Option<f32>,
    /// The time at the backend that 95 of 100 calls do not exceed.
    pub backend_p95_ms: Option<f32>,
}

/// The places of streams.
#[derive(Clone)]
pub(super) struct Viewers(Arc<Semaphore>);

impl Viewers {
    /// Streams leave half of the connections to others.
    pub(super) fn beside(connections_max: usize) -> Self {
        let places = VIEWERS_MAX.min(connections_max / 2);
        Self(Arc::new(Semaphore::new(places)))
    }
}

/// Marks an answer that goes on for as long as its connection has a reader. Such a connection is
/// never silent.
#[derive(Clone, Copy)]
pub(super) struct EndlessResponse;

pub(super) fn routes() -> Routes<Arc<dyn AdminSource>> {
    Routes::new()
        .get("/v1/now", now)
        .get("/v1/series", series)
        .get("/v1/stream", stream)
}

async fn now(State(source): State<Arc<dyn AdminSource>>) -> Response {
    Json(api::read(source, |source| source.now()).await).into_response()
}

async fn series(
    State(source): State<Arc<dyn AdminSource>>,
    Parameters(span): Parameters<SeriesSpan>,
) -> Response {
    Json(api::read(source, move |source| source.series(span)).await).into_response()
}

async fn stream(
    State(source): State<Arc<dyn AdminSource>>,
    Extension(Viewers(viewers)): Extension<Viewers>,
    Parameters(Frames(frames)): Parameters<Frames>,
) -> Response {
    let Ok(place) = viewers.try_acquire_owned() else {
        let many = "every place for a viewer is taken; there are at most 8. Close a viewer, or ask /v1/now";
        return api::error(StatusCode::SERVICE_UNAVAILABLE, many);
    };
    let mut later = source.frames();
    later.mark_unchanged();
    let first = api::read(source, |source| line(&source.frame())).await;
    let stream = SeriesStream {
        first: Some(first),
        next: Box::pin(next(later)),
        left: frames,
        _place: place,
    };
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (Extension(EndlessResponse), kind, Body::new(stream)).into_response()
}

/// A frame as a line of JSON.
#[must_use]
pub fn line(frame: &Frame) -> Bytes {
    let mut line = serde_json::to_vec(frame).expect("a frame has only plain fields");
    line.push(b'\n');
    line.into()
}

type Later = watch::Receiver<Option<Bytes>>;
type NextFrame = Pin<Box<dyn Future<Output = Option<(Bytes, Later)>> + Send>>;

/// The latest frame, once there is one that was not taken yet; `None` at the end of the process.
async fn next(mut later: Later) -> Option<(Bytes, Later)> {
    later.changed().await.ok()?;
    let line = later.borrow_and_update().clone()?;
    Some((line, later))
}

/// The body of a stream. It takes the next frame only when the last was written, so a slow viewer
/// skips frames and never has more than one that waits.
struct SeriesStream {
    first: Option<Bytes>,
    next: NextFrame,
    left: usize,
    _place: OwnedSemaphorePermit,
}

impl http_body::Body for SeriesStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Part<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let line = match self.first.take() {
            Some(first) => first,
            None => match std::task::ready!(self.next.as_mut().poll(cx)) {
                Some((line, later)) => {
                    self.next = Box::pin(next(later));
                    line
                }
                None => {
                    self.left = 0;
                    return Poll::Ready(None);
                }
            },
        };
        self.left -= 1;
        Poll::Ready(Some(Ok(Part::data(line))))
    }
}
