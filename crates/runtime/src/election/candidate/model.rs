//! Candidates around a store that loses, delays and forgets, in virtual time: properties of each
//! of thousands of seeded runs.
//!
//! A run knows the real time, but its candidates do not: each has its own clock, 500 ppm fast to
//! 500 ppm slow. While one considers itself the master, no other's fence may be in the future in
//! real time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tidegate_limits::Timestamp;

use super::super::register::{CandidateRecord, RegisterEntry, RegisterSwap, RegisterVersion};
use super::super::{Mastership, TimeToLive};
use super::{Candidate, CandidateStep};
use crate::seeds::seeds;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const TTL: u64 = 3 * SECOND;

/// How the store keeps a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// As etcd: until the end of a lease that began before the write. Reads are current.
    Leased,
    /// As ZooKeeper: for ever. Reads may be slightly old.
    Lasting,
}

/// The moment from which the tested driver counts a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    FromSending,
    /// The mistake that this model must catch.
    FromReply,
}

#[derive(Clone, Debug)]
struct Kept {
    entry: RegisterEntry,
    /// Real time.
    ends: u64,
}

#[derive(Clone, Debug)]
enum Ask {
    Read,
    Write {
        expected: Option<RegisterVersion>,
        record: CandidateRecord,
    },
}

#[derive(Clone, Debug)]
enum Answer {
    Read(Option<RegisterEntry>),
    Write(RegisterSwap),
}

#[derive(Clone, Debug)]
enum Event {
    /// The candidate takes its next step.
    Turn,
    /// A request reaches the store.
    Arrives(u64, Ask),
    /// An answer reaches the candidate.
    Answered(u64, Answer),
    /// The candidate's wait ends.
    TimedOut(u64),
    /// The candidate gets the news of a changed register.
    Changed,
    /// The process pauses.
    Pauses,
    /// The process dies and another one starts.
    Restarts,
}

struct Happening {
    at: u64,
    order: u64,
    who: usize,
    /// The candidate's life that it belongs to; messages for an earlier life are lost.
    life: u64,
    event: Event,
}

impl PartialEq for Happening {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Happening {}
impl PartialOrd for Happening {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Happening {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

struct Player {
    candidate: Candidate,
    life: u64,
    dead: bool,
    /// The player's nanoseconds in a real second, and its clock at real zero.
    rate: f64,
    offset: u64,
    /// The request in progress.
    waits: Option<u64>,
    paused_until: u64,
    /// The player's fence, in real time.
    fence: u64,
    term: Option<u64>,
}

impl Player {
    fn clock(&self, real: u64) -> Timestamp {
        Timestamp::from_nanos(self.offset + (real as f64 * self.rate) as u64)
    }

    fn real(&self, own: Timestamp) -> u64 {
        (own.as_nanos().saturating_sub(self.offset) as f64 / self.rate).ceil() as u64
    }
}

struct World {
    now: u64,
    order: u64,
    requests: u64,
    lives: u64,
    rng: StdRng,
    queue: BinaryHeap<Reverse<Happening>>,
    kind: Kind,
    counts: Counts,
    /// The end of the faults.
    calm_from: u64,
    players: Vec<Player>,
    kept: Option<Kept>,
    /// Earlier records, for old reads.
    past: Vec<(u64, Option<RegisterEntry>)>,
    revision: u64,
    /// Two fences at one real moment: when, and of which candidates.
    overlaps: Vec<(u64, usize, usize)>,
    /// The candidates that became master, and when.
    reigns: Vec<(u64, usize, u64)>,
}

impl World {
    fn new(seed: u64, kind: Kind, counts: Counts, calm_from: u64) -> Self {
        let mut world = Self {
            now: 0,
            order: 0,
            requests: 0,
            lives: 0,
            rng: StdRng::seed_from_u64(seed),
            queue: BinaryHeap::new(),
            kind,
            counts,
            calm_from,
            players: Vec::new(),
            kept: None,
            past: Vec::new(),
            revision: 0,
            overlaps: Vec::new(),
            reigns: Vec::new(),
        };
        for who in 0..3 {
            let player = world.player();
            world.players.push(player);
            world.after(0, who, Event::Turn);
            let (pause, restart) = (world.up_to(8 * TTL), world.up_to(20 * TTL));
            world.after(pause, who, Event::Pauses);
            world.after(restart, who, Event::Restarts);
        }
        world
    }

    fn player(&mut self) -> Player {
        self.lives += 1;
        let ttl = TimeToLive::new(Duration::from_nanos(TTL)).expect("it is in range");
        let id = format!("candidate {}", self.lives);
        Player {
            candidate: Candidate::new(id, format!("address {}", self.lives), ttl),
            life: self.lives,
            dead: false,
            rate: 1.0 + self.rng.random_range(-500e-6..=500e-6),
            offset: self.rng.random_range(0..1_000 * SECOND),
            waits: None,
            paused_until: 0,
            fence: 0,
            term: None,
        }
    }

