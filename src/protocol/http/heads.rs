//! Checks the head of each request in its raw bytes, before hyper parses it.
//!
//! hyper removes a second Content-Length, and a Content-Length beside Transfer-Encoding, so the
//! parsed head does not show them. hyper also answers a head that it cannot parse by itself,
//! without a body. So hyper gets only heads that are whole and good. This module follows where
//! each message ends to find the next head. A bad head is replaced by one of our own, and the
//! request handler refuses that request; the answer follows those to earlier requests. Bytes
//! behind a bad head are discarded.

use std::mem::{self, MaybeUninit};

use http::Uri;
use httparse::{Error, Request, Status};
use smallvec::SmallVec;
use tidegate_h1::{Framing, octets, request};
use tokio::io::ReadBuf;

use crate::call::{Reason, Refusal};

/// Largest head of a request.   bytes
pub(super) const HEAD_BYTES: usize = 64 * 1024;

/// Heads with up to this many fields are parsed without an allocation.
const FIELDS: usize = 128;

/// The preface of HTTP/2. Its clients read no answer in HTTP/1.
const HTTP_2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The bytes of one connection, on their way to hyper.
#[derive(Default)]
pub(super) struct Heads {
    fields_max: usize,
    part: Part,
    /// Bytes that hyper does not have yet: first those that are ready for it, then part of a head.
    held: Vec<u8>,
    /// How many of these are ready for hyper.
    ready: usize,
    /// Up to here `held` contains no end of a head.
    searched: usize,
    /// Heads that hyper has, or that are ready for it.
    passed: u64,
    /// Which of them replaces a bad one, and the refusal; until it is taken.
    refused: Option<(u64, Refusal)>,
    /// A request of HTTP/1.0 that names no host has come.
    lacks_host: bool,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Head,
    /// A body, and how many bytes of it are still to come.
    Body(u64),
    Chunked(Chunk),
    /// Nothing: a head was refused, and the rest is discarded.
    Refused,
    /// HTTP/2, which hyper closes.
    Foreign,
}

/// A place in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chunk {
    /// The digits of a size; so far it is this.
    Size(u64),
    /// The rest of the line with this size.
    Extension(u64),
    /// Data, and the two bytes of the line's end behind it.
    Data(u64),
    /// Behind the last chunk.
    Trailer(Line),
}

/// A place in the lines behind the last chunk. Only CRLF ends a line for hyper there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Start,
    /// Behind the CR of the empty line.
    LastCr,
    Within,
    Cr,
}

/// A head that is whole.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    length: usize,
    body: Part,
    lacks_host: bool,
}

/// Why a head is refused, and the head that hyper gets instead.
struct BadHead {
    refusal: Refusal,
    instead: Vec<u8>,
}

impl Heads {
    pub(super) fn new(fields_max: usize) -> Self {
        Self {
            fields_max,
            ..Self::default()
        }
    }

    /// Takes bytes from the socket. Bytes that are ready go straight into hyper's buffer.
    pub(super) fn take(&mut self, bytes: &[u8], buf: &mut ReadBuf<'_>) {
        if self.part == Part::Refused {
            return;
        }
        if !self.held.is_empty() {
            self.held.extend_from_slice(bytes);
            return self.look();
        }
        let (good, refused) = self.follow(bytes);
        let at_once = good.min(buf.remaining());
        buf.put_slice(&bytes[..at_once]);
        self.held.extend_from_slice(&bytes[at_once..]);
        self.settle(good - at_once, refused);
    }

    /// The same for bytes that are in memory of their own.
    pub(super) fn take_first(&mut self, bytes: Vec<u8>) {
        self.held = bytes;
        self.look();
    }

