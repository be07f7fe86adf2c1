//! The advice as options of the config.
//!
//! Some advice has no option of its own: the calls at once of one function. That becomes lines of
//! comments, to be pasted by hand ([`beside`]).

use std::time::Duration;

use tidegate_advice::advice::Advice;
use tidegate_advice::setting::{Reason, Setting, SettingAnswer};

use tidegate::options::kind::show_duration;
use tidegate::options::toml::string;

/// A value for an option.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    /// Changes of one part are made together or not at all.
    pub(super) part: String,
    pub(super) place: OptionPlace,
    pub(super) key: &'static str,
    pub(super) value: String,
}

/// Where an option is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OptionPlace {
    /// A section that the config has once.
    Section(&'static str),
    /// The `[[bucket]]` of this name, which today's config has.
    RateLimit(String),
    /// A new `[[bucket]]` of this name.
    NewRateLimit(String),
    /// The `[[caller]]` with this label.
    Caller(String),
}

pub(super) const OUTSTANDING: &str = "outstanding";
pub(super) const WINDOW: &str = "window";
pub(super) const PER_WINDOW: &str = "per_window";
pub(super) const MAX_WAIT: &str = "max_wait";
pub(super) const CAPACITY: &str = "capacity";
pub(super) const WORKERS: &str = "workers";
const NANOS: u64 = 1_000_000_000;
const NANOS_PER_MS: u64 = 1_000_000;

/// Lists the options that the advice changes. `today` holds the settings now in force.
pub(crate) fn changes(
    advice: &Advice,
    today: Option<&tidegate::admit::GateSettings>,
) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut set = |part: &str, section, key, value: String| {
        changes.push(Change {
            part: part.to_owned(),
            place: OptionPlace::Section(section),
            key,
            value,
        });
    };
    if let Some(outstanding) = advice.outstanding.setting() {
        let (part, value) = ("calls at once", outstanding.value);
        set(part, "limits", OUTSTANDING, value.to_string());
        if today.is_some_and(|today| today.workers < value) {
            set(part, "queue", WORKERS, value.to_string());
        }
    }
    if let Some(Windowed {
        window,
        per_window,
        is_needed: true,
    }) = windowed(advice, today)
    {
        let part = "calls per window";
        let seconds = Duration::from_secs((window.value / NANOS).max(1));
        set(part, "limits", WINDOW, string(&show_duration(seconds)));
        let functions = today.and_then(|today| today.window.as_ref());
        let functions = functions.map_or(&[][..], |window| &window.functions);
        let mut text = format!("total:{}", per_window.value);
        for (function, calls) in functions {
            text += &format!(", {function}:{}", (*calls).min(per_window.value));
        }
        set(part, "limits", PER_WINDOW, format!("\"{text}\""));
    }
    // Rounded down: a client that waits longer than this has left.
    let max_wait = advice.max_wait.setting().map(|it| match it.value / NANOS {
        0 => Duration::from_millis(it.value / NANOS_PER_MS),
        seconds => Duration::from_secs(seconds),
    });
    if let Some(max_wait) = max_wait.filter(|it| !it.is_zero()) {
        set(
            "max_wait",
            "limits",
            MAX_WAIT,
            string(&show_duration(max_wait)),
        );
    }
    if let Some(capacity) = advice.capacity.setting() {
        let value = capacity.value.to_string();
        set("queue capacity", "queue", CAPACITY, value);
    }
    changes
}

/// The advice for each of several sidecars: what reaches the backend is divided. Any of them may have all
/// calls of a caller, and all that wait.
pub(super) fn of_each(advice: &Advice, sidecars: u32) -> Advice {
    let mut each = advice.clone();
    for answer in [&mut each.outstanding, &mut each.per_window] {
        if let SettingAnswer::Set(set) = answer {
            set.value = (set.value / sidecars.max(1)).max(1);
        }
    }
    each
}

/// A limit per window.
struct Windowed<'a> {
    window: &'a Setting<u64>,
    per_window: &'a Setting<u32>,
    /// Today's config has such a limit, or the backend breaks without one. What it has taken is no
    /// reason to add one.
    is_needed: bool,
}

fn windowed<'a>(
    advice: &'a Advice,
    today: Option<&tidegate::admit::GateSettings>,
) -> Option<Windowed<'a>> {
    let (window, per_window) = (advice.window.setting()?, advice.per_window.setting()?);
    let has_none = today.is_some_and(|today| {
        let window = today.window.as_ref();
        window.is_none_or(|window| window.total.is_none())
    });
    Some(Windowed {
        window,
        per_window,
        is_needed: !has_none || matches!(per_window.why, Reason::Breaks(_)),
    })
}

/// Describes advice that no option can express, as comments.
pub(super) fn beside(advice: &Advice, today: Option<&tidegate::admit::GateSettings>) -> String {
    let mut text = String::new();
    if let Some(limit) = windowed(advice, today).filter(|limit| !limit.is_needed) {
        text += &format!(
            "# today's config has no limit per window, and nothing shows that it needs one; the backend has taken {} in {} s.\n",
            limit.per_window.value,
            limit.window.value / NANOS
        );
    }
    for function in &advice.functions {
        let Some(own) = &function.outstanding else {
            continue;
        };
        let (name, value) = (&function.name, own.value);
        text += &format!(
            "# {name}: at most {value} at once. Only a class has such a limit, and it has turns of its own (docs/how-to/classes.md):\n\
             # [[class]]\n# name = \"{}\"\n# functions = [\"{name}\"]\n# outstanding_max = {value}\n",
            plain(name)
        );
    }
    text
}

