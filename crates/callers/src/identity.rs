//! The visible identity of a call's client.
//!
//! Values that were seen are always exact: a client that calls itself `foo*` is the client
//! `foo*`, and no pattern. Only a [`Pattern`](crate::Pattern) has patterns.

use alloc::boxed::Box;
use core::fmt;
use core::net::IpAddr;

/// A field that distinguishes callers. The order is that of their weight: of two equally specific
/// patterns, the one that is more specific in the earlier field wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// Who is logged in: from Basic, a client certificate, or the peer of a Unix socket.
    User,
    /// The `Originator` header: the program on whose behalf the client asks.
    Originator,
    /// The client's address.
    Ip,
    /// The `User-Agent` header.
    UserAgent,
    /// The name of the listener where the call came in.
    Listener,
}

impl Field {
    /// All of them, the weightiest first.
    pub const ALL: [Self; 5] = [
        Self::User,
        Self::Originator,
        Self::Ip,
        Self::UserAgent,
        Self::Listener,
    ];

    /// Its name in the config and the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Originator => "originator",
            Self::Ip => "ip",
            Self::UserAgent => "user_agent",
            Self::Listener => "listener",
        }
    }

    /// The field of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.name() == name)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Some of the fields.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FieldSet(u8);

impl FieldSet {
    /// Whether `field` is among them.
    #[must_use]
    pub const fn contains(self, field: Field) -> bool {
        self.0 & field.bit() != 0
    }

    /// Whether all of `other` are among them.
    #[must_use]
    pub const fn includes(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those in both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// These fields, the weightiest first.
    pub fn iter(self) -> impl Iterator<Item = Field> {
        Field::ALL
            .into_iter()
            .filter(move |field| self.contains(*field))
    }
}

impl FromIterator<Field> for FieldSet {
    fn from_iter<I: IntoIterator<Item = Field>>(fields: I) -> Self {
        Self(fields.into_iter().fold(0, |bits, field| bits | field.bit()))
    }
}

impl fmt::Debug for FieldSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// What the wire shows of a call's client. Any field may be absent, and an empty one is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity<'a> {
    user: Option<&'a str>,
    originator: Option<&'a str>,
    ip: Option<IpAddr>,
    user_agent: Option<&'a str>,
    listener: Option<&'a str>,
}

impl<'a> Identity<'a> {
    /// The same with this user.
    #[must_use]
    pub fn with_user(self, user: &'a str) -> Self {
        let user = present(user);
        Self { user, ..self }
    }

    /// The same with this originator.
    #[must_use]
    pub fn with_originator(self, originator: &'a str) -> Self {
        let originator = present(originator);
        Self { originator, ..self }
    }

    /// The same with this address. An IPv4 address in IPv6 dress is taken as the IPv4 address.
    #[must_use]
    pub const fn with_ip(self, ip: IpAddr) -> Self {
        let ip = Some(ip.to_canonical());
        Self { ip, ..self }
    }

    /// The same with this user agent.
    #[must_use]
    pub fn with_user_agent(self, user_agent: &'a str) -> Self {
        let user_agent = present(user_agent);
        Self { user_agent, ..self }
    }

    /// The same with this listener.
    #[must_use]
    pub fn with_listener(self, listener: &'a str) -> Self {
        let listener = present(listener);
        Self { listener, ..self }
    }

    /// The client's address.
    #[must_use]
    pub const fn ip(&self) -> Option<IpAddr> {
        self.ip
    }

    /// The text of a field; the address has none, see [`Self::ip`].
    #[must_use]
    pub const fn text(&self, field: Field) -> Option<&'a str> {
        match field {
            Field::User => self.user,
            Field::Originator => self.originator,
            Field::Ip => None,
            Field::UserAgent => self.user_agent,
            Field::Listener => self.listener,
        }
    }

    /// The fields that are not absent.
    #[must_use]
    pub fn fields(&self) -> FieldSet {
        let is_present = |field| match field {
            Field::Ip => self.ip.is_some(),
            text => self.text(text).is_some(),
        };
        Field::ALL.into_iter().filter(|f| is_present(*f)).collect()
    }
}

fn present(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// An [`Identity`] that owns its text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IdentityBuf {
    user: Option<Box<str>>,
    originator: Option<Box<str>>,
    ip: Option<IpAddr>,
    user_agent: Option<Box<str>>,
    listener: Option<Box<str>>,
}

impl IdentityBuf {
    /// The same, borrowed.
    #[must_use]
    pub fn as_identity(&self) -> Identity<'_> {
        Identity {
            user: self.user.as_deref(),
            originator: self.originator.as_deref(),
            ip: self.ip,
            user_agent: self.user_agent.as_deref(),
            listener: self.listener.as_deref(),
        }
    }
}

impl From<Identity<'_>> for IdentityBuf {
    fn from(identity: Identity<'_>) -> Self {
        Self {
            user: identity.user.map(Box::from),
            originator: identity.originator.map(Box::from),
            ip: identity.ip,
            user_agent: identity.user_agent.map(Box::from),
            listener: identity.listener.map(Box::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_text_is_absent() {
        let identity = Identity::default().with_user("").with_user_agent("curl");
        assert_eq!(identity.text(Field::User), None);
        assert_eq!(identity.fields(), [Field::UserAgent].into_iter().collect());
    }

    #[test]
    fn an_ipv4_address_in_ipv6_dress_is_the_ipv4_address() {
        let dressed = "::ffff:10.1.2.3".parse().expect("an address");
        let plain: IpAddr = "10.1.2.3".parse().expect("an address");
        assert_eq!(Identity::default().with_ip(dressed).ip(), Some(plain));
    }

    #[test]
    fn an_owned_identity_is_the_same_identity() {
        let identity = Identity::default()
            .with_user("u")
            .with_originator("o")
            .with_ip("::1".parse().expect("an address"))
            .with_user_agent("a")
            .with_listener("l");
        assert_eq!(IdentityBuf::from(identity).as_identity(), identity);
        assert_eq!(identity.fields(), Field::ALL.into_iter().collect());
    }

    #[test]
    fn every_field_is_known_by_its_name() {
        for field in Field::ALL {
            assert_eq!(Field::from_name(field.name()), Some(field));
        }
        assert_eq!(Field::from_name("client_ip"), None);
    }
}
