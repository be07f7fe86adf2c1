//! Reads the ledger of a process that died.
//!
//! The reader does not trust the file: each length is checked before it is used, and any doubt makes the whole ledger void.

use std::fmt;
use std::num::NonZeroU64;

use crate::layout::{
    Boot, CALL_RECORD_WORDS, CALL_WORDS, DEPARTURE_WORDS, EXCEEDED, HEAD, LEVEL_WORDS, Layout,
    MAGIC, MOVED, PLACE_WORDS, Regions, SECRET_WORDS,
};
use crate::record::{CallStage, FULL, JobRecord, job_place, no_job, sealed_cost};
use crate::seal::{RecordKind, of_half_sealed, seal, seal_call};

/// The state that a process left when it died.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Carryover {
    /// The departures of each window, oldest first.
    pub windows: Vec<WindowDepartures>,
    /// The calls that were at the backend.
    pub calls: Vec<CallAtBackend>,
    /// The levels of token buckets.
    pub levels: Vec<LevelRecord>,
    /// The places in the queue that clients were promised.
    pub places: Vec<PromisedPlace>,
    /// The secret by which places are found.
    pub secret: [u64; 2],
    /// The process that wrote it.
    pub pid: u32,
}

/// The departures of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowDepartures {
    /// The name of its limit.
    pub name: Box<str>,
    /// Oldest first; some may no longer count.
    pub departures: Vec<Departure>,
}

/// The departure of a call, or of several at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Nanoseconds.
    pub at: u64,
    /// Their cost in the window.
    pub cost: u32,
}

/// A call that was at the backend when the process died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallAtBackend {
    /// The moment of its admission.   nanoseconds
    pub at: u64,
    /// The function of the call.
    pub function: Box<str>,
    /// The class of the call.
    pub class: Box<str>,
    /// The cost in windows.
    pub cost: u32,
    /// Since when it has been held as a call of a process before; `None` if the process that died sent it.   nanoseconds
    pub held_since: Option<NonZeroU64>,
    /// A number that the limiter gave it.
    pub tag: u32,
    /// How long most such calls take, as the process before measured; 0 if it did not know.   milliseconds
    pub usual_ms: u32,
    /// The number of a call of another process, for which the process that died decided; `None` for a call of its own.
    pub foreign: Option<NonZeroU64>,
    /// The last stage that was noted. A window whose departure is a later stage does not count it yet.
    pub stage: CallStage,
    /// The job that it has begun.
    pub job: Option<JobRecord>,
}

/// The level of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelRecord {
    /// A hash of the names that tell the bucket from others.
    pub key: [u64; 2],
    /// Tokens at that moment; below zero in debt.
    pub tokens: f64,
    /// Nanoseconds.
    pub at: u64,
}

/// A place in the queue that a client was promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromisedPlace {
    /// The digest of the client's call.
    pub digest: [u64; 2],
    /// When the client came first.   nanoseconds
    pub arrived: u64,
    /// Until when the place is kept.   nanoseconds
    pub until: u64,
    /// Whether the call meets limits.
    pub limited: bool,
}

impl PromisedPlace {
    pub(crate) fn words(&self) -> [u64; PLACE_WORDS - 1] {
        let [high, low] = self.digest;
        [high, low, self.arrived, self.until, self.limited.into()]
    }
}

/// Why a ledger says nothing. The reader then takes everything for used, or for unused, as its operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Void {
    /// The file has no head.
    NotALedger,
    /// A program with another layout wrote the file.
    OtherVersion,
    /// The machine was started anew since.
    OtherBoot,
    /// A seal or a count does not fit.
    Damaged,
    /// More happened than the ledger had room for.
    Exceeded,
    /// Another ledger has everything, and did not get the name of this one yet.
    Moved,
}

impl fmt::Display for Void {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotALedger => "the file is not a ledger, or its process died while it began",
            Self::OtherVersion => "another version of the program wrote it",
            Self::Exceeded => "more calls were at the backend at once than it has room for",
            Self::Moved => "the ledger that followed it is not there",
            Self::OtherBoot => "the machine was restarted since",
            Self::Damaged => "it is damaged",
        })
    }
}

