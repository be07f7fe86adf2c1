//! A client's side of TLS, as a config makes it.

use tidegate_runtime::tls::{self, TlsClient, TlsIdentity};

use crate::authority::{Authority, Issued};

/// Trusts this authority, shows this certificate, and speaks these protocols.
pub(super) fn tls(
    ca: &Authority,
    shows: Option<&Issued>,
    name: Option<&str>,
    protocols: &[&[u8]],
) -> TlsClient {
    let read = |path| std::fs::read(path).expect("a test wrote it");
    let shows = shows.map(|shows| (read(&shows.cert), read(&shows.key)));
    let own = shows.as_ref().map(|(cert, key)| {
        let certified = TlsIdentity { cert, key }.certified();
        certified.expect("they belong together")
    });
    let ca = tls::authorities(ca.pem().as_bytes()).expect("it is one");
    let mut config = tls::client_config(ca, own);
    config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
    let name = name.map(|name| name.to_owned().try_into().expect("a name"));
    TlsClient::new(config, name)
}
