//! Reads a head as most clients write it, in one pass.
//!
//! It accepts fewer heads than the complete check does. For each head that it accepts, the complete
//! check returns the same; any other head is left to that.

use super::{HEAD_BYTES, Head, Part, number};

/// The byte can be part of a field's name.
const NAME: u8 = 1;
/// The byte can be part of a target that is a path.
const TARGET: u8 = 2;
/// The byte can be part of a host.
const HOST: u8 = 4;

/// What each byte can be part of.
static KINDS: [u8; 256] = kinds();

const fn kinds() -> [u8; 256] {
    let mut kinds = [0; 256];
    let mut byte = 0;
    while byte < 128 {
        if (byte as u8).is_ascii_alphanumeric() {
            kinds[byte] = NAME | TARGET | HOST;
        }
        byte += 1;
    }
    kinds[b'-' as usize] = NAME | TARGET | HOST;
    kinds[b'_' as usize] = NAME | TARGET | HOST;
    let others = b"/.~?&=%:@!$'()*+,;";
    let mut at = 0;
    while at < others.len() {
        kinds[others[at] as usize] = TARGET;
        at += 1;
    }
    let others = b".~%!$&'()*+,;=";
    let mut at = 0;
    while at < others.len() {
        kinds[others[at] as usize] |= HOST;
        at += 1;
    }
    kinds
}

/// How many bytes at the front are of this kind, if another byte follows.
fn run(bytes: &[u8], kind: u8) -> Option<usize> {
    let is_kind = |byte: u8| KINDS[usize::from(byte)] & kind;
    let mut at = 0;
    for four in bytes.chunks_exact(4) {
        if is_kind(four[0]) & is_kind(four[1]) & is_kind(four[2]) & is_kind(four[3]) == 0 {
            break;
        }
        at += 4;
    }
    let last = bytes[at..].iter().position(|&byte| is_kind(byte) == 0)?;
    Some(at + last)
}

/// Whether a target is a path that every parser reads alike.
pub(super) fn is_target(target: &[u8]) -> bool {
    fits(target) && run(target, TARGET).is_none()
}

/// Whether a value names a host and at most a port, as that of Host must (RFC 9110, 7.2).
pub(super) fn is_host(value: &[u8]) -> bool {
    let is_name = |bytes: &[u8]| {
        bytes
            .iter()
            .all(|&byte| KINDS[usize::from(byte)] & HOST != 0)
    };
    let (is_good, port) = match value.strip_prefix(b"[") {
        // An address of IPv6 has colons.
        Some(literal) => match memchr::memchr(b']', literal) {
            Some(end) => (
                literal[..end].split(|&it| it == b':').all(is_name),
                &literal[end + 1..],
            ),
            None => return false,
        },
        None => {
            let end = memchr::memchr(b':', value).unwrap_or(value.len());
            (is_name(&value[..end]), &value[end..])
        }
    };
    let digits = port.strip_prefix(b":").unwrap_or(port);
    let is_port = port.is_empty() || digits.len() < port.len();
    is_good && is_port && digits.iter().all(u8::is_ascii_digit)
}

/// Whether a name differs from that of a framing field only in its signs. Gateways such as CGI and
/// WSGI write the same sign for several, so they cannot tell the two names apart.
pub(super) fn is_like_framing(name: &[u8]) -> bool {
    let letters = || {
        let letters = name.iter().filter(|byte| byte.is_ascii_alphanumeric());
        letters.map(u8::to_ascii_lowercase)
    };
    match name.first() {
        Some(b'c' | b'C') => name.len() >= 13 && letters().eq(*b"contentlength"),
        Some(b't' | b'T') => name.len() >= 16 && letters().eq(*b"transferencoding"),
        _ => false,
    }
}

/// Whether a target begins as a path does, and is no longer than hyper accepts.
fn fits(target: &[u8]) -> bool {
    target.first() == Some(&b'/') && target.len() < usize::from(u16::MAX) - 1
}

/// The fields of a good head on this connection. Most clients send the same ones with each request.
#[derive(Default)]
pub(super) struct Known {
    /// As they came, with the empty line behind them.
    bytes: Vec<u8>,
    /// The length of the body that they announce.
    body: u64,
}

impl Known {
    /// Most bytes that are kept.
    const BYTES: usize = 512;

    fn keep(&mut self, bytes: &[u8], body: u64) {
        if bytes.len() <= Self::BYTES {
            self.bytes.clear();
            self.bytes.extend_from_slice(bytes);
            self.body = body;
        }
    }
}

/// The head at the front of these bytes, if it is whole and nothing in it needs a closer look.
/// `known` is for the later heads of a connection.
pub(super) fn head(bytes: &[u8], fields_max: usize, known: Option<&mut Known>) -> Option<Head> {
    let method = bytes.iter().position(|byte| !byte.is_ascii_uppercase())?;
    if method == 0 || &bytes[..method] == b"CONNECT" {
        return None;
    }
    let rest = bytes[method..].strip_prefix(b" ")?;
    let (target, rest) = rest.split_at(run(rest, TARGET)?);
    if !fits(target) {
        return None;
    }
    let rest = rest.strip_prefix(b" HTTP/1.1\r\n")?;
    let (fields, body) = match known {
        Some(known) if !known.bytes.is_empty() && rest.starts_with(&known.bytes) => {
            (known.bytes.len(), known.body)
        }
        known => {
            let (length, body) = fields(rest, fields_max)?;
            if let Some(known) = known {
                known.keep(&rest[..length], body);
            }
            (length, body)
        }
    };
    let length = bytes.len() - rest.len() + fields;
    (length <= HEAD_BYTES).then_some(Head {
        length,
        body: match body {
            0 => Part::Head,
            body => Part::Body(body),
        },
        lacks_host: false,
    })
}

