//! Tests of the models of backends.

mod drive;
mod laws;
mod oracle;
mod queueing;
mod random;
#[path = "../../../limits/tests/random/seeds.rs"]
mod seeds;
