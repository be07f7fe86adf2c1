//! Fuzzes the ledger of a process that died: no bytes panic, and what the next process carries over is never more than the
//! ledger has room for. Whether damage is noticed is a matter of seals, which a fuzzer that sees both sides of each
//! comparison can forge: `crates/ledger/tests/it/damage.rs` tries that at random.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tidegate_ledger::{
    CallStage, JobRecord, Layout, Ledger, PromisedPlace, WindowRegion, read, read_rows,
};

#[path = "../../crates/ledger/tests/it/recorded.rs"]
#[allow(dead_code)]
mod recorded;

use recorded::{BOOT, Recorded, bytes, call};

fn layout() -> Layout {
    Layout {
        windows: vec![WindowRegion {
            name: "total".into(),
            max: 5,
            length: 1000,
        }],
        functions: vec!["guest_get_info".into(), "other".into()],
        classes: vec!["default".into()],
        calls: 4,
        levels: 3,
        places: 2,
    }
}

/// The words of a ledger with something in each region.
static FILLED: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let layout = layout();
    let memory = Recorded::new(layout.words().expect("it is small"));
    let mut ledger = Ledger::create(&memory, &layout, BOOT, 7, [11, 12]).expect("it is small");
    for at in 1..=7 {
        ledger.depart(0, 100 * at, 1);
    }
    for place in [0, 3] {
        ledger.admit(place, &call(950));
    }
    ledger.advance(3, CallStage::Sent);
    ledger.begin_job(3, JobRecord { key: 9, most_ms: 5 });
    ledger.set_level(1, [5, 6], -2.5, 970);
    let promised = PromisedPlace {
        digest: [7, 8],
        arrived: 980,
        until: 1_500,
        limited: true,
    };
    ledger.promise(1, &promised);
    memory.words.take()
});

// Whole files, or words of a good one that are replaced.
fuzz_target!(|input: (bool, Vec<(u16, u64)>, &[u8])| {
    let (is_changed, changes, file) = input;
    if !is_changed {
        let _ = read(file, BOOT, 1_000_000);
        let _ = read_rows(file, BOOT);
        return;
    }
    let mut words = FILLED.clone();
    for (at, word) in changes {
        let at = usize::from(at) % words.len();
        words[at] = word;
    }
    let Ok(carried) = read(&bytes(&words), BOOT, 1_000_000) else {
        return;
    };
    assert!(carried.windows.len() <= words.len());
    assert!(carried.calls.len() + carried.levels.len() + carried.places.len() <= words.len());
    for window in &carried.windows {
        assert!(window.departures.len() <= words.len());
        assert!(window.departures.is_sorted_by_key(|it| it.at));
        assert!(window.departures.iter().all(|it| it.at <= 1_000_000));
    }
});
