//! The TLS handshake with a backend, and why it fails.
//!
//! A handshake sends no byte of a call. Some failures stay until an operator acts, such as a
//! certificate of an unknown authority. Their calls are refused with the cause, because to wait
//! would hide it. After the others, such as a connection that closes, the call waits again, as after
//! any connect that failed.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error as Rustls, InvalidMessage,
};

use super::tls_failure::TlsFailure;
use crate::call::link::TlsLink;
use crate::call::{Link, TlsCause as Cause};

/// TLS to one backend.
#[derive(Clone)]
pub struct BackendTls {
    /// Checks of the backend's certificate, and our own certificate.
    pub(crate) config: Arc<ClientConfig>,
    /// The name that the backend's certificate must be for.
    pub(crate) name: ServerName<'static>,
    /// Fingerprint of the options and of the content of their files.
    pub(crate) made_from: u128,
}

impl fmt::Debug for BackendTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Equal if a connection that was opened with the one is as good as one of the other.
impl PartialEq for BackendTls {
    fn eq(&self, other: &Self) -> bool {
        self.made_from == other.made_from && self.name == other.name
    }
}

impl Eq for BackendTls {}

impl BackendTls {
    /// The handshake, within a bound.
    pub(super) async fn shake_hands(
        &self,
        tcp: TcpStream,
        bound: Duration,
    ) -> Result<Link, TlsFailure> {
        // Each flight of the handshake is answered, so none should wait for the ACK of the last.
        // A socket that cannot be told so is only slower.
        let _ = tcp.set_nodelay(true);
        let connector = TlsConnector::from(Arc::clone(&self.config));
        match timeout(bound, connector.connect(self.name.clone(), tcp)).await {
            Ok(Ok(tls)) => Ok(Link::Tls(Box::new(TlsLink::new(tls)))),
            Ok(Err(error)) => Err(explain(&error)),
            Err(_) => Err(timed_out(bound)),
        }
    }
}

/// Why the backend has refused the connection, if that is known from what a read or an engine
/// reported. With TLS 1.3 a backend judges the client's certificate only after the client may send.
/// It then passes nothing of the request on.
pub(super) fn refused_after_the_handshake(error: &(dyn Error + 'static)) -> Option<TlsFailure> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(Rustls::AlertReceived(alert)) = of_rustls(error) {
            let failure = alerted(*alert);
            return (failure.cause == Cause::ClientCertificate).then_some(failure);
        }
        cause = error.source();
    }
    None
}

/// `io::Error` does not give what it holds as its source, but the source of that.
fn of_rustls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Rustls> {
    let io = error.downcast_ref::<io::Error>();
    let held = io.and_then(io::Error::get_ref);
    let held = held.and_then(|held| held.downcast_ref());
    held.or_else(|| error.downcast_ref())
}

fn explain(error: &io::Error) -> TlsFailure {
    let new = |cause, said: &str, cure| TlsFailure::new(cause, said.to_owned(), cure);
    match of_rustls(error) {
        Some(Rustls::InvalidCertificate(wrong)) => of_certificate(wrong),
        Some(Rustls::AlertReceived(alert)) => alerted(*alert),
        Some(
            Rustls::InvalidMessage(
                InvalidMessage::InvalidContentType
                | InvalidMessage::UnknownProtocolVersion
                | InvalidMessage::MessageTooLarge
                | InvalidMessage::InvalidEmptyPayload,
            )
            | Rustls::InappropriateMessage { .. },
        ) => new(
            Cause::NotTls,
            "it does not speak TLS",
            "give its port for TLS, or its address without TLS (http:// or host:port)",
        ),
        Some(Rustls::PeerIncompatible(_) | Rustls::NoApplicationProtocol) => nothing_in_common(),
        Some(error) => new(
            Cause::Other,
            &format!("the TLS handshake failed: {}", ascii(&error.to_string())),
            "read the log of the backend",
        ),
        None if error.kind() == io::ErrorKind::UnexpectedEof => new(
            Cause::Closed,
            "it closed the connection in the TLS handshake",
            "read the log of the backend, and check that this port is for TLS",
        ),
        None => new(
            Cause::Closed,
            &format!("the connection broke in the TLS handshake: {error}"),
            "read the log of the backend, and check that this port is for TLS",
        ),
    }
}

fn timed_out(bound: Duration) -> TlsFailure {
    let bound = bound.as_secs_f64();
    TlsFailure::new(
        Cause::TimedOut,
        format!("the TLS handshake took longer than {bound} s"),
        "check that this port is for TLS, or raise backend.connect_timeout",
    )
}

fn nothing_in_common() -> TlsFailure {
    TlsFailure::new(
        Cause::NothingInCommon,
        "it has no version of TLS, no cipher suite or no protocol in common with this sidecar",
        "let it accept TLS 1.2 or 1.3 with an ECDHE suite, and HTTP/1.1 if it speaks HTTP",
    )
}

