//! What `[coalesce]` says of headers by which reads are not told apart.

use std::sync::Arc;

use http::HeaderName;

use super::effective::{Toml, quoted as toml_text};
use super::raw::Raw;
use super::reader::{Section, Setting};
use super::tree::{Node, Value, quoted};
use super::value::{Kind, Mistake};

/// Most headers that are ignored; each header of a shared read is compared with them.
const HEADERS_MAX: usize = 64;

/// Headers on which the answer to a read does not depend, as a rule: who sends it by which
/// program, how, and under which number.
const HARMLESS: [&str; 10] = [
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "te",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-openstack-request-id",
    "x-request-id",
];

/// The part of `[coalesce]` that is about headers.
pub(super) struct RawIgnored {
    headers: Setting<Vec<HeaderName>>,
}

pub(super) fn read(section: &mut Section<'_>) -> RawIgnored {
    let harmless = HARMLESS.map(HeaderName::from_static).to_vec();
    RawIgnored {
        headers: section.read("ignore_headers", harmless, headers()),
    }
}

fn headers() -> Kind<Vec<HeaderName>> {
    const CURE: &str = "give names of headers in brackets, such as [\"user-agent\"]";
    let read = |node: &Node| {
        let Value::List(list) = &node.value else {
            let told = format!("{} is not an array", node.told());
            return Err(Mistake::new(told, CURE));
        };
        if list.len() > HEADERS_MAX {
            let told = format!("there are {} of them", list.len());
            return Err(Mistake::new(told, format!("give at most {HEADERS_MAX}")));
        }
        let mut headers = Vec::new();
        for item in list {
            let Some(text) = item.text() else {
                let told = format!("{} is not a string", item.told());
                return Err(Mistake::new(told, CURE));
            };
            let Ok(name) = HeaderName::try_from(text) else {
                let told = format!("{} is not the name of a header", quoted(text));
                return Err(Mistake::new(told, CURE));
            };
            headers.push(name);
        }
        Ok(headers)
    };
    Kind {
        allowed: "a list of header names".to_owned(),
        read: Box::new(read),
    }
}

pub(super) fn settings(raw: &Raw) -> Arc<[HeaderName]> {
    raw.coalesce.ignored.headers.value.as_slice().into()
}

pub(super) fn write(out: &mut Toml, ignored: &[HeaderName]) {
    let names: Vec<_> = ignored
        .iter()
        .map(|name| toml_text(name.as_str()))
        .collect();
    out.bare("ignore_headers", format_args!("[{}]", names.join(", ")));
}
