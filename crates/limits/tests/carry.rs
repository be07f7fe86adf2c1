//! A process dies, and the next one counts what it left: no span of a window's length ever has more than the limit, and
//! no more calls than the limit are at the backend, seen from the backend.

mod random;

use std::collections::BTreeMap;
use std::time::Duration;

use random::Random;
use tidegate_limits::call::Cost;
use tidegate_limits::policy::{
    ClassShare, LimitRule, Postpone, Scope, WhenFull, WindowShape, WindowStamp,
};
use tidegate_limits::scheduler::{BucketLimit, BucketRule, LedgerEvent, Outcome};
use tidegate_limits::{
    Burst, Call, Fill, Hold, Limit, Policy, Scheduler, Step, Timestamp, call::BucketId,
};

const WINDOW: Duration = Duration::from_secs(1);
const AT_ONCE: u32 = 4;
const SENT: u32 = 10;
const REPLIED: u32 = 6;

fn policy() -> Policy {
    let window = |max, stamp| Limit::Window {
        max,
        length: WINDOW,
        guard: Duration::ZERO,
        shape: WindowShape::Sliding,
        stamp,
    };
    let of_reads = window(REPLIED, WindowStamp::Replied);
    let limits = vec![
        LimitRule::new("outstanding", Limit::Outstanding { max: AT_ONCE }),
        LimitRule::new("total", window(SENT, WindowStamp::Sent)),
        LimitRule::new("reads", of_reads).scope(Scope::Function("read".into())),
    ];
    let classes = vec![ClassShare::new("all", 1)];
    Policy::new(limits, 100, WhenFull::Refuse, Postpone::InTurn, classes).expect("it is sound")
}

/// The rest of a process, from its events alone.
#[derive(Clone, Default)]
struct Ledger {
    calls: BTreeMap<u32, (Call, Timestamp, Vec<WindowStamp>)>,
    departures: Vec<(u32, Timestamp, u32)>,
}

impl Ledger {
    fn follow(&mut self, scheduler: &mut Scheduler<&'static str>) {
        let events: Vec<_> = scheduler.events().collect();
        for event in events {
            match event {
                LedgerEvent::Admitted { place } => {
                    if let Some((call, since)) = scheduler.running(place) {
                        let before = self.calls.insert(place, (call.clone(), since, Vec::new()));
                        assert!(before.is_none(), "a place has one call");
                    }
                }
                LedgerEvent::Departed { limit, at, cost } => {
                    self.departures.push((limit, at, cost))
                }
                LedgerEvent::Stamped { place, stamp } => {
                    self.calls.get_mut(&place).expect("it runs").2.push(stamp);
                }
                LedgerEvent::Ended { place, .. } => {
                    self.calls.remove(&place).expect("it ran");
                }
            }
        }
    }
}

/// A call at the backend.
struct Running {
    /// `None` if its process is dead.
    hold: Option<Hold>,
    function: &'static str,
    arrived: Timestamp,
    admitted: Timestamp,
    ends: Timestamp,
    departed: Vec<WindowStamp>,
}

/// The ledger, and the calls that the backend has seen.
#[derive(Default)]
struct World {
    running: BTreeMap<u64, Running>,
    ledger: Ledger,
    /// The moment of each departure, by the backend's own count.
    seen: [Vec<Timestamp>; 2],
    calls: u64,
}

/// The knowledge of the next process.
#[derive(Clone, Copy, PartialEq)]
enum Known {
    All,
    /// No knowledge: a negative control.
    Nothing,
    /// No knowledge, so it assumes that all was used.
    AssumesFull,
}

fn begin(world: &mut World, now: Timestamp, known: Known) -> Scheduler<&'static str> {
    let mut scheduler = Scheduler::new(policy());
    scheduler.keep_events();
    // Any process: its calls end when the backend is done.
    for running in world.running.values_mut() {
        running.hold = None;
    }
    let before = std::mem::take(&mut world.ledger);
    match known {
        Known::Nothing => {}
        Known::AssumesFull => scheduler.carry_full_windows(now),
        Known::All => {
            for &(limit, at, cost) in &before.departures {
                let name = ["outstanding", "total", "reads"][limit as usize];
                let cost = Cost::new(cost).expect("it is above zero");
                assert!(scheduler.carry_departure(name, at, cost));
            }
            world.ledger.departures = before.departures;
            for (call, since, departed) in before.calls.into_values() {
                let (arrived, function) = (call.arrived, call.function.clone());
                let hold = scheduler.carry_call(now, since, call, &departed);
                let ledger = (
                    scheduler.running(hold.place()).expect("it runs").0.clone(),
                    since,
                    departed,
                );
                world.ledger.calls.insert(hold.place(), ledger);
                let mut running = world.running.values_mut();
                let is_it = |it: &&mut Running| {
                    it.hold.is_none()
                        && it.admitted == since
                        && it.arrived == arrived
                        && *it.function == *function
                };
                running.find(is_it).expect("it runs").hold = Some(hold);
            }
            // They are in the ledger already.
            scheduler.events().for_each(drop);
        }
    }
    scheduler
}

/// Most within one window's length.
fn densest(moments: &[Timestamp]) -> usize {
    let spans = moments.iter().enumerate().map(|(first, &from)| {
        let within = moments[first..].iter();
        within.filter(|&&at| at < from + WINDOW).count()
    });
    spans.max().unwrap_or(0)
}

