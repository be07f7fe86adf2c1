//! Fuzzes Doorman's messages: no bytes panic, the check and prost agree about what is no message, and a message that is
//! taken is written as bytes that are taken again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate_leases::wire::{
    DiscoveryResponse, GetCapacityRequest, GetCapacityResponse, GetServerCapacityRequest,
    GetServerCapacityResponse, NoMessage, ReleaseCapacityRequest, ReleaseCapacityResponse, Shaped,
    check,
};

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    match kind % 7 {
        0 => read::<GetCapacityRequest>(bytes),
        1 => read::<GetCapacityResponse>(bytes),
        2 => read::<ReleaseCapacityRequest>(bytes),
        3 => read::<ReleaseCapacityResponse>(bytes),
        4 => read::<GetServerCapacityRequest>(bytes),
        5 => read::<GetServerCapacityResponse>(bytes),
        _ => read::<DiscoveryResponse>(bytes),
    }
});

fn read<M: Message + Shaped + Default>(bytes: &[u8]) {
    let checked = check(bytes, &M::SHAPE);
    let Ok(message) = M::decode(bytes) else {
        return;
    };
    assert_ne!(checked, Err(NoMessage::Garbage), "prost takes it");
    if checked.is_ok() {
        let written = message.encode_to_vec();
        assert_eq!(check(&written, &M::SHAPE), Ok(()));
        let again = M::decode(&written[..]).expect("it was just written");
        // Not the messages: a number that is none is not itself.
        assert_eq!(again.encode_to_vec(), written);
    }
}
