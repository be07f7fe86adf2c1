//! Tidegate: a sidecar proxy that holds a flood back.
//!
//! This file is the map. A call goes down this list, and its reply comes back up:
//!
//! | module | what happens to the call there |
//! |---|---|
//! | [`listen`] | its connection is accepted |
//! | [`protocol`] | its bytes become one whole request, the reply becomes bytes |
//! | [`pipeline`] | the story: classify, charge, admit, forward |
//! | [`classify`] | what is asked, of which backend |
//! | [`callers`] | who asks, what it costs, what is charged |
//! | [`coalesce`] | if it is a read, it may share the call of an identical one |
//! | [`admit`] | it waits for its turn and its limits |
//! | [`forward`] | it is sent, once, and its reply read to the end |
//!
//! Around it: [`config`] reads the settings, [`app`] builds everything, [`admin`] shows it and
//! lets it be changed, [`series`] keeps its latest day, [`state`] what must survive a restart,
//! [`telemetry`] counts and logs it, [`tools`] are the other commands. [`tasks`] keeps calls that run without their
//! client. [`call`] has the words that all of them share. The crate
//! `tidegate_limits` decides which call runs when, the crate `tidegate_callers` which caller it belongs
//! to. Clock, live values and back-off are in the crate `tidegate_runtime`.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests serve no calls")
)]

pub mod admin;
pub mod admit;
pub mod app;
pub mod call;
pub mod callers;
pub mod classify;
pub mod cli;
pub mod coalesce;
pub mod config;
pub mod forward;
pub mod listen;
pub mod options;
pub mod pipeline;
pub mod protocol;
pub mod series;
#[expect(
    clippy::disallowed_methods,
    reason = "the app calls it on threads that wait"
)]
pub mod state;
pub mod tasks;
pub mod telemetry;
pub mod tools;
