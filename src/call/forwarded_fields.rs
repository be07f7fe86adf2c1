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
mod tests {
    use super::*;
    use FieldAction::{Append, Pass, Remove, Set};
    use http::{HeaderName, HeaderValue};

    /// The fields that are set for a client at 192.0.2.1 that asks `t` without TLS.
    const PLAIN: [&str; 5] = [
        "X-Forwarded-For: 192.0.2.1",
        "X-Real-IP: 192.0.2.1",
        "X-Forwarded-Proto: http",
        "X-Forwarded-Host: t",
        "Forwarded: for=192.0.2.1;host=t;proto=http",
    ];

    fn head(fields: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::default();
        for (name, value) in fields {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(&name, &HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    fn fields(
        actions: [FieldAction; 5],
        client: &str,
        is_tls: bool,
    ) -> Option<Arc<ForwardedFields>> {
        let client = (client != "unix").then(|| client.parse().expect("an address"));
        ForwardedFields::new(actions, client, is_tls)
    }

    #[track_caller]
    fn check_lines(fields: Option<Arc<ForwardedFields>>, head: &Headers, expected: &[&str]) {
        let mut lines = Vec::new();
        fields
            .expect("something changes")
            .write(head, |_| true, &mut lines);
        let lines = String::from_utf8(lines).expect("text");
        let lines: Vec<_> = lines.split_terminator("\r\n").collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn set_writes_what_is_known_of_the_connection() {
        let plain = head(&[("host", "t")]);
        check_lines(fields([Set; 5], "192.0.2.1", false), &plain, &PLAIN);
        check_lines(
            fields([Set; 5], "2001:db8::1", true),
            &head(&[("host", "t:8443")]),
            &[
                "X-Forwarded-For: 2001:db8::1",
                "X-Real-IP: 2001:db8::1",
                "X-Forwarded-Proto: https",
                "X-Forwarded-Host: t:8443",
                "Forwarded: for=\"[2001:db8::1]\";host=\"t:8443\";proto=https",
            ],
        );
    }

    #[test]
    fn what_the_client_says_is_not_in_what_is_set() {
        let lies = head(&[
            ("host", "t"),
            ("x-forwarded-for", "10.0.0.1"),
            ("x-real-ip", "10.0.0.2"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil"),
            ("forwarded", "for=10.0.0.3;proto=https"),
        ]);
        check_lines(fields([Set; 5], "192.0.2.1", false), &lies, &PLAIN);
        check_lines(fields([Remove; 5], "192.0.2.1", false), &lies, &[]);
    }

    #[test]
    fn a_client_without_an_address_is_unknown() {
        let plain = head(&[("host", "t")]);
        let known = [
            "X-Forwarded-Proto: http",
            "X-Forwarded-Host: t",
            "Forwarded: for=unknown;host=t;proto=http",
        ];
        check_lines(fields([Set; 5], "unix", false), &plain, &known);
        check_lines(fields([Append; 5], "unix", false), &plain, &known);
        check_lines(
            fields([Append, Pass, Pass, Pass, Append], "unix", false),
            &head(&[
                ("host", "t"),
                ("x-forwarded-for", "192.0.2.7"),
                ("forwarded", "for=192.0.2.7"),
            ]),
            &[
                "X-Forwarded-For: 192.0.2.7",
                "Forwarded: for=192.0.2.7, for=unknown;host=t;proto=http",
            ],
        );
    }

    #[test]
    fn append_adds_to_lists_and_keeps_single_values() {
        check_lines(
            fields([Append; 5], "10.0.0.9", false),
            &head(&[
                ("host", "t"),
                ("x-forwarded-for", "192.0.2.7"),
                ("x-forwarded-for", ""),
                ("x-forwarded-for", "10.0.0.8, 10.0.0.7"),
                ("x-real-ip", "192.0.2.7"),
                ("x-forwarded-proto", "https"),
                ("x-forwarded-host", "shop"),
                ("forwarded", "for=\"[2001:db8::7]:80\";proto=https"),
            ]),
            &[
                "X-Forwarded-For: 192.0.2.7, 10.0.0.8, 10.0.0.7, 10.0.0.9",
                "X-Real-IP: 192.0.2.7",
                "X-Forwarded-Proto: https",
                "X-Forwarded-Host: shop",
                "Forwarded: for=\"[2001:db8::7]:80\";proto=https, for=10.0.0.9;host=t;proto=http",
            ],
        );
        check_lines(
            fields([Append; 5], "10.0.0.9", true),
            &head(&[("host", "t"), ("x-forwarded-proto", " "), ("x-real-ip", "")]),
            &[
                "X-Forwarded-For: 10.0.0.9",
                "X-Real-IP: 10.0.0.9",
                "X-Forwarded-Proto: https",
                "X-Forwarded-Host: t",
                "Forwarded: for=10.0.0.9;host=t;proto=https",
            ],
        );
    }

    #[test]
    fn a_value_that_ends_within_quotes_is_not_kept() {
        for open in ["for=\"x", "for=\"x\\\"", "\"", "for=a, for=\"b\";by=\""] {
            check_lines(
                fields([Pass, Pass, Pass, Pass, Append], "10.0.0.9", false),
                &head(&[("forwarded", open), ("forwarded", "for=\"a\\\"b\"")]),
                &["Forwarded: for=\"a\\\"b\", for=10.0.0.9;proto=http"],
            );
        }
    }

    #[test]
    fn a_name_that_differs_in_its_signs_is_the_same_field() {
        for name in [
            "x-forwarded-for",
            "X-FORWARDED-FOR",
            "X_Forwarded_For",
            "x.forwarded-for",
        ] {
            let found = ForwardedField::of(name.as_bytes());
            assert_eq!(found, Some(ForwardedField::XForwardedFor), "{name}");
        }
        for field in ForwardedField::ALL {
            assert_eq!(ForwardedField::of(field.name().as_bytes()), Some(field));
        }
        for name in [
            "x-forwarded-port",
            "xaforwarded-for",
            "x-forwarded-fo",
            "forwarde-",
            "",
        ] {
            assert_eq!(ForwardedField::of(name.as_bytes()), None, "{name}");
        }
        let all = fields([Append; 5], "192.0.2.1", false).expect("something changes");
        assert!(all.replaces(b"X_Forwarded_For"));
        assert!(!all.replaces(b"X-Forwarded-Port"));
        check_lines(
            Some(all),
            &head(&[("host", "t"), ("x_forwarded_for", "1.1.1.1")]),
            &PLAIN,
        );
    }

    #[test]
    fn where_all_is_passed_there_is_nothing_to_do() {
        assert_eq!(fields([Pass; 5], "192.0.2.1", false), None);
        let one = fields([Pass, Remove, Pass, Pass, Pass], "192.0.2.1", false);
        let one = one.expect("one is removed");
        assert!(one.replaces(b"x-real-ip"));
        assert!(!one.replaces(b"forwarded"));
    }

    #[test]
    fn the_longest_addresses_fit() {
        let ones = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        for address in [ones, "::ffff:255.255.255.255", "255.255.255.255", "::"] {
            let address: IpAddr = address.parse().expect("an address");
            let text = AddressText::new(Some(address));
            assert_eq!(text.text(), address.to_string().as_bytes());
        }
    }
}
