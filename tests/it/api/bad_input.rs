//! Every mistake in a request is answered with a 4xx that names the field, and changes nothing.

use serde_json::{Value, json};

use super::{JSON, Served, fake, monitoring};

/// A served API in which there is something of everything.
async fn served() -> Served {
    let served = Served::start().await;
    Served::told(served.ask("POST", "/v1/callers", &monitoring()).await, 201);
    let limit = json!({"label": "m", "burst": 12.5, "fill": 1, "callers": ["c3"]});
    Served::told(served.ask("POST", "/v1/rate-limits", &limit).await, 201);
    served
}

/// Sends a body and expects it to be refused for this field, with nothing changed.
async fn refused(served: &Served, method: &str, path: &str, body: &str, field: &str) {
    let before = served.fake.everything();
    let answer = served.send(method, path, JSON, body.as_bytes()).await;
    let cut = &body[..body.len().min(200)];
    assert_eq!(answer.status, 400, "{method} {path} {cut}: {answer:?}");
    let told = answer.json();
    assert_eq!(told["error"], "INVALID_VALUE", "{cut}");
    assert_eq!(told["field"], field, "{method} {path} {cut}: {told}");
    let reason = told["reason"].as_str().expect("a reason");
    assert!(!reason.is_empty() && reason.len() < 1000, "{reason}");
    assert_eq!(served.fake.everything(), before, "{cut}");
}

/// A body with one field replaced or added.
fn with(body: &Value, field: &str, value: Value) -> String {
    let mut body = body.clone();
    body[field] = value;
    body.to_string()
}

/// Values that are not valid as a name.
fn no_texts() -> Vec<Value> {
    vec![
        Value::Null,
        json!(7),
        json!(true),
        json!([]),
        json!({}),
        json!(["x"]),
    ]
}

#[tokio::test]
async fn every_field_of_a_caller_is_checked_by_name() {
    let served = served().await;
    let new = json!({"label": "n", "match": {"ip": "10.3.0.0/16"}, "groups": ["g"],
                     "notes": "", "weight": 2});
    let at = "/v1/callers";
    let long = "x".repeat(2000);
    for (method, path) in [("POST", at), ("PATCH", "/v1/callers/c3")] {
        let mut new = new.clone();
        if method == "PATCH" {
            new.as_object_mut().expect("an object").remove("match");
        }
        for wrong in
            no_texts()
                .into_iter()
                .chain([json!(""), json!(long), json!("a\u{0}b"), json!("a\nb")])
        {
            refused(&served, method, path, &with(&new, "label", wrong), "label").await;
        }
        for wrong in no_texts()
            .into_iter()
            .chain([json!(long), json!("a\u{7}b")])
        {
            refused(&served, method, path, &with(&new, "notes", wrong), "notes").await;
        }
        for wrong in [
            Value::Null,
            json!("g"),
            json!(1),
            json!({}),
            json!(vec!["g"; 17]),
        ] {
            let body = with(&new, "groups", wrong);
            refused(&served, method, path, &body, "groups").await;
        }
        for wrong in [json!(1), json!(""), json!("a b"), json!("ü"), json!(long)] {
            let body = with(&new, "groups", json!(["g", wrong]));
            refused(&served, method, path, &body, "groups[1]").await;
        }
        for wrong in [
            json!(0),
            json!(-1),
            json!(1.5),
            json!(1e7),
            json!("2"),
            json!([]),
        ] {
            let body = with(&new, "weight", wrong);
            refused(&served, method, path, &body, "weight").await;
        }
        for wrong in ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"] {
            let body = format!("{{\"weight\": {wrong}}}");
            refused(&served, method, path, &body, "weight").await;
        }
        refused(
            &served,
            method,
            path,
            &with(&new, "lable", json!("x")),
            "lable",
        )
        .await;
        refused(&served, method, path, &with(&new, "id", json!("c9")), "id").await;
        let body = with(&new, "rate_limit", json!("r1"));
        refused(&served, method, path, &body, "rate_limit").await;
    }
    refused(
        &served,
        "POST",
        at,
        r#"{"match": {"ip": "10.0.0.1"}}"#,
        "label",
    )
    .await;
    refused(&served, "POST", at, r#"{"label": "x"}"#, "match").await;
    let body = r#"{"match": {"ip": "10.0.0.1"}}"#;
    refused(&served, "PATCH", "/v1/callers/c3", body, "match").await;
}

