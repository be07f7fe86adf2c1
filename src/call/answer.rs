//! Places in an answer, and what of it can be read.

use http::HeaderName;
use http::header::CONTENT_ENCODING;
use tidegate_message::JsonPointer;

use super::ReplyHead;

/// A place in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPlace {
    /// A value in a body of JSON; in a stream of events, that of the last event that has it.
    Json(JsonPointer),
    /// The value of a header.
    Header(HeaderName),
}

/// Whether an answer has succeeded and its body is text as it stands.
pub(super) fn is_readable(head: &ReplyHead) -> bool {
    let is_encoded = head.headers.contains(CONTENT_ENCODING.as_str())
        && !value_is(head, &CONTENT_ENCODING, "identity");
    head.status.is_success() && !is_encoded
}

/// Whether a header has this value, apart from its parameters.
pub(super) fn value_is(head: &ReplyHead, name: &HeaderName, wanted: &str) -> bool {
    let value = text_of(head, name).and_then(|it| it.split(';').next());
    value.is_some_and(|value| value.trim().eq_ignore_ascii_case(wanted))
}

/// The value of a header that is there once.
pub(super) fn text_of<'a>(head: &'a ReplyHead, name: &'a HeaderName) -> Option<&'a str> {
    let value = head.headers.only(name.as_str()).ok().flatten()?;
    std::str::from_utf8(value).ok()
}
