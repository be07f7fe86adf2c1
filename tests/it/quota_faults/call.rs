//! The calls that are made, and the budgets that each of them draws from.

use std::time::{SystemTime, UNIX_EPOCH};

/// Users, and what stands for each in `Authorization: Basic`: the name, and the password x.
pub(super) const USERS: [(&str, &str); 4] = [
    ("alice", "YWxpY2U6eA=="),
    ("bruno", "YnJ1bm86eA=="),
    ("clara", "Y2xhcmE6eA=="),
    ("doris", "ZG9yaXM6eA=="),
];
/// The rule with a budget of each user.
pub(super) const PER_USER: &str = "per_user";
/// The rule with one budget for all calls, and its only key.
pub(super) const EVERYBODY: &str = "everybody";
/// The number of budgets: one for each user, and the last for all.
pub(super) const BUDGETS: usize = USERS.len() + 1;
/// The cost of an expensive call; others cost one token.
pub(super) const EXPENSIVE_COST: u64 = 5;
/// The number of calls of which one is expensive.
const EXPENSIVE_ONE_IN: u64 = 8;
/// Of them, the numbers of calls are made.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKLMNPQRSTUVWX";

/// The call's identity, in its userid: its client, its sidecar, and its number. Backend and
/// access lines both have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct CallId {
    pub(super) sidecar: u8,
    pub(super) user: u8,
    number: u32,
}

impl CallId {
    pub(super) fn new(sidecar: usize, user: usize, number: u32) -> Self {
        assert!(sidecar < 26 && user < USERS.len() && number < 1 << 30);
        Self {
            sidecar: sidecar as u8,
            user: user as u8,
            number,
        }
    }

    fn is_expensive(self) -> bool {
        u64::from(self.number).is_multiple_of(EXPENSIVE_ONE_IN)
    }

    /// Tokens.
    pub(super) fn cost(self) -> u64 {
        if self.is_expensive() {
            EXPENSIVE_COST
        } else {
            1
        }
    }

    /// Of its user, and of all.
    pub(super) fn budgets(self) -> [usize; 2] {
        [usize::from(self.user), BUDGETS - 1]
    }

    pub(super) fn userid(self) -> String {
        let digit = |place: u32| char::from(DIGITS[(self.number >> (5 * place)) as usize & 31]);
        let [sidecar, user] = [self.sidecar, self.user].map(|it| char::from(b'A' + it));
        let number = (0..6).map(digit);
        [sidecar, user].into_iter().chain(number).collect()
    }

    pub(super) fn parse(userid: &str) -> Option<Self> {
        let [sidecar, user, number @ ..] = userid.as_bytes() else {
            return None;
        };
        let digit = |byte: &u8| DIGITS.iter().position(|digit| digit == byte);
        let mut sum = 0;
        for (place, byte) in (0..6).zip(number) {
            sum |= (digit(byte)? as u32) << (5 * place);
        }
        let letter = |byte: &u8, most: usize| {
            let number = byte.checked_sub(b'A')?;
            (usize::from(number) < most).then_some(number)
        };
        let is_whole = number.len() == 6;
        Some(Self {
            sidecar: letter(sidecar, 26)?,
            user: letter(user, USERS.len())?,
            number: is_whole.then_some(sum)?,
        })
    }

    /// The path of the request.
    pub(super) fn path(self) -> String {
        // What each costs stands in the config.
        let function = if self.is_expensive() {
            "info"
        } else {
            "power_state"
        };
        format!("/guests/{}/{function}", self.userid())
    }
}

/// The present moment.   µs since the epoch
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.expect("it is after 1970");
    u64::try_from(since.as_micros()).expect("it is long before the year 500,000")
}

#[test]
fn a_call_is_known_again_by_its_userid() {
    for number in [0, 1, 31, 32, 123_456_789, (1 << 30) - 1] {
        let call = CallId::new(7, 3, number);
        let userid = call.userid();
        assert_eq!(userid.len(), 8);
        assert_eq!(CallId::parse(&userid), Some(call));
    }
    for userid in [
        "",
        "A",
        "AA00000",
        "AA0000000",
        "AA00000Z",
        "aA000000",
        "AE000000",
    ] {
        assert_eq!(CallId::parse(userid), None, "{userid}");
    }
}
