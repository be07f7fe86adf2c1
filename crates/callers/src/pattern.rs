//! Patterns: which identities belong to a caller, and which of two patterns is the more
//! specific.
//!
//! [`Pattern`] has the syntax, [`Specificity`] the order.

mod address;
mod error;
mod specificity;
mod text;

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

pub use self::error::PatternError;
pub use self::specificity::Specificity;
pub(crate) use self::specificity::{FieldDemand, PatternShape};
pub use self::text::TextPattern;
use crate::identity::{FieldSet, Identity, IdentityField};
use crate::network::{Ipv6Prefix, Network};

/// The longest literal of one field. A longer value matches no pattern exactly.   bytes
pub const LITERAL_MAX: usize = 256;

/// The identities that belong to a caller: all that match in every field. At least one field is not "any".
///
/// # Text
///
/// | written | matches |
/// |---|---|
/// | nothing, or `*` | anything, also an absent value |
/// | `curl/8.0` | exactly that; case counts |
/// | `curl*` | whatever begins with `curl` |
/// | `a*b` | exactly that: only a final `*` is special |
/// | `curl\*` | exactly `curl*` |
/// | `\\*` | whatever begins with one backslash |
/// | `DOMAIN\ann` | exactly that |
///
/// A backslash makes a following `*` or backslash literal, and stands for itself before
/// anything else, so names of the form `DOMAIN\ann` can be written as they are.
///
/// # Addresses
///
/// Empty or `*`; an address; a network such as `10.1.2.0/24` or `2001:db8::/32`; or whole leading
/// numbers: `10.1.*` means `10.1.0.0/16`, and `2001:db8:*` means `2001:db8::/32`. A network of
/// one address is that address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    user: TextPattern,
    originator: TextPattern,
    ip: Option<Network>,
    user_agent: TextPattern,
    listener: TextPattern,
}

/// A pattern as the config and the API write it, in the syntax of [`Pattern`]. An empty field
/// matches any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PatternText<'a> {
    /// See [`IdentityField::User`].
    pub user: &'a str,
    /// See [`IdentityField::Originator`].
    pub originator: &'a str,
    /// See [`IdentityField::Ip`].
    pub ip: &'a str,
    /// See [`IdentityField::UserAgent`].
    pub user_agent: &'a str,
    /// See [`IdentityField::Listener`].
    pub listener: &'a str,
}

