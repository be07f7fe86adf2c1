//! The end of a request is found wherever the bytes are split, and only there.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use tidegate_zvm::framer::{DEPTH_MAX, FrameError, FrameStatus, Framer};

const PLENTY: usize = 1 << 21;

fn whole(bytes: &[u8]) -> FrameStatus {
    Framer::new(PLENTY).push(bytes)
}

/// Pushes pieces of these lengths, in turn, until the framer has made up its mind.
fn in_pieces(bytes: &[u8], lengths: &[usize]) -> FrameStatus {
    let mut framer = Framer::new(PLENTY);
    let mut rest = bytes;
    let mut lengths = lengths.iter().copied().cycle();
    while !rest.is_empty() {
        let length = lengths.next().unwrap_or(1).min(rest.len());
        let (piece, later) = rest.split_at(length);
        let framed = framer.push(piece);
        if framed != FrameStatus::More {
            return framed;
        }
        rest = later;
    }
    FrameStatus::More
}

/// JSON arrays as text, with white space, escapes and characters beyond ASCII in them.
pub(crate) fn array_text() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        any::<i64>().prop_map(|number| number.to_string()),
        Just("-1.50e+300".to_owned()),
        any::<String>().prop_map(|text| Value::from(text).to_string()),
        "[ -~]{0,40}".prop_map(|text| Value::from(text).to_string()),
        Just(r#""\u005d\ud83d\ude00\\\"]""#.to_owned()),
    ];
    let space = "[ \t\r\n]{0,2}";
    let value = leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            (vec(inner.clone(), 0..6), space)
                .prop_map(|(items, s)| format!("[{s}{}{s}]", items.join(&format!("{s},")))),
            (vec((any::<String>(), inner), 0..6), space).prop_map(|(pairs, s)| {
                let pairs: Vec<String> = pairs
                    .into_iter()
                    .map(|(key, value)| format!("{}{s}:{value}", Value::from(key)))
                    .collect();
                format!("{{{}{s}}}", pairs.join(","))
            }),
        ]
    });
    (vec(value, 0..4), space).prop_map(|(items, s)| format!("{s}[{}]", items.join(", ")))
}

