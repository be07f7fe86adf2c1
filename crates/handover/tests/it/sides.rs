//! A hand-over step by step, and sides that get whatever comes.

use tidegate_handover::{
    CallRefusal, ClaimWait, Commitment, ForeignCall, ForeignId, ForeignOutcome, FrozenGate,
    GiveUpCause, NewInput, NewOutput, NewSide, OldInput, OldOutput, OldSide, PeerConnection,
    RequeueCause, RunStage, RunningCall, StatePart, ToNew, ToOld, UpgradeRefusal, Versions,
    WaitingCall,
};

use crate::frames::{to_new, to_old};
use crate::random::Random;

const PEER: PeerConnection = PeerConnection(1);
const RUNS: ForeignId = ForeignId(1);
const WAITS: ForeignId = ForeignId(2);

fn running() -> RunningCall {
    RunningCall {
        id: RUNS,
        call: ForeignCall::default(),
        stage: RunStage::Admitted,
        admitted: 0,
    }
}

fn waits() -> WaitingCall {
    WaitingCall {
        id: WAITS,
        call: ForeignCall::default(),
    }
}

fn hello(from: PeerConnection, versions: Versions) -> OldInput {
    let hello = ToOld::Hello {
        versions,
        instance: "pid 8".into(),
        config: "tidegate.toml".into(),
    };
    OldInput::Message(from, hello)
}

fn frozen() -> OldInput {
    OldInput::Frozen(FrozenGate {
        running: vec![running()],
        waiting: vec![waits()],
        state: vec![StatePart {
            name: "callers".into(),
            bytes: vec![1],
        }],
        sockets: 2,
        term: 5,
    })
}

/// An old side that has committed.
fn committed() -> OldSide {
    let mut old = OldSide::new();
    old.handle(hello(PEER, Versions::OWN));
    old.handle(OldInput::Message(PEER, ToOld::Prepared));
    old.handle(frozen());
    old
}

/// A new side that serves beside a connected old one, which has a waiting call.
fn serving(waiting_max: usize) -> NewSide {
    let mut new = NewSide::new(waiting_max, "pid 8", "tidegate.toml");
    for input in [
        NewInput::Connected,
        NewInput::Message(ToNew::Welcome { version: 1 }),
        NewInput::Ready,
        NewInput::Message(ToNew::Running(running())),
        NewInput::Message(ToNew::Commit {
            sockets: 2,
            running: 1,
            term: 5,
        }),
        NewInput::LedgerClaimed { term: 5 },
        NewInput::Published,
        NewInput::Message(ToNew::Wait(waits())),
    ] {
        new.handle(input);
    }
    new
}

#[test]
fn the_old_side_frees_the_ledger_before_it_commits() {
    let mut old = OldSide::new();
    let send = |message| OldOutput::Send(PEER, message);
    assert_eq!(
        old.handle(hello(PEER, Versions::OWN)),
        [send(ToNew::Welcome { version: 1 })]
    );
    assert!(!old.asks_peer());
    assert_eq!(
        old.handle(OldInput::Message(PEER, ToOld::Prepared)),
        [OldOutput::Freeze]
    );
    let part = StatePart {
        name: "callers".into(),
        bytes: vec![1],
    };
    let commit = ToNew::Commit {
        sockets: 2,
        running: 1,
        term: 5,
    };
    assert_eq!(
        old.handle(frozen()),
        [
            OldOutput::ReleaseLedger,
            send(ToNew::State(part)),
            send(ToNew::Running(running())),
            send(ToNew::Wait(waits())),
            send(commit),
        ]
    );
    assert!(old.asks_peer());
    // The turn of a call comes after the new process has taken over.
    assert_eq!(old.handle(OldInput::Message(PEER, ToOld::Taken)), []);
    let run = OldInput::Message(PEER, ToOld::Run { id: WAITS });
    assert_eq!(old.handle(run.clone()), [OldOutput::Run(WAITS)]);
    assert_eq!(old.handle(run), []);
    for id in [RUNS, WAITS] {
        let outcome = ForeignOutcome::Served;
        let measured = None;
        let ended = OldInput::Ended {
            id,
            outcome,
            measured,
        };
        let done = ToNew::Done {
            id,
            outcome,
            measured,
        };
        assert_eq!(old.handle(ended), [send(done)]);
    }
    assert_eq!(old.handle(OldInput::ConnectionsClosed), [OldOutput::End]);
}

