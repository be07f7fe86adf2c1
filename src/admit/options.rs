//! The options of the gate: `[queue]`, `[limits]`, `[classes]` and `[[class]]`.

use std::sync::Arc;
use std::time::Duration;

use super::{ClassDeadline, LedgerLost, Postpone, WhenFull, Window, WindowStamp};
use crate::call::LimitMode;
use crate::options::kind::{
    DAY, HOUR, MS, SECOND, all, choice, duration, flag, function_name, integer, name,
};
use crate::options::shown::quoted;
use crate::options::toml::string;
use crate::options::tree::{ConfigValue, Node};
use crate::options::{ConfigPlace, LocatedKey, Mistake, ValueKind, options, words};

/// Largest number of calls that a limit may allow.   calls
pub(crate) const CALLS_MAX: u32 = 1_000_000;
/// Most `[[class]]`es; there is a line in the queue for each with each set of limits.
pub(crate) const CLASSES_MAX: usize = 16;
/// Most functions that can have a limit of their own; each is a label in the metrics.
const FUNCTIONS_MAX: usize = 256;

words! {
    /// How a call is postponed, without the times.
    pub(crate) enum PostponeBy {
        Jitter = "jitter",
        InTurn = "in_turn",
    }

    /// Where a window may begin.
    pub(crate) enum WindowShape {
        Sliding = "sliding",
        Fixed = "fixed",
    }
}

words!(WindowStamp { "sent" => Sent, "replied" => Replied });

options! {
    /// The queue: how many calls wait, how many run, and how they are postponed.
    pub struct QueueSection {
        /// Calls that may wait (sdkserver: request_queue_size, 128 there). Raise it for larger storms: a
        /// waiting call costs only memory.
        capacity: u32 = integer(1..=1_000_000).of("calls").or(4096).first(14);

        /// Calls past the gate at once (sdkserver: max_worker_count, 64 there). At least
        /// outstanding in [limits].
        workers: u32 = integer(1..=65536).of("calls").or(64).first(15);

        /// Calls without a limit (such as POST /token) past the gate at once. They take no worker, so a
        /// full queue never delays them.
        max_unlimited: u32 = integer(1..=65536).of("calls").or(64).expert();

        /// What happens to the next call when the queue is full. "wait" stops accepting on socket and
        /// tcp listeners, as sdkserver does, and lets HTTP calls wait at the door in their turn, so that
        /// a token still passes. "refuse" answers at once, for clients that retry elsewhere.
        when_full: WhenFull = choice().or(WhenFull::Wait);

        /// How a call that meets a closed limit is postponed. "in_turn" keeps its place and runs it the
        /// moment the limit opens, which waits least and is fair. "jitter" sets it aside for a random
        /// time, as sdkserver's design does. With "jitter", calls that meet two busy limits can starve: of
        /// 40, 16 to 22 were served in time, and 40 with "in_turn" (docs/explanation/jitter-or-in-turn.md).
        /// The default is "jitter" with kind = "zvm" in [backend], else "in_turn".
        postpone: Option<PostponeBy> = choice().optional().example("\"in_turn\"").first(13);

        /// The shortest and the longest of these random times; only for "jitter". Shorter ones use the
        /// limits better, longer ones wake less often.
        postpone_jitter: (Duration, Duration) = jitter().or((SECOND, 3 * SECOND)).expert();

        /// Whether a call that has to wait is refused at once (predicted_late) if its start is predicted after
        /// its deadline, with a margin of a quarter of the wait. For clients that can go elsewhere. With
        /// "jitter" the order is random, so it goes only with "in_turn".
        early_refusal: bool = flag().or(false);
    }
}

