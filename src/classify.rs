//! Turns a request into a call: what is asked, of which backend, about which guest.
//!
//! The operator's own routes are tried first, then the backend's table, and the first match wins. A
//! backend of kind `http` has no table. Classification never fails: an unknown function is `other`, and
//! meets the limits that every call meets.

pub mod class;
mod exempt_routes;
pub(crate) mod jobs;
pub mod message;
pub(crate) mod options;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::HashSet;
use http::Method;

use tidegate_limits::call::ANY_FUNCTION;

use self::class::{Classes, Clues};
pub use self::exempt_routes::ExemptRoute;
use self::message::{LearntNames, MessageReader, NamedCalls};

pub use self::options::Route;
use crate::call::job::JobRule;
use crate::call::job_meter::JobMeter;
use crate::call::jobs::{JobSettings, Jobs};
use crate::call::sdk::{Function, FunctionKind, Path, RouteMatch, hides_a_slash};
use crate::call::session::Sessions;
use crate::call::{
    BackendKind, Destination, Head, HttpCall, Message, OnClientLeft, Origin, Request, RequestBody,
    Role,
};
use crate::options::words;

/// Longest path of which the readings are compared: so an odd one costs at most a fraction of a millisecond. A longer
/// one that changes when it is read counts as odd.   bytes
const COMPARED_PATH_BYTES_MAX: usize = 4096;

/// A route whose message could not be read was refused with the config.
const CHECKED: &str = "the config's check lets only places through that can be looked for";

/// The label of every function that neither the table nor the config names.
pub const OTHER: &str = "other";

words! {
    /// The treatment of a request whose path a backend may read as another path.
    pub enum OddPaths {
        /// The request is refused.
        Refuse = "refuse",
        /// The request is forwarded unchanged, and meets the limits of the path as a backend reads it.
        Forward = "forward",
    }
}

/// The settings of this stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassifierSettings {
    /// The kind of the backend, and with that which table is built in.
    pub kind: BackendKind,
    /// The treatment of paths that are spelled oddly.
    pub odd_paths: OddPaths,
    /// The operator's own routes, tried before the built-in table.
    pub routes: Vec<Route>,
    /// Function names with their own limit that are not in the built-in table.
    pub functions: Vec<Arc<str>>,
    /// Whether a socket backend is configured.
    pub has_socket: bool,
    /// Whether an HTTP backend is configured.
    pub has_http: bool,
    /// Functions that meet no limit.
    pub exempt: Vec<Arc<str>>,
    /// The rules for classes.
    pub classes: class::ClassSettings,
    /// The bounds of jobs.
    pub jobs: JobSettings,
}

/// The operation of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The function's exact name, for its limit.
    pub function: Arc<str>,
    /// The name in metrics and logs: from the table or the config, else `other`.
    pub label: Arc<str>,
    /// The userid that it is about.
    pub target: Option<Box<str>>,
    /// The backend it is for.
    pub destination: Destination,
    /// Whether it meets limits and takes a worker. Calls that do not reach the SDK do not.
    pub limited: bool,
    /// Whether the function's name is in a body that was too large to read.
    pub is_unread: bool,
    /// Whether its path names another function, or other limits, to some servers, and must be refused.
    pub is_odd: bool,
    /// The name of its class.
    pub class: Arc<str>,
    /// The role of the call in what users do to its target.
    pub role: Role,
    /// Whether the built-in table named it, and not a route of the operator.
    pub of_table: bool,
    /// The kind of the backend, which decides whether the built-in table applies.
    pub kind: BackendKind,
    /// The fate of the call at the backend when its client leaves, if its route says so.
    pub on_client_left: Option<OnClientLeft>,
    /// The names in its message, if its route reads them.
    pub names: Option<Box<NamedCalls>>,
    /// Reads the job in its answer, if there may be one.
    pub job: Option<Box<JobMeter>>,
}

impl Operation {
    /// A copy whose names are shared with no other operation. What one thread keeps then counts its uses on that
    /// thread.
    fn with_own_names(&self) -> Self {
        let own = |name: &Arc<str>| Arc::from(&**name);
        Self {
            function: own(&self.function),
            label: own(&self.label),
            class: own(&self.class),
            ..self.clone()
        }
    }

    /// Whether it is known to change nothing: a function that the table marks as a read, or a
    /// `GET` or `HEAD`.
    #[must_use]
    pub fn is_read(&self, message: &Message) -> bool {
        match (self.built_in(), message) {
            (Some(function), _) => function.kind == FunctionKind::Read,
            (None, Message::Http(call)) => {
                matches!(call.head.method, http::Method::GET | http::Method::HEAD)
            }
            (None, Message::Socket(_)) => false,
        }
    }

