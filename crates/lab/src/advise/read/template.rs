//! A line format in the words of Apache's `LogFormat` or nginx's `log_format`.
//!
//! The usual formats are recognised by trying their own directives on the first lines, so the
//! report can name the directive that fits.

use std::borrow::Cow;

use super::instant::{ISO, LOCAL, Moment, SECOND, decimal, is_readable, number};
use super::request::{LoggedRequest, RequestOutcome, asked, path};

/// Parts of a format, at most.
const PIECES_MAX: usize = 200;
const MS: u64 = 1_000_000;
const US: u64 = 1_000;

/// A format, ready to read lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    given: String,
    pieces: Vec<Piece>,
    anchor: Anchor,
}

/// The moment of a request that its logged time names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anchor {
    Start,
    End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Field(TemplateField),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplateField {
    Skipped,
    Address,
    User,
    RequestLine,
    Method,
    Path,
    Status,
    /// `X` if the client left.
    Connection,
    /// A date by a pattern, in brackets or not.
    Date {
        pattern: String,
        bracketed: bool,
    },
    /// Seconds since the epoch, whole or with a fraction.
    Epoch,
    /// Units since the epoch, each of this length.   ns
    UnitsSinceEpoch(u64),
    /// Units since the last second, each of this length.   ns
    Fraction(u64),
    /// A duration in units of this length.   ns
    Took(u64),
    /// A duration as seconds with a fraction.
    TookSeconds,
    /// nginx: the times of all attempts at the backend, or `-`.
    Upstream,
}

/// Fields found in a line.
#[derive(Debug, Default)]
pub(super) struct FieldValues<'a> {
    pub(super) address: Option<&'a str>,
    pub(super) user: Option<&'a str>,
    pub(super) method: Option<&'a str>,
    pub(super) path: Option<Cow<'a, str>>,
    pub(super) status: Option<u16>,
    pub(super) moment: Moment,
    pub(super) took: Option<u64>,
    /// `Some(None)` if nothing was sent.
    pub(super) upstream: Option<Option<u64>>,
    pub(super) has_left: bool,
}

impl<'a> FieldValues<'a> {
    /// The request, if the line has all that is needed. `at_end`: its time is that of its end.
    pub(super) fn request(self, at_end: bool) -> Option<LoggedRequest<'a>> {
        let at = self.moment.since_epoch()?;
        let took = self.took?;
        let (arrived, ended) = match at_end {
            true => (at.checked_sub(took)?, at),
            false => (at, at.checked_add(took)?),
        };
        // How long the backend took is less than the whole by what the client took.
        let (is_sent, ended) = match self.upstream {
            Some(None) => (false, ended),
            Some(Some(upstream)) => (true, ended.min(arrived.checked_add(upstream)?)),
            None => (true, ended),
        };
        let known = |text: Option<&'a str>| text.filter(|it| !matches!(*it, "" | "-"));
        let asked = match (self.method, self.path) {
            (Some(method), Some(path)) => Some((method, path)),
            _ => Some(("OTHER", Cow::Borrowed("/"))),
        };
        Some(LoggedRequest {
            asked,
            caller: known(self.user).or(known(self.address)),
            arrived,
            started: is_sent.then_some(arrived),
            ended,
            result: match self.has_left {
                true => RequestOutcome::Left,
                false => RequestOutcome::Status(self.status.unwrap_or(200)),
            },
            is_whole: self.moment.is_whole(),
        })
    }

    pub(super) fn ask(&mut self, line: &'a str) {
        if let Some((method, path)) = asked(line) {
            (self.method, self.path) = (Some(method), Some(path.into()));
        }
    }
}

/// The duration of nginx's `$upstream_response_time`: the sum of all attempts.
pub(super) fn upstream(text: &str) -> Option<Option<u64>> {
    let mut sum = None;
    for part in text.split([',', ':']).map(str::trim) {
        if matches!(part, "-" | "") {
            continue;
        }
        let (took, rest) = decimal(part.as_bytes())?;
        if !rest.is_empty() {
            return None;
        }
        sum = Some(sum.unwrap_or(0) + took);
    }
    Some(sum)
}

