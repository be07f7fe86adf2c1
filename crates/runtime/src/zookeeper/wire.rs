//! The bytes of ZooKeeper's protocol: each message is its length in four bytes, a header, and fields
//! without names in a fixed order, numbers in network order.
//!
//! Source: `zookeeper.jute` and `ZooDefs` of Apache ZooKeeper 3.5 and later.

use std::fmt;

/// The operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Op {
    Delete = 2,
    Exists = 3,
    GetData = 4,
    SetData = 5,
    GetChildren = 8,
    Ping = 11,
    /// Asks for a version; only as a step of several.
    Check = 13,
    /// Several writes, all or none.
    Multi = 14,
    /// A create that answers with the state of the new node.
    Create = 15,
    /// Ends the watches of this session at a path.
    RemoveWatches = 18,
    Auth = 100,
    Close = -11,
}

/// The number of a message that answers no request.
pub(super) const WATCH: i32 = -1;
/// The number of each ping.
pub(super) const PING: i32 = -2;
/// The number of each message with credentials.
pub(super) const AUTH: i32 = -4;

/// Watches of every kind.
pub(super) const ANY_WATCH: i32 = 3;

/// All that may be done to a node.
const ALL: i32 = 31;

/// Why ZooKeeper refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(i32);

impl Code {
    /// The request is none that ZooKeeper takes, such as one with an impossible path.
    pub const BAD_ARGUMENTS: Self = Self(-8);
    /// There is no such node.
    pub const NO_NODE: Self = Self(-101);
    /// The credentials of this session do not allow it.
    pub const NO_AUTH: Self = Self(-102);
    /// The node was written since the version that was named.
    pub const BAD_VERSION: Self = Self(-103);
    /// There is such a node already.
    pub const NODE_EXISTS: Self = Self(-110);
    /// The node has children.
    pub const NOT_EMPTY: Self = Self(-111);
    /// The credentials are wrong.
    pub const AUTH_FAILED: Self = Self(-115);

    pub(super) const fn of(number: i32) -> Option<Self> {
        match number {
            0 => None,
            number => Some(Self(number)),
        }
    }

    /// The server's name for it, if ZooKeeper has one.
    const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            -1 => "SystemError",
            -2 => "RuntimeInconsistency",
            -3 => "DataInconsistency",
            -4 => "ConnectionLoss",
            -5 => "MarshallingError",
            -6 => "Unimplemented",
            -7 => "OperationTimeout",
            -8 => "BadArguments",
            -101 => "NoNode",
            -102 => "NoAuth",
            -103 => "BadVersion",
            -108 => "NoChildrenForEphemerals",
            -110 => "NodeExists",
            -111 => "NotEmpty",
            -112 => "SessionExpired",
            -114 => "InvalidACL",
            -115 => "AuthFailed",
            -118 => "SessionMoved",
            -119 => "NotReadOnly",
            -120 => "EphemeralOnLocalSession",
            -121 => "NoWatcher",
            -122 => "RequestTimeout",
            -124 => "SessionClosedRequireSaslAuth",
            -125 => "QuotaExceeded",
            -127 => "Throttled",
            _ => return None,
        })
    }

    /// The meaning of the code for a call.
    pub(super) const fn meaning(self) -> Meaning {
        match self.0 {
            -102 => Meaning::Denied,
            -115 | -124 => Meaning::Unauthenticated,
            -6 | -8 | -101 | -103 | -108 | -110 | -111 | -114 | -119 | -120 | -121 | -125
            | -127 => Meaning::Refused,
            _ if self.name().is_some() => Meaning::Open,
            _ => Meaning::Garbage,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl std::error::Error for Code {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The server did not do the operation.
    Refused,
    /// The server did not do the operation, for want of a right.
    Denied,
    /// The server did not do the operation, for want of credentials.
    Unauthenticated,
    /// The servers have trouble, and may still do it.
    Open,
    /// ZooKeeper has no such code.
    Garbage,
}

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The transaction of its last write.
    pub mzxid: i64,
    /// The time of that write by the leader's clock, in milliseconds since 1970; 0 if the server did not
    /// say.
    pub mtime: i64,
    /// How often it was written since it was made.
    pub version: i32,
}

/// How long a node stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Lifetime {
    Persistent = 0,
    /// Until its session ends.
    Ephemeral = 1,
}

/// Fields of a message, one after the other.
#[derive(Default)]
pub(super) struct WireFields(Vec<u8>);

impl WireFields {
    pub(super) fn int(mut self, number: i32) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(super) fn long(mut self, number: i64) -> Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(super) fn flag(mut self, flag: bool) -> Self {
        self.0.push(u8::from(flag));
        self
    }

