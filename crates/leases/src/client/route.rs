//! The server to ask: the last named master, else one of the given addresses.

use crate::sharing::ServerAddress;

/// How often one request is redirected before it has failed.
pub(super) const HOPS_MAX: u32 = 5;

/// The next step for a request that a server did not answer itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteStep {
    /// Ask the new target at once.
    AskAgain,
    /// The request has failed, for now.
    GiveUp,
}

/// The way to the master.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
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
    pub(super) fn redirected(&mut self, to: Option<ServerAddress>) -> RouteStep {
        self.hops += 1;
        match to {
            Some(to) if self.hops <= HOPS_MAX && to != *self.target() => {
                self.master = Some(to);
                RouteStep::AskAgain
            }
            _ => {
                self.failed();
                RouteStep::GiveUp
            }
        }
    }

    /// Goes on after a request that was not sent, because no server was there.
    pub(super) fn not_reached(&mut self) -> RouteStep {
        // Every seed once, after the master that was named.
        let unreachable = self.unreachable + usize::from(self.master.is_none());
        let is_left = unreachable < self.seeds.len();
        self.failed();
        if is_left {
            self.unreachable = unreachable;
            RouteStep::AskAgain
        } else {
            RouteStep::GiveUp
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
    fn a_master_is_followed_at_once_and_forgotten_when_it_fails() {
        let mut route = route(&["a:1", "b:1"]);
        assert_eq!(route.redirected(Some(address("m:1"))), RouteStep::AskAgain);
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
            if route.redirected(Some(address(to))) == RouteStep::GiveUp {
                break;
            }
            asked += 1;
        }
        assert_eq!(asked, HOPS_MAX);
        assert_eq!(route.target().as_str(), "a:1");
        assert_eq!(route.redirected(Some(address("a:1"))), RouteStep::GiveUp);
        assert_eq!(route.redirected(None), RouteStep::GiveUp);
    }

    #[test]
    fn unreachable_servers_are_skipped_until_none_is_left() {
        let mut route = route(&["a:1", "b:1", "c:1"]);
        assert_eq!(route.redirected(Some(address("m:1"))), RouteStep::AskAgain);
        let mut tried = vec![route.target().to_string()];
        while route.not_reached() == RouteStep::AskAgain {
            tried.push(route.target().to_string());
        }
        assert_eq!(tried, ["m:1", "a:1", "b:1", "c:1"]);
    }
}
