//! Changes by operators while the proxy runs. Whatever is refused has changed nothing.

use std::sync::Arc;

use tidegate_callers::{
    CallerId, Charge, FunctionId, Label, NewCaller, Patch, RateLimitId, TableError,
};
use tidegate_limits::{Burst, Fill, Timestamp};

use super::functions::FUNCTIONS_MAX;
use super::rate_limit::{
    Allowance, NewRateLimit, RATE_LIMITS_MAX, RateLimit, RateLimitOrigin, RateLimitPatch, Rule,
    Size, SizePatch,
};
use super::shown::suggestion;
use super::{Callers, CallersState, ChangeResult, Error};
use crate::call::costs::Costs;

impl Callers {
    /// Makes a caller. Rows that had registered themselves by one of its patterns become part
    /// of it.
    ///
    /// # Errors
    /// What is wrong with it, which caller has one of its patterns, or that there is no such
    /// rate limit.
    pub fn create(&self, new: NewCaller) -> Result<ChangeResult<CallerId>, Error> {
        self.recharge(|state| {
            state.check_charge(new.charge)?;
            let before = state.members();
            let inserted = state.table.insert(new)?;
            for fold in inserted.folded {
                state.fold(fold.from, fold.into);
            }
            state.follow_groups(&before, &[]);
            Ok(inserted.id)
        })
    }

    /// Changes a caller. One that had registered itself is kept from now on.
    ///
    /// # Errors
    /// If there is none of that id, if it stands in the config, or if there is no such rate
    /// limit.
    pub fn patch(&self, id: CallerId, patch: Patch) -> Result<ChangeResult<()>, Error> {
        self.recharge(|state| {
            let before = state.members();
            state.check_charge(patch.charge.unwrap_or_default())?;
            state.table.patch(id, patch)?;
            state.follow_groups(&before, &[]);
            Ok(())
        })
    }

    /// Removes a caller. Its next call may register itself again.
    ///
    /// # Errors
    /// If there is none of that id, if it stands in the config, or is the unknown row.
    pub fn delete(&self, id: CallerId) -> Result<ChangeResult<()>, Error> {
        self.recharge(|state| {
            let before = state.members();
            state.table.remove(id)?;
            state.accounts.remove(&id);
            state.follow_groups(&before, &[]);
            Ok(())
        })
    }

    /// Makes the patterns of `from` alternatives of `into`, adds up their statistics, and gives
    /// the one that stays a label if there is one.
    ///
    /// # Errors
    /// If one of them does not exist, stands in the config or is the unknown row, or if they
    /// have different rate limits.
    pub fn merge(
        &self,
        into: CallerId,
        from: &[CallerId],
        label: Option<Label>,
    ) -> Result<ChangeResult<()>, Error> {
        self.recharge(|state| {
            let before = state.groups_of(std::iter::once(into).chain(from.iter().copied()));
            state.table.merge(into, from)?;
            for (part, groups) in before {
                state.bring_into_groups(part, &groups, into);
            }
            for &gone in from {
                state.fold(gone, into);
            }
            if label.is_some() {
                let patch = Patch {
                    label,
                    ..Patch::default()
                };
                state
                    .table
                    .patch(into, patch)
                    .expect("what could be merged into can be named");
            }
            Ok(())
        })
    }

    /// Makes a rate limit.
    ///
    /// # Errors
    /// If its label is taken, if there are too many, if its profile or one of its callers does
    /// not exist, or if nothing can be derived.
    pub fn create_rate_limit(
        &self,
        now: Timestamp,
        new: NewRateLimit,
    ) -> Result<ChangeResult<RateLimitId>, Error> {
        let attaches = !new.callers.is_empty();
        let make = |state: &mut CallersState| {
            if state.rate_limits.len() >= RATE_LIMITS_MAX {
                return Err(Error::TooManyRateLimits);
            }
            let id = RateLimitId(state.rate_limits_made + 1);
            let label = match &new.label {
                Some(label) => state.free_label(label, None)?,
                None => id.to_string().into(),
            };
            let (allowance, profile) = state.size(now, &new.size)?;
            let callers = &new.callers;
            state.can_be_attached(callers)?;
            let limit = RateLimit {
                id,
                label,
                made_by: RateLimitOrigin::Api,
                rule: Rule {
                    allowance,
                    profile,
                    handling: new.handling,
                },
            };
            state.attach_all(callers, id)?;
            state.rate_limits_made += 1;
            state.rate_limits.insert(id, limit);
            Ok(id)
        };
        match attaches {
            true => self.recharge(make),
            false => self.change(make),
        }
    }

