//! The head of a request in its usual form.
//!
//! A head is read only if no two parsers could read it differently: a known method, a path, HTTP/1.1, lines
//! that end in CRLF, exactly one Host, and at most one framing. A proxy leaves anything else, with all of its
//! bytes, to a complete parser, so this one has no exceptions to get wrong.

use crate::fields::{Field, Fields, Meaning, Span};
use crate::{Framing, HEAD_BYTES_MAX, octets};

/// What a head may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Fields.
    pub fields: usize,
    /// Bytes, up to [`HEAD_BYTES_MAX`].
    pub bytes: usize,
}

/// A method that is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the standard's words")]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    Patch,
}

impl Method {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
            Self::Patch => "PATCH",
        }
    }
}

/// A head that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its method.
    pub method: Method,
    /// Path and query.
    pub target: Span,
    /// Its fields, with Host.
    pub fields: Fields,
    /// How its body ends: [`Framing::None`], [`Framing::Length`] or [`Framing::Chunked`]. A length of 0 was
    /// written as such.
    pub framing: Framing,
    /// Whether the client wants no more answers on this connection.
    pub closes: bool,
    /// Bytes up to the body.
    pub length: usize,
}

/// Why a head needs a complete parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Odd {
    /// Its method is not one of the usual ones.
    Method,
    /// Its target is no path of the usual bytes.
    Target,
    /// It is not HTTP/1.1.
    Version,
    /// A line does not end in CRLF, or continues another.
    Line,
    /// A field with an unusual name, or a control character in its value.
    Field,
    /// No Host, more than one, or one that is no host.
    Host,
    /// More than one length or coding, or a value that is not the plain one.
    Framing,
    /// A value of Connection other than `close` and `keep-alive`, or a field that `close` names.
    Connection,
    /// Another protocol is offered.
    Upgrade,
    /// `Expect`.
    Expect,
    /// `TE` or `Trailer`.
    Trailer,
    /// It is larger than the bounds.
    Large,
}

impl Odd {
    /// Every reason.
    pub const ALL: [Self; 12] = [
        Self::Method,
        Self::Target,
        Self::Version,
        Self::Line,
        Self::Field,
        Self::Host,
        Self::Framing,
        Self::Connection,
        Self::Upgrade,
        Self::Expect,
        Self::Trailer,
        Self::Large,
    ];

    /// A word for metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Target => "target",
            Self::Version => "version",
            Self::Line => "line",
            Self::Field => "field",
            Self::Host => "host",
            Self::Framing => "framing",
            Self::Connection => "connection",
            Self::Upgrade => "upgrade",
            Self::Expect => "expect",
            Self::Trailer => "trailer",
            Self::Large => "large",
        }
    }
}

/// Reads the head at the front of these bytes; `None` if only part of it is here.
///
/// # Errors
/// [`Odd`] if it, or the part that is here, is not of the usual form.
pub fn read(bytes: &[u8], bounds: Bounds) -> Result<Option<Request>, Odd> {
    match parse(bytes, bounds) {
        Ok(request) => Ok(Some(request)),
        Err(Stop::Odd(odd)) => Err(odd),
        Err(Stop::Partial) if bytes.len() > bounds.bytes.min(HEAD_BYTES_MAX) => Err(Odd::Large),
        Err(Stop::Partial) => Ok(None),
    }
}

/// Why reading stops before the end of a head.
enum Stop {
    Odd(Odd),
    /// The bytes end.
    Partial,
}

impl From<Odd> for Stop {
    fn from(odd: Odd) -> Self {
        Self::Odd(odd)
    }
}

