//! The user's name in a client's certificate.
//!
//! TLS has checked the certificate before; all that is read here is the common name in its
//! subject (RFC 5280, 4.1: the fields of `TBSCertificate` in their order).

/// DER's tags of what is passed on the way.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const OBJECT_IDENTIFIER: u8 = 0x06;
const VERSION: u8 = 0xa0;
/// The kinds of text that are UTF-8, or part of it: UTF8String, PrintableString, IA5String.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The common name in the subject of a certificate. `None` if there is no such name, if there are
/// several (it is unknown which is meant), or if it has an obsolete text type.
#[must_use]
pub fn common_name(der: &[u8]) -> Option<&[u8]> {
    let mut outer = Der(der);
    let mut certificate = Der(outer.expect(SEQUENCE)?);
    let mut fields = Der(certificate.expect(SEQUENCE)?);
    if fields.0.first() == Some(&VERSION) {
        fields.expect(VERSION)?;
    }
    fields.expect(INTEGER)?;
    for _signature_issuer_validity in 0..3 {
        fields.expect(SEQUENCE)?;
    }
    let mut names = Der(fields.expect(SEQUENCE)?);
    let mut found = None;
    while !names.0.is_empty() {
        let mut same_level = Der(names.expect(SET)?);
        while !same_level.0.is_empty() {
            let mut pair = Der(same_level.expect(SEQUENCE)?);
            if pair.expect(OBJECT_IDENTIFIER)? != COMMON_NAME {
                continue;
            }
            let (kind, text) = pair.next()?;
            if found.is_some() || !TEXTS.contains(&kind) {
                return None;
            }
            found = Some(text);
        }
    }
    found
}

/// Values in DER, one after another.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The tag and the content of the next value.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let length = if first < 0x80 {
            usize::from(first)
        } else {
            // The length of the length, then the length. No certificate takes 16 MiB.
            let digits = usize::from(first & 0x7f);
            if !(1..=3).contains(&digits) {
                return None;
            }
            let (length, after) = rest.split_at_checked(digits)?;
            rest = after;
            length
                .iter()
                .fold(0, |sum, &byte| sum << 8 | usize::from(byte))
        };
        let (content, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((tag, content))
    }

    /// The content of the next value, if it has this tag.
    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next()
            .filter(|(found, _)| *found == tag)
            .map(|(_, content)| content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    fn certificate(names: &[(DnType, DnValue)]) -> Vec<u8> {
        let mut subject = DistinguishedName::new();
        for (kind, value) in names {
            subject.push(kind.clone(), value.clone());
        }
        let mut params = CertificateParams::new(["a.example".to_owned()]).expect("a name");
        params.distinguished_name = subject;
        let key = KeyPair::generate().expect("a key");
        params
            .self_signed(&key)
            .expect("a certificate")
            .der()
            .to_vec()
    }

    fn text(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    #[test]
    fn the_common_name_is_found_among_others() {
        let check = |names: &[(DnType, DnValue)], found: Option<&str>| {
            let der = certificate(names);
            assert_eq!(common_name(&der), found.map(str::as_bytes), "{names:?}");
        };
        let organization = (DnType::OrganizationName, text("Example"));
        check(&[(DnType::CommonName, text("nova"))], Some("nova"));
        check(
            &[organization.clone(), (DnType::CommonName, text("Jürgen"))],
            Some("Jürgen"),
        );
        let long = "x".repeat(300);
        check(
            &[(DnType::CommonName, text(&long)), organization.clone()],
            Some(&long),
        );
        let printable = DnValue::PrintableString("nova".try_into().expect("it is printable"));
        check(&[(DnType::CommonName, printable)], Some("nova"));
        let wide = DnValue::BmpString("nova".try_into().expect("it fits"));
        check(&[(DnType::CommonName, wide)], None);
        check(&[organization], None);
        check(&[], None);
    }

    #[test]
    fn two_common_names_are_none() {
        // The same subject with its one name doubled, by hand: rcgen keeps one of each kind.
        let one = [
            &[SEQUENCE, 8, OBJECT_IDENTIFIER, 3],
            COMMON_NAME,
            &[0x0c, 1, b'a'],
        ]
        .concat();
        let names = [&[SET, 10], &*one].concat();
        let subject = [&[SEQUENCE, 24], &*names, &*names].concat();
        let short = [INTEGER, 1, 1, SEQUENCE, 0, SEQUENCE, 0, SEQUENCE, 0];
        let check = |subject: &[u8], found: Option<&[u8]>| {
            let length = u8::try_from(short.len() + subject.len()).expect("short");
            let der = [
                &[SEQUENCE, length + 2, SEQUENCE, length],
                &short[..],
                subject,
            ]
            .concat();
            assert_eq!(common_name(&der), found);
        };
        check(&[&[SEQUENCE, 12], &*names].concat(), Some(b"a"));
        check(&subject, None);
    }

    #[test]
    fn whatever_is_cut_or_bent_is_read_without_a_panic() {
        let der = certificate(&[(DnType::CommonName, text("nova"))]);
        for end in 0..der.len() {
            assert_eq!(common_name(&der[..end]), None);
        }
        for at in 0..der.len() {
            for value in [0, 0x7f, 0x80, 0x81, 0x84, 0xff] {
                let mut bent = der.clone();
                bent[at] = value;
                let _ = common_name(&bent);
            }
        }
    }
}
