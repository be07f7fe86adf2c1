//! The OpenAPI document and docs/reference/api.md describe exactly the answered paths.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tidegate::admin;
use tokio::process::Command;

use super::real::Real;
use super::{JSON, Served, fake, send};
use crate::sidecar::run;

pub(super) fn document() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/openapi.json");
    let text = std::fs::read_to_string(path).expect("it is there");
    serde_json::from_str(&text).expect("it is JSON")
}

/// Methods and paths of the document, with the operation.
pub(super) fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().expect("there are paths");
    let operations = paths.iter().flat_map(|(path, operations)| {
        let operations = operations.as_object().expect("there are operations");
        operations
            .iter()
            .map(move |(method, it)| (method.to_uppercase(), path.clone(), it.clone()))
    });
    operations.collect()
}

#[test]
fn the_document_and_the_router_have_the_same_operations() {
    let documented: BTreeSet<(String, String)> = operations(&document())
        .into_iter()
        .map(|(method, path, _)| (method, path))
        .collect();
    let routed: BTreeSet<(String, String)> = admin::routes()
        .into_iter()
        .map(|(method, path)| (method.to_string(), path.to_owned()))
        .collect();
    assert_eq!(documented, routed);
    assert!(routed.len() > 30, "{}", routed.len());
}

#[test]
fn every_reference_of_the_document_leads_somewhere_and_nothing_is_left_over() {
    fn references(value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value.as_str() {
                        Some(target) if name == "$ref" => drop(into.insert(target.to_owned())),
                        _ => references(value, into),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, into)),
            _ => {}
        }
    }
    let document = document();
    let mut referred = BTreeSet::new();
    references(&document, &mut referred);
    let mut defined = BTreeSet::new();
    for kind in ["schemas", "responses"] {
        let parts = document["components"][kind].as_object().expect("there are");
        defined.extend(
            parts
                .keys()
                .map(|name| format!("#/components/{kind}/{name}")),
        );
    }
    assert_eq!(referred, defined);
}

/// Makes `c2`, `c3` and `r1` first.
pub(super) const FILLED: [(&str, &str); 2] = [
    (
        "/v1/callers",
        r#"{"label": "operator", "match": {"user": "uid:0"}}"#,
    ),
    (
        "/v1/rate-limits",
        r#"{"label": "m", "burst": 12.5, "fill": 1, "callers": ["c2", "c3"]}"#,
    ),
];

/// A served API in which `c2`, `c3` and `r1` are there.
async fn served() -> Served {
    let served = Served::start().await;
    for (path, body) in FILLED {
        let answer = served.send("POST", path, JSON, body.as_bytes()).await;
        Served::told(answer, 201);
    }
    served
}

/// Asks for one operation of the document, where `call` is one that has ended.
async fn check_operation(
    address: SocketAddr,
    call: &str,
    document: &Value,
    (method, path, operation): &(String, String, Value),
) {
    let filled = path
        .replace("/v1/calls/{id}", &format!("/v1/calls/{call}"))
        .replace("{file}", "page.js")
        .replace("/rate-limits/{id}", "/rate-limits/r1")
        .replace("/callers/{id}", "/callers/c2")
        // Without an end it would go on for minutes.
        .replace("/v1/stream", "/v1/stream?frames=1")
        .replace("/limits/{name}", "/limits/total")
        .replace("{caller}", if method == "PUT" { "c2" } else { "c3" });
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let body = match schema["$ref"].as_str() {
        None => String::new(),
        Some(reference) => {
            let name = reference.rsplit('/').next().expect("a name");
            document["components"]["schemas"][name]["example"].to_string()
        }
    };
    let headers = if body.is_empty() { "" } else { JSON };
    let answer = send(address, method, &filled, headers, body.as_bytes()).await;
    let responses = operation["responses"].as_object().expect("responses");
    let told = &responses.get(&answer.status.to_string());
    // The real process of these tests has no ledger.
    let is_refused = path == "/v1/upgrade" && answer.status == 409;
    assert!(
        answer.status < 300 || is_refused,
        "{method} {filled} {body}: {answer:?}"
    );
    let told = told.unwrap_or_else(|| panic!("{method} {path}: {answer:?}"));
    if is_refused {
        return;
    }
    let kinds = told["content"].as_object();
    let kind = answer.header("content-type").unwrap_or_default();
    let kind = kind.split(';').next().expect("split gives one at least");
    match kinds {
        None => assert_eq!(answer.body, "", "{method} {path}"),
        Some(kinds) => assert!(kinds.contains_key(kind), "{method} {path}: {kind}"),
    }
}

#[tokio::test]
async fn every_operation_of_the_document_answers_as_it_says() {
    let document = document();
    let operations = operations(&document);
    for operation in &operations {
        // Each on a separate sidecar, so that they do not affect each other.
        let served = served().await;
        let call = fake::CALL.to_string();
        check_operation(served.address, &call, &document, operation).await;
    }
    assert_eq!(operations.len(), admin::routes().len());
}

#[tokio::test]
async fn the_real_process_answers_every_operation_of_the_document_as_it_says() {
    let document = document();
    for operation in operations(&document) {
        let real = Real::filled().await;
        check_operation(real.sidecar.admin, &real.call, &document, &operation).await;
    }
}

