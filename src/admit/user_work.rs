//! The part of a call in promotion: a read that may be promoted, or user work that promotes reads.

use std::sync::Arc;

use tidegate_limits::{Class, Timestamp};

use super::decision::Lane;
use super::lock::{GateLock, GateState};
use super::promotion::{EffectiveClass, PromotedRecords, WorkEnd};
use super::settings::USER;
use crate::call::Role;

/// The part that a call has in promotion, while it is under way.
pub(super) enum Promotion {
    /// No part.
    None,
    /// A read of a guest, which is promoted while users act on that. The guest, if the record of the call does not name it.
    Read(Option<Box<str>>),
    /// User work on a guest, until this is dropped.
    UserWork(UserWork),
}

/// A user call on a guest that was passed to `Promotions::begins`, until it is dropped.
pub(super) struct UserWork {
    pub(super) lock: Arc<GateLock>,
    /// `None` once it has ended.
    pub(super) guest: Option<Arc<str>>,
    pub(super) ending: WorkEnd,
}

impl UserWork {
    pub(super) fn end(&mut self, state: &mut GateState, now: Timestamp) {
        if let Some(guest) = self.guest.take() {
            state.promotions.ends(&guest, now, self.ending);
        }
    }
}

impl Drop for UserWork {
    fn drop(&mut self) {
        if self.guest.is_some() {
            // No turn results from it, so the scheduler is not asked.
            let lock = Arc::clone(&self.lock);
            let mut state = lock.lock();
            let now = lock.clock.now();
            self.end(&mut state, now);
        }
    }
}

impl GateState {
    /// Whether the guest of a call decides anything.
    pub(super) fn looks_at_guest(&self, lane: Lane, role: Role) -> bool {
        lane == Lane::Limited && self.promotions.looks_at_guest(role)
    }

    /// The class in which a call waits.
    pub(super) fn effective_class(
        &self,
        own: Class,
        role: Role,
        guest: Option<&str>,
        now: Timestamp,
    ) -> Class {
        let follows = role == Role::Follows
            && guest.is_some_and(|guest| self.promotions.is_acted_on(guest, now));
        if follows { USER } else { own }
    }

    /// A user call on a guest promotes the reads that wait for the same guest. It is submitted first,
    /// so they do not go before it.
    pub(super) fn begin_user_work(
        &mut self,
        lock: &Arc<GateLock>,
        guest: Box<str>,
        now: Timestamp,
        promoted: &mut PromotedRecords,
    ) -> UserWork {
        let guest: Arc<str> = guest.into();
        for follower in self.promotions.begins(&guest, now) {
            let calls = &mut self.lanes[Lane::Limited as usize];
            if let Some(waiter) = calls.payload_mut(follower.ticket) {
                waiter.class = EffectiveClass::Users;
                calls.reclass(now, follower.ticket, USER);
                promoted.moves(&follower.record, now);
            }
        }
        UserWork {
            lock: Arc::clone(lock),
            guest: Some(guest),
            ending: WorkEnd::NoSuccess,
        }
    }
}
