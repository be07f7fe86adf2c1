//! Laws of the head of a request.
//!
//! - The crate reads a head exactly if [`plain`] does, with the same meaning.
//! - What it reads, hyper's server reads: the same method, target, fields and end of the head and of the body. The
//!   crate keeps no connection that hyper would close.
//! - What it refuses and hyper reads is one of the things in [`STRICTER`].
//! - The head written anew is one of HTTP/1.1 with one framing line, means the same to all of them, and is acceptable
//!   to `http_desync_guardian`.
//! - A part of a head that is read is a part, wherever it is cut.

use std::mem::MaybeUninit;

use http_desync_guardian::request_analyzer::HttpRequestData;
use http_desync_guardian::{ClassificationReason, RequestSafetyTier};
use tidegate_h1::request::{BadHead, Flaw, HeadBounds, HttpVersion, RequestHead, RequestTarget};
use tidegate_h1::{Framing, HeadEnd, HeadField, write};

use super::chunks;
use super::inputs::guardian;
use super::plain::{self, Plain};
use super::subject::{Checked, Effort, Reached, Subject, are_same, shown};

/// Heads that hyper reads and the crate refuses, and why. Any other flaw is one to hyper, too.
const STRICTER: [(Flaw, &str); 14] = [
    (
        Flaw::LineEnd,
        "a line that ends in LF alone is not one to every parser (RFC 9112, 2.2)",
    ),
    (
        Flaw::Host,
        "it is written into paths and lines (RFC 9112, 3.2)",
    ),
    (Flaw::NoHost, "must be refused (RFC 9112, 3.2)"),
    (Flaw::ManyHosts, "must be refused (RFC 9112, 3.2)"),
    (
        Flaw::Length,
        "hyper does not look at it beside Transfer-Encoding",
    ),
    (
        Flaw::ManyLengths,
        "some take the first and some the last; hyper if they are the same",
    ),
    (
        Flaw::TwoFramings,
        "ought to be handled as an error (RFC 9112, 6.3)",
    ),
    (
        Flaw::Coding,
        "a backend may know no other coding; hyper reads no further than the last one",
    ),
    (
        Flaw::LikeFraming,
        "gateways of CGI and WSGI take it for a framing field",
    ),
    (Flaw::Connect, "this is no forward proxy"),
    (Flaw::Asterisk, "is only for OPTIONS (RFC 9112, 3.2.4)"),
    (Flaw::Fragment, "hyper drops it (RFC 9112, 3.2)"),
    (Flaw::Authority, "is only for CONNECT (RFC 9112, 3.2.3)"),
    (Flaw::User, "must be handled as an error (RFC 9110, 4.2.4)"),
];

/// Targets are not in the table: hyper reads these, of which scheme or host are none by RFC 3986 and RFC 9110, 4.2.1.
fn is_doubtful_uri(target: &str) -> bool {
    let Some((scheme, rest)) = target.split_once("://") else {
        return false;
    };
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    let is_bare = host.starts_with(':');
    let has_brackets_within = host.find('[').is_some_and(|at| at > 0) || has_more_behind(host);
    let is_scheme =
        scheme.starts_with(|it: char| it.is_ascii_alphabetic()) && !scheme.contains('~');
    is_bare || has_brackets_within || !is_scheme
}

/// Whether something other than a port follows an address, or it has other bytes.
fn has_more_behind(host: &str) -> bool {
    host.strip_prefix('[').is_some_and(|it| {
        let (_, behind) = it.split_once(']').unwrap_or((it, ""));
        !behind.is_empty() && !behind.starts_with(':')
    }) || host.rsplit_once(':').is_some_and(|(_, port)| {
        !port.ends_with(']') && port.contains(|it: char| !it.is_ascii_digit())
    })
}

/// Small, so that inputs reach them.
pub(crate) const BOUNDS: HeadBounds = HeadBounds {
    fields: 16,
    bytes: 1024,
};