fn parse(bytes: &[u8], bounds: Bounds) -> Result<Request, Stop> {
    let (method, at) = method(bytes)?;
    let length = octets::target(&bytes[at..]).ok_or(Stop::Partial)?;
    let path = at..at + length;
    if bytes[at] != b'/' {
        return Err(Odd::Target.into());
    }
    let at = expect(bytes, path.end, b" HTTP/1.1\r\n").map_err(|stop| match stop {
        Stop::Odd(_) if bytes[path.end] != b' ' => Odd::Target.into(),
        Stop::Odd(_) => Odd::Version.into(),
        Stop::Partial => Stop::Partial,
    })?;
    // Only now are positions known to be small.
    let max = bounds.bytes.min(HEAD_BYTES_MAX);
    if at > max {
        return Err(Odd::Large.into());
    }
    let head = &bytes[..bytes.len().min(max)];
    let cut_off = bytes.len() > max;
    let fields = fields(head, at, bounds.fields).map_err(|stop| match stop {
        Stop::Partial if cut_off => Odd::Large.into(),
        stop => stop,
    })?;
    let framing = fields.framing()?;
    if fields.hosts != 1 {
        return Err(Odd::Host.into());
    }
    let closes = fields.closes()?;
    Ok(Request {
        method,
        target: Span::new(path.start, path.end - path.start),
        fields: fields.passed,
        framing,
        closes,
        length: fields.end,
    })
}

/// The method, and where the target begins.
fn method(bytes: &[u8]) -> Result<(Method, usize), Stop> {
    use Method::{Delete, Get, Head, Options, Patch, Post, Put};
    let method = match bytes.first().ok_or(Stop::Partial)? {
        b'G' => Get,
        b'H' => Head,
        b'D' => Delete,
        b'O' => Options,
        b'P' => match bytes.get(1).ok_or(Stop::Partial)? {
            b'O' => Post,
            b'U' => Put,
            _ => Patch,
        },
        _ => return Err(Odd::Method.into()),
    };
    let name = method.name().as_bytes();
    let at = expect(bytes, 0, name).map_err(|stop| stop.or(Odd::Method))?;
    let at = expect(bytes, at, b" ").map_err(|stop| stop.or(Odd::Method))?;
    Ok((method, at))
}

impl Stop {
    /// The same, with this reason.
    fn or(self, odd: Odd) -> Self {
        match self {
            Self::Odd(_) => odd.into(),
            Self::Partial => Self::Partial,
        }
    }
}

/// Where the bytes behind `expected` begin.
fn expect(bytes: &[u8], at: usize, expected: &[u8]) -> Result<usize, Stop> {
    let rest = &bytes[at..];
    if rest.starts_with(expected) {
        Ok(at + expected.len())
    } else if expected.starts_with(rest) {
        Err(Stop::Partial)
    } else {
        Err(Odd::Line.into())
    }
}

/// The fields of a head, and what they say about the message.
#[derive(Default)]
struct Found {
    passed: Fields,
    hosts: usize,
    length: Option<u64>,
    chunked: bool,
    connection: Option<Connection>,
    upgrade: Option<bool>,
    http2_settings: usize,
    end: usize,
}

/// What Connection says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Connection {
    Close,
    KeepAlive,
    /// `Upgrade, HTTP2-Settings`.
    Http2,
}

fn fields(head: &[u8], mut at: usize, max: usize) -> Result<Found, Stop> {
    let mut found = Found::default();
    let mut count = 0;
    loop {
        match &head[at..] {
            [b'\r', b'\n', ..] => break,
            [] | [b'\r'] => return Err(Stop::Partial),
            _ => {}
        }
        let name = octets::name(&head[at..]).ok_or(Stop::Partial)?;
        let colon = at + name;
        if name == 0 {
            // A space here continues the line before.
            let is_line = matches!(head[at], b' ' | b'\t' | b'\r' | b'\n');
            return Err(if is_line { Odd::Line } else { Odd::Field }.into());
        }
        if head[colon] != b':' {
            return Err(Odd::Field.into());
        }
        let from = colon + 1;
        let until = from + octets::text(&head[from..]).ok_or(Stop::Partial)?;
        let behind = expect(head, until, b"\r\n").map_err(|stop| match head[until] {
            b'\r' | b'\n' => stop,
            _ => stop.or(Odd::Field),
        })?;
        count += 1;
        if count > max {
            return Err(Odd::Large.into());
        }
        let (from, until) = trim(head, from, until);
        let field = Field {
            name: Span::new(at, name),
            value: Span::new(from, until - from),
        };
        found.add(field, &head[at..colon], &head[from..until])?;
        at = behind;
    }
    found.end = at + 2;
    Ok(found)
}

