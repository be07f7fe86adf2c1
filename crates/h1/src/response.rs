//! The head of a response.
//!
//! Nothing else can read it again, so every form is read that a proxy can pass on. How the body ends follows
//! RFC 9112, 6.3.

use httparse::Status;
use smallvec::SmallVec;

use crate::fields::{ByteSpan, ConnectionOptions, HeadField, HeadFields, Meaning, span};
use crate::{Framing, HEAD_BYTES_MAX, octets};

/// Most fields that are read without an allocation.
const FIELDS: usize = 32;

/// The longest body that hyper reads: two numbers above it stand for something else there.   bytes
const LENGTH_MAX: u64 = u64::MAX - 2;

/// A head that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Three digits.
    pub status: u16,
    /// The words behind it.
    pub reason: ByteSpan,
    /// The fields, without `Content-Length`.
    pub fields: HeadFields,
    /// How its body ends.
    pub framing: Framing,
    /// The length that it announces, also of an answer to HEAD and of 304, which have no body.
    pub announced: Option<u64>,
    /// Whether the connection is of no use after it.
    pub closes: bool,
    /// The protocol that a 101 switches to, as the value of Upgrade. A 101 without it switches to nothing that is known.
    pub upgrade: Option<ByteSpan>,
    /// Whether it asks for a login of the connection and not only of the request: NTLM, Negotiate or Kerberos.
    pub is_stateful: bool,
    /// Bytes up to the body.
    pub length: usize,
}

/// Why a response cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFlaw {
    /// A line is malformed.
    Malformed(httparse::Error),
    /// The lengths of the response differ, or are no number.
    Length,
    /// A transfer coding in HTTP/1.0.
    EarlyCoding,
    /// A transfer coding beside `chunked`, which was not asked for.
    Coding,
    /// The response switches to another protocol, which was not asked for. The caller decides this; it is not read
    /// as broken.
    Switches,
    /// The response has more fields than this number.
    TooManyFields(usize),
    /// The head has more than [`HEAD_BYTES_MAX`].
    Large,
}

impl std::fmt::Display for ResponseFlaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(error) => write!(f, "not valid HTTP ({error})"),
            Self::Length => f.write_str("not valid HTTP (Content-Length)"),
            Self::EarlyCoding => f.write_str("not valid HTTP (Transfer-Encoding in HTTP/1.0)"),
            Self::Coding => f.write_str("in a transfer coding that was not asked for"),
            Self::Switches => f.write_str("a switch to another protocol, which was not asked for"),
            Self::TooManyFields(max) => {
                write!(f, "too large in its head, with more than {max} fields")
            }
            Self::Large => write!(
                f,
                "too large in its head, with more than {HEAD_BYTES_MAX} bytes"
            ),
        }
    }
}

impl std::error::Error for ResponseFlaw {}

/// Reads the head at the front of these bytes, with at most `fields_max` fields; `None` if only part of it is
/// here. An interim response (1xx) has no body.
///
/// # Errors
/// If it cannot be passed on.
pub fn read(
    bytes: &[u8],
    to_head: bool,
    fields_max: usize,
) -> Result<Option<ResponseHead>, ResponseFlaw> {
    let mut few = [httparse::EMPTY_HEADER; FIELDS];
    let parsed = match parse(bytes, to_head, &mut few[..FIELDS.min(fields_max)]) {
        Err(ResponseFlaw::Malformed(httparse::Error::TooManyHeaders)) if fields_max > FIELDS => {
            let mut many: SmallVec<[_; 0]> =
                SmallVec::from_elem(httparse::EMPTY_HEADER, fields_max);
            parse(bytes, to_head, &mut many)
        }
        parsed => parsed,
    };
    match parsed {
        Err(ResponseFlaw::Malformed(httparse::Error::TooManyHeaders)) => {
            Err(ResponseFlaw::TooManyFields(fields_max))
        }
        Ok(None) if bytes.len() > HEAD_BYTES_MAX => Err(ResponseFlaw::Large),
        parsed => parsed,
    }
}

