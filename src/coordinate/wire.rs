//! Doorman's protocol: the messages of `proto/doorman.proto`, its gRPC client and server, and
//! its time.

mod codec;
mod epoch;
mod required;

/// What protox and prost make of `proto/doorman.proto`; a test holds the two together.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    rustdoc::all
)]
#[rustfmt::skip]
mod doorman;

pub use codec::{CheckedCodec, CheckedDecoder};
pub use doorman::*;
pub use epoch::Epoch;
pub use required::{Field, NoMessage, Shape, Shaped, check};