    /// Changes a rate limit in place: its tokens and those that wait for it are kept.
    ///
    /// # Errors
    /// If there is none of that id, if it stands in the config, if its label is taken, or if
    /// there is no such profile.
    pub fn patch_rate_limit(
        &self,
        id: RateLimitId,
        patch: RateLimitPatch,
    ) -> Result<ChangeResult<()>, Error> {
        self.change(|state| {
            let mut limit = state.changeable(id)?.clone();
            if let Some(label) = &patch.label {
                limit.label = state.free_label(label, Some(id))?;
            }
            let rule = &mut limit.rule;
            if let Some(size) = patch.size {
                (rule.allowance, rule.profile) = state.patched(rule, size)?;
            }
            rule.handling = patch.handling.of(rule.handling);
            state.rate_limits.insert(id, limit);
            Ok(())
        })
    }

    /// Removes a rate limit. Its callers have none of their own then. Calls that wait for it are
    /// charged to the next match, or continue without one.
    ///
    /// # Errors
    /// If there is none of that id, or if it stands in the config.
    pub fn delete_rate_limit(&self, id: RateLimitId) -> Result<ChangeResult<()>, Error> {
        self.change(|state| {
            state.changeable(id)?;
            state.rate_limits.remove(&id);
            state.table.detach(id);
            Ok(())
        })
    }

    /// Gives a caller a rate limit, instead of its current one.
    ///
    /// # Errors
    /// If there is no such caller or rate limit, or if the caller stands in the config.
    pub fn attach(&self, id: RateLimitId, caller: CallerId) -> Result<ChangeResult<()>, Error> {
        self.recharge(|state| {
            let charge = Charge::Limit(id);
            state.check_charge(charge)?;
            state.set_charge(caller, charge)
        })
    }

    /// Takes a rate limit away from a caller.
    ///
    /// # Errors
    /// If there is no such caller or rate limit, if the caller has another, or stands in the
    /// config.
    pub fn detach(&self, id: RateLimitId, caller: CallerId) -> Result<ChangeResult<()>, Error> {
        self.recharge(|state| {
            let charge = Charge::Limit(id);
            state.check_charge(charge)?;
            let row = state.table.get(caller).ok_or(TableError::Unknown(caller))?;
            if row.charge != charge {
                let rate_limit = id;
                return Err(Error::NotAttached { rate_limit, caller });
            }
            state.set_charge(caller, Charge::None)
        })
    }

    /// Changes what calls cost, from the next one on.
    ///
    /// # Errors
    /// If there would be too many functions with names.
    pub fn put_costs(&self, costs: Costs) -> Result<ChangeResult<()>, Error> {
        self.change(|state| {
            let is_new = |name: &&Arc<str>| state.functions.find(name) == FunctionId::OTHER;
            if costs.functions.keys().filter(is_new).count() > state.functions.room() {
                return Err(Error::TooManyFunctions(FUNCTIONS_MAX));
            }
            state.set_costs(costs);
            Ok(())
        })
    }
}

impl CallersState {
    /// Whether the rate limit that a row is to be charged to exists.
    fn check_charge(&self, charge: Charge) -> Result<(), Error> {
        match charge.limit() {
            Some(id) if !self.rate_limits.contains_key(&id) => Err(Error::UnknownRateLimit(id)),
            _ => Ok(()),
        }
    }

    fn set_charge(&mut self, caller: CallerId, charge: Charge) -> Result<(), Error> {
        let patch = Patch {
            charge: Some(charge),
            ..Patch::default()
        };
        Ok(self.table.patch(caller, patch)?)
    }

    /// Whether each of these can be given a rate limit, so that either all are or none.
    fn can_be_attached(&self, callers: &[CallerId]) -> Result<(), Error> {
        for &id in callers {
            let row = self.table.get(id).ok_or(TableError::Unknown(id))?;
            if row.kind == tidegate_callers::RowKind::Static {
                return Err(TableError::IsStatic(id).into());
            }
        }
        Ok(())
    }

