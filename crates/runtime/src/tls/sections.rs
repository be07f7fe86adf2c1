//! The sections of a PEM file (RFC 7468), with every flaw by which one would be lost.
//!
//! Readers of PEM pass over what they do not understand. So a certificate can be lost silently: behind a byte order
//! mark, or on the line on which the one before it ends. Here every mark is counted. A flaw is named by its line;
//! nothing of the file is quoted, because it may hold a key.

use std::fmt;

/// The first bytes of a file by some editors.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const DASHES: &[u8] = b"-----";

/// A section of a PEM file: a certificate, a key, or anything else.
pub(super) struct PemSection<'a> {
    /// The label of the marks, such as `CERTIFICATE`.
    pub(super) label: &'a [u8],
    /// The line of its first mark, counted from 1.
    pub(super) line: usize,
    /// The section, with both marks.
    pub(super) bytes: &'a [u8],
}

/// Why a part of a PEM file cannot be read, with the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The text has two bytes for each character.
    Utf16,
    /// A byte order mark before a BEGIN mark.
    ByteOrderMark(usize),
    /// Other text before a mark.
    TextBefore(usize),
    /// The END mark of the section before.
    SharesLine(usize),
    /// The content follows the BEGIN mark on its line.
    NoNewlines(usize),
    /// A mark without five dashes at both ends.
    BrokenMark(usize),
    /// A BEGIN mark without its END mark.
    NoEnd(usize),
    /// An END mark without its BEGIN mark.
    NoBegin(usize),
    /// The content is not base64.
    NoBase64(usize),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Utf16 => f.write_str("is text in UTF-16"),
            Self::ByteOrderMark(line) => {
                write!(
                    f,
                    "has a byte order mark before the BEGIN mark in line {line}"
                )
            }
            Self::TextBefore(line) => write!(f, "has text before the mark in line {line}"),
            Self::SharesLine(line) => write!(
                f,
                "has an END mark and a BEGIN mark in one line, line {line}: a newline is missing"
            ),
            Self::NoNewlines(line) => write!(
                f,
                "has no newline behind the BEGIN mark in line {line}: newlines became spaces, or \
                 \\n in two characters"
            ),
            Self::BrokenMark(line) => write!(
                f,
                "has a mark in line {line} without five dashes at both ends"
            ),
            Self::NoEnd(line) => write!(f, "has no END mark for the BEGIN mark in line {line}"),
            Self::NoBegin(line) => write!(f, "has no BEGIN mark for the END mark in line {line}"),
            Self::NoBase64(line) => write!(
                f,
                "has a section in line {line} that is damaged: it is not base64"
            ),
        }
    }
}

impl Flaw {
    /// The cure for the flaw.
    pub(super) fn cure(self) -> &'static str {
        match self {
            Self::Utf16 => "convert it with `iconv -f UTF-16 -t UTF-8`",
            Self::ByteOrderMark(_) => {
                "remove it with `sed -i 's/\\xef\\xbb\\xbf//g'`, in the files that it was made from too"
            }
            Self::TextBefore(_) => "let each mark begin its line",
            Self::SharesLine(_) => {
                "end each file with a newline before you join them, such as with `sed -s '$a\\'`"
            }
            Self::NoNewlines(_) => {
                "write the file with its newlines; `sed 's/\\\\n/\\n/g'` makes them of \\n"
            }
            Self::BrokenMark(_) => {
                "write the mark as -----BEGIN CERTIFICATE-----, with plain dashes"
            }
            Self::NoEnd(_) | Self::NoBegin(_) => "copy the file anew: a part of it is missing",
            Self::NoBase64(_) => "copy the file anew",
        }
    }
}

