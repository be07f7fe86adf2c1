//! Arrays that are accepted as a call, the refusal of everything else, and what is read of a call.

use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde_json::Value;
use tidegate_zvm::array::{BadArray, parse};

use crate::framer::array_text;

/// The number of bytes that the backend reads at once.
const READS: usize = 4096;

#[test]
fn a_call_goes_on_byte_for_byte() {
    let request = r#"["guest_get_info", ["HRX0018"], {}]"#;
    let call = parse(request.as_bytes(), READS).expect("a good request");
    assert_eq!(&call.bytes[..], request.as_bytes());
    assert_eq!(&*call.function, "guest_get_info");
    assert_eq!(call.target.as_deref(), Some("HRX0018"));
}

#[test]
fn white_space_around_it_is_dropped_and_that_within_is_kept() {
    let call = parse(b"\r\n [ \"f\",\t[ ] , { } ] \n", READS).expect("a good request");
    assert_eq!(&call.bytes[..], b"[ \"f\",\t[ ] , { } ]");
}

#[test]
fn odd_input_is_refused_with_a_reason() {
    use BadArray::{BadArgs, BadKwargs, BadName, NotThree, NotUtf8};
    check_refused(b"", not_json(1, 0));
    check_refused(b"hello", not_json(1, 1));
    check_refused(b"[\"f\", [], {}", not_json(1, 12));
    check_refused(b"[\"f\", [], {}][\"g\", [], {}]", not_json(1, 14));
    check_refused(b"[\"f\", [],\n {},]", not_json(2, 5));
    check_refused(b"[\"f\", [nan], {}]", not_json(1, 9));
    check_refused(b"[\"f\", [-NaN], {}]", not_json(1, 9));
    check_refused(b"[\"f\", [\"\x01\"], {}]", not_json(1, 8));
    check_refused(b"[\"f\", [\"\xff\"], {}]", NotUtf8);
    check_refused(b"{}", NotThree);
    check_refused(b"7", NotThree);
    check_refused(b"[]", NotThree);
    check_refused(b"[\"f\", []]", NotThree);
    check_refused(b"[\"f\", [], {}, 1]", NotThree);
    check_refused(b"[7, [], {}]", BadName);
    check_refused(b"[null, [], {}]", BadName);
    check_refused(b"[\"\", [], {}]", BadName);
    check_refused(b"[\"a\\nb\", [], {}]", BadName);
    check_refused(b"[\"\\ud800\", [], {}]", BadName);
    check_refused(b"[\"f\", {}, {}]", BadArgs);
    check_refused(b"[\"f\", \"x\", {}]", BadArgs);
    check_refused(b"[\"f\", [], null]", BadKwargs);
    check_refused(b"[\"f\", [], []]", BadKwargs);
}

fn not_json(line: usize, column: usize) -> BadArray {
    BadArray::NotJson { line, column }
}

fn check_refused(request: &[u8], why: BadArray) {
    assert_eq!(
        parse(request, READS),
        Err(why),
        "{}",
        request.escape_ascii()
    );
    let told = why.to_string();
    assert!(told.is_ascii() && !told.is_empty());
}

