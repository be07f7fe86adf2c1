//! Fuzzes the reader of logs: no bytes panic, what is taken for a line of ours is JSON, and a log that was cut or wrapped
//! never holds more than a line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use tidegate_record::{Content, LogLine, Unwrapper, WRAPPED_MAX, read};

fuzz_target!(|log: &[u8]| {
    let mut unwrapper = Unwrapper::default();
    for line in log.split(|&byte| byte == b'\n') {
        check(line);
        match unwrapper.take(line) {
            Content::Unwrapped => check(unwrapper.whole()),
            Content::Plain | Content::Part | Content::Unreadable(_) => {}
        }
        assert!(unwrapper.whole().len() <= WRAPPED_MAX);
    }
    while unwrapper.rest().is_some() {
        check(unwrapper.whole());
    }
});

fn check(line: &[u8]) {
    let start = line.iter().position(|&byte| byte == b'{');
    let object = &line[start.unwrap_or_default()..];
    match read(line) {
        LogLine::Access(_) | LogLine::Replay(_) | LogLine::Gate(_) | LogLine::Lost(..) => {
            assert!(serde_json::from_slice::<IgnoredAny>(object).is_ok());
        }
        LogLine::Text | LogLine::Other | LogLine::Broken(_) => {}
    }
}
