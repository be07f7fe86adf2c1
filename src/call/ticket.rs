//! Tickets: a refusal that keeps the place of a call, for a client that gives up before its turn.
//!
//! A ticket names no call. It is bound to the digest of one: its caller, its function and every byte that decides what is
//! asked. The place is kept under that digest, so a client that only sends its call once more finds it too.

use std::hash::Hasher as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::HeaderName;
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use tidegate_callers::CallerId;
use tidegate_limits::Timestamp;

use super::{Listener, Message, RequestBody};
use crate::options::words;

/// The field of a ticket, in a refusal and in the request that comes back.
pub const QUEUE_TICKET: HeaderName = HeaderName::from_static("queue-ticket");

/// How long before its client's time-out a call is refused: the refusal must arrive before the client gives up.
const MARGIN: Duration = Duration::from_millis(500);

/// How long after the time to come back a place is kept.
pub const PLACE_KEPT: Duration = Duration::from_secs(10);

/// Bytes of a ticket: its end, and its code.
const TICKET_BYTES: usize = 8 + 16;

words! {
    /// The clients that find their places again.
    #[derive(Default)]
    pub enum TicketMode {
        /// No client.
        #[default]
        Off = "off",
        /// Clients that send their ticket.
        Explicit = "explicit",
        /// Clients that send the same call once more, with or without a ticket.
        Implicit = "implicit",
    }
}

/// The tickets of a listener.
#[derive(Clone, Copy, Debug, Default)]
pub struct TicketRule {
    /// The clients that find their places again.
    pub mode: TicketMode,
    /// After which time its clients give up, unless they say otherwise.
    pub client_timeout: Option<Duration>,
}

impl TicketRule {
    /// The rule of a listener.
    #[must_use]
    pub const fn of(listener: &Listener) -> Self {
        Self {
            mode: listener.tickets,
            client_timeout: listener.client_timeout,
        }
    }
}

/// How long a client waits for a call, and how its place is found.
#[derive(Clone, Copy, Debug)]
pub struct ClientPatience {
    /// When its call arrived.
    pub arrived: Timestamp,
    /// After which time the client gives up. One that does not wait at all gives up its place too.
    pub timeout: Duration,
    /// The digest of the call.
    pub digest: CallDigest,
}

impl ClientPatience {
    /// How long the call may wait in any case.
    #[must_use]
    pub fn least(&self) -> Timestamp {
        self.arrived + self.timeout / 2
    }

    /// Until when the call may wait, if such calls usually take so long at the backend.
    #[must_use]
    pub fn ends(&self, service: Duration) -> Timestamp {
        self.arrived + self.visit(service)
    }

    /// Whether the place of the call is kept.
    #[must_use]
    pub const fn keeps_place(&self) -> bool {
        !self.timeout.is_zero()
    }

    /// When a client comes back that is predicted to wait so long: early enough that its turn does not come before it,
    /// also if the prediction is a quarter too long. Whole seconds, because `Retry-After` has no others; 0 is at once.
    #[must_use]
    pub fn comes_back_after(&self, wait: Duration, service: Duration) -> Duration {
        let lead = (self.visit(service) / 2).max(wait / 4);
        Duration::from_secs(wait.saturating_sub(lead).as_secs())
    }

    fn visit(&self, service: Duration) -> Duration {
        let visit = self.timeout.saturating_sub(MARGIN + service);
        visit.max(self.timeout / 2)
    }
}

/// The digest of a call and its caller, in 128 bits that no client can compute without the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallDigest(pub [u64; 2]);

/// The key of digests and codes. SipHash-2-4 with 128 bits (J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input
/// PRF", 2012).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketSecret(pub [u64; 2]);

