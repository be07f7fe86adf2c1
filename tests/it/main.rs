//! Every test of the app, in one binary.

#![allow(clippy::disallowed_methods, reason = "tests serve no calls")]

mod admin;
#[allow(dead_code)]
#[path = "../../crates/advice/tests/worlds/mod.rs"]
mod advice_worlds;
mod advise;
mod alerts;
mod any_service;
mod api;
mod async_calls;
mod audit;
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
mod foreign_logs;
mod forwarded;
mod forwarding;
mod gate_lines;
mod generated;
#[path = "../../crates/h1/tests/inputs/mod.rs"]
mod h1_inputs;
mod healthcheck;
mod http_clients;
mod http_corpus;
mod http_semantics;
mod init;
mod instructions;
mod lab;
mod lease_agent;
mod lease_config;
mod lease_example;
mod lease_failover;
#[allow(dead_code)]
#[path = "../../crates/leases/tests/it/client/mock.rs"]
mod lease_mock;
mod lease_process;
mod lease_rules_in_etcd;
mod lease_secured;
mod lease_server;
mod lease_simulate;
mod lease_together;
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
mod names;
mod observe;
mod open_sockets;
mod operation;
mod paced;
mod packaging;
mod pause;
mod peers;
mod plan;
mod pooled;
mod predicted;
mod predictions;
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
mod runbook;
mod scenarios;
#[allow(clippy::duplicate_mod, reason = "h1_inputs has it inside")]
#[path = "../../crates/limits/tests/random/seeds.rs"]
mod seeds;
mod series;
mod shared_payers;
mod sidecar;
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
mod threads;
mod time_of_day;
mod tls;
mod top;
mod tunnel;
mod under_systemd;
mod unix;
mod waiting_call;
mod websocket;
