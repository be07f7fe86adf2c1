//! The identity of a call: what the wire shows of its client.
//!
//! Everything here is exactly as received, never a pattern: a client that calls itself `foo*` is
//! called `foo*`. A text that is too long, or cannot be in a log, counts as absent and is
//! counted, so that no client chooses how much is remembered of it. Only a user name that is too
//! long is shortened instead, because users without a name would all share one quota.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Listener;
use super::UserFrom;

/// Longest text of an identity.   bytes
pub const TEXT_BYTES_MAX: usize = 256;

/// The prefix of the user of a Unix socket's peer, before the number. No name from a client may
/// begin so.
const UID: &str = "uid:";

/// The identity of a call. There is one for each connection; on HTTP, a new one if a request's
/// headers differ from those of the request before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Name of the listener in the config.
    pub listener: Arc<str>,
    /// The other end of the connection.
    pub peer: Peer,
    /// The client's address: the peer's own, or the one that a trusted proxy names. `None` on a
    /// Unix socket without one.
    pub address: Option<IpAddr>,
    /// The user, from where the listener takes it (`user_from`).
    pub user: Option<Arc<str>>,
    /// `User-Agent`, on HTTP.
    pub user_agent: Option<Arc<str>>,
    /// `Originator`, on HTTP.
    pub originator: Option<Arc<str>>,
    /// The fields that count as absent.
    pub unusable: IdentityFields,
}

impl Identity {
    /// The identity of a connection, before it has sent anything.
    #[must_use]
    pub fn of_connection(listener: &Listener, peer: Peer) -> Self {
        Self {
            user: match (listener.user_from, peer) {
                (UserFrom::Peer, Peer::Unix { uid }) => Some(format!("{UID}{uid}").into()),
                _ => None,
            },
            ..Self::without_names(Arc::clone(&listener.name), peer)
        }
    }

    /// The identity of a client that names nothing.
    #[must_use]
    pub fn without_names(listener: Arc<str>, peer: Peer) -> Self {
        Self {
            listener,
            peer,
            address: peer.address(),
            user: None,
            user_agent: None,
            originator: None,
            unusable: IdentityFields::default(),
        }
    }
}

/// The other end of a connection, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// An address.
    Tcp(SocketAddr),
    /// A process on this machine.
    Unix {
        /// The user of the client at the connect.
        uid: u32,
    },
}

impl Peer {
    /// The address of the peer, if it has one; an IPv4 address in IPv4 form.
    #[must_use]
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip().to_canonical()),
            Self::Unix { .. } => None,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix { uid } => write!(f, "{UID}{uid}"),
        }
    }
}

labels! {
    /// A field of an identity that comes from a client or a proxy.
    pub enum Field {
        /// The address in `Forwarded` or `X-Forwarded-For`.
        Address = "address",
        /// The user.
        User = "user",
        /// `User-Agent`.
        UserAgent = "user_agent",
        /// `Originator`.
        Originator = "originator",
    }
}

impl Field {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Some of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IdentityFields(u8);

impl IdentityFields {
    /// Adds one.
    pub fn add(&mut self, field: Field) {
        self.0 |= field.bit();
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The fields of the set.
    pub fn iter(self) -> impl Iterator<Item = Field> {
        let fields = Field::ALL.into_iter();
        fields.filter(move |field| self.0 & field.bit() != 0)
    }
}

/// The error for a field that was given, and cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unusable;

/// Reads a text from a client; `None` if it is empty.
///
/// # Errors
/// If it is longer than [`TEXT_BYTES_MAX`], not UTF-8, or contains a control character.
pub fn text(said: &[u8]) -> Result<Option<&str>, Unusable> {
    if said.is_empty() {
        return Ok(None);
    }
    if said.len() > TEXT_BYTES_MAX {
        return Err(Unusable);
    }
    let said = str::from_utf8(said).map_err(|_| Unusable)?;
    if said.chars().any(char::is_control) {
        return Err(Unusable);
    }
    Ok(Some(said))
}

/// Reads the name of a user. A name longer than [`TEXT_BYTES_MAX`] becomes its beginning and a number that
/// distinguishes it ([`fitting`]).
///
/// # Errors
/// Also if it looks like the kernel's name of a Unix socket's peer.
pub fn user(said: &[u8]) -> Result<Option<Cow<'_, str>>, Unusable> {
    let name = str::from_utf8(said).map_err(|_| Unusable)?;
    if name.starts_with(UID) || name.chars().any(char::is_control) {
        return Err(Unusable);
    }
    Ok((!name.is_empty()).then(|| fitting(name.into())))
}

/// A name of at most [`TEXT_BYTES_MAX`] bytes. A longer name becomes its beginning and a number
/// that distinguishes it from others. A second name with the same number gains nothing, because
/// it spends the same quota.
#[must_use]
pub fn fitting(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.len() <= TEXT_BYTES_MAX {
        return name;
    }
    const DIGITS: usize = 32;
    let mut end = TEXT_BYTES_MAX - DIGITS - 1;
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}~{:032x}", &name[..end], fnv1a(name.as_bytes())).into()
}

