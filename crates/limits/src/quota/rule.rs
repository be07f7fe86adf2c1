//! A quota as configured, checked.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use super::record::QuotaRecord;
use crate::bucket::TokenCount;
use crate::time::nanos;

/// The largest total.   tokens in a window
pub const TOTAL_MAX: u64 = 1_000_000_000_000_000;
/// The shortest window: far above what is uncertain of the store's time.
pub const LENGTH_MIN: Duration = Duration::from_millis(100);
/// The longest window.
pub const LENGTH_MAX: Duration = Duration::from_secs(366 * 86_400);

const NODES_MAX: u32 = 10_000;
const TIMES_MAX: u32 = 1_000;
/// A draw doubles at most this often beyond an equal share.
const ALONE_MAX: u32 = 6;
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// A quota as configured. [`WindowRule::check`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleSettings {
    /// The total that all nodes together may spend in one window; 0 blocks the key.   tokens
    pub total: u64,
    /// How long a window is; windows begin at multiples of it by the store's clock.
    pub length: Duration,
    /// The smallest grant that is asked for; `None` for a hundredth of an equal share.   tokens
    pub base: Option<u64>,
    /// The number of nodes, as long as no live count is known, and for the safe share.
    pub nodes_expected: u32,
    /// The next grant is asked for when no more than this of the last one is held.   percent
    pub prefetch_percent: u32,
    /// How much of an equal share of what is left is asked for.   percent
    pub ask_percent: u32,
    /// How often is looked for a surplus, which is at least four times in a window.
    pub relinquish_every: Duration,
    /// Tokens beyond this number of grants are a surplus.
    pub relinquish_above: u32,
    /// After this time without a reply a draw counts as not granted.
    pub draw_timeout: Duration,
    /// Whether a call may go before its draw is done.
    pub mode: DrawMode,
    /// The treatment of calls while the store is unavailable.
    pub away: OutagePolicy,
}

impl RuleSettings {
    /// Such a quota, with the defaults for everything else.
    #[must_use]
    pub const fn new(total: u64, length: Duration) -> Self {
        Self {
            total,
            length,
            base: None,
            nodes_expected: 1,
            prefetch_percent: 20,
            ask_percent: 40,
            relinquish_every: Duration::from_secs(15),
            relinquish_above: 2,
            draw_timeout: Duration::from_millis(200),
            mode: DrawMode::Drawn,
            away: OutagePolicy::Safe { percent: 50 },
        }
    }
}

/// Whether a call may go before its draw is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawMode {
    /// Calls pass only with tokens that were drawn.
    Drawn,
    /// While a draw is due calls pass on account, up to the base, and the draw pays for them. All
    /// nodes together overshoot a window by at most one base each.
    Optimistic,
}

/// The treatment of calls while the store is unavailable and the held tokens are spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutagePolicy {
    /// Calls do not pass.
    Deny,
    /// Everything passes, and is counted.
    Allow,
    /// Each node has a share of its own, whether the store is available or not: this part of an
    /// equal share of the total among the expected nodes, in whole tokens. These shares are never
    /// drawn from the store, so the total holds.
    Safe {
        /// 1 to 100.
        percent: u32,
    },
}

/// A quota that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRule(RuleSettings);

