//! The record in the store for a key: its window, and how much of it is left.

use core::fmt;
use core::num::NonZeroU64;
use core::str;
use core::time::Duration;

use crate::digest::Digest;

/// The version of the text form that is written, and the only one that is read.
pub const FORMAT: u64 = 1;
/// No record is longer.   bytes
pub const TEXT_BYTES_MAX: usize = 160;

/// How long a store keeps a record behind its window: this many windows of its length, and at least
/// this time.
const KEPT_WINDOWS: u32 = 2;
const KEPT_MIN: Duration = Duration::from_secs(600);

/// The name that marks the text form as ours.
const NAME: &str = "tidegate";

/// The rest of a key's window, shared by all nodes.
///
/// Its [`Display`](fmt::Display) is the text in the store, such as `tidegate 1 window=29 left=60
/// total=100 reserved=0 length_ms=60000`.
///
/// Windows are counted from the beginning of the store's time: window `n` begins at `n` lengths
/// and ends before `n + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaRecord {
    window: u64,
    left: u64,
    total: u64,
    reserved: u64,
    length_ms: NonZeroU64,
}

impl QuotaRecord {
    /// A record of window `window`.
    ///
    /// # Errors
    ///
    /// If `left` and `reserved` add up to more than `total`, if `length` is no whole number of
    /// milliseconds above 0, or if the window ends after 64 bits of milliseconds.
    pub fn new(
        window: u64,
        left: u64,
        total: u64,
        reserved: u64,
        length: Duration,
    ) -> Result<Self, RecordError> {
        if !length.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(RecordError::OutOfRange("length_ms"));
        }
        let length_ms = u64::try_from(length.as_millis())
            .ok()
            .and_then(NonZeroU64::new)
            .ok_or(RecordError::OutOfRange("length_ms"))?;
        let end = window
            .checked_add(1)
            .and_then(|next| next.checked_mul(length_ms.get()));
        if end.is_none() {
            return Err(RecordError::OutOfRange("window"));
        }
        if left.checked_add(reserved).is_none_or(|sum| sum > total) {
            return Err(RecordError::OutOfRange("left"));
        }
        Ok(Self {
            window,
            left,
            total,
            reserved,
            length_ms,
        })
    }

    /// The window's number, counted from the beginning of the store's time.
    #[must_use]
    pub const fn window(&self) -> u64 {
        self.window
    }

    /// The rest of the window that may still be drawn.   tokens
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }

    /// The total that all nodes together may spend in the window.   tokens
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The part of the total that is never drawn, because nodes own it as their safe share.   tokens
    #[must_use]
    pub const fn reserved(&self) -> u64 {
        self.reserved
    }

    /// How long it is.
    #[must_use]
    pub const fn length(&self) -> Duration {
        Duration::from_millis(self.length_ms.get())
    }

    /// When it begins, by the store's clock.
    #[must_use]
    pub const fn start(&self) -> Duration {
        Duration::from_millis(self.window * self.length_ms.get())
    }

    /// When it is over, by the store's clock.
    #[must_use]
    pub const fn end(&self) -> Duration {
        Duration::from_millis((self.window + 1) * self.length_ms.get())
    }

    /// When the store may remove it, by the store's clock: two windows after its own, and at least ten
    /// minutes. If that clock is set back by less than this, no window of a removed record comes again.
    #[must_use]
    pub fn kept_until(&self) -> Duration {
        let behind = self.length().saturating_mul(KEPT_WINDOWS);
        self.end().saturating_add(behind.max(KEPT_MIN))
    }

    /// The record after a draw; `None` if not enough is left.
    #[must_use]
    pub fn less(&self, grant: u64) -> Option<Self> {
        let left = self.left.checked_sub(grant)?;
        Some(Self { left, ..*self })
    }

    /// The record after a return; `None` if that would be more than there was.
    #[must_use]
    pub fn more(&self, back: u64) -> Option<Self> {
        let left = self.left.checked_add(back)?;
        Self::new(self.window, left, self.total, self.reserved, self.length()).ok()
    }

    /// Adds the record to a digest, with its window as the store counts it.
    #[doc(hidden)]
    pub fn digest(&self, to: &mut Digest) {
        let Self {
            window,
            left,
            total,
            reserved,
            length_ms,
        } = *self;
        for number in [window, left, total, reserved, length_ms.get()] {
            to.word(number);
        }
    }

    /// Reads the text form, and nothing but it: every field in its order, with one space between
    /// two, no sign and no leading zero.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &[u8]) -> Result<Self, RecordError> {
        if text.is_empty() {
            return Err(RecordError::Empty);
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(RecordError::Foreign);
        }
        let text = str::from_utf8(text).map_err(|_| RecordError::Foreign)?;
        let mut words = text.split(' ');
        if words.next() != Some(NAME) {
            return Err(RecordError::Foreign);
        }
        match number("format", words.next().unwrap_or(""))? {
            FORMAT => {}
            other => return Err(RecordError::OtherFormat(other)),
        }
        let mut field = |name: &'static str| {
            let word = words.next().and_then(|word| word.strip_prefix(name));
            let value = word.and_then(|word| word.strip_prefix('='));
            number(name, value.ok_or(RecordError::Missing(name))?)
        };
        let window = field("window")?;
        let left = field("left")?;
        let total = field("total")?;
        let reserved = field("reserved")?;
        let length_ms = field("length_ms")?;
        if words.next().is_some() {
            return Err(RecordError::Trailing);
        }
        Self::new(
            window,
            left,
            total,
            reserved,
            Duration::from_millis(length_ms),
        )
    }
}

