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

/// The metadata in which our servers say when they decided, in milliseconds since 1970: a
/// client whose clock differs counts a lease's length from it.
pub const NOW_MS: &str = "tidegate-now-ms";

/// When the server that sent this decided, where it says so.   milliseconds since 1970
#[must_use]
pub fn server_millis(metadata: &tonic::metadata::MetadataMap) -> Option<i64> {
    metadata.get(NOW_MS)?.to_str().ok()?.parse().ok()
}
