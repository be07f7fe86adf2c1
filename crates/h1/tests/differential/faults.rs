//! Planted faults, of kinds that real parsers have had. Each must be found.

use tidegate_h1::chunks::{BadChunk, ChunkPart, Chunks};
use tidegate_h1::request::{self, BadHead, HeadBounds, RequestHead, RequestTarget};
use tidegate_h1::response::{self, ResponseFlaw, ResponseHead};
use tidegate_h1::{ByteSpan, Framing, HeadEnd, HeadField};

use super::subject::{AsItIs, Subject};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A tab separates the words of the first line.
    TakesTabsForSpaces,
    /// A second length is left out, and the first one counts.
    TakesTheFirstLength,
    /// LF alone ends a line of a request.
    EndsLinesAtLf,
    /// The framing line is written as it was read.
    CopiesTheFraming,
    /// A client's `Connection: close` is not seen.
    KeepsClosingClients,
    /// A client of HTTP/1.0 is kept as one of HTTP/1.1.
    KeepsEarlyClients,
    /// A field that Connection lists is passed on.
    PassesNamedFields,
    /// An offer of HTTP/2 is passed on.
    PassesHttp2,
    /// The end of a head is not seen if it comes in two pieces.
    LosesTheEndAtACut,
    /// The first of two lengths of a response counts.
    TakesTheFirstLengthOfAResponse,
    /// A connection to a backend is used again after `close`.
    KeepsClosingBackends,
    /// HTTP/1.0 may have chunks.
    TakesEarlyChunks,
    /// A response to HEAD has a body.
    TakesABodyOfHead,
    /// LF alone ends a line of a chunked body.
    EndsSizesAtLf,
    /// A size that is too large loses its first digits.
    WrapsSizes,
    /// A CRLF of a chunked body must come in one piece.
    NeedsCrlfInOnePiece,
    /// A signed size.
    TakesSigns,
}

impl Fault {
    pub(crate) const ALL: [Self; 17] = [
        Self::TakesTabsForSpaces,
        Self::TakesTheFirstLength,
        Self::EndsLinesAtLf,
        Self::CopiesTheFraming,
        Self::KeepsClosingClients,
        Self::KeepsEarlyClients,
        Self::PassesNamedFields,
        Self::PassesHttp2,
        Self::LosesTheEndAtACut,
        Self::TakesTheFirstLengthOfAResponse,
        Self::KeepsClosingBackends,
        Self::TakesEarlyChunks,
        Self::TakesABodyOfHead,
        Self::EndsSizesAtLf,
        Self::WrapsSizes,
        Self::NeedsCrlfInOnePiece,
        Self::TakesSigns,
    ];
}

/// The name of a second length, in a copy of the head.
const SECOND: &[u8; 14] = b"X-Second-Lengt";

/// A copy in which every length but the first has this other name.
fn with_one_length(bytes: &[u8]) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    let lines: Vec<usize> = memchr::memchr_iter(b'\n', bytes).map(|at| at + 1).collect();
    let is_length = |at: &usize| {
        let name = bytes.get(*at..*at + SECOND.len() + 1);
        name.is_some_and(|it| it.eq_ignore_ascii_case(b"content-length:"))
    };
    for at in lines.into_iter().filter(is_length).skip(1) {
        copy[at..at + SECOND.len()].copy_from_slice(SECOND);
    }
    copy
}

/// A copy in which one text stands in the place of another one of its length, wherever it is.
fn with_other(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    for at in 0..copy.len() {
        let end = at + from.len();
        if copy
            .get(at..end)
            .is_some_and(|it| it.eq_ignore_ascii_case(from))
        {
            copy[at..end].copy_from_slice(to);
        }
    }
    copy
}

/// Reads a copy in which every line ends in CRLF, and says where its parts are in the original.
fn read_with_lf(bytes: &[u8], bounds: HeadBounds) -> Result<Option<RequestHead>, Box<BadHead>> {
    let (mut copy, mut places) = (Vec::new(), Vec::new());
    for (at, &byte) in bytes.iter().enumerate() {
        if byte == b'\n' && copy.last() != Some(&b'\r') {
            copy.push(b'\r');
            places.push(at);
        }
        copy.push(byte);
        places.push(at);
    }
    places.push(bytes.len());
    let there = |span: ByteSpan| ByteSpan::new(places[span.at()], span.end() - span.at());
    let read = request::read(&copy, bounds)?;
    Ok(read.map(|read| RequestHead {
        method: there(read.method),
        target: match read.target {
            RequestTarget::Path(path) => RequestTarget::Path(there(path)),
            RequestTarget::Absolute {
                authority,
                path_and_query,
            } => RequestTarget::Absolute {
                authority: there(authority),
                path_and_query: there(path_and_query),
            },
            RequestTarget::Asterisk => RequestTarget::Asterisk,
        },
        upgrade: read.upgrade.map(there),
        max_forwards: read.max_forwards.map(there),
        fields: read
            .fields
            .iter()
            .map(|field| HeadField {
                name: there(field.name),
                value: there(field.value),
            })
            .collect(),
        length: places[read.length],
        ..read
    }))
}

