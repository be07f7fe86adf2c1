//! The commands.

pub mod backend;
pub mod bench;
pub mod check;
pub mod demo;
pub mod serve;
pub mod simulate;
