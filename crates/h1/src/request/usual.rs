//! The usual form of a head, read in one pass: a known method, a path, HTTP/1.1, lines that end in CRLF, exactly
//! one Host, and at most one framing. No two parsers read such a head differently. Any other head is left to
//! [`complete`](super::complete).

use super::{HeadBounds, HttpVersion, RequestHead, RequestTarget};
use crate::fields::{ByteSpan, HeadField, HeadFields, Meaning};
use crate::{Framing, octets};

/// Why a head is not read here.
pub(super) enum UnusualHead {
    /// The head is not of the usual form, or larger than the bounds.
    Irregular,
    /// The bytes end.
    Partial,
}

/// Reads a head of the usual form.
pub(super) fn read(bytes: &[u8], bounds: HeadBounds) -> Result<RequestHead, UnusualHead> {
    let (method, at) = method(bytes)?;
    let length = octets::target(&bytes[at..]).ok_or(UnusualHead::Partial)?;
    let path = at..at + length;
    if bytes[at] != b'/' {
        return Err(UnusualHead::Irregular);
    }
    let at = expect(bytes, path.end, b" HTTP/1.1\r\n")?;
    // Only now are positions known to be small.
    let max = bounds.bytes_max();
    if at > max {
        return Err(UnusualHead::Irregular);
    }
    let head = &bytes[..bytes.len().min(max)];
    let cut_off = bytes.len() > max;
    let fields = fields(head, at, bounds.fields).map_err(|stop| match stop {
        UnusualHead::Partial if cut_off => UnusualHead::Irregular,
        stop => stop,
    })?;
    let framing = fields.framing()?;
    if fields.hosts != 1 {
        return Err(UnusualHead::Irregular);
    }
    let closes = fields.closes()?;
    let max_forwards = fields
        .max_forwards
        .filter(|it| method == "OPTIONS" && octets::number(it.of(head)).is_some());
    Ok(RequestHead {
        method: ByteSpan::new(0, method.len()),
        target: RequestTarget::Path(ByteSpan::new(path.start, path.end - path.start)),
        version: HttpVersion::Http11,
        fields: fields.passed,
        framing,
        closes,
        expects_continue: false,
        upgrade: None,
        is_forwarded: fields.is_forwarded,
        is_stateful: fields.is_stateful,
        max_forwards,
        length: fields.end,
    })
}

/// The method, and where the target begins.
fn method(bytes: &[u8]) -> Result<(&'static str, usize), UnusualHead> {
    let method = match bytes.first().ok_or(UnusualHead::Partial)? {
        b'G' => "GET",
        b'H' => "HEAD",
        b'D' => "DELETE",
        b'O' => "OPTIONS",
        b'P' => match bytes.get(1).ok_or(UnusualHead::Partial)? {
            b'O' => "POST",
            b'U' => "PUT",
            _ => "PATCH",
        },
        _ => return Err(UnusualHead::Irregular),
    };
    let at = expect(bytes, 0, method.as_bytes())?;
    let at = expect(bytes, at, b" ")?;
    Ok((method, at))
}

/// Where the bytes behind `expected` begin.
fn expect(bytes: &[u8], at: usize, expected: &[u8]) -> Result<usize, UnusualHead> {
    let rest = &bytes[at..];
    if rest.starts_with(expected) {
        Ok(at + expected.len())
    } else if expected.starts_with(rest) {
        Err(UnusualHead::Partial)
    } else {
        Err(UnusualHead::Irregular)
    }
}

/// The fields of a head, and what they say about the message.
#[derive(Default)]
struct UsualFields {
    passed: HeadFields,
    hosts: usize,
    length: Option<u64>,
    chunked: bool,
    connection: Option<ConnectionOption>,
    upgrade: Option<bool>,
    http2_settings: usize,
    is_forwarded: bool,
    is_stateful: bool,
    max_forwards: Option<ByteSpan>,
    end: usize,
}

/// The options of the Connection field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnectionOption {
    Close,
    KeepAlive,
    /// `Upgrade, HTTP2-Settings`.
    Http2,
}

