//! Tests of the crate through its public face, in one binary.

mod evasions;
mod mutations;
mod oracle;
mod speed;
