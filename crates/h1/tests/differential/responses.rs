//! Laws of the head of a response.
//!
//! - What the crate reads, hyper's client reads: the same status, the same end of the body. The crate keeps no
//!   connection that hyper would close.
//! - What it refuses and hyper reads is a transfer coding, which it refuses on purpose.
//! - The head written anew means the same to both.
//! - A part of a head that is read is a part, wherever it is cut.

use std::mem::MaybeUninit;

use smallvec::SmallVec;
use tidegate_h1::response::{ResponseFlaw, ResponseHead};
use tidegate_h1::{Framing, HeadField, write};

use super::requests::{peer_label, peer_verdict};
use super::subject::{Checked, Effort, Reached, Subject, are_same, shown};

/// Fields of a head: more than are read without an allocation, and few.
const FIELDS_MAX: [u64; 2] = [40, 16];

/// Checks the responses at the front of these bytes.
pub(crate) fn check(subject: &impl Subject, bytes: &[u8], effort: &mut Effort) -> Checked {
    let to_head = effort.random.one_in(4);
    let few = u64::from(effort.random.one_in(8));
    let fields_max = FIELDS_MAX[few as usize] as usize;
    let (first, response) = check_head(subject, bytes, to_head, fields_max, effort)?;
    let second = match response {
        // The final response follows an interim one.
        Some(interim) if interim.status < 200 && interim.length < bytes.len() => {
            let rest = &bytes[interim.length..];
            check_head(subject, rest, to_head, fields_max, effort)?.0 & 255
        }
        _ => 0,
    };
    Ok(Reached(first | second << 16))
}

fn check_head(
    subject: &impl Subject,
    bytes: &[u8],
    to_head: bool,
    fields_max: usize,
    effort: &mut Effort,
) -> Result<(u32, Option<ResponseHead>), String> {
    let fail = |why: String| Err(format!("to HEAD {to_head}, {fields_max} fields: {why}"));
    let read = subject.response(bytes, to_head, fields_max);
    let mut room = [const { MaybeUninit::uninit() }; 40];
    let mut peer = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut peer,
        bytes,
        &mut room[..fields_max],
    );
    let hyper = hyper(&parsed, &peer, to_head);
    let verdict = verdict(&read) | peer_verdict(&parsed) << 8;
    let response = match read {
        Ok(Some(response)) => response,
        Ok(None) if parsed != Ok(httparse::Status::Partial) => {
            return fail(format!("it waits, and httparse does not: {parsed:?}"));
        }
        Err(broken) => {
            let is_on_purpose = broken == ResponseFlaw::Coding;
            if hyper.is_some() && !is_on_purpose {
                return fail(format!("it says {broken:?}, and hyper {hyper:?}"));
            }
            return Ok((verdict, None));
        }
        Ok(None) => return Ok((verdict, None)),
    };
    let Some(hyper) = hyper else {
        return fail(format!("it reads what hyper refuses: {response:?}"));
    };
    if let Err(why) = same(&response, &hyper, bytes) {
        return fail(format!("{why}: it reads {response:?}, and hyper {hyper:?}"));
    }
    for cut in effort.cuts(response.length) {
        let part = subject.response(&bytes[..cut], to_head, fields_max);
        if part != Ok(None) {
            return fail(format!("a head that is cut at {cut} is {part:?}"));
        }
    }
    if let Err(why) = check_anew(subject, &response, bytes, to_head) {
        return fail(why);
    }
    Ok((verdict, Some(response)))
}

type Pair<'a> = (&'a [u8], &'a [u8]);

/// The reading of a head by hyper's client (hyper 1.12, `proto/h1/role.rs`), and which fields a proxy passes on.
#[derive(Debug)]
struct Hyper<'a> {
    status: u16,
    framing: Framing,
    /// Whether the connection may be used again after the body.
    keeps: bool,
    reason: &'a [u8],
    length: usize,
    passed: SmallVec<[Pair<'a>; 16]>,
    announced: Option<u64>,
    upgrade: Option<&'a [u8]>,
    is_stateful: bool,
}

