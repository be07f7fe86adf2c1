//! The errors of calls without a result.

use tonic::{Code, Status};

use super::{EtcdError, GRANT, PERMISSION_DENIED};

/// Why a call has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum EtcdFailure {
    /// No byte of the request has left.
    #[error("{0}")]
    Unsent(Box<str>),
    /// The call may have been done.
    #[error("{0}")]
    Trouble(Box<str>),
    /// The server's answer is not etcd's.
    #[error("{0}")]
    Garbage(Box<str>),
    /// The call was not done, and another member would answer the same.
    #[error("{0}")]
    Final(EtcdError),
}

/// etcd reports these as invalid arguments, although the call is correct.
const OF_CREDENTIALS: [&str; 3] = [
    "user name is empty",
    "authentication failed",
    "auth store is old",
];
/// The beginnings of messages that come from the reader of an invalid answer, not from etcd.
const OF_GARBAGE: [&str; 5] = [
    "Error, decoded message length too large",
    "Missing response message",
    "failed to decode Protobuf message",
    "grpc-status header missing",
    "protocol error",
];

/// The message of etcd when its database is full. It then reads, and writes nothing.
const NO_SPACE: &str = "database space exceeded";
/// The cure for a full database.
const MAKE_SPACE: &str = "compact and defragment etcd, and then run `etcdctl alarm disarm`";

impl EtcdFailure {
    /// The error for a status.
    pub(super) fn of(status: &Status) -> Self {
        let (code, message) = (status.code(), status.message());
        if OF_GARBAGE.iter().any(|words| message.starts_with(words)) {
            return Self::Garbage(message.into());
        }
        match code {
            Code::Unauthenticated => Self::Final(EtcdError::Unauthenticated(message.into())),
            Code::InvalidArgument if OF_CREDENTIALS.iter().any(|of| message.contains(of)) => {
                Self::Final(EtcdError::Unauthenticated(message.into()))
            }
            // The member is up, but its cluster is unavailable, or the member cannot reach it.
            Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::Unavailable => Self::Trouble(message.into()),
            Code::PermissionDenied => Self::Final(EtcdError::Refused {
                code: PERMISSION_DENIED,
                message: format!("{message}: {GRANT}"),
            }),
            Code::ResourceExhausted if message.contains(NO_SPACE) => {
                Self::Final(EtcdError::Refused {
                    code: code.into(),
                    message: format!("{message}: {MAKE_SPACE}"),
                })
            }
            code => Self::Final(EtcdError::Refused {
                code: code.into(),
                message: message.to_owned(),
            }),
        }
    }

    /// As an error of a call that is safe to repeat.
    pub(super) fn of_harmless(self) -> EtcdError {
        match self {
            Self::Unsent(cause) | Self::Trouble(cause) => EtcdError::Unreachable(cause),
            Self::Garbage(cause) => EtcdError::Garbage(cause),
            Self::Final(error) => error,
        }
    }
}