/// The same range without spaces around it.
fn trim(bytes: &[u8], mut from: usize, mut until: usize) -> (usize, usize) {
    while from < until && bytes[from] == b' ' {
        from += 1;
    }
    while from < until && bytes[until - 1] == b' ' {
        until -= 1;
    }
    (from, until)
}

impl Found {
    fn add(&mut self, field: Field, name: &[u8], value: &[u8]) -> Result<(), Odd> {
        match Meaning::of(name) {
            Meaning::Passes => self.passed.push(field),
            Meaning::Host => {
                if !octets::is_host(value) {
                    return Err(Odd::Host);
                }
                self.hosts += 1;
                self.passed.push(field);
            }
            Meaning::ContentLength => {
                let length = octets::number(value).ok_or(Odd::Framing)?;
                if value.len() > 19 || self.length.replace(length).is_some() {
                    return Err(Odd::Framing);
                }
            }
            Meaning::TransferEncoding => {
                let is_chunked = value.eq_ignore_ascii_case(b"chunked");
                if !is_chunked || std::mem::replace(&mut self.chunked, true) {
                    return Err(Odd::Framing);
                }
            }
            Meaning::Connection => {
                let says = if value.eq_ignore_ascii_case(b"close") {
                    Connection::Close
                } else if value.eq_ignore_ascii_case(b"keep-alive") {
                    Connection::KeepAlive
                } else if value.eq_ignore_ascii_case(b"Upgrade, HTTP2-Settings") {
                    Connection::Http2
                } else {
                    return Err(Odd::Connection);
                };
                if self.connection.replace(says).is_some() {
                    return Err(Odd::Connection);
                }
            }
            Meaning::Upgrade => {
                let is_http2 = value.eq_ignore_ascii_case(b"h2c");
                if self.upgrade.replace(is_http2).is_some() {
                    return Err(Odd::Upgrade);
                }
            }
            Meaning::Http2Settings => self.http2_settings += 1,
            Meaning::Close => return Err(Odd::Connection),
            Meaning::Expect => return Err(Odd::Expect),
            Meaning::Trailer => return Err(Odd::Trailer),
            Meaning::LikeFraming => return Err(Odd::Framing),
            Meaning::Hop => {}
        }
        Ok(())
    }

    fn framing(&self) -> Result<Framing, Odd> {
        match (self.length, self.chunked) {
            (None, false) => Ok(Framing::None),
            (Some(length), false) => Ok(Framing::Length(length)),
            (None, true) => Ok(Framing::Chunked),
            (Some(_), true) => Err(Odd::Framing),
        }
    }

