//! curl, which needs no program: each request is a run of it.

use std::process::Stdio;

use tokio::process::Command;
use tokio::time::{Instant, timeout};

use super::{CLIENTS, LARGE, LONGEST, MEDIUM, Observation, Stage, describe, pattern};
use crate::support::Answer;

/// A run of curl.
struct Curl<'a> {
    name: &'a str,
    arguments: &'a [&'a str],
    path: &'a str,
}

impl Curl<'_> {
    async fn observe(&self, base: &str, body: &str) -> Observation {
        let began = Instant::now();
        let mut curl = Command::new("curl");
        curl.args(["-q", "-sS", "--noproxy", "*", "--max-time", "5"]);
        curl.args(["-w", "%{stderr}%{http_code} "]);
        for argument in self.arguments {
            curl.arg(argument.replace("BODY", body));
        }
        curl.arg(format!("{base}{}", self.path));
        let running = curl.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = timeout(LONGEST, running).await.expect("it ends");
        let output = output.expect("`make clients` installs curl");
        // It has the status of each request, and an error if there was one.
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let status = said.split_whitespace().find_map(|word| word.parse().ok());
        Observation {
            name: self.name.to_owned(),
            ms: u64::try_from(began.elapsed().as_millis()).expect("few"),
            status,
            body: summary(&output.stdout),
            error: (!output.status.success()).then_some(said),
        }
    }
}

/// A body as the programs print it.
fn summary(body: &[u8]) -> String {
    match body.len() {
        0..=200 => String::from_utf8_lossy(body).into_owned(),
        _ => describe(body),
    }
}

#[tokio::test]
async fn curl_sees_what_the_service_said() {
    let _one = CLIENTS.acquire().await.expect("it is never closed");
    let stage = Stage::start().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, length| {
        let path = dir.path().join(name);
        std::fs::write(&path, pattern(length)).expect("it can be written to");
        format!("@{}", path.display())
    };
    let (medium, huge) = (file("medium", MEDIUM), file("huge", 4 * LARGE));
    let chunked = "Transfer-Encoding: chunked";
    let expect = "Expect: 100-continue";
    let json = r#"{"name":"box","size":3}"#;
    let [url, one, kept, direct] = stage.urls();
    let mut seen = Vec::new();
    let upload: &[&str] = &["-H", "Expect:", "--data-binary", "BODY"];
    for (name, arguments, path) in [
        ("small", &[][..], "/small"),
        ("large", &[], "/large"),
        ("echo", &["-d", json], "/echo"),
        ("upload_length", upload, "/upload"),
        (
            "upload_chunks",
            &["-H", chunked, "--data-binary", "BODY"],
            "/upload",
        ),
        (
            "upload_expect",
            &["-H", expect, "--data-binary", "BODY"],
            "/upload",
        ),
        (
            "refused_expect",
            &["-H", expect, "--data-binary", "BODY"],
            "/refused",
        ),
        ("none", &[], "/none"),
        ("chunked", &[], "/chunked"),
        ("closed", &[], "/closed"),
        ("status_302", &[], "/status/302"),
        ("status_404", &[], "/status/404"),
        ("status_500", &[], "/status/500"),
        ("status_503", &[], "/status/503"),
    ] {
        let curl = Curl {
            name,
            arguments,
            path,
        };
        seen.push(curl.observe(&url, &medium).await);
    }
    let curl = Curl {
        name: "head",
        arguments: &["-I"],
        path: "/large",
    };
    let mut head = curl.observe(&url, "").await;
    let fields = Answer::read(head.body.as_bytes());
    head.body = format!(
        "{} bytes of {}",
        fields.body.len(),
        fields.header("content-length").unwrap_or("none")
    );
    seen.push(head);
    let in_chunks: &[&str] = &["-H", "Expect:", "-H", chunked, "--data-binary", "BODY"];
    for (name, base, with) in [
        ("early", &url, upload),
        ("early", &url, &upload[2..]),
        ("early_chunks", &url, in_chunks),
        ("early_direct", &direct, upload),
    ] {
        for arguments in [with; 3] {
            let curl = Curl {
                name,
                arguments,
                path: "/early",
            };
            seen.push(curl.observe(base, &huge).await);
        }
    }
    for (name, base, arguments, path) in [
        (
            "waiting",
            &one,
            &["-Z", "--no-progress-meter"][..],
            "/slow?[1-3]",
        ),
        ("kept", &kept, &[], "/small?[1-20]"),
    ] {
        let curl = Curl {
            name,
            arguments,
            path,
        };
        let mut all = curl.observe(base, "").await;
        let right = all.body.matches("small").count();
        all.body = match name {
            "kept" => format!("{right} of 20"),
            _ => format!("{right} of 3"),
        };
        seen.push(all);
    }
    stage.check("curl", &seen, true).await;
}
