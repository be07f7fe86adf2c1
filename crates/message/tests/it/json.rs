//! The rules of messages in JSON, one by one.

use std::borrow::Cow;

use tidegate_message::{JsonPointers, JsonValue, Unreadable, is_batch};

fn set(places: &[&str]) -> JsonPointers {
    let pointers = places.iter().map(|place| place.parse().expect("a pointer"));
    JsonPointers::new(pointers).expect("a set")
}

/// A short form of what is at a place.
fn shown(value: Option<&JsonValue<'_>>) -> String {
    match value {
        None => "absent".into(),
        Some(JsonValue::Null) => "null".into(),
        Some(JsonValue::Bool(value)) => value.to_string(),
        Some(JsonValue::Number(number)) => number.as_str().into(),
        Some(JsonValue::String(text)) => format!("'{text}'"),
        Some(JsonValue::Array) => "array".into(),
        Some(JsonValue::Object) => "object".into(),
    }
}

fn check(body: &str, place: &str, expected: &str) {
    let set = set(&[place]);
    let found = set.find(body.as_bytes());
    let found = found.unwrap_or_else(|reason| panic!("{body}: {reason}"));
    assert_eq!(shown(found.get(0)), expected, "{place} of {body}");
}

fn check_unreadable(body: &str, place: &str, expected: Unreadable) {
    assert_eq!(set(&[place]).find(body.as_bytes()), Err(expected), "{body}");
}

#[test]
fn every_kind_of_value_is_found() {
    let body = r#"{"a":null,"b":true,"c":false,"d":-1.5e3,"e":"x","f":[],"g":{},"h":""}"#;
    for (place, expected) in [
        ("/a", "null"),
        ("/b", "true"),
        ("/c", "false"),
        ("/d", "-1.5e3"),
        ("/e", "'x'"),
        ("/f", "array"),
        ("/g", "object"),
        ("/h", "''"),
        ("/i", "absent"),
        ("/e/x", "absent"),
        ("/f/0", "absent"),
        ("/a/0", "absent"),
        ("", "object"),
    ] {
        check(body, place, expected);
    }
}

