//! A reader of messages that accepts one form only: lines that end in CRLF, one framing, one host, no
//! extensions. What it calls whole, every parser ends at the same byte.

use std::fmt::{self, Display};

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    None,
    Length(usize),
    Chunked,
    /// Up to the end of the connection; only of a response.
    ToTheEnd,
}

impl Display for Framing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Length(bytes) => write!(f, "length {bytes}"),
            Self::Chunked => f.write_str("chunked"),
            Self::ToTheEnd => f.write_str("to the end"),
        }
    }
}

/// A message that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// The first line, by its three parts.
    pub(super) first: [String; 3],
    /// Up to and with the empty line, as it came.
    pub(super) head: Vec<u8>,
    pub(super) framing: Framing,
    pub(super) body: Body,
}

/// The content of a message, and whether trailers follow it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    has_trailers: bool,
}

impl Message {
    /// The value of a header, whose name is in lower case.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let head = latin(&self.head);
        head.split("\r\n").find_map(|line| {
            let (field, value) = line.split_once(':')?;
            (field.to_ascii_lowercase() == name).then(|| value.trim().to_owned())
        })
    }
}

impl Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [method, target, _] = &self.first;
        let target = match target.chars().count() {
            0..=40 => target.clone(),
            long => format!("{long} bytes"),
        };
        write!(f, "{method} {target} {}", self.framing)?;
        match self.body.has_trailers {
            true => f.write_str(" with trailers"),
            false => Ok(()),
        }
    }
}

/// The front of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// A message, and the bytes that it takes.
    Whole(Message, usize),
    Partial,
    /// Something that another parser could read in another way.
    Bad(String),
}

/// Bytes as text, each of them one character.
pub(super) fn latin(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// The request at the front of these bytes.
pub(super) fn request(bytes: &[u8]) -> Read {
    match request_of(bytes) {
        Ok(Some((message, length))) => Read::Whole(message, length),
        Ok(None) => Read::Partial,
        Err(why) => Read::Bad(why),
    }
}

/// The response at the front of these bytes. One to HEAD has no body.
pub(super) fn response(bytes: &[u8], to_head: bool) -> Read {
    match response_of(bytes, to_head) {
        Ok(Some((message, length))) => Read::Whole(message, length),
        Ok(None) => Read::Partial,
        Err(why) => Read::Bad(why),
    }
}

type Found = Result<Option<(Message, usize)>, String>;

fn request_of(bytes: &[u8]) -> Found {
    let Some((first, fields, head)) = head_of(bytes)? else {
        return Ok(None);
    };
    let [method, target, version] = &first;
    if !method.bytes().all(is_token) || method.is_empty() {
        return Err(format!("a method {method:?}"));
    }
    // Bytes above 127 are no URI, and end no target either.
    if target.is_empty() || !target.chars().all(|it| it > ' ' && it != '\x7f') {
        return Err(format!("a target {target:?}"));
    }
    let is_1_1 = match version.as_str() {
        "HTTP/1.1" => true,
        "HTTP/1.0" => false,
        other => return Err(format!("a version {other:?}")),
    };
    let hosts = fields.iter().filter(|(name, _)| name == "host").count();
    if hosts > 1 || hosts == 0 && is_1_1 {
        return Err(format!("{hosts} hosts"));
    }
    let framing = framing(&fields, is_1_1)?.unwrap_or(Framing::None);
    body_of(bytes, first, head, framing)
}

fn response_of(bytes: &[u8], to_head: bool) -> Found {
    let Some((first, fields, head)) = head_of(bytes)? else {
        return Ok(None);
    };
    let [version, status, _] = &first;
    if !["HTTP/1.1", "HTTP/1.0"].contains(&version.as_str()) {
        return Err(format!("a version {version:?}"));
    }
    let status: u16 = status.parse().map_err(|_| format!("a status {status:?}"))?;
    let framing = framing(&fields, version == "HTTP/1.1")?;
    let bodiless = to_head || status / 100 == 1 || status == 204 || status == 304;
    if framing.is_some() && (status / 100 == 1 || status == 204) {
        return Err(format!("a framing of a {status}"));
    }
    let framing = match framing {
        _ if bodiless => Framing::None,
        Some(framing) => framing,
        None => Framing::ToTheEnd,
    };
    body_of(bytes, first, head, framing)
}

type Fields = Vec<(String, String)>;

/// The first line, the fields with their names in lower case, and the length of the head.
fn head_of(bytes: &[u8]) -> Result<Option<([String; 3], Fields, usize)>, String> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let known = latin(&bytes[..end.map_or(bytes.len(), |end| end + 2)]);
    let mut lines = known.split("\r\n");
    let first = lines.next().unwrap_or_default();
    // A line that is not yet here to its end may end in half of a CRLF.
    let line_ends = known.replace("\r\n", "");
    let line_ends = line_ends.strip_suffix('\r').unwrap_or(&line_ends);
    if line_ends.contains(['\r', '\n']) {
        return Err("a line that does not end in CRLF".to_owned());
    }
    let Some(end) = end else {
        return Ok(None);
    };
    let mut parts = first.splitn(3, ' ').map(str::to_owned);
    let mut part = || parts.next().unwrap_or_default();
    let first = [part(), part(), part()];
    let mut fields = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let Some((name, value)) = line.split_once(':') else {
            return Err(format!("a line without a colon {line:?}"));
        };
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(format!("a name {name:?}"));
        }
        // Other control characters are wrong, and end no line for any parser (RFC 9110, 5.5).
        if value.contains('\0') {
            return Err(format!("a value {value:?}"));
        }
        let value = value.trim_matches([' ', '\t']);
        fields.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    Ok(Some((first, fields, end + 4)))
}

