//! The visible identity of a call's client.
//!
//! Values that were seen are always exact: a client that calls itself `foo*` is the client
//! `foo*`, and no pattern. Only a [`Pattern`](crate::Pattern) has patterns.

use core::fmt;
use core::net::IpAddr;

/// A field that distinguishes callers. The order is that of their weight: of two equally specific
/// patterns, the one that is more specific in the earlier field wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdentityField {
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

impl IdentityField {
    /// All of them, the weightiest first.
    pub const ALL: [Self; 5] = [
        Self::User,
        Self::Originator,
        Self::Ip,
        Self::UserAgent,
        Self::Listener,
    ];

    /// The name of the field in the config and the API.
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

impl fmt::Display for IdentityField {
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
    pub const fn contains(self, field: IdentityField) -> bool {
        self.0 & field.bit() != 0
    }

    /// Whether all of `other` are among them.
    #[must_use]
    pub const fn includes(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The fields in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The set with `field` added.
    #[must_use]
    pub const fn with(self, field: IdentityField) -> Self {
        Self(self.0 | field.bit())
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The fields of the set, the weightiest first.
    pub fn iter(self) -> impl Iterator<Item = IdentityField> {
        IdentityField::ALL
            .into_iter()
            .filter(move |field| self.contains(*field))
    }
}

impl FromIterator<IdentityField> for FieldSet {
    fn from_iter<I: IntoIterator<Item = IdentityField>>(fields: I) -> Self {
        Self(fields.into_iter().fold(0, |bits, field| bits | field.bit()))
    }
}

impl fmt::Debug for FieldSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A call's client as the wire shows it. Any field may be absent, and an empty text is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity<'a> {
    /// See [`IdentityField::User`].
    pub user: &'a str,
    /// See [`IdentityField::Originator`].
    pub originator: &'a str,
    /// See [`IdentityField::Ip`].
    pub ip: Option<IpAddr>,
    /// See [`IdentityField::UserAgent`].
    pub user_agent: &'a str,
    /// See [`IdentityField::Listener`].
    pub listener: &'a str,
}

impl<'a> Identity<'a> {
    /// The client's address. An IPv4 address in IPv6 dress is taken as the IPv4 address.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip.as_ref().map(IpAddr::to_canonical)
    }

    /// The text of a field; the address has none, see [`Self::ip`].
    #[must_use]
    pub fn text(&self, field: IdentityField) -> Option<&'a str> {
        let text = match field {
            IdentityField::User => self.user,
            IdentityField::Originator => self.originator,
            IdentityField::Ip => return None,
            IdentityField::UserAgent => self.user_agent,
            IdentityField::Listener => self.listener,
        };
        (!text.is_empty()).then_some(text)
    }

    /// The fields that are not absent.
    #[must_use]
    pub fn fields(&self) -> FieldSet {
        let is_present = |field: &IdentityField| match field {
            IdentityField::Ip => self.ip.is_some(),
            text => self.text(*text).is_some(),
        };
        IdentityField::ALL.into_iter().filter(is_present).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_text_is_absent() {
        let identity = Identity {
            user: "",
            user_agent: "curl",
            ..Identity::default()
        };
        assert_eq!(identity.text(IdentityField::User), None);
        assert_eq!(
            identity.fields(),
            [IdentityField::UserAgent].into_iter().collect()
        );
    }

    #[test]
    fn an_ipv4_address_in_ipv6_dress_is_the_ipv4_address() {
        let dressed = Identity {
            ip: "::ffff:10.1.2.3".parse().ok(),
            ..Identity::default()
        };
        assert_eq!(dressed.ip(), "10.1.2.3".parse().ok());
    }

    #[test]
    fn every_field_can_be_present() {
        let identity = Identity {
            user: "u",
            originator: "o",
            ip: "::1".parse().ok(),
            user_agent: "a",
            listener: "l",
        };
        assert_eq!(identity.fields(), IdentityField::ALL.into_iter().collect());
    }

    #[test]
    fn every_field_is_known_by_its_name() {
        for field in IdentityField::ALL {
            assert_eq!(IdentityField::from_name(field.name()), Some(field));
        }
        assert_eq!(IdentityField::from_name("client_ip"), None);
    }
}
