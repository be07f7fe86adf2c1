//! What must hold for the head of a request.
//!
//! - The crate reads a head exactly if [`plain`] does, with the same meaning.
//! - httparse, as hyper uses it, then reads the same head with the same parts.
//! - `http_desync_guardian` calls it acceptable.
//! - The head written anew has one framing line, and means the same to all of them.
//! - A part of a head that is read is a part, wherever it is cut.

use std::mem::MaybeUninit;

use http_desync_guardian::request_analyzer::HttpRequestData;
use http_desync_guardian::{ClassificationReason, RequestSafetyTier};
use tidegate_h1::chunks::Extras;
use tidegate_h1::request::{Bounds, Odd, Request};
use tidegate_h1::{Field, Framing, HeadEnd, write};

use super::chunks;
use super::inputs::guardian;
use super::plain::{self, Plain};
use super::subject::{Checked, Effort, Reached, Subject, are_same, shown};

/// Small, so that inputs reach them.
pub(crate) const BOUNDS: Bounds = Bounds {
    fields: 16,
    bytes: 1024,
};

/// A head that is written anew is longer: it has spaces that the one that was read had not.
const ANEW: Bounds = Bounds {
    fields: 17,
    bytes: 2048,
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
        Framing::Chunked => match chunks::read(subject, rest, &[], Extras::Refused) {
            chunks::Body::Whole { length, .. } => (3, Some(length)),
            chunks::Body::Partial => (4, None),
            chunks::Body::Bad => (5, None),
        },
        Framing::None | Framing::Close => (6, Some(0)),
    };
    let second = match taken {
        Some(taken) if taken < rest.len() => check_head(subject, &rest[taken..], effort)?.0 & 255,
        _ => 0,
    };
    Ok(Reached(first | body << 16 | second << 24))
}

