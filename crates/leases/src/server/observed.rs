//! Counts every request when its answer is sent, also requests that were not a message.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use http::{Request, Response};
use tonic::Code;
use tower::{Layer, Service};

use super::connection::{Activity, UnderWay};
use super::metrics::{Method, Metrics};

/// Wraps a service in [`Observed`].
#[derive(Clone)]
pub(super) struct Observe(pub(super) Arc<Metrics>);

impl<S> Layer<S> for Observe {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed {
            inner,
            metrics: Arc::clone(&self.0),
        }
    }
}

/// An observed service.
#[derive(Clone)]
pub(super) struct Observed<S> {
    inner: S,
    metrics: Arc<Metrics>,
}

impl<S, B, R> Service<Request<B>> for Observed<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Unpin,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Observing<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = Method::of_path(request.uri().path());
        let activity = request.extensions().get::<Arc<Activity>>();
        let under_way = activity.map(|activity| UnderWay::on(Arc::clone(activity)));
        Observing {
            _under_way: under_way,
            answer: self.inner.call(request),
            began: Instant::now(),
            method,
            metrics: Arc::clone(&self.metrics),
        }
    }
}

/// An answer that is being made.
pub(super) struct Observing<F> {
    answer: F,
    /// Shows that the connection is not silent.
    _under_way: Option<UnderWay>,
    began: Instant,
    method: Method,
    metrics: Arc<Metrics>,
}

impl<F, R, E> Future for Observing<F>
where
    F: Future<Output = Result<Response<R>, E>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        let code = match &answer {
            // An error has its code in the head of the answer; a success has it at the end.
            Ok(response) => match response.headers().get("grpc-status") {
                Some(code) => Code::from_bytes(code.as_bytes()),
                None => Code::Ok,
            },
            Err(_) => Code::Unknown,
        };
        self.metrics
            .answered(self.method, code, self.began.elapsed());
        Poll::Ready(answer)
    }
}
