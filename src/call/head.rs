//! The heads of HTTP messages, in one piece of memory each.
//!
//! A head has only what is passed on: no field of one hop, and no framing. The framing is written anew
//! from the body, so it cannot contradict it.

mod made_here;

use std::any::Any;
use std::fmt;
use std::sync::{Mutex, TryLockError};

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Method, StatusCode};
use tidegate_h1::request::{RequestHead, RequestTarget};
use tidegate_h1::{ByteSpan, Framing, HeadField, HeadFields, write};

use super::ForwardedFields;

/// The fields of a head, in their order. Names are the same in any case.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    /// The bytes that the headers are parts of.
    bytes: Bytes,
    fields: HeadFields,
}

/// A field that may be given once was given again. It is not known which is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatedField;

impl Headers {
    /// Fields that are parts of these bytes.
    pub(crate) fn new(bytes: Bytes, fields: HeadFields) -> Self {
        Self { bytes, fields }
    }

    /// Names and values.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        let fields = self.fields.iter();
        fields.map(|field| (field.name.of(&self.bytes), field.value.of(&self.bytes)))
    }

    /// The values of one name.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        let fields = self.fields.iter();
        let fields = fields.filter(|field| field.is_named(name, &self.bytes));
        fields.map(|field| field.value.of(&self.bytes))
    }

    /// The only value of a name, if it is there.
    ///
    /// # Errors
    /// If it has two values.
    pub fn only<'a>(&'a self, name: &'a str) -> Result<Option<&'a [u8]>, RepeatedField> {
        let mut all = self.get_all(name);
        match (all.next(), all.next()) {
            (only, None) => Ok(only),
            (_, Some(_)) => Err(RepeatedField),
        }
    }

    /// Whether a field with this name is there.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.get_all(name).next().is_some()
    }

    /// Bytes of all names and values.
    #[must_use]
    pub fn size(&self) -> usize {
        self.iter()
            .map(|(name, value)| name.len() + value.len())
            .sum()
    }

    /// Leaves out every field with this name.
    pub fn remove(&mut self, name: &str) {
        let bytes = &self.bytes;
        self.fields.retain(|field| !field.is_named(name, bytes));
    }

    /// Adds a field behind the others. It copies all of them.
    pub fn append(&mut self, name: &HeaderName, value: &HeaderValue) {
        let mut bytes = Vec::from(&self.bytes[..]);
        self.fields.push(write_field(
            name.as_str().as_bytes(),
            value.as_bytes(),
            &mut bytes,
        ));
        self.bytes = bytes.into();
    }

    /// Adds a field instead of those with its name.
    pub fn set(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.remove(name.as_str());
        self.append(name, value);
    }

    /// Sets the value of each field with this name, which keeps its place and its case.
    pub fn replace(&mut self, name: &HeaderName, value: &HeaderValue) {
        let mut bytes = Vec::from(&self.bytes[..]);
        for field in &mut self.fields {
            if field.is_named(name.as_str(), &self.bytes) {
                *field = write_field(field.name.of(&self.bytes), value.as_bytes(), &mut bytes);
            }
        }
        self.bytes = bytes.into();
    }

    /// Writes each as a line.
    pub fn write(&self, into: &mut Vec<u8>) {
        write::fields(&self.bytes, &self.fields, into);
    }

    /// Writes each as a line, with what the connection says of its client in place of what its client says.
    fn write_forwarded(&self, forwarded: &ForwardedFields, into: &mut Vec<u8>) {
        let is_kept = |field: &&HeadField| !forwarded.replaces(field.name.of(&self.bytes));
        write::fields(&self.bytes, self.fields.iter().filter(is_kept), into);
        forwarded.write(self, |_| true, into);
    }
}

/// Writes a field as a line.
fn write_field(name: &[u8], value: &[u8], into: &mut Vec<u8>) -> HeadField {
    let at = into.len();
    write::field(name, value, into);
    HeadField {
        name: ByteSpan::new(at, name.len()),
        value: ByteSpan::new(at + name.len() + 2, value.len()),
    }
}

