//! A limiter for each of very many keys.
//!
//! [`Keys`] is for threads that share it: it has a clock and a lock, remembers a bounded number of keys,
//! and forgets those that rest. [`BucketKeys`] gives each key a [`TokenBucket`], [`PacedKeys`] a
//! [`Pacer`] limiter.

mod error;
mod keys;
mod limiter;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;

pub use error::{KeyError, TooManyKeys};
pub use keys::{BucketKeys, Keys, PacedKeys};
pub use limiter::Keyed;
