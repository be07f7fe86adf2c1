//! A token bucket for each caller: one caller cannot use up the tokens of another.
//!
//! `cargo run -p tidegate-limits --example per_caller`

use std::num::NonZeroU32;

use tidegate_limits::bucket::OutOfRange;
use tidegate_limits::keyed::{BucketKeys, KeyError};
use tidegate_limits::{Burst, Fill, Tokens};

fn main() -> Result<(), OutOfRange> {
    // 3 calls at once and then 10 per second, for each of up to 10,000 callers.
    let rule = (Burst::new(3.0)?, Fill::new(10.0)?);
    let callers: BucketKeys<String> =
        BucketKeys::new(rule, NonZeroU32::new(10_000).expect("not 0"));
    for caller in ["anna", "anna", "anna", "anna", "otto"] {
        match callers.try_acquire(caller, Tokens::ONE) {
            Ok(()) => println!("{caller}: admitted"),
            Err(KeyError::NotNow(cause)) => println!("{caller}: {cause}"),
            Err(error) => println!("{caller}: {error}"),
        }
    }
    assert_eq!(callers.try_acquire("otto", Tokens::ONE), Ok(()));
    Ok(())
}
