//! How a path is spelled. A backend reads `//guests`, `/./guests`, `/x/../guests` and
//! `/%67uests` as `/guests`, so limits have to as well.

use std::borrow::Cow;

use super::BackendKind;

/// The path as a backend reads it: unreserved characters decoded (RFC 3986, 6.2.2.2), slashes
/// merged, dot segments removed (5.2.4). The z/VM SDK server decodes a slash too, as every
/// WSGI server does; to others an encoded slash is data.
///
/// Borrowed where nothing changes, which costs one look at each byte. A single slash at the
/// end makes no difference to a route, and stays.
#[must_use]
pub fn as_read(path: &str, kind: BackendKind) -> Cow<'_, str> {
    if !may_change(path.as_bytes()) {
        return Cow::Borrowed(path);
    }
    let decoded = decode(path, kind);
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_in_slash = false;
    for segment in decoded.split('/') {
        ends_in_slash = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let mut read = String::with_capacity(decoded.len());
    for segment in &segments {
        read.push('/');
        read.push_str(segment);
    }
    if ends_in_slash || segments.is_empty() {
        read.push('/');
    }
    if read == path {
        return Cow::Borrowed(path);
    }
    Cow::Owned(read)
}

/// Whether there is anything in it that could change; a look that errs on the safe side.
fn may_change(path: &[u8]) -> bool {
    let mut before = 0;
    for &byte in path {
        if byte == b'%' || before == b'/' && matches!(byte, b'/' | b'.') {
            return true;
        }
        before = byte;
    }
    false
}

fn decode(path: &str, kind: BackendKind) -> Cow<'_, str> {
    if !path.contains('%') {
        return Cow::Borrowed(path);
    }
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        decoded.push_str(before);
        let byte = after
            .get(..2)
            .filter(|it| it.bytes().all(|b| b.is_ascii_hexdigit()));
        let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte {
            Some(byte) if is_unreserved(byte) || byte == b'/' && kind == BackendKind::Zvm => {
                decoded.push(char::from(byte));
                rest = &after[2..];
            }
            _ => {
                decoded.push('%');
                rest = after;
            }
        }
    }
    decoded.push_str(rest);
    Cow::Owned(decoded)
}

/// A character that means the same whether it is encoded or not.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Whether a backend may find a slash in it that [`as_read`] leaves as data.
#[must_use]
pub fn hides_a_slash(path: &str) -> bool {
    let bytes = path.as_bytes();
    let hidden = |three: &[u8]| matches!(three, b"%2f" | b"%2F" | b"%5c" | b"%5C");
    bytes.contains(&b'\\') || bytes.windows(3).any(hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, read: &str) {
        assert_eq!(as_read(path, BackendKind::Zvm), read, "{path}");
        let again = as_read(read, BackendKind::Zvm).into_owned();
        assert_eq!(again, read, "once is enough: {path}");
    }

    #[test]
    fn what_a_backend_reads_as_the_same_becomes_the_same() {
        for path in [
            "/%67uests",
            "/guest%73",
            "//guests",
            "///guests",
            "/./guests",
            "/x/../guests",
            "/../guests",
            "/x/%2e%2E/guests",
            "/x/.%2e/guests",
            "/%2fguests",
        ] {
            check(path, "/guests");
        }
        check("/guests//", "/guests/");
        check("/guests/.", "/guests/");
        check("/guests/x/..", "/guests/");
        check("/..", "/");
        check("//", "/");
        check("/%2e", "/");
    }

    #[test]
    fn what_is_plain_stays() {
        for path in [
            "",
            "*",
            "/",
            "/guests",
            "/guests/",
            "/guests/A.B/..c/.d/e..",
            "/guests/A%24B%20C",
            "/a%25b",
            "/a%zz%2",
            "/a%",
            "/ä%é",
        ] {
            check(path, path);
            assert!(
                matches!(as_read(path, BackendKind::Zvm), Cow::Borrowed(_)),
                "{path}"
            );
        }
    }

    #[test]
    fn what_is_decoded_is_not_decoded_again() {
        assert_eq!(as_read("/%2567uests", BackendKind::Zvm), "/%2567uests");
    }

    #[test]
    fn an_encoded_slash_is_one_to_the_sdk_server_and_data_to_others() {
        assert_eq!(
            as_read("/guests%2FA%2finfo", BackendKind::Zvm),
            "/guests/A/info"
        );
        assert_eq!(as_read("/a%2Fb", BackendKind::Http), "/a%2Fb");
    }
}
