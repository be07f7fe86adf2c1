//! Finds the class, caller, cost and rate limit that the rules of a config give to the calls of a log.
//!
//! The rules are the sidecar's own code. A line does not have everything that they may ask for, such as
//! the user agent. So they are trusted with a call only if the rules of the log's own config
//! find what its line has; otherwise the call keeps that.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tidegate_callers::{IdentityField, Pattern};
use tidegate_limits::Timestamp;

use super::names::{Name, NameTable};
use super::setup::Setup;
use super::trace::{CallProfile, Trace};
use tidegate::call::claim::{Claim, drawn};
use tidegate::call::identity::IdentityFields;
use tidegate::call::{Dialect, Identity, Peer};
use tidegate::callers::Meets;
use tidegate::classify::OTHER;

/// The time between two claims, so that every client can register.   s
const BETWEEN: u64 = 1;

/// Class and claim that another config's rules give to calls of a kind; `None` if the call keeps its own.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) class: Option<Arc<str>>,
    pub(super) claim: Option<Claim>,
    /// Whether the estimated cost is that of the claim.
    pub(super) is_cost_known: bool,
}

/// Of all kinds of a trace, by their numbers.
pub(super) struct Matched(Vec<Placed>);

impl Matched {
    /// By the rules of a config, for calls that were matched by the rules of the log's configs.
    pub(super) fn of(trace: &Trace, logged: &[Setup], new: &Setup) -> Self {
        let kinds = trace.kinds().iter().zip(0..);
        Self(
            kinds
                .map(|(kind, nth)| placed(&trace.names, logged, new, kind, nth))
                .collect(),
        )
    }

    /// Of the kind of this number.
    pub(super) fn get(&self, kind: u32) -> &Placed {
        &self.0[kind as usize]
    }
}

fn placed(
    names: &NameTable,
    logged: &[Setup],
    new: &Setup,
    kind: &CallProfile,
    nth: u64,
) -> Placed {
    let name = |name: Name| &**names.get(name);
    let identity = identity(names, kind);
    let function = name(kind.function);
    let is_http = name(kind.dialect) == Dialect::Http.label();
    let has_name = function != OTHER;
    let now = Timestamp::from_nanos(nth * BETWEEN * 1_000_000_000);
    let claimed = |setup: &Setup| {
        let callers = setup.callers.as_ref()?;
        Some(callers.claim(now, &identity, function, Meets::Limits))
    };
    let explains_class = |setup: &Setup| {
        *setup.classifier.class_of(function, &identity.listener) == *name(kind.class)
    };
    let has_class = has_name && logged.iter().any(explains_class);
    let is_said = is_http && new.listens_to_class(&identity.listener);
    let mut is_cost_known = false;
    let explains_caller = |setup: &Setup| {
        let claim = claimed(setup)?;
        let label = claim.rate_limit().map(|label| &**label);
        let is_same = label == kind.rate_limit.map(name) && claim.weight.get() == kind.weight;
        is_same.then_some(claim)
    };
    let asks_more = is_http && new.asks_for_headers();
    let explained = logged.iter().filter_map(explains_caller);
    let explained: Vec<_> = explained.collect();
    if has_name {
        is_cost_known = explained.iter().any(|it| drawn(it.cost) == kind.tokens());
    }
    Placed {
        class: (has_class && !is_said)
            .then(|| new.classifier.class_of(function, &identity.listener)),
        claim: claimed(new).filter(|_| !explained.is_empty() && !asks_more),
        is_cost_known,
    }
}

/// The identity of a caller, as far as a line shows it.
fn identity(names: &NameTable, kind: &CallProfile) -> Arc<Identity> {
    let address = names.get(kind.client).parse().ok();
    Arc::new(Identity {
        listener: Arc::clone(names.get(kind.listener)),
        peer: Peer::Tcp(SocketAddr::new(
            address.unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
            0,
        )),
        address,
        user: kind.user.map(|user| Arc::clone(names.get(user))),
        user_agent: None,
        originator: None,
        unusable: IdentityFields::default(),
    })
}

impl Setup {
    /// Whether a header may name the class of calls of this listener.
    fn listens_to_class(&self, listener: &str) -> bool {
        let mut listeners = self.classify.classes.listeners.iter();
        listeners.any(|it| it.class_header && *it.listener == *listener)
    }

    /// Whether a caller is recognized by a header that no line has.
    fn asks_for_headers(&self) -> bool {
        let callers = self.patterns.iter();
        let mut fields = callers.map(Pattern::fields);
        fields.any(|it| {
            it.contains(IdentityField::UserAgent) || it.contains(IdentityField::Originator)
        })
    }
}
