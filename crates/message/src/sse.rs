//! Events of a stream (`text/event-stream`, as the HTML standard has it), fed in pieces of any size.

use memchr::memchr2;

use crate::pointer::{JsonPointer, JsonPointers};

/// Takes the data of each event out of a stream.
///
/// An event without its empty line at the end was cut, and is not handed out. Memory is bounded: an
/// event with more than `event_bytes_max` bytes of data is passed over. Most events are in one piece,
/// and are not copied.
#[derive(Clone, Debug)]
pub struct SseReader {
    event_bytes_max: usize,
    /// A line whose end has not come.
    line: Vec<u8>,
    /// The data of an event whose end has not come, with a line feed behind each line.
    event: Vec<u8>,
    /// The event has become too large.
    is_too_large: bool,
    /// The last byte was a carriage return, and a line feed may belong to it.
    after_return: bool,
    is_first_line: bool,
    passed_over: u64,
}

impl SseReader {
    /// Waits for the beginning of a stream. `event_bytes_max` also bounds a line.   bytes
    #[must_use]
    pub fn new(event_bytes_max: usize) -> Self {
        Self {
            event_bytes_max,
            line: Vec::new(),
            event: Vec::new(),
            is_too_large: false,
            after_return: false,
            is_first_line: true,
            passed_over: 0,
        }
    }

    /// Reads the next bytes, and hands out the data of each event that ends in them.
    pub fn feed(&mut self, chunk: &[u8], mut take: impl FnMut(&[u8])) {
        let mut rest = chunk;
        if self.after_return && !rest.is_empty() {
            self.after_return = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        // The data of the event that ends next, while it is one line of this chunk.
        let mut data: Option<&[u8]> = None;
        while let Some(end) = memchr2(b'\n', b'\r', rest) {
            let (line, behind) = (&rest[..end], &rest[end + 1..]);
            let is_return = rest[end] == b'\r';
            self.after_return = is_return && behind.is_empty();
            rest = match is_return {
                true => behind.strip_prefix(b"\n").unwrap_or(behind),
                false => behind,
            };
            if !self.line.is_empty() || self.is_first_line {
                self.keep_part(line);
                let mut kept = std::mem::take(&mut self.line);
                let line = self.without_mark(&kept);
                self.end_line(line, &mut take);
                kept.clear();
                self.line = kept;
                continue;
            }
            match value_of_data(line) {
                Some(value) if data.is_none() && self.event.is_empty() => data = Some(value),
                Some(value) => {
                    self.keep_data(data.take());
                    self.keep_data(Some(value));
                }
                None if !line.is_empty() => {}
                None => match data.take() {
                    Some(data) if !self.is_too_large && data.len() <= self.event_bytes_max => {
                        take(data);
                    }
                    data => {
                        self.keep_data(data);
                        self.end_event(&mut take);
                    }
                },
            }
        }
        self.keep_data(data);
        self.keep_part(rest);
    }

    /// How many events were too large, and passed over.
    #[must_use]
    pub fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// The line without a byte order mark, which the first may have.
    fn without_mark<'a>(&mut self, line: &'a [u8]) -> &'a [u8] {
        match std::mem::take(&mut self.is_first_line) {
            true => line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line),
            false => line,
        }
    }

    /// Reads a whole line, of which an earlier chunk had a part.
    fn end_line(&mut self, line: &[u8], take: &mut impl FnMut(&[u8])) {
        match value_of_data(line) {
            Some(value) => self.keep_data(Some(value)),
            None if line.is_empty() => self.end_event(take),
            None => {}
        }
    }

    /// Hands out an event that was kept.
    fn end_event(&mut self, take: &mut impl FnMut(&[u8])) {
        if std::mem::take(&mut self.is_too_large) {
            self.passed_over += 1;
        } else if let Some((_, data)) = self.event.split_last() {
            take(data);
        }
        self.event.clear();
    }

    /// Keeps a line of data until its event ends.
    fn keep_data(&mut self, value: Option<&[u8]>) {
        let Some(value) = value else { return };
        // The line feed at the end does not count.
        if self.is_too_large || value.len() > self.event_bytes_max.saturating_sub(self.event.len())
        {
            self.is_too_large = true;
            self.event.clear();
            return;
        }
        self.event.extend_from_slice(value);
        self.event.push(b'\n');
    }

    /// Keeps a part of a line until its end comes.
    fn keep_part(&mut self, part: &[u8]) {
        // One byte more than fits shows that a line is too large.
        const BEFORE_VALUE: usize = "\u{feff}data: ".len();
        let line_bytes_max = self.event_bytes_max.saturating_add(BEFORE_VALUE + 1);
        let room = line_bytes_max.saturating_sub(self.line.len());
        self.line.extend_from_slice(&part[..part.len().min(room)]);
    }
}

/// The value of a line whose field is `data`.
fn value_of_data(line: &[u8]) -> Option<&[u8]> {
    match line.strip_prefix(b"data")? {
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        [] => Some(&[]),
        _ => None,
    }
}

/// Keeps the last whole number that an event of a stream has at a place, such as `/usage/total_tokens`.
///
/// Events that are no readable message, as `[DONE]`, or that have no such number, change nothing.
#[derive(Clone, Debug)]
pub struct LastEvent {
    reader: SseReader,
    pointers: JsonPointers,
    last: Option<u64>,
    events: u64,
}

impl LastEvent {
    /// Waits for the beginning of a stream. Larger events than `event_bytes_max` are passed over.
    ///
    /// # Panics
    /// Never: a set of one pointer is always possible.
    #[must_use]
    pub fn new(pointer: JsonPointer, event_bytes_max: usize) -> Self {
        Self {
            reader: SseReader::new(event_bytes_max),
            pointers: JsonPointers::new([pointer]).expect("a set of one pointer is possible"),
            last: None,
            events: 0,
        }
    }

    /// Reads the next bytes of the stream.
    pub fn feed(&mut self, chunk: &[u8]) {
        let Self {
            reader,
            pointers,
            last,
            events,
        } = self;
        reader.feed(chunk, |data| {
            *events += 1;
            let found = pointers.find(data).ok();
            let number = found.and_then(|found| found.get(0)?.as_u64());
            *last = number.or(*last);
        });
    }

    /// How many events have ended.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events + self.reader.passed_over()
    }

    /// The number of the last event that had one.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.last
    }
}
