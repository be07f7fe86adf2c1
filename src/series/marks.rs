//! Events of the process, for a timeline.

use std::collections::VecDeque;

/// The most marks. The oldest leaves for a new one.
pub const MARKS_MAX: usize = 256;
/// The most bytes of a mark's text; the rest is cut off.
pub const TEXT_MAX: usize = 200;

/// The subject of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// The process started.
    Start,
    /// A config was taken.
    Reload,
    /// A config was refused.
    ReloadRefused,
    /// No call is sent from here on.
    Pause,
    /// Calls are sent again.
    Resume,
    /// A backend accepts no connection.
    BackendDown,
    /// The backend serves calls again.
    BackendUp,
    /// A limit was changed for a while.
    Limit,
}

impl MarkKind {
    /// The word used in the API.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Reload => "reload",
            Self::ReloadRefused => "reload_refused",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::BackendDown => "backend_down",
            Self::BackendUp => "backend_up",
            Self::Limit => "limit",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The number of the mark, from 1.
    pub number: u64,
    /// When.   Unix ms
    pub at_unix_ms: u64,
    /// The subject of the mark.
    pub kind: MarkKind,
    /// The event in words.
    pub text: Box<str>,
}

/// The latest marks.
#[derive(Debug, Default)]
pub struct Marks {
    marks: VecDeque<Mark>,
    number: u64,
}

impl Marks {
    /// Adds one.
    pub fn add(&mut self, at_unix_ms: u64, kind: MarkKind, text: &str) {
        if self.marks.len() == MARKS_MAX {
            self.marks.pop_front();
        }
        self.number += 1;
        self.marks.push_back(Mark {
            number: self.number,
            at_unix_ms,
            kind,
            text: cut(text).into(),
        });
    }

    /// The marks after this number, the oldest first; all of them after 0.
    pub fn after(&self, number: u64) -> impl Iterator<Item = &Mark> {
        self.marks.iter().filter(move |mark| mark.number > number)
    }

    /// The number of the latest; 0 without one.
    #[must_use]
    pub fn latest(&self) -> u64 {
        self.number
    }
}

/// As much of a text as a mark keeps, in whole characters.
fn cut(text: &str) -> &str {
    let ends = (0..=text.len().min(TEXT_MAX)).rev();
    let end = ends.into_iter().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_mark_leaves_for_a_new_one_and_a_long_text_is_cut() {
        let mut marks = Marks::default();
        for at in 0..MARKS_MAX as u64 + 3 {
            marks.add(at, MarkKind::Limit, &"é".repeat(500));
        }
        assert_eq!(marks.after(0).count(), MARKS_MAX);
        assert_eq!(marks.after(0).next().expect("one").at_unix_ms, 3);
        assert_eq!(marks.after(marks.latest() - 1).count(), 1);
        assert!(marks.after(0).all(|mark| mark.text.len() == TEXT_MAX));
    }
}
