//! Finds the values of a set of pointers in a message of JSON, in one pass.
//!
//! Objects and arrays on the way to a wanted value are read key by key. Everything else is only
//! passed over, by [`skip`].

mod skip;
mod text;

use std::borrow::Cow;
use std::ops::Range;

use memchr::memchr;

use crate::json::skip::{
    Misfit, skip_colon, skip_number, skip_space, skip_string, skip_value, skip_word,
};
use crate::json::text::decoded;
use crate::pointer::{JsonPointers, PointerEdge, PointerNode, folded};
use crate::unreadable::{DEPTH_MAX, Unreadable};
use crate::utf8::is_utf8;
use crate::value::{FoundValues, JsonNumber, JsonValue};

/// Whether the outermost value of a body begins as an array.
#[must_use]
pub fn is_batch(body: &[u8]) -> bool {
    skip_space(body).first() == Some(&b'[')
}

impl JsonPointers {
    /// Finds the value at each place of a message. Ask [`is_batch`] first: places in an array are
    /// those of its elements' numbers.
    ///
    /// # Errors
    /// `Unreadable`, if the body is not valid JSON, or if parsers could find other values.
    pub fn find<'b>(&self, body: &'b [u8]) -> Result<FoundValues<'b>, Unreadable> {
        let mut walk = Walk::new(self, body)?;
        let read = walk.read_message();
        read.map_err(|unreadable| charset(body, unreadable))?;
        Ok(walk.found)
    }

    /// Finds the value at each place of every element of a batch, and returns how many elements
    /// there are. Places are relative to an element.
    ///
    /// Elements are taken before the rest of the body is read: if the result is an error, the
    /// whole body is unreadable, and the values that were taken do not count.
    ///
    /// # Errors
    /// `Unreadable`, if the body is not an array of 1 to `elements_max` objects, is not valid JSON,
    /// or if parsers could find other values.
    pub fn find_each<'b>(
        &self,
        body: &'b [u8],
        elements_max: usize,
        take: impl FnMut(FoundValues<'b>),
    ) -> Result<usize, Unreadable> {
        let mut walk = Walk::new(self, body)?;
        let read = walk.read_batch(elements_max, take);
        read.map_err(|unreadable| charset(body, unreadable))
    }
}

/// Refuses a byte order mark of any charset.
pub(crate) fn check_mark(body: &[u8]) -> Result<(), Unreadable> {
    match body {
        [0xef, 0xbb, 0xbf, ..] | [0xfe, 0xff, ..] | [0xff, 0xfe, ..] => {
            Err(Unreadable::ByteOrderMark)
        }
        _ => Ok(()),
    }
}

/// Says that a body is in UTF-16 or UTF-32 if that is why it is unreadable. Python and Java tell
/// these by a NUL among the first bytes.
#[cold]
pub(crate) fn charset(body: &[u8], unreadable: Unreadable) -> Unreadable {
    match body.iter().take(4).any(|byte| *byte == 0) {
        true => Unreadable::OtherCharset,
        false => unreadable,
    }
}

/// A reader on its way through a body.
struct Walk<'p, 'b> {
    pointers: &'p JsonPointers,
    /// Known to be UTF-8.
    body: &'b [u8],
    at: usize,
    /// Containers that may still be opened.
    depth_left: u32,
    /// The places that the message has had, a bit for each node.
    seen: u128,
    found: FoundValues<'b>,
}

impl<'p, 'b> Walk<'p, 'b> {
    fn new(pointers: &'p JsonPointers, body: &'b [u8]) -> Result<Self, Unreadable> {
        check_mark(body)?;
        if !is_utf8(body) {
            return Err(charset(body, Unreadable::NotUtf8));
        }
        Ok(Self {
            pointers,
            body,
            at: 0,
            depth_left: DEPTH_MAX,
            seen: 0,
            found: FoundValues::new(pointers.count),
        })
    }

