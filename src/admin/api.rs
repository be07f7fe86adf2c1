//! `/metrics` and the read-only paths of `/v1/…`, for tools.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::routes::Routes;
use super::{AdminSource, BucketState, LimitState};

/// The description of this API, for tools.
const OPENAPI: &str = include_str!("../../docs/reference/openapi.json");

pub(super) fn routes() -> Routes<Arc<dyn AdminSource>> {
    Routes::new()
        .get("/metrics", metrics)
        .get("/v1/limits", limits)
        .get("/v1/queue", queue)
        .get("/v1/config", config)
        .get("/v1/openapi.json", openapi)
}

/// Reads something off the event loop.
pub(super) async fn read<T: Send + 'static>(
    source: Arc<dyn AdminSource>,
    what: impl FnOnce(&dyn AdminSource) -> T + Send + 'static,
) -> T {
    off_the_loop(move || what(&*source)).await
}

/// Does something off the event loop.
pub(super) async fn off_the_loop<T: Send + 'static>(
    what: impl FnOnce() -> T + Send + 'static,
) -> T {
    match tokio::task::spawn_blocking(what).await {
        Ok(done) => done,
        // A panic in there concerns only this request; the layer above answers it.
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

/// An error that names what is wrong.
pub(super) fn refuse(status: StatusCode, error: &str, field: &str, reason: &str) -> Response {
    #[derive(Serialize)]
    struct FieldErrorBody<'a> {
        error: &'a str,
        field: &'a str,
        reason: &'a str,
    }
    let body = FieldErrorBody {
        error,
        field,
        reason,
    };
    (status, Json(body)).into_response()
}

/// An error, in the form of all errors here.
pub(super) fn error(status: StatusCode, message: &str) -> Response {
    #[derive(Serialize)]
    struct ErrorBody<'a> {
        error: &'a str,
    }
    (status, Json(ErrorBody { error: message })).into_response()
}

pub(super) async fn not_found() -> Response {
    error(
        StatusCode::NOT_FOUND,
        "not found; GET /v1/openapi.json lists what there is",
    )
}

pub(super) async fn method_not_allowed() -> Response {
    error(
        StatusCode::METHOD_NOT_ALLOWED,
        "not allowed here; the header Allow says what is",
    )
}

async fn metrics(State(source): State<Arc<dyn AdminSource>>) -> Response {
    let text = read(source, |source| source.metrics()).await;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn limits(State(source): State<Arc<dyn AdminSource>>) -> Response {
    #[derive(Serialize)]
    struct Limits {
        limits: Vec<LimitState>,
        buckets: Vec<BucketState>,
    }
    let limits = read(source, |source| Limits {
        limits: source.limits(),
        buckets: source.buckets(),
    });
    Json(limits.await).into_response()
}

async fn queue(State(source): State<Arc<dyn AdminSource>>) -> Response {
    Json(read(source, |source| source.queue()).await).into_response()
}

async fn config(State(source): State<Arc<dyn AdminSource>>) -> Response {
    read(source, |source| source.config()).await.into_response()
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}