/// Explains the alert that the backend sent before it closed.
fn alerted(alert: AlertDescription) -> TlsFailure {
    use AlertDescription as Alert;
    let said = match alert {
        Alert::CertificateRequired => "it requires a client certificate",
        Alert::UnknownCA | Alert::BadCertificate | Alert::CertificateUnknown => {
            "it does not accept the client certificate: another authority signed it"
        }
        Alert::CertificateExpired => "it does not accept the client certificate: that has expired",
        Alert::CertificateRevoked => "it does not accept the client certificate: that is revoked",
        Alert::UnsupportedCertificate => "it does not accept this kind of client certificate",
        Alert::AccessDenied => "it denies access to the client certificate",
        Alert::DecryptError => "it does not accept the signature of the client certificate's key",
        // OpenSSL reports a missing client certificate in this way with TLS 1.2.
        Alert::HandshakeFailure => {
            "it accepts no handshake with this sidecar: it has no cipher suite in common, or \
             requires a client certificate"
        }
        Alert::ProtocolVersion | Alert::InsufficientSecurity | Alert::NoApplicationProtocol => {
            return nothing_in_common();
        }
        Alert::UnrecognisedName => {
            return TlsFailure::new(
                Cause::WrongName,
                "it does not know the server name that this sidecar asks for",
                "give a name that it serves as backend.tls.server_name",
            );
        }
        other => {
            return TlsFailure::new(
                Cause::Other,
                format!("it ended the TLS handshake with the alert {}", shown(other)),
                "read the log of the backend",
            );
        }
    };
    TlsFailure::new(
        Cause::ClientCertificate,
        said,
        "give a certificate that an authority of the backend signed, and its key, as cert and key \
         in [backend.tls]",
    )
}

fn shown(alert: AlertDescription) -> Cow<'static, str> {
    let name = alert.as_str().map(Cow::from);
    name.unwrap_or_else(|| format!("number {}", u8::from(alert)).into())
}

fn of_certificate(wrong: &CertificateError) -> TlsFailure {
    let new = TlsFailure::new;
    match wrong {
        CertificateError::UnknownIssuer => untrusted("no known authority signed its certificate"),
        // An authority that was made again, or two without a name.
        CertificateError::BadSignature => untrusted(
            "no known authority signed its certificate: one has the same name and another key",
        ),
        CertificateError::NotValidForName => {
            wrong_name("its certificate is for another name".into())
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let expected = ascii(&expected.to_str()).into_owned();
            let names: Vec<_> = presented.iter().map(|name| plain(name)).collect();
            wrong_name(match names.is_empty() {
                true => format!("its certificate has no name, so it is not for {expected}"),
                false => format!(
                    "its certificate is for {}, not for {expected}",
                    list(&names)
                ),
            })
        }
        CertificateError::Expired => expired("its certificate has expired".into()),
        CertificateError::ExpiredContext { not_after, .. } => {
            expired(format!("its certificate expired on {}", date(*not_after)))
        }
        CertificateError::NotValidYet => not_valid_yet("its certificate is not valid yet".into()),
        CertificateError::NotValidYetContext { not_before, .. } => {
            let said = format!("its certificate is valid only from {}", date(*not_before));
            not_valid_yet(said)
        }
        CertificateError::Other(reason) => match &*reason.0.to_string() {
            "CaUsedAsEndEntity" => new(
                Cause::BadCertificate,
                "its certificate is that of an authority (CA:TRUE), which is none for a server",
                "issue one with basicConstraints = CA:FALSE, signed by an authority that ca in \
                 [backend.tls] names",
            ),
            "UnsupportedCertVersion" => new(
                Cause::BadCertificate,
                "its certificate is of X.509 version 1, which is not taken",
                "issue one of version 3, such as with `openssl x509 -req -extfile`",
            ),
            reason => bad(reason),
        },
        other => bad(&other.to_string()),
    }
}

fn untrusted(said: &'static str) -> TlsFailure {
    TlsFailure::new(
        Cause::Untrusted,
        said,
        "give the certificate of the authority that did as ca in [backend.tls], and let the backend \
         send its whole chain",
    )
}

fn wrong_name(said: String) -> TlsFailure {
    TlsFailure::new(
        Cause::WrongName,
        said,
        "give a name that the certificate has as server_name in [backend.tls], or issue the \
         certificate for the backend's address",
    )
}

fn expired(said: String) -> TlsFailure {
    let cure = "renew the backend's certificate, or correct the clock of this machine";
    TlsFailure::new(Cause::Expired, said, cure)
}

fn not_valid_yet(said: String) -> TlsFailure {
    let cure = "correct the clock of this machine or of the authority";
    TlsFailure::new(Cause::NotValidYet, said, cure)
}

fn bad(reason: &str) -> TlsFailure {
    TlsFailure::new(
        Cause::BadCertificate,
        format!("its certificate is not taken: {}", ascii(reason)),
        "issue the backend's certificate again",
    )
}

/// A name as the library reports it, such as `DnsName("a.example")`, without that frame.
fn plain(name: &str) -> String {
    let inside = name
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    ascii(inside.unwrap_or(name).trim_matches('"')).into_owned()
}

/// The first few of a certificate's names.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 4;
    let shown = names[..names.len().min(SHOWN)].join(", ");
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

fn date(at: UnixTime) -> String {
    let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(at.as_secs()));
    at.map_or_else(|| "an unknown day".to_owned(), httpdate::fmt_http_date)
}

/// Text of the peer, as a refusal may hold it.
fn ascii(text: &str) -> Cow<'_, str> {
    match text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        true => text.into(),
        false => {
            let visible = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
            text.chars().map(visible).collect::<String>().into()
        }
    }
}