options! {
    /// What the backend can take. Four options have a second name, for lines of zvmsdk.conf: per_window
    /// is smapi_rate_limit_per_window, window is smapi_rate_limit_window_size_seconds, outstanding is
    /// smapi_max_outstanding_requests, and max_wait is smapi_request_postpone_threshold_seconds. Under
    /// that name, a time is a number of seconds.
    pub struct LimitsSection {
        /// Calls per window: of all calls together ("total", required), and of single functions or
        /// routes. Set it to what the backend can take. A function can't have more than total, and their
        /// sum should stay below it. 0 switches that limit off; each number is 0 to 1000000 calls.
        per_window: CallsPerWindow = CallsPerWindow::kind().or(CallsPerWindow::default())
            .alias("smapi_rate_limit_per_window", CallsPerWindow::kind()).line("\"total:30\"").first(8);

        /// Length of a window. 0s switches the limits per window off.
        window: Duration = window_length().or(SECOND)
            .alias("smapi_rate_limit_window_size_seconds", seconds()).first(9);

        /// Calls at the backend at once. Lower it for a backend that is smaller than usual; the real
        /// sdkserver works on 64 at most. 0 switches the limit off.
        outstanding: u32 = integer(0..=CALLS_MAX).of("calls").or(10)
            .alias("smapi_max_outstanding_requests", integer(0..=CALLS_MAX).of("calls")).first(10);

        /// How long a call may wait, from its arrival, before it is refused. 0s refuses it at the first
        /// closed limit. Set it below the time after which clients give up: behind Apache, which gives up
        /// after 60 s, to 50s.
        max_wait: Duration = duration(Duration::ZERO..=DAY).or(60 * SECOND)
            .alias("smapi_request_postpone_threshold_seconds", seconds()).first(11);

        /// "sliding" holds a limit in every span of a window's length, wherever it begins. "fixed"
        /// windows follow the clock, as in sdkserver, and admit up to twice the limit around the edge
        /// between two.
        window_shape: WindowShape = choice().or(WindowShape::Sliding);

        /// When a call is counted. "sent", when its bytes left, holds the limit exactly on what leaves
        /// here. "replied", at the first byte of its reply, holds it at the backend too, and admits
        /// fewer calls.
        window_stamp: WindowStamp = choice().or(WindowStamp::Sent);

        /// Added to the window before a slot comes back, for the difference between two clocks or two
        /// packets on the way. Raise it for a backend far away.
        window_guard: Duration = duration(Duration::ZERO..=10 * SECOND).or(5 * MS).expert();

        /// Whether windows begin used up if nothing is known of the process before: at the first start, after a
        /// restart of the machine, and if the ledger was lost or damaged. With "assume_full" they do, so the first
        /// calls wait for at most one window. "assume_empty" can admit up to twice the limit. The default is
        /// "assume_full" with windows of up to 10s, if a call may wait as long.
        ledger_lost: Option<LedgerLost> = choice().optional().example("\"assume_empty\"");

        /// Whether limits hold calls. "observe" holds and refuses no call by a limit, and reports what
        /// the limits would have done: docs/how-to/observe.md. It applies to the limits here, of classes, and
        /// to every [[bucket]], [[pace]] and [[quota]], except where one of them gives its own mode.
        mode: LimitMode = choice().or(LimitMode::Enforce).first(12);

        /// The same for the limits per window. The default is mode.
        window_mode: Option<LimitMode> = choice().optional().example("\"observe\"");

        /// The same for outstanding. With "observe", workers hold no call either, and
        /// nothing protects the backend from too many calls at once. The default is mode.
        outstanding_mode: Option<LimitMode> = choice().optional().example("\"observe\"");
    }
}

options! {
    /// How urgent calls are: writes are user work and come first, by weight; see docs/how-to/classes.md.
    pub struct PromoteSection {
        /// How long after a user's call on a guest the reads of that guest stay in the class "user". They
        /// are in it while the call runs, too. Raise it where related calls are slow; 0s switches it off.
        promote_for: Duration = duration(Duration::ZERO..=HOUR).or(10 * SECOND);
    }
}

