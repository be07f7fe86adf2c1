//! The page at `/`, as plain files that are compiled in. They hold nothing secret, so they need no
//! token; what they show comes from paths that do. So the page itself can ask for the token.
//!
//! The browser runs only these files, and sends requests only to this address.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tidegate_runtime::page::{self, File, HEADERS};

use super::routes::Routes;
use super::{ApiRefusal, Source, What};

/// The browser asks each time, and gets no body if it has the newest.
const ASK_EACH_TIME: (&str, &str) = ("cache-control", "no-cache");

macro_rules! file {
    ($name:literal, $kind:literal) => {
        File {
            name: $name,
            kind: $kind,
            body: include_str!(concat!("page/", $name)),
        }
    };
}

const INDEX: File = file!("index.html", "text/html; charset=utf-8");
/// The files of this page alone; those of every page are beside them.
const FILES: [File; 7] = [
    file!("acts.js", "text/javascript; charset=utf-8"),
    file!("call.js", "text/javascript; charset=utf-8"),
    file!("page.js", "text/javascript; charset=utf-8"),
    file!("chart.js", "text/javascript; charset=utf-8"),
    file!("dom.js", "text/javascript; charset=utf-8"),
    file!("feed.js", "text/javascript; charset=utf-8"),
    file!("parts.js", "text/javascript; charset=utf-8"),
];

pub(super) fn routes() -> Routes<Arc<dyn Source>> {
    Routes::new().get("/", index).get("/page/{file}", file)
}

async fn index(headers: HeaderMap) -> Response {
    answer(&INDEX, &headers)
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let mut files = FILES.iter().chain(&page::FILES);
    match files.find(|file| file.name == name) {
        Some(file) => answer(file, &headers),
        None => ApiRefusal::unknown(What::File, &name).into_response(),
    }
}

fn answer(file: &File, headers: &HeaderMap) -> Response {
    answer_text(file.kind, file.body, headers)
}

/// Answers a text that is the same until this program is another.
pub(super) fn answer_text(
    kind: &'static str,
    body: impl Into<Cow<'static, str>>,
    headers: &HeaderMap,
) -> Response {
    let body = body.into();
    let tag = tag(&body);
    let known = headers.get_all(header::IF_NONE_MATCH).iter();
    let mut known = known.filter_map(|value| value.to_str().ok());
    if known.any(|list| list.split(',').any(|it| it.trim() == tag)) {
        let tag = [(header::ETAG, tag)];
        return (StatusCode::NOT_MODIFIED, HEADERS, [ASK_EACH_TIME], tag).into_response();
    }
    let of_text = [(header::CONTENT_TYPE, kind.to_owned()), (header::ETAG, tag)];
    (HEADERS, [ASK_EACH_TIME], of_text, body).into_response()
}

/// What changes with the content. No client chooses the content, so any hash is enough.
fn tag(body: &str) -> String {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}