proptest! {
    #[test]
    fn the_end_is_where_serde_json_sees_it(text in array_text(), after in ".{0,8}") {
        serde_json::from_str::<Value>(&text).expect("the strategy makes JSON");
        let bytes = format!("{text}{after}").into_bytes();
        prop_assert_eq!(whole(&bytes), FrameStatus::End(text.len()));
    }

    #[test]
    fn any_split_gives_the_same_result(
        text in array_text(),
        flip in any::<(prop::sample::Index, u8)>(),
        flipped in any::<bool>(),
        lengths in vec(1_usize..7, 1..8),
    ) {
        let mut bytes = text.into_bytes();
        if flipped {
            let at = flip.0.index(bytes.len());
            bytes[at] = flip.1;
        }
        prop_assert_eq!(in_pieces(&bytes, &lengths), whole(&bytes));
        prop_assert_eq!(in_pieces(&bytes, &[1]), whole(&bytes));
    }

    #[test]
    fn arrays_that_serde_json_accepts_are_never_cut_or_refused(
        inside in vec(prop::sample::select(&br#"[]{}",:\ 01eE-.u"#[..]), 0..7),
    ) {
        let bytes = [b"[", &inside[..], b"]"].concat();
        if serde_json::from_slice::<Vec<Value>>(&bytes).is_ok() {
            prop_assert_eq!(whole(&bytes), FrameStatus::End(bytes.len()));
        }
    }
}

#[test]
fn brackets_inside_strings_do_not_count() {
    check_end(r#"["]", ["\"]"], {"}": "\\"}]"#, "");
    check_end(r#"["\\\\\\\"", [], {}]"#, "");
    check_end("[\"\u{1F600}]\", [\"\u{e9}\"], {}]", "");
}

#[test]
fn bytes_after_the_end_are_not_consumed() {
    check_end(r#"["f", [], {}]"#, "\n");
    check_end(r#"["f", [], {}]"#, r#"["g", [], {}]"#);
    check_end("  \r\n\t[]", "]]]\u{1}");
}

fn check_end(request: &str, after: &str) {
    let bytes = format!("{request}{after}").into_bytes();
    assert_eq!(whole(&bytes), FrameStatus::End(request.len()), "{request}");
    assert_eq!(
        in_pieces(&bytes, &[1]),
        FrameStatus::End(request.len()),
        "{request} byte by byte"
    );
}

#[test]
fn bytes_that_cannot_become_an_array_are_refused_at_once() {
    check_bad(b"GET", FrameError::NotAnArray);
    check_bad(b"{\"a\": 1}", FrameError::NotAnArray);
    check_bad(b"\"f\"", FrameError::NotAnArray);
    check_bad(b"\xef\xbb\xbf[", FrameError::NotAnArray);
    check_bad(b"[}", FrameError::Unmatched);
    check_bad(b"[{]", FrameError::Unmatched);
    check_bad(b"[\"f\", \x00", FrameError::StrayByte);
    check_bad(b"['f'", FrameError::StrayByte);
    check_bad(b"[\xff", FrameError::StrayByte);
}

fn check_bad(bytes: &[u8], why: FrameError) {
    assert_eq!(
        whole(bytes),
        FrameStatus::Bad(why),
        "{}",
        bytes.escape_ascii()
    );
}

#[test]
fn half_a_request_is_waited_for() {
    for half in ["", "  ", "[", r#"["f"#, r#"["f\"#, r#"["f", [{"a": ["#] {
        assert_eq!(whole(half.as_bytes()), FrameStatus::More, "{half}");
    }
}

#[test]
fn nesting_ends_at_its_bound() {
    let depth = usize::try_from(DEPTH_MAX).expect("small");
    let deepest = "[".repeat(depth) + &"]".repeat(depth);
    assert_eq!(whole(deepest.as_bytes()), FrameStatus::End(deepest.len()));
    let objects = "[".to_owned() + &r#"{"a":"#.repeat(depth - 1) + "1";
    let objects = objects + &"}".repeat(depth - 1) + "]";
    assert_eq!(whole(objects.as_bytes()), FrameStatus::End(objects.len()));
    let mut framer = Framer::new(PLENTY);
    let megabyte = vec![b'['; 1 << 20];
    assert_eq!(
        framer.push(&megabyte),
        FrameStatus::Bad(FrameError::TooDeep)
    );
    assert_eq!(framer.push(b"]"), FrameStatus::Bad(FrameError::TooDeep));
}

#[test]
fn a_string_of_a_megabyte_is_refused_at_the_size_bound() {
    let string = [b"[\"".to_vec(), vec![b'x'; 1 << 20]].concat();
    let mut framer = Framer::new(4096);
    let mut pushed = 0;
    for chunk in string.chunks(1000) {
        pushed += chunk.len();
        if framer.push(chunk) != FrameStatus::More {
            break;
        }
    }
    assert_eq!(pushed, 5000);
    assert_eq!(framer.push(b"\"]"), FrameStatus::Bad(FrameError::TooLarge));
    assert_eq!(
        whole(&string),
        FrameStatus::More,
        "with room it is waited for"
    );
}

#[test]
fn the_size_bound_is_exact_and_counts_leading_white_space() {
    let request = b"  [1, 2]";
    let end = FrameStatus::End(request.len());
    assert_eq!(Framer::new(request.len()).push(request), end);
    assert_eq!(
        Framer::new(request.len() - 1).push(request),
        FrameStatus::Bad(FrameError::TooLarge)
    );
    let mut framer = Framer::new(request.len());
    assert_eq!(framer.push(&request[..7]), FrameStatus::More);
    assert_eq!(framer.push(&request[7..]), end);
    assert_eq!(
        Framer::new(3).push(b"    "),
        FrameStatus::Bad(FrameError::TooLarge)
    );
}

#[test]
fn it_knows_whether_anything_has_begun() {
    let mut framer = Framer::new(PLENTY);
    framer.push(b" \n");
    assert!(!framer.has_begun());
    framer.push(b"[");
    assert!(framer.has_begun());
}
