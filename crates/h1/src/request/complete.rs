//! Every form of a head that can be passed on. httparse finds its parts, as in hyper; what a backend could read
//! differently is refused (RFC 9112, 3.2, 6.3 and 11.2).

use http::Uri;
use httparse::{EMPTY_HEADER, Error, Header, Status};
use smallvec::SmallVec;

use super::{BadHead, Flaw, HeadBounds, HttpVersion, RequestHead, RequestTarget};
use crate::fields::{ByteSpan, ConnectionOptions, HeadField, HeadFields, Meaning, span};
use crate::{Framing, octets};

/// Most fields that are read without an allocation.
const FIELDS: usize = 32;

/// The longest body that hyper reads: two numbers above it stand for something else there.   bytes
const LENGTH_MAX: u64 = u64::MAX - 2;

/// The first line of HTTP/2. Its clients read no answer in HTTP/1.
const HTTP_2: &[u8] = b"PRI * HTTP/2.0\r\n";

/// Reads a head of any form.
pub(super) fn read(bytes: &[u8], bounds: HeadBounds) -> Result<Option<RequestHead>, Box<BadHead>> {
    if bytes.starts_with(HTTP_2) {
        return Err(BadHead::unread(bytes, Flaw::Http2Preface));
    }
    if HTTP_2.starts_with(bytes) {
        return Ok(None);
    }
    let mut few = [EMPTY_HEADER; FIELDS];
    match parse(bytes, bounds, &mut few[..FIELDS.min(bounds.fields)]) {
        Err(bad) if bad.flaw == Flaw::TooManyFields(bounds.fields) && bounds.fields > FIELDS => {
            let mut many: SmallVec<[_; 0]> = SmallVec::from_elem(EMPTY_HEADER, bounds.fields);
            parse(bytes, bounds, &mut many)
        }
        parsed => parsed,
    }
}

fn parse<'a>(
    bytes: &'a [u8],
    bounds: HeadBounds,
    room: &mut [Header<'a>],
) -> Result<Option<RequestHead>, Box<BadHead>> {
    let bad = |flaw| Err(BadHead::unread(bytes, flaw));
    let mut head = httparse::Request::new(room);
    let (length, is_whole) = match head.parse(bytes) {
        Ok(Status::Complete(length)) => (length, true),
        Ok(Status::Partial) => (bytes.len(), false),
        Err(Error::TooManyHeaders) => return bad(Flaw::TooManyFields(bounds.fields)),
        Err(Error::Version) => return bad(Flaw::Version),
        Err(Error::Token) => return bad(Flaw::FirstLine),
        Err(Error::HeaderName | Error::HeaderValue) => return bad(Flaw::Field),
        Err(Error::NewLine | Error::Status) => return bad(Flaw::LineEnd),
    };
    if length > bounds.bytes_max() {
        return bad(bounds.too_many_bytes());
    }
    // To httparse, LF alone ends a line, too.
    let mut ends = memchr::memchr_iter(b'\n', &bytes[..length]);
    if ends.any(|at| at == 0 || bytes[at - 1] != b'\r') {
        return bad(Flaw::LineEnd);
    }
    if !is_whole {
        return Ok(None);
    }
    let method = head.method.unwrap_or_default();
    let target = head.path.unwrap_or_default();
    let version = match head.version {
        Some(1) => HttpVersion::Http11,
        _ => HttpVersion::Http10,
    };
    let mut found = CompleteFields::default();
    for field in &*head.headers {
        found.add(bytes, field);
    }
    found.leave_out_named(bytes);
    match check(bytes, &found, method, target, version) {
        Ok((framing, target)) => Ok(Some(RequestHead {
            method: span(bytes, method.as_bytes()),
            upgrade: found.upgrade(bytes, version, framing),
            max_forwards: found.max_forwards(bytes, method),
            target,
            version,
            framing,
            closes: found.closes(version),
            expects_continue: found.expects_continue && version == HttpVersion::Http11,
            is_forwarded: found.is_forwarded,
            is_stateful: found.is_stateful,
            fields: found.fields(bytes, target),
            length,
        })),
        Err(flaw) => Err(Box::new(BadHead {
            flaw,
            to_head: method == "HEAD",
            fields: found.without_host(bytes),
        })),
    }
}

/// The fields of a head, and what they say about the message.
#[derive(Default)]
struct CompleteFields {
    passed: HeadFields,
    /// The first flaw of a single field.
    flaw: Option<Flaw>,
    hosts: usize,
    lengths: usize,
    length: u64,
    codings: usize,
    has_other_coding: bool,
    options: ConnectionOptions,
    upgrades: usize,
    upgrade: Option<ByteSpan>,
    expects_continue: bool,
    is_forwarded: bool,
    is_stateful: bool,
    max_forwards: SmallVec<[ByteSpan; 1]>,
}

