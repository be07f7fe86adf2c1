//! Abilities of the terminal: letters beyond ASCII, and colours.

use ratatui::style::{Color, Modifier, Style};
use serde_json::Value;
use tidegate_runtime::command::{allows_colours, allows_unicode, cleaned};

/// Characters and colours that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScreenLook {
    /// Only ASCII.
    pub ascii: bool,
    /// With colours.
    pub colours: bool,
}

impl ScreenLook {
    /// The look that this terminal and its locale allow.
    pub(crate) fn of_the_terminal(ascii: bool) -> Self {
        Self {
            ascii: ascii || !allows_unicode(),
            colours: allows_colours(),
        }
    }

    /// Text from outside: without what could speak to the terminal or change the order of letters.
    pub(crate) fn clean(self, text: &str) -> String {
        cleaned(text, self.ascii)
    }

    /// A text or number of an answer; `-` for none.
    pub(super) fn word(self, value: &Value) -> String {
        match value {
            Value::String(text) if !text.is_empty() => self.clean(text),
            Value::Number(number) => number.to_string(),
            Value::Bool(true) => "yes".to_owned(),
            Value::Bool(false) => "no".to_owned(),
            _ => "-".to_owned(),
        }
    }

    /// Who did something and why, to be appended; nothing where neither is known.
    pub(super) fn reason(self, act: &Value) -> String {
        let text = |name: &str| act[name].as_str().filter(|text| !text.is_empty());
        match (text("why"), text("author")) {
            (Some(why), Some(author)) => {
                format!(": {} (by {})", self.clean(why), self.clean(author))
            }
            (Some(why), None) => format!(": {}", self.clean(why)),
            (None, Some(author)) => format!(", by {}", self.clean(author)),
            (None, None) => String::new(),
        }
    }

    /// A bar that is filled to this share.
    pub(super) fn bar(self, share: f64, width: usize) -> String {
        let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
        let (on, off) = if self.ascii {
            ("#", ".")
        } else {
            ("█", "░")
        };
        on.repeat(full) + &off.repeat(width - full)
    }

    pub(super) fn separator(self) -> &'static str {
        if self.ascii { " | " } else { " │ " }
    }

    fn coloured(self, colour: Color, without: Modifier) -> Style {
        match self.colours {
            true => Style::new().fg(colour),
            false => Style::new().add_modifier(without),
        }
    }

    pub(super) fn head(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn quiet(self) -> Style {
        self.coloured(Color::DarkGray, Modifier::empty())
    }

    pub(super) fn good(self) -> Style {
        self.coloured(Color::Green, Modifier::empty())
    }

    pub(super) fn bad(self) -> Style {
        self.coloured(Color::Red, Modifier::BOLD)
            .add_modifier(Modifier::BOLD)
    }

    pub(super) fn caution(self) -> Style {
        self.coloured(Color::Yellow, Modifier::BOLD)
    }

    pub(super) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}

/// A time of day.
pub(super) fn time_of_day(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000 % 86_400;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02} UTC", seconds % 60)
}

/// A length of time in two units at most.
pub(super) fn length(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole / 60 % 60),
        _ => format!("{} d {} h", whole / 86_400, whole / 3600 % 24),
    }
}

/// A short wait, from milliseconds.
pub(super) fn wait(milliseconds: f64) -> String {
    match milliseconds {
        ..1000.0 => format!("{milliseconds:.0} ms"),
        ..100_000.0 => format!("{:.1} s", milliseconds / 1000.0),
        _ => format!("{:.0} s", milliseconds / 1000.0),
    }
}

/// A figure without more digits than help.
pub(super) fn figure(number: f64) -> String {
    match number.fract() == 0.0 || number.abs() >= 100.0 {
        true => format!("{number:.0}"),
        false => format!("{number:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_speak_to_the_terminal_or_turn_the_order_of_letters() {
        let unicode = ScreenLook {
            ascii: false,
            colours: false,
        };
        assert_eq!(unicode.clean("a\u{1b}[2J\u{202e}ü\u{9b}"), "a?[2J?ü?");
        let ascii = ScreenLook {
            ascii: true,
            ..unicode
        };
        assert_eq!(ascii.clean("ü<img>"), "?<img>");
    }

    #[test]
    fn times_have_the_digits_that_help() {
        assert_eq!(wait(240.4), "240 ms");
        assert_eq!(wait(1540.0), "1.5 s");
        assert_eq!(wait(250_000.0), "250 s");
        assert_eq!(length(59.9), "59 s");
        assert_eq!(length(3725.0), "1 h 2 min");
        assert_eq!(time_of_day(1_764_000_000_000), "16:00:00 UTC");
        assert_eq!(figure(1.25), "1.2");
        assert_eq!(figure(30.0), "30");
    }
}
