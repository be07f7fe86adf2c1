//! The real clients and the real servers, with the real `tidegate serve` between them.
//!
//! The z/VM SDK server, its REST front and their clients are the released ones; only the
//! API behind the server is a stub (`tests/peers`). So what these tests say about a proxy
//! is what its users would see, and nothing here knows how the proxy is built.
//!
//! Where Tidegate stands:
//!
//! ```text
//! socket client ──► Tidegate ──► sdkserver                            (socket)
//! REST client ──► Tidegate ──► sdkwsgi ──► sdkserver                  (outer)
//! REST client ──► sdkwsgi ──► Tidegate ──► sdkserver                  (inner)
//! REST client ──► Tidegate ──► sdkwsgi ──► Tidegate ──► sdkserver     (both)
//! ```

mod answers;
mod leaving;
mod nova;
mod odd_input;
mod restart;
mod stage;
mod storm;
mod terraform;
mod wire;
