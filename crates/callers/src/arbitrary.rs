//! Random patterns and identities for tests. Their values are picked so that they often meet:
//! few letters, nested prefixes, nested networks, and the characters that mean something.

use alloc::string::String;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::identity::{FieldSet, Identity, IdentityField};
use crate::pattern::Pattern;
use crate::random::Random;

/// An identity that owns its texts.
#[derive(Debug)]
pub(super) struct OwnedIdentity {
    texts: [String; 4],
    ip: Option<IpAddr>,
}

impl OwnedIdentity {
    pub(super) fn as_identity(&self) -> Identity<'_> {
        let [user, originator, user_agent, listener] = &self.texts;
        Identity {
            user,
            originator,
            ip: self.ip,
            user_agent,
            listener,
        }
    }
}

impl Random {
    /// Up to `max` of the letters that mean something, and of two that don't.
    pub(super) fn text(&mut self, max: u64) -> String {
        let length = self.below(max + 1);
        (0..length)
            .map(|_| self.pick(&['a', 'b', 'é', '*', '\\']))
            .collect()
    }

    pub(super) fn address(&mut self) -> IpAddr {
        let noise = self.next();
        let sparse = self.pick(&[0x0000_0000, 0x0000_0003, 0x0101_0101, 0x8080_0001]);
        if self.one_in(2) {
            Ipv4Addr::from(0x0a01_0000 ^ (noise as u32 & sparse)).into()
        } else {
            let low = u128::from(noise & u64::from(sparse)) << self.pick(&[0, 60, 90]);
            let address = Ipv6Addr::from((0x2001_0db8 << 96) ^ low);
            address.to_canonical()
        }
    }

    fn network(&mut self) -> String {
        use alloc::format;
        let address = self.address();
        let bits = match address {
            IpAddr::V4(_) => self.pick(&[0, 8, 16, 23, 24, 31, 32]),
            IpAddr::V6(_) => self.pick(&[0, 1, 32, 64, 65, 127, 128]),
        };
        match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                format!("{}/{bits}", Ipv4Addr::from(u32::from(address) & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                format!("{}/{bits}", Ipv6Addr::from(u128::from(address) & mask))
            }
        }
    }

    /// Any pattern: about half of the fields are any.
    pub(super) fn pattern(&mut self) -> Pattern {
        loop {
            let mut written = IdentityField::ALL.map(|field| match field {
                _ if self.one_in(2) => String::new(),
                IdentityField::Ip => self.network(),
                _ => self.text(4),
            });
            for (text, field) in written.iter_mut().zip(IdentityField::ALL) {
                if field != IdentityField::Ip && self.one_in(2) {
                    text.push('*');
                }
            }
            let text = written.each_ref().map(String::as_str).into();
            if let Ok(pattern) = Pattern::parse(&text) {
                return pattern;
            }
        }
    }

    pub(super) fn identity(&mut self) -> OwnedIdentity {
        let texts = [0; 4].map(|_| self.text(6));
        let ip = (!self.one_in(5)).then(|| self.address());
        OwnedIdentity { texts, ip }
    }

    pub(super) fn fields(&mut self) -> FieldSet {
        IdentityField::ALL
            .into_iter()
            .filter(|_| self.one_in(2))
            .collect()
    }
}
