//! Fuzzes messages: serde_json finds the same values, XML never panics, and any split of a stream has the same events.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tidegate_message::{SseReader, XmlPaths};

#[path = "../../crates/message/tests/it/oracle.rs"]
mod oracle;

use oracle::BothReaders;

static READERS: LazyLock<[BothReaders; 3]> = LazyLock::new(|| {
    [
        BothReaders::new(&["/method", "/params/name", "/params/0"]),
        BothReaders::new(&["/model", "/max_tokens", "/messages/0/role", ""]),
        BothReaders::new(&[
            "/a/b/c",
            "/a/b/d",
            "/a/0/1",
            "/a~1b",
            "/a//x",
            "/usage/total_tokens",
        ]),
    ]
});

static PATHS: LazyLock<XmlPaths> = LazyLock::new(|| {
    let paths = ["methodName", "params/param/0/value", "params/param/1/value"];
    XmlPaths::new(paths.map(|path| path.parse().expect("a path"))).expect("a set")
});

fuzz_target!(|input: (&[u8], u8, u8)| {
    let (body, split, event_bytes_max) = input;
    for readers in &*READERS {
        if let Err(reason) = readers.compare(body) {
            panic!("{reason}");
        }
    }
    let _ = PATHS.find(body);
    let (first, second) = body.split_at(body.len().min(usize::from(split)));
    assert_eq!(
        events(&[body], event_bytes_max),
        events(&[first, second], event_bytes_max)
    );
});

/// The data of each event of a stream in pieces.
fn events(pieces: &[&[u8]], event_bytes_max: u8) -> Vec<Vec<u8>> {
    let mut reader = SseReader::new(usize::from(event_bytes_max));
    let mut found = Vec::new();
    for piece in pieces {
        reader.feed(piece, |data| found.push(data.to_vec()));
    }
    found
}
