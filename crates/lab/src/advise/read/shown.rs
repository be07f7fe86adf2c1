//! Decides how much of a line may be shown: enough to recognise it, and no text that could be a secret.

/// Longest text of a line that is shown.   characters
const SHOWN_MAX: usize = 160;
/// A line with one of these may hold a secret.
const SECRETS: [&str; 8] = [
    "authorization",
    "password",
    "passwd",
    "token",
    "secret",
    "cookie",
    "basic ",
    "bearer ",
];

/// The beginning of a line, without queries; `None` if it may hold arguments or a secret.
pub(super) fn shown(line: &[u8]) -> Option<String> {
    let line = String::from_utf8_lossy(line);
    let lower = line.to_lowercase();
    if SECRETS.iter().any(|word| lower.contains(word)) || is_sdkserver(line.as_bytes()) {
        return None;
    }
    // The array of a call and a dictionary of headers look like this, in Python and in JSON.
    if ["['", "[\"", "{'", "{\"", "('"]
        .iter()
        .any(|start| line.contains(start))
    {
        return None;
    }
    let mut text = String::new();
    let mut in_query = false;
    for c in line.chars() {
        in_query = match c {
            '?' => {
                text.push_str("?…");
                true
            }
            ' ' | '"' => false,
            _ => in_query,
        };
        if in_query {
            continue;
        }
        match c.is_control() {
            true => text.extend(c.escape_default()),
            false => text.push(c),
        }
        if text.chars().count() >= SHOWN_MAX {
            text.push('…');
            break;
        }
    }
    Some(text)
}

/// Whether a line is one of sdkserver's own log: `[2026-11-24 10:11:12] [INFO] …`.
pub(super) fn is_sdkserver(line: &[u8]) -> bool {
    let shape = b"[9999-99-99 99:99:99] [";
    let fits = |(given, wanted): (&u8, &u8)| match wanted {
        b'9' => given.is_ascii_digit(),
        _ => given == wanted,
    };
    let has_time = line.len() > shape.len() && line.iter().zip(shape).all(fits);
    let levels: [&[u8]; 5] = [b"DEBUG]", b"INFO]", b"WARNING]", b"ERROR]", b"CRITICAL]"];
    has_time
        && levels
            .iter()
            .any(|level| line[shape.len()..].starts_with(level))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_secrets_are_not_shown() {
        let check = |line: &str, expected: Option<&str>| {
            assert_eq!(shown(line.as_bytes()).as_deref(), expected, "{line}");
        };
        check(
            "a \"GET /x?key=1 HTTP/1.1\" b",
            Some("a \"GET /x?… HTTP/1.1\" b"),
        );
        check("a\x1bb", Some("a\\u{1b}b"));
        check("Authorization: x", None);
        check("[\"guest_create\", [\"A\"], {}]", None);
        check("call {'userid': 'A'}", None);
        check("[2026-11-24 10:11:12] [DEBUG] anything", None);
        assert_eq!(
            shown(&[b'x'; 1000]).map(|it| it.chars().count()),
            Some(SHOWN_MAX + 1)
        );
    }

    #[test]
    fn sdkservers_log_is_recognised() {
        for line in [
            "[2026-11-24 10:11:12] [INFO] x",
            "[2026-11-24 10:11:12] [WARNING] x",
        ] {
            assert!(is_sdkserver(line.as_bytes()), "{line}");
        }
        for line in [
            "[2026-11-24 10:11:12] INFO",
            "[x] [INFO]",
            "",
            "[24/Nov/2026:10:11:12 +0000] [INFO] x",
        ] {
            assert!(!is_sdkserver(line.as_bytes()), "{line}");
        }
    }
}
