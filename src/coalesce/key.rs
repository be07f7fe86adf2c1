//! Keys of reads: when two reads are identical, and which reads can be compared.

use std::fmt;
use std::sync::Arc;

use http::Method;
use http::header::{self, HeaderName};

use crate::call::{Destination, ForwardedField, Headers, HttpCall, Message, RequestBody};

/// Headers that an answer may depend on, besides method, target and body: the identity, the
/// content wanted, and the form of the body.
static TOLD_APART: [HeaderName; 9] = [
    header::HOST,
    header::AUTHORIZATION,
    HeaderName::from_static("x-auth-token"),
    header::COOKIE,
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::ACCEPT_LANGUAGE,
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
];

/// A client that sends one of these asks for a part of an answer, depends on what it already has,
/// or gives instructions to caches (RFC 9110, 13 and 14; RFC 9111, 5).
static NEVER_SHARED: [HeaderName; 8] = [
    header::CACHE_CONTROL,
    header::PRAGMA,
    header::RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    header::IF_RANGE,
];

/// The headers that distinguish reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum KeyHeaders {
    /// Headers that an answer of a function of the table can depend on.
    Known,
    /// All headers except these, because it is unknown what a route of the operator depends on.
    AllBut(Arc<[HeaderName]>),
}

impl KeyHeaders {
    /// Whether reads with different values of this header are never identical.
    pub(super) fn tells(&self, name: &HeaderName) -> bool {
        match self {
            Self::Known => TOLD_APART.contains(name),
            Self::AllBut(ignored) => !ignored.contains(name),
        }
    }

    /// Whether reads to which different values of this field are added are never identical.
    fn tells_forwarded(&self, field: ForwardedField) -> bool {
        match self {
            Self::Known => false,
            Self::AllBut(ignored) => {
                let mut ignored = ignored.iter();
                ignored.all(|name| !name.as_str().eq_ignore_ascii_case(field.name()))
            }
        }
    }
}

/// A userid, compared as the backend does: without regard to case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Guest([u8; 8]);

impl Guest {
    /// `None` if the text is not a userid.
    pub(super) fn new(userid: &str) -> Option<Self> {
        let mut letters = [0; 8];
        letters
            .get_mut(..userid.len())?
            .copy_from_slice(userid.as_bytes());
        letters.make_ascii_uppercase();
        Some(Self(letters))
    }
}

/// A read, to the byte: two reads are identical if their keys are equal.
///
/// The bytes themselves are kept, not a hash of them: a collision would give one client the
/// answer of another.
#[derive(PartialEq, Eq, Hash)]
pub struct Key {
    /// The one guest that it is about, if any.
    pub(super) guest: Option<Guest>,
    pub(super) apart: KeyHeaders,
    bytes: Box<[u8]>,
}

impl Key {
    /// The key of a read of one guest, or of none in particular; `None` for a message that is
    /// never shared.
    pub(super) fn of(
        function: &str,
        destination: Destination,
        guest: Option<&str>,
        message: &Message,
        apart: KeyHeaders,
    ) -> Option<Self> {
        let mut parts = KeyBytes::default();
        parts.add(destination.label().as_bytes());
        parts.add(function.as_bytes());
        match message {
            Message::Socket(call) => {
                parts.add(b"socket");
                parts.add(&call.bytes);
            }
            Message::Http(call) => {
                parts.add(b"http");
                parts.add_request(call, &apart)?;
            }
        }
        Some(Self {
            guest: guest.and_then(Guest::new),
            apart,
            bytes: parts.0.into_boxed_slice(),
        })
    }

    /// The size in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// The bytes contain tokens and passwords.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.bytes.len())
    }
}

/// Parts one after another, each with its length, so different lists of parts never give the same
/// bytes.
#[derive(Default)]
struct KeyBytes(Vec<u8>);

impl KeyBytes {
    fn add(&mut self, part: &[u8]) {
        self.0.extend_from_slice(&part.len().to_le_bytes());
        self.0.extend_from_slice(part);
    }

