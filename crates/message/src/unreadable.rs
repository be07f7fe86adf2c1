//! Why a body has no readable values.

use thiserror::Error;

/// Deepest nesting of arrays, objects or elements.
pub const DEPTH_MAX: u32 = 64;

/// Why parsers could read a body differently, or not at all. Positions are bytes from the body's
/// beginning. Never quotes the body, which may carry secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    /// Bytes that are not UTF-8.
    #[error("the body is not UTF-8")]
    NotUtf8,
    /// A byte order mark, which some parsers skip and others refuse.
    #[error("the body begins with a byte order mark; send UTF-8 without one")]
    ByteOrderMark,
    /// Text in UTF-16 or UTF-32, or an XML declaration with another encoding.
    #[error("the body has another charset; send UTF-8")]
    OtherCharset,
    /// Bytes that RFC 8259 does not allow.
    #[error("the body is not valid JSON at byte {at}")]
    NotJson {
        /// The beginning of the first token that does not fit, or the end of a body that is cut.
        at: usize,
    },
    /// More nesting than a message needs; parsers have different limits.
    #[error("the body is nested deeper than {DEPTH_MAX}")]
    TooDeep,
    /// More than one value or root element.
    #[error("the body goes on after its end, at byte {at}")]
    BehindEnd {
        /// The first byte behind the end that is not white space.
        at: usize,
    },
    /// A key on the way to a wanted value that occurs twice in its object.
    #[error("a key that leads to a wanted value occurs twice, at byte {at}")]
    KeyTwice {
        /// The second occurrence.
        at: usize,
    },
    /// A key that equals a wanted one only if case is ignored, as Go does.
    #[error("a key differs only by case from one that leads to a wanted value, at byte {at}")]
    KeyOtherCase {
        /// The key's first byte.
        at: usize,
    },
    /// Half a surrogate pair in a wanted string or beside a wanted key.
    #[error("an escape is half a surrogate pair, in the string at byte {at}")]
    LoneSurrogate {
        /// The string's first byte.
        at: usize,
    },
    /// A NUL in a wanted string or beside a wanted key; parsers in C may end there.
    #[error("a wanted string or key contains a NUL, at byte {at}")]
    EmbeddedNul {
        /// The string's first byte.
        at: usize,
    },
    /// A single message where a batch is read.
    #[error("the body is not a batch: its outermost value is not an array")]
    NotABatch,
    /// A batch without elements.
    #[error("the batch is empty")]
    EmptyBatch,
    /// An array as an element of a batch.
    #[error("the batch contains a batch, at byte {at}")]
    BatchInBatch {
        /// The inner array's first byte.
        at: usize,
    },
    /// An element of a batch that is no call.
    #[error("the batch contains an element that is not an object, at byte {at}")]
    ElementNotAnObject {
        /// The element's first byte.
        at: usize,
    },
    /// More elements than a batch may have.
    #[error("the batch has more than {elements_max} elements")]
    BatchTooLarge {
        /// How many are allowed.
        elements_max: usize,
    },
    /// Bytes that XML 1.0 does not allow, tags that do not match, or an entity that needs a DOCTYPE.
    #[error("the body is not valid XML at byte {at}")]
    NotXml {
        /// The first byte that does not fit, or the end of a body that is cut.
        at: usize,
    },
    /// A DOCTYPE, which can define entities.
    #[error("the body has a DOCTYPE, at byte {at}")]
    Doctype {
        /// The DOCTYPE's first byte.
        at: usize,
    },
    /// A processing instruction that is not the XML declaration.
    #[error("the body has a processing instruction, at byte {at}")]
    Instruction {
        /// The instruction's first byte.
        at: usize,
    },
    /// A CDATA section in a wanted text or beside a wanted element.
    #[error("a CDATA section is part of a wanted text or beside a wanted element, at byte {at}")]
    Cdata {
        /// The section's first byte.
        at: usize,
    },
    /// A comment that splits a wanted text.
    #[error("a comment is part of a wanted text, at byte {at}")]
    CommentInText {
        /// The comment's first byte.
        at: usize,
    },
    /// A wanted element that occurs twice, where the path has no number that picks one.
    #[error("a wanted element occurs twice, at byte {at}")]
    ElementTwice {
        /// The second occurrence.
        at: usize,
    },
    /// An element of which a path picks one by its number, without the next element of the path.
    #[error("an element on the way to a wanted one is empty; its end is at byte {at}")]
    ElementMissing {
        /// The element's end.
        at: usize,
    },
    /// An element that equals a wanted one only if its case or its prefix is ignored.
    #[error("an element differs from a wanted one only by case or prefix, at byte {at}")]
    ElementOtherName {
        /// The element's first byte.
        at: usize,
    },
    /// An element at a place where Python's server could take it for a wanted one.
    #[error("an element is where some servers take it for a wanted one, at byte {at}")]
    ElementElsewhere {
        /// The element's first byte.
        at: usize,
    },
    /// Text beside elements, in a wanted element or on the way to one.
    #[error("text is mixed with elements on the way to a wanted text, at byte {at}")]
    MixedText {
        /// A byte of the text or of the element.
        at: usize,
    },
    /// White space around a wanted text, which some servers cut off.
    #[error("a wanted text has white space around it, at byte {at}")]
    SpaceAround {
        /// The text's first byte.
        at: usize,
    },
}
