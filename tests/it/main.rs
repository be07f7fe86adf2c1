//! Every test of the app, in one binary.

mod backend;
mod bench;
mod demo;
