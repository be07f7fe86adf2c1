//! Where the fields of a head are.

use smallvec::SmallVec;

/// A part of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSpan {
    at: u32,
    length: u32,
}

impl ByteSpan {
    /// The bytes from `at` on.
    ///
    /// # Panics
    /// If a number is larger than 32 bits. A head is smaller.
    #[must_use]
    pub fn new(at: usize, length: usize) -> Self {
        let small = |number: usize| u32::try_from(number).expect("a head is no longer");
        Self {
            at: small(at),
            length: small(length),
        }
    }

    /// The part of this head.
    #[must_use]
    pub fn of(self, head: &[u8]) -> &[u8] {
        &head[self.at()..self.end()]
    }

    /// Where it begins.
    #[must_use]
    pub fn at(self) -> usize {
        self.at as usize
    }

    /// Where it ends.
    #[must_use]
    pub fn end(self) -> usize {
        self.at as usize + self.length as usize
    }
}

/// A field of a head, without the white space around its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadField {
    /// The name of the field, as it was written.
    pub name: ByteSpan,
    /// The value of the field.
    pub value: ByteSpan,
}

impl HeadField {
    /// Whether this is its name, in any case. Its length is compared first, which is enough for most.
    #[must_use]
    pub fn is_named(&self, name: &str, head: &[u8]) -> bool {
        self.name.length as usize == name.len()
            && self.name.of(head).eq_ignore_ascii_case(name.as_bytes())
    }
}

/// The fields that a proxy passes on, in their order: not those that concern one hop, and not those of the
/// framing.
pub type HeadFields = SmallVec<[HeadField; 8]>;

/// The meaning of a field to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The field is passed on.
    Passes,
    Host,
    Connection,
    ContentLength,
    TransferEncoding,
    Upgrade,
    Http2Settings,
    Expect,
    /// `Close`, which `Connection: close` names.
    Close,
    /// `Trailer` or `TE`.
    Trailer,
    /// The field names the origin of a request.
    Forwarded,
    Authorization,
    /// `WWW-Authenticate`.
    Authenticate,
    MaxForwards,
    /// The field concerns one hop, and is left out.
    Hop,
    /// A gateway could take it for a framing field.
    LikeFraming,
}

/// Names of other meanings than [`Meaning::Passes`], besides those of the framing.
const KNOWN: [&str; 20] = [
    "te",
    "host",
    "close",
    "expect",
    "trailer",
    "upgrade",
    "forwarded",
    "x-real-ip",
    "connection",
    "keep-alive",
    "max-forwards",
    "authorization",
    "http2-settings",
    "x-forwarded-for",
    "proxy-connection",
    "www-authenticate",
    "x-forwarded-host",
    "x-forwarded-proto",
    "proxy-authenticate",
    "proxy-authorization",
];

/// For the last five bits of a first letter, a bit for each length that a name of another meaning than
/// [`Meaning::Passes`] can have.
static LENGTHS: [u64; 32] = lengths();

const fn lengths() -> [u64; 32] {
    let mut lengths = [0; 32];
    // Those of the framing have other signs, too.
    lengths[b'c' as usize & 31] = u64::MAX << "contentlength".len();
    lengths[b't' as usize & 31] = u64::MAX << "transferencoding".len();
    let mut at = 0;
    while at < KNOWN.len() {
        let name = KNOWN[at].as_bytes();
        lengths[name[0] as usize & 31] |= 1 << name.len();
        at += 1;
    }
    lengths
}

impl Meaning {
    /// The meaning of the field with this name. Most names are none of these, which one look shows.
    #[inline(always)]
    pub(crate) fn of(name: &[u8]) -> Self {
        let first = name.first().map_or(0, |it| it | 32);
        let is_short_word = first.is_ascii_lowercase() && name.len() < 64;
        match is_short_word && LENGTHS[usize::from(first & 31)] >> name.len() & 1 == 0 {
            true => Self::Passes,
            false => Self::of_known(name),
        }
    }

    #[inline(never)]
    fn of_known(name: &[u8]) -> Self {
        let is = |other: &[u8]| is_same(name, other);
        match name.len() {
            2 if is(b"te") => Self::Trailer,
            4 if is(b"host") => Self::Host,
            5 if is(b"close") => Self::Close,
            6 if is(b"expect") => Self::Expect,
            7 if is(b"trailer") => Self::Trailer,
            7 if is(b"upgrade") => Self::Upgrade,
            9 if is(b"forwarded") || is(b"x-real-ip") => Self::Forwarded,
            10 if is(b"connection") => Self::Connection,
            10 if is(b"keep-alive") => Self::Hop,
            12 if is(b"max-forwards") => Self::MaxForwards,
            13 if is(b"authorization") => Self::Authorization,
            14 if is(b"content-length") => Self::ContentLength,
            14 if is(b"http2-settings") => Self::Http2Settings,
            15 if is(b"x-forwarded-for") => Self::Forwarded,
            16 if is(b"proxy-connection") => Self::Hop,
            16 if is(b"www-authenticate") => Self::Authenticate,
            16 if is(b"x-forwarded-host") => Self::Forwarded,
            17 if is(b"transfer-encoding") => Self::TransferEncoding,
            17 if is(b"x-forwarded-proto") => Self::Forwarded,
            18 if is(b"proxy-authenticate") => Self::Hop,
            19 if is(b"proxy-authorization") => Self::Hop,
            13.. if crate::octets::is_like_framing(name) => Self::LikeFraming,
            _ => Self::Passes,
        }
    }

