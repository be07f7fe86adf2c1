//! The options of the classifier: parts of `[backend]`, `[client]`, `[limits]`, `[classes]`,
//! `[[class]]` and `[[listen]]`, and `[[route]]`.

use std::sync::Arc;

use http::HeaderName;

use super::OddPaths;
use super::jobs::options::job;
use super::message::dialects::RpcDialect;
use super::message::options::{cost_place, reserve, source, sources};
use super::message::{
    BatchUse, MessageSettings, NameSource, Reservation, SessionProtocol, UnreadableUse,
};
use crate::call::job::{JobForm, JobRule};
use crate::call::refusal::RefusalForm;
use crate::call::sdk::Effort;
use crate::call::{AnswerPlace, BackendKind, OnClientLeft};
use crate::options::kind::{choice, flag, function, function_name, list, name, parsed, text};
use crate::options::shown::quoted;
use crate::options::{Mistake, ValueKind, options, words};

/// The header that names a class, unless the config names another.
pub const HEADER: &str = "x-tidegate-class";

/// Most `[[route]]`s; every HTTP request is compared with them.
pub(crate) const ROUTES_MAX: usize = 1024;
/// Most functions that a list may name.
const FUNCTIONS_MAX: usize = 1024;

words!(Effort {
    "db" => Db, "cp" => Cp, "smapi" => Smapi, "seconds" => Seconds, "minutes" => Minutes
});

options! {
    /// The server behind the sidecar.
    pub struct KindSection {
        /// What the backend is. "zvm" is the z/VM SDK server: its routes and functions are known, writes
        /// go before reads, and calls that never reach SMAPI (GET /, POST /token, POST and PUT /files,
        /// GET /smapi-healthy, GET /smapi_health) meet no limit. "http" is any other HTTP server: no
        /// route is built in, and every call meets the limits unless a [[route]] says otherwise. Required
        /// with http below. With socket alone it is "zvm"; with tcp alone it has no effect.
        kind: Option<BackendKind> = choice().optional().line("\"zvm\"").first(4);

        /// The protocol of a backend of kind "http" whose calls are named in their messages. Its routes
        /// are built in, and tried after each [[route]]; see docs/how-to/rpc.md.
        dialect: Option<RpcDialect> = choice().optional().example("\"xapi\"");
    }
}

options! {
    /// Connections and requests of clients.
    pub struct PathsSection {
        /// What happens to an HTTP request whose path names a route to some servers and not to others,
        /// so that its spelling could evade a limit: with an encoded letter (/%67uests), an empty segment
        /// (//guests) or a dot segment (/x/../guests). "refuse" answers it with 400. "forward" sends it as
        /// it came, and it meets the limits of the path as most backends read it: for clients that can
        /// write no other path. A path for which the spelling makes no difference, such as /a//b where
        /// no route is near, is forwarded in any case. No odd spelling takes a route without limits.
        odd_paths: OddPaths = choice().or(OddPaths::Refuse);
    }
}

options! {
    /// The functions that limits are about.
    pub struct ExemptSection {
        /// Functions that meet no limit and take no worker: max_unlimited of [queue] bounds them. ["db"]
        /// stands for all functions that only read the SDK's own database, such as guest_list, and so
        /// never reach SMAPI.
        exempt: Vec<Arc<str>> = functions(
            "a list of functions, or \"db\" for the reads of the database",
        ).or(Vec::new());

        /// Whether a limit may name a function that neither the built-in table nor a [[route]] has, such
        /// as a function of a newer backend, or of a socket backend that is no sdkserver. A misspelt name
        /// is then no error, and its limit protects nothing.
        allow_unknown: bool = flag().or(false);
    }
}

options! {
    /// How urgent calls are: writes are user work and come first, by weight; see docs/how-to/classes.md.
    pub struct HeaderSection {
        /// The header that names the class of an HTTP request, where a listener allows it with
        /// class_header. Change it where clients have such a header already.
        header: HeaderName = header().or(HeaderName::from_static(HEADER));
    }
}

options! {
    /// The functions whose calls belong to a class.
    pub struct PlacedSection {
        /// Functions whose calls are put into this class, wherever they come in.
        functions: Vec<Arc<str>> = functions("a list of functions").or(Vec::new())
            .example("[\"guest_get_info\"]");

        /// The same for all functions that take this long by the built-in table: "minutes" is deploy,
        /// capture, volume_attach and the like.
        effort: Option<Effort> = choice().optional().example("\"minutes\"");
    }
}

