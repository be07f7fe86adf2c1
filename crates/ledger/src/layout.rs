//! The regions of a ledger, and their places.
//!
//! | region | words |
//! |---|---|
//! | head | magic and version, boot (2), words in all, bytes of the directory, pid of the owner, seal |
//! | directory | the layout as text, so that the next process knows what the regions mean; its seal |
//! | live | how many calls, levels and places are in use |
//! | secret | the secret by which places are found (2), its seal |
//! | calls | eight words for each: six of the call, and two of its job |
//! | levels | five words for each |
//! | places | six words for each |
//! | rings | for each window: its next entry, then two words for each departure |

use std::fmt;
use std::ops::Range;

/// Words of the head.
pub(crate) const HEAD: usize = 7;

/// The first word of a ledger: a name and the version of this layout.
pub(crate) const MAGIC: u64 = u64::from_be_bytes(*b"TGledg\0\x06");

/// The first word while more happens than the ledger has room for.
pub(crate) const EXCEEDED: u64 = u64::from_be_bytes(*b"TGmore\0\x06");

/// The first word once another ledger has everything.
pub(crate) const MOVED: u64 = u64::from_be_bytes(*b"TGnext\0\x06");

/// The words of a call, with their seal.
pub(crate) const CALL_WORDS: usize = 6;
/// The words of a call and of its job.
pub(crate) const CALL_RECORD_WORDS: usize = CALL_WORDS + 2;
pub(crate) const LEVEL_WORDS: usize = 5;
pub(crate) const PLACE_WORDS: usize = 6;
/// The secret and its seal.
pub(crate) const SECRET_WORDS: usize = 3;
pub(crate) const DEPARTURE_WORDS: usize = 2;

/// Most entries of a ring. A window with a larger maximum merges departures that are closer than this part of its
/// length; a merged entry has the latest moment, so it never frees early.
pub(crate) const RING_ENTRIES_MAX: u32 = 4096;

/// Most bytes of a name.
pub const NAME_BYTES_MAX: usize = 255;

/// Most words of a ledger: 64 MiB.
const WORDS_MAX: usize = 1 << 23;

/// A boot of a machine: the 128 bits of the kernel's `boot_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot(pub [u64; 2]);

/// A window of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRegion {
    /// The name of its limit, by which the next process finds it.
    pub name: Box<str>,
    /// The most cost that departs within one length.
    pub max: u32,
    /// Nanoseconds, with its guard.
    pub length: u64,
}

/// The records that a ledger has room for. Calls name their function and class by the place in these lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The windows, in the order of the policy.
    pub windows: Vec<WindowRegion>,
    /// Names of functions.
    pub functions: Vec<Box<str>>,
    /// Names of classes.
    pub classes: Vec<Box<str>>,
    /// Most calls at the backend.
    pub calls: u32,
    /// Most token buckets.
    pub levels: u32,
    /// Most places in the queue that are promised to clients that come back.
    pub places: u32,
}

/// A layout that no ledger has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLarge {
    /// A name is longer than [`NAME_BYTES_MAX`], or a list has more than 65,535 names.
    Names,
    /// All regions together are larger than 64 MiB.
    Regions,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Names => write!(
                f,
                "a name has more than {NAME_BYTES_MAX} bytes, or there are more than 65535"
            ),
            Self::Regions => write!(f, "the ledger would be larger than {} bytes", 8 * WORDS_MAX),
        }
    }
}

impl std::error::Error for TooLarge {}

/// The first word of each region.
#[derive(Clone, Debug)]
pub(crate) struct Regions {
    pub(crate) directory: Range<usize>,
    pub(crate) live: usize,
    pub(crate) secret: usize,
    pub(crate) calls: usize,
    pub(crate) levels: usize,
    pub(crate) places: usize,
    /// The word with the next entry of each ring; its entries follow.
    pub(crate) rings: Vec<usize>,
    /// Words in all.
    pub(crate) end: usize,
}

impl WindowRegion {
    /// Entries of its ring. One more than can count, so that the one that is overwritten never counts.
    pub(crate) fn entries(&self) -> u32 {
        self.max.saturating_add(1).min(RING_ENTRIES_MAX + 2)
    }

    /// Departures closer than this are one entry.   nanoseconds
    pub(crate) fn merges_within(&self) -> u64 {
        match self.max > RING_ENTRIES_MAX {
            true => self.length.div_ceil(u64::from(RING_ENTRIES_MAX)),
            false => 0,
        }
    }
}

impl Layout {
    /// Words that a ledger of this layout needs.
    ///
    /// # Errors
    /// If no ledger may be as large.
    pub fn words(&self) -> Result<usize, TooLarge> {
        let lists = [&self.functions, &self.classes];
        let windows = self.windows.iter().map(|it| &it.name);
        let mut names = lists.into_iter().flatten().chain(windows);
        let most = usize::from(u16::MAX);
        if names.any(|name| name.len() > NAME_BYTES_MAX)
            || self.windows.len() > most
            || lists.iter().any(|list| list.len() > most)
        {
            return Err(TooLarge::Names);
        }
        let end = self.regions(self.directory().len()).end;
        (end <= WORDS_MAX).then_some(end).ok_or(TooLarge::Regions)
    }

