//! Maps a file as 64-bit words, and unmaps what the process no longer needs of its own program.
//!
//! A store into a mapped word is in the file when it has returned, whatever becomes of the process, and takes no system
//! call. No other crate of the workspace has `unsafe`. Why it is sound:
//!
//! - **The pointer**: the map is made once, is page-aligned (so each word is aligned to 8), has at least `8 * words`
//!   bytes, and lives as long as [`MappedFile`]. Each place is checked against `words` before it becomes a pointer.
//! - **Other writers**: every access is atomic, so no two make a data race, neither in this process nor with another
//!   one that maps the same file.
//! - **The file behind it**: pages past the end of a file raise SIGBUS. [`MappedFile::create`] makes a new file that no
//!   other program has opened, and reserves its blocks, so a full disk is an error there and not a signal later. A
//!   program that truncates the file afterwards ends this process, which is not unsound.

mod program;

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, fallocate};
use tidegate_ledger::Memory;

pub use program::unmap_unused_code;

/// A file that is mapped as words.
#[derive(Debug)]
pub struct MappedFile {
    map: MmapRaw,
    words: usize,
}

impl MappedFile {
    /// Maps this number of words of an empty file, which is open for reading and writing. They are 0.
    ///
    /// # Errors
    /// If the file system has no room for them, or cannot map.
    #[expect(
        clippy::disallowed_methods,
        reason = "a process calls it before it serves calls, or on a thread that waits"
    )]
    pub fn create(file: &File, words: usize) -> io::Result<Self> {
        let bytes = words
            .checked_mul(8)
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        fallocate(file, FallocateFlags::empty(), 0, bytes as u64)?;
        // In memory at once: a page fault at a later store could wait for a slow disk.
        let map = MmapOptions::new().len(bytes).populate().map_raw(file)?;
        Ok(Self { map, words })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.words, "a word of the map");
        let word = self.map.as_mut_ptr().cast::<u64>();
        // SAFETY: `at` is below `words`, so the pointer stays within the map, which is aligned to a page.
        let word = unsafe { word.add(at) };
        // SAFETY: it is valid and aligned for as long as `self.map`, which the result borrows, and every access to
        // these bytes is atomic, because this is the only place that makes a reference to them.
        unsafe { AtomicU64::from_ptr(word) }
    }
}

impl Memory for MappedFile {
    #[inline]
    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Relaxed)
    }

    #[inline]
    fn store(&self, at: usize, word: u64) {
        // Released, so that the compiler keeps the order of stores.
        self.word(at).store(word, Ordering::Release);
    }

    fn words(&self) -> usize {
        self.words
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests serve no calls")]
mod tests {
    use std::fs;

    use super::*;

    fn mapped(words: usize) -> (tempfile::NamedTempFile, MappedFile) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let map = MappedFile::create(file.as_file(), words).expect("it is mapped");
        (file, map)
    }

    #[test]
    fn a_store_is_in_the_file_without_a_system_call() {
        let (file, map) = mapped(3);
        assert_eq!((map.words(), map.load(2)), (3, 0));
        map.store(2, 0x0102_0304_0506_0708);
        let bytes = fs::read(file.path()).expect("it is there");
        assert_eq!(bytes.len(), 24);
        assert_eq!(bytes[16..], 0x0102_0304_0506_0708_u64.to_ne_bytes());
        drop(map);
        assert_eq!(fs::read(file.path()).expect("it is there"), bytes);
    }

    #[test]
    #[should_panic(expected = "a word of the map")]
    fn no_word_is_behind_the_map() {
        mapped(3).1.load(3);
    }

    #[test]
    fn what_has_no_room_is_an_error() {
        let file = tempfile::tempfile().expect("a file");
        assert!(MappedFile::create(&file, usize::MAX).is_err());
        assert!(MappedFile::create(&file, usize::MAX / 16).is_err());
    }
}
