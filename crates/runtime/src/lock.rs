//! Locks that a panic elsewhere does not spoil.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Waits for a lock. What it guards is whole also after a panic, because no change of it is left
/// half done by one.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock that is free now. As for [`lock`], what it guards is whole.
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