    fn add_request(&mut self, call: &HttpCall, apart: &KeyHeaders) -> Option<()> {
        let head = &call.head;
        let may_be_a_read = [Method::GET, Method::HEAD, Method::POST].contains(&head.method);
        let RequestBody::Whole(body) = &call.body else {
            return None;
        };
        let is_there = |name: &HeaderName| head.headers.contains(name.as_str());
        // A client that has logged in its connection is answered as its user.
        let is_logged_in = head.is_stateful || call.pinned.is_some();
        let is_exclusive = is_logged_in || head.upgrade().is_some();
        if !may_be_a_read || is_exclusive || NEVER_SHARED.iter().any(is_there) {
            return None;
        }
        self.add(head.method.as_str().as_bytes());
        self.add(head.target().as_bytes());
        match apart {
            KeyHeaders::Known => self.add_headers(&head.headers, &TOLD_APART),
            KeyHeaders::AllBut(_) => {
                // Sorted, because their order has no meaning.
                let forwarded = call.forwarded.as_deref();
                let is_sent = |name: &[u8]| !forwarded.is_some_and(|it| it.replaces(name));
                let names = head.headers.iter().filter(|(name, _)| is_sent(name));
                let names = names.filter_map(|(name, _)| HeaderName::from_bytes(name).ok());
                let mut names: Vec<_> = names.filter(|name| apart.tells(name)).collect();
                names.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
                names.dedup();
                for name in &names {
                    self.add(name.as_str().as_bytes());
                }
                self.add_headers(&head.headers, &names);
                // A service may answer by the client's address.
                let mut lines = Vec::new();
                if let Some(forwarded) = forwarded {
                    let counts = |field| apart.tells_forwarded(field);
                    forwarded.write(&head.headers, counts, &mut lines);
                }
                self.add(&lines);
            }
        }
        self.add(body);
        Some(())
    }