impl WindowRule {
    /// Takes a quota if it can be.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it.
    pub fn check(settings: RuleSettings) -> Result<Self, Vec<RuleError>> {
        let RuleSettings {
            total,
            length,
            base,
            nodes_expected,
            prefetch_percent,
            ask_percent,
            relinquish_every,
            relinquish_above,
            draw_timeout,
            mode: _,
            away,
        } = settings;
        let mut errors = Vec::new();
        let mut require = |holds: bool, what, must: String, given: &dyn fmt::Debug| {
            if !holds {
                let given = format!("{given:?}");
                errors.push(RuleError { what, must, given });
            }
        };
        let must = format!("0 to {TOTAL_MAX}");
        require(total <= TOTAL_MAX, "total", must, &total);
        let whole = length.subsec_nanos().is_multiple_of(1_000_000);
        let fits = whole && (LENGTH_MIN..=LENGTH_MAX).contains(&length);
        let must = format!("a whole number of milliseconds from {LENGTH_MIN:?} to 366 days");
        require(fits, "the window", must, &length);
        if let Some(base) = base {
            let must = format!("1 to the total, {total}");
            require((1..=total).contains(&base), "base", must, &base);
        }
        let fits = (1..=NODES_MAX).contains(&nodes_expected);
        let must = format!("1 to {NODES_MAX}");
        require(fits, "nodes expected", must, &nodes_expected);
        let (fits, must) = (prefetch_percent <= 100, "0 to 100".into());
        require(fits, "the prefetch percentage", must, &prefetch_percent);
        let (fits, must) = ((1..=100).contains(&ask_percent), "1 to 100".into());
        require(fits, "the ask percentage", must, &ask_percent);
        let must = format!("at least {TIMEOUT_MIN:?}");
        let fits = relinquish_every >= TIMEOUT_MIN;
        require(fits, "the relinquish interval", must, &relinquish_every);
        let must = format!("1 to {TIMES_MAX} grants");
        let fits = (1..=TIMES_MAX).contains(&relinquish_above);
        require(fits, "the relinquish threshold", must, &relinquish_above);
        let must = format!("{TIMEOUT_MIN:?} to {TIMEOUT_MAX:?}");
        let fits = (TIMEOUT_MIN..=TIMEOUT_MAX).contains(&draw_timeout);
        require(fits, "the draw timeout", must, &draw_timeout);
        if let OutagePolicy::Safe { percent } = away {
            let must = "1 to 100 percent of an equal share".into();
            require(
                (1..=100).contains(&percent),
                "the safe share",
                must,
                &percent,
            );
        }
        if errors.is_empty() {
            Ok(Self(settings))
        } else {
            Err(errors)
        }
    }

    /// The settings, after the check.
    #[must_use]
    pub const fn settings(&self) -> &RuleSettings {
        &self.0
    }

    /// Whether no call passes, whatever was drawn before.
    #[must_use]
    pub const fn blocks(&self) -> bool {
        self.0.total == 0
    }

    /// The rule with no safe share: for a store that is never unavailable, and that no other node shares.
    #[must_use]
    pub const fn without_safe_share(self) -> Self {
        match self.0.away {
            OutagePolicy::Safe { .. } => Self(RuleSettings {
                away: OutagePolicy::Deny,
                ..self.0
            }),
            OutagePolicy::Deny | OutagePolicy::Allow => self,
        }
    }

    /// The share of every window that each node owns.   tokens
    #[must_use]
    pub fn safe_share(&self) -> u64 {
        match self.0.away {
            OutagePolicy::Deny | OutagePolicy::Allow => 0,
            OutagePolicy::Safe { percent } => {
                self.0.total * u64::from(percent) / (100 * u64::from(self.0.nodes_expected))
            }
        }
    }

    /// The part of the total that nodes own, and that is never drawn.   tokens
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.safe_share() * u64::from(self.0.nodes_expected)
    }

    /// The most expensive call that can ever pass.   tokens
    #[must_use]
    pub fn costliest(&self) -> u64 {
        self.0.total - self.reserved() + self.safe_share()
    }

    /// The smallest grant among this number of nodes.   tokens
    #[must_use]
    pub fn base(&self, nodes: u64) -> u64 {
        self.0.base.unwrap_or((self.0.total / 100 / nodes).max(1))
    }

    /// How often is looked for a surplus.
    pub(super) fn relinquish_every(&self) -> Duration {
        self.0.relinquish_every.min(self.0.length / 4)
    }

    /// The window that runs at a moment of the store's time, nothing drawn yet. `None` for a moment
    /// past the end of time.
    pub(super) fn window_at(&self, moment: Duration) -> Option<QuotaRecord> {
        let window = self.number_at(moment)?;
        let left = self.0.total - self.reserved();
        QuotaRecord::new(window, left, self.0.total, self.reserved(), self.0.length).ok()
    }

    /// When it begins.
    pub(super) fn start_at(&self, moment: Duration) -> Option<Duration> {
        let start = self
            .number_at(moment)?
            .checked_mul(millis(self.0.length)?)?;
        Some(Duration::from_millis(start))
    }

    fn number_at(&self, moment: Duration) -> Option<u64> {
        Some(millis(moment)? / millis(self.0.length)?)
    }

    /// How long a node that has drawn its equal share leaves the store to other nodes before it
    /// draws more: long enough for three draws of each, but no call waits for it needlessly.
    pub(super) fn yields(&self, nodes: u64, reply: Duration) -> Duration {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        let turns = reply.saturating_mul(nodes).saturating_mul(3);
        turns.min(self.0.length / 20).min(self.0.draw_timeout / 2)
    }

    /// For how long ahead a grant should do, where a reply takes `reply`.
    pub(super) fn horizon(&self, reply: Duration) -> Duration {
        let least = reply.saturating_mul(20);
        (self.0.length / 20).max(least).min(Duration::from_secs(1))
    }
}

