//! Any split of the bytes gives the same result as the whole, and both agree with
//! serde_json about where a value ends.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use serde_json::Deserializer;
use tidegate_zvm::framer::{FrameError, FrameStatus, Framer};

fuzz_target!(|input: (Vec<u8>, Vec<u8>, u16)| {
    let (lengths, bytes, bytes_max) = input;
    let bytes_max = usize::from(bytes_max);
    let framer = Framer::new(bytes_max);
    let whole = framer.clone().push(&bytes);
    assert_eq!(in_pieces(framer, &bytes, &lengths), whole);
    let whole = Framer::new(bytes.len() + 1).push(&bytes);
    if bytes.trim_ascii_start().first() != Some(&b'[') {
        return;
    }
    let Ok(text) = std::str::from_utf8(&bytes) else {
        return;
    };
    let mut values = Deserializer::from_str(text).into_iter::<IgnoredAny>();
    if let Some(Ok(_)) = values.next() {
        match whole {
            FrameStatus::End(end) => assert_eq!(end, values.byte_offset()),
            FrameStatus::Bad(why) => assert_eq!(why, FrameError::TooDeep),
            FrameStatus::More => panic!("serde_json saw the end at {}", values.byte_offset()),
        }
    }
});

fn in_pieces(mut framer: Framer, bytes: &[u8], lengths: &[u8]) -> FrameStatus {
    let mut framed = framer.push(&[]);
    let mut rest = bytes;
    let mut lengths = lengths.iter().cycle();
    while framed == FrameStatus::More && !rest.is_empty() {
        // Empty pieces are allowed, but one piece must make progress.
        let length = lengths
            .next()
            .map_or(1, |&length| usize::from(length).max(1));
        let (piece, later) = rest.split_at(length.min(rest.len()));
        framed = framer.push(piece);
        rest = later;
    }
    framed
}
