//! The head of a request.
//!
//! Every form is read that a proxy can pass on, and nothing that two parsers could read differently. The usual form
//! takes one pass (`usual`); any other head is read by httparse and then checked field by field (`complete`).

mod complete;
#[cfg(test)]
mod tests;
mod usual;

use std::fmt;

use crate::Framing;
use crate::HEAD_BYTES_MAX;
use crate::fields::{ByteSpan, HeadFields};

/// Bounds of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadBounds {
    /// Fields.
    pub fields: usize,
    /// Bytes, up to [`HEAD_BYTES_MAX`].
    pub bytes: usize,
}

/// A head that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// The method: any token (RFC 9110, 5.6.2) except `CONNECT`.
    pub method: ByteSpan,
    /// The target of the request.
    pub target: RequestTarget,
    /// The version of the client.
    pub version: HttpVersion,
    /// The fields that are passed on, in their order, with Host: not those of one hop, not those of the framing, and
    /// not those that Connection lists. A target that names its host replaces Host.
    pub fields: HeadFields,
    /// How its body ends: [`Framing::None`], [`Framing::Length`] or [`Framing::Chunked`]. A length of 0 was
    /// written as such.
    pub framing: Framing,
    /// Whether the client wants no more answers on this connection.
    pub closes: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    /// The protocol that the client asks for instead, as the value of Upgrade. HTTP/2 is ignored.
    pub upgrade: Option<ByteSpan>,
    /// Whether a field says where the request came from, as `X-Forwarded-For` and `Forwarded` do.
    pub is_forwarded: bool,
    /// Whether its Authorization logs in the connection and not only the request: NTLM, Negotiate or Kerberos.
    pub is_stateful: bool,
    /// The number in Max-Forwards, of TRACE and OPTIONS.
    pub max_forwards: Option<ByteSpan>,
    /// Bytes up to the body.
    pub length: usize,
}

/// The target of a request (RFC 9112, 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestTarget {
    /// A path, and a query if it has one.
    Path(ByteSpan),
    /// A URI.
    Absolute {
        /// Host, and port if it has one. It replaces Host.
        authority: ByteSpan,
        /// Path and query. The path, or both, may be empty.
        path_and_query: ByteSpan,
    },
    /// `*`: the server as a whole. Only of OPTIONS.
    Asterisk,
}

/// The version of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the standard's words")]
pub enum HttpVersion {
    Http10,
    Http11,
}

/// A head that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadHead {
    /// Why.
    pub flaw: Flaw,
    /// Whether its method is HEAD, so that the answer has no body.
    pub to_head: bool,
    /// The fields, without Host, to identify the caller. Empty if they cannot be read.
    pub fields: HeadFields,
}

/// Declares the flaws that are a text and nothing else.
macro_rules! flaws {
    ($($flaw:ident $text:literal,)*) => {
        /// A flaw in a head.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Flaw {
            $(#[doc = concat!("Refused with: ", $text, ".")] $flaw,)*
            /// More fields than this number.
            TooManyFields(usize),
            /// More bytes than this number.
            TooManyBytes(usize),
        }

        impl Flaw {
            /// Every flaw that is a text and nothing else.
            pub const TEXTS: &[Self] = &[$(Self::$flaw),*];
        }

        impl fmt::Display for Flaw {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$flaw => f.write_str($text),)*
                    Self::TooManyFields(max) => write!(
                        f,
                        "the request has more than {max} header fields (client.max_request_fields)"
                    ),
                    Self::TooManyBytes(max) => {
                        write!(f, "the request's head is larger than {max} bytes")
                    }
                }
            }
        }
    };
}

flaws! {
    Http2Preface "HTTP/2, which was not offered",
    FirstLine "no HTTP: the first line is not a method and a target",
    Version "neither HTTP/1.1 nor HTTP/1.0",
    LineEnd "a line does not end as HTTP's lines do",
    Field "a header field is malformed",
    Host "a Host that is no host",
    NoHost "no Host",
    ManyHosts "more than one Host",
    Length "a Content-Length that is no number",
    ManyLengths "more than one Content-Length",
    TwoFramings "both Content-Length and Transfer-Encoding",
    Coding "a Transfer-Encoding other than chunked",
    EarlyCoding "Transfer-Encoding before HTTP/1.1",
    LikeFraming "a name that can be taken for Content-Length or Transfer-Encoding",
    Connect "CONNECT: this is no forward proxy",
    Asterisk "the request's target is *, which is only for OPTIONS",
    Fragment "the request's target has a fragment",
    Target "the request's target is no path and no URI",
    Authority "the request's target is a host and no path",
    User "the request's target names a user, which is not passed on",
}

impl Flaw {
    /// Whether the head is too large (431), and not malformed (400).
    #[must_use]
    pub const fn is_too_large(self) -> bool {
        matches!(self, Self::TooManyFields(_) | Self::TooManyBytes(_))
    }
}

impl fmt::Display for BadHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.flaw.fmt(f)
    }
}

impl std::error::Error for BadHead {}

/// Reads the head at the front of these bytes; `None` if only part of it is here.
///
/// # Errors
/// If it is refused, or the part that is here cannot become a head that is not.
pub fn read(bytes: &[u8], bounds: HeadBounds) -> Result<Option<RequestHead>, Box<BadHead>> {
    match usual::read(bytes, bounds) {
        Ok(request) => Ok(Some(request)),
        Err(usual::UnusualHead::Irregular) => complete::read(bytes, bounds),
        Err(usual::UnusualHead::Partial) if bytes.len() > bounds.bytes_max() => {
            Err(BadHead::unread(bytes, bounds.too_many_bytes()))
        }
        Err(usual::UnusualHead::Partial) => Ok(None),
    }
}

impl HeadBounds {
    fn bytes_max(self) -> usize {
        self.bytes.min(HEAD_BYTES_MAX)
    }

    fn too_many_bytes(self) -> Flaw {
        Flaw::TooManyBytes(self.bytes_max())
    }
}

impl BadHead {
    /// A head whose fields cannot be read.
    fn unread(bytes: &[u8], flaw: Flaw) -> Box<Self> {
        let begin = bytes.iter().position(|it| !matches!(it, b'\r' | b'\n'));
        Box::new(Self {
            flaw,
            to_head: bytes[begin.unwrap_or(0)..].starts_with(b"HEAD "),
            fields: HeadFields::new(),
        })
    }
}