impl Template {
    /// Reads the string of a directive.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what would be right.
    pub(super) fn new(given: &str) -> Result<Self, String> {
        let is_nginx = !given.contains('%') && given.contains('$');
        let mut pieces = match is_nginx {
            true => nginx(given)?,
            false => apache(given)?,
        };
        if pieces.len() > PIECES_MAX {
            return Err(format!("it has more than {PIECES_MAX} parts"));
        }
        let is_at_end = pieces
            .iter()
            .any(|(_, anchor)| *anchor == Some(Anchor::End));
        let is_at_start = pieces
            .iter()
            .any(|(_, anchor)| *anchor == Some(Anchor::Start));
        if !is_at_start && !is_at_end {
            return Err("it has no time: add %{usec}t (Apache) or $msec (nginx)".to_owned());
        }
        let anchor = match (is_at_end, is_at_start) {
            (true, true) => {
                return Err("it has the time of the start and of the end: name one".to_owned());
            }
            (true, false) => Anchor::End,
            (false, _) => Anchor::Start,
        };
        let mut pieces: Vec<Piece> = pieces.drain(..).map(|(piece, _)| piece).collect();
        finest(&mut pieces)?;
        for two in pieces.windows(2) {
            let is_open = |piece: &Piece| match piece {
                Piece::Text(_) => false,
                Piece::Field(field) => field.is_open(),
            };
            if is_open(&two[0]) && matches!(two[1], Piece::Field(_)) {
                return Err("two of its parts have no text between them".to_owned());
            }
        }
        Ok(Self {
            given: given.to_owned(),
            pieces,
            anchor,
        })
    }

    /// The directive's string.
    pub(super) fn given(&self) -> &str {
        &self.given
    }

    /// Whether a line's last number may not be what it is taken for.
    pub(super) fn ends_with_microseconds(&self) -> bool {
        self.given.ends_with(" %D")
    }

    /// Reads a line; `None` if the format does not fit.
    pub(super) fn read<'a>(&self, line: &'a [u8]) -> Option<LoggedRequest<'a>> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut rest = line;
        let mut found = FieldValues::default();
        for (at, piece) in self.pieces.iter().enumerate() {
            match piece {
                Piece::Text(text) => rest = rest.strip_prefix(&**text)?,
                Piece::Field(field) => {
                    let next = match self.pieces.get(at + 1) {
                        Some(Piece::Text(text)) => Some(&**text),
                        _ => None,
                    };
                    rest = field.read(rest, next, &mut found)?;
                }
            }
        }
        if !rest.is_empty() {
            return None;
        }
        found.request(self.anchor == Anchor::End)
    }
}

impl TemplateField {
    /// Whether only the text behind it says where it ends.
    const fn is_open(&self) -> bool {
        matches!(
            self,
            Self::Skipped
                | Self::Address
                | Self::User
                | Self::RequestLine
                | Self::Path
                | Self::Upstream
        )
    }

    fn read<'a>(
        &self,
        text: &'a [u8],
        next: Option<&[u8]>,
        found: &mut FieldValues<'a>,
    ) -> Option<&'a [u8]> {
        if self.is_open() || matches!(self, Self::Method | Self::Connection) {
            let (value, rest) = up_to(text, next)?;
            let value = str::from_utf8(value).ok();
            match self {
                Self::Address => found.address = Some(value?),
                Self::User => found.user = Some(value?),
                Self::Method => found.method = Some(value?),
                Self::Path => found.path = Some(path(value?).into()),
                Self::Connection => found.has_left = value? == "X",
                Self::Upstream => found.upstream = Some(upstream(value?)?),
                // A line that is no HTTP may have any bytes.
                Self::RequestLine => found.ask(value.unwrap_or("")),
                _ => {}
            }
            return Some(rest);
        }
        let scaled = |unit: u64| {
            let (value, rest) = number(text, 20)?;
            Some((value.checked_mul(unit)?, rest))
        };
        match self {
            Self::Status => {
                if let Some(rest) = text.strip_prefix(b"-") {
                    return Some(rest);
                }
                let (status, rest) = number(text, 3)?;
                found.status = u16::try_from(status).ok();
                Some(rest)
            }
            Self::Date { pattern, bracketed } => match bracketed {
                false => found.moment.read(pattern, text),
                true => found
                    .moment
                    .read(pattern, text.strip_prefix(b"[")?)?
                    .strip_prefix(b"]"),
            },
            Self::Epoch => {
                let (at, rest) = decimal(text)?;
                found.moment.at_epoch(at / SECOND);
                if text[..text.len() - rest.len()].contains(&b'.') {
                    found.moment.at_fraction(at % SECOND);
                }
                Some(rest)
            }
            Self::UnitsSinceEpoch(unit) => {
                let (at, rest) = scaled(*unit)?;
                found.moment.at_epoch(at / SECOND);
                found.moment.at_fraction(at % SECOND);
                Some(rest)
            }
            Self::Fraction(unit) => {
                let (fraction, rest) = scaled(*unit)?;
                found.moment.at_fraction(fraction);
                Some(rest)
            }
            Self::Took(unit) => {
                let (took, rest) = scaled(*unit)?;
                found.took = Some(took);
                Some(rest)
            }
            Self::TookSeconds => {
                let (took, rest) = decimal(text)?;
                found.took = Some(took);
                Some(rest)
            }
            _ => None,
        }
    }
}

