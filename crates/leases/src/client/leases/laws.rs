//! Laws that hold for any behaviour of the network and the servers: thousands of random lives of
//! a client on a virtual clock, against servers that keep a book of their grants.

use std::collections::BTreeMap;
use std::ops::Range;

use super::super::entitlement::Allowance;
use super::super::route::{Route, RouteStep};
use super::*;
use crate::random::{Random, seeds};
use crate::sharing::ServerAddress;

const SECOND: Duration = Duration::from_secs(1);
const INTERVAL_MIN: Duration = Duration::from_secs(5);
const DEADLINE: Duration = Duration::from_secs(5);
const LIVES: Range<u64> = 0..2_000;
/// Milliseconds since 1970 when the client starts, by the true clock.
const START_MS: i64 = 1_700_000_000_000;

/// A lease as the server's book has it: how much, and until when by the true clock.
#[derive(Clone, Copy)]
struct Granted {
    capacity: f64,
    until: Timestamp,
}

/// Three servers, of which at most one is the master.
struct Servers {
    random: Random,
    names: [ServerAddress; 3],
    /// How far each one's clock is ahead of the true one.   ms
    ahead: [i64; 3],
    says_now: bool,
    master: Option<usize>,
    up: [bool; 3],
    is_calm: bool,
    /// Every lease that was granted of a resource.
    granted: BTreeMap<String, Vec<Granted>>,
    /// When a master last saw a request for it whose answer arrived.
    seen: BTreeMap<String, Timestamp>,
    too_early: Vec<String>,
}

enum Reply {
    Unreachable,
    NotMaster(Option<ServerAddress>),
    Answer(wire::GetCapacityResponse, i64),
}

impl Servers {
    fn new(mut random: Random) -> Self {
        let says_now = !random.one_in(4);
        // A server that does not send its time is assumed to have ours.
        let mut ahead = [0; 3];
        if says_now {
            ahead = ahead.map(|_| random.real(-1e7, 1e7) as i64);
        }
        Self {
            names: ["a:1", "b:1", "c:1"].map(|name| name.parse().expect("an address")),
            ahead,
            says_now,
            master: Some(random.below(3) as usize),
            up: [true; 3],
            is_calm: false,
            granted: BTreeMap::new(),
            seen: BTreeMap::new(),
            too_early: Vec::new(),
            random,
        }
    }

    /// Elections, deaths and returns.
    fn live_on(&mut self) {
        if self.is_calm {
            return;
        }
        if self.random.one_in(6) {
            self.master = match self.random.below(5) {
                0 => None,
                n => Some(n as usize % 3),
            };
        }
        for up in &mut self.up {
            if self.random.one_in(8) {
                *up = !*up;
            }
        }
    }

    fn asked(
        &mut self,
        now: Timestamp,
        server: &ServerAddress,
        message: &wire::GetCapacityRequest,
    ) -> Reply {
        let index = self.names.iter().position(|name| name == server);
        let Some(index) = index.filter(|&index| self.up[index]) else {
            return Reply::Unreachable;
        };
        if self.master != Some(index) {
            let mut named = self.master.map(|master| self.names[master].clone());
            // Old news, or none.
            if !self.is_calm && self.random.one_in(5) {
                named = (!self.random.one_in(2))
                    .then(|| self.names[self.random.below(3) as usize].clone());
            }
            return Reply::NotMaster(named);
        }
        let now_ms = START_MS + (now.as_nanos() / 1_000_000) as i64 + self.ahead[index];
        let mut response = Vec::new();
        for resource in &message.resource {
            let id = resource.resource_id.clone();
            let seen = self.seen.get(&id).copied();
            if seen.is_some_and(|seen| now.since(seen) < INTERVAL_MIN) {
                self.too_early
                    .push(format!("{id} at {now:?}, seen at {seen:?}"));
            }
            if !self.is_calm && self.random.one_in(10) {
                continue;
            }
            // One that is no longer than the minimum interval ends before it can be renewed.
            let least = if self.is_calm { 10 } else { 1 };
            let lease = least + self.random.below(50) as i64;
            let expiry_time = now_ms / 1000 + lease;
            let capacity = self.random.real(0.0, resource.wants);
            let left = u64::try_from(expiry_time * 1000 - now_ms).expect("it ends later");
            self.granted.entry(id.clone()).or_default().push(Granted {
                capacity,
                until: now + Duration::from_millis(left),
            });
            let mut gets = wire::Lease {
                expiry_time,
                refresh_interval: 1 + self.random.below(30) as i64,
                capacity,
            };
            if !self.is_calm && self.random.one_in(10) {
                match self.random.below(4) {
                    0 => gets.capacity = f64::NAN,
                    1 => gets.capacity = -gets.capacity - 1.0,
                    2 => gets.expiry_time = 0,
                    _ => gets.refresh_interval = -3,
                }
            }
            response.push(wire::ResourceResponse {
                resource_id: id,
                gets,
                safe_capacity: self.random.one_in(2).then_some(3.0),
            });
        }
        if self.random.one_in(2) {
            response.reverse();
        }
        let own_ms = START_MS + (now.as_nanos() / 1_000_000) as i64;
        let said = if self.says_now { now_ms } else { own_ms };
        Reply::Answer(
            wire::GetCapacityResponse {
                response,
                mastership: None,
            },
            said,
        )
    }
}