/// The verdicts on the head at the front, and the head if it is read.
fn check_head(
    subject: &impl Subject,
    bytes: &[u8],
    effort: &mut Effort,
) -> Result<(u32, Option<Request>), String> {
    let read = subject.request(bytes, BOUNDS);
    let plain = plain::request(bytes, BOUNDS);
    let mut room = [const { MaybeUninit::uninit() }; 64];
    let mut peer = httparse::Request::new(&mut []);
    let parsed = peer.parse_with_uninit_headers(bytes, &mut room);
    let verdict = verdict(&read) | peer_verdict(&parsed) << 8;
    let (request, plain) = match (read, plain) {
        (Ok(Some(request)), Some(plain)) => {
            same(&request, &plain, bytes)?;
            same_as_peer(&plain, &parsed, &peer)?;
            (request, plain)
        }
        (Ok(Some(request)), None) => {
            return Err(format!("it reads what is not usual: {request:?}"));
        }
        (other, Some(_)) => return Err(format!("it does not read what is usual: {other:?}")),
        (Ok(None), None) if parsed != Ok(httparse::Status::Partial) => {
            return Err(format!("it waits, and httparse does not: {parsed:?}"));
        }
        (not_whole, None) => {
            if effort.one_in(8) {
                for cut in effort.cuts(bytes.len()) {
                    if let Ok(Some(part)) = subject.request(&bytes[..cut], BOUNDS) {
                        return Err(format!("{not_whole:?}, but cut at {cut} {part:?}"));
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
    if effort.one_in(20) && !plain.fields.iter().any(is_alike) {
        for head in [&bytes[..request.length], &anew] {
            if let Some(doubt) = doubt(head) {
                return Err(format!("the guardian doubts {}: {doubt}", shown(head)));
            }
        }
    }
    Ok((verdict, Some(request)))
}

fn pairs<'a>(fields: &'a [Field], head: &'a [u8]) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    fields
        .iter()
        .map(|field| (field.name.of(head), field.value.of(head)))
}

fn same(request: &Request, plain: &Plain<'_>, head: &[u8]) -> Result<(), String> {
    let is_same = request.method.name().as_bytes() == plain.method
        && request.target.of(head) == plain.target
        && request.framing == plain.framing
        && request.closes == plain.closes
        && request.length == plain.length
        && are_same(pairs(&request.fields, head), plain.passed());
    match is_same {
        true => Ok(()),
        false => Err(format!("it reads {request:?}, and it says {plain:?}")),
    }
}

fn same_as_peer(
    plain: &Plain<'_>,
    parsed: &httparse::Result<usize>,
    peer: &httparse::Request<'_, '_>,
) -> Result<(), String> {
    let fields = peer.headers.iter().map(|it| (it.name.as_bytes(), it.value));
    let is_same = *parsed == Ok(httparse::Status::Complete(plain.length))
        && peer.method.map(str::as_bytes) == Some(plain.method)
        && peer.path.map(str::as_bytes) == Some(plain.target)
        && peer.version == Some(1)
        && are_same(fields, plain.fields.iter().copied());
    match is_same {
        true => Ok(()),
        false => Err(format!("httparse reads {parsed:?} {peer:?}, not {plain:?}")),
    }
}

/// Writes the head as a proxy does, and reads it again.
fn check_anew(subject: &impl Subject, request: &Request, head: &[u8]) -> Result<Vec<u8>, String> {
    let mut anew = Vec::with_capacity(request.length + 64);
    let target = request.target.of(head);
    write::request_line(request.method.name(), target, &mut anew);
    write::fields(head, &request.fields, &mut anew);
    subject.write_framing(&head[..request.length], request.framing, &mut anew);
    anew.extend_from_slice(b"\r\n");
    match same_anew(subject, request, head, &anew) {
        Ok(()) => Ok(anew),
        Err(why) => Err(format!("written anew as {}: {why}", shown(&anew))),
    }
}

fn same_anew(
    subject: &impl Subject,
    request: &Request,
    head: &[u8],
    anew: &[u8],
) -> Result<(), String> {
    let Some(plain) = plain::request(anew, ANEW) else {
        return Err("it is not usual".to_owned());
    };
    let is_same = plain.method == request.method.name().as_bytes()
        && plain.target == request.target.of(head)
        && plain.length == anew.len()
        && plain.framing == request.framing
        && are_same(plain.passed(), pairs(&request.fields, head))
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
    same_as_peer(&plain, &parsed, &peer)
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
    if is_due(bytes.len()) && subject.request(bytes, BOUNDS) == Ok(None) {
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

/// What `http_desync_guardian` says against a head. A body of a GET or HEAD has one framing as any other
/// (RFC 9110, 9.3.1), so that is not counted.
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

const WHOLE: u32 = 32;

fn verdict(read: &Result<Option<Request>, Odd>) -> u32 {
    match read {
        Ok(None) => 1,
        Ok(Some(request)) => {
            let framing = match request.framing {
                Framing::None => 0,
                Framing::Length(0) => 1,
                Framing::Length(_) => 2,
                Framing::Chunked => 3,
                Framing::Close => 4,
            };
            WHOLE + framing * 2 + u32::from(request.closes)
        }
        Err(odd) => {
            let at = Odd::ALL.iter().position(|it| it == odd);
            2 + at.expect("it is one of all") as u32
        }
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

/// What was reached, in words.
pub(crate) fn label(Reached(reached): Reached) -> String {
    let head = |verdict: u32| match verdict {
        1 => "part".to_owned(),
        whole if whole >= WHOLE => {
            let framing = ["no body", "length 0", "length", "chunks", "close"];
            let closes = ["", " closes"];
            let framing = framing[(whole - WHOLE) as usize / 2];
            format!("{framing}{}", closes[(whole & 1) as usize])
        }
        odd => format!("odd {}", Odd::ALL[odd as usize - 2].label()),
    };
    let mut text = head(reached & 255);
    text += &format!(", httparse {}", peer_label(reached >> 8 & 255));
    let body = ["", "whole", "part", "whole", "part", "bad", ""][(reached >> 16 & 255) as usize];
    if !body.is_empty() {
        text += &format!(", body {body}");
    }
    if reached >> 24 > 0 {
        text += &format!(", then {}", head(reached >> 24));
    }
    text
}
