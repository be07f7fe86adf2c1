//! Tests of the crate through its public face, in one binary.

mod mutations;
mod oracle;
mod speed;