impl std::error::Error for Void {}

/// Reads the bytes of a ledger that no process writes any more. Moments after `now` are taken for `now`.
///
/// # Errors
/// If the ledger says nothing that can be trusted.
pub fn read(bytes: &[u8], boot: Boot, now: u64) -> Result<Carryover, Void> {
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|chunk| u64::from_ne_bytes(chunk.try_into().expect("eight bytes")))
        .collect();
    let head = words.first_chunk::<HEAD>().ok_or(Void::NotALedger)?;
    let &[
        magic,
        boot_high,
        boot_low,
        length,
        directory,
        pid,
        head_seal,
    ] = head;
    if magic != MAGIC {
        return Err(match magic {
            EXCEEDED => Void::Exceeded,
            MOVED => Void::Moved,
            _ if magic >> 16 == MAGIC >> 16 => Void::OtherVersion,
            _ => Void::NotALedger,
        });
    }
    if head_seal != seal(RecordKind::Head, 0, &head[..HEAD - 1]) || length > words.len() as u64 {
        return Err(Void::Damaged);
    }
    if Boot([boot_high, boot_low]) != boot {
        return Err(Void::OtherBoot);
    }
    let source = LedgerReader::new(&words, directory).ok_or(Void::Damaged)?;
    let carried = source.carryover(now, pid as u32);
    carried.ok_or(Void::Damaged)
}

/// The words of a ledger whose head and directory are good.
struct LedgerReader<'a> {
    words: &'a [u64],
    layout: Layout,
    regions: Regions,
}

impl<'a> LedgerReader<'a> {
    fn new(words: &'a [u64], directory: u64) -> Option<Self> {
        let length = usize::try_from(directory).ok()?;
        let end = HEAD.checked_add(length.div_ceil(8))?;
        let text = words.get(HEAD..end)?;
        if *words.get(end)? != seal(RecordKind::Directory, 0, text) {
            return None;
        }
        let mut bytes: Vec<u8> = text.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.truncate(length);
        let layout = Layout::of_directory(&bytes)?;
        layout.words().ok()?;
        let regions = layout.regions(length);
        (regions.end <= words.len()).then_some(Self {
            words,
            layout,
            regions,
        })
    }

    fn carryover(&self, now: u64, pid: u32) -> Option<Carryover> {
        let windows = (0..self.layout.windows.len()).map(|window| self.window(window, now));
        Some(Carryover {
            windows: windows.collect::<Option<_>>()?,
            calls: self.calls(now)?,
            levels: self.levels(now)?,
            places: self.places(now)?,
            secret: self.secret()?,
            pid,
        })
    }

    fn window(&self, window: usize, now: u64) -> Option<WindowDepartures> {
        let (region, base) = (&self.layout.windows[window], self.regions.rings[window]);
        let entries = region.entries();
        let state = of_half_sealed(RecordKind::Ring, window as u64, self.words[base])?;
        let (next, is_full) = (state & !FULL, state & FULL != 0);
        if next >= entries {
            return None;
        }
        let order = match is_full {
            true => (next..entries).chain(0..next),
            false => (0..0).chain(0..next),
        };
        let mut departures = Vec::new();
        for entry in order {
            let at = base + 1 + entry as usize * DEPARTURE_WORDS;
            let (moment, word) = (self.words[at], self.words[at + 1]);
            let cost = (word & u64::from(u32::MAX)) as u32;
            if sealed_cost(window, entry, moment, cost) != word {
                return None;
            }
            departures.push(Departure {
                at: moment.min(now),
                cost,
            });
        }
        Some(WindowDepartures {
            name: region.name.clone(),
            departures,
        })
    }