    /// The regions, behind a directory of this number of bytes.
    pub(crate) fn regions(&self, directory: usize) -> Regions {
        // The seal follows the text.
        let directory = HEAD..HEAD + directory.div_ceil(8) + 1;
        let live = directory.end;
        let secret = live + 3;
        let calls = secret + SECRET_WORDS;
        let levels = calls + self.calls as usize * CALL_RECORD_WORDS;
        let places = levels + self.levels as usize * LEVEL_WORDS;
        let mut end = places + self.places as usize * PLACE_WORDS;
        let mut rings = Vec::with_capacity(self.windows.len());
        for window in &self.windows {
            rings.push(end);
            end += 1 + window.entries() as usize * DEPARTURE_WORDS;
        }
        Regions {
            directory,
            live,
            secret,
            calls,
            levels,
            places,
            rings,
            end,
        }
    }

    /// The layout as bytes. Names have been checked.
    pub(crate) fn directory(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.calls.to_be_bytes());
        bytes.extend(self.levels.to_be_bytes());
        bytes.extend(self.places.to_be_bytes());
        let count = |bytes: &mut Vec<u8>, many: usize| bytes.extend((many as u16).to_be_bytes());
        let name = |bytes: &mut Vec<u8>, name: &str| {
            bytes.push(name.len() as u8);
            bytes.extend(name.as_bytes());
        };
        for list in [&self.functions, &self.classes] {
            count(&mut bytes, list.len());
            list.iter().for_each(|it| name(&mut bytes, it));
        }
        count(&mut bytes, self.windows.len());
        for window in &self.windows {
            name(&mut bytes, &window.name);
            bytes.extend(window.max.to_be_bytes());
            bytes.extend(window.length.to_be_bytes());
        }
        bytes
    }

    /// The layout in these bytes; `None` if they are none, or more than one.
    pub(crate) fn of_directory(bytes: &[u8]) -> Option<Self> {
        let mut left = Bytes(bytes);
        let (calls, levels, places) = (left.u32()?, left.u32()?, left.u32()?);
        let functions = left.names()?;
        let classes = left.names()?;
        let windows = (0..left.u16()?)
            .map(|_| {
                Some(WindowRegion {
                    name: left.name()?,
                    max: left.u32()?,
                    length: left.u64()?,
                })
            })
            .collect::<Option<_>>()?;
        let layout = Self {
            windows,
            functions,
            classes,
            calls,
            levels,
            places,
        };
        left.0.is_empty().then_some(layout)
    }
}

/// Bytes that are read from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, many: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(many)?;
        self.0 = left;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn name(&mut self) -> Option<Box<str>> {
        let [length] = self.array()?;
        let name = self.take(usize::from(length))?;
        str::from_utf8(name).ok().map(Box::from)
    }

    fn names(&mut self) -> Option<Vec<Box<str>>> {
        (0..self.u16()?).map(|_| self.name()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let window = |name: &str, max| WindowRegion {
            name: name.into(),
            max,
            length: 1_000_000_000,
        };
        Layout {
            windows: vec![window("total", 30), window("große", 1_000_000)],
            functions: vec!["guest_get".into(), "other".into()],
            classes: vec!["".into()],
            calls: 3,
            levels: 2,
            places: 4,
        }
    }

    #[test]
    fn a_layout_is_read_as_it_was_written_and_no_part_of_it_is() {
        let (layout, bytes) = (layout(), layout().directory());
        assert_eq!(Layout::of_directory(&bytes).as_ref(), Some(&layout));
        for length in 0..bytes.len() {
            assert_eq!(Layout::of_directory(&bytes[..length]), None, "{length}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(Layout::of_directory(&longer), None);
    }

    #[test]
    fn a_large_window_has_a_bounded_ring() {
        let regions = layout().regions(layout().directory().len());
        let [small, large] = regions.rings[..] else {
            panic!("two windows")
        };
        assert_eq!(large - small, 1 + 2 * 31);
        assert_eq!(regions.end - large, 1 + 2 * 4098);
        assert_eq!(layout().windows[0].merges_within(), 0);
        assert_eq!(layout().windows[1].merges_within(), 244_141);
        assert_eq!(layout().words(), Ok(regions.end));
    }

    #[test]
    fn what_no_ledger_has_room_for_is_refused() {
        let long = Layout {
            classes: vec!["x".repeat(256).into()],
            ..layout()
        };
        assert_eq!(long.words(), Err(TooLarge::Names));
        let many = Layout {
            calls: u32::MAX,
            ..layout()
        };
        assert_eq!(many.words(), Err(TooLarge::Regions));
    }
}
