//! A value that a reload replaces as a whole.

use std::sync::{Arc, PoisonError, RwLock};

/// Readers take the current value and keep it while they need it; a reload replaces it for later
/// readers.
#[derive(Debug)]
pub struct Live<T>(RwLock<Arc<T>>);

impl<T> Live<T> {
    /// Begins with this value.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(RwLock::new(Arc::new(value)))
    }

    /// The current value.
    #[must_use]
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks at the current value, without a share of it: a count of shares is memory that all threads write.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces it.
    pub fn set(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
    }
}