/// A head that is written anew is longer: it has spaces that the one that was read had not.
const ANEW: HeadBounds = HeadBounds {
    fields: 20,
    bytes: 2560,
};

/// Checks the requests at the front of these bytes.
pub(crate) fn check(subject: &impl Subject, bytes: &[u8], effort: &mut Effort) -> Checked {
    let (first, request) = check_head(subject, bytes, effort)?;
    check_end(subject, bytes, effort)?;
    let Some(request) = request else {
        return Ok(Reached(first));
    };
    let rest = &bytes[request.length..];
    let (body, taken) = match request.framing {
        Framing::Length(length) => {
            match usize::try_from(length).ok().filter(|it| *it <= rest.len()) {
                Some(length) => (1, Some(length)),
                None => (2, None),
            }
        }
        Framing::Chunked => match chunks::read(subject, rest, &[]) {
            chunks::Body::Whole { length, .. } => (3, Some(length)),
            chunks::Body::Partial => (4, None),
            chunks::Body::Bad => (5, None),
        },
        Framing::None | Framing::Close => (6, Some(0)),
    };
    let second = match taken {
        Some(taken) if taken < rest.len() => {
            match check_head(subject, &rest[taken..], effort)?.0 & 255 {
                PART => 1,
                WHOLE.. => 2,
                _ => 3,
            }
        }
        _ => 0,
    };
    Ok(Reached(first | body << 16 | second << 24))
}

/// The verdicts on the head at the front, and the head if it is read.
fn check_head(
    subject: &impl Subject,
    bytes: &[u8],
    effort: &mut Effort,
) -> Result<(u32, Option<RequestHead>), String> {
    let read = subject.request(bytes, BOUNDS);
    let plain = plain::request(bytes, BOUNDS);
    let mut room = [const { MaybeUninit::uninit() }; 64];
    let mut peer = httparse::Request::new(&mut []);
    let parsed = peer.parse_with_uninit_headers(bytes, &mut room[..BOUNDS.fields]);
    let hyper = hyper(&parsed, &peer, BOUNDS);
    let verdict = verdict(&read) | peer_verdict(&parsed) << 8;
    let (request, plain) = match (read, plain) {
        (Ok(Some(request)), Some(plain)) => {
            same(&request, &plain, bytes)?;
            same_as_hyper(&plain, hyper.as_ref(), &peer)?;
            (request, plain)
        }
        (Ok(Some(request)), None) => {
            return Err(format!("it reads what is not good: {request:?}"));
        }
        (other, Some(_)) => return Err(format!("it does not read what is good: {other:?}")),
        (Ok(None), None) => {
            let is_part =
                parsed == Ok(httparse::Status::Partial) || b"PRI * HTTP/2.0\r\n".starts_with(bytes);
            let has_bare_lf = bytes.starts_with(b"\n")
                || bytes.windows(2).any(|it| it[1] == b'\n' && it[0] != b'\r');
            if !is_part || has_bare_lf || bytes.len() > BOUNDS.bytes {
                return Err(format!("it waits, and need not: httparse says {parsed:?}"));
            }
            return Ok((verdict, None));
        }
        (Err(bad), None) => {
            check_bad(&bad, hyper.as_ref(), &peer, bytes)?;
            if effort.one_in(8) {
                for cut in effort.cuts(bytes.len()) {
                    if let Ok(Some(part)) = subject.request(&bytes[..cut], BOUNDS) {
                        return Err(format!("{bad:?}, but cut at {cut} {part:?}"));
                    }
                }
            }
            return Ok((verdict, None));
        }
    };
    for cut in effort.cuts(request.length) {
        let part = subject.request(&bytes[..cut], BOUNDS);
        if part != Ok(None) {
            return Err(format!("a head that is cut at {cut} is {part:?}"));
        }
    }
    let anew = check_anew(subject, &request, bytes)?;
    let is_alike = |it: &(&[u8], &[u8])| guardian::is_alike(it.0);
    if effort.one_in(20)
        && !plain.fields.iter().any(is_alike)
        && let Some(doubt) = doubt(&anew)
    {
        return Err(format!("the guardian doubts {}: {doubt}", shown(&anew)));
    }
    Ok((verdict, Some(request)))
}

