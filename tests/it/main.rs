//! Every test of the app, in one binary.

mod admin;
mod array_call;
mod backend;
mod config;
mod dialect;
mod floor_plan;
mod framer;
mod leaving;
mod log;
mod metrics;
mod operation;
mod support;
