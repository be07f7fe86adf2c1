//! The page at `/`, as plain files that are compiled in. They hold nothing secret, so they need no
//! token; what they show comes from paths that do. So the page itself can ask for the token.
//!
//! The browser runs only these files, and sends requests only to this address.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::routes::Routes;
use super::{Source, api};

const HEADERS: [(&str, &str); 4] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    // The browser asks each time, and gets no body if it has the newest.
    ("cache-control", "no-cache"),
];

/// A file of the page.
struct File {
    name: &'static str,
    kind: &'static str,
    body: &'static str,
}

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
const FILES: [File; 7] = [
    file!("page.css", "text/css; charset=utf-8"),
    file!("page.js", "text/javascript; charset=utf-8"),
    file!("chart.js", "text/javascript; charset=utf-8"),
    file!("dom.js", "text/javascript; charset=utf-8"),
    file!("feed.js", "text/javascript; charset=utf-8"),
    file!("parts.js", "text/javascript; charset=utf-8"),
    file!("icon.svg", "image/svg+xml"),
];

pub(super) fn routes() -> Routes<Arc<dyn Source>> {
    Routes::new().get("/", index).get("/page/{file}", file)
}

async fn index(headers: HeaderMap) -> Response {
    answer(&INDEX, &headers)
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => answer(file, &headers),
        None => api::not_found().await,
    }
}

fn answer(file: &File, headers: &HeaderMap) -> Response {
    let tag = tag(file.body);
    let known = headers.get_all(header::IF_NONE_MATCH).iter();
    let mut known = known.filter_map(|value| value.to_str().ok());
    if known.any(|list| list.split(',').any(|it| it.trim() == tag)) {
        return (StatusCode::NOT_MODIFIED, HEADERS, [(header::ETAG, tag)]).into_response();
    }
    let of_file = [
        (header::CONTENT_TYPE, file.kind.to_owned()),
        (header::ETAG, tag),
    ];
    (HEADERS, of_file, file.body).into_response()
}

/// What changes with the content. No client chooses the content, so any hash is enough.
fn tag(body: &str) -> String {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}
