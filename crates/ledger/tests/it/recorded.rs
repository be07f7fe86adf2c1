//! A memory that remembers each store, so that a test can kill the process after any of them.

use std::cell::RefCell;

use tidegate_ledger::{Admission, Boot, Layout, Ledger, Memory, WindowRegion};

pub(crate) const BOOT: Boot = Boot([1, 2]);

pub(crate) struct Recorded {
    pub(crate) words: RefCell<Vec<u64>>,
    pub(crate) stores: RefCell<Vec<(usize, u64)>>,
}

impl Recorded {
    pub(crate) fn new(words: usize) -> Self {
        Self {
            words: RefCell::new(vec![0; words]),
            stores: RefCell::default(),
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        bytes(&self.words.borrow())
    }
}

pub(crate) fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

impl Memory for &Recorded {
    fn load(&self, at: usize) -> u64 {
        self.words.borrow()[at]
    }

    fn store(&self, at: usize, word: u64) {
        self.words.borrow_mut()[at] = word;
        self.stores.borrow_mut().push((at, word));
    }

    fn words(&self) -> usize {
        self.words.borrow().len()
    }
}

/// Two windows, two functions, one class, four calls, three levels, two places.
pub(crate) fn layout() -> Layout {
    let window = |name: &str, max, length| WindowRegion {
        name: name.into(),
        max,
        length,
    };
    Layout {
        windows: vec![window("total", 5, 1000), window("large", 10_000, 4_096_000)],
        functions: vec!["guest_get_info".into(), "other".into()],
        classes: vec!["default".into()],
        calls: 4,
        levels: 3,
        places: 2,
    }
}

pub(crate) fn begun(memory: &Recorded) -> Ledger<&Recorded> {
    Ledger::create(memory, &layout(), BOOT, 7, [11, 12]).expect("it is small")
}

pub(crate) fn call(at: u64) -> Admission {
    Admission {
        at,
        function: 1,
        class: 0,
        cost: 1,
        held_since: None,
        tag: 3,
        usual_ms: 250,
        foreign: None,
    }
}

/// Numbers of a seed.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        it ^ (it >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
