//! HTTP/1.1 messages as bytes (RFC 9112): where their parts are, how their bodies end, and the same
//! messages written anew, with exactly one framing.
//!
//! No I/O, no clock and no memory beyond what is returned, so that every input can be tried.
//!
//! - [`request`] reads every request that a proxy can pass on, and the usual form of one in a single pass.
//! - [`response`] reads every response that a proxy can pass on.
//! - [`chunks`] reads a chunked body.
//! - [`write`](mod@write) writes first lines, fields and framings.

mod body;
pub mod chunks;
mod fields;
pub mod octets;
pub mod request;
pub mod response;
pub mod write;

pub use body::BodyLeft;
pub use fields::{ByteSpan, HeadField, HeadFields, is_hop_by_hop};

/// Most bytes of a head.   bytes
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// After this many bytes.
    Length(u64),
    /// With its last chunk.
    Chunked,
    /// With the connection; only that of a response.
    Close,
}

/// Finds the end of a head that arrives in parts, and looks at each byte once. An empty line ends it, also
/// one that ends in LF alone, so that no parser waits for more than is needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadEnd {
    searched: usize,
}

impl HeadEnd {
    /// Whether an empty line is here. `bytes` is all that has come of the head so far.
    pub fn is_in(&mut self, bytes: &[u8]) -> bool {
        let from = self.searched.saturating_sub(3);
        self.searched = bytes.len();
        memchr::memchr_iter(b'\n', &bytes[from..]).any(|at| {
            let behind = &bytes[from + at + 1..];
            behind.starts_with(b"\n") || behind.starts_with(b"\r\n")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_head_is_found_however_it_is_cut() {
        for head in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\nHost: a\n\n",
        ] {
            for cut in 0..head.len() {
                let mut end = HeadEnd::default();
                assert!(!end.is_in(&head.as_bytes()[..cut]), "{cut}");
                assert!(end.is_in(head.as_bytes()), "{cut}");
            }
        }
    }
}