options! {
    /// The classes of calls that come in at a listener.
    pub struct ListenerClassSection => FromListener + {
        /// The listener's name.
        listener: Arc<str>,
    } {
        /// The class of calls that come in here and are not user work by themselves: reads, and unknown
        /// functions. Name "polling" or a class of your own for a listener of pollers only. Name "user"
        /// for a listener where a person waits for every answer.
        class: Option<Arc<str>> = name("user").optional().example("\"user\"");

        /// Whether a header of the client (header in [classes]) may name the class of a request. Only for
        /// clients that you can change, and trust.
        class_header: bool = flag().or(false);
    }
}

options! {
    /// The function name of single routes of the HTTP backend, looked up before the built-in table;
    /// one section for each. Name a route to give it a limit of its own, or to exempt it.
    pub struct RouteSection => Route required {
        /// The HTTP method. Required.
        method: Box<str> = method().required(
            "the route has no method",
            "add method = \"GET\", or \"*\" for all",
        ).example("\"GET\"");

        /// The path. Required.
        path: Box<str> = path().required(
            "the route has no path",
            "add a path, such as path = \"/guests/{userid}/info\"",
        ).example("\"/reports/{id}\"");
    } {
        /// The name that its limit has in per_window of [limits]. Without it, or with "", the route
        /// meets no limit at all.
        function: Option<Arc<str>> = route_function().or(None).example("\"report_get\"");

        /// What happens to a call of this route at the backend when its client leaves. The default is
        /// on_client_left of [backend].
        on_client_left: Option<OnClientLeft> = choice().optional().example("\"finish\"");

        /// Where a message of this route has the name of its function: a place in a body of JSON
        /// (a JSON pointer, RFC 6901) or of XML (elements below the root), a header, or a parameter of
        /// the query. With if it counts only where another value has that text; of a list, the first that
        /// applies counts. The first text of without that a name begins with is left out of it.
        function_from: Vec<NameSource> = sources().or(Vec::new()).example("{ json = \"/method\" }");

        /// Where a message has the key of its caller, such as a session or an API key. Only its hash is
        /// kept, as the user of the call.
        caller_from: Option<NameSource> = source().optional().example("{ json = \"/params/0\" }");

        /// The protocol by which that key is a session: the caller of a call is then the user and the
        /// originator of the login that has opened its session, if that login passed here.
        sessions: Option<SessionProtocol> = choice().optional().example("\"xapi\"");

        /// The treatment of a JSON array of calls: "sum" draws what its calls draw, "refuse" refuses it.
        batch: BatchUse = choice().or(BatchUse::Sum);

        /// The treatment of a message whose function cannot be known for sure, because parsers read it
        /// differently, or because it is larger than buffer_bytes: "all" lets it meet the limits of every
        /// function, "refuse" refuses it.
        unreadable: UnreadableUse = choice().or(UnreadableUse::All);

        /// The form of refusals of this route. The default is that of kind.
        refuse_as: Option<RefusalForm> = choice().optional().example("\"jsonrpc\"");

        /// Where an answer has the number of tokens that its call has cost: a place in a body of JSON, which in
        /// a stream of events is that of the last event that has it, or a header. The bucket of the call is
        /// charged by it in the end. A stream that is cut before costs a token for each event; an answer
        /// that does not say, what was reserved.
        cost_from: Option<AnswerPlace> = cost_place().optional()
            .example("{ json = \"/usage/total_tokens\" }");

        /// How many tokens a call draws when it goes: the number at a place of the request, or the number in
        /// else if there is none there. "learned" takes the cost that 95 of 100 of the latest 1,000 calls of its
        /// function and class did not exceed. The default is its cost in [costs].
        reserve: Option<Reservation> = reserve().optional()
            .example("{ json = \"/max_tokens\", else = 500 }");

        /// The work of the backend that goes on behind an answer, and holds the slot of its call until it ends:
        /// where the answer has its id, and how its state is asked for (docs/how-to/jobs.md). "proxmox",
        /// "xapi" and "operation-location" are built in.
        job: Option<JobRule> = job().optional().example("\"proxmox\"");
    }
}

impl Route {
    /// A route whose function is not in messages; without a function, its calls meet no limit.
    #[must_use]
    pub fn new(method: &str, path: &str, function: Option<&str>) -> Self {
        Self {
            method: method.into(),
            path: path.into(),
            function: function.map(Arc::from),
            on_client_left: None,
            function_from: Vec::new(),
            caller_from: None,
            sessions: None,
            batch: BatchUse::Sum,
            unreadable: UnreadableUse::All,
            refuse_as: None,
            cost_from: None,
            reserve: None,
            job: None,
        }
    }