/// Facts that a stage found out about a head that comes again, so that they are not looked up again. It lives as
/// long as the head.
#[derive(Default)]
pub struct HeadMemo(Mutex<Option<Box<dyn Any + Send>>>);

impl HeadMemo {
    /// The value that a stage keeps, if `is_it` still applies.
    pub fn find<T: 'static, R>(&self, is_it: impl FnOnce(&T) -> Option<R>) -> Option<R> {
        // Another thread that has it at this moment costs more than a look-up.
        let kept = match self.0.try_lock() {
            Ok(kept) => kept,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        is_it(kept.as_ref()?.downcast_ref()?)
    }

    /// Keeps a value in place of the one before.
    pub fn keep<T: Send + 'static>(&self, value: T) {
        if let Ok(mut kept) = self.0.try_lock() {
            *kept = Some(Box::new(value));
        }
    }
}

/// A copy is for a head that differs, so it is empty.
impl Clone for HeadMemo {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for HeadMemo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeadMemo").finish_non_exhaustive()
    }
}

/// The head of a request.
#[derive(Clone, Debug)]
pub struct Head {
    /// The method.
    pub method: Method,
    /// A part of the bytes of the headers.
    target: ByteSpan,
    /// The fields.
    pub headers: Headers,
    /// Whether it announces a body, perhaps an empty one: some backends want the zero on a POST.
    pub has_body: bool,
    /// Whether it logs in the connection to the backend, as NTLM does.
    pub is_stateful: bool,
    /// The protocols that it offers to switch to; a part of the bytes of the headers.
    upgrade: Option<ByteSpan>,
    /// The facts about the head, if it comes again.
    pub memo: HeadMemo,
}

impl Head {
    /// The head of a request that was read from these bytes. `host` is for one that names none, as HTTP/1.0 may.
    ///
    /// # Panics
    /// Never: the reader accepts methods that are tokens only.
    #[must_use]
    pub fn read(bytes: Bytes, request: RequestHead, host: &str) -> Self {
        let method = Method::from_bytes(request.method.of(&bytes)).expect("a method is a token");
        let has_body = request.framing != Framing::None;
        let is_stateful = request.is_stateful;
        let names_host = |field: &HeadField| field.is_named("host", &bytes);
        let (target, authority) = match request.target {
            RequestTarget::Path(target) if request.fields.iter().any(names_host) => {
                return Self {
                    method,
                    target,
                    headers: Headers::new(bytes, request.fields),
                    has_body,
                    is_stateful,
                    upgrade: request.upgrade,
                    memo: HeadMemo::default(),
                };
            }
            RequestTarget::Path(target) => (target.of(&bytes), None),
            RequestTarget::Asterisk => (&b"*"[..], None),
            RequestTarget::Absolute {
                authority,
                path_and_query,
            } => (path_and_query.of(&bytes), Some(authority.of(&bytes))),
        };
        // An absolute target overrides Host (RFC 9112, 3.2.2).
        let host = authority.unwrap_or(host.as_bytes());
        let has_host = authority.is_none() && request.fields.iter().any(names_host);
        let mut written = Vec::with_capacity(bytes.len());
        if !target.starts_with(b"/") && target != b"*" {
            // That of an absolute target may have no path.
            written.push(b'/');
        }
        written.extend_from_slice(target);
        let target = ByteSpan::new(0, written.len());
        let mut fields = HeadFields::new();
        if !has_host {
            fields.push(write_field(b"host", host, &mut written));
        }
        let others = request.fields.iter();
        for field in others.filter(|field| has_host || !names_host(field)) {
            let (name, value) = (field.name.of(&bytes), field.value.of(&bytes));
            fields.push(write_field(name, value, &mut written));
        }
        let upgrade = request.upgrade.map(|upgrade| {
            let at = written.len();
            written.extend_from_slice(upgrade.of(&bytes));
            ByteSpan::new(at, written.len() - at)
        });
        Self {
            method,
            target,
            headers: Headers::new(written.into(), fields),
            has_body,
            is_stateful,
            upgrade,
            memo: HeadMemo::default(),
        }
    }

