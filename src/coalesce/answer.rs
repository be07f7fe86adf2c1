//! Which replies can be given to several clients, and which are worth keeping.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde::Deserialize;

use super::key::Apart;
use crate::call::{Refusal, Reply, ReplyBody, compact_headers};

/// A reply that can be given repeatedly.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// One JSON object of the socket backend.
    Whole(Bytes),
    /// A response of the HTTP backend.
    Http {
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
    },
    /// A refusal.
    Refused(Refusal),
}

/// How many clients may have a reply.
#[derive(Debug)]
pub(super) enum Given {
    /// All that asked the same.
    Shared(Answer),
    /// One: the reply is not here as a whole, or is meant for one client.
    Once(Reply),
}

impl Given {
    pub(super) fn of(reply: Reply, apart: &Apart) -> Self {
        match reply {
            Reply::Whole(bytes) => Self::Shared(Answer::Whole(bytes)),
            Reply::Refused(refusal) => Self::Shared(Answer::Refused(refusal)),
            Reply::Http(response) if is_for_all(response.headers(), apart) => {
                let (head, body) = response.into_parts();
                match body {
                    ReplyBody::Whole(body) => Self::Shared(Answer::Http {
                        status: head.status,
                        headers: head.headers,
                        body: body.unwrap_or_default(),
                    }),
                    body @ ReplyBody::Stream(_) => {
                        Self::Once(Reply::Http(Response::from_parts(head, body)))
                    }
                }
            }
            Reply::Http(_) | Reply::Stream(_) | Reply::Tunnel(_) => Self::Once(reply),
        }
    }
}

impl Answer {
    /// The reply for one more client.
    pub(super) fn reply(&self) -> Reply {
        match self {
            Self::Whole(bytes) => Reply::Whole(bytes.clone()),
            Self::Http {
                status,
                headers,
                body,
            } => http(*status, headers.clone(), body.clone()),
            Self::Refused(refusal) => Reply::Refused(refusal.clone()),
        }
    }

    /// The reply for one more client, `age` after it was given. On HTTP it has the header `Age`.
    pub(super) fn reply_aged(&self, age: Duration, is_http: bool) -> Reply {
        match self {
            Self::Http {
                status,
                headers,
                body,
            } => {
                let mut headers = headers.clone();
                let before = headers
                    .get(header::AGE)
                    .and_then(|age| age.to_str().ok()?.parse::<u64>().ok());
                let age = age.as_secs().saturating_add(before.unwrap_or(0));
                headers.insert(header::AGE, HeaderValue::from(age));
                http(*status, headers, body.clone())
            }
            // An array over HTTP. Kept answers always have the overallRC 0, so the status is known.
            Self::Whole(bytes) if is_http => {
                let mut headers = HeaderMap::new();
                let json = HeaderValue::from_static("application/json");
                headers.insert(header::CONTENT_TYPE, json);
                headers.insert(header::AGE, HeaderValue::from(age.as_secs()));
                http(StatusCode::OK, headers, bytes.clone())
            }
            Self::Whole(_) | Self::Refused(_) => self.reply(),
        }
    }

    /// Whether it is an answer without any error. `overall_rc` is that of a reply of the socket
    /// backend; a reply without one is not good.
    pub(super) fn is_good(&self, overall_rc: Option<i64>) -> bool {
        match self {
            Self::Whole(_) => overall_rc == Some(0),
            Self::Http { status, body, .. } => {
                status.is_success() && said_overall_rc(body).is_none_or(|rc| rc == 0)
            }
            Self::Refused(_) => false,
        }
    }

    /// Its size in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Http { headers, body, .. } => {
                let headers = headers
                    .iter()
                    .map(|(name, value)| name.as_str().len() + value.len());
                headers.sum::<usize>() + body.len()
            }
            Self::Refused(refusal) => refusal.detail.len(),
        }
    }

    /// The size of its body in bytes.
    pub(super) fn body_len(&self) -> usize {
        match self {
            Self::Whole(body) | Self::Http { body, .. } => body.len(),
            Self::Refused(_) => 0,
        }
    }

    /// A copy that shares no buffer with the received reply.
    pub(super) fn compact(&self) -> Self {
        match self {
            Self::Whole(bytes) => Self::Whole(Bytes::copy_from_slice(bytes)),
            Self::Http {
                status,
                headers,
                body,
            } => Self::Http {
                status: *status,
                headers: compact_headers(headers),
                body: Bytes::copy_from_slice(body),
            },
            Self::Refused(refusal) => Self::Refused(refusal.clone()),
        }
    }
}

