//! What a call without a result comes to.

use tonic::{Code, Status};

use super::Error;

/// Why an answer is none.
#[derive(Debug)]
pub(super) enum Failure {
    /// Not a byte of the request has left.
    Unsent(Box<str>),
    /// It may have been done.
    Trouble(Box<str>),
    /// Something answered, but not as etcd does.
    Garbage(Box<str>),
    /// It was not done, and another member would say the same.
    Final(Error),
}

/// What etcd says as invalid arguments, though nothing is wrong with the call.
const OF_CREDENTIALS: [&str; 3] = [
    "user name is empty",
    "authentication failed",
    "auth store is old",
];
/// How the messages begin that do not come from etcd, but from reading what is no answer of etcd.
const OF_GARBAGE: [&str; 5] = [
    "Error, decoded message length too large",
    "Missing response message",
    "failed to decode Protobuf message",
    "grpc-status header missing",
    "protocol error",
];

impl Failure {
    /// What a status comes to.
    pub(super) fn of(status: &Status) -> Self {
        let (code, message) = (status.code(), status.message());
        if OF_GARBAGE.iter().any(|words| message.starts_with(words)) {
            return Self::Garbage(message.into());
        }
        match code {
            Code::Unauthenticated => Self::Final(Error::Unauthenticated(message.into())),
            Code::InvalidArgument if OF_CREDENTIALS.iter().any(|of| message.contains(of)) => {
                Self::Final(Error::Unauthenticated(message.into()))
            }
            // The member is up and its cluster is not, or not for it.
            Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::Unavailable => Self::Trouble(message.into()),
            code => Self::Final(Error::Refused {
                code: code.into(),
                message: message.to_owned(),
            }),
        }
    }

    /// As an error of a call that is safe to repeat.
    pub(super) fn of_harmless(self) -> Error {
        match self {
            Self::Unsent(cause) | Self::Trouble(cause) => Error::Unreachable(cause),
            Self::Garbage(cause) => Error::Garbage(cause),
            Self::Final(error) => error,
        }
    }
}
