//! The addresses behind a backend's name: the latest lookup, the address of the latest connection, and the
//! addresses that failed.
//!
//! An address that failed is tried last for a while. So a dead one costs one connect its head start, and not each
//! (RFC 8305, section 4: the order may follow what the client knows of each address).

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_runtime::{BackOff, lock};
use tokio::time::Instant;

/// The result of a lookup. It has at least one address.
pub(super) type LookupResult = Result<Arc<[SocketAddr]>, Arc<io::Error>>;

/// The most addresses whose failures are remembered.
const FAILED_MAX: usize = 32;
/// The most addresses of a name that are shown.
const SHOWN_MAX: usize = 16;
/// How long an address is tried last: after one failure, and at most after several in a row.
const TRIED_LAST: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(300));

/// The meaning of a backend's name now, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameState {
    /// The addresses of the latest lookup that succeeded, at most 16.
    pub addresses: Vec<AddressState>,
    /// The time since that lookup; `None` before the first.
    pub age: Option<Duration>,
    /// Why the latest lookup failed, if it did.
    pub failure: Option<String>,
}

/// An address of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressState {
    /// The address.
    pub address: SocketAddr,
    /// Whether the latest connection was opened to it.
    pub is_in_use: bool,
    /// Why the latest connect to it failed, if it did. Such an address is tried last for a while.
    pub failure: Option<String>,
}

/// Results of lookups and connects for one name.
#[derive(Default)]
pub(super) struct AddressBook(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    /// When the latest lookup began. One that began earlier and ends later is out of date.
    began: Option<Instant>,
    /// The addresses of the latest lookup that succeeded, and when it did.
    found: Option<(Arc<[SocketAddr]>, Instant)>,
    /// Why the latest lookup failed.
    failure: Option<Arc<io::Error>>,
    /// The address of the latest connection.
    in_use: Option<SocketAddr>,
    /// At most [`FAILED_MAX`].
    failed: Vec<FailedAddress>,
}

/// An address whose latest connect failed.
struct FailedAddress {
    address: SocketAddr,
    cause: String,
    pauses: BackOff,
    tried_last_until: Instant,
}

impl AddressBook {
    /// Records the result of a lookup that began at this moment.
    pub(super) fn record_lookup(&self, began: Instant, found: &LookupResult) {
        let mut entries = lock(&self.0);
        if entries.began.is_some_and(|latest| latest > began) {
            return;
        }
        entries.began = Some(began);
        entries.failure = found.as_ref().err().cloned();
        if let Ok(addresses) = found {
            entries.found = Some((Arc::clone(addresses), Instant::now()));
        }
    }

    /// Records that a connect succeeded.
    pub(super) fn connected(&self, address: SocketAddr) {
        let mut entries = lock(&self.0);
        entries.in_use = Some(address);
        entries.failed.retain(|failed| failed.address != address);
    }

    /// Records that a connect failed.
    pub(super) fn failed(&self, address: SocketAddr, cause: String, now: Instant) {
        let mut entries = lock(&self.0);
        let failed = &mut entries.failed;
        if let Some(known) = failed.iter_mut().find(|known| known.address == address) {
            known.cause = cause;
            // Many calls may fail together, which is one failure.
            if known.tried_last_until <= now {
                known.tried_last_until = now + known.pauses.pause();
            }
            return;
        }
        if failed.len() == FAILED_MAX {
            let ends = failed.iter().enumerate();
            let soonest = ends.min_by_key(|(_, known)| known.tried_last_until);
            let soonest = soonest.map(|(place, _)| place);
            failed.swap_remove(soonest.expect("the list is full"));
        }
        let mut pauses = BackOff::doubling(TRIED_LAST.0, TRIED_LAST.1);
        failed.push(FailedAddress {
            address,
            cause,
            tried_last_until: now + pauses.pause(),
            pauses,
        });
    }

    /// Puts addresses that failed lately behind the others. When the time of one is over, one connect tries it in
    /// its old place, and others pass it over until that connect has succeeded.
    pub(super) fn put_in_order(&self, addresses: &mut [SocketAddr], now: Instant) {
        let mut entries = lock(&self.0);
        if entries.failed.is_empty() {
            return;
        }
        addresses.sort_by_cached_key(|address| {
            let mut failed = entries.failed.iter_mut();
            let known = failed.find(|known| known.address == *address)?;
            if known.tried_last_until <= now {
                known.tried_last_until = now + known.pauses.pause();
                return None;
            }
            Some(known.tried_last_until)
        });
    }

