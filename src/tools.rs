//! The commands.

pub mod simulate;