impl Subject for Fault {
    fn request(
        &self,
        bytes: &[u8],
        bounds: HeadBounds,
    ) -> Result<Option<RequestHead>, Box<BadHead>> {
        match self {
            Self::TakesTabsForSpaces => {
                let tabs = bytes.iter().map(|&it| if it == b'\t' { b' ' } else { it });
                request::read(&tabs.collect::<Vec<_>>(), bounds)
            }
            Self::TakesTheFirstLength => {
                let copy = with_one_length(bytes);
                let mut read = request::read(&copy, bounds)?;
                if let Some(request) = &mut read {
                    request.fields.retain(|it| it.name.of(&copy) != SECOND);
                }
                Ok(read)
            }
            Self::EndsLinesAtLf => read_with_lf(bytes, bounds),
            Self::KeepsClosingClients => {
                let read = request::read(bytes, bounds)?;
                Ok(read.map(|read| RequestHead {
                    closes: false,
                    ..read
                }))
            }
            Self::KeepsEarlyClients => {
                let copy = with_other(bytes, b" HTTP/1.0\r\n", b" HTTP/1.1\r\n");
                request::read(&copy, bounds)
            }
            Self::PassesNamedFields => {
                let copy = with_other(bytes, b"\nConnection:", b"\nX-NamedNot:");
                let mut read = request::read(&copy, bounds)?;
                if let Some(request) = &mut read {
                    request
                        .fields
                        .retain(|it| it.name.of(&copy) != b"X-NamedNot");
                }
                Ok(read)
            }
            Self::PassesHttp2 => request::read(&with_other(bytes, b"h2c", b"h3c"), bounds),
            _ => AsItIs.request(bytes, bounds),
        }
    }

    fn response(
        &self,
        bytes: &[u8],
        to_head: bool,
        fields_max: usize,
    ) -> Result<Option<ResponseHead>, ResponseFlaw> {
        match self {
            Self::TakesTheFirstLengthOfAResponse => {
                let copy = with_one_length(bytes);
                let mut read = response::read(&copy, to_head, fields_max)?;
                if let Some(response) = &mut read {
                    response.fields.retain(|it| it.name.of(&copy) != SECOND);
                }
                Ok(read)
            }
            Self::KeepsClosingBackends => {
                let read = response::read(bytes, to_head, fields_max)?;
                Ok(read.map(|read| ResponseHead {
                    closes: read.framing == Framing::Close,
                    ..read
                }))
            }
            Self::TakesEarlyChunks => {
                let mut copy = bytes.to_vec();
                if let Some(version) = copy.get_mut(..8).filter(|it| it == b"HTTP/1.0") {
                    version[7] = b'1';
                }
                response::read(&copy, to_head, fields_max)
            }
            Self::TakesABodyOfHead => response::read(bytes, false, fields_max),
            _ => AsItIs.response(bytes, to_head, fields_max),
        }
    }

    fn step(&self, chunks: &mut Chunks, bytes: &[u8]) -> Result<ChunkPart, BadChunk> {
        let before = *chunks;
        let step = chunks.step(bytes);
        let rest = |skipped: usize, chunks: &mut Chunks| {
            *chunks = before;
            let step = chunks.step(&bytes[skipped..])?;
            Ok(ChunkPart {
                framing: step.framing + skipped,
                ..step
            })
        };
        match (self, step) {
            (Self::EndsSizesAtLf, Err(BadChunk)) => {
                let Some(lf) = memchr::memchr(b'\n', bytes) else {
                    return Err(BadChunk);
                };
                *chunks = before;
                if lf > 0 && chunks.step(&bytes[..lf])?.framing < lf {
                    return Err(BadChunk);
                }
                chunks.step(b"\r")?;
                chunks.step(b"\n")?;
                Ok(ChunkPart {
                    framing: lf + 1,
                    data: 0,
                })
            }
            (Self::WrapsSizes, Err(BadChunk)) => {
                let digits = bytes.iter().take_while(|it| it.is_ascii_hexdigit()).count();
                rest(digits.saturating_sub(16), chunks)
            }
            (Self::TakesSigns, Err(BadChunk)) if bytes.starts_with(b"+") => rest(1, chunks),
            (Self::NeedsCrlfInOnePiece, Ok(step)) => {
                let is_cut = step.framing == bytes.len() && bytes.ends_with(b"\r");
                if is_cut { Err(BadChunk) } else { Ok(step) }
            }
            (_, step) => step,
        }
    }

    fn is_in(&self, end: &mut HeadEnd, bytes: &[u8]) -> bool {
        match self {
            Self::LosesTheEndAtACut => {
                let is_first = format!("{end:?}") == format!("{:?}", HeadEnd::default());
                let found = end.is_in(bytes);
                found && (is_first || !bytes.ends_with(b"\n"))
            }
            _ => end.is_in(bytes),
        }
    }

    fn write_framing(&self, head: &[u8], framing: Framing, into: &mut Vec<u8>) {
        if *self != Self::CopiesTheFraming {
            return AsItIs.write_framing(head, framing, into);
        }
        let lines = head.split_inclusive(|it| *it == b'\n');
        for line in lines {
            let name = line.split(|it| *it == b':').next().unwrap_or_default();
            if super::plain::is_framing(name) {
                into.extend_from_slice(line);
            }
        }
    }
}
