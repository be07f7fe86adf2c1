//! Counts each call in the limits that it met, and decides for each limit whether it was kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::limit::{AuditedLimit, CountingScope, CountingSpan, Meets, tokens};
use super::line::{Draw, Sent};
use super::lives::Lives;
use super::quota::{Fullest, KeySums, QuotaSums};
use super::report::{AuditVerdict, LimitRow, Sidecar, moment, sidecar_name};
use super::sweep::{AmountBounds, CountedCall, Densest, Sweep, SweepResult};

/// Most kinds of calls whose limits are stored once.
const KINDS_MAX: usize = 65_536;

/// Properties that decide in which limits a call counts: its function, class, rate limit and server.
type CountingKey = (Box<str>, Box<str>, Option<Box<str>>, Option<Box<str>>);

/// Calls that could not be counted, besides those missing from each sidecar.
#[derive(Clone, Copy, Debug)]
pub(super) struct UncountedCalls {
    /// Lines of any sidecar that were lost or are broken.
    pub(super) anywhere: u64,
    /// Calls that came too late to be put in order.
    pub(super) late: u64,
    /// Whether calls without a line are assumed never to have left.
    pub(super) ignored: bool,
    /// Lines in doubt. If there are any, no count is complete.
    pub(super) in_doubt: u64,
}

impl UncountedCalls {
    /// How many calls may exist beyond those counted, if `missing` of them have no line.
    fn beside(self, missing: u64) -> u64 {
        let without_a_line = match self.ignored {
            true => 0,
            false => missing.saturating_add(self.anywhere),
        };
        match self.in_doubt {
            0 => without_a_line.saturating_add(self.late),
            _ => u64::MAX,
        }
    }
}

/// A call that left, held back so that calls can be put in order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PendingDeparture {
    mark: CountedCall,
    sidecar: u32,
    /// The first process of the same sidecar.
    first: u32,
    /// Millionths.
    tokens: u64,
    /// The limits in which it counts, by index.
    limits: Arc<[usize]>,
    quota: Box<[Draw]>,
}

impl PendingDeparture {
    /// When the backend finished it.   µs since the epoch
    pub(super) fn end(&self) -> u64 {
        self.mark.end
    }
}

/// All limits, and what they have counted.
#[derive(Debug)]
pub(super) struct Judge {
    limits: Vec<Judged>,
    /// The limits in which each kind of call counts.
    kinds: HashMap<CountingKey, Arc<[usize]>>,
    error: u64,
    quotas: QuotaSums,
}

#[derive(Debug)]
struct Judged {
    limit: AuditedLimit,
    /// By sidecar; `None` where the sidecar sent nothing that counts.
    each: Vec<Option<Sweep>>,
    /// Over all lives of a sidecar that was restarted, by the number of its first process.
    lives: HashMap<usize, Sweep>,
    /// Over all sidecars, if the limit has that scope.
    together: Option<Sweep>,
}

impl Judge {
    pub(super) fn new(limits: Vec<AuditedLimit>, clock_error: Duration) -> Self {
        let error = u64::try_from(clock_error.as_micros()).expect("it is an hour at most");
        let limits = limits.into_iter().map(|limit| Judged {
            each: Vec::new(),
            lives: HashMap::new(),
            together: match limit.scope {
                CountingScope::Sidecar => None,
                CountingScope::Together => Some(Sweep::new(limit.span, error)),
            },
            limit,
        });
        Self {
            limits: limits.collect(),
            kinds: HashMap::new(),
            error,
            quotas: QuotaSums::default(),
        }
    }

    /// The event of a call that left.
    pub(super) fn event(
        &mut self,
        sidecar: usize,
        first: usize,
        started: u64,
        id: u64,
        sent: Sent,
    ) -> PendingDeparture {
        let number = |it| u32::try_from(it).expect("sidecars are bounded");
        let at = started + sent.at;
        PendingDeparture {
            mark: CountedCall {
                at,
                end: at + sent.backend,
                amount: 0,
                id,
            },
            sidecar: number(sidecar),
            first: number(first),
            tokens: sent.tokens,
            limits: match sent.limited {
                true => self.limits_of(&sent),
                false => Arc::default(),
            },
            quota: sent.quota,
        }
    }

    fn limits_of(&mut self, sent: &Sent) -> Arc<[usize]> {
        let kind = (
            sent.function.clone(),
            sent.class.clone(),
            sent.rate_limit.clone(),
            sent.server.clone(),
        );
        if let Some(known) = self.kinds.get(&kind) {
            return Arc::clone(known);
        }
        let counts = |it: &usize| is_met(&self.limits[*it].limit.meets, sent);
        let limits: Arc<[usize]> = (0..self.limits.len()).filter(counts).collect();
        if self.kinds.len() < KINDS_MAX {
            self.kinds.insert(kind, Arc::clone(&limits));
        }
        limits
    }