    /// Whether it may change anything. An unknown function may, unless its HTTP method says
    /// otherwise. A call that does not reach the SDK may not.
    #[must_use]
    pub fn may_change(&self, message: &Message) -> bool {
        if !self.limited {
            return false;
        }
        match (self.built_in(), message) {
            (Some(function), _) => function.kind == FunctionKind::Write,
            (None, Message::Http(call)) => !call.head.method.is_safe(),
            (None, Message::Socket(_)) => true,
        }
    }

    /// The one guest that it can change or describe; `None` if it may be any. For an unknown
    /// function it may be any, whatever its first argument is.
    #[must_use]
    pub fn only_guest(&self) -> Option<&str> {
        self.built_in()?;
        self.target.as_deref()
    }

    /// The entry of the built-in table for the function.
    fn built_in(&self) -> Option<&'static Function> {
        self.kind.function(&self.function)
    }
}

/// The id of the next classifier.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Finds the operation of every request.
#[derive(Clone, Debug)]
pub struct Classifier {
    kind: BackendKind,
    odd_paths: OddPaths,
    routes: Vec<OwnRoute>,
    /// The functions that metrics and logs distinguish, each name kept once.
    names: HashSet<Arc<str>>,
    /// Functions that messages named.
    learnt: LearntNames,
    /// Sessions whose logins passed here.
    sessions: Sessions,
    /// Jobs whose slots are held.
    jobs: Jobs,
    /// Whether there may be jobs.
    has_jobs: bool,
    /// The name for all the rest.
    other: Arc<str>,
    socket: Destination,
    http: Destination,
    exempt: HashSet<Arc<str>>,
    classes: Classes,
    /// Tells it from the classifiers before a reload.
    id: u64,
}

/// The operation of a head that comes again at one listener, unless a body decides it.
struct HeadOperation {
    classifier: u64,
    listener: Arc<str>,
    operation: Operation,
}

/// A [`Route`] prepared for matching.
#[derive(Clone, Debug)]
struct OwnRoute {
    /// `None` matches any method.
    method: Option<Box<str>>,
    segments: Vec<Box<str>>,
    function: Option<Arc<str>>,
    on_client_left: Option<OnClientLeft>,
    message: Option<MessageReader>,
    job: Option<Arc<JobRule>>,
    /// The path as the config has it, which tells routes apart whose functions are in messages.
    path: Box<str>,
}

impl OwnRoute {
    fn new(route: &Route) -> Self {
        let segments = route.path.split('/').filter(|segment| !segment.is_empty());
        Self {
            method: (&*route.method != "*").then(|| route.method.clone()),
            segments: segments.map(Box::from).collect(),
            function: route.function.clone(),
            on_client_left: route.on_client_left,
            message: route
                .message()
                .map(|it| MessageReader::new(&it).expect(CHECKED)),
            job: route.job.clone().map(Arc::new),
            path: route.path.clone(),
        }
    }

    fn takes(&self, method: &http::Method) -> bool {
        self.method.as_deref().is_none_or(|own| {
            own == method.as_str() || (own == "GET" && *method == http::Method::HEAD)
        })
    }
}

