//! Writes the ledger of a running process.
//!
//! Each store is one word. A record is whole when its seal is stored, which is last, and unused when its seal is 0.

use std::num::NonZeroU64;

use crate::layout::{
    Boot, CALL_RECORD_WORDS, CALL_WORDS, DEPARTURE_WORDS, EXCEEDED, HEAD, LEVEL_WORDS, Layout,
    MAGIC, MOVED, PLACE_WORDS, Regions, TooLarge,
};
use crate::read::{CallAtBackend, Carryover, PromisedPlace};
use crate::record::{CallStage, FULL, JobRecord, job_place, no_job, sealed_cost};
use crate::seal::{RecordKind, seal, seal_call, with_half_seal};

/// Words that outlive the process: a mapped file, or a list in tests.
///
/// A ledger is used by one thread at a time. Stores reach the memory in the order of the program, also for a process that is
/// killed between two of them.
pub trait Memory {
    /// The word at this place.
    fn load(&self, at: usize) -> u64;
    /// Changes the word at this place.
    fn store(&self, at: usize, word: u64);
    /// The number of words.
    fn words(&self) -> usize;
}

/// A call that goes to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The moment of its admission.   nanoseconds
    pub at: u64,
    /// The function, by its place in the layout.
    pub function: u16,
    /// The class, by its place in the layout.
    pub class: u16,
    /// The cost in windows.
    pub cost: u32,
    /// Since when it has been held as a call of a process before; `None` if this process sent it.   nanoseconds
    pub held_since: Option<NonZeroU64>,
    /// A number that means something to the limiter.
    pub tag: u32,
    /// How long most such calls take; 0 if that is not known.   milliseconds
    pub usual_ms: u32,
    /// The number of a call of another process, for which this one decides; `None` for a call of its own.
    pub foreign: Option<NonZeroU64>,
}

/// The ledger that this process writes.
#[derive(Debug)]
pub struct Ledger<M> {
    memory: M,
    regions: Regions,
    calls: Live,
    levels: Live,
    places: Live,
    rings: Vec<DepartureRing>,
}

/// Records in use.
#[derive(Debug)]
struct Live {
    /// The word that has their count.
    at: usize,
    count: u32,
    most: u32,
}

/// The departures of one window.
#[derive(Debug)]
struct DepartureRing {
    /// The place of the next entry, below `entries`.
    next: u32,
    entries: u32,
    is_full: bool,
    merges_within: u64,
    /// The first moment of the newest entry, and its cost.
    newest: Option<(u64, u32)>,
}

