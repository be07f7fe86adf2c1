//! Every field, parameter and path that the OpenAPI document knows, given in every way that it
//! rules out, to the real process: each time a 4xx that names it, and nothing has changed.
//!
//! The tried values come from the document, so that a new field is tried without a change here.
//! `bad_input.rs` tries the values that only the meaning of a field rules out.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::document::{document, operations};
use super::real::Real;
use super::{JSON, send};
use crate::support::Answer;

/// A body in which one thing is wrong.
struct Wrong {
    field: String,
    body: String,
}

/// The values tried for every field whose schema does not allow them.
fn candidates() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(7),
        json!(-7),
        json!(0.5),
        json!(1e300),
        json!(""),
        json!("no such"),
        json!("a\u{7}b"),
        json!("x".repeat(5000)),
        json!([]),
        json!([null]),
        json!([1, "x"]),
        json!({}),
        json!({"no_such_field": 1}),
    ]
}

/// Texts that are not JSON, some of which lenient readers accept as numbers.
const NO_NUMBERS: [&str; 7] = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "+1",
    "01",
];

/// A text that is not an id, and an unknown id.
const NO_IDS: [&str; 6] = ["c", "c-1", "c01", "7", "C1", "c18446744073709551616"];
const UNKNOWN_ID: &str = "c999999";

struct Schemas(Value);

