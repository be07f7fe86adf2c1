//! Replies that can be given to several clients, and those worth keeping.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};

use super::key::KeyHeaders;
use crate::call::sdk::reply::overall_rc;
use crate::call::{BufferedReply, Dialect, Headers, Refusal, Reply, ReplyBody};

/// How many clients may have a reply.
#[derive(Debug)]
pub(super) enum AnswerScope {
    /// All that asked the same.
    Shared(Result<BufferedReply, Refusal>),
    /// The reply goes to one client: it is not here as a whole, or is meant for one client.
    Once(Reply),
}

impl AnswerScope {
    pub(super) fn of(reply: Result<Reply, Refusal>, apart: &KeyHeaders) -> Self {
        let Reply { head, body, pinned } = match reply {
            Ok(reply) => reply,
            Err(refusal) => return Self::Shared(Err(refusal)),
        };
        match body {
            ReplyBody::Whole(body)
                // A challenge of a login belongs to its connection, and so to one client.
                if pinned.is_none() && head
                    .as_ref()
                    .is_none_or(|head| is_for_all(&head.headers, apart)) =>
            {
                let body = body.unwrap_or_default();
                Self::Shared(Ok(BufferedReply { head, body }))
            }
            body => Self::Once(Reply {
                head,
                body,
                pinned,
            }),
        }
    }
}

/// The reply for one more client, this long after the answer was given. On HTTP its age is in the
/// headers.
pub(super) fn reply_aged(answer: &BufferedReply, age: Duration, dialect: Dialect) -> Reply {
    let mut reply = answer.reply();
    if reply.head.is_none() && dialect == Dialect::Http {
        // An array over HTTP. Only answers whose code is 0 are kept, so the status is known.
        let mut response = http::Response::new(reply.body);
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        reply = Reply::http(response);
    }
    if let Some(head) = &mut reply.head {
        let before = head.headers.get_all(header::AGE.as_str()).next();
        let before = before.and_then(|age| str::from_utf8(age).ok()?.parse::<u64>().ok());
        let age = age.as_secs().saturating_add(before.unwrap_or(0));
        head.headers.set(&header::AGE, &HeaderValue::from(age));
    }
    reply
}

/// Whether it is what was asked for and no error of any kind. `code` is that of a reply of the
/// socket backend; one without is no good answer.
pub(super) fn is_good(answer: &BufferedReply, code: Option<i64>) -> bool {
    match &answer.head {
        None => code == Some(0),
        Some(head) => head.status.is_success() && overall_rc(&answer.body).is_none_or(|rc| rc == 0),
    }
}

/// A copy that shares no buffer with the received reply.
pub(super) fn compact(answer: &BufferedReply) -> BufferedReply {
    BufferedReply {
        head: answer.head.clone(),
        body: Bytes::copy_from_slice(&answer.body),
    }
}