/// The reading of a head by hyper's server (hyper 1.12, `proto/h1/role.rs`).
struct Hyper {
    framing: Framing,
    /// Whether the connection may be used again after the body.
    keeps: bool,
    expects_continue: bool,
    length: usize,
}

/// Hyper's reading of the head that it has parsed; `None` if it refuses it, or has only part of it.
fn hyper(
    parsed: &httparse::Result<usize>,
    peer: &httparse::Request<'_, '_>,
    bounds: HeadBounds,
) -> Option<Hyper> {
    let Ok(httparse::Status::Complete(length)) = *parsed else {
        return None;
    };
    if length > bounds.bytes {
        return None;
    }
    http::Method::from_bytes(peer.method?.as_bytes()).ok()?;
    http::Uri::try_from(peer.path?).ok()?;
    let is_1_1 = peer.version == Some(1);
    let (mut keeps, mut closes, mut expects) = (is_1_1, false, false);
    let (mut coding, mut one_length) = (None, None);
    for field in &*peer.headers {
        let has = |word: &str| {
            let text = str::from_utf8(field.value).ok().filter(|it| it.is_ascii());
            let mut words = text.into_iter().flat_map(|it| it.split(','));
            words.any(|it| it.trim().eq_ignore_ascii_case(word))
        };
        match &field.name.to_ascii_lowercase()[..] {
            "transfer-encoding" if !is_1_1 => return None,
            "transfer-encoding" => {
                let last = field.value.rsplit(|it| *it == b',').next()?.trim_ascii();
                coding = Some(field.value.is_ascii() && last.eq_ignore_ascii_case(b"chunked"));
            }
            // It does not look at one behind a coding.
            "content-length" if coding.is_none() => {
                let digits = str::from_utf8(field.value).ok()?;
                let is_number = !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit());
                let length = is_number.then(|| digits.parse::<u64>().ok())??;
                if length > u64::MAX - 2 || one_length.is_some_and(|it| it != length) {
                    return None;
                }
                one_length = Some(length);
            }
            "connection" => {
                closes |= has("close");
                keeps |= has("keep-alive");
            }
            "expect" => expects = field.value.eq_ignore_ascii_case(b"100-continue"),
            _ => {}
        }
    }
    Some(Hyper {
        framing: match (coding, one_length) {
            (Some(false), _) => return None,
            (Some(true), _) => Framing::Chunked,
            (None, Some(length)) => Framing::Length(length),
            (None, None) => Framing::None,
        },
        keeps: keeps && !closes,
        expects_continue: expects && is_1_1,
        length,
    })
}

/// Checks that a head is refused for a reason.
fn check_bad(
    bad: &BadHead,
    hyper: Option<&Hyper>,
    peer: &httparse::Request<'_, '_>,
    bytes: &[u8],
) -> Result<(), String> {
    let target = peer.path.unwrap_or_default();
    let is_stricter = STRICTER.iter().any(|(flaw, _)| *flaw == bad.flaw)
        || bad.flaw == Flaw::Target && is_doubtful_uri(target);
    if hyper.is_some() && !is_stricter {
        return Err(format!("it says {bad:?}, and hyper reads it"));
    }
    let begin = bytes.iter().position(|it| !b"\r\n".contains(it));
    let is_head = begin.is_some_and(|it| bytes[it..].starts_with(b"HEAD "));
    if bad.to_head != is_head {
        return Err(format!("its method is another one: {bad:?}"));
    }
    let is_host = |it: &HeadField| it.name.of(bytes).eq_ignore_ascii_case(b"host");
    match bad.fields.iter().any(is_host) {
        true => Err(format!("Host identifies no caller: {bad:?}")),
        false => Ok(()),
    }
}

