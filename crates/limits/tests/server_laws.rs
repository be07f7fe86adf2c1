//! The laws of several servers behind one line, over random policies and histories on a virtual clock.
//!
//! The oracle knows only what left and what came back, and counts all of it again after each step:
//!
//! - **Exact for each server and in total.** No call leaves for a server, or at all, beyond a limit.
//! - **No call waits while a server that may take it has room**, and its other limits have room, too. Room that a
//!   call has claimed is kept for that call.
//! - **A call goes to a server that may take it.** None goes to a server that is closed.
//! - **Every call runs**, once all servers are open.
//!
//! `random/seeds.rs` chooses the seeds.

mod random;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use random::{Random, at_least, seeds};
use tidegate_limits::call::{Backend, ServerChoice, ServerNumber};
use tidegate_limits::policy::{LimitRule, Pick, Scope};
use tidegate_limits::scheduler::{Outcome, Supplier, Supply};
use tidegate_limits::{Call, Caller, Hold, Limit, Policy, Scheduler, Step, Ticket, Timestamp};

const SEEDS: Range<u64> = 0..6_000;
const STEPS: u64 = 160;
const BACKEND: Backend = Backend(1);

/// A server, as the oracle knows it.
#[derive(Clone, Debug)]
struct Farm {
    server: ServerNumber,
    at_once: u32,
    /// Calls in a window, and its length.
    window: Option<(u32, u64)>,
    is_open: bool,
}

/// The limits, as the oracle knows them.
#[derive(Clone, Debug)]
struct Rules {
    farms: Vec<Farm>,
    total: u32,
    per_function: Option<(u32, u64)>,
    pick: Pick,
    sticky_wait: u64,
}

/// A mistake that a control makes on purpose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// A server takes a call more than the oracle allows.
    OneMore,
    /// Calls are bound when they arrive.
    BoundEarly,
}

struct Waiting {
    id: usize,
    ticket: Ticket,
}

struct Running {
    id: usize,
    hold: Hold,
    server: ServerNumber,
    is_sent: bool,
}

struct CallFacts {
    is_limited: bool,
    server: ServerChoice,
    arrived: u64,
    was_requeued: bool,
}

struct World {
    random: Random,
    rules: Rules,
    mistake: Mistake,
    scheduler: Scheduler<usize>,
    now: u64,
    calls: Vec<CallFacts>,
    waiting: Vec<Waiting>,
    running: Vec<Running>,
    /// When each call that was sent left, and where it went.
    sent: Vec<(u64, usize, Option<ServerNumber>)>,
    wake: Option<u64>,
    /// Times at which calls waited, and those at which claims kept room.
    looks: u64,
    claimed: u64,
}

fn at(moment: u64) -> Timestamp {
    Timestamp::from_nanos(moment)
}

fn outstanding(name: &str, max: u32, scope: Scope) -> LimitRule {
    LimitRule::new(name, Limit::Outstanding { max }).scope(scope)
}

impl Rules {
    fn random(random: &mut Random) -> Self {
        let count = random.between(1, 4);
        let mut farms = Vec::new();
        for server in 0..count {
            farms.push(Farm::random(random, numbered(10 + server as u16)));
        }
        Self {
            farms,
            total: match random.one_in(2) {
                true => 1000,
                false => random.between(1, 8) as u32,
            },
            per_function: random
                .one_in(2)
                .then(|| (random.between(1, 3) as u32, random.between(20, 60))),
            pick: random.pick(&[Pick::First, Pick::Least]),
            sticky_wait: random.between(1, 80),
        }
    }

    fn policy(&self, mistake: Mistake) -> Policy {
        let mut policy = Policy::builder()
            .capacity(10_000)
            .limit(outstanding("total", self.total, Scope::Every))
            .limit(outstanding("backend", u32::MAX, Scope::Backend(BACKEND)));
        for (farm, place) in self.farms.iter().zip(0..) {
            let scope = Scope::Server(BACKEND, farm.server);
            let more = u32::from(mistake == Mistake::OneMore && place == 0);
            let at_once = farm.at_once + more;
            let name = format!("server:{}", farm.server.get());
            policy = policy.limit(outstanding(&name, at_once, scope.clone()));
            if let Some((max, length)) = farm.window {
                let limit = Limit::sliding(max, Duration::from_nanos(length));
                policy = policy.limit(LimitRule::new(format!("{name}:window"), limit).scope(scope));
            }
        }
        if let Some((max, length)) = self.per_function {
            let limit = Limit::sliding(max, Duration::from_nanos(length));
            let scope = Scope::Function("limited".into());
            policy = policy.limit(LimitRule::new("function", limit).scope(scope));
        }
        let wait = Duration::from_nanos(self.sticky_wait);
        let policy = policy.build().expect("a sound policy");
        policy.with_pick(self.pick, wait)
    }
}