    /// Copies ready bytes into hyper's buffer. False if there are none.
    pub(super) fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        if self.ready == 0 {
            return false;
        }
        let given = self.ready.min(buf.remaining());
        buf.put_slice(&self.held[..given]);
        self.ready -= given;
        if given == self.held.len() {
            self.held = Vec::new();
        } else {
            self.held.drain(..given);
        }
        true
    }

    /// Whether a head was refused, so that nothing further is read.
    pub(super) fn is_over(&self) -> bool {
        self.part == Part::Refused
    }

    /// Whether part of a head is here.
    pub(super) fn is_mid_head(&self) -> bool {
        self.held.len() > self.ready
    }

    /// The number on the connection of the request that is refused, and the refusal. Returned once.
    pub(super) fn take_refused(&mut self) -> Option<(u64, Refusal)> {
        self.refused.take()
    }

    /// Whether a request of HTTP/1.0 without a host has come. Returned once.
    pub(super) fn take_lacks_host(&mut self) -> bool {
        mem::take(&mut self.lacks_host)
    }

    /// Parses what is held, unless it is only part of a head.
    fn look(&mut self) {
        if self.ready > 0 {
            return;
        }
        if self.part == Part::Head && self.held.len() <= HEAD_BYTES && !self.has_whole_head() {
            return;
        }
        let held = mem::take(&mut self.held);
        let (good, refused) = self.follow(&held);
        self.held = held;
        self.settle(good, refused);
    }

    /// Whether an empty line is held. Looks at each byte once, so that a client that sends byte by
    /// byte does not cause a parse of the whole head for each.
    fn has_whole_head(&mut self) -> bool {
        let from = self.searched.saturating_sub(3);
        let found = memchr::memchr_iter(b'\n', &self.held[from..]).any(|at| {
            let behind = &self.held[from + at + 1..];
            behind.starts_with(b"\n") || behind.starts_with(b"\r\n")
        });
        // The first bytes are always parsed: most bad heads show at once.
        let found = found || self.searched == 0;
        self.searched = self.held.len();
        found
    }

    /// Marks the first `ready` bytes of `held` as ready; a bad head behind them is replaced.
    fn settle(&mut self, ready: usize, refused: Option<BadHead>) {
        self.ready = ready;
        if let Some(BadHead { refusal, instead }) = refused {
            self.held.truncate(ready);
            self.held.extend_from_slice(&instead);
            self.ready = self.held.len();
            self.refused = Some((self.passed, refusal));
            self.passed += 1;
            self.part = Part::Refused;
        }
        self.searched = self.held.len() - self.ready;
    }

    /// Follows the messages in these bytes. Returns how many bytes are good for hyper.
    fn follow(&mut self, bytes: &[u8]) -> (usize, Option<BadHead>) {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match &mut self.part {
                Part::Head => match self.head(rest) {
                    Ok(Some(head)) => {
                        at += head.length;
                        self.part = head.body;
                        self.passed += 1;
                        self.lacks_host |= head.lacks_host;
                    }
                    Ok(None) if rest.len() > HEAD_BYTES => {
                        return (at, Some(BadHead::unread(rest, too_large())));
                    }
                    Ok(None) => break,
                    Err(_) if rest.starts_with(HTTP_2) => self.part = Part::Foreign,
                    Err(_) if HTTP_2.starts_with(rest) => break,
                    Err(refused) => return (at, Some(refused)),
                },
                Part::Body(left) => {
                    let here = usize::try_from(*left).map_or(rest.len(), |it| it.min(rest.len()));
                    *left -= here as u64;
                    at += here;
                    if *left == 0 {
                        self.part = Part::Head;
                    }
                }
                Part::Chunked(chunk) => {
                    let (here, next) = chunk.follow(rest);
                    at += here;
                    self.part = next.map_or(Part::Head, Part::Chunked);
                }
                Part::Foreign | Part::Refused => at = bytes.len(),
            }
        }
        (at, None)
    }

    /// The head at the front of these bytes, if it is whole.
    fn head(&self, bytes: &[u8]) -> Result<Option<Head>, BadHead> {
        match usual_head(bytes, self.fields_max) {
            Some(head) => Ok(Some(head)),
            None => self.any_head(bytes),
        }
    }

    /// The same for a head of any form.
    fn any_head(&self, bytes: &[u8]) -> Result<Option<Head>, BadHead> {
        let mut fields: SmallVec<[_; FIELDS]> =
            SmallVec::from_elem(MaybeUninit::uninit(), self.fields_max);
        let mut request = Request::new(&mut []);
        let refused = match request.parse_with_uninit_headers(bytes, &mut fields) {
            Ok(Status::Partial) => return Ok(None),
            Ok(Status::Complete(length)) if length > HEAD_BYTES => too_large(),
            Ok(Status::Complete(length)) => {
                return check(&request, length)
                    .map(Some)
                    .map_err(|why| BadHead::read(&request, bad(why), self.fields_max));
            }
            Err(Error::TooManyHeaders) => Refusal::new(
                Reason::HeadTooLarge,
                format!(
                    "the request has more than {} header fields (client.max_request_fields)",
                    self.fields_max
                ),
            ),
            Err(Error::Version) => bad("neither HTTP/1.1 nor HTTP/1.0"),
            Err(Error::Token) => bad("no HTTP: the first line is not a method and a target"),
            Err(Error::HeaderName | Error::HeaderValue) => bad("a header field is malformed"),
            Err(_) => bad("a line does not end as HTTP's lines do"),
        };
        Err(BadHead::unread(bytes, refused))
    }
}