    /// # Panics
    ///
    /// If they are 2 GiB or more, which no server takes.
    pub(super) fn bytes(mut self, bytes: &[u8]) -> Self {
        let length = i32::try_from(bytes.len()).expect("a request is smaller than 2 GiB");
        self = self.int(length);
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    /// Who may do everything with a node: all clients, or those with the credentials of this session.
    pub(super) fn access(self, of_creator: bool) -> Self {
        let (scheme, id) = if of_creator {
            ("auth", "")
        } else {
            ("world", "anyone")
        };
        self.int(1).int(ALL).text(scheme).text(id)
    }

    /// The header of one step of several; `None` behind the last.
    pub(super) fn step(self, op: Option<Op>) -> Self {
        let number = op.map_or(-1, |op| op as i32);
        self.int(number).flag(op.is_none()).int(-1)
    }

    /// The whole message of these fields.
    pub(super) fn message(self) -> Vec<u8> {
        Self::default().bytes(&self.0).0
    }

    /// The fields behind the header of a request.
    pub(super) fn request(self, number: i32, op: Op) -> Vec<u8> {
        let Self(mut fields) = Self::default().int(number).int(op as i32);
        fields.extend_from_slice(&self.0);
        Self(fields).message()
    }
}

/// Reads the fields of a message in order. `None` if it ends before a field.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn int(&mut self) -> Option<i32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i32::from_be_bytes(*number))
    }

    pub(super) fn long(&mut self) -> Option<i64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i64::from_be_bytes(*number))
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        let (flag, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*flag != 0)
    }

    /// The results of several steps: the states of the nodes that were written, or the first code that stopped
    /// them.
    pub(super) fn steps(&mut self) -> Option<Result<Vec<Stat>, Code>> {
        const SET: i32 = Op::SetData as i32;
        /// Another step was the reason.
        const OF_ANOTHER: i32 = -2;
        let (mut stats, mut stopped) = (Vec::new(), None);
        loop {
            let (op, is_end, _) = (self.int()?, self.flag()?, self.int()?);
            match op {
                _ if is_end => return Some(stopped.map_or(Ok(stats), Err)),
                -1 => {
                    let code = Code::of(self.int()?).filter(|code| code.0 != OF_ANOTHER);
                    stopped = stopped.or(code);
                }
                SET => stats.push(self.stat()?),
                _ => {}
            }
        }
    }

    /// Reads a byte string; one of length -1 is absent.
    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.int()?.max(0)).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn text(&mut self) -> Option<&'a str> {
        str::from_utf8(self.bytes()?).ok()
    }

    pub(super) fn texts(&mut self) -> Option<Vec<String>> {
        let count = self.int()?.max(0);
        (0..count).map(|_| Some(self.text()?.to_owned())).collect()
    }

    pub(super) fn stat(&mut self) -> Option<Stat> {
        let _created_by = self.long()?;
        let mzxid = self.long()?;
        let _created_at = self.long()?;
        let mtime = self.long()?;
        let version = self.int()?;
        let (_children_and_access, _owner) = (self.long()?, self.long()?);
        let (_data_length, _children) = (self.int()?, self.int()?);
        let _children_by = self.long()?;
        Some(Stat {
            mzxid,
            mtime,
            version,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_its_length_its_header_and_its_fields() {
        let request = WireFields::default()
            .text("/a")
            .flag(true)
            .request(7, Op::GetData);
        let expected = [
            0, 0, 0, 15, 0, 0, 0, 7, 0, 0, 0, 4, 0, 0, 0, 2, b'/', b'a', 1,
        ];
        assert_eq!(request, expected);
    }

    #[test]
    fn every_cut_of_a_stat_is_no_stat() {
        let WireFields(whole) = WireFields::default()
            .long(1)
            .long(2)
            .long(3)
            .long(4)
            .int(5)
            .long(6)
            .long(7)
            .int(8)
            .int(9)
            .long(10);
        assert_eq!(whole.len(), 68);
        let stat = Stat {
            mzxid: 2,
            mtime: 4,
            version: 5,
        };
        assert_eq!(Reader(&whole).stat(), Some(stat));
        for length in 0..whole.len() {
            assert_eq!(Reader(&whole[..length]).stat(), None, "{length}");
        }
    }

    #[test]
    fn a_length_beyond_the_message_is_no_field() {
        for bytes in [
            &[0, 0, 0, 2, b'a'][..],
            &[0x7f, 0xff, 0xff, 0xff],
            &[0, 0, 0],
        ] {
            assert_eq!(Reader(bytes).bytes(), None, "{bytes:?}");
            assert_eq!(Reader(bytes).texts(), None, "{bytes:?}");
        }
        assert_eq!(Reader(&[0xff; 4]).bytes(), Some(&[][..]));
        assert_eq!(Reader(&[0, 0, 0, 1, 0xff]).text(), None);
    }

    #[test]
    fn each_code_has_a_meaning() {
        for (code, meaning) in [
            (Code::NO_NODE, Meaning::Refused),
            (Code::BAD_ARGUMENTS, Meaning::Refused),
            (Code::NO_AUTH, Meaning::Denied),
            (Code::AUTH_FAILED, Meaning::Unauthenticated),
            (Code(-4), Meaning::Open),
            (Code(-112), Meaning::Open),
            (Code(-999), Meaning::Garbage),
            (Code(3), Meaning::Garbage),
        ] {
            assert_eq!(code.meaning(), meaning, "{code}");
        }
        assert_eq!(Code::of(0), None);
    }
}
