//! The classes of bytes: which may stand where.

/// The byte can be part of a field's name.
const NAME: u8 = 1;
/// The byte can be part of a target that is a path.
const TARGET: u8 = 2;
/// The byte can be part of a host.
const HOST: u8 = 4;

/// The classes that each byte belongs to.
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

/// The length of the name at the front: letters, digits, `-` and `_`, which are the bytes of every name in
/// use. `None` if no other byte follows.
#[must_use]
pub fn name(bytes: &[u8]) -> Option<usize> {
    run(bytes, NAME)
}

/// The length of the target at the front: bytes that every parser accepts in a path and a query. `None` if
/// no other byte follows.
#[must_use]
pub fn target(bytes: &[u8]) -> Option<usize> {
    run(bytes, TARGET)
}

/// The length of the text at the front, up to a control character; a tab is one. `None` if none follows.
#[must_use]
pub fn text(bytes: &[u8]) -> Option<usize> {
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

/// Whether a target is a path that every parser reads alike.
#[must_use]
pub fn is_target(bytes: &[u8]) -> bool {
    let is_path = bytes.first() == Some(&b'/') && bytes.len() < usize::from(u16::MAX) - 1;
    is_path && run(bytes, TARGET).is_none()
}

/// Whether a value names a host and at most a port, as that of Host must (RFC 9110, 7.2).
#[must_use]
pub fn is_host(value: &[u8]) -> bool {
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
#[must_use]
pub fn is_like_framing(name: &[u8]) -> bool {
    let letters = || {
        let letters = name.iter().filter(|byte| byte.is_ascii_alphanumeric());
        letters.map(u8::to_ascii_lowercase)
    };
    match name.first() {
        Some(b'c' | b'C') => name.len() >= 13 && letters().eq(*b"contentlength"),
        Some(b't' | b'T') => name.len() >= 16 && letters().eq(*b"transferencoding"),
        Some(sign) if !sign.is_ascii_alphanumeric() => {
            letters().eq(*b"contentlength") || letters().eq(*b"transferencoding")
        }
        _ => false,
    }
}

/// Whether credentials, or a challenge, are of a scheme that logs in the connection and not only the request.
#[must_use]
pub fn logs_in_connection(credentials: &[u8]) -> bool {
    // The first letter rules out most others.
    if !matches!(credentials.first(), Some(b'N' | b'n' | b'K' | b'k')) {
        return false;
    }
    let is_end = |byte: &u8| matches!(byte, b' ' | b'\t' | b',');
    let end = credentials.iter().position(is_end);
    let scheme = &credentials[..end.unwrap_or(credentials.len())];
    let all: [&[u8]; 3] = [b"NTLM", b"Negotiate", b"Kerberos"];
    all.iter().any(|it| scheme.eq_ignore_ascii_case(it))
}

/// Whether the value of Upgrade is a list of protocols without HTTP/2 (RFC 9110, 7.8).
#[must_use]
pub fn is_upgrade(value: &[u8]) -> bool {
    value.split(|byte| *byte == b',').all(|protocol| {
        let protocol = protocol.trim_ascii();
        let mut parts = protocol.split(|byte| *byte == b'/');
        let name = parts.next().unwrap_or_default();
        let is_good = protocol.split(|byte| *byte == b'/').all(is_token) && parts.count() < 2;
        is_good && !name.eq_ignore_ascii_case(b"h2c")
    })
}

/// Whether these bytes are a token (RFC 9110, 5.6.2).
#[must_use]
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().copied().all(is_of_token)
}

/// Whether a byte can be part of a token.
#[must_use]
pub fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A number of digits and nothing else, if it fits.
#[must_use]
pub fn number(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_no_longer_than_every_parser_accepts() {
        for length in [65533, 65534] {
            let target = format!("/{}", "x".repeat(length - 1));
            assert_eq!(is_target(target.as_bytes()), length == 65533);
        }
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
            "_Content-Length",
            "-transferencoding-",
            "~content.length",
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