/// A number as it is written: digits, and no zero before others.
fn number(name: &'static str, text: &str) -> Result<u64, RecordError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (text.len() > 1 && text.starts_with('0')) {
        return Err(RecordError::NotANumber(name));
    }
    text.parse().map_err(|_| RecordError::OutOfRange(name))
}

impl fmt::Display for QuotaRecord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{NAME} {FORMAT} window={} left={} total={} reserved={} length_ms={}",
            self.window, self.left, self.total, self.reserved, self.length_ms
        )
    }
}

/// Why a text in the store is no valid record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// There is nothing in it.
    Empty,
    /// The record is another tool's.
    Foreign,
    /// The record has another version of the text form.
    OtherFormat(u64),
    /// Where this field should be is something else or nothing.
    Missing(&'static str),
    /// A field is no number.
    NotANumber(&'static str),
    /// A field is a number that can't be.
    OutOfRange(&'static str),
    /// Something follows.
    Trailing,
    /// The record is of this window, which begins long after the store's time.
    TooFarAhead(u64),
}

impl fmt::Display for RecordError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(out, "it is empty"),
            Self::Foreign => write!(out, "it is another tool's: it does not begin with `{NAME}`"),
            Self::OtherFormat(format) => {
                write!(out, "it is of format {format}, and this is format {FORMAT}")
            }
            Self::Missing(field) => write!(out, "`{field}=` is not where it belongs"),
            Self::NotANumber(field) => write!(out, "`{field}` is no number"),
            Self::OutOfRange(field) => write!(out, "`{field}` can't be so"),
            Self::Trailing => write!(out, "something follows its last field"),
            Self::TooFarAhead(window) => write!(
                out,
                "its window {window} begins more than an hour after the next one by the store's time"
            ),
        }
    }
}

