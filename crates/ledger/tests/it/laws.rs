//! A process dies after any of its stores. What the next one finds counts at least what the backend has seen.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use tidegate_ledger::{Admission, CallStage, Carryover, Ledger, PromisedPlace, Void, read};

use crate::recorded::{BOOT, Numbers, Recorded, begun, bytes, call, layout};

/// The calls that the backend has seen, and the levels of buckets, after whole steps.
#[derive(Clone, Default)]
struct Truth {
    now: u64,
    /// Running calls: where they are, and which windows count them already.
    calls: BTreeMap<u32, (u64, CallStage)>,
    /// The moments of all departures by window.
    departures: [Vec<u64>; 2],
    levels: BTreeMap<u32, (f64, u64)>,
    places: BTreeMap<u32, PromisedPlace>,
}

const LENGTHS: [u64; 2] = [1000, 4_096_000];
const STAMPS: [CallStage; 2] = [CallStage::Sent, CallStage::Replied];

impl Truth {
    /// Takes one step at random, in the truth and in the ledger.
    fn step(&mut self, ledger: &mut Ledger<&Recorded>, numbers: &mut Numbers) {
        self.now += numbers.below(400);
        let place = numbers.below(4) as u32;
        match (numbers.below(8), self.calls.get(&place).copied()) {
            (0 | 1, None) => {
                // A window of five: the scheduler admits no more.
                let counts = self.departures[0].iter();
                let counts = counts.filter(|&&at| at + LENGTHS[0] > self.now).count();
                let reserved = self.calls.values();
                let reserved = reserved.filter(|(_, stage)| *stage < STAMPS[0]).count();
                if counts + reserved < 5 {
                    ledger.admit(place, &call(self.now));
                    self.calls.insert(place, (self.now, CallStage::Admitted));
                }
            }
            (2 | 3, Some((at, stage))) if stage < CallStage::Replied => {
                let next = if stage == CallStage::Admitted { 0 } else { 1 };
                ledger.depart(next, self.now, 1);
                ledger.advance(place, STAMPS[next]);
                self.departures[next].push(self.now);
                self.calls.insert(place, (at, STAMPS[next]));
            }
            (4, Some((_, stage))) => {
                for window in (0..2).filter(|&window| STAMPS[window] > stage) {
                    ledger.depart(window, self.now, 1);
                    self.departures[window].push(self.now);
                }
                ledger.end(place);
                self.calls.remove(&place);
            }
            (5, _) if numbers.below(4) == 0 => {
                ledger.forget_level(place.min(2));
                self.levels.remove(&place.min(2));
            }
            (5, _) => {
                let tokens = numbers.below(100) as f64 / 8.0 - 3.0;
                ledger.set_level(
                    place.min(2),
                    [u64::from(place.min(2)) + 1, 9],
                    tokens,
                    self.now,
                );
                self.levels.insert(place.min(2), (tokens, self.now));
            }
            (6, _) => {
                let promised = PromisedPlace {
                    digest: [numbers.next(), numbers.next()],
                    arrived: self.now,
                    until: self.now + 500,
                    limited: numbers.below(2) == 0,
                };
                ledger.promise(place % 2, &promised);
                self.places.insert(place % 2, promised);
            }
            (7, _) if self.places.remove(&(place % 2)).is_some() => {
                ledger.forget_promise(place % 2);
            }
            _ => {}
        }
    }

    /// The calls that count in a window at `now` if the process died: also the calls that may have left.
    fn used(&self, window: usize, now: u64) -> usize {
        let departed = self.departures[window].iter();
        let departed = departed.filter(|&&at| at + LENGTHS[window] > now).count();
        let running = self.calls.values();
        departed + running.filter(|(_, stage)| *stage < STAMPS[window]).count()
    }
}

fn used(carried: &Carryover, window: usize, now: u64) -> usize {
    let departed = carried.windows[window].departures.iter();
    let departed = departed.filter(|it| it.at + LENGTHS[window] > now);
    let running = carried.calls.iter();
    let running = running.filter(|it| it.stage < STAMPS[window]).count();
    departed.map(|it| it.cost as usize).sum::<usize>() + running
}

#[test]
fn after_whole_steps_the_next_process_finds_exactly_what_was() {
    for seed in 0..300 {
        let memory = Recorded::new(layout().words().expect("it is small"));
        let (mut ledger, mut truth, mut numbers) =
            (begun(&memory), Truth::default(), Numbers(seed));
        for _ in 0..200 {
            truth.step(&mut ledger, &mut numbers);
            let carried = read(&memory.bytes(), BOOT, truth.now).expect("it is whole");
            assert_eq!(carried.pid, 7);
            assert_eq!(carried.calls.len(), truth.calls.len(), "seed {seed}");
            let mut calls = carried.calls.iter();
            assert!(calls.all(|it| (it.tag, it.usual_ms) == (3, 250) && &*it.function == "other"));
            assert_eq!(
                used(&carried, 0, truth.now),
                truth.used(0, truth.now),
                "seed {seed}"
            );
            // Departures of the large window are merged within a 4096th of it, and never count for less.
            assert!(
                used(&carried, 1, truth.now) >= truth.used(1, truth.now),
                "seed {seed}"
            );
            let early = truth.now.saturating_sub(LENGTHS[1] / 4096);
            assert!(
                used(&carried, 1, truth.now) <= truth.used(1, early),
                "seed {seed}"
            );
            let levels = carried.levels.iter().map(|it| (it.tokens, it.at));
            assert!(levels.eq(truth.levels.values().copied()), "seed {seed}");
            let places = carried.places.iter();
            assert!(places.eq(truth.places.values()), "seed {seed}");
            assert_eq!(carried.secret, [11, 12]);
        }
    }
}

