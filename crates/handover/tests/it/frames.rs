//! Messages as bytes: each comes back, and bytes of others are refused without a panic.

use tidegate_handover::{
    CallRefusal, CallRole, FRAME_BYTES_MAX, ForeignCall, ForeignId, ForeignOutcome, FrameError,
    FrameReader, HEAD_BYTES, QuotaClaim, RequeueCause, RunStage, RunningCall, StatePart, ToNew,
    ToOld, UpgradeRefusal, Versions, WaitingCall, WireMessage,
};

use crate::random::Random;

fn call() -> ForeignCall {
    ForeignCall {
        function: "guest_create".into(),
        class: "changes".into(),
        caller: "nova".into(),
        destination: "http".into(),
        is_unlimited: false,
        weight: 2,
        cost: 3,
        tokens: 4_500_000,
        bucket: Some("all".into()),
        quotas: vec![QuotaClaim {
            quota: "daily".into(),
            key: "MAINT".into(),
        }],
        is_settled: true,
        arrived: u64::MAX,
        deadline: Some(1),
        passed_over: 5,
        room_claims: vec!["create".into()],
        role: CallRole::Acts,
        target: Some("LINUX\u{1F980}\"\\".into()),
    }
}

pub(crate) fn to_old() -> Vec<ToOld> {
    let id = ForeignId(7);
    vec![
        ToOld::Hello {
            versions: Versions::OWN,
            instance: "pid 7, 0.1.0".into(),
            config: "/etc/tidegate.toml".into(),
        },
        ToOld::Drain,
        ToOld::Prepared,
        ToOld::Taken,
        ToOld::Run { id },
        ToOld::Refused {
            id,
            refusal: CallRefusal::queue_full(),
        },
    ]
}

pub(crate) fn to_new() -> Vec<ToNew> {
    let id = ForeignId(u64::MAX);
    let versions = Versions {
        oldest: 1,
        newest: 3,
    };
    vec![
        ToNew::Welcome { version: 1 },
        ToNew::Refused(UpgradeRefusal::UnknownVersion(versions)),
        ToNew::Refused(UpgradeRefusal::Busy {
            with: "pid 8".into(),
        }),
        ToNew::Refused(UpgradeRefusal::Draining),
        ToNew::State(StatePart {
            name: "callers".into(),
            bytes: (0..=255).collect(),
        }),
        ToNew::Running(RunningCall {
            id,
            call: call(),
            stage: RunStage::Sent,
            admitted: 9,
        }),
        ToNew::Commit {
            sockets: 3,
            running: 1,
            term: 12,
        },
        ToNew::Wait(WaitingCall { id, call: call() }),
        ToNew::Change {
            id,
            deadline: None,
            class: "users".into(),
        },
        ToNew::Left { id },
        ToNew::Sent { id },
        ToNew::Replied { id },
        ToNew::Done {
            id,
            outcome: ForeignOutcome::Overloaded,
            measured: Some(1),
        },
        ToNew::Requeue {
            id,
            cause: RequeueCause::Own,
        },
    ]
}

fn written<M: WireMessage>(messages: &[M]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        message.write(&mut bytes).expect("the message fits");
    }
    bytes
}

/// Messages of these bytes, which arrive in pieces of this length.
fn read<M: WireMessage>(bytes: &[u8], piece: usize) -> Result<Vec<M>, FrameError> {
    let (mut reader, mut found) = (FrameReader::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        reader.push(piece);
        while let Some(message) = reader.next_message()? {
            found.push(message);
        }
    }
    Ok(found)
}

#[test]
fn each_message_comes_back_however_its_bytes_arrive() {
    let (old, new) = (written(&to_old()), written(&to_new()));
    for piece in [1, 2, 7, 8, 9, 100, 1 << 20] {
        assert_eq!(read::<ToOld>(&old, piece).expect("whole"), to_old());
        assert_eq!(read::<ToNew>(&new, piece).expect("whole"), to_new());
    }
}

#[test]
fn a_message_that_is_too_long_is_neither_written_nor_read() {
    let part = |length| {
        ToNew::State(StatePart {
            name: "a".into(),
            bytes: vec![0; length],
        })
    };
    let mut bytes = vec![1, 2, 3];
    let error = part(FRAME_BYTES_MAX - 1).write(&mut bytes).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a frame of 65537 bytes, and at most 65536 are allowed"
    );
    assert_eq!(bytes, [1, 2, 3]);
    let longest = part(FRAME_BYTES_MAX - 2);
    let mut bytes = written(std::slice::from_ref(&longest));
    assert_eq!(read::<ToNew>(&bytes, 4096).expect("it fits"), [longest]);
    bytes[4..HEAD_BYTES].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = read::<ToNew>(&bytes[..HEAD_BYTES], 8).unwrap_err();
    assert!(matches!(error, FrameError::TooLong(_)), "{error}");
}

#[test]
fn bytes_of_others_are_refused_at_once() {
    let check = |bytes: &[u8], expected: &str| {
        let error = read::<ToOld>(bytes, 1 << 20).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(
        b"GET / HTTP/1.1",
        "not a frame of a hand-over: it begins with [47, 45, 54, 20]",
    );
    check(
        b"TG\x02\x01\0\0\0\0",
        "not a frame of a hand-over: it begins with [54, 47, 02, 01]",
    );
    let state = b"TG\x01\x02\0\0\0\0";
    check(
        state,
        "not a frame of a hand-over: it begins with [54, 47, 01, 02]",
    );
    check(
        b"TG\x01\x01\x02\0\0\0{}",
        "a frame is not a message that this version knows",
    );
    let error = read::<ToNew>(state, 8).unwrap_err();
    assert_eq!(error.to_string(), "a part of the state has no name");
}

#[test]
fn what_a_later_version_adds_to_a_call_is_skipped() {
    let body = br#"{"wait":{"id":1,"call":{"function":"f","mood":"good"}}}"#;
    let mut bytes = b"TG\x01\x01".to_vec();
    bytes.extend_from_slice(&u32::try_from(body.len()).expect("short").to_le_bytes());
    bytes.extend_from_slice(body);
    let call = ForeignCall {
        function: "f".into(),
        ..ForeignCall::default()
    };
    let id = ForeignId(1);
    assert_eq!(
        read::<ToNew>(&bytes, 3).expect("known"),
        [ToNew::Wait(WaitingCall { id, call })]
    );
}

/// Damaged bytes are read to the first error. What is read before it is a message, and the reader keeps no more than it
/// was given.
#[test]
fn damaged_frames_never_panic() {
    let bytes = [written(&to_new()), written(&to_old())];
    let mut random = Random::new(0x7469_6465);
    let (mut refused, mut read_all) = (0, 0);
    for _ in 0..100_000 {
        let mut bytes = bytes[random.below(2)].clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes.truncate(at.max(8)),
                2 => {
                    bytes.remove(at);
                }
                _ => bytes.insert(at, random.below(256) as u8),
            }
        }
        let piece = 1 + random.below(300);
        let is_read = match random.below(2) {
            0 => read::<ToNew>(&bytes, piece).is_ok(),
            _ => read::<ToOld>(&bytes, piece).is_ok(),
        };
        match is_read {
            true => read_all += 1,
            false => refused += 1,
        }
    }
    assert!(
        refused > 30_000 && read_all > 1_000,
        "{refused}, {read_all}"
    );
}
