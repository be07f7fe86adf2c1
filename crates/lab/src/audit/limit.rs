//! The limits that are audited: those of a config, or those given by hand.

use std::str::FromStr;
use std::time::Duration;

use tidegate_runtime::command::parse_duration;

use tidegate::admit::{self, ClassPool};
use tidegate::config::Config;

/// Longest window: 31 days.
const WINDOW_MAX: Duration = Duration::from_secs(31 * 24 * 60 * 60);
/// Largest number that a limit may allow. Its millionths fit into a `u64`.
const MAX: f64 = 1e12;
/// A token, in millionths.
const TOKEN: u64 = 1_000_000;

/// A limit to audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedLimit {
    /// The limit's name in the report.
    pub name: Box<str>,
    /// The calls that count.
    pub meets: Meets,
    /// The most that it allows: calls, or millionths of a token where it counts tokens.
    pub max: u64,
    /// The time in which it counts.
    pub span: CountingSpan,
    /// How many sidecars the limit counts together.
    pub scope: CountingScope,
}

/// Selects the calls that count in a limit, among those that meet limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meets {
    /// All calls.
    Every,
    /// The calls of a function.
    Function(Box<str>),
    /// The calls of a class.
    Class(Box<str>),
    /// The calls that went to this server, of a backend that has several.
    Server(Box<str>),
    /// The calls of all classes except these.
    EveryExcept(Vec<Box<str>>),
    /// The calls that a rate limit was charged for, each with its tokens.
    RateLimit(Box<str>),
}

/// The time in which a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountingSpan {
    /// Any span of this length, wherever it begins.
    Any(Duration),
    /// Each span of this length, aligned to the epoch.
    Aligned(Duration),
    /// At once: from the last byte of the call until the backend finished it.
    AtOnce,
}

/// How many sidecars a limit counts together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountingScope {
    /// Each sidecar separately: the limits of a config apply to one process.
    Sidecar,
    /// All sidecars together.
    Together,
}

impl AuditedLimit {
    /// The windows and outstanding limits of a config.
    pub(super) fn of(config: &Config) -> Vec<Self> {
        let gate = &config.admit;
        let mut limits = Vec::new();
        let mut limit = |name: String, meets, max: u32, span| {
            limits.push(Self {
                name: name.into(),
                meets,
                max: max.into(),
                span,
                scope: CountingScope::Sidecar,
            });
        };
        if let Some(window) = &gate.window {
            let span = span(window);
            if let Some(total) = window.total {
                limit("total".to_owned(), Meets::Every, total, span);
            }
            for (function, max) in &window.functions {
                let meets = Meets::Function((&**function).into());
                limit(format!("function:{function}"), meets, *max, span);
            }
        }
        let is_beside =
            |class: &&admit::ClassRule| matches!(class.pool, Some(ClassPool::Beside(_)));
        let beside: Vec<Box<str>> = gate
            .classes
            .iter()
            .filter(is_beside)
            .map(|class| (&*class.name).into())
            .collect();
        if let Some(max) = gate.outstanding_max {
            let meets = match beside.is_empty() {
                true => Meets::Every,
                false => Meets::EveryExcept(beside),
            };
            limit("outstanding".to_owned(), meets, max, CountingSpan::AtOnce);
        }
        for class in &gate.classes {
            let meets = || Meets::Class((&*class.name).into());
            if let Some(pool) = class.pool {
                let name = format!("class:{}:outstanding", class.name);
                limit(name, meets(), pool.max(), CountingSpan::AtOnce);
            }
            if let (Some(max), Some(window)) = (class.per_window, &gate.window) {
                limit(
                    format!("class:{}:window", class.name),
                    meets(),
                    max,
                    span(window),
                );
            }
        }
        for server in &gate.servers.list {
            let meets = || Meets::Server((&*server.name).into());
            if let Some(max) = server.outstanding {
                limit(server.limit(), meets(), max, CountingSpan::AtOnce);
            }
            if let (Some(max), Some(window)) = (server.per_window, &gate.window) {
                limit(server.window(), meets(), max, span(window));
            }
        }
        limits
    }

    /// Whether calls count with their tokens.
    pub(super) fn counts_tokens(&self) -> bool {
        matches!(self.meets, Meets::RateLimit(_))
    }

    /// Describes how much the limit allows.
    pub(super) fn allowed(&self) -> String {
        let max = self.amount(self.max);
        match self.span {
            CountingSpan::Any(length) => format!("{max} in any {} s", length.as_secs_f64()),
            CountingSpan::Aligned(length) => format!("{max} in each {} s", length.as_secs_f64()),
            CountingSpan::AtOnce => format!("{max} at once"),
        }
    }

    /// An amount with its unit.
    pub(super) fn amount(&self, amount: u64) -> String {
        if self.counts_tokens() {
            format!("{} tokens", tokens(amount))
        } else {
            amount.to_string()
        }
    }
}

fn span(window: &admit::Window) -> CountingSpan {
    match window.fixed {
        true => CountingSpan::Aligned(window.length),
        false => CountingSpan::Any(window.length),
    }
}

/// Tokens in decimal, from millionths.
pub(super) fn tokens(micros: u64) -> String {
    let (whole, rest) = (micros / TOKEN, micros % TOKEN);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:06}")
        .trim_end_matches('0')
        .to_owned()
}