    /// Counts one call. Calls come in the order in which they left.
    pub(super) fn judge(&mut self, event: &PendingDeparture) {
        for draw in &event.quota {
            self.quotas.draw(draw, event.mark.id);
        }
        for limit in event.limits.iter() {
            let judged = &mut self.limits[*limit];
            let amount = match judged.limit.counts_tokens() {
                true => event.tokens,
                false => 1,
            };
            if amount == 0 {
                continue;
            }
            let mark = CountedCall {
                amount,
                ..event.mark
            };
            if let Some(sweep) = &mut judged.together {
                sweep.push(mark);
            }
            let sidecar = event.sidecar as usize;
            if judged.each.len() <= sidecar {
                judged.each.resize_with(sidecar + 1, || None);
            }
            let span = judged.limit.span;
            let first = event.first as usize;
            if first != sidecar && judged.together.is_none() {
                // Nothing of a later life was counted so far.
                let before = || match judged.each.get(first) {
                    Some(Some(sweep)) => sweep.clone(),
                    _ => Sweep::new(span, 0),
                };
                judged.lives.entry(first).or_insert_with(before).push(mark);
            } else if let Some(lives) = judged.lives.get_mut(&sidecar) {
                lives.push(mark);
            }
            // Within one process, clock errors do not matter.
            judged.each[sidecar]
                .get_or_insert_with(|| Sweep::new(span, 0))
                .push(mark);
        }
    }

    /// The row of each limit, and the verdict on all of them.
    pub(super) fn verdict(
        &self,
        sidecars: &[Sidecar],
        lives: &Lives,
        unread: UncountedCalls,
    ) -> (Vec<LimitRow>, AuditVerdict) {
        let mut rows: Vec<LimitRow> = self
            .limits
            .iter()
            .map(|judged| judged.row(sidecars, lives, unread, self.error))
            .collect();
        rows.extend(self.quota_rows(sidecars, unread));
        let worst = rows.iter().map(|row| row.verdict).max();
        // Logs without a call prove nothing.
        let is_empty = sidecars.is_empty();
        let verdict = worst.filter(|_| !is_empty).unwrap_or(AuditVerdict::Unknown);
        (rows, verdict)
    }

    fn quota_rows(&self, sidecars: &[Sidecar], unread: UncountedCalls) -> Vec<LimitRow> {
        let missing = sidecars.iter().map(|sidecar| sidecar.missing).sum();
        let unknown = unread.beside(missing).saturating_add(self.quotas.uncounted);
        let row = |name: &str, quota: &KeySums| {
            let found = &quota.found;
            let Fullest {
                window,
                unplaced,
                disputed,
                ..
            } = found;
            let differ = format!("lines of {disputed} windows give different totals");
            let (verdict, why) = if found.exceeded > 0 {
                let why = format!("{} windows in all", found.exceeded);
                (AuditVerdict::Exceeded, why)
            } else if found.doubtful > 0 {
                (AuditVerdict::Unknown, differ)
            } else if unknown > 0 {
                (AuditVerdict::Unknown, calls_unread(unknown))
            } else if quota.unplaced_matters() {
                (
                    AuditVerdict::Unknown,
                    format!("{unplaced} draws name no window"),
                )
            } else {
                let fit = format!("{unplaced} draws name no window, and fit into any");
                let notes = [(*disputed > 0, differ), (*unplaced > 0, fit)];
                let notes = notes.into_iter().filter(|(is_so, _)| *is_so);
                let notes: Vec<String> = notes.map(|(_, note)| note).collect();
                (AuditVerdict::Kept, notes.join("; "))
            };
            LimitRow {
                limit: format!("quota:{name}"),
                allowed: format!("{} in a window", tokens(window.total)),
                densest: tokens(window.spent),
                when: format!("{:?} in window {}", found.key, window.number),
                calls: calls(window.first, window.last),
                sidecar: "all".to_owned(),
                verdict,
                why,
            }
        };
        let quotas = self.quotas.quotas.iter();
        quotas.map(|(name, quota)| row(name, quota)).collect()
    }
}

