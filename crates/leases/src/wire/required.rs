//! The required fields of messages, and the check of bytes for them.
//!
//! prost reads a missing required field as zero: a client that forgot its demand would seem to
//! want nothing. Doorman refuses such a message, and so do we, before prost sees it. The tables
//! below repeat `proto/doorman.proto`; a test compares every line.

use super::{
    DiscoveryRequest, DiscoveryResponse, GetCapacityRequest, GetCapacityResponse,
    GetServerCapacityRequest, GetServerCapacityResponse, ReleaseCapacityRequest,
    ReleaseCapacityResponse,
};

/// The required content of a message.
#[derive(Debug)]
pub struct Shape {
    /// Its name in the file.
    pub name: &'static str,
    /// The required fields, and fields with messages that have required fields.
    pub fields: &'static [Field],
}

/// A field that is required, or must be checked inside.
#[derive(Debug)]
pub struct Field {
    /// Its number.
    pub number: u32,
    /// Its name in the file.
    pub name: &'static str,
    /// Whether it is required.
    pub required: bool,
    /// The shape of its message, if that has required fields.
    pub message: Option<&'static Shape>,
}

const fn required(number: u32, name: &'static str) -> Field {
    Field {
        number,
        name,
        required: true,
        message: None,
    }
}

const fn holding(number: u32, name: &'static str, message: &'static Shape) -> Field {
    Field {
        number,
        name,
        required: false,
        message: Some(message),
    }
}

const fn required_holding(number: u32, name: &'static str, message: &'static Shape) -> Field {
    Field {
        number,
        name,
        required: true,
        message: Some(message),
    }
}

const LEASE: Shape = Shape {
    name: "Lease",
    fields: &[
        required(1, "expiry_time"),
        required(2, "refresh_interval"),
        required(3, "capacity"),
    ],
};

const RESOURCE_REQUEST: Shape = Shape {
    name: "ResourceRequest",
    fields: &[
        required(1, "resource_id"),
        required(2, "priority"),
        holding(3, "has", &LEASE),
        required(4, "wants"),
    ],
};

const RESOURCE_RESPONSE: Shape = Shape {
    name: "ResourceResponse",
    fields: &[
        required(1, "resource_id"),
        required_holding(2, "gets", &LEASE),
    ],
};

const PRIORITY_BAND_AGGREGATE: Shape = Shape {
    name: "PriorityBandAggregate",
    fields: &[
        required(1, "priority"),
        required(2, "num_clients"),
        required(3, "wants"),
    ],
};

const SERVER_CAPACITY_RESOURCE_REQUEST: Shape = Shape {
    name: "ServerCapacityResourceRequest",
    fields: &[
        required(1, "resource_id"),
        holding(2, "has", &LEASE),
        holding(3, "wants", &PRIORITY_BAND_AGGREGATE),
    ],
};

const NAMED_PARAMETER: Shape = Shape {
    name: "NamedParameter",
    fields: &[required(1, "name")],
};

const ALGORITHM: Shape = Shape {
    name: "Algorithm",
    fields: &[
        required(1, "kind"),
        required(2, "lease_length"),
        required(3, "refresh_interval"),
        holding(4, "parameters", &NAMED_PARAMETER),
    ],
};

const SERVER_CAPACITY_RESOURCE_RESPONSE: Shape = Shape {
    name: "ServerCapacityResourceResponse",
    fields: &[
        required(1, "resource_id"),
        required_holding(2, "gets", &LEASE),
        holding(3, "algorithm", &ALGORITHM),
    ],
};

/// A message that is sent by itself.
pub trait Shaped {
    /// Its required content.
    const SHAPE: Shape;
}

impl Shaped for DiscoveryRequest {
    const SHAPE: Shape = Shape {
        name: "DiscoveryRequest",
        fields: &[],
    };
}

impl Shaped for DiscoveryResponse {
    const SHAPE: Shape = Shape {
        name: "DiscoveryResponse",
        fields: &[required(1, "mastership"), required(2, "is_master")],
    };
}

impl Shaped for GetCapacityRequest {
    const SHAPE: Shape = Shape {
        name: "GetCapacityRequest",
        fields: &[
            required(1, "client_id"),
            holding(2, "resource", &RESOURCE_REQUEST),
        ],
    };
}

