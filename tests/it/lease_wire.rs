//! The checked-in code of `proto/doorman.proto` is what the file says, and the file is Doorman's
//! wire: every number, type and label.

use std::fs;
use std::path::Path;

const GENERATED: &str = "src/coordinate/wire/doorman.rs";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn descriptors() -> prost_types::FileDescriptorSet {
    protox::compile([root().join("proto/doorman.proto")], [root().join("proto")])
        .expect("proto/doorman.proto compiles")
}

/// `TIDEGATE_GENERATE=1 cargo test lease_wire` writes the code anew after a change of the file.
#[test]
fn the_checked_in_code_is_what_the_proto_file_gives() {
    let made = tempfile::tempdir().expect("a folder");
    tonic_prost_build::configure()
        .out_dir(made.path())
        .compile_fds(descriptors())
        .expect("code is generated");
    let generated = fs::read_to_string(made.path().join("doorman.rs")).expect("generated");
    let checked_in = root().join(GENERATED);
    if std::env::var_os("TIDEGATE_GENERATE").is_some() {
        fs::write(&checked_in, &generated).expect("written");
    }
    let found = fs::read_to_string(&checked_in).expect("checked in");
    assert!(
        found == generated,
        "{GENERATED} is not what proto/doorman.proto gives: run \
         TIDEGATE_GENERATE=1 cargo test lease_wire, and look at the difference"
    );
}