impl Judged {
    fn row(
        &self,
        sidecars: &[Sidecar],
        lives: &Lives,
        unread: UncountedCalls,
        error: u64,
    ) -> LimitRow {
        let each: Vec<SweepResult> = (0..sidecars.len()).map(|it| self.found(it)).collect();
        let look = |sidecar: String, found: &SweepResult, bounds, missing, error| {
            let unknown = unread.beside(missing);
            let (verdict, why) = self.judge(bounds, found, unknown, error);
            self.shown(sidecar, found.densest, verdict, why)
        };
        let worst = match &self.together {
            None => {
                let looks = each.iter().zip(sidecars).enumerate();
                let of_one = looks.map(|(number, (found, sidecar))| {
                    (sidecar_name(number), *found, sidecar.missing)
                });
                let of_lives = lives.restarted().filter_map(|(first, all)| {
                    let names: Vec<_> = all.iter().map(|&it| sidecar_name(it)).collect();
                    let missing = all.iter().map(|&it| sidecars[it].missing).sum();
                    Some((names.join("+"), self.lives.get(&first)?.found(), missing))
                });
                of_one
                    .chain(of_lives)
                    .map(|(name, found, missing)| {
                        let row = look(name, &found, found.one_clock, missing, 0);
                        (found.densest.amount, row)
                    })
                    .max_by_key(|(amount, row)| (row.verdict, *amount))
                    .map(|(_, row)| row)
            }
            Some(_) if sidecars.is_empty() => None,
            Some(sweep) => {
                let found = sweep.found();
                let missing = sidecars.iter().map(|sidecar| sidecar.missing).sum();
                let (bounds, error) = match self.each.iter().flatten().count() {
                    0 | 1 => (found.one_clock, 0),
                    _ => (found.clocks, error),
                };
                // The count of one sidecar needs no other clock: the total is at least the
                // largest of them, and at most their sum. This does not hold for aligned
                // windows, because each sidecar aligns them by its own clock.
                let alone = || each.iter().map(|found| found.one_clock);
                let bounds = match self.limit.span {
                    CountingSpan::Aligned(_) => bounds,
                    CountingSpan::Any(_) | CountingSpan::AtOnce => AmountBounds {
                        least: alone().map(|it| it.least).fold(bounds.least, u64::max),
                        most: bounds.most.min(alone().map(|it| it.most).sum()),
                    },
                };
                Some(look("all".to_owned(), &found, bounds, missing, error))
            }
        };
        worst.unwrap_or_else(|| {
            let why = "the logs have no access line".to_owned();
            self.shown(
                "-".to_owned(),
                Densest::default(),
                AuditVerdict::Unknown,
                why,
            )
        })
    }

    /// The count of a sidecar.
    fn found(&self, sidecar: usize) -> SweepResult {
        let sweep = self.each.get(sidecar).and_then(Option::as_ref);
        sweep.map(Sweep::found).unwrap_or_default()
    }

    fn judge(
        &self,
        bounds: AmountBounds,
        found: &SweepResult,
        unknown: u64,
        error: u64,
    ) -> (AuditVerdict, String) {
        let AmountBounds { least, most } = bounds;
        let max = self.limit.max;
        let amount = |amount| self.limit.amount(amount);
        if least > max {
            let why = found.overflowed.then_some("more calls than can be counted");
            return (AuditVerdict::Exceeded, why.unwrap_or_default().to_owned());
        }
        if found.overflowed {
            let why = "there are more calls than can be counted".to_owned();
            return (AuditVerdict::Unknown, why);
        }
        if most > max {
            let (least, most) = (amount(least), amount(most));
            let why = match error {
                0 => format!("{least} to {most}: stamps are cut to a microsecond"),
                _ => format!("{least} to {most}: clocks may differ by twice {error} us"),
            };
            return (AuditVerdict::Unknown, why);
        }
        // The cost of an unknown call is unknown.
        let room = match self.limit.counts_tokens() {
            true => 0,
            false => max - most,
        };
        if unknown > room {
            return (AuditVerdict::Unknown, calls_unread(unknown));
        }
        (AuditVerdict::Kept, String::new())
    }

    fn shown(
        &self,
        sidecar: String,
        densest: Densest,
        verdict: AuditVerdict,
        why: String,
    ) -> LimitRow {
        let (when, calls) = match densest.amount {
            0 => ("-".to_owned(), "-".to_owned()),
            _ => {
                let span = densest.to - densest.from;
                let span = format!("{}.{:06} s", span / 1_000_000, span % 1_000_000);
                let when = match self.limit.span {
                    CountingSpan::AtOnce => moment(densest.from),
                    _ => format!("{} + {span}", moment(densest.from)),
                };
                (when, calls(densest.first, densest.last))
            }
        };
        LimitRow {
            limit: self.limit.name.clone().into(),
            allowed: self.limit.allowed(),
            densest: self.limit.amount(densest.amount),
            when,
            calls,
            sidecar,
            verdict,
            why,
        }
    }
}

/// Whether a call counts in a limit.
fn is_met(meets: &Meets, call: &Sent) -> bool {
    match meets {
        Meets::Every => true,
        Meets::Function(name) => call.function == *name,
        Meets::Class(name) => call.class == *name,
        Meets::Server(name) => call.server.as_ref() == Some(name),
        Meets::EveryExcept(classes) => !classes.contains(&call.class),
        Meets::RateLimit(name) => call.rate_limit.as_ref() == Some(name),
    }
}

fn calls(first: u64, last: u64) -> String {
    match first == last {
        true => format!("{first:016x}"),
        false => format!("{first:016x} to {last:016x}"),
    }
}

fn calls_unread(calls: u64) -> String {
    match calls {
        u64::MAX => "the logs contradict themselves".to_owned(),
        calls => format!("{calls} calls are unknown"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_back_call_takes_the_bytes_that_the_help_of_reorder_names() {
        assert_eq!(size_of::<PendingDeparture>(), 80);
    }
}
