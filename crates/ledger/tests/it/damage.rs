//! Damaged files. Each is void, or says the same as before the damage.

use tidegate_ledger::{CallStage, JobRecord, PromisedPlace, read};

use crate::recorded::{BOOT, Numbers, Recorded, begun, call, layout};

/// A ledger with something in each region.
fn filled() -> Vec<u8> {
    let memory = Recorded::new(layout().words().expect("it is small"));
    let mut ledger = begun(&memory);
    for at in 1..=9 {
        ledger.depart(0, 100 * at, 1);
        ledger.depart(1, 100_000 * at, 2);
    }
    ledger.admit(0, &call(950));
    ledger.admit(3, &call(960));
    ledger.advance(3, CallStage::Sent);
    let job = JobRecord {
        key: 0x1234,
        most_ms: 5,
    };
    ledger.begin_job(3, job);
    ledger.set_level(1, [5, 6], -2.5, 970);
    let promised = PromisedPlace {
        digest: [7, 8],
        arrived: 980,
        until: 1_500,
        limited: true,
    };
    ledger.promise(1, &promised);
    memory.bytes()
}

#[test]
fn a_damaged_ledger_is_void_or_says_what_it_said() {
    let whole = filled();
    let said = read(&whole, BOOT, 1_000_000).expect("it is whole");
    let mut numbers = Numbers(1);
    let mut voids = 0;
    // A million with TIDEGATE_DAMAGED.
    let files =
        std::env::var("TIDEGATE_DAMAGED").map_or(100_000, |it| it.parse().expect("a number"));
    // What is never written says nothing, so damage goes mostly to the front.
    let used = whole.len().min(1200);
    for file in 0..files {
        let mut bytes = whole.clone();
        let at = numbers.below(used as u64) as usize;
        match numbers.below(6) {
            0 => bytes[at] ^= 1 << numbers.below(8),
            1 => bytes.truncate(at),
            2 => {
                let end = bytes.len().min(at + 1 + numbers.below(64) as usize);
                bytes[at..end].fill(0);
            }
            3 => {
                let end = bytes.len().min(at + 1 + numbers.below(64) as usize);
                bytes[at..end]
                    .iter_mut()
                    .for_each(|it| *it = numbers.next() as u8);
            }
            4 => {
                // Two records change places.
                let (one, other) = (at / 8 * 8, numbers.below(used as u64 / 8) as usize * 8);
                (0..8).for_each(|byte| bytes.swap(one + byte, other + byte));
            }
            _ => {
                let from = numbers.below(used as u64 / 8) as usize * 8;
                let part = bytes[from..from + 8].to_vec();
                bytes[at / 8 * 8..at / 8 * 8 + 8].copy_from_slice(&part);
            }
        }
        match read(&bytes, BOOT, 1_000_000) {
            Err(_) => voids += 1,
            Ok(carried) => assert_eq!(carried, said, "file {file}"),
        }
    }
    assert!(voids > files / 2, "{voids} of {files} void");
}

#[test]
fn moments_after_now_count_as_now() {
    let memory = Recorded::new(layout().words().expect("it is small"));
    let mut ledger = begun(&memory);
    ledger.depart(0, 5_000, 1);
    ledger.admit(0, &call(6_000));
    ledger.set_level(1, [5, 6], -2.5, 7_000);
    let carried = read(&memory.bytes(), BOOT, 1_000).expect("it is whole");
    assert_eq!(carried.windows[0].departures[0].at, 1_000);
    assert_eq!(carried.calls[0].at, 1_000);
    assert_eq!(carried.levels[0].at, 1_000);
}
