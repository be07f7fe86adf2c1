//! The files of the page at `/`. What it shows is tried in a browser: `crate::browser`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::Served;
use crate::sidecar::Sidecar;
use crate::support::{Answer, ask, both, listens};

/// The most that the page may weigh, each of its files compressed alone.   bytes
const PAGE_MAX: usize = 60 * 1000;
/// The most bytes without compression, as a browser loads the page from this machine.   bytes
const PLAIN_MAX: usize = 70 * 1000;
const FILES: [&str; 4] = ["fresh.js", "icon.svg", "page.css", "page.js"];
/// The part of the page where its figures would be, if they do not come with it.
const WITHOUT: &str = "<script id=\"first\" type=\"application/json\"></script>";

/// The figures that came with the page, as text.
fn first(page: &str) -> &str {
    let (_, rest) = page
        .split_once("<script id=\"first\" type=\"application/json\">")
        .expect("it has a place for them");
    rest.split_once("</script>").expect("closed").0
}

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
    // Where a token is needed, no figures come with the page.
    let served = Served::start(Some("s3cret")).await;
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
        .ask("GET", "/v1/limits", "Authorization: Bearer s3cret\r\n")
        .await
        .has("cache-control: no-store");
}

#[tokio::test]
async fn a_page_with_figures_is_kept_nowhere_and_always_new() {
    let served = Served::start(None).await;
    let page = served.get("/").await;
    page.is(200).has("cache-control: no-store");
    assert_eq!(page.header("etag"), None);
    let figures: serde_json::Value = serde_json::from_str(first(&page.body)).expect("JSON");
    assert_eq!(figures["now"]["sentence"], "nothing waits");
    assert_eq!(figures["series"]["step_seconds"], 1);
    let without = Served::start(Some("s3cret")).await.get("/").await;
    let tag = without.header("etag").expect("a tag").to_owned();
    for headers in ["If-None-Match: *\r\n", &format!("If-None-Match: {tag}\r\n")] {
        let again = served.ask("GET", "/", headers).await;
        again.is(200);
        assert_eq!(again.body, page.body);
    }
    let head = served.ask("HEAD", "/", "").await;
    head.is(200).has("content-type: text/html; charset=utf-8");
    head.has(&format!("content-length: {}", page.body.len()));
    assert_eq!((head.header("etag"), head.body.as_str()), (None, ""));
    for headers in [
        "Origin: http://evil.example\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
    ] {
        served.ask("GET", "/", headers).await.is(403);
    }
}

#[tokio::test]
async fn figures_that_come_with_the_page_are_bounded_and_end_no_element() {
    let served = Served::start(None).await;
    let sentence = |text: String| *served.source.sentence.lock().expect("not poisoned") = text;
    let evil = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> &lt; \u{2028}";
    sentence(evil.to_owned());
    let page = served.get("/").await;
    let told = first(&page.body);
    assert!(!told.contains('<'), "{told}");
    let figures: serde_json::Value = serde_json::from_str(told).expect("JSON");
    assert_eq!(figures["now"]["sentence"], evil);
    // Every sign takes six bytes.
    sentence("<".repeat(80_000));
    let large = served.get("/").await;
    assert!(large.is(200).body.len() > 480_000);
    for text in ["<".repeat(88_000), "x".repeat(530_000)] {
        sentence(text);
        let page = served.get("/").await;
        assert!(page.is(200).body.contains(WITHOUT), "{}", page.body.len());
        assert!(page.header("etag").is_some());
    }
}

#[tokio::test]
async fn with_a_token_no_figures_come_with_the_page() {
    let config = listens(
        "",
        &both("127.0.0.1:1", "127.0.0.1:1"),
        r#"
        [limits]
        per_window = "total:5"
        [admin]
        bind = "127.0.0.1:0"
        token = "s3cret"
        "#,
    );
    let sidecar = Sidecar::start(&config).await;
    let ask = |headers: &str| {
        let head = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
        ask(sidecar.admin, format!("{head}{headers}\r\n"))
    };
    // Also for a client that has it: the page asks for the token in its own form.
    let basic = "Authorization: Basic YWRtaW46czNjcmV0\r\n";
    for headers in ["", "Authorization: Bearer s3cret\r\n", basic] {
        let page = Answer::read(ask(headers).await.as_bytes());
        assert!(page.is(200).body.contains(WITHOUT), "{page:?}");
        assert!(page.header("etag").is_some(), "{page:?}");
    }
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
