//! The identity of a request: from its connection, and from its headers.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::{AUTHORIZATION, USER_AGENT};
use tidegate_runtime::lock;

use super::super::ClientSettings;
use super::super::forwarded;
use super::super::trusted::TrustedProxies;
use crate::call::identity::{self, Field, IdentityFields, TEXT_BYTES_MAX, Unusable};
use crate::call::{ForwardedFields, Head, Headers, Identity, Listener, RepeatedField, UserFrom};

const ORIGINATOR: &str = "originator";

/// Base64 (RFC 4648, section 4) without its padding, which is removed first. Extra bits after the
/// last byte are ignored.
static BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// The identities of one connection. Requests with the same values share one.
pub(super) struct Identities {
    connection: Arc<Identity>,
    user_from: UserFrom,
    /// Set if the connection comes from a trusted proxy.
    proxies: Option<TrustedProxies>,
    forwarded: Option<Arc<ForwardedFields>>,
    last: Mutex<Last>,
}

/// The latest request.
struct Last {
    /// Set if it may come again.
    head: Option<Arc<Head>>,
    identity: Arc<Identity>,
}

impl Identities {
    pub(super) fn new(
        connection: Arc<Identity>,
        listener: &Listener,
        is_tls: bool,
        settings: &ClientSettings,
    ) -> Self {
        let trusted = &settings.trusted_proxies;
        let is_proxy = match connection.address {
            // The peer's own, or that of another proxy behind it.
            Some(address) => trusted.contains(address),
            None => trusted.trusts(connection.peer),
        };
        let actions = settings.forwarded.actions(settings.backend_kind, is_proxy);
        Self {
            forwarded: ForwardedFields::new(actions, connection.address, is_tls),
            last: Mutex::new(Last {
                head: None,
                identity: Arc::clone(&connection),
            }),
            connection,
            user_from: listener.user_from,
            proxies: is_proxy.then(|| trusted.clone()),
        }
    }

    /// The identity of the connection.
    pub(super) fn connection(&self) -> &Arc<Identity> {
        &self.connection
    }

    /// Fields that name the client to the service, for every request.
    pub(super) fn forwarded(&self) -> Option<Arc<ForwardedFields>> {
        self.forwarded.clone()
    }

    /// The identity of a request. The same head gives the same one.
    pub(super) fn of(&self, head: &Arc<Head>) -> Arc<Identity> {
        let mut last = lock(&self.last);
        let is_same = last.head.as_ref().is_some_and(|it| Arc::ptr_eq(it, head));
        if !is_same {
            self.look_up(&head.headers, &mut last.identity);
            // One that no other call has cannot come again.
            last.head = (Arc::strong_count(head) > 1).then(|| Arc::clone(head));
        }
        Arc::clone(&last.identity)
    }

    fn look_up(&self, headers: &Headers, last: &mut Arc<Identity>) {
        let mut unusable = self.connection.unusable;
        let mut name;
        let user = match self.user_from {
            UserFrom::Basic => {
                name = [0; TEXT_BYTES_MAX];
                usable(basic_user(headers, &mut name), Field::User, &mut unusable)
            }
            UserFrom::Peer | UserFrom::Certificate => {
                self.connection.user.as_deref().map(Cow::Borrowed)
            }
        };
        let user_agent = header_text(headers, USER_AGENT.as_str());
        let user_agent = usable(user_agent, Field::UserAgent, &mut unusable);
        let originator = header_text(headers, ORIGINATOR);
        let originator = usable(originator, Field::Originator, &mut unusable);
        let said = IdentityValues {
            address: self.address(headers, &mut unusable),
            user: user.as_deref(),
            user_agent,
            originator,
            unusable,
        };
        if !said.is(last) {
            *last = Arc::new(said.of(&self.connection));
        }
    }

    fn address(&self, headers: &Headers, unusable: &mut IdentityFields) -> Option<IpAddr> {
        let Some(proxies) = &self.proxies else {
            return self.connection.address;
        };
        let forwarded = forwarded::read(headers, proxies);
        if forwarded.malformed {
            unusable.add(Field::Address);
        }
        forwarded.address.or(self.connection.address)
    }
}

/// The values of one request.
struct IdentityValues<'a> {
    address: Option<IpAddr>,
    user: Option<&'a str>,
    user_agent: Option<&'a str>,
    originator: Option<&'a str>,
    unusable: IdentityFields,
}

impl IdentityValues<'_> {
    fn is(&self, identity: &Identity) -> bool {
        self.address == identity.address
            && self.user == identity.user.as_deref()
            && self.user_agent == identity.user_agent.as_deref()
            && self.originator == identity.originator.as_deref()
            && self.unusable == identity.unusable
    }

    fn of(&self, connection: &Identity) -> Identity {
        Identity {
            listener: Arc::clone(&connection.listener),
            peer: connection.peer,
            address: self.address,
            user: self.user.map(Arc::from),
            user_agent: self.user_agent.map(Arc::from),
            originator: self.originator.map(Arc::from),
            unusable: self.unusable,
        }
    }
}

