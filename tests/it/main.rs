//! Tests of the sidecar, and of what all programs share: documents, packages, sources. `tests/lab` and `tests/leases` have
//! those of the other programs.

#![allow(clippy::disallowed_methods, reason = "tests serve no calls")]

mod admin;
mod alerts;
mod any_service;
mod api;
mod async_calls;
#[allow(dead_code, reason = "crates use more of it")]
mod authority;
mod backend_names;
mod backend_tls;
mod backend_unix;
mod bad_input;
mod bounds;
mod browser;
mod call_ids;
mod callers;
mod certificates;
mod child;
mod classes;
mod client_left;
mod clock_steps;
mod coalesce;
mod coming_from;
mod command_line;
mod commands_in_documents;
mod confidential;
mod config;
mod connecting;
mod coordinate;
mod dashboard;
mod dialect;
mod documents;
mod drained_streams;
mod endings;
mod faked_clock;
mod faults;
mod floor_plan;
mod forwarded;
mod forwarding;
mod gate_lines;
mod generated;
#[path = "../../crates/h1/tests/inputs/mod.rs"]
mod h1_inputs;
mod handover;
mod healthcheck;
mod http_clients;
mod http_corpus;
mod http_semantics;
mod init;
mod instructions;
mod jobs;
#[allow(dead_code)]
#[path = "../../crates/leases/tests/it/client/mock.rs"]
mod lease_mock;
#[path = "../leases/started.rs"]
mod lease_server;
mod leaving;
mod lifecycle;
mod log;
mod lost_lines;
#[allow(dead_code)]
#[path = "../../examples/manual.rs"]
mod manual;
mod meaning;
mod measured;
mod messages;
mod metrics;
mod model_server;
mod names;
mod new_guest;
mod observe;
mod open_sockets;
mod operation;
mod other_programs;
mod paced;
mod packaging;
mod pause;
mod peers;
mod pooled;
mod preloaded;
mod printing;
mod prior_knowledge;
mod probe;
mod process;
mod proxied;
mod queueing;
mod quota;
mod quota_claims;
mod quota_faults;
mod raw_http;
mod real_clients;
mod real_websocket;
mod relay;
mod restarts;
mod rpc;
mod rpc_clients;
mod runbook;
#[allow(clippy::duplicate_mod, reason = "h1_inputs has it inside")]
#[path = "../../crates/limits/tests/random/seeds.rs"]
mod seeds;
mod series;
mod servers;
mod settled_costs;
mod shared_payers;
mod sidecar;
mod signs_of_life;
mod sizes;
mod spans;
mod state_list;
mod stateful;
#[allow(dead_code, reason = "crates use more of it")]
mod stores;
mod storm;
mod streaming;
mod suggested;
mod support;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../lab/top/terminal.rs"]
mod terminal;
mod threads;
mod tickets;
mod time_of_day;
mod tls;
mod tunnel;
mod under_systemd;
mod unix;
mod waiting_call;
mod websocket;
mod xapi;
mod xapi_storm;
