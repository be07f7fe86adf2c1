//! Counts every request when its answer is sent, also requests that were not a message.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use http::{Request, Response};
use tonic::Code;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service as _;

use super::connection::{Activity, RequestGuard};
use super::metrics::Metrics;

/// Answers a request, and counts it.
pub(super) async fn answer(
    mut routes: Routes,
    metrics: Arc<Metrics>,
    request: Request<Body>,
) -> Result<Response<Body>, Infallible> {
    let method = metrics.method(request.uri().path());
    let activity = request.extensions().get::<Arc<Activity>>();
    // Shows that the connection is not silent.
    let _under_way = activity.map(|activity| RequestGuard::on(Arc::clone(activity)));
    let began = Instant::now();
    let Ok(response) = routes.call(request).await;
    // An error has its code in the head of the answer; a success has it at the end.
    let code = response.headers().get("grpc-status");
    let code = code.map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()));
    metrics.answered(method, code, began.elapsed());
    Ok(response)
}
