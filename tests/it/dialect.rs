//! Our own answers are read by clients of the sdkserver as its own, and the docs list
//! every one of them.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;
use tidegate::call::sdk::reply::{ReplyEnding, read};
use tidegate::call::{Reason, Refusal};
use tidegate::protocol::dialect::{refusal_json, retry_after_seconds};

fn json_text(refusal: &Refusal) -> String {
    String::from_utf8(refusal_json(refusal).to_vec()).expect("a refusal is ASCII")
}

#[test]
fn a_refusal_looks_as_python_would_write_it() {
    let refusal = Refusal {
        reason: Reason::DeadlinePassed,
        limit: Some("total".into()),
        retry_after: Some(Duration::from_millis(2_001)),
        detail: "waited 60 s".into(),
        ticket: None,
        call: Some(0x2a),
        refused_as: None,
    };
    assert_eq!(
        json_text(&refusal),
        concat!(
            r#"{"overallRC": 503, "modID": 130, "rc": 503, "rs": 2, "errmsg": "#,
            r#""tidegate: waited 60 s (limit total: deadline_passed); come back in 3 s; call 000000000000002a", "#,
            r#""output": "", "retryAfter": 3}"#
        )
    );
}

#[test]
fn without_a_time_to_come_back_there_is_none_in_the_answer() {
    let refusal = Refusal::new(Reason::BadRequest, "the request is not UTF-8");
    assert_eq!(
        json_text(&refusal),
        concat!(
            r#"{"overallRC": 400, "modID": 130, "rc": 400, "rs": 11, "errmsg": "#,
            r#""tidegate: the request is not UTF-8 (bad_request)", "output": ""}"#
        )
    );
}

#[test]
fn the_time_to_come_back_is_rounded_up() {
    let check = |wait, seconds| assert_eq!(retry_after_seconds(wait), seconds, "{wait:?}");
    check(Duration::ZERO, 0);
    check(Duration::from_nanos(1), 1);
    check(Duration::from_secs(1), 1);
    check(Duration::new(1, 1), 2);
    check(Duration::from_millis(2_999), 3);
    check(Duration::MAX, u64::MAX);
}

#[test]
fn every_reason_has_a_whole_answer_of_its_own() {
    for reason in Reason::ALL {
        let json = json_text(&Refusal::new(reason, "why"));
        let whole = ReplyEnding::Whole(Some(i64::from(reason.overall_rc())));
        assert_eq!(read(json.as_bytes()), whole, "{json}");
        let value: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(value["rs"], reason.rs());
        assert_eq!(
            value["overallRC"] == 404,
            reason == Reason::TaskUnknown,
            "nova reads 404 as a guest that is gone, and asks for no tasks"
        );
    }
}

#[test]
fn the_escapes_are_those_of_python() {
    let refusal = Refusal::new(Reason::Internal, "a\"b\\c\n\t\u{7f}\u{e9}\u{1f600}");
    let json = json_text(&refusal);
    assert!(
        json.contains(r#"a\"b\\c\n\t\u007f\u00e9\ud83d\ude00 (internal)"#),
        "{json}"
    );
}

proptest! {
    #[test]
    fn whatever_is_said_is_ascii_and_reads_back(
        detail in any::<String>(),
        limit in proptest::option::of(any::<String>()),
        seconds in proptest::option::of(0..100_000_u64),
    ) {
        let refusal = Refusal {
            reason: Reason::QueueFull,
            limit: limit.clone().map(Into::into),
            retry_after: seconds.map(Duration::from_secs),
            detail: detail.clone().into(),
            ticket: None,
            call: None,
            refused_as: None,
        };
        let json = json_text(&refusal);
        prop_assert!(json.bytes().all(|byte| matches!(byte, b' '..=b'~')));
        let value: Value = serde_json::from_str(&json).expect("JSON");
        let errmsg = value["errmsg"].as_str().expect("text");
        prop_assert!(errmsg.contains(&detail) && errmsg.contains("queue_full"));
        prop_assert!(limit.is_none_or(|limit| errmsg.contains(&limit)));
        prop_assert_eq!(value["retryAfter"].as_u64(), seconds);
    }
}

#[test]
fn the_docs_list_every_reason_as_it_is() {
    let docs = include_str!("../../docs/reference/errors.md");
    let table = docs.lines().skip_while(|line| !line.starts_with("| rs "));
    let rows: Vec<Vec<&str>> = table
        .skip(2)
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), Reason::ALL.len());
    for (row, reason) in rows.iter().zip(Reason::ALL) {
        assert_eq!(
            row[..4],
            [
                reason.rs().to_string(),
                format!("`{}`", reason.label()),
                reason.overall_rc().to_string(),
                reason.status().as_u16().to_string(),
            ]
        );
        assert_eq!(row.len(), 6, "{row:?}");
        assert!(row[4..].iter().all(|cell| !cell.is_empty()), "{row:?}");
    }
}
