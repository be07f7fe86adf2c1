//! Reads a certificate: its name, and how long it is valid.
//!
//! Nothing is checked here. TLS does that, and has done it before a client's certificate comes here.

use std::time::SystemTime;

use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode as _, Tag, Tagged as _};

/// RFC 4519, 2.3
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The common name in the subject of a certificate. `None` if there is no such name, if there are
/// several (it is unknown which is meant), or if it has an obsolete text type.
#[must_use]
pub fn common_name(der: &[u8]) -> Option<Box<str>> {
    let certificate = Certificate::from_der(der).ok()?;
    let names = certificate.tbs_certificate().subject().iter();
    let mut names = names.filter(|name| name.oid == COMMON_NAME);
    let (Some(name), None) = (names.next(), names.next()) else {
        return None;
    };
    let is_text = matches!(
        name.value.tag(),
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String
    );
    let text = str::from_utf8(name.value.value()).ok();
    text.filter(|_| is_text).map(Into::into)
}

/// The first and the last moment at which a certificate is valid. `None` if it cannot be read, or begins before 1970.
#[must_use]
pub fn validity(der: &[u8]) -> Option<(SystemTime, SystemTime)> {
    let certificate = Certificate::from_der(der).ok()?;
    let validity = certificate.tbs_certificate().validity();
    Some((
        validity.not_before.to_system_time(),
        validity.not_after.to_system_time(),
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair, date_time_ymd};

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
            assert_eq!(common_name(&der).as_deref(), found, "{names:?}");
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
        // Under a type of its own: rcgen keeps one of each.
        let again = DnType::CustomDnType(vec![2, 5, 4, 3]);
        let der = certificate(&[(DnType::CommonName, text("a")), (again, text("b"))]);
        assert_eq!(common_name(&der), None);
    }

    #[test]
    fn the_first_and_the_last_moment_are_those_of_the_certificate() {
        let check = |from: (i32, u8, u8), to: (i32, u8, u8), seconds: Option<(u64, u64)>| {
            let mut params = CertificateParams::default();
            params.not_before = date_time_ymd(from.0, from.1, from.2);
            params.not_after = date_time_ymd(to.0, to.1, to.2);
            let key = KeyPair::generate().expect("a key");
            let made = params.self_signed(&key).expect("a certificate");
            let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let expected = seconds.map(|(from, to)| (at(from), at(to)));
            assert_eq!(validity(made.der()), expected, "{from:?} {to:?}");
        };
        // Up to 2049 as UTCTime, from then on as GeneralizedTime (RFC 5280, 4.1.2.5).
        let year_2000 = 946_684_800;
        check(
            (2000, 1, 1),
            (2049, 12, 31),
            Some((year_2000, 2_524_521_600)),
        );
        check((2000, 1, 1), (2050, 1, 1), Some((year_2000, 2_524_608_000)));
        check((1960, 1, 1), (2050, 1, 1), None);
    }

    #[test]
    fn whatever_is_cut_or_bent_is_read_without_a_panic() {
        let der = certificate(&[(DnType::CommonName, text("nova"))]);
        for end in 0..der.len() {
            assert_eq!(common_name(&der[..end]), None);
            assert_eq!(validity(&der[..end]), None);
        }
        for at in 0..der.len() {
            for value in [0, 0x7f, 0x80, 0x81, 0x84, 0xff] {
                let mut bent = der.clone();
                bent[at] = value;
                let _ = (common_name(&bent), validity(&bent));
            }
        }
    }
}
