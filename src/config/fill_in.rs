//! Defaults that depend on other options, and options that have no effect beside others.

use std::time::Duration;

use crate::admit::LedgerLost;
use crate::admit::options::PostponeBy;
use crate::call::Bind;
use crate::call::LimitMode;
use crate::callers::rate_limit::options::{PaceSection, QuotaMode};

use super::classes::usual_weight;
use super::sections::{Class, Sections};

/// The longest window that is taken for used up where nothing is known: a start may make calls wait as long.
const LONGEST_TO_WAIT_FOR: Duration = Duration::from_secs(10);

impl Sections {
    /// Fills in the defaults that depend on other options, and mutes the options that have no
    /// effect beside others; of a config without an error.
    pub(super) fn fill_in(&mut self) {
        self.backend.for_workers(self.queue.workers.value);
        let kind = self.backend_kind();
        self.kind.kind.value = Some(kind);
        self.backend.for_kind(kind);
        let postpone = self.postpone();
        self.queue.postpone.value = postpone;
        self.queue.postpone_jitter.mark.muted = postpone != Some(PostponeBy::Jitter);
        let limits = &mut self.limits;
        let windows_are_off = limits.window.value.is_zero();
        for mark in [
            &mut limits.per_window.mark,
            &mut limits.window_shape.mark,
            &mut limits.window_stamp.mark,
            &mut limits.window_guard.mark,
        ] {
            mark.muted = windows_are_off;
        }
        // Calls that may not wait for a window would be refused.
        let bearable = LONGEST_TO_WAIT_FOR.min(limits.max_wait.value);
        let short = limits.window.value <= bearable;
        limits.ledger_lost.value.get_or_insert(match short {
            true => LedgerLost::AssumeFull,
            false => LedgerLost::AssumeEmpty,
        });
        limits.ledger_lost.mark.muted = windows_are_off;
        let backend = &self.backend;
        self.kind.kind.mark.muted = backend.http.value.is_none() && backend.socket.value.is_none();
        for route in &mut self.routes {
            let is_unnamed = route.function_from.value.is_empty();
            route.function_from.mark.muted = is_unnamed;
            let reads_nothing = is_unnamed && route.caller_from.value.is_none();
            route.batch.mark.muted = reads_nothing;
            route.unreadable.mark.muted = reads_nothing;
        }
        for listener in self.listen.iter_mut().flatten() {
            let is_file = matches!(listener.listen.bind.value, Some(Bind::Unix(_)));
            listener.listen.unix_mode.mark.muted = !is_file;
        }
        self.add_built_in_classes();
        for Class { class, .. } in &mut self.classes {
            class.beside_total.mark.muted = class.outstanding_max.value.is_none();
            let name = class.name.value.as_deref().unwrap_or_default();
            class.weight.value.get_or_insert(usual_weight(name));
        }
        let is_observed = self.limits.mode.value == LimitMode::Observe;
        let buckets = self.buckets.iter_mut().map(|it| &mut it.mode);
        let paces = self.paces.iter_mut().map(|it| &mut it.mode);
        for mode in buckets
            .chain(paces)
            .filter(|mode| is_observed && !mode.given)
        {
            mode.value = LimitMode::Observe;
        }
        self.paces.iter_mut().for_each(PaceSection::fill_in);
        for quota in &mut self.quotas {
            if is_observed && !quota.mode.given {
                quota.mode.value = QuotaMode::Observe;
            }
            quota.fill_in();
        }
    }
}
