//! The one place where `http_desync_guardian` is asked too much: it compares names letter by letter, and stops
//! at the first that is different.

/// Whether only the guardian takes a name for that of a framing: one with any letter in the place of the
/// hyphen, or with signs in the place of the last letters, as `Transferr-Encoding` and `Content-Lengt_`.
pub(crate) fn is_alike(name: &[u8]) -> bool {
    if name.len() < 14 {
        return false;
    }
    let letters: Vec<u8> = name
        .iter()
        .filter(|byte| byte.is_ascii_alphanumeric())
        .map(u8::to_ascii_lowercase)
        .collect();
    let begins = |full: &str, part: &[u8]| full.as_bytes().starts_with(part);
    [("content", "length"), ("transfer", "encoding")]
        .iter()
        .any(|(one, other)| match letters.strip_prefix(one.as_bytes()) {
            Some(behind) => begins(other, behind) || begins(other, &behind[1..]),
            None => begins(one, &letters),
        })
}
