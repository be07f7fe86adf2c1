//! The required fields of messages, and the check of bytes for them.
//!
//! prost reads a missing required field as zero: a client that forgot its demand would seem to
//! want nothing. Doorman refuses such a message, and so do we, before prost sees it. The shape of
//! each message is generated from `proto/doorman.proto`, like the messages themselves.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The required content of a message.
#[derive(Debug)]
pub struct Shape {
    /// The name of the message in the file.
    pub name: &'static str,
    /// The required fields, and fields with messages that have required fields.
    pub fields: &'static [WireField],
}

/// A field that is required, or must be checked inside.
#[derive(Debug)]
pub struct WireField {
    /// The number of the field.
    pub number: u32,
    /// The name of the field in the file.
    pub name: &'static str,
    /// Whether it is required.
    pub required: bool,
    /// The shape of its message, if that has required fields.
    pub message: Option<&'static Shape>,
}

/// A message of the file.
pub trait Shaped {
    /// The required content of the message.
    const SHAPE: Shape;
}

/// Why some bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMessage {
    /// The bytes are not protobuf.
    #[error("the bytes are no protobuf message")]
    Garbage,
    /// A required field is missing.
    #[error("doorman.{message}: required field {field} is not set")]
    Missing {
        /// The message without it.
        message: &'static str,
        /// The field.
        field: &'static str,
    },
}

impl From<prost::DecodeError> for NoMessage {
    fn from(_: prost::DecodeError) -> Self {
        Self::Garbage
    }
}

/// Checks a message, and the messages inside it, for required fields. Fields without required
/// ones inside are skipped: prost decides whether they are readable.
///
/// # Errors
///
/// The first missing field, or an unexpected end of the bytes.
pub fn check(bytes: &[u8], shape: &Shape) -> Result<(), NoMessage> {
    let mut rest = bytes;
    // No message here has as many fields as this has bits.
    let mut seen: u32 = 0;
    while !rest.is_empty() {
        let (number, wire_type) = decode_key(&mut rest)?;
        let found = shape.fields.iter().position(|it| it.number == number);
        let inner = found.and_then(|index| {
            seen |= 1 << index;
            shape.fields[index].message
        });
        if let (Some(inner), WireType::LengthDelimited) = (inner, wire_type) {
            let length = usize::try_from(decode_varint(&mut rest)?).unwrap_or(usize::MAX);
            let (content, after) = rest.split_at_checked(length).ok_or(NoMessage::Garbage)?;
            check(content, inner)?;
            rest = after;
        } else {
            skip_field(wire_type, number, &mut rest, DecodeContext::default())?;
        }
    }
    let missing = |(index, field): &(usize, &WireField)| field.required && seen & (1 << index) == 0;
    match shape.fields.iter().enumerate().find(missing) {
        None => Ok(()),
        Some((_, field)) => Err(NoMessage::Missing {
            message: shape.name,
            field: field.name,
        }),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::wire::{DiscoveryRequest, GetCapacityRequest, Lease, ResourceRequest};

    fn asked() -> GetCapacityRequest {
        GetCapacityRequest {
            client_id: "client".into(),
            resource: vec![ResourceRequest {
                resource_id: "disk".into(),
                priority: 0,
                has: Some(Lease {
                    expiry_time: 0,
                    refresh_interval: 0,
                    capacity: 0.0,
                }),
                wants: 0.0,
            }],
        }
    }

    fn missing(message: &'static str, field: &'static str) -> Result<(), NoMessage> {
        Err(NoMessage::Missing { message, field })
    }

    #[test]
    fn a_field_that_is_zero_is_present() {
        let bytes = asked().encode_to_vec();
        assert_eq!(check(&bytes, &GetCapacityRequest::SHAPE), Ok(()));
        assert_eq!(check(&[], &DiscoveryRequest::SHAPE), Ok(()));
    }

    #[test]
    fn a_field_that_is_missing_is_named_however_deep_it_should_be() {
        let shape = &GetCapacityRequest::SHAPE;
        assert_eq!(
            check(&[], shape),
            missing("GetCapacityRequest", "client_id")
        );
        // client_id "c", then a resource whose has lacks everything but capacity 0.
        let has: &[u8] = &[0x1a, 9, 0x19, 0, 0, 0, 0, 0, 0, 0, 0];
        let resource = [&[0x0a, 1, b'r', 0x10, 0], has].concat();
        let head = [0x0a, 1, b'c', 0x12, resource.len() as u8];
        let bytes = [&head[..], &resource].concat();
        assert_eq!(check(&bytes, shape), missing("Lease", "expiry_time"));
        let bytes = [0x0a, 1, b'c', 0x12, 5, 0x0a, 1, b'r', 0x10, 0];
        assert_eq!(check(&bytes, shape), missing("ResourceRequest", "wants"));
    }

    #[test]
    fn bytes_that_end_too_early_are_garbage() {
        let bytes = asked().encode_to_vec();
        for end in 0..bytes.len() {
            let found = check(&bytes[..end], &GetCapacityRequest::SHAPE);
            // Cut between two fields, it is a whole message with one field less.
            let cut_between = end == 0 || end == 8;
            assert_eq!(found == Err(NoMessage::Garbage), !cut_between, "{end}");
        }
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let known = asked().encode_to_vec();
        let group = [0x7b, 0x08, 1, 0x83, 1, 0x84, 1, 0x7c];
        let text = [0x72, 3, 1, 2, 3];
        let fixed = [0x75, 1, 2, 3, 4, 0x71, 1, 2, 3, 4, 5, 6, 7, 8];
        let bytes = [&group[..], &text, &fixed, &known].concat();
        assert_eq!(check(&bytes, &GetCapacityRequest::SHAPE), Ok(()));
    }

    #[test]
    fn groups_within_groups_end_somewhere() {
        let shape = &GetCapacityRequest::SHAPE;
        for bytes in [
            vec![0x7b; 1 << 20],
            vec![0x7c],
            vec![0x7b, 0x74],
            vec![0xff; 100],
        ] {
            assert_eq!(check(&bytes, shape), Err(NoMessage::Garbage));
        }
    }
}
