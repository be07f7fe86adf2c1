//! Which quotas a call draws from, and for whom.
//!
//! A key is the same on every sidecar that sees the same call, since they share what is kept
//! for it: it is made of names, never of numbers that one of them gave.

use std::borrow::Cow;
use std::sync::Arc;

use tidegate_limits::{FunctionId, QuotaKey};

use super::functions::Functions;
use super::settings::{QUOTAS_MAX, Quota, QuotaBy};
use crate::call::Identity;
use crate::call::claim::QUOTA_KEY_BYTES_MAX;
use crate::telemetry::metrics::RATE_LIMIT_PREFIX;

/// The quotas that there are.
#[derive(Debug, Default)]
pub(super) struct Quotas(Vec<Kept>);

/// A quota, and what is the same for many calls.
#[derive(Debug)]
struct Kept {
    quota: Quota,
    /// The key of whoever is not told apart: the quota's own, or that of nobody.
    key: Arc<str>,
}

/// What of a call decides about its keys.
pub(super) struct Asking<'a> {
    pub(super) identity: &'a Identity,
    pub(super) function: &'a str,
    pub(super) functions: &'a Functions,
    pub(super) function_id: FunctionId,
    /// Whether its caller is exempt from rate limits.
    pub(super) is_exempt: bool,
}

impl Quotas {
    pub(super) fn new(quotas: &[Quota]) -> Self {
        let kept = quotas.iter().take(QUOTAS_MAX).map(|quota| {
            let key = match &quota.by {
                QuotaBy::Total => {
                    let bare = quota.name.strip_prefix(RATE_LIMIT_PREFIX);
                    bare.unwrap_or(&quota.name).into()
                }
                QuotaBy::Function(Some(function)) => Arc::clone(function),
                QuotaBy::Function(None) | QuotaBy::Caller | QuotaBy::User => Arc::default(),
            };
            Kept {
                quota: quota.clone(),
                key,
            }
        });
        Self(kept.collect())
    }

    /// Every key that a call draws from; none, and no memory for it, where there is no quota.
    /// `caller` says the name of its caller, and is asked for once at most.
    pub(super) fn of(
        &self,
        asking: &Asking<'_>,
        caller: impl FnOnce() -> Option<Arc<str>>,
    ) -> Option<Arc<[QuotaKey]>> {
        if self.0.is_empty() {
            return None;
        }
        let is_met = |kept: &&Kept| match &kept.quota.by {
            QuotaBy::Total | QuotaBy::Function(None) => true,
            QuotaBy::Function(Some(function)) => **function == *asking.function,
            QuotaBy::Caller | QuotaBy::User => !asking.is_exempt,
        };
        let met = || self.0.iter().filter(is_met);
        let by_caller = met().any(|kept| kept.quota.by == QuotaBy::Caller);
        let caller = by_caller.then(caller).flatten();
        let keys = met().map(|kept| {
            let own = match &kept.quota.by {
                QuotaBy::Total | QuotaBy::Function(Some(_)) => None,
                QuotaBy::Function(None) => Some(asking.function_key()),
                QuotaBy::Caller => caller.clone(),
                QuotaBy::User => asking.identity.user.clone(),
            };
            QuotaKey {
                quota: Arc::clone(&kept.quota.name),
                key: own.unwrap_or_else(|| Arc::clone(&kept.key)),
            }
        });
        let keys: Arc<[QuotaKey]> = keys.collect();
        (!keys.is_empty()).then_some(keys)
    }
}

impl Asking<'_> {
    fn function_key(&self) -> Arc<str> {
        let known = self.functions.name(self.function_id);
        if **known == *self.function {
            return Arc::clone(known);
        }
        fitting(self.function.into()).as_ref().into()
    }
}

/// A name as a key: of one that is too long the beginning, and a number that tells it from others
/// that begin so. Nobody gains by a second name of the same number: it spends of the same quota.
pub(super) fn fitting(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.len() <= QUOTA_KEY_BYTES_MAX {
        return name;
    }
    const DIGITS: usize = 32;
    let mut end = QUOTA_KEY_BYTES_MAX - DIGITS - 1;
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}~{:032x}", &name[..end], fnv1a(name.as_bytes())).into()
}

/// FNV-1a of 128 bits, by G. Fowler, L. C. Noll and K.-P. Vo: the same everywhere and in every
/// version, unlike the hashes of the standard library.
fn fnv1a(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &str, hash: u128) {
        assert_eq!(fnv1a(bytes.as_bytes()), hash, "{bytes:?}");
    }

    #[test]
    fn the_number_of_a_long_name_is_the_published_hash() {
        check("", 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        check("a", 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        check("foobar", 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    #[test]
    fn a_name_too_long_for_a_key_is_told_apart_from_others_that_begin_so() {
        let long = |last: &str| format!("{}{last}", "ä".repeat(200));
        let key = |name: &str| fitting(name.into()).into_owned();
        assert_eq!(key("alice"), "alice");
        let longest = "x".repeat(QUOTA_KEY_BYTES_MAX);
        assert_eq!(key(&longest), longest);
        let (one, other) = (key(&long("a")), key(&long("b")));
        assert!(one.len() <= QUOTA_KEY_BYTES_MAX, "{}", one.len());
        assert_ne!(one, other);
        assert_eq!(one, key(&long("a")));
    }
}
