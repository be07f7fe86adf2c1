//! A limiter for each of very many keys.
//!
//! Threads share one [`Keys`]: it has a clock and a lock, remembers a bounded number of keys, and
//! forgets idle ones. [`BucketKeys`] gives each key a [`TokenBucket`](crate::TokenBucket),
//! [`PacedKeys`] a [`Pacer`](crate::pace::Pacer).

mod acquire;
mod error;
mod keys;
mod limiter;
mod queues;
#[cfg(all(test, not(loom)))]
mod tests;

pub use acquire::AcquireKey;
pub use error::{KeyError, TooManyKeys};
pub use keys::{BucketKeys, Keys, PacedKeys};
pub use limiter::KeyedLimiter;
pub use queues::WAITING_MAX;
