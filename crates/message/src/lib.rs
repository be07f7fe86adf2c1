//! Values at chosen places of a message, for a proxy that must know the function of a call.
//!
//! - [`JsonPointers`] finds values in a body of JSON, or in each element of a batch.
//! - [`XmlPaths`] finds texts in a body of XML-RPC.
//! - [`SseReader`] takes events out of a stream, and [`LastEvent`] keeps the last number of them.
//!
//! A body is read once and to its end. No tree is built, and values borrow from the body.
//!
//! The values are a promise: a backend reads the same ones, whatever parser it has. Parsers differ in
//! what they do with a key that occurs twice, with a byte order mark, with half a surrogate pair and
//! more, so a body with any of these is [`Unreadable`]. Bodies carry secrets, so no error quotes one.
#![forbid(unsafe_code)]

mod json;
mod pointer;
mod sse;
mod unreadable;
mod utf8;
mod value;
mod xml;

pub use json::is_batch;
pub use pointer::{
    JsonPointer, JsonPointers, POINTERS_MAX, PointerError, PointersError, STEPS_MAX,
};
pub use sse::{LastEvent, SseReader};
pub use unreadable::{DEPTH_MAX, Unreadable};
pub use value::{FoundValues, JsonNumber, JsonValue};
pub use xml::{FoundTexts, XmlPath, XmlPathError, XmlPaths, XmlText};
