//! Every test of the crate that needs no other process, in one binary.

#![allow(clippy::disallowed_methods, reason = "tests serve no calls")]

mod book_laws;
mod book_vectors;
mod client;
#[path = "../../../limits/tests/random/mod.rs"]
mod random;
#[path = "../shares/mod.rs"]
mod shares;
mod state;
mod tree;
mod wire;

use tidegate_leases::book;