#[tokio::test]
async fn every_field_of_a_pattern_is_checked_by_its_path() {
    let served = served().await;
    let at = "/v1/callers";
    let body = |patterns: Value| json!({"label": "n", "match": patterns}).to_string();
    for wrong in [
        Value::Null,
        json!("10.0.0.1"),
        json!(1),
        json!([]),
        json!({}),
        json!({"ip": ""}),
        json!({"ip": "*", "user": "*"}),
        json!({"listener": "", "originator": "*"}),
        json!(vec![json!({"ip": "10.0.0.1"}); 257]),
    ] {
        refused(&served, "POST", at, &body(wrong), "match").await;
    }
    let first = json!({"ip": "10.3.0.0/16"});
    let second = |pattern: Value| body(json!([first, pattern]));
    for wrong in [json!({}), json!({"user": "*"}), json!("x"), json!(null)] {
        refused(&served, "POST", at, &second(wrong), "match[1]").await;
    }
    for field in fake::fields() {
        let path = format!("match[1].{field}");
        for wrong in no_texts()
            .into_iter()
            .chain([json!("a\u{1}b"), json!("x".repeat(300))])
        {
            let pattern = json!({ field: wrong });
            refused(&served, "POST", at, &second(pattern), &path).await;
        }
    }
    for wrong in [
        "10.1.2.3.4",
        "10.1.2.0/33",
        "10.1.2.1/24",
        "10.1.2*",
        "::/129",
        "localhost",
        "10.1.2.0/-1",
        "1e3",
    ] {
        let body = body(json!({"ip": wrong}));
        refused(&served, "POST", at, &body, "match.ip").await;
    }
    let body = body(json!({"client_ip": "10.1.2.3"}));
    refused(&served, "POST", at, &body, "match.client_ip").await;
    let twice = r#"{"label": "n", "match": {"ip": "10.1.1.1", "ip": "10.1.1.2"}}"#;
    refused(&served, "POST", at, twice, "match.ip").await;
    let same = json!({"label": "n", "match": [{"ip": "10.1.1.1"}, {"ip": "10.1.1.1/32"}]});
    refused(&served, "POST", at, &same.to_string(), "match").await;
}

