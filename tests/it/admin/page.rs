//! The files of the page at `/`. What it shows is tried in a browser: `crate::browser`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::Served;

/// The most that the page may weigh, each of its files compressed alone.   bytes
const PAGE_MAX: usize = 60 * 1000;
/// The same without compression, as a browser loads it from this machine.   bytes
const PLAIN_MAX: usize = 70 * 1000;
const FILES: [&str; 10] = [
    "acts.js", "call.js", "chart.js", "dom.js", "feed.js", "fresh.js", "icon.svg", "page.css",
    "page.js", "parts.js",
];

/// The size of a file with gzip.   bytes
fn gzipped(body: &str) -> usize {
    let mut gzip = Command::new("gzip")
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("gzip is there");
    // Its answer is smaller than a pipe holds, so it is read after all is written.
    let to = gzip.stdin.take().expect("piped");
    { to }.write_all(body.as_bytes()).expect("it reads");
    gzip.wait_with_output().expect("it ends").stdout.len()
}

#[tokio::test]
async fn the_page_is_small_loads_nothing_else_and_runs_only_its_own_files() {
    let served = Served::start(None).await;
    let page = served.get("/").await;
    page.is(200).has("content-type: text/html; charset=utf-8");
    page.has(
        "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; \
         connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; \
         frame-ancestors 'none'",
    );
    let mut size = page.body.len();
    let mut compressed = gzipped(&page.body);
    let mut in_html = page.body;
    for name in FILES {
        let file = served.get(&format!("/page/{name}")).await;
        file.is(200).has("x-content-type-options: nosniff");
        size += file.body.len();
        compressed += gzipped(&file.body);
        for text in [
            "innerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "//cdn",
        ] {
            assert!(!file.body.contains(text), "{text:?} in {name}");
        }
        in_html = in_html.replace(&format!("\"/page/{name}\""), "");
    }
    println!("the page has {size} bytes, {compressed} compressed");
    assert!(size <= PLAIN_MAX, "the page has {size} bytes");
    assert!(
        compressed <= PAGE_MAX,
        "the page has {compressed} bytes compressed"
    );
    for text in ["/page/", "http:", "https:", " style=", "<style", " onclick"] {
        assert!(!in_html.contains(text), "{text:?} in\n{in_html}");
    }
    served.get("/page/nothing.js").await.error(404);
}

#[tokio::test]
async fn a_browser_that_has_a_file_gets_it_only_if_it_is_another() {
    let served = Served::start(None).await;
    for path in ["/", "/page/page.js"] {
        let first = served.get(path).await;
        first.is(200).has("cache-control: no-cache");
        let tag = first.header("etag").expect("a tag").to_owned();
        let again = served
            .ask("GET", path, &format!("If-None-Match: \"x\", {tag}\r\n"))
            .await;
        assert_eq!((again.status, again.body.as_str()), (304, ""));
        again.has(&format!("etag: {tag}"));
        let other = served.ask("GET", path, "If-None-Match: \"x\"\r\n").await;
        other.is(200);
    }
    served
        .get("/v1/limits")
        .await
        .has("cache-control: no-store");
}

#[tokio::test]
async fn every_link_of_the_page_answers() {
    let served = Served::start(None).await;
    let page = served.get("/").await.body;
    let links: Vec<&str> = page
        .split("<a href=\"/")
        .skip(1)
        .map(|rest| rest.split('"').next().expect("closed"))
        .collect();
    assert_eq!(links.len(), 5, "{links:?}");
    for link in links {
        served.get(&format!("/{link}")).await.is(200);
    }
}

#[tokio::test]
async fn the_page_needs_no_token_and_its_requests_open_no_dialog_of_the_browser() {
    let served = Served::start(Some("s3cret")).await;
    served.get("/").await.is(200);
    served.get("/page/page.js").await.is(200);
    let asked = served
        .ask("GET", "/v1/limits", "X-Tidegate-Page: 1\r\n")
        .await;
    asked.is(401);
    assert_eq!(
        asked.headers("www-authenticate"),
        ["Bearer realm=\"tidegate\""]
    );
    for headers in ["Origin: http://evil.example\r\n", "Host: evil.example\r\n"] {
        let answer = served.ask("GET", "/page/page.js", headers).await;
        assert!(matches!(answer.status, 400 | 403), "{answer:?}");
    }
}