#[test]
fn a_number_picks_an_element_of_an_array_and_a_key_of_an_object() {
    check(r#"{"params":["a",["b","c"]]}"#, "/params/0", "'a'");
    check(r#"{"params":["a",["b","c"]]}"#, "/params/1/1", "'c'");
    check(r#"{"params":["a",["b","c"]]}"#, "/params/2", "absent");
    check(r#"{"params":{"0":"a"}}"#, "/params/0", "'a'");
    check(r#"{"params":["a"]}"#, "/params/00", "absent");
    check(r#"{"params":["a"]}"#, "/params/-", "absent");
}

#[test]
fn several_places_are_found_in_one_pass_and_handed_out_in_their_order() {
    let set = set(&["/c", "/a/b", "/a", "/a/b", "/x", "/a/d/1"]);
    let body = br#"{"a":{"b":1,"d":[2,3]},"c":"y"}"#;
    let found = set.find(body).expect("readable");
    let shown: Vec<_> = found.iter().map(shown).collect();
    assert_eq!(shown, ["'y'", "1", "object", "1", "absent", "3"]);
}

#[test]
fn a_string_is_borrowed_unless_it_has_escapes() {
    let set = set(&["/a", "/b"]);
    let body = r#"{"a":"é","b":"\u00e9\ud83d\ude00\n"}"#;
    let found = set.find(body.as_bytes()).expect("readable");
    let is_borrowed = matches!(found.get(0), Some(JsonValue::String(Cow::Borrowed("é"))));
    assert!(is_borrowed);
    let text = found.get(1).and_then(|value| value.as_str());
    assert_eq!(text, Some("é\u{1f600}\n"));
}

#[test]
fn keys_and_pointers_are_compared_without_their_escapes() {
    check(r#"{"m\u0065th\/o~d":1}"#, "/meth~1o~0d", "1");
    check(r#"{"\u00e9":1}"#, "/é", "1");
    check(r#"{"":{"":1}}"#, "//", "1");
    check(r#"{"a\b":1}"#, r"/a\b", "absent");
    check(r#"{"a\\b":1}"#, r"/a\b", "1");
}

#[test]
fn the_reason_says_where_the_body_is_wrong() {
    let not_json = |at| Unreadable::NotJson { at };
    check_unreadable("", "/a", not_json(0));
    check_unreadable(r#"{"a":1"#, "/a", not_json(6));
    check_unreadable(r#"{"a":1,}"#, "/a", not_json(7));
    check_unreadable(r#"{"b":[1,{"c":tru}]}"#, "/a", not_json(13));
    check_unreadable(r#"{"b":["x\q"]}"#, "/a", not_json(6));
    check_unreadable(r#"{"b":[1 2]}"#, "/a", not_json(8));
    check_unreadable(r#"{"a":1}}"#, "/a", Unreadable::BehindEnd { at: 7 });
    check_unreadable(r#"{"a":1} 2"#, "/a", Unreadable::BehindEnd { at: 8 });
}

#[test]
fn nesting_counts_every_container_on_the_way() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let set = set(&["/a/0/b"]);
    for (body, expected) in [
        (nested(64), Ok(())),
        (nested(65), Err(Unreadable::TooDeep)),
        (format!(r#"{{"x":{}}}"#, nested(63)), Ok(())),
        (
            format!(r#"{{"x":{}}}"#, nested(64)),
            Err(Unreadable::TooDeep),
        ),
        (format!(r#"{{"a":[{{"b":{}}}]}}"#, nested(61)), Ok(())),
        (
            format!(r#"{{"a":[{{"b":{}}}]}}"#, nested(62)),
            Err(Unreadable::TooDeep),
        ),
    ] {
        assert_eq!(set.find(body.as_bytes()).map(drop), expected, "{body}");
        let batch = format!("[{body}]");
        if body.starts_with('{') && expected.is_ok() {
            let read = set.find_each(batch.as_bytes(), 9, drop);
            assert_eq!(read, Err(Unreadable::TooDeep), "{batch}");
        }
    }
}

#[test]
fn each_element_of_a_batch_has_values_of_its_own() {
    let set = set(&["/method", "/params/0"]);
    let body = br#" [ {"method":"a","params":[1]} , {}, {"method":"b"} ] "#;
    assert!(is_batch(body) && !is_batch(b"{}") && !is_batch(b""));
    let mut found = Vec::new();
    let count = set.find_each(body, 3, |values| {
        found.push([shown(values.get(0)), shown(values.get(1))]);
    });
    assert_eq!(count, Ok(3));
    let expected = [["'a'", "1"], ["absent", "absent"], ["'b'", "absent"]];
    assert_eq!(found, expected);
}

#[test]
fn a_body_that_is_no_batch_of_calls_is_unreadable() {
    let set = set(&["/method"]);
    for (body, expected) in [
        ("{}", Unreadable::NotABatch),
        ("", Unreadable::NotJson { at: 0 }),
        ("[", Unreadable::NotJson { at: 1 }),
        ("[]", Unreadable::EmptyBatch),
        ("[{},[{}]]", Unreadable::BatchInBatch { at: 4 }),
        ("[{},1]", Unreadable::ElementNotAnObject { at: 4 }),
        ("[{},{},{}]", Unreadable::BatchTooLarge { elements_max: 2 }),
        ("[{},{}", Unreadable::NotJson { at: 6 }),
        ("[{},{}]]", Unreadable::BehindEnd { at: 7 }),
        ("[{},]", Unreadable::ElementNotAnObject { at: 4 }),
        (
            r#"[{"method":1,"method":2}]"#,
            Unreadable::KeyTwice { at: 14 },
        ),
        (r#"[{"Method":1}]"#, Unreadable::KeyOtherCase { at: 3 }),
    ] {
        assert_eq!(
            set.find_each(body.as_bytes(), 2, drop),
            Err(expected),
            "{body}"
        );
    }
}

#[test]
fn a_key_may_occur_twice_where_it_leads_to_no_wanted_value() {
    check(
        r#"{"x":1,"x":2,"a":{"B":1,"b":[{"a":1,"A":2,"a":3}]}}"#,
        "/a/c",
        "absent",
    );
    check(r#"[{"a":1},{"a":1,"A":2,"a":3}]"#, "/0/a", "1");
}

#[test]
fn a_message_is_read_the_same_wherever_its_words_of_eight_bytes_begin() {
    for before in 0..40 {
        for length in 0..40 {
            let (space, text) = (" ".repeat(before), "x".repeat(length));
            let digits = "7".repeat(length + 1);
            let body = format!(r#"{space}{{"{text}y":"{text}\"","n":[{digits}],"a":"{text}"}}"#);
            check(&body, "/a", &format!("'{text}'"));
            check(&body, "/n/0", &digits);
            for wrong in ["\n", "\u{1f}", "\0"] {
                let body = body.replace("x\\\"", &format!("{wrong}\\\""));
                let is_read = set(&["/a"]).find(body.as_bytes()).is_ok();
                assert_eq!(is_read, length == 0, "{body}");
            }
        }
    }
}
