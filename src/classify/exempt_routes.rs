//! The routes whose calls meet no limit, to be shown.

use super::{ClassifierSettings, OwnRoute};
use crate::call::sdk::{Path, RouteTarget};

/// A route whose calls meet no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExemptRoute {
    /// `GET`, … or `*`.
    pub method: Box<str>,
    /// The path in the config or in the table.
    pub path: Box<str>,
    /// Whether it comes from the built-in table.
    pub is_built_in: bool,
}

impl ClassifierSettings {
    /// Every route without a limit, the operator's own first.
    #[must_use]
    pub fn exempt_routes(&self) -> Vec<ExemptRoute> {
        if !self.has_http {
            return Vec::new();
        }
        let own = self.routes.iter().filter(|route| route.function.is_none());
        let own = own.map(|route| ExemptRoute {
            method: route.method.clone(),
            path: route.path.clone(),
            is_built_in: false,
        });
        let table = self.kind.routes();
        let asked_before: Vec<_> = self.routes.iter().map(OwnRoute::new).collect();
        let built_in = table
            .iter()
            .filter(|row| row.asks == RouteTarget::Unlimited);
        let built_in = built_in.filter_map(|row| {
            let path = format!("/{}", row.segments.join("/"));
            let method = row.method.name();
            let segments = Path::split(&path)?;
            let is_taken = asked_before.iter().any(|own| {
                let takes = own.method.as_deref().is_none_or(|taken| taken == method);
                takes && segments.matches(&own.segments).is_some()
            });
            (!is_taken).then(|| ExemptRoute {
                method: method.into(),
                path: path.into(),
                is_built_in: true,
            })
        });
        own.chain(built_in).collect()
    }
}