impl Farm {
    fn random(random: &mut Random, server: ServerNumber) -> Self {
        Self {
            server,
            at_once: random.between(1, 3) as u32,
            window: random
                .one_in(2)
                .then(|| (random.between(1, 4) as u32, random.between(10, 60))),
            is_open: true,
        }
    }
}

impl World {
    fn new(seed: u64, mistake: Mistake) -> Self {
        let mut random = Random::new(seed);
        let rules = Rules::random(&mut random);
        Self {
            scheduler: Scheduler::new(rules.policy(mistake)),
            random,
            rules,
            mistake,
            now: 0,
            calls: Vec::new(),
            waiting: Vec::new(),
            running: Vec::new(),
            sent: Vec::new(),
            wake: None,
            looks: 0,
            claimed: 0,
        }
    }

    /// Lives through one history. The error names the law that is broken.
    fn live(mut self) -> Result<(u64, u64), String> {
        for _ in 0..STEPS {
            self.pass_time();
            self.happen()?;
            self.admit()?;
        }
        for place in 0..self.rules.farms.len() {
            self.set_open(place, true);
        }
        self.admit()?;
        let mut idle = 0;
        while !self.waiting.is_empty() || !self.running.is_empty() {
            match self.running.is_empty() {
                true => self.now = self.wake.ok_or("calls wait for nothing")?.max(self.now),
                false => self.end(0),
            }
            self.admit()?;
            idle += 1;
            if idle > 20_000 {
                return Err(format!("{} calls never run", self.waiting.len()));
            }
        }
        match self.scheduler.is_at_rest() {
            true => Ok((self.looks, self.claimed)),
            false => Err("something is drawn though all calls have ended".to_owned()),
        }
    }

    fn pass_time(&mut self) {
        let step = self.random.below(12);
        let jump = self.random.one_in(3);
        self.now = match self.wake.filter(|_| jump) {
            Some(wake) => wake.max(self.now),
            None => self.now + step,
        };
    }

    fn happen(&mut self) -> Result<(), String> {
        match self.random.below(20) {
            0..8 => return self.arrive(),
            8..11 => self.send(),
            11..15 if !self.running.is_empty() => {
                let place = self.random.below(self.running.len() as u64);
                self.end(place as usize);
            }
            15 => self.requeue(),
            16 => {
                let place = self.random.below(self.rules.farms.len() as u64) as usize;
                let open = self.random.one_in(2);
                self.set_open(place, open);
            }
            17 if self.random.one_in(3) => self.reload(),
            18 if !self.waiting.is_empty() => {
                let place = self.random.below(self.waiting.len() as u64) as usize;
                let Waiting { id, ticket } = self.waiting.swap_remove(place);
                assert_eq!(self.scheduler.cancel(at(self.now), ticket), Some(id));
            }
            _ => {}
        }
        Ok(())
    }

    fn arrive(&mut self) -> Result<(), String> {
        let id = self.calls.len();
        let server = match self.random.below(6) {
            0 | 1 => ServerChoice::sticky(self.random.below(5) as u16),
            2 => ServerChoice::only(self.any_server()),
            _ => ServerChoice::ANY,
        };
        let is_limited = self.random.one_in(3);
        let function: Arc<str> = match is_limited {
            true => "limited".into(),
            false => "other".into(),
        };
        let told = match self.mistake {
            Mistake::BoundEarly => ServerChoice::only(self.any_server()),
            Mistake::None | Mistake::OneMore => server,
        };
        self.calls.push(CallFacts {
            is_limited,
            server,
            arrived: self.now,
            was_requeued: false,
        });
        let call = Call::new(function, at(self.now))
            .backend(BACKEND)
            .caller(Caller(self.random.below(3)))
            .server(told);
        let call = match self.random.one_in(2) {
            true => self.scheduler.run_at_once(at(self.now), call),
            false => Err(call),
        };
        match call {
            Ok(hold) => self.runs(id, hold),
            Err(call) => {
                let submitted = self.scheduler.submit(at(self.now), call, id);
                let ticket = submitted.expect("nothing refuses it");
                self.waiting.push(Waiting { id, ticket });
                Ok(())
            }
        }
    }

    fn any_server(&mut self) -> ServerNumber {
        let place = self.random.below(self.rules.farms.len() as u64) as usize;
        self.rules.farms[place].server
    }

