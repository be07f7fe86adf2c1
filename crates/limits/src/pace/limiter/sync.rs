//! The atomics and the lock: those of the standard library, or of loom where it is the one that
//! runs them.

#[cfg(all(test, loom))]
pub(super) use loom::hint::spin_loop;
#[cfg(all(test, loom))]
pub(super) use loom::sync::Mutex;
#[cfg(all(test, loom))]
pub(super) use loom::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

#[cfg(not(all(test, loom)))]
pub(super) use std::hint::spin_loop;
#[cfg(not(all(test, loom)))]
pub(super) use std::sync::Mutex;
#[cfg(not(all(test, loom)))]
pub(super) use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};
