//! Calls of a hand-over in the words of the wire, and back.
//!
//! Callers and rate limits have the same ids in both processes, because the new one takes the table of callers of the old
//! one. Classes, functions, quotas and destinations have names. Moments are those of the machine's boot.

use std::sync::Arc;
use std::time::Duration;

use tidegate_handover::{
    CallRefusal, CallRole, ForeignCall, ForeignOutcome, OldInput, QuotaClaim, RequeueCause,
    RunningCall, WaitingCall,
};
use tidegate_limits::bucket::TokenCount;
use tidegate_limits::call::{Backend, BucketId, Cost, QuotaKey};
use tidegate_limits::scheduler::Outcome;
use tidegate_limits::{Call, Caller, Tokens, Weight};
use tidegate_runtime::Clock;

use crate::admit::{
    AdoptedCall, Ask, Claimed, ForeignAsk, PeerCall, PeerEvent, RunningPeerCall, Waits,
};
use crate::call::claim::{ClaimDeadline, drawn};
use crate::call::{Destination, Fault, Reason, Refusal, Role};

/// A call of this process, for the wire.
pub(super) fn waiting_call(call: &PeerCall, clock: Clock) -> WaitingCall {
    WaitingCall {
        id: call.id,
        call: foreign_call(call, clock),
    }
}

/// A running call of this process, for the wire.
pub(super) fn running_call(running: &RunningPeerCall, clock: Clock) -> RunningCall {
    RunningCall {
        id: running.call.id,
        call: foreign_call(&running.call, clock),
        stage: running.stage,
        admitted: clock.boot_time(running.since),
    }
}

fn foreign_call(peer: &PeerCall, clock: Clock) -> ForeignCall {
    let call = &peer.call;
    let quotas = call.quotas.as_deref().unwrap_or_default();
    ForeignCall {
        function: (&*call.function).into(),
        class: (&*peer.class).into(),
        caller: call.caller.0.to_string().into(),
        destination: peer.destination().label().into(),
        is_unlimited: !peer.limited,
        weight: call.weight.get(),
        cost: call.cost.get(),
        tokens: TokenCount::at_least(call.tokens).micros(),
        bucket: call.bucket.map(|bucket| bucket.0.to_string().into()),
        quotas: quotas
            .iter()
            .map(|it| QuotaClaim {
                quota: (&*it.quota).into(),
                key: (&*it.key).into(),
            })
            .collect(),
        is_settled: call.is_settled,
        arrived: clock.boot_time(call.arrived),
        deadline: call.deadline.map(|deadline| clock.boot_time(deadline)),
        passed_over: peer.passed_over,
        room_claims: Vec::new(),
        role: match peer.role {
            Role::Acts => CallRole::Acts,
            Role::Follows => CallRole::Follows,
            Role::Apart => CallRole::Apart,
        },
        target: peer.target.clone(),
    }
}

/// An event of the gate, for the old side.
pub(super) fn old_input(event: PeerEvent, clock: Clock) -> OldInput {
    match event {
        PeerEvent::Arrived(call) => OldInput::Arrived(waiting_call(&call, clock)),
        PeerEvent::Changed {
            id,
            deadline,
            class,
        } => OldInput::Changed {
            id,
            deadline: deadline.map(|deadline| clock.boot_time(deadline)),
            class: (&*class).into(),
        },
        PeerEvent::Left(id) => OldInput::Left(id),
        PeerEvent::Sent(id) => OldInput::Sent(id),
        PeerEvent::Replied(id) => OldInput::Replied(id),
        PeerEvent::Ended {
            id,
            outcome,
            measured,
        } => OldInput::Ended {
            id,
            outcome: match outcome {
                Outcome::Served => ForeignOutcome::Served,
                Outcome::Overloaded => ForeignOutcome::Overloaded,
                Outcome::Failed => ForeignOutcome::Failed,
            },
            measured: measured.map(|tokens| TokenCount::at_least(tokens).micros()),
        },
        PeerEvent::Requeued { id, cause } => OldInput::Requeued { id, cause },
    }
}

