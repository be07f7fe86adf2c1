//! A request as another program logged it, and the sample that it becomes.
//!
//! `500` does not count as a failure of the z/VM SDK server: sdkwsgi answers it for most errors of a
//! call, also on a backend that has nothing to do.

use std::borrow::Cow;
use std::sync::Arc;

use foldhash::HashMap;
use tidegate_advice::sample::{Sample, SampleEnding};
use tidegate_zvm::routes::{ROUTES, RouteMatch, RouteTarget, route};

/// Names of functions that are kept; further ones are `other`.
const FUNCTIONS_MAX: usize = 500;
/// Names of callers that are kept; calls of further ones have no caller.
const CALLERS_MAX: usize = 10_000;
/// Longest segment of a path that is a word and not an id.   bytes
const WORD_MAX: usize = 24;
/// Segments of a path that a name has.
const SEGMENTS: usize = 3;

/// A request, as a line of a log shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoggedRequest<'a> {
    /// Method and path, if the program saw any.
    pub(super) asked: Option<(&'a str, Cow<'a, str>)>,
    pub(super) caller: Option<&'a str>,
    /// ns since the epoch
    pub(super) arrived: u64,
    /// When it was sent; `None` if it never was.
    pub(super) started: Option<u64>,
    pub(super) ended: u64,
    pub(super) result: RequestOutcome,
    /// Whether its times have whole seconds only.
    pub(super) is_whole: bool,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    /// With this status.
    Status(u16),
    /// The client left.
    Left,
    /// A limit of the program refused it.
    Refused,
    /// The backend gave no answer.
    Failed,
}

/// The server behind the program that wrote a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// sdkwsgi, by the paths.
    Zvm,
    /// Any other server.
    Other,
}

impl Behind {
    /// Guesses the server from most of these requests.
    pub(super) fn of<'r>(requests: impl Iterator<Item = &'r LoggedRequest<'r>>) -> Self {
        let (mut of_zvm, mut all) = (0, 0);
        for (method, path) in requests.filter_map(|request| request.asked.as_ref()) {
            all += 1;
            let is_root = path.len() <= 1;
            of_zvm += usize::from(!is_root && route(method, path) != RouteMatch::Other);
        }
        match all > 0 && of_zvm * 2 > all {
            true => Self::Zvm,
            false => Self::Other,
        }
    }
}

/// The names of one analysis, each once.
#[derive(Debug, Default)]
pub(super) struct NamePool {
    functions: HashMap<Box<str>, Arc<str>>,
    callers: HashMap<Box<str>, Arc<str>>,
}

impl NamePool {
    /// The sample of a request; `None` if the backend had no part in it.
    pub(super) fn sample(&mut self, request: &LoggedRequest<'_>, behind: Behind) -> Option<Sample> {
        let function: Cow<'_, str> = match &request.asked {
            None => Cow::Borrowed("connection"),
            Some((method, path)) => named(method, path, behind)?,
        };
        let ending = ending(request, behind)?;
        let caller = request.caller.and_then(|name| self.caller(name));
        Some(Sample {
            function: self.function(&function),
            caller,
            arrived: request.arrived,
            started: request.started,
            ended: request.ended.max(request.arrived),
            ending,
        })
    }

    /// A function's name, or `other` if there are too many.
    pub(super) fn function(&mut self, name: &str) -> Arc<str> {
        let name = match self.functions.len() < FUNCTIONS_MAX || self.functions.contains_key(name) {
            true => name,
            false => "other",
        };
        kept(&mut self.functions, name)
    }

    /// A caller's name, unless there are too many.
    pub(super) fn caller(&mut self, name: &str) -> Option<Arc<str>> {
        let is_kept = self.callers.len() < CALLERS_MAX || self.callers.contains_key(name);
        is_kept.then(|| kept(&mut self.callers, name))
    }
}

fn kept(names: &mut HashMap<Box<str>, Arc<str>>, name: &str) -> Arc<str> {
    if let Some(known) = names.get(name) {
        return Arc::clone(known);
    }
    let new: Arc<str> = name.into();
    names.insert(name.into(), Arc::clone(&new));
    new
}

/// How the backend did; `None` if it had no part in the request.
fn ending(request: &LoggedRequest<'_>, behind: Behind) -> Option<SampleEnding> {
    let was_sent = request.started.is_some();
    let status = match request.result {
        RequestOutcome::Left => return Some(SampleEnding::Left),
        RequestOutcome::Refused => return Some(SampleEnding::Refused),
        RequestOutcome::Failed => return Some(SampleEnding::Failed),
        RequestOutcome::Status(status) => status,
    };
    match status {
        // nginx: the client closed its connection.
        499 => Some(SampleEnding::Left),
        429 | 503 if was_sent => Some(SampleEnding::Overloaded),
        429 | 503 => Some(SampleEnding::Refused),
        _ if !was_sent => None,
        502 | 504 => Some(SampleEnding::Failed),
        500.. if behind == Behind::Other => Some(SampleEnding::Failed),
        _ => Some(SampleEnding::Served),
    }
}

/// The function of a request; `None` if no limit applies to it.
fn named<'a>(method: &'a str, path: &str, behind: Behind) -> Option<Cow<'a, str>> {
    if behind == Behind::Other {
        return Some(Cow::Owned(shortened(method, path)));
    }
    match route(method, path) {
        RouteMatch::Unlimited => None,
        RouteMatch::Other => Some(Cow::Borrowed("other")),
        // The names of the table live as long as the program.
        RouteMatch::Function(name, _) => Some(Cow::Owned(name.to_owned())),
        // The body names it, and no log has the body.
        RouteMatch::ReadBody(rule, _) => {
            let row = ROUTES.iter().find(|row| {
                let is_same = row.asks == RouteTarget::Body(rule) && row.method.name() == method;
                is_same && matches_row(path, row.segments)
            });
            let segments = row.map_or(&[][..], |row| row.segments);
            Some(Cow::Owned(format!("{method} /{}", segments.join("/"))))
        }
    }
}