    /// Whether its jobs are tasks of XAPI.
    #[must_use]
    pub fn has_tasks(&self) -> bool {
        self.job
            .as_ref()
            .is_some_and(|job| job.form == JobForm::Xapi)
    }

    /// How the calls of the route are named in their messages; `None` if they are not.
    #[must_use]
    pub fn message(&self) -> Option<MessageSettings> {
        let is_named = !self.function_from.is_empty() || self.caller_from.is_some();
        let has_cost = self.cost_from.is_some() || self.reserve.is_some();
        (is_named || has_cost || self.refuse_as.is_some()).then(|| MessageSettings {
            function: self.function.clone(),
            function_from: self.function_from.clone(),
            caller_from: self.caller_from.clone(),
            sessions: self.sessions,
            batch: self.batch,
            unreadable: self.unreadable,
            refuse_as: self.refuse_as,
            cost_from: self.cost_from.clone(),
            reserve: self.reserve.clone(),
            has_tasks: self.has_tasks(),
        })
    }
}

/// Names of functions, each once.
fn functions(allowed: &str) -> ValueKind<Vec<Arc<str>>> {
    let once = |names: Vec<Arc<str>>| {
        let mut once: Vec<Arc<str>> = Vec::new();
        for name in names {
            if !once.contains(&name) {
                once.push(name);
            }
        }
        once
    };
    let names = list(
        FUNCTIONS_MAX,
        "[\"guest_get_info\", \"guest_list\"]",
        function(),
    );
    names.described(allowed).map(once, Vec::clone)
}

fn header() -> ValueKind<HeaderName> {
    let wrong = (
        "is not the name of a header",
        "give letters, digits and \"-\", such as \"X-Tidegate-Class\"",
    );
    let allowed = "the name of a header";
    parsed(allowed, "X-Tidegate-Class", |it| it.parse().ok(), wrong)
}

/// An HTTP method, or `*`.
fn method() -> ValueKind<Box<str>> {
    text("a method in capitals, or *", "GET", |given| {
        let capitals = |text: &str| text.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
        if given == "*" || capitals(given) && (1..=32).contains(&given.len()) {
            return Ok(given.into());
        }
        let upper = given.to_ascii_uppercase();
        let cure = if !upper.is_empty() && upper.bytes().all(|b| b.is_ascii_uppercase()) {
            format!("methods are written in capitals: {}", quoted(&upper))
        } else {
            "give one method such as \"GET\", or \"*\" for all".to_owned()
        };
        Err(Mistake::new(
            format!("{} is not a method", quoted(given)),
            cure,
        ))
    })
}

/// A path with `{…}` for any one segment.
fn path() -> ValueKind<Box<str>> {
    let allowed = "a path from /, {name} for any one segment";
    text(allowed, "/guests/{userid}", |given| {
        let is_whole = |segment: &str| {
            let inner = segment
                .strip_prefix('{')
                .and_then(|rest| rest.strip_suffix('}'));
            inner.is_some_and(|inner| !inner.is_empty() && !inner.contains(['{', '}']))
        };
        let mut braced = given
            .split('/')
            .filter(|segment| segment.contains(['{', '}']));
        let cause = if !given.starts_with('/') {
            "does not begin with /"
        } else if given.contains(['?', '#']) {
            "has a query, and a route is a path alone"
        } else if given.len() > 1024 || !given.bytes().all(|b| b.is_ascii_graphic()) {
            "has characters that no path has"
        } else if !braced.all(is_whole) {
            "has braces around less or more than one whole segment"
        } else {
            return Ok(given.into());
        };
        let cure = "write it as \"/guests/{userid}/info\", with {…} for any one segment";
        Err(Mistake::new(format!("{} {cause}", quoted(given)), cure))
    })
}

/// The function of a route; empty for none.
fn route_function() -> ValueKind<Option<Arc<str>>> {
    let kind = text("a function name, or \"\" for none", "guest_list", |given| {
        if given == "total" {
            let cure = "give the route a function name of its own, or \"\" for none";
            return Err(Mistake::new(
                "\"total\" stands for all functions together",
                cure,
            ));
        }
        if !given.is_empty() {
            function_name(given)?;
        }
        Ok(given.to_owned())
    });
    kind.map(
        |name| (!name.is_empty()).then(|| name.into()),
        |name: &Option<Arc<str>>| name.as_deref().unwrap_or_default().to_owned(),
    )
}
