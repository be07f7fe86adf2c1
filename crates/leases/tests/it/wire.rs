//! The checked-in code of `proto/doorman.proto` is what the file says, and the file is Doorman's
//! wire: every number, type and label.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};
use tidegate_leases::wire::{
    Algorithm, DiscoveryRequest, DiscoveryResponse, GetCapacityRequest, GetCapacityResponse,
    GetServerCapacityRequest, GetServerCapacityResponse, Lease, Mastership, PriorityBandAggregate,
    ReleaseCapacityRequest, ReleaseCapacityResponse, ResourceRequest, Shape, Shaped as _,
};

const GENERATED: &str = "src/wire/doorman.rs";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn descriptors() -> prost_types::FileDescriptorSet {
    protox::compile([root().join("proto/doorman.proto")], [root().join("proto")])
        .expect("proto/doorman.proto compiles")
}

/// `TIDEGATE_GENERATE=1 cargo test -p tidegate-leases wire` writes the code anew after a change of the file.
#[test]
fn the_checked_in_code_is_what_the_proto_file_gives() {
    let made = tempfile::tempdir().expect("a folder");
    tonic_prost_build::configure()
        .codec_path("crate::wire::CheckedCodec")
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .client_mod_attribute(
            ".",
            "#[cfg(any(feature = \"client\", feature = \"server\"))]",
        )
        .out_dir(made.path())
        .compile_fds(descriptors())
        .expect("code is generated");
    let mut generated = fs::read_to_string(made.path().join("doorman.rs")).expect("generated");
    generated.push_str(&generated_shapes());
    let checked_in = root().join(GENERATED);
    if std::env::var_os("TIDEGATE_GENERATE").is_some() {
        fs::write(&checked_in, &generated).expect("written");
    }
    let found = fs::read_to_string(&checked_in).expect("checked in");
    assert!(
        found == generated,
        "{GENERATED} is not what proto/doorman.proto gives: run \
         TIDEGATE_GENERATE=1 cargo test -p tidegate-leases wire, and look at the difference"
    );
}

/// Compares the descriptors of the reflection service with those of the proto file; writes them anew like the code.
#[test]
fn the_checked_in_descriptors_are_what_the_proto_file_gives() {
    let made = descriptors().encode_to_vec();
    let path = root().join("src/wire/doorman.bin");
    if std::env::var_os("TIDEGATE_GENERATE").is_some() {
        fs::write(&path, &made).expect("written");
    }
    let found = fs::read(&path).expect("checked in");
    assert!(
        found == made,
        "src/wire/doorman.bin is not what proto/doorman.proto gives: run \
         TIDEGATE_GENERATE=1 cargo test -p tidegate-leases wire"
    );
}

/// The implementation of `Shaped` for every message.
fn generated_shapes() -> String {
    let file = file();
    file.message_type.iter().map(generated_shape).collect()
}