fn matches_row(path: &str, segments: &[&str]) -> bool {
    tidegate_zvm::path::Path::split(path).is_some_and(|path| path.matches(segments).is_some())
}

/// Method and the first segments of a path, without what changes from call to call.
fn shortened(method: &str, path: &str) -> String {
    const METHODS: [&str; 8] = [
        "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT",
    ];
    let method = METHODS.iter().find(|it| **it == method).unwrap_or(&"OTHER");
    let mut name = format!("{method} ");
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    for segment in segments.by_ref().take(SEGMENTS) {
        name.push('/');
        name.push_str(if is_word(segment) { segment } else { "{id}" });
    }
    if segments.next().is_some() {
        name.push_str("/…");
    }
    if name.ends_with(' ') {
        name.push('/');
    }
    name
}

/// Whether a segment is part of a route, and not the id of one thing.
fn is_word(segment: &str) -> bool {
    let is_version = segment.strip_prefix('v').is_some_and(|digits| {
        (1..=2).contains(&digits.len()) && digits.bytes().all(|it| it.is_ascii_digit())
    });
    let is_part = |byte: u8| byte.is_ascii_lowercase() || b"-_.".contains(&byte);
    is_version || segment.len() <= WORD_MAX && segment.bytes().all(is_part)
}

/// The path of a target, without its query, and without scheme and host.
pub(super) fn path(target: &str) -> &str {
    let target = target.split(['?', '#', ';']).next().unwrap_or(target);
    match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    }
}

/// Method and path of a request line such as `GET /guests?x HTTP/1.1`.
pub(super) fn asked(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let is_method = !method.is_empty() && method.bytes().all(|it| it.is_ascii_uppercase());
    is_method.then(|| (method, path(target)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(
        method: &'static str,
        path: &'static str,
        status: u16,
        is_sent: bool,
    ) -> LoggedRequest<'static> {
        LoggedRequest {
            asked: Some((method, path.into())),
            caller: None,
            arrived: 1,
            started: is_sent.then_some(1),
            ended: 9,
            result: RequestOutcome::Status(status),
            is_whole: false,
        }
    }

    #[test]
    fn routes_of_sdkwsgi_become_functions_and_a_token_is_no_call() {
        let check = |method, path, name: Option<&str>| {
            let found = named(method, path, Behind::Zvm);
            assert_eq!(found.as_deref(), name, "{method} {path}");
        };
        check("GET", "/guests/LINUX1/info", Some("guest_get_info"));
        check("GET", "/guests", Some("guest_list"));
        check(
            "POST",
            "/guests/LINUX1/action",
            Some("POST /guests/{userid}/action"),
        );
        check("PUT", "/vswitches/VSW1", Some("PUT /vswitches/{name}"));
        check("POST", "/token", None);
        check("GET", "/nowhere/X", Some("other"));
    }

    #[test]
    fn ids_are_left_out_of_names() {
        let check = |path: &str, name: &str| assert_eq!(shortened("GET", path), name, "{path}");
        check("/", "GET /");
        check("/api/v1/users/123", "GET /api/v1/users/…");
        check(
            "/users/8f14e45f-ceea-467f-9538-1e4b5c6d7e8f",
            "GET /users/{id}",
        );
        check("/users/ALICE/orders", "GET /users/{id}/orders");
        check("/a/b/c/d/e", "GET /a/b/c/…");
    }

    #[test]
    fn there_are_only_so_many_names() {
        let mut names = NamePool::default();
        let found: std::collections::BTreeSet<_> = (0..3_000)
            .map(|number: u32| {
                let letters = number
                    .to_string()
                    .replace(|c: char| c.is_ascii_digit(), "x");
                names.function(&format!("GET /{letters}{number}"))
            })
            .collect();
        assert_eq!(found.len(), FUNCTIONS_MAX + 1);
        assert!(found.contains("other"));
    }

    #[test]
    fn a_500_of_the_sdk_server_is_an_answer_and_of_others_a_failure() {
        let check = |status, is_sent, behind, expected| {
            let request = request("GET", "/guests", status, is_sent);
            assert_eq!(ending(&request, behind), expected, "{status} {behind:?}");
        };
        check(500, true, Behind::Zvm, Some(SampleEnding::Served));
        check(500, true, Behind::Other, Some(SampleEnding::Failed));
        for behind in [Behind::Zvm, Behind::Other] {
            check(200, true, behind, Some(SampleEnding::Served));
            check(404, true, behind, Some(SampleEnding::Served));
            check(502, true, behind, Some(SampleEnding::Failed));
            check(503, true, behind, Some(SampleEnding::Overloaded));
            check(504, true, behind, Some(SampleEnding::Failed));
            check(503, false, behind, Some(SampleEnding::Refused));
            check(499, true, behind, Some(SampleEnding::Left));
            check(304, false, behind, None);
        }
    }

    #[test]
    fn a_query_is_dropped_before_anything_else_happens() {
        assert_eq!(asked("GET /a/b?token=x HTTP/1.1"), Some(("GET", "/a/b")));
        assert_eq!(asked("GET http://h:1/a?b HTTP/1.1"), Some(("GET", "/a")));
        assert_eq!(asked("-"), None);
        assert_eq!(asked("\\x16\\x03\\x01 x"), None);
    }
}
