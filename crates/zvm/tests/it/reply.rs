//! Whether a reply is whole, and what it says.

use proptest::prelude::*;
use serde_json::Value;
use tidegate_zvm::reply::{ReplyEnding, http_status, module, overall_rc, read};

use crate::framer::array_text;

proptest! {
    #[test]
    fn a_reply_is_whole_only_at_its_end(
        text in ".{0,20}",
        output in array_text(),
        cut in any::<prop::sample::Index>(),
    ) {
        let text = Value::from(text);
        let reply = format!(r#"{{"overallRC": 0, "errmsg": {text}, "output": {output}}}"#);
        let whole = ReplyEnding::Whole(Some(0));
        prop_assert_eq!(read(reply.as_bytes()), whole);
        prop_assert_eq!(read((reply.clone() + "\n").as_bytes()), whole);
        prop_assert_eq!(read(&reply.as_bytes()[..cut.index(reply.len())]), ReplyEnding::Cut);
    }
}

#[test]
fn a_reply_may_hold_what_only_python_writes() {
    let check = |reply: &str| {
        assert_eq!(
            read(reply.as_bytes()),
            ReplyEnding::Whole(Some(0)),
            "{reply}"
        )
    };
    check(r#"{"overallRC": 0, "output": {"load": NaN, "max": -Infinity}}"#);
    check(r#"{"output": {"load": NaN}, "overallRC": 0}"#);
}

#[test]
fn the_module_is_a_number() {
    assert_eq!(module(br#"{"overallRC": 503, "modID": 130}"#), Some(130));
    assert_eq!(module(br#"{"overallRC": 0, "modID": null}"#), None);
    assert_eq!(module(br#"{"overallRC": 501, "modID": "guest"}"#), None);
}

#[test]
fn the_http_status_is_the_one_that_sdkwsgi_gives() {
    for same in [400, 404, 409, 501, 503] {
        assert_eq!(i64::from(http_status(same)), same);
    }
    assert_eq!(http_status(0), 200);
    assert_eq!(http_status(100), 400);
    for other in [1, 8, 101, 200, 300, 401, 410, 500, -1, i64::MIN, i64::MAX] {
        assert_eq!(http_status(other), 500, "{other}");
    }
}

#[test]
fn the_overall_rc_is_read_from_the_outermost_object() {
    check_rc(r#"{"overallRC": 0, "modID": null, "output": ""}"#, Some(0));
    check_rc(r#"{"rs": 0, "overallRC": -110}"#, Some(-110));
    check_rc(r#"{"overallRC": 1, "overallRC": 404}"#, Some(404));
    check_rc(r#"{"overallRC": 1, "output": {"overallRC": 9}}"#, Some(1));
    check_rc(r#"{"output": {"overallRC": 9}}"#, None);
    check_rc(r#"{"overallRC": "0"}"#, None);
    check_rc(r#"{"overallRC": 0.5}"#, None);
    check_rc(r#"{"overallRC": 0"#, None);
    check_rc(r#"[0]"#, None);
    check_rc("", None);
}

fn check_rc(reply: &str, rc: Option<i64>) {
    assert_eq!(overall_rc(reply.as_bytes()), rc, "{reply}");
}