fn bad(why: &'static str) -> Refusal {
    Refusal::new(Reason::BadRequest, why)
}

fn too_large() -> Refusal {
    Refusal::new(
        Reason::HeadTooLarge,
        format!("the request's head is larger than {HEAD_BYTES} bytes"),
    )
}

/// The head at the front of these bytes, if it is whole and of the usual form. The complete check returns the
/// same for it, and takes longer.
fn usual_head(bytes: &[u8], fields_max: usize) -> Option<Head> {
    let bounds = request::Bounds {
        fields: fields_max,
        bytes: HEAD_BYTES,
    };
    let request = request::read(bytes, bounds).ok()??;
    Some(Head {
        length: request.length,
        body: match request.framing {
            Framing::Chunked => Part::Chunked(Chunk::Size(0)),
            Framing::Length(body @ 1..) => Part::Body(body),
            Framing::Length(0) | Framing::None | Framing::Close => Part::Head,
        },
        lacks_host: false,
    })
}

/// Refuses a head of which a backend could think that the request ends elsewhere, or goes
/// elsewhere, than hyper thinks (RFC 9112, 3.2, 6.3 and 11.2).
fn check(request: &Request<'_, '_>, length: usize) -> Result<Head, &'static str> {
    let is_1_1 = request.version == Some(1);
    let (mut lengths, mut codings, mut hosts) = (0, 0, 0);
    let mut body = 0;
    let mut is_chunked = true;
    for field in &*request.headers {
        let name = field.name;
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => {
                hosts += 1;
                if !octets::is_host(field.value.trim_ascii()) {
                    return Err("a Host that is no host");
                }
            }
            14 if name.eq_ignore_ascii_case("content-length") => {
                lengths += 1;
                body = octets::number(field.value).ok_or("a Content-Length that is no number")?;
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                codings += 1;
                is_chunked &= field.value.eq_ignore_ascii_case(b"chunked");
            }
            _ if octets::is_like_framing(name.as_bytes()) => {
                return Err("a name that can be taken for Content-Length or Transfer-Encoding");
            }
            _ => {}
        }
    }
    let is_connect = request.method == Some("CONNECT");
    let wrongs = [
        (
            lengths > 0 && codings > 0,
            "both Content-Length and Transfer-Encoding",
        ),
        (lengths > 1, "more than one Content-Length"),
        (
            codings > 1 || !is_chunked,
            "a Transfer-Encoding other than chunked",
        ),
        (codings > 0 && !is_1_1, "Transfer-Encoding before HTTP/1.1"),
        (hosts > 1, "more than one Host"),
        (hosts == 0 && is_1_1, "no Host"),
        (is_connect, "CONNECT: this is no forward proxy"),
    ];
    if let Some((_, why)) = wrongs.iter().find(|(is_so, _)| *is_so) {
        return Err(why);
    }
    let method = request.method.unwrap_or_default();
    let names_host = check_target(method, request.path.unwrap_or_default())?;
    Ok(Head {
        length,
        body: if codings > 0 {
            Part::Chunked(Chunk::Size(0))
        } else if body > 0 {
            Part::Body(body)
        } else {
            Part::Head
        },
        lacks_host: hosts == 0 && !names_host,
    })
}

