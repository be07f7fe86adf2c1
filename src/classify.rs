//! Turns a request into a call: what is asked, of which backend, about whom.

use std::sync::Arc;

/// One `[[route]]`: maps a method and a path to a function name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// `GET`, … or `*`.
    pub method: Box<str>,
    /// `/guests/{userid}/info`; a segment in braces stands for any one segment.
    pub path: Box<str>,
    /// The function name, or none for what meets no limit.
    pub function: Option<Arc<str>>,
}

/// What this stage is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The operator's own routes, asked before the built-in table.
    pub routes: Vec<Route>,
    /// Function names with a limit of their own that the built-in table does not know.
    pub functions: Vec<Arc<str>>,
    /// Whether a socket backend is configured.
    pub has_socket: bool,
    /// Whether an HTTP backend is configured.
    pub has_http: bool,
}

/// What is known of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its exact name.
    pub function: Arc<str>,
    /// Bounded.
    pub label: Arc<str>,
    /// About whom.
    pub target: Option<Box<str>>,
    /// Where.
    pub destination: crate::call::Destination,
    /// Limits.
    pub limited: bool,
    /// Too large to read.
    pub function_unread: bool,
}
/// Tmp.
#[derive(Debug)]
pub struct Classifier;
impl Classifier {
    /// Tmp.
    pub fn classify(&self, _: &crate::call::Message) -> Operation { todo!() }
}