fn pairs<'a>(
    fields: &'a [HeadField],
    head: &'a [u8],
) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    fields
        .iter()
        .map(|field| (field.name.of(head), field.value.of(head)))
}

fn same(request: &RequestHead, plain: &Plain<'_>, head: &[u8]) -> Result<(), String> {
    let target = match request.target {
        RequestTarget::Path(path) => (None, path.of(head)),
        RequestTarget::Absolute {
            authority,
            path_and_query,
        } => (Some(authority.of(head)), path_and_query.of(head)),
        RequestTarget::Asterisk => (None, &b"*"[..]),
    };
    let is_same = request.method.of(head) == plain.method
        && target == (plain.authority, plain.path)
        && (request.version == HttpVersion::Http11) == plain.is_1_1
        && request.framing == plain.framing
        && request.closes == plain.closes
        && request.expects_continue == plain.expects_continue
        && request.upgrade.map(|it| it.of(head)) == plain.upgrade
        && request.is_forwarded == plain.is_forwarded
        && request.is_stateful == plain.is_stateful
        && request.max_forwards.map(|it| it.of(head)) == plain.max_forwards
        && request.length == plain.length
        && are_same(pairs(&request.fields, head), plain.passed());
    match is_same {
        true => Ok(()),
        false => Err(format!("it reads {request:?}, and it says {plain:?}")),
    }
}

fn same_as_hyper(
    plain: &Plain<'_>,
    hyper: Option<&Hyper>,
    peer: &httparse::Request<'_, '_>,
) -> Result<(), String> {
    let Some(hyper) = hyper else {
        return Err(format!("hyper refuses it: {plain:?}"));
    };
    let fields = peer.headers.iter().map(|it| (it.name.as_bytes(), it.value));
    let is_same = hyper.length == plain.length
        && hyper.framing == plain.framing
        && (hyper.keeps || plain.closes)
        && hyper.expects_continue == plain.expects_continue
        && peer.method.map(str::as_bytes) == Some(plain.method)
        && peer.path.map(str::as_bytes) == Some(plain.target)
        && (peer.version == Some(1)) == plain.is_1_1
        && are_same(fields, plain.fields.iter().copied());
    match is_same {
        true => Ok(()),
        false => Err(format!("hyper reads {peer:?}, not {plain:?}")),
    }
}

/// Writes the head as a proxy does, and reads it again.
fn check_anew(
    subject: &impl Subject,
    request: &RequestHead,
    head: &[u8],
) -> Result<Vec<u8>, String> {
    let mut anew = Vec::with_capacity(request.length + 64);
    let (authority, target) = match request.target {
        RequestTarget::Path(path) => (None, path.of(head)),
        RequestTarget::Absolute {
            authority,
            path_and_query,
        } => (Some(authority.of(head)), path_and_query.of(head)),
        RequestTarget::Asterisk => (None, &b"*"[..]),
    };
    write::request_line(request.method.of(head), target, &mut anew);
    let has_host = pairs(&request.fields, head).any(|it| it.0.eq_ignore_ascii_case(b"host"));
    // One of HTTP/1.0 may name no host.
    let host = authority.or((!has_host).then_some(&b"anew"[..]));
    if let Some(host) = host {
        write::field(b"Host", host, &mut anew);
    }
    write::fields(head, &request.fields, &mut anew);
    if let Some(protocol) = request.upgrade {
        write::upgrade(protocol.of(head), &mut anew);
    }
    subject.write_framing(&head[..request.length], request.framing, &mut anew);
    anew.extend_from_slice(b"\r\n");
    match same_anew(subject, request, host, head, &anew) {
        Ok(()) => Ok(anew),
        Err(why) => Err(format!("written anew as {}: {why}", shown(&anew))),
    }
}