/// Hyper's reading of the head that it has parsed; `None` if it refuses it, or has only part of it.
fn hyper<'a>(
    parsed: &httparse::Result<usize>,
    peer: &httparse::Response<'_, 'a>,
    to_head: bool,
) -> Option<Hyper<'a>> {
    let Ok(httparse::Status::Complete(length)) = *parsed else {
        return None;
    };
    let status = peer.code.filter(|it| (100..1000).contains(it))?;
    let is_1_1 = peer.version == Some(1);
    let mut named = SmallVec::<[&[u8]; 4]>::new();
    let (mut closes, mut keeps) = (false, is_1_1);
    let mut lengths = SmallVec::<[&[u8]; 2]>::new();
    let mut coding = None;
    for field in &*peer.headers {
        if field.name.eq_ignore_ascii_case("connection") {
            named.extend(field.value.split(|it| *it == b',').map(<[u8]>::trim_ascii));
            // hyper reads a value with other bytes as none.
            let has = |word: &[u8]| {
                let words = field.value.split(|it| *it == b',');
                field.value.is_ascii()
                    && words
                        .map(<[u8]>::trim_ascii)
                        .any(|it| it.eq_ignore_ascii_case(word))
            };
            closes |= has(b"close");
            keeps |= has(b"keep-alive");
        } else if field.name.eq_ignore_ascii_case("content-length") {
            lengths.push(field.value);
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            coding = field.value.rsplit(|it| *it == b',').next();
        }
    }
    let one_length = || {
        let mut values = lengths
            .iter()
            .flat_map(|it| it.split(|it| *it == b','))
            .map(|it| {
                let digits = it.trim_ascii();
                let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
                is_number.then(|| str::from_utf8(digits).ok()?.parse::<u64>().ok())?
            });
        let first = values.next()??;
        // Two numbers above it stand for something else in hyper.
        let is_one = values.all(|it| it == Some(first)) && first <= u64::MAX - 2;
        is_one.then_some(first)
    };
    let framing = match (status, coding) {
        (100..=199 | 204 | 304, _) => Framing::None,
        _ if to_head => Framing::None,
        (_, Some(_)) if !is_1_1 => return None,
        (_, Some(coding)) if coding.trim_ascii().eq_ignore_ascii_case(b"chunked") => {
            Framing::Chunked
        }
        (_, Some(_)) => Framing::Close,
        _ if lengths.is_empty() => Framing::Close,
        _ => Framing::Length(one_length()?),
    };
    let mut passed = SmallVec::new();
    for field in &*peer.headers {
        const LEFT_OUT: [&[u8]; 12] = [
            b"connection",
            b"content-length",
            b"expect",
            b"keep-alive",
            b"proxy-authenticate",
            b"proxy-authorization",
            b"proxy-connection",
            b"te",
            b"trailer",
            b"transfer-encoding",
            b"upgrade",
            b"",
        ];
        let name = field.name.as_bytes();
        let is_left_out = LEFT_OUT.iter().any(|it| it.eq_ignore_ascii_case(name));
        let is_named = named.iter().any(|it| it.eq_ignore_ascii_case(name));
        if !is_left_out && (!is_named || name.eq_ignore_ascii_case(b"host")) {
            passed.push((name, field.value));
        }
    }
    let values = |name: &str| {
        let fields = peer.headers.iter();
        let values = fields.filter(|it| it.name.eq_ignore_ascii_case(name));
        values.map(|it| it.value).collect::<SmallVec<[_; 2]>>()
    };
    let is_switch =
        status == 101 && is_1_1 && named.iter().any(|it| it.eq_ignore_ascii_case(b"upgrade"));
    let upgrade = match values("upgrade")[..] {
        [one] if is_switch => Some(one),
        _ => None,
    };
    let challenges = values("www-authenticate");
    let mut challenges = challenges.iter().flat_map(|it| it.split(|it| *it == b','));
    let is_stateful = challenges.any(super::plain::is_login_of_a_connection);
    Some(Hyper {
        status,
        upgrade,
        is_stateful,
        framing,
        keeps: keeps && !closes,
        reason: peer.reason.unwrap_or_default().as_bytes(),
        length,
        passed,
        // A proxy passes none on with these (RFC 9110, 8.6).
        announced: match status {
            100..=199 | 204 => None,
            _ => coding.is_none().then(one_length).flatten(),
        },
    })
}

fn pairs<'a>(fields: &'a [HeadField], head: &'a [u8]) -> impl Iterator<Item = Pair<'a>> {
    fields
        .iter()
        .map(|field| (field.name.of(head), field.value.of(head)))
}