/// Millionths of a number of tokens; `None` if it is out of range.
pub(super) fn micros(tokens: f64) -> Option<u64> {
    let fits = (0.0..=MAX).contains(&tokens);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it lies between 0 and 10^18"
    )]
    fits.then(|| (tokens * 1e6).round() as u64)
}

/// `total=30/1s`, `guest_list=10/1s:fixed`, `outstanding=10`, `rate_limit:nova=2.5/1s`
impl FromStr for AuditedLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write it as total=30/1s, guest_list=10/1s or outstanding=10";
        let Some((name, rest)) = text.rsplit_once('=') else {
            return Err(format!("`{text}` has no number; {FORM}"));
        };
        let (max, span) = match rest.split_once('/') {
            None => (rest, CountingSpan::AtOnce),
            Some((max, window)) => {
                let (length, fixed) = match window.strip_suffix(":fixed") {
                    Some(length) => (length, true),
                    None => (window, false),
                };
                let length = parse_duration(length)?;
                if length < Duration::from_millis(1) || length > WINDOW_MAX {
                    return Err(format!("`{window}` is not a window of 1ms to 31 days"));
                }
                match fixed {
                    true => (max, CountingSpan::Aligned(length)),
                    false => (max, CountingSpan::Any(length)),
                }
            }
        };
        let meets = match name.split_once(':') {
            Some(("function", name)) => Meets::Function(name.into()),
            Some(("class", name)) => Meets::Class(name.into()),
            Some(("server", name)) => Meets::Server(name.into()),
            Some(("rate_limit", name)) => Meets::RateLimit(name.into()),
            Some(_) => {
                return Err(format!(
                    "`{name}` is none of function:…, class:…, server:… and rate_limit:…"
                ));
            }
            None if name.is_empty() => return Err(format!("`{text}` has no name; {FORM}")),
            None if name == "total" || name == "outstanding" => Meets::Every,
            None => Meets::Function(name.into()),
        };
        let wrong = || format!("`{max}` is not a number above 0; {FORM}");
        let max = match &meets {
            Meets::RateLimit(_) if span == CountingSpan::AtOnce => {
                return Err(format!("`{text}` needs a window, because it counts tokens"));
            }
            Meets::RateLimit(_) => max.parse().ok().and_then(micros),
            _ => max.parse::<u32>().ok().map(u64::from),
        };
        let max = max.filter(|max| *max > 0).ok_or_else(wrong)?;
        if name == "outstanding" && span != CountingSpan::AtOnce {
            return Err(format!(
                "`{text}` must have no window; write outstanding={rest}",
                rest = rest.split('/').next().unwrap_or(rest)
            ));
        }
        Ok(Self {
            name: name.into(),
            meets,
            max,
            span,
            scope: CountingScope::Together,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(name: &str, meets: Meets, max: u64, span: CountingSpan) -> AuditedLimit {
        AuditedLimit {
            name: name.into(),
            meets,
            max,
            span,
            scope: CountingScope::Together,
        }
    }

    #[test]
    fn a_limit_is_parsed() {
        let second = Duration::from_secs(1);
        let check = |text: &str, expected| assert_eq!(text.parse::<AuditedLimit>(), Ok(expected));
        check(
            "total=30/1s",
            limit("total", Meets::Every, 30, CountingSpan::Any(second)),
        );
        check(
            "guest_list=10/1s:fixed",
            limit(
                "guest_list",
                Meets::Function("guest_list".into()),
                10,
                CountingSpan::Aligned(second),
            ),
        );
        check(
            "outstanding=10",
            limit("outstanding", Meets::Every, 10, CountingSpan::AtOnce),
        );
        check(
            "class:polling=3",
            limit(
                "class:polling",
                Meets::Class("polling".into()),
                3,
                CountingSpan::AtOnce,
            ),
        );
        check(
            "server:a=4",
            limit(
                "server:a",
                Meets::Server("a".into()),
                4,
                CountingSpan::AtOnce,
            ),
        );
        check(
            "rate_limit:nova=2.5/500ms",
            limit(
                "rate_limit:nova",
                Meets::RateLimit("nova".into()),
                2_500_000,
                CountingSpan::Any(second / 2),
            ),
        );
    }

    #[test]
    fn a_bad_limit_is_reported_with_its_text() {
        for wrong in [
            "",
            "total",
            "total=",
            "=3/1s",
            "total=0/1s",
            "total=-1/1s",
            "total=1.5/1s",
            "total=3/1",
            "total=3/0s",
            "total=3/1s:rolling",
            "total=4294967296/1s",
            "colour:red=3/1s",
            "rate_limit:nova=3",
            "rate_limit:nova=nan/1s",
            "outstanding=3/1s",
        ] {
            let error = wrong.parse::<AuditedLimit>().expect_err(wrong);
            assert!(error.contains('`'), "{wrong:?}: {error}");
        }
    }

    #[test]
    fn tokens_have_no_trailing_zeros() {
        for (micros, text) in [(0, "0"), (1, "0.000001"), (2_500_000, "2.5")] {
            assert_eq!(tokens(micros), text);
        }
    }
}