    fn up_to(&mut self, most: u64) -> u64 {
        self.rng.random_range(0..=most)
    }

    fn calm(&self) -> bool {
        self.now >= self.calm_from
    }

    fn chance(&mut self, of: f64) -> bool {
        !self.calm() && self.rng.random_bool(of)
    }

    /// How long a message takes; `None` if it is lost.
    fn delay(&mut self) -> Option<u64> {
        if self.chance(0.05) {
            return None;
        }
        let most = if self.chance(0.03) {
            3 * TTL
        } else if self.chance(0.2) {
            TTL / 2
        } else {
            10 * MS
        };
        Some(self.up_to(most))
    }

    fn after(&mut self, delay: u64, who: usize, event: Event) {
        self.order += 1;
        self.queue.push(Reverse(Happening {
            at: self.now + delay,
            order: self.order,
            who,
            life: self.players[who].life,
            event,
        }));
    }

    fn run(&mut self, until: u64) {
        while self.queue.peek().is_some_and(|next| next.0.at <= until) {
            let Reverse(next) = self.queue.pop().expect("it was seen");
            self.now = next.at;
            self.happens(next);
        }
        self.now = until;
    }

    fn happens(&mut self, next: Happening) {
        let (who, now) = (next.who, self.now);
        // The store completes the request even if the candidate is gone.
        if let Event::Arrives(request, ask) = next.event {
            self.arrives(who, next.life, request, &ask);
            return;
        }
        let player = &mut self.players[who];
        if player.life != next.life || player.dead {
            return;
        }
        if now < player.paused_until {
            let delay = player.paused_until - now;
            self.after(delay, who, next.event);
            return;
        }
        let own = player.clock(now);
        match next.event {
            Event::Turn => self.turn(who),
            Event::Changed => {
                player.candidate.look(own);
                self.turn(who);
            }
            Event::TimedOut(request) => {
                if player.waits == Some(request) {
                    player.waits = None;
                    let entropy = self.rng.random();
                    self.players[who].candidate.failed(own, entropy);
                    self.turn(who);
                }
            }
            Event::Answered(request, answer) => {
                if player.waits == Some(request) {
                    player.waits = None;
                    match answer {
                        Answer::Read(entry) => player.candidate.found(own, entry),
                        Answer::Write(swapped) => {
                            if self.counts == Counts::FromReply
                                && let Some((_, sent)) = &mut player.candidate.unsettled
                            {
                                *sent = own;
                            }
                            player.candidate.swapped(own, swapped);
                        }
                    }
                    self.turn(who);
                }
            }
            Event::Pauses => {
                if !self.calm() {
                    let pause = self.up_to(3 * TTL);
                    self.players[who].paused_until = now + pause;
                    let next = pause + self.up_to(8 * TTL);
                    self.after(next, who, Event::Pauses);
                }
            }
            Event::Restarts => {
                if !self.calm() {
                    self.players[who] = self.player();
                    let (start, next) = (self.up_to(2 * TTL), self.up_to(20 * TTL));
                    self.after(start, who, Event::Turn);
                    self.after(next, who, Event::Restarts);
                    let pause = self.up_to(8 * TTL);
                    self.after(pause, who, Event::Pauses);
                }
            }
            Event::Arrives(..) => unreachable!("it was taken above"),
        }
    }

    fn turn(&mut self, who: usize) {
        self.judge(who);
        let player = &self.players[who];
        if player.waits.is_some() {
            return;
        }
        let own = player.clock(self.now);
        let ask = match player.candidate.next(own) {
            CandidateStep::Wait(until) => {
                assert!(until > own, "a wait for nothing is a busy loop");
                let delay = player.real(until).saturating_sub(self.now).max(1);
                self.after(delay, who, Event::Turn);
                return;
            }
            CandidateStep::Read => Ask::Read,
            CandidateStep::Write { expected, record } => {
                self.players[who].candidate.sent(own);
                Ask::Write { expected, record }
            }
        };
        self.requests += 1;
        let request = self.requests;
        self.players[who].waits = Some(request);
        // The process may pause between reading its clock and sending.
        let stall = if self.chance(0.02) {
            self.up_to(2 * TTL)
        } else {
            0
        };
        self.players[who].paused_until = self.now + stall;
        if let Some(delay) = self.delay() {
            self.after(stall + delay, who, Event::Arrives(request, ask));
        }
        self.after(stall + TTL / 3, who, Event::TimedOut(request));
    }