#[test]
fn a_process_that_dies_between_two_stores_never_leaves_too_little() {
    let mut voids = 0;
    let mut readable = 0;
    for seed in 0..60 {
        let memory = Recorded::new(layout().words().expect("it is small"));
        let (mut ledger, mut truth, mut numbers) =
            (begun(&memory), Truth::default(), Numbers(seed));
        for _ in 0..200 {
            let before = (truth.clone(), memory.words.borrow().clone());
            memory.stores.borrow_mut().clear();
            truth.step(&mut ledger, &mut numbers);
            let mut words = before.1;
            for &(at, word) in &*memory.stores.borrow() {
                match read(&bytes(&words), BOOT, truth.now) {
                    Err(Void::Damaged) => voids += 1,
                    Err(other) => panic!("seed {seed}: {other}"),
                    Ok(carried) => {
                        readable += 1;
                        for window in 0..2 {
                            let (found, was) = (
                                used(&carried, window, truth.now),
                                before.0.used(window, truth.now),
                            );
                            assert!(
                                found >= was,
                                "seed {seed}: window {window}, {found} of {was}"
                            );
                        }
                        // A call that ends is at the backend no more.
                        let still = before
                            .0
                            .calls
                            .keys()
                            .filter(|it| truth.calls.contains_key(it));
                        assert!(carried.calls.len() >= still.count(), "seed {seed}");
                    }
                }
                words[at] = word;
            }
        }
    }
    assert!(readable > voids, "{readable} readable, {voids} void");
}

#[test]
fn a_ledger_that_was_not_finished_is_void() {
    let memory = Recorded::new(layout().words().expect("it is small"));
    begun(&memory);
    let stores = memory.stores.borrow();
    // An older ledger was here.
    let mut words = memory.words.borrow().clone();
    for (done, &(at, word)) in stores.iter().enumerate() {
        if done > 0 && done < stores.len() {
            assert_eq!(
                read(&bytes(&words), BOOT, 0),
                Err(Void::NotALedger),
                "{done} stores"
            );
        }
        words[at] = word;
    }
    assert!(read(&bytes(&words), BOOT, 0).is_ok());
}

#[test]
fn another_boot_and_another_version_are_named() {
    let memory = Recorded::new(layout().words().expect("it is small"));
    begun(&memory);
    let other = tidegate_ledger::Boot([1, 3]);
    assert_eq!(read(&memory.bytes(), other, 0), Err(Void::OtherBoot));
    memory.words.borrow_mut()[0] += 1;
    assert_eq!(read(&memory.bytes(), BOOT, 0), Err(Void::OtherVersion));
    assert_eq!(read(b"", BOOT, 0), Err(Void::NotALedger));
}

#[test]
fn departures_and_calls_move_into_the_ledger_of_another_layout() {
    let memory = Recorded::new(layout().words().expect("it is small"));
    let mut ledger = begun(&memory);
    for at in 1..=7 {
        ledger.depart(0, 100 * at, 1);
    }
    let held_since = NonZeroU64::new(790);
    let held = Admission {
        held_since,
        ..call(750)
    };
    ledger.admit(2, &held);
    let carried = read(&memory.bytes(), BOOT, 800).expect("it is whole");
    assert_eq!(carried.calls[0].held_since, held_since);
    // Six entries are kept for a window of five.
    let kept = carried.windows[0].departures.iter().map(|it| it.at);
    assert!(kept.eq((2..=7).map(|it| 100 * it)));

    let mut wider = layout();
    wider.windows.reverse();
    wider.windows[1].max = 50;
    wider.calls = 90;
    let next = Recorded::new(wider.words().expect("it is small"));
    let mut ledger = Ledger::create(&next, &wider, BOOT, 8, [11, 12]).expect("it is small");
    ledger.carry_departures(&wider, &carried);
    let call = &carried.calls[0];
    ledger.admit(80, &call.admission(0, 0));
    let moved = read(&next.bytes(), BOOT, 900).expect("it is whole");
    assert_eq!(moved.windows[1], carried.windows[0]);
    assert_eq!(&*moved.calls[0].function, "guest_get_info");
    assert_eq!((moved.calls[0].at, moved.pid), (750, 8));
}
