//! Takes lines out of what collectors of logs wrap them in: Docker's json-file, `journalctl -o json`, and the format of
//! CRI, which containerd and CRI-O write for Kubernetes.
//!
//! Docker and CRI split a line that is longer than 16 KiB, and each half has a wrapping of its own.

use std::mem;

use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::kind::Word;

/// The longest line.   bytes
pub const LINE_MAX: usize = 64 << 10;
/// The longest line in its wrapping, where an escape or a number may stand for each byte.
pub const WRAPPED_MAX: usize = 4 * LINE_MAX;
/// Docker splits a line into parts of this length, and marks none of them.   bytes
const DOCKER_PART: usize = 16 << 10;
/// The start of a line as a sidecar writes it. No wrapping has it.
const OWN: &[u8] = br#"{"timestamp":"#;

const TOO_LONG: &str = "it is too long";
const LEFT_OUT: &str = "journalctl left out its text; run journalctl with --all";

/// Puts the lines of one log together.
#[derive(Debug, Default)]
pub struct Unwrapper {
    /// The beginning of a line whose end is still to come, of each output of a process.
    parts: [Vec<u8>; 2],
    whole: Vec<u8>,
}

/// The kinds of lines in a log file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A line that is in no wrapping.
    Plain,
    /// The last part of a line that was in a wrapping: [`Unwrapper::whole`] has all of it.
    Unwrapped,
    /// A part of a line. The rest is still to come.
    Part,
    /// A line that cannot be read, for this reason.
    Unreadable(&'static str),
}

/// The wrapping that Docker's json-file and the journal write around a line.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    log: Option<Word<'a>>,
    #[serde(borrow, default)]
    stream: Option<Word<'a>>,
    #[serde(borrow, default, rename = "MESSAGE")]
    message: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "__REALTIME_TIMESTAMP")]
    realtime: Option<&'a RawValue>,
}

