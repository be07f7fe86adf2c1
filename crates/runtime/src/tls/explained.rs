//! Errors of TLS, explained for the person who must act on them.

use std::io;

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, InvalidMessage, OtherError};

/// Adds the cause and the cure to the text of an error of TLS. `has_identity`: whether we have a certificate to
/// show.
#[must_use]
pub fn explained(error: io::Error, has_identity: bool) -> io::Error {
    let kind = error.kind();
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref());
    let text = match of_tls {
        Some(Error::InvalidCertificate(wrong)) => of_certificate(wrong),
        Some(Error::AlertReceived(alert)) => of_alert(*alert, has_identity),
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "its answer is no TLS: use a port that speaks TLS, or connect without it".to_owned()
        }
        Some(other) => format!("no TLS: {other}"),
        None if kind == io::ErrorKind::UnexpectedEof => {
            "the connection ended within TLS: the port may not speak TLS, or the server may \
             reject our certificate"
                .to_owned()
        }
        None => return error,
    };
    io::Error::new(kind, text)
}

/// Adds the cause and the cure to the text of a server's error, whose client is meant.
#[must_use]
pub fn explained_to_server(error: io::Error) -> io::Error {
    let kind = error.kind();
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref());
    let text = match of_tls {
        Some(Error::NoCertificatesPresented) => {
            "the client shows no certificate: give it one, with its key".to_owned()
        }
        Some(Error::InvalidCertificate(wrong)) => match wrong {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "the client's certificate is signed by no authority in client_ca".to_owned()
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the client's certificate has expired: renew it".to_owned()
            }
            CertificateError::Other(reason) if is_of_version_1(reason) => {
                "the client's certificate is of X.509 version 1, which is not taken: issue one of version 3, such as \
                 with `openssl req -x509` or `openssl x509 -req -extfile`"
                    .to_owned()
            }
            other if is_of_kind(other) => format!("the client's certificate {UNSUPPORTED}"),
            other => format!("the client's certificate is not good: {other}"),
        },
        Some(Error::AlertReceived(AlertDescription::UnknownCA)) => {
            "the client trusts no authority that signed our certificate: give it that authority"
                .to_owned()
        }
        Some(Error::AlertReceived(AlertDescription::CertificateExpired)) => {
            "our certificate has expired: renew the file in cert".to_owned()
        }
        Some(Error::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError,
        )) => "the client rejects our certificate: its log has the reason".to_owned(),
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "the client speaks no TLS: let it connect with TLS".to_owned()
        }
        Some(other) => format!("no TLS: {other}"),
        None => return error,
    };
    io::Error::new(kind, text)
}

fn of_certificate(wrong: &CertificateError) -> String {
    use CertificateError as E;
    match wrong {
        E::UnknownIssuer | E::BadSignature => {
            "its certificate is signed by no authority in ca: put the authority that signed it \
             there"
                .to_owned()
        }
        E::Expired | E::ExpiredContext { .. } => {
            "its certificate has expired: renew it, or correct the clock of this machine".to_owned()
        }
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "its certificate is not valid yet: correct the clock of this machine, or of the one \
             that issued it"
                .to_owned()
        }
        E::NotValidForNameContext {
            expected,
            presented,
        } => {
            let names: Vec<String> = presented.iter().map(|name| plain(name)).collect();
            let names = match names.is_empty() {
                true => "no name at all (a common name does not count)".to_owned(),
                false => names.join(", "),
            };
            format!(
                "its certificate is for {names}, not for {}: connect to a name in it, or set \
                 server_name",
                expected.to_str()
            )
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "its certificate is not for servers: issue one with the extended key usage serverAuth"
                .to_owned()
        }
        E::Other(reason) if is_of_version_1(reason) => {
            "its certificate is of X.509 version 1, which is not taken: issue one of version 3, \
             such as with `openssl x509 -req -extfile`"
                .to_owned()
        }
        E::Other(reason) if reason.0.to_string() == "CaUsedAsEndEntity" => {
            "it shows the certificate of an authority: issue one for the server itself".to_owned()
        }
        other if is_of_kind(other) => format!("its certificate {UNSUPPORTED}"),
        other => format!("its certificate is not good: {other}"),
    }
}

