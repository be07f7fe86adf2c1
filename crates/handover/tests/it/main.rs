//! The model of the hand-over, and the wire format.

mod model;
mod world;
