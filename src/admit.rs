//! The gate: the scheduler behind one lock, and the one timer.
//!
//! Every change also asks for the next call, under the same lock and at a `now` read inside it. A
//! call whose turn comes finds its hold in its own channel. Nothing polls: when no call may run,
//! one timer sleeps until the moment that the scheduler named.
//!
//! Two lanes share the backends: calls that meet limits, and those that meet none
//! (`/token`), which have slots of their own so that a full queue never blocks them.

mod acts;
mod ask;
pub mod backends;
mod buckets;
mod carry;
mod decision;
mod early;
mod foreign;
mod gate;
mod health;
mod job_permit;
mod jobs;
mod journal;
mod kept_places;
mod ledger;
mod lock;
pub mod metrics;
mod observe;
mod operators;
pub(crate) mod options;
mod peer;
mod peer_calls;
mod permit;
mod place;
pub mod policy;
mod promotion;
mod quotas;
mod server_health;
mod servers;
mod service_times;
mod settings;
mod shadow;
mod shown;
mod suspended;
mod user_work;
mod waiting;

pub use tidegate_limits::policy::{Postpone, WindowStamp};

pub use self::acts::{
    AutomaticChange, AutomaticChangeKind, BackendControl, BackendControlNow, NotOverridden,
    Override, Pause, PauseFor, Ramp,
};
pub use self::ask::{Ask, Claimed, ForeignAsk, Waits};
pub use self::carry::{CarriedCalls, CarriedCounts, NewLedger, PublishLedger};
pub use self::decision::POSTPONED_MAX;
pub use self::foreign::AdoptedCall;
pub use self::gate::Gate;
pub use self::journal::{CarriedCall, CarriedState, Journal, SchedulerEvent};
pub use self::kept_places::TicketCounts;
pub use self::ledger::{GateLedger, LedgerPlan};
pub use self::observe::ObservedNow;
pub use self::peer_calls::{FrozenCalls, PeerCall, PeerEvent, RunningPeerCall};
pub use self::permit::Permit;
pub use self::quotas::{QuotaAnswer, QuotaAsked, QuotaAt, QuotaRules, QuotaWork};
pub use self::servers::{ServerNow, ServerRule, ServerSettings};
pub use self::settings::{
    AfterCrash, ClassDeadline, ClassPool, ClassRule, GateSettings, LedgerLost, PacedLimit,
    WhenFull, Window,
};
pub use self::shown::{CarriedSlots, FoundStanding, QueuedCallNow};
pub use self::waiting::{Admission, QueuePosition, QueuedCall};
