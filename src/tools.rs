//! The commands other than `serve`.

pub mod check;
