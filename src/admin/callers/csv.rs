//! The debug dumps as CSV (RFC 4180), for spreadsheets and `awk`.
//!
//! Texts come from the wire. A spreadsheet reads a text that begins with `=` as a formula, so
//! such a text gets an apostrophe before it.

use std::fmt::Write;

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use super::state::{QueueRow, RateLimitState, RequestRow};

/// A row, as a JSON object.
pub(super) trait CsvRow: Serialize {
    /// The fields of the object, or of the `pace` in it.
    const COLUMNS: &str;
}

impl CsvRow for RateLimitState {
    const COLUMNS: &str = "id,label,kind,exempt,burst,fill,rate,ratio,achieved,wait_seconds,\
                           burst_seconds,tokens,mode,on_excess,order,callers,queued,\
                           queued_tokens,charged,would_have_delayed,rejected";
}

impl CsvRow for QueueRow {
    const COLUMNS: &str = "class,call,waits_for,waiting";
}

impl CsvRow for RequestRow {
    const COLUMNS: &str = "state,call,class,listener,caller,rate_limit,arrived,age_ms";
}

/// A table with a line of its columns' names.
pub(super) fn table<R: CsvRow>(rows: &[R]) -> String {
    let mut out = format!("{}\r\n", R::COLUMNS);
    for row in rows {
        let row = serde_json::to_value(row).expect("a row is JSON");
        for (index, column) in R::COLUMNS.split(',').enumerate() {
            if index > 0 {
                out.push(',');
            }
            let pace = || row.get("pace")?.get(column);
            write_cell(&mut out, row.get(column).or_else(pace));
        }
        out.push_str("\r\n");
    }
    out
}

/// Of a list, only its length. Numbers are written as Rust does: `1`, not `1.0`.
fn write_cell(out: &mut String, value: Option<&Value>) {
    match value {
        None | Some(Value::Null | Value::Object(_)) => {}
        Some(Value::Bool(flag)) => out.push_str(&flag.to_string()),
        Some(Value::String(text)) => write_text(out, text),
        Some(Value::Array(list)) => out.push_str(&list.len().to_string()),
        Some(Value::Number(number)) => match (number.as_u64(), number.as_f64()) {
            (None, Some(number)) => out.push_str(&number.to_string()),
            _ => out.push_str(&number.to_string()),
        },
    }
}

fn write_text(out: &mut String, value: &str) {
    let is_formula = value.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let apostrophe = if is_formula { "'" } else { "" };
    if value.contains([',', '"', '\r', '\n']) {
        let doubled = value.replace('"', "\"\"");
        write!(out, "\"{apostrophe}{doubled}\"").expect("writing to memory does not fail");
    } else {
        out.push_str(apostrophe);
        out.push_str(value);
    }
}

/// A table as an answer.
pub(super) fn answer<R: CsvRow>(rows: &[R]) -> Response {
    let kind = "text/csv; charset=utf-8; header=present";
    ([(header::CONTENT_TYPE, kind)], table(rows)).into_response()
}

/// Whether the client prefers CSV to JSON.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let ranges = accepted
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    let mut csv = 0.0_f32;
    let mut json = 0.0_f32;
    for range in ranges {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let quality = parts
            .find_map(|part| part.strip_prefix("q="))
            .map_or(1.0, |q| q.parse().unwrap_or(0.0));
        if kind.eq_ignore_ascii_case("text/csv") {
            csv = quality;
        } else if kind.eq_ignore_ascii_case("application/json") {
            json = quality;
        }
    }
    csv > 0.0 && csv >= json
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn texts_are_quoted_where_they_must_be_and_no_formula_gets_through() {
        let check = |waits_for: Option<&str>, cell: &str| {
            let rows = [QueueRow {
                class: "user".into(),
                call: "guest_list".into(),
                waits_for: waits_for.map(ToOwned::to_owned),
                waiting: 3,
            }];
            let line = format!("user,guest_list,{cell},3\r\n");
            assert_eq!(
                table(&rows),
                format!("class,call,waits_for,waiting\r\n{line}")
            );
        };
        check(None, "");
        check(Some("total"), "total");
        check(Some("a, b"), "\"a, b\"");
        check(Some("a \"b\"\n"), "\"a \"\"b\"\"\n\"");
        check(Some("=1+1"), "'=1+1");
        check(Some("@x,y"), "\"'@x,y\"");
    }

    #[test]
    fn csv_is_sent_only_to_who_asks_for_it() {
        let check = |accept: &str, wanted: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(
                header::ACCEPT,
                HeaderValue::from_str(accept).expect("a header value"),
            );
            assert_eq!(is_wanted(&headers), wanted, "{accept}");
        };
        check("text/csv", true);
        check("Text/CSV; q=0.5", true);
        check("text/csv;q=0", false);
        check("*/*", false);
        check("application/json, text/csv;q=0.9", false);
        check("application/json;q=0.1, text/csv", true);
        assert!(!is_wanted(&HeaderMap::new()));
    }
}