impl Classifier {
    /// A classifier with the table and the operator's routes and names.
    #[must_use]
    pub fn new(settings: &ClassifierSettings) -> Self {
        let routes = settings.routes.iter();
        let routed = routes.clone().filter_map(|route| route.function.as_ref());
        let table = settings.kind.functions().iter();
        let table = table.map(|function| Arc::from(function.name));
        let if_there = |is_there, to| if is_there { to } else { Destination::Nowhere };
        Self {
            odd_paths: settings.odd_paths,
            routes: routes.map(OwnRoute::new).collect(),
            names: table
                .chain(settings.functions.iter().chain(routed).cloned())
                .chain([ANY_FUNCTION.into()])
                .collect(),
            learnt: LearntNames::default(),
            sessions: Sessions::default(),
            jobs: {
                let jobs = Jobs::default();
                jobs.apply(settings.jobs);
                jobs
            },
            has_jobs: settings.routes.iter().any(|route| route.job.is_some()),
            other: Arc::from(OTHER),
            kind: settings.kind,
            socket: if_there(settings.has_socket, Destination::Socket),
            http: if_there(settings.has_http, Destination::Http),
            exempt: settings.exempt.iter().cloned().collect(),
            classes: Classes::new(settings.kind, &settings.classes),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// A classifier in the place of another one, with the names of functions and the sessions that this has learnt, and its
    /// jobs.
    #[must_use]
    pub fn after(settings: &ClassifierSettings, before: &Self) -> Self {
        before.jobs.apply(settings.jobs);
        let new = Self::new(settings);
        Self {
            learnt: before.learnt.clone(),
            sessions: before.sessions.clone(),
            jobs: before.jobs.clone(),
            // Those of the routes before may not have ended.
            has_jobs: new.has_jobs || before.has_jobs,
            ..new
        }
    }

    /// The kind of the backend.
    #[must_use]
    pub fn kind(&self) -> BackendKind {
        self.kind
    }

    /// The operation of a request.
    #[must_use]
    pub fn classify(&self, request: &Request) -> Operation {
        match &request.message {
            Message::Socket(call) => {
                let operation = Operation {
                    target: call.target.clone(),
                    ..self.operation(Some(&call.function), self.socket)
                };
                self.in_class(operation, &request.origin, None)
            }
            Message::Http(call) => {
                let listener = &request.origin.identity.listener;
                let of_this = |kept: &HeadOperation| {
                    let is_it = kept.classifier == self.id && Arc::ptr_eq(&kept.listener, listener);
                    is_it.then(|| kept.operation.clone())
                };
                if let Some(operation) = call.head.memo.find(of_this) {
                    return operation;
                }
                let (operation, is_of_head) = self.classify_http(call);
                let operation = self.in_class(operation, &request.origin, Some(call));
                // A head of one call does not come again.
                if is_of_head && Arc::strong_count(&call.head) > 1 {
                    call.head.memo.keep(HeadOperation {
                        classifier: self.id,
                        listener: Arc::clone(listener),
                        operation: operation.with_own_names(),
                    });
                }
                operation
            }
        }
    }

    /// The class of a call of this function by this listener, as far as no header and no method says
    /// otherwise: what a log of calls shows.
    #[must_use]
    pub fn class_of(&self, function: &str, listener: &str) -> Arc<str> {
        let clues = Clues {
            function,
            listener,
            headers: None,
            is_write: false,
        };
        self.classes.find(&clues).0
    }

    /// The operation of a TCP connection, which asks nothing that is known.
    #[must_use]
    pub fn tunnel(&self, origin: &Origin) -> Operation {
        self.in_class(self.operation(None, Destination::Tcp), origin, None)
    }

    fn in_class(
        &self,
        mut operation: Operation,
        origin: &Origin,
        http: Option<&HttpCall>,
    ) -> Operation {
        (operation.class, operation.role) = self.classes.find(&Clues {
            function: &operation.function,
            listener: &origin.identity.listener,
            headers: http.map(|call| &call.head.headers),
            // An array is always posted, for any function.
            is_write: http.is_some_and(|call| call.array.is_none() && !call.head.method.is_safe()),
        });
        operation
    }

    /// The operation, without its class, and whether it depends on the head alone.
    fn classify_http(&self, call: &HttpCall) -> (Operation, bool) {
        // The limits of a path are those of the path that a backend reads.
        let written = call.head.path();
        let path = self.kind.path_as_read(written);
        let changes = matches!(path, Cow::Owned(_));
        let is_odd = changes && self.is_odd(&call.head.method, written);
        let own = self.own_route(&call.head.method, &path);
        if let Some((route, target)) = own
            && let Some(message) = &route.message
        {
            let mut operation = self.named_by(message, call);
            operation.is_odd = is_odd && self.odd_paths == OddPaths::Refuse;
            operation.target = target.map(Box::from);
            operation.on_client_left = route.on_client_left;
            self.find_job(&mut operation, Some(route), call);
            return (operation, message.is_of_head() && !self.has_jobs);
        }
        let (routed, is_own) = match self.routed_by(own, &call.head.method, &path) {
            (RouteMatch::Unlimited, _) if changes || hides_a_slash(&path) => {
                (RouteMatch::Other, false)
            }
            found => found,
        };
        let mut destination = self.http;
        let mut is_unread = false;
        let is_of_head = call.array.is_none() && !matches!(routed, RouteMatch::ReadBody(..));
        let (name, target) = match routed {
            RouteMatch::Function(name, target) => (Some(Cow::Borrowed(name)), target),
            RouteMatch::ReadBody(rule, target) => match (&call.array, &call.body) {
                (Some(array), _) => {
                    if self.socket != Destination::Nowhere {
                        destination = self.socket;
                    }
                    (
                        Some(Cow::Borrowed(&*array.function)),
                        array.target.as_deref(),
                    )
                }
                (None, RequestBody::Whole(body)) => (rule.function(body), target),
                (None, RequestBody::Streamed { .. }) => {
                    is_unread = true;
                    (None, target)
                }
            },
            RouteMatch::Unlimited | RouteMatch::Other => (None, None),
        };
        let operation = self.operation(name.as_deref(), destination);
        let mut operation = Operation {
            target: target.map(Box::from),
            limited: changes || operation.limited && routed != RouteMatch::Unlimited,
            is_unread,
            is_odd: is_odd && self.odd_paths == OddPaths::Refuse,
            of_table: operation.of_table && !is_own,
            on_client_left: own.and_then(|(own, _)| own.on_client_left),
            ..operation
        };
        self.find_job(&mut operation, own.map(|(own, _)| own), call);
        (operation, is_of_head && !self.has_jobs)
    }

    /// The operation of a call whose message names its function.
    fn named_by(&self, message: &MessageReader, call: &HttpCall) -> Operation {
        let names = message.read(call, &self.sessions);
        let operation = self.operation(Some(names.function()), self.http);
        let learnt = match operation.label == self.other {
            true => self.learnt.learn(names.function()),
            false => None,
        };
        Operation {
            label: learnt.unwrap_or_else(|| Arc::clone(&operation.label)),
            of_table: false,
            names: Some(Box::new(names)),
            ..operation
        }
    }

    /// Whether a server may read this path as one that asks for something else than the path as written. Which of the
    /// readings is that of the backend is unknown, so otherwise a client could choose its limits by the spelling.
    fn is_odd(&self, method: &Method, written: &str) -> bool {
        if self.routes.is_empty() && !self.kind.has_table() {
            return false;
        }
        if written.len() > COMPARED_PATH_BYTES_MAX {
            return true;
        }
        let as_written = self.routed(method, written);
        let differs = |reading: &str| self.routed(method, reading) != as_written;
        self.kind.any_reading(written, differs)
    }

    /// The operator's route for a request, and the userid in its path.
    fn own_route<'a>(
        &'a self,
        method: &Method,
        path: &'a str,
    ) -> Option<(&'a OwnRoute, Option<&'a str>)> {
        if self.routes.is_empty() {
            return None;
        }
        let segments = Path::split(path)?;
        let mut own = self.routes.iter().filter(|own| own.takes(method));
        own.find_map(|own| Some((own, segments.matches(&own.segments)?.target)))
    }

    /// The route of a request's head, and whether a route of the operator names the function.
    fn routed<'a>(&'a self, method: &Method, path: &'a str) -> (RouteMatch<'a>, bool) {
        self.routed_by(self.own_route(method, path), method, path)
    }