/// Whether a target names its host.
fn check_target(method: &str, target: &str) -> Result<bool, &'static str> {
    if octets::is_target(target.as_bytes()) {
        return Ok(false);
    }
    if target == "*" && method != "OPTIONS" {
        return Err("the request's target is *, which is only for OPTIONS");
    }
    // hyper would forward the target without it.
    if target.contains('#') {
        return Err("the request's target has a fragment");
    }
    // hyper parses the target with the same code.
    let uri = Uri::try_from(target).map_err(|_| "the request's target is no path and no URI")?;
    let Some(authority) = uri.authority() else {
        return Ok(false);
    };
    if uri.scheme().is_none() {
        return Err("the request's target is a host and no path");
    }
    if authority.as_str().contains('@') {
        return Err("the request's target names a user, which is not passed on");
    }
    Ok(true)
}

impl BadHead {
    /// For a head that cannot be parsed. HEAD stays HEAD, because its answer has no body.
    fn unread(bytes: &[u8], refusal: Refusal) -> Self {
        let method = if bytes.starts_with(b"HEAD") {
            "HEAD"
        } else {
            "GET"
        };
        Self {
            refusal,
            instead: format!("{method} / HTTP/1.1\r\nHost: tidegate\r\n\r\n").into_bytes(),
        }
    }

    /// For a head that is parsed. Its other fields stay, because they identify the caller. With a
    /// host it has no more than `fields_max`, which is what hyper accepts.
    fn read(request: &Request<'_, '_>, refusal: Refusal, fields_max: usize) -> Self {
        const LEFT_OUT: [&str; 6] = [
            "host",
            "content-length",
            "transfer-encoding",
            "connection",
            "expect",
            "upgrade",
        ];
        let method = match request.method {
            Some("HEAD") => "HEAD",
            _ => "GET",
        };
        let version = request.version.unwrap_or(1);
        let mut instead = format!("{method} / HTTP/1.{version}\r\nHost: tidegate\r\n").into_bytes();
        let is_left_out = |name: &str| LEFT_OUT.iter().any(|it| name.eq_ignore_ascii_case(it));
        let stay = request.headers.iter();
        let stay = stay.filter(|field| !is_left_out(field.name));
        for field in stay.take(fields_max.saturating_sub(1)) {
            instead.extend_from_slice(field.name.as_bytes());
            instead.extend_from_slice(b": ");
            instead.extend_from_slice(field.value);
            instead.extend_from_slice(b"\r\n");
        }
        instead.extend_from_slice(b"\r\n");
        if instead.len() > HEAD_BYTES {
            // With a host it is larger than hyper accepts.
            return Self::unread(method.as_bytes(), refusal);
        }
        Self { refusal, instead }
    }
}

