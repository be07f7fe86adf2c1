//! HTTP/2 without an offer: refused in frames that its clients read.
//!
//! A client with prior knowledge (gRPC, `curl --http2-prior-knowledge`) understands no answer in HTTP/1.1. The end of
//! such a connection is a GOAWAY frame, whose debug text names the cause and the cure (RFC 9113, 3.4 and 6.8).

/// The first bytes of each client of HTTP/2.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whether these are the beginning of the preface, and not all of it.
pub(super) fn is_begun(bytes: &[u8]) -> bool {
    bytes.len() < PREFACE.len() && PREFACE.starts_with(bytes)
}

/// `HTTP_1_1_REQUIRED`: "the endpoint requires that HTTP/1.1 be used instead" (RFC 9113, 7).
const HTTP_1_1_REQUIRED: u32 = 0xd;

/// The debug text of the GOAWAY frame.
const CAUSE: &[u8] =
    b"tidegate speaks HTTP/1.1 only: turn HTTP/2 off in the client (curl --http1.1)";

/// The answer to a client of HTTP/2: the preface of a server, which is an empty SETTINGS frame, and a GOAWAY.
pub(super) fn refusal() -> Vec<u8> {
    const SETTINGS: u8 = 4;
    const GOAWAY: u8 = 7;
    let mut goaway = Vec::with_capacity(8 + CAUSE.len());
    // No stream was looked at.
    goaway.extend_from_slice(&0_u32.to_be_bytes());
    goaway.extend_from_slice(&HTTP_1_1_REQUIRED.to_be_bytes());
    goaway.extend_from_slice(CAUSE);
    let mut bytes = frame(SETTINGS, &[]);
    bytes.extend_from_slice(&frame(GOAWAY, &goaway));
    bytes
}

/// A frame of the connection itself, without flags.
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a frame of ours is short");
    let mut frame = Vec::with_capacity(9 + payload.len());
    frame.extend_from_slice(&length.to_be_bytes()[1..]);
    frame.extend_from_slice(&[kind, 0]);
    // The stream.
    frame.extend_from_slice(&0_u32.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_is_a_settings_frame_and_a_goaway_that_asks_for_http_1_1() {
        let bytes = refusal();
        let (settings, goaway) = bytes.split_at(9);
        assert_eq!(settings, [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        let length = u8::try_from(8 + CAUSE.len()).expect("it is short");
        assert_eq!(goaway[..9], [0, 0, length, 7, 0, 0, 0, 0, 0]);
        assert_eq!(goaway[9..17], [0, 0, 0, 0, 0, 0, 0, 0xd]);
        assert_eq!(&goaway[17..], CAUSE);
    }
}
