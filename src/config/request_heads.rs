//! The options of `[client]` on the heads of HTTP requests, from the file to the settings and back.

use crate::protocol;

use super::effective::Toml;
use super::reader::{Section, Setting};
use super::value::integer;

/// Most fields of a request, unless the file says otherwise.
const FIELDS: u32 = 128;

/// The options of `[client]` on heads.
pub(super) struct RawHeads {
    max_request_fields: Setting<u32>,
}

pub(super) fn read(section: &mut Section<'_>) -> RawHeads {
    RawHeads {
        max_request_fields: section.read("max_request_fields", FIELDS, integer(16..=1024)),
    }
}

impl RawHeads {
    /// Most header fields of a request.
    pub(super) fn max_request_fields(&self) -> usize {
        self.max_request_fields.value as usize
    }
}

pub(super) fn write(out: &mut Toml, settings: &protocol::Settings) {
    out.bare("max_request_fields", settings.max_request_fields);
}
