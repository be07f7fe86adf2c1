//! The numbers of servers and of sticky keys. They are the same in every process, so a restart changes nothing.

use tidegate_limits::call::ServerNumber;

/// The number of the server with this name.
#[must_use]
pub fn server_named(name: &str) -> ServerNumber {
    let number = key_of(name.as_bytes()) % ServerNumber::MAX + 1;
    ServerNumber::new(number).expect("it is in range")
}

/// A number for these bytes: FNV-1a with 32 bits, folded to 16.
#[must_use]
pub fn key_of(bytes: &[u8]) -> u16 {
    let hash = bytes.iter().fold(0x811c_9dc5_u32, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (hash >> 16) as u16 ^ hash as u16
}