const UNSUPPORTED: &str = "is signed with a key of a kind that is not supported, such as ECDSA on curve P-521, \
                           Ed448 or RSA-PSS: let an authority sign it whose key is ECDSA on P-256 or P-384, RSA, or \
                           Ed25519";

/// Whether a signature is of a kind that cannot be checked here.
fn is_of_kind(wrong: &CertificateError) -> bool {
    use CertificateError as E;
    matches!(
        wrong,
        E::UnsupportedSignatureAlgorithmContext { .. }
            | E::UnsupportedSignatureAlgorithmForPublicKeyContext { .. }
    )
}

/// The library gives this reason as a text. Such certificates are common: `openssl x509 -req` makes them without
/// `-extfile`.
fn is_of_version_1(reason: &OtherError) -> bool {
    reason.0.to_string() == "UnsupportedCertVersion"
}

/// `DnsName("a")` and the like, as the library lists them.
fn plain(name: &str) -> String {
    match name.split_once('(') {
        Some((_, rest)) => rest.trim_end_matches(')').trim_matches('"').to_owned(),
        None => name.to_owned(),
    }
}

fn of_alert(alert: AlertDescription, has_identity: bool) -> String {
    use AlertDescription as A;
    let cause = match alert {
        A::CertificateRequired | A::BadCertificate | A::HandshakeFailure if !has_identity => {
            return "it asks for a client certificate: set cert and key".to_owned();
        }
        A::UnknownCA => {
            "it trusts no authority that signed our certificate: give one in cert that its own \
             authority signed"
        }
        A::CertificateExpired => "our certificate has expired: renew the file in cert",
        A::CertificateRevoked => "our certificate was revoked: give another one in cert",
        A::BadCertificate | A::UnsupportedCertificate | A::CertificateUnknown | A::DecryptError => {
            "it rejects our certificate: give one in cert that is for clients, valid, and signed \
             by an authority that it trusts"
        }
        A::AccessDenied => "our certificate has no access there: its log has the reason",
        A::ProtocolVersion => "it speaks no TLS 1.2 or 1.3: allow one of them there",
        A::HandshakeFailure => "no common cipher, or it rejects our certificate: its log has more",
        A::UnrecognisedName => "it does not know the name that we asked for: set server_name",
        A::NoApplicationProtocol => "it speaks another protocol on this port",
        other => return format!("it ended TLS with the alert {}", alert_number(other)),
    };
    cause.to_owned()
}

/// RFC 8446, 6: alerts are known by number.
fn alert_number(alert: AlertDescription) -> u8 {
    u8::from(alert)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_tls_names_its_cure_and_another_stays() {
        let check = |error: Error, has_identity: bool, words: &str| {
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            let text = explained(error, has_identity).to_string();
            assert!(text.contains(words), "{text}");
        };
        let unknown = || Error::InvalidCertificate(CertificateError::UnknownIssuer);
        check(unknown(), false, "in ca");
        let alert = |it| Error::AlertReceived(it);
        check(alert(AlertDescription::BadCertificate), false, "set cert");
        check(alert(AlertDescription::BadCertificate), true, "rejects our");
        check(alert(AlertDescription::InternalError), true, "alert 80");
        let name = CertificateError::NotValidForNameContext {
            expected: "a.example".try_into().expect("a name"),
            presented: vec!["DnsName(\"b.example\")".to_owned()],
        };
        let name = Error::InvalidCertificate(name);
        check(name, false, "is for b.example, not for a.example");
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        let text = broken.to_string();
        assert_eq!(explained(broken, true).to_string(), text);
    }
}