impl CompleteFields {
    fn add(&mut self, bytes: &[u8], field: &Header<'_>) {
        let value = field.value;
        let mut flaw = None;
        let meaning = Meaning::of(field.name.as_bytes());
        match meaning {
            Meaning::Host => {
                self.hosts += 1;
                flaw = (!octets::is_host(value)).then_some(Flaw::Host);
            }
            Meaning::ContentLength => {
                self.lengths += 1;
                let length = octets::number(value).filter(|it| *it <= LENGTH_MAX);
                flaw = length.is_none().then_some(Flaw::Length);
                self.length = length.unwrap_or_default();
            }
            Meaning::TransferEncoding => {
                self.codings += 1;
                self.has_other_coding |= !value.eq_ignore_ascii_case(b"chunked");
            }
            Meaning::LikeFraming => flaw = Some(Flaw::LikeFraming),
            Meaning::Connection => self.options.add(bytes, value),
            Meaning::Upgrade => {
                self.upgrades += 1;
                self.upgrade = Some(span(bytes, value));
            }
            Meaning::Expect => {
                self.expects_continue = value.eq_ignore_ascii_case(b"100-continue");
            }
            Meaning::Forwarded => self.is_forwarded = true,
            Meaning::Authorization => self.is_stateful |= octets::logs_in_connection(value),
            Meaning::MaxForwards => self.max_forwards.push(span(bytes, value)),
            Meaning::Passes
            | Meaning::Authenticate
            | Meaning::Http2Settings
            | Meaning::Close
            | Meaning::Trailer
            | Meaning::Hop => {}
        }
        self.flaw = self.flaw.or(flaw);
        if meaning.is_passed() {
            self.passed.push(HeadField {
                name: span(bytes, field.name.as_bytes()),
                value: span(bytes, value),
            });
        }
    }

    fn leave_out_named(&mut self, bytes: &[u8]) {
        self.options.leave_out(bytes, &mut self.passed);
    }

    /// The fields that go with this target.
    fn fields(self, bytes: &[u8], target: RequestTarget) -> HeadFields {
        match target {
            RequestTarget::Absolute { .. } => self.without_host(bytes),
            RequestTarget::Path(_) | RequestTarget::Asterisk => self.passed,
        }
    }

    fn without_host(mut self, bytes: &[u8]) -> HeadFields {
        if self.hosts > 0 {
            self.passed.retain(|field| !field.is_named("host", bytes));
        }
        self.passed
    }

    fn framing(&self, version: HttpVersion) -> Result<Framing, Flaw> {
        match (self.lengths, self.codings) {
            (1.., 1..) => Err(Flaw::TwoFramings),
            (2.., _) => Err(Flaw::ManyLengths),
            (_, 2..) => Err(Flaw::Coding),
            (_, 1) if self.has_other_coding => Err(Flaw::Coding),
            (_, 1) if version == HttpVersion::Http10 => Err(Flaw::EarlyCoding),
            (_, 1) => Ok(Framing::Chunked),
            (1, _) => Ok(Framing::Length(self.length)),
            (0, 0) => Ok(Framing::None),
        }
    }

    fn closes(&self, version: HttpVersion) -> bool {
        self.options.closes || version == HttpVersion::Http10 && !self.options.keeps
    }

    /// The other protocol that is asked for. A server that has no use for an offer ignores it (RFC 9110, 7.8).
    fn upgrade(&self, bytes: &[u8], version: HttpVersion, framing: Framing) -> Option<ByteSpan> {
        let is_asked = self.upgrades == 1
            && version == HttpVersion::Http11
            && framing == Framing::None
            && self.options.has(bytes, b"upgrade");
        let value = self.upgrade.filter(|_| is_asked)?;
        octets::is_upgrade(value.of(bytes)).then_some(value)
    }

    /// Max-Forwards is for these two methods only (RFC 9110, 7.6.2).
    fn max_forwards(&self, bytes: &[u8], method: &str) -> Option<ByteSpan> {
        let is_counted = matches!(method, "TRACE" | "OPTIONS");
        match self.max_forwards[..] {
            [one] if is_counted && octets::number(one.of(bytes)).is_some() => Some(one),
            _ => None,
        }
    }
}

/// Refuses a head of which a backend could think that the request ends elsewhere, or goes elsewhere.
fn check(
    bytes: &[u8],
    found: &CompleteFields,
    method: &str,
    target: &str,
    version: HttpVersion,
) -> Result<(Framing, RequestTarget), Flaw> {
    if let Some(flaw) = found.flaw {
        return Err(flaw);
    }
    let framing = found.framing(version)?;
    match found.hosts {
        2.. => return Err(Flaw::ManyHosts),
        0 if version == HttpVersion::Http11 => return Err(Flaw::NoHost),
        _ => {}
    }
    if method == "CONNECT" {
        return Err(Flaw::Connect);
    }
    Ok((framing, read_target(bytes, method, target)?))
}

fn read_target(bytes: &[u8], method: &str, target: &str) -> Result<RequestTarget, Flaw> {
    let path = RequestTarget::Path(span(bytes, target.as_bytes()));
    if octets::is_target(target.as_bytes()) {
        return Ok(path);
    }
    if target == "*" {
        return match method {
            "OPTIONS" => Ok(RequestTarget::Asterisk),
            _ => Err(Flaw::Asterisk),
        };
    }
    if target.contains('#') {
        return Err(Flaw::Fragment);
    }
    // hyper parses the target with the same code.
    let uri = Uri::try_from(target).map_err(|_| Flaw::Target)?;
    let Some(authority) = uri.authority() else {
        return Ok(path);
    };
    let Some(scheme) = uri.scheme_str() else {
        return Err(Flaw::Authority);
    };
    let authority = authority.as_str();
    if authority.contains('@') {
        return Err(Flaw::User);
    }
    let is_scheme =
        scheme.starts_with(|it: char| it.is_ascii_alphabetic()) && !scheme.contains('~');
    let is_host = octets::is_host(authority.as_bytes()) && !authority.starts_with(':');
    if !is_scheme || !is_host {
        return Err(Flaw::Target);
    }
    let behind_scheme = &target[scheme.len() + "://".len()..];
    let (authority, path_and_query) = behind_scheme.split_at(authority.len());
    Ok(RequestTarget::Absolute {
        authority: span(bytes, authority.as_bytes()),
        path_and_query: span(bytes, path_and_query.as_bytes()),
    })
}