#[tokio::test]
async fn every_field_of_a_rate_limit_is_checked_by_name() {
    let served = served().await;
    let at = "/v1/rate-limits";
    let new = json!({"label": "n", "burst": 10, "fill": 2});
    for (method, path) in [("POST", at), ("PATCH", "/v1/rate-limits/r1")] {
        for field in ["burst", "fill"] {
            for wrong in [
                json!(0),
                json!(-1),
                json!(-0.0),
                json!(1e-7),
                json!(1.1e9),
                json!("10"),
                json!(null),
                json!([1]),
                json!({}),
                json!(true),
            ] {
                refused(&served, method, path, &with(&new, field, wrong), field).await;
            }
            for wrong in ["NaN", "Infinity", "-Infinity", "1e999", "+1", "1."] {
                let body = format!("{{\"{field}\": {wrong}}}");
                refused(&served, method, path, &body, field).await;
            }
        }
        for (field, wrongs) in [
            ("mode", json!(["off", "", 1, null, true])),
            ("on_excess", json!(["wait", 1, null])),
            ("order", json!(["lifo", 1, null])),
            ("deadline", json!(["never", 60, null])),
            ("settle", json!(["true", 1, []])),
            ("exempt", json!(["true", 1, null])),
            ("label", json!(["", 1, null, "a\tb"])),
        ] {
            for wrong in wrongs.as_array().expect("a list") {
                let body = with(&new, field, wrong.clone());
                refused(&served, method, path, &body, field).await;
            }
        }
        let body = with(&new, "profile", json!("poller"));
        refused(&served, method, path, &body, "burst").await;
        refused(&served, method, path, &with(&new, "rate", json!(1)), "rate").await;
        refused(
            &served,
            method,
            path,
            &with(&new, "tokens", json!(1)),
            "tokens",
        )
        .await;
    }
    let paced = json!({"label": "n", "kind": "paced", "rate": 10, "ratio": 1.1});
    for (method, path) in [("POST", at), ("PATCH", "/v1/rate-limits/r1")] {
        for (field, wrongs) in [
            (
                "rate",
                json!([0, -1, -0.0, 1e-8, 1.1e9, "10", null, [1], {}, true]),
            ),
            (
                "ratio",
                json!([0, -1, 0.99, 100.1, "1.1", null, [1], {}, true]),
            ),
            ("kind", json!(["bucket", "fast", "", 1, null])),
        ] {
            for wrong in wrongs.as_array().expect("a list") {
                let body = with(&paced, field, wrong.clone());
                refused(&served, method, path, &body, field).await;
            }
        }
        for field in ["rate", "ratio"] {
            for wrong in ["NaN", "Infinity", "-Infinity", "1e999", "+1", "1."] {
                let body = format!("{{\"{field}\": {wrong}}}");
                refused(&served, method, path, &body, field).await;
            }
        }
        let body = with(&new, "kind", json!("paced"));
        refused(&served, method, path, &body, "kind").await;
        let exempt = json!({"label": "n", "kind": "paced", "exempt": true});
        refused(&served, method, path, &exempt.to_string(), "kind").await;
    }
    for (body, field) in [
        (json!({"label": "n", "kind": "paced"}), "rate"),
        (json!({"label": "n", "ratio": 1.5}), "rate"),
        (
            json!({"label": "n", "rate": 1, "profile": "poller"}),
            "rate",
        ),
        (json!({"label": "n"}), "burst"),
        (json!({"label": "n", "fill": 1}), "burst"),
        (json!({"label": "n", "burst": 1}), "fill"),
        (json!({"label": "n", "exempt": false}), "burst"),
        (
            json!({"label": "n", "exempt": true, "profile": "poller"}),
            "profile",
        ),
        (json!({"label": "n", "derive": {}}), "derive.caller"),
        (json!({"label": "n", "derive": []}), "derive"),
        (
            json!({"label": "n", "derive": {"caller": 3}}),
            "derive.caller",
        ),
        (
            json!({"label": "n", "derive": {"caller": "r3"}}),
            "derive.caller",
        ),
        (
            json!({"label": "n", "derive": {"caller": "c3", "window": "2h"}}),
            "derive.window",
        ),
        (
            json!({"label": "n", "derive": {"caller": "c3", "headroom": 0.5}}),
            "derive.headroom",
        ),
        (
            json!({"label": "n", "derive": {"caller": "c3", "head": 2}}),
            "derive.head",
        ),
    ] {
        refused(&served, "POST", at, &body.to_string(), field).await;
    }
    for (wrong, field) in [
        (json!("c3"), "callers"),
        (json!(["c3", "c3"]), "callers"),
        (json!(["c3", 3]), "callers[1]"),
        (json!(["c03"]), "callers[0]"),
        (json!(["c-3"]), "callers[0]"),
        (json!(["3"]), "callers[0]"),
        (json!(["c99999999999999999999"]), "callers[0]"),
    ] {
        refused(&served, "POST", at, &with(&new, "callers", wrong), field).await;
    }
}