options! {
    /// A class of your own, or more about "user" and "polling", which always exist; one section for
    /// each.
    pub struct ClassSection {
        /// Its name in metrics and logs. Required.
        name: Option<Arc<str>> = name("long").required(
            "the class has no name",
            "add a name, such as name = \"long\"; \"user\" and \"polling\" change the built-in ones",
        ).example("\"long\"");

        /// Its share of turns against the other classes while both wait. The default is 4 for "user" and
        /// 1 for any other class.
        weight: Option<u32> = integer(1..=1000).of("turns").optional().example("2");

        /// How long its calls may wait, from their arrival, instead of max_wait in [limits]. "none"
        /// serves every call in the end.
        max_wait: Option<ClassDeadline> = max_wait().optional().example("\"none\"");

        /// How many of its calls may be at the backend at once, of outstanding in [limits]. So ten deploys
        /// do not stop everything else.
        outstanding_max: Option<u32> = integer(1..=CALLS_MAX).of("calls").optional().example("4");

        /// Whether these calls come on top of outstanding in [limits], for calls that never reach what it
        /// protects. The backend then sees the sum, which `tidegate check` prints.
        beside_total: bool = flag().or(false);

        /// How many of its calls may leave per window, of the total.
        per_window: Option<u32> = integer(1..=CALLS_MAX).of("calls").optional().example("10");

        /// How many of outstanding in [limits] are reserved for this class, whether it uses them
        /// or not; for one class only. A user's call then finds a free slot in the middle of a storm.
        reserve_outstanding: u32 = integer(0..=CALLS_MAX).of("calls").or(0).example("1");

        /// The same for the total per window.
        reserve_per_window: u32 = integer(0..=CALLS_MAX).of("calls").or(0).example("2");

        /// Whether its limits and reserves hold calls; see mode in [limits]. The default is
        /// outstanding_mode there for calls at once, and window_mode for calls per window.
        mode: Option<LimitMode> = choice().optional().example("\"observe\"");
    }
}

impl QueueSection {
    /// How a call that meets a closed limit is postponed.
    pub(crate) fn how_postponed(&self) -> Postpone {
        let (min, max) = self.postpone_jitter.value;
        let postpone = self.postpone.value;
        match postpone.expect("the kind of backend has filled in the default") {
            PostponeBy::Jitter => Postpone::Jitter { min, max },
            PostponeBy::InTurn => Postpone::InTurn,
        }
    }
}

impl LimitsSection {
    /// The window limits, of a config without an error.
    pub(crate) fn windows(&self) -> Option<Window> {
        let length = Some(self.window.value).filter(|it| !it.is_zero())?;
        let CallsPerWindow { total, functions } = &self.per_window.value;
        let functions = functions.iter();
        Some(Window {
            length,
            total: unless_off(total.expect("windows without a total are an error")),
            functions: functions
                .filter_map(|it| Some((Arc::clone(&it.name), unless_off(it.calls)?)))
                .collect(),
            fixed: self.window_shape.value == WindowShape::Fixed,
            stamp: self.window_stamp.value,
            guard: self.window_guard.value,
            mode: self.windows_mode(),
        })
    }

    /// Whether the limits per window hold calls.
    pub(crate) fn windows_mode(&self) -> LimitMode {
        self.window_mode.value.unwrap_or(self.mode.value)
    }

    /// Whether the limit of calls at once holds calls.
    pub(crate) fn at_once_mode(&self) -> LimitMode {
        self.outstanding_mode.value.unwrap_or(self.mode.value)
    }
}

/// 0 switches a limit off.
pub(crate) fn unless_off(value: u32) -> Option<u32> {
    (value > 0).then_some(value)
}

/// A whole number of seconds, as sdkserver writes a time.
fn seconds() -> ValueKind<Duration> {
    integer(0..=86400_u32).of("seconds").map(
        |it| Duration::from_secs(it.into()),
        |it| it.as_secs() as u32,
    )
}

/// The length of a window; its shape had this name once.
fn window_length() -> ValueKind<Duration> {
    let length = duration(Duration::ZERO..=DAY);
    let read = length.read;
    ValueKind {
        read: Box::new(move |node| match node.text() {
            Some(shape @ ("sliding" | "fixed")) => {
                let cause = format!("{} is not the length of a window", quoted(shape));
                let cure = format!("write window_shape = {}", quoted(shape));
                Err(Mistake::new(cause, cure).into())
            }
            _ => read(node),
        }),
        ..length
    }
}

