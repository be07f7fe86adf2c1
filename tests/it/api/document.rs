//! The OpenAPI document says what is answered, neither more nor less; and so does
//! docs/api.md.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::admin;
use tokio::process::Command;

use super::{JSON, Served, fake};
use crate::sidecar::run;

fn document() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.json");
    let text = std::fs::read_to_string(path).expect("it is there");
    serde_json::from_str(&text).expect("it is JSON")
}

/// Methods and paths of the document, with the operation.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
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
fn every_route_stands_in_the_document_and_every_operation_in_the_router() {
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

/// A served API in which `c2`, `c3` and `r1` are there.
async fn served() -> Served {
    let served = Served::start().await;
    let caller = json!({"label": "operator", "match": {"user": "uid:0"}});
    Served::told(served.ask("POST", "/v1/callers", &caller).await, 201);
    let limit = json!({"label": "m", "burst": 12.5, "fill": 1, "callers": ["c2", "c3"]});
    Served::told(served.ask("POST", "/v1/rate-limits", &limit).await, 201);
    served
}

#[tokio::test]
async fn every_operation_of_the_document_answers_as_it_says() {
    let document = document();
    let mut answered = 0;
    for (method, path, operation) in operations(&document) {
        // Each on a sidecar of its own, so that one does not undo another.
        let served = served().await;
        let filled = path
            .replace("/v1/calls/{id}", &format!("/v1/calls/{}", fake::CALL))
            .replace("/rate-limits/{id}", "/rate-limits/r1")
            .replace("/callers/{id}", "/callers/c2")
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
        let answer = served
            .send(&method, &filled, headers, body.as_bytes())
            .await;
        let responses = operation["responses"].as_object().expect("responses");
        let told = &responses.get(&answer.status.to_string());
        assert!(answer.status < 300, "{method} {filled} {body}: {answer:?}");
        let told = told.unwrap_or_else(|| panic!("{method} {path}: {answer:?}"));
        let kinds = told["content"].as_object();
        let kind = answer.header("content-type").unwrap_or_default();
        let kind = kind.split(';').next().expect("split gives one at least");
        match kinds {
            None => assert_eq!(answer.body, "", "{method} {path}"),
            Some(kinds) => assert!(kinds.contains_key(kind), "{method} {path}: {kind}"),
        }
        answered += 1;
    }
    assert_eq!(answered, admin::routes().len());
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let binary = root.join(".venv-peers/bin/schemathesis");
    assert!(binary.is_file(), "run tests/peers/setup.sh first");
    let served = served().await;
    let folder = tempfile::tempdir().expect("a folder");
    let config = root.join("tests/peers/schemathesis.toml");
    let mut command = Command::new(binary);
    command
        .current_dir(folder.path())
        .arg(format!("--config-file={}", config.display()))
        .arg("run")
        .arg(root.join("docs/openapi.json"))
        .arg(format!("--url=http://{}", served.address))
        .args(["--max-examples=40", "--seed=7", "--workers=1", "--no-color"])
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
    // What is skipped has been tested by nobody.
    let operations = format!("Selected: {0}/{0}", admin::routes().len());
    assert!(said.contains(&operations), "{said}");
}

/// It takes half a minute on a machine of its own.
const SCHEMATHESIS_MAX: Duration = Duration::from_secs(180);

/// The fenced blocks of a document that begin like this.
fn blocks<'a>(document: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let blocks = document.split(&fence).skip(1);
    blocks
        .map(|rest| rest.split("```").next().expect("split gives one at least"))
        .collect()
}

#[tokio::test]
async fn every_command_of_the_guide_works_and_answers_what_stands_below_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(root.join("docs/api.md")).expect("it is there");
    // In their order, on one sidecar: what one makes, the next shows.
    let served = Served::start().await;
    let mut commands = 0;
    for rest in guide.split("```sh\n").skip(1) {
        let (command, rest) = rest.split_once("```").expect("a block ends");
        let command = command.replace("127.0.0.1:9180", &served.address.to_string());
        let said = run(Command::new("sh").args(["-euc", &command])).await;
        assert_eq!(said.code, Some(0), "{command}{}{}", said.out, said.err);
        if let Some(told) = rest.trim_start().strip_prefix("```json\n") {
            let told = told.split("```").next().expect("split gives one at least");
            let told: Value = serde_json::from_str(told).expect(told);
            let answer: Value = serde_json::from_str(&said.out)
                .unwrap_or_else(|_| panic!("{command} answers {}", said.out));
            assert_has(&answer, &told, &command);
        }
        commands += 1;
    }
    assert!(commands >= 12, "{commands}");
    assert!(blocks(&guide, "json").len() >= 8);
}

/// Whether all that stands in the guide is in the answer; the guide may leave fields out.
fn assert_has(answer: &Value, told: &Value, command: &str) {
    match (answer, told) {
        (Value::Object(answer), Value::Object(told)) => {
            for (field, told) in told {
                let answer = answer
                    .get(field)
                    .unwrap_or_else(|| panic!("{command}: no {field}"));
                assert_has(answer, told, command);
            }
        }
        (Value::Array(answer), Value::Array(told)) => {
            assert_eq!(answer.len(), told.len(), "{command}: {answer:?}");
            for (answer, told) in answer.iter().zip(told) {
                assert_has(answer, told, command);
            }
        }
        (answer, told) if answer.is_f64() && told.is_number() => {
            assert_eq!(answer.as_f64(), told.as_f64(), "{command}");
        }
        (answer, told) => assert_eq!(answer, told, "{command}"),
    }
}