#[tokio::test]
async fn every_field_of_costs_merges_and_dry_runs_is_checked_by_name() {
    let served = served().await;
    let costs = json!({"default": 1, "unit_seconds": 0.1, "settle": false, "functions": {}});
    for wrong in [json!(-1), json!(1e6 + 1.0), json!("1"), json!(null)] {
        let body = with(&costs, "default", wrong.clone());
        refused(&served, "PUT", "/v1/costs", &body, "default").await;
        let body = with(&costs, "functions", json!({"guest_start": wrong}));
        refused(&served, "PUT", "/v1/costs", &body, "functions.guest_start").await;
    }
    for wrong in [json!(0), json!(-1), json!(3601), json!("1"), json!(null)] {
        let body = with(&costs, "unit_seconds", wrong);
        refused(&served, "PUT", "/v1/costs", &body, "unit_seconds").await;
    }
    let nan = r#"{"default": 1, "unit_seconds": 0.1, "settle": false,
                    "functions": {"guest_start": NaN}}"#;
    refused(&served, "PUT", "/v1/costs", nan, "functions.guest_start").await;
    let twice = r#"{"default": 1, "unit_seconds": 0.1, "settle": false,
                    "functions": {"a": 1, "a": 2}}"#;
    refused(&served, "PUT", "/v1/costs", twice, "functions.a").await;
    for name in ["b c", ""] {
        let body = with(&costs, "functions", json!({ name: 1 }));
        let field = format!("functions.{name}");
        refused(&served, "PUT", "/v1/costs", &body, &field).await;
    }
    for wrong in [json!([]), json!(1), json!(null)] {
        let body = with(&costs, "functions", wrong);
        refused(&served, "PUT", "/v1/costs", &body, "functions").await;
    }
    let many: serde_json::Map<String, Value> =
        (0..1025).map(|n| (format!("f{n}"), json!(1))).collect();
    let body = with(&costs, "functions", Value::Object(many));
    refused(&served, "PUT", "/v1/costs", &body, "functions").await;
    let long = format!("f{}", "x".repeat(200));
    let body = with(&costs, "functions", json!({ &*long: 1 }));
    refused(
        &served,
        "PUT",
        "/v1/costs",
        &body,
        &format!("functions.{}", &long[..64]),
    )
    .await;
    refused(
        &served,
        "PUT",
        "/v1/costs",
        r#"{"default": 1}"#,
        "unit_seconds",
    )
    .await;
    refused(
        &served,
        "PUT",
        "/v1/costs",
        &with(&costs, "unit", json!(1)),
        "unit",
    )
    .await;

    let at = "/v1/callers/merge";
    for (body, field) in [
        (json!({"into": "c3"}), "from"),
        (json!({"from": ["c2"]}), "into"),
        (json!({"into": 3, "from": ["c2"]}), "into"),
        (json!({"into": "c3", "from": "c2"}), "from"),
        (json!({"into": "c3", "from": []}), "from"),
        (json!({"into": "c3", "from": ["c2", "c2"]}), "from"),
        (json!({"into": "c3", "from": [null]}), "from[0]"),
        (json!({"into": "c3", "from": ["c2"], "label": ""}), "label"),
        (json!({"into": "c3", "from": ["c2"], "with": 1}), "with"),
    ] {
        refused(&served, "POST", at, &body.to_string(), field).await;
    }

    let at = "/v1/classify";
    for field in ["ip", "user_agent", "originator", "user", "listener", "call"] {
        for wrong in no_texts().into_iter().chain([json!("x".repeat(300))]) {
            let body = json!({ field: wrong }).to_string();
            refused(&served, "POST", at, &body, field).await;
        }
    }
    refused(&served, "POST", at, r#"{"ip": "10.0.0.0/8"}"#, "ip").await;
    refused(&served, "POST", at, r#"{"call": ""}"#, "call").await;
    refused(&served, "POST", at, r#"{"function": "x"}"#, "function").await;
}

#[tokio::test]
async fn a_body_that_is_no_object_is_refused_everywhere() {
    let served = served().await;
    for (method, path) in [
        ("POST", "/v1/callers"),
        ("PATCH", "/v1/callers/c3"),
        ("POST", "/v1/callers/merge"),
        ("POST", "/v1/rate-limits"),
        ("PATCH", "/v1/rate-limits/r1"),
        ("PUT", "/v1/costs"),
        ("POST", "/v1/classify"),
    ] {
        for wrong in ["", "null", "1", "\"x\"", "[]", "{", "{}x", "\u{feff}{}"] {
            refused(&served, method, path, wrong, "body").await;
        }
        let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
        let answer = served.send(method, path, JSON, deep.as_bytes()).await;
        assert_eq!(answer.status, 400);
        let wide = format!("[{}1]", "1,".repeat(100_000));
        refused(&served, method, path, &wide, "body").await;
        let answer = served
            .send(method, path, JSON, b"{\"label\": \"\xff\"}")
            .await;
        assert_eq!(answer.status, 400);
    }
}

#[tokio::test]
async fn every_parameter_of_a_query_is_checked_by_name() {
    let served = served().await;
    for (path, field) in [
        ("/v1/callers?sort=size", "sort"),
        ("/v1/callers?sort=", "sort"),
        ("/v1/callers?sort=id&sort=id", "sort"),
        ("/v1/callers?auto=yes", "auto"),
        ("/v1/callers?group=a%20b", "group"),
        ("/v1/callers?limit=-1", "limit"),
        ("/v1/callers?limit=10001", "limit"),
        ("/v1/callers?limit=1e3", "limit"),
        ("/v1/callers?limit=99999999999999999999", "limit"),
        ("/v1/callers?offset=x", "offset"),
        ("/v1/callers?page=1", "page"),
        ("/v1/usage?window=2h", "window"),
        ("/v1/usage?group=", "group"),
        ("/v1/usage?since=1", "since"),
        ("/v1/callers/c2/suggest?headroom=NaN", "headroom"),
        ("/v1/callers/c2/suggest?headroom=inf", "headroom"),
        ("/v1/callers/c2/suggest?headroom=0.9", "headroom"),
        ("/v1/callers/c2/suggest?headroom=-2", "headroom"),
        ("/v1/callers/c2/suggest?window=1d", "window"),
    ] {
        let told = Served::told(served.get(path).await, 400);
        assert_eq!(
            (&told["error"], &told["field"]),
            (&json!("INVALID_VALUE"), &json!(field)),
            "{path}"
        );
    }
}

#[tokio::test]
async fn an_unknown_id_is_named_in_the_answer() {
    let served = served().await;
    let before = served.fake.everything();
    let check = async |method: &str, path: &str, body: Value, what: &str, id: &str| {
        let answer = match body {
            Value::Null => served.send(method, path, "", b"").await,
            body => served.ask(method, path, &body).await,
        };
        let told = Served::told(answer, 404);
        let expected = json!({"error": "UNKNOWN", "what": what, "id": id});
        assert_eq!(told, expected, "{method} {path}");
    };
    let none = Value::Null;
    for id in ["c9", "c09", "9", "r1", "c18446744073709551616", "c", "C3"] {
        let path = format!("/v1/callers/{id}");
        check("GET", &path, none.clone(), "caller", id).await;
        check("DELETE", &path, none.clone(), "caller", id).await;
        check("PATCH", &path, json!({"label": "x"}), "caller", id).await;
        let usage = format!("{path}/usage");
        check("GET", &usage, none.clone(), "caller", id).await;
        let suggest = format!("{path}/suggest");
        check("GET", &suggest, none.clone(), "caller", id).await;
        let attach = format!("/v1/rate-limits/r1/callers/{id}");
        check("PUT", &attach, none.clone(), "caller", id).await;
        check("DELETE", &attach, none.clone(), "caller", id).await;
    }
    for id in ["r9", "r01", "1", "c3", "r4294967296", "r-1"] {
        let path = format!("/v1/rate-limits/{id}");
        check("GET", &path, none.clone(), "rate-limit", id).await;
        check("DELETE", &path, none.clone(), "rate-limit", id).await;
        check("PATCH", &path, json!({"fill": 1}), "rate-limit", id).await;
        let attach = format!("{path}/callers/c3");
        check("PUT", &attach, none.clone(), "rate-limit", id).await;
        check("DELETE", &attach, none.clone(), "rate-limit", id).await;
    }
    let merge = json!({"into": "c9", "from": ["c2"]});
    check("POST", "/v1/callers/merge", merge, "caller", "c9").await;
    let merge = json!({"into": "c3", "from": ["c9"]});
    check("POST", "/v1/callers/merge", merge, "caller", "c9").await;
    let limit = json!({"label": "n", "burst": 1, "fill": 1, "callers": ["c2", "c9"]});
    check("POST", "/v1/rate-limits", limit, "caller", "c9").await;
    let limit = json!({"label": "n", "profile": "none"});
    check("POST", "/v1/rate-limits", limit, "profile", "none").await;
    let limit = json!({"label": "n", "derive": {"caller": "c9"}});
    check("POST", "/v1/rate-limits", limit, "caller", "c9").await;
    check("GET", "/v1/usage?group=missing", none, "group", "missing").await;
    assert_eq!(served.fake.everything(), before);
}

#[tokio::test]
async fn a_conflict_is_reported_and_nothing_changes() {
    let served = served().await;
    let before = served.fake.everything();
    let check = async |method: &str, path: &str, body: Value, expected: Value| {
        let answer = match body {
            Value::Null => served.send(method, path, "", b"").await,
            body => served.ask(method, path, &body).await,
        };
        let mut told = Served::told(answer, 409);
        if expected.get("reason").is_none() {
            told.as_object_mut().expect("an object").remove("reason");
        }
        assert_eq!(told, expected, "{method} {path}");
    };
    let mut twin = monitoring();
    twin["label"] = json!("twin");
    let holder = json!({"error": "PATTERN_EXISTS", "id": "c3"});
    check("POST", "/v1/callers", twin, holder).await;
    let limit = json!({"label": "m", "burst": 1, "fill": 1});
    let holder = json!({"error": "LABEL_EXISTS", "id": "r1"});
    check("POST", "/v1/rate-limits", limit, holder).await;
    let conflict = |field: &str| json!({"error": "CONFLICT", "field": field});
    let label = json!({"label": "x"});
    check("PATCH", "/v1/callers/c1", label.clone(), conflict("id")).await;
    check("PATCH", "/v1/callers/c0", label, conflict("id")).await;
    check("DELETE", "/v1/callers/c1", Value::Null, conflict("id")).await;
    check("DELETE", "/v1/callers/c0", Value::Null, conflict("id")).await;
    let merge = json!({"into": "c3", "from": ["c1"]});
    check("POST", "/v1/callers/merge", merge, conflict("id")).await;
    let merge = json!({"into": "c3", "from": ["c2"]});
    check("POST", "/v1/callers/merge", merge, conflict("from")).await;
    for from in [json!(["c3"]), json!(["c2", "c3"])] {
        let itself = json!({"into": "c3", "from": from});
        check("POST", "/v1/callers/merge", itself, conflict("from")).await;
    }
    let path = "/v1/rate-limits/r1/callers/c1";
    check("PUT", path, Value::Null, conflict("id")).await;
    assert_eq!(served.fake.everything(), before);
}

#[tokio::test]
async fn a_change_that_cannot_be_saved_is_not_made() {
    let served = served().await;
    served.fake.fill_the_disk();
    let before = served.fake.everything();
    for (method, path, body) in [
        (
            "POST",
            "/v1/callers",
            json!({"label": "n", "match": {"user": "u"}}),
        ),
        ("PATCH", "/v1/callers/c3", json!({"label": "n"})),
        ("DELETE", "/v1/callers/c3", json!({})),
        (
            "POST",
            "/v1/callers/merge",
            json!({"into": "c3", "from": ["c2"]}),
        ),
        (
            "POST",
            "/v1/rate-limits",
            json!({"label": "n", "exempt": true}),
        ),
        ("PATCH", "/v1/rate-limits/r1", json!({"fill": 2})),
        ("DELETE", "/v1/rate-limits/r1", json!({})),
        ("PUT", "/v1/rate-limits/r1/callers/c2", json!({})),
        ("DELETE", "/v1/rate-limits/r1/callers/c3", json!({})),
        (
            "PUT",
            "/v1/costs",
            json!({"default": 2, "unit_seconds": 1, "settle": false, "functions": {}}),
        ),
    ] {
        let told = Served::told(served.ask(method, path, &body).await, 507);
        let expected = json!({"error": "NOT_SAVED", "reason": "no space left on device"});
        assert_eq!(told, expected, "{method} {path}");
    }
    assert_eq!(served.fake.everything(), before);
}

#[tokio::test]
async fn a_method_that_is_not_allowed_is_answered_with_those_that_are() {
    let served = served().await;
    let before = served.fake.everything();
    for (path, allowed) in [
        ("/v1/callers", "GET,HEAD,POST"),
        ("/v1/callers/c3", "GET,HEAD,PATCH,DELETE"),
        ("/v1/callers/merge", "POST"),
        ("/v1/callers/c3/usage", "GET,HEAD"),
        ("/v1/callers/c3/suggest", "GET,HEAD"),
        ("/v1/usage", "GET,HEAD"),
        ("/v1/rate-limits", "GET,HEAD,POST"),
        ("/v1/rate-limits/r1", "GET,HEAD,PATCH,DELETE"),
        ("/v1/rate-limits/r1/callers/c3", "PUT,DELETE"),
        ("/v1/profiles", "GET,HEAD"),
        ("/v1/costs", "GET,HEAD,PUT"),
        ("/v1/costs/suggested", "GET,HEAD"),
        ("/v1/classify", "POST"),
        ("/v1/calls/0123456789abcdef", "GET,HEAD"),
        ("/v1/debug/limiters", "GET,HEAD"),
        ("/v1/debug/queues", "GET,HEAD"),
        ("/v1/debug/requests", "GET,HEAD"),
        ("/v1/openapi.json", "GET,HEAD"),
    ] {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
            if allowed.split(',').any(|allowed| allowed == method) {
                continue;
            }
            let answer = served.send(method, path, JSON, b"{}").await;
            assert_eq!(answer.status, 405, "{method} {path}");
            let told: std::collections::BTreeSet<&str> = answer
                .header("allow")
                .expect("Allow is there")
                .split(',')
                .collect();
            assert_eq!(told, allowed.split(',').collect(), "{path}");
            assert!(answer.json()["error"].is_string());
        }
    }
    assert_eq!(served.fake.everything(), before);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_however_it_is_sent() {
    let served = served().await;
    let before = served.fake.everything();
    let too_large = |answer: crate::support::Answer| {
        let told = Served::told(answer, 413);
        assert_eq!(
            (&told["error"], &told["field"]),
            (&json!("TOO_LARGE"), &json!("body"))
        );
    };
    for bytes in [(1 << 20) + 1, 10_000_000] {
        let mut body = b"{\"label\": \"".to_vec();
        body.resize(bytes, b'x');
        too_large(served.send("POST", "/v1/callers", JSON, &body).await);
    }
    // A client that asks before it sends gets the refusal before it sends.
    let head = format!("{JSON}Expect: 100-continue\r\nContent-Length: 10000000\r\n");
    let request = format!(
        "POST /v1/callers HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{head}\r\n",
        served.address
    );
    let answer = crate::support::ask(served.address, request).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // Chunks do not say how much there is.
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000)).repeat(20);
    let request = format!(
        "POST /v1/callers HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{JSON}\
         Transfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n",
        served.address
    );
    let answer = crate::support::ask(served.address, request).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // The largest that is taken is read, and found to be wrong for another reason.
    let mut body = b"{\"label\": \"".to_vec();
    body.resize((1 << 20) - 2, b'x');
    body.extend_from_slice(b"\"}");
    let told = Served::told(served.send("POST", "/v1/callers", JSON, &body).await, 400);
    assert_eq!(told["field"], "label");
    assert_eq!(served.fake.everything(), before);
}

