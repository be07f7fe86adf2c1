//! Extractors: the body of a request (JSON of a bounded size), its query, and the ids in its path.

use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use super::asked::FromFields;
use super::json::{self, ObjectFields};
use super::query::InPath;
use super::refused::ApiRefusal;
use crate::admin::api;

/// The largest body.   bytes
pub(in crate::admin) const BODY_MAX: usize = 1 << 20;
/// How much more of a larger body is read and discarded, so that a client that sends before it
/// reads learns the reason of the refusal.   bytes
const SKIPPED_MAX: usize = 16 << 20;
/// The longest time of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(3);

/// A request that is read from a whole body of the type JSON.
///
/// No browser sends that across origins without a preflight request, and this address never
/// allows one.
pub(super) struct JsonBody<T>(pub(super) T);

impl<S: Sync, T: FromFields> FromRequest<S> for JsonBody<T> {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        if !is_json(request.headers()) {
            return Err(api::refuse(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "UNSUPPORTED_MEDIA_TYPE",
                "content-type",
                "must be application/json",
            ));
        }
        let Ok(bytes) = tokio::time::timeout(BODY_TIMEOUT, read(request)).await else {
            return Err(api::refuse(
                StatusCode::REQUEST_TIMEOUT,
                "REQUEST_TIMEOUT",
                "body",
                "did not come in whole within 3 s",
            ));
        };
        read_request(&bytes?)
            .map(Self)
            .map_err(ApiRefusal::into_response)
    }
}

fn read_request<T: FromFields>(bytes: &[u8]) -> Result<T, ApiRefusal> {
    T::read(&mut json::read(bytes)?.object(&T::FIELDS.concat())?)
}

/// A request that is read from the parameters of a query.
pub(in crate::admin) struct Parameters<T>(pub(in crate::admin) T);

impl<S: Send + Sync, T: FromFields> FromRequestParts<S> for Parameters<T> {
    type Rejection = ApiRefusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiRefusal> {
        let given = Query::from_request_parts(parts, state).await;
        let Query(given) =
            given.map_err(|_| ApiRefusal::invalid("query", "must be name=value, joined by &"))?;
        T::read(&mut ObjectFields::of_query(given, &T::FIELDS.concat())?).map(Self)
    }
}

/// The ids in the path. One that cannot be read is unknown.
pub(super) struct PathIds<T>(pub(super) T);

impl<S: Send + Sync, T: InPath> FromRequestParts<S> for PathIds<T> {
    type Rejection = ApiRefusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiRefusal> {
        let ids = Path::<Vec<String>>::from_request_parts(parts, state).await;
        let ids = ids.map(|Path(ids)| ids).unwrap_or_default();
        T::read(&mut ids.into_iter()).map(Self)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(kind), None) = (kinds.next(), kinds.next()) else {
        return false;
    };
    let kind = kind.to_str().unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

async fn read(request: Request) -> Result<Bytes, Response> {
    // A client that waits for `100 Continue` learns the refusal from the answer.
    let waits = request.headers().contains_key(header::EXPECT);
    let declared = http_body::Body::size_hint(request.body()).lower();
    if waits && declared > BODY_MAX as u64 {
        return Err(too_large());
    }
    let mut body = request.into_body();
    let mut bytes = BytesMut::new();
    let mut skipped = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            let cause = "broke off or is malformed";
            api::refuse(StatusCode::BAD_REQUEST, "INVALID_VALUE", "body", cause)
        })?;
        let Ok(part) = frame.into_data() else {
            continue;
        };
        if skipped == 0 && bytes.len() + part.len() <= BODY_MAX {
            bytes.extend_from_slice(&part);
            continue;
        }
        bytes = BytesMut::new();
        skipped += part.len();
        if skipped > SKIPPED_MAX {
            break;
        }
    }
    if skipped > 0 {
        return Err(too_large());
    }
    Ok(bytes.freeze())
}

fn too_large() -> Response {
    api::refuse(
        StatusCode::PAYLOAD_TOO_LARGE,
        "TOO_LARGE",
        "body",
        "has more than 1048576 bytes",
    )
}