/// FNV-1a of 128 bits, by G. Fowler, L. C. Noll and K.-P. Vo: the same everywhere and in every
/// version, unlike the hashes of the standard library.
pub(crate) fn fnv1a(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_taken_exactly_or_not_at_all() {
        let long = [b'x'; TEXT_BYTES_MAX + 1];
        let check = |said: &[u8], read: Result<Option<&str>, Unusable>| {
            assert_eq!(text(said), read, "{:?}", String::from_utf8_lossy(said));
        };
        check(b"", Ok(None));
        check(b"foo*", Ok(Some("foo*")));
        check(
            b" python-requests/2.31 ",
            Ok(Some(" python-requests/2.31 ")),
        );
        check("Jürgen".as_bytes(), Ok(Some("Jürgen")));
        check(&long[1..], Ok(str::from_utf8(&long[1..]).ok()));
        check(&long, Err(Unusable));
        check(b"a\tb", Err(Unusable));
        check(b"a\x7f", Err(Unusable));
        check("a\u{85}".as_bytes(), Err(Unusable));
        check(b"J\xfcrgen", Err(Unusable));
    }

    #[test]
    fn no_client_can_call_itself_what_the_kernel_calls_a_peer() {
        assert_eq!(user(b"uid:0"), Err(Unusable));
        assert_eq!(user(b"UID:0"), Ok(Some("UID:0".into())));
        assert_eq!(user(b"nova"), Ok(Some("nova".into())));
        assert_eq!(user(b""), Ok(None));
        assert_eq!(user(b"J\xfcrgen"), Err(Unusable));
        assert_eq!(Peer::Unix { uid: 7 }.to_string(), "uid:7");
    }

    #[test]
    fn the_number_of_a_long_name_is_the_published_hash() {
        let check = |bytes: &str, hash| assert_eq!(fnv1a(bytes.as_bytes()), hash, "{bytes:?}");
        check("", 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        check("a", 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        check("foobar", 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    #[test]
    fn long_names_with_the_same_beginning_stay_different() {
        let long = |last: &str| format!("{}{last}", "ä".repeat(200));
        let named = |name: &str| match user(name.as_bytes()) {
            Ok(Some(name)) => name.into_owned(),
            other => panic!("{other:?}"),
        };
        let longest = "x".repeat(TEXT_BYTES_MAX);
        assert_eq!(named(&longest), longest);
        let (one, other) = (named(&long("a")), named(&long("b")));
        assert!(one.len() <= TEXT_BYTES_MAX, "{}", one.len());
        assert_ne!(one, other);
        assert_eq!(one, named(&long("a")));
    }

    #[test]
    fn fields_are_a_set() {
        let mut fields = IdentityFields::default();
        assert!(fields.is_empty());
        fields.add(Field::Originator);
        fields.add(Field::User);
        fields.add(Field::User);
        assert_eq!(
            fields.iter().collect::<Vec<_>>(),
            [Field::User, Field::Originator]
        );
    }
}
