//! The decisions of a candidate about the register, without I/O: from the time and the store's answers it decides
//! the next step and whether it is the master.
//!
//! Two rules make it safe, with any message lost or late and any process paused:
//!
//! - A master's fence ends one time to live, less a guard, after the moment that its last
//!   effective write was *sent*.
//! - No candidate overwrites or replaces another's record within one time to live after having
//!   *seen* it, unless it is a resignation. A record is seen after it was sent.
//!
//! So after the sending of a write, another's takeover comes at least a time to live later on the
//! other's clock, and the fence ends a guard earlier than that on the master's.

use std::time::Duration;

use tidegate_limits::Timestamp;

use crate::BackOff;

use super::register::{CandidateRecord, RegisterEntry, RegisterSwap, RegisterVersion};
use super::{Mastership, TimeToLive};

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CandidateStep {
    /// Read the register.
    Read,
    /// Note the time ([`Candidate::sent`]), then write this.
    Write {
        expected: Option<RegisterVersion>,
        record: CandidateRecord,
    },
    /// No step before this moment, unless the register may have changed.
    Wait(Timestamp),
}

/// A candidate of the election.
#[derive(Debug)]
pub(super) struct Candidate {
    id: String,
    address: String,
    ttl: TimeToLive,
    known: RegisterView,
    tenure: Option<Tenure>,
    rival: Option<Rival>,
    /// Records sent so far.
    writes: u64,
    /// The write in progress or with an unknown outcome, and when it was sent.
    unsettled: Option<(u64, Timestamp)>,
    /// The last write failed.
    writes_fail: bool,
    back_off: BackOff,
    /// When the register was last read.
    looked: Timestamp,
    /// No write before this moment: a store that refuses the version that it has just shown is
    /// behind its own writes, and faster requests do not help.
    write_at: Timestamp,
}

/// The register's content, as far as this candidate knows.
#[derive(Debug)]
enum RegisterView {
    /// The register must be read, but not before this moment.
    Unread { not_before: Timestamp },
    /// No record.
    Absent { look_at: Timestamp },
    /// The register has this candidate's record, to be renewed at this moment.
    Mine {
        version: RegisterVersion,
        renew_at: Timestamp,
    },
    /// Another's.
    Theirs {
        version: RegisterVersion,
        look_at: Timestamp,
    },
}

/// A mastership of this candidate.
#[derive(Clone, Copy, Debug)]
struct Tenure {
    until: Timestamp,
    term: u64,
}

/// The last record of another candidate.
#[derive(Debug)]
struct Rival {
    address: String,
    version: RegisterVersion,
    /// When it may be overwritten: at the moment of its first sight if it is a resignation,
    /// otherwise a time to live later.
    free_at: Timestamp,
}

/// The first pause after a failure.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// The shortest time between two reads, at any rate of changes.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

impl Candidate {
    pub(super) fn new(id: String, address: String, ttl: TimeToLive) -> Self {
        Self {
            id,
            address,
            ttl,
            known: RegisterView::Unread {
                not_before: Timestamp::ZERO,
            },
            tenure: None,
            rival: None,
            writes: 0,
            unsettled: None,
            back_off: BackOff::doubling(RETRY_FIRST, ttl.look()),
            writes_fail: false,
            looked: Timestamp::ZERO,
            write_at: Timestamp::ZERO,
        }
    }

    /// Whether this candidate is the master, or which other.
    pub(super) fn mastership(&self, now: Timestamp) -> Mastership {
        match (&self.tenure, &self.rival) {
            (Some(tenure), _) if now < tenure.until => Mastership::Master {
                until: tenure.until,
                term: tenure.term,
            },
            (None, Some(rival)) if now < rival.free_at => Mastership::Other(rival.address.clone()),
            _ => Mastership::Unknown,
        }
    }

    /// The step to take now.
    pub(super) fn next(&self, now: Timestamp) -> CandidateStep {
        // The published state changes at these moments without any step.
        let fence = self.tenure.map(|tenure| tenure.until);
        let free = self.rival.as_ref().map(|rival| rival.free_at);
        let wait = |until: Timestamp| {
            let ends = [fence, free].into_iter().flatten();
            CandidateStep::Wait(ends.filter(|end| *end > now).fold(until, Timestamp::min))
        };
        let blocked = free.filter(|free| now < *free);
        match self.known {
            RegisterView::Unread { not_before } if now < not_before => wait(not_before),
            RegisterView::Unread { .. } => CandidateStep::Read,
            RegisterView::Mine { renew_at, .. } if now < renew_at => wait(renew_at),
            RegisterView::Absent { look_at } | RegisterView::Theirs { look_at, .. }
                if blocked.is_some() =>
            {
                if now < look_at {
                    wait(look_at)
                } else {
                    CandidateStep::Read
                }
            }
            _ if now < self.write_at => wait(self.write_at),
            RegisterView::Absent { .. } => self.write(None),
            RegisterView::Mine { version, .. } | RegisterView::Theirs { version, .. } => {
                self.write(Some(version))
            }
        }
    }

