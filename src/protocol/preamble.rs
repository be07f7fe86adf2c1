//! Reads the bytes before the first request where a listener asks for them: a PROXY header, then
//! TLS. A connection of any other listener never comes here.

use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::io::Client;
use super::proxy_header::{self, Header};
use super::stream::ClientStream;
use super::{ClientSettings, tls};
use crate::call::identity::{self, Field};
use crate::call::listener::ProxyProtocol;
use crate::call::{Identity, Listener, Rejection, UserFrom};

/// First byte of a handshake record of TLS; no HTTP request and no JSON begins with it.
const TLS_HANDSHAKE: u8 = 0x16;

/// Why no request will come; `None` if the client closed or stayed silent without a byte, which is
/// usually a health check.
pub(super) type PreambleEnd = Option<Rejection>;

const SILENT: PreambleEnd = None;

/// Reads the preamble; what it tells about the client goes into its identity.
pub(super) async fn read(
    mut client: Client,
    listener: &Listener,
    identity: &mut Identity,
    settings: &ClientSettings,
) -> Result<Client, PreambleEnd> {
    if listener.proxy_protocol == ProxyProtocol::Required {
        if !settings.trusted_proxies.trusts(identity.peer) {
            return Err(Rejection::UntrustedProxy.into());
        }
        let header = read_header(&mut client, settings.handshake_timeout).await?;
        if let Some(source) = header.source {
            identity.address = Some(source.ip().to_canonical());
        }
    }
    if let Some(certificate) = &listener.tls {
        let patience = match certificate.required {
            true => settings.handshake_timeout,
            false => settings.request_timeout,
        };
        let first = timeout(patience, client.peek_first()).await;
        let Ok(Ok(Some(first))) = first else {
            return Err(SILENT);
        };
        if first == TLS_HANDSHAKE {
            let Ok(ClientStream::Plain(wire)) = client.into_watched() else {
                return Err(SILENT);
            };
            let patience = settings.handshake_timeout;
            let session = tls::accept(wire, certificate, patience, identity).await?;
            if listener.user_from == UserFrom::Certificate {
                match tls::subject(&session) {
                    Ok(user) => identity.user = user,
                    Err(identity::Unusable) => identity.unusable.add(Field::User),
                }
            }
            client = Client::secured(ClientStream::secured(session));
        } else if certificate.required {
            return Err(Rejection::NotTls.into());
        }
    }
    Ok(client)
}

/// Reads a PROXY header, and not a byte of what follows it.
async fn read_header(client: &mut Client, patience: Duration) -> Result<Header, PreambleEnd> {
    let until = Instant::now() + patience;
    let mut bytes = Vec::new();
    loop {
        let before = bytes.len();
        let peeked = match timeout_at(until, client.peek_some(&mut bytes)).await {
            Ok(Ok(peeked @ 1..)) => peeked,
            Ok(Ok(0) | Err(_)) | Err(_) if before == 0 => return Err(SILENT),
            Ok(Ok(0) | Err(_)) => return Err(Rejection::ProxyHeader.into()),
            Err(_) => return Err(Rejection::HandshakeTimeout.into()),
        };
        let header = proxy_header::parse(&bytes);
        let belongs = match header {
            Ok(Some(header)) => header.length - before,
            // Its end is still to come, so all of this belongs to it.
            Ok(None) => peeked,
            Err(proxy_header::MalformedHeader) => return Err(Rejection::ProxyHeader.into()),
        };
        if client.discard(belongs).is_err() {
            return Err(Rejection::ProxyHeader.into());
        }
        if let Ok(Some(header)) = header {
            return Ok(header);
        }
    }
}
