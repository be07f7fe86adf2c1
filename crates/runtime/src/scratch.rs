//! A buffer of each thread, for bytes that are written at once.
//!
//! The next call finds it in the processor's cache, where a buffer of its own would not be.

use std::cell::Cell;

/// Most bytes that a thread keeps.
const KEPT: usize = 32 * 1024;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Runs this with an empty buffer.
pub fn with_scratch<R>(run: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    // One that is used within another is a new one.
    let mut buffer = BUFFER.take();
    buffer.clear();
    let done = run(&mut buffer);
    if buffer.capacity() <= KEPT {
        BUFFER.set(buffer);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_always_empty_and_keeps_its_memory() {
        let first = with_scratch(|buffer| {
            buffer.extend_from_slice(b"abc");
            buffer.as_ptr()
        });
        with_scratch(|buffer| {
            assert!(buffer.is_empty());
            assert_eq!(buffer.as_ptr(), first);
            let inner = with_scratch(|inner| {
                inner.push(1);
                inner.as_ptr()
            });
            assert_ne!(inner, first);
        });
    }

    #[test]
    fn a_large_one_is_not_kept() {
        with_scratch(|buffer| buffer.reserve(KEPT + 1));
        assert_eq!(with_scratch(|buffer| buffer.capacity()), 0);
    }
}
