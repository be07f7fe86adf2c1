//! Heads that were made here with the library `http`, not read from a socket.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue};
use tidegate_h1::{ByteSpan, HeadFields, is_hop_by_hop};

use super::{Head, HeadMemo, Headers, ReplyHead, write_field};

impl Headers {
    /// The fields that are passed on, of a head of the library `http`. The others are those of one hop, those that
    /// Connection names, and the length.
    fn passed(headers: &HeaderMap, mut bytes: Vec<u8>) -> Self {
        // The list of one hop never decides about routing.
        let named: Vec<&str> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .collect();
        let is_left_out = |name: &HeaderName| {
            let is_named = || {
                let mut named = named.iter();
                named.any(|it| it.eq_ignore_ascii_case(name.as_str())) && *name != HOST
            };
            *name == CONTENT_LENGTH || is_hop_by_hop(name.as_str().as_bytes()) || is_named()
        };
        let mut fields = HeadFields::new();
        for (name, value) in headers.iter().filter(|(name, _)| !is_left_out(name)) {
            let (name, value) = (name.as_str().as_bytes(), value.as_bytes());
            fields.push(write_field(name, value, &mut bytes));
        }
        Self::new(bytes.into(), fields)
    }
}

/// The head of a call that was made here, not read from a socket. An absolute target overrides Host (RFC 9112, 3.2.2).
impl From<http::request::Parts> for Head {
    fn from(mut parts: http::request::Parts) -> Self {
        if let Some(authority) = parts.uri.authority()
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            parts.headers.insert(HOST, host);
        }
        let target = parts.uri.path_and_query().map_or("/", |it| it.as_str());
        let mut bytes = Vec::with_capacity(target.len() + 1);
        if !target.starts_with(['/', '*']) {
            // That of an absolute target may have no path.
            bytes.push(b'/');
        }
        bytes.extend_from_slice(target.as_bytes());
        let has_body = parts.headers.contains_key(CONTENT_LENGTH)
            || parts.headers.contains_key(http::header::TRANSFER_ENCODING);
        Self {
            method: parts.method,
            target: ByteSpan::new(0, bytes.len()),
            headers: Headers::passed(&parts.headers, bytes),
            has_body,
            is_stateful: false,
            upgrade: None,
            memo: HeadMemo::default(),
        }
    }
}

/// The length in a head, if it has one and no other.
fn announced(headers: &HeaderMap) -> Option<u64> {
    let values = headers.get_all(CONTENT_LENGTH).iter();
    let values = values.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    let mut lengths = values.map(|value| tidegate_h1::octets::number(value.trim_ascii()));
    let first = lengths.next()?;
    lengths.all(|other| other == first).then_some(first)?
}

/// The head of a response of our own.
impl From<http::response::Parts> for ReplyHead {
    fn from(parts: http::response::Parts) -> Self {
        let length = match parts.status.as_u16() {
            // These have none (RFC 9110, 8.6).
            100..=199 | 204 => None,
            _ => announced(&parts.headers),
        };
        Self {
            status: parts.status,
            reason: None,
            headers: Headers::passed(&parts.headers, Vec::new()),
            length,
            upgrade: None,
        }
    }
}
