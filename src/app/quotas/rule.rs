//! Which rule a key has: the quota's, one of its own in the config, or what the store says of it.

use tidegate_limits::quota::{Rule, RuleError, Settings};

use crate::coordinate::QuotaLimit;
use crate::coordinate::quota_store::Configured;

/// The rule of one key of a quota; none for the quota's own.
///
/// What the store says of a key wins over the config. A base of the config that is above a total
/// of the store is that total: whoever lowers a total there need not know every sidecar's base.
///
/// # Errors
///
/// What of the store's word cannot be.
pub(super) fn rule_of(
    limit: &QuotaLimit,
    key: &str,
    configured: &Configured,
) -> Result<Option<Rule>, String> {
    let rule = limit.totals.get(key).unwrap_or(&limit.rule);
    let told = *rule.settings();
    let total = configured.total.unwrap_or(told.total);
    let own_base = told.base.map(|base| base.min(total));
    let checked = Rule::check(Settings {
        total,
        // Of a total of 0 there is enough to say.
        base: configured.base.or(own_base).filter(|_| total > 0),
        ..told
    });
    let rule = checked.map_err(|errors| list(&errors))?;
    Ok((rule != limit.rule).then_some(rule))
}

fn list(errors: &[RuleError]) -> String {
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    errors.join("; ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_limits::OnExcess;

    use super::*;

    fn rule(total: u64, base: Option<u64>) -> Rule {
        let settings = Settings::new(total, Duration::from_secs(60));
        Rule::check(Settings { base, ..settings }).expect("it can be")
    }

    fn check(
        key: &str,
        total: Option<u64>,
        base: Option<u64>,
        expected: Result<Option<(u64, Option<u64>)>, &str>,
    ) {
        let limit = QuotaLimit {
            name: "rate_limit:per_user".into(),
            rule: rule(1_000, Some(100)),
            on_excess: OnExcess::Delay,
            totals: [("alice".into(), rule(5_000, Some(100)))].into(),
            namespace: None,
        };
        let says = Configured {
            total,
            base,
            ..Configured::default()
        };
        let told = rule_of(&limit, key, &says);
        let told = told.map(|rule| rule.map(|rule| (rule.settings().total, rule.settings().base)));
        assert_eq!(told, expected.map_err(ToOwned::to_owned));
    }

    #[test]
    fn the_store_wins_over_the_config_and_a_total_of_ones_own_over_the_quotas() {
        check("bob", None, None, Ok(None));
        check("alice", None, None, Ok(Some((5_000, Some(100)))));
        check("bob", Some(1_000), None, Ok(None));
        check("bob", Some(7), None, Ok(Some((7, Some(7)))));
        check("alice", Some(2_000), Some(3), Ok(Some((2_000, Some(3)))));
        // As the quota's own after all.
        check("alice", Some(1_000), None, Ok(None));
    }

    #[test]
    fn what_cannot_be_is_told() {
        check(
            "bob",
            Some(0),
            None,
            Err("total must be 1 to 1000000000000000, not 0"),
        );
        check(
            "bob",
            None,
            Some(1_001),
            Err("base must be 1 to the total, 1000, not 1001"),
        );
    }
}
