//! Questions to a person, or the flags that answer them.

use std::io::{BufRead, Read as _, Write};

/// How often a question is asked again after a wrong answer.
const TRIES: usize = 3;
/// Longest answer.   bytes
const ANSWER_MAX: u64 = 4096;

/// Who answers.
#[expect(missing_debug_implementations, reason = "it holds streams")]
pub enum Answers<'a> {
    /// A person at a terminal.
    Terminal {
        /// Lines that the person types.
        input: &'a mut dyn BufRead,
        /// Where questions appear.
        output: &'a mut dyn Write,
    },
    /// The flags alone: a question without a default is an error that names its flag.
    Flags,
}

/// A question.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    pub(super) text: &'a str,
    /// The flag that answers it.
    pub(super) flag: &'a str,
    pub(super) default: Option<&'a str>,
}

impl Answers<'_> {
    /// Asks until an answer can be read.
    ///
    /// # Errors
    ///
    /// If there is no answer.
    pub(super) fn ask<T>(
        &mut self,
        question: Question<'_>,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, String> {
        let Question {
            text,
            flag,
            default,
        } = question;
        let Self::Terminal { input, output } = self else {
            let default = default.ok_or_else(|| format!("{flag} is needed: {text}"))?;
            return read(default);
        };
        let unread = |cause: std::io::Error| format!("the terminal cannot be read: {cause}");
        for _ in 0..TRIES {
            let shown = default.map_or(String::new(), |it| format!(" [{it}]"));
            write!(output, "{text}{shown}: ").map_err(unread)?;
            output.flush().map_err(unread)?;
            let mut answer = String::new();
            let length = input
                .take(ANSWER_MAX)
                .read_line(&mut answer)
                .map_err(unread)?;
            let answer = match (answer.trim(), default) {
                // A terminal that was closed takes no default.
                _ if length == 0 => break,
                ("", Some(default)) => default,
                (answer, _) => answer,
            };
            match read(answer) {
                Ok(answer) => return Ok(answer),
                Err(why) => writeln!(output, "  {why}").map_err(unread)?,
            }
        }
        Err(format!("no answer; give {flag}"))
    }

    /// Whether a person answers.
    pub(super) const fn is_person(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }
}