    fn calls(&self, now: u64) -> Option<Vec<CallAtBackend>> {
        let live = self.live(0)?;
        let mut calls = Vec::new();
        for place in 0..self.layout.calls {
            let at = self.regions.calls + place as usize * CALL_RECORD_WORDS;
            let record = &self.words[at..at + CALL_RECORD_WORDS];
            if record[CALL_WORDS - 1] != 0 {
                calls.push(self.call(place, record, now)?);
            }
        }
        (calls.len() as u64 == u64::from(live)).then_some(calls)
    }

    fn call(&self, place: u32, record: &[u64], now: u64) -> Option<CallAtBackend> {
        let (words, found) = (&record[..CALL_WORDS - 1], record[CALL_WORDS - 1]);
        let (key, word) = (record[CALL_WORDS], record[CALL_WORDS + 1]);
        let job = match word {
            word if word == no_job(place) => None,
            word => Some(JobRecord {
                key,
                most_ms: of_half_sealed(RecordKind::Job, job_place(place, key), word)?,
            }),
        };
        let mut stages = CallStage::ALL.into_iter();
        let stage =
            stages.find(|&stage| seal_call(stage as u64, u64::from(place), words) == found)?;
        let name = |names: &[Box<str>], at: u64| names.get(at as usize).cloned();
        Some(CallAtBackend {
            at: words[0].min(now),
            function: name(&self.layout.functions, words[1] >> 48)?,
            class: name(&self.layout.classes, words[1] >> 32 & 0xffff)?,
            cost: (words[1] & u64::from(u32::MAX)) as u32,
            held_since: NonZeroU64::new(words[2].min(now)),
            tag: words[3] as u32,
            usual_ms: (words[3] >> 32) as u32,
            foreign: NonZeroU64::new(words[4]),
            stage,
            job,
        })
    }

    fn levels(&self, now: u64) -> Option<Vec<LevelRecord>> {
        let (base, count) = (self.regions.levels, self.layout.levels);
        let records = self.records::<{ LEVEL_WORDS - 1 }>(RecordKind::Level, base, count)?;
        let levels = records.into_iter().map(|[high, low, tokens, at]| {
            let tokens = f64::from_bits(tokens);
            tokens.is_finite().then_some(LevelRecord {
                key: [high, low],
                tokens,
                at: at.min(now),
            })
        });
        let levels: Vec<_> = levels.collect::<Option<_>>()?;
        (levels.len() as u64 == u64::from(self.live(1)?)).then_some(levels)
    }

    fn places(&self, now: u64) -> Option<Vec<PromisedPlace>> {
        let (base, count) = (self.regions.places, self.layout.places);
        let records = self.records::<{ PLACE_WORDS - 1 }>(RecordKind::Place, base, count)?;
        let places = records
            .into_iter()
            .map(|[high, low, arrived, until, limited]| PromisedPlace {
                digest: [high, low],
                arrived: arrived.min(now),
                until,
                limited: limited != 0,
            });
        let places: Vec<_> = places.collect();
        (places.len() as u64 == u64::from(self.live(2)?)).then_some(places)
    }

    /// The records in use of a region, each of N words and their seal; `None` if a seal does not fit.
    fn records<const N: usize>(
        &self,
        kind: RecordKind,
        base: usize,
        count: u32,
    ) -> Option<Vec<[u64; N]>> {
        let mut records = Vec::new();
        for place in 0..count {
            let at = base + place as usize * (N + 1);
            let record = &self.words[at..=at + N];
            let (words, found) = (record.first_chunk::<N>()?, record[N]);
            if found == 0 {
                continue;
            }
            if seal(kind, u64::from(place), words) != found {
                return None;
            }
            records.push(*words);
        }
        Some(records)
    }

    /// The secret by which places are found.
    fn secret(&self) -> Option<[u64; 2]> {
        let words = &self.words[self.regions.secret..][..SECRET_WORDS];
        let secret = [words[0], words[1]];
        (seal(RecordKind::Secret, 0, &secret) == words[2]).then_some(secret)
    }

    /// The number of records in use: calls, levels, or places.
    fn live(&self, which: usize) -> Option<u32> {
        let at = self.regions.live + which;
        of_half_sealed(RecordKind::Live, at as u64, self.words[at])
    }
}