#[tokio::test]
async fn the_document_is_served() {
    let served = Served::start().await;
    let told = Served::told(served.get("/v1/openapi.json").await, 200);
    assert_eq!(told, document());
    assert_eq!(told["openapi"], "3.1.0");
}

#[tokio::test]
async fn schemathesis_finds_nothing() {
    let served = served().await;
    schemathesis(served.address).await;
}

#[tokio::test]
async fn schemathesis_finds_nothing_at_the_real_process() {
    let real = Real::filled().await;
    schemathesis(real.sidecar.admin).await;
    real.ended_well().await;
}

async fn schemathesis(address: SocketAddr) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let binary = root.join(".venv-peers/bin/schemathesis");
    assert!(binary.is_file(), "run tests/peers/setup.sh first");
    let folder = tempfile::tempdir().expect("a folder");
    let config = root.join("tests/peers/schemathesis.toml");
    let mut command = Command::new(binary);
    command
        .current_dir(folder.path())
        .arg(format!("--config-file={}", config.display()))
        .arg("run")
        .arg(root.join("docs/reference/openapi.json"))
        .arg(format!("--url=http://{address}"))
        .args(["--max-examples=15", "--seed=7", "--workers=1", "--no-color"])
        // The other phases keep what they find in a database, for the next run.
        .args([
            "--generation-database=none",
            "--phases=examples,coverage,fuzzing",
        ]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(SCHEMATHESIS_MAX, command.output()).await;
    let output = output.expect("it ends").expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    // A skipped operation was not tested.
    let operations = format!("Selected: {0}/{0}", admin::routes().len());
    assert!(said.contains(&operations), "{said}");
}

/// The longest run, which takes a minute on an idle machine. Two of them can run at once on a machine with other
/// work.
const SCHEMATHESIS_MAX: Duration = Duration::from_secs(600);

/// The fenced blocks of a document that begin like this.
fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let blocks = document.split(&fence).skip(1);
    blocks
        .map(|rest| rest.split("```").next().expect("split gives one at least"))
        .collect()
}

/// Whether numbers that tell of use are those of the guide: a real process was used otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figures {
    TheGuides,
    ItsOwn,
}

#[tokio::test]
async fn every_command_of_the_guide_works_and_answers_what_stands_below_it() {
    let served = Served::start().await;
    let call = fake::CALL.to_string();
    follow_the_guide(served.address, &call, Figures::TheGuides).await;
}

#[tokio::test]
async fn every_command_of_the_guide_works_at_the_real_process() {
    let real = Real::start().await;
    follow_the_guide(real.sidecar.admin, &real.call, Figures::ItsOwn).await;
    real.ended_well().await;
}

async fn follow_the_guide(address: SocketAddr, call: &str, figures: Figures) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(root.join("docs/reference/api.md")).expect("it is there");
    // In their order, on one sidecar: what one makes, the next shows.
    let mut commands = 0;
    for rest in guide.split("```sh\n").skip(1) {
        let (command, rest) = rest.split_once("```").expect("a block ends");
        let command = command
            .replace("127.0.0.1:9180", &address.to_string())
            .replace(&fake::CALL.to_string(), call);
        let said = run(Command::new("sh").args(["-euc", &command])).await;
        assert_eq!(said.code, Some(0), "{command}{}{}", said.out, said.err);
        assert!(!said.out.contains("\"error\""), "{command}{}", said.out);
        if let Some(told) = rest.trim_start().strip_prefix("```json\n") {
            let told = told.split("```").next().expect("split gives one at least");
            let told: Value = serde_json::from_str(told).expect(told);
            let answer: Value = serde_json::from_str(&said.out)
                .unwrap_or_else(|_| panic!("{command} answers {}", said.out));
            let tells_of_use = ["/usage", "/suggest"].iter().any(|it| command.contains(it));
            let figures = if tells_of_use {
                figures
            } else {
                Figures::TheGuides
            };
            assert_has(&answer, &told, &command, figures);
        }
        commands += 1;
    }
    assert!(commands >= 12, "{commands}");
    assert!(blocks(&guide, "json").len() >= 8);
}

/// Whether all that stands in the guide is in the answer; the guide may leave fields out.
fn assert_has(answer: &Value, told: &Value, command: &str, figures: Figures) {
    match (answer, told) {
        (Value::Object(answer), Value::Object(told)) => {
            for (field, told) in told {
                let answer = answer
                    .get(field)
                    .unwrap_or_else(|| panic!("{command}: no {field}"));
                if field == "nearest_profile" && figures == Figures::ItsOwn {
                    // It follows from the numbers.
                    assert!(answer.is_string(), "{command}: {answer}");
                    continue;
                }
                assert_has(answer, told, command, figures);
            }
        }
        (Value::Array(answer), Value::Array(told)) => {
            assert_eq!(answer.len(), told.len(), "{command}: {answer:?}");
            for (answer, told) in answer.iter().zip(told) {
                assert_has(answer, told, command, figures);
            }
        }
        (Value::Number(_), Value::Number(_)) if figures == Figures::ItsOwn => {}
        (answer, told) if answer.is_f64() && told.is_number() => {
            assert_eq!(answer.as_f64(), told.as_f64(), "{command}");
        }
        (answer, told) => assert_eq!(answer, told, "{command}"),
    }
}