impl<'a> From<[&'a str; 5]> for PatternText<'a> {
    /// From the texts in the order of [`IdentityField::ALL`].
    fn from([user, originator, ip, user_agent, listener]: [&'a str; 5]) -> Self {
        Self {
            user,
            originator,
            ip,
            user_agent,
            listener,
        }
    }
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// Every mistake in it, each with its field.
    pub fn parse(text: &PatternText<'_>) -> Result<Self, Vec<PatternError>> {
        let mut mistakes = Vec::new();
        let mut read = |field, text| {
            TextPattern::parse(field, text).unwrap_or_else(|mistake| {
                mistakes.push(mistake);
                TextPattern::any()
            })
        };
        let mut pattern = Self {
            user: read(IdentityField::User, text.user),
            originator: read(IdentityField::Originator, text.originator),
            ip: None,
            user_agent: read(IdentityField::UserAgent, text.user_agent),
            listener: read(IdentityField::Listener, text.listener),
        };
        match address::parse(text.ip) {
            Ok(network) => pattern.ip = network,
            Err(mistake) => mistakes.push(mistake),
        }
        if mistakes.is_empty() && pattern.fields().is_empty() {
            mistakes.push(PatternError::NothingSet);
        }
        if mistakes.is_empty() {
            Ok(pattern)
        } else {
            Err(mistakes)
        }
    }

    /// The pattern that matches exactly the values of `identity` in `fields`; an absent field
    /// matches any value.
    ///
    /// # Errors
    ///
    /// If all fields are absent, or if a value cannot be held exactly: too long, or with a control
    /// character.
    pub fn exact(identity: &Identity<'_>, fields: FieldSet) -> Result<Self, PatternError> {
        Self::identifying(identity, fields, Ipv6Prefix::WHOLE)
    }

    /// A pattern for all addresses with this prefix of the client's, if that is an IPv6 address.
    ///
    /// # Errors
    ///
    /// As for [`Self::exact`].
    pub fn identifying(
        identity: &Identity<'_>,
        fields: FieldSet,
        prefix: Ipv6Prefix,
    ) -> Result<Self, PatternError> {
        let text = |field| match identity.text(field) {
            Some(value) if fields.contains(field) => TextPattern::exact(field, value),
            _ => Ok(TextPattern::any()),
        };
        let address = identity.ip().filter(|_| fields.contains(IdentityField::Ip));
        let pattern = Self {
            user: text(IdentityField::User)?,
            originator: text(IdentityField::Originator)?,
            ip: address.map(|address| prefix.of(address)),
            user_agent: text(IdentityField::UserAgent)?,
            listener: text(IdentityField::Listener)?,
        };
        if pattern.fields().is_empty() {
            return Err(PatternError::NothingSet);
        }
        Ok(pattern)
    }

    /// Whether `identity` matches in every field.
    #[must_use]
    pub fn matches(&self, identity: &Identity<'_>) -> bool {
        let ip_matches = match (&self.ip, identity.ip()) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(network), Some(address)) => network.contains(address),
        };
        ip_matches
            && IdentityField::ALL.into_iter().all(|field| {
                self.text(field)
                    .is_none_or(|pattern| pattern.matches(identity.text(field)))
            })
    }

    /// The pattern of a field of text; the address has none, see [`Self::ip`].
    #[must_use]
    pub const fn text(&self, field: IdentityField) -> Option<&TextPattern> {
        match field {
            IdentityField::User => Some(&self.user),
            IdentityField::Originator => Some(&self.originator),
            IdentityField::Ip => None,
            IdentityField::UserAgent => Some(&self.user_agent),
            IdentityField::Listener => Some(&self.listener),
        }
    }

    /// The network that the address must be in; `None` is any address, or none.
    #[must_use]
    pub const fn ip(&self) -> Option<&Network> {
        self.ip.as_ref()
    }

    /// The pattern of one field as [`Self::parse`] reads it; empty for any.
    #[must_use]
    pub fn written(&self, field: IdentityField) -> String {
        match self.text(field) {
            Some(pattern) => pattern.to_string(),
            None => self.ip.as_ref().map(Network::to_string).unwrap_or_default(),
        }
    }

    /// The fields that are not "any".
    #[must_use]
    pub fn fields(&self) -> FieldSet {
        let is_set = |field: &IdentityField| self.demand(*field) != FieldDemand::Nothing;
        IdentityField::ALL.into_iter().filter(is_set).collect()
    }

    /// The specificity of the pattern.
    #[must_use]
    pub fn specificity(&self) -> Specificity {
        Specificity::of(IdentityField::ALL.map(|field| self.demand(field)))
    }

    fn demand(&self, field: IdentityField) -> FieldDemand {
        match self.text(field) {
            Some(pattern) => pattern.demand(),
            None => self
                .ip
                .as_ref()
                .map_or(FieldDemand::Nothing, address::demand),
        }
    }

    /// The identity that matches with no more than what is demanded.
    pub(crate) fn least_match(&self) -> Identity<'_> {
        Identity {
            user: self.user.literal(),
            originator: self.originator.literal(),
            ip: self.ip.as_ref().map(Network::address),
            user_agent: self.user_agent.literal(),
            listener: self.listener.literal(),
        }
    }
}