/// Keeps the finest of several durations. Whole seconds alone are not enough.
fn finest(pieces: &mut [Piece]) -> Result<(), String> {
    let unit = |piece: &Piece| match piece {
        Piece::Field(TemplateField::Took(unit)) => Some(*unit),
        Piece::Field(TemplateField::TookSeconds) => Some(MS),
        _ => None,
    };
    match pieces.iter().filter_map(unit).min() {
        None => Err("it has no duration: add %D (Apache) or $request_time (nginx)".to_owned()),
        Some(SECOND) => Err("%T has whole seconds, which are too coarse: add %D".to_owned()),
        Some(finest) => {
            for piece in pieces {
                if unit(piece).is_some_and(|unit| unit > finest) {
                    *piece = Piece::Field(TemplateField::Skipped);
                }
            }
            Ok(())
        }
    }
}

/// The text up to the next one of the format. An escaped quote does not end a quoted field.
fn up_to<'a>(text: &'a [u8], next: Option<&[u8]>) -> Option<(&'a [u8], &'a [u8])> {
    let Some(next) = next else {
        return Some((text, &[]));
    };
    let mut from = 0;
    while let Some(at) = memchr::memmem::find(&text[from..], next) {
        let at = from + at;
        let slashes = text[..at]
            .iter()
            .rev()
            .take_while(|it| **it == b'\\')
            .count();
        if next.starts_with(b"\"") && slashes % 2 == 1 {
            from = at + 1;
            continue;
        }
        return Some(text.split_at(at));
    }
    None
}

type TemplateParts = Vec<(Piece, Option<Anchor>)>;

fn push_text(pieces: &mut TemplateParts, byte: u8) {
    match pieces.last_mut() {
        Some((Piece::Text(text), _)) => text.push(byte),
        _ => pieces.push((Piece::Text(vec![byte]), None)),
    }
}

/// The parts of a `LogFormat`.
fn apache(given: &str) -> Result<TemplateParts, String> {
    let mut pieces = TemplateParts::new();
    let bytes = given.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        at += 1;
        // As the directive writes it in quotes: `\"`.
        if byte == b'\\' && bytes.get(at) == Some(&b'"') {
            continue;
        }
        if byte != b'%' {
            push_text(&mut pieces, byte);
            continue;
        }
        // Modifiers: `>`, `<`, and statuses such as `!200,304`.
        while bytes
            .get(at)
            .is_some_and(|it| b"<>!,".contains(it) || it.is_ascii_digit())
        {
            at += 1;
        }
        let argument = match bytes.get(at) {
            Some(b'{') => {
                let length = given[at..].find('}').ok_or("a { has no }")?;
                let argument = &given[at + 1..at + length];
                at += length + 1;
                argument
            }
            _ => "",
        };
        let letter = given[at..].chars().next().ok_or("it ends with %")?;
        at += letter.len_utf8();
        if letter == '%' {
            push_text(&mut pieces, b'%');
            continue;
        }
        let (field, anchor) = directive(letter, argument)?;
        pieces.push((Piece::Field(field), anchor));
    }
    Ok(pieces)
}