/// Whole milliseconds, without the 128 bits that the standard library counts them in: dividing
/// those takes longer than everything else that is asked about a call.
fn millis(span: Duration) -> Option<u64> {
    let whole = span.as_secs().checked_mul(1_000)?;
    whole.checked_add(span.subsec_millis().into())
}

/// How large a grant to ask for.
pub(super) struct DrawRequest {
    /// Nodes that live.
    pub(super) nodes: u64,
    /// The amount that the node has drawn in this window already.
    pub(super) drawn: u64,
    /// How often it drew beyond its equal share in this window: each time twice as much, for the
    /// others have had their turns and do not seem to want theirs.
    pub(super) alone: u32,
    /// The rate of spending, once measured.   a second
    pub(super) rate: Option<TokenCount>,
    /// How long a reply takes.
    pub(super) reply: Duration,
    /// The sum that waits for tokens and is covered by none.
    pub(super) missing: u64,
    /// The part of it without which not even the first call can go.
    pub(super) need: u64,
}

impl DrawRequest {
    /// The size of the draw: at most the rest of the window, and `None` if that is less than the need.
    pub(super) fn grant(&self, rule: &WindowRule, record: &QuotaRecord) -> Option<u64> {
        let (left, total) = (record.left(), record.total());
        if left == 0 || left < self.need {
            return None;
        }
        Some(self.size(rule, left, total).max(self.need).min(left))
    }

    /// The size of a grant when this much is left.
    pub(super) fn size(&self, rule: &WindowRule, left: u64, total: u64) -> u64 {
        let base = rule.base(self.nodes).min(total);
        let most = (total / 4).max(base);
        let part = u128::from(left) * u128::from(rule.0.ask_percent);
        let guided = u64::try_from(part / (100 * u128::from(self.nodes))).unwrap_or(left);
        let guided = guided
            .saturating_mul(1 << self.alone.min(ALONE_MAX))
            .min(left);
        let horizon = u128::from(nanos(rule.horizon(self.reply)));
        let demand = self.rate.map_or(guided, |rate| rate.whole_in(horizon));
        // An equal share takes nothing from other nodes. Of the tokens beyond it, only a part is
        // granted. The demand of waiting calls is known and not a guess.
        let own = (total / self.nodes).saturating_sub(self.drawn);
        let wanted = demand.max(self.missing);
        guided.max(own).min(wanted).clamp(base, most)
    }
}

/// A number of a rule that is out of range. Displays what must be what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// The name of the number.
    pub what: &'static str,
    must: String,
    given: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, must, given } = self;
        write!(f, "{what} must be {must}, not {given}")
    }
}

