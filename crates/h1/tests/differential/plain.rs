//! The head of a request, read for a second time and in the simplest way: line by line, after RFC 9112 and
//! RFC 9110. It shares no code with the crate.

use smallvec::SmallVec;
use tidegate_h1::Framing;
use tidegate_h1::request::HeadBounds;

type Pair<'a> = (&'a [u8], &'a [u8]);

/// Some values of fields of one name, or some words of a list.
type Values<'a> = SmallVec<[&'a [u8]; 4]>;

/// The facts that a head states.
#[derive(Debug)]
pub(crate) struct Plain<'a> {
    pub(crate) method: &'a [u8],
    /// As it was written.
    pub(crate) target: &'a [u8],
    /// The host in the target.
    pub(crate) authority: Option<&'a [u8]>,
    /// The target without scheme and host.
    pub(crate) path: &'a [u8],
    pub(crate) is_1_1: bool,
    /// Every field.
    pub(crate) fields: SmallVec<[Pair<'a>; 16]>,
    /// The options that Connection lists.
    options: Values<'a>,
    pub(crate) framing: Framing,
    pub(crate) closes: bool,
    pub(crate) expects_continue: bool,
    pub(crate) upgrade: Option<&'a [u8]>,
    pub(crate) is_forwarded: bool,
    pub(crate) is_stateful: bool,
    pub(crate) max_forwards: Option<&'a [u8]>,
    pub(crate) length: usize,
}

impl<'a> Plain<'a> {
    /// The fields that a proxy passes on besides the framing (RFC 9110, 7.6.1), and without a Host that the target
    /// replaces.
    pub(crate) fn passed(&self) -> impl Iterator<Item = Pair<'a>> {
        let is_passed = |(name, _): &Pair<'_>| {
            const LEFT_OUT: [&[u8]; 9] = [
                b"connection",
                b"keep-alive",
                b"proxy-connection",
                b"proxy-authenticate",
                b"proxy-authorization",
                b"upgrade",
                b"te",
                b"trailer",
                b"expect",
            ];
            if name.eq_ignore_ascii_case(b"host") {
                return self.authority.is_none();
            }
            let is = |it: &&[u8]| name.eq_ignore_ascii_case(it);
            !LEFT_OUT.iter().any(is) && !self.options.iter().any(is) && !is_framing(name)
        };
        self.fields.iter().copied().filter(is_passed)
    }
}

/// Whether a field is one of the two that frame a message.
pub(crate) fn is_framing(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"content-length") || name.eq_ignore_ascii_case(b"transfer-encoding")
}

/// Whether a challenge or credentials are of a scheme that logs in a connection.
pub(crate) fn is_login_of_a_connection(value: &[u8]) -> bool {
    let mut words = value.trim_ascii().split(|it| b" \t,".contains(it));
    let scheme = words.next().unwrap_or_default().to_ascii_lowercase();
    [&b"ntlm"[..], b"negotiate", b"kerberos"].contains(&&scheme[..])
}

/// The head at the front, if it is whole and good.
pub(crate) fn request(bytes: &[u8], bounds: HeadBounds) -> Option<Plain<'_>> {
    let mut at = 0;
    while bytes[at..].starts_with(b"\r\n") {
        at += 2;
    }
    let [method, target, version] = request_line(line(bytes, &mut at)?)?;
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
    let values = |name: &str| -> Values<'_> {
        let is_named = |it: &&Pair<'_>| it.0.eq_ignore_ascii_case(name.as_bytes());
        fields.iter().filter(is_named).map(|it| it.1).collect()
    };
    let is_confusing = |it: &Pair<'_>| is_confusable(it.0) && !is_framing(it.0);
    if fields.iter().any(is_confusing) || method == b"CONNECT" {
        return None;
    }
    let is_1_1 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return None,
    };
    match values("host")[..] {
        [one] => host(one)?,
        [] if !is_1_1 => {}
        _ => return None,
    }
    let framing = match (
        &values("content-length")[..],
        &values("transfer-encoding")[..],
    ) {
        ([], []) => Framing::None,
        ([length], []) => Framing::Length(number(length).filter(|it| *it <= u64::MAX - 2)?),
        ([], [coding]) if is_1_1 && coding.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
        _ => return None,
    };
    let connections = values("connection");
    let lists = |word: &[u8], values: &[&[u8]]| {
        let mut words = values.iter().copied().flat_map(words);
        words.any(|it| it.eq_ignore_ascii_case(word))
    };
    // A value with other bytes is no reason to keep a connection.
    let ascii: Values<'_> = connections
        .iter()
        .copied()
        .filter(|it| it.is_ascii())
        .collect();
    let closes = lists(b"close", &connections) || !is_1_1 && !lists(b"keep-alive", &ascii);
    let upgrade = match values("upgrade")[..] {
        [one] if is_1_1 && framing == Framing::None && lists(b"upgrade", &connections) => {
            words(one).all(is_protocol).then_some(one)
        }
        _ => None,
    };
    let max_forwards = match values("max-forwards")[..] {
        [one] if [&b"TRACE"[..], b"OPTIONS"].contains(&method) => number(one).map(|_| one),
        _ => None,
    };
    let (authority, path) = target_parts(method, target)?;
    let is_expected = |it: &&[u8]| it.eq_ignore_ascii_case(b"100-continue");
    Some(Plain {
        method,
        target,
        authority,
        path,
        is_1_1,
        framing,
        closes,
        expects_continue: is_1_1 && values("expect").last().is_some_and(is_expected),
        upgrade,
        is_forwarded: fields.iter().any(|it| is_forwarding(it.0)),
        is_stateful: values("authorization")
            .iter()
            .any(|it| is_login_of_a_connection(it)),
        max_forwards,
        options: connections.iter().copied().flat_map(words).collect(),
        fields,
        length: at,
    })
}

