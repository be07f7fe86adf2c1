//! A value that a reload replaces as a whole.

use std::sync::{Arc, PoisonError, RwLock};

/// Readers take the value as it is and keep it for as long as they need it; a reload swaps
/// it for those that come later.
#[derive(Debug)]
pub struct Live<T>(RwLock<Arc<T>>);

impl<T> Live<T> {
    /// Begins with this value.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(RwLock::new(Arc::new(value)))
    }

    /// The value now.
    #[must_use]
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces it.
    pub fn set(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
    }
}
