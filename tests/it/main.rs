//! Every test of the app, in one binary.

mod admin;
mod array_call;
mod backend;
mod bad_input;
mod bounds;
mod config;
mod dialect;
mod floor_plan;
mod forwarding;
mod framer;
mod http_semantics;
mod leaving;
mod lifecycle;
mod log;
mod metrics;
mod operation;
mod process;
mod queueing;
mod support;