/// An answer that is on its way when no request waits for it.
struct Late {
    arrives: Timestamp,
    request: RequestId,
    answer: wire::GetCapacityResponse,
    server_now_ms: i64,
}

struct Life {
    now: Timestamp,
    random: Random,
    leases: Leases,
    route: Route,
    servers: Servers,
    late: Vec<Late>,
    modes: BTreeMap<String, AfterExpiry>,
    /// When it was last requested, except requests without an answer.
    sent: BTreeMap<String, Timestamp>,
    requests: u64,
    answered: u64,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let servers = Servers::new(Random::new(random.next()));
        let seeds = 1 + random.below(3) as usize;
        Self {
            now: Timestamp::ZERO,
            leases: Leases::new("me".into(), INTERVAL_MIN),
            route: Route::new(servers.names[..seeds].to_vec()),
            servers,
            late: Vec::new(),
            modes: BTreeMap::new(),
            sent: BTreeMap::new(),
            requests: 0,
            answered: 0,
            random,
        }
    }

    fn run(&mut self) {
        for _ in 0..60 {
            self.change();
            self.servers.live_on();
            self.step();
            self.check();
        }
        // When all is well again, every resource soon has a lease: after one pause, and one failed
        // round of each server.
        self.servers.is_calm = true;
        self.servers.up = [true; 3];
        self.servers.master = Some(self.servers.master.unwrap_or(0));
        let calm = self.now;
        while self.now.since(calm) < 150 * SECOND {
            self.step();
            self.check();
        }
        for (id, resource) in &self.leases.resources {
            let wants =
                resource.phase == Phase::Used && resource.told.is_some_and(|told| told > 0.0);
            assert!(
                !wants || resource.entitlement.live(self.now).is_some(),
                "{id} has no lease after all was well for {:?}",
                self.now.since(calm)
            );
        }
    }

    /// Makes a random change that a user could make.
    fn change(&mut self) {
        let id: Arc<str> = format!("r/{}", self.random.below(4)).into();
        match self.random.below(6) {
            0 | 1 => {
                let after_expiry = match self.random.below(3) {
                    0 => AfterExpiry::Optimistic,
                    1 => AfterExpiry::Pessimistic,
                    _ => AfterExpiry::Safe,
                };
                let opening = ResourceOpening {
                    priority: 0,
                    wants: self.random.real(0.0, 100.0),
                    after_expiry,
                    safe: None,
                };
                let used = self.leases.resources.get(&id);
                if used.is_none_or(|resource| resource.phase != Phase::Used) {
                    self.modes.insert(id.to_string(), after_expiry);
                }
                self.leases.open(self.now, &id, opening);
            }
            2 if self.random.one_in(3) => self.leases.leave(&id),
            _ => {
                let wants = self.random.real(0.0, 100.0);
                self.leases.set_wants(self.now, &id, wants);
            }
        }
    }

    /// The task's round: release, ask, or sleep.
    fn step(&mut self) {
        self.leases.release(self.now);
        if let Some((request, message)) = self.leases.ask(self.now) {
            self.ask(request, &message);
            return;
        }
        let due = self.leases.next_due().unwrap_or(Timestamp::MAX);
        let nap =
            self.now + self.random.within(Duration::ZERO..20 * SECOND) + Duration::from_nanos(1);
        // The task may wake before anything is due.
        self.pass_to(due.min(nap));
    }

    fn ask(&mut self, request: RequestId, message: &wire::GetCapacityRequest) {
        let deadline = self.now + DEADLINE;
        loop {
            self.requests += 1;
            for resource in &message.resource {
                let before = self.sent.get(&resource.resource_id);
                let is_early = before.is_some_and(|&sent| self.now.since(sent) < INTERVAL_MIN);
                assert!(!is_early, "{resource:?} again at {:?}", self.now);
            }
            let sent = self.now;
            let server = self.route.target().clone();
            self.leases.sent_again(self.now, request);
            let (there, back) = match self.servers.is_calm {
                true => (Duration::from_millis(1), Duration::from_millis(1)),
                false if self.random.one_in(10) => (
                    self.random.within(Duration::ZERO..8 * SECOND),
                    self.random.within(Duration::ZERO..8 * SECOND),
                ),
                false => (
                    self.random.within(Duration::ZERO..SECOND),
                    self.random.within(Duration::ZERO..SECOND),
                ),
            };
            if !self.servers.is_calm && self.random.one_in(10) {
                // Lost on the way.
                self.was_sent(sent, message);
                self.pass_to(deadline);
                self.give_up(request);
                return;
            }
            let arrives = self.now + there;
            let reply = self.servers.asked(arrives, &server, message);
            let returns = arrives + back;
            let is_lost = !self.servers.is_calm && self.random.one_in(10);
            if returns >= deadline || is_lost {
                if let Reply::Answer(answer, server_now_ms) = reply {
                    self.late.push(Late {
                        arrives: returns.max(deadline) + Duration::from_nanos(1),
                        request,
                        answer,
                        server_now_ms,
                    });
                }
                self.was_sent(sent, message);
                self.pass_to(deadline);
                self.give_up(request);
                return;
            }
            self.pass_to(returns);
            let onward = match reply {
                Reply::Answer(answer, server_now_ms) => {
                    self.answered += 1;
                    self.was_sent(sent, message);
                    for resource in &message.resource {
                        let id = resource.resource_id.clone();
                        self.servers.seen.insert(id, arrives);
                    }
                    self.route.answered();
                    self.leases
                        .answered(self.now, request, &answer, server_now_ms);
                    return;
                }
                Reply::Unreachable => self.route.not_reached(),
                Reply::NotMaster(master) => self.route.redirected(master),
            };
            if onward == RouteStep::GiveUp {
                let entropy = self.random.next();
                self.leases
                    .failed(self.now, request, RequestFailure::NotSeen, entropy);
                return;
            }
        }
    }

    fn was_sent(&mut self, sent: Timestamp, message: &wire::GetCapacityRequest) {
        for resource in &message.resource {
            self.sent.insert(resource.resource_id.clone(), sent);
        }
    }

    fn give_up(&mut self, request: RequestId) {
        self.route.failed();
        let entropy = self.random.next();
        self.leases
            .failed(self.now, request, RequestFailure::Unknown, entropy);
    }

    /// Time passes; what is late arrives, in any order, and is looked at on the way.
    fn pass_to(&mut self, then: Timestamp) {
        let on_the_way = self.now + self.random.within(Duration::ZERO..then.since(self.now));
        self.now = on_the_way;
        self.check();
        self.now = then;
        let mut late = std::mem::take(&mut self.late);
        late.retain(|late| {
            if late.arrives > then {
                return true;
            }
            let heard = self
                .leases
                .answered(then, late.request, &late.answer, late.server_now_ms);
            assert_eq!(
                heard,
                AnswerEffect::default(),
                "no request waits for a late answer"
            );
            false
        });
        self.late = late;
        self.check();
    }

    fn check(&self) {
        assert!(
            self.servers.too_early.is_empty(),
            "{:?}",
            self.servers.too_early
        );
        for (id, resource) in &self.leases.resources {
            let allowance = resource.entitlement.allowance(self.now, resource.wants);
            if let Some(held) = resource.entitlement.live(self.now) {
                assert_eq!(allowance, Allowance::UpTo(held.capacity));
                let granted = self.servers.granted.get(&**id).into_iter().flatten();
                let is_covered = granted
                    .clone()
                    .any(|granted| granted.capacity == held.capacity && self.now < granted.until);
                assert!(
                    is_covered,
                    "{id} uses {held:?} at {:?}, which no server's book has",
                    self.now
                );
                continue;
            }
            let expected = match self.modes[&**id] {
                AfterExpiry::Optimistic => Allowance::UpTo(resource.wants),
                AfterExpiry::Pessimistic => Allowance::NOTHING,
                AfterExpiry::Safe => resource
                    .entitlement
                    .safe
                    .map_or(Allowance::NOTHING, SafeCapacity::allowance),
            };
            assert_eq!(allowance, expected, "{id} after its lease");
        }
    }
}

#[test]
fn nothing_is_used_but_a_lease_that_its_server_has_in_its_book_or_what_the_mode_says() {
    let (mut requests, mut answered) = (0, 0);
    let seeds = seeds(LIVES);
    let lives = seeds.len() as u64;
    for seed in seeds {
        let mut life = Life::new(seed);
        life.run();
        requests += life.requests;
        answered += life.answered;
    }
    // Lives in which nothing happens would prove nothing.
    assert!(requests > 20 * lives, "{requests} requests");
    assert!(answered > 8 * lives, "{answered} of {requests} answered");
}