fn framing(fields: &Fields, may_be_chunked: bool) -> Result<Option<Framing>, String> {
    let values = |name: &str| -> Vec<&str> {
        let named = fields.iter().filter(|(field, _)| field == name);
        named.map(|(_, value)| value.as_str()).collect()
    };
    match (
        &values("content-length")[..],
        &values("transfer-encoding")[..],
    ) {
        ([], []) => Ok(None),
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            let parsed = length.parse().map_err(|_| format!("a length {length:?}"))?;
            Ok(Some(Framing::Length(parsed)))
        }
        ([], [coding]) if may_be_chunked && coding.eq_ignore_ascii_case("chunked") => {
            Ok(Some(Framing::Chunked))
        }
        (lengths, codings) => Err(format!("lengths {lengths:?} and codings {codings:?}")),
    }
}

fn body_of(bytes: &[u8], first: [String; 3], head: usize, framing: Framing) -> Found {
    let rest = &bytes[head..];
    let plain = |bytes: &[u8]| {
        let body = Body {
            bytes: bytes.to_vec(),
            has_trailers: false,
        };
        (body, bytes.len())
    };
    let body = match framing {
        Framing::None => Some(plain(&[])),
        Framing::Length(length) => rest.get(..length).map(plain),
        Framing::Chunked => chunks(rest)?,
        Framing::ToTheEnd => Some(plain(rest)),
    };
    Ok(body.map(|(body, length)| {
        let message = Message {
            first,
            head: bytes[..head].to_vec(),
            framing,
            body,
        };
        (message, head + length)
    }))
}

/// A chunked body, and the bytes that it takes.
fn chunks(bytes: &[u8]) -> Result<Option<(Body, usize)>, String> {
    let mut body = Body::default();
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let digits = rest
            .iter()
            .take_while(|byte| byte.is_ascii_hexdigit())
            .count();
        let line = match rest.get(digits..digits + 2) {
            Some(b"\r\n") if (1..=16).contains(&digits) => &rest[..digits],
            Some(other) => return Err(format!("a chunk's line {:?}", latin(other))),
            None => return Ok(None),
        };
        let size = usize::from_str_radix(&latin(line), 16).map_err(|error| error.to_string())?;
        at += digits + 2;
        if size == 0 {
            break;
        }
        let end = at.saturating_add(size).saturating_add(2);
        let Some(chunk) = bytes.get(at..end) else {
            return Ok(None);
        };
        let (chunk, line_end) = chunk.split_at(size);
        if line_end != b"\r\n" {
            return Err(format!("a chunk's end {:?}", latin(line_end)));
        }
        body.bytes.extend_from_slice(chunk);
        at = end;
    }
    // The trailers, as a head without its first line.
    let trailers = [b"\r\n", &bytes[at..]].concat();
    let end = head_of(&trailers)?.map(|(_, trailers, length)| {
        body.has_trailers = !trailers.is_empty();
        at + length - 2
    });
    Ok(end.map(|end| (body, end)))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