impl core::error::Error for RuleError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(total: u64, change: impl FnOnce(&mut RuleSettings)) -> WindowRule {
        let mut settings = RuleSettings::new(total, Duration::from_secs(10));
        settings.nodes_expected = 4;
        change(&mut settings);
        WindowRule::check(settings).expect("a rule")
    }

    const QUIET: DrawRequest = DrawRequest {
        nodes: 4,
        drawn: 0,
        alone: 0,
        rate: Some(TokenCount::ZERO),
        reply: Duration::ZERO,
        missing: 0,
        need: 0,
    };
    /// A node that spends a million tokens a second.
    const BUSY: DrawRequest = DrawRequest {
        rate: Some(TokenCount::from_micros(1_000_000_000_000)),
        ..QUIET
    };

    #[test]
    fn every_mistake_is_reported_at_once() {
        let settings = RuleSettings {
            total: 10,
            length: Duration::ZERO,
            base: Some(11),
            nodes_expected: 0,
            prefetch_percent: 101,
            ask_percent: 0,
            relinquish_every: Duration::ZERO,
            relinquish_above: 0,
            draw_timeout: Duration::from_secs(61),
            mode: DrawMode::Drawn,
            away: OutagePolicy::Safe { percent: 101 },
        };
        let errors = WindowRule::check(settings).expect_err("all of it is wrong");
        assert_eq!(errors.len(), 9);
        let too_much = TOTAL_MAX + 1;
        let total = WindowRule::check(RuleSettings::new(too_much, LENGTH_MIN));
        let text = |errors: Result<WindowRule, Vec<RuleError>>| {
            let errors = errors.expect_err("it is wrong");
            assert_eq!(errors.len(), 1);
            format!("{}", errors[0])
        };
        let most = "0 to 1000000000000000, not 1000000000000001";
        assert_eq!(text(total), format!("total must be {most}"));
        let none = WindowRule::check(RuleSettings::new(0, LENGTH_MIN)).expect("it blocks");
        assert!(none.blocks());
        let odd = Duration::from_micros(1_000_500);
        let length = WindowRule::check(RuleSettings::new(1, odd));
        let whole = "a whole number of milliseconds from 100ms to 366 days, not 1.0005s";
        assert_eq!(text(length), format!("the window must be {whole}"));
    }

    #[test]
    fn safe_shares_are_never_drawn() {
        let check = |total, own, pool| {
            let rule = rule(total, |_| {});
            assert_eq!(rule.safe_share(), own);
            let window = rule.window_at(Duration::from_secs(25)).expect("a window");
            assert_eq!((window.window(), window.left()), (2, pool));
            assert_eq!(window.reserved() + window.left(), total);
        };
        check(1_000, 125, 500);
        check(7, 0, 7);
        check(TOTAL_MAX, TOTAL_MAX / 8, TOTAL_MAX / 2);
        let deny = rule(1_000, |settings| settings.away = OutagePolicy::Deny);
        assert_eq!((deny.safe_share(), deny.costliest()), (0, 1_000));
    }

    #[test]
    fn a_grant_is_a_part_of_what_is_left_between_base_and_a_quarter() {
        let rule = rule(1_000, |_| {});
        // Its equal share at once, as long as it has not drawn it.
        assert_eq!(BUSY.size(&rule, 1_000, 1_000), 250);
        let beyond = DrawRequest { drawn: 250, ..BUSY };
        let check = |left, size| assert_eq!(beyond.size(&rule, left, 1_000), size);
        check(1_000, 100);
        check(100, 10);
        check(10, 2);
        check(0, 2);
        let alone = DrawRequest { nodes: 1, ..BUSY };
        assert_eq!(alone.size(&rule, 1_000, 1_000), 250);
    }

    #[test]
    fn low_use_asks_for_little() {
        let rule = rule(1_000, |_| {});
        assert_eq!(QUIET.size(&rule, 1_000, 1_000), 2);
        // Ten a second, for half a second.
        let slow = DrawRequest {
            rate: Some(TokenCount::from_micros(10_000_000)),
            ..QUIET
        };
        assert_eq!(slow.size(&rule, 1_000, 1_000), 5);
    }

    #[test]
    fn demand_is_drawn_at_once_up_to_an_equal_share() {
        let rule = rule(1_000, |_| {});
        let waits = |missing, drawn| DrawRequest {
            missing,
            drawn,
            ..QUIET
        };
        assert_eq!(waits(90, 0).size(&rule, 1_000, 1_000), 90);
        assert_eq!(waits(900, 0).size(&rule, 1_000, 1_000), 250);
        assert_eq!(waits(900, 240).size(&rule, 1_000, 1_000), 100);
        assert_eq!(waits(900, 240).size(&rule, 50, 1_000), 10);
        assert_eq!(waits(900, 250).size(&rule, 50, 1_000), 5);
    }

    #[test]
    fn a_grant_is_never_less_than_needed_nor_more_than_left() {
        let rule = rule(1_000, |_| {});
        let record = rule.window_at(Duration::ZERO).expect("a window");
        let needs = |need| DrawRequest { need, ..QUIET }.grant(&rule, &record);
        assert_eq!(record.left(), 500);
        assert_eq!(needs(0), Some(2));
        assert_eq!(needs(400), Some(400));
        assert_eq!(needs(500), Some(500));
        assert_eq!(needs(501), None);
        let one = record.less(499).expect("so much is left");
        assert_eq!(BUSY.grant(&rule, &one), Some(1));
        let none = record.less(500).expect("so much is left");
        assert_eq!(BUSY.grant(&rule, &none), None);
    }
}