    /// The head of a request that is refused, of which only these fields are known.
    #[must_use]
    pub fn of_refused(bytes: &[u8], fields: &HeadFields) -> Self {
        Self {
            method: Method::GET,
            target: ByteSpan::new(0, 0),
            headers: Headers::new(Bytes::copy_from_slice(bytes), fields.clone()),
            has_body: false,
            is_stateful: false,
            upgrade: None,
            memo: HeadMemo::default(),
        }
    }

    /// Path and query, or `*`.
    ///
    /// # Panics
    /// Never: parsers accept text only.
    #[must_use]
    pub fn target(&self) -> &str {
        let target = self.target.of(&self.headers.bytes);
        str::from_utf8(target).expect("a target is text")
    }

    /// The protocols that it offers to switch to.
    #[must_use]
    pub fn upgrade(&self) -> Option<&[u8]> {
        self.upgrade.map(|upgrade| upgrade.of(&self.headers.bytes))
    }

    /// Bytes of the target and of all fields.
    #[must_use]
    pub fn size(&self) -> usize {
        self.target.end() - self.target.at() + self.headers.size()
    }

    /// The target without its query.
    #[must_use]
    pub fn path(&self) -> &str {
        let target = self.target();
        target.split_once('?').map_or(target, |(path, _)| path)
    }

    /// The query of the target, without the question mark.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.target().split_once('?').map(|(_, query)| query)
    }

    /// Writes it with this framing of the body, and the empty line.
    pub fn write(&self, framing: Framing, forwarded: Option<&ForwardedFields>, into: &mut Vec<u8>) {
        let target = self.target.of(&self.headers.bytes);
        write::request_line(self.method.as_str().as_bytes(), target, into);
        match forwarded {
            None => self.headers.write(into),
            Some(forwarded) => self.headers.write_forwarded(forwarded, into),
        }
        if let Some(upgrade) = self.upgrade() {
            write::upgrade(upgrade, into);
        }
        match framing {
            Framing::Length(length) => write::content_length(length, into),
            Framing::Chunked => write::chunked(into),
            Framing::None | Framing::Close => {}
        }
        into.extend_from_slice(b"\r\n");
    }
}

/// The head of a response.
#[derive(Clone, Debug)]
pub struct ReplyHead {
    /// The status.
    pub status: StatusCode,
    /// A part of the bytes of the headers; that of the status if there is none.
    reason: Option<ByteSpan>,
    /// The fields.
    pub headers: Headers,
    /// The length that it announces: also of a body that is not sent, as for HEAD.
    pub length: Option<u64>,
    /// The protocol that it switches to; a part of the bytes of the headers.
    upgrade: Option<ByteSpan>,
}

impl ReplyHead {
    /// The head of a response that was read from these bytes.
    ///
    /// # Errors
    /// If its status is no status.
    pub fn read(
        bytes: Bytes,
        response: tidegate_h1::response::ResponseHead,
    ) -> Result<Self, http::status::InvalidStatusCode> {
        Ok(Self {
            status: StatusCode::from_u16(response.status)?,
            reason: Some(response.reason),
            headers: Headers::new(bytes, response.fields),
            length: response.announced,
            upgrade: response.upgrade,
        })
    }

    /// The protocol that it switches to.
    #[must_use]
    pub fn upgrade(&self) -> Option<&[u8]> {
        self.upgrade.map(|upgrade| upgrade.of(&self.headers.bytes))
    }

    /// Writes the first line and the fields.
    pub fn write(&self, into: &mut Vec<u8>) {
        let reason = match self.reason {
            Some(reason) => reason.of(&self.headers.bytes),
            None => self
                .status
                .canonical_reason()
                .unwrap_or_default()
                .as_bytes(),
        };
        write::status_line(self.status.as_u16(), reason, into);
        self.headers.write(into);
    }
}
