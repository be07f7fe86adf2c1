//! Classes and functions, from the sections that name them to the settings of the gate and the
//! classifier.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::admit::options::PostponeBy;
use crate::admit::{ClassDeadline, ClassPool, ClassRule};
use crate::call::BackendKind;
use crate::call::sdk::{Effort, FunctionKind as Writes};
use crate::callers::rate_limit::options::{PaceSection, QuotaSection};
use crate::classify::class::{self, KnownClass, POLLING, USER};
use crate::options::ConfigReader;

use super::sections::{Class, Sections};

/// The word for all functions that only read the SDK's own database.
pub(super) const DATABASE: &str = "db";
/// A function that only reads the database, unless it is asked to fetch what is new from SMAPI.
const SYNCS: &str = "get_fcp_templates_details";

const USER_WEIGHT: u32 = 4;

impl Sections {
    /// The kind of backend in force. Without `backend.http` the default is that of the socket
    /// protocol; for a TCP tunnel alone there is nothing that a table could name.
    pub(super) fn backend_kind(&self) -> BackendKind {
        let is_tunnel = self.backend.socket.value.is_none() && self.backend.tcp.value.is_some();
        self.kind.kind.value.unwrap_or(match is_tunnel {
            true => BackendKind::Http,
            false => BackendKind::Zvm,
        })
    }

    /// How calls are postponed, if it could be read. The design of sdkserver is the default for its own
    /// backend.
    pub(super) fn postpone(&self) -> Option<PostponeBy> {
        let default = match self.kind.kind.meant()?.unwrap_or(self.backend_kind()) {
            BackendKind::Zvm => PostponeBy::Jitter,
            BackendKind::Http => PostponeBy::InTurn,
        };
        Some(self.queue.postpone.meant()?.unwrap_or(default))
    }

    /// The functions that meet no limit, each once.
    pub(super) fn exempt_functions(&self) -> Vec<Arc<str>> {
        let mut names = BTreeSet::from_iter(self.exempt_by_dialect());
        for name in &self.exempt.exempt.value {
            if **name != *DATABASE {
                names.insert(Arc::clone(name));
            } else {
                let reads = self.backend_kind().functions().iter().filter(|function| {
                    function.effort == Effort::Db
                        && function.kind == Writes::Read
                        && function.name != SYNCS
                });
                names.extend(reads.map(|function| Arc::from(function.name)));
            }
        }
        names.into_iter().collect()
    }

    /// The functions that have a limit, a route, a class or a cost of their own, each once, in
    /// the order of their sections.
    pub(super) fn functions(&self) -> Vec<&str> {
        let windows_on = !self.limits.window.value.is_zero();
        let limited = self.limits.per_window.value.functions.iter();
        let limited = limited.filter(|limit| windows_on && limit.calls > 0);
        let routes = self.routes.iter();
        let costs = self.costs.functions.value.iter();
        let paces = self.paces.iter().filter_map(PaceSection::function_met);
        let quotas = self.quotas.iter().filter_map(QuotaSection::function_met);
        let named = limited
            .map(|limit| &*limit.name)
            .chain(routes.filter_map(|route| route.function.value.as_deref()))
            .chain(costs.map(|(name, _)| name.as_str()))
            .chain(self.functions_of_classes())
            .chain(paces.chain(quotas).map(|name| &**name));
        let mut seen = BTreeSet::new();
        named.filter(|name| seen.insert(*name)).collect()
    }

    /// The functions of classes that the table does not know: they are labels of their own.
    fn functions_of_classes(&self) -> impl Iterator<Item = &str> {
        let kind = self.backend_kind();
        let placed = self
            .classes
            .iter()
            .flat_map(|it| &it.placed.functions.value);
        let exempt = self.exempt.exempt.value.iter();
        placed
            .chain(exempt.filter(|name| ***name != *DATABASE))
            .map(|name| &**name)
            .filter(move |name| kind.function(name).is_none())
    }

    /// Adds `user` and `polling` where the config does not say them, and puts the classes in
    /// order: `user` first and `polling` last, because calls of a class that a reload takes away
    /// come to the last.
    pub(super) fn add_built_in_classes(&mut self) {
        for name in [USER, POLLING] {
            let is_this = |it: &Class| it.class.name.value.as_deref() == Some(name);
            if !self.classes.iter().any(is_this) {
                let reading = ConfigReader::of(&format!("[[class]]\nname = \"{name}\"\n"), "");
                self.classes
                    .extend(reading.root().each::<Class>("class", 1));
            }
        }
        self.classes
            .sort_by_key(|it| match it.class.name.value.as_deref() {
                Some(USER) => 0,
                Some(POLLING) => 2,
                _ => 1,
            });
    }

    /// The classes, for the gate.
    pub(super) fn class_rules(&self) -> Vec<ClassRule> {
        let rule = |Class { class, .. }: &Class| {
            let pool = match class.beside_total.value {
                true => ClassPool::Beside,
                false => ClassPool::Inside,
            };
            let weight = class.weight.value.expect("a class has a weight");
            let mode = class.mode.value;
            ClassRule {
                deadline: class.max_wait.value.unwrap_or(ClassDeadline::Ordinary),
                pool: class.outstanding_max.value.map(pool),
                per_window: class.per_window.value,
                reserve_outstanding: class.reserve_outstanding.value,
                reserve_per_window: class.reserve_per_window.value,
                outstanding_mode: mode.unwrap_or(self.limits.at_once_mode()),
                window_mode: mode.unwrap_or(self.limits.windows_mode()),
                ..ClassRule::weighing(&class.name.required(), weight)
            }
        };
        self.classes.iter().map(rule).collect()
    }

    /// The classes, for the classifier.
    pub(super) fn class_settings(&self) -> class::ClassSettings {
        let rules = self.class_rules();
        let user = rules[0].weight;
        let known = rules.iter().map(|rule| KnownClass {
            name: Arc::clone(&rule.name),
            may_rise: rule.weight < user && rule.pool.is_none() && rule.per_window.is_none(),
        });
        let (mut functions, mut efforts) = (Vec::new(), Vec::new());
        for (rule, Class { placed, .. }) in rules.iter().zip(&self.classes) {
            let names = placed.functions.value.iter();
            functions.extend(names.map(|name| (Arc::clone(name), Arc::clone(&rule.name))));
            let effort = placed.effort.value;
            efforts.extend(effort.map(|effort| (effort, Arc::clone(&rule.name))));
        }
        let listeners = self.listen.iter().flatten();
        let listeners = listeners.map(|it| it.class.settings(it.listen.name.required()));
        class::ClassSettings {
            classes: known.collect(),
            functions,
            efforts,
            listeners: listeners
                .filter(|it| it.class_header || it.class.is_some())
                .collect(),
            header: self.header.header.value.clone(),
        }
    }
}

/// The weight of a class that the config gives none.
pub(super) fn usual_weight(name: &str) -> u32 {
    if name == USER { USER_WEIGHT } else { 1 }
}