impl Schemas {
    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema["$ref"].as_str() {
            Some(reference) => self
                .0
                .pointer(reference.trim_start_matches('#'))
                .expect("a reference leads somewhere"),
            None => schema,
        }
    }

    /// The forms that a schema allows.
    fn forms<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolve(schema);
        match schema["oneOf"].as_array() {
            Some(forms) => forms.iter().map(|form| self.resolve(form)).collect(),
            None => vec![schema],
        }
    }

    /// Whether it allows a value; `None` if types and bounds do not decide it.
    fn allows(&self, schema: &Value, value: &Value) -> Option<bool> {
        let schema = self.resolve(schema);
        if let Some(only) = schema.get("const") {
            return Some(value == only);
        }
        if let Some(words) = schema["enum"].as_array() {
            return Some(words.contains(value));
        }
        for choice in ["oneOf", "anyOf"] {
            // Beside a type, a choice only narrows down what the type allows.
            if schema["type"].is_null()
                && let Some(forms) = schema[choice].as_array()
            {
                let allowed: Vec<_> = forms.iter().map(|it| self.allows(it, value)).collect();
                return match () {
                    () if allowed.contains(&Some(true)) => Some(true),
                    () if allowed.contains(&None) => None,
                    () => Some(false),
                };
            }
        }
        let is = |kind: &str| match kind {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("the document has the type {other}"),
        };
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => return None,
        };
        if !kinds.into_iter().any(is) {
            return Some(false);
        }
        let bound = |name: &str| schema[name].as_f64();
        let within = |size: f64, least: &str, most: &str| {
            bound(least).is_none_or(|least| size >= least)
                && bound(most).is_none_or(|most| size <= most)
        };
        match value {
            Value::Number(number) => {
                let number = number.as_f64().expect("of ordinary size");
                Some(within(number, "minimum", "maximum"))
            }
            Value::String(text) => {
                let has_pattern = schema.get("pattern").is_some();
                let length = text.chars().count() as f64;
                if !within(length, "minLength", "maxLength")
                    || has_pattern && text.contains('\u{7}')
                {
                    Some(false)
                } else if has_pattern {
                    None
                } else {
                    Some(true)
                }
            }
            Value::Array(items) => {
                let of_items = |item| self.allows(&schema["items"], item) == Some(false);
                if !within(items.len() as f64, "minItems", "maxItems") || items.iter().any(of_items)
                {
                    Some(false)
                } else {
                    items.is_empty().then_some(true)
                }
            }
            Value::Object(fields) => {
                let required = schema["required"].as_array();
                let mut required = required.into_iter().flatten().filter_map(Value::as_str);
                let is_closed = schema["additionalProperties"] == json!(false);
                let is_known = |field: &String| schema["properties"].get(field).is_some();
                if required.any(|field| !fields.contains_key(field))
                    || is_closed && !fields.keys().all(is_known)
                {
                    Some(false)
                } else {
                    None
                }
            }
            _ => Some(true),
        }
    }

    /// A value that it allows, for the field of this name.
    fn sample(&self, schema: &Value, field: &str) -> Value {
        // What must be there and is said to be by more than types.
        match (schema["$ref"].as_str(), field) {
            (Some("#/components/schemas/CallerId"), _) => return json!("c3"),
            (Some("#/components/schemas/Pattern"), _) | (_, "match") => {
                return json!({"user": "someone"});
            }
            _ => {}
        }
        let schema = self.forms(schema)[0];
        if let Some(only) = schema.get("const") {
            return only.clone();
        }
        if let Some(words) = schema["enum"].as_array() {
            return words[0].clone();
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => kinds[0].clone(),
            kind => kind.clone(),
        };
        match kind.as_str() {
            Some("boolean") => json!(true),
            Some("integer") => json!(1),
            Some("number") => json!(schema["minimum"].as_f64().unwrap_or(0.0).max(1.0)),
            Some("array") => json!([]),
            Some("object") => {
                let required = schema["required"].as_array().into_iter().flatten();
                let fields = required.filter_map(Value::as_str).map(|field| {
                    let of_field = &schema["properties"][field];
                    (field.to_owned(), self.sample(of_field, field))
                });
                Value::Object(fields.collect())
            }
            _ if field == "profile" => json!("poller"),
            // Addresses are described by a choice of formats.
            _ if field == "ip" => json!("10.0.0.1"),
            _ => json!("x"),
        }
    }

    /// Everything wrong with one value and inside of it. `whole` makes the body around it.
    fn wrong(
        &self,
        schema: &Value,
        field: &str,
        whole: &dyn Fn(&str) -> String,
        out: &mut Vec<Wrong>,
    ) {
        let values = candidates().into_iter();
        let refused = values.filter(|value| self.allows(schema, value) == Some(false));
        let mut raws: Vec<String> = refused.map(|value| value.to_string()).collect();
        raws.extend(NO_NUMBERS.map(str::to_owned));
        if schema["$ref"] == "#/components/schemas/CallerId" {
            raws.extend(NO_IDS.map(|id| format!("\"{id}\"")));
        }
        for form in self.forms(schema) {
            if let (true, Some(items)) = (form["uniqueItems"] == true, form.get("items")) {
                let item = self.sample(items, field);
                raws.push(json!([item, item]).to_string());
            }
            self.wrong_inside(form, field, whole, out);
        }
        out.extend(raws.iter().map(|raw| Wrong {
            field: field.to_owned(),
            body: whole(raw),
        }));
    }

    /// Everything wrong with the fields and items of one form of a value.
    fn wrong_inside(
        &self,
        form: &Value,
        field: &str,
        whole: &dyn Fn(&str) -> String,
        out: &mut Vec<Wrong>,
    ) {
        if let Some(items) = form.get("items") {
            let whole = |raw: &str| whole(&format!("[{raw}]"));
            self.wrong(items, &format!("{field}[0]"), &whole, out);
        }
        let sample = self.sample(form, field);
        let Value::Object(sample) = sample else {
            return;
        };
        let properties = form["properties"].as_object().into_iter().flatten();
        let properties = properties.map(|(name, schema)| (name.as_str(), schema));
        let others = &form["additionalProperties"];
        let others = others.is_object().then_some(("guest_start", others));
        for (name, schema) in properties.chain(others) {
            let path = match field {
                "" => name.to_owned(),
                field => format!("{field}.{name}"),
            };
            let mut rest = sample.clone();
            rest.remove(name);
            let rest: String = rest
                .iter()
                .map(|(name, value)| format!(", \"{name}\": {value}"))
                .collect();
            let whole = |raw: &str| whole(&format!("{{\"{name}\": {raw}{rest}}}"));
            let right = self.sample(schema, name);
            out.push(Wrong {
                body: whole(&format!("{right}, \"{name}\": {right}")),
                field: path.clone(),
            });
            self.wrong(schema, &path, &whole, out);
        }
    }
}