impl Chunk {
    /// Follows a chunked body. Returns how many of these bytes belong to it, and the new place, or
    /// none at its end. It accepts more than hyper does; a body that hyper accepts ends at the same
    /// byte in both.
    fn follow(self, bytes: &[u8]) -> (usize, Option<Self>) {
        let mut chunk = self;
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            at += 1;
            chunk = match chunk {
                Self::Size(size) => match (char::from(byte).to_digit(16), byte) {
                    (Some(digit), _) => Self::Size(size.wrapping_mul(16) + u64::from(digit)),
                    (None, b'\n') => Self::begun(size),
                    (None, _) => Self::Extension(size),
                },
                Self::Extension(size) if byte == b'\n' => Self::begun(size),
                Self::Extension(size) => Self::Extension(size),
                Self::Data(left) => {
                    // This byte, and further ones that are here.
                    let here = (bytes.len() - at) as u64;
                    let more = here.min(left - 1);
                    at += usize::try_from(more).expect("no more than are here");
                    match left - 1 - more {
                        0 => Self::Size(0),
                        left => Self::Data(left),
                    }
                }
                Self::Trailer(line) => match (line, byte) {
                    (Line::LastCr, b'\n') => return (at, None),
                    (Line::Start, b'\r') => Self::Trailer(Line::LastCr),
                    (Line::Within, b'\r') => Self::Trailer(Line::Cr),
                    (Line::Cr, b'\n') => Self::Trailer(Line::Start),
                    _ => Self::Trailer(Line::Within),
                },
            };
        }
        (at, Some(chunk))
    }

    fn begun(size: u64) -> Self {
        match size {
            0 => Self::Trailer(Line::Start),
            size => Self::Data(size.saturating_add(2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: [&str; 6] = [
        "GET /guests/LINUX1/info HTTP/1.1\r\nHost: 127.0.0.1:80\r\nUser-Agent: x y/1\r\nAccept: */*\r\n\r\n",
        "POST /a?b=%20c HTTP/1.1\r\nX-Auth_Token:abc\r\nContent-Length: 12\r\nHOST:a\r\nX: \r\n\r\n{}",
        "PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nContent-Type: a; b=\"\u{e9}\"\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n",
    ];

    /// Whether it is read here, as the complete check reads it.
    fn is_read(head: &[u8], fields_max: usize) -> bool {
        let Some(read) = usual_head(head, fields_max) else {
            return false;
        };
        let complete = Heads::new(fields_max).any_head(head);
        let Ok(Some(complete)) = complete else {
            panic!(
                "the complete check refuses {:?}",
                String::from_utf8_lossy(head)
            );
        };
        assert_eq!(read, complete, "{:?}", String::from_utf8_lossy(head));
        true
    }

    #[test]
    fn a_head_of_the_usual_form_is_read_in_one_pass() {
        let read = SAMPLES.map(|head| is_read(head.as_bytes(), 4));
        assert_eq!(read, [true, true, true, true, false, false]);
        assert!(!is_read(SAMPLES[1].as_bytes(), 3));
        for length in [HEAD_BYTES, HEAD_BYTES + 1] {
            let fixed = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n";
            let long = "x".repeat(length - fixed.len());
            let head = fixed.replace("X: ", &format!("X: {long}"));
            assert_eq!(is_read(head.as_bytes(), 4), length == HEAD_BYTES);
        }
    }

    #[test]
    fn whatever_byte_is_changed_added_or_lost_the_complete_check_agrees() {
        let mut read = 0;
        for sample in SAMPLES {
            for at in 0..sample.len() {
                let (before, behind) = sample.as_bytes().split_at(at);
                is_read(before, 4);
                is_read(&[before, &behind[1..]].concat(), 4);
                for byte in 0..=u8::MAX {
                    read += u32::from(is_read(&[before, &[byte], behind].concat(), 4));
                    read += u32::from(is_read(&[before, &[byte], &behind[1..]].concat(), 4));
                }
            }
        }
        assert!(read > 10_000, "{read}");
    }

    /// What hyper gets of bytes that come in pieces of one length, and what is refused.
    fn passed(bytes: &[u8], piece: usize) -> (Vec<u8>, Option<(u64, Refusal)>) {
        let mut heads = Heads::new(100);
        let mut got = Vec::new();
        let mut room = [0; 1000];
        for piece in bytes.chunks(piece) {
            let mut buf = ReadBuf::new(&mut room);
            heads.take(piece, &mut buf);
            got.extend_from_slice(buf.filled());
            loop {
                let mut buf = ReadBuf::new(&mut room[..7]);
                if !heads.give(&mut buf) {
                    break;
                }
                got.extend_from_slice(buf.filled());
            }
        }
        (got, heads.take_refused())
    }

    #[test]
    fn valid_heads_are_passed_on_unchanged_in_any_pieces() {
        let get = "GET /a HTTP/1.1\r\nHost: t\r\n\r\n";
        let post = "POST /b HTTP/1.1\r\nHost: t\r\nContent-Length: 30\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\nxyz";
        let chunked = "POST /c HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n\
                       5\r\nabcde\r\nA;x=y\r\n0123456789\r\n1 \r\n\n\r\n0\r\nX: y\r\nZ: \r\n\r\n";
        let whole = [get, post, chunked, "\r\n", get, chunked, post, get].concat();
        for piece in 1..whole.len() {
            let (got, refused) = passed(whole.as_bytes(), piece);
            assert_eq!(refused, None, "{piece}");
            assert_eq!(String::from_utf8_lossy(&got), whole, "{piece}");
        }
    }

    #[test]
    fn instead_of_what_is_bad_hyper_gets_a_request_of_ours_and_nothing_behind_it() {
        let get = "GET /a HTTP/1.1\r\nHost: t\r\n\r\n";
        let bad =
            "HEAD /b HTTP/1.0\r\nContent-Length: 2\r\nUser-Agent: x\r\nContent-Length: 2\r\n\r\n{}";
        let ours = "HEAD / HTTP/1.0\r\nHost: tidegate\r\nUser-Agent: x\r\n\r\n";
        let whole = [get, bad, get].concat();
        for piece in 1..whole.len() {
            let (got, refused) = passed(whole.as_bytes(), piece);
            let (number, refusal) = refused.expect("it is refused");
            assert_eq!(number, 1, "{piece}");
            assert_eq!(refusal.detail, "more than one Content-Length");
            assert_eq!(
                String::from_utf8_lossy(&got),
                [get, ours].concat(),
                "{piece}"
            );
        }
    }

    #[test]
    fn a_head_that_replaces_a_bad_one_has_no_more_fields_than_hyper_accepts() {
        let fields: String = (0..16).map(|it| format!("X-{it}: y\r\n")).collect();
        let bad = format!("GET /a HTTP/1.1\r\n{fields}\r\n");
        let Err(refused) = Heads::new(16).head(bad.as_bytes()) else {
            panic!("it has no host");
        };
        let lines = refused.instead.iter().filter(|byte| **byte == b'\n');
        assert_eq!(lines.count(), 1 + 16 + 1);
    }

    #[test]
    fn a_chunked_body_ends_where_hyper_ends_it() {
        let start = Chunk::Size(0);
        for (body, length) in [
            ("0\r\n\r\nX", Some(5)),
            ("0\r\nX: y\r\n\r\nX", Some(11)),
            // To hyper, a line that ends in LF alone goes on.
            ("0\r\n\nGET / HTTP/1.1\r\n", None),
            ("0\r\n\nGET / HTTP/1.1\r\n\r\nX", Some(22)),
            ("0\r\nX: y\n\r\nGET / HTTP/1.1\r\n\r\nX", Some(28)),
        ] {
            let (at, next) = start.follow(body.as_bytes());
            assert_eq!(next.is_none().then_some(at), length, "{body:?}");
        }
    }

    #[test]
    fn part_of_a_head_stays_here() {
        let mut heads = Heads::new(100);
        let mut room = [0; 1000];
        let mut buf = ReadBuf::new(&mut room);
        heads.take(b"GET /a HTTP/1.1\r\nHost: t\r\n\r\nGET /b HT", &mut buf);
        assert!(buf.filled().ends_with(b"\r\n\r\n"));
        assert!(heads.is_mid_head());
        assert!(!heads.give(&mut buf));
        heads.take(b"TP/1.0\r\n\r\n", &mut buf);
        assert!(heads.give(&mut buf));
        assert!(buf.filled().ends_with(b"GET /b HTTP/1.0\r\n\r\n"));
        assert!(!heads.is_mid_head());
        assert!(heads.take_lacks_host());
    }
}
