//! Just enough of DER (X.690) to take certificates and keys apart. Every read is bounded by its
//! input, and what cannot be read is `None`.

/// Tag of INTEGER.
pub(super) const INTEGER: u8 = 0x02;
/// Tag of BIT STRING.
pub(super) const BIT_STRING: u8 = 0x03;
/// Tag of OCTET STRING.
pub(super) const OCTET_STRING: u8 = 0x04;
/// Tag of OBJECT IDENTIFIER.
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
/// Tag of SEQUENCE.
pub(super) const SEQUENCE: u8 = 0x30;
/// Tag of the field with the number 0, which is of another type or optional.
pub(super) const FIELD_0: u8 = 0xa0;

/// One value.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// With tag and length.
    pub(super) whole: &'a [u8],
}

/// Values that follow one another.
#[derive(Clone, Copy)]
pub(super) struct Elements<'a>(pub(super) &'a [u8]);

impl<'a> Elements<'a> {
    /// The next value.
    pub(super) fn next(&mut self) -> Option<Element<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let length = match first {
            0..=0x7f => usize::from(first),
            0x81..=0x84 => {
                let (bytes, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
                rest = after;
                bytes
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | usize::from(*byte))
            }
            // Without a length, or longer than any file that is read.
            _ => return None,
        };
        let (content, after) = rest.split_at_checked(length)?;
        let whole = &self.0[..self.0.len() - after.len()];
        self.0 = after;
        Some(Element {
            tag,
            content,
            whole,
        })
    }

    /// The next value, if it has this tag.
    pub(super) fn take(&mut self, tag: u8) -> Option<Element<'a>> {
        let mut rest = *self;
        let element = rest.next().filter(|it| it.tag == tag)?;
        *self = rest;
        Some(element)
    }

    /// The values inside of the next one, if it has this tag.
    pub(super) fn enter(&mut self, tag: u8) -> Option<Elements<'a>> {
        self.take(tag).map(|it| Elements(it.content))
    }
}

/// The bits of a positive INTEGER.
pub(super) fn bits(integer: &[u8]) -> usize {
    let from = integer.iter().position(|byte| *byte != 0);
    from.map_or(0, |from| {
        let first = integer[from].leading_zeros() as usize;
        (integer.len() - from) * 8 - first
    })
}

/// The bytes of a BIT STRING of whole bytes.
pub(super) fn of_bit_string(content: &[u8]) -> Option<&[u8]> {
    let (unused, bytes) = content.split_first()?;
    (*unused == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_ends_where_its_length_says_and_never_beyond_the_input() {
        let mut all = Elements(&[0x02, 0x01, 0x05, 0x30, 0x81, 0x02, 0x05, 0x00, 0xff]);
        assert_eq!(all.take(INTEGER).map(|it| it.content), Some(&[5][..]));
        assert!(all.take(INTEGER).is_none());
        let inside = all.take(SEQUENCE).expect("it is one");
        assert_eq!(inside.content, [5, 0]);
        assert_eq!(inside.whole.len(), 5);
        assert!(all.next().is_none());
        for cut in [
            &[][..],
            &[2],
            &[2, 2, 1],
            &[2, 0x80],
            &[2, 0x85],
            &[2, 0x84, 0xff, 0xff],
        ] {
            assert!(Elements(cut).next().is_none(), "{cut:?}");
        }
    }

    #[test]
    fn the_size_of_a_number_counts_no_leading_zeros() {
        assert_eq!(bits(&[]), 0);
        assert_eq!(bits(&[0, 0]), 0);
        assert_eq!(bits(&[0, 0x80, 0]), 16);
        assert_eq!(bits(&[1, 0]), 9);
    }
}