/// Whether a field that was named is this one, or a part of it.
fn names(told: &str, field: &str) -> bool {
    told.strip_prefix(field)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn invalid(answer: &Answer, field: &str, case: &str) {
    let case = &case[..case.len().min(200)];
    assert_eq!(answer.status, 400, "{case}: {answer:?}");
    let told = answer.json();
    assert_eq!(told["error"], "INVALID_VALUE", "{case}: {told}");
    let named = told["field"].as_str().expect("a field");
    assert!(names(named, field), "{case}: not {field} but {told}");
}

/// The path of an operation on existing objects.
fn filled(real: &Real, path: &str) -> String {
    path.replace("/v1/calls/{id}", &format!("/v1/calls/{}", real.call))
        .replace("/rate-limits/{id}", "/rate-limits/r1")
        .replace("/callers/{id}", "/callers/c3")
        .replace("/limits/{name}", "/limits/total")
        .replace("{caller}", "c3")
}

#[tokio::test]
async fn every_field_of_every_body_is_checked_by_name_and_changes_nothing() {
    let schemas = Schemas(document());
    let real = Real::filled().await;
    let admin = real.sidecar.admin;
    let before = real.everything().await;
    let (mut fields, mut cases) = (BTreeSet::new(), 0);
    for (method, path, operation) in operations(&schemas.0) {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        if schema.is_null() {
            continue;
        }
        let mut wrong = Vec::new();
        for form in schemas.forms(schema) {
            schemas.wrong_inside(form, "", &str::to_owned, &mut wrong);
        }
        assert_eq!(
            wrong.is_empty(),
            path == "/v1/upgrade",
            "{method} {path}: fields"
        );
        let at = filled(&real, &path);
        for Wrong { field, body } in wrong {
            let answer = send(admin, &method, &at, JSON, body.as_bytes()).await;
            invalid(&answer, &field, &format!("{method} {path} {body}"));
            cases += 1;
            fields.insert(format!("{method} {path} {field}"));
        }
        let answer = send(admin, &method, &at, JSON, br#"{"no_such_field": 1}"#).await;
        invalid(&answer, "no_such_field", &path);
        let large = format!("{{\"label\": \"{}\"}}", "x".repeat(10_000_000));
        let answer = send(admin, &method, &at, JSON, large.as_bytes()).await;
        assert_eq!(answer.status, 413, "{answer:?}");
        assert_eq!(answer.json()["field"], "body");
        assert_eq!(real.everything().await, before, "{method} {path}");
    }
    assert!(fields.len() >= 60 && cases > 1000, "{fields:?}, {cases}");
    real.ended_well().await;
}

#[tokio::test]
async fn every_parameter_is_checked_by_name_and_every_unknown_id_is_reported() {
    let schemas = Schemas(document());
    let real = Real::filled().await;
    let admin = real.sidecar.admin;
    let before = real.everything().await;
    let mut parameters = 0;
    for (method, path, operation) in operations(&schemas.0) {
        let example = &operation["requestBody"]["content"]["application/json"]["schema"];
        let body = match example {
            Value::Null => String::new(),
            schema => schemas.resolve(schema)["example"].to_string(),
        };
        let headers = if body.is_empty() { "" } else { JSON };
        let listed = operation["parameters"].as_array();
        for parameter in listed.into_iter().flatten() {
            let name = parameter["name"].as_str().expect("a name");
            let schema = &parameter["schema"];
            parameters += 1;
            if parameter["in"] == "path" {
                // An unknown id, and a text that is not an id.
                for id in ["c999999", "r999999", "0000000000000000", "x", "%00", "c-1"] {
                    let at = filled(&real, &path.replace(&format!("{{{name}}}"), id));
                    let answer = send(admin, &method, &at, headers, body.as_bytes()).await;
                    assert_eq!(answer.status, 404, "{method} {at}: {answer:?}");
                    // A file of the page is not a thing that has an id.
                    if path.starts_with("/page/") {
                        continue;
                    }
                    let told = answer.json();
                    assert_eq!(told["error"], "UNKNOWN", "{method} {at}: {told}");
                    assert!(told["what"].is_string() && told["id"].is_string(), "{told}");
                }
                continue;
            }
            let at = filled(&real, &path);
            for given in ["no%20such", "", "-1", "NaN", "inf", "1e999", "%07"] {
                // A text is not checked by what a number would have to be.
                if schemas.allows(schema, &json!(given.replace("%20", " "))) == Some(true) {
                    continue;
                }
                let at = format!("{at}?{name}={given}");
                let answer = send(admin, "GET", &at, "", b"").await;
                if schemas.resolve(schema)["type"] == "string" && answer.status != 400 {
                    // What looks like a number can be a name.
                    assert!(["-1", "NaN", "inf", "1e999"].contains(&given), "{at}");
                    continue;
                }
                invalid(&answer, name, &at);
            }
            let at = format!("{at}?{name}=1&{name}=1");
            invalid(&send(admin, "GET", &at, "", b"").await, name, &at);
        }
        if listed.is_some_and(|all| all.iter().any(|it| it["in"] == "query")) {
            let at = format!("{}?no_such=1", filled(&real, &path));
            invalid(&send(admin, "GET", &at, "", b"").await, "no_such", &at);
        }
    }
    assert!(parameters > 20, "{parameters}");
    assert_eq!(real.everything().await, before);
    real.ended_well().await;
}

#[tokio::test]
async fn every_unknown_caller_in_a_body_is_reported_and_nothing_changes() {
    let real = Real::filled().await;
    let before = real.everything().await;
    for (path, body) in [
        (
            "/v1/callers/merge",
            json!({"into": UNKNOWN_ID, "from": ["c2"]}),
        ),
        (
            "/v1/callers/merge",
            json!({"into": "c3", "from": [UNKNOWN_ID]}),
        ),
        (
            "/v1/rate-limits",
            json!({"exempt": true, "callers": ["c2", UNKNOWN_ID]}),
        ),
        ("/v1/rate-limits", json!({"derive": {"caller": UNKNOWN_ID}})),
    ] {
        let answer = real.ask("POST", path, &body).await;
        assert_eq!(answer.status, 404, "{body}: {answer:?}");
        let expected = json!({"error": "UNKNOWN", "what": "caller", "id": UNKNOWN_ID});
        assert_eq!(answer.json(), expected);
    }
    assert_eq!(real.everything().await, before);
}

#[tokio::test]
async fn every_method_that_a_path_does_not_have_is_answered_with_those_that_it_has() {
    let document = document();
    let real = Real::filled().await;
    let before = real.everything().await;
    let paths = document["paths"].as_object().expect("there are paths");
    for (path, operations) in paths {
        let mut allowed: BTreeSet<String> = operations
            .as_object()
            .expect("there are operations")
            .keys()
            .map(|method| method.to_uppercase())
            .collect();
        if allowed.contains("GET") {
            allowed.insert("HEAD".into());
        }
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
            if allowed.contains(method) {
                continue;
            }
            let at = filled(&real, path);
            let answer = send(real.sidecar.admin, method, &at, JSON, b"{}").await;
            assert_eq!(answer.status, 405, "{method} {path}: {answer:?}");
            let told = answer.header("allow").expect("Allow is there").split(',');
            assert_eq!(told.map(str::to_owned).collect::<BTreeSet<_>>(), allowed);
        }
    }
    assert_eq!(real.everything().await, before);
}
