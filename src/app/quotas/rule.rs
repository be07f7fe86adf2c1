//! The rule of a key by its settings in the store. The gate has the config's from the first call.

use tidegate_limits::quota::{RuleError, RuleSettings, WindowRule};
use tidegate_quota::{QuotaLimit, StoredSettings};

/// The rule of one key by its settings in the store, `None` for that of the config; and the invalid
/// settings in the store, which are ignored.
///
/// Settings in the store override the config, total and base separately. A base of the config
/// above a total of the store counts as that total, so an operator who lowers a total there need
/// not know every sidecar's base.
pub(super) fn rule_of(
    limit: &QuotaLimit,
    key: &str,
    configured: &StoredSettings,
) -> (Option<WindowRule>, Option<String>) {
    let own = limit.of(key);
    let told = *own.settings();
    let total = configured.total.unwrap_or(told.total);
    let own_base = told.base.map(|base| base.min(total));
    let mut mistake = None;
    let mut base = configured.base.or(own_base);
    if let Some(said) = configured.base.filter(|base| *base > total && total > 0) {
        mistake = Some(format!(
            "base must not be above total, {total}, but is {said}"
        ));
        base = own_base;
    }
    let checked = WindowRule::check(RuleSettings {
        total,
        // No draw comes from a total of 0.
        base: base.filter(|_| total > 0),
        ..told
    });
    let rule = match checked {
        Ok(rule) => rule,
        Err(errors) => {
            mistake = Some(list(&errors));
            *own
        }
    };
    ((rule != *own).then_some(rule), mistake)
}

fn list(errors: &[RuleError]) -> String {
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    errors.join("; ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_limits::scheduler::OnExcess;

    use super::*;

    fn rule(total: u64, base: Option<u64>) -> WindowRule {
        let settings = RuleSettings::new(total, Duration::from_secs(60));
        WindowRule::check(RuleSettings { base, ..settings }).expect("it can be")
    }

    fn check(
        key: &str,
        total: Option<u64>,
        base: Option<u64>,
        expected: (Option<(u64, Option<u64>)>, Option<&str>),
    ) {
        let limit = QuotaLimit {
            name: "rate_limit:per_user".into(),
            rule: rule(1_000, Some(100)),
            on_excess: OnExcess::Delay,
            observes: false,
            totals: [("alice".into(), rule(5_000, Some(100)))].into(),
            namespace: None,
        };
        let says = StoredSettings {
            total,
            base,
            ..StoredSettings::default()
        };
        let (told, mistake) = rule_of(&limit, key, &says);
        let told = told.map(|rule| (rule.settings().total, rule.settings().base));
        assert_eq!((told, mistake.as_deref()), expected);
    }

    #[test]
    fn the_store_wins_over_the_config_and_what_the_config_has_needs_no_word() {
        check("bob", None, None, (None, None));
        check("alice", None, None, (None, None));
        check("alice", Some(5_000), None, (None, None));
        check("bob", Some(1_000), None, (None, None));
        check("bob", Some(7), None, (Some((7, Some(7))), None));
        check(
            "alice",
            Some(2_000),
            Some(3),
            (Some((2_000, Some(3))), None),
        );
        // As the quota's own after all, which is not hers.
        check("alice", Some(1_000), None, (Some((1_000, Some(100))), None));
        // Blocked.
        check("alice", Some(0), Some(3), (Some((0, None)), None));
    }

    #[test]
    fn a_base_that_cannot_be_leaves_the_total_as_it_is() {
        let mistake = |total, base| format!("base must not be above total, {total}, but is {base}");
        let of_config = mistake(1_000, 1_001);
        check("bob", None, Some(1_001), (None, Some(&of_config)));
        let of_store = mistake(20, 50);
        let ruled = Some((20, Some(20)));
        check("bob", Some(20), Some(50), (ruled, Some(&of_store)));
    }

    #[test]
    fn a_total_that_cannot_be_leaves_the_configs() {
        let told = "total must be 0 to 1000000000000000, not 1000000000000001";
        let most = 1_000_000_000_000_001;
        check("bob", Some(most), None, (None, Some(told)));
    }
}