fn usable<T>(
    said: Result<Option<T>, Unusable>,
    field: Field,
    unusable: &mut IdentityFields,
) -> Option<T> {
    said.unwrap_or_else(|Unusable| {
        unusable.add(field);
        None
    })
}

/// The only value of a header. Of two it is unknown which is meant.
fn only<'a>(headers: &'a Headers, name: &'a str) -> Result<Option<&'a [u8]>, Unusable> {
    headers.only(name).map_err(|RepeatedField| Unusable)
}

fn header_text<'a>(headers: &'a Headers, name: &'a str) -> Result<Option<&'a str>, Unusable> {
    match only(headers, name)? {
        Some(value) => identity::text(value),
        None => Ok(None),
    }
}

/// The user in `Authorization: Basic …` (RFC 7617), written into `name` if it fits. The password
/// after the colon is not kept. Any other scheme names no user.
fn basic_user<'a>(
    headers: &Headers,
    name: &'a mut [u8; TEXT_BYTES_MAX],
) -> Result<Option<Cow<'a, str>>, Unusable> {
    let Some(value) = only(headers, AUTHORIZATION.as_str())? else {
        return Ok(None);
    };
    let Some((scheme, credentials)) = value.split_at_checked("Basic ".len()) else {
        return Ok(None);
    };
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return Ok(None);
    }
    let credentials = credentials.trim_ascii();
    let credentials = credentials.strip_suffix(b"=").unwrap_or(credentials);
    let credentials = credentials.strip_suffix(b"=").unwrap_or(credentials);
    let mut length = 0;
    // The whole of a name that does not fit.
    let mut long = Vec::new();
    // Group by group, so nothing of the password is decoded beyond the group with the colon.
    for group in credentials.chunks(4) {
        let mut bytes = [0; 3];
        let decoded = BASE64.decode_slice(group, &mut bytes);
        for &byte in &bytes[..decoded.map_err(|_| Unusable)?] {
            if byte == b':' && long.is_empty() {
                return identity::user(&name[..length]);
            }
            if byte == b':' {
                let name = identity::user(&long)?;
                return Ok(name.map(|name| Cow::Owned(name.into_owned())));
            }
            if let Some(place) = name.get_mut(length) {
                *place = byte;
                length += 1;
            } else {
                if long.is_empty() {
                    long.extend_from_slice(name);
                }
                long.push(byte);
            }
        }
    }
    // Without a colon it is not Basic authentication.
    Err(Unusable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_basic_authentication_is_read_up_to_the_first_colon() {
        let check = |values: &[&str], user: Result<Option<&str>, Unusable>| {
            let mut headers = Headers::default();
            for value in values {
                headers.append(&AUTHORIZATION, &value.parse().expect("a value"));
            }
            let mut name = [0; TEXT_BYTES_MAX];
            let read = basic_user(&headers, &mut name);
            assert_eq!(read, user.map(|user| user.map(Cow::Borrowed)), "{values:?}");
        };
        check(&[], Ok(None));
        check(&["Basic bm92YTpzZWNyZXQ="], Ok(Some("nova")));
        check(&["basic bm92YTpzZWNyZXQ="], Ok(Some("nova")));
        check(&["Basic bm92YTpz"], Ok(Some("nova")));
        check(&["Basic bm92YTo="], Ok(Some("nova")));
        check(&["Basic bm92YTphOmI="], Ok(Some("nova")));
        check(&["Basic SsO8cmdlbjp4"], Ok(Some("Jürgen")));
        check(&["Basic OnNlY3JldA=="], Ok(None)); // no name
        check(&["Basic dWlkOjA6eA=="], Ok(Some("uid"))); // uid:0:x
        check(&["Bearer bm92YTpzZWNyZXQ="], Ok(None));
        check(&["Basic"], Ok(None));
        check(&["Basic "], Err(Unusable));
        check(&["Basic bm92YQ=="], Err(Unusable)); // no colon
        check(&["Basic b!92YTpzZWNyZXQ="], Err(Unusable));
        check(&["Basic bm92YTo"], Ok(Some("nova"))); // no padding
        check(&["Basic bm92YTp="], Ok(Some("nova"))); // bits left over
        check(&["Basic bm92YTpz=="], Ok(Some("nova"))); // padding where none is needed
        check(&["Basic bm92YTo==="], Err(Unusable));
        check(&["Basic bm=2YTpz"], Err(Unusable));
        check(&["Basic bm92YTpz_-=="], Ok(Some("nova"))); // what the password is, is not looked at
        check(&["Basic _-92YTpz"], Err(Unusable));
        check(&["Basic bm92YTpzZWNyZXQ=", "Basic bm92YTpz"], Err(Unusable));
        // 256 letters and a colon; one more is distinguished by a number.
        let longest = "YWFh".repeat(85);
        check(
            &[&format!("Basic {longest}YTp4")],
            Ok(Some(&"a".repeat(256))),
        );
        let longer = format!("{}~4b61b5b272d840dfc0ed4c08b6f17464", "a".repeat(223));
        check(&[&format!("Basic {longest}YWE6")], Ok(Some(&longer)));
    }
}