fn same(response: &ResponseHead, hyper: &Hyper<'_>, head: &[u8]) -> Result<(), &'static str> {
    if response.status != hyper.status || response.reason.of(head) != hyper.reason {
        return Err("another status");
    }
    if response.length != hyper.length || response.framing != hyper.framing {
        return Err("another end");
    }
    if response.upgrade.map(|it| it.of(head)) != hyper.upgrade {
        return Err("another protocol");
    }
    if response.is_stateful != hyper.is_stateful {
        return Err("another login");
    }
    if response.announced != hyper.announced {
        return Err("another length is announced");
    }
    if !response.closes && (!hyper.keeps || hyper.framing == Framing::Close) {
        return Err("it keeps a connection that hyper closes");
    }
    if !are_same(pairs(&response.fields, head), hyper.passed.iter().copied()) {
        return Err("other fields");
    }
    Ok(())
}

/// Writes the head as a proxy does, and reads it again.
fn check_anew(
    subject: &impl Subject,
    response: &ResponseHead,
    head: &[u8],
    to_head: bool,
) -> Result<(), String> {
    let mut anew = Vec::with_capacity(response.length + 64);
    write::status_line(response.status, response.reason.of(head), &mut anew);
    write::fields(head, &response.fields, &mut anew);
    if let Some(protocol) = response.upgrade {
        write::upgrade(protocol.of(head), &mut anew);
    }
    let framing = match response.framing {
        // The client gets a body whose end it can see.
        Framing::Close => Framing::Chunked,
        framing => framing,
    };
    subject.write_framing(&head[..response.length], framing, &mut anew);
    anew.extend_from_slice(b"\r\n");
    let fail = |why: &str| Err(format!("written anew as {}: {why}", shown(&anew)));
    let mut room = [const { MaybeUninit::uninit() }; 64];
    let mut peer = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut peer, &anew, &mut room);
    let Some(hyper) = hyper(&parsed, &peer, to_head) else {
        return fail("hyper refuses it");
    };
    let again = match subject.response(&anew, to_head, 64) {
        Ok(Some(again)) => again,
        other => return fail(&format!("it is {other:?}")),
    };
    if let Err(why) = same(&again, &hyper, &anew) {
        return fail(why);
    }
    let is_same = again.status == response.status
        && again.reason.of(&anew) == response.reason.of(head)
        && again.framing == framing
        && again.length == anew.len()
        && !again.closes
        && again.is_stateful == response.is_stateful
        && are_same(pairs(&again.fields, &anew), pairs(&response.fields, head));
    if !is_same {
        return fail(&format!("it is {again:?}, not {response:?}"));
    }
    let lines = peer.headers.iter();
    let framings = lines.filter(|it| super::plain::is_framing(it.name.as_bytes()));
    if framings.count() != usize::from(framing != Framing::None) {
        return fail("it has another number of framing lines");
    }
    Ok(())
}

const WHOLE: u32 = 16;

fn verdict(read: &Result<Option<ResponseHead>, ResponseFlaw>) -> u32 {
    match read {
        Ok(None) => 1,
        Ok(Some(response)) => {
            let framing = match response.framing {
                Framing::None if response.status < 200 => 0,
                Framing::None => 1,
                Framing::Length(_) => 2,
                Framing::Chunked => 3,
                Framing::Close => 4,
            };
            WHOLE + framing * 2 + u32::from(response.closes)
        }
        Err(ResponseFlaw::Malformed(_)) => 2,
        Err(ResponseFlaw::Length) => 3,
        Err(ResponseFlaw::EarlyCoding) => 4,
        Err(ResponseFlaw::Coding) => 5,
        Err(ResponseFlaw::Switches) => 6,
        Err(ResponseFlaw::Large) => 7,
        Err(ResponseFlaw::TooManyFields(_)) => 8,
    }
}

/// The reached place, in words.
pub(crate) fn label(Reached(reached): Reached) -> String {
    let head = |verdict: u32| match verdict {
        whole if whole >= WHOLE => {
            let framing = ["interim", "no body", "length", "chunks", "close"];
            let closes = ["", " closes"];
            let framing = framing[(whole - WHOLE) as usize / 2];
            format!("{framing}{}", closes[(whole & 1) as usize])
        }
        other => [
            "",
            "part",
            "malformed",
            "broken length",
            "early coding",
            "other coding",
            "switches",
            "large",
            "many fields",
        ][other as usize]
            .to_owned(),
    };
    let mut text = head(reached & 255);
    text += &format!(", httparse {}", peer_label(reached >> 8 & 255));
    if reached >> 16 > 0 {
        text += &format!(", then {}", head(reached >> 16));
    }
    text
}