fn http(status: StatusCode, headers: HeaderMap, body: Bytes) -> Reply {
    let mut response = Response::new(ReplyBody::whole(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Reply::Http(response)
}

/// Whether a response is meant for all clients that asked the same: it sets no cookie, and
/// depends on no header that the key ignores (RFC 9110, 12.5.5).
fn is_for_all(headers: &HeaderMap, apart: &Apart) -> bool {
    let varies_only_by_compared_headers = |value: &HeaderValue| {
        value.to_str().is_ok_and(|names| {
            names.split(',').all(|name| {
                HeaderName::from_bytes(name.trim().as_bytes()).is_ok_and(|name| apart.tells(&name))
            })
        })
    };
    !headers.contains_key(header::SET_COOKIE)
        && headers
            .get_all(header::VARY)
            .iter()
            .all(varies_only_by_compared_headers)
}

#[derive(Deserialize)]
struct Said {
    #[serde(rename = "overallRC")]
    overall_rc: Option<i64>,
}

/// The `overallRC` of a body that has one.
fn said_overall_rc(body: &[u8]) -> Option<i64> {
    serde_json::from_slice::<Said>(body).ok()?.overall_rc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Reason;
    use http_body_util::BodyExt;

    fn answered(response: http::response::Builder, body: &'static str) -> Given {
        let body = ReplyBody::whole(Bytes::from_static(body.as_bytes()));
        let reply = Reply::Http(response.body(body).expect("a response"));
        Given::of(reply, &Apart::Known)
    }

    fn is_shared(given: &Given) -> bool {
        matches!(given, Given::Shared(_))
    }

    fn shared(given: Given) -> Answer {
        match given {
            Given::Shared(answer) => answer,
            Given::Once(reply) => panic!("it can be shared: {reply:?}"),
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
        assert!(!is_shared(&Given::of(Reply::Stream(stream), &Apart::Known)));
    }

    #[test]
    fn only_a_good_answer_is_good() {
        let check = |given: Given, rc, is_good| {
            let answer = shared(given);
            assert_eq!(answer.is_good(rc), is_good, "{answer:?} {rc:?}");
        };
        check(answered(good(200), "{\"overallRC\": 0}"), None, true);
        check(answered(good(200), "no JSON"), None, true);
        check(answered(good(204), ""), None, true);
        check(answered(good(200), "{\"overallRC\": 300}"), None, false);
        check(answered(good(302), ""), None, false);
        check(answered(good(404), "{}"), None, false);
        check(answered(good(503), "{}"), None, false);
        let whole = || Given::of(Reply::Whole(Bytes::from_static(b"{}")), &Apart::Known);
        check(whole(), Some(0), true);
        check(whole(), Some(404), false);
        check(whole(), None, false);
        let refused = Reply::Refused(Refusal::new(Reason::QueueFull, "no"));
        check(Given::of(refused, &Apart::Known), None, false);
    }

    #[test]
    fn an_http_answer_adds_its_age_to_the_age_it_had() {
        let age = |answer: Answer, is_http| match answer
            .reply_aged(Duration::from_millis(2900), is_http)
        {
            Reply::Http(response) => response
                .headers()
                .get(header::AGE)
                .map(|age| age.to_str().expect("digits").to_owned()),
            _ => None,
        };
        let plain = shared(answered(good(200), "x"));
        assert_eq!(age(plain, true).as_deref(), Some("2"));
        let old = shared(answered(good(200).header("age", "40"), "x"));
        assert_eq!(age(old, true).as_deref(), Some("42"));
        let array = || Answer::Whole(Bytes::from_static(b"{}"));
        assert_eq!(age(array(), true).as_deref(), Some("2"));
        assert_eq!(age(array(), false), None);
    }
}
