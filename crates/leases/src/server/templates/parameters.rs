//! The named parameters of an algorithm.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::book::Capacity;

use super::{LEVEL_MAX, Mistakes, TemplateSource};
use crate::wire::NamedParameter;

/// The named parameters that are understood.
#[derive(Default)]
pub(super) struct Parameters {
    pub(super) lease: Option<i64>,
    pub(super) refresh: Option<i64>,
    pub(super) decay: Option<f64>,
    pub(super) level: Option<u32>,
    pub(super) by_priority: Option<bool>,
    pub(super) at_once: bool,
    pub(super) frees_after: Option<Duration>,
    pub(super) clients: Option<NonZeroU64>,
    pub(super) share: Option<Capacity>,
    pub(super) each: Option<Capacity>,
}

impl Parameters {
    pub(super) fn read(
        raw: Vec<NamedParameter>,
        heard: TemplateSource,
        mistakes: &mut Mistakes,
    ) -> Self {
        let mut read = Self::default();
        let mut names: Vec<String> = Vec::new();
        for NamedParameter { name, value } in raw {
            let key = format!("algorithm.parameters.{name}");
            if names.contains(&name) {
                mistakes.add(key, "is given twice: write it once");
                continue;
            }
            let Some(text) = value else {
                mistakes.add(key, "has no value");
                continue;
            };
            if let Err(expected) = read.take(&name, &text, heard) {
                mistakes.add(key, format!("is {text:?}: {expected}"));
            }
            names.push(name);
        }
        if read.at_once && read.frees_after.is_some_and(|after| !after.is_zero()) {
            mistakes.add(
                "algorithm.parameters.frees_after_ms",
                "is not zero although frees is at_once: remove one of them",
            );
        }
        read
    }

    /// The error contains the cure.
    fn take(&mut self, name: &str, text: &str, heard: TemplateSource) -> Result<(), String> {
        let text = text.trim();
        match name {
            "lease_duration_secs" => self.lease = Some(number(text, "whole seconds", |_| true)?),
            "refresh_interval" => self.refresh = Some(number(text, "whole seconds", |_| true)?),
            "decay_factor" => {
                let is_allowed = |decay: &f64| *decay > 0.0 && *decay <= 1.0;
                let what = "a number above 0 and at most 1";
                self.decay = Some(number(text, what, is_allowed)?);
            }
            "priority_bands" => self.by_priority = Some(number(text, "true or false", |_| true)?),
            "frees" => match text {
                "at_once" => self.at_once = true,
                "confirmed" => self.at_once = false,
                _ => return Err("it must be at_once or confirmed".to_owned()),
            },
            "frees_after_ms" => {
                let is_allowed = |millis: &u64| *millis <= 24 * 3_600_000;
                let millis = number(text, "milliseconds, at most a day", is_allowed)?;
                self.frees_after = Some(Duration::from_millis(millis));
            }
            "reserved_clients" => {
                let clients: u64 = number(text, "how many clients there are at most", |_| true)?;
                self.clients = NonZeroU64::new(clients);
            }
            "safe_share" => self.share = Some(amount(text)?),
            "capacity" => self.each = Some(amount(text)?),
            "level" if heard == TemplateSource::FromAbove => {
                self.level = Some(number::<u32>(text, "a number", |_| true)?.min(LEVEL_MAX));
            }
            "level" => return Err("it is what servers tell one another: remove it".to_owned()),
            _ => {
                return Err(
                    "there is no such parameter; there are lease_duration_secs, refresh_interval, \
                     decay_factor, priority_bands, frees, frees_after_ms, reserved_clients, \
                     safe_share and capacity"
                        .to_owned(),
                );
            }
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(
    text: &str,
    what: &str,
    is_allowed: impl FnOnce(&T) -> bool,
) -> Result<T, String> {
    let number = text.parse().ok().filter(is_allowed);
    number.ok_or_else(|| format!("it must be {what}"))
}

fn amount(text: &str) -> Result<Capacity, String> {
    let what = "a finite number, not below 0";
    let given = number(text, what, |_| true)?;
    Capacity::new(given).map_err(|_| format!("it must be {what}"))
}