/// A storm with kills. Returns the most in a window of `total` and of `reads`, and the most at once.
fn storm(seed: u64, known: Known) -> (usize, usize, usize) {
    let mut random = Random::new(seed);
    let mut world = World::default();
    let mut now = Timestamp::ZERO;
    let mut scheduler = begin(&mut world, now, Known::All);
    let mut at_once = 0;
    for _ in 0..600 {
        now = now + Duration::from_millis(random.below(60));
        let over = world.running.iter().filter(|(_, it)| it.ends <= now);
        let over: Vec<u64> = over.map(|(&id, _)| id).collect();
        for id in over {
            let ended = world.running.remove(&id).expect("it runs");
            if let Some(hold) = ended.hold {
                scheduler.finish(now, hold, Outcome::Served, None);
                world.ledger.follow(&mut scheduler);
            }
        }
        for _ in 0..random.below(4) {
            let function = random.pick(&["read", "write"]);
            let _ = scheduler.submit(now, Call::new(function, now), function);
        }
        while let Step::Run { hold, payload, .. } = scheduler.next(now, &mut || 0) {
            let ends = now + Duration::from_millis(20 + random.below(400));
            world.calls += 1;
            let id = world.calls;
            let function = payload;
            let arrived = scheduler.running(hold.place()).expect("it runs").0.arrived;
            world.running.insert(
                id,
                Running {
                    hold: Some(hold),
                    function,
                    arrived,
                    admitted: now,
                    ends,
                    departed: Vec::new(),
                },
            );
            world.ledger.follow(&mut scheduler);
        }
        let ids: Vec<u64> = world.running.keys().copied().collect();
        for id in ids {
            let running = world.running.get_mut(&id).expect("it runs");
            let Some(hold) = &running.hold else { continue };
            let next = [WindowStamp::Sent, WindowStamp::Replied];
            let Some(&stamp) = next.get(running.departed.len()) else {
                continue;
            };
            if random.one_in(2) {
                match stamp {
                    WindowStamp::Sent => scheduler.sent(now, hold),
                    WindowStamp::Replied => scheduler.replied(now, hold),
                }
                running.departed.push(stamp);
                if stamp == WindowStamp::Sent {
                    world.seen[0].push(now);
                } else if running.function == "read" {
                    world.seen[1].push(now);
                }
                world.ledger.follow(&mut scheduler);
            }
        }
        let at_backend = world.running.values().filter(|it| !it.departed.is_empty());
        at_once = at_once.max(at_backend.count());
        if random.one_in(40) {
            // Calls that have not left are not at the backend.
            world
                .running
                .retain(|_, it| !it.departed.is_empty() || known == Known::All);
            scheduler = begin(&mut world, now, known);
        }
    }
    (densest(&world.seen[0]), densest(&world.seen[1]), at_once)
}

#[test]
fn what_is_carried_holds_in_each_window_and_at_once() {
    for seed in 0..200 {
        let (total, reads, at_once) = storm(seed, Known::All);
        assert!(total <= SENT as usize, "seed {seed}: {total} in a window");
        assert!(
            reads <= REPLIED as usize,
            "seed {seed}: {reads} reads in a window"
        );
        assert!(
            at_once <= AT_ONCE as usize,
            "seed {seed}: {at_once} at once"
        );
    }
}

#[test]
fn a_process_that_knows_nothing_breaks_its_limits() {
    let mut most = (0, 0, 0);
    for seed in 0..200 {
        let (total, reads, at_once) = storm(seed, Known::Nothing);
        most = (most.0.max(total), most.1.max(reads), most.2.max(at_once));
    }
    assert!(
        most.0 > SENT as usize && most.1 > REPLIED as usize && most.2 > AT_ONCE as usize,
        "{most:?}"
    );
}

#[test]
fn a_process_that_assumes_the_worst_keeps_its_windows() {
    for seed in 0..200 {
        let (total, _, _) = storm(seed, Known::AssumesFull);
        assert!(total <= SENT as usize, "seed {seed}: {total} in a window");
    }
}

#[test]
fn a_bucket_continues_at_its_level() {
    let id = BucketId(7);
    let rule = || BucketRule {
        name: "nova".into(),
        limit: BucketLimit::Bucket {
            burst: Burst::new(30.0).expect("it is sound"),
            fill: Fill::new(5.0).expect("it is sound"),
        },
        on_excess: Default::default(),
        order: Default::default(),
        settlement: Default::default(),
    };
    let at = |seconds| Timestamp::ZERO + Duration::from_secs(seconds);
    let level = |tokens, since, now| {
        let mut scheduler: Scheduler<()> = Scheduler::new(policy());
        scheduler
            .set_bucket(now, id, rule())
            .expect("there is room");
        assert!(scheduler.carry_tokens(now, id, tokens, since));
        scheduler.bucket_level(now, id).expect("it is there").0
    };
    assert_eq!(level(2.0, at(10), at(10)), 2.0);
    assert_eq!(level(2.0, at(10), at(13)), 17.0);
    assert_eq!(level(-20.0, at(10), at(11)), -15.0);
    assert_eq!(level(2.0, at(10), at(100)), 30.0);
    let mut scheduler: Scheduler<()> = Scheduler::new(policy());
    assert!(!scheduler.carry_tokens(at(1), id, 2.0, at(0)));
}
