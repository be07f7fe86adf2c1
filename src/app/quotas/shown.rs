//! The quotas, for operators.

use std::sync::Arc;
use std::time::Duration;

use tidegate_limits::Timestamp;
use tidegate_limits::quota::{DrawMode, LedgerTrouble, OutagePolicy};
use tidegate_limits::scheduler::{OnExcess, QuotaCounts, QuotaNow};
use tidegate_quota::{Engine, QuotaLimit};
use tidegate_runtime::lock;

use super::Quotas;
use super::driver::Driver;
use super::key::Note;
use crate::admin::{
    Decisions, QuotaKeyState, QuotaState, QuotaStoreState, QuotaStoreTrouble, QuotasState,
};
use crate::admit::QuotaAt;

/// Every store in another process is contacted every few seconds. One that was silent for this
/// long counts as unavailable, even without a request.
const HEARD_WITHIN: Duration = Duration::from_secs(15);

impl Quotas {
    /// Everything, with at most this many keys of each quota.
    pub(in crate::app) fn state(&self, keys_max: usize) -> QuotasState {
        let driver = lock(&self.running)
            .as_ref()
            .map(|it| Arc::clone(&it.driver));
        let Some(driver) = driver else {
            return QuotasState {
                store: None,
                quotas: Vec::new(),
            };
        };
        let settings = Arc::clone(&driver.settings.borrow());
        let quota = |limit: &QuotaLimit| {
            let counts = self.gate.quota_counts(&limit.name)?;
            let keys = self.gate.quotas_now(&limit.name, keys_max);
            Some(driver.quota_state(limit, &counts, &keys))
        };
        QuotasState {
            store: Some(driver.store_state(settings.expected_sidecars)),
            quotas: settings.limits.iter().filter_map(quota).collect(),
        }
    }
}

impl Driver {
    /// The uncertainty of the store's time.
    fn uncertainty(&self, now: Timestamp) -> Option<Duration> {
        let time = self.store.now(now);
        (time.latest() < Duration::MAX).then(|| time.width())
    }

    /// Whether the store answers, and since when; `None` until that is known.
    fn is_up(&self, now: Timestamp) -> Option<(bool, Timestamp)> {
        let health = self.lock().health.clone();
        if self.engine == Engine::Memory {
            return Some((true, self.started));
        }
        if let Some(since) = health.away {
            return Some((false, since));
        }
        // Its heartbeats fail, which are writes, and it has written nothing since. Reads are no excuse.
        let trouble = self.store.trouble().map(|(since, _)| since);
        if let Some(since) = trouble.filter(|since| health.wrote.is_none_or(|at| at < *since)) {
            return Some((false, since));
        }
        let told = self.store.time().borrow().now();
        let told = (told > Timestamp::ZERO).then_some(told);
        let heard = told.max(health.answered)?;
        if now.since(heard) > HEARD_WITHIN {
            return Some((false, heard));
        }
        Some((true, health.answers.unwrap_or(self.started)))
    }

    fn store_state(&self, expected_sidecars: u32) -> QuotaStoreState {
        let now = self.clock.now();
        let up = self.is_up(now);
        let since = up.map_or(self.started, |(_, since)| since);
        let of_questions = self.lock().health.clone().trouble;
        let of_signs = self.store.trouble();
        let of_signs = of_signs.map(|(at, text)| (at, text.to_string()));
        // A current error comes before an earlier one.
        let trouble = of_signs.or(of_questions);
        let trouble = trouble.map(|(at, text)| QuotaStoreTrouble {
            text,
            seconds_ago: seconds(now.since(at)),
        });
        QuotaStoreState {
            engine: self.engine.word(),
            up: up.map(|(up, _)| up),
            since_seconds: seconds(now.since(since)),
            time_uncertainty_seconds: self.uncertainty(now).map(seconds),
            members: *self.store.members().borrow() as u64,
            expected_sidecars,
            unexpected_members: self.lock().excess as u64,
            evictions: self.store.evictions(),
            trouble,
        }
    }

    fn quota_state(
        &self,
        limit: &QuotaLimit,
        counts: &QuotaCounts,
        keys: &[(QuotaAt, QuotaNow)],
    ) -> QuotaState {
        let settings = limit.rule.settings();
        let ledgers = &counts.ledgers;
        let now = self.clock.now();
        QuotaState {
            name: limit.name.to_string(),
            total: settings.total,
            window_seconds: seconds(settings.length),
            on_excess: match limit.on_excess {
                OnExcess::Delay => "wait",
                OnExcess::Reject => "reject",
            },
            mode: match settings.mode {
                DrawMode::Drawn if limit.observes => "observe",
                DrawMode::Drawn => "enforce",
                DrawMode::Optimistic => "optimistic",
            },
            when_store_away: match settings.away {
                OutagePolicy::Deny => "deny",
                OutagePolicy::Allow => "allow",
                OutagePolicy::Safe { .. } => "safe",
            },
            safe_share: limit.rule.safe_share(),
            decisions: Decisions {
                local: counts.local,
                drew: counts.drew,
                waited: counts.waited,
                refused: counts.refused,
            },
            draws: ledgers.draws,
            conflicts: ledgers.conflicts,
            unknown: ledgers.unknown,
            unavailable: ledgers.unavailable,
            relinquished: ledgers.relinquished,
            allowed_tokens: ledgers.allowed,
            overshot_tokens: ledgers.overshot,
            keys: counts.keys as u64,
            keys_forgotten: counts.forgotten,
            // Some troubles are known only here.
            keys_in_trouble: (counts.troubled + self.noted(&limit.name)) as u64,
            used_last: keys
                .iter()
                .map(|(at, key)| key_state(key, &self.note_of(*at), now))
                .collect(),
        }
    }
}

fn key_state(of: &QuotaNow, note: &Note, now: Timestamp) -> QuotaKeyState {
    let record = of.ledger.record;
    let noted = |what: &str, note: &Option<Box<str>>| Some(format!("{what} {}", note.as_ref()?));
    let trouble = [
        of.ledger.trouble.map(|trouble| in_words(trouble, now)),
        noted("invalid setting, ignored:", &note.mistake),
        noted("the store refuses it:", &note.refused),
        noted("another program writes", &note.foreign_writer),
    ];
    QuotaKeyState {
        key: of.of.key.to_string(),
        window: record.map(|record| record.window()),
        left: record.map(|record| record.left()),
        window_total: record.map(|record| record.total()),
        total: of.rule.settings().total,
        held: of.ledger.held,
        safe: of.ledger.safe,
        owed: of.ledger.owed,
        waiting: of.waiting,
        waiting_tokens: of.waiting_tokens,
        used_seconds_ago: seconds(now.since(of.used)),
        trouble: trouble.into_iter().flatten().collect(),
    }
}

/// The troubles of a key, for an operator.
fn in_words(trouble: LedgerTrouble, now: Timestamp) -> String {
    match trouble {
        LedgerTrouble::Away(since) => {
            let silent = seconds(now.since(since));
            format!("the store has not answered for {silent:.1} s")
        }
        LedgerTrouble::Unreadable(error) => {
            format!("what stands in the store is no record of ours: {error}; it is left alone")
        }
        LedgerTrouble::Lost => {
            "the record vanished or went back; nothing is left of this window".to_owned()
        }
        LedgerTrouble::Ahead(by) => format!(
            "the record is of a window that begins {:.1} s after the store's time; it is followed",
            seconds(by)
        ),
        LedgerTrouble::OtherReserve { reserved } => format!(
            "another sidecar opened the window with {reserved} tokens set aside, too few for the \
             safe shares, so there are none"
        ),
    }
}

fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}
