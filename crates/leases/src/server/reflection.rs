//! The reflection service: tools such as `grpcurl` ask it for the calls and the messages.
//!
//! It speaks both versions of its protocol, because older tools know only the first.

use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};
use tonic_reflection::server::{Builder, v1alpha};

/// `proto/doorman.proto`, as protox compiles it; a test compares the two.
const DOORMAN: &[u8] = include_bytes!("../wire/doorman.bin");

pub(super) fn v1() -> ServerReflectionServer<impl ServerReflection> {
    built().build_v1().expect("the descriptors are checked in")
}

pub(super) fn v1alpha() -> v1alpha::ServerReflectionServer<impl v1alpha::ServerReflection> {
    built()
        .build_v1alpha()
        .expect("the descriptors are checked in")
}

fn built() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(DOORMAN)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
