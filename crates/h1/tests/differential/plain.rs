//! The usual form of a request, read for a second time and in the simplest way: line by line, after
//! RFC 9112 and RFC 9110. It shares no code with the crate.

use smallvec::SmallVec;
use tidegate_h1::Framing;
use tidegate_h1::request::Bounds;

type Pair<'a> = (&'a [u8], &'a [u8]);

/// What a head says.
#[derive(Debug)]
pub(crate) struct Plain<'a> {
    pub(crate) method: &'a [u8],
    pub(crate) target: &'a [u8],
    /// Every field.
    pub(crate) fields: SmallVec<[Pair<'a>; 16]>,
    pub(crate) framing: Framing,
    pub(crate) closes: bool,
    pub(crate) length: usize,
}

impl<'a> Plain<'a> {
    /// The fields that a proxy passes on besides the framing (RFC 9110, 7.6.1).
    pub(crate) fn passed(&self) -> impl Iterator<Item = Pair<'a>> {
        let is_passed = |(name, _): &Pair<'_>| {
            const LEFT_OUT: [&[u8]; 8] = [
                b"connection",
                b"keep-alive",
                b"proxy-connection",
                b"proxy-authenticate",
                b"proxy-authorization",
                b"upgrade",
                b"http2-settings",
                b"te",
            ];
            let is_left_out = LEFT_OUT.iter().any(|it| name.eq_ignore_ascii_case(it));
            !is_left_out && !is_framing(name)
        };
        self.fields.iter().copied().filter(is_passed)
    }
}

/// Whether a field is one of the two that frame a message.
pub(crate) fn is_framing(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"content-length") || name.eq_ignore_ascii_case(b"transfer-encoding")
}

/// The head at the front, if it is whole and usual.
pub(crate) fn request(bytes: &[u8], bounds: Bounds) -> Option<Plain<'_>> {
    let mut at = 0;
    let (method, target) = request_line(line(bytes, &mut at)?)?;
    let mut fields = SmallVec::<[Pair<'_>; 16]>::new();
    loop {
        let line = line(bytes, &mut at)?;
        if line.is_empty() {
            break;
        }
        fields.push(field(line)?);
    }
    if fields.len() > bounds.fields || at > bounds.bytes {
        return None;
    }
    let mut lengths = SmallVec::<[&[u8]; 2]>::new();
    let mut codings = SmallVec::<[&[u8]; 2]>::new();
    let mut connections = SmallVec::<[&[u8]; 2]>::new();
    let mut upgrades = SmallVec::<[&[u8]; 2]>::new();
    let (mut hosts, mut settings) = (0, 0);
    for &(name, value) in &fields {
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        if is(b"host") {
            hosts += 1;
            host(value)?;
        } else if is(b"content-length") {
            lengths.push(value);
        } else if is(b"transfer-encoding") {
            codings.push(value);
        } else if is(b"connection") {
            connections.push(value);
        } else if is(b"upgrade") {
            upgrades.push(value);
        } else if is(b"http2-settings") {
            settings += 1;
        } else if is(b"te")
            || is(b"trailer")
            || is(b"expect")
            || is(b"close")
            || is_confusable(name)
        {
            return None;
        }
    }
    if hosts != 1 {
        return None;
    }
    let framing = match (&lengths[..], &codings[..]) {
        ([], []) => Framing::None,
        ([length], []) if (1..=19).contains(&length.len()) => Framing::Length(number(length)?),
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
        _ => return None,
    };
    let closes = match (&connections[..], &upgrades[..], settings) {
        ([], [], 0) => false,
        ([one], [], 0) if one.eq_ignore_ascii_case(b"keep-alive") => false,
        ([one], [], 0) if one.eq_ignore_ascii_case(b"close") => true,
        // An offer of HTTP/2 may be ignored (RFC 9110, 7.8).
        ([one], [to], 1)
            if one.eq_ignore_ascii_case(b"upgrade, http2-settings")
                && to.eq_ignore_ascii_case(b"h2c") =>
        {
            false
        }
        _ => return None,
    };
    Some(Plain {
        method,
        target,
        fields,
        framing,
        closes,
        length: at,
    })
}

/// The line at `at`, which moves behind its CRLF. A line has no control characters, also no tab.
fn line<'a>(bytes: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let rest = &bytes[*at..];
    let end = rest.iter().position(u8::is_ascii_control)?;
    if !rest[end..].starts_with(b"\r\n") {
        return None;
    }
    *at += end + 2;
    Some(&rest[..end])
}

fn request_line(line: &[u8]) -> Option<Pair<'_>> {
    let method = line.split(|byte| *byte == b' ').next()?;
    let is_known = matches!(
        method,
        b"GET" | b"HEAD" | b"POST" | b"PUT" | b"DELETE" | b"OPTIONS" | b"PATCH"
    );
    let target = line[method.len()..].strip_prefix(b" ")?;
    let target = target.strip_suffix(b" HTTP/1.1")?;
    // RFC 3986, 3.3 and 3.4.
    let is_path = target.first() == Some(&b'/')
        && target
            .iter()
            .all(|byte| is_of_host(*byte) || b"/?:@".contains(byte));
    (is_known && is_path).then_some((method, target))
}

fn field(line: &[u8]) -> Option<Pair<'_>> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let name = &line[..colon];
    let is_name = !name.is_empty()
        && name
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte));
    is_name.then(|| (name, line[colon + 1..].trim_ascii()))
}

/// Unreserved bytes, those of a percent-encoding, and delimiters within a part (RFC 3986, 2).
fn is_of_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte)
}

/// A name or an address, and at most a port (RFC 9110, 7.2).
fn host(value: &[u8]) -> Option<()> {
    let is_address = value.first() == Some(&b'[');
    let end = match is_address {
        true => value.iter().position(|byte| *byte == b']')? + 1,
        false => value
            .iter()
            .position(|byte| *byte == b':')
            .unwrap_or(value.len()),
    };
    let (host, port) = value.split_at(end);
    let is_host = match is_address {
        true => host[1..end - 1]
            .iter()
            .all(|byte| is_of_host(*byte) || *byte == b':'),
        false => host.iter().copied().all(is_of_host),
    };
    let is_port = match port {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    (is_host && is_port).then_some(())
}

/// Whether a gateway that replaces signs can take a name for one of a framing.
fn is_confusable(name: &[u8]) -> bool {
    if name.len() < 13 {
        return false;
    }
    let letters: SmallVec<[u8; 32]> = name
        .iter()
        .filter(|byte| byte.is_ascii_alphanumeric())
        .map(u8::to_ascii_lowercase)
        .collect();
    matches!(&letters[..], b"contentlength" | b"transferencoding")
}

fn number(digits: &[u8]) -> Option<u64> {
    let is_number = digits.iter().all(u8::is_ascii_digit);
    let digits = str::from_utf8(digits).ok()?;
    is_number.then(|| digits.parse().ok())?
}