#[test]
fn the_new_side_claims_the_ledger_before_it_opens() {
    let mut new = NewSide::new(8, "pid 8", "tidegate.toml");
    new.handle(NewInput::Connected);
    assert_eq!(
        new.handle(NewInput::Message(ToNew::Welcome { version: 1 })),
        [NewOutput::Prepare]
    );
    assert_eq!(
        new.handle(NewInput::Ready),
        [NewOutput::Send(ToOld::Prepared)]
    );
    for message in [ToNew::Running(running()), ToNew::Wait(waits())] {
        assert_eq!(new.handle(NewInput::Message(message)), []);
    }
    let commit = ToNew::Commit {
        sockets: 2,
        running: 1,
        term: 5,
    };
    assert_eq!(
        new.handle(NewInput::Message(commit)),
        [NewOutput::ClaimLedger(ClaimWait::Short)]
    );
    assert!(!new.reads());
    let commitment = Commitment {
        running: vec![running()],
        sockets: 2,
    };
    assert_eq!(
        new.handle(NewInput::LedgerClaimed { term: 5 }),
        [NewOutput::TakeOver(Some(commitment))]
    );
    assert_eq!(
        new.handle(NewInput::Published),
        [
            NewOutput::Ask(waits()),
            NewOutput::Open,
            NewOutput::Send(ToOld::Taken),
            NewOutput::StartAfterCrash
        ]
    );
    assert!(new.reads());
}

#[test]
fn a_commit_of_another_term_hands_over_nothing() {
    let mut new = NewSide::new(8, "", "");
    for input in [
        NewInput::Connected,
        NewInput::Message(ToNew::Welcome { version: 1 }),
        NewInput::Ready,
        NewInput::Message(ToNew::Commit {
            sockets: 2,
            running: 0,
            term: 5,
        }),
    ] {
        new.handle(input);
    }
    assert_eq!(
        new.handle(NewInput::LedgerClaimed { term: 6 }),
        [NewOutput::Close, NewOutput::TakeOver(None)]
    );
    assert_eq!(
        new.handle(NewInput::Published),
        [NewOutput::Open, NewOutput::WatchDraining]
    );
    assert!(new.is_old_present());
    assert_eq!(
        new.handle(NewInput::DrainingEnded),
        [NewOutput::StartAfterCrash]
    );
    assert!(!new.is_old_present());
}

#[test]
fn a_call_that_leaves_while_its_turn_comes_is_given_back_once() {
    let mut new = serving(8);
    assert_eq!(
        new.handle(NewInput::Admitted(WAITS)),
        [NewOutput::Send(ToOld::Run { id: WAITS })]
    );
    let mut old = committed();
    old.handle(OldInput::Message(PEER, ToOld::Taken));
    let left = ToNew::Left { id: WAITS };
    assert_eq!(
        old.handle(OldInput::Left(WAITS)),
        [OldOutput::Send(PEER, left.clone())]
    );
    let run = OldInput::Message(PEER, ToOld::Run { id: WAITS });
    assert_eq!(old.handle(run), []);
    let left = NewInput::Message(left);
    assert_eq!(new.handle(left.clone()), [NewOutput::GiveBack(WAITS)]);
    assert_eq!(new.handle(left), []);
}

#[test]
fn a_call_that_was_admitted_while_it_left_is_given_back() {
    let mut new = serving(8);
    let left = NewInput::Message(ToNew::Left { id: WAITS });
    assert_eq!(new.handle(left), [NewOutput::Cancel(WAITS)]);
    assert_eq!(
        new.handle(NewInput::Admitted(WAITS)),
        [NewOutput::GiveBack(WAITS)]
    );
}

#[test]
fn a_new_side_refuses_the_calls_for_which_its_queue_has_no_room() {
    let mut new = serving(1);
    let id = ForeignId(3);
    let wait = NewInput::Message(ToNew::Wait(WaitingCall { id, ..waits() }));
    let refusal = CallRefusal::queue_full();
    assert_eq!(
        new.handle(wait.clone()),
        [NewOutput::Send(ToOld::Refused { id, refusal })]
    );
    let left = NewInput::Message(ToNew::Left { id: WAITS });
    assert_eq!(new.handle(left), [NewOutput::Cancel(WAITS)]);
    let call = WaitingCall { id, ..waits() };
    assert_eq!(new.handle(wait), [NewOutput::Ask(call)]);
}

#[test]
fn an_end_of_a_call_that_does_not_run_ends_the_connection() {
    let mut new = serving(8);
    let done = ToNew::Done {
        id: WAITS,
        outcome: ForeignOutcome::Served,
        measured: None,
    };
    assert_eq!(
        new.handle(NewInput::Message(done)),
        [
            NewOutput::Close,
            NewOutput::Cancel(WAITS),
            NewOutput::Hold(vec![RUNS]),
            NewOutput::WatchDraining
        ]
    );
}

