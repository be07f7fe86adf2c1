//! Advice from logs about a backend, and which limits to set in front of it.
//!
//! [`sample::Sample`] is one call of the past, whichever program logged it. [`advice::advise`] answers
//! from many of them. Nothing in here reads a clock or a file: the caller passes bytes and samples in,
//! and randomness is a seed.
//!
//! How it gets there, from the inside out: [`levels`] counts the calls at the backend at any time;
//! [`breaking`] finds the level from which it breaks; [`fit`] fits a [`curve`] to the times below
//! that; [`advice`] draws the values, with the reasons of [`setting`]. Shares and quantiles have the
//! intervals of [`interval`].
#![forbid(unsafe_code)]

pub mod advice;
pub mod breaking;
pub mod curve;
pub mod draw;
pub mod fit;
pub mod interval;
pub mod levels;
mod replay;
mod runs;
pub mod sample;
#[cfg(test)]
#[path = "../../limits/tests/random/seeds.rs"]
mod seeds;
pub mod setting;
pub mod tokens;
