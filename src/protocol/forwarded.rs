//! The client of a trusted proxy: `Forwarded` (RFC 7239) and `X-Forwarded-For`.
//!
//! Each proxy adds the address of its client at the right. So the list is read from the right,
//! through the addresses of trusted proxies, to the first that is not trusted. Everything to its
//! left came from that client, and is not read.

use std::net::{IpAddr, SocketAddr};

use http::header::{FORWARDED, HeaderName};

use super::trusted::TrustedProxies;
use crate::call::Headers;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The client that the headers of a request from a trusted proxy name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// The right-most address that is no trusted proxy's; the left-most where all are.
    pub address: Option<IpAddr>,
    /// Whether a header was there that could not be used.
    pub malformed: bool,
}

/// Reads them. `Forwarded` wins where both say something; one that is malformed as far as
/// it has to be read counts as absent.
#[must_use]
pub fn read(headers: &Headers, trusted: &TrustedProxies) -> Forwarded {
    let (mut address, mut malformed) = (None, false);
    for (name, read) in [
        (&FORWARDED, forwarded_for as fn(&[u8]) -> Option<IpAddr>),
        (&X_FORWARDED_FOR, address_of),
    ] {
        let mut found = None;
        let elements = headers
            .get_all(name.as_str())
            .rev()
            .flat_map(|line| parts(line, b','));
        for element in elements {
            found = read(element).map(|address| address.to_canonical());
            malformed |= found.is_none();
            if !found.is_some_and(|address| trusted.contains(address)) {
                break;
            }
        }
        if found.is_some() {
            address = found;
            break;
        }
    }
    Forwarded { address, malformed }
}

/// Splits at a separator, from the last part on. A separator in quotes does not split.
fn parts(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let mut is_quoted = false;
        for at in (0..text.len()).rev() {
            if text[at] == b'"' && !is_escaped(text, at) {
                is_quoted = !is_quoted;
            } else if text[at] == separator && !is_quoted {
                rest = Some(&text[..at]);
                return Some(text[at + 1..].trim_ascii());
            }
        }
        rest = None;
        Some(text.trim_ascii())
    })
}

/// Whether a quote is part of a quoted text: an odd number of backslashes stands before it.
fn is_escaped(text: &[u8], at: usize) -> bool {
    let before = text[..at].iter().rev();
    before.take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

/// The address in the `for` of one element: `for=192.0.2.43;proto=http`.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in parts(element, b';') {
        let equals = memchr::memchr(b'=', pair)?;
        let (name, value) = (&pair[..equals], &pair[equals + 1..]);
        if !name.eq_ignore_ascii_case(b"for") {
            continue;
        }
        // Nothing that an address is made of has to be escaped, so quotes are just taken off.
        let value = match value.strip_prefix(b"\"") {
            Some(quoted) => quoted.strip_suffix(b"\"")?,
            None => value,
        };
        if found.is_some() {
            return None;
        }
        found = Some(address_of(value)?);
    }
    found
}

