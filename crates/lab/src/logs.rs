//! Reads the lines of several logs, merged by time.
//!
//! The next line comes from the log that has been read least far in time. So lines that were
//! written at one time on many hosts are read at nearly one time, and few calls are held back.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use tidegate_record::{Content, LogLine, Unwrapper, WRAPPED_MAX};

/// Bytes of one read.
const CHUNK: usize = 64 << 10;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A log, and its name in the report.
pub struct Log {
    name: String,
    reader: Box<dyn BufRead>,
    line: u64,
    buffer: Vec<u8>,
    unwrapper: Unwrapper,
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Log({:?} at line {})", self.name, self.line)
    }
}

/// A log that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {name}")]
pub struct LogError {
    name: String,
    #[source]
    cause: io::Error,
}

/// A line of a log, and where it is.
pub(super) struct At<'a> {
    /// The name of the log in the report.
    pub(super) log: &'a str,
    /// The number of the line, from 1.
    pub(super) number: u64,
    /// The line without its end and its wrapping, or why it cannot be read.
    pub(super) line: Result<&'a [u8], &'static str>,
    /// Whether it was in the wrapping of a collector of logs, which may have lines of other programs, too.
    is_unwrapped: bool,
}

impl<'a> At<'a> {
    /// The content of the line.
    pub(super) fn read(&self) -> LogLine<'a> {
        match self.line {
            Ok(line) if self.is_unwrapped && line.first() != Some(&b'{') => LogLine::Other,
            Ok(line) => tidegate_record::read(line),
            Err(why) => LogLine::Broken(why),
        }
    }

    /// A line of a test.
    #[cfg(test)]
    pub(super) fn plain(line: &'a [u8]) -> Self {
        Self {
            log: "",
            number: 1,
            line: Ok(line),
            is_unwrapped: false,
        }
    }
}

impl Log {
    /// Opens a file; `-` is standard input.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is compressed.
    pub fn open(path: &Path) -> Result<Self, LogError> {
        if path == Path::new("-") {
            let stdin = BufReader::with_capacity(CHUNK, io::stdin());
            return Self::new("(stdin)".to_owned(), stdin);
        }
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::new(name, BufReader::with_capacity(CHUNK, file)),
            Err(cause) => Err(LogError { name, cause }),
        }
    }

    /// A log from a reader.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or is compressed.
    pub fn new(name: String, reader: impl BufRead + 'static) -> Result<Self, LogError> {
        let mut reader: Box<dyn BufRead> = Box::new(reader);
        let cause = match reader.fill_buf() {
            Ok(start) if start.starts_with(&GZIP) => {
                io::Error::other("it is compressed; run gzip -dc FILE | tidegate … -")
            }
            Ok(_) => {
                return Ok(Self {
                    name,
                    reader,
                    line: 0,
                    buffer: Vec::new(),
                    unwrapper: Unwrapper::default(),
                });
            }
            Err(cause) => cause,
        };
        Err(LogError { name, cause })
    }

    /// Reads one line; `None` at the end.
    fn next(&mut self) -> io::Result<Option<At<'_>>> {
        let content = loop {
            self.buffer.clear();
            let most = WRAPPED_MAX as u64 + 1;
            let read = (&mut self.reader)
                .take(most)
                .read_until(b'\n', &mut self.buffer)?;
            if read == 0 {
                match self.unwrapper.rest() {
                    Some(content) => break content,
                    None => return Ok(None),
                }
            }
            self.line += 1;
            if self.buffer.last() == Some(&b'\n') {
                self.buffer.pop();
            }
            if self.buffer.len() > WRAPPED_MAX {
                self.reader.skip_until(b'\n')?;
            }
            match self.unwrapper.take(&self.buffer) {
                Content::Part => {}
                content => break content,
            }
        };
        let (line, is_unwrapped) = match content {
            Content::Plain => (Ok(&*self.buffer), false),
            Content::Unwrapped => (Ok(self.unwrapper.whole()), true),
            Content::Unreadable(why) => (Err(why), false),
            Content::Part => unreachable!("a part is not a line"),
        };
        Ok(Some(At {
            log: &self.name,
            number: self.line,
            line,
            is_unwrapped,
        }))
    }
}

/// Reads all lines of all logs. `take` returns the time up to which the log has been read, in
/// microseconds since the epoch, if the line contains it.
///
/// # Errors
///
/// If a log cannot be read to its end.
pub(super) fn merge(
    logs: &mut [Log],
    mut take: impl FnMut(At<'_>) -> Option<u64>,
) -> Result<(), LogError> {
    let mut turns: BinaryHeap<_> = (0..logs.len()).map(|log| Reverse((0, log))).collect();
    while let Some(Reverse((mut come, log))) = turns.pop() {
        let next = turns.peek().map_or(u64::MAX, |Reverse((come, _))| *come);
        let open = &mut logs[log];
        while come <= next {
            let at = match open.next() {
                Ok(Some(at)) => at,
                Ok(None) => break,
                Err(cause) => {
                    let name = open.name.clone();
                    return Err(LogError { name, cause });
                }
            };
            come = come.max(take(at).unwrap_or(0));
        }
        if come > next {
            turns.push(Reverse((come, log)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use tidegate_record::LINE_MAX;

    use super::*;

    fn log(name: &str, text: impl Into<Vec<u8>>) -> Log {
        Log::new(name.to_owned(), Cursor::new(text.into())).expect("it is readable")
    }

    #[test]
    fn logs_are_merged_by_the_times_in_them() {
        let mut logs = [log("a", "1\n4\n7\n"), log("b", "2\nx\n3\n9"), log("c", "")];
        let mut read = Vec::new();
        merge(&mut logs, |at| {
            let line = str::from_utf8(at.line.ok()?).ok()?.to_owned();
            read.push(line.clone());
            line.parse().ok()
        })
        .expect("memory");
        // Each is read until it is further in time than the one that is least far.
        assert_eq!(read, ["1", "2", "4", "x", "3", "9", "7"]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped() {
        let mut text = vec![b'x'; 3 * WRAPPED_MAX];
        text.extend_from_slice(b"\nshort\n");
        text.extend(vec![b'y'; LINE_MAX]);
        let mut read = Vec::new();
        merge(&mut [log("a", text)], |at| {
            read.push((at.number, at.line.ok().map(<[u8]>::len)));
            None
        })
        .expect("memory");
        assert_eq!(read, [(1, None), (2, Some(5)), (3, Some(LINE_MAX))]);
    }

    #[test]
    fn the_error_for_a_compressed_log_contains_the_cure() {
        let given = Cursor::new(vec![0x1f, 0x8b, 8, 0]);
        let error = Log::new("access.log.2.gz".to_owned(), given).expect_err("it is compressed");
        let cause = std::error::Error::source(&error).expect("a cause");
        assert!(cause.to_string().contains("gzip -dc"), "{cause}");
    }
}
