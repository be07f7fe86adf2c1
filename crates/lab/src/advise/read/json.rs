//! Lines of JSON whose keys are named after nginx's variables, as with `escape=json`.

use std::borrow::Cow;

use foldhash::HashMap;
use serde_json::value::RawValue;

use super::instant::{ISO, LOCAL, SECOND, decimal};
use super::request::{LoggedRequest, path};
use super::template::{FieldValues, upstream};

/// The text of a value, without its quotes. One with escapes is no value that is needed here.
fn text(value: Option<&RawValue>) -> Option<&str> {
    let text = value?.get();
    let text = match text.strip_prefix('"') {
        Some(inside) => inside.strip_suffix('"')?,
        None => text,
    };
    (!text.contains('\\')).then_some(text)
}

/// Reads a line; `None` if it is no request.
pub(super) fn read(line: &[u8]) -> Option<LoggedRequest<'_>> {
    let start = memchr::memchr(b'{', line)?;
    let keys: HashMap<Cow<'_, str>, &RawValue> = serde_json::from_slice(&line[start..]).ok()?;
    let first = |names: &[&str]| {
        let found = names.iter().find_map(|name| keys.get(*name));
        text(found.copied())
    };
    let mut found = FieldValues::default();
    if let Some(msec) = first(&["msec", "time_msec"]) {
        let (at, _) = decimal(msec.as_bytes())?;
        found.moment.at_epoch(at / SECOND);
        found.moment.at_fraction(at % SECOND);
    } else if let Some(iso) = first(&["time_iso8601", "timestamp", "@timestamp", "time"]) {
        found.moment.read(ISO, iso.as_bytes())?;
    } else {
        found
            .moment
            .read(LOCAL, first(&["time_local"])?.as_bytes())?;
    }
    found.took = Some(decimal(first(&["request_time"])?.as_bytes())?.0);
    found.upstream = first(&["upstream_response_time"]).and_then(upstream);
    found.status = first(&["status"]).and_then(|status| status.parse().ok());
    match first(&["request"]) {
        Some(request) => found.ask(request),
        None => {
            found.method = first(&["request_method", "method"]);
            found.path = first(&["uri", "request_uri", "path"]).map(|uri| path(uri).into());
        }
    }
    found.address = first(&["remote_addr", "client", "remote_ip"]);
    found.user = first(&["remote_user"]);
    found.request(true)
}

#[cfg(test)]
mod tests {
    use super::super::request::RequestOutcome;
    use super::*;

    #[test]
    fn a_line_of_nginx_in_json_is_a_request() {
        let line = br#"{"msec":"1795515072.345","request_time":0.100,"upstream_response_time":"0.030, 0.050","status":"200","request":"GET /guests?a=b HTTP/1.1","remote_addr":"10.0.0.1","remote_user":"","x":{}}"#;
        let read = read(line).expect("a request");
        assert_eq!(read.asked, Some(("GET", "/guests".into())));
        assert_eq!(read.arrived, 1_795_515_072_245_000_000);
        assert_eq!(read.started, Some(read.arrived));
        assert_eq!(read.ended - read.arrived, 80_000_000);
        assert_eq!(read.result, RequestOutcome::Status(200));
        assert_eq!(read.caller, Some("10.0.0.1"));
        assert!(!read.is_whole);
    }

    #[test]
    fn json_without_times_is_no_request() {
        for line in [
            "{}",
            "{\"msec\":1}",
            "[1]",
            "{\"target\":\"access\"}",
            "{",
            "",
        ] {
            assert_eq!(read(line.as_bytes()), None, "{line}");
        }
    }
}