    /// Whether the client wants the connection closed. Java's client offers HTTP/2 with its first request;
    /// a server that has no use for the offer ignores it (RFC 9110, 7.8), so it is left out.
    fn closes(&self) -> Result<bool, Odd> {
        match (self.connection, self.upgrade, self.http2_settings) {
            (Some(Connection::Http2), Some(true), 1) => Ok(false),
            (Some(Connection::Http2), ..) | (_, Some(_), _) | (.., 1..) => Err(Odd::Upgrade),
            (says, None, 0) => Ok(says == Some(Connection::Close)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        fields: 4,
        bytes: 1024,
    };

    fn get(fields: &str) -> String {
        format!("GET /a?b=c HTTP/1.1\r\n{fields}\r\n")
    }

    fn whole(head: &str) -> Request {
        match read(head.as_bytes(), BOUNDS) {
            Ok(Some(request)) => request,
            other => panic!("{head:?}: {other:?}"),
        }
    }

    /// Its fields, as `name=value`.
    fn passed(head: &str) -> Vec<String> {
        let text = |span: Span| {
            str::from_utf8(span.of(head.as_bytes()))
                .expect("text")
                .to_owned()
        };
        let request = whole(head);
        let fields = request.fields.iter();
        fields
            .map(|field| format!("{}={}", text(field.name), text(field.value)))
            .collect()
    }

    #[test]
    fn a_usual_head_is_read() {
        let head = get("Host: t:80\r\nUser-Agent:  x y \r\nX:\r\nConnection: Close\r\n");
        let request = whole(&head);
        assert_eq!(request.method, Method::Get);
        assert_eq!(request.target.of(head.as_bytes()), b"/a?b=c");
        assert_eq!(passed(&head), ["Host=t:80", "User-Agent=x y", "X="]);
        assert_eq!(request.framing, Framing::None);
        assert!(request.closes);
        assert_eq!(request.length, head.len());
    }

    #[test]
    fn every_usual_method_is_read_and_others_are_odd() {
        use Method::{Delete, Get, Head, Options, Patch, Post, Put};
        for method in [Get, Head, Post, Put, Delete, Options, Patch] {
            let head = format!("{} / HTTP/1.1\r\nHost: t\r\n\r\n", method.name());
            assert_eq!(whole(&head).method, method);
        }
        for method in [
            "get", "GETX", "TRACE", "CONNECT", "PATC", "P", "", "GE T", "PUTT",
        ] {
            let head = format!("{method} / HTTP/1.1\r\nHost: t\r\n\r\n");
            assert_eq!(read(head.as_bytes(), BOUNDS), Err(Odd::Method), "{method}");
        }
    }

    #[test]
    fn framings() {
        for (fields, framing) in [
            ("", Ok(Framing::None)),
            ("Content-Length: 0\r\n", Ok(Framing::Length(0))),
            ("content-length:7\r\n", Ok(Framing::Length(7))),
            ("Transfer-Encoding: Chunked\r\n", Ok(Framing::Chunked)),
            (
                "Content-Length: 9999999999999999999\r\n",
                Ok(Framing::Length(9_999_999_999_999_999_999)),
            ),
            (
                "Content-Length: 00000000000000000000\r\n",
                Err(Odd::Framing),
            ),
            (
                "Content-Length: 99999999999999999999\r\n",
                Err(Odd::Framing),
            ),
            ("Content-Length: +1\r\n", Err(Odd::Framing)),
            ("Content-Length: 1, 1\r\n", Err(Odd::Framing)),
            ("Content-Length:\r\n", Err(Odd::Framing)),
            (
                "Content-Length: 1\r\nContent-Length: 1\r\n",
                Err(Odd::Framing),
            ),
            (
                "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
                Err(Odd::Framing),
            ),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                Err(Odd::Framing),
            ),
            ("Transfer-Encoding: gzip, chunked\r\n", Err(Odd::Framing)),
            ("Content_Length: 1\r\n", Err(Odd::Framing)),
        ] {
            let head = get(&format!("Host: t\r\n{fields}"));
            let read = read(head.as_bytes(), BOUNDS).map(|it| it.expect("whole").framing);
            assert_eq!(read, framing, "{fields:?}");
        }
    }

    #[test]
    fn what_a_parser_could_read_differently_is_odd() {
        let odd = |head: &str, odd: Odd| {
            assert_eq!(read(head.as_bytes(), BOUNDS), Err(odd), "{head:?}");
        };
        odd(&get(""), Odd::Host);
        odd(&get("Host: t\r\nHost: t\r\n"), Odd::Host);
        odd(&get("Host: a b\r\n"), Odd::Host);
        odd(&get("Host: t\n"), Odd::Line);
        odd(&get("Host: t\r\n X: y\r\n"), Odd::Line);
        odd(&get("Host: t\r\r\n"), Odd::Line);
        odd(&get("Host: t\r\nX : y\r\n"), Odd::Field);
        odd(&get("Host: t\r\nX: a\0b\r\n"), Odd::Field);
        odd(&get("Host: t\r\nX: a\tb\r\n"), Odd::Field);
        odd(&get("Host: t\r\nX\r\n"), Odd::Field);
        odd(&get("Host: t\r\n: y\r\n"), Odd::Field);
        odd(&get("Host: t\r\nExpect: 100-continue\r\n"), Odd::Expect);
        odd(&get("Host: t\r\nTE: trailers\r\n"), Odd::Trailer);
        odd(&get("Host: t\r\nTrailer: x\r\n"), Odd::Trailer);
        odd(&get("Host: t\r\nUpgrade: h2c\r\n"), Odd::Upgrade);
        odd(&get("Host: t\r\nConnection: x\r\n"), Odd::Connection);
        odd(&get("Host: t\r\nClose: x\r\n"), Odd::Connection);
        odd(
            &get("Host: t\r\nConnection: close, close\r\n"),
            Odd::Connection,
        );
        odd(
            &get("Host: t\r\nConnection: close\r\nConnection: close\r\n"),
            Odd::Connection,
        );
        odd(&get("Host: t\r\nA:\r\nB:\r\nC:\r\nD:\r\n"), Odd::Large);
        odd(
            &get(&format!("Host: t\r\nX: {}\r\n", "x".repeat(1024))),
            Odd::Large,
        );
        odd(
            &format!("GET /{} HTTP/1.1\r\nHost: t\r\n\r\n", "x".repeat(1024)),
            Odd::Large,
        );
        odd(&"G".repeat(3), Odd::Method);
        odd("GET  / HTTP/1.1\r\n", Odd::Target);
        odd("GET http://t/ HTTP/1.1\r\n", Odd::Target);
        odd("GET * HTTP/1.1\r\n", Odd::Target);
        odd("GET /\u{e9} HTTP/1.1\r\n", Odd::Target);
        odd("GET /# HTTP/1.1\r\n", Odd::Target);
        odd("GET / HTTP/1.0\r\n", Odd::Version);
        odd("GET / HTTP/1.1\n", Odd::Version);
        odd("GET /  HTTP/1.1\r\n", Odd::Version);
        odd("\r\nGET / HTTP/1.1\r\n", Odd::Method);
    }

    #[test]
    fn an_offer_of_http_2_is_left_out() {
        let offer = "Host: t\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAE\r\n";
        assert_eq!(passed(&get(offer)), ["Host=t"]);
        for line in offer.split_inclusive("\r\n").skip(1) {
            let head = get(&offer.replace(line, ""));
            assert_eq!(read(head.as_bytes(), BOUNDS), Err(Odd::Upgrade), "{head}");
        }
        let other = get(&offer.replace("h2c", "websocket"));
        assert_eq!(read(other.as_bytes(), BOUNDS), Err(Odd::Upgrade));
    }

    #[test]
    fn a_part_of_a_usual_head_is_a_part() {
        let head = get("Host: t:80\r\nUser-Agent: x\r\nConnection: keep-alive\r\nX: \u{e9}\r\n");
        for cut in 0..head.len() {
            assert_eq!(read(&head.as_bytes()[..cut], BOUNDS), Ok(None), "{cut}");
        }
        let mut bytes = head.clone().into_bytes();
        bytes.extend_from_slice(b"GET / HTTP/1.1\r\n");
        assert_eq!(read(&bytes, BOUNDS), Ok(Some(whole(&head))));
    }

    #[test]
    fn hop_by_hop_fields_are_left_out() {
        let hop =
            get("Host: t\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nProxy-Authorization: y\r\n");
        assert_eq!(passed(&hop), ["Host=t"]);
    }
}