    fn attach_all(&mut self, callers: &[CallerId], limit: RateLimitId) -> Result<(), Error> {
        let before: Vec<_> = callers
            .iter()
            .filter_map(|&id| Some((id, self.table.get(id)?.charge)))
            .collect();
        for (at, &id) in callers.iter().enumerate() {
            if let Err(mistake) = self.set_charge(id, Charge::Limit(limit)) {
                // There was no room to keep the row.
                for &(id, charge) in &before[..at] {
                    self.set_charge(id, charge)
                        .expect("a row that was kept can be changed");
                }
                return Err(mistake);
            }
        }
        Ok(())
    }

    fn changeable(&self, id: RateLimitId) -> Result<&RateLimit, Error> {
        let limit = self.rate_limits.get(&id);
        let limit = limit.ok_or(Error::UnknownRateLimit(id))?;
        match limit.made_by {
            RateLimitOrigin::Api => Ok(limit),
            RateLimitOrigin::Config => Err(Error::RateLimitIsStatic(id)),
        }
    }

    /// A label that no other rate limit has.
    fn free_label(&self, label: &Label, own: Option<RateLimitId>) -> Result<Arc<str>, Error> {
        let text = label.as_str();
        if is_id(text) && own.is_none_or(|own| own.to_string() != text) {
            return Err(Error::LabelIsAnId(text.into()));
        }
        if self.configured.reserved.iter().any(|name| **name == *text) {
            return Err(Error::LabelInConfig(text.into()));
        }
        let mut others = self.rate_limits.values();
        let holder = others.find(|other| *other.label == *text && Some(other.id) != own);
        match holder {
            Some(holder) => Err(Error::LabelTaken {
                label: text.into(),
                holder: holder.id,
            }),
            None => Ok(text.into()),
        }
    }

    fn profile(&self, name: &Arc<str>) -> Result<(Allowance, Option<Arc<str>>), Error> {
        let profile = self.profiles.iter().find(|profile| profile.name == *name);
        let profile = profile.ok_or_else(|| Error::UnknownProfile(Arc::clone(name)))?;
        Ok((profile.allowance, Some(Arc::clone(name))))
    }

    fn size(&self, now: Timestamp, size: &Size) -> Result<(Allowance, Option<Arc<str>>), Error> {
        match size {
            Size::Profile(name) => self.profile(name),
            Size::Given(allowance) => Ok((*allowance, None)),
            &Size::Derived(derive) => {
                let suggestion = suggestion(now, derive, self.usage_of(derive.caller)?)?;
                // Rounded up, the most that there may be could be exceeded.
                let burst = Burst::new(suggestion.burst.min(1e9));
                let fill = Fill::new(suggestion.fill.min(1e9));
                let allowance = Allowance::Bucket {
                    burst: burst.expect("a suggestion is a burst"),
                    fill: fill.expect("a suggestion is a fill rate"),
                };
                Ok((allowance, None))
            }
        }
    }

    fn patched(
        &self,
        rule: &Rule,
        patch: SizePatch,
    ) -> Result<(Allowance, Option<Arc<str>>), Error> {
        match patch {
            SizePatch::Profile(name) => self.profile(&name),
            SizePatch::Exempt => Ok((Allowance::Exempt, None)),
            SizePatch::Bucket { burst, fill } => {
                let (was_burst, was_fill) = rule.allowance.bucket().unzip();
                let allowance = Allowance::Bucket {
                    burst: burst.or(was_burst).ok_or(Error::SizeMissing("burst"))?,
                    fill: fill.or(was_fill).ok_or(Error::SizeMissing("fill"))?,
                };
                Ok((allowance, None))
            }
            SizePatch::Paced { rate, ratio } => {
                let (was_rate, was_ratio) = rule.allowance.pace().unzip();
                let allowance = Allowance::Paced {
                    rate: rate.or(was_rate).ok_or(Error::SizeMissing("rate"))?,
                    ratio: ratio.or(was_ratio).unwrap_or_default(),
                };
                Ok((allowance, None))
            }
        }
    }
}

/// Whether a text could be the id of a rate limit.
fn is_id(text: &str) -> bool {
    text.strip_prefix('r').is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}
