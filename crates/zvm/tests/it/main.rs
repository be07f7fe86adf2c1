//! Tests of the crate through its public face, in one binary.

mod array;
mod framer;
mod functions;
mod reply;
