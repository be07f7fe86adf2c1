//! Every test of the app, in one binary.

mod admin;
mod log;
mod metrics;
