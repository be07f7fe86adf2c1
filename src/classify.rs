//! Turns a request into a call: what is asked, of which backend, about whom.
//!
//! The operator's own routes are asked first, then the built-in table, and the first match
//! wins. Classifying never fails: what nobody knows is `other`, and meets the limits that
//! every call meets.

pub mod class;
pub mod operation;

use std::collections::HashSet;
use std::sync::Arc;

use http::request;

use self::class::{Classes, Clues};
use self::operation::{BodyRule, Kind, Names, Path, Routed, function, route};
use crate::call::{Destination, HttpCall, Message, Request, RequestBody, Role};

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
    /// Functions that meet no limit.
    pub exempt: Vec<Arc<str>>,
    /// Which class a call is put in.
    pub classes: class::Settings,
}

/// What a request asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The function's exact name, by which it is limited.
    pub function: Arc<str>,
    /// Its name in metrics and logs: from the table or the config, else `other`.
    pub label: Arc<str>,
    /// The z/VM userid it is about.
    pub target: Option<Box<str>>,
    /// The backend it is for.
    pub destination: Destination,
    /// Whether it meets limits and takes a worker. What reaches no SDK does not.
    pub limited: bool,
    /// Whether the function's name stands in a body that was too large to read.
    pub is_unread: bool,
    /// The name of the class that it waits in.
    pub class: Arc<str>,
    /// What it has to do with what users do to its target.
    pub role: Role,
}

impl Operation {
    /// Whether it may change anything. A function that nobody knows may, unless its HTTP
    /// method says that it does not; what reaches no SDK does not.
    #[must_use]
    pub fn may_change(&self, message: &Message) -> bool {
        if !self.limited {
            return false;
        }
        match (function(&self.function), message) {
            (Some(function), _) => function.kind == Kind::Write,
            (None, Message::Http(call)) => !call.head.method.is_safe(),
            (None, Message::Socket(_)) => true,
            (None, Message::Tcp) => false,
        }
    }

    /// The one guest that it can change or tell of; `None` if it may be any. Of a function that
    /// nobody knows it may be any, whatever its first argument looks like.
    #[must_use]
    pub fn only_guest(&self) -> Option<&str> {
        function(&self.function)?;
        self.target.as_deref()
    }
}

/// Says of every request what it asks.
#[derive(Clone, Debug)]
pub struct Classifier {
    routes: Vec<OwnRoute>,
    names: Names,
    has_socket: bool,
    has_http: bool,
    exempt: HashSet<Arc<str>>,
    classes: Classes,
}

/// A [`Route`] ready to be held against paths.
#[derive(Clone, Debug)]
struct OwnRoute {
    /// None for any method.
    method: Option<Box<str>>,
    segments: Vec<Box<str>>,
    function: Option<Arc<str>>,
}

impl OwnRoute {
    fn new(route: &Route) -> Self {
        let path = route.path.trim_matches('/');
        Self {
            method: (&*route.method != "*").then(|| route.method.clone()),
            segments: path
                .split('/')
                .filter(|segment| !segment.is_empty())
                .map(Box::from)
                .collect(),
            function: route.function.clone(),
        }
    }

    fn takes(&self, method: &http::Method) -> bool {
        self.method.as_deref().is_none_or(|own| {
            own == method.as_str() || (own == "GET" && *method == http::Method::HEAD)
        })
    }
}

/// What the head of an HTTP request tells.
enum Head<'a> {
    Named(&'a str, Option<&'a str>),
    InBody(BodyRule, Option<&'a str>),
    Unlimited,
    Unknown,
}

impl Classifier {
    /// A classifier that knows the table and the operator's routes and names.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let routed = settings
            .routes
            .iter()
            .filter_map(|route| route.function.as_ref());
        Self {
            routes: settings.routes.iter().map(OwnRoute::new).collect(),
            names: Names::new(settings.functions.iter().chain(routed)),
            has_socket: settings.has_socket,
            has_http: settings.has_http,
            exempt: settings.exempt.iter().cloned().collect(),
            classes: Classes::new(&settings.classes),
        }
    }

    /// Says what a request asks.
    #[must_use]
    pub fn classify(&self, request: &Request) -> Operation {
        let mut operation = match &request.message {
            Message::Socket(call) => Operation {
                target: call.target.clone(),
                ..self.operation(Some(&call.function), self.socket())
            },
            Message::Http(call) => self.classify_http(call),
            Message::Tcp => self.operation(None, Destination::Tcp),
        };
        let http = match &request.message {
            Message::Http(call) => Some(call),
            Message::Socket(_) | Message::Tcp => None,
        };
        (operation.class, operation.role) = self.classes.find(&Clues {
            function: &operation.function,
            listener: &request.origin.identity.listener,
            headers: http.map(|call| &call.head.headers),
            // An array is posted whatever it asks for.
            is_write: http.is_some_and(|call| call.array.is_none() && !call.head.method.is_safe()),
        });
        operation
    }

    fn classify_http(&self, call: &HttpCall) -> Operation {
        let (operation, target) = match self.head(&call.head) {
            Head::Named(name, target) => (self.operation(Some(name), self.http()), target),
            Head::InBody(rule, target) => match (&call.array, &call.body) {
                (Some(array), _) => {
                    let destination = if self.has_socket {
                        Destination::Socket
                    } else {
                        self.http()
                    };
                    let operation = self.operation(Some(&array.function), destination);
                    (operation, array.target.as_deref())
                }
                (None, RequestBody::Whole(body)) => {
                    let name = rule.function(body);
                    (self.operation(name.as_deref(), self.http()), target)
                }
                (None, RequestBody::Streamed { .. }) => {
                    let operation = self.operation(None, self.http());
                    let is_unread = true;
                    (
                        Operation {
                            is_unread,
                            ..operation
                        },
                        target,
                    )
                }
            },
            Head::Unlimited => {
                let operation = self.operation(None, self.http());
                let limited = false;
                (
                    Operation {
                        limited,
                        ..operation
                    },
                    None,
                )
            }
            Head::Unknown => (self.operation(None, self.http()), None),
        };
        let target = target.map(Box::from);
        Operation {
            target,
            ..operation
        }
    }

    fn head<'a>(&'a self, head: &'a request::Parts) -> Head<'a> {
        let path = head.uri.path();
        if !self.routes.is_empty()
            && let Some(segments) = Path::split(path)
        {
            for own in self.routes.iter().filter(|own| own.takes(&head.method)) {
                if let Some(matched) = segments.matches(&own.segments) {
                    return match &own.function {
                        Some(name) => Head::Named(name, matched.target),
                        None => Head::Unlimited,
                    };
                }
            }
        }
        match route(&head.method, path) {
            Routed::Function(name, target) => Head::Named(name, target),
            Routed::ReadBody(rule, target) => Head::InBody(rule, target),
            Routed::Unlimited => Head::Unlimited,
            Routed::Other => Head::Unknown,
        }
    }

    fn operation(&self, name: Option<&str>, destination: Destination) -> Operation {
        let other = self.names.other();
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
            // Until all clues are there.
            class: self.classes.polling(),
            role: Role::Apart,
        }
    }

    fn socket(&self) -> Destination {
        if self.has_socket {
            Destination::Socket
        } else {
            Destination::Nowhere
        }
    }

    fn http(&self) -> Destination {
        if self.has_http {
            Destination::Http
        } else {
            Destination::Nowhere
        }
    }
}