#[test]
fn a_name_may_have_128_bytes_and_be_escaped() {
    let longest = "x".repeat(128);
    let call = parse(format!(r#"["{longest}", [], {{}}]"#).as_bytes(), READS);
    assert_eq!(&*call.expect("128 fit").function, longest);
    let call = parse(format!(r#"["{longest}x", [], {{}}]"#).as_bytes(), READS);
    assert_eq!(call, Err(BadArray::BadName));
    let call = parse(br#"["gu\u0065st_list", [], {}]"#, READS).expect("a good request");
    assert_eq!(&*call.function, "guest_list");
}

#[test]
fn the_userid_is_taken_where_it_is_one() {
    check_target("guest_start", r#"["HRX0018", 5]"#, "{}", Some("HRX0018"));
    check_target("guest_start", r#"[ "a$#@_-9" ]"#, "{}", Some("a$#@_-9"));
    check_target("guest_start", "[]", r#"{"userid": "X"}"#, Some("X"));
    check_target("guest_start", "[ ]", r#"{"a":1,"userid":"X"}"#, Some("X"));
    check_target(
        "guest_start",
        "[]",
        r#"{"userid": "X", "userid": "Y"}"#,
        Some("Y"),
    );
    check_target("get_volume_connector", r#"["X"]"#, "{}", Some("X"));
}

#[test]
fn no_other_argument_is_ever_taken() {
    check_target("guest_start", r#"["ninechars"]"#, "{}", None);
    check_target("guest_start", r#"[""]"#, "{}", None);
    check_target("guest_start", r#"["pa ss"]"#, "{}", None);
    check_target("guest_start", r#"["X\"Y"]"#, "{}", None);
    check_target("guest_start", r#"["\u0041"]"#, "{}", None);
    check_target("guest_start", "[\"\u{dc}BER\"]", "{}", None);
    check_target("guest_start", r#"[["X"]]"#, "{}", None);
    check_target("guest_start", r#"[7, "X"]"#, "{}", None);
    check_target("guest_start", "[]", r#"{"passwd": "X"}"#, None);
    check_target("guest_start", "[]", r#"{"a": {"userid": "X"}}"#, None);
    check_target("guest_start", "[]", r#"{"userid": ["X"]}"#, None);
    check_target("volume_attach", r#"["X"]"#, "{}", None);
    check_target("vswitch_create", r#"["X"]"#, r#"{"userid": "X"}"#, None);
}

fn check_target(function: &str, args: &str, kwargs: &str, target: Option<&str>) {
    let request = format!(r#"["{function}", {args}, {kwargs}]"#);
    let call = parse(request.as_bytes(), READS).expect("a good request");
    assert_eq!(call.target.as_deref(), target, "{request}");
}

#[test]
fn a_call_too_large_is_compacted_and_otherwise_untouched() {
    let request =
        r#"[ "f" , [ "a b\" \\" , 1.50E+3 , "\u0041\/" , 123456789012345678901 ] , { } ]"#;
    let compact = r#"["f",["a b\" \\",1.50E+3,"\u0041\/",123456789012345678901],{}]"#;
    let whole = parse(request.as_bytes(), request.len()).expect("it fits as it is");
    assert_eq!(&whole.bytes[..], request.as_bytes());
    let less = parse(request.as_bytes(), request.len() - 1).expect("it fits compacted");
    assert_eq!(&less.bytes[..], compact.as_bytes());
    let least = parse(request.as_bytes(), compact.len()).expect("it just fits compacted");
    assert_eq!(&least.bytes[..], compact.as_bytes());
    let refused = parse(request.as_bytes(), compact.len() - 1).expect_err("one byte too many");
    let too_large = BadArray::TooLarge {
        bytes: compact.len(),
        bytes_max: compact.len() - 1,
    };
    assert_eq!(refused, too_large);
}

#[test]
fn a_guest_with_140_disks_fits_as_python_could_not_send_it() {
    let disk = r#"{"size": "10g", "is_boot": 1}"#;
    let disks = vec![disk; 140].join(", ");
    let request = format!(r#"["guest_create", ["U1"], {{"disk_list": [{disks}]}}]"#);
    assert!(request.len() > READS);
    let call = parse(request.as_bytes(), READS).expect("it fits without its spaces");
    assert!(call.bytes.len() <= READS);
    assert_eq!(
        serde_json::from_slice::<Value>(&call.bytes).expect("JSON"),
        serde_json::from_str::<Value>(&request).expect("JSON")
    );
}

#[test]
fn a_megabyte_of_nesting_or_of_text_is_refused_without_harm() {
    let nesting = vec![b'['; 1 << 20];
    assert!(matches!(
        parse(&nesting, READS),
        Err(BadArray::NotJson { .. })
    ));
    let deep = "[".repeat(1 << 19) + &"]".repeat(1 << 19);
    assert_eq!(parse(deep.as_bytes(), READS), Err(BadArray::NotThree));
    let text = format!(r#"["f", ["{}"], {{}}]"#, "x".repeat(1 << 20));
    assert!(matches!(
        parse(text.as_bytes(), READS),
        Err(BadArray::TooLarge { .. })
    ));
}

#[test]
fn no_refusal_quotes_the_request() {
    for request in [
        &b"[\"f\", [hunter2], {}]"[..],
        b"[\"f\", \"hunter2\", {}]",
        b"[\"f\", [\"hunter2\"]]",
        b"\"hunter2\"",
        b"[\"f\\nhunter2\", [], {}]",
    ] {
        let refused = parse(request, READS).expect_err("none of these is a call");
        assert!(!refused.to_string().contains("hunter2"));
        assert!(!format!("{refused:?}").contains("hunter2"));
    }
}

/// Calls, and what is nearly one: a third of them have one byte changed.
fn call_bytes() -> impl Strategy<Value = Vec<u8>> {
    let change = (0..3, any::<prop::sample::Index>(), any::<u8>());
    (any::<String>(), array_text(), array_text(), change).prop_map(
        |(name, args, kwargs, change)| {
            let name = Value::from(name);
            let mut bytes = format!(r#"[{name}, {args}, {{"k": {kwargs}}}]"#).into_bytes();
            if let (0, at, byte) = change {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn it_takes_exactly_the_calls_among_what_serde_json_takes(bytes in call_bytes()) {
        let text = std::str::from_utf8(&bytes);
        let is_json = text.is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
        let value = serde_json::from_slice::<Value>(&bytes);
        // Half a surrogate pair and a number beyond f64 are JSON, but not to every reader.
        prop_assume!(is_json == value.is_ok());
        let is_call = value.is_ok_and(|value| match value.as_array().map(Vec::as_slice) {
            Some([Value::String(name), Value::Array(_), Value::Object(_)]) => {
                matches!(name.len(), 1..=128) && !name.contains(char::is_control)
            }
            _ => false,
        });
        prop_assert_eq!(parse(&bytes, usize::MAX).is_ok(), is_call);
    }

    #[test]
    fn compacting_changes_no_value(args in array_text(), kwargs in array_text()) {
        let request = format!(r#"["f",{args}, {{"k" : {kwargs}}}]"#);
        let before: Value = serde_json::from_str(&request).expect("JSON");
        match parse(request.as_bytes(), request.len() - 1) {
            Ok(call) => {
                let after: Value = serde_json::from_slice(&call.bytes).expect("JSON");
                prop_assert_eq!(before, after);
            }
            Err(refused) => prop_assert!(false, "{}", refused),
        }
    }
}
