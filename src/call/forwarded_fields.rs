//! The fields that name a client to the service: `X-Forwarded-For`, `-Proto` and `-Host`, `X-Real-IP`,
//! and `Forwarded` (RFC 7239).
//!
//! Many services believe these fields from any peer on loopback, and a sidecar is such a peer. So its
//! protocol stage decides for each connection what is done with them, and forwarding writes them behind the
//! other fields of a head. Only the address and the scheme are known before a request; the host is read
//! from its head.
//!
//! CGI and WSGI cannot tell `X-Forwarded-For` from `X_Forwarded_For`. So a name that differs from one of
//! the five only in its signs is left out with it, and its value is never kept.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_h1::write;

use super::Headers;

/// Longest address as text, which is one of IPv6.   bytes
const ADDRESS_BYTES_MAX: usize = 45;

/// A field of the five.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedField {
    /// `X-Forwarded-For`: the address of the client, and of each proxy behind it.
    XForwardedFor,
    /// `X-Real-IP`: the address of the client.
    XRealIp,
    /// `X-Forwarded-Proto`: `http` or `https`.
    XForwardedProto,
    /// `X-Forwarded-Host`: the host that the client asked.
    XForwardedHost,
    /// `Forwarded`: all of this, of the client and of each proxy behind it.
    Forwarded,
}

impl ForwardedField {
    /// All five, in the order in which they are written.
    pub const ALL: [Self; 5] = [
        Self::XForwardedFor,
        Self::XRealIp,
        Self::XForwardedProto,
        Self::XForwardedHost,
        Self::Forwarded,
    ];

    /// The name as it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::XForwardedFor => "X-Forwarded-For",
            Self::XRealIp => "X-Real-IP",
            Self::XForwardedProto => "X-Forwarded-Proto",
            Self::XForwardedHost => "X-Forwarded-Host",
            Self::Forwarded => "Forwarded",
        }
    }

    /// The field that a service may take this name for: in any case, and with any sign in place of a hyphen.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|field| is_like(name, field.name()))
    }

    /// Whether each proxy adds its own value to the field.
    const fn is_list(self) -> bool {
        matches!(self, Self::XForwardedFor | Self::Forwarded)
    }
}

/// Whether a name is this one in any case, and with any sign in place of a hyphen.
fn is_like(name: &[u8], known: &str) -> bool {
    let is_same = |(byte, known): (&u8, u8)| match known {
        b'-' => !byte.is_ascii_alphanumeric(),
        known => byte.eq_ignore_ascii_case(&known),
    };
    name.len() == known.len() && name.iter().zip(known.bytes()).all(is_same)
}

/// The treatment of one of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldAction {
    /// The client's value is left out, and ours is written.
    Set,
    /// The client's value is kept. Ours is added to a list, or written if there is no value.
    Append,
    /// The field is sent as it came.
    Pass,
    /// The field is left out.
    Remove,
}

/// The treatment of the fields in all requests of one connection.
#[derive(Debug, PartialEq, Eq)]
pub struct ForwardedFields {
    /// In the order of [`ForwardedField::ALL`].
    actions: [FieldAction; ForwardedField::ALL.len()],
    client: AddressText,
    is_tls: bool,
}

impl ForwardedFields {
    /// The actions for the requests of a client with this address, in the order of [`ForwardedField::ALL`]. `None` if
    /// all fields are sent as they come, which costs nothing.
    #[must_use]
    pub fn new(
        actions: [FieldAction; ForwardedField::ALL.len()],
        client: Option<IpAddr>,
        is_tls: bool,
    ) -> Option<Arc<Self>> {
        let changes = actions.iter().any(|action| *action != FieldAction::Pass);
        changes.then(|| {
            Arc::new(Self {
                actions,
                client: AddressText::new(client),
                is_tls,
            })
        })
    }

    /// Whether a client's field with this name is left out, because it is dropped or is written anew.
    #[must_use]
    pub fn replaces(&self, name: &[u8]) -> bool {
        ForwardedField::of(name).is_some_and(|field| self.action(field) != FieldAction::Pass)
    }

