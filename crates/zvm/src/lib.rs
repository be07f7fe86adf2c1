//! The z/VM SDK server (`sdkserver`), as a proxy in front of it sees it.
//!
//! - [`functions`] lists what the server can do: whether a function changes anything, and what it
//!   costs. [`routes`] says which HTTP request of sdkwsgi, its HTTP side, asks for which function.
//! - [`framer`] finds the end of a request in a stream of bytes. [`mod@array`] reads the call in it.
//! - [`reply`] says whether a reply is whole and what its `overallRC` is, and writes an error in the
//!   server's own form.
//! - [`path`] spells a path as the server reads it, [`python_json`] reads the JSON that only Python takes.
//!
//! Nothing in here does I/O. Arguments of a call carry passwords, so no error quotes them, and only
//! the function and the userid are ever taken out of a call.
#![forbid(unsafe_code)]

pub mod array;
pub mod framer;
pub mod functions;
pub mod path;
pub mod python_json;
pub mod reply;
pub mod routes;

pub use array::{ArrayCall, FUNCTION_NAME_BYTES_MAX};

/// The text, if it can be a z/VM userid: 1 to 8 letters, digits or `$#@_-`.
#[must_use]
pub fn userid(text: &str) -> Option<&str> {
    let fits = matches!(text.len(), 1..=8);
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"$#@_-".contains(&byte);
    (fits && text.bytes().all(is_part)).then_some(text)
}
