//! Fuzzes arrays: what is taken is a call to serde_json too, apart from what only Python reads, and goes on as it came.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use tidegate_zvm::array::parse;
use tidegate_zvm::framer::{FrameStatus, Framer};
use tidegate_zvm::python_json::as_sound_json;
use tidegate_zvm::reply::{ReplyEnding, overall_rc, read};

fuzz_target!(|input: (&[u8], &[u8], u16)| {
    let (args, kwargs, bytes_max) = input;
    let call = [b"[\"guest_f\", [", args, b"], {", kwargs, b"}]"].concat();
    for bytes in [args, &call] {
        check(bytes, usize::from(bytes_max));
    }
});

fn check(bytes: &[u8], bytes_max: usize) {
    if overall_rc(bytes).is_some() && depth_max(bytes) < 64 && std::str::from_utf8(bytes).is_ok() {
        assert_ne!(read(bytes), ReplyEnding::Cut);
    }
    match parse(bytes, bytes_max) {
        Ok(call) => {
            serde_json::from_slice::<IgnoredAny>(&sound(bytes)).expect("it is JSON");
            assert!(call.bytes.len() <= bytes_max);
            assert!(matches!(call.function.len(), 1..=128));
            assert!(
                call.target
                    .is_none_or(|target| matches!(target.len(), 1..=8))
            );
            let sound = sound(&call.bytes);
            let (name, args, kwargs): (String, &RawValue, &RawValue) =
                serde_json::from_slice(&sound).expect("a call stays a call");
            assert_eq!(name, *call.function);
            assert!(args.get().starts_with('[') && kwargs.get().starts_with('{'));
            assert_eq!(without_space(&call.bytes), without_space(bytes));
            if depth_max(bytes) < 64 {
                let end = FrameStatus::End(call.bytes.len());
                assert_eq!(Framer::new(bytes.len() + 1).push(&call.bytes), end);
            }
        }
        Err(refused) => assert!(refused.to_string().is_ascii()),
    }
}

/// The bytes without what only Python's parser reads.
fn sound(bytes: &[u8]) -> Vec<u8> {
    as_sound_json(bytes).unwrap_or_else(|| bytes.to_vec())
}

/// The bytes without white space, also without that in strings.
fn without_space(bytes: &[u8]) -> Vec<u8> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    bytes
        .iter()
        .copied()
        .filter(|byte| !is_space(byte))
        .collect()
}

/// An upper bound of the nesting.
fn depth_max(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .filter(|byte| matches!(byte, b'[' | b'{'))
        .count()
}
