//! Heads that came before: what was read in them, so that it is not read again.
//!
//! A client that repeats itself sends the same head again, byte for byte: a poll of one guest, a scrape. So each
//! thread keeps some heads with what was read in them, and compares the bytes before it reads them. A head is kept when it
//! comes for the second time, so that one of a kind costs hardly more, and displaces none.

use std::cell::RefCell;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::FixedState;
use tidegate_h1::Framing;
use tidegate_h1::request::{self, BadHead, HeadBounds, HttpVersion};

use crate::call::Head;

/// Heads that a thread keeps.
const KEPT: usize = 64;

/// A longer head is not kept.
const KEPT_BYTES: usize = 1024;

/// A head is found by its first line, up to this length. Some heads with the same one can be kept.
const LINE: usize = 256;

/// Places for heads with the same first line.
const WAYS: usize = 4;

thread_local! {
    static HEADS: RefCell<Heads> = const { RefCell::new(Heads { places: Vec::new(), next: 0 }) };
}

/// A head that was read, and what the connection must know of it.
#[derive(Clone, Debug)]
pub(super) struct KnownHead {
    pub(super) head: Arc<Head>,
    pub(super) version: HttpVersion,
    pub(super) framing: Framing,
    /// Whether the client wants no more answers on this connection.
    pub(super) closes: bool,
    /// Whether the client waits for a permission to send its body.
    pub(super) expects_continue: bool,
    /// How often a request that looks for loops may still be forwarded.
    pub(super) max_forwards: Option<u32>,
    /// Bytes up to the body.
    pub(super) length: usize,
}

/// The heads that a thread keeps.
struct Heads {
    /// [`KEPT`] of them, once a head has come.
    places: Vec<HeadSlot>,
    /// The place that the next new head gets. Places take turns, so that heads which take turns do not displace
    /// each other.
    next: usize,
}

#[derive(Default)]
struct HeadSlot {
    /// The latest head that would come here, as its hash.
    seen: u64,
    kept: Option<CachedHead>,
}

struct CachedHead {
    bytes: Box<[u8]>,
    /// The bounds that it was read with.
    bounds: HeadBounds,
    read: KnownHead,
}

/// Reads the head at the front of these bytes; `None` if only part of it is here. `local` is the address that the
/// client connected to: the host of a request that names none.
///
/// # Errors
/// If it, or the part that is here, cannot be passed on.
pub(super) fn read(
    bytes: &[u8],
    bounds: HeadBounds,
    local: impl FnOnce() -> String,
) -> Result<Option<KnownHead>, Box<BadHead>> {
    HEADS.with_borrow_mut(|Heads { places, next }| {
        if places.is_empty() {
            places.resize_with(KEPT, HeadSlot::default);
        }
        let first = hash_of_line(bytes) as usize % (KEPT / WAYS) * WAYS;
        let places = &mut places[first..first + WAYS];
        let kept = places.iter().filter_map(|place| place.kept.as_ref());
        let mut kept = kept.filter(|kept| bytes.starts_with(&kept.bytes) && kept.bounds == bounds);
        if let Some(kept) = kept.next() {
            return Ok(Some(kept.read.clone()));
        }
        let Some(request) = request::read(bytes, bounds)? else {
            return Ok(None);
        };
        let head = &bytes[..request.length];
        let names_host = request.version == HttpVersion::Http11;
        let local = if names_host { String::new() } else { local() };
        let max_forwards = request.max_forwards.and_then(|value| {
            let value = str::from_utf8(value.of(head)).ok()?;
            Some(value.parse().unwrap_or(u32::MAX))
        });
        let read = KnownHead {
            version: request.version,
            framing: request.framing,
            closes: request.closes,
            expects_continue: request.expects_continue,
            max_forwards,
            length: request.length,
            head: Arc::new(Head::read(Bytes::copy_from_slice(head), request, &local)),
        };
        if read.length <= KEPT_BYTES && names_host {
            let whole = hash(head);
            match places.iter_mut().find(|place| place.seen == whole) {
                Some(place) => {
                    place.kept = Some(CachedHead {
                        bytes: head.into(),
                        bounds,
                        read: read.clone(),
                    });
                }
                None => {
                    places[*next % WAYS].seen = whole;
                    *next = next.wrapping_add(1);
                }
            }
        }
        Ok(Some(read))
    })
}

/// The hash of the first line.
fn hash_of_line(bytes: &[u8]) -> u64 {
    let line = &bytes[..bytes.len().min(LINE)];
    let end = memchr::memchr(b'\r', line).unwrap_or(line.len());
    hash(&line[..end])
}

/// Always the same for the same bytes. A client that looks for collisions gains nothing: they cost what a new head costs.
fn hash(bytes: &[u8]) -> u64 {
    FixedState::default().hash_one(bytes)
}

#[cfg(test)]
mod tests;
