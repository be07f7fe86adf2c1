//! Each bound of a ledger is reached. Beyond it too much counts, or there is no ledger.

use tidegate_ledger::{
    CallStage, JobRecord, Layout, Ledger, NAME_BYTES_MAX, TooLarge, Void, WindowRegion, read,
};

use crate::recorded::{BOOT, Numbers, Recorded, begun, bytes, call, layout};

const SECOND: u64 = 1_000_000_000;

fn window(max: u32) -> WindowRegion {
    WindowRegion {
        name: "total".into(),
        max,
        length: SECOND,
    }
}

/// The costs that count at a moment, of these departures.
fn counted(departures: impl Iterator<Item = (u64, u32)>, now: u64) -> u64 {
    let counted = departures.filter(|&(at, _)| at + SECOND > now);
    counted.map(|(_, cost)| u64::from(cost)).sum()
}

/// 4,096 departures have entries of their own, more are merged at their latest moment.
#[test]
fn a_window_with_more_departures_than_entries_counts_at_least_those_that_count() {
    for max in [4_095, 4_096, 4_097, 10_000] {
        let layout = Layout {
            windows: vec![window(max)],
            ..layout()
        };
        let memory = Recorded::new(layout.words().expect("it is small"));
        let mut ledger = Ledger::create(&memory, &layout, BOOT, 7, [11, 12]).expect("it is small");
        let (mut numbers, mut now) = (Numbers(u64::from(max)), 0);
        let mut truth = Vec::new();
        // As dense as the window allows, for three lengths.
        while now < 3 * SECOND {
            now += numbers.below(2 * SECOND / u64::from(max));
            if counted(truth.iter().copied(), now) < u64::from(max) {
                ledger.depart(0, now, 1);
                truth.push((now, 1));
            }
            let oldest = truth.partition_point(|&(at, _)| at + SECOND <= now);
            truth.drain(..oldest);
        }
        let carried = read(&memory.bytes(), BOOT, now).expect("it is whole");
        let departures = &carried.windows[0].departures;
        assert!(departures.len() <= 4_098, "{}", departures.len());
        for later in (0..100).map(|part| now + part * SECOND / 100) {
            let found = counted(departures.iter().map(|it| (it.at, it.cost)), later);
            let must = counted(truth.iter().copied(), later);
            assert!(found >= must, "{max} at {later}: {found} of {must}");
            if max <= 4_096 {
                assert_eq!(found, must, "{max} at {later}");
            }
        }
    }
}

#[test]
fn names_have_a_bound_of_bytes_and_a_bound_of_number() {
    let classes = |number, bytes| {
        let name = "x".repeat(bytes).into();
        let classes = vec![name; number];
        Layout {
            classes,
            ..layout()
        }
        .words()
    };
    assert!(classes(1, NAME_BYTES_MAX).is_ok());
    assert_eq!(classes(1, NAME_BYTES_MAX + 1), Err(TooLarge::Names));
    assert!(classes(65_535, 1).is_ok());
    assert_eq!(classes(65_536, 1), Err(TooLarge::Names));
    let windows = |number| {
        Layout {
            windows: vec![window(1); number],
            ..layout()
        }
        .words()
    };
    assert!(windows(65_535).is_ok());
    assert_eq!(windows(65_536), Err(TooLarge::Names));
}

#[test]
fn a_ledger_has_at_most_64_mib() {
    let words = |calls| Layout { calls, ..layout() }.words();
    let empty = words(0).expect("it is small");
    // Eight words for each call.
    let most = ((1 << 23) - empty) / 8;
    assert!(words(most as u32).is_ok());
    assert_eq!(words(most as u32 + 1), Err(TooLarge::Regions));
}

#[test]
fn each_place_of_a_call_and_of_a_level_is_used_and_none_is_behind_them() {
    let memory = Recorded::new(layout().words().expect("it is small"));
    let mut ledger = begun(&memory);
    (0..4).for_each(|place| ledger.admit(place, &call(10)));
    (0..3).for_each(|place| ledger.set_level(place, [1, 2], 0.5, 10));
    let carried = read(&memory.bytes(), BOOT, 20).expect("it is whole");
    assert_eq!((carried.calls.len(), carried.levels.len()), (4, 3));
    let beyond = std::panic::catch_unwind(|| {
        let memory = Recorded::new(layout().words().expect("it is small"));
        begun(&memory).admit(4, &call(10));
    });
    beyond.expect_err("there are four places");
    let beyond = std::panic::catch_unwind(|| {
        let memory = Recorded::new(layout().words().expect("it is small"));
        begun(&memory).set_level(3, [1, 2], 0.5, 10);
    });
    beyond.expect_err("there are three places");
}

/// The limiter says that it could not note everything: nothing of the ledger counts until it can again.
#[test]
fn a_ledger_that_has_no_room_says_so_until_it_has_room_again() {
    let memory = Recorded::new(layout().words().expect("it is small"));
    let mut ledger = begun(&memory);
    ledger.admit(0, &call(10));
    ledger.exceed();
    ledger.advance(0, CallStage::Sent);
    assert_eq!(read(&memory.bytes(), BOOT, 20), Err(Void::Exceeded));
    ledger.resume();
    let carried = read(&memory.bytes(), BOOT, 20).expect("it is whole");
    assert_eq!(carried.calls.len(), 1);
    ledger.move_on();
    assert_eq!(read(&memory.bytes(), BOOT, 20), Err(Void::Moved));
}

#[test]
fn a_job_is_read_with_its_call_and_a_process_that_dies_within_it_leaves_the_call() {
    let memory = Recorded::new(layout().words().expect("it is small"));
    let mut ledger = begun(&memory);
    ledger.admit(2, &call(10));
    let job = JobRecord {
        key: 7,
        most_ms: 1_000,
    };
    let mut words = memory.words.borrow().clone();
    memory.stores.borrow_mut().clear();
    ledger.begin_job(2, job);
    let read_job = |words: &[u64]| {
        let carried = read(&bytes(words), BOOT, 20).expect("it is whole");
        assert_eq!(carried.calls.len(), 1);
        carried.calls[0].job
    };
    for &(at, word) in &*memory.stores.borrow() {
        assert_eq!(read_job(&words), None);
        words[at] = word;
    }
    assert_eq!(read_job(&words), Some(job));
    // The next call in this place has none.
    ledger.end(2);
    ledger.admit(2, &call(10));
    assert_eq!(read_job(&memory.words.borrow()), None);
}