fn same_anew(
    subject: &impl Subject,
    request: &RequestHead,
    host: Option<&[u8]>,
    head: &[u8],
    anew: &[u8],
) -> Result<(), String> {
    let Some(plain) = plain::request(anew, ANEW) else {
        return Err("it is not good".to_owned());
    };
    let is_path = match request.target {
        RequestTarget::Path(path) => plain.target == path.of(head),
        RequestTarget::Absolute { path_and_query, .. } => {
            let path = path_and_query.of(head);
            plain.target == path || plain.target.strip_prefix(b"/") == Some(path)
        }
        RequestTarget::Asterisk => plain.target == b"*",
    };
    let fields = host.map(|it| (&b"Host"[..], it)).into_iter();
    let fields: Vec<_> = fields.chain(pairs(&request.fields, head)).collect();
    let is_same = plain.method == request.method.of(head)
        && is_path
        && plain.authority.is_none()
        && plain.length == anew.len()
        && plain.framing == request.framing
        && plain.upgrade == request.upgrade.map(|it| it.of(head))
        && plain.is_forwarded == plain.passed().any(|it| plain::is_forwarding(it.0))
        && are_same(plain.passed(), fields)
        && plain.is_1_1
        && !plain.closes;
    if !is_same {
        return Err(format!("it says {plain:?}, not {request:?}"));
    }
    let framing: Vec<_> = plain
        .fields
        .iter()
        .filter(|(name, _)| plain::is_framing(name))
        .collect();
    let is_exact = match request.framing {
        Framing::None => framing.is_empty(),
        Framing::Length(length) => {
            let digits = length.to_string();
            framing == [&(&b"content-length"[..], digits.as_bytes())]
        }
        Framing::Chunked => framing == [&(&b"transfer-encoding"[..], &b"chunked"[..])],
        Framing::Close => false,
    };
    if !is_exact {
        return Err("its framing line is not the plain one".to_owned());
    }
    match subject.request(anew, ANEW) {
        Ok(Some(again)) => same(&again, &plain, anew)?,
        other => return Err(format!("it is {other:?}")),
    }
    let mut room = [const { MaybeUninit::uninit() }; 64];
    let mut peer = httparse::Request::new(&mut []);
    let parsed = peer.parse_with_uninit_headers(anew, &mut room);
    same_as_hyper(&plain, hyper(&parsed, &peer, ANEW).as_ref(), &peer)
}

/// Checks that the end of a head is found with the piece that has it, however the head is cut.
fn check_end(subject: &impl Subject, bytes: &[u8], effort: &mut Effort) -> Result<(), String> {
    if !effort.one_in(16) {
        return Ok(());
    }
    let end = memchr::memchr_iter(b'\n', bytes).find_map(|at| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    });
    let is_due = |cut: usize| end.is_some_and(|end| end <= cut);
    // Empty lines may come before a head.
    let is_head = !bytes.starts_with(b"\r\n");
    if is_head && is_due(bytes.len()) && subject.request(bytes, BOUNDS) == Ok(None) {
        return Err("it waits for more than the end of the head".to_owned());
    }
    for first in effort.cuts(bytes.len()) {
        let second = effort.random.between(first as u64, bytes.len() as u64) as usize;
        let mut search = HeadEnd::default();
        for cut in [first, second, bytes.len()] {
            let found = subject.is_in(&mut search, &bytes[..cut]);
            if found != is_due(cut) {
                return Err(format!(
                    "cut at {first} and {second}, the end at {end:?} is found with {cut}: {found}"
                ));
            }
            if found {
                break;
            }
        }
    }
    Ok(())
}

/// The doubt of `http_desync_guardian` about a head. A body of a GET or HEAD has one framing as any other (RFC
/// 9110, 9.3.1), so that is not counted.
pub(crate) fn doubt(head: &[u8]) -> Option<String> {
    let verdict = HttpRequestData::analyze_raw_request(head);
    let is_sound = match verdict.tier {
        RequestSafetyTier::Compliant | RequestSafetyTier::Acceptable => true,
        RequestSafetyTier::Ambiguous | RequestSafetyTier::Severe => matches!(
            verdict.reason,
            ClassificationReason::UndefinedContentLengthSemantics
                | ClassificationReason::UndefinedTransferEncodingSemantics
        ),
    };
    let message = verdict.message.unwrap_or_default();
    (!is_sound).then(|| format!("{:?}, {:?}: {message}", verdict.tier, verdict.reason))
}