/// Whether a response is valid for all clients with the same request: it sets no cookie, and
/// depends only on what distinguishes reads (RFC 9110, 12.5.5).
fn is_for_all(headers: &Headers, apart: &KeyHeaders) -> bool {
    let is_compared = |name: &str| {
        // "*" has the form of a name, and stands for more than the headers, such as the client's address.
        name != "*" && HeaderName::from_bytes(name.as_bytes()).is_ok_and(|name| apart.tells(&name))
    };
    let varies_only_by_compared_headers = |value: &[u8]| {
        str::from_utf8(value).is_ok_and(|names| names.split(',').map(str::trim).all(is_compared))
    };
    let mut varies = headers.get_all(header::VARY.as_str());
    !headers.contains(header::SET_COOKIE.as_str()) && varies.all(varies_only_by_compared_headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Reason;
    use http::Response;
    use http_body_util::BodyExt;

    fn answered(response: http::response::Builder, body: &'static str) -> AnswerScope {
        let body = ReplyBody::whole(Bytes::from_static(body.as_bytes()));
        let reply = Reply::http(response.body(body).expect("a response"));
        AnswerScope::of(Ok(reply), &KeyHeaders::Known)
    }

    fn is_shared(given: &AnswerScope) -> bool {
        matches!(given, AnswerScope::Shared(_))
    }

    fn shared(given: AnswerScope) -> BufferedReply {
        match given {
            AnswerScope::Shared(answer) => answer.expect("an answer"),
            AnswerScope::Once(reply) => panic!("it can be shared: {reply:?}"),
        }
    }

    fn good(status: u16) -> http::response::Builder {
        Response::builder().status(status)
    }

    #[test]
    fn a_reply_for_one_client_is_not_shared() {
        for (name, value, shared) in [
            ("set-cookie", "a=1", false),
            ("vary", "*", false),
            ("vary", "Accept, User-Agent", false),
            ("vary", "Accept, x-auth-token", true),
            ("cache-control", "no-cache", true),
        ] {
            let answer = answered(good(200).header(name, value), "{}");
            assert_eq!(is_shared(&answer), shared, "{name}: {value}");
        }
        let stream =
            ReplyBody::stream(http_body_util::Empty::new().map_err(|never| match never {}));
        assert!(!is_shared(&AnswerScope::of(
            Ok(Reply::object(stream)),
            &KeyHeaders::Known
        )));
    }

    #[test]
    fn a_reply_that_varies_by_anything_is_shared_on_no_route() {
        let own_route = KeyHeaders::AllBut([header::USER_AGENT].into());
        for (value, shared) in [
            ("*", false),
            ("Accept, *", false),
            ("*,Accept", false),
            ("User-Agent", false),
            ("", false),
            ("Accept, X-Anything", true),
        ] {
            let body = ReplyBody::whole(Bytes::from_static(b"{}"));
            let response = good(200).header("vary", value).body(body);
            let reply = Reply::http(response.expect("a response"));
            let given = AnswerScope::of(Ok(reply), &own_route);
            assert_eq!(is_shared(&given), shared, "{value}");
        }
    }

    #[test]
    fn only_a_good_answer_is_good() {
        let check = |given: AnswerScope, rc, good| {
            let answer = shared(given);
            assert_eq!(is_good(&answer, rc), good, "{answer:?} {rc:?}");
        };
        check(answered(good(200), "{\"overallRC\": 0}"), None, true);
        check(answered(good(200), "no JSON"), None, true);
        check(answered(good(204), ""), None, true);
        check(answered(good(200), "{\"overallRC\": 300}"), None, false);
        check(answered(good(302), ""), None, false);
        check(answered(good(404), "{}"), None, false);
        check(answered(good(503), "{}"), None, false);
        let whole = || {
            let object = ReplyBody::whole(Bytes::from_static(b"{}"));
            AnswerScope::of(Ok(Reply::object(object)), &KeyHeaders::Known)
        };
        check(whole(), Some(0), true);
        check(whole(), Some(404), false);
        check(whole(), None, false);
        let refused = Err(Refusal::new(Reason::QueueFull, "no"));
        let given = AnswerScope::of(refused, &KeyHeaders::Known);
        assert!(matches!(given, AnswerScope::Shared(Err(_))), "{given:?}");
    }

    #[test]
    fn an_answer_says_its_age_on_http_beside_the_age_it_had() {
        let age = |answer: BufferedReply, dialect| {
            let head = reply_aged(&answer, Duration::from_millis(2900), dialect).head?;
            let age = head.headers.get_all("age").next()?;
            Some(str::from_utf8(age).expect("digits").to_owned())
        };
        let plain = shared(answered(good(200), "x"));
        assert_eq!(age(plain, Dialect::Http).as_deref(), Some("2"));
        let old = shared(answered(good(200).header("age", "40"), "x"));
        assert_eq!(age(old, Dialect::Http).as_deref(), Some("42"));
        let array = || BufferedReply {
            head: None,
            body: Bytes::from_static(b"{}"),
        };
        assert_eq!(age(array(), Dialect::Http).as_deref(), Some("2"));
        assert_eq!(age(array(), Dialect::Socket), None);
    }
}