/// How long the fields are, with the empty line behind them, and the body that they announce.
fn fields(bytes: &[u8], fields_max: usize) -> Option<(usize, u64)> {
    let mut rest = bytes;
    let (mut fields, mut hosts) = (0, 0);
    let mut body = None;
    while !rest.starts_with(b"\r\n") {
        let (name, behind) = rest.split_at(run(rest, NAME)?);
        let behind = behind.strip_prefix(b":")?;
        let (value, behind) = behind.split_at(text(behind)?);
        rest = behind.strip_prefix(b"\r\n")?;
        fields += 1;
        match name.len() {
            0 => return None,
            4 if name.eq_ignore_ascii_case(b"host") => {
                if !is_host(value.trim_ascii()) {
                    return None;
                }
                hosts += 1;
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                let length = number(value.strip_prefix(b" ").unwrap_or(value))?;
                if body.replace(length).is_some() {
                    return None;
                }
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => return None,
            _ if is_like_framing(name) => return None,
            _ => {}
        }
    }
    let length = bytes.len() - rest.len() + 2;
    (hosts == 1 && fields <= fields_max).then_some((length, body.unwrap_or(0)))
}

/// How many bytes of text are at the front, if a control character follows.
fn text(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = u64::from_ne_bytes([128; 8]);
    let mut words = bytes.chunks_exact(8);
    let mut at = 0;
    for word in &mut words {
        let word = u64::from_le_bytes(word.try_into().expect("it has eight bytes"));
        // The lowest bit that is set belongs to the first byte below a space, and the same for a
        // byte of 127; bits above it may be set too.
        let below = word.wrapping_sub(ONES * 32) & !word;
        let other = word ^ (ONES * 127);
        let found = (below | other.wrapping_sub(ONES) & !other) & HIGH;
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let last = words.remainder().iter();
    let last = last.copied().position(|byte| byte < 32 || byte == 127)?;
    Some(at + last)
}

#[cfg(test)]
mod tests {
    use super::super::Heads;
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
        let mut known = Known::default();
        let read = super::head(head, fields_max, Some(&mut known));
        let again = super::head(head, fields_max, Some(&mut known));
        assert_eq!(read, again, "{:?}", String::from_utf8_lossy(head));
        let Some(read) = read else {
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
        assert_eq!(read, [true, true, true, false, false, false]);
        assert!(!is_read(SAMPLES[1].as_bytes(), 3));
        for length in [HEAD_BYTES, HEAD_BYTES + 1] {
            let fixed = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n";
            let long = "x".repeat(length - fixed.len());
            let head = fixed.replace("X: ", &format!("X: {long}"));
            assert_eq!(is_read(head.as_bytes(), 4), length == HEAD_BYTES);
        }
        for length in [65533, 65534] {
            let head = format!(
                "GET /{} HTTP/1.1\r\nHost: a\r\n\r\n",
                "x".repeat(length - 1)
            );
            assert!(super::is_target(&head.as_bytes()[4..4 + length]) == (length == 65533));
            is_read(head.as_bytes(), 4);
        }
    }

    #[test]
    fn fields_that_are_known_are_the_same_bytes() {
        let mut known = Known::default();
        let mut read = |head: &str| super::head(head.as_bytes(), 4, Some(&mut known));
        let post = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n";
        for (from, to) in [
            ("", ""),
            ("/a", "/b?c"),
            ("12", "13"),
            ("12", "1"),
            ("12\r\n", "12\r\nX:y\r\n"),
            ("Host: a\r\n", ""),
            ("\r\n\r\n", "\r\n"),
        ] {
            let head = post.replacen(from, to, 1);
            let expected = Heads::new(4).any_head(head.as_bytes()).ok().flatten();
            assert_eq!(read(&head), expected, "{head:?}");
            assert_eq!(read(post), super::head(post.as_bytes(), 4, None));
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

    #[test]
    fn a_host_is_a_name_or_an_address_and_at_most_a_port() {
        for good in [
            "",
            "t",
            "t:80",
            "t:",
            "a.b-c_d~e",
            "10.0.0.1:8080",
            "[::1]",
            "[::1]:80",
            "%41",
            "0=5",
        ] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for bad in [
            "t/a", "a@t", "t u", "t:a", "t:80:80", "[::1", "::1", "[::1]a", "t#", "t?", "\u{e9}",
            "t\\",
        ] {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn a_name_that_differs_in_its_signs_is_like_framing() {
        for name in [
            "content_length",
            "ContentLength",
            "Transfer_Encoding",
            "transfer---encoding",
        ] {
            assert!(is_like_framing(name.as_bytes()), "{name}");
        }
        for name in [
            "content-type",
            "content-length0",
            "x-content-length",
            "content-encoding",
            "te",
        ] {
            assert!(!is_like_framing(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn text_ends_at_the_first_control_character() {
        for length in 0..20 {
            for end in 0..=u8::MAX {
                let mut bytes = vec![b' '; length];
                bytes.push(end);
                let is_control = end < 32 || end == 127;
                assert_eq!(text(&bytes), is_control.then_some(length));
                bytes.extend_from_slice(b"\x7f\x80\x1f~ \x00abcdefgh");
                let expected = if is_control { length } else { length + 1 };
                assert_eq!(text(&bytes), Some(expected), "{length} {end}");
            }
        }
    }
}