const PART: u32 = 1;
const WHOLE: u32 = 64;

/// Properties of a head that is read, besides its framing.
const SHAPES: [&str; 7] = [
    "",
    "HTTP/1.0, ",
    "URI, ",
    "asterisk, ",
    "upgrade, ",
    "expects, ",
    "counted, ",
];

fn verdict(read: &Result<Option<RequestHead>, Box<BadHead>>) -> u32 {
    match read {
        Ok(None) => PART,
        Ok(Some(request)) => {
            let framing = match request.framing {
                Framing::None | Framing::Close => 0,
                Framing::Length(0) => 1,
                Framing::Length(_) => 2,
                Framing::Chunked => 3,
            };
            let shape = match request.target {
                _ if request.version == HttpVersion::Http10 => 1,
                RequestTarget::Absolute { .. } => 2,
                RequestTarget::Asterisk => 3,
                RequestTarget::Path(_) if request.upgrade.is_some() => 4,
                RequestTarget::Path(_) if request.expects_continue => 5,
                RequestTarget::Path(_) if request.max_forwards.is_some() => 6,
                RequestTarget::Path(_) => 0,
            };
            WHOLE + shape * 8 + framing * 2 + u32::from(request.closes)
        }
        Err(bad) => match bad.flaw {
            Flaw::TooManyFields(_) => 2,
            Flaw::TooManyBytes(_) => 3,
            flaw => {
                let at = Flaw::TEXTS.iter().position(|it| *it == flaw);
                4 + at.expect("it is one of all") as u32
            }
        },
    }
}

pub(crate) fn peer_verdict(parsed: &httparse::Result<usize>) -> u32 {
    match parsed {
        Ok(httparse::Status::Complete(_)) => 0,
        Ok(httparse::Status::Partial) => 1,
        Err(httparse::Error::HeaderName) => 2,
        Err(httparse::Error::HeaderValue) => 3,
        Err(httparse::Error::NewLine) => 4,
        Err(httparse::Error::Status) => 5,
        Err(httparse::Error::Token) => 6,
        Err(httparse::Error::TooManyHeaders) => 7,
        Err(httparse::Error::Version) => 8,
    }
}

const PEERS: [&str; 9] = [
    "whole",
    "part",
    "name",
    "value",
    "line",
    "status",
    "token",
    "many fields",
    "version",
];

pub(crate) fn peer_label(verdict: u32) -> &'static str {
    PEERS[verdict as usize]
}

/// The reached place, in words.
pub(crate) fn label(Reached(reached): Reached) -> String {
    let head = |verdict: u32| match verdict {
        PART => "part".to_owned(),
        whole if whole >= WHOLE => {
            let framing = ["no body", "length 0", "length", "chunks"];
            let closes = ["", " closes"];
            let shape = SHAPES[(whole - WHOLE) as usize / 8];
            let framing = framing[(whole & 7) as usize / 2];
            format!("{shape}{framing}{}", closes[(whole & 1) as usize])
        }
        2 => "many fields".to_owned(),
        3 => "large".to_owned(),
        bad => format!("{:?}", Flaw::TEXTS[bad as usize - 4]),
    };
    let mut text = head(reached & 255);
    text += &format!(", httparse {}", peer_label(reached >> 8 & 255));
    let body = ["", "whole", "part", "whole", "part", "bad", ""][(reached >> 16 & 255) as usize];
    if !body.is_empty() {
        text += &format!(", body {body}");
    }
    if reached >> 24 > 0 {
        let then = ["", "a part", "another", "a bad one"][(reached >> 24) as usize];
        text += &format!(", then {then}");
    }
    text
}
