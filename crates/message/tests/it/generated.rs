//! Messages that proptest makes, read by both readers.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::oracle::BothReaders;

/// Keys that often meet a step of a pointer, or nearly do.
const KEYS: [&str; 12] = [
    "method",
    "params",
    "name",
    "0",
    "1",
    "",
    "a/b",
    "Method",
    "NAME",
    "x",
    "param\u{17f}",
    "é",
];
const POINTERS: [&str; 6] = [
    "/method",
    "/params/name",
    "/params/0",
    "/params/1/name",
    "//é",
    "/a~1b",
];

/// Spaces, or none.
fn spaced(token: impl Into<String>) -> impl Strategy<Value = String> {
    let token = token.into();
    (
        select(&["", "", "", " ", "\t", "\r\n  "][..]),
        any::<bool>(),
    )
        .prop_map(move |(space, before)| match before {
            true => format!("{space}{token}"),
            false => format!("{token}{space}"),
        })
}

/// A string in one of its spellings: each character as it is, or as an escape.
fn spelt(text: String) -> impl Strategy<Value = String> {
    let count = text.chars().count();
    prop::collection::vec(0..8u8, count).prop_map(move |spellings| {
        let mut raw = String::from("\"");
        for (character, spelling) in text.chars().zip(spellings) {
            match (character, spelling) {
                ('"' | '\\', 1..) => raw.extend(['\\', character]),
                ('/', 0..4) => raw.push_str("\\/"),
                ('\n', 1..) => raw.push_str("\\n"),
                (_, 1..) if character >= ' ' => raw.push(character),
                _ => {
                    let mut units = [0; 2];
                    for unit in character.encode_utf16(&mut units) {
                        raw.push_str(&match spelling {
                            0 => format!("\\u{unit:04x}"),
                            _ => format!("\\u{unit:04X}"),
                        });
                    }
                }
            }
        }
        raw + "\""
    })
}

fn string() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{0,3}",
        "[ -~]{0,40}",
        any::<String>(),
        select(&KEYS[..]).prop_map(str::to_owned),
    ]
    .prop_flat_map(spelt)
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => select(&KEYS[..]).prop_map(str::to_owned).prop_flat_map(spelt),
        1 => select(&KEYS[..]).prop_map(|key| format!("\"{key}\"")),
        1 => string(),
        1 => Just(r#""\ud800""#.to_owned()),
    ]
}

fn scalar() -> impl Strategy<Value = String> {
    prop_oneof![
        string(),
        "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,12})?([eE][+-]?[0-9]{1,4})?",
        select(&["true", "false", "null", r#""\udc00""#, r#""\u0000""#][..])
            .prop_map(str::to_owned),
    ]
}

/// A value of JSON. Keys may occur twice.
fn value() -> impl Strategy<Value = String> {
    scalar()
        .prop_flat_map(spaced)
        .prop_recursive(5, 60, 5, |inner| {
            let member = (key().prop_flat_map(spaced), inner.clone());
            let member = member.prop_map(|(key, value)| format!("{key}:{value}"));
            prop_oneof![
                prop::collection::vec(inner, 0..5).prop_map(|it| format!("[{}]", it.join(","))),
                prop::collection::vec(member, 0..6).prop_map(|it| format!("{{{}}}", it.join(", "))),
            ]
            .prop_flat_map(spaced)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn both_readers_agree_on_generated_messages(body in value()) {
        BothReaders::new(&POINTERS).compare(body.as_bytes()).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn both_readers_agree_on_damaged_messages(
        body in value(),
        damages in prop::collection::vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        let mut body = body.into_bytes();
        for (place, byte) in damages {
            let at = place.index(body.len());
            body[at] = byte;
        }
        BothReaders::new(&POINTERS).compare(&body).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn the_second_reader_refuses_what_the_rules_refuse() {
    let readers = BothReaders::new(&POINTERS);
    for (body, is_readable) in [
        (r#"{"method":"a","params":{"name":"b"}}"#, true),
        (r#"{"method":"a","method":"b"}"#, false),
        (r#"{"METHOD":"a"}"#, false),
        (r#"{"method":"\ud800"}"#, false),
        (r#"{"\ud800":1}"#, false),
        (r#"{"x":{"\ud800":1,"method":1,"method":2}}"#, true),
    ] {
        assert_eq!(readers.compare(body.as_bytes()), Ok(is_readable), "{body}");
    }
}
