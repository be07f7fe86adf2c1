//! The preferences of a request: `Prefer` (RFC 7240).

use std::time::Duration;

use http::header::HeaderName;

use super::Headers;

/// The field of preferences.
pub static PREFER: HeaderName = HeaderName::from_static("prefer");

/// The value of `wait`: `None` without it, and `Some(None)` if it is no number of seconds. Of two, the first counts (RFC 7240, 2).
fn find_wait(headers: &Headers) -> Option<Option<Duration>> {
    let values = headers.get_all(PREFER.as_str());
    let mut preferences = values.flat_map(items).map(name_and_value);
    let wait = preferences.find(|(name, _)| name.eq_ignore_ascii_case(b"wait"));
    wait.map(|(_, value)| seconds(value))
}

/// How long the client of a request waits, if it says so.
#[must_use]
pub fn wait_in(headers: &Headers) -> Option<Duration> {
    find_wait(headers).flatten()
}

/// Whether a request has `wait`, with a number of seconds or without.
#[must_use]
pub fn has_wait(headers: &Headers) -> bool {
    find_wait(headers).is_some()
}

/// The parts between commas, outside quotes.
pub fn items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut in_quotes = false;
    let mut escaped = false;
    let parts = value.split(move |&byte| {
        let was_escaped = std::mem::take(&mut escaped);
        match byte {
            b'"' if !was_escaped => in_quotes = !in_quotes,
            b'\\' if in_quotes && !was_escaped => escaped = true,
            b',' => return !in_quotes,
            _ => {}
        }
        false
    });
    parts.map(<[u8]>::trim_ascii)
}

/// Of `name=value; parameters`, without quotes around the value.
pub fn name_and_value(preference: &[u8]) -> (&[u8], &[u8]) {
    let head = preference.split(|&byte| byte == b';').next();
    let mut parts = head.unwrap_or_default().splitn(2, |&byte| byte == b'=');
    let mut part = || parts.next().unwrap_or_default().trim_ascii();
    let (name, value) = (part(), part());
    let bare = value.strip_prefix(b"\"");
    let bare = bare.and_then(|value| value.strip_suffix(b"\""));
    (name, bare.unwrap_or(value))
}

/// A number of seconds; `None` if it is none.
#[must_use]
pub fn seconds(value: &[u8]) -> Option<Duration> {
    let is_number = value.iter().all(u8::is_ascii_digit);
    let number: u32 = str::from_utf8(value).ok()?.parse().ok()?;
    is_number.then(|| Duration::from_secs(number.into()))
}
