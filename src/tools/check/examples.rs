//! Example messages for routes whose calls are named in their messages, and what each is taken for.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate_limits::Timestamp;
use tidegate_limits::call::ANY_FUNCTION;

use crate::call::identity::Peer;
use crate::call::{HttpCall, Identity, Message, Origin, Request, RequestBody};
use crate::classify::message::{BodyPlace, NamePlace, NameSource};
use crate::classify::{Classifier, Operation, Route};
use crate::config::Config;

/// Most examples.
const EXAMPLES_MAX: usize = 3;

/// Messages of the first routes that name their calls, each with what it is taken for.
pub(super) fn rows(config: &Config, row: &mut impl FnMut(&str, String)) {
    let classifier = Classifier::new(&config.classify);
    let window = config.admit.window.as_ref();
    let limited = window.and_then(|window| Some(&*window.functions.first()?.0));
    let function = limited.unwrap_or("example");
    let routes = config.classify.routes.iter();
    let examples = routes.flat_map(|route| examples(route, function));
    for (number, (route, body)) in examples.take(EXAMPLES_MAX).enumerate() {
        let name = if number == 0 { "examples" } else { "" };
        let Some(operation) = classified(&classifier, route, &body) else {
            continue;
        };
        let (method, path) = (method(route), &route.path);
        row(
            name,
            format!("{method} {path} {body} is {}", taken_for(&operation)),
        );
    }
}

fn taken_for(operation: &Operation) -> String {
    let calls = operation
        .names
        .as_ref()
        .map_or(0, |names| names.batch().len());
    let times = match calls {
        0 => String::new(),
        calls => format!("{calls} calls of "),
    };
    match &*operation.function {
        ANY_FUNCTION => format!("{times}any function, so it meets the limits of each"),
        function => format!("{times}{function}"),
    }
}

/// A message, one whose function is unclear, and a batch.
fn examples<'a>(route: &'a Route, function: &str) -> Vec<(&'a Route, String)> {
    let Some(source) = route.function_from.last() else {
        return Vec::new();
    };
    let bodies = match &source.place {
        NamePlace::Body(BodyPlace::Json(_)) => {
            let message = message(source, function);
            let text = message.to_string();
            let twice = format!(
                "{},{}",
                text.trim_end_matches('}'),
                text.trim_start_matches('{')
            );
            vec![text, twice, json!([message, message]).to_string()]
        }
        NamePlace::Body(BodyPlace::Xml(path)) => {
            let names: Vec<&str> = path.as_str().split('/').collect();
            let open: String = names.iter().map(|name| format!("<{name}>")).collect();
            let close: String = names
                .iter()
                .rev()
                .map(|name| format!("</{name}>"))
                .collect();
            vec![format!("<methodCall>{open}{function}{close}</methodCall>")]
        }
        NamePlace::Header(_) | NamePlace::Query(_) => Vec::new(),
    };
    bodies.into_iter().map(|body| (route, body)).collect()
}

/// A message with the name in its place.
fn message(source: &NameSource, function: &str) -> Value {
    let NamePlace::Body(BodyPlace::Json(pointer)) = &source.place else {
        return Value::Null;
    };
    let text = pointer.as_str();
    let steps = text.strip_prefix('/').unwrap_or(text).rsplit('/');
    steps.fold(json!(function), |value, step| json!({ step: value }))
}

fn method(route: &Route) -> &str {
    match &*route.method {
        "*" => "POST",
        method => method,
    }
}

fn classified(classifier: &Classifier, route: &Route, body: &str) -> Option<Operation> {
    let path = route.path.replace(['{', '}'], "");
    let request = http::Request::builder()
        .method(method(route))
        .uri(path)
        .body(());
    let (head, ()) = request.ok()?.into_parts();
    let body = RequestBody::Whole(Bytes::copy_from_slice(body.as_bytes()));
    let peer = Peer::Tcp(([127, 0, 0, 1], 0).into());
    Some(classifier.classify(&Request {
        origin: Origin {
            identity: Arc::new(Identity::without_names("example".into(), peer)),
            arrived: Timestamp::ZERO,
        },
        message: Message::Http(Box::new(HttpCall::new(Arc::new(head.into()), body))),
    }))
}
