//! The routes, costs and exempt functions that a dialect has built in. The operator's own lines come before them.

use std::sync::Arc;

use super::FORM;
use super::sections::Sections;
use crate::call::costs::Costs;
use crate::callers::options::CostsSection;
use crate::classify::Route;
use crate::classify::jobs::options::tasks_of_xapi;
use crate::classify::message::dialects::RpcDialect;
use crate::classify::options::{ExemptSection, ROUTES_MAX, RouteSection};
use crate::options::ConfigReader;

/// The content of a dialect's file.
pub(super) struct Preset {
    /// The routes of the dialect.
    pub(super) routes: Vec<Route>,
    /// Functions that meet no limit.
    exempt: Vec<Arc<str>>,
    costs: Costs,
}

impl Preset {
    pub(super) fn of(dialect: RpcDialect) -> Self {
        let mut reading = ConfigReader::of(dialect.preset(), FORM);
        let root = reading.root();
        let sections = root.sections("route", ROUTES_MAX).unwrap_or_default();
        let routes = sections.iter();
        let routes = routes.map(|section| section.read::<RouteSection>().settings());
        let preset = Self {
            routes: routes.collect(),
            exempt: root.section("limits").read::<ExemptSection>().exempt.value,
            costs: root.section("costs").read::<CostsSection>().costs(),
        };
        debug_assert!(
            reading.problems().is_empty(),
            "the preset of a dialect is sound"
        );
        preset
    }
}

impl Sections {
    fn preset(&self) -> Option<Preset> {
        self.kind.dialect.value.map(Preset::of)
    }

    /// The routes of the operator, and behind them those of the dialect.
    pub(super) fn every_route(&self) -> Vec<Route> {
        let own = self.routes.iter().map(RouteSection::settings);
        let preset = self.preset();
        let with_tasks =
            self.jobs.dialect.value && self.kind.dialect.value == Some(RpcDialect::Xapi);
        let preset = preset
            .into_iter()
            .flat_map(|it| it.routes)
            .map(|mut route| {
                if with_tasks && !route.function_from.is_empty() {
                    route.job = Some(tasks_of_xapi());
                }
                route
            });
        own.chain(preset).collect()
    }

    /// The costs of the operator over those of the dialect.
    pub(super) fn every_cost(&self) -> Costs {
        let mut costs = self.costs.costs();
        let preset = self.preset();
        for (name, cost) in preset.into_iter().flat_map(|it| it.costs.functions) {
            costs.functions.entry(name).or_insert(cost);
        }
        costs
    }

    /// The functions that the dialect exempts, without those for which the config has a line of their own.
    pub(super) fn exempt_by_dialect(&self) -> Vec<Arc<str>> {
        let own = self.functions();
        let preset = self.preset();
        let exempt = preset.into_iter().flat_map(|it| it.exempt);
        exempt.filter(|name| !own.contains(&&**name)).collect()
    }
}