    /// Whether a field of this meaning is passed on, if Connection does not name it.
    pub(crate) fn is_passed(self) -> bool {
        match self {
            Self::Passes
            | Self::Host
            | Self::Http2Settings
            | Self::Close
            | Self::Forwarded
            | Self::Authorization
            | Self::Authenticate
            | Self::MaxForwards
            | Self::LikeFraming => true,
            Self::Connection
            | Self::ContentLength
            | Self::TransferEncoding
            | Self::Upgrade
            | Self::Expect
            | Self::Trailer
            | Self::Hop => false,
        }
    }
}

/// The options that the Connection fields of a head list (RFC 9110, 7.6.1).
#[derive(Default)]
pub(crate) struct ConnectionOptions {
    options: SmallVec<[ByteSpan; 2]>,
    /// Whether `close` is one.
    pub(crate) closes: bool,
    /// Whether `keep-alive` is one.
    pub(crate) keeps: bool,
}

impl ConnectionOptions {
    /// Adds the value of a Connection field.
    pub(crate) fn add(&mut self, bytes: &[u8], value: &[u8]) {
        for one in value.split(|&byte| byte == b',') {
            let one = one.trim_ascii();
            if one.eq_ignore_ascii_case(b"keep-alive") {
                // Other bytes beside it are no reason to trust it.
                self.keeps |= value.is_ascii();
                continue;
            }
            self.closes |= one.eq_ignore_ascii_case(b"close");
            if !one.is_empty() {
                self.options.push(span(bytes, one));
            }
        }
    }

    /// Whether an option is listed.
    pub(crate) fn has(&self, bytes: &[u8], name: &[u8]) -> bool {
        let mut options = self.options.iter();
        options.any(|it| it.of(bytes).eq_ignore_ascii_case(name))
    }

    /// Leaves out the fields that are named. Host is none of those of one hop.
    pub(crate) fn leave_out(&self, bytes: &[u8], fields: &mut HeadFields) {
        if !self.options.is_empty() {
            fields.retain(|field| {
                let name = field.name.of(bytes);
                !self.has(bytes, name) || name.eq_ignore_ascii_case(b"host")
            });
        }
    }
}

/// Where this part is in the bytes of which it is a part.
pub(crate) fn span(bytes: &[u8], part: &[u8]) -> ByteSpan {
    match part {
        [] => ByteSpan::new(0, 0),
        part => ByteSpan::new(part.as_ptr().addr() - bytes.as_ptr().addr(), part.len()),
    }
}

/// Whether a name is this one in lower case, which has letters, digits and hyphens, and the same length. Of the bytes
/// of a token, one bit tells the cases of a letter apart, and is set in the others; so words are compared.
#[inline(always)]
fn is_same(name: &[u8], lower: &[u8]) -> bool {
    if name.len() != lower.len() {
        return false;
    }
    let Some((first, rest)) = lower.split_first_chunk::<8>() else {
        return name.iter().zip(lower).all(|(it, low)| it | 32 == *low);
    };
    let word = |at: usize| {
        let bytes = name.get(at..at + 8).and_then(|it| it.try_into().ok());
        u64::from_ne_bytes(bytes.unwrap_or_default()) | u64::from_ne_bytes([32; 8])
    };
    let mut at = lower.len() - 8;
    let mut is_same = word(0) == u64::from_ne_bytes(*first);
    // The words of the rest overlap, so that none is shorter.
    let mut left = rest.len();
    while left > 0 && is_same {
        let low = lower[at..].first_chunk::<8>().expect("it has eight");
        is_same = word(at) == u64::from_ne_bytes(*low);
        left = left.saturating_sub(8);
        at = at.saturating_sub(8);
    }
    is_same
}

/// Whether a field with this name concerns one hop (RFC 9110, 7.6.1), or is `Expect`, which a proxy answers.
#[must_use]
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    use Meaning::{Connection, Expect, Hop, Trailer, TransferEncoding, Upgrade};
    matches!(
        Meaning::of(name),
        Connection | Expect | Hop | Trailer | TransferEncoding | Upgrade
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_something_in_any_case_and_no_other_name_does() {
        let names = KNOWN.iter().copied();
        for name in names.chain(["content-length", "transfer-encoding"]) {
            let meaning = Meaning::of(name.as_bytes());
            assert_ne!(meaning, Meaning::Passes, "{name}");
            assert_eq!(Meaning::of(name.to_ascii_uppercase().as_bytes()), meaning);
            for at in 0..name.len() {
                for byte in (0..=u8::MAX).filter(|it| crate::octets::is_of_token(*it)) {
                    let mut other = name.as_bytes().to_vec();
                    other[at] = byte;
                    let is_same = other.eq_ignore_ascii_case(name.as_bytes());
                    let of = Meaning::of(&other);
                    if of == Meaning::LikeFraming {
                        assert!(crate::octets::is_like_framing(&other));
                    } else {
                        assert_eq!(of == meaning, is_same, "{name} {byte}");
                        assert!(is_same || of == Meaning::Passes, "{name} {byte}");
                    }
                }
            }
            let longer = format!("{name}s");
            assert_eq!(Meaning::of(longer.as_bytes()), Meaning::Passes, "{longer}");
        }
        for name in [
            "Content_Length",
            "transfer.-encoding",
            "content-lengt-------------------------------------------------------h",
        ] {
            assert_eq!(Meaning::of(name.as_bytes()), Meaning::LikeFraming);
        }
        assert_eq!(Meaning::of(b""), Meaning::Passes);
    }
}