/// An address, with or without a port; of IPv6 also in brackets.
fn address_of(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    if let Ok(with_port) = text.parse::<SocketAddr>() {
        return Some(with_port.ip());
    }
    let bare = text.strip_prefix('[')?.strip_suffix(']')?;
    bare.parse().ok().map(IpAddr::V6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn trusted() -> TrustedProxies {
        let networks = ["127.0.0.1/32", "10.0.0.0/8", "2001:db8:1::/48"];
        TrustedProxies {
            networks: networks
                .iter()
                .map(|network| network.parse().expect("a network"))
                .collect(),
            unix: false,
        }
    }

    #[track_caller]
    fn check(headers: &[(HeaderName, &[u8])], address: Option<&str>, malformed: bool) {
        let mut map = Headers::default();
        for (name, value) in headers {
            map.append(name, &HeaderValue::from_bytes(value).expect("a value"));
        }
        let expected = Forwarded {
            address: address.map(|address| address.parse().expect("an address")),
            malformed,
        };
        assert_eq!(read(&map, &trusted()), expected, "{headers:?}");
    }

    #[test]
    fn the_right_most_address_that_is_no_proxy_is_the_client() {
        let said = |value: &str, address: Option<&str>, malformed: bool| {
            check(&[(X_FORWARDED_FOR, value.as_bytes())], address, malformed);
        };
        said("192.0.2.1", Some("192.0.2.1"), false);
        said("192.0.2.1, 10.1.2.3", Some("192.0.2.1"), false);
        said(
            "1.1.1.1, 192.0.2.1, 10.1.2.3,127.0.0.1",
            Some("192.0.2.1"),
            false,
        );
        said("192.0.2.1:4711", Some("192.0.2.1"), false);
        said("2001:db8::1", Some("2001:db8::1"), false);
        said("[2001:db8::1]", Some("2001:db8::1"), false);
        said("[2001:db8::1]:80", Some("2001:db8::1"), false);
        said("2001:db8:2::1, 2001:db8:1::1", Some("2001:db8:2::1"), false);
        said("::ffff:192.0.2.1", Some("192.0.2.1"), false);
        // All are proxies: it began with the first of them.
        said("10.9.9.9, 10.1.2.3", Some("10.9.9.9"), false);
        // What the client wrote itself is never looked at.
        said("nonsense\", 192.0.2.1", Some("192.0.2.1"), false);
        said(
            "192.0.2.9, nonsense, 192.0.2.1, 10.0.0.1",
            Some("192.0.2.1"),
            false,
        );
        said("nonsense, 10.0.0.1", None, true);
        said("unknown", None, true);
        said("192.0.2.1,", None, true);
        said("", None, true);
        said("192.0.2.256", None, true);
        said("[192.0.2.1]", None, true);
        said("192.0.2.1:", None, true);
        said("192.0.2.1 10.0.0.1", None, true);
    }

    #[test]
    fn forwarded_is_read_as_its_grammar_says() {
        let said = |value: &str, address: Option<&str>, malformed: bool| {
            check(&[(FORWARDED, value.as_bytes())], address, malformed);
        };
        said("for=192.0.2.43", Some("192.0.2.43"), false);
        said("For=\"[2001:db8::17]:4711\"", Some("2001:db8::17"), false);
        said(
            "for=\"192.0.2.43:80\";proto=http;by=203.0.113.43",
            Some("192.0.2.43"),
            false,
        );
        said("proto=https; for=192.0.2.43", Some("192.0.2.43"), false);
        said(
            "for=1.1.1.1, for=192.0.2.43, for=10.0.0.1",
            Some("192.0.2.43"),
            false,
        );
        said(
            "host=\"a, b; for=9.9.9.9\";for=192.0.2.43",
            Some("192.0.2.43"),
            false,
        );
        said(
            "for=192.0.2.43;host=\"a;for=9.9.9.9;x=\"",
            Some("192.0.2.43"),
            false,
        );
        said(
            "for=9.9.9.9, host=\"a, for=8.8.8.8\", for=10.0.0.1",
            None,
            true,
        );
        said("for=\"9.9.9.9, for=192.0.2.43", Some("192.0.2.43"), false);
        said(
            "for=\"x\\\", for=8.8.8.8\", for=192.0.2.43",
            Some("192.0.2.43"),
            false,
        );
        said("for=unknown", None, true);
        said("for=_hidden, for=10.0.0.1", None, true);
        said("proto=http", None, true);
        said("for=192.0.2.43;for=192.0.2.44", None, true);
        said("for=\"192.0.2.43", None, true);
        said("for", None, true);
        said("", None, true);
    }

    #[test]
    fn forwarded_wins_over_the_other_and_lines_count_as_one_list() {
        let client: (HeaderName, &[u8]) = (X_FORWARDED_FOR, b"192.0.2.1");
        check(&[], None, false);
        check(
            &[client.clone(), (FORWARDED, b"for=192.0.2.2")],
            Some("192.0.2.2"),
            false,
        );
        check(
            &[client.clone(), (FORWARDED, b"for=_x")],
            Some("192.0.2.1"),
            true,
        );
        check(
            &[(FORWARDED, b"for=\xff"), client.clone()],
            Some("192.0.2.1"),
            true,
        );
        check(
            &[
                (X_FORWARDED_FOR, b"8.8.8.8"),
                client.clone(),
                (X_FORWARDED_FOR, b"10.0.0.1"),
            ],
            Some("192.0.2.1"),
            false,
        );
    }
}
