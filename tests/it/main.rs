//! Every test of the app, in one binary.

mod array_call;
mod dialect;
mod framer;
mod operation;