    fn send(&mut self) {
        let unsent = self.running.iter_mut().find(|running| !running.is_sent);
        if let Some(running) = unsent {
            running.is_sent = true;
            self.scheduler.sent(at(self.now), &running.hold);
            self.sent.push((self.now, running.id, Some(running.server)));
        }
    }

    fn end(&mut self, place: usize) {
        let running = self.running.swap_remove(place);
        if !running.is_sent && self.random.one_in(4) {
            self.scheduler.give_back(at(self.now), running.hold);
            return;
        }
        if !running.is_sent {
            // It may have left.
            self.sent.push((self.now, running.id, Some(running.server)));
        }
        self.scheduler
            .finish(at(self.now), running.hold, Outcome::Served, None);
    }

    fn requeue(&mut self) {
        let unsent = self.running.iter().position(|running| !running.is_sent);
        if let Some(place) = unsent {
            let Running { id, hold, .. } = self.running.swap_remove(place);
            self.calls[id].was_requeued = true;
            let ticket = self.scheduler.requeue(at(self.now), hold, id);
            self.waiting.push(Waiting { id, ticket });
        }
    }

    fn set_open(&mut self, place: usize, is_open: bool) {
        let farm = &mut self.rules.farms[place];
        farm.is_open = is_open;
        let name = format!("server:{}", farm.server.get());
        let supply = match is_open {
            true => Supply::Configured,
            false => Supply::capacity(0),
        };
        let found = self
            .scheduler
            .supply(at(self.now), &name, Supplier::Health, supply);
        assert!(found, "the server has a limit");
    }

    /// Servers come, go, change their places and their limits.
    fn reload(&mut self) {
        let before = self.rules.farms.len() as u64;
        let was: Vec<ServerNumber> = self.rules.farms.iter().map(|farm| farm.server).collect();
        if before > 1 && self.random.one_in(2) {
            let gone = self.random.below(before) as usize;
            self.rules.farms.remove(gone);
        }
        let new = numbered(10 + self.random.below(8) as u16);
        if !was.contains(&new) {
            // As with any limit that comes back, only what still runs there counts.
            let running = &self.running;
            let runs = |id| running.iter().any(|running| running.id == id);
            for (_, id, server) in &mut self.sent {
                server.take_if(|server| *server == new && !runs(*id));
            }
            let farm = Farm::random(&mut self.random, new);
            let place = self.random.below(self.rules.farms.len() as u64 + 1);
            self.rules.farms.insert(place as usize, farm);
        }
        let changed = self.random.below(self.rules.farms.len() as u64) as usize;
        self.rules.farms[changed].at_once = self.random.between(1, 3) as u32;
        let policy = self.rules.policy(self.mistake);
        self.scheduler.apply(at(self.now), policy);
    }

    /// Runs what may run, and checks each law.
    fn admit(&mut self) -> Result<(), String> {
        loop {
            match self.scheduler.next(at(self.now), &mut || 0) {
                Step::Run { payload, hold, .. } => {
                    let place = self.waiting.iter().position(|it| it.id == payload);
                    self.waiting
                        .swap_remove(place.ok_or("a call that does not wait runs")?);
                    self.runs(payload, hold)?;
                }
                Step::Expired { .. } => return Err("a call without a deadline is refused".into()),
                Step::SleepUntil(wake) => {
                    self.wake = Some(wake.as_nanos());
                    break;
                }
                Step::Idle => {
                    self.wake = None;
                    break;
                }
            }
        }
        self.scheduler.audit();
        self.no_call_waits_for_nothing()
    }

    /// A call leaves: every limit that it meets has room without it.
    fn runs(&mut self, id: usize, hold: Hold) -> Result<(), String> {
        let server = self.scheduler.server_at(hold.place());
        let server = server.ok_or("it has no server")?;
        let farms = self.rules.farms.iter();
        let place = farms.clone().position(|farm| farm.server == server);
        let place = place.ok_or("it goes to a server that is not there")?;
        if self.mistake != Mistake::BoundEarly && !self.may_serve(id, place) {
            return Err(format!(
                "call {id} goes to server {place}, which may not take it"
            ));
        }
        if let Some(full) = self.full(id, Some(place)) {
            return Err(format!("call {id} leaves for server {place} beyond {full}"));
        }
        self.running.push(Running {
            id,
            hold,
            server,
            is_sent: false,
        });
        Ok(())
    }

