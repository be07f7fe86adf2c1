//! Tests of the crate through its public face, in one binary.

mod evasions;
mod generated;
mod json;
mod mutations;
mod oracle;
mod speed;
mod sse;
mod xml;
