//! The heads of HTTP messages, in one piece of memory each.
//!
//! A head has only what is passed on: no field of one hop, and no framing. The framing is written anew
//! from the body, so it cannot contradict it.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use tidegate_h1::{Field, Fields, Span, is_hop_by_hop, write};

use super::ForwardedFields;

/// The fields of a head, in their order. Names are the same in any case.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    /// They are parts of this.
    bytes: Bytes,
    fields: Fields,
}

/// A field that may be given once was given again. It is not known which is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twice;

impl Headers {
    /// Fields that are parts of these bytes.
    pub(crate) fn new(bytes: Bytes, fields: Fields) -> Self {
        Self { bytes, fields }
    }

    /// Names and values.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        let fields = self.fields.iter();
        fields.map(|field| (field.name.of(&self.bytes), field.value.of(&self.bytes)))
    }

    /// The values of one name.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        let is_it = |field: &&Field| {
            let its = field.name.of(&self.bytes);
            its.eq_ignore_ascii_case(name.as_bytes())
        };
        let fields = self.fields.iter().filter(is_it);
        fields.map(|field| field.value.of(&self.bytes))
    }

    /// The only value of a name, if it is there.
    ///
    /// # Errors
    /// If it has two values.
    pub fn only<'a>(&'a self, name: &'a str) -> Result<Option<&'a [u8]>, Twice> {
        let mut all = self.get_all(name);
        match (all.next(), all.next()) {
            (only, None) => Ok(only),
            (_, Some(_)) => Err(Twice),
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
        let is_it = |field: &Field| field.name.of(bytes).eq_ignore_ascii_case(name.as_bytes());
        self.fields.retain(|field| !is_it(field));
    }

    /// Adds a field behind the others. It copies all of them.
    pub fn append(&mut self, name: &HeaderName, value: &HeaderValue) {
        let mut bytes = Vec::from(&self.bytes[..]);
        self.fields.push(written(
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

    /// Writes each as a line.
    pub fn write(&self, into: &mut Vec<u8>) {
        write::fields(&self.bytes, &self.fields, into);
    }

    /// Writes each as a line, with what the connection says of its client in place of what its client says.
    fn write_forwarded(&self, forwarded: &ForwardedFields, into: &mut Vec<u8>) {
        let is_kept = |field: &&Field| !forwarded.replaces(field.name.of(&self.bytes));
        write::fields(&self.bytes, self.fields.iter().filter(is_kept), into);
        forwarded.write(self, |_| true, into);
    }

    /// The fields that are passed on, of a head that hyper has read. The others are those of one hop, those that
    /// Connection names, and the length.
    fn passed(headers: &HeaderMap, mut bytes: Vec<u8>) -> Self {
        // The list of one hop never decides about routing.
        let named: Vec<&str> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .collect();
        let is_left_out = |name: &HeaderName| {
            let is_named = || {
                let mut named = named.iter();
                named.any(|it| it.eq_ignore_ascii_case(name.as_str())) && *name != HOST
            };
            *name == CONTENT_LENGTH || is_hop_by_hop(name.as_str().as_bytes()) || is_named()
        };
        let mut fields = Fields::new();
        for (name, value) in headers.iter().filter(|(name, _)| !is_left_out(name)) {
            let (name, value) = (name.as_str().as_bytes(), value.as_bytes());
            fields.push(written(name, value, &mut bytes));
        }
        Self::new(bytes.into(), fields)
    }

    /// The same for hyper.
    fn to_map(&self, forwarded: Option<&ForwardedFields>) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(self.fields.len() + 1);
        let mut lines = Vec::new();
        let is_kept = |name: &[u8]| !forwarded.is_some_and(|it| it.replaces(name));
        let kept = self.iter().filter(|(name, _)| is_kept(name));
        if let Some(forwarded) = forwarded {
            forwarded.write(self, |_| true, &mut lines);
        }
        let added = lines
            .split_inclusive(|byte| *byte == b'\n')
            .filter_map(|line| {
                let colon = memchr::memchr(b':', line)?;
                Some((&line[..colon], line[colon + 1..].trim_ascii()))
            });
        for (name, value) in kept.chain(added) {
            let name = HeaderName::from_bytes(name);
            // Both were parsed before.
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        }
        map
    }
}

/// Writes a field as a line.
fn written(name: &[u8], value: &[u8], into: &mut Vec<u8>) -> Field {
    let at = into.len();
    write::field(name, value, into);
    Field {
        name: Span::new(at, name.len()),
        value: Span::new(at + name.len() + 2, value.len()),
    }
}

/// The head of a request.
#[derive(Clone, Debug)]
pub struct Head {
    /// The method.
    pub method: Method,
    /// A part of the bytes of the headers.
    target: Span,
    /// The fields.
    pub headers: Headers,
    /// Whether it announces a body, perhaps an empty one: some backends want the zero on a POST.
    pub has_body: bool,
}

impl Head {
    /// The head of a request that was read from these bytes.
    #[must_use]
    pub fn read(bytes: Bytes, request: tidegate_h1::request::Request) -> Self {
        use tidegate_h1::request::Method as Read;
        Self {
            method: match request.method {
                Read::Get => Method::GET,
                Read::Head => Method::HEAD,
                Read::Post => Method::POST,
                Read::Put => Method::PUT,
                Read::Delete => Method::DELETE,
                Read::Options => Method::OPTIONS,
                Read::Patch => Method::PATCH,
            },
            target: request.target,
            headers: Headers::new(bytes, request.fields),
            has_body: request.framing != tidegate_h1::Framing::None,
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

    /// Writes it with the framing of a whole body, and the empty line.
    pub fn write(&self, body: &Bytes, forwarded: Option<&ForwardedFields>, into: &mut Vec<u8>) {
        let target = self.target.of(&self.headers.bytes);
        write::request_line(self.method.as_str(), target, into);
        match forwarded {
            None => self.headers.write(into),
            Some(forwarded) => self.headers.write_forwarded(forwarded, into),
        }
        if self.has_body || !body.is_empty() {
            write::content_length(body.len() as u64, into);
        }
        into.extend_from_slice(b"\r\n");
    }

    /// The same for hyper. A streamed body brings its own framing.
    ///
    /// # Errors
    /// If it cannot be one: hyper has refused it before.
    pub fn to_request<B>(
        &self,
        length: Option<u64>,
        forwarded: Option<&ForwardedFields>,
        body: B,
    ) -> Result<http::Request<B>, http::Error> {
        let mut request = http::Request::builder()
            .method(self.method.clone())
            .uri(self.target())
            .body(body)?;
        *request.headers_mut() = self.headers.to_map(forwarded);
        if let Some(length) = length.filter(|length| self.has_body || *length > 0) {
            let headers = request.headers_mut();
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        Ok(request)
    }
}

/// As hyper has read it. An absolute target overrides Host (RFC 9112, 3.2.2).
impl From<http::request::Parts> for Head {
    fn from(mut parts: http::request::Parts) -> Self {
        if let Some(authority) = parts.uri.authority()
            && let Ok(host) = HeaderValue::from_str(authority.as_str())
        {
            parts.headers.insert(HOST, host);
        }
        let target = parts.uri.path_and_query().map_or("/", |it| it.as_str());
        let mut bytes = Vec::with_capacity(target.len() + 1);
        if !target.starts_with(['/', '*']) {
            // That of an absolute target may have no path.
            bytes.push(b'/');
        }
        bytes.extend_from_slice(target.as_bytes());
        let has_body = parts.headers.contains_key(CONTENT_LENGTH)
            || parts.headers.contains_key(http::header::TRANSFER_ENCODING);
        Self {
            method: parts.method,
            target: Span::new(0, bytes.len()),
            headers: Headers::passed(&parts.headers, bytes),
            has_body,
        }
    }
}

/// The head of a response.
#[derive(Clone, Debug)]
pub struct ReplyHead {
    /// The status.
    pub status: StatusCode,
    /// A part of the bytes of the headers; that of the status if there is none.
    reason: Option<Span>,
    /// The fields.
    pub headers: Headers,
    /// The length that it announces: also of a body that is not sent, as for HEAD.
    pub length: Option<u64>,
}

impl ReplyHead {
    /// The head of a response that was read from these bytes.
    ///
    /// # Errors
    /// If its status is no status.
    pub fn read(
        bytes: Bytes,
        response: tidegate_h1::response::Response,
    ) -> Result<Self, http::status::InvalidStatusCode> {
        Ok(Self {
            status: StatusCode::from_u16(response.status)?,
            reason: Some(response.reason),
            headers: Headers::new(bytes, response.fields),
            length: response.announced,
        })
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

    /// The same for hyper.
    #[must_use]
    pub fn into_parts(self) -> http::response::Parts {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.status = self.status;
        parts.headers = self.headers.to_map(None);
        if let Some(length) = self.length {
            parts
                .headers
                .insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        let reason = self.reason.map(|it| it.of(&self.headers.bytes));
        if let Some(reason) = reason.and_then(|it| hyper::ext::ReasonPhrase::try_from(it).ok())
            && Some(reason.as_bytes()) != self.status.canonical_reason().map(str::as_bytes)
        {
            parts.extensions.insert(reason);
        }
        parts
    }
}

/// The length in a head, if it has one and no other.
fn announced(headers: &HeaderMap) -> Option<u64> {
    let values = headers.get_all(CONTENT_LENGTH).iter();
    let values = values.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    let mut lengths = values.map(|value| tidegate_h1::octets::number(value.trim_ascii()));
    let first = lengths.next()?;
    lengths.all(|other| other == first).then_some(first)?
}

/// As hyper has read it, or of our own.
impl From<http::response::Parts> for ReplyHead {
    fn from(parts: http::response::Parts) -> Self {
        let length = match parts.status.as_u16() {
            // These have none (RFC 9110, 8.6).
            100..=199 | 204 => None,
            _ => announced(&parts.headers),
        };
        let said = parts.extensions.get::<hyper::ext::ReasonPhrase>();
        let bytes = said.map_or(Vec::new(), |it| it.as_bytes().to_vec());
        Self {
            status: parts.status,
            reason: said.map(|_| Span::new(0, bytes.len())),
            headers: Headers::passed(&parts.headers, bytes),
            length,
        }
    }
}