impl TicketSecret {
    /// A secret of this process.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    fn hasher(self) -> SipHasher24 {
        SipHasher24::new_with_keys(self.0[0], self.0[1])
    }

    /// The digest of a call; `None` if not all of it is here.
    #[must_use]
    pub fn digest(self, caller: CallerId, function: &str, message: &Message) -> Option<CallDigest> {
        let mut hasher = self.hasher();
        let mut add = |part: &[u8]| {
            // With its length, so that no two lists of parts have the same bytes.
            hasher.write(&(part.len() as u64).to_le_bytes());
            hasher.write(part);
        };
        add(&caller.0.to_le_bytes());
        add(function.as_bytes());
        match message {
            Message::Socket(call) => add(&call.bytes),
            Message::Http(call) => {
                let RequestBody::Whole(body) = &call.body else {
                    return None;
                };
                add(call.head.method.as_str().as_bytes());
                add(call.head.target().as_bytes());
                add(body);
            }
        }
        let digest = hasher.finish128();
        Some(CallDigest([digest.h1, digest.h2]))
    }

    /// The ticket for a place that is kept until this moment.   nanoseconds since the boot
    #[must_use]
    pub fn ticket(self, digest: CallDigest, until: u64) -> String {
        let mut bytes = until.to_be_bytes().to_vec();
        bytes.extend(self.code(digest, until));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Whether this is the ticket of a call, and its time is not over.
    #[must_use]
    pub fn is_ticket(self, text: &[u8], digest: CallDigest, now: u64) -> bool {
        let Ok(bytes) = URL_SAFE_NO_PAD.decode(text) else {
            return false;
        };
        if bytes.len() != TICKET_BYTES {
            return false;
        }
        let (until, code) = bytes.split_at(8);
        let until = u64::from_be_bytes(until.try_into().expect("eight bytes"));
        // Every byte is compared, so the time does not tell where they differ.
        let own = self.code(digest, until);
        let differ = own
            .iter()
            .zip(code)
            .fold(0, |differ, (own, given)| differ | (own ^ given));
        differ == 0 && now <= until
    }

    fn code(self, digest: CallDigest, until: u64) -> [u8; 16] {
        let mut hasher = self.hasher();
        hasher.write(b"ticket");
        for word in [digest.0[0], digest.0[1], until] {
            hasher.write(&word.to_le_bytes());
        }
        hasher.finish128().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: TicketSecret = TicketSecret([1, 2]);
    const DIGEST: CallDigest = CallDigest([3, 4]);

    #[test]
    fn a_ticket_is_good_for_its_call_until_its_end() {
        let ticket = SECRET.ticket(DIGEST, 1_000);
        let is_good = |text: &str, digest, now| SECRET.is_ticket(text.as_bytes(), digest, now);
        assert!(is_good(&ticket, DIGEST, 1_000));
        assert!(!is_good(&ticket, DIGEST, 1_001), "its time is over");
        assert!(!is_good(&ticket, CallDigest([3, 5]), 1_000), "another call");
        let other = TicketSecret([1, 3]).ticket(DIGEST, 1_000);
        assert!(!is_good(&other, DIGEST, 1_000), "another secret");
        for at in 0..ticket.len() {
            let mut changed = ticket.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert!(!SECRET.is_ticket(&changed, DIGEST, 500), "byte {at}");
            assert!(!is_good(&ticket[..at], DIGEST, 500), "{at} bytes");
        }
    }

    fn patience(timeout_ms: u64) -> ClientPatience {
        ClientPatience {
            arrived: Timestamp::ZERO,
            timeout: Duration::from_millis(timeout_ms),
            digest: DIGEST,
        }
    }

    #[test]
    fn a_client_comes_back_before_its_predicted_turn() {
        let check = |wait, after| {
            let wait = Duration::from_millis(wait);
            let comes_back = patience(10_000).comes_back_after(wait, Duration::ZERO);
            assert_eq!(comes_back.as_secs(), after, "{wait:?}");
        };
        check(0, 0);
        check(5_000, 0);
        check(8_000, 3);
        check(50_000, 37);
        check(300_000, 225);
    }

    #[test]
    fn the_time_at_the_backend_is_a_part_of_the_time_out() {
        let check = |timeout, service, ends| {
            let of = patience(timeout);
            let until = of.ends(Duration::from_millis(service));
            assert_eq!(until.since(Timestamp::ZERO).as_millis(), ends);
            assert!(of.least() <= until);
        };
        check(10_000, 0, 9_500);
        check(10_000, 2_000, 7_500);
        // Half of it in any case.
        check(10_000, 60_000, 5_000);
        check(600, 0, 300);
    }
}
