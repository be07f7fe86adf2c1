//! The model of the hand-over, both sides by hand, and the wire format.

mod frames;
mod model;
mod random;
#[path = "../search/mod.rs"]
mod search;
mod sides;
mod world;