fn generated_shape(message: &DescriptorProto) -> String {
    let fields = message.field.iter().filter_map(|field| {
        let required = field.label() == Label::Required;
        let inner = (field.r#type() == Type::Message).then(|| type_of(field));
        let inner = inner.filter(|name| is_checked(name));
        let shape = match &inner {
            Some(name) => format!("Some(&<{name} as super::Shaped>::SHAPE)"),
            None => "None".to_owned(),
        };
        (required || inner.is_some()).then(|| {
            let (number, name) = (field.number(), field.name());
            format!(
                "            super::WireField {{ number: {number}, name: {name:?}, \
                 required: {required}, message: {shape} }},\n"
            )
        })
    });
    let (name, fields) = (message.name(), fields.collect::<String>());
    format!(
        "impl super::Shaped for {name} {{\n    const SHAPE: super::Shape = super::Shape {{\n        \
         name: {name:?},\n        fields: &[\n{fields}        ],\n    }};\n}}\n"
    )
}

/// Whether a message has required fields, or messages with such fields.
fn is_checked(name: &str) -> bool {
    let file = file();
    let message = file.message_type.iter().find(|it| it.name() == name);
    let message = message.expect("a type of the file");
    message.field.iter().any(|field| {
        let is_message = field.r#type() == Type::Message;
        field.label() == Label::Required || is_message && is_checked(&type_of(field))
    })
}

/// Every field of every message, as a 2016 peer has it: message, number, label, type, name.
const WIRE: &str = "
Lease 1 required int64 expiry_time
Lease 2 required int64 refresh_interval
Lease 3 required double capacity
ResourceRequest 1 required string resource_id
ResourceRequest 2 required int64 priority
ResourceRequest 3 optional Lease has
ResourceRequest 4 required double wants
GetCapacityRequest 1 required string client_id
GetCapacityRequest 2 repeated ResourceRequest resource
ResourceResponse 1 required string resource_id
ResourceResponse 2 required Lease gets
ResourceResponse 3 optional double safe_capacity
Mastership 1 optional string master_address
GetCapacityResponse 1 repeated ResourceResponse response
GetCapacityResponse 2 optional Mastership mastership
PriorityBandAggregate 1 required int64 priority
PriorityBandAggregate 2 required int64 num_clients
PriorityBandAggregate 3 required double wants
ServerCapacityResourceRequest 1 required string resource_id
ServerCapacityResourceRequest 2 optional Lease has
ServerCapacityResourceRequest 3 repeated PriorityBandAggregate wants
GetServerCapacityRequest 1 required string server_id
GetServerCapacityRequest 2 repeated ServerCapacityResourceRequest resource
ServerCapacityResourceResponse 1 required string resource_id
ServerCapacityResourceResponse 2 required Lease gets
ServerCapacityResourceResponse 3 optional Algorithm algorithm
ServerCapacityResourceResponse 4 optional double safe_capacity
GetServerCapacityResponse 1 repeated ServerCapacityResourceResponse response
GetServerCapacityResponse 2 optional Mastership mastership
ReleaseCapacityRequest 1 required string client_id
ReleaseCapacityRequest 2 repeated string resource_id
ReleaseCapacityResponse 1 optional Mastership mastership
DiscoveryResponse 1 required Mastership mastership
DiscoveryResponse 2 required bool is_master
NamedParameter 1 required string name
NamedParameter 2 optional string value
Algorithm 1 required Kind kind
Algorithm 2 required int64 lease_length
Algorithm 3 required int64 refresh_interval
Algorithm 4 repeated NamedParameter parameters
Algorithm 5 optional int64 learning_mode_duration
ResourceTemplate 1 required string identifier_glob
ResourceTemplate 2 required double capacity
ResourceTemplate 3 required Algorithm algorithm
ResourceTemplate 4 optional double safe_capacity
ResourceTemplate 5 optional string description
ResourceRepository 1 repeated ResourceTemplate resources
";

fn file() -> FileDescriptorProto {
    let mut files = descriptors().file;
    assert_eq!(files.len(), 1);
    files.remove(0)
}

fn label_of(field: &FieldDescriptorProto) -> &'static str {
    match field.label() {
        Label::Required => "required",
        Label::Optional => "optional",
        Label::Repeated => "repeated",
    }
}

fn type_of(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Int64 => "int64".to_owned(),
        Type::Double => "double".to_owned(),
        Type::String => "string".to_owned(),
        Type::Bool => "bool".to_owned(),
        Type::Message | Type::Enum => {
            let name = field.type_name().rsplit('.').next();
            name.expect("a type has a name").to_owned()
        }
        other => panic!("{} is a {other:?}", field.name()),
    }
}

#[test]
fn every_field_has_the_number_label_and_type_that_old_peers_know() {
    let file = file();
    assert_eq!(file.package(), "doorman");
    // A file that does not say it is proto2.
    assert!(matches!(file.syntax(), "" | "proto2"));
    let lines = file.message_type.iter().flat_map(|message| {
        message.field.iter().map(|field| {
            let (label, of) = (label_of(field), type_of(field));
            let (number, name) = (field.number(), field.name());
            format!("{} {number} {label} {of} {name}", message.name())
        })
    });
    let found: BTreeSet<String> = lines.collect();
    let known = WIRE.lines().filter(|line| !line.is_empty());
    assert_eq!(found, known.map(str::to_owned).collect());
    let kinds = &file.message_type.iter().find(|it| it.name() == "Algorithm");
    let kinds = &kinds.expect("there is one").enum_type[0];
    let kinds: Vec<_> = kinds
        .value
        .iter()
        .map(|it| (it.name(), it.number()))
        .collect();
    let known = [
        ("NO_ALGORITHM", 0),
        ("STATIC", 1),
        ("PROPORTIONAL_SHARE", 2),
        ("FAIR_SHARE", 3),
    ];
    assert_eq!(kinds, known);
}