/// Two durations, from and to.
fn jitter() -> ValueKind<(Duration, Duration)> {
    const EXAMPLE: &str = "give two durations, such as [\"1s\", \"3s\"]";
    let one = duration(MS..=HOUR);
    let (read, show) = (one.read, one.show);
    let read = move |node: &Node| {
        let ConfigValue::List(list) = &node.value else {
            return Err(
                Mistake::new(format!("{} is not an array", node.in_words()), EXAMPLE).into(),
            );
        };
        let [from, to] = list.as_slice() else {
            return Err(
                Mistake::new(format!("there are {} durations", list.len()), EXAMPLE).into(),
            );
        };
        let (from, to) = (read(from)?, read(to)?);
        if from > to {
            let cure = "swap them: the shortest time comes first";
            return Err(Mistake::new("the first is longer than the second", cure).into());
        }
        Ok((from, to))
    };
    let show = move |(from, to): &(Duration, Duration)| {
        let times: Vec<_> = [from, to].into_iter().filter_map(&show).collect();
        format!("[{}]", times.join(", "))
    };
    ValueKind::of_parts("two durations, 1ms to 1h", read, show)
}

fn max_wait() -> ValueKind<ClassDeadline> {
    let length = duration(Duration::ZERO..=DAY);
    let (read, show) = (length.read, length.show);
    ValueKind {
        allowed: format!("\"none\", or a {}", length.allowed),
        read: Box::new(move |node| match node.text() {
            Some("none") => Ok(ClassDeadline::Never),
            _ => read(node).map(ClassDeadline::After),
        }),
        show: Box::new(move |deadline| match deadline {
            ClassDeadline::Ordinary => None,
            ClassDeadline::After(length) => show(length),
            ClassDeadline::Never => Some(string("none")),
        }),
    }
}

/// Calls per window as they were given; 0 switches a limit off.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallsPerWindow {
    pub(crate) total: Option<u32>,
    /// By function, in the order of the config.
    pub(crate) functions: Vec<FunctionLimit>,
}

/// Calls per window of one function.
#[derive(Clone, Debug)]
pub(crate) struct FunctionLimit {
    pub(crate) name: Arc<str>,
    pub(crate) calls: u32,
    /// The key and the place of this part of the value.
    pub(crate) part: LocatedKey,
}

/// The name that stands for all functions together.
const TOTAL: &str = "total";

impl CallsPerWindow {
    /// `"total:30, guest_list:10"` as in sdkserver, or a table.
    fn kind() -> ValueKind<Self> {
        let read = |node: &Node| {
            let entries: Vec<_> = match &node.value {
                ConfigValue::Text(text) => entries(text, &node.place).collect(),
                ConfigValue::Table(table) => {
                    let entries = table.iter();
                    entries
                        .map(|(name, it)| Ok((name.as_str(), it.clone(), name.as_str())))
                        .collect()
                }
                _ => {
                    let cause = format!("{} is neither a string nor a table", node.in_words());
                    let cure = "give a string such as \"total:30, guest_list:10\", or { total = 30, \
                                guest_list = 10 }";
                    return Err(Mistake::new(cause, cure).into());
                }
            };
            let mut limits = Self::default();
            all(entries.into_iter().map(|entry| {
                let (name, number, key) = entry?;
                let taken = limits.take(name, &number, key);
                taken.map_err(|mistakes| {
                    let in_part = |it: Mistake| it.in_part(key, &number.place);
                    mistakes.into_iter().map(in_part).collect()
                })
            }))?;
            if limits.functions.len() > FUNCTIONS_MAX {
                let cause = format!("{} functions have a limit", limits.functions.len());
                return Err(Mistake::new(cause, format!("give at most {FUNCTIONS_MAX}")).into());
            }
            Ok(limits)
        };
        ValueKind {
            allowed: "\"total:N, function:N, …\" or { total = N, function = N, … }".to_owned(),
            read: Box::new(read),
            show: Box::new(|limits: &Self| {
                let entry = |it: &FunctionLimit| format!(", {}:{}", it.name, it.calls);
                let functions: String = limits.functions.iter().map(entry).collect();
                Some(string(&format!("{TOTAL}:{}{functions}", limits.total?)))
            }),
        }
    }