    fn add_headers(&mut self, headers: &Headers, names: &[HeaderName]) {
        for name in names {
            let values = || headers.get_all(name.as_str());
            self.0.extend_from_slice(&values().count().to_le_bytes());
            for value in values() {
                self.add(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{ArrayCall, FieldAction, ForwardedFields};
    use bytes::Bytes;

    fn http(request: http::request::Builder, body: &'static str) -> Message {
        let (head, body) = request
            .body(Bytes::from_static(body.as_bytes()))
            .expect("a request")
            .into_parts();
        let body = RequestBody::Whole(body);
        Message::Http(Box::new(HttpCall::new(Arc::new(head.into()), body)))
    }

    fn get(path: &str) -> http::request::Builder {
        http::Request::get(path).header("host", "t")
    }

    fn key(message: &Message) -> Option<Key> {
        Key::of(
            "guest_list",
            Destination::Http,
            None,
            message,
            KeyHeaders::Known,
        )
    }

    #[test]
    fn on_own_routes_every_header_counts_except_ignored_ones() {
        let apart = KeyHeaders::AllBut([header::USER_AGENT].into());
        let key = |request: http::request::Builder| {
            let message = http(request, "");
            Key::of("report", Destination::Http, None, &message, apart.clone())
        };
        let one = || get("/report").header("x-api-key", "1").header("x-b", "2");
        let other = || get("/report").header("x-b", "2").header("x-api-key", "1");
        assert_eq!(key(one()), key(other()));
        assert_eq!(key(one().header("user-agent", "a")), key(one()));
        for different in [
            get("/report").header("x-api-key", "2").header("x-b", "2"),
            get("/report").header("x-api-key", "1"),
            one().header("x-api-key", "1"),
            one().header("x-c", ""),
            get("/report").header("x-api-key", "2").header("x-b", "1"),
        ] {
            assert_ne!(key(different), key(one()));
        }
    }

    #[test]
    fn clients_that_the_service_can_tell_apart_share_only_if_that_is_ignored() {
        let of = |client: [u8; 4], action, ignored: &[&'static str], lie: &str| {
            let ignored = ignored.iter().map(|name| HeaderName::from_static(name));
            let apart = KeyHeaders::AllBut(ignored.collect());
            let Message::Http(mut call) = http(get("/report").header("x-real-ip", lie), "") else {
                unreachable!("it is HTTP")
            };
            call.forwarded = ForwardedFields::new([action; 5], Some(client.into()), false);
            let message = Message::Http(call);
            Key::of("report", Destination::Http, None, &message, apart)
        };
        let (one, other) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        let (set, remove) = (FieldAction::Set, FieldAction::Remove);
        assert_eq!(of(one, set, &[], "a"), of(one, set, &[], "a"));
        assert_ne!(of(one, set, &[], "a"), of(other, set, &[], "a"));
        assert_eq!(of(one, set, &[], "a"), of(one, set, &[], "lie"));
        let most = ["x-forwarded-for", "x-real-ip"];
        assert_ne!(of(one, set, &most, "a"), of(other, set, &most, "a"));
        let all = ["x-forwarded-for", "x-real-ip", "forwarded"];
        assert_eq!(of(one, set, &all, "a"), of(other, set, &all, "b"));
        assert_eq!(of(one, remove, &[], "a"), of(other, remove, &[], "b"));
        let append = FieldAction::Append;
        assert_ne!(of(one, append, &[], "a"), of(one, append, &[], "b"));
        let pass = FieldAction::Pass;
        assert_eq!(of(one, pass, &[], "a"), of(other, pass, &[], "a"));
        assert_ne!(of(one, pass, &[], "a"), of(one, pass, &[], "b"));
    }

    #[test]
    fn reads_are_identical_only_if_all_that_an_answer_depends_on_is() {
        let plain = || key(&http(get("/guests"), "")).expect("it can be shared");
        assert_eq!(plain(), plain());
        for (what, other) in [
            ("path", http(get("/guests/"), "")),
            ("query", http(get("/guests?a=1"), "")),
            ("body", http(get("/guests"), "{}")),
            ("HEAD", http(get("/guests").method("HEAD"), "")),
            ("POST", http(get("/guests").method("POST"), "")),
            (
                "user",
                http(get("/guests").header("authorization", "Basic eDp5"), ""),
            ),
            (
                "token",
                http(get("/guests").header("x-auth-token", "t"), ""),
            ),
            (
                "no token",
                http(get("/guests").header("x-auth-token", ""), ""),
            ),
            ("cookie", http(get("/guests").header("cookie", "a=1"), "")),
            ("accept", http(get("/guests").header("accept", "*/*"), "")),
            (
                "coding",
                http(get("/guests").header("accept-encoding", "gzip"), ""),
            ),
            ("host", http(get("/guests").header("host", "u"), "")),
            ("authority", http(get("http://u/guests"), "")),
        ] {
            assert_ne!(key(&other).expect("it can be shared"), plain(), "{what}");
        }
        let agent = http(get("/guests").header("user-agent", "curl"), "");
        assert_eq!(key(&agent).expect("it can be shared"), plain());
        let elsewhere = Key::of(
            "guest_list",
            Destination::Socket,
            None,
            &agent,
            KeyHeaders::Known,
        );
        assert_ne!(elsewhere.expect("it can be shared"), plain());
    }

    #[test]
    fn a_value_in_another_header_makes_another_key() {
        let one = get("/guests").header("cookie", "a").header("cookie", "b");
        let other = get("/guests").header("cookie", "ab");
        assert_ne!(key(&http(one, "")), key(&http(other, "")));
        let one = get("/guests").header("authorization", "x");
        let other = get("/guests").header("x-auth-token", "x");
        assert_ne!(key(&http(one, "")), key(&http(other, "")));
    }

    #[test]
    fn requests_with_cache_headers_or_ranges_are_never_shared() {
        for name in [
            "cache-control",
            "pragma",
            "range",
            "if-none-match",
            "if-match",
            "if-modified-since",
            "if-unmodified-since",
            "if-range",
        ] {
            let message = http(get("/guests").header(name, "no-store"), "");
            assert!(key(&message).is_none(), "{name}");
        }
        assert!(key(&http(get("/guests").method("PUT"), "")).is_none());
    }

    #[test]
    fn arrays_differ_by_any_byte_and_from_the_same_array_over_http() {
        let array = |text: &'static str| {
            key(&Message::Socket(Box::new(ArrayCall {
                bytes: Bytes::from_static(text.as_bytes()),
                function: "guest_list".into(),
                target: None,
            })))
        };
        assert_eq!(
            array(r#"["guest_list",[],{}]"#),
            array(r#"["guest_list",[],{}]"#)
        );
        assert_ne!(
            array(r#"["guest_list",[],{}]"#),
            array(r#"["guest_list", [],{}]"#)
        );
        let dressed = http(get("/").method("POST"), r#"["guest_list",[],{}]"#);
        assert_ne!(array(r#"["guest_list",[],{}]"#), key(&dressed));
    }

    #[test]
    fn a_guest_is_the_same_in_any_case() {
        assert_eq!(Guest::new("linux1"), Guest::new("LINUX1"));
        assert_ne!(Guest::new("LINUX1"), Guest::new("LINUX10"));
        assert_eq!(Guest::new("NINECHARS"), None);
    }

    #[test]
    fn a_key_does_not_print_its_content() {
        let message = http(get("/guests").header("x-auth-token", "secret"), "");
        let key = key(&message).expect("it can be shared");
        assert!(!format!("{key:?}").contains("secret"));
        assert!(key.len() > 0);
    }
}