/// Whether a field says where a request came from.
pub(crate) fn is_forwarding(name: &[u8]) -> bool {
    let all = [
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
        "forwarded",
        "x-real-ip",
    ];
    all.iter()
        .any(|it| name.eq_ignore_ascii_case(it.as_bytes()))
}

/// The words of a list.
fn words(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|it| *it == b',').map(<[u8]>::trim_ascii)
}

/// A name and at most a version, and not HTTP/2.
fn is_protocol(protocol: &[u8]) -> bool {
    let parts: Values<'_> = protocol.split(|it| *it == b'/').collect();
    parts.len() <= 2
        && parts
            .iter()
            .all(|it| !it.is_empty() && it.iter().copied().all(is_of_token))
        && !parts[0].eq_ignore_ascii_case(b"h2c")
}

/// The line at `at`, which moves behind its CRLF. A line has no control characters besides tabs.
fn line<'a>(bytes: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let rest = &bytes[*at..];
    let is_control = |it: &u8| it.is_ascii_control() && *it != b'\t';
    let end = rest.iter().position(is_control)?;
    if !rest[end..].starts_with(b"\r\n") {
        return None;
    }
    *at += end + 2;
    Some(&rest[..end])
}

/// Method, target and version.
fn request_line(line: &[u8]) -> Option<[&[u8]; 3]> {
    let mut words = line.split(|byte| *byte == b' ');
    let parts = [words.next()?, words.next()?, words.next()?];
    let is_method = !parts[0].is_empty() && parts[0].iter().copied().all(is_of_token);
    (is_method && words.next().is_none()).then_some(parts)
}

/// The host, and the rest of the target.
fn target_parts<'a>(method: &[u8], target: &'a [u8]) -> Option<(Option<&'a [u8]>, &'a [u8])> {
    if target == b"*" {
        return (method == b"OPTIONS").then_some((None, target));
    }
    if target.first() == Some(&b'/') {
        return is_path(target).then_some((None, target));
    }
    // RFC 3986, 3.1 and 3.2.
    let colon = target.iter().position(|byte| *byte == b':')?;
    let is_scheme = |it: &u8| it.is_ascii_alphanumeric() || b"+-.".contains(it);
    let scheme = &target[..colon];
    if !scheme.first()?.is_ascii_alphabetic() || !scheme.iter().all(is_scheme) || colon > 64 {
        return None;
    }
    let rest = target[colon..].strip_prefix(b"://")?;
    let end = rest.iter().position(|byte| b"/?".contains(byte));
    let (authority, path) = rest.split_at(end.unwrap_or(rest.len()));
    host(authority)?;
    let name = authority.split(|byte| *byte == b']').next()?;
    // As in hyper, a percent-encoding is that of a zone, and an address has at most eight colons.
    let is_address = authority.first() == Some(&b'[');
    let colons = name.iter().filter(|it| **it == b':').count();
    let is_host = match is_address {
        true => colons <= 8,
        false => !matches!(authority.first(), None | Some(b':')) && !authority.contains(&b'%'),
    };
    (is_host && is_path(path)).then_some((Some(authority), path))
}

/// Whether hyper takes this for a path and a query.
fn is_path(path: &[u8]) -> bool {
    let query = path.iter().position(|byte| *byte == b'?');
    let (path, query) = path.split_at(query.unwrap_or(path.len()));
    let is_common = |it: u8| it > b' ' && it != 127 && !b"#<>".contains(&it);
    let is_of_path = |it: u8| is_common(it) && it != b'`';
    let is_of_query = |it: u8| is_common(it) && it != b'"';
    path.iter().copied().all(is_of_path)
        && query.iter().copied().all(is_of_query)
        && str::from_utf8(path).is_ok()
        && str::from_utf8(query).is_ok()
}

fn field(line: &[u8]) -> Option<Pair<'_>> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let name = &line[..colon];
    let is_name = !name.is_empty() && name.iter().copied().all(is_of_token);
    is_name.then(|| (name, line[colon + 1..].trim_ascii()))
}

/// A byte of a token (RFC 9110, 5.6.2).
fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&byte)
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