    /// Takes a limit.
    fn take(&mut self, name: &str, number: &Node, key: &str) -> Result<(), Vec<Mistake>> {
        let calls = (integer(0..=CALLS_MAX).read)(number).map_err(|mistakes| {
            let named = |Mistake { message, cure, .. }| {
                let message = format!("{}: {message}", quoted(name));
                Mistake::new(message, format!("{cure}; 0 switches the limit off"))
            };
            mistakes.into_iter().map(named).collect::<Vec<_>>()
        })?;
        function_name(name)?;
        let is_repeated = match name {
            TOTAL => self.total.is_some(),
            _ => self.functions.iter().any(|other| *other.name == *name),
        };
        if is_repeated {
            let cause = format!("{} is given twice", quoted(name));
            return Err(Mistake::new(cause, "leave one of the two out").into());
        }
        if name == TOTAL {
            self.total = Some(calls);
        } else {
            self.functions.push(FunctionLimit {
                name: name.into(),
                calls,
                part: LocatedKey::new(key, &number.place),
            });
        }
        Ok(())
    }
}

/// The entries of `total:30, guest_list:10`, with spaces anywhere around names and numbers, as
/// the original takes them.
fn entries<'a>(
    text: &'a str,
    place: &'a ConfigPlace,
) -> impl Iterator<Item = Result<(&'a str, Node, &'a str), Mistake>> {
    const FORM: &str = "write it as \"total:30, guest_list:10\"";
    let mut offset = 0;
    text.split(',').map(move |entry| {
        let place = part_of(place, text, offset, entry);
        offset += entry.len() + 1;
        let wrong = |cause: String, cure: &str| Err(Mistake::new(cause, cure).in_part("", &place));
        let trimmed = entry.trim();
        if trimmed.is_empty() {
            let (cause, cure) = if text.trim().is_empty() {
                ("the value is empty", FORM)
            } else if offset > text.len() {
                ("nothing follows the last comma", "leave that comma out")
            } else {
                ("there is nothing between two commas", "leave one comma out")
            };
            return wrong(cause.to_owned(), cure);
        }
        // A name may have colons.
        let Some((name, number)) = entry.rsplit_once(':') else {
            let is_number = trimmed.bytes().all(|byte| byte.is_ascii_digit());
            let lacks = if is_number { "name" } else { "number" };
            let cause = format!("{} has no {lacks}", quoted(trimmed));
            let begins_as_name = trimmed.starts_with(|c: char| c.is_ascii_alphabetic());
            let is_off = [
                "off",
                "no",
                "none",
                "null",
                "unlimited",
                "true",
                "false",
                "yes",
                "on",
            ];
            let is_off = is_off.contains(&&*trimmed.to_ascii_lowercase());
            let cure = match trimmed.parse::<u32>() {
                Ok(1..) => format!("write {}", quoted(&format!("{TOTAL}:{trimmed}"))),
                // No function has such a name.
                _ if is_off || !begins_as_name || function_name(trimmed).is_err() => {
                    format!("{FORM}, or switch windows off with window = \"0s\"")
                }
                _ => format!("write {}", quoted(&format!("{trimmed}:30"))),
            };
            return wrong(cause, &cure);
        };
        let (name, number) = (name.trim(), number.trim());
        let Ok(calls) = number.parse() else {
            let cause = match number {
                "" => format!("{} has no number", quoted(name)),
                _ => format!("{} of {} is not an integer", quoted(number), quoted(name)),
            };
            return wrong(cause, &format!("give 0 to {CALLS_MAX}; {FORM}"));
        };
        let node = Node {
            name: place.clone(),
            place,
            value: ConfigValue::Integer(calls),
            letters: None,
        };
        Ok((name, node, ""))
    })
}

/// The place of one entry inside a string in the file. A string with escapes is longer
/// there than it is, so it stays whole.
fn part_of(place: &ConfigPlace, text: &str, offset: usize, entry: &str) -> ConfigPlace {
    let ConfigPlace::File {
        line,
        column,
        start,
        end,
    } = *place
    else {
        return place.clone();
    };
    if end - start != text.len() + 2 || text.contains('\n') {
        return place.clone();
    }
    let blank = entry.len() - entry.trim_start().len();
    let skipped = 1 + text[..offset + blank].chars().count();
    let from = start + 1 + offset + blank;
    ConfigPlace::File {
        line,
        column: column + skipped,
        start: from,
        end: from + entry.trim().len().max(1),
    }
}