    /// The bytes that have not been read.
    fn rest(&self) -> &'b [u8] {
        &self.body[self.at..]
    }

    /// The text of a token, which begins and ends beside ASCII.
    fn text(&self, span: Range<usize>) -> &'b str {
        str::from_utf8(&self.body[span]).expect("the whole body is UTF-8")
    }

    /// Goes on with bytes at the end of the body, or refuses what comes next.
    fn go_to(&mut self, rest: Option<&[u8]>) -> Result<(), Unreadable> {
        let rest = rest.ok_or(self.not_json())?;
        self.at = self.body.len() - rest.len();
        Ok(())
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = skip_space(self.rest());
        self.at = self.body.len() - rest.len();
        rest.first().copied()
    }

    fn not_json(&self) -> Unreadable {
        Unreadable::NotJson { at: self.at }
    }

    fn read_message(&mut self) -> Result<(), Unreadable> {
        self.read_place(0)?;
        self.read_end()
    }

    fn read_batch(
        &mut self,
        elements_max: usize,
        mut take: impl FnMut(FoundValues<'b>),
    ) -> Result<usize, Unreadable> {
        match self.peek() {
            Some(b'[') => self.at += 1,
            Some(_) => return Err(Unreadable::NotABatch),
            None => return Err(self.not_json()),
        }
        if self.peek() == Some(b']') {
            return Err(Unreadable::EmptyBatch);
        }
        self.depth_left -= 1;
        for count in 1.. {
            match self.peek() {
                Some(_) if count > elements_max => {
                    return Err(Unreadable::BatchTooLarge { elements_max });
                }
                Some(b'{') => self.read_place(0)?,
                Some(b'[') => return Err(Unreadable::BatchInBatch { at: self.at }),
                Some(_) => return Err(Unreadable::ElementNotAnObject { at: self.at }),
                None => return Err(self.not_json()),
            }
            let next = FoundValues::new(self.pointers.count);
            take(std::mem::replace(&mut self.found, next));
            self.seen = 0;
            if self.read_separator(b']')? {
                self.read_end()?;
                return Ok(count);
            }
        }
        unreachable!("a body has fewer elements than a usize can count")
    }

    /// Checks that only white space is left.
    fn read_end(&mut self) -> Result<(), Unreadable> {
        match self.peek() {
            Some(_) => Err(Unreadable::BehindEnd { at: self.at }),
            None => Ok(()),
        }
    }

    /// Reads a comma, or the end of a container. True at the end.
    fn read_separator(&mut self, close: u8) -> Result<bool, Unreadable> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(false)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(true)
            }
            _ => Err(self.not_json()),
        }
    }

    /// Passes over a value.
    fn skip(&mut self) -> Result<(), Unreadable> {
        match skip_value(self.rest(), self.depth_left) {
            Ok(rest) => self.go_to(Some(rest)),
            Err(Misfit::TooDeep) => Err(Unreadable::TooDeep),
            Err(Misfit::Token { left }) => Err(Unreadable::NotJson {
                at: self.body.len() - left,
            }),
        }
    }

    /// Reads the value at a place of the tree.
    fn read_place(&mut self, node: usize) -> Result<(), Unreadable> {
        let node = &self.pointers.nodes[node];
        let byte = self.peek();
        let is_on_the_way = !node.edges.is_empty();
        let kept = match byte {
            _ if node.ending == 0 => None,
            Some(b'{') => Some(JsonValue::Object),
            Some(b'[') => Some(JsonValue::Array),
            Some(_) => return self.read_scalar(node.ending),
            None => None,
        };
        if let Some(value) = kept {
            self.found.set(node.ending, value);
        }
        match byte {
            Some(b'{') if is_on_the_way => self.read_object(node),
            Some(b'[') if is_on_the_way => self.read_array(node),
            _ => self.skip(),
        }
    }

    /// Reads a wanted value that is no container.
    fn read_scalar(&mut self, pointers: u8) -> Result<(), Unreadable> {
        let (rest, from) = (self.rest(), self.at);
        let value = match rest[0] {
            b'"' => JsonValue::String({
                let span = self.read_string()?;
                self.string(span)?
            }),
            b'-' | b'0'..=b'9' => {
                self.go_to(skip_number(rest))?;
                JsonValue::Number(JsonNumber(self.text(from..self.at)))
            }
            word => {
                self.go_to(skip_word(rest))?;
                match word {
                    b't' => JsonValue::Bool(true),
                    b'f' => JsonValue::Bool(false),
                    _ => JsonValue::Null,
                }
            }
        };
        self.found.set(pointers, value);
        Ok(())
    }

    /// Reads a string. Returns where its text is, without the quotes.
    fn read_string(&mut self) -> Result<Range<usize>, Unreadable> {
        let from = self.at + 1;
        self.go_to(skip_string(&self.rest()[1..]))?;
        Ok(from..self.at - 1)
    }

    /// The text of a string, which must mean the same to all parsers.
    fn string(&self, span: Range<usize>) -> Result<Cow<'b, str>, Unreadable> {
        let at = span.start;
        let raw = self.text(span);
        if memchr(b'\\', raw.as_bytes()).is_none() {
            return Ok(Cow::Borrowed(raw));
        }
        let text = decoded(raw).ok_or(Unreadable::LoneSurrogate { at })?;
        match text.contains('\0') {
            true => Err(Unreadable::EmbeddedNul { at }),
            false => Ok(Cow::Owned(text)),
        }
    }

    /// Opens a container. True if it is empty, and then it is closed again.
    fn open(&mut self, close: u8) -> Result<bool, Unreadable> {
        self.depth_left = self.depth_left.checked_sub(1).ok_or(Unreadable::TooDeep)?;
        self.at += 1;
        let is_empty = self.peek() == Some(close);
        if is_empty {
            self.at += 1;
            self.depth_left += 1;
        }
        Ok(is_empty)
    }

    fn read_object(&mut self, node: &PointerNode) -> Result<(), Unreadable> {
        if self.open(b'}')? {
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.not_json());
            }
            let key = self.read_string()?;
            let to = self.next_place(node, key)?;
            self.go_to(skip_colon(self.rest()))?;
            match to {
                Some(to) => self.read_place(to)?,
                None => self.skip()?,
            }
            if self.read_separator(b'}')? {
                self.depth_left += 1;
                return Ok(());
            }
        }
    }

    /// The place that a key leads to.
    fn next_place(
        &mut self,
        node: &PointerNode,
        key: Range<usize>,
    ) -> Result<Option<usize>, Unreadable> {
        let at = key.start;
        let raw = &self.body[key.clone()];
        // Escapes may spell any key, and other letters may be like ASCII.
        if memchr(b'\\', raw).is_some() || !raw.is_ascii() {
            let key = self.string(key)?;
            return self.next_place_by_folding(node, &key, at);
        }
        let mut edges = node.edges.iter();
        if let Some(edge) = edges.find(|edge| edge.key.as_bytes() == raw) {
            return self.arrive(edge.to, at).map(Some);
        }
        let like = |edge: &PointerEdge| edge.folded.as_bytes().eq_ignore_ascii_case(raw);
        match node.edges.iter().any(like) {
            true => Err(Unreadable::KeyOtherCase { at }),
            false => Ok(None),
        }
    }

    #[cold]
    fn next_place_by_folding(
        &mut self,
        node: &PointerNode,
        key: &str,
        at: usize,
    ) -> Result<Option<usize>, Unreadable> {
        let like = |wanted: &str| folded(key).eq(wanted.chars());
        let Some(edge) = node.edges.iter().find(|edge| like(&edge.folded)) else {
            return Ok(None);
        };
        match *edge.key == *key {
            true => self.arrive(edge.to, at).map(Some),
            false => Err(Unreadable::KeyOtherCase { at }),
        }
    }

    /// Notes that the message has a place, which it may only have once.
    fn arrive(&mut self, node: usize, at: usize) -> Result<usize, Unreadable> {
        let bit = 1 << node;
        if self.seen & bit != 0 {
            return Err(Unreadable::KeyTwice { at });
        }
        self.seen |= bit;
        Ok(node)
    }

    fn read_array(&mut self, node: &PointerNode) -> Result<(), Unreadable> {
        if self.open(b']')? {
            return Ok(());
        }
        let mut index = 0;
        loop {
            match node.edges.iter().find(|edge| edge.index == Some(index)) {
                Some(edge) => self.read_place(edge.to)?,
                None => self.skip()?,
            }
            index += 1;
            if self.read_separator(b']')? {
                self.depth_left += 1;
                return Ok(());
            }
        }
    }
}
