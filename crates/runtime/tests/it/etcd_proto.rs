//! The checked-in code of `proto/etcd.proto` is what the file says.

use std::fs;
use std::path::Path;

const GENERATED: &str = "src/etcd/proto.rs";

/// `TIDEGATE_GENERATE=1 cargo test -p tidegate-runtime etcd_proto` writes the code anew after a
/// change of the file.
#[test]
fn the_checked_in_code_is_what_the_proto_file_gives() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile([root.join("proto/etcd.proto")], [root.join("proto")]);
    let made = tempfile::tempdir().expect("a folder");
    tonic_prost_build::configure()
        .out_dir(made.path())
        .compile_fds(descriptors.expect("proto/etcd.proto compiles"))
        .expect("code is generated");
    let generated = fs::read_to_string(made.path().join("etcdserverpb.rs")).expect("generated");
    let checked_in = root.join(GENERATED);
    if std::env::var_os("TIDEGATE_GENERATE").is_some() {
        fs::write(&checked_in, &generated).expect("written");
    }
    let found = fs::read_to_string(&checked_in).expect("checked in");
    assert!(
        found == generated,
        "{GENERATED} is not what proto/etcd.proto gives: run \
         TIDEGATE_GENERATE=1 cargo test -p tidegate-runtime etcd_proto, and look at the difference"
    );
}