impl Shaped for GetCapacityResponse {
    const SHAPE: Shape = Shape {
        name: "GetCapacityResponse",
        fields: &[holding(1, "response", &RESOURCE_RESPONSE)],
    };
}

impl Shaped for GetServerCapacityRequest {
    const SHAPE: Shape = Shape {
        name: "GetServerCapacityRequest",
        fields: &[
            required(1, "server_id"),
            holding(2, "resource", &SERVER_CAPACITY_RESOURCE_REQUEST),
        ],
    };
}

impl Shaped for GetServerCapacityResponse {
    const SHAPE: Shape = Shape {
        name: "GetServerCapacityResponse",
        fields: &[holding(1, "response", &SERVER_CAPACITY_RESOURCE_RESPONSE)],
    };
}

impl Shaped for ReleaseCapacityRequest {
    const SHAPE: Shape = Shape {
        name: "ReleaseCapacityRequest",
        fields: &[required(1, "client_id")],
    };
}

impl Shaped for ReleaseCapacityResponse {
    const SHAPE: Shape = Shape {
        name: "ReleaseCapacityResponse",
        fields: &[],
    };
}

/// Why some bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMessage {
    /// They are not protobuf.
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

/// Checks a message, and the messages inside it, for required fields. Fields without required
/// ones inside are skipped: prost decides whether they are readable.
///
/// # Errors
///
/// The first missing field, or an unexpected end of the bytes.
pub fn check(bytes: &[u8], shape: &Shape) -> Result<(), NoMessage> {
    let mut reader = Reader(bytes);
    // No message here has as many fields as this has bits.
    let mut seen: u32 = 0;
    while !reader.0.is_empty() {
        let key = reader.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| NoMessage::Garbage)?;
        let content = reader.content(number, key & 7)?;
        let found = shape.fields.iter().position(|it| it.number == number);
        let Some(index) = found else { continue };
        seen |= 1 << index;
        if let (Some(inner), Some(content)) = (shape.fields[index].message, content) {
            check(content, inner)?;
        }
    }
    let missing = |(index, field): &(usize, &Field)| field.required && seen & (1 << index) == 0;
    match shape.fields.iter().enumerate().find(missing) {
        None => Ok(()),
        Some((_, field)) => Err(NoMessage::Missing {
            message: shape.name,
            field: field.name,
        }),
    }
}

/// The deepest nesting of groups. No message here has any, but an old peer could still send one,
/// and a hostile peer very many.
const GROUPS_MAX: usize = 32;

/// The rest of a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64, NoMessage> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte, rest @ ..] = self.0 else {
                return Err(NoMessage::Garbage);
            };
            self.0 = rest;
            // The tenth byte has room for one bit.
            if shift == 63 && *byte > 1 {
                return Err(NoMessage::Garbage);
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(NoMessage::Garbage)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], NoMessage> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(NoMessage::Garbage)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Skips a field's value; returns the bytes of one with a length.
    fn content(&mut self, number: u32, wire_type: u64) -> Result<Option<&'a [u8]>, NoMessage> {
        match wire_type {
            0 => self.varint().map(|_| None),
            1 => self.take(8).map(|_| None),
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).map_err(|_| NoMessage::Garbage)?;
                self.take(length).map(Some)
            }
            3 => self.group(number).map(|()| None),
            5 => self.take(4).map(|_| None),
            _ => Err(NoMessage::Garbage),
        }
    }

    /// Skips a group whose start has been read.
    fn group(&mut self, number: u32) -> Result<(), NoMessage> {
        let mut open = vec![number];
        while let Some(&innermost) = open.last() {
            let key = self.varint()?;
            let number = u32::try_from(key >> 3).map_err(|_| NoMessage::Garbage)?;
            match key & 7 {
                3 if open.len() < GROUPS_MAX => open.push(number),
                4 if number == innermost => {
                    open.pop();
                }
                3 | 4 => return Err(NoMessage::Garbage),
                other => {
                    self.content(number, other)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::wire::{Lease, ResourceRequest};

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
    fn what_is_there_is_not_missed_even_where_it_is_zero() {
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
