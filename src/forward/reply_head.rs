//! The head of a reply, as it arrives: in parts, behind interim replies, or as a switch to another protocol.

use bytes::Bytes;
use tidegate_h1::response::{self, ResponseFlaw, ResponseHead};
use tidegate_h1::{BodyLeft, Framing, HeadEnd};

use crate::call::{HttpCall, Record, ReplyHead};

/// Most fields of a reply.
const REPLY_FIELDS: usize = 256;

/// Most interim replies that are passed on for one call (RFC 9110, 15.2). Further ones are dropped.
const INTERIM_MAX: u8 = 8;

/// Reads the bytes of a reply up to the end of its head.
#[derive(Default)]
pub(super) struct ReplyReader {
    /// Bytes of a head that is not whole.
    held: Vec<u8>,
    end: HeadEnd,
    interims: u8,
    /// A byte of the reply has come.
    pub(super) has_begun: bool,
}

/// The head of a reply, and what came behind it.
pub(super) struct ReplyStart {
    pub(super) head: Box<ReplyHead>,
    pub(super) framing: Framing,
    pub(super) closes: bool,
    /// The reply logs in the connection.
    pub(super) is_stateful: bool,
    /// From here on the connection speaks another protocol.
    pub(super) switches: bool,
    /// The first part of the body, or all of it; of a connection that switches, all that came.
    pub(super) body: Bytes,
    /// More came than belongs to the reply.
    pub(super) has_surplus: bool,
}

impl ReplyReader {
    /// Takes bytes of the reply; returns its head once that is whole.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        call: &HttpCall,
        record: &Record,
    ) -> Result<Option<ReplyStart>, ResponseFlaw> {
        self.has_begun = true;
        if self.held.is_empty() {
            return self.read_heads(bytes, call, record);
        }
        self.held.extend_from_slice(bytes);
        // Looks at each byte once, so that a backend that sends byte by byte does not cost a parse for each.
        if !self.end.is_in(&self.held) && self.held.len() <= tidegate_h1::HEAD_BYTES_MAX {
            return Ok(None);
        }
        let held = std::mem::take(&mut self.held);
        self.read_heads(&held, call, record)
    }

    /// Reads the heads at the front of these bytes, up to that of the reply itself. Interim replies before it are
    /// passed on, and a part of a head is kept.
    fn read_heads(
        &mut self,
        mut bytes: &[u8],
        call: &HttpCall,
        record: &Record,
    ) -> Result<Option<ReplyStart>, ResponseFlaw> {
        let to_head = call.head.method == http::Method::HEAD;
        while !bytes.is_empty() {
            let Some(response) = response::read(bytes, to_head, REPLY_FIELDS)? else {
                self.held = bytes.to_vec();
                self.end = HeadEnd::default();
                self.end.is_in(&self.held);
                return Ok(None);
            };
            match response.status {
                101 if !is_offered(call, bytes, &response) => {
                    return Err(ResponseFlaw::Switches);
                }
                101 | 200.. => return ReplyStart::new(bytes, response).map(Some),
                _ => {
                    let behind = &bytes[response.length..];
                    self.pass_interim(bytes, response, record)?;
                    bytes = behind;
                }
            }
        }
        Ok(None)
    }

    /// Passes an interim reply on, except `100`: the client's body was asked for before.
    fn pass_interim(
        &mut self,
        bytes: &[u8],
        response: ResponseHead,
        record: &Record,
    ) -> Result<(), ResponseFlaw> {
        if response.status == 100 || self.interims == INTERIM_MAX {
            return Ok(());
        }
        self.interims += 1;
        let head = ReplyStart::head(bytes, response)?;
        let mut written = Vec::new();
        head.write(&mut written);
        written.extend_from_slice(b"\r\n");
        record.pass_interim(&written);
        Ok(())
    }
}

impl ReplyStart {
    /// Whether the first chunk, as far as it is here, is none. Nothing has gone to the client yet, so it can be told.
    pub(super) fn has_bad_chunk(&self) -> bool {
        self.framing == Framing::Chunked && BodyLeft::of(self.framing).step(&self.body).is_err()
    }

    /// The head of these bytes, and the part of the body that is among them.
    fn new(bytes: &[u8], response: ResponseHead) -> Result<Self, ResponseFlaw> {
        let ResponseHead {
            framing,
            closes,
            length,
            status,
            is_stateful,
            ..
        } = response;
        let switches = status == 101;
        let behind = bytes.len() - length;
        let of_body = match framing {
            Framing::None if switches => behind,
            Framing::None => 0,
            Framing::Length(body) => usize::try_from(body).map_or(behind, |body| body.min(behind)),
            Framing::Chunked | Framing::Close => behind,
        };
        let body = Bytes::copy_from_slice(&bytes[length..length + of_body]);
        Ok(Self {
            head: Self::head(bytes, response)?,
            framing,
            closes,
            is_stateful,
            switches,
            body,
            has_surplus: of_body < behind,
        })
    }

    fn head(bytes: &[u8], response: ResponseHead) -> Result<Box<ReplyHead>, ResponseFlaw> {
        let head = Bytes::copy_from_slice(&bytes[..response.length]);
        let malformed = |_| ResponseFlaw::Malformed(httparse::Error::Status);
        let head = ReplyHead::read(head, response).map_err(malformed)?;
        Ok(Box::new(head))
    }
}

/// Whether the backend switches to exactly a protocol that the request offers.
fn is_offered(call: &HttpCall, bytes: &[u8], response: &ResponseHead) -> bool {
    let chosen = response.upgrade.map(|chosen| chosen.of(bytes));
    let (Some(offered), Some(chosen)) = (call.head.upgrade(), chosen) else {
        return false;
    };
    let mut offered = offered.split(|&byte| byte == b',');
    offered.any(|one| one.trim_ascii().eq_ignore_ascii_case(chosen))
}