/// Reads a directive of Apache.
fn directive(letter: char, argument: &str) -> Result<(TemplateField, Option<Anchor>), String> {
    let field = match letter {
        'h' | 'a' => TemplateField::Address,
        'u' => TemplateField::User,
        'r' => TemplateField::RequestLine,
        'm' => TemplateField::Method,
        'U' => TemplateField::Path,
        's' => TemplateField::Status,
        'X' => TemplateField::Connection,
        'D' => TemplateField::Took(US),
        'T' => TemplateField::Took(match argument {
            "us" => US,
            "ms" => MS,
            "" | "s" => SECOND,
            _ => return Err(format!("%{{{argument}}}T is not known")),
        }),
        't' => return time(argument),
        'A' | 'b' | 'B' | 'f' | 'H' | 'k' | 'l' | 'L' | 'p' | 'P' | 'q' | 'R' | 'v' | 'V' | 'I'
        | 'O' | 'S' | 'i' | 'o' | 'e' | 'n' | 'C' | 'c' | 'x' => TemplateField::Skipped,
        _ => {
            return Err(format!(
                "%{letter} is no directive of Apache that is known here"
            ));
        }
    };
    Ok((field, None))
}

/// `%t`, `%{usec}t`, `%{end:msec}t`, `%{%F %T}t`.
fn time(argument: &str) -> Result<(TemplateField, Option<Anchor>), String> {
    let (anchor, argument) = match argument.strip_prefix("end:") {
        Some(rest) => (Anchor::End, rest),
        None => (
            Anchor::Start,
            argument.strip_prefix("begin:").unwrap_or(argument),
        ),
    };
    let field = match argument {
        "" => TemplateField::Date {
            pattern: LOCAL.to_owned(),
            bracketed: true,
        },
        "sec" => TemplateField::Epoch,
        "msec" => TemplateField::UnitsSinceEpoch(MS),
        "usec" => TemplateField::UnitsSinceEpoch(US),
        "msec_frac" => TemplateField::Fraction(MS),
        "usec_frac" => TemplateField::Fraction(US),
        pattern if is_readable(pattern) => TemplateField::Date {
            pattern: pattern.to_owned(),
            bracketed: false,
        },
        pattern => {
            return Err(format!(
                "%{{{pattern}}}t has more than %Y %m %d %b %H %M %S %z %F %T and %s: write %{{usec}}t"
            ));
        }
    };
    Ok((field, Some(anchor)))
}

/// The parts of a `log_format`.
fn nginx(given: &str) -> Result<TemplateParts, String> {
    let mut pieces = TemplateParts::new();
    let mut rest = given;
    while let Some(next) = rest.chars().next() {
        if next != '$' {
            for byte in next.to_string().bytes() {
                push_text(&mut pieces, byte);
            }
            rest = &rest[next.len_utf8()..];
            continue;
        }
        let after = &rest[1..];
        let (name, behind) = match after.strip_prefix('{') {
            Some(inside) => inside.split_once('}').ok_or("a { has no }")?,
            None => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                after.split_at(after.find(|c| !is_part(c)).unwrap_or(after.len()))
            }
        };
        if name.is_empty() {
            return Err("a $ has no name".to_owned());
        }
        rest = behind;
        pieces.push(variable(name));
    }
    Ok(pieces)
}

/// Reads a variable of nginx. nginx logs when a request ends.
fn variable(name: &str) -> (Piece, Option<Anchor>) {
    let date = |pattern: &str| TemplateField::Date {
        pattern: pattern.to_owned(),
        bracketed: false,
    };
    let field = match name {
        "remote_addr" | "realip_remote_addr" => TemplateField::Address,
        "remote_user" => TemplateField::User,
        "request" => TemplateField::RequestLine,
        "request_method" => TemplateField::Method,
        "uri" | "request_uri" | "document_uri" => TemplateField::Path,
        "status" => TemplateField::Status,
        "request_time" => TemplateField::TookSeconds,
        "upstream_response_time" => TemplateField::Upstream,
        "msec" => return (Piece::Field(TemplateField::Epoch), Some(Anchor::End)),
        "time_local" => return (Piece::Field(date(LOCAL)), Some(Anchor::End)),
        "time_iso8601" => return (Piece::Field(date(ISO)), Some(Anchor::End)),
        _ => TemplateField::Skipped,
    };
    (Piece::Field(field), None)
}

#[cfg(test)]
mod tests;
