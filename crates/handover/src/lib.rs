//! The hand-over of admission from an old process to a new one, as pure state machines.
//!
//! Two processes of one sidecar live at the same time while a program is upgraded. TLS sessions and streams cannot move,
//! so connections stay with the old process. Limits cannot be in two places, so admission moves: at each moment at most
//! one process admits calls, and a call of the old process asks the new one for its turn.
//!
//! [`OldSide`] and [`NewSide`] decide. Each takes one input at a time, and returns outputs that its process carries out in
//! their order: messages for the other side, and acts such as stopping to admit. No clock, socket, thread or file is in
//! this crate. The model in `tests/it` drives these two types, and not a copy of them, through every order of messages,
//! calls, crashes and lost connections.
//!
//! **Two locks decide who admits**, and not messages, because a message cannot tell a dead process from a slow one. The
//! kernel frees the lock of a file when its process ends, however it ends.
//!
//! | lock | holder | meaning |
//! |---|---|---|
//! | the ledger's | the process that admits calls | without it, no process admits |
//! | the draining one | the process before, from the commit until it ends | its running calls may still be at the backend |
//!
//! The ledger's lock has a *term*: a number in the file of the lock, which each process that claims the lock raises by one.
//! A commit names the term in which it was made. A new process that finds another term knows that a third process has
//! admitted calls since, and that what the commit says of running calls is no longer true.
//!
//! ```text
//!  old                                              new
//!  serves                                           starts
//!        ◄─────────────────────────────── hello ──
//!        ── welcome ─────────────────────────────►  reads its config, builds everything
//!        ◄──────────────────────────── prepared ──
//!  stops to accept and to admit,
//!  frees the ledger's lock
//!        ── state, running and waiting calls ────►
//!        ── commit ──────────────────────────────►  claims the ledger's lock, counts, publishes its ledger
//!        ◄─────────────────────────────── taken ──  accepts and admits
//!        ── wait ────────────────────────────────►
//!        ◄───────────────────────── run, refused ──
//!        ── sent, replied, done, left, requeue ──►
//!  ends with its last connection
//! ```
//!
//! | file | content |
//! |---|---|
//! | `old.rs` | the process that serves, and then drains |
//! | `new.rs` | the process that starts, and then serves |
//! | `message.rs` | what they say to each other |
//! | `frame.rs` | messages as bytes |

#![forbid(unsafe_code)]

mod frame;
mod message;
mod new;
mod old;

pub use frame::{FRAME_BYTES_MAX, FrameError, FrameReader, HEAD_BYTES, WireMessage};
pub use message::{
    CallRefusal, CallRole, ForeignCall, ForeignId, ForeignOutcome, QuotaClaim, RequeueCause,
    RunStage, RunningCall, SOCKETS_MAX, StatePart, ToNew, ToOld, UpgradeRefusal, Versions,
    WaitingCall,
};
pub use new::{ClaimWait, Commitment, GiveUpCause, NewInput, NewOutput, NewSide};
pub use old::{FrozenGate, OldInput, OldOutput, OldSide, PeerConnection};
