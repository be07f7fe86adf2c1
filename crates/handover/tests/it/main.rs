//! The model of the hand-over, both sides by hand, and the wire format.

mod frames;
mod model;
mod random;
mod sides;
mod world;
