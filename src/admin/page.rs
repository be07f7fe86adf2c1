//! The page at `/`, as plain files that are compiled in. They hold nothing secret, so they need no
//! token; what they show comes from paths that do. So the page itself can ask for the token.
//!
//! Where no token is needed, the page comes with what it shows first, as JSON in a block that no
//! browser runs. So it is drawn at once, without a second request.
//!
//! The browser runs only these files, and sends requests only to this address.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tidegate_runtime::page::{self, File, HEADERS};
use tokio::sync::Semaphore;

use super::routes::Routes;
use super::{AdminSource, ApiRefusal, NowState, ObjectKind, SeriesSpan, SeriesState, api};

/// The browser asks each time, and gets no body if it has the newest.
const ASK_EACH_TIME: (&str, &str) = ("cache-control", "no-cache");
/// Figures are old at once.
const KEEP_NOTHING: (&str, &str) = ("cache-control", "no-store");
/// The most that comes with the page. If there is more, the page asks for it.   bytes
const FIRST_MAX: usize = 512 << 10;
/// The longest that the page waits for what comes with it. After that, the page asks for it.
const FIRST_TIMEOUT: Duration = Duration::from_millis(500);

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const INDEX: File = File {
    name: "index.html",
    kind: HTML,
    body: include_str!("page/index.html"),
};
/// The part of the page before the figures.
const BEFORE_FIRST: &str = "<script id=\"first\" type=\"application/json\">";

/// The program of the page: each file stands after those that it imports.
const MODULES: [(&str, &str); 7] = [
    ("dom.js", include_str!("page/dom.js")),
    ("feed.js", include_str!("page/feed.js")),
    ("parts.js", include_str!("page/parts.js")),
    ("acts.js", include_str!("page/acts.js")),
    ("call.js", include_str!("page/call.js")),
    ("chart.js", include_str!("page/chart.js")),
    ("page.js", include_str!("page/page.js")),
];
/// All of them as one file, because a request for each would delay the first frame, and without the lines that
/// are only a comment. Names of their outermost level are unique among them.
static PROGRAM: LazyLock<String> = LazyLock::new(|| {
    let lines = MODULES.iter().flat_map(|(_, text)| text.lines());
    let lines = lines.filter(|line| !line.starts_with("import ") && !is_comment(line));
    let lines = lines.flat_map(|line| [line.strip_prefix("export ").unwrap_or(line), "\n"]);
    lines.collect()
});

fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    let begins = ["//", "/**", "* ", "*/"];
    begins.iter().any(|begin| line.starts_with(begin))
}

/// The first figures, where they may come with the page.
#[derive(Clone)]
pub(super) struct ComesWithIt {
    /// Whether every client of this address may read the figures.
    pub(super) no_token: bool,
    /// The places of requests.
    pub(super) places: Arc<Semaphore>,
}

pub(super) fn routes() -> Routes<Arc<dyn AdminSource>> {
    Routes::new().get("/", index).get("/page/{file}", file)
}

async fn index(
    State(source): State<Arc<dyn AdminSource>>,
    Extension(comes): Extension<ComesWithIt>,
    headers: HeaderMap,
) -> Response {
    match first(source, comes).await {
        Some(first) => {
            let (before, after) = INDEX.body.split_once(BEFORE_FIRST).expect("it is there");
            let body = [before, BEFORE_FIRST, &first, after].concat();
            (
                HEADERS,
                [KEEP_NOTHING],
                [(header::CONTENT_TYPE, HTML)],
                body,
            )
                .into_response()
        }
        None => answer_text(INDEX.kind, INDEX.body, &headers),
    }
}

/// The figures that the page shows first, as JSON; `None` if they may not come with the page, or not soon.
async fn first(source: Arc<dyn AdminSource>, comes: ComesWithIt) -> Option<String> {
    if !comes.no_token {
        return None;
    }
    let place = comes.places.try_acquire_owned().ok()?;
    let told = api::read(source, move |source| {
        // It is taken for as long as this takes, also if the page no longer waits for it.
        let _place = place;
        json(&source.now(), &source.series(SeriesSpan::TenMinutes))
    });
    let told = tokio::time::timeout(FIRST_TIMEOUT, told).await.ok()?;
    (told.len() <= FIRST_MAX).then_some(told)
}

/// JSON that may stand in HTML: no text in it ends its element.
fn json(now: &NowState, series: &SeriesState) -> String {
    #[derive(Serialize)]
    struct First<'a> {
        now: &'a NowState,
        series: &'a SeriesState,
    }
    let told = serde_json::to_string(&First { now, series });
    let told = told.expect("it has only plain fields");
    // The sign stands only in strings.
    told.replace('<', "\\u003c")
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    if name == "page.js" {
        return answer_text(SCRIPT, PROGRAM.as_str(), &headers);
    }
    match page::FILES.iter().find(|file| file.name == name) {
        Some(file) => answer_text(file.kind, file.body, &headers),
        None => ApiRefusal::unknown(ObjectKind::File, &name).into_response(),
    }
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

/// A tag that changes with the content. No client chooses the content, so any hash is enough.
fn tag(body: &str) -> String {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_files_of_the_program_can_be_one() {
        let mut before = HashSet::new();
        let mut names = HashSet::new();
        for (file, text) in MODULES {
            for line in text.lines() {
                if let Some(import) = line.strip_prefix("import ") {
                    let from = import.split_once(" from './").map(|(_, from)| from);
                    let from = from.and_then(|from| from.strip_suffix("';"));
                    let from = from.expect("an import is one line");
                    assert!(before.contains(from), "{file} imports {from}");
                    assert!(!import.contains(" as "), "{file} renames: {line}");
                }
                let words = line.strip_prefix("export ").unwrap_or(line);
                let mut words = words
                    .split([' ', '(', ';'])
                    .skip_while(|word| *word == "async");
                if matches!(
                    words.next(),
                    Some("const" | "let" | "var" | "function" | "class")
                ) {
                    let name = words.next().expect("it has a name");
                    assert!(names.insert(name), "{name} of {file} is not the only one");
                }
            }
            before.insert(file);
        }
        assert!(names.len() > 60, "{}", names.len());
        for line in PROGRAM.lines() {
            assert!(!line.starts_with("import") && !line.starts_with("export"));
            assert!(!is_comment(line), "{line}");
        }
    }

    #[test]
    fn no_text_ends_the_element_that_it_stands_in() {
        let sentence = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>";
        let now = NowState {
            sentence: sentence.to_owned(),
            ..NowState::default()
        };
        let told = json(&now, &SeriesState::default());
        assert!(!told.contains('<'), "{told}");
        let read: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        assert_eq!(read["now"]["sentence"], sentence);
    }
}