    /// Writes the lines that are added to a head with these fields, of those that are wanted.
    pub fn write(
        &self,
        head: &Headers,
        is_wanted: impl Fn(ForwardedField) -> bool,
        into: &mut Vec<u8>,
    ) {
        for field in ForwardedField::ALL {
            let keeps = match self.action(field) {
                FieldAction::Set => false,
                FieldAction::Append => true,
                FieldAction::Pass | FieldAction::Remove => continue,
            };
            if !is_wanted(field) {
                continue;
            }
            let begin = into.len();
            let name = field.name();
            if keeps && !field.is_list() {
                for value in values(head, field) {
                    write::field(name.as_bytes(), value, into);
                }
                if into.len() > begin {
                    continue;
                }
            }
            into.extend_from_slice(name.as_bytes());
            into.extend_from_slice(b": ");
            let value = into.len();
            if keeps {
                for client in values(head, field) {
                    into.extend_from_slice(client);
                    into.extend_from_slice(b", ");
                }
            }
            let own = into.len();
            self.write_own(field, head, into);
            match into.len() > own {
                true => {}
                // A list without an addition ends with its last value.
                false if own > value => into.truncate(own - ", ".len()),
                false => {
                    into.truncate(begin);
                    continue;
                }
            }
            into.extend_from_slice(b"\r\n");
        }
    }

    /// Writes the value of this connection, if there is one.
    fn write_own(&self, field: ForwardedField, head: &Headers, into: &mut Vec<u8>) {
        match field {
            ForwardedField::XForwardedFor | ForwardedField::XRealIp => {
                into.extend_from_slice(self.client.text());
            }
            ForwardedField::XForwardedProto => into.extend_from_slice(self.scheme()),
            ForwardedField::XForwardedHost => into.extend_from_slice(host(head)),
            ForwardedField::Forwarded => {
                let client = self.client.text();
                into.extend_from_slice(b"for=");
                if client.is_empty() {
                    into.extend_from_slice(b"unknown");
                } else if client.contains(&b':') {
                    into.extend_from_slice(b"\"[");
                    into.extend_from_slice(client);
                    into.extend_from_slice(b"]\"");
                } else {
                    into.extend_from_slice(client);
                }
                let host = host(head);
                if !host.is_empty() {
                    into.extend_from_slice(b";host=");
                    write_token_or_quoted(host, into);
                }
                into.extend_from_slice(b";proto=");
                into.extend_from_slice(self.scheme());
            }
        }
    }

    fn action(&self, field: ForwardedField) -> FieldAction {
        self.actions[field as usize]
    }

    fn scheme(&self) -> &'static [u8] {
        if self.is_tls { b"https" } else { b"http" }
    }
}

/// The client's values that can be kept.
fn values(head: &Headers, field: ForwardedField) -> impl Iterator<Item = &[u8]> {
    let values = head.get_all(field.name()).map(<[u8]>::trim_ascii);
    // A value that ends within quotes would hide what is added behind it.
    let is_lost = move |value: &[u8]| value.is_empty() || field.is_list() && is_open(value);
    values.filter(move |value| !is_lost(value))
}

/// Whether a value ends within a quoted text (RFC 9110, 5.6.4).
fn is_open(value: &[u8]) -> bool {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for byte in value {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ => {}
        }
    }
    is_quoted
}

/// The host that a head asks; empty if it names none.
fn host(head: &Headers) -> &[u8] {
    head.get_all("host").next().unwrap_or_default()
}

/// Writes a value in quotes unless it is a token (RFC 9110, 5.6.2).
fn write_token_or_quoted(value: &[u8], into: &mut Vec<u8>) {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    if value.iter().all(is_plain) {
        into.extend_from_slice(value);
        return;
    }
    into.push(b'"');
    for &byte in value {
        if byte == b'"' || byte == b'\\' {
            into.push(b'\\');
        }
        into.push(byte);
    }
    into.push(b'"');
}

/// The text of an address, or of none. It takes no memory of its own, because every connection has one.
#[derive(Debug, PartialEq, Eq)]
struct AddressText {
    text: [u8; ADDRESS_BYTES_MAX],
    length: u8,
}

impl AddressText {
    fn new(address: Option<IpAddr>) -> Self {
        let mut new = Self {
            text: [0; ADDRESS_BYTES_MAX],
            length: 0,
        };
        if let Some(address) = address {
            write!(new, "{address}").expect("an address is at most this long");
        }
        new
    }

    fn text(&self) -> &[u8] {
        &self.text[..usize::from(self.length)]
    }
}

impl std::fmt::Write for AddressText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let begin = usize::from(self.length);
        let end = begin + text.len();
        let place = self.text.get_mut(begin..end).ok_or(std::fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.length = u8::try_from(end).map_err(|_| std::fmt::Error)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