    fn arrives(&mut self, who: usize, life: u64, request: u64, ask: &Ask) {
        let now = self.now;
        if self.kept.as_ref().is_some_and(|kept| kept.ends <= now) {
            self.keep(None);
        }
        let current = self.kept.as_ref().map(|kept| kept.entry.clone());
        let answer = match ask {
            Ask::Read if self.kind == Kind::Lasting && self.chance(0.3) => {
                let behind = now.saturating_sub(self.up_to(200 * MS));
                let then = self.past.iter().rev().find(|(at, _)| *at <= behind);
                Answer::Read(then.and_then(|(_, entry)| entry.clone()))
            }
            Ask::Read => Answer::Read(current),
            Ask::Write { expected, record } => {
                if current.as_ref().map(|entry| entry.version) == *expected {
                    self.revision += 1;
                    let version = RegisterVersion {
                        revision: self.revision,
                        writes: current.map_or(0, |entry| entry.version.writes + 1),
                    };
                    let entry = RegisterEntry {
                        version,
                        record: record.clone(),
                    };
                    let ends = match self.kind {
                        Kind::Lasting => u64::MAX,
                        Kind::Leased => now + record.ttl_ms * MS + self.up_to(SECOND / 2),
                    };
                    self.keep(Some(Kept { entry, ends }));
                    Answer::Write(RegisterSwap::Done(version))
                } else {
                    Answer::Write(RegisterSwap::Refused(current))
                }
            }
        };
        if self.players[who].life == life
            && let Some(delay) = self.delay()
        {
            self.after(delay, who, Event::Answered(request, answer));
        }
    }

    fn keep(&mut self, kept: Option<Kept>) {
        self.past
            .push((self.now, kept.as_ref().map(|kept| kept.entry.clone())));
        self.kept = kept;
        for who in 0..self.players.len() {
            if self.calm() || self.rng.random_bool(0.8) {
                let delay = self.up_to(20 * MS);
                self.after(delay, who, Event::Changed);
            }
        }
    }

    /// Compares a candidate's claim with every fence.
    fn judge(&mut self, who: usize) {
        let now = self.now;
        let player = &mut self.players[who];
        let own = player.clock(now);
        let Mastership::Master { until, term } = player.candidate.mastership(own) else {
            return;
        };
        player.fence = player.real(until);
        if player.term != Some(term) {
            player.term = Some(term);
            self.reigns.push((now, who, term));
        }
        let others = self.players.iter().enumerate();
        let other = others
            .filter(|(other, player)| *other != who && !player.dead && player.fence > now)
            .map(|(other, _)| other)
            .next();
        if let Some(other) = other {
            self.overlaps.push((now, who, other));
        }
    }
}

#[test]
fn two_fences_never_overlap_with_losses_delays_and_pauses() {
    let mut reigns = 0;
    let seeds = seeds(0..3_000);
    let least = 5 * seeds.len();
    for seed in seeds {
        let kind = [Kind::Leased, Kind::Lasting][seed as usize % 2];
        let mut world = World::new(seed, kind, Counts::FromSending, u64::MAX);
        world.run(40 * TTL);
        assert_eq!(world.overlaps, [], "seed {seed}, {kind:?}");
        // A later term is greater: it can serve as a token.
        let terms: Vec<u64> = world.reigns.iter().map(|(_, _, term)| *term).collect();
        assert!(terms.is_sorted(), "seed {seed}, {kind:?}: {terms:?}");
        reigns += world.reigns.len();
    }
    // Without any master there would be no overlap either.
    assert!(reigns > least, "{reigns} masterships in all");
}

#[test]
fn the_model_catches_a_fence_that_is_counted_from_the_reply() {
    let caught = (0..400).filter(|seed| {
        let mut world = World::new(*seed, Kind::Lasting, Counts::FromReply, u64::MAX);
        world.run(40 * TTL);
        !world.overlaps.is_empty()
    });
    assert!(caught.count() > 10);
}

#[test]
fn after_the_trouble_there_is_a_master_and_a_dead_one_is_replaced_in_time() {
    for seed in seeds(0..600) {
        let kind = [Kind::Leased, Kind::Lasting][seed as usize % 2];
        let calm = 10 * TTL;
        let mut world = World::new(seed, kind, Counts::FromSending, calm);
        // Processes paused and messages sent before the end of the faults take up to three times to
        // live.
        world.run(calm + 6 * TTL);
        let now = world.now;
        let leads = |world: &World| {
            let players = world.players.iter();
            players
                .map(|player| !player.dead && player.fence > world.now)
                .collect::<Vec<_>>()
        };
        let before = leads(&world);
        assert_eq!(
            before.iter().filter(|leads| **leads).count(),
            1,
            "seed {seed}, {kind:?}: {before:?}"
        );
        let master = before.iter().position(|leads| *leads).expect("one does");
        world.players[master].dead = true;
        world.run(now + TTL + SECOND);
        let after = leads(&world);
        assert_eq!(
            after.iter().filter(|leads| **leads).count(),
            1,
            "seed {seed}, {kind:?}: {after:?}"
        );
        assert_eq!(world.overlaps, [], "seed {seed}, {kind:?}");
    }
}
