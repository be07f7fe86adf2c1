//! What logs say about a backend, and which limits to set in front of it.
//!
//! [`sample::Sample`] is one call of the past, whichever program logged it. Nothing in
//! here reads a clock or a file: the caller passes bytes and samples in.
#![forbid(unsafe_code)]

pub mod sample;
