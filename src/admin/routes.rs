//! Routes, and a list of them: what stands in the router stands in the list.

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, on};

/// A router that knows what it answers.
pub(super) struct Routes<S> {
    router: Router<S>,
    listed: Vec<(Method, &'static str)>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    pub(super) fn new() -> Self {
        Self {
            router: Router::new(),
            listed: Vec::new(),
        }
    }

    /// Answers a method of a path. `GET` answers `HEAD` too.
    pub(super) fn on<H: Handler<T, S>, T: 'static>(
        mut self,
        method: Method,
        path: &'static str,
        handler: H,
    ) -> Self {
        let filter = MethodFilter::try_from(method.clone()).expect("a standard method");
        self.router = self.router.route(path, on(filter, handler));
        self.listed.push((method, path));
        self
    }

    pub(super) fn get<H: Handler<T, S>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.on(Method::GET, path, handler)
    }

    pub(super) fn router(self) -> Router<S> {
        self.router
    }

    /// The methods and paths that are answered.
    pub(super) fn listed(&self) -> impl Iterator<Item = (Method, &'static str)> {
        self.listed.iter().cloned()
    }
}