#[test]
fn the_old_side_takes_back_only_with_the_ledger() {
    let mut old = committed();
    assert_eq!(old.handle(OldInput::Lost(PEER)), [OldOutput::ClaimLedger]);
    let mut refused = old.clone();
    let outputs = refused.handle(OldInput::LedgerRefused);
    assert!(
        matches!(&outputs[..], [OldOutput::Refuse(WAITS, refusal)] if &*refusal.reason == "draining"),
        "{outputs:?}"
    );
    assert_eq!(
        old.handle(OldInput::LedgerClaimed { term: 6 }),
        [OldOutput::TakeBack {
            running: vec![(RUNS, RunStage::Admitted)],
            waiting: vec![WAITS],
            term: 6
        }]
    );
    assert!(!old.asks_peer());
}

#[test]
fn one_upgrade_at_a_time() {
    let other = PeerConnection(2);
    let mut old = OldSide::new();
    old.handle(hello(PEER, Versions::OWN));
    let busy = ToNew::Refused(UpgradeRefusal::Busy {
        with: "pid 8".into(),
    });
    for input in [
        OldInput::Message(PEER, ToOld::Prepared),
        frozen(),
        OldInput::Message(PEER, ToOld::Taken),
        OldInput::Lost(PEER),
        OldInput::LedgerRefused,
    ] {
        assert_eq!(
            old.handle(hello(other, Versions::OWN)),
            [OldOutput::Send(other, busy.clone())]
        );
        // A connection that was refused changes nothing.
        assert_eq!(old.handle(OldInput::Message(other, ToOld::Taken)), []);
        assert_eq!(old.handle(OldInput::Lost(other)), []);
        old.handle(input);
    }
    let mut new = NewSide::new(8, "", "");
    new.handle(NewInput::Connected);
    let outputs = new.handle(NewInput::Message(busy));
    let [NewOutput::Close, NewOutput::GiveUp(cause)] = &outputs[..] else {
        panic!("{outputs:?}");
    };
    assert_eq!(
        cause.to_string(),
        "another upgrade is under way, with pid 8: wait until it is done"
    );
    assert!(matches!(cause, GiveUpCause::Busy { .. }));
}

/// Sides that get any inputs in any order.
#[test]
fn no_order_of_inputs_makes_a_side_panic() {
    let mut random = Random::new(0x006f_6c64);
    for _ in 0..20_000 {
        let (mut old, mut new) = (OldSide::new(), NewSide::new(2, "", ""));
        for _ in 0..40 {
            old.handle(any_old(&mut random));
            new.handle(any_new(&mut random));
        }
    }
}

fn any_old(random: &mut Random) -> OldInput {
    let id = ForeignId(random.below(3) as u64);
    let connection = PeerConnection(random.below(2) as u64);
    let mut messages = to_old();
    match random.below(20) {
        0 => OldInput::Lost(connection),
        1 => frozen(),
        2 => OldInput::CannotFreeze { by: "pid 7".into() },
        3 => OldInput::Arrived(WaitingCall { id, ..waits() }),
        4 => OldInput::Left(id),
        5 => OldInput::Sent(id),
        6 => OldInput::Replied(id),
        7 => OldInput::Ended {
            id,
            outcome: ForeignOutcome::Failed,
            measured: None,
        },
        8 => OldInput::Requeued {
            id,
            cause: RequeueCause::Own,
        },
        9 => OldInput::LedgerClaimed { term: 5 },
        10 => OldInput::LedgerRefused,
        11 => OldInput::ConnectionsClosed,
        12 => OldInput::Changed {
            id,
            deadline: None,
            class: "users".into(),
        },
        13 => match random.below(8) {
            0 => OldInput::DrainTimeout,
            1 => OldInput::Stopping,
            _ => hello(connection, Versions::OWN),
        },
        _ => OldInput::Message(
            connection,
            messages.swap_remove(random.below(messages.len())),
        ),
    }
}

fn any_new(random: &mut Random) -> NewInput {
    let id = ForeignId(random.below(3) as u64);
    let mut messages = to_new();
    match random.below(24) {
        0 => NewInput::Connected,
        1 => NewInput::Alone,
        2 => NewInput::Lost,
        3 | 4 => NewInput::Ready,
        5 if random.below(8) == 0 => NewInput::NotReady,
        6 => NewInput::LedgerClaimed { term: 12 },
        7 if random.below(8) == 0 => NewInput::LedgerRefused,
        8 | 9 => NewInput::Published,
        10 if random.below(8) == 0 => NewInput::NotPublished,
        11 => NewInput::Admitted(id),
        12 => NewInput::Refused(id, tidegate_handover::CallRefusal::draining()),
        13 => NewInput::DrainingEnded,
        14 => NewInput::Message(ToNew::Wait(WaitingCall { id, ..waits() })),
        15 => NewInput::Message(ToNew::Left { id }),
        16 => NewInput::Message(ToNew::Requeue {
            id,
            cause: RequeueCause::Own,
        }),
        17 => NewInput::Message(ToNew::Welcome { version: 1 }),
        18 => NewInput::Stopping,
        _ => NewInput::Message(messages.swap_remove(random.below(messages.len()))),
    }
}
