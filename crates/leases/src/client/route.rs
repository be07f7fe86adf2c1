//! The server to ask: the last named master, else one of the given addresses.

use http::uri::Authority;

/// How often one request is redirected before it has failed.
pub(super) const HOPS_MAX: u32 = 5;

/// Where a capacity server listens: `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerAddress(Box<str>);

/// A text that is not a server's address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a server's address must be like \"capacity.example:6666\", not {given:?}")]
pub struct BadAddress {
    /// The text, or its first 100 characters.
    pub given: String,
}

impl std::str::FromStr for ServerAddress {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let text = text.strip_prefix("http://").unwrap_or(text);
        let text = text.strip_suffix('/').unwrap_or(text);
        let is_good = text.len() <= 300
            && text.parse::<Authority>().is_ok_and(|authority| {
                authority.port_u16().is_some_and(|port| port > 0)
                    && !authority.host().is_empty()
                    && !text.contains('@')
            });
        if is_good {
            Ok(Self(text.into()))
        } else {
            let given = text.chars().take(100).collect();
            Err(BadAddress { given })
        }
    }
}

impl ServerAddress {
    /// `host:port`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// What to do with a request that a server did not answer itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Onward {
    /// Ask the new target at once.
    AskAgain,
    /// It has failed, for now.
    GiveUp,
}

/// The way to the master.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// As given; never empty.
    seeds: Vec<ServerAddress>,
    seed: usize,
    master: Option<ServerAddress>,
    hops: u32,
    /// Seeds that could not be reached one after the other.
    unreachable: usize,
}

impl Route {
    pub(super) fn new(seeds: Vec<ServerAddress>) -> Self {
        assert!(!seeds.is_empty(), "a route is built with an address");
        Self {
            seeds,
            seed: 0,
            master: None,
            hops: 0,
            unreachable: 0,
        }
    }

    /// The server to ask.
    pub(super) fn target(&self) -> &ServerAddress {
        self.master.as_ref().unwrap_or(&self.seeds[self.seed])
    }

    /// The target answered itself.
    pub(super) fn answered(&mut self) {
        self.hops = 0;
        self.unreachable = 0;
    }

    /// The target is not the master, and names the master if it knows it.
    pub(super) fn redirected(&mut self, to: Option<ServerAddress>) -> Onward {
        self.hops += 1;
        match to {
            Some(to) if self.hops <= HOPS_MAX && to != *self.target() => {
                self.master = Some(to);
                Onward::AskAgain
            }
            _ => {
                self.failed();
                Onward::GiveUp
            }
        }
    }

    /// Nothing was sent, because no server was there.
    pub(super) fn not_reached(&mut self) -> Onward {
        // Every seed once, after the master that was named.
        let unreachable = self.unreachable + usize::from(self.master.is_none());
        let is_left = unreachable < self.seeds.len();
        self.failed();
        if is_left {
            self.unreachable = unreachable;
            Onward::AskAgain
        } else {
            Onward::GiveUp
        }
    }

    /// The target did not answer: back to the given addresses, the next one first.
    pub(super) fn failed(&mut self) {
        self.hops = 0;
        self.unreachable = 0;
        // A named master does not show the state of the seed that named it.
        if self.master.take().is_none() {
            self.seed = (self.seed + 1) % self.seeds.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> ServerAddress {
        text.parse().expect("an address")
    }

    fn route(seeds: &[&str]) -> Route {
        Route::new(seeds.iter().map(|seed| address(seed)).collect())
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        let check = |text: &str, expected: Option<&str>| {
            let found = text.parse::<ServerAddress>().ok();
            assert_eq!(found.as_ref().map(ServerAddress::as_str), expected);
        };
        check("localhost:6666", Some("localhost:6666"));
        check("http://127.0.0.1:80/", Some("127.0.0.1:80"));
        check("[::1]:6666", Some("[::1]:6666"));
        for wrong in [
            "",
            "host",
            ":80",
            "host:0",
            "host:99999",
            "a b:80",
            "u@host:80",
            "host:80/path",
        ] {
            check(wrong, None);
        }
        check(&format!("{}:80", "h".repeat(300)), None);
    }

    #[test]
    fn a_master_is_followed_at_once_and_forgotten_when_it_fails() {
        let mut route = route(&["a:1", "b:1"]);
        assert_eq!(route.redirected(Some(address("m:1"))), Onward::AskAgain);
        assert_eq!(route.target().as_str(), "m:1");
        route.answered();
        assert_eq!(route.target().as_str(), "m:1");
        route.failed();
        assert_eq!(route.target().as_str(), "a:1");
        route.failed();
        assert_eq!(route.target().as_str(), "b:1");
    }

    #[test]
    fn servers_that_send_each_other_the_client_are_left_after_a_few_hops() {
        let mut route = route(&["a:1"]);
        let mut asked = 0;
        loop {
            let to = if asked % 2 == 0 { "b:1" } else { "c:1" };
            if route.redirected(Some(address(to))) == Onward::GiveUp {
                break;
            }
            asked += 1;
        }
        assert_eq!(asked, HOPS_MAX);
        assert_eq!(route.target().as_str(), "a:1");
        assert_eq!(route.redirected(Some(address("a:1"))), Onward::GiveUp);
        assert_eq!(route.redirected(None), Onward::GiveUp);
    }

    #[test]
    fn unreachable_servers_are_skipped_until_none_is_left() {
        let mut route = route(&["a:1", "b:1", "c:1"]);
        assert_eq!(route.redirected(Some(address("m:1"))), Onward::AskAgain);
        let mut tried = vec![route.target().to_string()];
        while route.not_reached() == Onward::AskAgain {
            tried.push(route.target().to_string());
        }
        assert_eq!(tried, ["m:1", "a:1", "b:1", "c:1"]);
    }
}
