//! Grants of Doorman, and the grants of a book to the same requests.
//!
//! Every answer of Doorman's tests, documentation, tutorial and simulation is the book's as well,
//! and so is nearly every one that was measured on the real server. Where the real server is wrong
//! by its own document, [`RIGHT`] says what is granted instead, and why.

#[path = "book_vectors/leases.rs"]
mod vectors;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use tidegate_leases::book::{Band, Book, Capacity, Holder, HolderReport, Split, Terms};
use tidegate_limits::Timestamp;
use tidegate_limits::bucket::OutOfRange;
use vectors::{Request, Source, VECTORS, Vector};

/// Vector, number of the request, what is right, and why.
const RIGHT: &[(&str, usize, f64, Why)] = &[
    ("q-fair-over-wants", 3, 43.0, Why::MaxMin),
    ("q-fair-over-wants", 6, 40.0, Why::NeverMoreThanWanted),
    ("q-fair-over-wants", 7, 43.0, Why::MaxMin),
    ("q-fair-over-wants", 10, 40.0, Why::NeverMoreThanWanted),
    ("q-fair-over-wants", 11, 43.0, Why::MaxMin),
    // 50 and 700 are no more than what s0 and s1 ought to have, so s2 gets the other 250.
    ("q-fair-sub-mixed", 2, 250.0, Why::OneLevelForAll),
    // 50, 700 and 250 are held.
    ("q-fair-sub-mixed", 3, 0.0, Why::OneLevelForAll),
    ("q-fair-sub-mixed", 5, 475.0, Why::OneLevelForAll),
    ("q-fair-sub-mixed", 7, 950.0 / 3.0, Why::OneLevelForAll),
    ("q-fair-sub-mixed", 9, 475.0, Why::OneLevelForAll),
    ("q-fair-sub-mixed", 11, 950.0 / 3.0, Why::OneLevelForAll),
    ("q-fair-sub-mixed", 13, 475.0, Why::OneLevelForAll),
    ("q-fair-sub-mixed", 15, 950.0 / 3.0, Why::OneLevelForAll),
    // The other never got more than there is, since what is negative cannot even be asked for.
    ("q-negative-wants", 1, 1000.0, Why::NeverNegative),
    // Half of 10, of the 50 that it has: each holder that asks shrinks to its share.
    ("q-shrink-fair", 0, 5.0, Why::NeverNegative),
    ("q-shrink-prop", 0, 5.0, Why::NeverNegative),
    // What the client wanted before counts there, and stretches the share of what it wants now.
    ("r-01", 4, 196.91, Why::NeverMoreThanWanted),
    // 7.38 was wanted before, so all is given that is free, which leaves c1 nothing for ever.
    ("r-01", 5, 353.57, Why::NewDemandCounts),
    // The others want 413.27 together and each less than 293.365, which is the level.
    ("r-10", 8, 586.73, Why::MaxMin),
];

/// The fault of the real server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The server redistributes twice at most, which is not always max-min fair.
    MaxMin,
    /// The server redistributes twice at most, and compares others with the level of who asks, also where they have
    /// more or fewer clients.
    OneLevelForAll,
    /// The server grants more than was asked for.
    NeverMoreThanWanted,
    /// The server grants less than nothing, which its clients take for no limit at all.
    NeverNegative,
    /// The server decides by what the client wanted before it asked.
    NewDemandCounts,
}

fn terms(split: Split, capacity: f64) -> Terms {
    Terms {
        capacity: Capacity::new(capacity).expect("a capacity"),
        split,
        by_priority: false,
        lease: Duration::from_secs(60),
        refresh: Duration::from_secs(16),
        frees_after: Duration::ZERO,
    }
}