/// The fields that are set, each as written: `ip=10.1.2.0/24 user_agent=curl*`.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for field in self.fields().iter() {
            write!(f, "{separator}{field}={}", self.written(field))?;
            separator = " ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Random, seeds};
    use alloc::format;
    use alloc::vec;

    fn of_agent(user_agent: &str) -> Identity<'_> {
        Identity {
            user_agent,
            ..Identity::default()
        }
    }

    fn agent(text: &str) -> Result<Pattern, Vec<PatternError>> {
        let user_agent = text;
        Pattern::parse(&PatternText {
            user_agent,
            ..PatternText::default()
        })
    }

    fn ip(text: &str) -> Result<Pattern, Vec<PatternError>> {
        let ip = text;
        Pattern::parse(&PatternText {
            ip,
            ..PatternText::default()
        })
    }

    fn said(result: Result<Pattern, Vec<PatternError>>) -> String {
        let mistakes = result.expect_err("it is wrong");
        let lines: Vec<String> = mistakes.iter().map(PatternError::to_string).collect();
        lines.join("; ")
    }

    #[test]
    fn only_a_final_star_is_a_prefix_and_a_backslash_makes_it_literal() {
        let check = |written: &str, literal: &str, is_exact: bool, shown: &str| {
            let pattern = agent(written).expect("a pattern");
            let text = pattern
                .text(IdentityField::UserAgent)
                .expect("a field of text");
            assert_eq!(
                (text.literal(), text.is_exact()),
                (literal, is_exact),
                "{written}"
            );
            assert_eq!(
                pattern.written(IdentityField::UserAgent),
                shown,
                "{written}"
            );
        };
        check("curl/8.0", "curl/8.0", true, "curl/8.0");
        check("curl*", "curl", false, "curl*");
        check("a*b", "a*b", true, "a*b");
        check("**", "*", false, "**");
        check(r"curl\*", "curl*", true, r"curl\*");
        check(r"\*", "*", true, r"\*");
        check(r"curl\**", "curl*", false, "curl**");
        check(r"a\*b", "a*b", true, "a*b");
        check(r"DOMAIN\ann", r"DOMAIN\ann", true, r"DOMAIN\ann");
        check(r"DOMAIN\*", "DOMAIN*", true, r"DOMAIN\*");
        check(r"DOMAIN\\*", r"DOMAIN\", false, r"DOMAIN\\*");
        check(r"DOMAIN\", r"DOMAIN\", true, r"DOMAIN\");
        check(r"a\\", r"a\", true, r"a\");
        check(r"a\\\*", r"a\*", true, r"a\\\*");
        check(r"\\\\b", r"\\b", true, r"\\\b");
    }

    #[test]
    fn a_network_is_written_as_it_is_read() {
        let check = |written: &str, shown: &str, bits: u16, exact: u8| {
            let pattern = ip(written).expect("a pattern");
            let specificity = pattern.specificity();
            assert_eq!(pattern.written(IdentityField::Ip), shown, "{written}");
            assert_eq!(specificity.literal_bits(), bits, "{written}");
            assert_eq!(specificity.exact_fields(), exact, "{written}");
        };
        check("10.1.2.3", "10.1.2.3", 32, 1);
        check("10.1.2.3/32", "10.1.2.3", 32, 1);
        check("10.1.2.0/24", "10.1.2.0/24", 24, 0);
        check("10.1.*", "10.1.0.0/16", 16, 0);
        check("10.*", "10.0.0.0/8", 8, 0);
        check("0.0.0.0/0", "0.0.0.0/0", 0, 0);
        check("2001:db8::/32", "2001:db8::/32", 32, 0);
        check("2001:db8:*", "2001:db8::/32", 32, 0);
        check("2001:DB8:0:0::1", "2001:db8::1", 128, 1);
        check("::/0", "::/0", 0, 0);
        check("::ffff:10.1.2.3", "10.1.2.3", 32, 1);
        check("::ffff:10.1.2.0/120", "10.1.2.0/24", 24, 0);
        check("::ffff:0:0/96", "0.0.0.0/0", 0, 0);
    }

    #[test]
    fn an_address_with_host_bits_is_reported_with_its_network() {
        let check = |written: &str, network: &str| {
            let said = said(ip(written));
            let cure = format!("write {network} for the network");
            assert!(said.starts_with("ip ") && said.contains(&cure), "{said}");
        };
        check("10.1.2.3/24", "10.1.2.0/24");
        check("10.1.2.3/0", "0.0.0.0/0");
        check("2001:db8::1/64", "2001:db8::/64");
        check("::ffff:10.1.2.3/120", "10.1.2.0/24");
        check("::ffff:10.1.2.3/80", "::/80");
    }

    #[test]
    fn every_mistake_names_its_field() {
        let check = |result, words: &str| assert_eq!(said(result), words);
        check(
            agent("*"),
            "match: at least one field must be set to more than \"*\"",
        );
        check(
            agent(""),
            "match: at least one field must be set to more than \"*\"",
        );
        check(
            agent("a\nb"),
            "user_agent has a control character; take it out",
        );
        check(
            agent(&"a".repeat(257)),
            "user_agent has 257 bytes, at most 256 are taken",
        );
        check(
            agent(&r"\\".repeat(257)),
            "user_agent has 514 bytes, at most 256 are taken",
        );
        check(ip(&"1".repeat(65)), "ip has 65 bytes, at most 64 are taken");
        for written in [
            "10.1.2",
            "localhost",
            "10.1.2.3:80",
            "010.1.2.3",
            "/24",
            "fe80::1%1",
        ] {
            assert!(said(ip(written)).starts_with("ip must be an address or a network"));
        }
        for written in [
            "10.1*",
            r"\*",
            "10.1.2.3.*",
            "::*",
            "1::*",
            ".*",
            ":*",
            "10.1.2.*.*",
            "a.*",
        ] {
            assert!(said(ip(written)).starts_with("ip must have whole numbers before"));
        }
        for written in [
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "::/129",
            "::/-1",
            "10.0.0.0/8/8",
        ] {
            assert!(said(ip(written)).starts_with("ip must have a prefix of 0 to"));
        }
        let twice = PatternText {
            user: "a\tb",
            ip: "x",
            ..PatternText::default()
        };
        assert_eq!(Pattern::parse(&twice).expect_err("two mistakes").len(), 2);
    }

    #[test]
    fn a_literal_may_have_256_bytes_however_it_is_written() {
        assert!(agent(&"a".repeat(256)).is_ok());
        let escaped = format!("{}*", r"\\".repeat(256));
        let pattern = agent(&escaped).expect("256 backslashes");
        assert_eq!(pattern.specificity().literal_bits(), 2048);
        assert_eq!(
            agent(&pattern.written(IdentityField::UserAgent)),
            Ok(pattern)
        );
    }

    #[test]
    fn a_pattern_made_from_an_identity_is_exact() {
        for seen in ["foo*", "*", r"a\", r"a\*", r"\\*"] {
            let identity = of_agent(seen);
            let fields = [IdentityField::UserAgent, IdentityField::Ip]
                .into_iter()
                .collect();
            let pattern = Pattern::exact(&identity, fields).expect("it is seen");
            assert!(pattern.matches(&identity));
            let longer = format!("{seen}x");
            assert!(!pattern.matches(&of_agent(&longer)));
            assert_eq!(
                agent(&pattern.written(IdentityField::UserAgent)),
                Ok(pattern),
                "{seen}"
            );
        }
        let long = "a".repeat(257);
        let identity = Identity {
            user: &long,
            listener: "nova",
            ..Identity::default()
        };
        let both = [IdentityField::User, IdentityField::Listener]
            .into_iter()
            .collect();
        let mistake = Pattern::exact(&identity, both).expect_err("too long");
        assert_eq!(mistake.field(), "user");
        let other = [IdentityField::Originator].into_iter().collect();
        assert_eq!(
            Pattern::exact(&identity, other),
            Err(PatternError::NothingSet)
        );
    }

    #[test]
    fn a_pattern_is_read_as_it_was_written() {
        for seed in seeds(0..20_000) {
            let mut random = Random::new(seed);
            let pattern = random.pattern();
            let [user, originator, ip, user_agent, listener] =
                IdentityField::ALL.map(|field| pattern.written(field));
            let text = PatternText {
                user: &user,
                originator: &originator,
                ip: &ip,
                user_agent: &user_agent,
                listener: &listener,
            };
            assert_eq!(
                Pattern::parse(&text).as_ref(),
                Ok(&pattern),
                "seed {seed}: {text:?}"
            );
        }
    }

    #[test]
    fn the_more_specific_pattern_is_the_greater() {
        let of = |user, ip, user_agent, listener| {
            let text = PatternText {
                user,
                ip,
                user_agent,
                listener,
                ..PatternText::default()
            };
            Pattern::parse(&text).expect("a pattern").specificity()
        };
        let falling = [
            // Exact fields come first, at any length of the others.
            of("", "10.1.2.3", "curl", ""),
            of("", "10.1.2.3", "", "nova"),
            of("", "10.1.2.3", "python-requests/2.31*", ""),
            // Then bits.
            of("", "2001:db8::1", "", ""),
            of("", "", "curl/8", ""),
            // Then the weightier field: 32 bits each.
            of("root", "", "", ""),
            of("", "10.1.2.3", "", ""),
            of("", "", "curl", ""),
            of("", "", "", "nova"),
            // Without an exact field, bits alone: 40, 32, 24, 24.
            of("", "", "curl/*", ""),
            of("", "", "cur*", "n*"),
            of("ro*", "10.0.0.0/8", "", ""),
            of("", "10.1.2.0/24", "", ""),
            of("", "", "cur*", ""),
            of("", "0.0.0.0/0", "", ""),
            Specificity::NONE,
        ];
        for (at, pair) in falling.windows(2).enumerate() {
            assert!(pair[0] > pair[1], "place {at}: {pair:?}");
        }
    }

    #[test]
    fn patterns_that_match_the_same_call_never_tie() {
        for seed in seeds(0..2_000) {
            let mut random = Random::new(seed);
            let identity = random.identity();
            let mut matching: Vec<Pattern> = (0..200)
                .map(|_| random.pattern())
                .filter(|pattern| pattern.matches(&identity.as_identity()))
                .collect();
            matching.sort_by_key(Pattern::specificity);
            matching.dedup();
            let ranks: Vec<_> = matching.iter().map(Pattern::specificity).collect();
            let mut distinct = ranks.clone();
            distinct.dedup();
            assert_eq!(ranks, distinct, "seed {seed}: {matching:?}");
        }
    }

    #[test]
    fn a_pattern_shows_the_fields_that_it_sets() {
        let text = PatternText {
            ip: "10.1.2.*",
            user_agent: "curl*",
            ..PatternText::default()
        };
        let pattern = Pattern::parse(&text).expect("a pattern");
        assert_eq!(pattern.to_string(), "ip=10.1.2.0/24 user_agent=curl*");
        assert_eq!(
            pattern.fields().iter().collect::<Vec<_>>(),
            vec![IdentityField::Ip, IdentityField::UserAgent]
        );
    }
}