#[test]
fn the_service_has_the_four_calls_that_old_peers_know() {
    let file = file();
    let [service] = &file.service[..] else {
        panic!("one service");
    };
    assert_eq!(service.name(), "Capacity");
    let calls = service.method.iter().map(|method| {
        assert!(!method.client_streaming() && !method.server_streaming());
        let of = |name: &str| name.trim_start_matches(".doorman.").to_owned();
        let (input, output) = (of(method.input_type()), of(method.output_type()));
        (method.name().to_owned(), input, output)
    });
    let known = [
        "Discovery",
        "GetCapacity",
        "GetServerCapacity",
        "ReleaseCapacity",
    ];
    let known = known.map(|it| {
        (
            it.to_owned(),
            format!("{it}Request"),
            format!("{it}Response"),
        )
    });
    assert_eq!(calls.collect::<Vec<_>>(), known);
}

/// Every shape that is checked, those of messages inside others too.
fn shapes() -> BTreeMap<&'static str, &'static Shape> {
    const SENT: [&Shape; 8] = [
        &DiscoveryRequest::SHAPE,
        &DiscoveryResponse::SHAPE,
        &GetCapacityRequest::SHAPE,
        &GetCapacityResponse::SHAPE,
        &GetServerCapacityRequest::SHAPE,
        &GetServerCapacityResponse::SHAPE,
        &ReleaseCapacityRequest::SHAPE,
        &ReleaseCapacityResponse::SHAPE,
    ];
    let mut found = BTreeMap::new();
    let mut ahead = SENT.to_vec();
    while let Some(shape) = ahead.pop() {
        found.insert(shape.name, shape);
        ahead.extend(shape.fields.iter().filter_map(|field| field.message));
    }
    found
}

#[test]
fn the_fields_that_are_checked_are_those_that_the_file_requires() {
    let file = file();
    let shapes = shapes();
    for message in &file.message_type {
        let required = |field: &&FieldDescriptorProto| field.label() == Label::Required;
        let by_file = message.field.iter().filter(required);
        let by_file: BTreeSet<_> = by_file.map(|it| (it.number(), it.name())).collect();
        let Some(shape) = shapes.get(message.name()) else {
            // Templates are never sent, and the master is optional.
            let unchecked = ["Mastership", "ResourceTemplate", "ResourceRepository"];
            assert!(unchecked.contains(&message.name()), "{}", message.name());
            continue;
        };
        let checked = shape.fields.iter().filter(|field| field.required);
        let checked = checked.map(|it| (it.number as i32, it.name));
        assert_eq!(checked.collect::<BTreeSet<_>>(), by_file, "{}", shape.name);
        for field in &message.field {
            let inner = (field.r#type() == Type::Message).then(|| type_of(field));
            let inner = inner.and_then(|name| shapes.get(name.as_str()).map(|it| it.name));
            let looked = shape
                .fields
                .iter()
                .find(|it| it.number == field.number() as u32);
            let looked = looked.and_then(|it| it.message).map(|it| it.name);
            assert_eq!(looked, inner, "{}.{}", shape.name, field.name());
        }
    }
}

#[test]
fn a_required_zero_is_sent() {
    let check = |message: &dyn Fn() -> Vec<u8>, bytes: &[u8]| {
        assert_eq!(message(), bytes);
    };
    let lease = Lease {
        expiry_time: 0,
        refresh_interval: 0,
        capacity: 0.0,
    };
    let zero = [0; 8];
    let lease_bytes = [&[0x08, 0, 0x10, 0, 0x19], &zero[..]].concat();
    check(&|| lease.encode_to_vec(), &lease_bytes);
    let asked = ResourceRequest {
        resource_id: String::new(),
        priority: 0,
        has: None,
        wants: 0.0,
    };
    let bytes = [&[0x0a, 0, 0x10, 0, 0x21], &zero[..]].concat();
    check(&|| asked.encode_to_vec(), &bytes);
    let band = PriorityBandAggregate {
        priority: 0,
        num_clients: 0,
        wants: 0.0,
    };
    check(&|| band.encode_to_vec(), &lease_bytes);
    let answer = DiscoveryResponse {
        mastership: Mastership {
            master_address: None,
        },
        is_master: false,
    };
    check(&|| answer.encode_to_vec(), &[0x0a, 0, 0x10, 0]);
    let algorithm = Algorithm {
        kind: 0,
        lease_length: 0,
        refresh_interval: 0,
        parameters: Vec::new(),
        learning_mode_duration: None,
    };
    check(&|| algorithm.encode_to_vec(), &[0x08, 0, 0x10, 0, 0x18, 0]);
    let request = GetCapacityRequest {
        client_id: String::new(),
        resource: Vec::new(),
    };
    check(&|| request.encode_to_vec(), &[0x0a, 0]);
}