    fn write(&self, expected: Option<RegisterVersion>) -> CandidateStep {
        CandidateStep::Write {
            expected,
            record: CandidateRecord {
                address: self.address.clone(),
                candidate: self.id.clone(),
                write: self.writes + 1,
                ttl_ms: u64::try_from(self.ttl.get().as_millis()).unwrap_or(u64::MAX),
            },
        }
    }

    /// The write that [`next`](Self::next) requested is about to be sent. Until its outcome is
    /// reported, it counts as unknown.
    pub(super) fn sent(&mut self, now: Timestamp) {
        self.writes += 1;
        self.unsettled = Some((self.writes, now));
    }

    /// The result of that write.
    pub(super) fn swapped(&mut self, now: Timestamp, swapped: RegisterSwap) {
        match swapped {
            RegisterSwap::Done(version) => {
                let (_, sent) = self.unsettled.take().expect("an answer follows a write");
                self.writes_fail = false;
                self.back_off.reset();
                self.won(sent, version);
            }
            RegisterSwap::Refused(entry) => {
                // It has not taken effect. An earlier one may have, but its moment is unknown now.
                self.unsettled = None;
                self.writes_fail = false;
                self.found(now, entry);
                self.write_at = now + LOOK_PAUSE;
            }
        }
    }

    /// The record as read.
    pub(super) fn found(&mut self, now: Timestamp, entry: Option<RegisterEntry>) {
        if !self.writes_fail {
            self.back_off.reset();
        }
        self.looked = now;
        let look_at = now + self.ttl.look();
        let Some(RegisterEntry { version, record }) = entry else {
            // A write in progress may still take effect, but then the next one is refused.
            self.unsettled = None;
            self.tenure = None;
            self.known = RegisterView::Absent { look_at };
            return;
        };
        if record.candidate == self.id {
            match self.unsettled.take() {
                // The write with the lost answer: it counts from its sending, as any other.
                Some((write, sent)) if write == record.write => {
                    self.writes_fail = false;
                    self.won(sent, version);
                }
                // An older one. The next write over exactly this version settles it.
                _ => {
                    self.known = RegisterView::Mine {
                        version,
                        renew_at: now,
                    };
                }
            }
            return;
        }
        self.unsettled = None;
        self.tenure = None;
        self.known = RegisterView::Theirs { version, look_at };
        if self
            .rival
            .as_ref()
            .is_none_or(|rival| rival.version != version)
        {
            self.rival = Some(Rival {
                address: record.address.clone(),
                version,
                free_at: now + record.time_to_live().min(TimeToLive::MAX.get()),
            });
        }
    }

    /// A write sent at that moment took effect.
    fn won(&mut self, sent: Timestamp, version: RegisterVersion) {
        let until = sent + (self.ttl.get() - self.ttl.guard());
        let term = self.tenure.map_or(version.revision, |tenure| tenure.term);
        self.tenure = Some(Tenure { until, term });
        self.rival = None;
        self.known = RegisterView::Mine {
            version,
            renew_at: sent + self.ttl.renewal(),
        };
    }

    /// The store was not reached, or its answer did not come.
    pub(super) fn failed(&mut self, now: Timestamp, entropy: u64) {
        self.writes_fail |= self.unsettled.is_some();
        self.known = RegisterView::Unread {
            not_before: now + self.back_off.pause_with_jitter(entropy),
        };
    }

    /// Whether the last write failed. A store without space answers reads, so these do not show that it is well.
    pub(super) fn writes_fail(&self) -> bool {
        self.writes_fail
    }

    /// The register may have changed. The holder ignores this: the next renewal shows it.
    pub(super) fn look(&mut self, now: Timestamp) {
        if let RegisterView::Absent { look_at } | RegisterView::Theirs { look_at, .. } =
            &mut self.known
        {
            *look_at = (*look_at).min((self.looked + LOOK_PAUSE).max(now));
        }
    }

    /// The record that gives up this candidate's mastership, if it may have one.
    pub(super) fn resignation(&self) -> Option<CandidateRecord> {
        (self.tenure.is_some() || self.unsettled.is_some()).then(|| CandidateRecord {
            address: self.address.clone(),
            candidate: self.id.clone(),
            write: self.writes + 1,
            ttl_ms: 0,
        })
    }

    /// Whether this candidate wrote a record.
    pub(super) fn wrote(&self, record: &CandidateRecord) -> bool {
        record.candidate == self.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_reads_and_does_not_write_is_asked_less_and_less_often() {
        let ttl = TimeToLive::DEFAULT;
        let mut candidate = Candidate::new("one".into(), "10.0.0.1:1".into(), ttl);
        let mut now = Timestamp::ZERO;
        let mut writes = 0;
        while now < Timestamp::ZERO + Duration::from_secs(60) {
            match candidate.next(now) {
                CandidateStep::Read => candidate.found(now, None),
                CandidateStep::Write { .. } => {
                    candidate.sent(now);
                    candidate.failed(now, u64::MAX);
                    assert!(candidate.writes_fail());
                    writes += 1;
                }
                CandidateStep::Wait(until) => now = until,
            }
        }
        // Before, each read began the pauses anew: one each 50 ms.
        assert!(writes <= 6 + 60_000 / ttl.look().as_millis(), "{writes}");
    }
}

#[cfg(test)]
mod model;