impl core::error::Error for RecordError {}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use crate::random::Random;

    const TEXT: &str = "tidegate 1 window=29 left=60 total=100 reserved=10 length_ms=60000";

    #[test]
    fn a_record_reads_as_it_was_written() {
        let record = QuotaRecord::new(29, 60, 100, 10, Duration::from_secs(60)).expect("a record");
        assert_eq!(record.to_string(), TEXT);
        assert_eq!(QuotaRecord::parse(TEXT.as_bytes()), Ok(record));
        assert_eq!(record.start(), Duration::from_secs(29 * 60));
        assert_eq!(record.end(), Duration::from_secs(30 * 60));
    }

    #[test]
    fn a_record_is_kept_for_two_windows_behind_its_own_and_ten_minutes() {
        let check = |seconds, kept| {
            let length = Duration::from_secs(seconds);
            let record = QuotaRecord::new(9, 60, 100, 10, length).expect("a record");
            assert_eq!(record.kept_until(), length * 10 + Duration::from_secs(kept));
        };
        check(1, 600);
        check(300, 600);
        check(86_400, 172_800);
    }

    #[test]
    fn each_invalid_record_has_an_error_of_its_own() {
        let check = |text: &str, error| assert_eq!(QuotaRecord::parse(text.as_bytes()), Err(error));
        check("", RecordError::Empty);
        check("100", RecordError::Foreign);
        check(" tidegate 1", RecordError::Foreign);
        check("{\"usable\":100}", RecordError::Foreign);
        check(&"tidegate ".repeat(100), RecordError::Foreign);
        check("tidegate", RecordError::NotANumber("format"));
        check(&TEXT.replace("e 1", "e 2"), RecordError::OtherFormat(2));
        check("tidegate 1", RecordError::Missing("window"));
        check(&TEXT.replace("left", "Left"), RecordError::Missing("left"));
        check(&TEXT.replace("29", ""), RecordError::NotANumber("window"));
        check(
            &TEXT.replace("29", "+29"),
            RecordError::NotANumber("window"),
        );
        check(
            &TEXT.replace("29", "029"),
            RecordError::NotANumber("window"),
        );
        check(&TEXT.replace("60 ", "-1 "), RecordError::NotANumber("left"));
        check(&TEXT.replace("60 ", "91 "), RecordError::OutOfRange("left"));
        let huge = u64::MAX.to_string();
        check(
            &TEXT.replace("29", &huge),
            RecordError::OutOfRange("window"),
        );
        check(
            &TEXT.replace("29", &(huge + "0")),
            RecordError::OutOfRange("window"),
        );
        check(
            &TEXT.replace("60000", "0"),
            RecordError::OutOfRange("length_ms"),
        );
        check(&(TEXT.to_string() + " "), RecordError::Trailing);
        check(
            &(TEXT.to_string() + "\n"),
            RecordError::NotANumber("length_ms"),
        );
        assert_eq!(
            QuotaRecord::parse(b"tidegate\xff"),
            Err(RecordError::Foreign)
        );
    }

    #[test]
    fn no_text_makes_the_parser_panic_and_what_it_takes_it_writes_alike() {
        let mut random = Random::new(1);
        for _ in 0..20_000 {
            let mut text = TEXT.as_bytes().to_vec();
            for _ in 0..random.between(1, 3) {
                let at = random.below(text.len() as u64) as usize;
                match random.below(3) {
                    0 => text[at] = random.below(256) as u8,
                    1 => drop(text.remove(at)),
                    _ => text.insert(at, b'0' + random.below(10) as u8),
                }
            }
            if let Ok(record) = QuotaRecord::parse(&text) {
                assert_eq!(record.to_string().as_bytes(), text, "seed 1");
            }
        }
    }

    #[test]
    fn nothing_is_drawn_or_given_back_beyond_what_there_is() {
        let record = QuotaRecord::new(1, 60, 100, 10, Duration::from_secs(1)).expect("a record");
        assert_eq!(record.less(60).map(|it| it.left()), Some(0));
        assert_eq!(record.less(61), None);
        assert_eq!(record.more(30).map(|it| it.left()), Some(90));
        assert_eq!(record.more(31), None);
        assert_eq!(record.more(u64::MAX), None);
    }

    #[test]
    fn the_longest_record_fits() {
        let huge = QuotaRecord::new(0, u64::MAX, u64::MAX, 0, Duration::from_millis(u64::MAX));
        let text = huge.expect("a record").to_string();
        assert!(text.len() + 19 <= TEXT_BYTES_MAX, "{}", text.len());
    }
}