fn fields(head: &[u8], mut at: usize, max: usize) -> Result<UsualFields, UnusualHead> {
    let mut found = UsualFields::default();
    let mut count = 0;
    loop {
        match &head[at..] {
            [b'\r', b'\n', ..] => break,
            [] | [b'\r'] => return Err(UnusualHead::Partial),
            _ => {}
        }
        let name = octets::name(&head[at..]).ok_or(UnusualHead::Partial)?;
        let colon = at + name;
        if name == 0 || head[colon] != b':' {
            return Err(UnusualHead::Irregular);
        }
        let from = colon + 1;
        let until = from + octets::text(&head[from..]).ok_or(UnusualHead::Partial)?;
        let behind = expect(head, until, b"\r\n")?;
        count += 1;
        if count > max {
            return Err(UnusualHead::Irregular);
        }
        let (from, until) = trim(head, from, until);
        let field = HeadField {
            name: ByteSpan::new(at, name),
            value: ByteSpan::new(from, until - from),
        };
        found.add(field, &head[at..colon], &head[from..until])?;
        at = behind;
    }
    found.end = at + 2;
    Ok(found)
}

/// Trims the spaces around a range.
fn trim(bytes: &[u8], mut from: usize, mut until: usize) -> (usize, usize) {
    while from < until && bytes[from] == b' ' {
        from += 1;
    }
    while from < until && bytes[until - 1] == b' ' {
        until -= 1;
    }
    (from, until)
}

impl UsualFields {
    fn add(&mut self, field: HeadField, name: &[u8], value: &[u8]) -> Result<(), UnusualHead> {
        match Meaning::of(name) {
            Meaning::Passes | Meaning::Authenticate => self.passed.push(field),
            Meaning::Forwarded => {
                self.is_forwarded = true;
                self.passed.push(field);
            }
            Meaning::Authorization => {
                self.is_stateful |= octets::logs_in_connection(value);
                self.passed.push(field);
            }
            Meaning::MaxForwards => {
                if self.max_forwards.replace(field.value).is_some() {
                    return Err(UnusualHead::Irregular);
                }
                self.passed.push(field);
            }
            Meaning::Host => {
                if !octets::is_host(value) {
                    return Err(UnusualHead::Irregular);
                }
                self.hosts += 1;
                self.passed.push(field);
            }
            Meaning::ContentLength => {
                let length = octets::number(value).ok_or(UnusualHead::Irregular)?;
                if value.len() > 19 || self.length.replace(length).is_some() {
                    return Err(UnusualHead::Irregular);
                }
            }
            Meaning::TransferEncoding => {
                let is_chunked = value.eq_ignore_ascii_case(b"chunked");
                if !is_chunked || std::mem::replace(&mut self.chunked, true) {
                    return Err(UnusualHead::Irregular);
                }
            }
            Meaning::Connection => {
                let says = if value.eq_ignore_ascii_case(b"close") {
                    ConnectionOption::Close
                } else if value.eq_ignore_ascii_case(b"keep-alive") {
                    ConnectionOption::KeepAlive
                } else if value.eq_ignore_ascii_case(b"Upgrade, HTTP2-Settings") {
                    ConnectionOption::Http2
                } else {
                    return Err(UnusualHead::Irregular);
                };
                if self.connection.replace(says).is_some() {
                    return Err(UnusualHead::Irregular);
                }
            }
            Meaning::Upgrade => {
                let is_http2 = value.eq_ignore_ascii_case(b"h2c");
                if self.upgrade.replace(is_http2).is_some() {
                    return Err(UnusualHead::Irregular);
                }
            }
            Meaning::Http2Settings => self.http2_settings += 1,
            Meaning::Close | Meaning::Expect | Meaning::Trailer | Meaning::LikeFraming => {
                return Err(UnusualHead::Irregular);
            }
            Meaning::Hop => {}
        }
        Ok(())
    }

    fn framing(&self) -> Result<Framing, UnusualHead> {
        match (self.length, self.chunked) {
            (None, false) => Ok(Framing::None),
            (Some(length), false) => Ok(Framing::Length(length)),
            (None, true) => Ok(Framing::Chunked),
            (Some(_), true) => Err(UnusualHead::Irregular),
        }
    }

    /// Whether the client wants the connection closed. Java's client offers HTTP/2 with its first request;
    /// a server that has no use for the offer ignores it (RFC 9110, 7.8), so it is left out.
    fn closes(&self) -> Result<bool, UnusualHead> {
        match (self.connection, self.upgrade, self.http2_settings) {
            (Some(ConnectionOption::Http2), Some(true), 1) => Ok(false),
            (Some(ConnectionOption::Http2), ..) | (_, Some(_), _) | (.., 1..) => {
                Err(UnusualHead::Irregular)
            }
            (says, None, 0) => Ok(says == Some(ConnectionOption::Close)),
        }
    }
}
