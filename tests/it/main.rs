//! Every test of the app, in one binary.

mod admin;
mod array_call;
mod backend;
mod bad_input;
mod bench;
mod bounds;
mod coalesce;
mod config;
mod demo;
mod dialect;
mod documents;
mod floor_plan;
mod forwarding;
mod framer;
mod healthcheck;
mod http_semantics;
mod leaving;
mod lifecycle;
mod log;
mod metrics;
mod operation;
mod peers;
mod queueing;
mod scenarios;
mod sidecar;
mod support;