    /// The route of a request's head whose route of the operator is known.
    fn routed_by<'a>(
        &'a self,
        own: Option<(&'a OwnRoute, Option<&'a str>)>,
        method: &Method,
        path: &'a str,
    ) -> (RouteMatch<'a>, bool) {
        match own {
            Some((own, target)) => match &own.function {
                // The message names it. A spelling that another route takes may name it otherwise.
                _ if own.message.is_some() => (RouteMatch::Function(&own.path, target), true),
                Some(name) => (RouteMatch::Function(name, target), true),
                None => (RouteMatch::Unlimited, false),
            },
            None => (self.kind.route(method.as_str(), path), false),
        }
    }

    /// Whether the body of a request with this head decides what it asks.
    #[must_use]
    pub fn needs_body(&self, head: &Head) -> bool {
        let is_array =
            self.kind.takes_arrays_over_http() && head.method == Method::POST && head.path() == "/";
        let path = self.kind.path_as_read(head.path());
        let (routed, _) = self.routed(&head.method, &path);
        let own = self.own_route(&head.method, &path);
        let names = own.and_then(|(route, _)| route.message.as_ref());
        is_array
            || matches!(routed, RouteMatch::ReadBody(..))
            || names.is_some_and(MessageReader::needs_body)
    }

    fn operation(&self, name: Option<&str>, destination: Destination) -> Operation {
        let other = &self.other;
        let (function, label) = match name.map(|name| (name, self.names.get(name))) {
            Some((_, Some(known))) => (Arc::clone(known), Arc::clone(known)),
            Some((name, None)) => (Arc::from(name), Arc::clone(other)),
            None => (Arc::clone(other), Arc::clone(other)),
        };
        Operation {
            limited: !self.exempt.contains(&function),
            function,
            label,
            target: None,
            destination,
            is_unread: false,
            is_odd: false,
            // Until all clues are there.
            class: self.classes.polling(),
            role: Role::Apart,
            of_table: self.kind.has_table(),
            kind: self.kind,
            on_client_left: None,
            names: None,
            job: None,
        }
    }
}

#[cfg(test)]
mod tests;