#[tokio::test]
async fn a_body_that_does_not_say_that_it_is_json_is_not_read() {
    let served = served().await;
    let before = served.fake.everything();
    let body = json!({"label": "n", "match": {"user": "u"}}).to_string();
    for kind in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: multipart/form-data\r\n",
        "Content-Type: application/jsonx\r\n",
        "Content-Type: application/json\r\nContent-Type: text/plain\r\n",
    ] {
        let answer = served
            .send("POST", "/v1/callers", kind, body.as_bytes())
            .await;
        let told = Served::told(answer, 415);
        assert_eq!(told["field"], "content-type", "{kind}");
    }
    assert_eq!(served.fake.everything(), before);
    let kind = "Content-Type: Application/JSON; charset=utf-8\r\n";
    let answer = served
        .send("POST", "/v1/callers", kind, body.as_bytes())
        .await;
    assert_eq!(answer.status, 201);
}

#[tokio::test]
async fn a_page_of_another_origin_changes_nothing() {
    let served = served().await;
    let before = served.fake.everything();
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        for (method, path) in [
            ("POST", "/v1/callers"),
            ("DELETE", "/v1/callers/c3"),
            ("PUT", "/v1/rate-limits/r1/callers/c2"),
        ] {
            let headers = format!("{JSON}Origin: {origin}\r\n");
            let answer = served.send(method, path, &headers, b"{}").await;
            let told = Served::told(answer, 403);
            assert_eq!(told["error"], "FORBIDDEN");
        }
    }
    // A name of the page's own that was made to lead here.
    let request = "DELETE /v1/callers/c3 HTTP/1.1\r\nHost: evil.example\r\n\
                   Origin: http://evil.example\r\nConnection: close\r\n\r\n";
    let answer = crate::support::ask(served.address, request).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert_eq!(served.fake.everything(), before);
    let own = format!("Origin: http://{}\r\n", served.address);
    let answer = served.send("DELETE", "/v1/callers/c3", &own, b"").await;
    assert_eq!(answer.status, 204);
}

#[tokio::test]
async fn without_the_token_nothing_is_shown_or_changed() {
    let served = Served::with(Some("s3cret")).await;
    let before = served.fake.everything();
    let body = monitoring().to_string();
    for headers in ["", "Authorization: Bearer wrong\r\n"] {
        let headers = format!("{JSON}{headers}");
        for (method, path) in [
            ("GET", "/v1/callers"),
            ("POST", "/v1/callers"),
            ("DELETE", "/v1/callers/c2"),
            ("GET", "/v1/openapi.json"),
        ] {
            let answer = served.send(method, path, &headers, body.as_bytes()).await;
            assert_eq!(answer.status, 401, "{method} {path}");
        }
    }
    assert_eq!(served.fake.everything(), before);
    let right = format!("{JSON}Authorization: Bearer s3cret\r\n");
    let answer = served
        .send("POST", "/v1/callers", &right, body.as_bytes())
        .await;
    assert_eq!(answer.status, 201);
}
