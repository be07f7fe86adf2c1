//! Tags by which a call is known everywhere: in its request, its answer, and its access line.

use std::fmt;

/// The tag of a call. As text it is a z/VM userid, and bodies consist of nothing else, so that a byte of another
/// call is found wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Tag(pub(super) u32);

/// Characters of a tag.
pub(super) const LENGTH: usize = 8;

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{:07}", self.0)
    }
}

impl Tag {
    /// The first tag in a text.
    pub(super) fn find(text: &[u8]) -> Option<Self> {
        text.windows(LENGTH).find_map(|word| {
            let (b'T', digits) = word.split_first()? else {
                return None;
            };
            std::str::from_utf8(digits).ok()?.parse().ok().map(Self)
        })
    }

    /// A body of N bytes: the tag again and again.
    pub(super) fn body(self, bytes: usize) -> Vec<u8> {
        let tag = self.to_string().into_bytes();
        tag.iter().copied().cycle().take(bytes).collect()
    }

    /// Whether a body is this call's, as far as it goes.
    pub(super) fn owns(self, body: &[u8]) -> bool {
        let tag = self.to_string().into_bytes();
        body.chunks(LENGTH).all(|chunk| tag.starts_with(chunk))
    }
}

/// The number after `name=` in a text, or 0.
pub(super) fn number(text: &[u8], name: &str) -> usize {
    let text = String::from_utf8_lossy(text);
    let Some((_, rest)) = text.split_once(&format!("{name}=")) else {
        return 0;
    };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse().unwrap_or(0)
}