/// Every section of a file, in its order.
pub(super) fn sections(bytes: &[u8]) -> Result<Vec<PemSection<'_>>, Flaw> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(Flaw::Utf16);
    }
    let mut all = Vec::new();
    let mut open: Option<(&[u8], usize, usize)> = None;
    for (number, from, line) in lines(bytes) {
        let content = line.trim_ascii_end();
        // A section can be switched off by a comment.
        if open.is_none() && content.trim_ascii_start().starts_with(b"#") {
            continue;
        }
        match (mark(content), open) {
            (None, _) => {}
            (Some(PemMark::Broken(flaw)), _) => return Err(flaw(number)),
            (Some(PemMark::Begin(_)), Some((_, begun, _))) => return Err(Flaw::NoEnd(begun)),
            (Some(PemMark::Begin(label)), None) => open = Some((label, number, from)),
            (Some(PemMark::End(_)), None) => return Err(Flaw::NoBegin(number)),
            (Some(PemMark::End(label)), Some((begun_label, begun, begun_at))) => {
                if label != begun_label {
                    return Err(Flaw::NoEnd(begun));
                }
                all.push(PemSection {
                    label,
                    line: begun,
                    bytes: &bytes[begun_at..from + line.len()],
                });
                open = None;
            }
        }
    }
    match open {
        Some((_, begun, _)) => Err(Flaw::NoEnd(begun)),
        None => Ok(all),
    }
}

/// The mark that a line is.
enum PemMark<'a> {
    Begin(&'a [u8]),
    End(&'a [u8]),
    Broken(fn(usize) -> Flaw),
}

/// The mark in a line. Its BEGIN counts before its END.
fn mark(line: &[u8]) -> Option<PemMark<'_>> {
    if let Some(at) = word_at(line, b"BEGIN ") {
        let (before, label) = (&line[..at], &line[at + 6..]);
        let Some(prefix) = before.strip_suffix(DASHES) else {
            return Some(PemMark::Broken(Flaw::BrokenMark));
        };
        if prefix.ends_with(BYTE_ORDER_MARK) {
            return Some(PemMark::Broken(Flaw::ByteOrderMark));
        }
        if word_at(prefix, b"END ").is_some() {
            return Some(PemMark::Broken(Flaw::SharesLine));
        }
        if !prefix.is_empty() {
            return Some(PemMark::Broken(Flaw::TextBefore));
        }
        return Some(match whole_label(label) {
            Label::Whole(label) => PemMark::Begin(label),
            Label::Followed => PemMark::Broken(Flaw::NoNewlines),
            Label::Broken => PemMark::Broken(Flaw::BrokenMark),
        });
    }
    let at = word_at(line, b"END ")?;
    let is_alone = &line[..at] == DASHES;
    Some(match whole_label(&line[at + 4..]) {
        Label::Whole(label) if is_alone => PemMark::End(label),
        // The last line of the content has no newline.
        Label::Whole(_) if line[..at].ends_with(DASHES) => PemMark::Broken(Flaw::TextBefore),
        _ => PemMark::Broken(Flaw::BrokenMark),
    })
}

/// Where a word of a mark begins in a line: behind a dash, which may be a typographic one.
fn word_at(line: &[u8], word: &[u8]) -> Option<usize> {
    let mut places = line.windows(word.len()).enumerate();
    let is_behind_dash = |at: usize| {
        let before = &line[..at];
        // U+2010 to U+2015
        let is_typographic = |it: &[u8]| matches!(it, [0xe2, 0x80, 0x90..=0x95]);
        before.ends_with(b"-")
            || before
                .last_chunk::<3>()
                .is_some_and(|it| is_typographic(it))
    };
    places.find_map(|(at, found)| (found == word && is_behind_dash(at)).then_some(at))
}

enum Label<'a> {
    Whole(&'a [u8]),
    /// Something follows the closing dashes.
    Followed,
    Broken,
}

fn whole_label(rest: &[u8]) -> Label<'_> {
    let dashes = rest.windows(DASHES.len()).position(|it| it == DASHES);
    let Some(at) = dashes else {
        return Label::Broken;
    };
    let is_part = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b' ';
    match &rest[at + DASHES.len()..] {
        [] if rest[..at].iter().all(is_part) => Label::Whole(&rest[..at]),
        [] | [b'-', ..] => Label::Broken,
        _ => Label::Followed,
    }
}