impl Unwrapper {
    /// Takes a line of the file, without its end.
    pub fn take(&mut self, line: &[u8]) -> Content {
        if line.starts_with(OWN) {
            return plain(line);
        }
        if line.first() == Some(&b'{') {
            let may_be_wrapped = memmem::find(line, br#""log""#).is_some()
                || memmem::find(line, br#""MESSAGE""#).is_some();
            let envelope = may_be_wrapped.then(|| serde_json::from_slice::<Envelope<'_>>(line));
            return match envelope {
                Some(Ok(Envelope {
                    log: Some(log),
                    stream: Some(stream),
                    ..
                })) => {
                    let is_part = !log.0.ends_with('\n') && log.0.len() == DOCKER_PART;
                    self.add(&stream.0, log.0.as_bytes(), is_part)
                }
                Some(Ok(Envelope {
                    message,
                    realtime: Some(_),
                    ..
                })) => self.of_journal(message),
                _ => plain(line),
            };
        }
        match cri(line) {
            Some((stream, is_part, text)) => self.add(stream, text, is_part),
            None => plain(line),
        }
    }

    /// The beginning of a line whose end never came. For the end of the log.
    pub fn rest(&mut self) -> Option<Content> {
        let part = self.parts.iter_mut().find(|part| !part.is_empty())?;
        self.whole = mem::take(part);
        Some(unwrapped(&self.whole))
    }

    /// The whole line that was in a wrapping.
    #[must_use]
    pub fn whole(&self) -> &[u8] {
        &self.whole
    }

    /// Adds a part of a line of an output.
    fn add(&mut self, stream: &str, text: &[u8], is_part: bool) -> Content {
        let begun = &mut self.parts[usize::from(stream == "stderr")];
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        // One byte more than fits shows that a line is too long.
        let room = (LINE_MAX + 1).saturating_sub(begun.len());
        begun.extend_from_slice(&text[..text.len().min(room)]);
        if is_part {
            return Content::Part;
        }
        self.whole.clear();
        mem::swap(&mut self.whole, begun);
        unwrapped(&self.whole)
    }

    /// The text of an entry of the journal: a string, or an array of bytes if it is not all printable.
    fn of_journal(&mut self, message: Option<&RawValue>) -> Content {
        let text = message.map_or("null", RawValue::get);
        self.whole.clear();
        if let Ok(Word(text)) = serde_json::from_str(text) {
            self.whole.extend_from_slice(text.as_bytes());
        } else if let Ok(bytes) = serde_json::from_str::<Vec<u8>>(text) {
            self.whole = bytes;
        } else {
            return Content::Unreadable(LEFT_OUT);
        }
        unwrapped(&self.whole)
    }
}

fn plain(line: &[u8]) -> Content {
    match line.len() <= LINE_MAX {
        true => Content::Plain,
        false => Content::Unreadable(TOO_LONG),
    }
}

fn unwrapped(line: &[u8]) -> Content {
    match line.len() <= LINE_MAX {
        true => Content::Unwrapped,
        false => Content::Unreadable(TOO_LONG),
    }
}

/// The output, whether the line goes on in the next one, and the text, of a line of CRI:
/// `2026-11-22T01:00:00.123456789Z stderr F …`. More tags may follow the `F` or `P`, after a colon.
fn cri(line: &[u8]) -> Option<(&str, bool, &[u8])> {
    let mut words = line.splitn(4, |byte| *byte == b' ');
    let (time, stream, tags, text) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let is_time = time.first()?.is_ascii_digit() && time.get(10) == Some(&b'T');
    let stream = match stream {
        b"stdout" => "stdout",
        b"stderr" => "stderr",
        _ => return None,
    };
    let is_part = match tags.split(|byte| *byte == b':').next()? {
        b"P" => true,
        b"F" => false,
        _ => return None,
    };
    is_time.then_some((stream, is_part, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"timestamp":"2026-11-22T01:00:00.000000Z","level":"INFO","target":"access","schema":1,"id":"00000000000000ff","user":"a\\b"}"#;

    /// The result of the lines of a file, and of its end.
    fn lines(file: &[String]) -> Vec<String> {
        let mut unwrapper = Unwrapper::default();
        let mut all = Vec::new();
        let mut file = file.iter();
        loop {
            let line = file.next();
            let content = match line {
                Some(line) => unwrapper.take(line.as_bytes()),
                None => match unwrapper.rest() {
                    Some(content) => content,
                    None => return all,
                },
            };
            let whole = String::from_utf8_lossy(unwrapper.whole());
            match content {
                Content::Plain => all.push(format!("plain {}", line.expect("a line"))),
                Content::Unwrapped => all.push(whole.into_owned()),
                Content::Part => {}
                Content::Unreadable(why) => all.push(format!("unreadable: {why}")),
            }
        }
    }

    fn quoted(text: &str) -> String {
        serde_json::Value::from(text).to_string()
    }

    fn docker(stream: &str, text: &str) -> String {
        let text = quoted(text);
        format!(r#"{{"log":{text},"stream":"{stream}","time":"2026-11-22T01:00:00.123456789Z"}}"#)
    }

    #[test]
    fn a_line_in_no_wrapping_stays_as_it_is() {
        for line in [
            LINE,
            "",
            "{",
            r#"{ "target" : "access" }"#,
            r#"{"log":"nginx","status":200}"#,
            r#"{"MESSAGE":"of no journal"}"#,
            "sidecar-1  | {}",
            "2026-11-22T01:00:00Z stderr G {}",
            "Nov 22 01:00:00 host tidegate[7]: {}",
        ] {
            assert_eq!(lines(&[line.to_owned()]), [format!("plain {line}")]);
        }
    }

    #[test]
    fn lines_of_dockers_json_file_are_unwrapped_and_put_together() {
        let long = format!("{{{}}}", "x".repeat(40_000));
        let file = [
            docker("stderr", &format!("{LINE}\n")),
            docker("stderr", &long[..16_384]),
            docker("stdout", "another output\n"),
            docker("stderr", &long[16_384..32_768]),
            docker("stderr", &format!("{}\n", &long[32_768..])),
            docker("stderr", LINE),
        ];
        assert_eq!(lines(&file), [LINE, "another output", &long, LINE]);
    }

    #[test]
    fn lines_of_the_journal_are_text_or_bytes() {
        let entry = |message: &str| {
            format!(
                r#"{{"__CURSOR":"s=1","__REALTIME_TIMESTAMP":"1795309200000000","PRIORITY":"6","_SYSTEMD_UNIT":"tidegate.service","MESSAGE":{message}}}"#
            )
        };
        let bytes = serde_json::to_string(LINE.as_bytes()).expect("numbers");
        let file = [
            entry(&quoted(LINE)),
            entry(&bytes),
            entry(&quoted("Started tidegate.service.")),
            entry("null"),
        ];
        let left_out = format!("unreadable: {LEFT_OUT}");
        assert_eq!(
            lines(&file),
            [LINE, LINE, "Started tidegate.service.", &left_out]
        );
    }

    #[test]
    fn lines_of_cri_are_unwrapped_and_put_together() {
        let long = format!("{{{}}}", "x".repeat(20_000));
        let line = |stream: &str, tags: &str, text: &str| {
            format!("2026-11-22T01:00:00.123456789+01:00 {stream} {tags} {text}")
        };
        let file = [
            line("stderr", "F", LINE),
            line("stderr", "P", &long[..16_384]),
            line("stdout", "F", "another output"),
            line("stderr", "F:more", &long[16_384..]),
            line("stderr", "P", "cut"),
        ];
        assert_eq!(lines(&file), [LINE, "another output", &long, "cut"]);
    }

    #[test]
    fn a_line_that_is_too_long_in_parts_is_not_kept() {
        let part = "x".repeat(16_384);
        let mut file = vec![format!("2026-11-22T01:00:00Z stderr P {part}"); 5];
        file.push("2026-11-22T01:00:00Z stderr F end".to_owned());
        file.push(format!("2026-11-22T01:00:00Z stderr F {LINE}"));
        assert_eq!(
            lines(&file),
            [format!("unreadable: {TOO_LONG}").as_str(), LINE]
        );
    }
}
