//! Tests of the models of backends.

mod drive;
mod laws;
mod oracle;
mod queueing;
mod random;