/// Plays a vector to a book; calls `check` with the number of each request, the request and what is
/// granted. A request that no book can be asked is left out.
fn play(vector: &Vector, by_priority: bool, mut check: impl FnMut(usize, &Request, f64)) {
    let mut holders = BTreeMap::new();
    let mut holder = |name| {
        let next = holders.len() as u32;
        *holders.entry(name).or_insert(Holder(next))
    };
    let mut book = Book::new(Terms {
        by_priority,
        ..terms(vector.split, vector.capacity)
    });
    let now = Timestamp::ZERO;
    for known in vector.known {
        let bands = [band(known.1, known.3).expect("what is known is valid")];
        let has = Capacity::new(known.2).expect("what is known is valid");
        let report = HolderReport { bands: &bands, has };
        book.learn(now, holder(known.0), report, None);
    }
    for (number, request) in vector.requests.iter().enumerate() {
        let Request(name, wants, has, clients, _) = *request;
        let Ok(band) = band(wants, clients) else {
            continue;
        };
        let has = Capacity::new(has).expect("what is claimed is valid");
        let report = HolderReport {
            bands: &[band],
            has,
        };
        let lease = if vector.learning {
            book.learn(now, holder(name), report, None)
        } else {
            book.ask(now, holder(name), report, None)
        };
        check(number, request, lease.capacity.get());
    }
}

fn band(wants: f64, clients: u64) -> Result<Band, OutOfRange> {
    Ok(Band {
        priority: 0,
        clients: NonZeroU64::new(clients).expect("there are clients"),
        wants: Capacity::new(wants)?,
    })
}

fn is(got: f64, expected: f64) -> bool {
    (got - expected).abs() <= 1e-6 * expected.abs().max(1.0)
}

#[test]
fn every_request_is_granted_what_doorman_grants_but_where_that_is_wrong() {
    for by_priority in [false, true] {
        let mut corrected = 0;
        for vector in VECTORS {
            play(vector, by_priority, |number, request, got| {
                let mut rights = RIGHT.iter();
                let right = rights.find(|right| (right.0, right.1) == (vector.name, number));
                let expected = match right {
                    Some(right) => {
                        assert_eq!(vector.source, Source::Measured, "{}", vector.name);
                        assert!(!is(right.2, request.4), "{right:?} corrects nothing");
                        corrected += 1;
                        right.2
                    }
                    None => request.4,
                };
                assert!(
                    is(got, expected),
                    "{}, request {number} of {}: {got} instead of {expected}",
                    vector.name,
                    request.0
                );
            });
        }
        assert_eq!(corrected, RIGHT.len());
    }
}

#[test]
fn the_book_never_makes_the_impossible_grants_of_doorman() {
    for vector in VECTORS.iter().filter(|vector| !vector.learning) {
        play(vector, false, |number, request, got| {
            let name = vector.name;
            assert!(got >= 0.0 && got <= request.1, "{name}, {number}: {got}");
        });
    }
}

#[test]
fn demand_and_capacity_are_numbers_that_are_not_negative() {
    for given in [-10.0, -0.001, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = Capacity::new(given).expect_err("no capacity");
        assert_eq!(error.what, "capacity");
    }
    assert_eq!(Capacity::new(-0.0).map(Capacity::get), Ok(0.0));
    // As much as there is, as some clients put it.
    assert_eq!(Capacity::new(f64::MAX), Ok(Capacity::MAX));
}

/// After Doorman's test of its store.
#[test]
fn sums_count_only_leases_that_have_not_expired() {
    let mut book = Book::new(terms(Split::None, 0.0));
    let second = |second| Timestamp::ZERO + Duration::from_secs(second);
    let learn = |book: &mut Book, now, holder, has, wants| {
        let bands = [band(wants, 1).expect("a band")];
        let has = Capacity::new(has).expect("a capacity");
        let report = HolderReport { bands: &bands, has };
        book.learn(now, Holder(holder), report, None)
    };
    let sums = |book: &Book| {
        let (held, wanted) = (book.held().get(), book.wanted().get());
        (held, wanted, book.clients(), book.holders())
    };
    learn(&mut book, second(0), 1, 10.0, 12.0);
    learn(&mut book, second(0), 2, 10.0, 12.0);
    learn(&mut book, second(30), 3, 15.0, 20.0);
    assert_eq!(sums(&book), (35.0, 44.0, 3, 3));
    book.expire(second(59));
    assert_eq!(sums(&book), (35.0, 44.0, 3, 3));
    book.expire(second(60));
    assert_eq!(sums(&book), (15.0, 20.0, 1, 1));
    assert!(book.release(second(61), Holder(3)));
    assert!(!book.release(second(61), Holder(3)));
    assert_eq!(sums(&book), (0.0, 0.0, 0, 0));
    assert_eq!(book.next_due(), None);
}