/// Each line with its number from 1, its first byte and its bytes, without its end.
fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, usize, &[u8])> {
    let mut from = 0;
    let mut number = 0;
    std::iter::from_fn(move || {
        if from >= bytes.len() {
            return None;
        }
        let rest = &bytes[from..];
        let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let length = end.unwrap_or(rest.len());
        let ending = match rest.get(length..) {
            Some([b'\r', b'\n', ..]) => 2,
            Some([_, ..]) => 1,
            _ => 0,
        };
        let begins = from;
        number += 1;
        from += length + ending;
        Some((number, begins, &rest[..length]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

    #[track_caller]
    fn check(text: &str, expected: Result<&[(&str, usize)], Flaw>) {
        let found = sections(text.as_bytes()).map(|all| {
            let each = all.iter().map(|it| {
                let label = String::from_utf8_lossy(it.label).into_owned();
                assert!(it.bytes.starts_with(b"-----BEGIN "));
                assert!(it.bytes.trim_ascii_end().ends_with(b"-----"), "{text:?}");
                (label, it.line)
            });
            each.collect::<Vec<_>>()
        });
        let expected = expected.map(|all| {
            let each = all.iter().map(|(label, line)| ((*label).to_owned(), *line));
            each.collect::<Vec<_>>()
        });
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn every_section_is_found_with_its_line_between_other_text() {
        let two = [("CERTIFICATE", 1), ("CERTIFICATE", 4)];
        check(&ONE.repeat(2), Ok(&two));
        check(&ONE.repeat(2).replace('\n', "\r\n"), Ok(&two));
        check(&ONE.repeat(2).replace('\n', "\r"), Ok(&two));
        check(ONE.trim_end(), Ok(&two[..1]));
        check(
            &format!("subject=CN = a\n\n{ONE}\n# {ONE}"),
            Err(Flaw::NoBegin(9)),
        );
        check(
            &format!("subject=CN = a\n\n{ONE}"),
            Ok(&[("CERTIFICATE", 3)]),
        );
        let commented: String = ONE.lines().map(|line| format!("# {line}\n")).collect();
        check(&format!("{commented}{ONE}"), Ok(&[("CERTIFICATE", 4)]));
        check("", Ok(&[]));
        check("the end of BEGIN and END\n", Ok(&[]));
        check(
            &format!("{ONE}-----BEGIN EC PARAMETERS-----\nBg==\n-----END EC PARAMETERS----- \n"),
            Ok(&[("CERTIFICATE", 1), ("EC PARAMETERS", 4)]),
        );
    }

    #[test]
    fn a_section_that_would_be_lost_is_named_by_its_flaw_and_its_line() {
        check(&format!("\u{feff}{ONE}"), Err(Flaw::ByteOrderMark(1)));
        check(&format!("{ONE}\u{feff}{ONE}"), Err(Flaw::ByteOrderMark(4)));
        check(
            &format!("{}{ONE}", ONE.trim_end()),
            Err(Flaw::SharesLine(3)),
        );
        check(&format!("{ONE}  {ONE}"), Err(Flaw::TextBefore(4)));
        check(&ONE.replace('\n', " "), Err(Flaw::NoNewlines(1)));
        check(&ONE.replace('\n', "\\n"), Err(Flaw::NoNewlines(1)));
        check(
            &ONE.replace("E-----\nA", "E----\nA"),
            Err(Flaw::BrokenMark(1)),
        );
        check(
            &ONE.replace("-----BEGIN", "----BEGIN"),
            Err(Flaw::BrokenMark(1)),
        );
        check(
            &ONE.replace("-----BEGIN", "\u{2014}BEGIN"),
            Err(Flaw::BrokenMark(1)),
        );
        check(
            &ONE.replace("-----END CERTIFICATE-----\n", ""),
            Err(Flaw::NoEnd(1)),
        );
        check(
            &ONE.replace("END CERT", "END TRUSTED CERT"),
            Err(Flaw::NoEnd(1)),
        );
        let first = ONE.replace("-----END CERTIFICATE-----\n", "");
        check(&format!("{first}{ONE}"), Err(Flaw::NoEnd(1)));
        check("-----END CERTIFICATE-----\n", Err(Flaw::NoBegin(1)));
        let wide: Vec<u8> = ONE.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let wide = [&[0xff, 0xfe][..], &wide].concat();
        assert_eq!(sections(&wide).err(), Some(Flaw::Utf16));
    }

    #[test]
    fn whatever_is_cut_or_bent_is_read_without_a_panic() {
        let text = ONE.repeat(2).into_bytes();
        for at in 0..text.len() {
            let _ = sections(&text[..at]);
            for value in [0, b'\n', b'-', b' ', 0x80, 0xe2, 0xff] {
                let mut bent = text.clone();
                bent[at] = value;
                let _ = sections(&bent);
            }
        }
    }
}