/// A text as a name in the config.
pub(super) fn plain(text: &str) -> String {
    let plain = |c: char| match c.is_ascii_alphanumeric() || "_-.".contains(c) {
        true => c.to_ascii_lowercase(),
        false => '-',
    };
    text.chars().take(48).map(plain).collect()
}

/// The sections of the changes alone, to be pasted.
pub(crate) fn pasted(changes: &[Change]) -> String {
    let mut text = String::new();
    let mut header = None;
    // Of one place, all together, in the order of the first.
    let mut order: Vec<&OptionPlace> = Vec::new();
    for change in changes {
        if !order.contains(&&change.place) {
            order.push(&change.place);
        }
    }
    for place in order {
        for change in changes.iter().filter(|change| change.place == *place) {
            let (key, value) = (change.key, &change.value);
            if header != Some(place) {
                text += &match place {
                    OptionPlace::Section(section) => format!("[{section}]\n"),
                    OptionPlace::NewRateLimit(name) => format!("[[bucket]]\nname = \"{name}\"\n"),
                    OptionPlace::RateLimit(name) => {
                        format!("# in the [[bucket]] with name = \"{name}\":\n")
                    }
                    OptionPlace::Caller(label) => {
                        format!("# in the [[caller]] with label = {}:\n", quoted(label))
                    }
                };
                header = Some(place);
            }
            let comment = match place {
                OptionPlace::Section(_) | OptionPlace::NewRateLimit(_) => "",
                OptionPlace::RateLimit(_) | OptionPlace::Caller(_) => "# ",
            };
            text += &format!("{comment}{key} = {value}\n");
        }
    }
    text
}

/// A text as a TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_advice::advice::{AdviceRequest, FunctionAdvice, advise};

    use super::*;

    /// The advice of an empty log, with this number for calls at once.
    fn advice(outstanding: u32) -> Advice {
        let mut advice = advise(&[], &AdviceRequest::default());
        advice.outstanding = SettingAnswer::Set(set(outstanding));
        advice
    }

    fn set<T: Clone>(value: T) -> Setting<T> {
        Setting {
            value: value.clone(),
            low: value.clone(),
            high: value,
            calls: 400,
            why: Reason::Knee,
        }
    }

    fn check_each(sidecars: u32, expected: &str) {
        let changes = changes(&of_each(&advice(10), sidecars), None);
        assert_eq!(changes[0].value, expected, "{sidecars} sidecars");
    }

    #[test]
    fn sidecars_share_what_the_backend_takes_and_each_has_one_call_at_least() {
        check_each(1, "10");
        check_each(3, "3");
        check_each(11, "1");
    }

    #[test]
    fn what_no_option_says_is_a_comment() {
        let mut advice = advice(10);
        assert_eq!(beside(&advice, None), "");
        advice.max_wait = SettingAnswer::Set(set(400_000_000));
        let changes = changes(&advice, None);
        assert_eq!(changes[1].value, "\"400ms\"");
        advice.functions.push(FunctionAdvice {
            name: Arc::from("guest_capture"),
            calls: 400,
            most: 7,
            alone: None,
            fit: None,
            outstanding: Some(set(4)),
        });
        let comments = beside(&advice, None);
        assert!(
            comments.lines().all(|line| line.starts_with("# ")),
            "{comments}"
        );
        for part in [
            "# guest_capture: at most 4 at once",
            "# functions = [\"guest_capture\"]\n# outstanding_max = 4\n",
        ] {
            assert!(comments.contains(part), "{comments}");
        }
    }

    #[test]
    fn the_options_of_one_place_are_pasted_together() {
        let change = |place, key, value: &str| Change {
            part: "any".into(),
            place,
            key,
            value: value.into(),
        };
        let changes = [
            change(OptionPlace::Section("limits"), OUTSTANDING, "4"),
            change(OptionPlace::Section("queue"), WORKERS, "4"),
            change(OptionPlace::Section("limits"), MAX_WAIT, "\"9s\""),
            change(OptionPlace::RateLimit("polls".into()), "burst", "3"),
            change(OptionPlace::NewRateLimit("users".into()), "burst", "2"),
            change(
                OptionPlace::Caller("Nova \"1\"".into()),
                "rate_limit",
                "\"users\"",
            ),
        ];
        assert_eq!(
            pasted(&changes),
            "[limits]\noutstanding = 4\nmax_wait = \"9s\"\n\
             [queue]\nworkers = 4\n\
             # in the [[bucket]] with name = \"polls\":\n# burst = 3\n\
             [[bucket]]\nname = \"users\"\nburst = 2\n\
             # in the [[caller]] with label = 'Nova \"1\"':\n# rate_limit = \"users\"\n"
        );
    }

    #[test]
    fn any_text_becomes_a_name() {
        assert_eq!(plain("Nova's poller/2"), "nova-s-poller-2");
        assert_eq!(plain(&"x".repeat(99)).len(), 48);
    }
}