fn parse<'a>(
    bytes: &'a [u8],
    to_head: bool,
    room: &mut [httparse::Header<'a>],
) -> Result<Option<ResponseHead>, ResponseFlaw> {
    let mut head = httparse::Response::new(room);
    let length = match head.parse(bytes).map_err(ResponseFlaw::Malformed)? {
        Status::Complete(length) if length > HEAD_BYTES_MAX => return Err(ResponseFlaw::Large),
        Status::Complete(length) => length,
        Status::Partial => return Ok(None),
    };
    let status = head.code.unwrap_or_default();
    // No class of responses has these.
    if status < 100 {
        return Err(ResponseFlaw::Malformed(httparse::Error::Status));
    }
    let is_1_1 = head.version == Some(1);
    let mut found = ResponseFields::default();
    for field in &*head.headers {
        found.add(bytes, field);
    }
    let is_bodyless = to_head || matches!(status, 100..=199 | 204 | 304);
    let framing = match (found.codings, found.length) {
        (1.., _) if found.has_other_coding => return Err(ResponseFlaw::Coding),
        (2.., _) => return Err(ResponseFlaw::Coding),
        _ if is_bodyless => Framing::None,
        (1, _) if !is_1_1 => return Err(ResponseFlaw::EarlyCoding),
        (1, _) => Framing::Chunked,
        (_, Length::None) => Framing::Close,
        (_, Length::Some(length)) => Framing::Length(length),
        (_, Length::Bad) => return Err(ResponseFlaw::Length),
    };
    found.options.leave_out(bytes, &mut found.passed);
    let switches =
        status == 101 && is_1_1 && found.upgrades == 1 && found.options.has(bytes, b"upgrade");
    Ok(Some(ResponseHead {
        status,
        reason: head
            .reason
            .map_or(ByteSpan::new(0, 0), |it| span(bytes, it.as_bytes())),
        fields: found.passed,
        framing,
        announced: match (found.codings, found.length, status) {
            (_, _, 100..=199 | 204) => None,
            (0, Length::Some(length), _) => Some(length),
            _ => None,
        },
        closes: found.options.closes
            || !(is_1_1 || found.options.keeps)
            || framing == Framing::Close,
        upgrade: found.upgrade.filter(|_| switches),
        is_stateful: found.is_stateful,
        length,
    }))
}

#[derive(Clone, Copy, Default)]
enum Length {
    #[default]
    None,
    Some(u64),
    Bad,
}

/// The fields of a head, and what they say about the message.
#[derive(Default)]
struct ResponseFields {
    passed: HeadFields,
    length: Length,
    codings: usize,
    has_other_coding: bool,
    options: ConnectionOptions,
    upgrades: usize,
    upgrade: Option<ByteSpan>,
    is_stateful: bool,
}

impl ResponseFields {
    fn add(&mut self, bytes: &[u8], field: &httparse::Header<'_>) {
        let value = field.value;
        let meaning = Meaning::of(field.name.as_bytes());
        match meaning {
            Meaning::ContentLength => {
                for one in value.split(|&byte| byte == b',') {
                    let length = octets::number(one.trim_ascii());
                    self.length = match (self.length, length.filter(|it| *it <= LENGTH_MAX)) {
                        (Length::None, Some(length)) => Length::Some(length),
                        (Length::Some(before), Some(length)) if before == length => self.length,
                        _ => Length::Bad,
                    };
                }
            }
            Meaning::TransferEncoding => {
                self.codings += 1;
                self.has_other_coding |= !value.eq_ignore_ascii_case(b"chunked");
            }
            Meaning::Connection => self.options.add(bytes, value),
            Meaning::Upgrade => {
                self.upgrades += 1;
                self.upgrade = Some(span(bytes, value));
            }
            Meaning::Authenticate => {
                let mut challenges = value.split(|&byte| byte == b',');
                self.is_stateful |=
                    challenges.any(|it| octets::logs_in_connection(it.trim_ascii()));
            }
            _ => {}
        }
        if meaning.is_passed() {
            self.passed.push(HeadField {
                name: span(bytes, field.name.as_bytes()),
                value: span(bytes, value),
            });
        }
    }
}

#[cfg(test)]
mod tests;
