//! Models of fragile backends in virtual time.
//!
//! A model says when each call ends, from the calls that it works on at once. It has no clock and
//! no randomness of its own: both are arguments, so that the same input gives the same run.
#![forbid(unsafe_code)]
