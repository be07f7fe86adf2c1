//! Tests of the lab, in one binary.

#![allow(clippy::disallowed_methods, reason = "tests serve no calls")]

mod backend;
mod bench;
mod demo;
mod relay;
