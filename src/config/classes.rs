//! Classes and functions, from the sections that name them to the settings of the gate and the
//! classifier.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::admit::{ClassRule, Deadline, Pool};
use crate::call::BackendKind;
use crate::call::sdk::{Effort, Kind as Writes};
use crate::classify::class::{self, FromListener, Known, POLLING, USER};
use crate::options::Reading;

use super::sections::{Class, Sections};

/// What stands for all functions that only read the SDK's own database.
pub(super) const DATABASE: &str = "db";
/// It only reads the database, unless it is asked to fetch what is new from SMAPI.
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

    /// The functions that meet no limit, each once.
    pub(super) fn exempt_functions(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for name in &self.exempt.exempt.value {
            if **name != *DATABASE {
                names.push(name);
            } else {
                let reads = self.backend_kind().functions().iter().filter(|function| {
                    function.effort == Effort::Db
                        && function.kind == Writes::Read
                        && function.name != SYNCS
                });
                names.extend(reads.map(|function| function.name));
            }
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The functions that have a limit, a route, a class or a cost of their own, each once, in
    /// the order of their sections.
    pub(super) fn functions(&self) -> Vec<&str> {
        let windows_on = self.limits.window_size_seconds.value > 0;
        let limited = self.limits.per_window.value.functions.iter();
        let limited = limited.filter(|limit| windows_on && limit.calls > 0);
        let routes = self.routes.iter();
        let named = limited
            .map(|limit| &*limit.name)
            .chain(routes.filter_map(|route| route.function.value.as_deref()))
            .chain(
                self.costs
                    .functions
                    .value
                    .iter()
                    .map(|(name, _)| name.as_str()),
            )
            .chain(self.functions_of_classes())
            .chain(
                self.rate_limits
                    .iter()
                    .filter_map(|it| Some(&**it.limit.function_met()?)),
            );
        let mut order = BTreeMap::new();
        for (index, name) in named.enumerate() {
            order.entry(name).or_insert(index);
        }
        let mut names: Vec<_> = order.into_iter().collect();
        names.sort_by_key(|(_, index)| *index);
        names.into_iter().map(|(name, _)| name).collect()
    }

    /// The functions of classes that the table does not know: they are labels of their own.
    fn functions_of_classes(&self) -> impl Iterator<Item = &str> {
        let kind = self.backend_kind();
        let classes = self
            .classes_in_order()
            .into_iter()
            .filter_map(|(_, class)| class);
        let placed = classes.flat_map(|class| &class.placed.functions.value);
        let exempt = self.exempt.exempt.value.iter();
        placed
            .chain(exempt.filter(|name| ***name != *DATABASE))
            .map(|name| &**name)
            .filter(move |name| kind.function(name).is_none())
    }

    /// Every class by its name, with what the config says of it: `user` first and `polling` last,
    /// because calls of a class that a reload takes away come to the last.
    pub(super) fn classes_in_order(&self) -> Vec<(&str, Option<&Class>)> {
        let name_of = |class: &'_ Class| class.class.name.value.clone();
        let named = |name: &str| {
            self.classes
                .iter()
                .find(|it| name_of(it).as_deref() == Some(name))
        };
        let own = self.classes.iter().filter_map(|class| {
            let name = class.class.name.value.as_deref()?;
            (name != USER && name != POLLING).then_some((name, Some(class)))
        });
        let mut classes = vec![(USER, named(USER))];
        classes.extend(own);
        classes.push((POLLING, named(POLLING)));
        classes
    }

    /// Adds `user` and `polling` where the config does not say them, and puts the classes in
    /// order.
    pub(super) fn add_built_in_classes(&mut self) {
        for name in [USER, POLLING] {
            let is_this = |it: &Class| it.class.name.value.as_deref() == Some(name);
            if !self.classes.iter().any(is_this) {
                let reading = Reading::of(&format!("[[class]]\nname = \"{name}\"\n"), "");
                let classes = reading.root().each("class", 1).into_iter();
                let classes = classes.map(|(class, placed)| Class { class, placed });
                self.classes.extend(classes);
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
        let rule = |(name, class): (&str, Option<&Class>)| {
            let usual = usual_weight(name);
            let Some(Class { class, .. }) = class else {
                return ClassRule::weighing(name, usual);
            };
            let pool = match class.beside_total.value {
                true => Pool::Beside,
                false => Pool::Inside,
            };
            ClassRule {
                deadline: class.deadline.value.unwrap_or(Deadline::Threshold),
                pool: class.outstanding_max.value.map(pool),
                per_window: class.per_window.value,
                reserve_outstanding: class.reserve_outstanding.value,
                reserve_per_window: class.reserve_per_window.value,
                ..ClassRule::weighing(name, class.weight.value.unwrap_or(usual))
            }
        };
        self.classes_in_order().into_iter().map(rule).collect()
    }

    /// The classes, for the classifier.
    pub(super) fn class_settings(&self) -> class::Settings {
        let rules = self.class_rules();
        let user = rules[0].weight;
        let known = rules.iter().map(|rule| Known {
            name: Arc::clone(&rule.name),
            may_rise: rule.weight < user && rule.pool.is_none() && rule.per_window.is_none(),
        });
        let (mut functions, mut efforts) = (Vec::new(), Vec::new());
        for (rule, (_, class)) in rules.iter().zip(self.classes_in_order()) {
            let Some(Class { placed, .. }) = class else {
                continue;
            };
            let names = placed.functions.value.iter();
            functions.extend(names.map(|name| (Arc::clone(name), Arc::clone(&rule.name))));
            let effort = placed.effort.value;
            efforts.extend(effort.map(|effort| (effort, Arc::clone(&rule.name))));
        }
        let listeners = self.listen.iter().flatten().map(|it| FromListener {
            listener: it.listen.name.required(),
            class: it.class.class.value.clone(),
            header: it.class.class_header.value,
        });
        class::Settings {
            classes: known.collect(),
            functions,
            efforts,
            listeners: listeners
                .filter(|it| it.header || it.class.is_some())
                .collect(),
            header: self.header.header.value.clone(),
        }
    }
}

/// The weight of a class that the config gives none.
pub(super) fn usual_weight(name: &str) -> u32 {
    if name == USER { USER_WEIGHT } else { 1 }
}
