//! Drives the scheduler of [`tidegate_limits`] in virtual time.
//!
//! A simulation, a replay of a log and a law test need the same machinery around a scheduler: an agenda of
//! what happens when, calls that wait and calls that run, the timer that wakes the scheduler, and predictions
//! of starts. [`Replay`] is that machinery. Its user says when calls arrive, what a backend does with them
//! and what is counted. [`RecordStore`] stands in for a store of quotas.
//!
//! There is no clock, no I/O and no random number here: the same input gives the same run.
//!
//! ```text
//! while let Some(moment) = replay.next_moment() {
//!     replay.advance(moment);
//!     if let Some(event) = replay.pop_due() { /* submit, sent, finish, plan more events */ }
//!     while let Some(decision) = replay.decide(&mut entropy) { /* plan the end of a call, count a refusal */ }
//! }
//! ```
#![forbid(unsafe_code)]

mod agenda;
mod replay;
mod store;

pub use agenda::{Agenda, Ranked};
pub use replay::{CallStage, Decision, Predictions, Replay};
pub use store::RecordStore;