/// The question of a call of the other process.
pub(super) fn ask(waiting: WaitingCall, clock: Clock) -> Ask {
    let WaitingCall { id, call } = waiting;
    let deadline = call.deadline.map(|deadline| clock.of_boot_time(deadline));
    Ask {
        place: None,
        server: tidegate_limits::call::ServerChoice::ANY,
        function: (&*call.function).into(),
        destination: destination(&call),
        limited: !call.is_unlimited,
        arrived: clock.of_boot_time(call.arrived),
        waits: match deadline {
            Some(_) => Waits::Client,
            None => Waits::NoClient,
        },
        claimed: Claimed {
            caller: caller(&call),
            weight: Weight::new(call.weight).unwrap_or_default(),
            cost: Cost::new(call.cost).unwrap_or(Cost::ONE),
            tokens: tokens(call.tokens),
            bucket: bucket(&call),
            quotas: quotas(&call),
            settling: None,
            is_settled: call.is_settled,
            deadline: ClaimDeadline::Ordinary,
        },
        class: (&*call.class).into(),
        role: match call.role {
            CallRole::Acts => Role::Acts,
            CallRole::Follows => Role::Follows,
            CallRole::Apart => Role::Apart,
        },
        target: call.target,
        foreign: Some(ForeignAsk { id, deadline }),
    }
}

/// A running call of the other process.
pub(super) fn adopted(running: RunningCall, clock: Clock) -> AdoptedCall {
    let RunningCall {
        id,
        call,
        stage,
        admitted,
    } = running;
    let destination = destination(&call);
    let scheduled = Call::new(&*call.function, clock.of_boot_time(call.arrived))
        .backend(Backend(destination as u8))
        .caller(caller(&call))
        .weight(Weight::new(call.weight).unwrap_or_default())
        .cost(Cost::new(call.cost).unwrap_or(Cost::ONE))
        .tokens(tokens(call.tokens))
        .bucket(bucket(&call))
        .is_settled(call.is_settled)
        .deadline(call.deadline.map(|deadline| clock.of_boot_time(deadline)));
    AdoptedCall {
        id,
        call: scheduled,
        class: (&*call.class).into(),
        destination,
        limited: !call.is_unlimited,
        stage,
        since: clock.of_boot_time(admitted),
    }
}

fn destination(call: &ForeignCall) -> Destination {
    let mut all = Destination::ALL.into_iter();
    all.find(|it| it.label() == &*call.destination)
        .unwrap_or(Destination::Nowhere)
}

fn caller(call: &ForeignCall) -> Caller {
    call.caller.parse().map_or(Caller::ANONYMOUS, Caller)
}

fn bucket(call: &ForeignCall) -> Option<BucketId> {
    Some(BucketId(call.bucket.as_ref()?.parse().ok()?))
}

fn quotas(call: &ForeignCall) -> Option<Arc<[QuotaKey]>> {
    let keys = call.quotas.iter().map(|it| QuotaKey {
        quota: (&*it.quota).into(),
        key: (&*it.key).into(),
    });
    (!call.quotas.is_empty()).then(|| keys.collect())
}

pub(super) fn tokens(millionths: u64) -> Tokens {
    drawn(TokenCount::from_micros(millionths))
}

pub(super) fn outcome(outcome: ForeignOutcome) -> Outcome {
    match outcome {
        ForeignOutcome::Served => Outcome::Served,
        ForeignOutcome::Overloaded => Outcome::Overloaded,
        ForeignOutcome::Failed => Outcome::Failed,
    }
}

pub(super) fn fault(cause: RequeueCause) -> Fault {
    match cause {
        RequeueCause::Backend => Fault::Backend,
        RequeueCause::Own => Fault::Own,
    }
}

/// A refusal of this process, for the wire.
pub(super) fn wire_refusal(refusal: &Refusal) -> CallRefusal {
    CallRefusal {
        reason: refusal.reason.label().into(),
        limit: refusal.limit.as_deref().map(Into::into),
        retry_after: refusal.retry_after.map(|time| time.as_millis() as u64),
        detail: (&*refusal.detail).into(),
    }
}

/// A refusal of the other process. A reason that this version does not know counts as a drain.
pub(super) fn refusal(wire: CallRefusal) -> Refusal {
    let mut reasons = Reason::ALL.into_iter();
    let reason = reasons.find(|reason| reason.label() == &*wire.reason);
    Refusal {
        limit: wire.limit.map(|limit| (&*limit).into()),
        retry_after: wire.retry_after.map(Duration::from_millis),
        ..Refusal::new(
            reason.unwrap_or(Reason::Draining),
            String::from(wire.detail),
        )
    }
}