    /// Whether this server may take the call now, whatever its limits say.
    fn may_serve(&self, id: usize, place: usize) -> bool {
        let farm = &self.rules.farms[place];
        let call = &self.calls[id];
        let is_known = |server| self.rules.farms.iter().any(|farm| farm.server == server);
        // The scheduler chooses the server of a key, so any other call with the key tells which one it is.
        let may = match call.server.named() {
            Some(only) if is_known(only) => farm.server == only,
            Some(_) | None => true,
        };
        may && farm.is_open
    }

    /// The calls in a window of the servers that `counts` says, from `length` ago until now.
    fn in_window(&self, length: u64, counts: impl Fn(usize, Option<ServerNumber>) -> bool) -> u32 {
        let recent = self
            .sent
            .iter()
            .filter(|&&(moment, id, server)| moment + length > self.now && counts(id, server));
        let unsent = self.running.iter();
        let unsent = unsent.filter(|it| !it.is_sent && counts(it.id, Some(it.server)));
        (recent.count() + unsent.count()) as u32
    }

    /// The limit that has no room for one more call like this, at this server.
    fn full(&self, id: usize, place: Option<usize>) -> Option<&'static str> {
        if self.running.len() as u32 >= self.rules.total {
            return Some("the total");
        }
        if let Some((max, length)) = self.rules.per_function
            && self.calls[id].is_limited
            && self.in_window(length, |id, _| self.calls[id].is_limited) >= max
        {
            return Some("the window of its function");
        }
        let farm = &self.rules.farms[place?];
        let here = self.running.iter().filter(|it| it.server == farm.server);
        if here.count() as u32 >= farm.at_once {
            return Some("the calls at once of the server");
        }
        let (max, length) = farm.window?;
        let is_full = self.in_window(length, |_, server| server == Some(farm.server)) >= max;
        is_full.then_some("the window of the server")
    }

    fn no_call_waits_for_nothing(&mut self) -> Result<(), String> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.looks += 1;
        let limits = self.scheduler.limits_now(at(self.now));
        if limits.iter().any(|limit| limit.claimed > 0) {
            self.claimed += 1;
            return Ok(());
        }
        for Waiting { id, .. } in &self.waiting {
            let call = &self.calls[*id];
            let is_bound = call.server.is_sticky()
                && !call.was_requeued
                && call.arrived + self.rules.sticky_wait > self.now;
            if is_bound && self.mistake != Mistake::BoundEarly {
                continue;
            }
            for place in 0..self.rules.farms.len() {
                if self.may_serve(*id, place) && self.full(*id, Some(place)).is_none() {
                    return Err(format!(
                        "call {id} waits, and server {place} has room for it"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[test]
fn servers_keep_their_limits_and_no_call_waits_for_a_server_that_has_room() {
    let (mut looks, mut claimed) = (0, 0);
    for seed in seeds(SEEDS) {
        match World::new(seed, Mistake::None).live() {
            Ok(counts) => {
                looks += counts.0;
                claimed += counts.1;
            }
            Err(broken) => panic!("TIDEGATE_SEED={seed}: {broken}"),
        }
    }
    assert!(claimed * 2 < looks, "{claimed} of {looks} looks saw claims");
}

#[test]
fn the_oracle_finds_a_server_with_a_call_too_many_and_calls_bound_early() {
    let check = |mistake, law: &str| {
        let broken =
            at_least(100, 0..200).filter_map(|seed| World::new(seed, mistake).live().err());
        let found = broken.filter(|broken| broken.contains(law)).count();
        assert!(found >= 20, "{law}: {found}");
    };
    check(Mistake::OneMore, "beyond");
    check(Mistake::BoundEarly, "has room for it");
}

/// A scheduler with three servers of two calls each.
fn three(pick: Pick) -> Scheduler<usize> {
    let farm = |server| Farm {
        server: numbered(server),
        at_once: 2,
        window: None,
        is_open: true,
    };
    let rules = Rules {
        farms: [1, 2, 3].map(farm).to_vec(),
        total: 1000,
        per_function: None,
        pick,
        sticky_wait: 50,
    };
    Scheduler::new(rules.policy(Mistake::None))
}

fn numbered(number: u16) -> ServerNumber {
    ServerNumber::new(number).expect("a number of a server")
}

fn call(server: ServerChoice) -> Call {
    Call::new("any", at(0)).backend(BACKEND).server(server)
}

/// Runs calls until none may, and returns where each went.
fn run(scheduler: &mut Scheduler<usize>, now: u64) -> Vec<(u16, Hold)> {
    let mut ran = Vec::new();
    while let Step::Run { hold, .. } = scheduler.next(at(now), &mut || 0) {
        let server = scheduler.server_at(hold.place()).expect("it is bound");
        ran.push((server.get(), hold));
    }
    ran
}

fn submit(scheduler: &mut Scheduler<usize>, server: ServerChoice, count: usize) {
    for id in 0..count {
        scheduler.submit(at(0), call(server), id).expect("room");
    }
}

#[test]
fn the_first_server_with_room_or_the_least_busy_one_is_chosen() {
    let check = |pick, expected: [u16; 6]| {
        let mut scheduler = three(pick);
        submit(&mut scheduler, ServerChoice::ANY, 8);
        let ran = run(&mut scheduler, 0);
        let servers: Vec<u16> = ran.iter().map(|(server, _)| *server).collect();
        assert_eq!(servers, expected);
    };
    check(Pick::First, [1, 1, 2, 2, 3, 3]);
    check(Pick::Least, [1, 2, 3, 1, 2, 3]);
}

#[test]
fn a_server_that_was_down_gets_its_probe_also_while_the_others_are_idle() {
    let mut scheduler = three(Pick::Least);
    let probe = Supply::capacity(1);
    assert!(scheduler.supply(at(0), "server:2", Supplier::Health, probe));
    let mut went = Vec::new();
    for now in 1..=6 {
        submit(&mut scheduler, ServerChoice::ANY, 1);
        for (server, hold) in run(&mut scheduler, now) {
            went.push(server);
            scheduler.finish(at(now), hold, Outcome::Served, None);
        }
    }
    assert_eq!(went, [1, 2, 3, 1, 2, 3]);
}

#[test]
fn a_call_with_a_key_waits_for_its_server_and_delays_no_other_and_then_goes_to_any() {
    let mut scheduler = three(Pick::Least);
    let key = ServerChoice::sticky(7);
    submit(&mut scheduler, key, 4);
    let held = run(&mut scheduler, 0);
    assert_eq!(held.len(), 2, "its server takes two");
    assert_eq!(held[0].0, held[1].0);
    submit(&mut scheduler, ServerChoice::ANY, 2);
    assert_eq!(run(&mut scheduler, 1).len(), 2, "others have room");
    assert!(matches!(scheduler.next(at(49), &mut || 0), Step::SleepUntil(wake) if wake == at(50)));
    let moved = run(&mut scheduler, 50);
    assert_eq!(moved.len(), 2);
    assert!(moved.iter().all(|(server, _)| *server != held[0].0));
}

#[test]
fn the_least_busy_server_is_that_of_which_a_call_takes_the_smallest_part() {
    let rules = small_and_large(1_000);
    let mut scheduler = Scheduler::new(rules.policy(Mistake::None));
    submit(&mut scheduler, ServerChoice::ANY, 2);
    let ran = run(&mut scheduler, 0);
    let servers: Vec<u16> = ran.iter().map(|(server, _)| *server).collect();
    assert_eq!(servers, [2, 2]);
}

/// Two servers: the first takes one call in a window, the second three.
fn small_and_large(window: u64) -> Rules {
    let farm = |server, takes| Farm {
        server: numbered(server),
        at_once: takes,
        window: Some((takes, window)),
        is_open: true,
    };
    Rules {
        farms: [farm(1, 1), farm(2, 3)].to_vec(),
        total: 1000,
        per_function: None,
        pick: Pick::Least,
        sticky_wait: 50,
    }
}

#[test]
fn each_server_is_predicted_to_serve_its_part_of_the_calls_that_wait() {
    const WINDOW: u64 = 100_000_000;
    let rules = small_and_large(WINDOW);
    let mut scheduler = Scheduler::new(rules.policy(Mistake::None));
    submit(&mut scheduler, ServerChoice::ANY, 4);
    for (_, hold) in run(&mut scheduler, 0) {
        scheduler.finish(at(0), hold, Outcome::Served, None);
    }
    let starts: Vec<_> = (0..8)
        .map(|id| {
            let submitted = scheduler.submit(at(0), call(ServerChoice::ANY), id);
            scheduler.foresee(at(0), submitted.expect("room"), None)
        })
        .collect();
    for (nth, starts) in starts.iter().enumerate() {
        let window = 1 + nth as u64 / 4;
        assert_eq!(*starts, Some(at(window * WINDOW)), "{nth}");
    }
}

#[test]
fn a_policy_names_the_limit_at_which_calls_wait_for_a_server() {
    let rule = outstanding("server", 1, Scope::Server(BACKEND, numbered(1)));
    let alone = Policy::builder().limit(rule).build();
    let error = alone.expect_err("calls could wait nowhere").to_string();
    assert!(
        error.contains("its backend has no outstanding limit"),
        "{error}"
    );
}