    /// The addresses of the name now, with the failure of each.
    pub(super) fn state(&self, now: Instant) -> NameState {
        let entries = lock(&self.0);
        let shown = |address: &SocketAddr| {
            let mut failed = entries.failed.iter();
            AddressState {
                address: *address,
                is_in_use: entries.in_use == Some(*address),
                failure: failed
                    .find(|known| known.address == *address)
                    .map(|known| known.cause.clone()),
            }
        };
        let found = entries.found.as_ref();
        let addresses = found.map(|(addresses, _)| addresses.iter().take(SHOWN_MAX));
        NameState {
            addresses: addresses.into_iter().flatten().map(shown).collect(),
            age: found.map(|(_, at)| now.saturating_duration_since(*at)),
            failure: entries.failure.as_ref().map(ToString::to_string),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn address(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 80).into()
    }

    fn fail(book: &AddressBook, last: u8, now: Instant) {
        book.failed(address(last), "refused".to_owned(), now);
    }

    fn check_order(book: &AddressBook, now: Instant, expected: [u8; 3]) {
        let mut addresses = [1, 2, 3].map(address);
        book.put_in_order(&mut addresses, now);
        assert_eq!(addresses, expected.map(address));
    }

    #[test]
    fn an_address_that_failed_is_tried_last_for_a_while_that_doubles() {
        let (book, start) = (AddressBook::default(), Instant::now());
        check_order(&book, start, [1, 2, 3]);
        fail(&book, 1, start);
        check_order(&book, start, [2, 3, 1]);
        check_order(&book, start + 29 * SECOND, [2, 3, 1]);
        // One connect tries it again, and no other until that one has ended.
        let again = start + 30 * SECOND;
        check_order(&book, again, [1, 2, 3]);
        check_order(&book, again, [2, 3, 1]);
        fail(&book, 1, again);
        check_order(&book, again + 59 * SECOND, [2, 3, 1]);
        check_order(&book, again + 60 * SECOND, [1, 2, 3]);
        book.connected(address(1));
        check_order(&book, again + 60 * SECOND, [1, 2, 3]);
        check_order(&book, again + 60 * SECOND, [1, 2, 3]);
        fail(&book, 1, again);
        check_order(&book, again + 29 * SECOND, [2, 3, 1]);
        check_order(&book, again + 30 * SECOND, [1, 2, 3]);
    }

    #[test]
    fn of_addresses_that_all_failed_the_one_whose_time_ends_first_comes_first() {
        let (book, start) = (AddressBook::default(), Instant::now());
        fail(&book, 2, start);
        fail(&book, 3, start + SECOND);
        fail(&book, 1, start + 2 * SECOND);
        check_order(&book, start + 3 * SECOND, [2, 3, 1]);
    }

    #[test]
    fn failures_in_one_while_count_once() {
        let (book, start) = (AddressBook::default(), Instant::now());
        for _ in 0..100 {
            fail(&book, 1, start);
        }
        check_order(&book, start + 30 * SECOND, [1, 2, 3]);
    }

    #[test]
    fn the_failures_of_many_addresses_are_bounded() {
        let (book, start) = (AddressBook::default(), Instant::now());
        for last in 0..=255 {
            fail(
                &book,
                last,
                start + u32::from(last) * Duration::from_millis(1),
            );
        }
        assert_eq!(lock(&book.0).failed.len(), FAILED_MAX);
        check_order(&book, start + SECOND, [1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_state_shows_the_latest_lookup_and_keeps_addresses_when_one_fails() {
        let book = AddressBook::default();
        assert_eq!(book.state(Instant::now()), NameState::default());
        let first = Instant::now();
        tokio::time::advance(SECOND).await;
        let second = Instant::now();
        book.record_lookup(second, &Ok([1, 2].map(address).into()));
        // A lookup that began earlier and took longer has an old answer.
        book.record_lookup(first, &Ok([3].map(address).into()));
        book.connected(address(2));
        fail(&book, 1, second);
        let failure = io::Error::other("no server answered");
        tokio::time::advance(SECOND).await;
        book.record_lookup(Instant::now(), &Err(Arc::new(failure)));
        let state = book.state(Instant::now());
        let shown = |last, is_in_use, failure: Option<&str>| AddressState {
            address: address(last),
            is_in_use,
            failure: failure.map(str::to_owned),
        };
        assert_eq!(
            state.addresses,
            [shown(1, false, Some("refused")), shown(2, true, None)]
        );
        assert_eq!(state.age, Some(SECOND));
        assert_eq!(state.failure.as_deref(), Some("no server answered"));
    }
}
