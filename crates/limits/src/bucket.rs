//! The token bucket, its parameters, and what it has in common with a [`Pacer`](crate::pace::Pacer).

mod amount;
mod count;
mod limiter;
mod range;
mod token_bucket;

pub use amount::{Burst, Fill, Tokens};
pub use count::TokenCount;
pub use limiter::TokenLimiter;
pub use range::OutOfRange;
pub(crate) use range::{in_range, ranged};
pub use token_bucket::{DEBT_MAX_BURSTS, DEBT_MAX_FILL, TokenBucket};
