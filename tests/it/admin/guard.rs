//! Requests that the admin address refuses: pages of other origins, names that are not its own, requests without
//! the token.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::Served;

const READS: [&str; 4] = ["/quotas", "/metrics", "/v1/callers", "/v1/limits"];

#[tokio::test]
async fn a_name_that_was_rebound_to_this_address_reads_nothing() {
    let served = Served::start(None).await;
    for path in READS.iter().chain(&["/"]) {
        for host in [
            "evil.example",
            "evil.example:9180",
            "localhost.evil.example",
        ] {
            for method in ["GET", "HEAD"] {
                let answer = served
                    .send(method, path, &format!("Host: {host}\r\n"))
                    .await;
                assert_eq!(answer.status, 403, "{method} {path} as {host}: {answer:?}");
            }
            let answer = served.send("GET", path, &format!("Host: {host}\r\n")).await;
            let told = answer.json();
            assert_eq!(told["error"], "FORBIDDEN", "{told}");
            assert_eq!(told["field"], "host", "{told}");
            let reason = told["reason"].as_str().expect("a reason");
            assert!(reason.contains("admin.allowed_hosts"), "{reason}");
        }
        for host in [
            "127.0.0.1",
            "127.0.0.1:9180",
            "LocalHost:9180",
            "localhost.",
            "[::1]:9180",
            "10.1.2.3:9180",
            "gate.example",
            "Gate.Example:9180",
        ] {
            let answer = served.send("GET", path, &format!("Host: {host}\r\n")).await;
            assert_eq!(answer.status, 200, "{path} as {host}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn a_page_of_another_origin_reads_nothing() {
    let served = Served::start(None).await;
    let host = served.address;
    for path in READS {
        for headers in [
            "Origin: http://evil.example\r\n",
            "Origin: null\r\n",
            "Origin: http://127.0.0.1:1\r\n",
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: image\r\n",
            "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Dest: empty\r\n",
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n",
        ] {
            let headers = format!("Host: {host}\r\n{headers}");
            served.send("GET", path, &headers).await.is(403);
        }
        for headers in [
            format!("Origin: http://{host}\r\nSec-Fetch-Site: same-origin\r\n"),
            "Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\n".to_owned(),
            // A link on another page, which that page can't look behind.
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"
                .to_owned(),
        ] {
            let headers = format!("Host: {host}\r\n{headers}");
            served.send("GET", path, &headers).await.is(200);
        }
    }
}

#[tokio::test]
async fn a_page_of_another_origin_does_nothing() {
    let served = Served::start(None).await;
    let host = served.address;
    for (method, path) in [
        ("POST", "/v1/backend/pause"),
        ("POST", "/v1/backend/resume"),
        ("POST", "/v1/limits/total"),
        ("DELETE", "/v1/limits/total"),
    ] {
        for headers in [
            "Origin: http://evil.example\r\n",
            "Origin: null\r\n",
            "Origin: http://127.0.0.1:1\r\n",
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\nSec-Fetch-Dest: empty\r\n",
            "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n",
        ] {
            let headers = format!("Host: {host}\r\n{headers}");
            served.send(method, path, &headers).await.is(403);
        }
    }
}

#[tokio::test]
async fn a_probe_by_address_is_answered_whatever_it_says_of_its_host() {
    for token in [None, Some("s3cret")] {
        let served = Served::start(token).await;
        for path in ["/livez", "/readyz", "/healthz"] {
            for headers in ["Host: 10.1.2.3:9180\r\n", "Host: probe.example\r\n", ""] {
                served.send("GET", path, headers).await.is(200);
            }
        }
        let verbose = "/healthz?verbose";
        served
            .send("GET", verbose, "Host: 10.1.2.3\r\n")
            .await
            .is(200);
        served
            .send("GET", verbose, "Host: evil.example\r\n")
            .await
            .is(403);
    }
}

fn basic(user_and_password: &str) -> String {
    let coded = BASE64.encode(user_and_password);
    format!("Authorization: Basic {coded}\r\n")
}

#[tokio::test]
async fn a_browser_is_asked_for_the_token_and_opens_the_page_with_it() {
    let served = Served::start(Some("s3cret")).await;
    let asked = served.get("/quotas").await;
    asked.is(401);
    asked.has("www-authenticate: Basic realm=\"tidegate\", charset=\"UTF-8\"");
    let challenges = asked.headers("www-authenticate");
    assert_eq!(challenges.last(), Some(&"Bearer realm=\"tidegate\""));
    for good in ["admin:s3cret", ":s3cret"] {
        let page = served.ask("GET", "/quotas", &basic(good)).await;
        page.is(200);
        assert!(page.body.contains("Tidegate quotas"), "{page:?}");
    }
    for bad in [
        "admin:",
        "s3cret:",
        "s3cret",
        "admin:s3cret2",
        "admin:S3cret",
        "a:b:s3cret",
    ] {
        let answer = served.ask("GET", "/quotas", &basic(bad)).await;
        assert_eq!(answer.status, 401, "{bad}");
    }
    let twice = format!("{0}{0}", basic("admin:s3cret"));
    served.ask("GET", "/quotas", &twice).await.is(401);
    served.get("/quotas?token=s3cret").await.is(401);
}

#[tokio::test]
async fn a_page_of_another_origin_cannot_use_the_token_that_the_browser_keeps() {
    let served = Served::start(Some("s3cret")).await;
    let with = |more: &str| format!("{}{more}", basic("admin:s3cret"));
    for headers in [
        "Origin: http://evil.example\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
    ] {
        let answer = served.ask("GET", "/v1/callers", &with(headers)).await;
        answer.is(403);
        let body = format!("{headers}Content-Type: application/json\r\nContent-Length: 0\r\n");
        served
            .ask("POST", "/v1/callers", &with(&body))
            .await
            .is(403);
    }
}
