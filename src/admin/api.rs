//! `/metrics` and `/v1/…`: what tools read.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use super::{LimitState, Source};

pub(super) fn router() -> Router<Arc<dyn Source>> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/v1/limits", get(limits))
        .route("/v1/queue", get(queue))
        .route("/v1/config", get(config))
}

/// Reads something off the event loop.
pub(super) async fn read<T: Send + 'static>(
    source: Arc<dyn Source>,
    what: impl FnOnce(&dyn Source) -> T + Send + 'static,
) -> T {
    match tokio::task::spawn_blocking(move || what(&*source)).await {
        Ok(read) => read,
        // A mistake of the source is this request's; the layer above answers it.
        Err(failed) => std::panic::resume_unwind(failed.into_panic()),
    }
}

/// An error, as every error here looks.
pub(super) fn error(status: StatusCode, message: &str) -> Response {
    #[derive(Serialize)]
    struct Body<'a> {
        error: &'a str,
    }
    (status, Json(Body { error: message })).into_response()
}

pub(super) async fn not_found() -> Response {
    error(
        StatusCode::NOT_FOUND,
        "not found; GET / lists what there is",
    )
}

pub(super) async fn method_not_allowed() -> Response {
    error(
        StatusCode::METHOD_NOT_ALLOWED,
        "only GET and HEAD are allowed here",
    )
}

async fn metrics(State(source): State<Arc<dyn Source>>) -> Response {
    let text = read(source, |source| source.metrics()).await;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn limits(State(source): State<Arc<dyn Source>>) -> Response {
    #[derive(Serialize)]
    struct Limits {
        limits: Vec<LimitState>,
    }
    let limits = read(source, |source| source.limits()).await;
    Json(Limits { limits }).into_response()
}

async fn queue(State(source): State<Arc<dyn Source>>) -> Response {
    Json(read(source, |source| source.queue()).await).into_response()
}

async fn config(State(source): State<Arc<dyn Source>>) -> Response {
    read(source, |source| source.config()).await.into_response()
}