impl<M: Memory> Ledger<M> {
    /// Begins a ledger in this memory, whatever was there before. By the secret, the next process finds promised places.
    ///
    /// # Errors
    /// If no ledger has this layout.
    ///
    /// # Panics
    /// If the memory has fewer words than [`Layout::words`].
    pub fn create(
        memory: M,
        layout: &Layout,
        boot: Boot,
        pid: u32,
        secret: [u64; 2],
    ) -> Result<Self, TooLarge> {
        let words = layout.words()?;
        assert!(
            words <= memory.words(),
            "the memory is as large as the layout"
        );
        let text = layout.directory();
        let regions = layout.regions(text.len());
        // Void until its head is whole.
        memory.store(0, 0);
        for at in 1..memory.words() {
            memory.store(at, 0);
        }
        let mut at = regions.directory.start;
        let mut directory = Vec::new();
        for chunk in text.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            directory.push(u64::from_ne_bytes(word));
            memory.store(at, u64::from_ne_bytes(word));
            at += 1;
        }
        memory.store(at, seal(RecordKind::Directory, 0, &directory));
        let live = |at, most| Live { at, count: 0, most };
        let ring = |window: &crate::layout::WindowRegion| DepartureRing {
            next: 0,
            entries: window.entries(),
            is_full: false,
            merges_within: window.merges_within(),
            newest: None,
        };
        let ledger = Self {
            calls: live(regions.live, layout.calls),
            levels: live(regions.live + 1, layout.levels),
            places: live(regions.live + 2, layout.places),
            rings: layout.windows.iter().map(ring).collect(),
            memory,
            regions,
        };
        ledger.store_live(&ledger.calls);
        ledger.store_live(&ledger.levels);
        ledger.store_live(&ledger.places);
        let at = ledger.regions.secret;
        ledger.memory.store(at, secret[0]);
        ledger.memory.store(at + 1, secret[1]);
        let sealed = seal(RecordKind::Secret, 0, &secret);
        ledger.memory.store(at + 2, sealed);
        (0..ledger.rings.len()).for_each(|window| ledger.store_ring(window));
        let head = [
            MAGIC,
            boot.0[0],
            boot.0[1],
            words as u64,
            text.len() as u64,
            u64::from(pid),
        ];
        for (at, &word) in head.iter().enumerate().skip(1) {
            ledger.memory.store(at, word);
        }
        ledger
            .memory
            .store(HEAD - 1, seal(RecordKind::Head, 0, &head));
        ledger.memory.store(0, MAGIC);
        Ok(ledger)
    }

    /// Notes a call in this place, before its first byte leaves.
    ///
    /// # Panics
    /// If the layout has no such place.
    pub fn admit(&mut self, place: u32, call: &Admission) {
        assert!(place < self.calls.most, "a place of the layout");
        let at = self.call_at(place);
        let words = [
            call.at,
            u64::from(call.function) << 48 | u64::from(call.class) << 32 | u64::from(call.cost),
            call.held_since.map_or(0, NonZeroU64::get),
            u64::from(call.usual_ms) << 32 | u64::from(call.tag),
            call.foreign.map_or(0, NonZeroU64::get),
        ];
        self.memory.store(at + CALL_WORDS + 1, no_job(place));
        for (index, &word) in words.iter().enumerate() {
            self.memory.store(at + index, word);
        }
        self.memory.store(
            at + CALL_WORDS - 1,
            seal_call(CallStage::Admitted as u64, u64::from(place), &words),
        );
        self.calls.count += 1;
        self.store_live(&self.calls);
    }

    /// Counts a departure in a window. Comes before [`advance`](Self::advance) and [`end`](Self::end) of its call.
    ///
    /// # Panics
    /// If the layout has no such window.
    pub fn depart(&mut self, window: usize, at: u64, cost: u32) {
        let ring = &mut self.rings[window];
        let within = ring.merges_within;
        let merged = ring
            .newest
            .filter(|&(began, _)| within > 0 && at.saturating_sub(began) < within);
        let (entry, began, cost) = match merged {
            Some((began, before)) => {
                let newest = ring.next.checked_sub(1).unwrap_or(ring.entries - 1);
                (newest, began, before.saturating_add(cost))
            }
            None => (ring.next, at, cost),
        };
        ring.newest = Some((began, cost));
        let base = self.regions.rings[window] + 1 + entry as usize * DEPARTURE_WORDS;
        self.memory.store(base, at);
        self.memory
            .store(base + 1, sealed_cost(window, entry, at, cost));
        if merged.is_none() {
            let ring = &mut self.rings[window];
            ring.next += 1;
            if ring.next == ring.entries {
                (ring.next, ring.is_full) = (0, true);
            }
            self.store_ring(window);
        }
    }

    /// Notes how far the call in this place has come.
    pub fn advance(&mut self, place: u32, stage: CallStage) {
        let at = self.call_at(place);
        let words: [u64; CALL_WORDS - 1] =
            std::array::from_fn(|index| self.memory.load(at + index));
        self.memory.store(
            at + CALL_WORDS - 1,
            seal_call(stage as u64, u64::from(place), &words),
        );
    }

    /// The call in this place has begun this job, which may last for so long from the admission of the call on.
    pub fn begin_job(&mut self, place: u32, job: JobRecord) {
        let at = self.call_at(place) + CALL_WORDS;
        self.memory.store(at + 1, no_job(place));
        self.memory.store(at, job.key);
        let word = with_half_seal(RecordKind::Job, job_place(place, job.key), job.most_ms);
        self.memory.store(at + 1, word);
    }

    /// The backend is done with the call in this place.
    pub fn end(&mut self, place: u32) {
        self.memory.store(self.call_at(place) + CALL_WORDS - 1, 0);
        self.calls.count -= 1;
        self.store_live(&self.calls);
    }

    /// Notes what a bucket held at this moment, before the call that took from it leaves. A key of zeros is none.
    ///
    /// # Panics
    /// If the layout has no such place.
    pub fn set_level(&mut self, place: u32, key: [u64; 2], tokens: f64, at: u64) {
        assert!(place < self.levels.most, "a place of the layout");
        let base = self.level_at(place);
        let words = [key[0], key[1], tokens.to_bits(), at];
        if self.store_record(RecordKind::Level, place, base, &words) {
            self.levels.count += 1;
            self.store_live(&self.levels);
        }
    }

    /// The bucket in this place is full or unknown again.
    pub fn forget_level(&mut self, place: u32) {
        let base = self.level_at(place);
        if self.memory.load(base + LEVEL_WORDS - 1) == 0 {
            return;
        }
        self.memory.store(base + LEVEL_WORDS - 1, 0);
        self.levels.count -= 1;
        self.store_live(&self.levels);
    }

    /// Notes that a client is promised a place, in this place of the ledger.
    ///
    /// # Panics
    /// If the layout has no such place.
    pub fn promise(&mut self, place: u32, promised: &PromisedPlace) {
        assert!(place < self.places.most, "a place of the layout");
        let base = self.place_at(place);
        let words = promised.words();
        if self.store_record(RecordKind::Place, place, base, &words) {
            self.places.count += 1;
            self.store_live(&self.places);
        }
    }

    /// The client of this place has come back, or has not come in time.
    pub fn forget_promise(&mut self, place: u32) {
        self.memory.store(self.place_at(place) + PLACE_WORDS - 1, 0);
        self.places.count -= 1;
        self.store_live(&self.places);
    }

    /// Stores a record, and its seal last. True if there was none in this place.
    fn store_record(&self, kind: RecordKind, place: u32, base: usize, words: &[u64]) -> bool {
        let sealed_at = base + words.len();
        let is_new = self.memory.load(sealed_at) == 0;
        for (index, &word) in words.iter().enumerate() {
            self.memory.store(base + index, word);
        }
        let sealed = seal(kind, u64::from(place), words);
        self.memory.store(sealed_at, sealed);
        is_new
    }

    fn place_at(&self, place: u32) -> usize {
        self.regions.places + place as usize * PLACE_WORDS
    }

    /// Takes over the departures of the windows that have the same name in both. Calls and levels are noted by the
    /// limiter, which gives them places.
    pub fn carry_departures(&mut self, layout: &Layout, carried: &Carryover) {
        for before in &carried.windows {
            let mut windows = layout.windows.iter();
            if let Some(window) = windows.position(|it| it.name == before.name) {
                for departure in &before.departures {
                    self.depart(window, departure.at, departure.cost);
                }
            }
        }
    }

    /// More happens than there is room for: until [`resume`](Self::resume) the next process finds that, and nothing else.
    pub fn exceed(&self) {
        self.memory.store(0, EXCEEDED);
    }

    /// The ledger has everything again that the next process must know.
    pub fn resume(&self) {
        self.memory.store(0, MAGIC);
    }

    /// Another ledger has everything from now on, which gets the name of this one soon.
    pub fn move_on(&self) {
        self.memory.store(0, MOVED);
    }

    /// Makes the ledger void: the next process finds that nothing is known.
    pub fn void(&self) {
        self.memory.store(0, 0);
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    fn call_at(&self, place: u32) -> usize {
        self.regions.calls + place as usize * CALL_RECORD_WORDS
    }

    fn level_at(&self, place: u32) -> usize {
        self.regions.levels + place as usize * LEVEL_WORDS
    }

    fn store_live(&self, live: &Live) {
        let word = with_half_seal(RecordKind::Live, live.at as u64, live.count);
        self.memory.store(live.at, word);
    }

    fn store_ring(&self, window: usize) {
        let ring = &self.rings[window];
        let full = if ring.is_full { FULL } else { 0 };
        let word = with_half_seal(RecordKind::Ring, window as u64, ring.next | full);
        self.memory.store(self.regions.rings[window], word);
    }
}

impl CallAtBackend {
    /// The call of the process before, to be noted anew.
    #[must_use]
    pub fn admission(&self, function: u16, class: u16) -> Admission {
        Admission {
            at: self.at,
            function,
            class,
            cost: self.cost,
            held_since: self.held_since,
            tag: self.tag,
            usual_ms: self.usual_ms,
            foreign: self.foreign,
        }
    }
}
